"""One calibration: ranks by weight and group, sums of rows, laws of the coverage."""

import pickle
from fractions import Fraction

import numpy as np
import pytest
from known_model import Plain
from scipy.stats import beta, kstest, norm

from mapie_claps import CalibratedRegressor, PredictiveDistribution
from mapie_claps.conformal.calibration import Calibration
from mapie_claps.conformal.support import Support
from mapie_claps.exceptions import EffectiveSampleSizeWarning

ALPHA = np.array([0.5, 0.2, 0.1])


def as_labels(*labels):
    return np.array(labels, dtype=object)


def weighted_quantile(scores, weights, own, alpha):
    """The definition, one row at a time."""
    order = np.argsort(scores)
    share = np.cumsum(weights[order]) / (weights.sum() + own)
    reached = np.flatnonzero(share >= (1 - alpha) * (1 - 1e-12))
    return scores[order][reached[0]] if len(reached) else np.inf


def test_one_rank_and_two_by_hand():
    rows = Calibration(np.array([-4.0, 1.0, 2.0, 3.0, -0.5, 0.25, 8.0]))
    lower, upper = rows.bounds(np.array([0.25, 0.5]))[:2]
    assert (lower.tolist(), upper.tolist()) == ([[-4, -2]], [[4, 2]])
    lower, upper = rows.bounds(np.array([0.25, 0.5]), sym=False)[:2]
    assert (lower.tolist(), upper.tolist()) == ([[-4, -0.5]], [[8, 3]])
    # One score of +∞ is missed on both sides.
    rows = Calibration(np.r_[rows.scores[:-1], np.inf])
    lower, upper = rows.bounds(np.array([0.5]), sym=False)[:2]
    assert (lower.tolist(), upper.tolist()) == ([[-4]], [[3]])
    # Two ranks at 0.4: ⌈4 · 0.8⌉ = 4 of 3 scores are not there.
    few = Calibration(np.arange(1.0, 4))
    with pytest.raises(ValueError, match="0.6 with sym=False needs at least 4"):
        few.bounds(np.array([0.4]), sym=False)
    infinite = few.bounds(np.array([0.4]), sym=False, allow_infinite=True)
    assert np.isinf(infinite[:2]).all()
    assert few.bounds(np.array([0.4])).upper.tolist() == [[3]]
    for alpha in (0.0, 1.0):
        with pytest.raises(ValueError, match=f"Got confidence_level={1 - alpha:g}"):
            few.bounds(np.array([0.5, alpha]), allow_infinite=True)
    absolute = Calibration(np.arange(3.0), signed=False)
    with pytest.raises(ValueError, match="Got absolute scores"):
        absolute.bounds(np.array([0.5]), sym=False)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("sym", [True, False])
def test_weighted_ranks_are_those_of_the_definition(seed, sym):
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=60).round(1)  # with ties
    weights = rng.exponential(size=60) * (rng.uniform(size=60) > 0.2)
    own = rng.exponential(5.0, size=40)
    rows = Calibration(scores, weights=weights)
    ends = rows.bounds(ALPHA, sym=sym, weights=own, allow_infinite=True)
    lower, upper = ends[:2]
    assert np.isinf(upper).any()
    assert np.isfinite(upper).any()
    for i, w in enumerate(own):
        for j, alpha in enumerate(ALPHA):
            if sym:
                high = weighted_quantile(np.abs(scores), weights, w, alpha)
                low = -high
            else:
                high = weighted_quantile(scores, weights, w, alpha / 2)
                low = -weighted_quantile(-scores, weights, w, alpha / 2)
            assert (lower[i, j], upper[i, j]) == (low, high)


@pytest.mark.parametrize("unit", [1.0, 3.0, 1e307, 1e-307, 5e-324])
@pytest.mark.parametrize("sym", [True, False])
def test_the_unit_of_weights_does_not_matter(unit, sym):
    scores = np.random.default_rng(0).normal(size=50)
    plain = Calibration(scores).bounds(ALPHA, sym=sym)
    even = Calibration(scores, weights=np.full(50, unit))
    found = even.bounds(ALPHA, sym=sym, weights=np.full(7, unit))
    for end, expected in zip(found[:2], plain[:2], strict=True):
        np.testing.assert_array_equal(end, np.tile(expected, (7, 1)))
    huge = even.bounds(
        ALPHA, sym=sym, weights=np.array([1.7e308, 0.0]), allow_infinite=True
    )
    assert np.isfinite(huge.upper[1, 0])
    assert np.isinf(huge.upper[0, 2])


