"""Width → columns: Shapley values of both parts, additive to rounding.

A path leads from a background row z to the row x that is explained: columns are changed
one after another, and each is credited with what its step changes. Steps of a path sum
to f(x) − f(z) whatever the order, so that the mean over paths is additive exactly.
Orders come in pairs, each with its reverse: effects of two columns together are then
shared evenly. The mean over all orders would be the Shapley value.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import _safe_indexing, gen_batches
from sklearn.utils.validation import _num_samples

from .._validation import check_integer
from ..metrics import is_missing

Array = NDArray[np.float64]
PARTS = ("aleatoric", "epistemic")
NEAR_LEADER = 2 / 3  # share of the largest contribution from which a column is named
MAX_NAMED = 3  # columns by name in one sentence
NEGLIGIBLE = 0.01  # of the width: a smaller excess has no cause worth naming
MAX_BACKGROUND = 2000  # rows that are predicted to choose n_background of them
BLOCK_ELEMENTS = 2**21  # of the index of rows that are predicted at a time
MAX_TEXT = 30  # letters of a value in a sentence


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
        of data adds; NaN where an interval is infinite. If what was explained is not
        calibrated, the standard deviation √v stands in place of the width.
    reference : ndarray of shape (2, n_levels)
        Both parts of the width of the reference.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps.diagnostics import ColumnContributions
    >>> adds = ColumnContributions(
    ...     ("hour", "district"), np.array([["17", "7"]]),
    ...     np.array([[[9.0], [1.0]]]), np.array([[[0.5], [8.5]]]),
    ...     np.array([[20.0], [2.0]]))
    >>> adds.sentence(0)
    'wide by 41: 30 noise, mostly hour=17; 11 lack of data, mostly district=7'
    """

    names: tuple[str, ...]
    values: NDArray[Any]
    aleatoric: Array
    epistemic: Array
    reference: Array

    @property
    def total(self) -> Array:
        """Both parts of the width of each row, of shape (n, 2, n_levels)."""
        added = [part.sum(axis=1) for part in (self.aleatoric, self.epistemic)]
        return np.asarray(self.reference + np.stack(added, axis=1))

    def sentence(self, row: int, level: int = 0) -> str:
        """Say in words why an interval is wide, by positions of row and level.

        It names the columns that make a part larger than that of the reference: as
        many as it takes to explain half of it, and all whose share is nearly the
        largest.
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

    def to_frame(self, level: int = 0) -> Any:
        """Contributions at a level as a DataFrame: a column for each part and name."""
        import pandas as pd

        columns = pd.MultiIndex.from_product([PARTS, self.names])
        both = np.hstack([getattr(self, part)[:, :, level] for part in PARTS])
        return pd.DataFrame(both, columns=columns)

    def __repr__(self) -> str:
        """The first rows in words."""
        n, columns = len(self.values), counted(len(self.names), "column")
        lines = [f"row {i}: {self.sentence(i)}" for i in range(n)[:5]]
        head = f"Contributions of {columns} in {counted(n, 'row')}"
        return "\n".join([head, *lines, *more_than(5, n)])

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
    n_background: int,  # used, evenly spread over the widths; all if fewer
) -> ColumnContributions:
    """Contributions of the columns of X to both parts of the width."""
    check_integer("n_background", n_background, low=1, hint="Use 16.")
    table = X if background is None else background
    top, bottom = columns_of(X), columns_of(table)
    n, m = len(of_rows), _num_samples(table)
    alone = background is None and n == 1
    if top.keys() != bottom.keys() or not (top and n and m) or alone:
        only = ", ".join(sorted(map(str, top.keys() ^ bottom.keys())))
        raise ValueError(
            f"Got X of shape {(n, len(top))} and a background of shape "
            f"{(m, len(bottom))}, but expected tables with the same columns (in one "
            f"only: {only or 'none'}) and other rows to compare with. Pass for example "
            "the calibration rows, or leave by_column out."
        )
    columns = {name: _stacked(values, bottom[name]) for name, values in top.items()}
    p = len(columns)
    starts = np.linspace(0, m - 1, min(m, MAX_BACKGROUND)).round().astype(np.int64)
    if background is None:
        of_starts = of_rows[starts]
    elif hasattr(background, "column_names"):  # pyarrow, unknown to scikit-learn 1.5
        of_starts = widths(background.take(starts))
    else:
        of_starts = widths(_safe_indexing(background, starts))
    chosen = _spread_rows(of_starts, n_background)
    starts, of_starts = n + starts[chosen], of_starts[chosen]

    rng = np.random.default_rng(0)
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
            between = widths(_permuted(columns, index.reshape(-1, p), X))
            values[:, :, :, 1:-1] = between.reshape(values[:, :, :, 1:-1].shape)
        steps = np.diff(values, axis=3)
        by_column = np.take_along_axis(steps, place[None, ..., None, None], axis=3)
        adds[block] = by_column.mean(axis=(1, 2))
    return ColumnContributions(
        tuple(map(str, columns)),
        np.array(
            [list(map(_text, c[:n].tolist())) for c in columns.values()], object
        ).T,
        adds[:, :, 0],
        adds[:, :, 1],
        of_starts.mean(axis=0),
    )


def _spread_rows(parts: Array, n_background: int) -> NDArray[np.intp]:
    """Background rows at evenly spaced ranks of the width."""
    width = parts.sum(axis=1)  # (m, n_levels)
    # At a level that no row has, every interval may be infinite.
    width = width[:, np.isfinite(width).any(axis=0)]
    finite = np.flatnonzero(np.isfinite(width).all(axis=1))
    if not width.size or not len(finite):
        raise ValueError(
            "Got infinite intervals for all background rows, whose width has no parts. "
            "Calibrate with more rows, or at a lower confidence_level."
        )
    n = min(n_background, len(finite))
    ranks = ((np.arange(n) + 0.5) * len(finite) / n).astype(int)
    order = np.argsort(width[finite, 0], kind="stable")
    return np.asarray(finite[order[ranks]])


def counted(n: int, noun: str) -> str:
    """A number of things in words."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def more_than(n_shown: int, n: int) -> list[str]:
    """The last line of a table that shows its first rows only."""
    return [f"… {counted(n - n_shown, 'more row')}"] if n > n_shown else []


