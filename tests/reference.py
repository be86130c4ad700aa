"""Oracles in plain NumPy, from the formulas of the paper."""

import math

import numpy as np


def gram(phi, h2, s=None):
    """Sum of s φφᵀ / h² over rows."""
    s = np.ones(len(phi)) if s is None else s
    return sum(w * np.outer(p, p) / h for p, h, w in zip(phi, h2, s, strict=True))


def sigma(phi, h2, prior_precision, s=None):
    """(λI + HᵀWH)⁻¹."""
    precision = prior_precision * np.eye(phi.shape[1]) + gram(phi, h2, s)
    return np.linalg.inv(precision)


def variance(phi, h2, Sigma):
    """h² + φᵀΣφ, row by row."""
    return np.array([h + p @ Sigma @ p for p, h in zip(phi, h2, strict=True)])


def ridge(phi, h2, y, prior_precision, s=None):
    """Posterior mean Σ HᵀWy."""
    s = np.ones(len(phi)) if s is None else s
    return sigma(phi, h2, prior_precision, s) @ (phi.T @ (s * y / h2))


def log_evidence(phi, h2, y, prior_precision):
    """log N(y; 0, diag(h²) + HHᵀ/λ)."""
    K = np.diag(h2) + phi @ phi.T / prior_precision
    _, logdet = np.linalg.slogdet(K)
    return -0.5 * (y @ np.linalg.solve(K, y) + logdet + len(y) * math.log(2 * math.pi))


def split_quantile(scores, level):
    """k-th smallest score, k = ⌈(n + 1) level⌉ in exact arithmetic."""
    k = -((-(len(scores) + 1) * level.numerator) // level.denominator)
    return sorted(scores)[k - 1] if k <= len(scores) else math.inf


def intervals(mu, std, q):
    """μ ∓ q √v."""
    return mu - q * std, mu + q * std
