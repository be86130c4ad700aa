"""What a model says of y at each row, and the way between targets and scores.

One object for all that comes after an estimator: conformal scores, intervals, reasons,
plots, files and studies ask for nothing else. NumPy only.
"""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin

from ..network.target import IDENTITY, MonotoneMap, NoiseShape

Array = NDArray[np.float64]

# A score takes two roundings and its inverse two more, so that μ + q·√v may fall short
# of a y whose score is q. Where y is discrete many rows have that score, and coverage
# would suffer. Four units in the last place of q, and one of the sum, make up for it.
ROUND_OUT = 1 + 4 * np.finfo(np.float64).eps
SYMMETRIC = NoiseShape()
BY_ROW = ("centre", "scale", "aleatoric", "epistemic", "point")
# Rows, and share of the rows, on the smallest or largest value of a bounded target.
MIN_ROWS_AT_BOUND, MIN_SHARE_AT_BOUND = 10, 0.01


class PredictiveVariance(NamedTuple):
    """Parts of the predictive variance v(x), in squared units of y.

    Parameters
    ----------
    aleatoric : ndarray of shape (n,)
        Noise variance h²(x): what more data would not remove.
    epistemic : ndarray of shape (n,)
        Posterior variance φᵀΣφ (and the spread of the members, if there are several):
        what more data near x would remove.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import PredictiveVariance
    >>> part = PredictiveVariance(np.array([3.0]), np.array([1.0]))
    >>> part.total, part.epistemic_fraction
    (array([4.]), array([0.25]))
    """

    aleatoric: Array
    epistemic: Array

    @property
    def total(self) -> Array:
        """v(x) = h²(x) + φᵀΣφ."""
        return self.aleatoric + self.epistemic

    @property
    def epistemic_fraction(self) -> Array:
        """Share of the epistemic part, φᵀΣφ / v."""
        return self.epistemic / self.total

    @property
    def scale_ratio(self) -> Array:
        """√v / h: by how much the epistemic part widens the scale."""
        return np.sqrt(self.total / self.aleatoric)


@dataclass(frozen=True)
class TargetRange:
    """Smallest training target, what they tell of bounds, and whether all are integers.

    A bound is zero where no target is negative, or an end on which rows pile up: a cap
    for prices.
    """

    low: float
    integer: bool
    floor: float = -np.inf
    ceiling: float = np.inf
    learned: bool = False  # whether the support may follow from it unasked

    @classmethod
    def fit(cls, y: Array, learn: bool = True) -> "TargetRange":
        """Range of training targets; bounds only if they are learned."""
        values, counts = np.unique(y, return_counts=True)
        low = float(values[0])
        integer = bool((values == np.round(values)).all())
        if not learn:
            return cls(low, integer)
        zero = 0.0 if low >= 0 else -np.inf
        floor = low if _piles_up(counts) else zero
        ceiling = float(values[-1]) if _piles_up(counts[::-1]) else np.inf
        return cls(low, integer, floor, ceiling, True)


def _piles_up(counts: NDArray[np.intp]) -> bool:
    """Whether the first value is frequent, and at least as much as the next one."""
    least = max(MIN_ROWS_AT_BOUND, MIN_SHARE_AT_BOUND * counts.sum())
    return len(counts) > 1 and bool(counts[0] >= max(least, counts[1]))


