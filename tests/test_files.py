"""Files: what was saved comes back to the bit, and what cannot is refused by name."""

import copy
import json
import os
import re
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
import sklearn.base
import torch
from conftest import heteroscedastic, tiny, two_heads
from safetensors import safe_open
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.exceptions import InconsistentVersionWarning, NotFittedError
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    OneHotEncoder,
    StandardScaler,
    TargetEncoder,
)

from mapie_claps import (
    CalibratedRegressor,
    ClapsModule,
    ClapsRegressor,
    ColumnGroups,
    EpistemicGroups,
    likelihood_ratio,
    load,
    save,
)
from mapie_claps.exceptions import FileFormatError

X_NEW = heteroscedastic(20, seed=1)[0]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.claps"


def through_file(model, path, **given):
    save(model, path)
    return load(path, **given)


def same(a, b, X=X_NEW):
    np.testing.assert_array_equal(
        a.predict(X, return_std=True), b.predict(X, return_std=True)
    )


def same_intervals(a, b, X=X_NEW, **given):
    for ours, theirs in zip(
        a.predict_interval(X, **given), b.predict_interval(X, **given), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_regressor_comes_back_to_the_bit(path):
    X, y = heteroscedastic(200)
    y = np.sin(X[:, 0]) + X[:, 1]
    data = [(X, y)]
    model = ClapsRegressor(n_members=2, max_steps=60, random_state=0).fit(X, y)
    assert model.kernel_ is not None
    again = through_file(model, path)
    same(again, model)
    assert again.get_params() == model.get_params()
    assert vars(again).keys() == vars(model).keys()
    assert again.fit_id_ == model.fit_id_
    assert again.loss_curve_ == model.loss_curve_
    assert again.count_seen(*data[0]) == model.count_seen(*data[0])
    same(again.with_prior_precision(3.0), model.with_prior_precision(3.0))
    same(again.update_posterior(X, y), model.update_posterior(X, y))
    same(again.with_sums(model.partial_sums(X, y)), model.with_sums(model.sums_))
    for ours, theirs in (
        (again.embed(X), model.embed(X)),
        (again.posterior_covariance_, model.posterior_covariance_),
    ):
        np.testing.assert_array_equal(ours, theirs)
    la, expected = again.laplace_[1], model.laplace_[1]
    assert torch.equal(la.posterior_covariance, expected.posterior_covariance)
    same(through_file(again, path), model)  # a file of what came from a file


@pytest.mark.parametrize(
    "params",
    [
        {"recipe": "paper", "max_steps": 20},
        {"scale": "posterior"},
        {"target_map": "log", "noise_shape": True, "n_members": 3},
        {"views": ("periodic",), "scaling_rate": 0.0, "hidden_layer_sizes": (5,)},
        {"views": ("raw", "bins"), "n_bins": 4, "n_members": 2},
        {"random_state": None, "categorical_features": [2]},
    ],
)
def test_other_configurations(params, path):
    X, y = heteroscedastic(120)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    frame["c"] = 1.0  # a constant column has no bins
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about that column
        make = ClapsRegressor if params.get("recipe") == "paper" else tiny
        model = make(**params).fit(frame, np.exp(0.2 * y))
    again = through_file(model, path)
    same(again, model, frame)
    assert list(again.feature_names_in_) == ["a", "b", "c"]


def table(n=200):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {
            "size": np.where(rng.random(n) < 0.2, np.nan, rng.normal(size=n)),
            "colour": rng.choice(["red", "green", None], n),
            "town": rng.choice([f"town {i}" for i in range(60)], n),
            "when": pd.Timestamp("2020-01-01")
            + pd.to_timedelta(rng.integers(0, 9e7, n), unit="s"),
            "flag": rng.random(n) < 0.5,
        }
    )
    return X, (X["colour"] == "red") + X["size"].fillna(0) + rng.normal(0, 0.1, n)


def test_a_table_of_all_kinds(path):
    X, y = table()
    model = tiny().fit(X, y)
    rows = X[:30].copy()
    rows.iloc[0, 1], rows.iloc[1, 2], rows.iloc[2, 3] = "pink", "elsewhere", pd.NaT
    same(through_file(model, path), model, rows)


def test_a_preprocessor_of_scikit_learn(path, monkeypatch):
    X, y = table()
    columns = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), ["size"]),
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["colour"]),
        (TargetEncoder(target_type="continuous"), ["town"]),
        ("passthrough", ["flag"]),
    )
    model = tiny(preprocessor=columns).fit(X, y)
    same(through_file(model, path), model, X[:30])
    with monkeypatch.context() as patch:
        patch.setattr(sklearn.base, "__version__", "0.99")
        save(model, path)
    with pytest.warns(InconsistentVersionWarning, match=r"0\.99"):
        same(load(path), model, X[:30])


