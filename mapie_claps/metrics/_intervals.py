"""Metrics of the intervals of one run."""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._validation import raise_for
from . import mapie_metrics
from ._checks import (
    checked_bounds,
    checked_levels,
    checked_rows,
    crossed_rows,
    finite_levels,
    warn_of_crossed,
)

Array = NDArray[np.float64]


def coverage(y: ArrayLike, y_interval: ArrayLike) -> Array:
    """Share of targets inside their interval, the bounds included.

    Parameters
    ----------
    y : array-like of shape (n,)
        Targets.
    y_interval : array-like of shape (n, 2, n_levels) or (n, 2)
        Lower and upper bounds.

    Returns
    -------
    ndarray of shape (n_levels,)
        Coverages.

    Examples
    --------
    >>> from mapie_claps.metrics import coverage
    >>> coverage([0.0, 5.0], [[-1.0, 1.0], [2.0, 3.0]])
    array([0.5])
    """
    y_, bounds = checked_rows(y, y_interval)
    return mapie_metrics.coverage(y_, _with_finite_stand_ins(y_, bounds))


def mean_width(y_interval: ArrayLike) -> Array:
    """Mean of upper − lower; infinite if one interval is.

    Parameters
    ----------
    y_interval : array-like of shape (n, 2, n_levels) or (n, 2)
        Lower and upper bounds. An interval whose ends are swapped is empty: it has
        width 0, and a :class:`~mapie_claps.exceptions.CrossedBoundsWarning` says how
        many there are.

    Returns
    -------
    ndarray of shape (n_levels,)
        Mean widths.

    Examples
    --------
    >>> from mapie_claps.metrics import mean_width
    >>> mean_width([[-1.0, 1.0], [2.0, 6.0]])
    array([3.])
    """
    bounds = checked_bounds(y_interval)
    warn_of_crossed(bounds)
    return _mean_width(bounds)


def crossed_intervals(y_interval: ArrayLike) -> NDArray[np.intp]:
    """Count the intervals whose lower end is above the upper end.

    Methods that predict the two ends apart, such as conformalised quantile regression,
    can give such intervals. They are empty and cover nothing.

    Parameters
    ----------
    y_interval : array-like of shape (n, 2, n_levels) or (n, 2)
        Lower and upper bounds.

    Returns
    -------
    ndarray of shape (n_levels,)
        Numbers of rows.

    Examples
    --------
    >>> from mapie_claps.metrics import crossed_intervals
    >>> crossed_intervals([[-1.0, 1.0], [3.0, 2.0]])
    array([1])
    """
    return crossed_rows(checked_bounds(y_interval))


def _mean_width(bounds: Array) -> Array:
    """Mean width of every level, 0 where ends are swapped."""
    finite = finite_levels(bounds)
    bounds = np.stack([bounds[:, 0], bounds.max(axis=1)], axis=1)
    widths = np.full(bounds.shape[2], np.inf)
    if finite.any():
        widths[finite] = mapie_metrics.mean_width(bounds[:, :, finite])
    return widths


def interval_score(
    y: ArrayLike, y_interval: ArrayLike, confidence_level: ArrayLike
) -> Array:
    r"""Mean interval score (Winkler), lower is better.

    :math:`u - l + \frac{2}{\alpha}(l - y)_+ + \frac{2}{\alpha}(y - u)_+`.

    Parameters
    ----------
    y : array-like of shape (n,)
        Targets.
    y_interval : array-like of shape (n, 2, n_levels) or (n, 2)
        Lower and upper bounds. The formula also holds where ends are swapped; a
        :class:`~mapie_claps.exceptions.CrossedBoundsWarning` says how many there are.
    confidence_level : float or array-like of shape (n_levels,)
        1 − α of each level.

    Returns
    -------
    ndarray of shape (n_levels,)
        Mean scores; infinite where an interval is.

    Examples
    --------
    >>> from mapie_claps.metrics import interval_score
    >>> interval_score([0.0, 5.0], [[-1.0, 1.0], [2.0, 4.0]], 0.9).round(6)
    array([12.])
    """
    y_, bounds = checked_rows(y, y_interval)
    levels = checked_levels(confidence_level, bounds.shape[2])
    warn_of_crossed(bounds)
    return _interval_score(y_, bounds, levels)


