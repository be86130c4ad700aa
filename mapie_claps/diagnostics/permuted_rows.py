"""Rows whose columns come from different rows of a table, as a table of that kind."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_TEXT = 30  # letters of a value in a sentence


class PermutedRows:
    """The rows of X and, behind them, those of a background, combined by column.

    Arrays stay arrays, and data frames (of polars and pyarrow, too) become data frames
    of pandas. Categories, dates, gaps and text pass through unchanged, so that a model
    sees tables like the one it was fitted on.
    """

    def __init__(self, X: Any, background: Any) -> None:
        top, bottom = columns_of(X), columns_of(background)
        if top.keys() != bottom.keys() or not top:
            only = ", ".join(sorted(map(str, top.keys() ^ bottom.keys())))
            raise ValueError(
                f"Got X of {len(top)} columns and a background of {len(bottom)}, but "
                f"expected tables with the same columns (in one only: {only or 'none'})"
                ". Pass rows of the same table, or leave by_column out."
            )
        self.n_rows, self.n_background = (
            len(next(iter(t.values()))) for t in (top, bottom)
        )
        self._labels, self._is_frame = list(top), hasattr(_table(X), "iloc")
        self.names = tuple(map(str, top))
        self._columns = [_stacked(column, bottom[n]) for n, column in top.items()]

    def take(self, index: NDArray[np.int64]) -> Any:
        """Rows in which column j is that of the row ``index[:, j]``."""
        taken = [c.take(rows) for c, rows in zip(self._columns, index.T, strict=True)]
        if not self._is_frame:
            return np.stack(taken, axis=1)
        import pandas as pd

        return pd.DataFrame(dict(zip(self._labels, taken, strict=True)), copy=False)

    def texts(self) -> NDArray[Any]:
        """Values of the rows of X as text, (n, p)."""
        values = [column[: self.n_rows].tolist() for column in self._columns]
        return np.array([list(map(_text, column)) for column in values], dtype=object).T


def columns_of(X: Any) -> dict[Any, Any]:
    """Columns of a table by name, x0, x1, … in an array; none where X is no table."""
    table = _table(X)
    if hasattr(table, "iloc"):
        return {label: table[label].array for label in table.columns}
    return {f"x{j}": c for j, c in enumerate(table.T)} if table.ndim == 2 else {}


def _table(X: Any) -> Any:
    """An array or a data frame of pandas."""
    if hasattr(X, "to_pandas"):
        return X.to_pandas()
    return X if hasattr(X, "iloc") else np.asarray(X)


def _stacked(top: Any, bottom: Any) -> Any:
    """Values of two columns, one behind the other; categories stay categories."""
    if isinstance(top, np.ndarray):
        return np.concatenate([top, bottom])
    import pandas as pd

    kinds = [isinstance(c.dtype, pd.CategoricalDtype) for c in (top, bottom)]
    if all(kinds) and top.dtype != bottom.dtype:
        return pd.api.types.union_categoricals([top, bottom], ignore_order=True)
    return pd.concat([pd.Series(top), pd.Series(bottom)], ignore_index=True).array


def _text(value: Any) -> str:
    """A value as a sentence shows it."""
    if value is None or value is not value or str(value) in ("NaT", "<NA>", "nan"):
        return "missing"
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    text = text.removesuffix(" 00:00:00")
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"
