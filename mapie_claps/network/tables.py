"""Tables of users → columns → one number per row, whatever library they are from.

A number stays what it is, a category becomes the place of its level (a gap is a level
too), a date the seconds since 1970. pandas, polars and pyarrow are never imported.
"""

import datetime
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from numbers import Real
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.utils import check_array

from .._validation import ANY_NUMBER, check_unmasked, is_missing

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
SECOND = np.timedelta64(1, "s")
NUMBER_LIKE = {"numbers", "truth values"}
NEARLY_UNIQUE, ENOUGH_FOR_AN_ID = 0.9, 20  # share of distinct texts, and number of rows
# Decimal numbers and dates; integers may be codes.
MISREAD = re.compile(r"\s*([+-]?\d*[.,]\d+|\d{1,4}([-/.])\d{1,2}\2\d+.*)\s*")


def parse_dates(texts: Iterable[str]) -> list[datetime.datetime] | None:
    """Texts as dates; None unless all begin as 2024-01-31 or 2024/01/31.

    Other orders of day and month cannot be told apart.
    """
    dates = [text.replace("/", "-") for text in texts]
    if not all(date[4:5] == "-" == date[7:8] for date in dates):
        return None  # as 20240131, which may be a code
    try:
        return list(map(datetime.datetime.fromisoformat, dates))
    except ValueError:
        return None


def seconds(dates: Any) -> Array:
    """Seconds since 1970 by the clock, whatever its zone; NaN for NaT."""
    if isinstance(dates, list):
        dates = [d.replace(tzinfo=None) if hasattr(d, "tzinfo") else d for d in dates]
    found = np.asarray(dates, dtype="datetime64[us]")
    return np.where(np.isnat(found), np.nan, found.astype(np.int64) / 1e6)


# Types of Python objects by kind. The order matters: truth values and lengths of time
# are numbers too.
KINDS: dict[str, Any] = {
    "text": str,
    "truth values": bool | np.bool_,
    "lengths of time": datetime.timedelta | np.timedelta64,
    "numbers": Real | Decimal,
    "dates": datetime.date | np.datetime64,
}


class Column(NamedTuple):
    """One column; NaN for a gap in all kinds, dates in seconds since 1970."""

    name: Any  # or position
    kind: str  # of KINDS
    values: NDArray[Any]  # (n,), float64, or text as objects
    categorical: bool = False  # by its type

    def gap(self) -> Mask:
        """Where a value is missing."""
        return np.asarray(self.values != self.values)

    def refuse(self, row: int, expected: str, hint: str) -> NoReturn:
        """Raise for the value in a row: where, what was found, what to do."""
        value = self.values[row]
        value = np.datetime64(int(value), "s") if self.kind == "dates" else value
        value = value.item() if isinstance(value, np.generic) else value
        raise ValueError(
            f"Got {value!r} in column {self.name!r}, row {row}, but expected "
            f"{expected}. {hint}"
        )


def package_of(X: Any) -> str:
    """pandas, polars or pyarrow if a table is theirs; none of them is imported."""
    package = type(X).__module__.partition(".")[0]
    return package if package in ("pandas", "polars", "pyarrow") else ""


def column_names(X: Any) -> list[Any]:
    """Names of the columns of a frame, positions in an array."""
    if package_of(X):
        return list(X.column_names if package_of(X) == "pyarrow" else X.columns)
    return list(range(X.shape[1]))


def as_table(X: Any, min_rows: int = 1, names: Any = None) -> Any:
    """X as a frame, or as an array of numbers, text or objects with two axes.

    With ``names``, those of the columns in fit, X may be records too.
    """
    records = records_of(X)
    if records is not None and names is not None:
        return _from_records(records, list(names))
    is_array = type(X) is np.ndarray and X.ndim == 2 and X.dtype.kind in "fiubOU"
    is_frame = bool(package_of(X)) and len(getattr(X, "shape", ())) == 2
    if (is_array or is_frame) and X.shape[0] >= min_rows and X.shape[1]:
        labels = Counter(column_names(X) if is_frame else [])
        if twice := [name for name, count in labels.items() if count > 1]:
            raise ValueError(
                f"Got columns of the same name, {twice[:5]}, but expected different "
                "names. Rename or drop them."
            )
        return X
    if is_frame:  # of no rows or no columns, which check_array refuses in its words
        X = np.empty(X.shape)
    elif hasattr(X, "detach"):  # a tensor
        X = X.detach().cpu().numpy()
    is_column = type(X).__name__ in ("Series", "ChunkedArray")
    if is_column or records is not None or hasattr(X, "collect_schema"):
        raise TypeError(
            f"Got X of type {type(X).__name__}, but expected a table in memory. Pass "
            "pandas.DataFrame(X) for records, pandas.DataFrame([record]) for one, "
            "X.collect() for a LazyFrame, X.to_frame() for a column."
        )
    check_unmasked("X", X)
    if isinstance(X, list | tuple) and np.asarray(X).dtype.kind in "US":
        X = np.asarray(X, dtype=object)  # or its numbers would become text
    return check_array(
        X, dtype=None, ensure_min_samples=min_rows, input_name="X", **ANY_NUMBER
    )


