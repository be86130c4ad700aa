"""What training targets tell of the values that y can take. NumPy only."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
MAX_GRADES = 16  # distinct integers that count as grades
# Rows, and share of the rows, on the smallest or largest value of a bounded target.
MIN_ROWS_AT_BOUND, MIN_SHARE_AT_BOUND = 10, 0.01


@dataclass(frozen=True)
class TargetRange:
    """Ends and bounds of training targets, and whether they are integers or grades.

    A bound is an end on which rows pile up: zero for claims, a cap for prices.
    """

    low: float
    high: float
    integer: bool
    floor: float = -np.inf
    ceiling: float = np.inf
    grades: bool = False  # a few integers

    @classmethod
    def of(cls, y: Array, learn: bool) -> "TargetRange":
        """Range of some targets; bounds and grades only if they are to be learned."""
        values, counts = np.unique(y, return_counts=True)
        low, high = float(values[0]), float(values[-1])
        integer = bool((values == np.round(values)).all())
        if not learn:
            return cls(low, high, integer)
        few = integer and len(values) <= MAX_GRADES
        floor = low if _piles_up(counts) else -np.inf
        ceiling = high if _piles_up(counts[::-1]) else np.inf
        return cls(low, high, integer, floor, ceiling, few)


def _piles_up(counts: NDArray[np.intp]) -> bool:
    """Whether the first value is frequent, and at least as much as the next one.

    A law that fades out, as grades do, is rare at its end.
    """
    if len(counts) < 2:
        return False
    least = max(MIN_ROWS_AT_BOUND, MIN_SHARE_AT_BOUND * counts.sum())
    return bool(counts[0] >= least and counts[0] >= counts[1])
