"""Width → columns: Shapley values of both parts, additive to rounding.

A path leads from a background row z to the row x that is explained: columns are changed
one after another, and each is credited with what its step changes. Steps of a path sum
to f(x) − f(z) whatever the order, so that the mean over paths is additive exactly, not
only in the limit. Orders come in pairs, each with its reverse: effects of two columns
together are then shared evenly, and what an unusual combination of values adds in one
order it takes away in the other. The mean over all orders would be the Shapley value.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import _safe_indexing, gen_batches

from .._validation import check_integer
from .permuted_rows import PermutedRows

Array = NDArray[np.float64]
PARTS = ("aleatoric", "epistemic")
NEAR_LEADER = 2 / 3  # share of the largest contribution from which a column is named
MAX_NAMED = 3  # columns by name in one sentence
NEGLIGIBLE = 0.01  # of the width: a smaller excess has no cause worth naming
MAX_BACKGROUND = 2000  # rows that are predicted to choose n_background of them
BLOCK_ELEMENTS = 2**21  # of the index of rows that are predicted at a time


@dataclass(frozen=True, repr=False, eq=False)
class ColumnContributions:
    """By how much each column widens or narrows an interval, row by row.

    Contributions of a row add up, part by part, to the difference between its width and
    the width of the reference, which is the mean over the background rows.

    Parameters
    ----------
    names : tuple of str
        Columns of the table; ``x0``, ``x1``, … where they have no names.
    values : ndarray of shape (n, p)
        What the rows have in these columns, as text.
    aleatoric, epistemic : ndarray of shape (n, p, n_levels)
        What each column adds to the width that noise needs, and to the width that lack
        of data adds. Where an interval is infinite they are NaN.
    reference : ndarray of shape (2, n_levels)
        Both parts of the width of the reference.
    confidence_level : tuple of float
        Levels; empty if what was explained is not calibrated. There is then one column
        of numbers, and in place of the width stands the standard deviation √v.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps.diagnostics import ColumnContributions
    >>> adds = ColumnContributions(
    ...     ("hour", "district"), np.array([["17", "7"]]),
    ...     np.array([[[9.0], [1.0]]]), np.array([[[0.5], [8.5]]]),
    ...     np.array([[20.0], [2.0]]), (0.9,))
    >>> adds.sentence(0)
    'wide by 41: 30 noise, mostly hour=17; 11 lack of data, mostly district=7'
    """

    names: tuple[str, ...]
    values: NDArray[Any]
    aleatoric: Array
    epistemic: Array
    reference: Array
    confidence_level: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def total(self) -> Array:
        """Both parts of the width of each row, of shape (n, 2, n_levels)."""
        added = [part.sum(axis=1) for part in (self.aleatoric, self.epistemic)]
        return np.asarray(self.reference + np.stack(added, axis=1))

    def sentence(self, row: int, level: int = 0) -> str:
        """Say in words why an interval is wide.

        Parameters
        ----------
        row : int
            Position of the row.
        level : int, default=0
            Position of the confidence level.

        Returns
        -------
        str
            The width, its two parts, and the columns that make them larger than those
            of the reference: as many as it takes to explain half of it, and all whose
            share is nearly the largest. An infinite interval has no parts, and the
            sentence says so.
        """
        noise, lack = self.total[row, :, level]
        if not np.isfinite(noise + lack):
            return "infinitely wide: the calibration rows give no finite end"
        width, *parts = _numbers_that_add_up(noise, lack)
        causes = [self._cause(part, row, level) for part in PARTS]
        return (
            f"wide by {width}: {parts[0]} noise, {causes[0]}; "
            f"{parts[1]} lack of data, {causes[1]}"
        )

    def to_frame(self, level: int = 0, index: Any = None) -> Any:
        """Contributions as a table.

        Parameters
        ----------
        level : int, default=0
            Position of the confidence level.
        index : pandas.Index, optional
            Labels of the rows, for example ``X.index``.

        Returns
        -------
        pandas.DataFrame
            One row per row of X, and a column for each part and name. Needs pandas.
        """
        import pandas as pd

        columns = pd.MultiIndex.from_product([PARTS, self.names])
        both = np.hstack([getattr(self, part)[:, :, level] for part in PARTS])
        return pd.DataFrame(both, columns=columns, index=index)

    def __repr__(self) -> str:
        """The first rows in words."""
        lines = [f"row {i}: {self.sentence(i)}" for i in range(len(self))[:5]]
        columns, rows = counted(len(self.names), "column"), counted(len(self), "row")
        more = [f"… {counted(len(self) - 5, 'more row')}"] if len(self) > 5 else []
        return "\n".join([f"Contributions of {columns} in {rows}", *lines, *more])

    def _cause(self, part: str, row: int, level: int) -> str:
        """Columns that make most of what a part has in excess of the reference."""
        adds = getattr(self, part)[row, :, level]
        if not adds.sum() > NEGLIGIBLE * self.total[row, :, level].sum():
            return "no more than usual"
        order = np.argsort(-adds, kind="stable")
        above = np.maximum(adds[order], 0.0)
        for_half = int(np.searchsorted(np.cumsum(above), above.sum() / 2)) + 1
        n = max(for_half, int((above >= NEAR_LEADER * above[0]).sum()))
        named = [f"{self.names[j]}={self.values[row, j]}" for j in order[:n]]
        if n == 1:
            return f"mostly {named[0]}"
        if n > MAX_NAMED:
            named[MAX_NAMED:] = [f"{n - MAX_NAMED} more"]
        return f"mostly {', '.join(named[:-1])} and {named[-1]} together"


def column_contributions(
    widths: Callable[[Any], Array],  # of some rows, (n, 2, n_levels)
    X: Any,  # (n, p)
    of_rows: Array,  # their widths
    background: Any,  # (m, p), rows that X is compared with; None for X itself
    levels: tuple[float, ...],
    n_background: int,  # used, evenly spread over the widths; all if fewer
    seed: int,  # of the orders in which columns are changed
) -> ColumnContributions:
    """Contributions of the columns of X to both parts of the width."""
    check_integer("n_background", n_background, low=1, hint="Use 16.")
    rows = PermutedRows(X, X if background is None else background)
    n, p, m = rows.n_rows, len(rows.names), rows.n_background
    if not n or not m:
        raise ValueError(
            f"Got {n} rows of X and {m} background rows, but expected some."
        )
    starts = np.linspace(0, m - 1, min(m, MAX_BACKGROUND)).round().astype(np.int64)
    if background is None:
        of_starts = of_rows[starts]
    else:
        of_starts = widths(_safe_indexing(background, starts))
    chosen = _spread_rows(of_starts, n_background)
    starts, of_starts = n + starts[chosen], of_starts[chosen]

    rng = np.random.default_rng(seed)
    orders = np.stack([rng.permutation(p) for _ in starts])
    orders = np.stack([orders, orders[:, ::-1]], axis=1)  # each with its reverse
    place = np.argsort(orders, axis=2)  # at which a column is changed
    # After k steps a column is that of the row if its place is below k.
    changed = place[:, :, None] < np.arange(1, p)[:, None]  # (m, 2, p − 1, p)
    adds = np.empty((n, p, *of_rows.shape[1:]))
    for block in gen_batches(n, max(1, BLOCK_ELEMENTS // max(1, changed.size))):
        at = np.arange(n)[block, None, None, None, None]
        index = np.where(changed, at, starts[:, None, None, None])
        values = np.empty((len(at), *place.shape[:2], p + 1, *of_rows.shape[1:]))
        values[:, :, :, 0] = of_starts[:, None]
        values[:, :, :, -1] = of_rows[block, None, None]
        if p > 1:
            between = widths(rows.take(index.reshape(-1, p)))
            values[:, :, :, 1:-1] = between.reshape(values[:, :, :, 1:-1].shape)
        steps = np.diff(values, axis=3)
        by_column = np.take_along_axis(steps, place[None, ..., None, None], axis=3)
        adds[block] = by_column.mean(axis=(1, 2))
    parts = adds[:, :, 0], adds[:, :, 1]
    reference = of_starts.mean(axis=0)
    return ColumnContributions(rows.names, rows.texts(), *parts, reference, levels)


def _spread_rows(parts: Array, n_background: int) -> NDArray[np.intp]:
    """Background rows at evenly spaced ranks of the width."""
    sound: NDArray[np.bool_] = np.isfinite(parts.sum(axis=1))  # (m, n_levels)
    # At a level that no row has, every interval may be infinite.
    levels = sound.any(axis=0)
    finite = np.flatnonzero(sound[:, levels].all(axis=1) & levels.any())
    if not len(finite):
        raise ValueError(
            "Got infinite intervals for all background rows, whose width has no parts. "
            "Calibrate with more rows, or at a lower confidence_level."
        )
    width = parts[finite].sum(axis=1)[:, int(levels.argmax())]
    n = min(n_background, len(finite))
    ranks = ((np.arange(n) + 0.5) * len(finite) / n).astype(int)
    return np.asarray(finite[np.argsort(width, kind="stable")[ranks]])


def counted(n: int, noun: str) -> str:
    """A number of things in words."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _numbers_that_add_up(*parts: float) -> list[str]:
    """Sum and parts, with two or three digits that count, as they add up in print."""
    total = sum(parts)
    digits = max(0, 1 - int(np.floor(np.log10(total / 2)))) if total > 0 else 0
    first = [round(part, digits) for part in (total, *parts[:-1])]
    numbers = [*first, first[0] - sum(first[1:])]
    return [f"{number + 0.0:.{digits}f}" for number in numbers]
