"""Targets, intervals and levels as the metrics want them."""

import warnings

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._validation import check_share, check_unmasked, raise_for
from ..exceptions import CrossedBoundsWarning

Array = NDArray[np.float64]


def checked_rows(y: ArrayLike, y_interval: ArrayLike) -> tuple[Array, Array]:
    """Targets (n,) and bounds (n, 2, n_levels) of the same rows."""
    check_unmasked("y", y)
    bounds, y_ = checked_bounds(y_interval), np.asarray(y, dtype=np.float64)
    if y_.shape != (len(bounds),) or not np.isfinite(y_).all():
        raise ValueError(
            f"Got y of shape {y_.shape} with {int((~np.isfinite(y_)).sum())} values "
            f"that are not finite, but expected {len(bounds)} finite numbers, one for "
            "each interval."
        )
    return y_, bounds


def checked_bounds(y_interval: ArrayLike) -> Array:
    """Bounds as (n, 2, n_levels), none of them NaN."""
    check_unmasked("y_interval", y_interval)
    bounds = np.asarray(y_interval, dtype=np.float64)
    if bounds.ndim == 2:
        bounds = bounds[:, :, None]
    if bounds.ndim != 3 or bounds.shape[1] != 2 or not bounds.size:
        raise ValueError(
            f"Got y_interval of shape {np.shape(y_interval)}, but expected "
            "(n, 2, n_levels) or (n, 2). Pass what predict_interval returned."
        )
    if np.isnan(bounds).any():
        raise ValueError(
            f"Got y_interval with {int(np.isnan(bounds).sum())} NaN. Only numbers and "
            "infinities are bounds."
        )
    return bounds


def checked_levels(confidence_level: ArrayLike, n_levels: int) -> Array:
    """Levels (n_levels,), each between 0 and 1."""
    given = np.asarray(confidence_level, dtype=np.float64)
    if given.ndim > 1 or (given.ndim == 1 and len(given) != n_levels):
        raise_for(
            "confidence_level",
            confidence_level,
            f"one number or {n_levels}, one for each level of y_interval",
            "Pass the levels in the order given to MAPIE.",
        )
    for level in np.atleast_1d(given):
        check_share("confidence_level", float(level), hint="Use 0.9 for 90 %.")
    return np.broadcast_to(given, (n_levels,)).copy()


def checked_alike(**named: ArrayLike) -> list[Array]:
    """Numbers of the first one's shape, none of them NaN.

    A column among rows would broadcast to n × n, and NaN is neither above nor below a
    level.
    """
    for name, values in named.items():
        check_unmasked(name, values)
    arrays = [np.asarray(values, dtype=np.float64) for values in named.values()]
    for name, array in zip(named, arrays, strict=True):
        if array.shape != arrays[0].shape:
            raise_for(
                f"{name}.shape",
                array.shape,
                f"the shape {arrays[0].shape} of {next(iter(named))}",
                "Give both for the same rows, or runs and levels.",
            )
        if np.isnan(array).any() or not array.size:
            raise_for(
                name,
                f"{int(np.isnan(array).sum())} NaN in shape {array.shape}",
                "numbers, and at least one",
                "Leave out the rows or runs that have no value.",
            )
    return arrays


def check_each(name: str, values: Array, good: NDArray[np.bool_], what: str) -> None:
    """Raise unless each value is good: infinities have no mean and no ratio."""
    if not good.all():
        raise_for(
            name,
            float(values[~good][0]),
            f"{what}, but {int((~good).sum())} of {good.size} are not",
            "Leave these rows or runs out.",
        )


def finite_levels(bounds: Array) -> NDArray[np.bool_]:
    """Levels without an infinite bound, shape (n_levels,)."""
    return np.asarray(np.isfinite(bounds).all(axis=(0, 1)))


def crossed_rows(bounds: Array) -> NDArray[np.intp]:
    """Rows whose ends are swapped, by level."""
    return np.asarray((bounds[:, 0] > bounds[:, 1]).sum(axis=0))


def warn_of_crossed(bounds: Array) -> None:
    """Say how many intervals have swapped ends."""
    crossed = crossed_rows(bounds)
    if crossed.any():
        rows = np.flatnonzero((bounds[:, 0] > bounds[:, 1]).any(axis=1))
        warnings.warn(
            f"Got {len(rows)} of {len(bounds)} rows whose lower end is above the upper "
            f"end, the first in row {rows[0]}: these intervals are empty, cover "
            "nothing and have width 0. Methods that predict both ends apart (CQR) can "
            "give them; count them with crossed_intervals.",
            CrossedBoundsWarning,
            stacklevel=3,
        )
