"""Exported models: equal to Python in onnxruntime and torch, and what is refused."""

import copy
import json

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.preprocessing import MinMaxScaler

from mapie_claps import CalibratedRegressor, ClapsRegressor
from mapie_claps.conformal.frozen import frozen_rule
from mapie_claps.export import graph_inputs, to_onnx, to_torch
from mapie_claps.export.graph import OUTPUTS, IntervalGraph
from mapie_claps.export.inputs import input_columns
from mapie_claps.export.maps import inverse_of
from mapie_claps.network.target_curves import MonotoneSpline, YeoJohnson
from mapie_claps.network.target_map import Identity, Log, SquareRoot

SMALL = {"hidden_layer_sizes": (10,), "representation_size": 6, "n_members": 3}
SMALL |= {"max_steps": 15, "tol": None, "kernel": False, "random_state": 0}
N_TRAIN, N = 190, 330


def table():
    rng = np.random.default_rng(0)
    start = pd.Timestamp("2019-11-01")
    X = pd.DataFrame(
        {
            "size": rng.normal(size=N),
            "with gaps": np.where(rng.random(N) < 0.2, np.nan, rng.normal(size=N)),
            "colour": rng.choice(["red", "green", "blue"], N),
            "door": rng.choice(["open", "shut", None], N),
            "town": rng.choice([f"town {i}" for i in range(25)], N),
            "from": start + pd.to_timedelta(rng.integers(0, 9e7, N), unit="s"),
            "to": start + pd.to_timedelta(rng.integers(0, 9e7, N), unit="s"),
            "flag": rng.random(N) < 0.5,
        }
    )
    X.loc[::17, "from"] = pd.NaT
    y = np.exp(0.5 * X["size"] + (X["colour"] == "red") + rng.normal(0, 0.3, N))
    return X, y.to_numpy()


def calibrated(X, y, levels=(0.8, 0.9), fit=None, **params):
    model = ClapsRegressor(**(SMALL | params)).fit(X[:N_TRAIN], y[:N_TRAIN])
    conformal = CalibratedRegressor(model, levels, **(fit or {}))
    return conformal.conformalize(X[N_TRAIN:310], y[N_TRAIN:310])


def in_python(model, X):
    points, bounds = model.predict_interval(X)
    parts = model._fitted().predict_parts(X)
    return points, bounds[:, 0], bounds[:, 1], parts.aleatoric, parts.epistemic


def check(found, expected):
    size = np.abs(expected[2]).max()
    for name, a, b in zip(OUTPUTS, found, expected, strict=True):
        assert a.dtype == np.float64
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8 * size, err_msg=name)


def eager(model, X, draw=False):
    """The graph without tracing, which takes seconds."""
    estimator = model._fitted()
    rule, columns = frozen_rule(model, "an export"), input_columns(estimator.table_)
    graph = IntervalGraph(estimator, rule, columns, draw)
    rows = {k: torch.tensor(v) for k, v in graph_inputs(model, X).items()}
    with torch.no_grad():
        return [out.numpy() for out in graph(rows)]


@pytest.fixture(scope="module")
def of_table():
    X, y = table()
    return calibrated(X, y, target_map="spline"), X


@pytest.mark.filterwarnings("ignore")  # of torch, about itself
def test_onnx_is_python_with_all_kinds_of_columns(of_table, tmp_path):
    model, X = of_table
    rows = X[310:].copy()
    rows.iloc[0, 2], rows.iloc[1, 4], rows.iloc[2, 0] = "pink", "elsewhere", np.nan
    path = to_onnx(model, tmp_path / "model.onnx", 0.7, unseen="draws")
    session = onnxruntime.InferenceSession(str(path))
    other = copy.copy(model)
    other.confidence_level = 0.7
    feeds = graph_inputs(model, rows)
    expected = in_python(other, rows)
    check(session.run(None, feeds), expected)
    one = session.run(None, {name: values[:1] for name, values in feeds.items()})
    check(one, [values[:1] for values in expected])
    far = rows.copy()
    far.iloc[3:6, 0] = 1e300, -1e300, 1e39  # infinite in float32
    check(session.run(None, graph_inputs(model, far)), in_python(other, far))
    none = session.run(None, {name: values[:0] for name, values in feeds.items()})
    assert [out.shape for out in none] == [(0,), (0, 1), (0, 1), (0,), (0,)]
    assert [(i.name, i.type, i.shape) for i in session.get_inputs()][1:3] == [
        ("in_with_gaps", "tensor(double)", ["rows"]),
        ("in_colour", "tensor(int64)", ["rows"]),
    ]
    assert [out.name for out in session.get_outputs()] == list(OUTPUTS)
    text = session.get_modelmeta().custom_metadata_map["mapie_claps"]
    description = json.loads(text)
    assert description["levels"] == [0.7]
    by_name = {column["name"]: column for column in description["inputs"]}
    assert by_name["in_door"]["categories"] == ["open", "shut", None]
    assert by_name["in_door"]["gap"] == "2"
    assert by_name["in_from"]["kind"] == "date"
    assert by_name["in_with_gaps"]["column"] == "with gaps"


