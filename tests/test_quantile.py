"""The rank, and scores that have one."""

import math
from fractions import Fraction

import numpy as np
import pytest
from conftest import exactly
from reference import split_quantile

from mapie_claps import conformal_quantile, conformal_rank

LEVELS = [Fraction(n, d) for d in (2, 3, 7, 10, 20, 100) for n in range(1, d)]


@pytest.mark.parametrize("n", [1, 2, 3, 9, 10, 19, 20, 99, 100, 101, 999, 1000])
def test_quantile_is_the_kth_sorted_score(n):
    scores = np.random.default_rng(n).exponential(size=n)
    alphas = [1 - float(level) for level in LEVELS]
    got = conformal_quantile(scores, alphas, allow_infinite=True)
    np.testing.assert_array_equal(got, [split_quantile(scores, v) for v in LEVELS])
    ranks = [conformal_rank(n, alpha) for alpha in alphas]
    assert ranks == [math.ceil((n + 1) * level) for level in LEVELS]


def test_rank_and_its_limits():
    assert [conformal_rank(n, 0.1) for n in (0, 8, 9, 10, 19)] == [1, 9, 9, 10, 18]
    assert conformal_rank(99, 1e-9) == 100
    assert conformal_rank(10**6 - 1, 0.3) == 700_000
    for alpha in (0.0, 1.0, -0.5, 1.5, math.nan):
        with pytest.raises(ValueError, match="Got confidence_level=.*strictly between"):
            conformal_rank(5, alpha)


def test_quantiles_in_any_order_with_ties_and_infinity():
    scores = np.random.default_rng(0).permutation(1000.0 + np.arange(1000))
    found = conformal_quantile(scores, [0.5, 0.1, 0.9, 0.25])
    assert found.tolist() == [1500, 1900, 1100, 1750]
    assert conformal_quantile([1, 1, 1, 2, 2], [0.5, 0.2]).tolist() == [1, 2]
    assert conformal_quantile([1, np.inf, 2], [0.5, 0.25]).tolist() == [2, np.inf]
    assert conformal_quantile([3, 1, 2], [0.25, 0.01], True).tolist() == [3, np.inf]


def test_too_few_scores_are_named_with_the_remedy():
    assert conformal_quantile(np.arange(9.0), [0.1]).tolist() == [8]
    message = "Got 8 calibration scores, but confidence_level=0.9 needs at least 9. Cal"
    with pytest.raises(ValueError, match=exactly(message)):
        conformal_quantile(np.arange(8.0), [0.5, 0.1])
    with pytest.raises(ValueError, match="larger calibration_fraction"):
        conformal_quantile([3, 1, 2], [0.01])


@pytest.mark.parametrize("scores", [[1.0, np.nan], [[1.0, 2.0]], 3.0])
def test_scores_without_a_rank(scores):
    with pytest.raises(ValueError, match="one number per calibration row"):
        conformal_quantile(scores, [0.5])
    with pytest.raises(ValueError, match="1 masked values"):
        conformal_quantile(np.ma.masked_less([0.0, 1.0, 2.0], 1), [0.5])
