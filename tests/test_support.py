"""End points on the values that y can take."""

import itertools
import math

import numpy as np
import pytest
from conftest import exactly
from known_model import Plain, Shaped, grades, table

from mapie_claps import CalibratedRegressor, ClapsScore, PredictiveDistribution
from mapie_claps.conformal.distribution import ScoreBounds
from mapie_claps.conformal.support import TOLERANCE, Support, check_support
from mapie_claps.estimators.predictive import TargetRange
from mapie_claps.network.target import IDENTITY, fit_target_map

POINTS = np.array([-np.inf, -1.0, -0.4, 0.0, 0.6, 1.0, 2.0, 2.4, 3.0, np.inf])
INF = math.inf


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("integer", [-INF, -1, 0, 0, 1, 1, 2, 2, 3, INF]),
        ("count", [-INF, 0, 0, 0, 1, 1, 2, 2, 3, INF]),
        ("non-negative", [-INF, 0, 0, 0, 0.6, 1, 2, 2.4, 3, INF]),
        ((-0.5, 2.2), [-INF, -0.5, -0.4, 0, 0.6, 1, 2, 2.2, 2.2, INF]),
        ((None, 1), [-INF, -1, -0.4, 0, 0.6, 1, 1, 1, 1, INF]),
        ((0.5, None), [-INF, 0.5, 0.5, 0.5, 0.6, 1, 2, 2.4, 3, INF]),
        ([2.5, 0.0, 1.0, 1.0], [-INF, 0, 0, 0, 1, 1, 2.5, 2.5, 2.5, INF]),
        ([1.0], [-INF, 1, 1, 1, 1, 1, 1, 1, 1, INF]),
        (None, POINTS.tolist()),
    ],
)
def test_nearest_possible_value(given, expected):
    known = check_support(given)
    np.testing.assert_array_equal(known.nearest(POINTS), expected)


@pytest.mark.parametrize(
    ("given", "inside", "outside"),
    [
        ("integer", [-3, 0, 7, 1e9 + 0.5, 2 + 1e-9], [0.5, 2 + 1e-8, -0.01, np.inf]),
        ("count", [0, 7], [-1, 0.5]),
        ("non-negative", [0, 0.5, 1e300], [-1e-12]),
        ((1, 2), [1, 1.5, 2], [1 - 1e-9, 2 + 1e-9]),
        ([1.0, 2.0, 1e-12], [1e-12, 1 - 1e-10, 2], [0.9e-12, 1.5, 2 - 1e-8]),
        ([0.1, 0.3], [0.1 - 1e-11, 0.1 * 3], [0.1 - 1e-9, 0.31, np.inf, -np.inf]),
        (np.arange(11) * 1e-10, [3e-10], [3.1e-10, 2e-9]),
    ],
)
def test_possible_targets(given, inside, outside):
    known = check_support(given)
    assert known.contains(np.array(inside, dtype=float)).all()
    assert not known.contains(np.array(outside, dtype=float)).any()
    rows = PredictiveDistribution(np.zeros(len(outside)), np.ones(len(outside)))
    assert (known.scores(rows, np.array(outside, dtype=float)) == np.inf).all()
    plain = Support().scores(rows, np.array(outside, dtype=float))
    np.testing.assert_array_equal(plain, [outside, outside])


@pytest.mark.parametrize("seed", range(3))
def test_no_supported_value_is_lost(seed):
    rng = np.random.default_rng(seed)
    lower = rng.normal(0, 3, (200, 2))
    upper = lower + rng.exponential(2, (200, 2))
    for support, values in (
        ("integer", np.arange(-60, 60.0)),
        ("count", np.arange(60.0)),
        ((v := np.sort(rng.normal(0, 3, 9))).tolist(), v),
    ):
        low, up = (check_support(support).nearest(end) for end in (lower, upper))
        for value in values:
            inside = (lower <= value) & (value <= upper)
            assert ((low <= value) & (value <= up))[inside].all()
        assert np.isin([low, up], values).all()
        assert (low <= up).all()


def test_rounding_at_the_edge():
    near = check_support("integer").nearest(np.array([0.1 * 3 * 10, 3 - 4e-16, -0.2]))
    assert near.tolist() == [3, 3, 0]
    assert not np.signbit(near).any()
    listed = check_support([1.0, 2.0])
    assert listed.nearest(np.array([1.5, -7.0, 9.0])).tolist() == [1.0, 1.0, 2.0]
    assert check_support([-1.0, 0.0]).contains(np.array([0.0])).all()
    whole = check_support("integer").contains(np.array([1.0]) + 1.5 * TOLERANCE)
    assert not whole.any()
    steps = np.arange(11) * 0.1  # 3 · 0.1 is not 0.3
    known, tenths = check_support(steps), np.arange(11) / 10
    for strict in (False, True):
        np.testing.assert_array_equal(
            known.cut(tenths, strict), known.cut(steps, strict)
        )


