"""Rows far beyond the calibration rows, and whether chance explains how many."""

import math
import warnings
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ..exceptions import OutsideCalibrationWarning

Array = NDArray[np.float64]
# Probability with which exchangeable rows are reported: a table by a warning, a row as
# outside (with fewer than 99 calibration rows 1 / (n + 1), the smallest there is).
SIGNIFICANCE = 0.01
EPISTEMIC = "epistemic variance"  # here a small value is no cause for concern


def rows_outside(
    test: Mapping[str, Array], calibration: Mapping[str, Array]
) -> NDArray[np.bool_]:
    """Rows far beyond the calibration rows; warn if many lie beyond them at all.

    A row is far beyond if its distance to the range of the calibration rows, the
    largest over all quantities, exceeds that of all but 1 % of the calibration rows to
    the range of the others.
    """
    warn_of_extremes(test, calibration)
    columns = [_comparable(name, test[name], calibration[name]) for name in test]
    distance = np.max([distance_beyond(rows, seen) for rows, seen in columns], axis=0)
    usual = np.max([distance_from_others(seen) for _, seen in columns], axis=0)
    n_farther = len(usual) - np.searchsorted(np.sort(usual), distance)
    chance = (1 + n_farther) / (len(usual) + 1)
    limit = max(SIGNIFICANCE, 1 / (len(usual) + 1))
    outside: NDArray[np.bool_] = (distance > 0) & (chance <= limit)
    return outside


def _comparable(name: str, values: Array, seen: Array) -> tuple[Array, Array]:
    """Test and calibration values between which distances have a meaning."""
    if name != EPISTEMIC:
        return values, seen
    # Its logarithm, since it spans orders of magnitude; none counts as too small.
    floor = max(float(np.median(seen)), np.finfo(np.float64).tiny)
    return np.log(np.maximum(values, floor)), np.log(np.maximum(seen, floor))


def distance_beyond(values: Array, seen: Array) -> Array:
    """Distance of each value to the range of those seen, in units of that range."""
    low, high = float(seen.min()), float(seen.max())
    distance = np.maximum(np.maximum(values - high, low - values), 0.0)
    if high > low:
        return distance / (high - low)
    return np.where(distance > 0, np.inf, 0.0)


def distance_from_others(seen: Array) -> Array:
    """The same for each value seen, to the range of the others.

    One value that differs from all others, which are equal, has no distance: no other
    row could then be outside.
    """
    distance = np.zeros(len(seen))
    order = np.argsort(seen)
    for row in (order[0], order[-1]):
        others = np.delete(seen, row)
        if len(others) and others.max() > others.min():
            distance[row] = distance_beyond(seen[[row]], others)[0]
    return distance


def warn_of_extremes(
    test: Mapping[str, Array], calibration: Mapping[str, Array]
) -> None:
    """Warn of a quantity in which too many rows lie beyond all calibration rows."""
    beyond: dict[str, int] = {}
    for name, values in test.items():
        seen = calibration[name]
        beyond[f"{name} above {seen.max():.4g}"] = int((values > seen.max()).sum())
        if name != EPISTEMIC:
            beyond[f"{name} below {seen.min():.4g}"] = int((values < seen.min()).sum())
    n_test, n_cal = (len(next(iter(c.values()))) for c in (test, calibration))
    chances = {
        name: chance_of_extremes(count, n_test, n_cal) for name, count in beyond.items()
    }
    worst = min(chances, key=lambda name: chances[name])
    if chances[worst] < SIGNIFICANCE / len(chances):
        warnings.warn(
            f"Got {beyond[worst]} of {n_test} rows of X with {worst}, beyond all "
            f"{n_cal} rows of X_calibration; exchangeable rows would do so with a "
            f"probability of {chances[worst]:.2g}. The coverage guarantee does not "
            "reach such rows: calibrate on rows like them, or leave them out.",
            OutsideCalibrationWarning,
            stacklevel=4,
        )


def chance_of_extremes(k: int, n_test: int, n_cal: int) -> float:
    """Probability that the k largest of n_test + n_cal exchangeable rows are test."""
    i = np.arange(k)
    return math.exp(float(np.log((n_test - i) / (n_test + n_cal - i)).sum()))