@pytest.mark.filterwarnings("ignore")
def test_torch_program_is_python(tmp_path):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(N, 3))
    model = calibrated(X, np.exp(X[:, 0] + rng.normal(0, 0.3, N)), target_map=None)
    path = to_torch(model, tmp_path / "model.pt2")
    files = {"mapie_claps": ""}
    program = torch.export.load(path, extra_files=files).module()
    for rows in (X[310:], X[310:311]):
        inputs = {k: torch.tensor(v) for k, v in graph_inputs(model, rows).items()}
        found = [out.numpy() for out in program(inputs)]
        check(found, in_python(model, rows))
    assert json.loads(files["mapie_claps"])["levels"] == [0.8, 0.9]


@pytest.mark.parametrize("draw", [False, True])
def test_values_that_never_occurred(of_table, draw):
    model, X = of_table
    rows = X[310:].copy()
    rows.iloc[0, 2], rows.iloc[1, 4], rows.iloc[2, 0] = "pink", "elsewhere", np.nan
    rows.iloc[3, 6] = pd.NaT
    found, expected = eager(model, rows, draw), in_python(model, rows)
    if draw:
        check(found, expected)
        return
    for out in found:
        assert np.isnan(out[:4]).all()
    check([out[4:] for out in found], [out[4:] for out in expected])


def test_what_is_no_row_gives_nan(of_table):
    model, X = of_table
    estimator = model._fitted()
    columns = input_columns(estimator.table_)
    graph = IntervalGraph(estimator, frozen_rule(model, "an export"), columns, True)
    rows = {k: v.copy() for k, v in graph_inputs(model, X[310:314]).items()}
    rows["in_size"][0], rows["in_colour"][1] = np.inf, 17
    rows["in_town"][2] = -1
    with torch.no_grad():
        found = graph({k: torch.tensor(v) for k, v in rows.items()})
    for out in found:
        assert torch.isnan(out[:3]).all()
        assert torch.isfinite(out[3:]).all()


@pytest.mark.parametrize(
    ("params", "fit"),
    [
        ({"target_map": "yeo-johnson", "scale": "posterior"}, {"sym": False}),
        ({"target_map": "log", "scale": "aleatoric"}, {}),
        ({"target_map": "sqrt", "scale": "constant"}, {"support": (0.1, 9.0)}),
        ({"target_map": None, "n_members": 1, "last_layer": "trained"}, {}),
        ({"target_map": None, "input_clip": None}, {"support": "count"}),
        ({"target_map": None}, {"support": np.arange(0.0, 40.0, 1.0)}),
    ],
    ids=["yeo-johnson", "log", "sqrt", "one member", "count", "list"],
)
def test_settings(params, fit):
    rng = np.random.default_rng(2)
    X = rng.normal(size=(N, 2))
    y = np.exp(0.4 * X[:, 0] + rng.normal(0, 0.3, N)) + 0.2
    if isinstance(fit.get("support"), str | np.ndarray):
        y = np.round(y)
    model = calibrated(X, y, (0.5, 0.7), fit, **params)
    check(eager(model, X[310:]), in_python(model, X[310:]))


def test_inverse_maps():
    y = np.random.default_rng(0).gamma(1.0, 2.0, 300)
    z = np.linspace(-6, 6, 401)
    maps = [Identity(), Log(), SquareRoot(), YeoJohnson.fit(y), MonotoneSpline.fit(y)]
    maps += [YeoJohnson(0.0, 1.0, power, -2.0, 3.0) for power in (0.0, 1.0, 2.0)]
    for target_map in maps:
        found = inverse_of(target_map)(torch.from_numpy(z)).numpy()
        expected = target_map.inverse(z)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_what_cannot_be_exported(tmp_path):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(N, 2))
    y = np.sin(3 * X[:, 0]) + 5
    path = tmp_path / "model.pt2"
    plain = calibrated(X, y)
    grouped = copy.copy(plain).conformalize(
        X[N_TRAIN:], y[N_TRAIN:], groups=lambda X: X[:, 0] > 0
    )
    process = GaussianProcessRegressor(optimizer=None).fit(X[:50], y[:50])
    refused = {
        "kernel member .weight.*kernel=False": calibrated(X, y, kernel=True),
        "target_map is a transformer": calibrated(X, y, target_map=MinMaxScaler()),
        "Got an export of an object whose rows differ": grouped,
        "Got a GaussianProcessRegressor in an export": CalibratedRegressor(
            process
        ).conformalize(X[50:], y[50:]),
        "Got a ClapsRegressor, but expected a calibrated": plain._fitted(),
    }
    for match, model in refused.items():
        with pytest.raises((ValueError, TypeError), match=match):
            to_torch(model, path)
    with pytest.raises(ValueError, match="unseen"):
        to_torch(plain, path, unseen="guess")
    assert not path.exists()
