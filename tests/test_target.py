"""Maps of the target: increasing, inverted to rounding, rounded outwards; shapes."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri
from scipy.stats import yeojohnson, yeojohnson_normmax

from mapie_claps.network.target import (
    IDENTITY,
    MonotoneMap,
    NoiseShape,
    candidate_maps,
    fit_noise_shape,
    fit_target_map,
)

LAWS = {
    "normal": lambda rng, n: rng.normal(size=n),
    "lognormal": lambda rng, n: rng.lognormal(0, 1.5, n),
    "left": lambda rng, n: -rng.exponential(size=n),
    "cauchy": lambda rng, n: rng.standard_cauchy(n),
    "counts": lambda rng, n: rng.poisson(20, n).astype(float),
    "half zeros": lambda rng, n: rng.exponential(size=n) * (rng.random(n) < 0.5),
}
CURVES = ("yeo-johnson", "spline")


def targets(law, seed=0, scale=1.0, offset=0.0):
    return offset + scale * LAWS[law](np.random.default_rng(seed), 400)


def around(y, low=-np.inf):
    """Training targets, their neighbours and values up to ten ranges beyond."""
    span = np.ptp(y)
    wide = np.linspace(y.min() - 10 * span, y.max() + 10 * span, 501)
    values = np.r_[y, np.nextafter(y, np.inf), np.nextafter(y, -np.inf), wide]
    return np.unique(values[values >= low])


def check_map(fitted, values, rtol):
    """Nothing falls, T⁻¹(T(y)) = y, and an end loses no value that T sends inside."""
    z = fitted.forward(values)
    scale = np.abs(values).max()
    assert (np.diff(z) >= -1e-14 * (np.abs(z[1:]) + np.ptp(fitted.z))).all()
    assert (np.diff(z)[np.diff(values) > 1e-9 * scale] > 0).all()
    np.testing.assert_allclose(fitted.inverse(z), values, rtol=rtol, atol=rtol * scale)
    lower, upper = fitted.end(z, -1.0), fitted.end(z, 1.0)
    assert (lower <= values).all()
    assert (values <= upper).all()
    np.testing.assert_allclose(upper, lower, rtol=rtol, atol=rtol * scale)


@settings(deadline=None, max_examples=60)
@given(
    law=st.sampled_from(sorted(LAWS)),
    seed=st.integers(0, 20),
    scale=st.sampled_from([1e-100, 1e-6, 1.0, 1e3, 1e100]),
    shift=st.sampled_from([0.0, 1.0, -1e3, 1e6]),
    name=st.sampled_from(CURVES),
)
def test_curves_increase_lead_back_and_lose_no_value(law, seed, scale, shift, name):
    y = targets(law, seed, scale, shift * scale)
    check_map(fit_target_map(name, y), around(y), 1e-11)


@pytest.mark.parametrize("name", ["log", "sqrt"])
@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_sampled_maps_increase_lead_back_and_lose_no_value(name, scale):
    y = targets("lognormal", 1, scale, 1e-3 * scale)
    fitted = fit_target_map(name, y)
    check_map(fitted, around(y, low=fitted.domain[0]), 1e-10)


@pytest.mark.parametrize("law", ["lognormal", "half zeros", "counts"])
def test_sampled_maps_are_the_formulas(law):
    y = np.sort(targets(law, scale=50.0))
    at = np.linspace(y[0], y[-1], 5001)
    root = fit_target_map("sqrt", y).forward(at)
    np.testing.assert_allclose(root, np.sqrt(at), atol=2e-4 * np.sqrt(y[-1]))
    log = fit_target_map("log", y + 1.0).forward(at + 1.0)
    np.testing.assert_allclose(log, np.log1p(at), atol=1e-3)
    x, power = (at - y.mean()) / y.std(), yeojohnson_normmax((y - y.mean()) / y.std())
    power = np.clip(power, 0, 2)
    bent = fit_target_map("yeo-johnson", y).forward(at)
    np.testing.assert_allclose(bent, yeojohnson(x, power), atol=1e-5)


@pytest.mark.parametrize("name", [*CURVES, "sqrt"])
@pytest.mark.parametrize("law", ["lognormal", "counts", "half zeros"])
def test_derivative_is_that_of_the_map_and_lines_continue_it(name, law):
    y = targets(law)
    fitted = fit_target_map(name, y)
    at = np.linspace(y.min() + 0.01, y.max() + 2, 333)
    step = 1e-6 * y.std()
    slope = (fitted.forward(at + step) - fitted.forward(at - step)) / (2 * step)
    np.testing.assert_allclose(fitted.derivative(at), slope, rtol=1e-3)
    far = fitted.derivative(y.max() + np.ptp(y) * np.array([20, 40]))
    assert far[0] == far[1] > 0


def test_nothing_is_lost_where_y_is_large_and_varies_little():
    y = 1e6 + targets("lognormal", scale=1e-3)
    for name in CURVES:
        fitted = fit_target_map(name, y)
        np.testing.assert_allclose(fitted.inverse(fitted.forward(y)), y, rtol=3e-16)
        assert (fitted.end(fitted.forward(y), 1.0) - y).max() < 1e-7


def test_spline_makes_a_skewed_law_normal_with_ties_in_the_middle_of_their_ranks():
    y = np.random.default_rng(0).lognormal(0, 1, 4_000)
    z = fit_target_map("spline", y).forward(y)
    assert abs(np.mean(((z - z.mean()) / z.std()) ** 3)) < 0.1
    tied = np.r_[np.zeros(600), np.linspace(1, 2, 400)]
    z = fit_target_map("spline", tied).forward([0.0])
    np.testing.assert_allclose(z, ndtri(0.3), rtol=1e-12)


@pytest.mark.parametrize(
    "y",
    [np.ones(50), np.arange(50.0) % 4, 1e16 + np.arange(9.0), 1e-200 * np.arange(50)],
)
def test_what_cannot_be_bent_stays(y):
    assert all(fit_target_map(name, y).is_identity for name in CURVES)
    assert not candidate_maps(y)


def test_candidates_are_those_that_bend():
    assert list(candidate_maps(targets("lognormal"))) == ["yeo-johnson", "spline"]
    assert not candidate_maps(ndtri(np.linspace(0.01, 0.99, 300)))


@pytest.mark.parametrize(
    "odd",
    [
        [1e6],  # next to which all others are one value
        [-4.0, -3.0, -2.0, -1.0, 1.0, 2.0, 3.0, 4.0],  # fewer than beyond the knots
    ],
)
def test_a_spline_without_two_knots_is_a_line(odd):
    y = np.tile(np.linspace(0, 0.1, 50), 10) if len(odd) == 1 else np.zeros(500)
    y[: len(odd)] = odd
    fitted = fit_target_map("spline", y)
    assert not fitted.is_identity
    z = fitted.forward(y)
    np.testing.assert_allclose(np.corrcoef(y, z)[0, 1], 1)
    assert ((fitted.end(z, -1.0) <= y) & (y <= fitted.end(z, 1.0))).all()


def test_log_and_sqrt_have_a_domain():
    log = fit_target_map("log", np.array([1.0, 2.0]))
    np.testing.assert_array_equal(np.isnan(log.forward([0.0, -1.0, 1e-9])), [1, 1, 0])
    root = fit_target_map("sqrt", np.array([0.0, 4.0]))
    np.testing.assert_array_equal(np.isnan(root.forward([-1e-9, 0.0])), [1, 0])
    assert root.forward(0.0) == 0.0
    for fitted in (log, root):
        low = fitted.domain[0]
        far = np.array([-1e3, -50.0])
        np.testing.assert_array_equal(fitted.inverse(far), low)
        np.testing.assert_array_equal(fitted.end(far, -1.0), low)
        assert (fitted.end(far, 1.0) < 1e-9).all()


@pytest.mark.parametrize("name", ["identity", *CURVES, "log", "sqrt"])
def test_infinite_ends_stay_infinite(name):
    fitted = fit_target_map(name, targets("lognormal"))
    ends = np.array([-np.inf, np.inf])
    for found in (fitted.inverse(ends), fitted.end(ends, -1.0), fitted.end(ends, 1.0)):
        np.testing.assert_array_equal(found, ends)
    if name in CURVES:
        np.testing.assert_array_equal(fitted.forward(ends), ends)
    assert np.isnan(fitted.forward(np.nan))


def test_ends_beyond_the_largest_number_are_infinite():
    steep = MonotoneMap.through(np.array([0.0, 1.0]), np.array([0.0, 1e-10]))
    assert steep.end(1e300, 1.0) == np.inf
    assert steep.end(-1e300, -1.0) == -np.inf


def test_the_identity_is_a_plain_view():
    y = np.arange(3.0)
    for name in (None, "identity", "auto"):
        assert fit_target_map(name, y) is IDENTITY
    assert IDENTITY.forward(y) is y
    assert IDENTITY.inverse(y) is IDENTITY.end(y, 1.0) is y
    assert IDENTITY.forward([1, 2]).dtype == np.float64
    np.testing.assert_array_equal(IDENTITY.derivative(y), 1.0)
    assert copy.deepcopy(IDENTITY).is_identity


def test_targets_outside_the_domain_are_refused():
    with pytest.raises(ValueError, match=r"target_map='log'.*positive.*-1\.0.*'auto'"):
        fit_target_map("log", np.array([-1.0, 2.0]))
    with pytest.raises(ValueError, match=r"target_map='sqrt'.*non-negative"):
        fit_target_map("sqrt", np.array([-1.0, 2.0]))


@pytest.mark.parametrize("name", ["cube", 3, ["log"]])
def test_unknown_names_are_refused(name):
    with pytest.raises(ValueError, match=r"target_map=.*'spline'.*fit on T"):
        fit_target_map(name, np.array([1.0, 2.0]))


def test_values_that_differ_by_rounding_may_share_an_image():
    y = np.r_[0.3, 0.1 + 0.2, np.linspace(0.1, 2, 50)]
    assert fit_target_map("log", y).forward(0.3) == pytest.approx(np.log(0.3), abs=1e-4)


def test_few_or_tied_residuals_have_no_shape():
    rng = np.random.default_rng(0)
    few = fit_noise_shape(rng.exponential(size=99))
    np.testing.assert_array_equal(few.nodes, NoiseShape().nodes)
    assert fit_noise_shape(np.zeros(500)).curve.is_identity
    assert fit_noise_shape(np.r_[np.zeros(470), np.ones(30)]).curve.is_identity


def test_tails_of_equal_probability_get_scores_of_equal_size():
    residual = np.random.default_rng(0).exponential(size=20_000) - 1
    shape = fit_noise_shape(residual)
    np.testing.assert_allclose(
        shape.nodes, np.quantile(residual, (np.arange(32) + 0.5) / 32)
    )
    for tail in (0.25, 0.1, 0.05, 0.025):
        low, high = shape.curve.forward(np.quantile(residual, [tail, 1 - tail]))
        np.testing.assert_allclose(low, -high, rtol=0.05)
    median = shape.curve.inverse(0.0)
    np.testing.assert_allclose(median, np.median(residual), atol=0.01)
    # Beyond the last quantiles both sides keep their proportion to the median.
    for end in (0, -1):
        ratio = shape.curve.z[end] / (shape.curve.x[end] - median)
        np.testing.assert_allclose(shape.curve.slope[end], ratio)


def test_asymmetry_within_its_error_is_shrunk():
    rng = np.random.default_rng(0)
    shifts = []
    for _ in range(50):
        curve = fit_noise_shape(rng.normal(size=200)).curve
        assert (np.diff(curve.x) > 0).all()
        shifts.append(curve.inverse(0.0))
    assert np.std(shifts) < 0.75 * np.sqrt(np.pi / 2 / 200)
