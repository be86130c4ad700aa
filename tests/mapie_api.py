"""Prefit split conformal prediction, in the words of either MAPIE."""

import numpy as np


def prefit_intervals(estimator, score, cal, X_test, level, **options):
    """Predictions and intervals (n, 2, n_levels) of MAPIE around a fitted estimator."""
    try:
        from mapie.regression import SplitConformalRegressor
    except ImportError:
        from mapie.regression import MapieRegressor

        old = MapieRegressor(estimator, conformity_score=score, cv="prefit")
        alpha = [1 - v for v in np.atleast_1d(level)]
        return old.fit(*cal).predict(X_test, alpha=alpha, **options)
    new = SplitConformalRegressor(
        estimator, confidence_level=level, conformity_score=score, prefit=True
    )
    return new.conformalize(*cal).predict_interval(X_test, **options)
