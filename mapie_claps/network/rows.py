"""Which rows of a table belong together: equal rows, and groups that a user names.

A row on both sides of a split is predicted from itself, so that its error says nothing
about new rows: such rows stay on one side, and rows that are equal in X and y count as
one row with a weight. Where the columns of X and y allow fewer than ten times the rows
that differ (five doses and a grade), equal rows are observations of their own.
"""

from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from sklearn.model_selection import PredefinedSplit

from .._validation import is_missing
from .batches import row_hashes
from .tables import as_table, read_columns

Array = NDArray[np.float64]
Labels = NDArray[np.intp]
FEW = 10  # possible rows by those that differ, below which equal ones are natural
MANY_EQUAL = 0.1  # of the rows are equal to another one: worth a warning
EQUAL_ROWS = (
    "Got a table in which more than a tenth of the rows are equal to another one in X "
    "and y. They count as one row with a weight, and stay together where rows are held "
    "out. If they are copies, drop them; if rows belong together in another way, such "
    "as those of one subject, pass groups."
)


def equal_rows(X: Any, y: Array) -> Labels:
    """Label of each row, (n,), counted from 0: equal in X and y means equal labels.

    Rows of a table with few possible values have a label each.
    """
    columns = [y, *_numbers(X)]
    hashes = row_hashes(np.column_stack(columns))
    different, labels = np.unique(hashes, return_inverse=True)
    possible = 1.0
    for values in columns:
        possible *= len(np.unique(values))
        if possible >= FEW * len(different):
            return np.asarray(labels, dtype=np.intp)
    return np.arange(len(y))


def check_groups(groups: Any, n: int) -> Labels:
    """One label per row, (n,), counted from 0; a gap is refused."""
    labels = np.asarray(groups)
    if labels.shape != (n,):
        raise ValueError(
            f"Got groups of shape {labels.shape} for {n} rows of X, but expected one "
            "label per row, for rows that belong together. Groups that are to be "
            "calibrated apart are the partition of CalibratedRegressor.fit."
        )
    gaps = [is_missing(value) for value in labels.tolist()]
    if any(gaps):
        raise ValueError(
            f"Got no label in row {gaps.index(True)} of groups, but expected one for "
            "each row. Give rows that belong to nobody labels of their own."
        )
    if labels.dtype.kind == "O":
        labels = np.array([str(value) for value in labels])
    found: Labels
    different, found = np.unique(labels, return_inverse=True)
    if len(different) < 2:
        raise ValueError(
            f"Got groups with the label {different[0].item()!r} in every row, but "
            "expected at least two different ones. Leave groups out."
        )
    return found


def rows_together(X: Any, y: Array, groups: Any) -> Labels:
    """Labels of rows, (n,): those of one group and equal ones have the same.

    They are numbered as they come, so that a seed divides all tables alike.
    """
    n, equal = len(y), np.arange(len(y))
    named = equal if groups is None else check_groups(groups, n)
    with suppress(TypeError, ValueError):  # texts, sparse: the estimator alone reads it
        equal = equal_rows(X, y)
    # Two groups that share an equal row are one.
    edges = np.ones(n), (named, n + equal)
    together = connected_components(coo_array(edges, shape=(2 * n, 2 * n)))[1][named]
    _, first, found = np.unique(together, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[found]


def divide(labels: Labels, n_folds: int, random: np.random.RandomState) -> Labels:
    """Fold of each row, (n,); rows of one label share it."""
    n_labels = labels.max() + 1
    if n_labels < n_folds:
        raise ValueError(
            f"Got n_samples={len(labels)}, {n_labels} of them different or of "
            f"different groups, for {n_folds} folds (cv), but expected one for each at "
            "least. Collect more rows, or use fewer folds."
        )
    return np.asarray((random.permutation(n_labels) % n_folds)[labels])


def take_groups(labels: Labels, share: float, order: Labels) -> NDArray[np.bool_]:
    """Mark whole groups, in a random order of labels, up to a share of the rows.

    As many as come nearest to it; at least one group is marked, and one is not.
    """
    upto = np.cumsum(np.bincount(labels)[order])
    nearest = int(np.abs(upto - share * len(labels)).argmin()) + 1
    return np.isin(labels, order[: min(max(nearest, 1), len(order) - 1)])


def folds_of(n: int, labels: Labels | None, n_folds: int, seed: int) -> PredefinedSplit:
    """Folds of n rows; those with one label, of two or more, are in one of them."""
    if labels is None or (labels == labels[0]).all():
        labels = np.arange(n)
    _, place = np.unique(labels, return_inverse=True)
    n_folds = min(n_folds, int(place.max()) + 1)
    return PredefinedSplit(divide(place, n_folds, np.random.RandomState(seed)))


def _numbers(X: Any) -> list[Array]:
    """Columns of X as numbers that are equal where values are; gaps are equal too."""
    if len(getattr(X, "shape", ())) > 2:
        return list(np.asarray(X).reshape(len(X), -1).T)
    found = []
    for column in read_columns(as_table(X)):
        values = column.values
        if values.dtype.kind == "O":
            texts = ["" if value != value else f"={value}" for value in values]
            values = np.unique(texts, return_inverse=True)[1].astype(float)
        found.append(np.where(np.isnan(values), np.nan, values))
    return found
