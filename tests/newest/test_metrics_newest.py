"""Metrics that MAPIE computes, under the names that it has from 1.0 on."""

import numpy as np
from mapie.metrics import regression

from mapie_claps import metrics


def test_evaluate_intervals_equals_mapie():
    rng = np.random.default_rng(0)
    y = rng.normal(size=50)
    half = rng.uniform(0.5, 2, size=50)
    bounds = np.stack([-half, half], axis=1)[:, :, None]
    found = metrics.evaluate_intervals(y, bounds, 0.9)
    assert found["ssc"] == regression.regression_ssc_score(y, bounds)
    assert found["cwc"] == regression.coverage_width_based(
        y, -half, half, eta=30.0, confidence_level=0.9
    )
    # The size-stratified coverage does not depend on the unit of y.
    small = metrics.evaluate_intervals(1e-6 * y, 1e-6 * bounds, 0.9)
    assert small["ssc"] == found["ssc"]
