"""Arrays in, arrays out: ``ClapsRegressor`` and ``ClapsModule``."""
