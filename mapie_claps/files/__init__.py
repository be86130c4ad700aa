"""Fitted estimators to a file and back, without pickle."""
