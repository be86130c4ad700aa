"""Rows whose columns come from different rows of a table, as a table of that kind."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_TEXT = 30  # letters of a value in a sentence


class PermutedRows:
    """The rows of X and, behind them, those of a background, combined by column.

    Arrays stay arrays and data frames stay data frames of pandas, which those of polars
    and pyarrow become. Categories, dates, gaps and text pass through unchanged, so that
    a model sees tables like the one it was fitted on.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps.diagnostics.permuted_rows import PermutedRows
    >>> rows = PermutedRows(np.zeros((1, 3)), np.ones((1, 3)))
    >>> rows.take(np.array([[0, 1, 0]]))
    array([[0., 1., 0.]])
    """

    def __init__(self, X: Any, background: Any) -> None:
        tables = {"X": _table(X), "background": _table(background)}
        frames = [hasattr(table, "iloc") for table in tables.values()]
        if frames[0] != frames[1]:
            raise TypeError(
                f"Got X of type {type(X).__name__} and a background of type "
                f"{type(background).__name__}, but expected both alike. Pass rows of "
                "the same kind of table."
            )
        for name, table in tables.items():
            if table.ndim != 2 or not len(table):
                raise ValueError(
                    f"Got {name} of shape {table.shape}, but columns can be told apart "
                    "in tables only, of shape (n, p), with a row at least. Leave "
                    "by_column out."
                )
        self._labels, found = (_labels(table) for table in tables.values())
        if set(found) != set(self._labels):
            only = ", ".join(sorted(map(str, set(found) ^ set(self._labels))))
            raise ValueError(
                f"Got a background of {len(found)} columns for X of "
                f"{len(self._labels)}; these are in one of them only: {only}. Pass "
                "rows with the columns of X."
            )
        self.names = tuple(map(str, self._labels))
        first, second = tables.values()
        self.n_rows, self.n_background = len(first), len(second)
        self._is_frame = frames[0]
        self._columns = (
            [_stacked(first[label], second[label]) for label in self._labels]
            if self._is_frame
            else list(np.concatenate([first, second]).T)
        )

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


def columns_of(X: Any) -> dict[str, NDArray[Any]]:
    """Columns of a table by name; none where X is no table."""
    table = _table(X)
    if table.ndim != 2:
        return {}
    names, frame = _labels(table), hasattr(table, "iloc")
    arrays = [np.asarray(table[n]) for n in names] if frame else list(table.T)
    return dict(zip(map(str, names), arrays, strict=True))


def number_columns(X: Any) -> dict[str, NDArray[np.float64]]:
    """Columns of a table that hold numbers or dates."""
    columns = columns_of(X).items()
    return {n: c.astype(np.float64) for n, c in columns if c.dtype.kind in "biufM"}


def _table(X: Any) -> Any:
    """An array or a data frame of pandas."""
    if hasattr(X, "to_pandas"):
        return X.to_pandas()
    return X if hasattr(X, "iloc") else np.asarray(X)


def _labels(table: Any) -> list[Any]:
    """Names of the columns; x0, x1, … where they have none."""
    known = hasattr(table, "columns")
    return list(table.columns) if known else [f"x{j}" for j in range(table.shape[1])]


def _stacked(top: Any, bottom: Any) -> Any:
    """Values of two series as one array; categories stay categories."""
    import pandas as pd

    kinds = [isinstance(s.dtype, pd.CategoricalDtype) for s in (top, bottom)]
    if all(kinds) and top.dtype != bottom.dtype:
        return pd.api.types.union_categoricals([top, bottom], ignore_order=True)
    return pd.concat([top, bottom], ignore_index=True).array


def _text(value: Any) -> str:
    """A value as a sentence shows it."""
    if value is None or value is not value or str(value) in ("NaT", "<NA>", "nan"):
        return "missing"
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    text = text.removesuffix(" 00:00:00")
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"
