"""Squared-error and quantile networks: the same networks as CLAPS, with another loss.

Layers, initial weights, standardisation, optimiser, steps and learning rate are those
of a ``ClapsRegressor`` that is given as a template: it trains them with its own loop.
"""

from typing import Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.utils.validation import check_is_fitted

from .. import ClapsRegressor
from .._compat import validate_data
from ..network.losses import Loss, PinballLoss, SquaredError
from ..studies.data import Array
from ..studies.fitted import Fitted


class SquaredErrorRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Mean regression with the network of the template."""

    def __init__(
        self, template: ClapsRegressor, random_state: int | None = None
    ) -> None:
        self.template = template
        self.random_state = random_state

    def _loss(self) -> Loss:
        return SquaredError()

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Train the network."""
        self.model_ = clone(self.template).set_params(random_state=self.random_state)
        self.model_._fit_network(X, y, None, self._loss())
        self.n_features_in_ = self.model_.n_features_in_
        return self

    @torch.no_grad()
    def _outputs(self, X: ArrayLike) -> Array:  # (n, 2)
        check_is_fitted(self)
        model = self.model_
        X_ = validate_data(model, X, reset=False, dtype=np.float64)
        network = model.network_
        phi = network.features(network.encoding(model._scaled(X_)))
        centre, unit = model._target_units()
        return np.asarray(network.outputs(phi)[0].T.numpy() * unit + centre)

    def predict(self, X: ArrayLike) -> Array:
        """Predict the mean, shape (n,)."""
        return self._outputs(X)[:, 0]


class QuantileNetworkRegressor(SquaredErrorRegressor):
    """Conditional quantiles of two levels: the two heads of the network."""

    def __init__(
        self,
        levels: tuple[float, float],
        template: ClapsRegressor,
        random_state: int | None = None,
    ) -> None:
        super().__init__(template, random_state)
        self.levels = levels

    def _loss(self) -> Loss:
        return PinballLoss(self.levels)

    def predict(self, X: ArrayLike) -> Array:
        """Predict both quantiles, in increasing order, shape (n, 2).

        Sorting undoes crossings, which quantile heads do not rule out.
        """
        return np.sort(self._outputs(X), axis=1)

    def models_for_mapie(self) -> list[Fitted]:
        """Lower and upper quantile and their mean.

        MAPIE's ``ConformalizedQuantileRegressor`` asks for three fitted models; the
        third, which it predicts with, is the mean of the two and is not trained.
        """
        predict = self.predict
        return [
            Fitted(lambda X: predict(X)[:, 0]),
            Fitted(lambda X: predict(X)[:, 1]),
            Fitted(lambda X: predict(X).mean(axis=1)),
        ]
