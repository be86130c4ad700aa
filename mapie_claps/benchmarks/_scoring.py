"""Interval score, and the limits within which the coverage should fall."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import betabinom

from ..conformal.quantile import conformal_rank

Array = NDArray[np.float64]


class SplitSize(NamedTuple):
    """Numbers of calibration and test rows of one run."""

    n_cal: int
    n_test: int


def interval_score(lower: Array, upper: Array, y: Array, alpha: float) -> float:
    r"""Mean interval score (Winkler): width plus 2/α times the distance of misses.

    Parameters
    ----------
    lower, upper : ndarray of shape (n,)
        Bounds.
    y : ndarray of shape (n,)
        Targets.
    alpha : float
        Miscoverage.

    Returns
    -------
    float
        The score; lower is better.

    Examples
    --------
    >>> import numpy as np
    >>> lower, upper, y = np.array([0.0, 0.0]), np.array([1.0, 1.0]), np.array([0.5, 2])
    >>> interval_score(lower, upper, y, alpha=0.1)
    11.0
    """
    missed = np.maximum(lower - y, 0) + np.maximum(y - upper, 0)
    return float(np.mean(upper - lower + 2 / alpha * missed))


def coverage_limits(
    sizes: Sequence[SplitSize], alpha: float, probability: float = 0.999
) -> tuple[float, float]:
    """Limits of the mean coverage of independent runs, exact if scores have no ties.

    The number of covered test rows of one run is beta-binomial,
    BB(n_test; k, n_cal + 1 − k) with k the conformal rank; the distributions of the
    runs are convolved.

    Parameters
    ----------
    sizes : sequence of SplitSize
        Calibration and test rows of each run.
    alpha : float
        Miscoverage.
    probability : float, default=0.999
        Probability of the two-sided limits; each tail has at most half of the rest.

    Returns
    -------
    tuple of float
        Smallest and largest mean coverage inside the limits.

    Examples
    --------
    >>> coverage_limits([SplitSize(1, 2)], alpha=0.5, probability=0.2)
    (0.5, 0.5)
    """
    total = np.ones(1)
    for n_cal, n_test in sizes:
        rank = conformal_rank(n_cal, alpha)
        if rank > n_cal:  # the interval is the whole line
            pmf = np.eye(1, n_test + 1, n_test)[0]
        else:
            pmf = betabinom.pmf(np.arange(n_test + 1), n_test, rank, n_cal + 1 - rank)
        total = np.convolve(total, pmf)
    tail = (1 - probability) / 2
    n = sum(size.n_test for size in sizes)
    below, above = np.cumsum(total), np.cumsum(total[::-1])
    low = int(np.searchsorted(below, tail, side="right"))
    high = n - int(np.searchsorted(above, tail, side="right"))
    return low / n, high / n
