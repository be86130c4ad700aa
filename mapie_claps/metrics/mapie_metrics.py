"""MAPIE's metrics under one set of names.

They are one flat module up to 0.9, where coverage and width of several levels have
other names and the level is given as miscoverage. Imported when called: importing
``mapie_claps.metrics`` must work with every MAPIE.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def coverage(y: Array, bounds: Array) -> Array:
    """Coverage of every level."""
    try:
        from mapie.metrics.regression import regression_coverage_score as score
    except ImportError:  # MAPIE 0.9
        from mapie.metrics import regression_coverage_score_v2 as score
    return np.asarray(score(y, bounds), dtype=np.float64)


def mean_width(bounds: Array) -> Array:
    """Mean width of every level."""
    try:
        from mapie.metrics.regression import regression_mean_width_score as score
    except ImportError:  # MAPIE 0.9: one level at a time
        from mapie.metrics import regression_mean_width_score as one_level

        each = range(bounds.shape[2])
        return np.array([one_level(bounds[:, 0, j], bounds[:, 1, j]) for j in each])
    return np.asarray(score(bounds), dtype=np.float64)


def interval_score(y: Array, bounds: Array, level: float) -> float:
    """Winkler score of the first level."""
    try:
        from mapie.metrics.regression import regression_mwi_score
    except ImportError:  # MAPIE 0.9 takes the miscoverage
        from mapie.metrics import regression_mwi_score

        return float(regression_mwi_score(y, bounds, 1 - level))
    return float(regression_mwi_score(y, bounds, level))


def size_stratified(y: Array, bounds: Array, num_bins: int) -> float:
    """Smallest coverage over groups of like width, of the first level."""
    try:
        from mapie.metrics.regression import regression_ssc_score
    except ImportError:  # MAPIE 0.9
        from mapie.metrics import regression_ssc_score
    return float(regression_ssc_score(y, bounds, num_bins=num_bins)[0])


def coverage_width(
    y: Array, lower: Array, upper: Array, eta: float, level: float
) -> float:
    """Coverage-width criterion of one level."""
    try:
        from mapie.metrics.regression import coverage_width_based
    except ImportError:  # MAPIE 0.9 takes the miscoverage
        from mapie.metrics import coverage_width_based

        return float(coverage_width_based(y, lower, upper, eta, 1 - level))
    return float(coverage_width_based(y, lower, upper, eta, level))
