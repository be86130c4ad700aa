"""What ``ClapsRegressor`` and ``ClapsModule`` share: parts of v, and a safe ``fit``."""

import copy
from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from .variance import PredictiveVariance as PredictiveVariance

Array = NDArray[np.float64]


class PredictiveMixin(ABC):
    """For estimators with ``_fit``, ``_mu`` and ``_predictive``."""

    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Predict μ(x), and √v(x) if asked.

        Parameters
        ----------
        X : array-like of shape (n, p)
            Inputs; for a ``ClapsModule`` also tensors of more axes, and batches, which
            may be X or (X, y).
        return_std : bool, default=False
            Whether to return √v as well.

        Returns
        -------
        ndarray of shape (n,), or tuple of two
            μ(x), or μ(x) and √v(x).
        """
        if not return_std:
            return self._mu(X)
        mu, aleatoric, epistemic = self._predictive(X)
        return mu, np.sqrt(aleatoric + epistemic)

    def predict_variance(self, X: Any) -> PredictiveVariance:
        """Split the predictive variance into its two parts.

        Parameters
        ----------
        X : array-like of shape (n, p)
            Inputs; for a ``ClapsModule`` all that its ``predict`` takes.

        Returns
        -------
        PredictiveVariance
            Aleatoric and epistemic variance, for the ``scale`` in use.
        """
        _, aleatoric, epistemic = self._predictive(X)
        return PredictiveVariance(aleatoric, epistemic)

    def _fit_on_a_copy(self, X: Any, y: Any, sample_weight: Any) -> Self:
        """Fit an unfitted copy, whose content is taken over when it is done.

        Neither bad input nor an interrupt can leave this object half-fitted.
        """
        fitted = copy.copy(self)
        for name in [a for a in vars(fitted) if a.endswith("_")]:
            delattr(fitted, name)
        # Tensors made in a caller's inference mode could not be changed in training.
        with torch.inference_mode(False):
            fitted._fit(X, y, sample_weight)
        self.__dict__.clear()
        self.__dict__.update(fitted.__dict__)
        return self

    @abstractmethod
    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        """Fit this object, which is a copy that nobody else sees."""

    @abstractmethod
    def _mu(self, X: Any) -> Array:
        """μ alone, in units of y."""

    @abstractmethod
    def _predictive(self, X: Any) -> Any:
        """μ, aleatoric and epistemic variance, in units of y and y²."""
