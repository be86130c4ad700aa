"""The metrics number by number, so that no change passes unseen.

What mutation testing (`make mutants`) found untested elsewhere, and direct tests that
make it fast: each runs in milliseconds.
"""

import math
import sys
from types import SimpleNamespace

import mapie.metrics
import numpy as np
import pytest
from conftest import exactly, objects
from test_core_score import Plain

from mapie_claps import metrics
from mapie_claps.metrics import _checks, mapie_metrics


def test_numbers_that_are_not_alike():
    for call, name in (
        (lambda: metrics.width_ratio([1.0, 2.0], [[1.0], [2.0]]), "reference_width"),
        (lambda: metrics.score_difference([1.0], [1.0, 2.0]), "reference_score"),
        (lambda: metrics.epistemic_fraction([1.0], [[1.0]]), "epistemic"),
        (lambda: metrics.scale_ratio([1.0, 2.0], [1.0]), "epistemic"),
    ):
        with pytest.raises(ValueError, match=rf"Got {name}\.shape=.*but expected the"):
            call()
    for call, name in (
        (lambda: metrics.width_ratio([1.0], [np.nan]), "reference_width"),
        (lambda: metrics.relative_width_reduction([np.nan], [1.0]), "widths"),
        (lambda: metrics.violation_rate([0.9, np.nan], 0.9), "coverages"),
        (lambda: metrics.average_ranks([[1.0, np.nan]]), "values"),
        (lambda: metrics.noise_floor_diagnostics([np.nan], 1.0), "aleatoric"),
        (lambda: metrics.predictive_nll([1.0], [np.nan], [1.0]), "mu"),
    ):
        with pytest.raises(ValueError, match=f"^Got {name}='1 NaN in shape"):
            call()
    for call in (
        lambda: metrics.crps([1.0], [[np.nan]]),
        lambda: metrics.crps([np.inf], [[1.0]]),
        lambda: metrics.quantile_loss([np.nan], [[1.0]], [0.5]),
    ):
        with pytest.raises(ValueError, match="^Got y with . values that are not finit"):
            call()


INF = math.inf


@pytest.mark.parametrize(
    ("call", "message"),
    [
        # Parts of a variance.
        (lambda f: f([1.0, 0.0], [1.0, 1.0]), "aleatoric=0.0, .*positive finite"),
        (lambda f: f([-1.0, -2.0], [3.0, 3.0]), "aleatoric=-1.0, .*2 of 2 are not"),
        (lambda f: f([INF, 1.0], [1.0, 1.0]), "aleatoric=inf"),
        (lambda f: f([1.0, 1.0], [1.0, -1e-9]), "epistemic=-1e-09, .*not negative"),
        (lambda f: f([1.0, 1.0], [1.0, INF]), "epistemic=inf, .*1 of 2 are not"),
        (lambda f: f([], []), r"aleatoric='0 NaN in shape \(0,\)', .*at least one"),
    ],
)
def test_parts_that_are_no_variances(call, message):
    for metric in (metrics.epistemic_fraction, metrics.scale_ratio):
        with pytest.raises(ValueError, match=f"^Got {message}"):
            call(metric)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        # In per cent every run would cover enough.
        (lambda: metrics.violation_rate([88.0, 0.91], 0.9), "coverages=88.0, .*shares"),
        (lambda: metrics.violation_rate([0.9, -0.1], 0.9), "coverages=-0.1, .*1 of 2"),
        (lambda: metrics.width_ratio([-1.0], [2.0]), "width=-1.0, .*not negative"),
        (
            lambda: metrics.width_ratio([INF], [INF]),
            "reference_width=inf, .*positive f",
        ),
        (lambda: metrics.width_ratio([0.0], [0.0]), "reference_width=0.0"),
        (lambda: metrics.relative_width_reduction([-1.0], [2.0]), "widths=-1.0"),
        (
            lambda: metrics.relative_width_reduction([1.0, 1.0], [2.0, INF]),
            "reference_widths=inf, .*1 of 2 are not. Leave these rows or runs out",
        ),
        (
            lambda: metrics.score_difference([INF], [INF]),
            "reference_score=inf, .*finit",
        ),
        (lambda: metrics.average_ranks([[[1.0, 2.0]]]), r"values.shape=\(1, 1, 2\)"),
        (lambda: metrics.noise_floor_diagnostics([-1.0, 1.0], 1.0), "aleatoric=-1.0"),
        (lambda: metrics.noise_floor_diagnostics([0.0], 1.0), "aleatoric=0.0"),
        (lambda: metrics.noise_floor_diagnostics([INF], 1.0), "aleatoric=inf"),
        (
            lambda: metrics.noise_floor_diagnostics([1.0], 1.0, rtol=math.nan),
            r"rtol=nan, .*Use 0\.01\.$",
        ),
        (
            lambda: metrics.noise_floor_diagnostics([1.0], 1.0, rtol=-1e-9),
            "rtol=-1e-09",
        ),
        (lambda: metrics.predictive_nll([INF], [0.0], [1.0]), "y=inf, .*finite"),
        (lambda: metrics.predictive_nll([0.0], [-INF], [1.0]), "mu=-inf, .*finite"),
        (
            lambda: metrics.predictive_nll([0.0], [0.0], [INF]),
            "std=inf, .*positive fin",
        ),
        (lambda: metrics.predictive_nll([0.0], [0.0], [0.0]), "std=0.0"),
    ],
)
def test_numbers_without_a_mean_or_a_ratio(call, message):
    with pytest.raises(ValueError, match=f"^Got {message}"):
        call()


