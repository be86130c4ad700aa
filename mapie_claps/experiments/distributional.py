"""DCP: distributional conformal prediction on a Gaussian predictive distribution."""

from typing import Any

import numpy as np
from mapie.conformity_scores import BaseRegressionScore
from numpy.typing import ArrayLike
from scipy.special import log_ndtr, ndtri_exp

from ..studies.data import Array

LOG_2 = float(np.log(2))


def distributional_score(z: ArrayLike) -> Array:
    r"""How far out in the predictive distribution, :math:`-\log 2\,\mathrm{sf}(|z|)`.

    The same order as :math:`|\Phi(z) - \tfrac12|`, which rounds to ½ from |z| = 8 on.

    Examples
    --------
    >>> from mapie_claps.experiments.distributional import distributional_score
    >>> distributional_score([0.0, 30.0]).round(3)
    array([  0.   , 453.628])
    """
    score: Array = -(LOG_2 + log_ndtr(-np.abs(np.asarray(z, dtype=np.float64))))
    return np.maximum(score, 0.0)


def standardised_residual(score: ArrayLike) -> Array:
    """|z| with this score: the inverse of ``distributional_score``.

    Examples
    --------
    >>> from mapie_claps.experiments.distributional import (
    ...     distributional_score, standardised_residual)
    >>> standardised_residual(distributional_score([0.5, 30.0])).round(9)
    array([ 0.5, 30. ])
    """
    z: Array = -ndtri_exp(-(LOG_2 + np.asarray(score, dtype=np.float64)))
    return np.maximum(z, 0.0)


class DistributionalScore(BaseRegressionScore):  # type: ignore[misc]
    r"""Rank of y in a Gaussian predictive distribution, as a score for MAPIE.

    :math:`A(x, y) = -\log 2\,\mathrm{sf}(|y - \mu(x)| / s(x))`, a monotone function of
    |F(y | x) − ½|. Its order is that of the normalised residual, so that intervals are
    those of locally adaptive scaling with the same s.

    Parameters
    ----------
    estimator : estimator
        The fitted estimator that MAPIE predicts with; ``predict(X, return_std=True)``
        gives μ and s.
    """

    def __init__(self, estimator: Any) -> None:
        # The consistency check compares in absolute terms, which scores of large
        # targets fail.
        super().__init__(sym=True, consistency_check=False)
        self.estimator = estimator

    def get_signed_conformity_scores(
        self, y: ArrayLike, y_pred: ArrayLike, X: Any = None, **kwargs: Any
    ) -> Array:
        """Compute the score with the sign of the residual."""
        residual = np.asarray(y, dtype=np.float64) - np.asarray(y_pred)
        score = distributional_score(residual / self._std(X))
        return np.asarray(np.copysign(score, residual))

    def get_estimation_distribution(
        self, y_pred: ArrayLike, conformity_scores: ArrayLike, X: Any = None, **_: Any
    ) -> Array:
        """Compute y from signed scores, the inverse."""
        y_pred = np.asarray(y_pred, dtype=np.float64)
        scores = np.asarray(conformity_scores, dtype=np.float64)
        z = np.copysign(standardised_residual(np.abs(scores)), scores)
        shape = (-1,) + (1,) * (y_pred.ndim - 1)
        return np.asarray(y_pred + z * self._std(X).reshape(shape))

    def _std(self, X: Any) -> Array:
        return np.asarray(self.estimator.predict(X, return_std=True)[1])
