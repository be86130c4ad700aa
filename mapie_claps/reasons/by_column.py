"""Width → columns: Shapley values of both parts, additive to rounding.

A path leads from a background row z to the row x that is explained: columns are changed
one after another, and each is credited with what its step changes. Steps of a path sum
to f(x) − f(z) whatever the order, so that the mean over paths is additive exactly, not
only in the limit. Orders come in pairs, each with its reverse: effects of two columns
together are then shared evenly, and what a step off the beaten track adds in one order
(columns that go together, torn apart) it takes away in the other. The mean over all
orders would be the Shapley value. Every row takes the same number of steps: the cost is
linear in rows, in columns and in background rows.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._validation import check_integer
from ..conformal.contributions import ColumnContributions
from ..conformal.explanation import Explanation
from .mixing import RowMixer

Array = NDArray[np.float64]
Explain = Callable[[Any], Explanation]
# Rows of the background of which some are chosen; all are predicted once.
MAX_BACKGROUND = 2000
BLOCK_ELEMENTS = 2**21  # of the index of rows that are predicted at a time


def column_contributions(
    explain: Explain,
    X: Any,  # (n, p)
    background: Any,  # (m, p), rows that X is compared with
    n_background: int = 16,  # used, evenly spread over the widths; all if fewer
    seed: int = 0,  # of the orders in which columns are changed
) -> ColumnContributions:
    """Contributions of the columns of X to both parts of the width."""
    check_integer("n_background", n_background, low=1, hint="Use 16.")
    mixer = RowMixer(X, background)
    if mixer.n_rows == 0 or mixer.n_background == 0:
        raise ValueError(
            f"Got {mixer.n_rows} rows of X and {mixer.n_background} background rows, "
            "but expected at least one of each."
        )
    f = _Widths(explain, mixer)
    chosen, f_chosen = _spread_rows(f, n_background)
    orders = _paired_orders(mixer.n_columns, len(chosen), seed)
    rows = np.arange(mixer.n_rows)
    f_rows = f.whole(rows)
    adds = np.empty((mixer.n_rows, mixer.n_columns, *f_rows.shape[1:]))
    steps = len(chosen) * 2 * (mixer.n_columns - 1) * mixer.n_columns
    size = max(1, BLOCK_ELEMENTS // max(1, steps))
    for start in range(0, mixer.n_rows, size):
        part = slice(start, start + size)
        adds[part] = _mean_steps(f, rows[part], f_rows[part], chosen, f_chosen, orders)
    return ColumnContributions(
        mixer.names,
        mixer.texts(),
        adds[:, :, 0],
        adds[:, :, 1],
        f_rows,
        f_chosen.mean(axis=0),
        f.levels,
    )


class _Widths:
    """Both parts of the width of mixed rows, (n, 2, n_levels)."""

    levels: tuple[float, ...]

    def __init__(self, explain: Explain, mixer: RowMixer) -> None:
        self._explain, self.mixer = explain, mixer

    def __call__(self, index: NDArray[np.int64]) -> Array:  # (n, p)
        why = self._explain(self.mixer.take(index))
        self.levels = why.confidence_level
        if self.levels:
            found = np.stack([why.aleatoric_width, why.epistemic_width], axis=1)
        else:
            noise = np.sqrt(why.aleatoric)
            both = [noise, np.sqrt(why.aleatoric + why.epistemic) - noise]
            found = np.stack(both, axis=1)[:, :, None]
        return np.where(np.isfinite(found), found, np.nan)

    def whole(self, rows: NDArray[np.int64]) -> Array:
        """The same of rows as they are."""
        return self(np.repeat(rows[:, None], self.mixer.n_columns, axis=1))


def _spread_rows(f: _Widths, n_background: int) -> tuple[NDArray[np.int64], Array]:
    """Background rows at evenly spaced ranks of the width, and their parts."""
    n_rows, n = f.mixer.n_rows, f.mixer.n_background
    spread = np.linspace(0, n - 1, min(n, MAX_BACKGROUND)).round()
    rows = n_rows + spread.astype(np.int64)
    parts = f.whole(rows)
    sound: NDArray[np.bool_] = np.isfinite(parts.sum(axis=1))  # (n, L)
    # At a level that no row has, every interval may be infinite.
    levels = np.asarray(sound.any(axis=0))
    finite = sound[:, levels].all(axis=1) & levels.any()
    rows, parts = rows[finite], parts[finite]
    if not len(rows):
        raise ValueError(
            "Got infinite intervals for all background rows, whose width has no parts. "
            "Calibrate with more rows, or at a lower confidence_level."
        )
    order = np.argsort(parts.sum(axis=1)[:, levels.argmax()], kind="stable")
    n = min(n_background, len(rows))
    ranks = ((np.arange(n) + 0.5) * len(rows) / n).astype(int)
    return rows[order[ranks]], parts[order[ranks]]


def _paired_orders(
    n_columns: int, n_pairs: int, seed: int
) -> NDArray[np.int64]:  # (n_pairs, 2, p)
    """Random orders of the columns, each with its reverse."""
    rng = np.random.default_rng(seed)
    orders = np.stack([rng.permutation(n_columns) for _ in range(n_pairs)])
    return np.stack([orders, orders[:, ::-1]], axis=1)


def _mean_steps(
    f: _Widths,
    rows: NDArray[np.int64],  # (n,)
    f_rows: Array,  # (n, 2, L)
    chosen: NDArray[np.int64],  # (m,)
    f_chosen: Array,  # (m, 2, L)
    orders: NDArray[np.int64],  # (m, 2, p)
) -> Array:  # (n, p, 2, L)
    """Mean over all paths of what the step of each column changes."""
    m, _, p = orders.shape
    n, tail = len(rows), f_rows.shape[1:]
    # Position at which a column is changed; after k steps it is x's if that is < k.
    place = np.argsort(orders, axis=2)
    changed = place[:, :, None] < np.arange(1, p)[:, None]  # (m, 2, p − 1, p)
    index = np.where(
        changed, rows[:, None, None, None, None], chosen[:, None, None, None]
    )
    between = np.empty((n, m, 2, 0, *tail))
    if p > 1:
        between = f(index.reshape(-1, p)).reshape(n, m, 2, p - 1, *tail)
    start = np.broadcast_to(f_chosen[None, :, None, None], (n, m, 2, 1, *tail))
    end = np.broadcast_to(f_rows[:, None, None, None], (n, m, 2, 1, *tail))
    steps = np.diff(np.concatenate([start, between, end], axis=3), axis=3)
    by_column = np.take_along_axis(steps, place[None, ..., None, None], axis=3)
    return np.asarray(by_column.mean(axis=(1, 2)))
