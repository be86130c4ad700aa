"""Exported models: equal to Python in onnxruntime and torch, and what is refused."""

import copy
import json
import sys

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.preprocessing import StandardScaler

from mapie_claps import CalibratedRegressor, ClapsRegressor
from mapie_claps.export import OUTPUTS, _intervals_of, to_onnx, to_torch

SMALL = {"hidden_layer_sizes": (10, 6), "n_members": 3, "max_steps": 15}
SMALL |= {"kernel": False, "random_state": 0}
N_TRAIN, N_CAL, N = 190, 310, 330


def problem(seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, 3)) * [1, 10, 0.1] + [0, 50, 3]
    return X, np.exp(0.4 * X[:, 0] + rng.normal(0, 0.3, N)) + 0.2


def calibrated(X, y, levels=(0.8, 0.9), fit=None, **params):
    model = ClapsRegressor(**(SMALL | params)).fit(X[:N_TRAIN], y[:N_TRAIN])
    conformal = CalibratedRegressor(model, levels, **(fit or {}))
    return conformal.conformalize(X[N_TRAIN:N_CAL], y[N_TRAIN:N_CAL])


def in_python(model, X):
    points, bounds = model.predict_interval(X)
    parts = model.estimator_.predict_variance(X)
    return points, bounds[:, 0], bounds[:, 1], parts.aleatoric, parts.epistemic


def check(found, expected):
    size = np.abs(expected[2][np.isfinite(expected[2])]).max()
    for name, a, b in zip(OUTPUTS, found, expected, strict=True):
        assert a.dtype == np.float64
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8 * size, err_msg=name)


def eager(model, X):
    """The module without tracing, which takes seconds."""
    with torch.no_grad():
        return [out.numpy() for out in _intervals_of(model)[0](torch.tensor(X))]


@pytest.mark.filterwarnings("ignore")  # of torch, about itself
def test_onnx_is_python(tmp_path):
    X, y = problem()
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model = calibrated(frame, y, target_map="spline")
    model.set_params(confidence_level=0.7)
    path = to_onnx(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(path))
    rows = X[N_CAL:].copy()
    rows[:3, 0] = 1e300, -1e300, 1e39  # infinite in float32
    expected = in_python(model, pd.DataFrame(rows, columns=["a", "b", "c"]))
    check(session.run(None, {"X": rows}), expected)
    check(session.run(None, {"X": rows[:1]}), [out[:1] for out in expected])
    none = session.run(None, {"X": rows[:0]})
    assert [out.shape for out in none] == [(0,), (0, 1), (0, 1), (0,), (0,)]
    (given,) = session.get_inputs()
    assert (given.name, given.type, given.shape[1]) == ("X", "tensor(double)", 3)
    assert [out.name for out in session.get_outputs()] == list(OUTPUTS)
    text = session.get_modelmeta().custom_metadata_map["mapie_claps"]
    description = json.loads(text)
    assert description["levels"] == [0.7]
    assert description["columns"] == ["a", "b", "c"]
    assert description["fit_id"] == model.estimator_.fit_id_


@pytest.mark.filterwarnings("ignore")
def test_torch_program_is_python(tmp_path):
    """With networks and a kernel; ONNX has the networks by themselves."""
    X, _ = problem()
    y = np.sin(2 * X[:, 0]) + X[:, 1] / 10
    model = calibrated(X, y, kernel=True, target_map="identity", max_steps=150)
    assert model.estimator_.kernel_ is not None
    path = to_torch(model, tmp_path / "model.pt2")
    files = {"mapie_claps": ""}
    program = torch.export.load(path, extra_files=files).module()
    for rows in (X[N_CAL:], X[:1]):
        found = [out.numpy() for out in program(torch.tensor(rows))]
        check(found, in_python(model, rows))
    assert json.loads(files["mapie_claps"])["levels"] == [0.8, 0.9]
    with pytest.raises(ValueError, match="kernel member.*kernel=False"):
        to_onnx(model, tmp_path / "model.onnx")
    check(eager(model, X[N_CAL:]), in_python(model, X[N_CAL:]))


def test_what_is_no_row_gives_nan():
    X, y = problem()
    model, rows = calibrated(X, y), X[:4].copy()
    rows[0, 0], rows[1, 1], rows[2, 2] = np.nan, np.inf, -np.inf
    for out, expected in zip(eager(model, rows), in_python(model, X[:4]), strict=True):
        assert np.isnan(out[:3]).all()
        np.testing.assert_allclose(out[3], expected[3], rtol=1e-6)


@pytest.mark.parametrize(
    ("params", "fit"),
    [
        ({"target_map": "yeo-johnson", "scale": "posterior"}, {"sym": False}),
        ({"target_map": "log", "scale": "aleatoric"}, {}),
        ({"target_map": "sqrt", "scale": "constant"}, {"support": (0.1, 9.0)}),
        ({"target_map": "log"}, {"support": (0.0, 1.5)}),  # infinite upper ends
        ({"recipe": "paper", "n_members": 1}, {}),
        ({"target_map": "identity"}, {"support": "count"}),
        ({"target_map": "identity"}, {"support": np.arange(0.0, 40.0, 1.0)}),
    ],
    ids=str,
)
def test_settings(params, fit):
    X, y = problem(2)
    if isinstance(fit.get("support"), str | np.ndarray):
        y = np.round(y)
    model = calibrated(X, y, (0.5, 0.7), fit, **params)
    check(eager(model, X[N_CAL:]), in_python(model, X[N_CAL:]))


def test_what_cannot_be_exported(tmp_path, monkeypatch):
    X, y = problem()
    path = tmp_path / "model.pt2"
    plain = calibrated(X, y, target_map="identity")
    rows = X[N_TRAIN:], y[N_TRAIN:]
    grouped = copy.copy(plain).conformalize(*rows, partition=lambda X: X[:, 0] > 0)
    text = pd.DataFrame(X, columns=["a", "b", "c"]).assign(d=["x", "y", "z"] * 110)
    process = GaussianProcessRegressor(optimizer=None).fit(X[:50], y[:50])
    process = CalibratedRegressor(process).conformalize(X[50:], y[50:])
    for message, model in {
        "Got an export of an object whose rows differ": grouped,
        "Got a GaussianProcessRegressor, but expected a Cal": process,
        "Got a ClapsRegressor, but expected a CalibratedRegressor": plain.estimator_,
        "inputs are .*'d_x'.* text": calibrated(text, y),
        "by a preprocessor": calibrated(X, y, preprocessor=StandardScaler()),
    }.items():
        with pytest.raises((ValueError, TypeError), match=message):
            to_torch(model, path)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"pip install 'mapie-claps\[export\]'"):
        to_onnx(plain, path)
    assert not path.exists()
