"""Metrics by hand, against MAPIE's own, and with bad input."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mapie_claps import metrics
from mapie_claps.exceptions import CrossedBoundsWarning

INF = math.inf
# Six rows by hand: widths 2, 2, 4, 4, 6, 6; misses by 1 below and by 3 above.
Y = np.array([0.0, 1.0, -3.0, 2.0, 6.0, 0.0])
LOWER = np.array([-1.0, 0.0, -2.0, -2.0, -3.0, -3.0])
UPPER = np.array([1.0, 2.0, 2.0, 2.0, 3.0, 3.0])
INTERVAL = np.stack([LOWER, UPPER], axis=1)
# A second level with one infinite interval.
TWO_LEVELS = np.stack([INTERVAL, INTERVAL * 2], axis=2)
TWO_LEVELS[4, 1, 1] = INF


def evaluated(y, y_interval, level=0.9):
    """Coverage, width and score at each level."""
    found = metrics.evaluate_intervals(y, y_interval, level)
    return [found[name].tolist() for name in ("coverage", "width", "score")]


def test_coverage_width_and_score_by_hand():
    # 24 of width and 2 / 0.1 · (1 + 3) of misses, over six rows.
    score = (24 + 20 * 4) / 6
    assert evaluated(Y, INTERVAL) == [pytest.approx([x]) for x in (4 / 6, 4.0, score)]
    assert evaluated([1.0], [[1.0, 1.0]])[0] == [1.0]


def test_infinite_bounds_are_safe_and_levels_are_told_apart():
    found, width, scores = evaluated(Y, TWO_LEVELS, [0.9, 0.95])
    assert found == pytest.approx([4 / 6, 1.0])
    assert width == [4.0, INF]
    assert scores == [pytest.approx((24 + 20 * 4) / 6), INF]
    assert evaluated([0.0], [[1.0, INF]])[0] == [0.0]
    assert evaluated([-9.0, 9.0], [[-INF, -9.0], [9.0, INF]])[0] == [1.0]
    assert evaluated([0.0, 0.0], [[INF, INF], [0.0, 1.0]])[1] == [INF]


def test_finite_bounds_have_the_figures_of_mapie():
    from mapie import metrics as theirs

    rng = np.random.default_rng(0)
    y, lower = rng.normal(size=50), rng.normal(-1, 0.5, 50)
    bounds = np.stack([lower, lower + rng.uniform(1, 3, 50)], axis=1)[:, :, None]
    try:
        from mapie.metrics import regression as theirs
    except ImportError:  # 0.9: one flat module, other names, miscoverage for level
        covered = theirs.regression_coverage_score_v2(y, bounds)
        width = theirs.regression_mean_width_score(bounds[:, 0, 0], bounds[:, 1, 0])
        score = theirs.regression_mwi_score(y, bounds, 0.2)
    else:
        covered = theirs.regression_coverage_score(y, bounds)
        width = theirs.regression_mean_width_score(bounds)
        score = theirs.regression_mwi_score(y, bounds, 0.8)
    expected = [np.ravel(values) for values in (covered, width, score)]
    np.testing.assert_allclose(evaluated(y, bounds, 0.8), expected)


def test_swapped_ends_are_counted_and_named():
    crossed = np.array([[1.0, -1.0], [2.0, 3.0], [0.0, 1.0], [5.0, 1.0]])
    y = np.array([0.0, 2.5, 4.0, 3.0])
    message = "Got 2 of 4 rows whose lower end is above .*, the first in row 0"
    missed = np.array([2.0, 0.0, 3.0, 4.0])  # both ends count
    expected = (crossed[:, 1] - crossed[:, 0] + 20 * missed).mean()
    both = np.stack([crossed, np.sort(crossed, axis=1)], axis=2)
    with pytest.warns(CrossedBoundsWarning, match=message):
        score = metrics.evaluate_intervals(y, crossed, 0.9)["score"]
    with pytest.warns(CrossedBoundsWarning, match=message):
        found = metrics.evaluate_intervals(y, both, [0.8, 0.9])
    np.testing.assert_allclose(score, [expected])
    np.testing.assert_array_equal(found["coverage"], [0.25, 0.75])
    np.testing.assert_allclose(found["width"], [0.5, 2.0])  # 0, 1, 1, 0 at first


def test_an_evaluation_is_a_table_of_groups_and_levels():
    groups = np.array(["b", "b", "a", "a", "a", "a"])
    finite = np.stack([INTERVAL, INTERVAL * 2], axis=2)
    table = pd.DataFrame(
        metrics.evaluate_intervals(Y, finite, [0.5, 0.9], groups=groups)
    )
    assert list(table["group"]) == ["all"] * 2 + ["a"] * 2 + ["b"] * 2
    assert list(table["confidence_level"]) == [0.5, 0.9] * 3
    for label, rows in table.groupby("group"):
        mask = np.ones(6, bool) if label == "all" else groups == label
        assert (rows["n"] == mask.sum()).all()
        y, bounds = Y[mask], finite[mask]
        expected = evaluated(y, bounds, [0.5, 0.9])
        np.testing.assert_allclose(rows[["coverage", "width", "score"]].T, expected)


def test_labels_keep_their_type():
    def groups_of(labels):
        table = metrics.evaluate_intervals(Y, INTERVAL, 0.9, groups=labels)
        return table["group"].tolist(), table["n"].tolist()

    assert groups_of(np.array([1, "b"] * 3, dtype=object))[0] == ["all", 1, "b"]
    assert groups_of(np.arange(6) % 2)[0] == ["all", 0, 1]
    days = np.datetime64("2024-01-01", "ns") + np.arange(6) // 3
    assert groups_of(days)[1] == [6, 3, 3]
    bins = pd.qcut([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], 3)
    assert groups_of(bins) == (["all", *bins.categories], [6, 2, 2, 2])


def test_binomial_limits_leave_half_the_error_on_each_side():
    y, groups = np.zeros(64), np.repeat(["a", "b", "c"], [50, 7, 7])
    y[45:57] = 9.0
    table = metrics.evaluate_intervals(y, [[-1.0, 1.0]] * 64, 0.9, groups=groups)
    low, high = table["coverage_low"], table["coverage_high"]
    assert binom.sf(44, 50, low[1]) == pytest.approx(0.025)
    assert binom.cdf(45, 50, high[1]) == pytest.approx(0.025)
    assert (low[2], high[3]) == (0, 1)  # none and all of seven rows


class Gaussian:
    """Means and standard deviations, whatever X is."""

    def __init__(self, mu, std):
        self.mu, self.std = np.array(mu), np.array(std)

    def predict(self, X, return_std):
        return self.mu, self.std


def test_the_scorer_is_the_gaussian_density():
    y, mu, std = np.array([1.0, -2.0]), np.array([0.0, 1.0]), np.array([2.0, 0.5])
    density = np.exp(-0.5 * ((y - mu) / std) ** 2) / np.sqrt(2 * np.pi * std**2)
    found = metrics.neg_predictive_nll(Gaussian(mu, std), None, y[:, None])
    assert found == pytest.approx(np.log(density).mean())


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


HIDDEN = np.ma.masked_equal(Y, 0)
NO_TIME = np.array(["a", pd.NaT] * 3, dtype=object)
NO_TEXT = pd.array(["a", None] * 3, dtype="string")


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("intervals", (Y, LOWER, 0.9), r"y_interval of shape \(6,\)"),
        ("intervals", (Y, np.empty((0, 2)), 0.9), r"y_interval of shape \(0, 2\)"),
        ("intervals", (Y[:3], INTERVAL, 0.9), "one number per row, for 6 rows"),
        ("intervals", (Y * np.nan, INTERVAL, 0.9), "y with nan in row 0"),
        ("intervals", (["a"], [[0, 1]], 0.9), "y that holds no numbers: .*'a'"),
        ("intervals", ([None], [[0, 1]], 0.9), "y with nan in row 0"),
        ("intervals", (HIDDEN, INTERVAL, 0.9), "y as a masked array with 2"),
        ("intervals", (Y, INTERVAL * np.nan, 0.9), "y_interval with nan .* 12 of"),
        ("intervals", (Y, INTERVAL, 1.5), "confidence_level=1.5"),
        ("intervals", (Y, INTERVAL, [0.9, 0.8]), "one number or 1"),
        ("groups", [[1, 2]], r"groups of shape \(2,\) for 6 rows"),
        ("groups", [[1, np.nan] * 3], "groups of .* with 3 missing labels"),
        ("groups", [["a", None] * 3], "groups of .* with 3 missing labels"),
        ("groups", [NO_TEXT], "groups of .* with 3 missing labels"),
        ("groups", [NO_TIME], "groups of .* with 3 missing labels"),
        ("intervals", ([INF], [[0, 1]], 0.9), "y with inf in row 0"),
        ("intervals", ([[1.0, 2.0]], [[0, 1]], 0.9), r"y of shape \(1, 2\)"),
        ("scorer", (Gaussian([0], [0]), None, [1]), "deviation of 0.0 in row 0"),
        ("scorer", (Gaussian(Y, [1.0]), None, Y), r"deviation of shape \(1,\)"),
        ("scorer", (Gaussian([INF], [1]), None, [0]), "a prediction of inf in row 0"),
    ],
)
def test_bad_input_is_named(name, arguments, message):
    def by_group(groups):
        metrics.evaluate_intervals(Y, INTERVAL, 0.9, groups=groups)

    calls = {
        "intervals": metrics.evaluate_intervals,
        "groups": by_group,
        "scorer": metrics.neg_predictive_nll,
    }
    with pytest.raises(ValueError, match=f"^Got .*{message}"):
        calls[name](*arguments)
