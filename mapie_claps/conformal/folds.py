"""Which rows a model calibrates on: those kept back, or those of its fold."""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._validation import check_integer, check_share, raise_for
from ..network.rows import divide, take_groups

Folds = NDArray[np.intp]
# With fewer rows cv="auto" takes folds: a quarter of them would be missed in the fit,
# and be few to calibrate on.
SMALL_TABLE, AUTO_FOLDS = 250, 5


def assign_folds(
    cv: Any,
    calibration_fraction: float,
    X: Any,
    y: NDArray[np.float64],
    labels: Folds,  # rows of equal ones stay together
    with_values: bool,  # whether rows have weights or a partition
    random: np.random.RandomState,
) -> Folds:
    """Fold of each row, (n,); where rows are kept back theirs is 0, and −1 the rest."""
    share, n, n_labels = calibration_fraction, len(y), len(np.unique(labels))
    check_share("calibration_fraction", share, hint="Use 0.25 if unsure.")
    if isinstance(cv, str):
        if cv not in ("auto", "split"):
            raise_for("cv", cv, "'auto', 'split', a number or a splitter", "Use None.")
        few = cv == "auto" and n_labels < SMALL_TABLE and not with_values
        cv = max(2, min(AUTO_FOLDS, n_labels)) if few else None
    if cv is None:
        n_cal = round(share * n)
        if n_cal < 1 or n - n_cal < 2 or n_labels < 2:
            raise ValueError(
                f"Got {n} rows, {n_labels} of them different or of different groups. "
                f"Of these calibration_fraction={share!r} keeps back {n_cal}, but "
                "expected at least 1 to calibrate on and 2 to fit on. Collect more "
                "rows, or use cv=10, which keeps none back."
            )
        return np.where(take_groups(labels, share, random.permutation(n_labels)), 0, -1)
    if with_values:
        raise ValueError(
            f"Got weights or a partition with cv={cv!r}, but calibration with one "
            "model for each fold (CV+) takes neither. Fit with cv=None, which keeps "
            "rows back."
        )
    if not hasattr(cv, "split"):
        n_folds = check_integer("cv", cv, low=2, hint="Use 10, or None for a split.")
        return divide(labels, n_folds, random)
    folds = np.full(n, -1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The groups parameter is ignored")
        for fold, (_, rows) in enumerate(cv.split(X, y, labels)):
            folds[rows] = np.where(folds[rows] < 0, fold, -2)
    n_parts = np.unique(np.stack([labels, folds]), axis=1).shape[1]
    if folds.min() < 0 or folds.max() < 1 or n_parts > n_labels:
        expected = (
            "a splitter with every row in one of at least two test folds, and rows "
            "that belong together or are equal in the same one"
        )
        raise_for("cv", cv, expected, "Use GroupKFold, or a number of folds.")
    return folds
