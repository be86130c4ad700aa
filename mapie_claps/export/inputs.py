"""Columns of the table → inputs of a graph, named and typed, and back to arrays."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..conformal.calibration import Calibrated
from ..estimators.regressor import ClapsRegressor
from ..network.columns import FewValues, ManyValues
from ..network.dates import Dates, Difference
from ..network.table import Block, TableEncoder


@dataclass(frozen=True)
class InputColumn:
    """One input of the graph, shape (n,).

    Parameters
    ----------
    name : str
        Name of the input.
    column : str
        Name of the column of the table, x0, x1 … where it had none.
    position : int
        Its position in the table.
    kind : {"number", "category", "date"}
        What goes in: the number; the position of the value in ``categories``; or
        seconds since 1970 as the clock showed them, without time zone.
    dtype : {"float64", "int64"}
        Type of the tensor.
    gap : str
        What stands for a missing value.
    categories : list or None
        Values of the column in training; None stands for a gap. A value that is not
        listed has the code ``len(categories)``.
    """

    name: str
    column: str
    position: int
    kind: str
    dtype: str
    gap: str
    categories: list[Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for the metadata of a file."""
        return asdict(self)


def input_columns(table: TableEncoder) -> list[InputColumn]:
    """Columns that the model uses, in the order of the table."""
    found = [
        InputColumn(_name(table, j), table.names[j], j, *_content(block))
        for block in table.blocks
        if not isinstance(block, Difference)  # of two dates, which are inputs
        for j in block.positions
    ]
    return sorted(found, key=lambda column: column.position)


def _content(block: Block) -> tuple[str, str, str, list[Any] | None]:
    """Kind, type, gap and categories of a column."""
    if isinstance(block, FewValues | ManyValues):
        values = block.categories.values
        gap = values.index(None) if None in values else len(values)
        return "category", "int64", str(gap), list(values)
    kind = "date" if isinstance(block, Dates) else "number"
    return kind, "float64", "NaN", None


def _name(table: TableEncoder, position: int) -> str:
    """A name that every engine takes: letters, digits and underscores, no other's."""
    names = [
        "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
        for name in table.names
    ]
    name = names[position]
    unsafe = name[:1].isdigit() or not name.strip("_") or names.count(name) > 1
    return f"column_{position}_{name}" if unsafe else f"in_{name}"


def graph_inputs(model: Calibrated | ClapsRegressor, X: Any) -> dict[str, NDArray[Any]]:
    """Rows of a table as the inputs of an exported graph.

    Parameters
    ----------
    model : CalibratedRegressor, StreamingConformalRegressor or ClapsRegressor
        What was exported.
    X : array-like of shape (n, p)
        Rows, as for ``predict_interval``.

    Returns
    -------
    dict of ndarray of shape (n,)
        Name → numbers, codes of categories or seconds, in the type that the graph
        takes. A service in another language makes the same of its rows by the table
        in the metadata of the file.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import ClapsRegressor
    >>> from mapie_claps.export import graph_inputs
    >>> X = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 7.0]])
    >>> model = ClapsRegressor.paper(random_state=0).fit(X, X[:, 0])
    >>> graph_inputs(model, X)["in_x1"]
    array([2., 4., 7.])
    """
    estimator = model._fitted() if isinstance(model, Calibrated) else model
    rows = estimator._read(X)
    codes = rows.codes or dict(enumerate(rows.plain.T))
    return {
        column.name: np.ascontiguousarray(codes[column.position], dtype=column.dtype)
        for column in input_columns(estimator.table_)
    }
