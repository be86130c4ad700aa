"""A model whose mean, noise and lack of data are formulas of the columns."""

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin

from mapie_claps import PredictiveDistribution


def first_column(*columns):
    return columns[0]


def constant(*columns):
    return np.ones(len(columns[0]))


class Formula(RegressorMixin, BaseEstimator):
    """√h² is ``noise`` and √v − √h² is ``lack``, functions of the columns.

    The means of two rows are known alike as far as the rows are near each other.
    """

    def __init__(self, noise=constant, lack=constant, mean=first_column):
        self.noise, self.lack, self.mean = noise, lack, mean
        self.n_features_in_, self.n_predicted = noise.__code__.co_argcount, 0

    def fit(self, X, y):
        return self

    def predict_distribution(self, X):
        columns = np.asarray(X, dtype=np.float64).T
        self.n_predicted += columns.shape[1]
        h, added = self.noise(*columns), self.lack(*columns)
        return PredictiveDistribution(
            self.mean(*columns), h + added, h**2, (h + added) ** 2 - h**2
        )

    def predict(self, X, return_std=False):
        rows = self.predict_distribution(X)
        return (rows.mean, rows.std) if return_std else rows.mean

    def embed(self, X):
        return np.asarray(X, dtype=np.float64)

    @staticmethod
    def squares(X, Z):
        a, b = np.asarray(X, dtype=np.float64), np.asarray(Z, dtype=np.float64)
        return ((a[:, None] - b[None]) ** 2).sum(axis=2)
