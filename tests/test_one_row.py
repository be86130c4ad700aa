"""One row at a time: the numbers of predict_interval, and what is refused."""

import copy

import numpy as np
import pandas as pd
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor

from mapie_claps import CalibratedRegressor, ClapsRegressor, StreamingConformalRegressor
from mapie_claps.network import kernel_mean

rng = np.random.default_rng(0)
X = rng.normal(size=(320, 4))
y = 5 + np.sin(2 * X[:, 0]) + rng.gamma(1.0, 0.3 * (1 + (X[:, 2] > 0)))
SMALL = {"hidden_layer_sizes": (12,), "representation_size": 8, "n_members": 4}
SMALL |= {"max_steps": 20, "tol": None, "random_state": 0, "kernel": False}


def calibrated(levels=(0.8, 0.9), y=y, fit=None, **params):
    model = ClapsRegressor(**(SMALL | params)).fit(X[:180], y[:180])
    return CalibratedRegressor(model, levels, **(fit or {})).conformalize(
        X[180:300], y[180:300]
    )


@pytest.mark.parametrize(
    "params",
    [
        {"kernel": True, "target_map": "spline"},
        {"target_map": "yeo-johnson", "scale": "posterior"},
        {"target_map": "log", "scale": "aleatoric"},
        {"target_map": "sqrt", "scale": "constant", "views": ("raw",)},
        {
            "target_map": None,
            "hessian_structure": "diag",
            "last_layer": "trained",
            "scaling_rate": 0.0,
        },
        {"input_clip": None, "n_members": 1, "residual_shape": False, "n_bins": 0},
    ],
    ids=str,
)
def test_it_is_predict_interval(params):
    model = calibrated(**params)
    one_row = model.row_predictor()
    far = 30 * X[300:302]
    for x in np.concatenate([X[300:306], X[:3], far]):
        points, intervals = model.predict_interval(x[None])
        found = one_row(x)
        size = np.abs(intervals).max()
        np.testing.assert_allclose(found[0], points, rtol=1e-9, atol=1e-10 * size)
        np.testing.assert_allclose(found[1], intervals, rtol=1e-9, atol=1e-10 * size)
        assert [part.shape for part in found] == [(1,), (1, 2, 2)]
        # Outwards: what predict_interval holds is never lost.
        assert (found[1][:, 0] <= intervals[:, 0]).all()
        assert (found[1][:, 1] >= intervals[:, 1]).all()


@pytest.mark.parametrize(
    ("target", "fit"),
    [
        (np.round(y), {}),
        (np.round(y), {"support": "count"}),
        (np.round(y), {"support": np.arange(4, 12.0)}),
        (y, {"support": (4.5, 7.0)}),
        (y, {"support": None, "sym": False}),
    ],
    ids=["grades", "count", "list", "range", "two ranks"],
)
def test_support_and_ranks(target, fit):
    model = calibrated(0.7, target, fit)
    one_row = model.row_predictor()
    for x in X[300:]:
        expected = model.predict_interval(x[None])[1]
        np.testing.assert_allclose(one_row(x)[1], expected, rtol=1e-9)


def test_it_is_a_copy():
    model = calibrated()
    one_row = model.row_predictor()
    before = one_row(X[0])
    model.confidence_level = 0.5
    model.estimator.network_.mean_head.weight.data.zero_()
    model.estimator.set_params(scale="constant")
    for a, b in zip(before, one_row(X[0]), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match="has changed since calibration"):
        model.row_predictor()


@pytest.mark.parametrize(
    ("x", "match"),
    [
        (X[0, :3], r"Got x of shape \(3,\), but expected one row of 4 numbers"),
        (X[:2], r"Got x of shape \(2, 4\)"),
        (np.array([0, np.nan, 0, 0]), "expected finite numbers.*predict_interval"),
        (np.array([0, np.inf, 0, 0]), "expected finite numbers"),
    ],
)
def test_bad_rows(x, match):
    with pytest.raises(ValueError, match=match):
        calibrated().row_predictor()(x)


def test_what_has_no_fast_path():
    model = calibrated()
    grouped = copy.copy(model).conformalize(
        X[180:300], y[180:300], groups=lambda X: X[:, 0] > 0
    )
    with pytest.raises(ValueError, match="Got row_predictor of an object whose rows"):
        grouped.row_predictor()
    process = GaussianProcessRegressor().fit(X[:50], y[:50])
    other = StreamingConformalRegressor(process).conformalize(X[50:], y[50:])
    with pytest.raises(TypeError, match="Got a GaussianProcessRegressor in row_pred"):
        other.row_predictor()
    gaps = X.copy()
    gaps[::9, 1] = np.nan
    table = CalibratedRegressor(ClapsRegressor(**SMALL), random_state=0).fit(gaps, y)
    with pytest.raises(ValueError, match="expected columns of numbers"):
        table.row_predictor()
    with pytest.raises(ValueError, match="needs at least 199"):
        calibrated(0.995).row_predictor()


def test_kernel_member_with_the_mean_of_all_rows(monkeypatch):
    """Terms of that mean cancel: ends move outwards by what rounding may do."""
    monkeypatch.setattr(kernel_mean, "MIN_GAIN", -np.inf)
    noise_free = np.exp(np.sin(X[:, 0]) + 0.3 * X[:, 1])
    model = calibrated(y=noise_free, kernel=True, target_map=None)
    assert model.estimator.kernel_.member.dual is not None
    one_row = model.row_predictor()
    unit = model.estimator.scaler_y_.scale_[0]
    for x in X[300:]:
        points, intervals = model.predict_interval(x[None])
        found = one_row(x)
        np.testing.assert_allclose(found[0], points, atol=1e-7 * unit)
        np.testing.assert_allclose(found[1], intervals, atol=1e-7 * unit)
        assert (found[1][:, 0] <= intervals[:, 0]).all()
        assert (found[1][:, 1] >= intervals[:, 1]).all()


def test_labels_and_types_of_a_row_are_looked_at():
    """Numbers in another order, or read as numbers, would be wrong without a word."""
    frame = pd.DataFrame(X, columns=list("abcd"))
    model = ClapsRegressor(**SMALL).fit(frame[:180], y[:180])
    fitted = CalibratedRegressor(model).conformalize(frame[180:300], y[180:300])
    one_row, (point, interval) = (
        fitted.row_predictor(),
        fitted.predict_interval(frame[:1]),
    )
    for row in (frame[:1], frame.iloc[0], X[0], X[0].tolist()):
        np.testing.assert_allclose(one_row(row)[0], point)
        np.testing.assert_allclose(one_row(row)[1], interval)
    turned = frame[["d", "a", "b", "c"]]
    for row in (turned[:1], turned.iloc[0]):
        with pytest.raises(
            ValueError, match=r"columns \['d', 'a', 'b', 'c'\], but exp"
        ):
            one_row(row)
    for row in (["1"] * 4, X[0] + 1j, {"a": 1.0}, X[0].astype("M8[s]")):
        with pytest.raises(ValueError, match="Got x of the type .*one row of numbers"):
            one_row(row)
