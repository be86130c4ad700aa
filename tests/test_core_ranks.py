"""Ranks and supports number by number, so that no change passes unseen.

What mutation testing (`make mutants`) found untested elsewhere, and direct tests that
make it fast: each runs in milliseconds.
"""

import math

import numpy as np
import pytest
from conftest import exactly, objects

from mapie_claps import conformal_quantile
from mapie_claps.conformal import quantile, support
from mapie_claps.estimators.local_law import LocalLaw
from mapie_claps.estimators.target_range import TargetRange

# Rank


def test_rank_and_its_limits():
    assert [quantile.conformal_rank(n, 0.1) for n in (0, 8, 9, 10, 19)] == [
        1,
        9,
        9,
        10,
        18,
    ]
    assert quantile.conformal_rank(99, 1e-9) == 100
    assert quantile.conformal_rank(10**6 - 1, 0.3) == 700_000
    for alpha in (0.0, 1.0, -0.5, 1.5, math.nan):
        with pytest.raises(ValueError, match="Got confidence_level="):
            quantile.conformal_rank(5, alpha)


def test_quantile_of_many_scores():
    scores = np.random.default_rng(0).permutation(1000.0 + np.arange(1000))
    found = quantile.conformal_quantile(scores, [0.5, 0.1, 0.9, 0.25])
    assert found.tolist() == [1500, 1900, 1100, 1750]
    assert quantile.conformal_quantile([3, 1, 2], [0.01], True).tolist() == [math.inf]
    few = quantile.conformal_quantile([3, 1, 2], [0.25, 0.01], True)
    assert few.tolist() == [3, math.inf]
    with pytest.raises(ValueError, match="Got 3 calibration scores"):
        quantile.conformal_quantile([3, 1, 2], [0.01])


@pytest.mark.parametrize("scores", [[1.0, np.nan], [[1.0, 2.0]], 3.0])
def test_scores_without_a_rank(scores):
    with pytest.raises(ValueError, match="one number per calibration row"):
        quantile.conformal_quantile(scores, [0.5])


def test_ends_of_one_and_of_two_ranks():
    scores = [-4.0, 1.0, 2.0, 3.0, -0.5, 0.25, 8.0]
    lower, upper = quantile.score_bounds(scores, [0.25, 0.5])
    assert upper.tolist() == [4, 2]
    assert lower.tolist() == [-4, -2]
    lower, upper = quantile.score_bounds(scores, [0.25, 0.5], sym=False)
    assert lower.tolist() == [-4, -0.5]
    assert upper.tolist() == [8, 3]
    # One score of +∞ is missed on both sides.
    lower, upper = quantile.score_bounds([*scores[:-1], np.inf], [0.5], sym=False)
    assert (lower.tolist(), upper.tolist()) == ([-4], [3])
    lower, upper = quantile.score_bounds([-1.0, 1.0], [0.5], False, True)
    assert (lower.tolist(), upper.tolist()) == ([-math.inf], [math.inf])
    # Two ranks at 0.4: ⌈4 · 0.8⌉ = 4 of 3 scores are not there; one at 0.5 is.
    with pytest.raises(ValueError, match="with sym=False needs at least 4"):
        quantile.score_bounds([1.0, 2.0, 3.0], [0.4], sym=False)
    with pytest.raises(ValueError, match="calibration scores"):
        quantile.score_bounds([1.0], [0.1])
    assert quantile.score_bounds([1.0], [0.5]).upper.tolist() == [1]


def test_message_of_too_few_scores():
    assert quantile.checked_ranks(9, [0.1, 0.5], False) == [9, 5]
    assert quantile.checked_ranks(8, [0.1, 0.5], True) == [9, 5]
    assert quantile.checked_ranks(19, [0.1], False, 2) == [19]
    message = "Got 8 calibration scores, but confidence_level=0.9 needs at least 9. Cal"
    with pytest.raises(ValueError, match=exactly(message)):
        quantile.checked_ranks(8, [0.1], False)
    message = (
        "Got 8 calibration scores, but confidence_level=0.9 with sym=False needs at "
        "least 19. Cal"
    )
    with pytest.raises(ValueError, match=exactly(message)):
        quantile.checked_ranks(8, [0.1], False, 2)