def test_numbers_at_the_edge_are_numbers():
    assert metrics.violation_rate([0.0, 1.0], 0.9) == 0.5
    assert metrics.width_ratio([0.0, INF], [1.0, 2.0]).tolist() == [0, INF]
    assert metrics.relative_width_reduction([0.0], [2.0]) == 1
    assert metrics.score_difference([INF, -1.0], [1.0, -2.0]).tolist() == [INF, 1]
    assert metrics.epistemic_fraction([1.0], [0.0]) == 0
    assert metrics.noise_floor_diagnostics([1.0], 1.0, rtol=0)["floor_active"] == 1
    assert metrics.crps([0.0, 0.0], [[-INF, 1.0], [0.0, 1.0]]) == INF


@pytest.mark.parametrize(
    "mask", [["no", "yes"], [math.nan, 1.0], [0, 2], [0, 0], [1], 1, [1.0, 0.5]]
)
def test_regions_that_are_no_masks(mask):
    with pytest.raises(ValueError, match=r"Got regions\['left'\]=.*a mask of shape"):
        metrics.regional_coverage([0.0, 5.0], [[-1, 1], [2, 3]], {"left": mask})


def test_rates_and_ranks_by_hand():
    assert metrics.violation_rate([0.89, 0.91, 0.9, 0.9 - 2e-9], 0.9) == 0.5
    two = metrics.violation_rate([[0.7, 0.9], [0.9, 0.9], [0.9, 0.94]], [0.8, 0.95])
    np.testing.assert_allclose(two, [1 / 3, 1])
    np.testing.assert_allclose(
        metrics.relative_width_reduction([[1.0, 4.0], [3.0, 4.0]], np.full((2, 2), 4)),
        [0.5, 0],
    )
    ranks = metrics.average_ranks([[3.0, 1.0, 1.0 + 4e-10], [1.0, 2.0, 2.1]])
    np.testing.assert_array_equal(ranks, [[3, 1.5, 1.5], [1, 2, 3]])
    np.testing.assert_array_equal(metrics.average_ranks([1.04, 1.0], 1), [[1.5, 1.5]])
    assert metrics.width_ratio([3.0], [2.0]).tolist() == [1.5]
    assert metrics.score_difference([3.0], [2.0]).tolist() == [1.0]


