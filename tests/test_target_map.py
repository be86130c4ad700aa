"""Maps of the target: strictly increasing, inverted to rounding, rounded outwards."""

import pickle
from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    PowerTransformer,
    QuantileTransformer,
    StandardScaler,
)

from mapie_claps.network import target_choice
from mapie_claps.network.target_choice import choose_target_map, fit_target_map
from mapie_claps.network.target_curves import MonotoneSpline, YeoJohnson
from mapie_claps.network.target_map import EPS, Identity, TargetMap
from mapie_claps.network.target_transformer import TransformerMap

LAWS = {
    "normal": lambda rng, n: rng.normal(size=n),
    "lognormal": lambda rng, n: rng.lognormal(0, 1.5, n),
    "left": lambda rng, n: -rng.exponential(size=n),
    "cauchy": lambda rng, n: rng.standard_cauchy(n),
    "counts": lambda rng, n: rng.poisson(20, n).astype(float),
    "half zeros": lambda rng, n: rng.exponential(size=n) * (rng.random(n) < 0.5),
}
CURVES = ("yeo-johnson", "spline")


def _targets(law: str, seed: int, scale: float, offset: float) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return offset + scale * LAWS[law](rng, 400)


def _around(y: np.ndarray) -> np.ndarray:
    """Training targets and values up to ten ranges beyond, in order and distinct."""
    span = np.ptp(y)
    wide = np.linspace(y.min() - 10 * span, y.max() + 10 * span, 501)
    return np.unique(np.concatenate([y, wide]))


any_targets = {
    "law": st.sampled_from(sorted(LAWS)),
    "seed": st.integers(0, 20),
    "scale": st.sampled_from([1e-100, 1e-6, 1.0, 1e3, 1e100]),
    "shift": st.sampled_from([0.0, 1.0, -1e3, 1e6]),
    "name": st.sampled_from(CURVES),
}


@settings(deadline=None, max_examples=60)
@given(**any_targets)
def test_curves_increase_and_lead_back(law, seed, scale, shift, name):
    y = _targets(law, seed, scale, shift * scale)
    fitted = fit_target_map(name, y)
    values = _around(y)
    z = fitted.forward(values)
    # Values nearer than rounding of the offset may share an image, none may fall.
    assert (np.diff(z) >= 0).all()
    apart = np.diff(values) > 1e-9 * np.abs(values).max()
    assert (np.diff(z)[apart] > 0).all()
    room = 64 * EPS * fitted._rounding(values, z)
    assert (np.abs(fitted.inverse(z) - values) <= room).all()


@settings(deadline=None, max_examples=60)
@given(**any_targets)
def test_ends_lose_no_value(law, seed, scale, shift, name):
    y = _targets(law, seed, scale, shift * scale)
    fitted = fit_target_map(name, y)
    values = _around(y)
    z = fitted.forward(values)
    assert (fitted.end(z, -1.0) <= values).all()
    assert (fitted.end(z, 1.0) >= values).all()
    assert (fitted.end([-np.inf, np.inf], -1.0) == [-np.inf, np.inf]).all()


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("law", sorted(LAWS))
def test_derivative_is_that_of_the_map(name, law):
    y = _targets(law, 0, 1.0, 0.0)
    fitted = fit_target_map(name, y)
    at = np.linspace(y.min() - 2, y.max() + 2, 333)
    step = 1e-6 * y.std()
    slope = (fitted.forward(at + step) - fitted.forward(at - step)) / (2 * step)
    np.testing.assert_allclose(fitted.derivative(at), slope, rtol=1e-3)


def test_lines_continue_the_curve():
    y = _targets("lognormal", 0, 1.0, 0.0)
    for name in CURVES:
        fitted = fit_target_map(name, y)
        far = y.max() + np.ptp(y) * np.array([2.0, 4.0, 6.0])
        steps = np.diff(fitted.forward(far))
        np.testing.assert_allclose(steps[0], steps[1], rtol=1e-9)
        assert steps[0] > 0


def test_spline_makes_a_skewed_law_normal():
    y = np.random.default_rng(0).lognormal(0, 1, 4_000)
    z = MonotoneSpline.fit(y).forward(y)
    assert abs(np.mean(((z - z.mean()) / z.std()) ** 3)) < 0.1
    power = YeoJohnson.fit(y)
    assert 0 <= power.power < 1


def test_ties_go_to_the_middle_of_their_ranks():
    y = np.r_[np.zeros(600), np.linspace(1, 2, 400)]
    z = MonotoneSpline.fit(y).forward([0.0])
    np.testing.assert_allclose(z, -0.524400512708041, rtol=1e-12)  # quantile at 0.3


def test_symmetric_law_keeps_the_power_near_one():
    y = np.random.default_rng(1).normal(5, 3, 4_000)
    assert abs(YeoJohnson.fit(y).power - 1) < 0.1


