"""End points on the values that y can take."""

import numpy as np
import pytest
from conftest import heteroscedastic, tiny
from mapie_api import prefit_intervals

from mapie_claps import (
    CalibratedRegressor,
    ClapsScore,
    StreamingConformalRegressor,
)
from mapie_claps.conformal.support import check_support, score_rows
from mapie_claps.estimators.local_law import LocalLaw
from mapie_claps.estimators.target_range import TargetRange


def test_end_points_by_hand():
    lower = np.array([[0.2, -1.0, 2.2, -np.inf, 4.0]])
    upper = np.array([[3.9, 1.0, 2.7, np.inf, 4.0 + 1e-13]])
    low, up = check_support("integer").snap(lower, upper)
    np.testing.assert_array_equal(low, [[0, -1, 2, -np.inf, 4]])
    np.testing.assert_array_equal(up, [[4, 1, 3, np.inf, 4]])
    low, up = check_support([0.0, 2.5, 4.0]).snap(lower, upper)
    np.testing.assert_array_equal(low, [[0, 0, 2.5, -np.inf, 4]])
    np.testing.assert_array_equal(up, [[4, 0, 2.5, np.inf, 4]])
    low, up = check_support("count").snap(lower, upper)
    np.testing.assert_array_equal(low, [[0, 0, 2, -np.inf, 4]])
    low, up = check_support((0, 3.5)).snap(lower, upper)
    np.testing.assert_array_equal(low, [[0.2, 0, 2.2, -np.inf, 3.5]])
    np.testing.assert_array_equal(up, [[3.5, 1, 2.7, np.inf, 3.5]])


@pytest.mark.parametrize("seed", range(5))
def test_no_supported_value_is_lost(seed):
    rng = np.random.default_rng(seed)
    lower = rng.normal(0, 3, (200, 2))
    upper = lower + rng.exponential(2, (200, 2))
    for support, values in (
        ("integer", np.arange(-60, 60.0)),
        ("count", np.arange(60.0)),
        ((v := np.sort(rng.normal(0, 3, 9))).tolist(), v),
    ):
        low, up = check_support(support).snap(lower, upper)
        for value in values:
            inside = (lower <= value) & (value <= upper)
            assert ((low <= value) & (value <= up))[inside].all()
        assert np.isin(low, values).all()
        assert np.isin(up, values).all()
        assert (low <= up).all()


def test_rounding_does_not_lose_the_end_point():
    ends = np.array([[0.1 * 3 * 10]]), np.array([[2.9999999999999996]])
    low, up = check_support("integer").snap(*ends)
    assert (low[0, 0], up[0, 0]) == (3, 3)


def test_values_of_any_unit():
    support = check_support(np.arange(11) * 1e-10)
    low, up = support.snap(np.array([[2.6e-10]]), np.array([[3.4e-10]]))
    np.testing.assert_allclose([low, up], [[[3e-10]], [[3e-10]]])
    np.testing.assert_array_equal(
        support.contains(np.array([3e-10, 3.1e-10, 2e-9])), [True, False, False]
    )


@pytest.mark.parametrize(
    ("support", "inside"),
    [
        ("integer", [True, False, True, True]),
        ("non-negative", [True, True, False, True]),
        ("count", [True, False, False, True]),
        ((0, None), [True, True, False, True]),
        ((None, 2.5), [True, True, True, False]),
        ([1, 2], [True, False, False, False]),
    ],
)
def test_targets_outside_have_an_infinite_score(support, inside):
    law = LocalLaw.symmetric(np.zeros(4), np.ones(4))
    scores = score_rows(law, np.array([1.0, 1.5, -1.0, 3.0]), check_support(support))
    np.testing.assert_array_equal(np.isfinite(scores), inside)
    assert (scores[~np.isfinite(scores)] > 0).all()


