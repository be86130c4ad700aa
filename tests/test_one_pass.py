"""Explanations take one pass through every network, and the bits of the interval."""

import numpy as np
import pytest
import torch
from conftest import heteroscedastic, tiny
from mapie_api import calibrated_prefit
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from mapie_claps import (
    ClapsModule,
    ClapsRegressor,
    ClapsScore,
    PredictiveVariance,
    StreamingConformalRegressor,
    explain,
)
from mapie_claps.conformal import bounds
from mapie_claps.diagnostics import diagnose
from mapie_claps.estimators.variance import Parts
from mapie_claps.network import batches
from mapie_claps.network.ensemble import HeteroscedasticNetwork

X, Y = heteroscedastic(60, p=2)


class TwoPasses(RegressorMixin, BaseEstimator):
    """μ and both parts in closed form; counts the rows of every pass."""

    def fit(self, X, y):
        self.n_features_in_, self.rows = 2, []
        return self

    def forward(self, X):
        X = np.asarray(X)
        self.rows.append(len(X))
        return np.sin(X[:, 0]), 1 + X[:, 1] ** 2, 0.1 + np.abs(X[:, 0])

    def predict(self, X, return_std=False):
        mu, noise, lack = self.forward(X)
        return (mu, np.sqrt(noise + lack)) if return_std else mu

    def predict_variance(self, X):
        return PredictiveVariance(*self.forward(X)[1:])


class OnePass(TwoPasses):
    def predict_parts(self, X):
        return Parts(*self.forward(X))


def explained(model, X_new, score=None, **params):
    """Explanation, the rows of its passes, and the intervals of the same object."""
    mapie, options = calibrated_prefit(model, score or ClapsScore(model), (X, Y), 0.8)
    inner = model[-1] if hasattr(model, "steps") else model
    inner.rows = []
    why = explain(mapie, X_new, **options, **params)
    rows = list(inner.rows)
    predict = getattr(mapie, "predict_interval", mapie.predict)
    return why, rows, predict(X_new, **options, **params)


@pytest.mark.parametrize(("kind", "passes"), [(OnePass, 1), (TwoPasses, 2)])
@pytest.mark.parametrize("piped", [False, True])
def test_a_calibrated_object(kind, passes, piped):
    model = kind().fit(X, Y)
    if piped:
        model = make_pipeline(FunctionTransformer(np.cos), model).fit(X, Y)
    why, rows, (mu, interval) = explained(model, X[:25])
    assert rows == [25] * passes
    np.testing.assert_array_equal(why.prediction, mu)
    np.testing.assert_array_equal(why.lower, interval[:, 0])
    np.testing.assert_array_equal(why.upper, interval[:, 1])
    seen = np.cos(X[:25]) if piped else X[:25]
    np.testing.assert_array_equal(why.aleatoric, 1 + seen[:, 1] ** 2)
    np.testing.assert_array_equal(why.epistemic, 0.1 + np.abs(seen[:, 0]))
    assert why.scaled


def test_row_blocks_are_joined(monkeypatch):
    whole, _, _ = explained(OnePass().fit(X, Y), X)
    monkeypatch.setattr(bounds, "PREDICTED_ROWS", 16)
    why, rows, (_, interval) = explained(OnePass().fit(X, Y), X)
    assert rows == [16, 16, 16, 12]
    np.testing.assert_array_equal(why.epistemic, whole.epistemic)
    np.testing.assert_array_equal(why.upper, interval[:, 1])


def test_an_estimator_by_itself():
    model = OnePass().fit(X, Y)
    why = explain(model, X)
    assert model.rows == [60]
    np.testing.assert_array_equal(why.prediction, np.sin(X[:, 0]))


def test_a_diagnosis_with_calibration_rows_takes_one_pass_for_each_table():
    model = OnePass().fit(X, Y)
    mapie, options = calibrated_prefit(model, ClapsScore(model), (X, Y), 0.8)
    model.rows = []
    diagnose(mapie, X[:20], X_calibration=X[20:], **options)
    assert sorted(model.rows) == [20, 40]


def test_batches():
    model = OnePass().fit(X, Y)
    conformal = StreamingConformalRegressor(model, 0.8).conformalize(X, Y)
    model.rows = []
    why = explain(conformal, iter([(X[:20], Y[:20]), (X[20:30], Y[20:30])]))
    assert model.rows == [20, 10]
    _, interval = conformal.predict_interval(X[:30])
    np.testing.assert_array_equal(why.upper, interval[:, 1])


def test_nothing_is_recorded_outside_an_explanation():
    model = OnePass().fit(X, Y)
    mapie, options = calibrated_prefit(model, ClapsScore(model), (X, Y), 0.8)
    with pytest.raises(TypeError, match="ufunc 'sin' not supported"):
        explain(mapie, [["a"]], **options)
    assert bounds._record.get() is None


class Network(torch.nn.Module):
    """Counts the rows that it sees, in copies as well."""

    rows = 0

    def __init__(self):
        super().__init__()
        self.features, self.mean = torch.nn.Linear(2, 4), torch.nn.Linear(4, 1)

    def forward(self, x):
        Network.rows += len(x)
        return self.mean(torch.tanh(self.features(x)))


@pytest.mark.usefixtures("own_random_state")
def test_a_network_of_the_user_sees_every_row_once():
    torch.manual_seed(0)
    model = ClapsModule(Network()).fit(X, Y)
    mapie, options = calibrated_prefit(model, ClapsScore(model), (X, Y), 0.8)
    Network.rows = 0
    explain(mapie, X[:25], **options)
    assert Network.rows == 25
    explain(model, X[:25])
    assert Network.rows == 50


def test_a_regressor_is_asked_once(monkeypatch):
    model = tiny().fit(X[:30], Y[:30])
    new = X[30:], Y[30:]
    mapie, options = calibrated_prefit(model, ClapsScore(model), new, 0.8)
    asked = []

    def counted(name):
        method = getattr(ClapsRegressor, name)

        def call(self, *args, **kwargs):
            asked.append(name)
            return method(self, *args, **kwargs)

        return call

    for name in ("predict", "predict_variance", "predict_parts", "predict_law"):
        monkeypatch.setattr(ClapsRegressor, name, counted(name))
    why = explain(mapie, X[:25], **options)
    assert asked == ["predict_law"]
    mu, std = model.predict(X[:25], return_std=True)
    np.testing.assert_array_equal(why.prediction, mu)
    np.testing.assert_array_equal(np.sqrt(why.variance.total), std)


@pytest.mark.parametrize(("kept", "passes"), [(2**24, 1), (0, 2)])
def test_the_posterior_takes_two_passes_or_one_where_features_are_kept(
    kept, passes, monkeypatch
):
    monkeypatch.setattr(batches, "KEPT_ELEMENTS", kept)
    forward, seen = HeteroscedasticNetwork.forward, []

    def counted(self, x):
        if x.ndim == 2:  # not the held-out rows, which are each member's own
            seen.append(len(x))
        return forward(self, x)

    monkeypatch.setattr(HeteroscedasticNetwork, "forward", counted)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    params = {"n_members": 2, "max_steps": 3, "tol": None, "two_sided_noise": True}
    ClapsRegressor(**params, random_state=0).fit(X, X[:, 0] + rng.normal(size=200))
    assert sum(seen) == passes * 200