def test_powers_at_their_limits_are_logarithms():
    log_above = YeoJohnson(0.0, 1.0, 0.0, -3.0, 9.0)
    np.testing.assert_allclose(log_above.forward([np.e - 1]), [1.0])
    log_below = YeoJohnson(0.0, 1.0, 2.0, -9.0, 3.0)
    np.testing.assert_allclose(log_below.forward([1 - np.e]), [-1.0])
    for fitted in (log_above, log_below):
        y = np.linspace(-12, 12, 99)
        np.testing.assert_allclose(fitted.inverse(fitted.forward(y)), y, rtol=1e-14)


@pytest.mark.parametrize("y", [np.ones(50), np.arange(50.0) % 4, 1e16 + np.arange(9.0)])
def test_few_distinct_targets_are_not_bent(y):
    assert isinstance(fit_target_map("spline", y), Identity)
    assert isinstance(fit_target_map("yeo-johnson", y), Identity)


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
    assert isinstance(fitted, MonotoneSpline)
    z = fitted.forward(y)
    np.testing.assert_allclose(np.corrcoef(y, z)[0, 1], 1)
    assert (fitted.end(z, -1.0) <= y).all()
    assert (fitted.end(z, 1.0) >= y).all()


def test_the_choice_takes_the_identity_where_the_looked_at_rows_are_equal():
    y = np.zeros(60_000)
    y[:9] = np.arange(1, 10)  # among 3,000 rows there is none of them, or hardly any
    found = choose_target_map(
        torch.zeros(len(y), 1), y, None, None, torch.Generator(), torch.device("cpu")
    )
    assert isinstance(found, Identity)


def test_log_and_sqrt_have_a_domain():
    log = fit_target_map("log", np.array([1.0, 2.0]))
    assert np.isnan(log.forward([0.0, -1.0])).all()
    assert log.inverse([800.0]) == np.inf
    root = fit_target_map("sqrt", np.array([0.0, 4.0]))
    assert np.isnan(root.forward([-1.0])).all()
    np.testing.assert_array_equal(root.forward([0.0, 9.0]), [0.0, 3.0])
    np.testing.assert_array_equal(root.end(np.array([-2.0]), -1.0), [0.0])
    y = np.geomspace(1e-200, 1e200, 401)
    for fitted in (log, root):
        z = fitted.forward(y)
        np.testing.assert_allclose(fitted.inverse(z), y, rtol=1e-12)
        assert (fitted.end(z, -1.0) <= y).all()
        assert (fitted.end(z, 1.0) >= y).all()
        np.testing.assert_allclose(
            fitted.derivative([4.0]),
            (fitted.forward([4.0 + 1e-6]) - fitted.forward([4.0 - 1e-6])) / 2e-6,
            rtol=1e-6,
        )


def test_targets_outside_the_domain_are_refused():
    with pytest.raises(ValueError, match=r"target_map='log'.*positive.*-1\.0"):
        fit_target_map("log", np.array([-1.0, 2.0]))
    with pytest.raises(ValueError, match=r"target_map='sqrt'.*non-negative"):
        fit_target_map("sqrt", np.array([-1.0, 2.0]))


@pytest.mark.parametrize(
    "transformer",
    [
        PowerTransformer(),
        PowerTransformer(method="box-cox"),
        StandardScaler(),
        FunctionTransformer(np.log1p, np.expm1),
    ],
)
def test_transformer_with_an_inverse(transformer):
    y = np.random.default_rng(0).lognormal(0, 0.5, 300)
    fitted = fit_target_map(transformer, y)
    z = fitted.forward(y)
    np.testing.assert_allclose(fitted.inverse(z), y, rtol=1e-9)
    assert (fitted.end(z, -1.0) <= y).all()
    assert (fitted.end(z, 1.0) >= y).all()
    steps = (fitted.forward(y + 1e-5) - fitted.forward(y - 1e-5)) / 2e-5
    np.testing.assert_allclose(fitted.derivative(y), steps, rtol=1e-3)
    assert not hasattr(transformer, "n_features_in_")  # a copy was fitted


def test_ends_that_do_not_lead_back_are_infinite():
    y = np.random.default_rng(0).lognormal(0, 0.1, 300)
    bounded = FunctionTransformer(_rise, _sink)
    fitted = TransformerMap.fit(bounded, y)
    assert fitted.end(np.array([1.5]), 1.0) == np.inf
    assert fitted.end(np.array([1.5]), -1.0) == -np.inf
    two_branches = TransformerMap.fit(FunctionTransformer(_reciprocal, _reciprocal), y)
    assert two_branches.inverse(np.array([1.0])) == -1.0
    assert two_branches.end(np.array([1.0]), 1.0) == np.inf