def test_rows_outside_are_paid_for_by_the_rank():
    X, y = heteroscedastic(300)
    model = tiny().fit(X[:150], y[:150])
    cal = CalibratedRegressor(model, support=(None, float(np.quantile(y, 0.95))))
    cal.conformalize(X[150:], y[150:])
    outside = np.isinf(cal.conformity_scores_)
    assert outside.sum() == (y[150:] > np.quantile(y, 0.95)).sum() > 0
    plain = CalibratedRegressor(model, support=None).conformalize(X[150:], y[150:])
    assert cal.quantiles()[0] > plain.quantiles()[0]
    # More of them than may be missed: no finite interval has the coverage.
    wrong = CalibratedRegressor(model, support=(None, float(np.median(y))))
    _, found = wrong.conformalize(X[150:], y[150:]).predict_interval(X)
    assert (found[:, 0] == -np.inf).all()
    assert (found[:, 1] == np.inf).all()


def test_integer_targets_through_mapie():
    X, y = heteroscedastic(400)
    y = np.round(4 * y)
    model = tiny().fit(X[:150], y[:150])
    cal, test = (X[150:280], y[150:280]), (X[280:], y[280:])
    _, plain = prefit_intervals(
        model, ClapsScore(model, support=None), cal, test[0], 0.9
    )
    score = ClapsScore(model, support="integer")
    _, whole = prefit_intervals(model, score, cal, test[0], 0.9)
    np.testing.assert_array_equal(whole, np.round(plain))

    def inside(b):
        return (b[:, 0, 0] <= test[1]) & (test[1] <= b[:, 1, 0])

    assert (inside(whole) >= inside(plain)).all()


def test_integers_are_not_negative_where_no_training_target_was():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (400, 1))
    y = rng.poisson(np.exp(X[:, 0])).astype(float)
    model = tiny(target_map=None).fit(X[:200], y[:200])
    cal = CalibratedRegressor(model, support="integer")
    bounds = cal.conformalize(X[200:], y[200:]).predict_interval(X)[1]
    assert bounds.min() == 0
    # A calibration target below has no finite score: the rank pays for it.
    assert np.isposinf(cal.score_rows(X[:2], [-1.0, 1.0], signed=True)).tolist() == [
        True,
        False,
    ]
    signed = tiny(target_map=None).fit(X[:200], y[:200] - 3)
    cal = CalibratedRegressor(signed, support="integer")
    bounds = cal.conformalize(X[200:], y[200:] - 3).predict_interval(X)[1]
    assert bounds.min() < 0


def test_limits_that_differ_from_a_listed_value_by_rounding():
    steps = np.arange(11) * 0.1  # 3 · 0.1 is not 0.3
    known = check_support(steps)
    tenths = np.arange(11) / 10
    np.testing.assert_array_equal(known.cut(tenths), known.cut(steps))
    np.testing.assert_array_equal(known.cut(tenths, True), known.cut(steps, True))
    assert not np.signbit(check_support("integer").nearest(np.array([-0.2]))).any()


def test_counts_have_no_negative_end():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 1))
    y = rng.poisson(np.exp(X[:, 0])).astype(float)
    model = tiny().fit(X[:200], y[:200])
    _, plain = prefit_intervals(
        model, ClapsScore(model, support=None), (X[200:], y[200:]), X, 0.9
    )
    assert (plain[:, 0] < 0).any()
    for support in ("count", "training"):
        score = ClapsScore(model, support=support)
        _, whole = prefit_intervals(model, score, (X[200:], y[200:]), X, 0.9)
        assert (whole[:, 0] >= 0).all()
        np.testing.assert_array_equal(whole, np.round(whole))
    assert whole.max() <= y[:200].max()


