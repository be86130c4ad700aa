"""Tables of users → columns → one number per row, whatever library they are from.

A number stays what it is, a category becomes the place of its level (a gap is a level
too), a date the seconds since 1970. pandas, polars and pyarrow are never imported.
"""

import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from numbers import Real
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.utils import check_array

from .._validation import ANY_NUMBER, check_unmasked

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
NEARLY_UNIQUE, ENOUGH_FOR_AN_ID = 0.9, 20  # share of distinct texts, and number of rows
NUMBER_OR_DATE = re.compile(
    r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?|\d{1,4}([-/.])\d{1,2}\4\d{1,4}\b.*"
)
ISO_DATE = re.compile(
    r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:?\d\d)?)?"
)
# Month before day, as pandas reads it, unless some row has a month above 12.
DATE_FORMATS = ("%Y/%m/%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%d %b %Y", "%b %d, %Y")
FORMATS = ("iso", *(d + t for d in DATE_FORMATS for t in ("", " %H:%M", " %H:%M:%S")))


class Column(NamedTuple):
    """One column: str or None; all else float64 or NaN, dates in seconds since 1970."""

    name: Any  # or position
    kind: str  # of KINDS
    values: NDArray[Any]  # (n,)
    categorical: bool = False  # by its type
    zone: str | None = None  # in which the clock of all dates was

    def gap(self) -> Mask:
        """Where a value is missing."""
        missing = [v is None for v in self.values] if self.kind == "text" else None
        return np.isnan(self.values) if missing is None else np.array(missing)

    def refuse(self, row: int, expected: str, hint: str) -> NoReturn:
        """Raise for the value in a row: where, what was found, what to do."""
        value = self.values[row]
        value = np.datetime64(int(value), "s") if self.kind == "date" else value
        value = value.item() if isinstance(value, np.generic) else value
        raise ValueError(
            f"Got {value!r} in column {self.name!r}, row {row}, but expected "
            f"{expected}. {hint}"
        )


def date_format(texts: Sequence[str]) -> str | None:
    """The format in which all texts are dates, "iso" for ISO 8601; None if none."""
    for form in FORMATS:
        # The first text rules most formats out at once.
        if all(parse_dates(part, form) is not None for part in (texts[:1], texts)):
            return form
    return None


def parse_dates(texts: Sequence[str], form: str) -> Array | None:
    """Texts as seconds since 1970; None unless all are dates of this format."""
    if form == "iso" and not all(map(ISO_DATE.fullmatch, texts)):
        return None
    try:
        if form == "iso":
            return seconds([datetime.datetime.fromisoformat(text) for text in texts])
        return seconds([datetime.datetime.strptime(text, form) for text in texts])
    except ValueError:
        return None


def seconds(dates: Any) -> Array:
    """Seconds since 1970 by the clock, whatever its zone; NaN for NaT."""
    if isinstance(dates, list):
        dates = [d.replace(tzinfo=None) if hasattr(d, "tzinfo") else d for d in dates]
    found = np.asarray(dates, dtype="datetime64[us]")
    return np.where(np.isnat(found), np.nan, found.astype(np.int64) / 1e6)


