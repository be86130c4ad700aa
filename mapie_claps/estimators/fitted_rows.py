"""Rows that a model was fitted on, known again by a few keys."""

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..network.batches import row_keys
from ..network.table import TableRows

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

ENCODED_ROWS = 2**14  # at a time
N_KEYS = 4096  # 64 kB with their counts
FEWEST_COMPARED = 10  # rows; fewer are hardly there to calibrate on
SMALLEST_SHARE = 0.05  # of calibration rows; fewer hardly change a rank
CHANCE = 1e-6  # of a warning where rows are equal by right


def row_numbers(inputs: Array) -> Array:  # (n, p) → (n,)
    """A number for each row; inputs that differ by rounding have the same."""
    with np.errstate(over="ignore"):
        rounded = np.asarray(inputs, dtype=np.float32) + np.float32(0)  # −0 is 0
    numbers: Array = row_keys(torch.from_numpy(rounded), 0).numpy()
    return numbers


def _with_target(numbers: Array, y: Array) -> Array:
    """Keys in [0, 1) of rows and their targets."""
    both = np.stack([numbers, np.asarray(y, dtype=np.float64) + 0.0], axis=1)
    keys: Array = row_keys(torch.from_numpy(both), 1).numpy()
    return keys


class Overlap(NamedTuple):
    """Of different rows whose keys can be compared, how many are known."""

    known: int
    compared: int


@dataclass(frozen=True)
class FittedRows:
    """The smallest keys of the training rows, each with its number of rows.

    Keys are spread evenly, so that the smallest belong to a random part of all rows
    that may ever come: of a new row in this part it is known whether it is a training
    row. Up to 4,096 different rows the part is all of them.

    Examples
    --------
    >>> import numpy as np
    >>> numbers, y = np.linspace(0, 0.9, 50), np.arange(50.0)
    >>> rows = FittedRows.of(numbers, y)
    >>> rows.overlap(numbers[:10], y[:10]), rows.overlap(numbers[:10], y[10:20])
    (Overlap(known=10, compared=10), Overlap(known=0, compared=10))
    """

    keys: Array  # sorted
    counts: Counts
    limit: float  # up to which keys are compared

    @classmethod
    def of(cls, numbers: Array, y: Array) -> "FittedRows":
        """Those of training rows, given by a number for each of them."""
        keys, counts = np.unique(_with_target(numbers, y), return_counts=True)
        limit = 1.0 if len(keys) <= N_KEYS else float(keys[N_KEYS - 1])
        return cls(keys[:N_KEYS].copy(), counts[:N_KEYS].copy(), limit)

    def overlap(self, numbers: Array, y: Array) -> Overlap:
        """How many of some rows are training rows."""
        keys = np.unique(_with_target(numbers, y))
        keys = keys[keys <= self.limit]
        return Overlap(int(np.isin(keys, self.keys).sum()), len(keys))

    def warn_of(self, overlap: Overlap) -> None:
        """Warn if more rows are known than equal rows of a table explain.

        Tables may hold equal rows by right. If so, a new row has an equal one among the
        training rows about as often as a training row has another one there.
        """
        from scipy.stats import hypergeom

        known, compared = overlap
        if known <= SMALLEST_SHARE * compared:
            return
        n = int(self.counts.sum())
        twins = int(self.counts[self.counts > 1].sum())
        if hypergeom.sf(known - 1, n + compared, twins + known, compared) > CHANCE:
            return
        warnings.warn(
            f"Got calibration rows on which the estimator was fitted: {known} of "
            f"{compared} different rows that were compared are equal to a training row "
            f"in X and y, while {twins} of {n} training rows are equal to another one. "
            "Errors on fitted rows are too small, and so are intervals. Calibrate on "
            "rows that fit has not seen; CalibratedRegressor().fit(X, y) keeps some "
            "back itself.",
            UserWarning,
            stacklevel=5,
        )


class AskedRows(NamedTuple):
    """Rows that a model was asked about, with what it knows of its training rows."""

    fitted: FittedRows
    numbers: Array

    def warn_if_fitted(self, y: Any) -> None:
        """Warn if these rows with these targets are training rows."""
        self.fitted.warn_of(self.fitted.overlap(self.numbers, np.asarray(y)))


def asked_rows(model: Any, X: Any) -> AskedRows | None:
    """Rows of X, if the model knows its training rows; not so after a file."""
    fitted = vars(model).get("_fitted_rows")
    if fitted is None:
        return None
    numbers = [row_numbers(part.values) for part in model._encoded(X)]
    return AskedRows(fitted, np.concatenate([np.empty(0), *numbers]))


def fitted_rows(
    rows: TableRows, kept: NDArray[np.bool_] | None, y: Array
) -> FittedRows:
    """Those of a training table, of whose rows some are kept; y is of these."""
    parts = (rows[i : i + ENCODED_ROWS] for i in range(0, len(rows), ENCODED_ROWS))
    numbers = np.concatenate([row_numbers(part.encode().values) for part in parts])
    return FittedRows.of(numbers if kept is None else numbers[kept], y)
