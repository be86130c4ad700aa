"""interval → why. NumPy only."""