def records_of(X: Any) -> list[Any] | None:
    """Rows as dicts: of one, of a list, of a Series that is a row, or of structs."""
    if type(X).__name__ == "Series":
        X = X.to_dict() if package_of(X) == "pandas" else X.to_list()
    if isinstance(X, Mapping) and not issparse(X):
        X = [X]
    rows = X if isinstance(X, list) and X else [None]
    return rows if all(isinstance(row, Mapping) for row in rows) else None


def _from_records(records: list[Any], names: list[Any]) -> NDArray[Any]:
    """Records as an array of objects, in the order of the columns in fit."""
    for row, record in enumerate(records):
        if differ := sorted(set(names).symmetric_difference(record), key=str):
            raise ValueError(
                f"Got row {row} of X, in which {differ[:5]} are missing or were not "
                "there in fit. Pass every column of fit and no other, with None for a "
                "gap; or X.to_frame() if this is a column."
            )
    return np.array([[row[name] for name in names] for row in records], dtype=object)


def as_numbers(X: Any) -> Array | None:
    """A table of numbers as one matrix, copied only if it must be; None for others."""
    if package_of(X) == "pandas" and all(
        isinstance(dtype, np.dtype) and dtype.kind in "fiu" for dtype in X.dtypes
    ):
        X = X.to_numpy(dtype=np.float64)
    if not isinstance(X, np.ndarray) or X.dtype.kind not in "fiub":
        return None
    # One order in memory, or sums over rows would differ between kinds of tables.
    return np.ascontiguousarray(X, dtype=np.float64)


def read_columns(X: Any, names: Sequence[Any] = ()) -> list[Column]:
    """Columns of a table by what their values are; an array may be given names."""
    labels, numbers = column_names(X), as_numbers(X)
    names = names or labels
    if numbers is not None:
        both = zip(names, numbers.T, strict=True)
        return [Column(name, "numbers", values) for name, values in both]
    columns = [X[label] for label in labels] if package_of(X) else X.T
    return [_from_series(c, name) for c, name in zip(columns, names, strict=True)]


def _from_series(series: Any, name: Any) -> Column:
    """A column of a table: an array if it can be, else a list of Python objects."""
    dtype = str(series.dtype if hasattr(series, "dtype") else series.type).lower()
    categorical = dtype.startswith(("cat", "enum", "dict"))
    array = np.asarray(series)
    code = "O" if categorical else array.dtype.kind
    if code in "fiub":
        kind = "truth values" if code == "b" else "numbers"
        return Column(name, kind, array.astype(np.float64))
    if code == "M" and "zone='" not in dtype and "tz=" not in dtype:
        return Column(name, "dates", seconds(array))
    values = series.to_pylist() if hasattr(series, "to_pylist") else list(series)
    return _from_objects(values, name, categorical)


def _from_objects(values: list[Any], name: Any, categorical: bool = False) -> Column:
    """A column of Python objects, by what they are."""
    present = np.array([not is_missing(value) for value in values], dtype=bool)
    known = [value for value, there in zip(values, present, strict=True) if there]
    kinds = {_kind(cls) for cls in set(map(type, known))} or {"numbers"}
    if kinds == NUMBER_LIKE:
        kinds = {"numbers"}
    if categorical and not kinds <= NUMBER_LIKE:
        kinds = {"text"}  # categories of odd types by their text
    if len(kinds) > 1 or "" in kinds:
        wanted = _kind(type(known[0])) or "none"
        mixed = [present[i] and _kind(type(v)) != wanted for i, v in enumerate(values)]
        row = mixed.index(True)
        raise ValueError(
            f"Got {values[row]!r} in column {name!r}, row {row}, but expected numbers, "
            "truth values, dates or text, one of them in all rows (the first is "
            f"{known[0]!r}). Convert the column to text with astype(str), or to "
            "numbers with pandas.to_numeric."
        )
    (kind,) = kinds
    zones = {str(getattr(v, "tzinfo", None)) for v in known if kind == "dates"}
    if len(zones) > 1:
        raise ValueError(
            f"Got dates of the time zones {sorted(zones)} in column {name!r}, but "
            "expected one for all, by whose clock dates are read. Convert them, for "
            "example with pandas.to_datetime(..., utc=True)."
        )
    converted: Any = list(map(str, known)) if kind == "text" else known
    if kind == "dates":
        converted = seconds(known)
    elif kind == "lengths of time":
        kind, converted = "numbers", np.array(known, "timedelta64[us]") / SECOND
    filled = np.full(len(values), np.nan, dtype="O" if kind == "text" else np.float64)
    filled[present] = converted
    return Column(name, kind, filled, categorical)


