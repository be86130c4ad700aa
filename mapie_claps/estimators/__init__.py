"""Arrays in, arrays out: ``ClapsRegressor``, ``ClapsModule``, more rows for both."""
