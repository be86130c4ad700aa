"""Rows whose columns come from different rows of a table, as a table of that kind."""

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int64]


class RowMixer:
    """The rows of X and, behind them, those of a background, to be mixed by column.

    Columns keep their types: categories, dates, gaps and text pass through unchanged,
    so that a model sees tables like the one it was fitted on: arrays, or tables of
    pandas, polars or pyarrow, both of the same kind.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps.reasons.mixing import RowMixer
    >>> mixer = RowMixer(np.zeros((1, 3)), np.ones((1, 3)))
    >>> mixer.take(np.array([[0, 1, 0]]))
    array([[0., 1., 0.]])
    """

    def __init__(self, X: Any, background: Any) -> None:
        self._kind = _kind_of(X)
        if _kind_of(background) != self._kind:
            raise TypeError(
                f"Got X of type {type(X).__name__} and a background of type "
                f"{type(background).__name__}, but expected both alike. Pass rows of "
                "the same kind of table."
            )
        if self._kind == "array":
            X, background = np.asarray(X), np.asarray(background)
        for name, rows in (("X", X), ("background", background)):
            if len(rows.shape) != 2:
                raise ValueError(
                    f"Got {name} of shape {tuple(rows.shape)}, but columns can be told "
                    "apart in tables only, of shape (n, p). Leave by_column out."
                )
        self.n_rows, self.n_columns = int(X.shape[0]), int(X.shape[1])
        self.n_background = int(background.shape[0])
        self.names = _names(X, self._kind)
        found = _names(background, self._kind)
        if sorted(found) != sorted(self.names):
            missing = sorted(set(self.names) ^ set(found))
            raise ValueError(
                f"Got a background of {len(found)} columns for X of "
                f"{len(self.names)}; these are in one of them only: "
                f"{', '.join(missing)}. Pass rows with the columns of X."
            )
        self._columns = _stacked(X, background, self._kind)

    def take(self, index: Index) -> Any:
        """Rows in which column j is that of the row ``index[:, j]``."""
        if self._kind == "array":
            return self._columns[index, np.arange(self.n_columns)]
        if self._kind == "pandas":
            import pandas as pd

            taken = {
                name: column.take(index[:, j])
                for j, (name, column) in enumerate(self._columns.items())
            }
            return pd.DataFrame(taken, copy=False)
        if self._kind == "polars":
            import polars as pl

            return pl.DataFrame(
                [c.gather(index[:, j]) for j, c in enumerate(self._columns)]
            )
        import pyarrow as pa

        names, columns = self._columns
        return pa.table(
            [c.take(pa.array(index[:, j])) for j, c in enumerate(columns)], names=names
        )

    def texts(self) -> NDArray[Any]:
        """Values of the rows of X as text, (n, p)."""
        rows = np.arange(self.n_rows)
        table = self.take(np.repeat(rows[:, None], self.n_columns, axis=1))
        columns = [_values(table, j, self._kind) for j in range(self.n_columns)]
        texts = [[_text(value) for value in column] for column in columns]
        return np.array(texts, dtype=object).reshape(self.n_columns, -1).T


def _kind_of(X: Any) -> str:
    """Library of the table, recognised without importing it."""
    tables = {"pandas": "DataFrame", "polars": "DataFrame", "pyarrow": "Table"}
    for name, table in tables.items():
        library = sys.modules.get(name)
        if library and isinstance(X, getattr(library, table)):
            return name
    return "array"


def _names(X: Any, kind: str) -> tuple[str, ...]:
    if kind == "array":
        return tuple(f"x{j}" for j in range(X.shape[1]))
    return tuple(map(str, X.column_names if kind == "pyarrow" else X.columns))


def _stacked(X: Any, background: Any, kind: str) -> Any:
    """Columns of both tables, one behind the other, in the order of X."""
    if kind == "array":
        return np.concatenate([X, background])
    if kind == "pandas":
        return {name: _pandas_column(X[name], background[name]) for name in X.columns}
    if kind == "polars":
        import polars as pl

        both = pl.concat([X, background.select(X.columns)], how="vertical_relaxed")
        return both.get_columns()
    import pyarrow as pa

    names = X.column_names
    both = pa.concat_tables(
        [X, background.select(names)], promote_options="permissive"
    ).unify_dictionaries()
    return names, [column.combine_chunks() for column in both.columns]


def _pandas_column(top: Any, bottom: Any) -> Any:
    """Values of two series as one array; categories stay categories."""
    import pandas as pd

    kinds = [isinstance(s.dtype, pd.CategoricalDtype) for s in (top, bottom)]
    if all(kinds) and top.dtype != bottom.dtype:
        return pd.api.types.union_categoricals([top, bottom], ignore_order=True)
    return pd.concat([top, bottom], ignore_index=True).array


def _values(table: Any, j: int, kind: str) -> list[Any]:
    """Values of a column of a table."""
    if kind == "array":
        values: list[Any] = table[:, j].tolist()
    elif kind == "pandas":
        values = table.iloc[:, j].tolist()
    elif kind == "polars":
        values = table.to_series(j).to_list()
    else:
        values = table.column(j).to_pylist()
    return values


def _text(value: Any) -> str:
    """A value as a sentence shows it."""
    if value is None or value is not value or str(value) in ("NaT", "<NA>", "nan"):
        return "missing"
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    return text.removesuffix(" 00:00:00")
