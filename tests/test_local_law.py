"""What a model says of y at each row: scores, their inverse, means, both parts."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapie_claps.estimators.local_law import LocalLaw
from mapie_claps.estimators.residual_shape import (
    MIN_RESIDUALS,
    ResidualShape,
    fit_residual_shape,
)
from mapie_claps.network.target_choice import fit_target_map
from mapie_claps.network.target_map import Identity

N = 60


def law_of(kind, seed=0, scale=1.0, offset=0.0):
    """A law with parts in any combination of skew, shape and map."""
    rng = np.random.default_rng(seed)
    y = offset + scale * rng.lognormal(0, 0.8, 400)
    target_map = fit_target_map("spline" if "map" in kind else "identity", y)
    z = target_map.forward(y)
    unit = z.std()
    shape = ResidualShape()
    if "shape" in kind:
        shape = fit_residual_shape(rng.exponential(size=2000) - 1)
        assert not isinstance(shape.curve, Identity)
    return LocalLaw.from_parts(
        rng.choice(z, N),
        unit**2 * rng.uniform(0.1, 1, N),
        unit**2 * rng.uniform(0, 0.5, N),
        rng.uniform(-0.7, 0.7, N) if "skew" in kind else None,
        shape,
        target_map,
    ), y


KINDS = ["plain", "skew", "shape", "map", "skew shape", "skew shape map"]


def test_plain_law_is_the_formula_to_the_last_bit():
    rng = np.random.default_rng(0)
    mu, std, y = rng.normal(size=(3, 500))
    std = np.exp(std)
    law = LocalLaw.symmetric(mu, std)
    assert law.is_plain
    np.testing.assert_array_equal(law.score(y), (y - mu) / std)
    np.testing.assert_array_equal(law.prediction, mu)
    np.testing.assert_array_equal(law.std, std)
    q = np.array([0.0, 1.3, np.inf])
    lower, upper = law.interval(-q, q)
    half = std[:, None] * (q * (1 + 4 * np.finfo(float).eps))
    wide = half > 0
    expected = np.where(wide, np.nextafter(mu[:, None] - half, -np.inf), mu[:, None])
    np.testing.assert_array_equal(lower, expected)
    expected = np.where(wide, np.nextafter(mu[:, None] + half, np.inf), mu[:, None])
    np.testing.assert_array_equal(upper, expected)


@settings(deadline=None, max_examples=60)
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 10),
    scale=st.sampled_from([1e-9, 1.0, 1e6]),
    offset=st.sampled_from([0.0, 1e3, -1e4]),
)
def test_a_row_lies_in_the_interval_of_its_own_score(kind, seed, scale, offset):
    law, y = law_of(kind, seed, scale, offset * scale)
    target = np.random.default_rng(seed).choice(y, N)
    score = law.score(target)
    np.testing.assert_allclose(
        law.quantile(score[:, None])[:, 0], target, rtol=1e-9, atol=1e-6 * scale
    )
    for i in range(N):
        lower, upper = law.interval(score[i : i + 1], score[i : i + 1])
        assert lower[i, 0] <= target[i] <= upper[i, 0]
        assert upper[i, 0] - lower[i, 0] <= 1e-9 * (abs(target[i]) + scale)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_increase_and_intervals_are_nested(kind):
    law, y = law_of(kind)
    grid = np.linspace(y.min() - 3, y.max() + 3, 200)
    score = law.score(np.tile(grid, (N, 1)))
    assert (np.diff(score, axis=1) > 0).all()
    np.testing.assert_array_equal(law.score(np.full(N, grid[7])), score[:, 7])
    q = np.array([0.1, 0.5, 1.0, 3.0])
    lower, upper = law.interval(-q, q)
    assert (np.diff(lower, axis=1) < 0).all()
    assert (np.diff(upper, axis=1) > 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_noise_alone_needs_less(kind):
    law, _ = law_of(kind)
    q = np.array([1.0, 2.0])
    (lower, upper), (low, up) = law.interval(-q, q), law.noise_alone.interval(-q, q)
    assert (lower <= low).all()
    assert (up <= upper).all()
    none = LocalLaw.from_parts(
        law.centre,
        law.aleatoric,
        np.zeros(N),
        law.skew,
        law.shape,
        law.target_map,
    )
    np.testing.assert_allclose(none.interval(-q, q), (low, up), rtol=1e-12)


def test_both_sides_of_the_noise():
    law = LocalLaw.from_parts(
        np.zeros(1), np.array([1.0]), np.array([0.5]), np.array([0.6])
    )
    np.testing.assert_allclose(law.below**2, [0.4 + 0.5])
    np.testing.assert_allclose(law.above**2, [1.6 + 0.5])
    np.testing.assert_allclose(law.score([-law.below[0]]), [-1.0])
    np.testing.assert_allclose(law.score([2 * law.above[0]]), [2.0])
    # v, and what predict says of it, is the mean of both sides.
    np.testing.assert_allclose(law.parts.std**2, (law.below**2 + law.above**2) / 2)


def test_mean_and_median_under_a_logarithm():
    z, noise, lack = 1.0, 0.09, 0.16
    law = LocalLaw.from_parts(
        np.array([z]),
        np.array([noise]),
        np.array([lack]),
        target_map=fit_target_map("log", np.ones(2)),
    )
    v = noise + lack
    np.testing.assert_allclose(law.median, np.exp(z))
    np.testing.assert_allclose(law.prediction, np.exp(z + v / 2), rtol=0.01)
    parts = law.parts
    variance = np.expm1(v) * np.exp(2 * z + v)
    np.testing.assert_allclose(parts.std**2, variance, rtol=0.2)
    np.testing.assert_allclose(parts.epistemic / parts.std**2, lack / v)


def test_mean_is_finite_where_the_logarithm_overflows():
    law = LocalLaw.from_parts(
        np.array([705.0]),
        np.array([4.0]),
        np.array([1.0]),
        target_map=fit_target_map("log", np.ones(2)),
    )
    assert np.isfinite(law.prediction).all()
    assert law.interval(-np.ones(1), np.full(1, 9.0))[1] == np.inf


def test_targets_outside_the_domain():
    law = LocalLaw.from_parts(
        np.zeros(3),
        np.ones(3),
        np.ones(3),
        target_map=fit_target_map("log", np.ones(2)),
    )
    y = np.array([-1.0, 0.0, 1.0])
    np.testing.assert_array_equal(np.isposinf(law.score(y)), [True, True, False])
    # As a position on the line they lie below, not above.
    np.testing.assert_array_equal(law.position(y)[:2], [-np.inf, -np.inf])
    lower, _ = law.interval(np.array([-np.inf]), np.array([np.inf]))
    # An infinite interval holds all targets, those outside the domain too.
    np.testing.assert_array_equal(lower, np.full((3, 1), -np.inf))
    lower, _ = law.interval(np.array([-1e3]), np.array([0.0]))
    np.testing.assert_array_equal(lower, np.zeros((3, 1)))


def test_law_without_parts_says_so():
    with pytest.raises(ValueError, match="without the parts"):
        _ = LocalLaw.symmetric(np.zeros(1), np.ones(1)).parts


def test_law_pickles():
    law, y = law_of("skew shape map")
    again = pickle.loads(pickle.dumps(law))
    np.testing.assert_array_equal(again.score(y[:N]), law.score(y[:N]))
    plain = pickle.loads(pickle.dumps(law_of("plain")[0]))
    assert plain.is_plain


def test_skewed_residuals_leave_equal_shares_outside():
    rng = np.random.default_rng(0)
    residual = rng.exponential(size=4000) - 1
    curve = fit_residual_shape(residual).curve
    score = curve.forward(rng.exponential(size=40_000) - 1)
    for level in (0.5, 0.8, 0.9, 0.95):
        q = np.quantile(np.abs(score), level)
        below, above = np.mean(score < -q), np.mean(score > q)
        assert abs(below - above) < 0.02


def test_symmetric_residuals_leave_the_score_nearly_as_it_is():
    rng = np.random.default_rng(0)
    for seed in range(5):
        residual = np.random.default_rng(seed).standard_t(5, size=2000)
        curve = fit_residual_shape(residual).curve
        r = rng.normal(size=1000)
        assert np.abs(curve.forward(r) - r).max() < 0.15


def test_few_or_equal_residuals_have_no_shape():
    few = np.random.default_rng(0).exponential(size=MIN_RESIDUALS - 1)
    assert isinstance(fit_residual_shape(few).curve, Identity)
    zeros = fit_residual_shape(np.zeros(500))
    assert isinstance(zeros.curve, Identity)
    switched_off = fit_residual_shape(np.repeat(few, 9), learn_curve=False)
    assert isinstance(switched_off.curve, Identity)
    assert not np.allclose(switched_off.nodes, ResidualShape().nodes)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 200), size=st.integers(MIN_RESIDUALS, 400))
def test_every_shape_increases(seed, size):
    rng = np.random.default_rng(seed)
    residual = rng.standard_cauchy(size) * (rng.random(size) < rng.random())
    curve = fit_residual_shape(np.round(residual, rng.integers(0, 3))).curve
    grid = np.linspace(-50, 50, 999)
    assert (np.diff(curve.forward(grid)) > 0).all()
    np.testing.assert_allclose(curve.inverse(curve.forward(grid)), grid, atol=1e-9)