@pytest.mark.parametrize(
    ("given", "up_to", "below"),
    [
        (
            [0, 1, 3],
            [-INF, 0.5, 0.5, 2, 2, INF, INF],
            [-INF, -INF, 0.5, 0.5, 2, 2, INF],
        ),
        ((0, 3), [-INF, 0, 0.5, 1, 2, INF, INF], [-INF, -INF, 0.5, 1, 2, 3, INF]),
        (
            "count",
            [-INF, 0.5, 0.5, 1.5, 2.5, 3.5, 4.5],
            [-INF, -INF, 0.5, 0.5, 1.5, 2.5, 3.5],
        ),
    ],
)
def test_where_the_line_is_cut(given, up_to, below):
    at = np.array([-1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0])
    np.testing.assert_array_equal(check_support(given).cut(at), up_to)
    np.testing.assert_array_equal(check_support(given).cut(at, strict=True), below)


@pytest.mark.parametrize(
    "given",
    [
        *("grade", (1, 1), (2, 1), (1, "x"), ([1], 2), (np.nan, 1)),
        *([], [[1.0]], 4.0, [1, np.inf], ["x"]),
    ],
)
def test_supports_that_are_none(given):
    message = (
        f"Got support={given!r}, but expected 'auto', 'integer', 'non-negative', "
        "'count', a tuple (low, high) or a list of finite numbers. Use "
        "'count', a range as a tuple, for example (0, 100), or list the values, for "
        "example np.arange(11)."
    )
    with pytest.raises(ValueError, match=exactly(message) + "$"):
        ClapsScore(support=given)


def test_what_training_targets_tell():
    found = check_support("auto").of(grades())
    assert (found.low, found.high, found.integer) == (0, 3, True)
    assert check_support("auto").of(None).key == Support().key
    fixed = check_support((0, 1))
    assert fixed.of(grades()) is fixed
    assert check_support(fixed) is fixed
    assert check_support((1, 2, 3)).values.tolist() == [1, 2, 3]  # three: a list
    signed = TargetRange.fit(np.array([-1.0, 2.5]))
    for learned, low, high, integer in (
        (signed, -INF, INF, False),
        (TargetRange.fit(np.array([0.5, 2.0])), 0, INF, False),
        (TargetRange.fit(np.arange(-3.0, 40.0)), -INF, INF, True),
        (TargetRange.fit(np.repeat([5.0, 6.0, 7.5], [20, 5, 20])), 5, 7.5, False),
        (TargetRange.fit(np.arange(40.0), learn=False), -INF, INF, False),
    ):
        found = check_support("auto").of(learned)
        assert (found.low, found.high, found.integer) == (low, high, integer)
    lows = [check_support("integer").of(t).low for t in (grades(), signed, None)]
    assert lows == [0, -INF, -INF]


def test_ends_are_possible_and_rows_outside_make_the_quantile_larger():
    X, y = table(400)
    y = np.round(np.clip(y + 1, 0, 3))
    model = Shaped(shift=1.0, targets=grades()).fit(X, y)
    cal = CalibratedRegressor(model).conformalize(X[:200], y[:200])
    bounds = cal.predict_interval(X[200:])[1]
    assert np.isin(bounds, [0, 1, 2, 3]).all()
    assert np.isposinf(cal.score_rows(X[:3], [0.5, 1.0, -1.0])).tolist() == [
        *(True, False, True)
    ]
    free = CalibratedRegressor(model, support=None).conformalize(X[:200], y[:200])
    ends = np.clip(np.round(free.predict_interval(X[200:])[1]), 0, 3)
    assert (bounds[:, 0] >= ends[:, 0]).all()  # the rank knows that ends move
    assert (bounds[:, 1] <= ends[:, 1]).all()
    assert (bounds != ends).any()
    low = CalibratedRegressor(model, support=(None, 2.0)).conformalize(X[:200], y[:200])
    assert np.isinf(low.conformity_scores).sum() == (y[:200] > 2).sum() > 0
    # More of them than may be missed: no finite interval has the coverage.
    wrong = CalibratedRegressor(model, support=(None, 0.5)).conformalize(X, y)
    _, found = wrong.predict_interval(X)
    assert (found[:, 0] == -np.inf).all()
    assert (found[:, 1] == np.inf).all()


class Given:
    """Centres are the first column, scales the second."""

    def __init__(self, log=False, targets=None):
        self.targets = targets
        self.map = fit_target_map("log", np.array([0.5, 9.0])) if log else IDENTITY

    def predict_distribution(self, X):
        centre, scale = np.asarray(X, dtype=float).T
        options = {"target_map": self.map, "targets": self.targets}
        return PredictiveDistribution(centre, scale, **options)


