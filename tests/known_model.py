"""Models in closed form: with a standard deviation alone, and with a distribution."""

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin

from mapie_claps import PredictiveDistribution
from mapie_claps.diagnostics.explanation import explain_rows
from mapie_claps.estimators.predictive import StdArray, TargetRange
from mapie_claps.network.target import MonotoneMap, NoiseShape, fit_target_map


class Plain(RegressorMixin, BaseEstimator):
    """μ = sin x₀ + shift and √v = 0.2 + x₁²/4, as a Gaussian process gives them."""

    def __init__(self, shift=0.0):
        self.shift = shift

    def fit(self, X, y):
        self.n_features_in_ = np.shape(X)[1]
        self.mean_, self.y_ = float(np.mean(y)), np.asarray(y)
        return self

    def predict(self, X, return_std=False, shift=0.0):
        x = np.asarray(X, dtype=float)
        mu = np.sin(x[:, 0]) + self.shift + shift + 0.01 * getattr(self, "mean_", 0.0)
        return (mu, 0.2 + x[:, 1] ** 2 / 4) if return_std else mu


class Shaped(Plain):
    """A distribution with two parts, a bent noise, and perhaps a logarithm as its map.

    Its identity changes with every fit.
    """

    n_fits = 0

    def __init__(self, shift=0.0, log=False, targets=None):
        super().__init__(shift)
        self.log, self.targets = log, targets

    def fit(self, X, y):
        Shaped.n_fits += 1
        self.fit_id_ = f"fit {Shaped.n_fits}"
        return super().fit(X, y)

    def predict_distribution(self, X):
        mu, std = super().predict(X, return_std=True)
        knots = np.linspace(-4, 4, 9)
        settings = {
            "shape": NoiseShape(MonotoneMap.through(knots, 6 * np.expm1(knots / 6))),
            "targets": self.targets,
        }
        if self.log:
            settings["target_map"] = fit_target_map("log", np.exp(np.linspace(-3, 3)))
        share = 0.1 + 0.8 / (1 + np.asarray(X, dtype=float)[:, 0] ** 2)
        parts = std**2 * (1 - share), std**2 * share
        return PredictiveDistribution(mu, np.sqrt(sum(parts)), *parts, **settings)

    def predict(self, X, return_std=False):
        rows = self.predict_distribution(X)
        if not return_std:
            return rows.mean
        return rows.mean, StdArray.carry(rows.std, self.fit_id_, rows)


def table(n, seed=0):
    """Rows of three columns, and targets whose noise has heavy tails."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    noise = (0.2 + X[:, 1] ** 2 / 4) * rng.standard_t(4, size=n)
    return X, np.sin(X[:, 0]) + noise


def grades():
    """What training targets tell where they are a few integers from zero."""
    return TargetRange.fit(np.repeat([0.0, 1.0, 2.0, 3.0], 20))


def explained(model, X, **params):
    """Points, bounds and widths from noise alone, as an explanation has them."""
    why = explain_rows(model, X, need_parts=False, **params)
    return why.prediction, np.stack([why.lower, why.upper], axis=1), why.noise_width
