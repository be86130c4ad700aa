import math

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.linear_model import BayesianRidge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mapie_claps import metrics
from mapie_claps.exceptions import CrossedBoundsWarning

# Six rows by hand: widths 2, 2, 4, 4, 6, 6; misses by 1 below and by 3 above.
Y = np.array([0.0, 1.0, -3.0, 2.0, 6.0, 0.0])
LOWER = np.array([-1.0, 0.0, -2.0, -2.0, -3.0, -3.0])
UPPER = np.array([1.0, 2.0, 2.0, 2.0, 3.0, 3.0])
INTERVAL = np.stack([LOWER, UPPER], axis=1)
# A second level with one infinite interval.
TWO_LEVELS = np.stack([INTERVAL, INTERVAL * 2], axis=2)
TWO_LEVELS[4, 1, 1] = np.inf


def test_coverage_width_and_score_by_hand():
    assert metrics.coverage(Y, INTERVAL) == pytest.approx([4 / 6])
    assert metrics.mean_width(INTERVAL) == pytest.approx([4.0])
    # 24 of width and 2 / 0.1 · (1 + 3) of misses, over six rows.
    expected = (24 + 20 * 4) / 6
    assert metrics.interval_score(Y, INTERVAL, 0.9) == pytest.approx([expected])
    assert metrics.coverage_error(Y, INTERVAL, 0.9) == pytest.approx([0.9 - 4 / 6])


def test_levels_are_told_apart_and_infinite_bounds_are_safe():
    assert metrics.coverage(Y, TWO_LEVELS) == pytest.approx([4 / 6, 1.0])
    assert metrics.mean_width(TWO_LEVELS).tolist() == [4.0, math.inf]
    scores = metrics.interval_score(Y, TWO_LEVELS, [0.9, 0.95])
    assert scores.tolist() == [pytest.approx((24 + 20 * 4) / 6), math.inf]
    finite = np.stack([INTERVAL, INTERVAL * 2], axis=2)
    scores = metrics.interval_score(Y, finite, [0.9, 0.5])
    # The second level has twice the width, no miss but none to pay.
    assert scores[1] == pytest.approx(48 / 6)


def test_infinite_bounds_cover():
    everything = np.tile([[-np.inf, np.inf]], (6, 1))
    assert metrics.coverage(Y * 1e9, everything).tolist() == [1.0]
    assert metrics.coverage([0.0], [[1.0, np.inf]]).tolist() == [0.0]


def test_evaluate_intervals_where_mapie_refuses():
    constant = np.tile([[-1.0, 1.0]], (6, 1))
    assert np.isnan(metrics.evaluate_intervals(Y, constant, 0.9)["ssc"][0])
    infinite = metrics.evaluate_intervals(Y, TWO_LEVELS, [0.9, 0.95])
    assert np.isnan(infinite["ssc"][1])
    assert infinite["cwc"][1] == -np.inf
    assert np.isfinite(infinite["cwc"][0])


def test_violation_rate_counts_runs_strictly_below():
    # 0.9 itself, and 0.9 but for rounding, are no violations.
    assert metrics.violation_rate([0.9, 0.9 - 1e-12, 0.89, 0.95], 0.9) == 0.25
    two = metrics.violation_rate([[0.88, 0.96], [0.92, 0.96]], [0.9, 0.95])
    assert two.tolist() == [0.5, 0.0]


def test_region_gap_is_the_largest_over_regions():
    regions = {"first": np.arange(6) < 2, "last": np.arange(6) >= 2}
    found = metrics.regional_coverage(Y, TWO_LEVELS, regions)
    assert found["first"].tolist() == [1.0, 1.0]
    assert found["last"].tolist() == [0.5, 1.0]
    gap = metrics.region_gap(Y, TWO_LEVELS, regions, [0.9, 0.95])
    assert gap == pytest.approx([0.4, 0.05])


def test_relative_width_reduction_is_a_mean_of_ratios():
    # Not 1 − 11/20, the ratio of means.
    assert metrics.relative_width_reduction([1, 10], [10, 10]) == pytest.approx(0.45)
    assert metrics.relative_width_reduction([1, 10], [2, 100]) == pytest.approx(0.7)


def test_ranks_average_ties_after_rounding():
    ranks = metrics.average_ranks([[2.0, 1.0, 1.0, 5.0], [1.0, 1.0 + 1e-10, 1.0, 0.5]])
    assert ranks.tolist() == [[3.0, 1.5, 1.5, 4.0], [3.0, 3.0, 3.0, 1.0]]
    assert metrics.average_ranks([[1.0, 1.0 + 1e-8]]).tolist() == [[1.0, 2.0]]


def test_variance_metrics_by_hand():
    assert metrics.epistemic_fraction([1.0, 3.0], [1.0, 1.0]) == pytest.approx(0.375)
    assert metrics.scale_ratio([1.0, 4.0], [3.0, 0.0]) == pytest.approx(1.5)
    assert metrics.width_ratio(3.0, 2.0) == 1.5
    assert metrics.score_difference(3.0, 2.0) == 1.0


def test_noise_floor_diagnostics_by_hand():
    h2 = np.concatenate([[1e-3], np.linspace(0.1, 1.1, 100)])
    found = metrics.noise_floor_diagnostics(h2, 1e-3)
    assert found["min"] == 1e-3
    assert found["p01"] == pytest.approx(np.sort(h2)[1])
    assert found["floor_active"] == pytest.approx(1 / 101)


