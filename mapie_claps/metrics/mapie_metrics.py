"""MAPIE's metrics under one set of names.

They are one flat module up to 0.9, where coverage and width of several levels have
other names and the level is given as miscoverage. Imported when called: importing
``mapie_claps.metrics`` must work with every MAPIE.
"""

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def _mapie() -> tuple[Any, bool]:
    """The module of MAPIE's metrics, and whether it is that of 0.9."""
    try:
        return import_module("mapie.metrics.regression"), False
    except ImportError:
        return import_module("mapie.metrics"), True


def coverage(y: Array, bounds: Array) -> Array:
    """Coverage of every level."""
    mapie, old = _mapie()
    name = "regression_coverage_score_v2" if old else "regression_coverage_score"
    return np.asarray(getattr(mapie, name)(y, bounds), dtype=np.float64)


def mean_width(bounds: Array) -> Array:
    """Mean width of every level."""
    mapie, old = _mapie()
    score = mapie.regression_mean_width_score
    widths = [score(*level) for level in bounds.T] if old else score(bounds)
    return np.asarray(widths, dtype=np.float64)


def interval_score(y: Array, bounds: Array, level: float) -> float:
    """Winkler score of the first level."""
    mapie, old = _mapie()
    return float(mapie.regression_mwi_score(y, bounds, 1 - level if old else level))


def size_stratified(y: Array, bounds: Array, num_bins: int) -> float:
    """Smallest coverage over groups of like width, of the first level."""
    mapie, _ = _mapie()
    return float(mapie.regression_ssc_score(y, bounds, num_bins=num_bins)[0])


def coverage_width(
    y: Array, lower: Array, upper: Array, eta: float, level: float
) -> float:
    """Coverage-width criterion of one level."""
    mapie, old = _mapie()
    level = 1 - level if old else level
    return float(mapie.coverage_width_based(y, lower, upper, eta, level))