class Twice(sklearn.base.TransformerMixin, sklearn.base.BaseEstimator):
    """A transformer of a user."""

    def fit(self, X, y=None):
        self.fitted_ = True
        return self

    def transform(self, X):
        return 2 * np.asarray(X)


class PCA(Twice):
    """Not scikit-learn's."""


class OwnRegressor(ClapsRegressor):
    """A class of a user's own, under a name of its own."""


def test_what_a_file_cannot_hold_is_refused_by_name(path, data):
    X, y = data[0]
    selected = make_column_transformer((Twice(), make_column_selector()))
    for model, message in (
        (tiny(preprocessor=Twice()), "Got preprocessor of type Twice"),
        (
            tiny(preprocessor=FunctionTransformer(np.tanh)),
            r"Got preprocessor.func of type ufunc, which a file cannot hold",
        ),
        (tiny(preprocessor=selected), "preprocessor.* of type Twice"),
        (tiny(preprocessor=PCA()), "preprocessor of type PCA"),
        (
            tiny(random_state=np.random.RandomState(0)),
            "random_state of type RandomState, .* integer or None as random_state",
        ),
        (OwnRegressor.paper(max_steps=3), "estimator of type OwnRegressor, but save"),
    ):
        model.fit(pd.DataFrame(X, columns=["a", "b", "c"]), y)
        with pytest.raises(TypeError, match=message):
            save(model, path)
    for other in ({}, make_pipeline(tiny()), GridSearchCV(tiny(), {})):
        with pytest.raises(TypeError, match=f"type {type(other).__name__}, but save"):
            save(other, path)
    with pytest.raises(NotFittedError, match="not fitted"):
        save(ClapsRegressor(), path)
    assert not path.exists()


def test_module_with_a_network_of_its_class(fitted_module, data, path):
    model, (X, y) = fitted_module, data[1]
    fresh = two_heads(seed=1)
    before = {k: v.clone() for k, v in fresh.state_dict().items()}
    again = through_file(model, path, network=fresh)
    same(again, model)
    same(again.update_posterior(X, y), model.update_posterior(X, y))
    assert all(torch.equal(v, before[k]) for k, v in fresh.state_dict().items())
    with pytest.raises(FileFormatError, match="Got network=None, but .* Pass load"):
        load(path)
    same(load(path, two_heads().double()), model)
    same(load(path, two_heads().half()), model)  # weights bring their type along
    for other in (two_heads(size=9), torch.nn.Sequential(two_heads())):
        with pytest.raises(FileFormatError, match="in loading state_dict for"):
            load(path, other)
    with pytest.raises(FileFormatError, match="Got .'noise_variance'., which nothing"):
        load(path, fresh, torch.square)


@pytest.mark.parametrize("noise", ["fit", lambda x: 1 + x[:, 0] ** 2])
def test_module_with_other_noise(noise, data, path):
    heads = two_heads()
    net = heads.body.append(heads.mean)
    model = ClapsModule(net, noise_variance=noise).fit(*data[0])
    if not callable(noise):
        same(through_file(model, path, network=net), model)
        return
    same(through_file(model, path, network=net, noise_variance=noise), model)
    with pytest.raises(FileFormatError, match="Pass load.path, noise_variance=...."):
        load(path, net)


def side(X):
    return X[:, 0] > 0


def test_calibrated_models(fitted_regressor, fitted_module, data, path):
    (X, _), (X_cal, y_cal), (X_new, y_new) = data
    conformal = CalibratedRegressor(fitted_regressor, [0.8, 0.9])
    with pytest.raises(ValueError, match="not calibrated"):
        save(conformal, path)
    conformal.conformalize(X_cal, y_cal)
    again = through_file(conformal, path)
    same_intervals(again, conformal)
    conformal.save(path)
    assert load(path).get_params().keys() == conformal.get_params().keys()
    for model in (conformal, again):
        model.observe(X_new[:50], y_new[:50], gamma=0.05)
    same_intervals(again, conformal)
    same_intervals(through_file(conformal, path), conformal)
    ratio = likelihood_ratio(X, X_new + 0.2, estimator=fitted_regressor)
    for given in (
        {"partition": ColumnGroups(0, (0.5,))},
        {"partition": EpistemicGroups([0.2])},
        {"weights": ratio},
    ):
        conformal.conformalize(X_cal, y_cal, **given)
        again = through_file(conformal, path)
        same_intervals(again, conformal, allow_infinite_bounds=True)
    labels = np.where(side(X_cal), "right", "left")
    conformal.conformalize(X_cal, y_cal, partition=labels)
    same_intervals(
        through_file(conformal, path), conformal, partition=["left", "right"] * 10
    )
    chain = make_pipeline(StandardScaler(), fitted_regressor)
    chain[0].fit(X)
    conformal = CalibratedRegressor(chain).conformalize(X_cal, y_cal)
    same_intervals(through_file(conformal, path), conformal)
    fitted_regressor.set_params(scale="aleatoric")
    try:
        with pytest.raises(ValueError, match="whose scale changed"):
            save(conformal, path)
    finally:
        fitted_regressor.set_params(scale="claps")
    of_module = CalibratedRegressor(fitted_module).conformalize(X_cal, y_cal)
    same_intervals(through_file(of_module, path, network=two_heads(5)), of_module)
    own = two_heads()
    of_module = CalibratedRegressor(ClapsModule(own), random_state=0).fit(X_cal, y_cal)
    torch.nn.init.zeros_(of_module.estimator.module.mean.weight)  # not what was fitted
    again = through_file(of_module, path, network=two_heads(5))
    same_intervals(again, of_module)
    same(again.estimator.fit(X, X[:, 0]), ClapsModule(two_heads()).fit(X, X[:, 0]))


