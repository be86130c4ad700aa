"""What is measured: one run's intervals, means with errors, limits of the coverage."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from .data import Array

CLEAR = 2.0  # standard errors


def score_intervals(
    y: Array, lower: Array, upper: Array, alpha: float
) -> dict[str, float]:
    """Coverage, mean width and mean interval score of one level.

    Examples
    --------
    >>> import numpy as np
    >>> y, lower, upper = np.array([0.5, 2.0]), np.zeros(2), np.ones(2)
    >>> score_intervals(y, lower, upper, alpha=0.5)
    {'coverage': 0.5, 'width': 1.0, 'interval_score': 3.0}
    """
    from .. import metrics

    bounds = np.stack([lower, upper], axis=1)
    return {
        "coverage": float(metrics.coverage(y, bounds)[0]),
        "width": float(metrics.mean_width(bounds)[0]),
        "interval_score": float(metrics.interval_score(y, bounds, 1 - alpha)[0]),
    }


@dataclass(frozen=True)
class Estimate:
    """Mean over runs, its standard error (NaN for one run), and the number of runs."""

    mean: float
    error: float
    n: int

    def above(self, constant: float) -> bool:
        """Above the constant by two standard errors."""
        return self.mean > constant and self.mean - constant >= CLEAR * self.error

    def below(self, constant: float) -> bool:
        """Below the constant by two standard errors."""
        return self.mean < constant and constant - self.mean >= CLEAR * self.error


def estimate(values: Iterable[float | None]) -> Estimate:
    """Mean and standard error of numbers; None is left out.

    Examples
    --------
    >>> estimate([1.0, 3.0, None])
    Estimate(mean=2.0, error=1.0, n=2)
    """
    given = np.array([v for v in values if v is not None], dtype=np.float64)
    n = len(given)
    mean = float(given.mean()) if n else math.nan
    error = float(given.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan
    return Estimate(mean, error, n)


def stratified_estimate(strata: Mapping[str, Sequence[float]]) -> Estimate:
    """Mean of the means of all strata, which are taken as given.

    The standard error comes from the values within each stratum; what differs between
    strata (data sets) does not enter it.
    """
    each = [estimate(values) for values in strata.values()]
    mean = float(np.mean([e.mean for e in each])) if each else math.nan
    error = math.sqrt(sum(e.error**2 for e in each)) / len(each) if each else math.nan
    return Estimate(mean, error, sum(e.n for e in each))


def geometric_estimate(strata: Mapping[str, Sequence[float]]) -> Estimate:
    """Geometric mean of the geometric means of all strata, as ``stratified_estimate``.

    Examples
    --------
    >>> geometric_estimate({"a": [0.5, 0.5], "b": [2.0, 2.0]})
    Estimate(mean=1.0, error=0.0, n=4)
    """
    logs = {name: [math.log(r) for r in ratios] for name, ratios in strata.items()}
    found = stratified_estimate(logs)
    mean = math.exp(found.mean)
    return Estimate(mean, mean * found.error, found.n)


def geometric_mean(ratios: Sequence[float]) -> float:
    """Geometric mean; NaN of nothing.

    Examples
    --------
    >>> geometric_mean([0.5, 2.0])
    1.0
    """
    return float(np.exp(np.mean(np.log(ratios)))) if len(ratios) else math.nan


class SplitSize(NamedTuple):
    """Numbers of calibration and test rows of one run."""

    n_cal: int
    n_test: int


def coverage_limits(
    sizes: Sequence[SplitSize], alpha: float, probability: float = 0.999
) -> tuple[float, float]:
    """Limits of the mean coverage of independent runs, exact if scores have no ties.

    Each tail has at most half of the rest of the probability.

    Examples
    --------
    >>> coverage_limits([SplitSize(1, 2)], alpha=0.5, probability=0.2)
    (0.5, 0.5)
    """
    low, high = covered_limits(sizes, alpha, (1 - probability) / 2)
    n = sum(size.n_test for size in sizes)
    return low / n, high / n


def covered_rank(n_cal: int, alpha: float, n_ranks: int = 1) -> int:
    """How many of the n + 1 gaps between calibration scores an interval holds.

    One rank holds the k smallest. Two hold what lies between the k-th score and the
    k-th from the other end, with k for α/2: 2k − n − 1 gaps. The coverage given the
    calibration rows is Beta(k, n + 1 − k) with this number, which may be n + 1.
    """
    from .. import conformal_rank

    rank = min(conformal_rank(n_cal, alpha / n_ranks), n_cal + 1)
    return rank if n_ranks == 1 else 2 * rank - n_cal - 1


def covered_limits(
    sizes: Sequence[SplitSize], alpha: float, tail: float, n_ranks: int = 1
) -> tuple[int, int]:
    """Numbers of covered test rows that leave at most ``tail`` on either side."""
    pmf = _covered_pmf(tuple(sizes), alpha, n_ranks)
    low = int(np.searchsorted(np.cumsum(pmf), tail, side="right"))
    high = len(pmf) - 1 - int(np.searchsorted(np.cumsum(pmf[::-1]), tail, side="right"))
    return low, high


@lru_cache(maxsize=64)
def _covered_pmf(sizes: tuple[SplitSize, ...], alpha: float, n_ranks: int) -> Array:
    """Distribution of the number of covered test rows of all runs together.

    Given the fit and its calibration rows, test rows are covered independently with a
    probability that is Beta(k, n_cal + 1 − k), whatever the model; k is that of
    ``covered_rank``. So each run is a beta-binomial count, and their sum a convolution.
    """
    from scipy.stats import betabinom

    total: Array = np.ones(1)
    for n_cal, n_test in sizes:
        rank = covered_rank(n_cal, alpha, n_ranks)
        if rank > n_cal:  # the interval is the whole line
            pmf = np.eye(1, n_test + 1, n_test)[0]
        else:
            pmf = betabinom.pmf(np.arange(n_test + 1), n_test, rank, n_cal + 1 - rank)
        total = np.convolve(total, pmf)
    return total
