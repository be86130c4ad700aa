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
from sklearn.utils import gen_batches
from sklearn.utils.validation import _num_samples

from ..metrics import is_missing

Array = NDArray[np.float64]
PARTS = ("aleatoric", "epistemic")
NEAR_LEADER = 1 / 2  # share of the largest contribution from which a column is named
MAX_NAMED = 3  # columns by name in one sentence
NEGLIGIBLE = 0.01  # of the width: a smaller excess has no cause worth naming
MIN_BACKGROUND = 20  # rows; beyond all of fewer, too many rows are by chance
MAX_BACKGROUND = 2000  # rows that are predicted to choose from
N_PATHS = 16  # background rows, evenly spread over their variances, to start paths from
BLOCK_ELEMENTS = 2**21  # of the index of rows that are predicted at a time
MAX_TEXT = 30  # letters of a value in a sentence
MAX_SHOWN = 5  # rows in print
USUAL = "no more than usual"
PLAIN = (-4, 7)  # powers of ten that are written out
MANY_DIGITS = 1e4  # from which a width is rounded to two or three digits


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
        What each column adds to both parts of the width, or of √v if what was explained
        is not calibrated; NaN where an interval is infinite.
    reference : ndarray of shape (2, n_levels)
        Both parts of the width of the reference.
    outside : ndarray of shape (n,), optional
        Rows less known than every background row, whose noise is extrapolated.
    index : sequence, optional
        Names of the rows; by default their positions.

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
    outside: NDArray[np.bool_] | None = None
    index: Any = None

    @property
    def total(self) -> Array:
        """Both parts of the width of each row, of shape (n, 2, n_levels)."""
        added = [part.sum(axis=1) for part in (self.aleatoric, self.epistemic)]
        return np.asarray(self.reference + np.stack(added, axis=1))

    def sentence(self, row: int, level: int = 0) -> str:
        """Say in words why an interval is wide, by positions of row and level.

        It names the columns that make a part larger than that of the reference: all
        that add at least half as much as the first, and enough to explain half of it.
        """
        noise, lack = self.total[row, :, level]
        if not np.isfinite(noise + lack):
            return "infinitely wide: the calibration rows give no finite end"
        if not noise + lack > 0:
            return "not wide: both ends are the same value"
        width, *parts = _in_print(noise, lack)
        causes = [
            self._cause(part, row, level) if float(shown) else USUAL
            for part, shown in zip(PARTS, parts, strict=True)
        ]
        why = f"noise, {causes[0]}"
        if self.outside is not None and self.outside[row]:
            why = "not known (outside the background)"
        return (
            f"wide by {width}: {parts[0]} {why}; {parts[1]} lack of data, {causes[1]}"
        )

    def to_frame(self, level: int = 0) -> Any:
        """Contributions at a level: a column for each part and name of a DataFrame."""
        columns = {
            (part, name): getattr(self, part)[:, j, level]
            for part in PARTS
            for j, name in enumerate(self.names)
        }
        return as_table(columns, self.index)

    def first_sentences(self) -> list[str]:
        """The first rows in words."""
        return [self.sentence(i) for i in range(min(MAX_SHOWN, len(self.values)))]

    def __repr__(self) -> str:
        """The first rows in words."""
        names = range(len(self.values)) if self.index is None else self.index
        pairs = zip(names, self.first_sentences(), strict=False)
        lines = [f"row {name}: {said}" for name, said in pairs]
        n = len(self.values)
        return "\n".join(lines + [f"... of {n} rows"] * (n > MAX_SHOWN))

    def _repr_html_(self) -> str | None:
        """The first rows in words, for notebooks."""
        return as_html({"why": self.first_sentences()}, self.index, len(self.values))

    def _cause(self, part: str, row: int, level: int) -> str:
        """Columns that make most of what a part has in excess of the reference."""
        adds = getattr(self, part)[row, :, level]
        if not adds.sum() > NEGLIGIBLE * self.total[row, :, level].sum():
            return USUAL
        order = np.argsort(-adds, kind="stable")
        above = np.maximum(adds[order], 0.0)
        for_half = int(np.searchsorted(np.cumsum(above), above.sum() / 2)) + 1
        n = max(for_half, int((above >= NEAR_LEADER * above[0]).sum()))
        named = [f"{self.names[j]}={self.values[row, j]}" for j in order[:n]]
        named[MAX_NAMED:] = [f"{n - MAX_NAMED} more"] * (n > MAX_NAMED)
        *others, last = named
        both = f"{', '.join(others)} and {last} together"
        return f"mostly {both if others else last}"