def test_functions_of_a_user_are_refused(fitted, data, path):
    conformal = CalibratedRegressor(fitted)
    conformal.conformalize(*data[1], partition=side)
    with pytest.raises(TypeError, match="partition.* of type function.* ColumnGroups"):
        save(conformal, path)
    conformal.conformalize(*data[1], weights=lambda X: np.exp(0.1 * X[:, 0]))
    with pytest.raises(TypeError, match="weights.* of type function.* likelihood_rat"):
        save(conformal, path)
    other = CalibratedRegressor.from_scores([], [1.0] * 20)
    with pytest.raises(TypeError, match="type list, but save knows"):
        save(other, path)


@pytest.mark.parametrize(
    "value",
    [
        [1, 2.5, float("inf"), "text", None, True],
        {"a": (1, [2]), 3: [4], (5, None): slice(1, None)},
        {"a": {"b": np.int8(1)}, "a.b": np.int8(2)},
        np.float32(0.1),
        np.bool_(True),
        np.datetime64("2020-02-29"),
        np.str_("text"),
        np.dtype("<M8[ns]"),
        np.int16,
        np.array(["a", None, np.nan, 3], dtype=object).reshape(2, 2),
        np.array([("a", None), (1.5, (2, "b"))], dtype="O,O")["f1"],
        np.array(["ab", "c"]),
        np.array(["2020-01-01", "NaT"], dtype="M8[s]"),
        np.arange(6, dtype=np.uint64).reshape(2, 3).T,
        np.arange(3.0).astype(">f8")[::-1],
        np.zeros((0, 3), dtype=np.int8),
        torch.linalg.cholesky(torch.eye(3, dtype=torch.float64).expand(2, 3, 3)),
        torch.nn.Parameter(torch.arange(6.0).reshape(2, 3).T, requires_grad=False),
    ],
    ids=repr,
)
def test_every_kind_of_value(value, fitted, path):
    model = copy.copy(fitted)
    model.verbose, model.device = value, [{"again": value}]
    loaded = through_file(model, path)
    first, second = loaded.verbose, loaded.device[0]["again"]
    if value is np.int16:
        assert first == np.int16  # as a dtype
        return
    assert type(first) is type(value)
    if isinstance(value, torch.Tensor):
        assert second is first
        assert first.stride() == value.stride()
        assert torch.equal(first, value)
        assert first.requires_grad == value.requires_grad
    elif isinstance(value, np.ndarray):
        assert second is first
        assert first.dtype == value.dtype.newbyteorder("=")
        assert repr(first.tolist()) == repr(value.tolist())
    else:
        assert first == value


@pytest.mark.parametrize(
    "value", [np.zeros(2, complex), np.zeros(2, np.longdouble), np.zeros(1, "S2")]
)
def test_arrays_that_a_file_cannot_hold(value, fitted, path):
    model = copy.copy(fitted)
    model.verbose = {"b": value}
    message = f"Got verbose.b of type ndarray of {re.escape(str(value.dtype))}"
    with pytest.raises(TypeError, match=message):
        save(model, path)


def test_the_format_is_open(fitted, path):
    """The file can be read without mapie_claps, as docs/persistence.md says."""
    save(fitted, path)
    with safe_open(path, framework="np") as file:
        metadata = file.metadata()
        config = json.loads(metadata["config"])
        gram = file.get_tensor("sums_.gram")
    with pytest.raises(FileFormatError, match="Got .'network'., which nothing in the"):
        load(path, two_heads())
    assert metadata["format"].startswith("mapie_claps ")
    assert config["class"] == "ClapsRegressor"
    np.testing.assert_array_equal(gram, fitted.sums_.gram)


def test_without_safetensors(fitted, path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match=r"pip install 'mapie-claps\[save\]'"):
        save(fitted, path)


def test_permissions_and_links(fitted, tmp_path):
    target, link, plain = (tmp_path / n for n in ("target", "link", "plain"))
    plain.touch()
    save(fitted, target)
    assert target.stat().st_mode == plain.stat().st_mode
    target.chmod(0o640)
    link.symlink_to(target)
    save(fitted, link)
    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    same(load(link), fitted)
    assert sorted(os.listdir(tmp_path)) == ["link", "plain", "target"]