def test_a_row_too_heavy_for_the_others_has_infinite_ends():
    rows = Calibration(np.arange(300.0), weights=np.ones(300))
    own = np.ones(20)
    own[[7, 9]] = 40.0  # 300 / (300 + 40) < 0.9
    message = "2 of 20 rows, the first of them row 107, .* more than 33.33"
    with pytest.warns(EffectiveSampleSizeWarning, match=message):
        found = rows.bounds(ALPHA, weights=own, first_row=100)
    infinite = np.isinf(found.upper)
    np.testing.assert_array_equal(np.flatnonzero(infinite[:, 2]), [7, 9])
    assert not infinite[:, :2].any()
    silent = rows.bounds(ALPHA, weights=own, allow_infinite=True)
    np.testing.assert_array_equal(silent[:2], found[:2])


@pytest.mark.parametrize("sym", [True, False])
@pytest.mark.parametrize("weighted", [False, True])
def test_each_group_is_calibrated_as_if_alone(sym, weighted):
    rng = np.random.default_rng(0)
    scores, weights = rng.normal(size=200), rng.uniform(1, 2, 200)
    groups = tuple(rng.choice(["a", "b", 3], 200))
    labels, own = tuple(rng.choice(["a", "b", 3], 30)), rng.uniform(1, 2, 30)
    given = {"weights": weights} if weighted else {}
    of_rows = {"weights": own} if weighted else {}
    whole = Calibration(scores, partition=as_labels(*groups), **given)
    found = whole.bounds(ALPHA, sym=sym, labels=labels, **of_rows)
    for label in set(groups):
        cal = np.array([v == label for v in groups])
        test = np.array([v == label for v in labels])
        alone = Calibration(scores[cal], **{k: v[cal] for k, v in given.items()})
        of_test = {k: v[test] for k, v in of_rows.items()}
        expected = alone.bounds(ALPHA, sym=sym, **of_test)
        for end, wanted in zip(found[:2], expected[:2], strict=True):
            np.testing.assert_array_equal(
                end[test], np.broadcast_to(wanted, (test.sum(), 3))
            )


def test_groups_without_enough_rows_are_named():
    groups = ("few",) * 8 + ("many",) * 92
    rows = Calibration(np.arange(100.0), partition=as_labels(*groups))
    with pytest.raises(ValueError, match="Got 8 calibration scores of the group 'few'"):
        rows.bounds(ALPHA, labels=("many", "few"))
    with pytest.raises(ValueError, match="group 'new' in row 6, .*'few', 'many'. Cali"):
        rows.bounds(ALPHA, labels=("many", "new"), first_row=5)
    upper = rows.bounds(ALPHA, labels=("many", "few", "new"), allow_infinite=True).upper
    assert np.isinf(upper[:, 2]).tolist() == [False, True, True]
    nine = Calibration(
        np.arange(9.0), partition=as_labels(*["few"] * 9)
    )  # ⌈10 · 0.9⌉ = 9
    assert nine.bounds(ALPHA, labels=("few",)).upper[0, 2] == 8
    many = Calibration(np.arange(30.0), partition=as_labels(*range(30)))
    with pytest.raises(ValueError, match="known are 0, 1, .* 9, …. Cali"):
        many.bounds(ALPHA, labels=(99,))


