"""X → φ, μ, h²: encodings, networks and their training."""
