"""Which score: the conformal rank, for rows that count alike or by their weight.

A test row of weight w takes the smallest score q at which calibration rows up to q
carry a share of at least 1 − α of all weight, its own included:
Σ_{s_i ≤ q} w_i ≥ (1 − α)(Σ w_i + w). With weights of one that is the k-th smallest
score, k = ⌈(n + 1)(1 − α)⌉. NumPy only.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._validation import check_unmasked

Array = NDArray[np.float64]
# (n + 1)(1 − α) is often an integer on paper and a few units in the last place more in
# binary; the tolerance is far below what one row can change.
TOLERANCE = 1e-12
HUGE = 1e300  # an own weight beside which that of all calibration rows is nothing


def conformal_rank(n: int, alpha: float) -> int:
    """Rank k = ⌈(n + 1)(1 − α)⌉ of the conformal quantile among n scores.

    Above n, no finite quantile has the coverage 1 − α.

    Examples
    --------
    >>> from mapie_claps import conformal_rank
    >>> conformal_rank(100, 0.1), conformal_rank(9, 0.1), conformal_rank(5, 0.1)
    (91, 9, 6)
    """
    if not 0 < alpha < 1:
        raise ValueError(
            f"Got confidence_level={1 - alpha:g} (alpha={alpha:g}), but expected a "
            "number strictly between 0 and 1. Use for example 0.9."
        )
    return math.ceil((n + 1) * (1 - alpha) * (1 - TOLERANCE))


def conformal_quantile(
    scores: ArrayLike, alphas: ArrayLike, allow_infinite: bool = False
) -> Array:
    """Return the k-th smallest of scores (n,) for each miscoverage, (n_alpha,).

    A row that no interval can cover has the score +∞. ``allow_infinite`` returns
    infinity where k exceeds n, rather than to raise.

    Examples
    --------
    >>> from mapie_claps import conformal_quantile
    >>> conformal_quantile([3.0, 1.0, 2.0], [0.5, 0.25])
    array([2., 3.])
    """
    check_unmasked("scores", scores)
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or np.isnan(values).any():
        raise ValueError(
            f"Got scores of shape {values.shape} with {int(np.isnan(values).sum())} "
            "NaN, but expected one number per calibration row. NaN has no rank."
        )
    alpha = np.atleast_1d(np.asarray(alphas, dtype=np.float64))
    for each in alpha:
        if conformal_rank(len(values), each) > len(values) and not allow_infinite:
            raise_too_few(len(values), each)
    ordered = SortedScores.of(values)
    return np.asarray(ordered.scores[ordered.place(alpha, np.ones(1))[0]])


def raise_too_few(n: int, alpha: float, n_ends: int = 1, of: str = "") -> None:
    """Raise for a rank, of α or of α/2 at each of two ends, that exceeds n."""
    needed = math.ceil((n_ends / alpha - 1) * (1 - TOLERANCE))
    two = " with sym=False" if n_ends == 2 else ""
    raise ValueError(
        f"Got {n} calibration scores{of}, but confidence_level={1 - alpha:g}{two} "
        f"needs at least {needed}. Calibrate on more rows (where fit keeps them back, "
        "with a larger calibration_fraction or with cv=10), lower confidence_level, or "
        "pass allow_infinite_bounds=True to get (-inf, inf)."
    )


@dataclass(frozen=True, eq=False)
class SortedScores:
    """Scores in ascending order, +∞ after the last, and the weight of all up to each.

    A test row is then a binary search.
    """

    scores: Array  # (n + 1,)
    weight: Array  # (n + 1,), 0 before the first
    unit: float  # of weights, so that no sum of them overflows

    @classmethod
    def of(cls, scores: Array, weights: Array | None = None) -> "SortedScores":
        """Sort the scores of some calibration rows."""
        if weights is None:
            counts = np.arange(len(scores) + 1.0)
            return cls(np.append(np.sort(scores), np.inf), counts, 1.0)
        # A power of two: no weight is rounded.
        unit = 2.0 ** (int(np.frexp(weights.max(initial=0.0))[1]) - 1)
        order = np.argsort(scores, kind="stable")
        # In the longest type there is: a sum of n rounded numbers would be off by n ε.
        total = np.cumsum(weights[order] / unit, dtype=np.longdouble)
        return cls(
            np.append(scores[order], np.inf), np.r_[0.0, total.astype(float)], unit
        )

    def __len__(self) -> int:
        return len(self.weight) - 1

    def place(self, alpha: Array, weight: Array) -> NDArray[np.intp]:
        """Rank (r, m), from 0, of the quantile of r rows at miscoverages (m,).

        It is n where the weight of all rows does not suffice.
        """
        with np.errstate(over="ignore"):
            own = np.minimum(weight / self.unit, HUGE)
        needed = (1 - alpha) * (self.weight[-1] + own[:, None]) * (1 - TOLERANCE)
        # Above 0: rows without weight are nobody's quantile.
        needed = np.maximum(needed, np.finfo(np.float64).tiny)
        place: NDArray[np.intp] = np.searchsorted(self.weight[1:], needed, side="left")
        return place
