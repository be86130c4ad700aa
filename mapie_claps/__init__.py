"""CLAPS for MAPIE: intervals that say why they are wide.

The data flow through the modules in this order::

    X → φ, μ, h²   _network, _training      heteroscedastic networks
      → HᵀWH       curvature                likelihood adapter for laplace-torch
      → Σ → v      _posterior               last-layer posterior, predictive variance
                   regressor                ClapsRegressor: arrays in, arrays out
      → score      conformity_score         ClapsScore for MAPIE
                   scale_estimator          ClapsScaleEstimator for MAPIE's own score
      → interval   made by MAPIE
      → why        explanation              explain
      → evaluation metrics
"""

from importlib.metadata import version

from .curvature import HeteroscedasticGGN
from .regressor import ClapsRegressor, PredictiveVariance

__version__ = version("mapie-claps")

__all__ = [
    "ClapsRegressor",
    "HeteroscedasticGGN",
    "PredictiveVariance",
]