def test_variance_metrics_by_hand():
    assert metrics.epistemic_fraction([3.0, 1.0], [1.0, 3.0]) == 0.5
    assert metrics.scale_ratio([1.0, 2.0], [3.0, 16.0]) == 2.5
    h2 = np.r_[1.0, 1.01, 1.02, np.full(97, 5.0)]
    found = metrics.noise_floor_diagnostics(h2, 1.0)
    assert found["min"] == 1.0
    assert found["floor_active"] == 0.02
    assert found["p01"] == pytest.approx(np.quantile(h2, 0.01))
    assert metrics.noise_floor_diagnostics(h2, 1.0, rtol=0.02)["floor_active"] == 0.03
    y, mu, std = [1.0, 2.0], [0.0, 4.0], [1.0, 2.0]
    expected = 0.5 * (math.log(2 * math.pi) + 1 + math.log(2 * math.pi * 4) + 1) / 2
    assert metrics.predictive_nll(y, mu, std) == pytest.approx(expected)
    for bad in (0.0, -1.0):
        with pytest.raises(ValueError, match=f"Got std={bad}, but expected positive"):
            metrics.predictive_nll(y, mu, [1.0, bad])
    assert metrics.predictive_nll([[1.0], [2.0]], mu, std) == pytest.approx(expected)
    with pytest.raises(ValueError, match=r"Got y.shape=\(1, 2\)"):
        metrics.predictive_nll([y], mu, std)
    with pytest.raises(ValueError, match=r"Got mu.shape=\(2, 2\)"):
        metrics.predictive_nll(y, [mu, mu], std)
    with pytest.raises(ValueError, match=r"Got std.shape=\(\)"):
        metrics.predictive_nll(y, mu, 1.0)
    rows = np.array([[0.0], [2.0]])
    got = metrics.neg_predictive_nll(Plain().fit(None, None), rows, [1.0, 2.0])
    assert got == -metrics.predictive_nll([1.0, 2.0], [0.0, 2.0], [1.0, 5.0])


def test_distribution_metrics_by_hand():
    y, values = [0.0, 4.0], [[1.0, -1.0, 3.0], [0.0, 2.0, 4.0]]
    # By the definition, over all pairs.
    expected = []
    for target, row in zip(y, values, strict=True):
        row = np.array(row)
        pairs = np.abs(row[:, None] - row[None, :]).mean()
        expected.append(np.abs(row - target).mean() - pairs / 2)
    assert metrics.crps(y, values) == pytest.approx(np.mean(expected), rel=1e-12)
    found = metrics.quantile_loss(y, [[1.0, 1.0], [2.0, 5.0]], [0.1, 0.9])
    np.testing.assert_allclose(found, [(0.9 + 0.2) / 2, (0.1 + 0.1) / 2])
    assert metrics.quantile_loss([0.0], [[np.inf]], [0.5]).tolist() == [math.inf]
    for levels in ([0.5], [0.0, 0.5], [0.5, 1.0], [[0.1, 0.9]]):
        with pytest.raises(ValueError, match=r"Got levels=.*expected 2 numbers betw"):
            metrics.quantile_loss(y, [[1.0, 1.0], [2.0, 5.0]], levels)
    for bad in ([[1.0, 2.0]], [1.0, 2.0], np.empty((2, 0))):
        with pytest.raises(ValueError, match=r"Got y of shape \(2,\) and y_values of"):
            metrics.crps(y, bad)
    with pytest.raises(ValueError, match=r"y_quantiles of shape \(1, 1\)"):
        metrics.quantile_loss(y, [[1.0]], [0.5])
    with pytest.raises(ValueError, match=r"Got y of shape \(1, 2\)"):
        metrics.crps([y], [[1.0]])


BOUNDS = np.array([[-1.0, 1.0], [2.0, 6.0], [0.0, 1.0], [1.0, 2.5]])
TARGETS = np.array([0.0, 5.0, 2.0, 3.0])