def test_rows_add_up_in_their_order():
    a = Calibration(
        np.array([1.0, -2.0]), weights=np.ones(2), partition=as_labels("x", "y")
    )
    b = Calibration(np.array([-3.0]), weights=np.full(1, 2.0), partition=as_labels("x"))
    both = a.add(b)
    assert both.scores.tolist() == [1, -2, -3]
    assert both.weights.tolist() == [1, 1, 2]
    assert both.partition.tolist() == ["x", "y", "x"]
    assert both.newest(1).scores.tolist() == [-2, -3]
    plain = Calibration(np.array([1.0, -2.0]))
    mixed = plain.add(Calibration(np.array([3.0]), signed=False))
    assert (mixed.scores.tolist(), mixed.signed) == ([1, 2, 3], False)
    for other, message in (
        (a, "or only some of them with weights"),
        (Calibration(np.ones(1), partition=as_labels("x")), "only some of them"),
        (Calibration(np.ones(1), fit_id="other"), "scored with another fit, scale or"),
        (Calibration(np.ones(1), support=Support(0.0)), "another fit, scale or suppor"),
    ):
        with pytest.raises(ValueError, match=message):
            plain.add(other)
    with pytest.raises(ValueError, match="or only some of them with weights"):
        a.add(plain)


def test_sorted_scores_stay_out_of_copies():
    rows = Calibration(np.arange(9.0), partition=as_labels(*"a" * 9))
    rows.bounds(ALPHA, labels=("a",))
    again = pickle.loads(pickle.dumps(rows))
    assert "_sorted" not in vars(again)
    np.testing.assert_array_equal(
        again.bounds(ALPHA, labels=("a",)).upper,
        rows.bounds(ALPHA, labels=("a",)).upper,
    )


def test_an_interval_that_holds_nothing_lies_at_the_median():
    rows = PredictiveDistribution(np.array([0.5, -3.0]), np.ones(2))
    ends = Calibration(np.ones(9)).bounds(ALPHA[:2])
    swapped = ends._replace(lower=np.array([[np.inf, -1.0]]), upper=-ends.lower)
    found = swapped.interval([rows], Support())
    np.testing.assert_array_equal(found[:, 1, 0], [0.5, -3.0])
    assert (found[:, 0, 0] > found[:, 1, 0]).all()
    np.testing.assert_allclose(found[:, :, 1], [[-0.5, 1.5], [-4.0, -2.0]])


# Laws of the coverage, given the calibration rows


def drawn(n_cal, n_draws, sym, seed):
    """Coverage of N(0, 1) scores at both levels, over many calibration sets."""
    scores = np.random.default_rng(seed).normal(size=(n_draws, n_cal))
    ends = [Calibration(s).bounds(np.array([0.5, 0.1]), sym=sym)[:2] for s in scores]
    lower, upper = (np.concatenate(end) for end in zip(*ends, strict=True))
    return norm.cdf(upper) - norm.cdf(lower)


@pytest.mark.parametrize("n_cal", [19, 99, 100])
@pytest.mark.parametrize("sym", [True, False])
def test_coverage_follows_its_beta_law_and_no_other(n_cal, sym):
    found = drawn(n_cal, 3000, sym, seed=n_cal)
    for column, alpha in ((0, Fraction(1, 2)), (1, Fraction(1, 10))):
        share = alpha if sym else alpha / 2
        k = -((-(n_cal + 1) * (1 - share).numerator) // (1 - share).denominator)
        # Between the ranks n + 1 − k and k there are so many of n + 1 parts.
        inside = k if sym else 2 * k - n_cal - 1
        law = beta(inside, n_cal + 1 - inside)
        assert kstest(found[:, column], law.cdf).pvalue > 1e-3
        for wrong in (inside - 1, inside + 1):
            if 1 <= wrong <= n_cal:
                other = beta(wrong, n_cal + 1 - wrong)
                assert kstest(found[:, column], other.cdf).pvalue < 1e-6


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9])
def test_discrete_rows_with_tied_scores_are_all_inside(level):
    """k scores are at most the k-th: so many rows lie in their own intervals."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 6, (3000, 2)) / 10
    y = np.round(rng.normal(size=3000)) / 10
    cal = CalibratedRegressor(Plain().fit(X, y), level).conformalize(X, y)
    low, high = cal.predict_interval(X)[1][..., 0].T
    inside = (low <= y) & (y <= high)
    order = np.argsort(cal.conformity_scores)
    assert inside[order[: int(3001 * level)]].all()
    assert inside.sum() >= np.ceil(3001 * level - 1e-9)
