"""Bounds of many test rows: some rows at a time, the same numbers."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from mapie_claps import ClapsScore
from mapie_claps.conformal import bounds as bounds_module


class Columns:
    """μ is the first column, √v the second; remembers how many rows it was asked."""

    def __init__(self):
        self.asked = []

    def predict(self, X, return_std, shift=0.0):
        X = np.asarray(X)
        self.asked.append(len(X))
        return X[:, 0] + shift, X[:, 1]


def bounds(model, X, **params):
    ensemble = SimpleNamespace(single_estimator_=model, use_split_method_=True)
    scores = np.arange(1.0, 20.0)
    return ClapsScore().get_bounds(X, np.array([0.1, 0.5]), ensemble, scores, **params)


@pytest.fixture
def X():
    rng = np.random.default_rng(0)
    return np.column_stack([rng.normal(size=20), rng.uniform(1, 2, 20)])


@pytest.mark.parametrize("container", [np.asarray, pd.DataFrame, np.ndarray.tolist])
def test_blocks_change_nothing(X, container, monkeypatch):
    whole = bounds(Columns(), X)
    monkeypatch.setattr(bounds_module, "PREDICTED_ROWS", 8)
    model = Columns()
    in_blocks = bounds(model, container(X))
    assert model.asked == [8, 8, 4]
    for a, b in zip(whole, in_blocks, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(whole[1], X[:, :1] - X[:, 1:] * [18.0, 10.0], 1e-14)


def test_parameters_of_predict_see_all_rows(X, monkeypatch):
    monkeypatch.setattr(bounds_module, "PREDICTED_ROWS", 8)
    shift = np.arange(20.0)
    mu, lower, upper = bounds(Columns(), X, shift=shift)
    np.testing.assert_array_equal(mu, X[:, 0] + shift)
    np.testing.assert_allclose((lower + upper) / 2, np.column_stack([mu, mu]))


def test_error_names_the_row_of_all(X, monkeypatch):
    monkeypatch.setattr(bounds_module, "PREDICTED_ROWS", 8)
    X[13, 1] = 0.0
    with pytest.raises(ValueError, match=r"standard deviation of .* in row 13"):
        bounds(Columns(), X)