@dataclass(frozen=True, eq=False)
class PredictiveDistribution:
    r"""Predictive distribution of n rows, as ``predict_distribution`` returns it.

    With z = T(y), the signed score of a target is :math:`s = g((z - \mu)/\sqrt v)`.
    Without a map of the target and a shape of the noise, T and g are the identity and
    :math:`s = (y - \mu)/\sqrt v`.

    Parameters
    ----------
    centre : ndarray of shape (n,)
        μ, in units of z.
    scale : ndarray of shape (n,)
        √v, in units of z.
    aleatoric, epistemic : ndarray of shape (n,), optional
        Parts of v; None where a model gives a standard deviation alone.
    shape : NoiseShape, optional
        g, and the distribution of the residuals; symmetric by default.
    target_map : MonotoneMap, optional
        T; the identity by default.
    targets : TargetRange, optional
        What training targets were, for the ``support`` of scores.
    point : ndarray of shape (n,), optional
        What ``predict`` gives, where it is not the mean.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import PredictiveDistribution
    >>> rows = PredictiveDistribution(np.array([1.0, 5.0]), np.array([0.5, 2.0]))
    >>> rows.score([2.0, 3.0])
    array([ 2., -1.])
    >>> lower, upper = rows.interval(np.array([-1.0]), np.array([1.0]))
    >>> lower.round(6).ravel(), upper.round(6).ravel()
    (array([0.5, 3. ]), array([1.5, 7. ]))
    """

    centre: Array
    scale: Array
    aleatoric: Array | None = None
    epistemic: Array | None = None
    shape: NoiseShape = SYMMETRIC
    target_map: MonotoneMap = IDENTITY
    targets: TargetRange | None = None
    point: Array | None = None

    def __len__(self) -> int:
        return len(self.centre)

    @property
    def is_plain(self) -> bool:
        """Whether prediction and √v say it all: no map of the target, no shape."""
        curves = self.target_map, self.shape.curve
        return self.point is None and all(curve.is_identity for curve in curves)

    def score(self, y: ArrayLike) -> Array:
        """Signed scores of targets (n,) or (n, m); ±∞ outside the domain of T."""
        z = self.target_map.forward(y)
        by_row = (slice(None),) + (None,) * (z.ndim - 1)
        score = self.shape.curve.forward((z - self.centre[by_row]) / self.scale[by_row])
        outside = np.where(np.asarray(y) < self.target_map.domain[0], -np.inf, np.inf)
        return np.where(np.isnan(score), outside, score)

    def quantile(self, score: ArrayLike) -> Array:
        """Targets (n, m) with the signed scores (m,) or (n, m)."""
        r = self.shape.curve.inverse(np.atleast_1d(np.asarray(score, dtype=np.float64)))
        return self.target_map.inverse(self.centre[:, None] + self.scale[:, None] * r)

    def interval(self, lower: Array, upper: Array) -> tuple[Array, Array]:
        """Ends (n, m) at signed scores (m,) or (n, m), rounded outwards."""
        scores = np.stack([np.atleast_2d(lower), np.atleast_2d(upper)])  # (2, ·, m)
        side = np.array([-1.0, 1.0])[:, None, None]
        r = self.shape.curve.end(scores, side)
        # Away from the centre outwards is further, on the other side it is nearer.
        r = r * np.where(r * side > 0, ROUND_OUT, 2 - ROUND_OUT)
        step = self.scale[:, None] * r
        z = self.centre[:, None] + step
        inner = (step != 0) & np.isfinite(z)
        moved = np.where(inner, np.nextafter(z, side * np.inf), z)
        low, high = self.target_map.end(moved, side)
        return low, high

    @property
    def mean(self) -> Array:
        """Mean of y: μ, or under a map the mean over the distribution."""
        if self.target_map.is_identity:
            return self.centre
        mean: Array = self._nodes().mean(axis=1)
        return mean

    @property
    def prediction(self) -> Array:
        """What ``predict`` gives: the mean, or what another model says."""
        return self.mean if self.point is None else self.point

    @property
    def median(self) -> Array:
        """Target whose signed score is zero."""
        return self.quantile(0.0)[:, 0]

    @property
    def std(self) -> Array:
        """√v, or under a map the standard deviation of y."""
        if self.target_map.is_identity:
            return self.scale
        return np.sqrt(self._variance_of_y())

    @property
    def variance(self) -> PredictiveVariance:
        """Both parts of the variance of y; under a map divided as v is in z."""
        if self.aleatoric is None or self.epistemic is None:
            raise ValueError(
                "Got a model that gives a standard deviation alone, without parts. "
                "Use ClapsRegressor or ClapsModule."
            )
        if self.target_map.is_identity:
            return PredictiveVariance(self.aleatoric, self.epistemic)
        variance = self._variance_of_y()
        share = self.epistemic / (self.aleatoric + self.epistemic)
        return PredictiveVariance(variance * (1 - share), variance * share)

    @property
    def noise_alone(self) -> "PredictiveDistribution":
        """The distribution with v = h², as if there were no lack of data."""
        if self.aleatoric is None or self.epistemic is None:
            return self
        none = np.zeros_like(self.epistemic)
        return replace(self, scale=np.sqrt(self.aleatoric), epistemic=none)

    def take(self, rows: Any) -> "PredictiveDistribution":
        """The distribution of some of the rows."""
        some = {k: v[rows] for k in BY_ROW if (v := getattr(self, k)) is not None}
        return replace(self, **some)

    def _variance_of_y(self) -> Array:
        y = self._nodes()
        variance: Array = ((y - y.mean(axis=1)[:, None]) ** 2).mean(axis=1)
        return variance.clip(np.finfo(np.float64).tiny)

    def _nodes(self) -> Array:
        """Targets (n, n_nodes) of equal probability, finite."""
        r = self.shape.nodes
        y = self.target_map.inverse(self.centre[:, None] + self.scale[:, None] * r)
        # As an array: the export makes float32 of numbers, which has no such value.
        largest = self.target_map.xp.asarray([np.finfo(np.float64).max / len(r)])
        return y.clip(-largest, largest)


