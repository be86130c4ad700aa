"""Which rank: the conformal quantile, used wherever scores become intervals."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._validation import check_unmasked


def conformal_rank(n: int, alpha: float) -> int:
    """Rank k = ⌈(n + 1)(1 − α)⌉ of the conformal quantile among n scores.

    Parameters
    ----------
    n : int
        Number of calibration scores.
    alpha : float
        Miscoverage, in (0, 1).

    Returns
    -------
    int
        k; above n, no finite quantile has the coverage 1 − α.

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
    # (n + 1)(1 − α) is often an integer on paper and a few units in the last place
    # more in binary; the tolerance is far below what one row can change.
    return math.ceil((n + 1) * (1 - alpha) * (1 - 1e-12))


def conformal_quantile(
    scores: ArrayLike, alphas: Sequence[float], allow_infinite: bool = False
) -> NDArray[np.float64]:
    """Return the k-th smallest score for each level.

    Parameters
    ----------
    scores : array-like of shape (n,)
        Calibration scores; +∞ for a row that no interval can cover.
    alphas : sequence of float
        Miscoverages.
    allow_infinite : bool, default=False
        Whether to return infinity where k exceeds n, rather than to raise.

    Returns
    -------
    ndarray of shape (n_alpha,)
        Quantiles.

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
    ranks = checked_ranks(len(values), alphas, allow_infinite)
    finite = sorted({rank - 1 for rank in ranks if rank <= len(values)})
    ordered = np.partition(values, finite) if finite else values
    return np.array([ordered[k - 1] if k <= len(values) else np.inf for k in ranks])


class ScoreBounds(NamedTuple):
    """Signed scores between which the intervals of each level lie."""

    lower: NDArray[np.float64]  # (n_levels,)
    upper: NDArray[np.float64]  # (n_levels,)


def score_bounds(
    scores: ArrayLike,  # (n,), signed; of one rank, absolute ones will do
    alphas: Sequence[float],
    sym: bool = True,
    allow_infinite: bool = False,
) -> ScoreBounds:
    """∓ the rank of the absolute scores, or a rank of α/2 on each side.

    A score of +∞ is that of a target which no interval can hold: it counts on both
    sides.
    """
    values = np.asarray(scores, dtype=np.float64)
    if sym:
        q = conformal_quantile(np.abs(values), alphas, allow_infinite)
        return ScoreBounds(-q, q)
    checked_ranks(len(values), alphas, allow_infinite, 2)
    halves = [alpha / 2 for alpha in alphas]
    below = np.where(np.isposinf(values), np.inf, -values)
    return ScoreBounds(
        -conformal_quantile(below, halves, True),
        conformal_quantile(values, halves, True),
    )


def checked_ranks(
    n: int, alphas: Iterable[float], allow_infinite: bool, n_ends: int = 1
) -> list[int]:
    """Rank at each α, or at α/2 for two ends; no more than n if it is to be finite."""
    ranks = []
    for alpha in alphas:
        ranks.append(conformal_rank(n, alpha / n_ends))
        if ranks[-1] > n and not allow_infinite:
            needed = math.ceil((n_ends / alpha - 1) * (1 - 1e-12))
            two = " with sym=False" if n_ends == 2 else ""
            raise ValueError(
                f"Got {n} calibration scores, but confidence_level={1 - alpha:g}{two} "
                f"needs at least {needed}. Calibrate on more rows, lower "
                "confidence_level, or pass allow_infinite_bounds=True to get "
                "(-inf, inf)."
            )
    return ranks