def as_table(X: Any, min_rows: int = 1) -> Any:
    """X as a frame, or as an array of numbers, text or objects with two axes."""
    is_array = type(X) is np.ndarray and X.ndim == 2 and X.dtype.kind in "fiub"
    is_frame = bool(package_of(X)) and len(getattr(X, "shape", ())) == 2
    if (is_array or is_frame) and X.shape[0] >= min_rows and X.shape[1]:
        names = column_names(X) if is_frame else []
        if len(set(names)) < len(names):
            second = next(j for j, name in enumerate(names) if name in names[:j])
            raise ValueError(
                f"Got the column name {names[second]!r} twice (columns "
                f"{names.index(names[second])} and {second}), but expected different "
                "names. Rename or drop one of the two."
            )
        return X
    if is_frame:  # of no rows or no columns, which check_array refuses in its words
        X = np.empty(X.shape)
    elif hasattr(X, "detach"):  # a tensor
        X = X.detach().cpu().numpy()
    first = X[0] if isinstance(X, list | tuple) and len(X) else X
    if (isinstance(first, Mapping) and not issparse(X)) or (
        hasattr(X, "collect_schema") or type(X).__name__ in ("Series", "ChunkedArray")
    ):
        raise TypeError(
            f"Got X of type {type(X).__name__}, but expected a table of rows and "
            "columns in memory. Pass pandas.DataFrame(X) for records, "
            "pandas.DataFrame([record]) for one of them, X.collect() for a LazyFrame, "
            "X.to_frame() for one column, table[[i]] or table.iloc[[i]] for one row."
        )
    check_unmasked("X", X)
    if isinstance(X, list | tuple) and np.asarray(X).dtype.kind in "US":
        X = np.asarray(X, dtype=object)  # or its numbers would become text
    return check_array(
        X, dtype=None, ensure_min_samples=min_rows, input_name="X", **ANY_NUMBER
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


def refuse_infinity(numbers: Array, names: Sequence[Any]) -> None:
    """Raise for the first number that is infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(numbers.sum()):
            return
    for row, j in np.argwhere(np.isinf(numbers)).tolist():
        Column(names[j], "number", numbers[:, j]).refuse(
            row,
            "finite numbers",
            "Leave the row out, or replace the value by NaN, which is taken as a gap.",
        )


def read_columns(X: Any) -> list[Column]:
    """Columns of a table by what their values are."""
    names, numbers, package = column_names(X), as_numbers(X), package_of(X)
    if numbers is not None:
        both = zip(names, numbers.T, strict=True)
        return [Column(name, "number", values) for name, values in both]
    if not package:
        return [_from_objects(list(X[:, j]), name) for j, name in enumerate(names)]
    if package == "pandas":
        columns = [series for _, series in X.items()]
    else:
        columns = X.get_columns() if package == "polars" else X.columns
    return [_from_series(c, name) for c, name in zip(columns, names, strict=True)]


def _from_series(series: Any, name: Any) -> Column:
    """A column of a frame: an array if it can be, else a list of Python objects."""
    dtype = str(series.dtype if hasattr(series, "dtype") else series.type).lower()
    categorical = dtype.startswith(("cat", "enum", "dict"))
    array = np.asarray(series)
    code = "O" if categorical else array.dtype.kind
    if code in "fiub":
        kind = "boolean" if code == "b" else "number"
        return Column(name, kind, array.astype(np.float64))
    if code == "M" and "zone='" not in dtype and "tz=" not in dtype:
        return Column(name, "date", seconds(array))
    as_list = series.to_pylist if hasattr(series, "to_pylist") else series.to_list
    return _from_objects(as_list(), name, categorical)


def _from_objects(values: list[Any], name: Any, categorical: bool = False) -> Column:
    """A column of Python objects, by what they are."""
    present = np.array([not _is_gap(value) for value in values], dtype=bool)
    known = [value for value, there in zip(values, present, strict=True) if there]
    kinds = {_kind(cls) for cls in set(map(type, known))} or {"number"}
    if kinds == {"boolean", "number"}:
        kinds = {"number"}
    if categorical and not kinds <= {"boolean", "number"}:
        kinds = {"text"}  # categories of odd types by their text
    if len(kinds) > 1 or "" in kinds:
        _refuse_mixture(name, values, np.flatnonzero(present).tolist())
    (kind,) = kinds
    filled = np.full(len(values), None if kind == "text" else np.nan)
    filled[present] = _TYPES[kind][1](known)
    dates = known if kind == "date" else []
    zones = {_zone_name(getattr(date, "tzinfo", None)) for date in dates}
    zone = zones.pop() if len(zones) == 1 else None
    kind = "number" if kind == "duration" else kind
    return Column(name, kind, filled, categorical, zone)


def _is_gap(value: Any) -> bool:
    """Whether a value stands for none: None, NaN, NA, NaT."""
    if isinstance(value, _WITH_GAPS):
        return bool(value != value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")


_WITH_GAPS = float | np.floating | Decimal | np.datetime64 | np.timedelta64
_as_floats = partial(np.array, dtype=np.float64)
_TYPES: dict[str, tuple[Any, Callable[[Any], Any]]] = {  # of objects, what they become
    "text": (str, lambda values: list(map(str, values))),
    "boolean": (bool | np.bool_, _as_floats),
    "duration": (
        datetime.timedelta | np.timedelta64,
        lambda values: np.array(values, "timedelta64[us]") / np.timedelta64(1, "s"),
    ),
    "number": (Real | Decimal, _as_floats),
    "date": (datetime.date | np.datetime64, seconds),
}


def _kind(cls: type) -> str:
    """Kind of a column of objects of one type; "" for a type that is not known."""
    return next((kind for kind, of in _TYPES.items() if issubclass(cls, of[0])), "")


def _refuse_mixture(name: Any, values: list[Any], rows: list[int]) -> NoReturn:
    """Raise for a column that is neither numbers nor text nor dates."""
    kinds = [_kind(type(values[i])) for i in rows]
    if "" in kinds:
        row = rows[kinds.index("")]
        raise ValueError(
            f"Got {values[row]!r} in column {name!r}, row {row}, but expected a "
            "number, a truth value, a date or text. Convert the column, for example to "
            "text with astype(str), or drop it."
        )
    first = rows[0]
    other = rows[[kind == kinds[0] for kind in kinds].index(False)]
    raise ValueError(
        f"Got {values[first]!r} (row {first}) and {values[other]!r} (row {other}) "
        f"in column {name!r}, but expected values of one type. Convert the column to "
        "text with astype(str), or to numbers with pandas.to_numeric."
    )


def _zone_name(zone: Any) -> str | None:
    """Name of a time zone; one name for UTC."""
    name = None if zone is None else str(zone)
    return "UTC" if name in ("Etc/UTC", "GMT", "UTC+00:00", "+00:00") else name


KINDS = {
    "number": ("numbers", "Convert it, for example with pandas.to_numeric."),
    "boolean": ("truth values", "Convert it to truth values."),
    "date": ("dates", "Convert it, for example with pandas.to_datetime."),
    "text": ("text", "Convert it to text with astype(str)."),
}


@dataclass(frozen=True)
class ColumnReader:
    """How one column becomes one number per row, as learned from training rows."""

    role: str  # "number", "date", "category", or "none" for a column that is left out
    kind: str  # of the column in training
    gaps: bool  # whether there were some
    levels: list[Any]  # of a category, None for a gap
    form: str = "iso"  # of dates given as text
    zone: str | None = None

    def read(self, column: Column, strict: bool = True) -> tuple[Array, Mask]:
        """Numbers (n,), and where a value never occurred in training."""
        n = len(column.values)
        if self.role == "none":
            return np.zeros(n), np.zeros(n, dtype=bool)
        if self.role == "date" and column.kind == "text":
            column = self._parsed(column)
        kind = self.kind if self.role == "category" else self.role
        present = np.flatnonzero(~column.gap())
        alike = column.kind == kind or {column.kind, kind} == {"number", "boolean"}
        if strict and len(present) and not alike:
            expected, hint = KINDS[kind]
            column.refuse(int(present[0]), f"{expected}, as in fit", hint)
        if self.role == "category":
            place = {level: float(k) for k, level in enumerate(self.levels)}
            keys = (None if v != v else v for v in column.values.tolist())
            codes = np.array([place.get(key, np.nan) for key in keys])
            return np.nan_to_num(codes), np.isnan(codes)
        if self.zone and column.zone not in (None, self.zone):
            raise ValueError(
                f"Got the time zone {column.zone!r} in column {column.name!r}, but "
                f"{self.zone!r} in fit, and the hour is that of the clock. Convert the "
                f"dates with dt.tz_convert({self.zone!r}), or dt.convert_time_zone."
            )
        return column.values, np.isnan(column.values) & (not self.gaps)

    def _parsed(self, column: Column) -> Column:
        """Dates of a column of text, in the format of the training rows or in ISO's."""
        rows = np.flatnonzero(~column.gap())
        texts = column.values[rows].tolist()
        for form in (self.form, "iso"):
            found = parse_dates(texts, form)
            if found is not None:
                filled = np.full(len(column.values), np.nan)
                filled[rows] = found
                return Column(column.name, "date", filled)
        good = [parse_dates([text], self.form) is not None for text in texts]
        column.refuse(
            int(rows[good.index(False)]),
            f"a date in the format of fit ({self.form.replace('iso', 'ISO 8601')})",
            "Correct the value, or leave it empty, which is taken as a gap.",
        )

    def show(self, place: int) -> str:
        """A level as text."""
        level = self.levels[place]
        if level is None or isinstance(level, str):
            return "missing" if level is None else level
        if self.kind == "boolean":
            return str(bool(level))
        is_date = self.kind == "date"
        return str(np.datetime64(int(level), "s")) if is_date else f"{level:.15g}"


def fit_reader(column: Column, named: bool, remarks: list[str]) -> ColumnReader:
    """How to read a column of training rows; remarks if that may surprise."""
    gap = column.gap()
    gaps, by_type = bool(gap.any()), not named and not column.categorical
    role, form, reason = "category", None, ""
    known: list[Any] = []
    if gap.all():
        role, reason = "none", "it has no values in the training rows"
    elif by_type and column.kind in ("number", "date"):
        role = column.kind
    else:
        known = column.values[~gap].tolist()
    distinct = set(known)
    if column.kind == "text" and not named:
        form = date_format(known) if by_type else None
        if form is not None:
            role = "date"
        elif len(distinct) > max(NEARLY_UNIQUE * len(known), ENOUGH_FOR_AN_ID):
            role = "none"
            reason = (
                f"{len(distinct)} of its {len(known)} texts differ (for example "
                f"{known[0]!r}), so that it tells rows apart and says nothing about "
                "new ones. Convert it if these are numbers, or name it in "
                "categorical_features to use it"
            )
        elif by_type:
            remarks += misread_text(column)
    if role == "none":
        remedy = "Drop it from X to silence this warning."
        remarks.append(f"Left column {column.name!r} out: {reason}. {remedy}")
    levels = [*sorted(distinct), None] if gaps else sorted(distinct)
    levels = levels if role == "category" else []
    return ColumnReader(role, column.kind, gaps, levels, form or "iso", column.zone)


def misread_text(column: Column) -> list[str]:
    """A remark on text that is mostly numbers with decimals, or mostly dates."""
    rows = np.flatnonzero(~column.gap())[:1_000].tolist()
    texts = [column.values[i].strip() for i in rows]
    alike = [bool(NUMBER_OR_DATE.fullmatch(text)) for text in texts]
    whole = sum(text.lstrip("+-").isdigit() for text in texts)  # they may be codes
    if sum(alike) < 0.8 * len(texts) or whole > 0.5 * len(texts):
        return []
    example, odd = texts[alike.index(True)], ""
    if not all(alike):
        k = alike.index(False)
        odd = f", but not {texts[k]!r} in row {rows[k]}"
    return [
        f"Took column {column.name!r} as categories, although its texts look like "
        f"numbers or dates (for example {example!r}{odd}). Convert it with "
        "pandas.to_numeric or pandas.to_datetime, where errors='coerce' makes gaps of "
        "the rest, or name it in categorical_features to silence this warning."
    ]