def test_infinite_ends_stay_infinite_under_a_transformer():
    # T⁻¹(0) lies below the targets: no end may be taken for it.
    y = np.random.default_rng(0).uniform(150, 8_000, 300)
    fitted = fit_target_map(FunctionTransformer(np.log1p, np.expm1), y)
    ends = np.array([-np.inf, np.inf])
    for side in (-1.0, 1.0):
        np.testing.assert_array_equal(fitted.end(ends, side), ends)


def test_ends_under_a_transformer_lose_no_value_near_zero():
    y = np.random.default_rng(0).normal(1e6, 1e6, 2_000)
    fitted = fit_target_map(StandardScaler(), y)
    small = np.linspace(-1e-6, 1e-6, 101)
    z = fitted.forward(small)
    assert (fitted.end(z, -1.0) <= small).all()
    assert (fitted.end(z, 1.0) >= small).all()


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e12])
def test_ends_lead_back_in_any_unit_of_the_transformer(unit):
    y = np.random.default_rng(0).lognormal(0, 0.1, 300)
    bounded = FunctionTransformer(
        lambda y: unit * _rise(y), lambda z: _sink(z / unit), check_inverse=False
    )
    fitted = TransformerMap.fit(bounded, y - 1)
    inside = np.array([0.0, 1e-3, 0.5]) * unit
    assert np.isfinite(fitted.end(inside, 1.0)).all()
    capped = FunctionTransformer(
        lambda y: unit * y, lambda z: np.minimum(z / unit, 50.0), check_inverse=False
    )
    assert TransformerMap.fit(capped, y).end(np.array([60 * unit]), 1.0) == np.inf


def _rise(y):
    return 1 - np.exp(-y)


def _sink(z):
    return -np.log1p(-z)


def _reciprocal(y):
    return -1 / y


def test_transformer_that_refuses_some_targets_gives_no_image_there():
    y = np.random.default_rng(0).lognormal(0, 1.0, 300)
    boxcox = TransformerMap.fit(PowerTransformer(method="box-cox"), y)
    np.testing.assert_array_equal(np.isnan(boxcox.forward([-1.0, 1.0])), [True, False])
    # Where smaller targets have no image, the slope is that of the other side.
    assert np.isfinite(boxcox.derivative([1e-13])).all()


@pytest.mark.parametrize(
    ("transformer", "found"),
    [
        (QuantileTransformer(n_quantiles=50), "does not increase"),
        (MinMaxScaler(clip=True), "does not increase"),
        (FunctionTransformer(np.negative, np.negative), "does not increase"),
        (FunctionTransformer(np.log, np.exp, check_inverse=False), "no finite"),
        (FunctionTransformer(np.sqrt, np.abs, check_inverse=False), "and back"),
    ],
)
def test_unfit_transformers_are_refused(transformer, found):
    y = np.linspace(0, 3, 200)
    with pytest.raises(ValueError, match=rf"{found}.*Use target_map='auto'"):
        fit_target_map(transformer, y)


@pytest.mark.parametrize("name", ["identity", "yeo-johnson", "spline", "log", "sqrt"])
def test_maps_pickle_and_hold_plain_values(name):
    y = _targets("lognormal", 0, 1.0, 0.0)
    fitted = fit_target_map(name, y)
    other: TargetMap = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(other.forward(y), fitted.forward(y))
    for field in fields(fitted):  # type: ignore[arg-type]
        assert isinstance(getattr(fitted, field.name), float | np.ndarray)


def test_identity_adds_no_rounding():
    z = np.array([0.1, 1e300, -np.inf])
    same = Identity()
    for side in (-1.0, 1.0):
        assert same.end(z, side) is z
    np.testing.assert_array_equal(same.inverse(same.forward(z)), z)
    np.testing.assert_array_equal(same.derivative(z), np.ones(3))


@pytest.mark.parametrize(
    ("level", "expected"), [(1.0, Identity), (1e-9, MonotoneSpline)]
)
def test_the_kernel_has_a_say_in_the_choice(monkeypatch, level, expected):
    """Networks gain by a curve; it counts where they are ahead of a kernel."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (400, 2))
    y = X[:, 0] + 1e-4 * rng.normal(size=400)  # next to a line: easy for a kernel
    scores = level * np.array([[1.0] * 4, [0.95] * 4])
    monkeypatch.setattr(target_choice, "_held_out_scores", lambda *_: scores)

    def chosen(kernel: bool) -> object:
        return target_choice.choose_target_map(
            torch.from_numpy(X),
            y,
            None,  # the networks, whose scores are given
            None,
            torch.Generator().manual_seed(0),
            torch.device("cpu"),
            kernel=kernel,
        )

    assert isinstance(chosen(kernel=False), MonotoneSpline)
    assert isinstance(chosen(kernel=True), expected)
