"""v → score → interval: all that knows MAPIE."""
