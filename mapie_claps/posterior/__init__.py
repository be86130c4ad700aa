"""φ, h² → HᵀWH → Σ: the Gaussian posterior of last layers."""
