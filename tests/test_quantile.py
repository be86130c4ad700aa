"""Validity: the rank, and the law of the coverage that follows from it."""

from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from mapie_api import prefit_intervals
from reference import split_quantile
from scipy.stats import beta, kstest, norm
from sklearn.base import BaseEstimator, RegressorMixin

from mapie_claps import ClapsScore, conformal_quantile, conformal_rank
from mapie_claps.conformal.bounds import _minmax, _plus
from mapie_claps.estimators.local_law import LocalLaw


class Known(RegressorMixin, BaseEstimator):
    """Wrong mean and wrong scale: validity must not need right ones."""

    def fit(self, X, y):
        self.n_features_in_ = 1
        return self

    def predict(self, X, return_std=False):
        x = np.asarray(X)[:, 0]
        return (0.3 * x, 0.5 + x**2) if return_std else 0.3 * x


LEVELS = [Fraction(n, d) for d in (2, 3, 7, 10, 20, 100) for n in range(1, d)]


@pytest.mark.parametrize("n", [1, 2, 3, 9, 10, 19, 20, 99, 100, 101, 999, 1000])
def test_quantile_is_the_kth_sorted_score(n):
    scores = np.random.default_rng(n).exponential(size=n)
    alphas = [1 - float(level) for level in LEVELS]
    got = conformal_quantile(scores, alphas, allow_infinite=True)
    np.testing.assert_array_equal(got, [split_quantile(scores, v) for v in LEVELS])


@pytest.mark.parametrize("n", [10, 37, 100, 250])
def test_intervals_through_mapie_have_that_quantile_on_both_sides(n):
    rng = np.random.default_rng(n)
    X, X_test = rng.normal(size=(n, 1)), rng.normal(size=(6, 1))
    y = rng.normal(size=n)
    model = Known().fit(X, y)
    levels = [v for v in LEVELS if Fraction(1, n) < v < 1 - Fraction(1, n)]
    _, got = prefit_intervals(
        model, ClapsScore(model), (X, y), X_test, [float(v) for v in levels]
    )
    mu, std = model.predict(X, return_std=True)
    scores = np.abs(y - mu) / std
    q = np.array([split_quantile(scores, v) for v in levels])
    mu, std = (a[:, None] for a in model.predict(X_test, return_std=True))
    np.testing.assert_allclose(got[:, 0], mu - q * std, rtol=1e-12)
    np.testing.assert_allclose(got[:, 1], mu + q * std, rtol=1e-12)


POOL = np.linspace(-2, 2, 25)
TRUE_MEAN, TRUE_STD = np.sin(POOL), 0.3 + 0.2 * POOL**2


def exact_coverage(lower, upper):
    """P(lower ≤ Y ≤ upper), x uniform on the pool and Y|x normal."""
    inside = norm.cdf(upper, TRUE_MEAN, TRUE_STD) - norm.cdf(lower, TRUE_MEAN, TRUE_STD)
    return inside.mean()


def coverages(n_cal, n_draws, seed):
    """Training-conditional coverage at both levels over many calibration sets."""
    rng = np.random.default_rng(seed)
    model, X_test = Known().fit(None, None), POOL[:, None]
    score = ClapsScore(model)
    mapie = SimpleNamespace(single_estimator_=model, use_split_method_=True)
    out = np.empty((n_draws, 2))
    for i in range(n_draws):
        at = rng.integers(len(POOL), size=n_cal)
        y = rng.normal(TRUE_MEAN[at], TRUE_STD[at])
        mu = model.predict(X_test[at])
        scores = np.abs(score.get_signed_conformity_scores(y, mu, X=X_test[at]))
        _, low, up = score.get_bounds(X_test, np.array([0.5, 0.1]), mapie, scores)
        out[i] = [exact_coverage(low[:, j], up[:, j]) for j in range(2)]
    return out


