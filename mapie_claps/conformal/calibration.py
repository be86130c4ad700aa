"""Scores → intervals and distributions, of rows in memory or in batches.

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

from .._validation import check_choice, check_number
from ..estimators.local_law import LocalLaw
from ..files.codec import Context, check_saveable, register, saved_as
from ..files.methods import SaveMixin
from ..network.batches import check_has_target, column, is_batches, items_of
from .bounds import bounds_of_rows, predict_law, recorded_parts
from .distribution import PredictiveDistribution
from .explanation import Explanation, explanation_of
from .parts import check_splits_variance, check_unchanged, fingerprint_of
from .quantile import ScoreEnds, score_ends
from .support import Support, check_support, score_rows

Array = NDArray[np.float64]


class Calibrated(PredictiveDistribution, SaveMixin):
    """A fitted estimator and the signed scores of calibration rows.

    All that ``CalibratedRegressor`` and ``StreamingConformalRegressor`` do but ``fit``.
    """

    _kept_scores: Array
    _signed: bool
    _fingerprint: str | None
    _scored_with: str  # support
    _known_ends: dict[tuple[float, ...], ScoreEnds]

    def __init__(
        self,
        estimator: Any,
        confidence_level: float | Sequence[float] = 0.9,
        *,
        sym: bool = True,
        support: Any = "auto",
    ) -> None:
        self.estimator = estimator
        self.confidence_level = confidence_level
        self.sym = check_choice("sym", sym, (True, False), "Use True for one rank.")
        self.support = support
        check_support(support)
        _checked_levels(confidence_level)

    @classmethod
    def from_scores(
        cls,
        estimator: Any,
        scores: ArrayLike,
        confidence_level: float | Sequence[float] = 0.9,
        *,
        signed: bool = False,
        sym: bool = True,
        support: Any = "auto",
    ) -> Self:
        """Calibrate from scores that were computed earlier or elsewhere.

        Parameters
        ----------
        estimator : estimator
            The fitted estimator that the scores were computed with.
        scores : array-like of shape (n_cal,)
            What ``score_rows`` of an object with this estimator and support gives.
        confidence_level : float or sequence of float, default=0.9
            Levels of the intervals.
        signed : bool, default=False
            Whether scores have their sign. Without it there are intervals of one rank,
            but no distribution.
        sym : bool, default=True
            Whether one rank serves both ends.
        support : str, tuple, array-like or None, default="auto"
            Values that y can take.

        Returns
        -------
        object
            A calibrated object of this class.
        """
        values = np.array(scores, dtype=np.float64)
        wrong = np.isnan(values) if signed else ~(values >= 0)
        if values.ndim != 1 or not len(values) or wrong.any():
            kind = "none of them NaN" if signed else "none of them negative or NaN"
            raise ValueError(
                f"Got scores of shape {values.shape}, but expected at least one "
                f"number per calibration row, {kind}."
            )
        made = cls(estimator, confidence_level, sym=sym, support=support)
        return made._set_scores(values, signed)

    def conformalize(self, X: Any, y: Any = None) -> Self:
        """Compute the scores of the calibration rows; earlier ones are dropped.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of (X, y)
            Calibration rows, which the estimator has not seen.
        y : array-like of shape (n,), optional
            Their targets, unless X is an iterable of batches.

        Returns
        -------
        object
            This object, calibrated.
        """
        return self._set_scores(self._score_with(self._fitted(), X, y))

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
        object
            This object, calibrated.
        """
        self._check_estimator()
        earlier = getattr(self, "signed_scores_", np.empty(0))
        more = self._score_with(self._fitted(), X, y)
        signed = getattr(self, "_signed", True)
        if not signed:
            more = np.abs(more)
        return self._set_scores(np.concatenate([earlier, more]), signed)

    def score_rows(self, X: Any, y: Any = None, signed: bool = False) -> Array:
        """Compute scores without keeping them.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of (X, y)
            Rows.
        y : array-like of shape (n,), optional
            Their targets, unless X is an iterable of batches.
        signed : bool, default=False
            Whether scores keep their sign.

        Returns
        -------
        ndarray of shape (n,)
            Scores.
        """
        scores = self._score_with(self._fitted(), X, y)
        return scores if signed else np.abs(scores)

    def quantiles(self, allow_infinite_bounds: bool = False) -> Array:
        """Conformal quantile of each level.

        Parameters
        ----------
        allow_infinite_bounds : bool, default=False
            Whether to give infinity where there are too few scores, not an error.

        Returns
        -------
        ndarray of shape (n_levels,), or (2, n_levels) with ``sym=False``
            Quantiles of the absolute scores; or signed scores of both ends.
        """
        ends = self._ends(allow_infinite_bounds)
        return ends.upper.copy() if self.sym else np.stack(ends)

    def predict(self, X: Any) -> Array:
        """Predict the mean of y.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of batches
            Inputs.

        Returns
        -------
        ndarray of shape (n,)
            Point predictions.
        """
        parts = (
            part for part, _ in self._parts(self._fitted(), X) if _num_samples(part)
        )
        found = [self._fitted().predict(part) for part in parts]
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
        ends = self._ends(allow_infinite_bounds)
        n_rows = 0
        for X_, _ in self._parts(self._fitted(), X):
            if n_rows:  # it may have been fitted again since the last batch
                self._check_estimator()
            if not _num_samples(X_):
                yield np.empty(0), np.empty((0, 2, len(ends.lower)))
                continue
            points, lower, upper = bounds_of_rows(
                self._fitted(), X_, ends, {}, n_rows, self._support()
            )
            yield points, np.stack([lower, upper], axis=1)
            n_rows += len(points)

    def explain(self, X: Any, allow_infinite_bounds: bool = False) -> Explanation:
        """Explain predictions: the mean, the intervals, and the two parts of v.

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
        self._check_estimator()
        check_splits_variance(self._fitted())
        with recorded_parts() as record:
            points, bounds = self.predict_interval(X, allow_infinite_bounds)
        return explanation_of(points, bounds, self.levels, [record])

    def __repr__(self) -> str:
        levels = self.confidence_level
        return f"{type(self).__name__}({self.estimator!r}, {levels!r})"

    @property
    def levels(self) -> list[float]:
        """Confidence levels as a list."""
        return _checked_levels(self.confidence_level)

    @property
    def conformity_scores_(self) -> Array:
        """Absolute scores of the calibration rows, in the order in which they came."""
        return np.abs(self._kept())

    @conformity_scores_.setter
    def conformity_scores_(self, scores: Array) -> None:
        self._set_scores(np.array(scores, dtype=np.float64), signed=False)

    @property
    def signed_scores_(self) -> Array:
        """Signed scores of the calibration rows."""
        return self._checked_signed().copy()

    def _support(self) -> Support | None:
        return check_support(self.support)

    def _fitted(self) -> Any:
        """The fitted estimator."""
        return getattr(self, "estimator_", self.estimator)

    def _scores(self) -> Array:
        """Scores, if the estimator is still the one that they were made with."""
        scores = self._kept()
        self._check_estimator()
        return scores

    def _kept(self) -> Array:
        if not hasattr(self, "_kept_scores"):
            raise NotFittedError(
                f"Got a {type(self).__name__} that is not calibrated. Call "
                "conformalize, or make it with from_scores."
            )
        return self._kept_scores

    def _checked_signed(self) -> Array:
        scores = self._scores()
        if not self._signed:
            raise ValueError(
                "Got absolute scores, of which no distribution and no two ranks can be "
                "made. Calibrate with conformalize, or from_scores(..., signed=True)."
            )
        return scores

    def _ends(self, allow_infinite: bool) -> ScoreEnds:
        """Signed scores of both ends of each level; of many scores found once."""
        scores = self._scores() if self.sym else self._checked_signed()
        key = (*self.levels, allow_infinite)
        if key not in self._known_ends:
            alphas = [1 - level for level in self.levels]
            self._known_ends[key] = score_ends(scores, alphas, self.sym, allow_infinite)
        return self._known_ends[key]

    def _check_estimator(self) -> None:
        """Raise if what made the scores has changed since."""
        check_unchanged(self._fitted(), getattr(self, "_fingerprint", None))
        if repr(self.support) != getattr(self, "_scored_with", repr(self.support)):
            raise ValueError(
                f"Got support={self.support!r}, but the calibration rows were scored "
                f"with support={self._scored_with}. Call conformalize again."
            )

    def _set_scores(self, scores: Array, signed: bool = True) -> Self:
        """Take over scores."""
        new: dict[str, Any] = {
            "_kept_scores": scores,
            "_signed": signed,
            "_fingerprint": fingerprint_of(self._fitted()),
            "_scored_with": repr(self.support),
            "_known_ends": {},
        }
        self.__dict__ = vars(self) | new  # at once: an interrupt may come any time
        return self

    def _score_with(self, estimator: Any, X: Any, y: Any) -> Array:
        """Signed scores of some rows."""
        found, n_rows = [np.empty(0)], 0
        for X_, target in self._parts(estimator, X, y, need_y=True):
            if not _num_samples(X_):
                continue
            _, law = predict_law(estimator, X_, first_row=n_rows)
            y_ = column("y", target, len(law)).numpy()
            found.append(score_rows(law, y_, self._support()))
            n_rows += len(law)
        return np.concatenate(found)

    def _laws(self, X: Any) -> Iterator[LocalLaw]:
        self._check_estimator()
        for X_, _ in self._parts(self._fitted(), X):
            if _num_samples(X_):
                yield predict_law(self._fitted(), X_)[1]

    @staticmethod
    def _parts(
        estimator: Any, X: Any, y: Any = None, need_y: bool = False
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
            takes_tensors = getattr(estimator, "accepts_tensors", False)
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


saved_as("support")(Support)
FIELDS = ("estimator", "confidence_level", "scores", "signed", "sym", "support")


def register_calibrated(cls: type[Calibrated], tag: str) -> None:
    """Let objects of a class be saved."""

    def to_fields(calibrated: Calibrated) -> dict[str, Any]:
        scores = calibrated._scores()  # raises if not calibrated
        check_saveable(calibrated._fitted())
        return {
            "estimator": calibrated._fitted(),
            "confidence_level": calibrated.confidence_level,
            "scores": scores,
            "signed": calibrated._signed,
            "sym": calibrated.sym,
            "support": calibrated._support(),
        }

    def from_fields(values: dict[str, Any], context: Context) -> Any:
        names = ("estimator", "scores", "confidence_level")
        options = {k: values[k] for k in FIELDS if k not in names}
        return cls.from_scores(*(values[k] for k in names), **options)

    register(cls, tag, to_fields, from_fields, FIELDS)