def _kind(cls: type) -> str:
    """Kind of a column of objects of one type; "" for a type that is not known."""
    return next((kind for kind, types in KINDS.items() if issubclass(cls, types)), "")


def _as_dates(column: Column) -> Column:
    """Text that is all dates as dates; any other column as it is."""
    gap = column.gap()
    found = parse_dates(column.values[~gap]) if column.kind == "text" else None
    if not found:
        return column
    filled = np.full(len(gap), None)
    filled[~gap] = found
    return _from_objects(filled.tolist(), column.name)


@dataclass(frozen=True)
class ColumnReader:
    """How one column becomes one number per row, as learned from training rows."""

    kind: str  # of the values, of KINDS; "unused" for a column that is left out
    gaps: bool = False  # whether there were some
    levels: list[Any] = field(default_factory=list)  # of a category, None for a gap

    def read(self, column: Column, strict: bool = True) -> tuple[Array, Mask]:
        """Numbers (n,), and where a value never occurred in training."""
        if self.kind == "unused":
            return np.zeros(len(column.values)), np.zeros(len(column.values), bool)
        column = _as_dates(column) if self.kind == "dates" else column
        gap, kinds = column.gap(), {column.kind, self.kind}
        if strict and not gap.all() and len(kinds) > 1 and kinds != NUMBER_LIKE:
            bad = ~gap
            if kinds == {"dates", "text"}:
                bad[bad] = [parse_dates([text]) is None for text in column.values[bad]]
            hint = "Convert it with pandas.to_numeric, to_datetime or astype(str)."
            column.refuse(int(np.argmax(bad)), f"{self.kind}, as in fit", hint)
        if not self.levels:
            return column.values, gap & (not self.gaps)
        place = {level: float(k) for k, level in enumerate(self.levels)}
        keys = (None if v != v else v for v in column.values.tolist())
        codes = np.array([place.get(key, np.nan) for key in keys])
        return np.nan_to_num(codes), np.isnan(codes)

    def show(self, place: int) -> str:
        """A level as text."""
        level = self.levels[place]
        if level is None or isinstance(level, str):
            return "missing" if level is None else level
        if self.kind == "dates":
            return str(np.datetime64(int(level), "s"))
        return str(bool(level)) if self.kind == "truth values" else f"{level:.15g}"


def fit_reader(column: Column, named: bool, remarks: list[str]) -> ColumnReader:
    """How to read a column of training rows; remarks if that may surprise."""
    by_type = not named and not column.categorical
    column = _as_dates(column) if by_type else column
    gap, remark = column.gap(), ""
    gaps = bool(gap.any())
    if by_type and column.kind in ("numbers", "dates") and not gap.all():
        return ColumnReader(column.kind, gaps)
    known = column.values[~gap].tolist()
    levels = sorted(set(known))
    if not known:
        remark = "it has no values in the training rows. Drop it from X"
    elif column.kind == "text" and not named:
        if len(levels) > max(NEARLY_UNIQUE * len(known), ENOUGH_FOR_AN_ID):
            remark = (
                "nearly all of its texts differ, which says nothing about new rows. "
                "Drop it from X, convert it if these are numbers or dates, or name it "
                "in categorical_features to use it"
            )
        elif by_type and np.mean([bool(MISREAD.fullmatch(t)) for t in levels]) > 0.5:
            remarks.append(
                f"Took column {column.name!r} as categories, although its texts look "
                "like numbers or dates. Convert it, for example with "
                "pandas.to_datetime, or name it in categorical_features."
            )
    if remark:
        remarks.append(f"Left column {column.name!r} out: {remark}.")
        return ColumnReader("unused")
    levels += [None] if gaps else []
    return ColumnReader(column.kind, gaps, levels)


def read_table(
    X: Any,
    readers: list[ColumnReader],
    plain: bool = False,
    names: Sequence[Any] = (),
) -> tuple[Array, Mask]:
    """Numbers (n, n_columns), and where a value never occurred in training.

    ``plain``: all columns are numbers without gaps, for which there is a short way.
    """
    numbers = as_numbers(X) if plain else None
    if numbers is not None:
        codes, unseen = numbers, np.isnan(numbers)
    else:
        # An array of numbers knows no other types: it may stand for any column.
        strict = not isinstance(X, np.ndarray) or X.dtype.kind not in "fiub"
        both = zip(readers, read_columns(X, names), strict=True)
        found = [reader.read(column, strict) for reader, column in both]
        codes, unseen = map(np.column_stack, zip(*found, strict=True))
    for row, j in np.argwhere(np.isinf(codes)).tolist():
        column = Column((names or column_names(X))[j], "numbers", codes[:, j])
        hint = "Leave the row out, or replace the value by NaN, which stands for a gap."
        column.refuse(row, "finite numbers", hint)
    return codes, unseen