class StdArray(np.ndarray):  # type: ignore[type-arg]
    """Numbers of rows, for MAPIE, that carry what they were made of.

    MAPIE (1.5 or later) hands the array that ``predict(X, return_std=True)`` returned
    to the score, and keeps what the score returns. Views and copies may hold other
    rows, and forget all of it; arithmetic gives ordinary arrays.
    """

    # Identity of the fit whose distribution the numbers come from; None for those of
    # mean and standard deviation alone, "" where that is forgotten.
    fit_id: str | None = ""
    distribution: PredictiveDistribution | None = None  # of standard deviations
    # Of scores: X and y, if a model of each fold is to score these rows again.
    rows: tuple[Any, Array] | None = None

    @classmethod
    def carry(
        cls, values: Any, fit_id: str | None, distribution: Any = None, rows: Any = None
    ) -> "StdArray":
        """A view of the values that carries what is given."""
        view = np.asarray(values).view(cls)
        view.fit_id, view.distribution, view.rows = fit_id, distribution, rows
        return view

    def __array_wrap__(
        self, array: Any, context: Any = None, return_scalar: bool = False
    ) -> Any:
        plain = np.asarray(array)
        return plain[()] if return_scalar else plain

    def __reduce__(self) -> Any:
        return StdArray.carry, (np.asarray(self), self.fit_id, None, self.rows)


class DistributionRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """A regressor whose predictions are views of ``predict_distribution``."""

    @property
    @abstractmethod
    def fit_id_(self) -> str:
        """Text that differs between fits."""

    @abstractmethod
    def predict_distribution(self, X: Any) -> PredictiveDistribution:
        """Predict all that scores, intervals and reasons are made from, in one pass."""

    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Predict y, and the standard deviation if asked for.

        Parameters
        ----------
        X : array-like of shape (n, p)
            Inputs; for a ``ClapsModule`` all that its ``fit`` takes.
        return_std : bool, default=False
            Whether to return the standard deviation as well.

        Returns
        -------
        ndarray of shape (n,), or tuple of two
            Predictions, or predictions and √v(x), in units of y. The array of standard
            deviations carries the predictive distribution, from which
            :class:`~mapie_claps.ClapsScore` makes scores and intervals.
        """
        rows = self.predict_distribution(X)
        if not return_std:
            return rows.prediction
        return rows.prediction, StdArray.carry(rows.std, self.fit_id_, rows)

    def predict_variance(self, X: Any) -> PredictiveVariance:
        """Predict the aleatoric and epistemic part of v(x), for X as in ``predict``."""
        return self.predict_distribution(X).variance