def test_interval_metrics_by_hand():
    two = np.stack([BOUNDS, BOUNDS + np.array([-3.0, 3.0])], axis=2)
    assert metrics.coverage(TARGETS, BOUNDS).tolist() == [0.5]
    assert metrics.coverage(TARGETS, two).tolist() == [0.5, 1.0]
    assert metrics.coverage([1.0], [[1.0, 1.0]]).tolist() == [1.0]
    assert metrics.mean_width(two).tolist() == [8.5 / 4, 8.5 / 4 + 6]
    score = metrics.interval_score(TARGETS, two, [0.8, 0.9])
    np.testing.assert_allclose(score, [8.5 / 4 + 10 * 1.5 / 4, 8.5 / 4 + 6])
    np.testing.assert_allclose(
        metrics.coverage_error(TARGETS, two, [0.8, 0.9]), [0.3, 0.1]
    )
    assert metrics.crossed_intervals(two).tolist() == [0, 0]
    left = {"left": TARGETS < 1, "right": TARGETS >= 2}
    found = metrics.regional_coverage(TARGETS, two, left)
    assert found["left"].tolist() == [1, 1]
    np.testing.assert_allclose(found["right"], [1 / 3, 1])
    gap = metrics.region_gap(TARGETS, two, left, [0.8, 0.9])
    np.testing.assert_allclose(gap, [0.8 - 1 / 3, 0.1])
    with pytest.raises(ValueError, match="Got regions={}, but expected at least one"):
        metrics.region_gap(TARGETS, two, {}, 0.9)
    for mask, n in ((TARGETS > 9, 0), ([True], 1)):
        with pytest.raises(ValueError, match=rf"Got regions\['r'\]='{n} true of "):
            metrics.regional_coverage(TARGETS, two, {"r": mask})


def test_infinite_and_swapped_intervals_by_hand():
    infinite = np.array([[-np.inf, np.inf], [0.0, 1.0]])
    assert metrics.coverage([5.0, 2.0], infinite).tolist() == [0.5]
    assert metrics.coverage([-9.0, 9.0], [[-np.inf, -9.0], [9.0, np.inf]]) == [1.0]
    assert metrics.mean_width(infinite).tolist() == [math.inf]
    assert metrics.interval_score([5.0, 2.0], infinite, 0.9).tolist() == [math.inf]
    found = metrics.evaluate_intervals([5.0, 2.0], infinite, 0.9)
    assert found["cwc"].tolist() == [-math.inf]
    assert math.isnan(found["ssc"][0])
    swapped = np.array([[0.0, 1.0], [3.0, 2.0], [5.0, 4.0]])
    assert metrics.crossed_intervals(swapped).tolist() == [2]
    with pytest.warns(Warning, match="Got 2 of 3 rows .* the first in row 1"):
        assert metrics.mean_width(swapped).tolist() == [pytest.approx(1 / 3)]
    with pytest.warns(Warning, match="Got 2 of 3 rows"):
        found = metrics.interval_score([0.5, 2.5, 7.0], swapped, 0.8)
    # Ends as they are: 1; −1 + 10·(0.5 + 0.5); −1 + 10·3.
    np.testing.assert_allclose(found, [(1 + 9 + 29) / 3])
    assert metrics.evaluate_intervals([0.5, 2.5, 7.0], swapped, 0.8)["crossed"] == [2]
    assert metrics.coverage([0.5, 2.5, 7.0], swapped).tolist() == [pytest.approx(1 / 3)]


def test_evaluation_by_hand():
    found = metrics.evaluate_intervals(TARGETS, BOUNDS, 0.75)
    assert set(found) == {
        "coverage",
        "coverage_error",
        "width",
        "score",
        "crossed",
        "ssc",
        "cwc",
    }
    assert found["coverage"].tolist() == [0.5]
    assert found["coverage_error"].tolist() == [0.25]
    assert found["width"].tolist() == [8.5 / 4]
    assert found["score"].tolist() == [pytest.approx(8.5 / 4 + 8 * 1.5 / 4)]
    # Widths 2, 4, 1, 1.5 in three groups of like width.
    assert found["ssc"].tolist() == [0.0]
    four = metrics.evaluate_intervals(TARGETS, BOUNDS, 0.75, num_bins=4)
    assert math.isnan(four["ssc"][0])
    assert metrics.evaluate_intervals(TARGETS, BOUNDS, 0.75, num_bins=1)["ssc"] == [0.5]
    small = metrics.evaluate_intervals(1e-7 * TARGETS, 1e-7 * BOUNDS, 0.75)
    assert small["ssc"].tolist() == [0.0]
    assert (
        found["cwc"][0]
        != metrics.evaluate_intervals(TARGETS, BOUNDS, 0.75, eta=1.0)["cwc"][0]
    )


