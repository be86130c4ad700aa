"""Scores → a rank for each test row, where rows differ: by weight, group or level.

A test row of weight w has the smallest score q at which the calibration rows up to q
carry a share of at least 1 − α of all weight, its own included:
Σ_{s_i ≤ q} w_i ≥ (1 − α)(Σ w_i + w). Scores are sorted and weights summed up once; each
test row is then a binary search.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .quantile import ScoreBounds

Array = NDArray[np.float64]
# As in conformal_rank: what is an integer on paper is often a little more in binary.
TOLERANCE = 1e-12
HUGE = 1e300  # an own weight beside which that of all calibration rows is nothing


@dataclass(frozen=True, eq=False)
class _Side:
    """Scores in ascending order, and the weight of all up to each."""

    scores: Array  # (n,)
    weight: Array  # (n,)

    @classmethod
    def of(cls, scores: Array, weights: Array | None) -> "_Side":
        if weights is None:
            return cls(np.sort(scores), np.arange(1.0, len(scores) + 1))
        order = np.argsort(scores, kind="stable")
        # In the longest type there is: a sum of n rounded numbers would be off by n ε.
        total = np.cumsum(weights[order], dtype=np.longdouble)
        return cls(scores[order], total.astype(np.float64))

    @property
    def total(self) -> float:
        return float(self.weight[-1]) if len(self.weight) else 0.0

    def quantile(self, alpha: Array, weight: Array) -> Array:
        """Score (r, m) that each row needs; +∞ where no weight suffices."""
        target = (1 - alpha) * (self.total + weight[:, None]) * (1 - TOLERANCE)
        # Above 0: rows without weight are nobody's quantile.
        target = np.maximum(target, np.finfo(np.float64).tiny)
        at = np.searchsorted(self.weight, target, side="left")
        found = np.append(self.scores, np.inf)[at]
        return np.where(alpha <= 0, np.inf, found)


@dataclass(frozen=True, eq=False)
class RankTable:
    """Scores of calibration rows, ready for rows that each ask for another rank."""

    above: _Side  # absolute scores, or signed ones if there are two ranks
    below: _Side | None = None  # signed scores from above to below, for two ranks
    unit: float = 1.0  # of weights, so that no sum of them overflows

    @classmethod
    def of(cls, scores: Array, weights: Array | None, sym: bool) -> "RankTable":
        """Sort the scores of some calibration rows, signed unless ``sym``."""
        unit = 1.0
        if weights is not None:  # a power of two: no weight is rounded
            unit = 2.0 ** (int(np.frexp(weights.max(initial=0.0))[1]) - 1)
            weights = weights / unit
        if sym:
            return cls(_Side.of(np.abs(scores), weights), None, unit)
        # A score of +∞ is that of a target which no interval can hold: it counts twice.
        turned = np.where(np.isposinf(scores), np.inf, -scores)
        return cls(_Side.of(scores, weights), _Side.of(turned, weights), unit)

    def __len__(self) -> int:
        return len(self.above.scores)

    @property
    def total(self) -> float:
        """Weight of all calibration rows."""
        return self.above.total * self.unit

    def _counted(self, weight: Array) -> Array:
        """Weights of test rows in the unit of the table."""
        with np.errstate(over="ignore"):
            return np.minimum(weight / self.unit, HUGE)

    def ends(self, alpha: Array, weight: Array) -> ScoreBounds:
        """Signed scores (r, m) of the ends of r rows.

        ``alpha`` is (m,) or (r, m) and ``weight`` (r,). A miscoverage of 0 or less
        gives infinite ends, one of 1 or more swapped ones: nothing lies between them.
        """
        alpha = np.broadcast_to(alpha, (len(weight), np.shape(alpha)[-1]))
        weight = self._counted(weight)
        if self.below is None:
            upper = self.above.quantile(alpha, weight)
            lower = -upper
        else:
            upper = self.above.quantile(alpha / 2, weight)
            lower = -self.below.quantile(alpha / 2, weight)
        empty = alpha >= 1
        return ScoreBounds(
            np.where(empty, np.inf, lower), np.where(empty, -np.inf, upper)
        )

    def lacking(self, alpha: Array, weight: Array) -> NDArray[np.bool_]:
        """Rows (r,) for which all the weight does not suffice, at any level."""
        share = np.max(1 - np.asarray(alpha) / (1 if self.below is None else 2))
        total = self.above.total
        needed = share * (total + self._counted(weight)) * (1 - TOLERANCE)
        lacking: NDArray[np.bool_] = (total < needed) | (total == 0)
        return lacking
