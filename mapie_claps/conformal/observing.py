"""Rows whose targets arrive later: new levels, new scores, or a new posterior."""

from collections.abc import Iterable, Iterator
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..estimators.base import LastLayerEstimator
from ..estimators.updating import update_posterior
from .calibration_state import CalibrationState, State
from .online import AdaptiveLevels, check_order
from .row_keys import keys_to_keep
from .row_parts import row_parts
from .row_rule import CalibrationRows, RowRule, RowValues

Array = NDArray[np.float64]


class ObservesRows(CalibrationState):
    """Methods for calibrated objects whose rows come one after another."""

    def observe(
        self,
        X: Any,
        y: Any = None,
        *,
        gamma: float | None = None,
        window: int | None = None,
        intervals: ArrayLike | None = None,
        time: Any = None,
        weights: Any = None,
        groups: Any = None,
    ) -> Self:
        r"""Observe targets that have arrived: levels follow the misses.

        :math:`\alpha_{t+1} = \alpha_t + \gamma(\alpha - \mathrm{miss}_t)`, for each
        level and, if there are groups, for each group. In the long run a share
        1 − α of all rows is covered, whatever they do; nothing is promised for a
        single row. An :math:`\alpha_t` of 0 or less gives infinite intervals, one of 1
        or more empty ones (the lower end just above the upper one).

        The rows' scores join the calibration scores. They must not enter the posterior
        as well.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of (X, y)
            Rows in the order of time. Rows of one call were predicted together, at the
            levels that the object has now; so call it once for each row if each was
            predicted after the one before was known.
        y : array-like of shape (n,), optional
            Their targets, unless X is an iterable of batches, each of which counts as
            one call.
        gamma : float, optional
            Step size in [0, 1]; 0.01 at first, then as before.
        window : int, optional
            Keep the newest calibration scores only, of each group if there are groups;
            all of them at first, then as before.
        intervals : array-like of shape (n, 2, n_levels), optional
            Intervals that were issued for these rows, if levels or scores have changed
            since. By default those that ``predict_interval(X)`` would give now.
        time : array-like of shape (n,), number or date, optional
            When the rows were: a row before the one observed last is refused.
        weights, groups : optional
            As in ``predict_interval``.

        Returns
        -------
        object
            This object. If anything fails it is left as it was.
        """
        self._scores()  # raises if not calibrated, or if the estimator has changed
        for name, value in (("intervals", intervals), ("time", time)):
            if value is not None and y is None:
                raise ValueError(
                    f"Got {name} together with batches as X. Call observe(X, y, "
                    f"{name}=...) for each batch."
                )
        values = self._values_for(weights, groups, "observe")
        parts = (
            (self._rows_of(X_, y_, values), y_)
            for X_, y_ in row_parts(self._fitted(), X, y, need_y=True)
            if len(X_)
        )
        return self._observe_parts(parts, gamma, window, time, intervals)

    def update_posterior(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
    ) -> Self:
        """Let rows enter the posterior; all scores are dropped.

        The scores were made with the posterior as it was. Calibrate again, with
        ``conformalize``, on rows that the posterior has not seen: rows that entered it
        here are refused from now on. Levels that follow the misses stay as they are.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of (X, y)
            Rows.
        y : array-like of shape (n,), optional
            Their targets, unless X is an iterable of batches.
        sample_weight : array-like of shape (n,), optional
            Weights of the rows in the posterior.

        Returns
        -------
        object
            This object, no longer calibrated. If anything fails it is left as it was.
        """
        estimator = self._fitted()
        if not isinstance(estimator, LastLayerEstimator):
            raise TypeError(
                f"Got an estimator of type {type(estimator).__name__}, whose posterior "
                "cannot be updated. Use a ClapsRegressor or ClapsModule, not within a "
                "Pipeline, or fit it again."
            )
        rows = list(X) if isinstance(X, Iterator) else X
        keys = [
            np.ravel(keys_to_keep(X_, y_))
            for X_, y_ in row_parts(estimator, rows, y, need_y=True)
            if len(X_)
        ]
        updated = update_posterior(estimator, rows, y, sample_weight)
        known = np.unique(np.concatenate([self._state.in_posterior, *keys]))
        state = State(followed=self._adaptive(), in_posterior=known)
        # At once: an interrupt may come any time.
        self.__dict__ = self._restarted(updated, state).__dict__
        return self

    @property
    def adaptive_levels_(self) -> Any:
        """Levels 1 − α_t at which the next interval is issued, (n_levels,).

        A dict by group if there are groups.
        """
        adaptive, rows = self._adaptive(), self._state.rows
        nominal = np.asarray(self.levels)
        labels = [] if adaptive is None else list(adaptive.current)
        if rows is not None:  # it may have been calibrated with other groups since
            grouped = rows.groups is not None
            known = [label for label in labels if grouped and label is not None]
            labels = [*dict.fromkeys(rows.labels() + known)]
        found = {
            label: nominal if adaptive is None else 1 - adaptive.of(label)
            for label in labels or [None]
        }
        return found.get(None, found)

    @property
    def observed_coverage_(self) -> Array:
        """Share of the observed rows that their intervals covered, (n_levels,)."""
        adaptive = self._adaptive()
        if adaptive is None:
            return np.full(len(self.levels), np.nan)
        return adaptive.coverage

    def _observe_parts(
        self,
        parts: Iterable[tuple[CalibrationRows, Any]],
        gamma: float | None,
        window: int | None,
        time: Any = None,
        intervals: Any = None,
    ) -> Self:
        """Follow the misses of rows, and keep their scores.

        Rows come with their targets, those of one part predicted together.
        """
        before = self._state
        try:
            for more, y in parts:
                nominal = AdaptiveLevels.start(1 - np.asarray(self.levels))
                adaptive = (self._adaptive() or nominal).with_options(gamma, window)
                newest = check_order(time, len(more), adaptive.time)
                if intervals is None:
                    missed = self._missed(more, adaptive)
                else:
                    missed = _missed_by_intervals(intervals, y, len(self.levels))
                rows = self._kept().joined(more)
                if adaptive.window is not None:
                    rows = rows.last(adaptive.window)
                self._set_rows(rows, adaptive.after(more.groups, missed, newest))
        except BaseException:
            self._state = before
            raise
        return self

    def _missed(
        self, more: CalibrationRows, adaptive: AdaptiveLevels
    ) -> NDArray[np.bool_]:  # (n, m)
        """Rows whose score lies beyond the ends that they were issued.

        No interval holds a target without a finite score but an infinite one.
        """
        none = RowValues(None, None)
        rule = RowRule(self._tables(), adaptive.alpha, none, True, adaptive)
        lower, upper = rule.ends(more.groups, more.weights, len(more))
        score = (more.scores if self._kept().signed else np.abs(more.scores))[:, None]
        missed: NDArray[np.bool_] = (score > upper) | (score < lower)
        return missed


def _missed_by_intervals(intervals: Any, y: Any, m: int) -> NDArray[np.bool_]:
    """Rows (n, m) outside the intervals that were issued."""
    target = np.asarray(y, dtype=np.float64).reshape(-1, 1)
    bounds = np.asarray(intervals, dtype=np.float64)
    if bounds.shape == (len(target), 2) and m == 1:
        bounds = bounds[:, :, None]
    if bounds.shape != (len(target), 2, m) or np.isnan(bounds).any():
        raise ValueError(
            f"Got intervals of shape {bounds.shape} with {int(np.isnan(bounds).sum())} "
            f"NaN, but expected ({len(target)}, 2, {m}) numbers: what predict_interval "
            "returned for these rows."
        )
    missed: NDArray[np.bool_] = (target < bounds[:, 0]) | (target > bounds[:, 1])
    return missed
