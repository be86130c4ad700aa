"""Rows that lie beyond all calibration rows, and whether chance explains how many."""

import math
import warnings
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ..exceptions import OutsideCalibrationWarning

Array = NDArray[np.float64]
# Probability with which exchangeable rows would be reported as outside.
SIGNIFICANCE = 0.01


def rows_outside(
    test: Mapping[str, Array], calibration: Mapping[str, Array]
) -> NDArray[np.bool_]:
    """Rows beyond all calibration rows; warn of a quantity with too many of them."""
    above: dict[str, NDArray[np.bool_]] = {}
    for name, values in test.items():
        seen = calibration[name]
        above[f"{name} above {seen.max():.4g}"] = values > seen.max()
        if not name.startswith("epistemic"):  # a small one is no cause for concern
            above[f"{name} below {seen.min():.4g}"] = values < seen.min()
    n_cal = len(next(iter(calibration.values())))
    chances = {
        name: chance_of_extremes(int(rows.sum()), len(rows), n_cal)
        for name, rows in above.items()
    }
    worst = min(chances, key=lambda name: chances[name])
    if chances[worst] < SIGNIFICANCE / len(chances):
        rows = above[worst]
        warnings.warn(
            f"Got {int(rows.sum())} of {len(rows)} rows of X with {worst}, beyond all "
            f"{n_cal} rows of X_calibration; exchangeable rows would do so with a "
            f"probability of {chances[worst]:.2g}. The coverage guarantee does not "
            "reach such rows: calibrate on rows like them, or leave them out.",
            OutsideCalibrationWarning,
            stacklevel=3,
        )
    outside: NDArray[np.bool_] = np.any(list(above.values()), axis=0)
    return outside


def chance_of_extremes(k: int, n_test: int, n_cal: int) -> float:
    """Probability that the k largest of n_test + n_cal exchangeable rows are test."""
    i = np.arange(k)
    return math.exp(float(np.log((n_test - i) / (n_test + n_cal - i)).sum()))