def column_contributions(
    explained: Callable[[Any], Any],  # the explanation of some rows
    X: Any,  # (n, p)
    why: Any,  # its explanation
    background: Any,  # (m, p), rows that X is compared with
) -> ColumnContributions:
    """Contributions of the columns of X to both parts of the width."""
    top, bottom = columns_of(X), columns_of(background)
    of_rows = why.width_parts
    n, m = len(of_rows), _num_samples(background)
    if top.keys() != bottom.keys() or not (top and n and m):
        only = ", ".join(sorted(map(str, top.keys() ^ bottom.keys())))
        raise ValueError(
            f"Got X of shape {(n, len(top))} and a background of shape "
            f"{(m, len(bottom))}, but expected tables with rows and the same columns "
            f"(in one only: {only or 'none'}). Pass for example the calibration rows."
        )
    columns = {name: _stacked(values, bottom[name]) for name, values in top.items()}
    p, outside = len(columns), None
    starts = np.linspace(0, m - 1, min(m, MAX_BACKGROUND)).round().astype(np.int64)
    known = explained(_permuted(columns, np.repeat(n + starts[:, None], p, 1)))
    if m >= MIN_BACKGROUND:
        outside = why.epistemic > known.epistemic.max()
    # At a level that no row has, every interval may be infinite.
    finite = np.isfinite(known.width_parts).all(axis=1)  # (m, n_levels)
    usable = np.flatnonzero((finite == finite.any(axis=0)).all(axis=1) & finite.any())
    if not len(usable):
        raise ValueError(
            "Got infinite intervals for all background rows, whose width has no parts. "
            "Calibrate with more rows, or at a lower confidence_level."
        )
    order = np.argsort((known.aleatoric + known.epistemic)[usable], kind="stable")
    k = min(N_PATHS, len(order))
    chosen = usable[order[((np.arange(k) + 0.5) * len(order) / k).astype(int)]]
    starts, of_starts = n + starts[chosen], known.width_parts[chosen]

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
            between = explained(_permuted(columns, index.reshape(-1, p))).width_parts
            values[:, :, :, 1:-1] = between.reshape(values[:, :, :, 1:-1].shape)
        steps = np.diff(values, axis=3)
        by_column = np.take_along_axis(steps, place[None, ..., None, None], axis=3)
        adds[block] = by_column.mean(axis=(1, 2))
    shown = [list(map(_text, c[:n].tolist())) for c in columns.values()]
    about = tuple(map(str, columns)), np.array(shown, dtype=object).T
    parts = adds[:, :, 0], adds[:, :, 1], of_starts.mean(axis=0)
    return ColumnContributions(*about, *parts, outside=outside, index=why.index)


def as_table(columns: dict[Any, Any], index: Any = None) -> Any:
    """DataFrame, or the columns themselves where pandas is missing."""
    try:
        import pandas as pd
    except ImportError:
        return columns
    return pd.DataFrame(columns, index=index)


def as_html(columns: dict[str, Any], index: Any, n: int) -> str | None:
    """The first of n rows as a table for notebooks; None where pandas is missing."""
    columns = {name: values[:MAX_SHOWN] for name, values in columns.items()}
    table = as_table(columns, None if index is None else index[:MAX_SHOWN])
    if isinstance(table, dict):
        return None
    import pandas as pd

    with pd.option_context("display.max_colwidth", None):  # no sentence is cut
        shown: str = table.to_html(float_format="{:.4g}".format)
    return shown + f"<p>... of {n} rows</p>" * (n > MAX_SHOWN)


def _in_print(noise: float, lack: float) -> list[str]:
    """Width and parts, with two or three digits that count, as they add up in print."""
    width = float(noise + lack)
    power = int(np.floor(np.log10(width)))
    shared = 0 if PLAIN[0] <= power < PLAIN[1] else power  # by all three
    digits = 1 - int(np.floor(np.log10(width / 2)))
    if width >= MANY_DIGITS or shared:
        digits = 2 - power
    whole, part = (round(float(value), digits) for value in (width, lack))
    places, suffix = max(0, digits + shared), f"e{shared}" * (shared != 0)
    values = [value / 10.0**shared for value in (whole, whole - part, part)]
    return [f"{v:.{places}f}{suffix}" if v > 0 else "0" for v in values]


def columns_of(X: Any) -> dict[Any, Any]:
    """Columns of a table by name, x0, x1, … in an array; none where X is no table."""
    table = X.to_pandas() if hasattr(X, "to_pandas") else X
    if hasattr(table, "iloc"):
        return {label: table[label].array for label in table.columns}
    table = np.asarray(table)
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


def _permuted(columns: dict[Any, Any], index: NDArray[np.int64]) -> Any:
    """Rows, of an array or of pandas, in which column j is from row ``index[:, j]``."""
    taken = [c.take(rows) for c, rows in zip(columns.values(), index.T, strict=True)]
    if isinstance(taken[0], np.ndarray):
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