# Support


POINTS = np.array([-np.inf, -1.0, -0.4, 0.0, 0.6, 1.0, 2.0, 2.4, 3.0, np.inf])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("integer", [-np.inf, -1, 0, 0, 1, 1, 2, 2, 3, np.inf]),
        ("count", [-np.inf, 0, 0, 0, 1, 1, 2, 2, 3, np.inf]),
        ("non-negative", [-np.inf, 0, 0, 0, 0.6, 1, 2, 2.4, 3, np.inf]),
        ((-0.5, 2.2), [-np.inf, -0.5, -0.4, 0, 0.6, 1, 2, 2.2, 2.2, np.inf]),
        ((None, 1), [-np.inf, -1, -0.4, 0, 0.6, 1, 1, 1, 1, np.inf]),
        ((0.5, None), [-np.inf, 0.5, 0.5, 0.5, 0.6, 1, 2, 2.4, 3, np.inf]),
        ([2.5, 0.0, 1.0, 1.0], [-np.inf, 0, 0, 0, 1, 1, 2.5, 2.5, 2.5, np.inf]),
        ([1.0], [-np.inf, 1, 1, 1, 1, 1, 1, 1, 1, np.inf]),
    ],
)
def test_nearest_possible_value(given, expected):
    known = support.check_support(given)
    np.testing.assert_array_equal(known.nearest(POINTS), expected)
    low, high = known.snap(POINTS, POINTS[::-1])
    np.testing.assert_array_equal(low, expected)
    np.testing.assert_array_equal(high, expected[::-1])


@pytest.mark.parametrize(
    ("given", "inside", "outside"),
    [
        ("integer", [-3, 0, 7, 1e9 + 0.5, 2 + 1e-9], [0.5, 2 + 1e-8, -0.01, np.inf]),
        ("count", [0, 7], [-1, 0.5]),
        ("non-negative", [0, 0.5, 1e300], [-1e-12]),
        ((1, 2), [1, 1.5, 2], [1 - 1e-9, 2 + 1e-9]),
        ([1.0, 2.0, 1e-12], [1e-12, 1 - 1e-10, 2], [0.9e-12, 1.5, 2 - 1e-8]),
        ([0.1, 0.3], [0.1 - 1e-11, 0.1 * 3], [0.1 - 1e-9, 0.31, np.inf, -np.inf]),
    ],
)
def test_possible_targets(given, inside, outside):
    known = support.check_support(given)
    assert known.contains(np.array(inside, dtype=float)).all()
    assert not known.contains(np.array(outside, dtype=float)).any()
    law = LocalLaw.symmetric(np.zeros(len(outside)), np.ones(len(outside)))
    scores = support.score_rows(law, np.array(outside, dtype=float), known)
    assert (scores == np.inf).all()
    plain = support.score_rows(law, np.array(outside, dtype=float), support.Support())
    np.testing.assert_array_equal(plain, outside)


def test_supports_as_given():
    fields = {
        "integer": (-np.inf, np.inf, True, "integer"),
        "count": (0, np.inf, True, None),
        "non-negative": (0, np.inf, False, None),
        "auto": (-np.inf, np.inf, False, "auto"),
        "training": (-np.inf, np.inf, False, "training"),
    }
    for name, (low, high, integer, learned) in fields.items():
        found = support.check_support(name)
        assert (found.low, found.high, found.integer) == (low, high, integer)
        assert (found.learned, found.values) == (learned, None)
        assert support.check_support(found) is found
    assert support.check_support(None) is None
    found = support.check_support([3, 1, 2, 2])
    assert (found.low, found.high, found.integer) == (1, 3, False)
    assert found.values.tolist() == [1, 2, 3]
    found = support.check_support((1, "2.5"))
    assert (found.low, found.high, found.values) == (1, 2.5, None)
    # A tuple of another length is a list of values.
    assert support.check_support((1, 2, 3)).values.tolist() == [1, 2, 3]


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
        "'count', 'training', a tuple (low, high) or a list of finite numbers. Use "
        "'count', a range as a tuple, for example (0, 100), or list the values, for "
        "example np.arange(11)."
    )
    with pytest.raises(ValueError, match=exactly(message) + "$"):
        support.check_support(given)


