"""v → score → interval, and all that knows MAPIE."""
