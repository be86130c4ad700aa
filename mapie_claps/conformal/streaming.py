"""Scores → intervals from batches: MAPIE's split method for data beyond memory.

Scores are one number per calibration row and are kept (8 MB per million rows): the
exact conformal quantile needs them. All else stays within one batch.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import _num_samples
from torch import Tensor

from .._validation import check_number
from ..estimators.variance import Parts
from ..files.codec import Context, check_saveable, register
from ..files.methods import SaveMixin
from ..network.batches import check_has_target, column, is_batches, items_of
from .bounds import predict_with_std
from .explanation import Explanation
from .parts import check_unchanged, fingerprint_of, parts_of
from .quantile import conformal_quantile
from .scaled_residual import checked_std, interval_bounds, scaled_residual

__all__ = ["StreamingConformalRegressor"]

Array = NDArray[np.float64]


class StreamingConformalRegressor(SaveMixin):
    r"""Split conformal prediction with ``ClapsScore``, calibrated batch by batch.

    :math:`C_\alpha(x) = \mu(x) \pm q_\alpha\sqrt{v(x)}`, with :math:`q_\alpha` the
    :math:`\lceil(n+1)(1-\alpha)\rceil`-th smallest calibration score.

    Does what ``SplitConformalRegressor(estimator, conformity_score=ClapsScore(),
    prefit=True)`` of MAPIE does, with the same scores and the same rank, where the
    rows do not fit in memory, are not an array (a ``DataLoader``), or where the scores
    come from elsewhere (a file, a cluster). As there, calibration rows must not have
    been used to train or fit the estimator. Like MAPIE's class it is no scikit-learn
    estimator: it has no ``fit`` and no ``get_params``, and the estimator inside is the
    one to tune and clone.

    Parameters
    ----------
    estimator : estimator
        Fitted, with ``predict(X, return_std=True)``: ``ClapsModule``,
        ``ClapsRegressor`` or another.
    confidence_level : float or sequence of float, default=0.9
        Levels 1 − α of the intervals.

    Attributes
    ----------
    conformity_scores_ : ndarray of shape (n_cal,)
        Scores ``|y − μ| / √v``, in the order in which they came.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from mapie_claps import ClapsModule, StreamingConformalRegressor
    >>> rng = np.random.default_rng(0)
    >>> def batches(n):
    ...     for _ in range(n):
    ...         X = rng.normal(size=(50, 2))
    ...         yield X, X[:, 0] + rng.normal(0, 0.1, 50)
    >>> model = ClapsModule(torch.nn.Linear(2, 1)).fit(list(batches(2)))
    >>> conformal = StreamingConformalRegressor(model, confidence_level=[0.8, 0.9])
    >>> conformal = conformal.conformalize(batches(4))
    >>> len(conformal.conformity_scores_)
    200
    >>> for y_pred, y_interval in conformal.iter_intervals(batches(2)):
    ...     print(y_interval.shape)
    (50, 2, 2)
    (50, 2, 2)
    """

    def __init__(
        self, estimator: Any, confidence_level: float | Sequence[float] = 0.9
    ) -> None:
        self.estimator = estimator
        self.confidence_level = confidence_level
        _checked_levels(confidence_level)

    @classmethod
    def from_scores(
        cls,
        estimator: Any,
        scores: ArrayLike,
        confidence_level: float | Sequence[float] = 0.9,
    ) -> Self:
        """Calibrate from scores that were computed earlier or elsewhere.

        Parameters
        ----------
        estimator : estimator
            The fitted estimator that the scores were computed with.
        scores : array-like of shape (n_cal,)
            Scores ``|y − μ| / √v``.
        confidence_level : float or sequence of float, default=0.9
            Levels of the intervals.

        Returns
        -------
        StreamingConformalRegressor
            A calibrated object.
        """
        values = np.array(scores, dtype=np.float64)
        if values.ndim != 1 or not len(values) or not (values >= 0).all():
            raise ValueError(
                f"Got scores of shape {values.shape}, but expected at least one "
                "number per calibration row, none of them negative or NaN."
            )
        return cls(estimator, confidence_level)._set_scores(values)

    def conformalize(self, X: Any, y: Any = None) -> Self:
        """Compute the scores of the calibration rows; earlier ones are dropped.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of (X, y)
            Calibration rows.
        y : array-like of shape (n,), optional
            Their targets, unless X is an iterable of batches.

        Returns
        -------
        StreamingConformalRegressor
            The calibrated object.
        """
        return self._set_scores(self.score_rows(X, y))

    def partial_conformalize(self, X: Any, y: Any = None) -> Self:
        """Add calibration rows to those there are.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of (X, y)
            Calibration rows.
        y : array-like of shape (n,), optional
            Their targets, unless X is an iterable of batches.

        Returns
        -------
        StreamingConformalRegressor
            The calibrated object.
        """
        self._check_estimator()
        earlier = getattr(self, "conformity_scores_", np.empty(0))
        return self._set_scores(np.concatenate([earlier, self.score_rows(X, y)]))

    def score_rows(self, X: Any, y: Any = None) -> Array:
        """Compute scores ``|y − μ| / √v`` without keeping them.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of (X, y)
            Rows.
        y : array-like of shape (n,), optional
            Their targets, unless X is an iterable of batches.

        Returns
        -------
        ndarray of shape (n,)
            Scores.
        """
        found, n_rows = [np.empty(0)], 0
        for X_, target in self._parts(X, y, need_y=True):
            if not _num_samples(X_):
                continue
            mu, std = predict_with_std(self.estimator, X_, first_row=n_rows)
            y_ = column("y", target, len(mu)).numpy()
            found.append(np.abs(scaled_residual(y_, mu, std)))
            n_rows += len(mu)
        return np.concatenate(found)

    def quantiles(self, allow_infinite_bounds: bool = False) -> Array:
        """Conformal quantile of each level.

        Parameters
        ----------
        allow_infinite_bounds : bool, default=False
            Whether to give infinity where there are too few scores, not an error.

        Returns
        -------
        ndarray of shape (n_levels,)
            Quantiles of the scores.
        """
        if not hasattr(self, "conformity_scores_"):
            raise NotFittedError(
                "Got a StreamingConformalRegressor that is not calibrated. Call "
                "conformalize, or make it with from_scores."
            )
        self._check_estimator()
        key = (*self.levels, allow_infinite_bounds)
        if self._quantiles_of is not self.conformity_scores_:
            self._set_scores(self.conformity_scores_)
        if key not in self._quantiles:
            self._quantiles[key] = conformal_quantile(
                self.conformity_scores_,
                [1 - level for level in self.levels],
                allow_infinite_bounds,
            )
        return self._quantiles[key].copy()

    def predict(self, X: Any) -> Array:
        """Predict μ(x).

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of batches
            Inputs.

        Returns
        -------
        ndarray of shape (n,)
            Point predictions.
        """
        parts = (part for part, _ in self._parts(X) if _num_samples(part))
        found = [self.estimator.predict(part) for part in parts]
        return np.concatenate([np.empty(0), *found])

    def predict_interval(
        self, X: Any, allow_infinite_bounds: bool = False
    ) -> tuple[Array, Array]:
        """Predict points and intervals, in the shapes of MAPIE.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of batches
            Inputs; batches may be X or (X, y), also of no rows. A list of arrays with
            two or more dimensions is a list of batches.
        allow_infinite_bounds : bool, default=False
            Whether bounds may be infinite where there are too few scores.

        Returns
        -------
        tuple of ndarray
            Points (n,), intervals (n, 2, n_levels).
        """
        parts = list(self.iter_intervals(X, allow_infinite_bounds))
        points = [np.empty(0), *(p for p, _ in parts)]
        intervals = [np.empty((0, 2, len(self.levels))), *(i for _, i in parts)]
        return np.concatenate(points), np.concatenate(intervals)

    def iter_intervals(
        self, X: Any, allow_infinite_bounds: bool = False
    ) -> Iterator[tuple[Array, Array]]:
        """Predict points and intervals one batch at a time, in flat memory.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of batches
            Inputs; batches may be X or (X, y), also of no rows. A list of arrays with
            two or more dimensions is a list of batches.
        allow_infinite_bounds : bool, default=False
            Whether bounds may be infinite where there are too few scores.

        Yields
        ------
        tuple of ndarray
            Points (n,), intervals (n, 2, n_levels) of one batch.
        """
        q = self.quantiles(allow_infinite_bounds)
        n_rows = 0
        for X_, _ in self._parts(X):
            if not _num_samples(X_):
                yield np.empty(0), np.empty((0, 2, len(q)))
                continue
            mu, std = predict_with_std(self.estimator, X_, first_row=n_rows)
            yield mu, np.stack(interval_bounds(mu, std, q), axis=1)
            n_rows += len(mu)

    def explain(self, X: Any, allow_infinite_bounds: bool = False) -> Explanation:
        """Explain predictions: μ, the intervals, and the two parts of v.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of batches
            Inputs.
        allow_infinite_bounds : bool, default=False
            Whether bounds may be infinite where there are too few scores.

        Returns
        -------
        Explanation
            Arrays by row.
        """
        q = self.quantiles(allow_infinite_bounds)
        rows = (part for part, _ in self._parts(X) if _num_samples(part))
        found = [parts_of(self.estimator, part) for part in rows]
        none = Parts(np.empty(0), np.empty(0), np.empty(0))
        parts = Parts(*map(np.concatenate, zip(none, *found, strict=True)))
        std = checked_std(parts.std, len(parts.prediction))
        lower, upper = interval_bounds(parts.prediction, std, q)
        levels = tuple(self.levels)
        return Explanation(parts.prediction, lower, upper, levels, parts.variance)

    def __repr__(self) -> str:
        levels = self.confidence_level
        return f"StreamingConformalRegressor({self.estimator!r}, {levels!r})"

    @property
    def levels(self) -> list[float]:
        """Confidence levels as a list."""
        return _checked_levels(self.confidence_level)

    def _check_estimator(self) -> None:
        """Raise if the estimator has changed since it was calibrated."""
        check_unchanged(self.estimator, getattr(self, "_fingerprint", None))

    def _set_scores(self, scores: Array) -> Self:
        """Take over scores; quantiles of many of them are found once."""
        self.conformity_scores_ = scores
        self._fingerprint = fingerprint_of(self.estimator)
        self._quantiles: dict[tuple[float, ...], Array] = {}
        self._quantiles_of = scores
        return self

    def _parts(
        self, X: Any, y: Any = None, need_y: bool = False
    ) -> Iterator[tuple[Any, Any]]:
        """Parts of X as the user gave them, each with its y."""
        batched = is_batches(X) or (y is None and _is_list_of_tables(X))
        items = items_of(X, y, need_y) if batched else [(X, y)]
        for x, target, *weight in items:
            if need_y and any(w is not None for w in weight):
                raise ValueError(
                    "Got a batch (X, y, sample_weight), but expected (X, y): "
                    "calibration counts every row once. Leave the weights out."
                )
            if need_y:
                check_has_target(target)
            takes_tensors = getattr(self.estimator, "accepts_tensors", False)
            if isinstance(x, Tensor) and not takes_tensors:
                x = x.detach().cpu().numpy()
            yield x, target


def _is_list_of_tables(X: Any) -> bool:
    """Whether X is a list of batches without targets, not one array as a list."""
    return (
        isinstance(X, list | tuple)
        and bool(X)
        and all(len(getattr(part, "shape", ())) > 1 for part in X)
    )


def _checked_levels(confidence_level: Any) -> list[float]:
    """One level or several, each between 0 and 1."""
    interval = {"low": 0.0, "high": 1.0, "low_open": True, "high_open": True}
    hint = "Use for example 0.9, or [0.8, 0.9]."
    return [
        check_number("confidence_level", level, hint=hint, **interval)  # type: ignore[arg-type]
        for level in np.atleast_1d(np.asarray(confidence_level, dtype=object))
    ]


def _to_fields(streaming: StreamingConformalRegressor) -> dict[str, Any]:
    """Estimator, levels and scores, for a file."""
    streaming.quantiles(allow_infinite_bounds=True)  # raises if not calibrated
    check_saveable(streaming.estimator)
    return {
        "estimator": streaming.estimator,
        "confidence_level": streaming.confidence_level,
        "scores": streaming.conformity_scores_,
    }


def _from_fields(values: dict[str, Any], context: Context) -> Any:
    return StreamingConformalRegressor.from_scores(
        values["estimator"], values["scores"], values["confidence_level"]
    )


register(
    StreamingConformalRegressor,
    "streaming",
    _to_fields,
    _from_fields,
    ("estimator", "confidence_level", "scores"),
)