def _interval_score(y: Array, bounds: Array, levels: Array) -> Array:
    """Mean interval score of every level."""
    scores, crossed = np.full(len(levels), np.inf), crossed_rows(bounds)
    for j in np.flatnonzero(finite_levels(bounds)):
        if crossed[j]:  # MAPIE would put the ends in order
            lower, upper = bounds[:, 0, j], bounds[:, 1, j]
            missed = np.maximum(lower - y, 0) + np.maximum(y - upper, 0)
            scores[j] = np.mean(upper - lower + 2 / (1 - levels[j]) * missed)
        else:
            scores[j] = mapie_metrics.interval_score(y, bounds[:, :, [j]], levels[j])
    return scores


def coverage_error(
    y: ArrayLike, y_interval: ArrayLike, confidence_level: ArrayLike
) -> Array:
    """Absolute difference of the coverage and the nominal level 1 − α.

    Parameters
    ----------
    y : array-like of shape (n,)
        Targets.
    y_interval : array-like of shape (n, 2, n_levels) or (n, 2)
        Lower and upper bounds.
    confidence_level : float or array-like of shape (n_levels,)
        1 − α of each level.

    Returns
    -------
    ndarray of shape (n_levels,)
        Errors.

    Examples
    --------
    >>> from mapie_claps.metrics import coverage_error
    >>> coverage_error([0.0, 5.0], [[-1.0, 1.0], [2.0, 3.0]], 0.9)
    array([0.4])
    """
    found = coverage(y, y_interval)
    return np.abs(found - checked_levels(confidence_level, len(found)))


def evaluate_intervals(
    y: ArrayLike,
    y_interval: ArrayLike,
    confidence_level: ArrayLike,
    *,
    num_bins: int = 3,
    eta: float = 30.0,
) -> dict[str, Array]:
    """Metrics of one run of one method, each with one entry per level.

    Parameters
    ----------
    y : array-like of shape (n,)
        Targets.
    y_interval : array-like of shape (n, 2, n_levels) or (n, 2)
        Lower and upper bounds.
    confidence_level : float or array-like of shape (n_levels,)
        1 − α of each level.
    num_bins : int, default=3
        Groups of MAPIE's size-stratified coverage.
    eta : float, default=30.0
        Weight of the coverage in MAPIE's ``coverage_width_based``.

    Returns
    -------
    dict of ndarray
        ``coverage``, ``coverage_error``, ``width``, ``score``, ``crossed`` (intervals
        whose ends are swapped, see :func:`crossed_intervals`), and MAPIE's ``ssc`` (NaN
        unless more than ``num_bins`` widths differ) and ``cwc`` (−inf where an interval
        is infinite).

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps.metrics import evaluate_intervals
    >>> y_interval = np.array([[-1.0, 1.0], [2.0, 6.0], [0.0, 1.0], [1.0, 2.5]])
    >>> found = evaluate_intervals([0.0, 5.0, 2.0, 2.0], y_interval, 0.75)
    >>> found["coverage"], found["ssc"]
    (array([0.75]), array([0.5]))
    """
    y_, bounds = checked_rows(y, y_interval)
    levels = checked_levels(confidence_level, bounds.shape[2])
    each = [bounds[:, :, [j]] for j in range(bounds.shape[2])]
    return {
        "coverage": coverage(y_, bounds),
        "coverage_error": coverage_error(y_, bounds, levels),
        "width": _mean_width(bounds),
        "score": _interval_score(y_, bounds, levels),
        "crossed": crossed_rows(bounds).astype(np.float64),
        "ssc": np.array([_size_stratified(y_, b, num_bins) for b in each]),
        "cwc": np.array(
            [
                _coverage_width(y_, b, eta, level)
                for b, level in zip(each, levels, strict=True)
            ]
        ),
    }


