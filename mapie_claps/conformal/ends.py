"""Signed scores → ends of intervals, for one model or for the models of folds.

All that grows with test rows times calibration rows is here.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..estimators.predictive import PredictiveDistribution
from .support import Support

Array = NDArray[np.float64]
BLOCK_ELEMENTS = 2**21  # of one n_test × n_cal block


class ScoreBounds(NamedTuple):
    """Signed scores between which intervals lie, (n, m), or (1, m) for all rows.

    Of several models the outermost ends count (minmax).
    """

    lower: Array
    upper: Array

    def interval(
        self, rows: Sequence[PredictiveDistribution], support: Support
    ) -> Array:  # (n, 2, m)
        """Intervals of rows of which each model says something."""
        found = [_of_model(each, self.lower, self.upper, support) for each in rows]
        if len(found) == 1:
            return found[0]
        low, high = (np.stack([ends[:, side] for ends in found]) for side in (0, 1))
        return np.stack([low.min(axis=0), high.max(axis=0)], axis=1)


class FoldBounds(NamedTuple):
    """Scores of all calibration rows, and ranks among the ends that they make (CV+).

    The model of row i's fold, which has not seen it, makes an end of the row's score;
    the k-th smallest of all upper ends counts, and the k-th largest of all lower ones.
    """

    lower: Array  # (n_cal,), signed
    upper: Array  # (n_cal,)
    folds: NDArray[np.intp]  # (n_cal,)
    ranks: list[int]  # k of each level; beyond n_cal ends are infinite

    def interval(
        self, rows: Sequence[PredictiveDistribution], support: Support
    ) -> Array:  # (n, 2, m)
        """Intervals of rows of which the model of each fold says something."""
        found = np.empty((len(rows[0]), 2, len(self.ranks)))
        size = max(1, BLOCK_ELEMENTS // (2 * len(self.folds)))
        own = [self.folds == j for j in range(len(rows))]
        for start in range(0, len(found), size):
            block = slice(start, start + size)
            each = [
                _of_model(model.take(block), self.lower[i], self.upper[i], support)
                for model, i in zip(rows, own, strict=True)
            ]
            low, high = np.moveaxis(np.concatenate(each, axis=2), 1, 0)
            found[block, 0] = -self._smallest(-low)
            found[block, 1] = self._smallest(high)
        return np.sort(found, axis=1)  # they may cross at levels below one half

    def _smallest(self, ends: Array) -> Array:
        at = np.array(self.ranks) - 1
        padded = np.pad(ends, ((0, 0), (0, 1)), constant_values=np.inf)
        padded.partition(np.unique(at), axis=1)
        return padded[:, at]


def _of_model(
    rows: PredictiveDistribution, lower: Array, upper: Array, support: Support
) -> Array:  # (n, 2, m)
    """Intervals of one model, with ends at values that y can take."""
    low, high = rows.interval(lower, upper)
    known = support.of(rows.targets)
    bounds = np.stack([known.nearest(low, -1), known.nearest(high, 1)], axis=1)
    empty = lower > upper
    if empty.any():  # they hold no value, at a place that has a meaning
        middle = rows.median[:, None]
        bounds[:, 0] = np.where(empty, np.nextafter(middle, np.inf), bounds[:, 0])
        bounds[:, 1] = np.where(empty, middle, bounds[:, 1])
    return bounds
