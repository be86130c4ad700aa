"""Which rows of a table belong together: equal rows, and groups that a user names.

A row that stands on both sides of a split is predicted from itself: its error says
nothing about new rows. So rows that belong together stay on one side of every split,
and rows that are equal in X and y count as one row with a weight.

Rows may also be equal because there are few values to take: five doses and a grade.
Such rows are observations of their own. They are taken for that where the columns of X
and y together allow fewer different rows than ten times the number of rows.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from .batches import row_hashes
from .tables import as_table, read_columns

Array = NDArray[np.float64]
Labels = NDArray[np.intp]
FEW = 10  # possible rows by rows that there are, below which equal ones are natural


def equal_rows(X: Any, y: Array) -> Labels:
    """Label of each row, (n,), counted from 0: equal in X and y means equal labels.

    Rows of a table with few possible values have a label each.
    """
    columns = [y, *_numbers(X)]
    possible = 1.0
    for values in columns:
        possible *= len(np.unique(values))
        if possible >= FEW * len(y):
            hashes = row_hashes(np.column_stack(columns))
            labels: Labels = np.unique(hashes, return_inverse=True)[1]
            return labels
    return np.arange(len(y))


def row_groups(X: Any, y: Array, groups: Any = None) -> Labels:
    """Label of each row, (n,), counted from 0: equal labels stay on one side.

    Equal rows belong together, and so do rows of one group.
    """
    equal = equal_rows(X, y)
    if groups is None:
        return equal
    named = np.unique(check_groups(groups, len(y)), return_inverse=True)[1]
    n_equal, n_named = equal.max() + 1, named.max() + 1
    # Two groups that share an equal row are one.
    edges = np.ones(len(y)), (equal, n_equal + named)
    size = n_equal + n_named
    together = connected_components(coo_array(edges, shape=(size, size)))[1]
    labels: Labels = np.unique(together[equal], return_inverse=True)[1]
    return labels


def check_groups(groups: Any, n: int) -> NDArray[Any]:
    """One label per row, as an array that can be sorted; a gap is refused."""
    labels = np.asarray(groups)
    if labels.dtype.kind == "O":
        labels = np.array([str(v) for v in labels.ravel()]).reshape(labels.shape)
    if labels.shape != (n,):
        raise ValueError(
            f"Got groups of shape {labels.shape} for {n} rows of X, but expected one "
            "label per row."
        )
    if labels.dtype.kind == "f" and not math.isfinite(labels.sum()):
        raise ValueError(
            "Got groups with NaN or infinity, but expected a label for each row. Give "
            "rows that belong to nobody labels of their own."
        )
    if len(np.unique(labels)) < 2:
        raise ValueError(
            f"Got groups with the label {labels[0].item()!r} in every row, but "
            "expected at least two different ones. Leave groups out."
        )
    return labels


def take_groups(labels: Labels, share: float, order: Labels) -> NDArray[np.bool_]:
    """Mark whole groups, in a random order of labels, up to a share of the rows.

    The group that would cross the share is marked if that comes nearer to it. At least
    one group is marked, and one is not.
    """
    sizes = np.bincount(labels)[order]
    upto = np.cumsum(sizes)
    wanted = share * len(labels)
    n_groups = int(np.searchsorted(upto, wanted))
    if n_groups and (
        n_groups == len(order)
        or (upto - wanted)[n_groups] > (wanted - upto[n_groups - 1])
    ):
        n_groups -= 1
    n_groups = min(max(n_groups + 1, 1), len(order) - 1)
    marked: NDArray[np.bool_] = np.isin(labels, order[:n_groups])
    return marked


def _numbers(X: Any) -> list[Array]:
    """Columns of X as numbers that are equal where values are; gaps are equal too."""
    if len(getattr(X, "shape", ())) > 2:
        flat = np.asarray(X).reshape(len(X), -1)
        return list(flat.T)
    found = []
    for column in read_columns(as_table(X)):
        values = column.values
        if column.kind == "text":
            filled = ["\0" if value is None else value for value in values]
            values = np.unique(filled, return_inverse=True)[1].astype(float)
        found.append(np.where(np.isnan(values), np.nan, values))
    return found
