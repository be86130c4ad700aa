"""Posterior, calibration and intervals over Dask arrays and DataFrames.

Needs ``pip install mapie-claps[dask]``.
"""

from .conformal.dask import (
    conformalize,
    conformity_scores,
    fit_posterior,
    observe,
    predict_interval,
)

__all__ = [
    "conformalize",
    "conformity_scores",
    "fit_posterior",
    "observe",
    "predict_interval",
]