def test_supports_that_training_targets_tell():
    targets = TargetRange.of(np.array([1.0, 2.0, 2.5]), learn=True)
    law = LocalLaw(np.zeros(3), np.ones(3), np.ones(3), targets=targets)
    found = support.check_support("training").of(law)
    assert (found.low, found.high, found.integer) == (1, 2.5, False)
    assert (found.learned, found.values) == (None, None)
    grades = np.repeat([0.0, 1.0, 2.0], 20)
    targets = TargetRange.of(grades, learn=True)
    law = LocalLaw(np.zeros(3), np.ones(3), np.ones(3), targets=targets)
    found = support.check_support("auto").of(law)
    assert (found.low, found.high) == (targets.floor, targets.ceiling)
    assert found.integer is targets.grades is True
    plain = LocalLaw.symmetric(np.zeros(3), np.ones(3))
    found = support.check_support("auto").of(plain)
    assert (found.low, found.high, found.integer) == (-np.inf, np.inf, False)
    fixed = support.check_support((0, 1))
    assert fixed.of(law) is fixed


def test_numbers_of_any_type_become_float64():
    assert conformal_quantile(objects(3, 1, 2), [0.5]).tolist() == [2]
    ends = quantile.score_bounds(objects(3, -1, 2), [0.5])
    assert (ends.lower.tolist(), ends.upper.tolist()) == ([-2], [2])
    small = np.array([0.1, 0.2, 0.3], dtype=np.float32)
    assert conformal_quantile(small, [0.5]).dtype == np.float64


AT = np.array([-1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0])
INF = math.inf


@pytest.mark.parametrize(
    ("given", "up_to", "below"),
    [
        (
            [0.0, 1.0, 3.0],
            [-INF, 0.5, 0.5, 2, 2, INF, INF],
            [-INF, -INF, 0.5, 0.5, 2, 2, INF],
        ),
        (
            (0, 3),
            [-INF, 0, 0.5, 1, 2, INF, INF],
            [-INF, -INF, 0.5, 1, 2, 3, INF],
        ),
        (
            "count",
            [-INF, 0.5, 0.5, 1.5, 2.5, 3.5, 4.5],
            [-INF, -INF, 0.5, 0.5, 1.5, 2.5, 3.5],
        ),
    ],
)
def test_where_the_line_is_cut(given, up_to, below):
    chosen = support.check_support(given)
    np.testing.assert_array_equal(chosen.cut(AT), up_to)
    np.testing.assert_array_equal(chosen.cut(AT, strict=True), below)


def test_targets_at_the_edge_of_rounding():
    listed = support.check_support([1.0, 2.0])
    assert listed.contains(np.array([0.0, 1.0])).tolist() == [False, True]
    assert support.check_support([-1.0, 0.0]).contains(np.array([0.0])).all()
    whole = support.check_support("integer")
    near = np.array([0.5, 1.0]) + 1.5 * support.TOLERANCE
    assert whole.contains(near).tolist() == [False, False]
    # Half way the lower value is taken.
    assert listed.nearest(np.array([1.5])).tolist() == [1.0]
    assert listed.nearest(np.array([-7.0, 1.4, 9.0])).tolist() == [1.0, 1.0, 2.0]
    assert support.check_support([1.0]).nearest(np.array([0.0])).tolist() == [1.0]
