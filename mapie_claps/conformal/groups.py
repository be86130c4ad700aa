"""Which group a row belongs to: a column, bins of the epistemic fraction, a function.

A group is a fixed function of x. Bins and merges of small groups are given, or come
from training rows: chosen on calibration rows or on their numbers, they would break
the guarantee of each group.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._validation import check_integer, check_unmasked
from ..estimators.local_law import LocalLaw
from .parts import parts_of

Array = NDArray[np.float64]
Labels = NDArray[np.object_]
OTHER = "other"


@dataclass(frozen=True)
class ColumnGroups:
    """The values of one column of X as groups, rare ones of them together.

    Parameters
    ----------
    column : str or int
        Name of a column of a DataFrame, or position of a column of an array.
    values : tuple or None, default=None
        Values that are groups of their own; all others are the group "other". None
        makes a group of every value.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import ColumnGroups
    >>> X_train = np.array([[0.1, 1], [0.4, 1], [0.2, 2], [0.9, 3]])
    >>> groups = ColumnGroups.from_training(X_train, 1, min_rows=2)
    >>> groups.values
    (1.0,)
    >>> groups(X_train).tolist()
    [1.0, 1.0, 'other', 'other']
    """

    column: str | int
    values: tuple[Any, ...] | None = None

    @classmethod
    def from_training(
        cls, X: Any, column: str | int, min_rows: int = 100
    ) -> "ColumnGroups":
        """Keep the values that enough training rows have; all others are one group.

        Parameters
        ----------
        X : array-like of shape (n, p)
            Training rows; not calibration rows, whose numbers must not decide.
        column : str or int
            The column.
        min_rows : int, default=100
            Training rows that a group of its own has at least.

        Returns
        -------
        ColumnGroups
            Groups that are fixed before calibration.
        """
        check_integer("min_rows", min_rows, low=1, hint="Use 100 if unsure.")
        labels = checked_labels(_column_of(X, column))
        counts = Counter(labels.tolist())
        kept = [label for label, count in counts.items() if count >= min_rows]
        return cls(column, tuple(sorted(kept, key=lambda v: (str(type(v)), v))))

    def __call__(self, X: Any) -> Labels:
        """Label of each row.

        Parameters
        ----------
        X : array-like of shape (n, p)
            Rows.

        Returns
        -------
        ndarray of shape (n,)
            Values of the column, or "other".
        """
        labels = checked_labels(_column_of(X, self.column))
        if self.values is None:
            return labels
        known = set(self.values)
        labels[:] = [v if v in known else OTHER for v in labels.tolist()]
        return labels


@dataclass(frozen=True)
class EpistemicGroups:
    r"""Bins of the epistemic fraction: groups by how little is known of a row.

    A row's group is the number of edges at or below its
    :math:`\varphi^\top\Sigma\varphi / v`, so that coverage also holds given how unknown
    a row is.

    Parameters
    ----------
    edges : sequence of float
        Inner edges, ascending and between 0 and 1; one edge makes two groups.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import ClapsRegressor, EpistemicGroups
    >>> X = np.linspace(-1, 1, 60)[:, None]
    >>> model = ClapsRegressor(n_members=2, random_state=0).fit(X, X[:, 0])
    >>> groups = EpistemicGroups.from_training(model, X, n_groups=3)
    >>> len(groups.edges)
    2
    """

    edges: tuple[float, ...]

    def __init__(self, edges: Sequence[float] | Array) -> None:
        values = np.asarray(edges, dtype=np.float64)
        inside = values.ndim == 1 and ((values > 0) & (values < 1)).all()
        if not inside or not len(values) or (np.diff(values) <= 0).any():
            raise ValueError(
                f"Got edges={edges!r}, but expected ascending numbers between 0 and 1. "
                "Use for example [0.05, 0.2], or EpistemicGroups.from_training."
            )
        object.__setattr__(self, "edges", tuple(values.tolist()))

    @classmethod
    def from_training(
        cls, estimator: Any, X: Any, n_groups: int = 3
    ) -> "EpistemicGroups":
        """Edges at evenly spaced quantiles of training rows.

        Parameters
        ----------
        estimator : estimator
            Fitted, with ``predict_variance``.
        X : array-like of shape (n, p)
            Training rows, or other rows that are not used for calibration: those set
            aside for that give groups of more equal size, since training rows are
            better known than new ones.
        n_groups : int, default=3
            Groups, at most: equal edges are taken once.

        Returns
        -------
        EpistemicGroups
            Groups that are fixed before calibration.
        """
        n_groups = check_integer("n_groups", n_groups, low=2, hint="Use 3 if unsure.")
        fraction = parts_of(estimator, X).variance.epistemic_fraction
        levels = np.arange(1, n_groups) / n_groups
        edges = np.unique(np.quantile(fraction, levels))
        edges = edges[(edges > 0) & (edges < 1)]
        if not len(edges):
            raise ValueError(
                f"Got {len(fraction)} rows whose epistemic fraction is {fraction[0]!r} "
                "throughout, so that there are no bins. Use scale='claps', or rows "
                "that differ in how well they are known."
            )
        return cls(edges)

    def labels(self, estimator: Any, X: Any) -> Labels:
        """Label of each row, for ``from_scores`` or MAPIE's conditional class.

        Parameters
        ----------
        estimator : estimator
            Fitted, with ``predict_variance``.
        X : array-like of shape (n, p)
            Rows.

        Returns
        -------
        ndarray of shape (n,)
            Numbers of the bins, from 0.
        """
        return self._bins(parts_of(estimator, X).variance.epistemic_fraction)

    def of_law(self, law: LocalLaw) -> Labels:
        """Label of each row of a law."""
        if law.aleatoric is None or law.epistemic is None:
            raise TypeError(
                "Got groups=EpistemicGroups(...) with an estimator that does not split "
                "its variance. Use ClapsRegressor or ClapsModule, or other groups."
            )
        return self._bins(law.epistemic / (law.aleatoric + law.epistemic))

    def _bins(self, fraction: Array) -> Labels:
        return np.searchsorted(self.edges, fraction, side="right").astype(object)


def labels_of(groups: Any, X: Any, law: LocalLaw, rows: slice) -> Labels:
    """Labels of some rows: of a function of x, or a slice of those given."""
    if isinstance(groups, EpistemicGroups):
        return groups.of_law(law)
    found = groups(X) if callable(groups) else groups[rows]
    return checked_labels(found, len(law))


def checked_labels(labels: ArrayLike, n: int | None = None) -> Labels:
    """One label per row, none missing, as Python objects."""
    check_unmasked("groups", labels)
    # A list would become text, gaps and numbers in it too.
    listed = isinstance(labels, list | tuple)
    given = np.asarray(labels, dtype=object if listed else None)
    if given.ndim != 1 or (n is not None and len(given) != n):
        of = "" if n is None else f" for {n} rows"
        raise ValueError(
            f"Got groups of shape {given.shape}{of}, but expected one label per row. "
            "Pass for example a column of X."
        )
    found = np.empty(len(given), dtype=object)
    found[:] = given.tolist()
    plain = given.dtype.kind in "iubUT" or (
        given.dtype.kind == "f" and not np.isnan(given).any()
    )
    for row, label in enumerate(() if plain else found):
        if is_missing(label):
            raise ValueError(
                f"Got groups with the missing label {label!r} in row {row}. Give such "
                "rows a label of their own."
            )
        if not isinstance(label, str | int | float):
            raise ValueError(
                f"Got groups with {label!r} of type {type(label).__name__} in row "
                f"{row}, but expected text or numbers as labels."
            )
    return found


def is_missing(label: Any) -> bool:
    """None, or what does not equal itself: NaN, NaT, and NA, which answers with NA."""
    differs = label != label
    return label is None or not isinstance(differs, bool | np.bool_) or bool(differs)


def rows_by_group(labels: Labels) -> dict[Any, NDArray[np.intp]]:
    """Positions of the rows of each group, in the order of first appearance."""
    code = {label: i for i, label in enumerate(dict.fromkeys(labels.tolist()))}
    codes = np.fromiter((code[v] for v in labels.tolist()), np.int64, len(labels))
    order = np.argsort(codes, kind="stable")
    cuts = np.cumsum(np.bincount(codes, minlength=len(code)))[:-1]
    return dict(zip(code, np.split(order, cuts), strict=False))  # of no rows: one


def checked_groups(groups: Any) -> Any:
    """A function of x, the name or number of a column, or labels of all rows."""
    if groups is None or callable(groups) or isinstance(groups, EpistemicGroups):
        return groups
    if isinstance(groups, str | int) and not isinstance(groups, bool):
        return ColumnGroups(groups)
    return checked_labels(groups)


def _column_of(X: Any, column: str | int) -> Any:
    """Values of one column, by name or position."""
    if isinstance(column, str):
        names = [str(c) for c in getattr(X, "columns", ())]
        if column not in names:
            there = f"the columns {names}" if names else "no columns with names"
            raise ValueError(
                f"Got groups={column!r}, but X has {there}. Name a column, or pass one "
                "label per row."
            )
        values = X[column]
        return values.to_numpy() if hasattr(values, "to_numpy") else values
    array = X.iloc[:, column] if hasattr(X, "iloc") else np.asarray(X)[:, column]
    return np.asarray(array)
