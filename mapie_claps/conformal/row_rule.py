"""Calibration rows with weights and groups → the ends of each test row."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..estimators.local_law import LocalLaw
from .groups import checked_groups, labels_of, rows_by_group
from .online import AdaptiveLevels
from .quantile import ScoreBounds
from .ranks import RankTable
from .weighted import checked_weights, warn_of_infinite

Array = NDArray[np.float64]
Labels = NDArray[np.object_]
EVERYBODY = None  # the group of all rows where there are no groups


@dataclass(frozen=True, eq=False)
class CalibrationRows:
    """What is kept of calibration rows: one score each, perhaps weight and label.

    ``weights_of`` and ``groups_of`` are the functions of x that gave weights and
    labels, which then serve test rows too; None if they were given row by row.
    """

    scores: Array  # (n,)
    signed: bool = True
    weights: Array | None = None  # (n,)
    groups: Labels | None = None  # (n,)
    weights_of: Callable[[Any], ArrayLike] | None = None
    groups_of: Any = None

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def is_plain(self) -> bool:
        """Whether all rows count alike and together."""
        return self.weights is None and self.groups is None

    def joined(self, more: "CalibrationRows") -> "CalibrationRows":
        """These rows and then others, which must be of the same kind."""
        for name in ("weights", "groups"):
            have, get = getattr(self, name), getattr(more, name)
            if (have is None) != (get is None):
                there = "without" if have is None else "with"
                raise ValueError(
                    f"Got rows {'with' if have is None else 'without'} {name}, but the "
                    f"{len(self)} calibration rows that there are came {there} them. "
                    f"Give {name} to all of them or to none; conformalize starts again."
                )

        def both(a: Any, b: Any) -> Any:
            return None if a is None else np.concatenate([a, b])

        scores = more.scores if self.signed else np.abs(more.scores)
        return replace(
            self,
            scores=both(self.scores, scores),
            weights=both(self.weights, more.weights),
            groups=both(self.groups, more.groups),
        )

    def last(self, n: int) -> "CalibrationRows":
        """The newest rows of each group: a quiet one keeps its own."""
        places = np.arange(len(self))
        newest = [places[rows][-n:] for rows in self._rows_by_group().values()]
        kept = np.sort(np.concatenate(newest))
        return replace(
            self,
            scores=self.scores[kept],
            weights=None if self.weights is None else self.weights[kept],
            groups=None if self.groups is None else self.groups[kept],
        )

    def labels(self) -> list[Any]:
        """Groups that calibration rows belong to, in order."""
        if self.groups is None:
            return [EVERYBODY]
        found = set(self.groups.tolist())
        return sorted(found, key=lambda v: (isinstance(v, str), v))

    def tables(self, sym: bool) -> dict[Any, RankTable]:
        """Sorted scores of each group."""
        scores = np.abs(self.scores) if sym else self.scores
        if self.groups is None:
            return {EVERYBODY: RankTable.of(scores, self.weights, sym)}
        weights = self.weights
        return {
            label: RankTable.of(
                scores[rows], None if weights is None else weights[rows], sym
            )
            for label, rows in self._rows_by_group().items()
        }

    def weights_by_group(self) -> dict[Any, Array]:
        """Weights of each group; ones where there are none."""
        weights = np.ones(len(self)) if self.weights is None else self.weights
        return {label: weights[rows] for label, rows in self._rows_by_group().items()}

    def _rows_by_group(self) -> dict[Any, Any]:
        if self.groups is None:
            return {EVERYBODY: slice(None)}
        found = rows_by_group(self.groups)
        return {label: found[label] for label in self.labels()}


class RowValues:
    """Weights and labels of rows that come part by part.

    Each is a function of x, values of all rows in order, or None.
    """

    def __init__(self, weights: Any, groups: Any) -> None:
        if weights is not None and not callable(weights):
            weights = checked_weights(weights, len(np.atleast_1d(weights)))
        self.weights, self.groups = weights, checked_groups(groups)

    def weights_at(self, X: Any, rows: slice) -> Array | None:
        """Weights of some rows."""
        if self.weights is None:
            return None
        n = rows.stop - rows.start
        if callable(self.weights):
            return checked_weights(self.weights(X), n)
        self._check_length("weights", self.weights, rows.stop)
        given: Array = self.weights[rows]
        return given

    def labels_at(self, X: Any, law: LocalLaw, rows: slice) -> Labels | None:
        """Labels of some rows."""
        if self.groups is None:
            return None
        if not callable(self.groups) and isinstance(self.groups, np.ndarray):
            self._check_length("groups", self.groups, rows.stop)
        return labels_of(self.groups, X, law, rows)

    def keep(self, rows: NDArray[np.intp]) -> None:
        """Leave the values of other rows out."""
        for name in ("weights", "groups"):
            given = getattr(self, name)
            if isinstance(given, np.ndarray):
                setattr(self, name, given[rows])

    def check_all_used(self, n: int) -> None:
        """Raise if values were given for more rows than came."""
        for name in ("weights", "groups"):
            given = getattr(self, name)
            if isinstance(given, np.ndarray) and len(given) != n:
                self._check_length(name, given, n, exact=True)

    @staticmethod
    def _check_length(
        name: str, given: NDArray[Any], n: int, exact: bool = False
    ) -> None:
        if len(given) < n or (exact and len(given) != n):
            raise ValueError(
                f"Got {name} of {len(given)} rows, but X has {n}"
                + ("" if exact else " or more")
                + ". Pass one for each row of X, or a function of X."
            )


@dataclass(frozen=True, eq=False)
class RowRule:
    """Which scores bound the interval of each row.

    Parameters
    ----------
    tables : dict
        Sorted scores of each group.
    alpha : ndarray of shape (m,)
        Miscoverages.
    values : RowValues
        Weights and groups of the rows to predict.
    allow_infinite : bool
        Whether ends may be infinite without a word.
    followed : AdaptiveLevels or None
        Miscoverages of each group that follow the misses, and may leave their range.
    """

    tables: dict[Any, RankTable]
    alpha: Array
    values: RowValues
    allow_infinite: bool
    followed: AdaptiveLevels | None = None

    def _alpha(self, label: Any) -> Array:
        return self.alpha if self.followed is None else self.followed.of(label)

    def __call__(self, X: Any, law: LocalLaw, first_row: int) -> ScoreBounds:
        """Signed scores (n, m) of both ends of n rows."""
        rows = slice(first_row, first_row + len(law))
        weights = self.values.weights_at(X, rows)
        labels = self.values.labels_at(X, law, rows)
        finite = not self.allow_infinite and self.followed is None
        if weights is not None and finite:
            self._warn_of_infinite(labels, weights, first_row)
        return self.ends(labels, weights, len(law), first_row)

    def ends(
        self,
        labels: Labels | None,
        weights: Array | None,
        n: int,
        first_row: int = 0,
    ) -> ScoreBounds:
        """Signed scores (n, m) of both ends, of rows with labels and weights."""
        own = np.ones(n) if weights is None else weights
        if labels is None:
            self._check_rank(EVERYBODY, weights)
            return self.tables[EVERYBODY].ends(self._alpha(EVERYBODY), own)
        size = n, len(self.alpha)
        lower, upper = np.full(size, -np.inf), np.full(size, np.inf)
        for label, some in rows_by_group(labels).items():
            if label not in self.tables:
                self._refuse_unknown(label, first_row + int(some[0]))
                continue
            self._check_rank(label, weights)
            ends = self.tables[label].ends(self._alpha(label), own[some])
            lower[some], upper[some] = ends
        return ScoreBounds(lower, upper)

    def _refuse_unknown(self, label: Any, row: int) -> None:
        """Raise for a group without calibration rows, if ends must be finite."""
        if self.allow_infinite:
            return
        known = list(self.tables)
        shown = ", ".join(map(repr, known[:10])) + (", …" if len(known) > 10 else "")
        raise ValueError(
            f"Got the group {label!r} in row {row}, of which there is no calibration "
            f"row; known are {shown}. Calibrate on rows of this group, merge rare "
            "groups with ColumnGroups.from_training, or pass "
            "allow_infinite_bounds=True to get (-inf, inf)."
        )

    def _check_rank(self, label: Any, weights: Array | None) -> None:
        """Raise where unweighted rows of a group are fewer than its rank."""
        table = self.tables[label]
        alpha = self._alpha(label)
        if self.allow_infinite or self.followed is not None or weights is not None:
            return
        if table.lacking(alpha, np.ones(1))[0]:
            ranks = 1 if table.below is None else 2
            needed = int(np.ceil((ranks / alpha.min() - 1) * (1 - 1e-12)))
            of = "" if label is EVERYBODY else f" of the group {label!r}"
            raise ValueError(
                f"Got {len(table)} calibration scores{of}, but confidence_level="
                f"{1 - alpha.min():g} needs at least {needed}. Calibrate on more rows, "
                "merge small groups (chosen on training rows), or pass "
                "allow_infinite_bounds=True to get (-inf, inf)."
            )

    def _warn_of_infinite(
        self, labels: Labels | None, weights: Array, first_row: int
    ) -> None:
        """Warn of rows whose own weight is too large."""
        infinite = np.zeros(len(weights), dtype=bool)
        limit = np.inf
        every = {EVERYBODY: np.arange(len(weights))}
        for label, rows in (every if labels is None else rows_by_group(labels)).items():
            if label not in self.tables:
                continue
            table, alpha = self.tables[label], self._alpha(label)
            infinite[rows] = table.lacking(alpha, weights[rows])
            if infinite[rows].any():
                share = float(alpha.min()) / (1 if table.below is None else 2)
                limit = min(limit, table.total * share / (1 - share))
        if infinite.any():
            first = first_row + int(np.flatnonzero(infinite)[0])
            warn_of_infinite(int(infinite.sum()), len(weights), first, limit)
