"""Scores of calibration rows → signed scores at the ends of intervals."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import _safe_indexing

from .._validation import check_integer, check_number
from ..exceptions import EffectiveSampleSizeWarning
from .distribution import ScoreBounds, distribution_of, fit_id_of, row_parts
from .quantile import SortedScores, conformal_rank, raise_too_few
from .support import Support

Array = NDArray[np.float64]
Groups = Sequence[Any] | NDArray[Any]  # a label for each row: text or numbers
ALL_ROWS = None  # the label of all rows where there is no partition
BY_ROW = ("scores", "target_scores", "weights", "partition", "folds")


@dataclass(frozen=True, eq=False)
class AdaptiveLevels:
    """Miscoverages that follow the misses: adaptive conformal inference (ACI).

    α_{t+1} = α_t + γ(α − miss_t) (Gibbs and Candès, 2021): whatever the rows do, the
    share of misses up to T differs from α by at most (max(α, 1 − α) + γ) / (γT).
    """

    alpha: Array  # (m,), promised in the long run
    n_missed: Array  # (m,), rows outside their interval
    n_observed: int = 0
    gamma: float = 0.01  # step size
    window: int | None = None  # newest calibration rows that are kept; None: all
    labels: tuple[Any, ...] = ()  # groups whose miscoverage has moved
    current: Array | None = None  # (n_labels, m), of their next interval

    def of(self, label: Any) -> Array:
        """Miscoverages (m,) of a group."""
        if label not in self.labels or self.current is None:
            return self.alpha
        return np.asarray(self.current[self.labels.index(label)])

    def at(self, alpha: Array) -> "AdaptiveLevels":
        """At these miscoverages: from the start, if they are others than so far."""
        if np.array_equal(alpha, self.alpha):
            return self
        none = np.zeros(len(alpha))
        return AdaptiveLevels(alpha, none, gamma=self.gamma, window=self.window)

    def after(
        self, partition: Groups | None, missed: NDArray[np.bool_]
    ) -> "AdaptiveLevels":
        """After some rows that were predicted together; ``missed`` is (n, m)."""
        moved = {label: self.of(label) for label in self.labels}
        for label, rows in rows_by_group(partition).items():
            step = self.gamma * (self.alpha - missed[rows]).sum(axis=0)
            moved[label] = self.of(label) + step
        return replace(
            self,
            labels=tuple(moved),
            current=np.stack(list(moved.values())),
            n_observed=self.n_observed + len(missed),
            n_missed=self.n_missed + missed.sum(axis=0),
        )


@dataclass(frozen=True, eq=False)
class Calibration:
    """Scores of calibration rows, with weights, partition and levels that may move."""

    scores: Array  # (n,), in the order in which they came
    signed: bool = True  # without signs there is one rank, and no distribution
    weights: Array | None = None  # (n,), likelihood ratios
    partition: NDArray[Any] | None = None  # (n,), labels
    fit_id: str | None = None  # of the estimator that the scores were made with
    support: Support = field(default_factory=Support)
    levels: AdaptiveLevels | None = None  # once rows were observed
    # (n,), of the targets themselves: ends that move make those for ranks smaller.
    target_scores: Array | None = None
    folds: NDArray[np.intp] | None = None  # (n,), whose models made the scores

    def __len__(self) -> int:
        return len(self.scores)

    def __getstate__(self) -> dict[str, Any]:  # without the sorted scores
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def of_folds(
        cls, models: Sequence[Any], folds: Any, X: Any, y: Array, support: Support
    ) -> "Calibration":
        """Score each row by the model of its fold, which has not seen it."""
        scores = np.empty((2, len(y)))
        for j, model in enumerate(models):
            own = np.flatnonzero(folds == j)
            part = _safe_indexing(X, own), y[own]
            ((some, target),) = row_parts(model, *part, need_y=True)
            scores[:, own] = support.scores(distribution_of(model, some), target)
        given: dict[str, Any] = {"target_scores": scores[1], "folds": folds}
        return cls(scores[0], fit_id=fit_id_of(*models), support=support, **given)

    @property
    def signed_scores(self) -> Array:
        """Scores, if they have their sign."""
        if not self.signed:
            raise ValueError(
                "Got absolute scores, of which no distribution and no two ranks can be "
                "made. Calibrate with conformalize, or from_scores(..., signed=True)."
            )
        return self.scores

    def distribution_scores(self, support: Support) -> Array:
        """Signed scores of the targets themselves."""
        if self.target_scores is None and support.has_gaps:
            raise ValueError(
                "Got scores that were computed elsewhere, of a target with gaps "
                "between its values: they do not tell how probable each value is. "
                "Calibrate with conformalize, or with support=None."
            )
        scores = self.signed_scores
        return scores if self.target_scores is None else self.target_scores

    def add(self, other: "Calibration") -> "Calibration":
        """Rows of both; what Dask, Ray and Spark reduce with."""
        return Calibration.joined([self, other])

    @staticmethod
    def joined(calibrations: Iterable["Calibration"]) -> "Calibration":
        """Rows of all, scored with the same fit and support; levels of the first."""
        first, *rest = calibrations
        for other in rest:
            same = first.fit_id == other.fit_id
            same &= first.support.key == other.support.key
            for name in ("weights", "partition"):
                same &= (getattr(first, name) is None) == (getattr(other, name) is None)
            if not same:
                raise ValueError(
                    "Got calibration rows that were scored with another fit, scale or "
                    "support than those that there are, or only some of them with "
                    "weights or a partition. Score all rows with one estimator and in "
                    "one way; conformalize starts again."
                )
        each, whole = [first, *rest], dict[str, Any]()
        for name in BY_ROW:
            parts = [getattr(c, name) for c in each]
            some = any(part is None for part in parts)
            whole[name] = None if some else np.concatenate(parts)
        if not all(c.signed for c in each):
            whole |= {"scores": np.abs(whole["scores"]), "target_scores": None}
            whole["signed"] = False
        return replace(first, **whole)

    def levels_at(self, alpha: Array) -> AdaptiveLevels:
        """Levels that may have moved, for these miscoverages."""
        return (self.levels or AdaptiveLevels(np.empty(0), np.empty(0))).at(alpha)

    def newest(self, n: int) -> "Calibration":
        """The newest n rows of each group: a quiet one keeps its own."""
        places = np.arange(len(self))
        each = [places[rows][-n:] for rows in rows_by_group(self.partition).values()]
        kept = np.sort(np.concatenate(each))
        some = {k: v[kept] for k in BY_ROW if (v := getattr(self, k)) is not None}
        return replace(self, **some)

    def bounds(
        self,
        alpha: Array,
        sym: bool = True,
        labels: Groups | None = None,
        weights: Array | None = None,
        allow_infinite: bool = False,
        first_row: int = 0,
    ) -> ScoreBounds:
        """Signed scores at the ends of intervals, at miscoverages (m,).

        ``labels`` and ``weights`` are those of n test rows; without them one row of
        ends serves all. Miscoverages that have moved to 0 or less give infinite ends,
        to 1 or more swapped ones, with no value between them. Too few scores raise,
        unless ends may be infinite or levels move.
        """
        n_ends = 2 - sym
        if self.folds is not None:
            ranks = [conformal_rank(len(self), each / n_ends) for each in alpha]
            if max(ranks) > len(self) and not allow_infinite:
                raise_too_few(len(self), float(alpha.min()), n_ends)
            scores, turned = self._sides(sym)
            return ScoreBounds(-turned, scores, self.folds, ranks)
        levels = None if self.levels is None else self.levels.at(alpha)
        finite = not allow_infinite and levels is None
        if levels is None and not ((alpha > 0) & (alpha < 1)).all():
            conformal_rank(len(self), float(alpha[(alpha <= 0) | (alpha >= 1)][0]))
        n = 1 if labels is None else len(labels)
        own = np.ones(n) if weights is None else weights
        size = len(own), len(alpha)
        found = ScoreBounds(np.full(size, -np.inf), np.full(size, np.inf))
        lacking, limit = np.zeros(len(own), dtype=bool), np.inf
        for label, rows in rows_by_group(labels).items():
            if label not in self.sorted_scores(sym):
                if not finite:
                    continue
                known = list(self.sorted_scores(sym))
                shown = ", ".join(map(repr, known[:10])) + ", …" * (len(known) > 10)
                raise ValueError(
                    f"Got the group {label!r} in row {first_row + int(rows[0])}, of "
                    f"which there is no calibration row; known are {shown}. Calibrate "
                    "on rows of this group, merge groups with "
                    "ColumnGroups.from_training, or pass allow_infinite_bounds=True."
                )
            above, below = self.sorted_scores(sym)[label]
            share = (alpha if levels is None else levels.of(label)) / n_ends
            at = above.place(share, own[rows])
            upper = above.scores[at]
            lower = upper if sym else below.scores[below.place(share, own[rows])]
            # Where levels move: everything for 0 or less, nothing for 1 or more.
            upper, lower = (np.where(share <= 0, np.inf, end) for end in (upper, lower))
            empty = share * n_ends >= 1
            found.lower[rows] = np.where(empty, np.inf, -lower)
            found.upper[rows] = np.where(empty, -np.inf, upper)
            if not finite or at.max(initial=0) < len(above):
                continue
            least = float(share.min())
            if weights is None:
                of = "" if label is ALL_ROWS else f" of the group {label!r}"
                raise_too_few(len(above), least * n_ends, n_ends, of)
            lacking[rows] = (at == len(above)).any(axis=1)
            limit = min(limit, above.weight[-1] * above.unit * least / (1 - least))
        if lacking.any():
            warnings.warn(
                f"Got {int(lacking.sum())} of {len(own)} rows, the first of them row "
                f"{first_row + int(np.argmax(lacking))}, whose own weight is more than "
                f"{limit:.4g}, which the weight of all calibration rows allows. Their "
                "bounds are infinite. Calibrate on rows like them, or pass "
                "allow_infinite_bounds=True if you expect that.",
                EffectiveSampleSizeWarning,
                stacklevel=4,
            )
        return found

    def observe(
        self,
        new: "Calibration",
        alpha: Array,
        sym: bool = True,
        gamma: float | None = None,  # as before
        window: int | None = None,  # as before
    ) -> "Calibration":
        """After rows that were predicted together: with their scores, at new levels."""
        levels = self.levels_at(alpha)
        if gamma is not None:
            hint = "Use 0.01; larger steps follow faster and make widths unsteady."
            gamma = check_number("gamma", gamma, low=0, high=1, hint=hint)
            levels = replace(levels, gamma=gamma)
        if window is not None:
            window = check_integer("window", window, low=1, hint="Use 500, or None.")
            levels = replace(levels, window=window)
        of_rows: dict[str, Any] = {"labels": new.partition, "weights": new.weights}
        lower, upper = self.bounds(alpha, sym=sym, allow_infinite=True, **of_rows)[:2]
        score = (new.scores if self.signed else np.abs(new.scores))[:, None]
        rows = self.add(new)
        if levels.window is not None:
            rows = rows.newest(levels.window)
        missed = (score > upper) | (score < lower)
        return replace(rows, levels=levels.after(new.partition, missed))

    def sorted_scores(self, sym: bool) -> dict[Any, tuple[SortedScores, SortedScores]]:
        """Scores of each group, from both sides; of many sorted once."""
        known: dict[bool, Any] = self.__dict__.setdefault("_sorted", {})
        if sym in known:
            return known[sym]  # type: ignore[no-any-return]
        (scores, turned), found = self._sides(sym), {}
        for label, rows in rows_by_group(self.partition).items():
            weights = None if self.weights is None else self.weights[rows]
            above = SortedScores.of(scores[rows], weights)
            below = above if sym else SortedScores.of(turned[rows], weights)
            found[label] = above, below
        known[sym] = found  # at once: other threads must not see a part of it
        return found

    def _sides(self, sym: bool) -> tuple[Array, Array]:
        """Scores seen from above and from below, the same ones if ``sym``."""
        if sym:
            return np.abs(self.scores), np.abs(self.scores)
        scores = self.signed_scores
        # One of +∞ is missed by both ends: it counts twice.
        return scores, np.where(np.isposinf(scores), np.inf, -scores)


def rows_by_group(partition: Groups | None) -> dict[Any, Any]:
    """Positions of the rows of each group, in the order of first appearance."""
    if partition is None:
        return {ALL_ROWS: slice(None)}
    found: dict[Any, list[int]] = {}
    for row, label in enumerate(partition):
        found.setdefault(label, []).append(row)
    return {label: np.array(rows) for label, rows in found.items()}