def _numbers_that_add_up(*parts: float) -> list[str]:
    """Sum and parts, with two or three digits that count, as they add up in print."""
    total = sum(parts)
    digits = max(0, 1 - int(np.floor(np.log10(total / 2)))) if total > 0 else 0
    first = [round(part, digits) for part in (total, *parts[:-1])]
    numbers = [*first, first[0] - sum(first[1:])]
    return [f"{number + 0.0:.{digits}f}" for number in numbers]


def columns_of(X: Any) -> dict[Any, Any]:
    """Columns of a table by name, x0, x1, … in an array; none where X is no table."""
    table = _table(X)
    if hasattr(table, "iloc"):
        return {label: table[label].array for label in table.columns}
    return {f"x{j}": c for j, c in enumerate(table.T)} if table.ndim == 2 else {}


def _stacked(top: Any, bottom: Any) -> Any:
    """Values of two columns, one behind the other; categories stay categories."""
    if isinstance(top, np.ndarray):
        return np.concatenate([top, bottom])
    import pandas as pd

    kinds = [isinstance(c.dtype, pd.CategoricalDtype) for c in (top, bottom)]
    if all(kinds) and top.dtype != bottom.dtype:
        return pd.api.types.union_categoricals([top, bottom], ignore_order=True)
    return pd.concat([pd.Series(top), pd.Series(bottom)], ignore_index=True).array


def _permuted(columns: dict[Any, Any], index: NDArray[np.int64], like: Any) -> Any:
    """Rows in which column j is that of the row ``index[:, j]``, as a table like X.

    Arrays stay arrays, and data frames (of polars and pyarrow, too) become data frames
    of pandas. Categories, dates, gaps and text pass through unchanged, so that a model
    sees tables like the one it was fitted on.
    """
    taken = [c.take(rows) for c, rows in zip(columns.values(), index.T, strict=True)]
    if not hasattr(_table(like), "iloc"):
        return np.stack(taken, axis=1)
    import pandas as pd

    return pd.DataFrame(dict(zip(columns, taken, strict=True)), copy=False)


def _text(value: Any) -> str:
    """A value as a sentence shows it."""
    if is_missing(value):
        return "missing"
    shown = f"{value:.4g}" if isinstance(value, float) else str(value)
    shown = shown.removesuffix(" 00:00:00")
    return shown if len(shown) <= MAX_TEXT else f"{shown[: MAX_TEXT - 1]}…"


def _table(X: Any) -> Any:
    """An array or a data frame of pandas."""
    if hasattr(X, "to_pandas"):
        return X.to_pandas()
    return X if hasattr(X, "iloc") else np.asarray(X)
