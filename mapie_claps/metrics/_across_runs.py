"""Summaries and comparisons of many runs."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from .._validation import raise_for
from ._checks import check_each, checked_alike, checked_levels

Array = NDArray[np.float64]
# Coverages are counts divided by n: what differs by less than this is equal.
ROUNDING = 1e-9


def violation_rate(coverages: ArrayLike, confidence_level: ArrayLike) -> Array:
    """Share of runs whose coverage falls below the nominal level.

    Parameters
    ----------
    coverages : array-like of shape (n_runs,) or (n_runs, n_levels)
        Coverages of the runs, between 0 and 1.
    confidence_level : float or array-like of shape (n_levels,)
        1 − α of each level.

    Returns
    -------
    ndarray of shape () or (n_levels,)
        Rates.

    Examples
    --------
    >>> from mapie_claps.metrics import violation_rate
    >>> float(violation_rate([0.88, 0.9, 0.93, 0.89], 0.9))
    0.5
    """
    (found,) = checked_alike(coverages=coverages)
    shares = (found >= 0) & (found <= 1)
    check_each("coverages", found, shares, "shares between 0 and 1")
    levels = checked_levels(confidence_level, found.shape[1] if found.ndim > 1 else 1)
    below = found < (levels if found.ndim > 1 else levels[0]) - ROUNDING
    return np.asarray(below.mean(axis=0))


def relative_width_reduction(widths: ArrayLike, reference_widths: ArrayLike) -> Array:
    """Mean over runs of 1 − width / reference width.

    Parameters
    ----------
    widths : array-like of shape (n_runs,) or (n_runs, n_levels)
        Mean widths of a method.
    reference_widths : array-like of the same shape
        Mean widths of the reference (in the paper Split CP) in the same runs, positive
        and finite.

    Returns
    -------
    ndarray of shape () or (n_levels,)
        Positive if the method is narrower.

    Examples
    --------
    >>> from mapie_claps.metrics import relative_width_reduction
    >>> float(relative_width_reduction([1.0, 1.0], [2.0, 1.0]))
    0.25
    """
    ratio = _ratio(widths=widths, reference_widths=reference_widths)
    return np.asarray(np.mean(1 - ratio, axis=0))


def average_ranks(values: ArrayLike, decimals: int = 9) -> Array:
    """Rank the methods within each run, smallest first, ties averaged.

    Parameters
    ----------
    values : array-like of shape (n_runs, n_methods)
        Widths or scores; lower is better. NaN is refused.
    decimals : int, default=9
        Values are rounded to this many decimals before ranking, so that methods equal
        but for rounding errors tie.

    Returns
    -------
    ndarray of shape (n_runs, n_methods)
        Ranks, 1 for the best.

    Examples
    --------
    >>> from mapie_claps.metrics import average_ranks
    >>> average_ranks([[3.0, 1.0, 1.0 + 1e-12]])
    array([[3. , 1.5, 1.5]])
    """
    (found,) = checked_alike(values=values)
    if found.ndim > 2:
        raise_for(
            "values.shape",
            found.shape,
            "(n_runs, n_methods)",
            "Rank the levels one by one.",
        )
    rounded = np.atleast_2d(np.round(found, decimals))
    return np.asarray(rankdata(rounded, axis=1))


def width_ratio(width: ArrayLike, reference_width: ArrayLike) -> Array:
    """Mean width as a multiple of that of a reference, run by run.

    Parameters
    ----------
    width, reference_width : array-like
        Mean widths of the same runs; those of the reference are positive and finite.

    Returns
    -------
    ndarray
        Ratios.

    Examples
    --------
    >>> from mapie_claps.metrics import width_ratio
    >>> width_ratio([1.0, 3.0], [2.0, 3.0])
    array([0.5, 1. ])
    """
    return _ratio(width=width, reference_width=reference_width)


def score_difference(score: ArrayLike, reference_score: ArrayLike) -> Array:
    """Interval score minus that of a reference, run by run; negative is better.

    Parameters
    ----------
    score, reference_score : array-like
        Mean interval scores of the same runs; those of the reference are finite.

    Returns
    -------
    ndarray
        Differences.

    Examples
    --------
    >>> from mapie_claps.metrics import score_difference
    >>> score_difference([1.0, 3.0], [2.0, 3.0])
    array([-1.,  0.])
    """
    found, reference = checked_alike(score=score, reference_score=reference_score)
    finite = np.isfinite(reference)
    check_each("reference_score", reference, finite, "finite scores")
    return np.asarray(found - reference)


def _ratio(**widths: ArrayLike) -> Array:
    """Widths in units of others, which are given second, by which each can be."""
    (found, reference), (name, of_reference) = checked_alike(**widths), widths
    check_each(name, found, found >= 0, "widths that are not negative")
    usable = np.isfinite(reference) & (reference > 0)
    check_each(of_reference, reference, usable, "positive finite widths")
    return np.asarray(found / reference)
