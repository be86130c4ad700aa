"""φ, μ, h², Σ → arrays: what ``ClapsRegressor`` and ``ClapsModule`` share."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from .._devices import new_tensors_on
from ..files.container import hash_tensors
from ..files.methods import SaveMixin
from ..network.interface import Features
from ..network.target_map import Identity
from ..posterior.measuring import embedding, joined, networks_covariance
from ..posterior.scales import LastLayerModel, PredictiveParts, Units
from ..posterior.sums import LastLayerSums
from .fitted_rows import FEWEST_COMPARED, asked_rows
from .local_law import LocalLaw
from .parameters import check_prior_precision, check_scale
from .residual_law import PLAIN_LAW, ResidualLaw
from .variance import MeanAndStd, Parts, PredictiveVariance, with_law

Array = NDArray[np.float64]
P = ParamSpec("P")
R = TypeVar("R")


def of_one_fit(
    method: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[Any, P], R]:
    """Let a method see one fit from start to end, and make its tensors on the CPU.

    A fit in another thread replaces the dictionary of attributes, never its content.
    """

    @wraps(method)
    def wrapped(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        now = object.__new__(type(self))
        now.__dict__ = self.__dict__
        check_is_fitted(now, "model_")
        with new_tensors_on("cpu"):
            return method(now, *args, **kwargs)

    return wrapped


class LastLayerEstimator(SaveMixin, ABC):
    """A representation, sums over training rows, and the posterior they make."""

    network_: Any  # a Representation
    sums_: LastLayerSums
    model_: LastLayerModel
    scale: str
    prior_precision: float | str

    @of_one_fit
    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Predict the mean of y, and its standard deviation if asked.

        Parameters
        ----------
        X : array-like of shape (n, p)
            Inputs; for a ``ClapsModule`` also tensors of more axes, and batches, which
            may be X or (X, y).
        return_std : bool, default=False
            Whether to return the standard deviation as well.

        Returns
        -------
        ndarray of shape (n,), or tuple of two
            μ(x), or μ(x) and √v(x). Under a ``target_map`` they are mean and standard
            deviation of y = T⁻¹(z) over the predictive law of z, taken at 32 residuals
            of equal probability. The array of standard deviations carries the law, from
            which :class:`~mapie_claps.ClapsScore` makes scores and intervals.
        """
        if return_std:
            law = self.predict_law(X)
            parts, enough = law.parts, len(law) >= FEWEST_COMPARED
            rows = asked_rows(self, X) if enough else None
            std = with_law(parts.std, law, self.fingerprint_, rows)
            return MeanAndStd((parts.prediction, std))
        if not isinstance(self._law_of_residuals().target_map, Identity):
            return self.predict_law(X).prediction
        centre, unit = self._target_units()
        found = [mu.numpy() for mu in self._mu(X)]
        return np.concatenate([np.empty(0), *found]) * unit + centre

    def predict_median(self, X: Any) -> Array:
        """Predict the median of y.

        Parameters
        ----------
        X : array-like of shape (n, p)
            Inputs; for a ``ClapsModule`` all that its ``predict`` takes.

        Returns
        -------
        ndarray of shape (n,)
            The target whose score is zero. Where noise is skewed it differs from
            ``predict``, which gives the mean.
        """
        return self.predict_law(X).median

    def predict_parts(self, X: Any) -> Parts:
        """Predict the mean and both parts of the variance in one pass.

        Parameters
        ----------
        X : array-like of shape (n, p)
            Inputs; for a ``ClapsModule`` all that its ``predict`` takes.

        Returns
        -------
        Parts
            ``prediction``, ``aleatoric`` and ``epistemic``, for the ``scale`` in use.
            Under a ``target_map`` the variance of y is divided as v is in z.
        """
        return self.predict_law(X).parts

    @of_one_fit
    def predict_law(self, X: Any) -> LocalLaw:
        """Predict all that scores and intervals are made from, in one pass.

        Parameters
        ----------
        X : array-like of shape (n, p)
            Inputs; for a ``ClapsModule`` all that its ``predict`` takes.

        Returns
        -------
        LocalLaw
            Centre and scales in z, both parts of v, shape of the residuals, map of the
            target.
        """
        scale, law = check_scale(self.scale), self._law_of_residuals()
        centre, unit = self._target_units()
        found, skews = [np.empty((3, 0))], [np.empty(0)]
        for parts in self._parts(X, scale):
            found.append(torch.stack(parts[:3]).numpy())
            if parts.skew is not None:
                skews.append(parts.skew.numpy())
        mu, aleatoric, epistemic = np.concatenate(found, axis=1)
        return LocalLaw.from_parts(
            mu * unit + centre,
            aleatoric * unit**2,
            epistemic * unit**2,
            None if law.skew is None else np.concatenate(skews),
            law.shape,
            law.target_map,
            law.targets,
        )

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
        return self.predict_parts(X).variance

    @of_one_fit
    @torch.no_grad()
    def predict_covariance(self, X: Any, X_other: Any) -> Array:
        """Predict how what is not known of the means of two rows goes together.

        Parameters
        ----------
        X : array-like of shape (n, p)
            Inputs.
        X_other : array-like of shape (m, p)
            Other inputs.

        Returns
        -------
        ndarray of shape (n, m)
            Epistemic covariance, φᵀΣφ' (and how the members' means vary together, if
            there are several), in the units in which networks see the target. Of a row
            with itself it is the epistemic variance. With it a measurement contracts
            the posterior in closed form, see
            :func:`~mapie_claps.diagnostics.rank_rows`.
        """
        scale = check_scale(self.scale)
        if scale in ("aleatoric", "constant"):
            raise ValueError(
                f"Got scale={scale!r}, which counts no lack of data. Use 'claps'."
            )
        out, other = (joined(list(self._features(rows))) for rows in (X, X_other))
        found = self._covariance_of(out, other, scale) * self._target_units().unit ** 2
        # What else counts as lack of data goes with the row, in no direction of φ.
        first, second = (
            torch.cat([part.epistemic for part in self._parts(rows, scale)])
            / self._own_covariance(features, scale).clamp(min=1e-300)
            for rows, features in ((X, out), (X_other, other))
        )
        return np.asarray(found * first.sqrt()[:, None] * second.sqrt())

    @of_one_fit
    @torch.no_grad()
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
        found = [embedding(self.model_, out).numpy() for out in self._features(X)]
        return np.concatenate(found)

    @of_one_fit
    @torch.no_grad()
    def predict_remoteness(self, X: Any) -> Array:
        """Say how far rows are from the training rows, as the model sees them.

        Parameters
        ----------
        X : array-like of shape (n, p)
            Inputs.

        Returns
        -------
        ndarray of shape (n,)
            What the posterior variance of the mean would be with the same noise
            everywhere, as a share of the variance of the target, without the
            disagreement of the members: φᵀΣφ with W = I/σ², and the mean of that and
            the kernel member's, likewise, where there is one. Infinite where a column
            has a value that training rows never had. It tells rows from elsewhere
            better than the epistemic variance does, which also grows with noise. A
            ``ClapsModule`` has its own Σ in place of that with W = I/σ², unless its
            sums have HᵀH.
        """
        return np.concatenate([np.empty(0), *self._remoteness(X)])

    @of_one_fit
    def with_prior_precision(self, prior_precision: float) -> Self:
        """Return a copy with another λ and the same networks, without retraining.

        Parameters
        ----------
        prior_precision : float
            λ > 0, in standardised units of y.

        Returns
        -------
        estimator
            A fitted copy that shares the networks. With ``last_layer="trained"`` its μ
            is bit-identical. With "ridge" μ changes; the σ² of several members, which
            the scales "posterior" and "constant" use, stays that of the original λ,
            since training rows are not all kept.
        """
        other = copy.copy(self)
        other.prior_precision = check_prior_precision(prior_precision)
        other._set_sums(self.sums_)
        return other

    @property
    @of_one_fit
    def posterior_covariance_(self) -> Array:
        """Σ of every member, in units of y."""
        unit = self._target_units().unit
        return np.asarray(self.model_.covariance() * unit**2)

    @property
    @of_one_fit
    def prior_precision_(self) -> float:
        """λ in use."""
        return self.model_.posterior.prior_precision

    @property
    @of_one_fit
    def residual_variance_(self) -> float:
        """σ², the mean squared training residual, in squared units of y."""
        unit = self.model_.unit * self._target_units().unit
        return self.model_.residual_variance * unit**2

    @property
    @of_one_fit
    def fingerprint_(self) -> str:
        """Text that changes with everything that predictions depend on."""
        model, seen, digest = vars(self).get("_digest", (None, None, ""))
        now = self._versions()
        # A copy with another λ or other sums holds another model.
        if model is not self.model_ or seen != now:
            law = self._law_of_residuals().text()
            text = f"{self._sums_belong_to()} {self._target_units()} {law}"
            digest = hash_tensors(self._own_tensors(), text)
            self.__dict__["_digest"] = self.model_, now, digest
        return f"{digest} {self.scale}"

    def _fit_on_a_copy(self, X: Any, y: Any, sample_weight: Any) -> Self:
        """Fit an unfitted copy, whose content is taken over when it is done.

        Neither bad input nor an interrupt can leave this object half-fitted: what
        takes over is one assignment.
        """
        fitted = copy.copy(self)
        fitted.__dict__ = {k: v for k, v in vars(self).items() if not k.endswith("_")}
        for name in ("_digest", "_fitted_rows"):
            fitted.__dict__.pop(name, None)
        # Tensors made in a caller's inference mode could not be changed in training,
        # and in autocast weights would be trained to three digits.
        with (
            torch.inference_mode(False),
            torch.autocast("cpu", enabled=False),
            new_tensors_on("cpu"),
        ):
            fitted._fit(X, y, sample_weight)
        self.__dict__ = fitted.__dict__
        return self

    def _sums_belong_to(self) -> str:
        """Text that differs between estimators whose sums do not add up."""
        return str(self.network_.fingerprint())

    def _own_tensors(self) -> dict[str, Tensor]:
        """What predictions depend on beside the network."""
        posterior, weight = self.model_.posterior, self.model_.member_weight
        return {"mean": posterior.mean, "scale": posterior.scale, "weight": weight}

    def _versions(self) -> tuple[Any, ...]:
        """How often torch has changed each tensor in place.

        Tensors of inference mode are not counted, nor are changes through ``.data``.
        """
        tensors = [*self.network_.tensors(), *self._own_tensors().values()]
        return tuple(0 if t.is_inference() else t._version for t in tensors)

    @abstractmethod
    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        """Fit this object, which is a copy that nobody else sees."""

    def _mu(self, X: Any) -> Iterator[Tensor]:
        """μ, some rows at a time, in the units that the network speaks."""
        return map(self._mu_of, self._features(X))

    def _parts(self, X: Any, scale: str) -> Iterator[PredictiveParts]:
        """μ and both parts of v, some rows at a time, in the network's units."""
        return (self._parts_of(out, scale) for out in self._features(X))

    @abstractmethod
    def _features(self, X: Any) -> Iterator[Features]:
        """φ, μ and h², some rows at a time, in the units that the network speaks."""

    def _remoteness(self, X: Any) -> Iterator[Array]:
        """Posterior variance with the same noise everywhere, some rows at a time."""
        return (self.model_.remoteness(out).numpy() for out in self._features(X))

    def _mu_of(self, out: Features) -> Tensor:  # (n,)
        """μ of some rows, in the units that the network speaks."""
        return self.model_.mu(out)

    def _parts_of(self, out: Features, scale: str) -> PredictiveParts:
        """μ and both parts of v of some rows, likewise."""
        return self.model_.parts(out, scale)

    def _covariance_of(self, out: Features, other: Features, scale: str) -> Tensor:
        """Epistemic covariance of some rows with others, likewise."""
        return networks_covariance(self.model_, out, other, scale)

    def _own_covariance(self, out: Features, scale: str) -> Tensor:
        """That of each row with itself."""
        return self.model_.parts(out, scale).epistemic

    @abstractmethod
    def _set_sums(self, sums: LastLayerSums) -> None:
        """Take over sums of this network, and make the posteriors from them."""

    @abstractmethod
    def _sum(self, X: Any, y: Any, sample_weight: Any) -> LastLayerSums:
        """Sums over some rows."""

    def _target_units(self) -> Units:
        """From what the network speaks to z, which is y where nothing maps it."""
        return Units()

    def _law_of_residuals(self) -> ResidualLaw:
        """Map of the target, sides of the noise and shape of the residuals."""
        return getattr(self, "residual_law_", PLAIN_LAW)