def test_checks_of_metrics():
    bounds = _checks.checked_bounds(BOUNDS)
    assert bounds.shape == (4, 2, 1)
    for bad in (
        np.zeros((4, 3)),
        np.zeros(4),
        np.zeros((0, 2)),
        np.zeros((1, 2, 1, 1)),
    ):
        message = f"Got y_interval of shape {bad.shape}, but"
        with pytest.raises(ValueError, match=exactly(message)):
            _checks.checked_bounds(bad)
    with pytest.raises(ValueError, match="^Got y_interval with 2 NaN"):
        _checks.checked_bounds([[np.nan, np.nan]])
    with pytest.raises(ValueError, match=r"Got y of shape \(4,\) with 1 values that"):
        _checks.checked_rows([0, 1, np.inf, 2], BOUNDS)
    with pytest.raises(ValueError, match=r"Got y of shape \(3,\) with 0 values"):
        _checks.checked_rows([0, 1, 2], BOUNDS)
    assert _checks.checked_levels(0.9, 3).tolist() == [0.9] * 3
    assert _checks.checked_levels([0.8, 0.9], 2).tolist() == [0.8, 0.9]
    for bad in ([0.8, 0.9], [[0.8]]):
        with pytest.raises(ValueError, match="one number or 1, one for each level"):
            _checks.checked_levels(bad, 1)
    for bad in (0.0, 1.0, -1, np.nan):
        with pytest.raises(ValueError, match=r"finite number in \(0, 1\). Use 0.9 for"):
            _checks.checked_levels([bad], 1)
    levels = np.zeros((2, 2, 3))
    levels[0, 0, 1] = np.inf
    levels[1, 1, 2] = -np.inf
    assert _checks.finite_levels(levels).tolist() == [True, False, False]


NEAR_TARGETS = [0.0, 5.0, 2.0, 2.75]


def test_metrics_of_objects_are_those_of_numbers():
    y, ends = objects(*NEAR_TARGETS), BOUNDS.astype(object)
    found = metrics.evaluate_intervals(y, ends, objects(0.75))
    expected = metrics.evaluate_intervals(NEAR_TARGETS, BOUNDS, 0.75)
    for name, value in expected.items():
        assert found[name].dtype == np.float64
        np.testing.assert_array_equal(found[name], value)
    regions = {"all": objects(1, 1, 1, 0)}
    assert metrics.regional_coverage(y, ends, regions)["all"] == [pytest.approx(2 / 3)]
    np.testing.assert_array_equal(
        metrics.score_difference(objects(1, 2, 4), objects(1, 1, 1)),
        metrics.score_difference([1, 2, 4], [1, 1, 1]),
    )
    assert metrics.quantile_loss(y, y[:, None], objects(0.5)) == 0
    assert metrics.crps(y, y[:, None]) == 0
    assert metrics.scale_ratio(objects(1, 2), objects(2, 4)) == metrics.scale_ratio(
        [1, 2], [2, 4]
    )
    np.testing.assert_array_equal(
        metrics.epistemic_fraction(objects(1, 2), objects(2, 4)),
        metrics.epistemic_fraction([1, 2], [2, 4]),
    )


def test_crps_of_unequal_rows_by_hand():
    values = np.array([[3.0, 1.0], [0.0, 10.0]])
    y = [2.0, 0.0]
    expected = []
    for row, target in zip(values, y, strict=True):
        pairs = np.abs(row[:, None] - row).mean()
        expected.append(np.abs(row - target).mean() - pairs / 2)
    assert metrics.crps(y, values) == pytest.approx(np.mean(expected))