SUPPORTS = ["integer", "count", (0, 3), [0.0, 1.0, 3.0], (None, 2), None]


@pytest.mark.parametrize("support", SUPPORTS)
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("share", [1.0, 0.6])
def test_a_score_is_that_of_the_smallest_interval_with_the_target(
    support, log, share, monkeypatch
):
    """|t(y)| ≤ q if and only if y lies within the ends of q, once they have moved.

    Where the rank knows of a share of the moves, the interval of q holds y as well.
    """
    monkeypatch.setattr("mapie_claps.conformal.support.KNOWN", share)
    known, model = check_support(support), Given(log)
    centres, scales = [-1.0, 0.3, 0.5, 1.0, 1.5, 2.7, 6.0], [0.2, 1.0, 3.0]
    X = np.array([(c, s) for c in centres for s in scales])
    rows = model.predict_distribution(X)
    for y in (0.0, 1.0, 2.0, 3.0, 4.0):
        if not known.contains(np.array([y]))[0] or (log and y == 0):
            continue
        score = np.abs(known.scores(rows, np.full(len(X), y))[0])
        for q in (score, score * (1 - 1e-9), score * 0.5, score + 0.1):
            lower, upper = -q[:, None], q[:, None]
            low, high = ScoreBounds(lower, upper).interval([rows], known)[..., 0].T
            held, ranked = (low <= y) & (y <= high), score <= q
            assert held[ranked].all()
            assert share < 1 or not held[~ranked].any()


@pytest.mark.parametrize("support", ["count", [0.0, 1.0, 3.0]])
@pytest.mark.parametrize("sym", [True, False])
def test_coverage_of_discrete_targets_is_exact(support, sym):
    """Of n + 1 rows, each in turn the new one, ⌈(n + 1)(1 − α)⌉ or more are covered."""
    kinds = [(0.4, 0.0), (0.4, 1.0), (2.5, 3.0), (2.5, 1.0), (-0.7, 0.0), (0.9, 3.0)]
    centre, y = np.array(kinds).T
    X, held = np.column_stack([centre, 0.5 + 0.25 * np.abs(centre)]), {}
    for rest in itertools.combinations_with_replacement(range(6), 5):
        cal = CalibratedRegressor(Given(), 0.6, sym=sym, support=support)
        cal.conformalize(X[list(rest)], y[list(rest)])
        low, high = cal.predict_interval(X)[1][:, :, 0].T
        held[rest] = (low <= y) & (y <= high)
    rows = list(itertools.combinations_with_replacement(range(6), 6))
    covered = [sum(held[r[:i] + r[i + 1 :]][r[i]] for i in range(6)) for r in rows]
    assert min(covered) >= 4  # ⌈6 · 0.6⌉, or 2 · ⌈6 · 0.8⌉ − 6
    assert sum(covered) < 0.97 * 6 * len(rows)  # all of them would be no feat


def test_ends_and_probabilities_of_counts():
    rng = np.random.default_rng(0)
    mean = rng.uniform(0.2, 9.0, 600)
    X, y = np.column_stack([mean, np.sqrt(mean)]), rng.poisson(mean).astype(float)
    targets = TargetRange.fit(y)
    assert (targets.floor, targets.ceiling, targets.integer) == (0, INF, True)
    assert len(np.unique(y)) > 16
    model = Given(targets=targets)
    cal = CalibratedRegressor(model).conformalize(X, y)
    bounds = cal.predict_interval(X)[1]
    np.testing.assert_array_equal(bounds, np.round(bounds))
    assert bounds.min() >= 0
    inside = (bounds[:, 0, 0] <= y) & (y <= bounds[:, 1, 0])
    assert 0.9 <= inside.mean() < 0.93
    middle = (cal.cdf(X, y) + cal.cdf(X, y - 1)) / 2
    np.testing.assert_allclose(middle.mean(), 0.5, atol=0.02)
    np.testing.assert_allclose(middle.var(), 1 / 12, atol=0.01)
    stored = CalibratedRegressor.from_scores(model, cal.signed_scores_, signed=True)
    np.testing.assert_array_equal(stored.predict_interval(X)[1], bounds)
    with pytest.raises(ValueError, match="computed elsewhere, of a target with gaps"):
        stored.cdf(X, 1.0)


def test_a_support_that_changes_after_calibration_is_refused():
    X, y = table(60)
    model, values = Plain().fit(X, y), np.arange(-3000, 3000) / 100
    cal = CalibratedRegressor(model, support=values).conformalize(X, np.round(y, 2))
    values[3000] = 0.005  # which a printed array does not show
    with pytest.raises(ValueError, match="scored with another one. Call conformalize"):
        cal.predict_interval(X)
    cal.set_params(support=None)
    with pytest.raises(ValueError, match="Got support=None"):
        cal.partial_conformalize(X, y)
    cal.conformalize(X, y).predict_interval(X)
