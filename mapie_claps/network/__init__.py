"""X → φ, μ, h²: tables become numbers, networks and their training, a kernel."""
