"""State of a calibrated object, and the ranks that are computed from it."""

import copy
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import _num_samples

from .._validation import check_share, raise_for, warn_if_reordered
from ..estimators.fitted_rows import FittedRows, Overlap, asked_rows
from ..network.batches import column
from .bounds import predict_law
from .online import AdaptiveLevels
from .parts import check_unchanged, fingerprint_of, last_step, split_pipeline
from .quantile import ScoreBounds, score_bounds
from .ranks import RankTable
from .row_keys import known_rows
from .row_parts import row_parts
from .row_rule import EVERYBODY, CalibrationRows, RowRule, RowValues
from .support import Support, check_support, score_rows
from .weighted import check_some_weight, warn_if_few

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class State:
    """What rows have brought to a calibrated object."""

    rows: CalibrationRows | None = None  # None: not calibrated
    followed: AdaptiveLevels | None = None
    # Keys of rows that entered the posterior, sorted.
    in_posterior: NDArray[np.int64] = field(
        default_factory=lambda: np.empty(0, dtype=np.int64)
    )
    fingerprint: str | None = None  # of the estimator that scored the rows
    scored_with: tuple[Any, str] | None = None  # the support
    known_ends: dict[Any, Any] = field(default_factory=dict)


class CalibrationState:
    """Estimator and calibration rows, taken over at once or not at all."""

    _HOW_TO_CALIBRATE = "conformalize"
    estimator: Any
    confidence_level: Any
    sym: bool
    support: Any
    training_rows_: tuple[Any, Any]
    _state = State()

    @property
    def levels(self) -> list[float]:
        """Confidence levels as a list."""
        hint = "Use for example 0.9, or [0.8, 0.9]."
        each = np.atleast_1d(np.asarray(self.confidence_level, dtype=object))
        if not each.size:
            expected = "at least one level"
            raise_for("confidence_level", self.confidence_level, expected, hint)
        return [check_share("confidence_level", level, hint=hint) for level in each]

    def _support(self) -> Support:
        return check_support(self.support) or Support()

    def _fitted(self) -> Any:
        """The fitted estimator."""
        found = getattr(self, "estimator_", self.estimator)
        if found is None:
            raise NotFittedError(
                f"Got a {type(self).__name__} without a fitted estimator. Call "
                f"{self._HOW_TO_CALIBRATE}, or pass an estimator that is fitted."
            )
        return found

    def _scores(self) -> Array:
        """Scores, if the estimator is still the one that they were made with."""
        scores = self._kept().scores
        self._check_estimator()
        return scores

    def _kept(self) -> CalibrationRows:
        rows = self._state.rows
        if rows is None:
            after_update = len(self._state.in_posterior) > 0
            dropped = " Scores were dropped by update_posterior." * after_update
            raise NotFittedError(
                f"Got a {type(self).__name__} that is not calibrated. Call "
                f"{self._HOW_TO_CALIBRATE}, or make it with from_scores.{dropped}"
            )
        return rows

    def _checked_signed(self) -> Array:
        scores = self._scores()
        if not self._kept().signed:
            raise ValueError(
                "Got absolute scores, of which no distribution and no two ranks can be "
                "made. Calibrate with conformalize, or from_scores(..., signed=True)."
            )
        return scores

    def _adaptive(self) -> AdaptiveLevels | None:
        """Levels that follow the misses; another confidence_level starts again."""
        found = self._state.followed
        return None if found is None else found.at(1 - np.asarray(self.levels))

    def _check_one_rank(self, what: str) -> None:
        """Raise where rows differ in rank, and so in what is asked for."""
        if not (self._kept().is_plain and self._adaptive() is None):
            raise ValueError(
                f"Got {what} of an object whose rows differ in rank, by weights, "
                "groups or levels that follow the misses. Use predict_interval (with "
                "sym=False its ends are the quantiles at α/2 and 1 − α/2), or "
                "calibrate without them."
            )

    def _ends(self, allow_infinite: bool) -> ScoreBounds:
        """Signed scores of both ends of each level; of many scores found once."""
        scores = self._scores() if self.sym else self._checked_signed()
        known, key = self._state.known_ends, (*self.levels, allow_infinite, self.sym)
        if key not in known:
            alphas = [1 - level for level in self.levels]
            known[key] = score_bounds(scores, alphas, self.sym, allow_infinite)
        ends: ScoreBounds = known[key]
        return ends

    def _rule(
        self, allow_infinite: bool, weights: Any = None, groups: Any = None
    ) -> ScoreBounds | RowRule:
        """Ends of all rows alike, or what gives those of each row."""
        rows, adaptive = self._kept(), self._adaptive()
        values = self._values_for(weights, groups, "predict_interval")
        if rows.is_plain and adaptive is None:
            return self._ends(allow_infinite)
        self._scores() if self.sym else self._checked_signed()
        alpha = 1 - np.asarray(self.levels)
        return RowRule(self._tables(), alpha, values, allow_infinite, adaptive)

    def _tables(self) -> dict[Any, RankTable]:
        """Sorted scores of each group; of many scores sorted once."""
        known, key = self._state.known_ends, ("tables", self.sym)
        if key not in known:
            known[key] = self._kept().tables(self.sym)
        tables: dict[Any, RankTable] = known[key]
        return tables

    def _values_for(self, weights: Any, groups: Any, method: str) -> RowValues:
        """Weights and groups of further rows: those given, or as at calibration."""
        rows, given = self._state.rows, {"weights": weights, "groups": groups}
        for name, value in given.items():
            if rows is None:
                continue
            if value is None and getattr(rows, f"{name}_of") is not None:
                given[name] = getattr(rows, f"{name}_of")
            elif (value is None) != (getattr(rows, name) is None):
                had = "without" if value is not None else "with"
                remedy = (
                    f"Pass {name}= to {method}" if value is None else "Leave it out"
                )
                raise ValueError(
                    f"Got {'no ' if value is None else ''}{name} in {method}, but the "
                    f"object was calibrated {had} them. {remedy}, or calibrate "
                    "again, with a function of X to be asked for nothing here."
                )
        return RowValues(given["weights"], given["groups"])

    def _check_estimator(self) -> None:
        """Raise if what the scores were made with has changed since."""
        check_unchanged(self._fitted(), self._state.fingerprint)
        scored_with = self._state.scored_with
        if scored_with is not None and scored_with[0] != self._support().key:
            raise ValueError(
                f"Got support={self.support!r}, but the calibration rows were scored "
                f"with support={scored_with[1]}. Call conformalize again."
            )

    def _restarted(self, estimator: Any, state: State) -> Self:
        """A copy with another fitted estimator, and what rows have brought to it."""
        fresh = copy.copy(self)
        fresh.__dict__ = vars(self) | {"estimator_": estimator, "_state": state}
        fresh.__dict__.pop("training_rows_", None)
        return fresh

    def _set_rows(
        self, rows: CalibrationRows, followed: AdaptiveLevels | None = None
    ) -> Self:
        """Take over calibration rows, and levels that follow misses."""
        if rows.weights is not None and len(rows):
            check_some_weight(rows.weights)
            for label, weights in rows.weights_by_group().items():
                of = "" if label is EVERYBODY else f" of the group {label!r}"
                warn_if_few(weights, self.levels, of)  # first: it may be an error
        self._state = State(
            rows,
            followed,
            self._state.in_posterior,
            fingerprint_of(self._fitted()),
            (self._support().key, repr(self.support)),
        )
        return self

    def _rows_of(
        self, X: Any, y: Any, values: RowValues | None, by_hand: bool = False
    ) -> CalibrationRows:
        """Signed scores of some rows, with weights and labels.

        Rows that were chosen by hand may have been chosen wrongly.
        """
        estimator, n_rows, scores = self._fitted(), 0, [np.empty(0)]
        overlaps: list[tuple[FittedRows, Overlap]] = []
        weights: list[Any] = [np.empty(0)]
        labels: list[Any] = [np.empty(0, dtype=object)]
        for X_, target in row_parts(estimator, X, y, need_y=True):
            if not _num_samples(X_):
                column("y", target, 0)  # two columns are wrong without rows, too
                continue
            warn_if_reordered(X_, target)
            _, law = predict_law(estimator, X_, first_row=n_rows)
            y_ = column("y", target, len(law)).numpy()
            if values is not None:
                self._check_not_in_posterior(X_, y_, n_rows)
                rows = slice(n_rows, n_rows + len(law))
                weights.append(values.weights_at(X_, rows))
                labels.append(values.labels_at(X_, law, rows))
            if by_hand:
                overlaps += _overlap(estimator, X_, y_)
            scores.append(score_rows(law, y_, self._support()))
            n_rows += len(law)
        _warn_of_fitted(overlaps)
        if values is None:
            return CalibrationRows(np.concatenate(scores))
        values.check_all_used(n_rows)
        of = {
            f"{name}_of": value
            for name, value in vars(values).items()
            if not isinstance(value, np.ndarray)
        }
        return CalibrationRows(
            np.concatenate(scores),
            weights=None if values.weights is None else np.concatenate(weights),
            groups=None if values.groups is None else np.concatenate(labels),
            **of,
        )

    def _check_not_in_posterior(self, X: Any, y: Any, first_row: int) -> None:
        """Raise for rows that entered the posterior through this object."""
        known = self._state.in_posterior
        if len(known) and len(found := known_rows(X, y, known)):
            raise ValueError(
                f"Got {len(found)} of {len(y)} rows, the first of them row "
                f"{first_row + int(found[0])}, that have entered the posterior through "
                "update_posterior: a row counts for the posterior or for the scores, "
                "never for both, or intervals come out too narrow. Calibrate on other "
                "rows. (If these only happen to be equal to them, to the last bit in X "
                "and y, use from_scores with score_rows(X, y, signed=True).)"
            )


def _overlap(model: Any, X: Any, y: Any) -> list[tuple[FittedRows, Overlap]]:
    """How many rows the model was fitted on; empty if it does not know its rows."""
    if not hasattr(last_step(model), "_fitted_rows"):
        return []
    asked = asked_rows(*split_pipeline(model, X))
    if asked is None:
        return []
    return [(asked.fitted, asked.fitted.overlap(asked.numbers, y))]


def _warn_of_fitted(overlaps: list[tuple[FittedRows, Overlap]]) -> None:
    """Warn if more rows are known than equal rows of a table explain."""
    if overlaps:
        known, compared = zip(*(found for _, found in overlaps), strict=True)
        overlaps[0][0].warn_of(Overlap(sum(known), sum(compared)))
