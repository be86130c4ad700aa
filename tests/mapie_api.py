"""Prefit split conformal prediction, in the words of either MAPIE."""

import numpy as np


def calibrated_prefit(estimator, score, cal, level):
    """Calibrated MAPIE object, and what it wants to hear when it predicts."""
    try:
        from mapie.regression import SplitConformalRegressor
    except ImportError:
        from mapie.regression import MapieRegressor

        old = MapieRegressor(estimator, conformity_score=score, cv="prefit")
        return old.fit(*cal), {"alpha": [1 - v for v in np.atleast_1d(level)]}
    new = SplitConformalRegressor(
        estimator, confidence_level=level, conformity_score=score, prefit=True
    )
    return new.conformalize(*cal), {}


def prefit_intervals(estimator, score, cal, X_test, level, **options):
    """Predictions and intervals (n, 2, n_levels) of MAPIE around a fitted estimator."""
    mapie, levels = calibrated_prefit(estimator, score, cal, level)
    predict = getattr(mapie, "predict_interval", mapie.predict)
    return predict(X_test, **levels, **options)