@pytest.mark.parametrize("n_cal", [10, 99, 100, 1000])
def test_coverage_given_the_calibration_set_follows_its_beta_law(n_cal):
    draws = coverages(n_cal, 20_000, seed=n_cal)
    for column, level in ((0, Fraction(1, 2)), (1, Fraction(9, 10))):
        k = -((-(n_cal + 1) * level.numerator) // level.denominator)
        assert kstest(draws[:, column], beta(k, n_cal + 1 - k).cdf).pvalue > 1e-3
        for wrong in (k - 1, k + 1):
            if 1 <= wrong <= n_cal:
                law = beta(wrong, n_cal + 1 - wrong)
                assert kstest(draws[:, column], law.cdf).pvalue < 1e-6


def test_infinite_bounds_where_the_rank_exceeds_n():
    X, y = np.arange(5.0)[:, None], np.arange(5.0) ** 2
    model = Known().fit(X, y)
    _, bounds = prefit_intervals(
        model, ClapsScore(model), (X, y), X, 0.9, allow_infinite_bounds=True
    )
    assert (bounds[:, 0] == -np.inf).all()
    assert (bounds[:, 1] == np.inf).all()


def test_too_few_scores_are_named_with_the_remedy():
    assert conformal_rank(9, 0.1) == 9
    with pytest.raises(
        ValueError, match=r"Got 8 .*confidence_level=0.9 .*least 9\. Ca"
    ):
        conformal_quantile(np.arange(8.0), [0.1])


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.5, np.nan])
def test_level_outside_the_unit_interval(alpha):
    with pytest.raises(ValueError, match="Got confidence_level=.*strictly between 0"):
        conformal_rank(10, alpha)


def test_ties_and_duplicates_keep_the_rank():
    np.testing.assert_array_equal(
        conformal_quantile([1, 1, 1, 2, 2], [0.5, 0.2]), [1, 2]
    )


def rows_on_their_own_ends(kind, n=100_000):
    """μ, √v and y over many scales; with discrete y the differences are inexact."""
    rng = np.random.default_rng(0)
    scales = 10.0 ** rng.uniform(-8, 8, (2, n))
    std = 10.0 ** rng.uniform(-6, 6, n)
    mu = rng.normal(size=n) * scales[0]
    if kind == "any":
        return mu, std, rng.normal(size=n) * scales[1]
    if kind == "zero":
        return mu, std, np.zeros(n)
    if kind == "near":
        return mu, std, mu + std * rng.normal(size=n)
    return np.round(mu, 1), std, np.round(rng.normal(size=n))


@pytest.mark.parametrize("kind", ["any", "zero", "near", "discrete"])
def test_a_row_lies_in_the_interval_of_its_own_score(kind):
    mu, std, y = rows_on_their_own_ends(kind)
    scores = np.abs(ClapsScore().get_signed_conformity_scores(y, mu, y_std=std))
    plain = np.stack([mu - std * scores, mu + std * scores])
    assert ((y < plain[0]) | (y > plain[1])).any()
    each = [slice(i, i + 1) for i in range(0, len(mu), 20)]  # a level for each row
    found = [
        LocalLaw.symmetric(mu[row], std[row]).interval(-scores[row], scores[row])
        for row in each
    ]
    lower, upper = np.array(found)[..., 0, 0].T
    assert (lower <= y[::20]).all()
    assert (y[::20] <= upper).all()
    limit = 2e-15 * (np.abs(mu) + std * scores)[::20]
    assert (np.abs([lower, upper] - plain[:, ::20]) <= limit).all()


def test_fold_bounds_hold_a_row_with_their_score_too():
    mu, std, y = (part[:2000] for part in rows_on_their_own_ends("any"))
    for m, s, t in zip(mu, std, y, strict=True):
        score = np.abs(ClapsScore().get_signed_conformity_scores([t], [m], y_std=[s]))
        centre, scale = np.full((1, 1), m), np.full((1, 1), s)
        for one_sided in (_plus, _minmax):
            assert t <= one_sided(centre, scale, score, [1])
            assert t >= -one_sided(-centre, scale, score, [1])


def test_an_interval_of_no_width_is_one_point():
    mu = np.array([0.1, -3.0])
    law = LocalLaw.symmetric(mu, np.ones(2))
    for end in law.interval(np.array([-0.0]), np.array([0.0])):
        np.testing.assert_array_equal(end[:, 0], mu)


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9])
def test_discrete_rows_with_tied_scores_are_all_inside(level):
    """k scores are at most the k-th: so many rows lie in their own intervals."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 6, 3000)[:, None] / 10
    y = np.round(rng.normal(size=3000)) / 10
    model = Known().fit(X, y)
    _, bounds = prefit_intervals(model, ClapsScore(model), (X, y), X, level)
    inside = (bounds[:, 0, 0] <= y) & (y <= bounds[:, 1, 0])
    mu, std = model.predict(X, return_std=True)
    scores = np.abs(ClapsScore().get_signed_conformity_scores(y, mu, y_std=std))
    q = conformal_quantile(scores, [1 - level])
    assert inside[scores <= q].all()
    assert inside.sum() >= conformal_rank(3000, 1 - level)
