"""φ, h² → HᵀWH → Σ → v: the last layer's Gaussian posterior."""
