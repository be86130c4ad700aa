"""φ, μ, h², Σ → arrays: what ``ClapsRegressor`` and ``ClapsModule`` share."""

import copy
import secrets
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from .._validation import (
    check_choice,
    check_number,
    new_tensors_on,
    raise_for,
)
from ..posterior.forward import SCALES, ForwardPass, Predicted
from ..posterior.last_layer import LastLayerSums
from .predictive import DistributionRegressor, PredictiveDistribution

Array = NDArray[np.float64]
Hashes = NDArray[np.uint64]
SCALE_HINT = "Use 'claps' if unsure."
# Of more hashes of training rows the smallest are kept, a random part of them, 32 kB.
MAX_SEEN_ROWS = 4096


def choose_device(value: Any) -> torch.device:
    """Where to train; "auto" takes CUDA if there is any."""
    if isinstance(value, str) and value == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(value)
        torch.empty(0, device=device)
    except (RuntimeError, TypeError, AssertionError, NotImplementedError):
        raise_for("device", value, "a device that torch knows", "Use 'auto' or 'cpu'.")
    return device


class LastLayerEstimator(DistributionRegressor):
    """A network, sums over training rows, and the posterior that they make."""

    scale: str
    prior_precision: Any
    forward_: ForwardPass
    sums_: LastLayerSums
    _fit_id: str  # of the network and the units: sums of one fit add up
    _update_id: str  # of what came after the fit
    _seen_rows: Hashes
    _equal_share: float  # of the training rows are equal to one before them

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train the networks, and compute the posterior of their last layers.

        A ``ClapsModule`` trains nothing: its network is trained.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of batches
            Training inputs. A ``ClapsRegressor`` takes tables of numbers, text, truth
            values and dates, with gaps; a ``ClapsModule`` also batches (X, y) or (X,
            y, sample_weight).
        y : array-like of shape (n,), optional
            Training targets, unless X is an iterable of batches.
        sample_weight : array-like of shape (n,), optional
            Weights of the rows: a row of weight 2 counts as two, zero leaves it out.

        Returns
        -------
        estimator
            The estimator. If anything fails it is left as it was.
        """
        return self._refit(X, y, sample_weight)

    def _refit(self, *data: Any) -> Self:
        """Fit an unfitted copy, and take over its content by one assignment.

        Neither bad input nor an interrupt can leave this object half-fitted.
        """
        fitted = copy.copy(self)
        fitted.__dict__ = {}
        for name, value in vars(self).items():
            if not name.endswith("_") and name != "_seen_rows":
                fitted.__dict__[name] = value
        fitted._fit_id, fitted._update_id = secrets.token_hex(8), ""
        # Tensors made in a caller's inference mode could not be changed in training,
        # and in autocast weights would be trained to three digits.
        with (
            torch.inference_mode(False),
            torch.autocast("cpu", enabled=False),
            new_tensors_on("cpu"),
        ):
            fitted._seen_rows = np.unique(fitted._fit(*data))[:MAX_SEEN_ROWS].copy()
        self.__dict__ = fitted.__dict__
        return self

    def predict_distribution(self, X: Any) -> PredictiveDistribution:
        """Predict all that scores, intervals and reasons are made from, in one pass.

        Parameters
        ----------
        X : array-like of shape (n, p)
            Inputs; for a ``ClapsModule`` all that its ``fit`` takes.

        Returns
        -------
        PredictiveDistribution
            Mean, both parts of the variance, and the way between targets and scores.
        """
        check_is_fitted(self, "forward_")
        scale = check_choice("scale", self.scale, SCALES, SCALE_HINT)
        parts: tuple[list[Any], ...] = ([np.empty(0)], [np.empty(0)], [np.empty(0)])
        with new_tensors_on("cpu"), torch.no_grad():
            for found in self._predicted(X, scale):
                for part, values in zip(parts, found, strict=True):
                    part.append(values.numpy())
        centre, unit, settings = self._target_units()
        mu, aleatoric, epistemic = map(np.concatenate, parts)
        aleatoric, epistemic = aleatoric * unit**2, epistemic * unit**2
        std = np.sqrt(aleatoric + epistemic)
        return PredictiveDistribution(
            mu * unit + centre, std, aleatoric, epistemic, **settings
        )

    def embed(self, X: Any) -> Array:
        """Give φ, the representation in which rows are near or far for the model.

        Parameters
        ----------
        X : array-like of shape (n, p)
            Inputs.

        Returns
        -------
        ndarray of shape (n, n_members · d)
            φ of all members side by side, each times the root of its weight.
        """
        check_is_fitted(self, "forward_")
        with new_tensors_on("cpu"), torch.no_grad():
            found = [self.forward_.embed(x).numpy() for x in self._inputs(X)]
        return np.concatenate(found)

    def partial_sums(
        self, X: Any, y: Any = None, sample_weight: Any = None
    ) -> LastLayerSums:
        """Sums over some rows for the posterior; the estimator stays as it is.

        Parameters
        ----------
        X, y, sample_weight
            Rows, as in ``fit``; X may be an iterable of (X, y).

        Returns
        -------
        LastLayerSums
            Sums, to be added to those over other rows, for ``with_sums``.
        """
        check_is_fitted(self, "forward_")
        with new_tensors_on("cpu"), torch.no_grad():
            return self._sum(X, y, sample_weight)

    def with_sums(self, sums: LastLayerSums) -> Self:
        """Return a copy whose posterior rests on these sums alone.

        Parameters
        ----------
        sums : LastLayerSums
            From ``partial_sums`` or ``sums_`` of this estimator or a copy of it.

        Returns
        -------
        estimator
            A fitted copy that shares the networks. ``ClapsModule`` chooses λ again if
            ``prior_precision="marglik"``; otherwise λ stays.
        """
        check_is_fitted(self, "forward_")
        if sums.fit_id != self._fit_id:
            raise ValueError(
                "Got sums that belong to another fit (another network, variance head, "
                "or other units of X or y), but only sums of one fit add up. Make them "
                "with partial_sums of the estimator that is to use them, or of a copy "
                "of it."
            )
        other = copy.copy(self)
        with new_tensors_on("cpu"):
            other._set_sums(sums)
        other._update_id = secrets.token_hex(8)
        return other

    def update_posterior(
        self, X: Any, y: Any = None, sample_weight: Any = None
    ) -> Self:
        """Return a copy whose posterior has seen more rows.

        Parameters
        ----------
        X, y, sample_weight
            Further training rows, as in ``partial_sums``.

        Returns
        -------
        estimator
            A fitted copy; networks, noise variance and scaling stay as they are. An
            object that was calibrated with the estimator must be calibrated again.
        """
        X = list(X) if isinstance(X, Iterator) else X  # there are two passes
        other = self.with_sums(self.sums_ + self.partial_sums(X, y, sample_weight))
        known = np.union1d(self._seen_rows, self._hashes(X, y))
        other._seen_rows = known[:MAX_SEEN_ROWS].copy()
        return other

    def with_prior_precision(self, prior_precision: float) -> Self:
        """Return a copy with another λ and the same networks, without retraining.

        Parameters
        ----------
        prior_precision : float
            λ > 0, in standardised units of y.

        Returns
        -------
        estimator
            A fitted copy that shares the networks.
        """
        check_is_fitted(self, "forward_")
        hint = "Call fit for a rule."
        value = check_number(
            "prior_precision", prior_precision, low=0, low_open=True, hint=hint
        )
        other = copy.copy(self)
        other.prior_precision = value
        return other.with_sums(self.sums_)

    def count_seen(self, X: Any, y: Any) -> tuple[int, int]:
        """Different rows that the posterior has seen, and those that were compared.

        Of more than 4,096 training rows only a random part is remembered.
        """
        known = self._seen_rows
        hashes = np.unique(self._hashes(X, y))
        if len(known) == MAX_SEEN_ROWS:
            hashes = hashes[hashes <= known[-1]]
        return int(np.isin(hashes, known).sum()), len(hashes)

    @property
    def fit_id_(self) -> str:
        """Text that differs between fits, updates and scales."""
        check_is_fitted(self, "forward_")
        return f"{self._fit_id}{self._update_id} {self.scale}"

    @property
    def prior_precision_(self) -> float:
        """λ in use, in standardised units of y."""
        check_is_fitted(self, "forward_")
        return self.forward_.last_layers.prior_precision

    @property
    def posterior_covariance_(self) -> Array:
        """Σ of every member, in units of y."""
        check_is_fitted(self, "forward_")
        unit = self._target_units()[1]
        return np.asarray(self.forward_.last_layers.covariance() * unit**2)

    def save(self, path: Any) -> None:
        """Write to a file, without pickle; :func:`mapie_claps.load` reads it."""
        from ..files import save

        save(self, path)

    def _target_units(self) -> tuple[float, float, dict[str, Any]]:
        """Centre and unit of the targets that the networks see.

        With shape of the noise, map and range of the targets, if they were learned.
        """
        return 0.0, 1.0, {}

    @abstractmethod
    def _fit(self, X: Any, y: Any, sample_weight: Any, *groups: Any) -> Hashes:
        """Fit this object, a copy that nobody else sees; return hashes of the rows."""

    @abstractmethod
    def _predicted(self, X: Any, scale: str) -> Iterator[Predicted]:
        """μ and both parts, some rows at a time, in the units of the networks."""

    @abstractmethod
    def _inputs(self, X: Any) -> Iterator[Tensor]:
        """Rows of X as ``forward_`` takes them, some at a time."""

    @abstractmethod
    def _hashes(self, X: Any, y: Any) -> Hashes:
        """A number for each row, by its content."""

    @abstractmethod
    def _sum(self, X: Any, y: Any, sample_weight: Any) -> LastLayerSums:
        """Sums over some rows."""

    @abstractmethod
    def _set_sums(self, sums: LastLayerSums) -> None:
        """Take over sums of this fit, and make the posteriors from them."""