def test_points_are_no_swapped_ends():
    points = np.array([[1.0, 1.0], [2.0, 1.0]])
    assert _checks.crossed_rows(points[:, :, None]).tolist() == [1]
    with pytest.warns(Warning, match="Got 1 of 2 rows .* the first in row 1"):
        metrics.mean_width(points)


def test_rates_at_the_level_itself_and_of_one_level():
    level = 0.9
    assert metrics.violation_rate([level - 1e-15, level], level) == 0
    assert metrics.violation_rate([0.8, 0.95], [level]) == 0.5
    message = "one number or 1, one for each level"
    with pytest.raises(ValueError, match=message):
        metrics.violation_rate([0.8, 0.95], [0.9, 0.8])
    assert np.shape(metrics.violation_rate([0.8, 0.95], level)) == ()


def test_default_weight_of_coverage():
    found = metrics.evaluate_intervals(NEAR_TARGETS, BOUNDS, 0.75)["cwc"]
    given = metrics.evaluate_intervals(NEAR_TARGETS, BOUNDS, 0.75, eta=30.0)["cwc"]
    assert found.tolist() == given.tolist()
    # MAPIE: (1 − mean width / range) · exp(−η (coverage − level)²).
    width = np.diff(BOUNDS, axis=1).mean() / np.ptp(NEAR_TARGETS)
    expected = (1 - width) * math.exp(-30 * (0.5 - 0.75) ** 2)
    assert found[0] == pytest.approx(expected)
    points = np.column_stack([NEAR_TARGETS, NEAR_TARGETS])
    assert math.isnan(metrics.evaluate_intervals(NEAR_TARGETS, points, 0.75)["ssc"][0])


def test_a_floor_of_none_is_refused_with_advice():
    with pytest.raises(ValueError, match=r"Use 1e-3\.$"):
        metrics.noise_floor_diagnostics([1.0], 0.0)


def test_metrics_of_the_oldest_release(monkeypatch):
    """Stand-ins with the names and arguments of MAPIE 0.9, one level or 1 − level."""
    asked = {}

    def keep(name, value):
        def metric(*given):
            asked[name] = given
            return value

        monkeypatch.setattr(mapie.metrics, name, metric, raising=False)

    monkeypatch.setitem(sys.modules, "mapie.metrics.regression", None)
    keep("regression_coverage_score_v2", [[0.5]])
    keep("regression_mwi_score", 7)
    keep("coverage_width_based", 8)

    def one_level(lower, upper):
        return np.mean(upper - lower)

    monkeypatch.setattr(
        mapie.metrics, "regression_mean_width_score", one_level, raising=False
    )
    both = np.stack([BOUNDS, 2 * BOUNDS], axis=2)
    assert mapie_metrics.mean_width(both).tolist() == [8.5 / 4, 17 / 4]
    y = np.array(NEAR_TARGETS)
    assert mapie_metrics.coverage(y, both).dtype == np.float64
    assert asked["regression_coverage_score_v2"] == (y, both)
    assert mapie_metrics.interval_score(y, both, 0.75) == 7.0
    assert asked["regression_mwi_score"] == (y, both, 0.25)
    found = mapie_metrics.coverage_width(y, both[:, 0, 0], both[:, 1, 0], 30.0, 0.75)
    assert found == 8.0
    given = asked["coverage_width_based"]
    assert given[0] is y
    assert given[1].tolist() == BOUNDS[:, 0].tolist()
    assert given[2].tolist() == BOUNDS[:, 1].tolist()
    assert given[3:] == (30.0, 0.25)


def test_what_a_metric_returns_becomes_float64(monkeypatch):
    monkeypatch.setitem(
        sys.modules,
        "mapie.metrics.regression",
        SimpleNamespace(
            regression_coverage_score=lambda y, bounds: [1],
            regression_mean_width_score=lambda bounds: [2],
        ),
    )
    assert mapie_metrics.coverage(None, None).dtype == np.float64
    assert mapie_metrics.mean_width(None).dtype == np.float64