def test_grades_are_learned_from_training_targets_alone():
    X, y = heteroscedastic(400)
    grades = np.clip(np.round(2 * y), -6, 6)
    learning = tiny(residual_shape=True)
    model = learning.fit(X[:200], grades[:200])
    cal = CalibratedRegressor(model).conformalize(X[200:300], grades[200:300])
    _, found = cal.predict_interval(X[300:])
    np.testing.assert_array_equal(found, np.round(found))
    # Another target at calibration is no grade: the rank pays for it.
    mixed = np.r_[grades[200:299], 0.5]
    cal.conformalize(X[200:300], mixed)
    assert np.isinf(cal.conformity_scores_[-1])
    # Numbers that are no grades, and a model without a shape, leave ends as they are.
    for other, target in ((learning, y), (tiny(residual_shape=False), grades)):
        model = other.fit(X[:200], target[:200])
        cal = CalibratedRegressor(model).conformalize(X[200:300], target[200:300])
        _, found = cal.predict_interval(X[300:])
        assert (found != np.round(found)).all()


@pytest.mark.parametrize(
    ("y", "floor", "ceiling"),
    [
        (np.r_[np.zeros(30), np.linspace(0.1, 5, 300)], 0.0, np.inf),
        (np.r_[np.full(30, 9.0), np.linspace(0.1, 5, 300)], -np.inf, 9.0),
        (np.linspace(0, 1, 300), -np.inf, np.inf),
        (np.r_[np.zeros(9), np.linspace(0.1, 5, 90)], -np.inf, np.inf),  # too few
        (np.repeat([1.0, 2.0, 3.0], [20, 90, 20]), -np.inf, np.inf),  # fades out
        (np.ones(50), -np.inf, np.inf),
    ],
)
def test_bounds_are_where_training_targets_pile_up(y, floor, ceiling):
    found = TargetRange.of(y, learn=True)
    assert (found.floor, found.ceiling) == (floor, ceiling)
    unlearned = TargetRange.of(y, learn=False)
    assert (unlearned.floor, unlearned.ceiling) == (-np.inf, np.inf)


def test_no_end_lies_below_a_learned_bound():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 1))
    y = np.maximum(X[:, 0] + rng.normal(size=500), 0)
    model = tiny(residual_shape=True).fit(X[:250], y[:250])
    cal = CalibratedRegressor(model).conformalize(X[250:], y[250:])
    _, found = cal.predict_interval(X)
    assert found.min() == 0
    _, free = (
        CalibratedRegressor(model, support=None)
        .conformalize(X[250:], y[250:])
        .predict_interval(X)
    )
    assert free.min() < 0
    assert np.isinf(cal.score_rows(X[:1], np.array([-0.1]))).all()


def test_training_range_needs_a_model_that_knows_it():
    law = LocalLaw.symmetric(np.zeros(1), np.ones(1))
    with pytest.raises(ValueError, match=r"support='training'.*\(0, 100\)"):
        check_support("training").of(law)
    assert check_support("auto").of(law).integer is False
    known = LocalLaw(
        np.zeros(1),
        np.ones(1),
        np.ones(1),
        targets=TargetRange.of(np.array([2.0, 7.0]), learn=True),
    )
    bounds = check_support("training").of(known)
    assert (bounds.low, bounds.high, bounds.integer) == (2.0, 7.0, True)


@pytest.mark.parametrize(
    "support", ["float", [], [np.nan, 1.0], [[1.0]], 3, ["a"], (2, 1), ("a", 1), (0, 0)]
)
def test_bad_support(support):
    with pytest.raises(ValueError, match=r"Got support=.*'integer'.*or a list"):
        ClapsScore(support=support)


def test_a_long_list_that_changed_in_its_middle_is_another_support():
    """Which a printed array does not show."""
    X, y = heteroscedastic(120)
    model = tiny().fit(X[:60], y[:60])
    values = np.arange(-3000, 3000) / 100
    y_cal = np.round(y[60:], 2)
    conformal = StreamingConformalRegressor(model, support=values)
    conformal.conformalize(X[60:], y_cal).predict_interval(X[:9])
    values[3000] = 0.005
    with pytest.raises(ValueError, match="were scored with support=.*conformalize ag"):
        conformal.predict_interval(X[:9])
    conformal.conformalize(X[60:], y_cal).predict_interval(X[:9])