def test_predictive_nll_is_the_gaussian_density():
    y, mu, std = np.array([1.0, -2.0]), np.array([0.0, 1.0]), np.array([2.0, 0.5])
    density = np.exp(-0.5 * ((y - mu) / std) ** 2) / np.sqrt(2 * np.pi * std**2)
    assert metrics.predictive_nll(y, mu, std) == pytest.approx(-np.log(density).mean())
    with pytest.raises(ValueError, match=r"Got std=0\.0, but expected positive"):
        metrics.predictive_nll([0.0], [0.0], [0.0])


def test_scorer_works_in_a_grid_search_over_a_pipeline():
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, size=(60, 1))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=60)
    kernels = [RBF(v, "fixed") + WhiteKernel(0.01, "fixed") for v in (0.3, 30.0)]
    search = GridSearchCV(
        make_pipeline(StandardScaler(), GaussianProcessRegressor(optimizer=None)),
        {"gaussianprocessregressor__kernel": kernels},
        scoring=metrics.neg_predictive_nll,
        cv=3,
    ).fit(X, y)
    assert search.best_index_ == 0
    model = BayesianRidge().fit(X, y)
    mu, std = model.predict(X, return_std=True)
    assert metrics.neg_predictive_nll(model, X, y) == -metrics.predictive_nll(
        y, mu, std
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.coverage(Y, LOWER), r"y_interval of shape \(6,\)"),
        (lambda: metrics.coverage(Y[:3], INTERVAL), r"expected 6 finite numbers"),
        (lambda: metrics.coverage(Y * np.nan, INTERVAL), "6 values that are not"),
        (lambda: metrics.mean_width(INTERVAL * np.nan), "12 NaN"),
        (lambda: metrics.interval_score(Y, INTERVAL, 1.5), r"confidence_level=1.5"),
        (lambda: metrics.interval_score(Y, INTERVAL, [0.9, 0.8]), "one number or 1"),
        (lambda: metrics.region_gap(Y, INTERVAL, {}, 0.9), "at least one region"),
        (
            lambda: metrics.regional_coverage(Y, INTERVAL, {"none": Y > 100}),
            r"regions\['none'\]",
        ),
        (lambda: metrics.noise_floor_diagnostics([1.0], 0.0), "variance_floor=0.0"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_relative_width_reduction_keeps_levels_apart():
    found = metrics.relative_width_reduction([[1, 3], [1, 1]], [[2, 3], [1, 4]])
    assert found.tolist() == [0.25, 0.375]
    with pytest.raises(ValueError, match=r"reference_widths.shape=\(2,\).*\(2, 2\)"):
        metrics.relative_width_reduction([[1, 3], [1, 1]], [2, 3])


def test_ranks_refuse_nan():
    with pytest.raises(ValueError, match="values='1 NaN in shape"):
        metrics.average_ranks([[1.0, np.nan, 2.0]])


def test_predictive_nll_takes_a_column_and_refuses_other_shapes():
    y, mu, std = np.array([0.0, 1.0, 5.0]), np.zeros(3), np.array([1.0, 2.0, 3.0])
    plain = metrics.predictive_nll(y, mu, std)
    assert metrics.predictive_nll(y[:, None], mu, std) == plain
    assert metrics.predictive_nll(y, mu[:, None], std) == plain
    with pytest.raises(ValueError, match=r"std.shape=\(1,\).*the shape \(3,\) of y"):
        metrics.predictive_nll(y, mu, [1.0])
    with pytest.raises(ValueError, match=r"y.shape=\(3, 2\).*one target at a time"):
        metrics.predictive_nll(np.zeros((3, 2)), mu, std)


CROSSED = np.array([[1.0, -1.0], [2.0, 3.0], [0.0, 1.0], [5.0, 1.0]])


def test_swapped_ends_are_counted_and_named():
    y = np.array([0.0, 2.5, 4.0, 3.0])
    np.testing.assert_array_equal(metrics.crossed_intervals(CROSSED), [2])
    message = "Got 2 of 4 rows whose lower end is above the upper end, the first in row"
    with pytest.warns(CrossedBoundsWarning, match=message):
        width = metrics.mean_width(CROSSED)
    np.testing.assert_allclose(width, [0.5])  # 0, 1, 1, 0
    missed = np.array([2.0, 0.0, 3.0, 4.0])  # both ends count
    expected = (CROSSED[:, 1] - CROSSED[:, 0] + 20 * missed).mean()
    with pytest.warns(CrossedBoundsWarning, match=message):
        score = metrics.interval_score(y, CROSSED, 0.9)
    np.testing.assert_allclose(score, [expected])
    np.testing.assert_array_equal(metrics.coverage(y, CROSSED), [0.25])


def test_an_evaluation_counts_swapped_ends_by_level():
    both = np.stack([CROSSED, np.sort(CROSSED, axis=1)], axis=2)
    found = metrics.evaluate_intervals([0.0, 2.5, 4.0, 3.0], both, [0.8, 0.9])
    np.testing.assert_array_equal(found["crossed"], [2, 0])
    np.testing.assert_allclose(found["width"], [0.5, 2.0])
