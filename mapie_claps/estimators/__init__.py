"""Estimators: arrays in, predictive distributions out."""
