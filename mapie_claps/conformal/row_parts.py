"""Rows as the user gave them, part by part: an array, a table, batches."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import _num_samples
from torch import Tensor

from .._compat import validate_data
from ..network.batches import check_has_target, is_batches, items_of

Array = NDArray[np.float64]


def row_parts(
    estimator: Any, X: Any, y: Any = None, need_y: bool = False
) -> Iterator[tuple[Any, Any]]:
    """Parts of X as the user gave them, each with its y."""
    batched = is_batches(X) or (y is None and _is_list_of_tables(X))
    items = items_of(X, y, need_y) if batched else [(X, y)]
    for x, target, *weight in items:
        if need_y and any(w is not None for w in weight):
            raise ValueError(
                "Got a batch (X, y, sample_weight), but expected (X, y): calibration "
                "counts every row once. Leave the weights out; likelihood ratios for "
                "a covariate shift are passed as weights=, a function of X."
            )
        if need_y:
            check_has_target(target)
        takes_tensors = getattr(estimator, "accepts_tensors", False)
        if isinstance(x, Tensor) and not takes_tensors:
            x = x.detach().cpu().numpy()
        if _is_empty_table(x):  # nobody predicts it, so nobody sees other columns
            validate_data(estimator, x, reset=False, skip_check_array=True)
        yield x, target


def joined_parts(
    parts: Iterator[tuple[Array, Array]], X: Any, n_levels: int
) -> tuple[Array, Array]:
    """Points (n,) and intervals (n, 2, n_levels) of all parts of X."""
    if is_batches(X) or isinstance(X, list | tuple):
        found = [(np.empty(0), np.empty((0, 2, n_levels))), *parts]
        points, bounds = zip(*found, strict=True)
        return np.concatenate(points), np.concatenate(bounds)
    # Room for all at once: parts that are joined in the end take it twice.
    n, row = _num_samples(X), 0
    points_, bounds_ = np.empty(n), np.empty((n, 2, n_levels))
    for p, b in parts:
        points_[row : row + len(p)], bounds_[row : row + len(p)] = p, b
        row += len(p)
    return points_, bounds_


def _is_empty_table(x: Any) -> bool:
    shape: tuple[int, ...] = getattr(x, "shape", ())
    return len(shape) == 2 and shape[0] == 0


def _is_list_of_tables(X: Any) -> bool:
    """Whether X is a list of batches without targets, not one array as a list."""
    return (
        isinstance(X, list | tuple)
        and bool(X)
        and all(len(getattr(part, "shape", ())) > 1 for part in X)
    )
