"""Scores → intervals and distributions, of rows in memory or in batches.

Scores are one number per calibration row and are kept (8 MB per million rows): the
exact conformal quantile needs them. All else stays within one batch.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import _safe_indexing, gen_batches
from sklearn.utils.validation import _num_samples

from .._validation import check_choice, check_unmasked
from ..files.methods import SaveMixin
from .bounds import PREDICTED_ROWS, bounds_of_rows, recorded_parts
from .distribution import PredictiveDistribution
from .explanation import Explanation, explanation_of
from .observing import ObservesRows
from .one_row import RowPredictor
from .parts import check_splits_variance
from .quantile import ScoreBounds
from .row_parts import joined_parts, row_parts
from .row_rule import EVERYBODY, CalibrationRows, RowRule, RowValues
from .support import check_support
from .weighted import worth

Array = NDArray[np.float64]


class Calibrated(ObservesRows, PredictiveDistribution, SaveMixin):
    """A fitted estimator and the signed scores of calibration rows.

    All that ``CalibratedRegressor`` and ``StreamingConformalRegressor`` do but ``fit``.
    """

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
        self.sym = sym
        self.support = support
        check_choice("sym", sym, (True, False), "Use True for one rank.")
        check_support(support)
        _ = self.levels  # raises if they are none

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
        weights: Any = None,
        groups: Any = None,
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
        weights, groups : array-like of shape (n_cal,), optional
            Likelihood ratios and labels of the rows; see ``conformalize``.

        Returns
        -------
        object
            A calibrated object of this class.
        """
        check_unmasked("scores", scores)
        values = np.array(scores, dtype=np.float64)
        wrong = np.isnan(values) if signed else ~(values >= 0)
        if values.ndim != 1 or not len(values) or wrong.any():
            kind = "none of them NaN" if signed else "none of them negative or NaN"
            raise ValueError(
                f"Got scores of shape {values.shape}, but expected at least one "
                f"number per calibration row, {kind}."
            )
        made = cls(estimator, confidence_level, sym=sym, support=support)
        given = RowValues(weights, groups)
        for name, value in vars(given).items():
            if not isinstance(value, np.ndarray | None):
                raise TypeError(
                    f"Got {name} of type {type(value).__name__}, but from_scores has "
                    "no rows to apply it to. Pass one number or label for each score; "
                    "EpistemicGroups(...).labels(estimator, X) gives labels."
                )
        given.check_all_used(len(values))
        rows = CalibrationRows(values, signed, given.weights, given.groups)
        return made._set_rows(rows)

    def conformalize(
        self, X: Any, y: Any = None, *, weights: Any = None, groups: Any = None
    ) -> Self:
        """Compute the scores of the calibration rows; earlier ones are dropped.

        Levels that follow the misses start again too, unless ``update_posterior`` has
        dropped the scores: then they go on.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of (X, y)
            Calibration rows, which the estimator has not seen. A ``ClapsRegressor``
            knows the rows that it was fitted on (not after ``load``): there is a
            warning if more of them come than equal rows of a table explain.
        y : array-like of shape (n,), optional
            Their targets, unless X is an iterable of batches.
        weights : array-like of shape (n,) or callable, optional
            Likelihood ratios p_target(x) / p_source(x) of the rows, up to a constant,
            for rows to predict whose x has another distribution. A function of X, such
            as :func:`~mapie_claps.likelihood_ratio` gives, also serves the rows to
            predict; numbers have to be passed there again.
        groups : array-like of shape (n,), callable, str or int, optional
            Groups that are calibrated apart: labels, a function of X, the name or
            position of a column, :class:`~mapie_claps.ColumnGroups` or
            :class:`~mapie_claps.EpistemicGroups`. They must be fixed before
            calibration.

        Returns
        -------
        object
            This object, calibrated.
        """
        values = RowValues(weights, groups)
        rows = self._rows_of(X, y, values, by_hand=True)
        dropped = self._state.rows is None
        return self._set_rows(rows, self._adaptive() if dropped else None)

    def partial_conformalize(
        self, X: Any, y: Any = None, *, weights: Any = None, groups: Any = None
    ) -> Self:
        """Add calibration rows to those there are.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of (X, y)
            Calibration rows.
        y : array-like of shape (n,), optional
            Their targets, unless X is an iterable of batches.
        weights, groups : optional
            As in ``conformalize``; functions that were given there are used again.

        Returns
        -------
        object
            This object, calibrated.
        """
        self._check_estimator()
        earlier = self._state.rows
        values = self._values_for(weights, groups, "partial_conformalize")
        more = self._rows_of(X, y, values, by_hand=True)
        rows = more if earlier is None else earlier.joined(more)
        return self._set_rows(rows, self._adaptive())

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
        scores = self._rows_of(X, y, None).scores
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
        self._check_one_rank("quantiles")
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
        model = self._fitted()
        found = [model.predict(p) for p, _ in row_parts(model, X) if _num_samples(p)]
        return np.concatenate([np.empty(0), *found])

    def predict_interval(
        self,
        X: Any,
        allow_infinite_bounds: bool = False,
        *,
        weights: Any = None,
        groups: Any = None,
    ) -> tuple[Array, Array]:
        """Predict points and intervals, in the shapes of MAPIE.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of batches
            Inputs; batches may be X or (X, y), also of no rows. A list of arrays with
            two or more dimensions is a list of batches.
        allow_infinite_bounds : bool, default=False
            Whether bounds may be infinite where there are too few scores.
        weights, groups : optional
            Likelihood ratios and labels of these rows, if calibration had them and not
            as functions of X. A row whose own weight is too large for a finite
            interval has infinite bounds.

        Returns
        -------
        tuple of ndarray
            Points (n,), intervals (n, 2, n_levels).
        """
        pieces = (piece for X_, _ in row_parts(self._fitted(), X) for piece in _cut(X_))
        rule = self._rule(allow_infinite_bounds, weights, groups)
        return joined_parts(self._intervals(pieces, rule), X, len(self.levels))

    def iter_intervals(
        self,
        X: Any,
        allow_infinite_bounds: bool = False,
        *,
        weights: Any = None,
        groups: Any = None,
    ) -> Iterator[tuple[Array, Array]]:
        """Predict points and intervals one batch at a time, in flat memory.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of batches
            Inputs, as in ``predict_interval``.
        allow_infinite_bounds : bool, default=False
            Whether bounds may be infinite where there are too few scores.
        weights, groups : optional
            As in ``predict_interval``.

        Yields
        ------
        tuple of ndarray
            Points (n,), intervals (n, 2, n_levels) of one batch.
        """
        parts = (X_ for X_, _ in row_parts(self._fitted(), X))
        rule = self._rule(allow_infinite_bounds, weights, groups)
        yield from self._intervals(parts, rule)

    def _intervals(
        self, parts: Iterator[Any], rule: ScoreBounds | RowRule
    ) -> Iterator[tuple[Array, Array]]:
        """Points (n,) and intervals (n, 2, n_levels), part by part."""
        n_rows = 0
        for X_ in parts:
            if n_rows:  # it may have been fitted again since the last batch
                self._check_estimator()
            if not _num_samples(X_):
                yield np.empty(0), np.empty((0, 2, len(self.levels)))
                continue
            points, lower, upper = bounds_of_rows(
                self._fitted(), X_, rule, {}, self._support(), n_rows
            )
            yield points, np.stack([lower, upper], axis=1)
            n_rows += len(points)
        if isinstance(rule, RowRule):
            rule.values.check_all_used(n_rows)

    def explain(
        self,
        X: Any,
        allow_infinite_bounds: bool = False,
        *,
        weights: Any = None,
        groups: Any = None,
    ) -> Explanation:
        """Explain predictions: the mean, the intervals, and the two parts of v.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of batches
            Inputs.
        allow_infinite_bounds : bool, default=False
            Whether bounds may be infinite where there are too few scores.
        weights, groups : optional
            As in ``predict_interval``.

        Returns
        -------
        Explanation
            Arrays by row.
        """
        self._check_estimator()
        check_splits_variance(self._fitted())
        with recorded_parts() as record:
            points, bounds = self.predict_interval(
                X, allow_infinite_bounds, weights=weights, groups=groups
            )
        return explanation_of(points, bounds, self.levels, [record])

    def row_predictor(self) -> RowPredictor:
        """Return a function of one row of numbers, for services.

        Returns
        -------
        RowPredictor
            It gives what ``predict_interval`` does, many times faster.
        """
        return RowPredictor(self)

    def __sklearn_is_fitted__(self) -> bool:
        return self._state.rows is not None

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        model = self.estimator
        given = "confidence_level=" if model is None else f"{model!r}, "
        made = f"{type(self).__name__}({given}{self.confidence_level!r})"
        rows = self._state.rows
        return made if rows is None else f"{made} calibrated on {len(rows.scores)} rows"

    @property
    def conformity_scores_(self) -> Array:
        """Absolute scores of the calibration rows, in the order in which they came."""
        return np.abs(self._kept().scores)

    @conformity_scores_.setter
    def conformity_scores_(self, scores: Array) -> None:
        self._set_rows(CalibrationRows(np.array(scores, dtype=float), signed=False))

    @property
    def signed_scores_(self) -> Array:
        """Signed scores of the calibration rows."""
        return self._checked_signed().copy()

    @property
    def effective_sample_size_(self) -> float | dict[Any, float]:
        """Rows of equal weight that the calibration rows are worth; of each group."""
        sizes = {k: worth(w) for k, w in self._kept().weights_by_group().items()}
        return sizes.get(EVERYBODY, sizes)


def _cut(X: Any) -> Iterator[Any]:
    """Rows some thousands at a time, so that memory does not grow with X."""
    n = _num_samples(X)
    if n <= PREDICTED_ROWS:
        yield X
        return
    for rows in gen_batches(n, PREDICTED_ROWS):
        yield _safe_indexing(X, rows)
