"""The six methods, on MAPIE's own classes, and what they need beside CLAPS."""

import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from mapie import regression
from mapie.conformity_scores import BaseRegressionScore
from numpy.typing import ArrayLike
from scipy.special import log_ndtr, ndtri_exp
from sklearn.base import BaseEstimator, RegressorMixin, clone

from .. import ClapsRegressor, ClapsScore
from ..network.losses import Loss, PinballLoss, SquaredError
from ..studies.data import Array, Split
from ..studies.fitted import Fitted
from .protocol import CONFIDENCE_LEVEL, N_FOLDS

LOG_2 = float(np.log(2))


class NetworkRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """The network of a template, with another loss: for the mean, or two quantiles.

    Layers, initial weights, standardisation, optimiser, steps and learning rate are
    those of the template, which trains it with its own loop.
    """

    def __init__(
        self,
        template: ClapsRegressor,
        random_state: int | None = None,
        levels: tuple[float, float] | None = None,
    ) -> None:
        self.template = template
        self.random_state = random_state
        self.levels = levels

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Train the network."""
        loss: Loss = PinballLoss(self.levels) if self.levels else SquaredError()
        self.model_ = clone(self.template).set_params(random_state=self.random_state)
        self.model_._fit_network(X, y, None, loss)
        self.n_features_in_ = self.model_.n_features_in_
        return self

    @torch.no_grad()
    def predict(self, X: ArrayLike) -> Array:
        """Mean, shape (n,), or both quantiles, shape (n, 2).

        Sorting undoes crossings, which quantile heads do not rule out.
        """
        model, network = self.model_, self.model_.network_
        phi = network.features(network.encoding(model._scaled(np.asarray(X))))
        centre, unit = model._target_units()
        outputs: Array = network.outputs(phi)[0].T.numpy() * unit + centre
        return np.sort(outputs, axis=1) if self.levels else outputs[:, 0]


def quantile_models(network: NetworkRegressor) -> list[Fitted]:
    """Lower and upper quantile and their mean.

    MAPIE's ``ConformalizedQuantileRegressor`` asks for three fitted models; the third,
    which it predicts with, is the mean of the two and is not trained.
    """
    return [
        Fitted(lambda X: network.predict(X)[:, 0]),
        Fitted(lambda X: network.predict(X)[:, 1]),
        Fitted(lambda X: network.predict(X).mean(axis=1)),
    ]


def distributional_score(z: ArrayLike) -> Array:
    r"""How far out in the predictive distribution, :math:`-\log 2\,\mathrm{sf}(|z|)`.

    The same order as :math:`|\Phi(z) - \tfrac12|`, which rounds to ½ from |z| = 8 on.

    Examples
    --------
    >>> distributional_score([0.0, 30.0]).round(3)
    array([  0.   , 453.628])
    """
    score: Array = -(LOG_2 + log_ndtr(-np.abs(np.asarray(z, dtype=np.float64))))
    return np.maximum(score, 0.0)


def standardised_residual(score: ArrayLike) -> Array:
    """|z| with this score: the inverse of ``distributional_score``.

    Examples
    --------
    >>> standardised_residual(distributional_score([0.5, 30.0])).round(9)
    array([ 0.5, 30. ])
    """
    z: Array = -ndtri_exp(-(LOG_2 + np.asarray(score, dtype=np.float64)))
    return np.maximum(z, 0.0)


class DistributionalScore(BaseRegressionScore):  # type: ignore[misc]
    r"""DCP: rank of y in a Gaussian predictive distribution, as a score for MAPIE.

    :math:`A(x, y) = -\log 2\,\mathrm{sf}(|y - \mu(x)| / s(x))`, a monotone function of
    |F(y | x) − ½|. Its order is that of the normalised residual, so that intervals are
    those of locally adaptive scaling with the same s. ``predict(X, return_std=True)``
    of the fitted estimator, the one that MAPIE predicts with, gives μ and s.
    """

    def __init__(self, estimator: Any) -> None:
        # The consistency check compares in absolute terms, which scores of large
        # targets fail.
        super().__init__(sym=True, consistency_check=False)
        self.estimator = estimator

    def get_signed_conformity_scores(
        self, y: Array, y_pred: Array, X: Any = None, **_: Any
    ) -> Array:
        """Compute the score with the sign of the residual."""
        residual = y - y_pred
        std = self.estimator.predict(X, return_std=True)[1]
        return np.copysign(distributional_score(residual / std), residual)

    def get_estimation_distribution(
        self, y_pred: Array, conformity_scores: Array, X: Any = None, **_: Any
    ) -> Array:
        """Compute y from signed scores, the inverse."""
        z = standardised_residual(np.abs(conformity_scores))
        std: Array = self.estimator.predict(X, return_std=True)[1]
        shape = (-1,) + (1,) * (y_pred.ndim - 1)
        return y_pred + np.copysign(z, conformity_scores) * std.reshape(shape)


@dataclass
class PaperMethods:
    """The methods on one split and seed; networks are trained when first needed.

    LACP, DCP and CLAPS share one heteroscedastic network: their scales alone differ.
    """

    split: Split
    seed: int
    paper: dict[str, Any] = field(default_factory=dict)  # overrides of the paper's

    @cached_property
    def heteroscedastic(self) -> ClapsRegressor:
        """The network of CLAPS, fitted on the training rows."""
        model = ClapsRegressor.paper(**self.paper, random_state=self.seed)
        return model.fit(self.split.X_train, self.split.y_train)

    def network(self, levels: tuple[float, float] | None = None) -> NetworkRegressor:
        """A network of the same layers and training, not fitted."""
        return NetworkRegressor(ClapsRegressor.paper(**self.paper), self.seed, levels)

    def scaled_by(self, scale: str) -> ClapsRegressor:
        """The heteroscedastic network with another scale."""
        model = copy.copy(self.heteroscedastic)
        model.set_params(scale=scale)
        return model

    def interval(self, method: str) -> Array:
        """Bounds of the test rows, shape (n_test, 2)."""
        if method == "CV+":
            return self._cv_plus()
        if method == "CQR":
            return self._cqr()
        split = self.split
        if method == "Split CP":
            network = self.network().fit(split.X_train, split.y_train)
            return split_interval(network, split, "absolute")
        model = self.scaled_by("claps" if method == "CLAPS" else "aleatoric")
        score = DistributionalScore if method == "DCP" else ClapsScore
        return split_interval(model, split, score(model))

    def _cv_plus(self) -> Array:
        """Training and calibration rows together, five folds."""
        split = self.split
        mapie = regression.CrossConformalRegressor(
            self.network(),
            confidence_level=CONFIDENCE_LEVEL,
            conformity_score="absolute",
            method="plus",
            cv=N_FOLDS,
            random_state=self.seed,
        )
        mapie.fit_conformalize(
            np.concatenate([split.X_train, split.X_cal]),
            np.concatenate([split.y_train, split.y_cal]),
        )
        return np.asarray(mapie.predict_interval(split.X_test)[1][:, :, 0])

    def _cqr(self) -> Array:
        split, alpha = self.split, 1 - CONFIDENCE_LEVEL
        network = self.network(levels=(alpha / 2, 1 - alpha / 2))
        network.fit(split.X_train, split.y_train)
        mapie = regression.ConformalizedQuantileRegressor(
            quantile_models(network), confidence_level=CONFIDENCE_LEVEL, prefit=True
        )
        mapie.conformalize(split.X_cal, split.y_cal)
        _, bounds = mapie.predict_interval(split.X_test, symmetric_correction=True)
        return np.asarray(bounds[:, :, 0])


def split_interval(model: Any, split: Split, score: Any) -> Array:
    """Calibrate a fitted model; bounds of the test rows, shape (n_test, 2)."""
    mapie = regression.SplitConformalRegressor(
        model,
        confidence_level=CONFIDENCE_LEVEL,
        conformity_score=score,
        prefit=True,
    )
    mapie.conformalize(split.X_cal, split.y_cal)
    return np.asarray(mapie.predict_interval(split.X_test)[1][:, :, 0])
