"""X → φ, μ, h²: tables, members and their training."""