def regional_coverage(
    y: ArrayLike, y_interval: ArrayLike, regions: Mapping[str, ArrayLike]
) -> dict[str, Array]:
    """Coverage inside each region.

    Parameters
    ----------
    y : array-like of shape (n,)
        Targets.
    y_interval : array-like of shape (n, 2, n_levels) or (n, 2)
        Lower and upper bounds.
    regions : mapping of str to array-like of bool, shape (n,)
        Rows of each region; regions may overlap.

    Returns
    -------
    dict of ndarray of shape (n_levels,)
        Coverage by region.

    Examples
    --------
    >>> from mapie_claps.metrics import regional_coverage
    >>> y_interval = [[-1.0, 1.0], [-1.0, 1.0], [-1.0, 1.0]]
    >>> regional_coverage([0.0, 2.0, 0.0], y_interval, {"left": [True, True, False]})
    {'left': array([0.5])}
    """
    y_, bounds = checked_rows(y, y_interval)
    found = {}
    for name, rows in regions.items():
        given = np.asarray(rows)
        mask = given == 1  # text, NaN and numbers of rows would all be true
        if mask.shape != y_.shape or not mask.any() or not (mask | (given == 0)).all():
            raise_for(
                f"regions[{name!r}]",
                f"{np.sum(mask)} true of {given.shape} values of type {given.dtype}",
                f"a mask of shape {y_.shape}, true for at least one row, false else",
                "Leave out a region without rows.",
            )
        found[name] = coverage(y_[mask], bounds[mask])
    return found


def region_gap(
    y: ArrayLike,
    y_interval: ArrayLike,
    regions: Mapping[str, ArrayLike],
    confidence_level: ArrayLike,
) -> Array:
    """Largest absolute difference of coverage and nominal level over the regions.

    Parameters
    ----------
    y : array-like of shape (n,)
        Targets.
    y_interval : array-like of shape (n, 2, n_levels) or (n, 2)
        Lower and upper bounds.
    regions : mapping of str to array-like of bool, shape (n,)
        Rows of each region.
    confidence_level : float or array-like of shape (n_levels,)
        1 − α of each level.

    Returns
    -------
    ndarray of shape (n_levels,)
        Gaps of one run; a table averages them over seeds.

    Examples
    --------
    >>> from mapie_claps.metrics import region_gap
    >>> regions = {"left": [True, True, False], "right": [False, False, True]}
    >>> y_interval = [[-1.0, 1.0], [-1.0, 1.0], [-1.0, 1.0]]
    >>> region_gap([0.0, 2.0, 0.0], y_interval, regions, 0.9)
    array([0.4])
    """
    if not regions:
        raise_for("regions", regions, "at least one region", "Name the regions.")
    found = np.stack(list(regional_coverage(y, y_interval, regions).values()))
    levels = checked_levels(confidence_level, found.shape[1])
    gap: Array = np.abs(found - levels).max(axis=0)
    return gap


def _with_finite_stand_ins(y: Array, bounds: Array) -> Array:
    """The same coverage with bounds that MAPIE accepts."""
    beyond = np.abs(y).max() + 1
    return np.clip(bounds, -2 * beyond, 2 * beyond)


def _size_stratified(y: Array, bounds: Array, num_bins: int) -> float:
    """MAPIE's regression_ssc_score of one level."""
    width = _mean_width(bounds)[0]
    if not 0 < width < np.inf:
        return math.nan
    # MAPIE tells widths apart by their fifth decimal, whatever the unit of y, and
    # wants more of them than bins.
    y, bounds = y / width, bounds / width
    if len(np.unique(np.round(bounds[:, 1, 0] - bounds[:, 0, 0], 5))) <= num_bins:
        return math.nan
    return mapie_metrics.size_stratified(y, bounds, num_bins)


def _coverage_width(y: Array, bounds: Array, eta: float, level: float) -> float:
    """MAPIE's coverage_width_based of one level."""
    if not np.isfinite(bounds).all():
        return -math.inf
    return mapie_metrics.coverage_width(y, bounds[:, 0, 0], bounds[:, 1, 0], eta, level)
