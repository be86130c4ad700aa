"""A table of the user → columns of numbers, truth values, dates or text.

pandas, polars and pyarrow are recognised without being imported.
"""

import datetime
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from numbers import Real
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

Values = NDArray[Any]

KIND_IN_WORDS = {
    "number": "numbers",
    "boolean": "truth values",
    "date": "dates",
    "text": "text",
    "empty": "no values",
}


@dataclass(frozen=True)
class Column:
    """One column, as errors call it, with its values by kind.

    ========= =================================== =======
    kind      values                              gaps
    ========= =================================== =======
    "number"  float64                             NaN
    "boolean" float64, 0 or 1                     NaN
    "date"    datetime64[us], local time          NaT
    "text"    object, str                         None
    "empty"   float64                             all NaN
    ========= =================================== =======
    """

    label: str
    kind: str
    values: Values  # (n,)
    categorical: bool = False  # by its type
    plain: bool = False  # of an array of numbers, which knows no other types
    zone: str | None = None  # in which the clock of all dates was

    @property
    def gap(self) -> NDArray[np.bool_]:
        """Where a value is missing."""
        if self.kind == "text":
            return np.fromiter((v is None for v in self.values), bool, len(self.values))
        missing: NDArray[np.bool_] = (
            np.isnat(self.values) if self.kind == "date" else np.isnan(self.values)
        )
        return missing

    def refuse(self, row: int, expected: str, hint: str) -> NoReturn:
        """Raise for the value in a row: where, what was found, what to do."""
        value = self.values[row]
        value = value.item() if isinstance(value, np.generic) else value
        raise ValueError(
            f"Got {value!r} in {self.label}, row {row}, but expected {expected}. {hint}"
        )

    def refuse_infinity(self, row: int) -> NoReturn:
        """Raise for a number that is not finite."""
        self.refuse(
            row,
            "finite numbers",
            "Leave the row out, or replace the value by NaN, which is taken as a gap.",
        )

    def refuse_kind(self, expected: str, hint: str) -> None:
        """Raise for a column of another kind than in fit, unless it is empty."""
        present = np.flatnonzero(~self.gap)
        if len(present):
            self.refuse(int(present[0]), f"{KIND_IN_WORDS[expected]}, as in fit", hint)


def column_names(X: Any) -> list[Any]:
    """Names of the columns of a frame, positions in an array."""
    if _module_of(X) == "pyarrow":
        return list(X.column_names)
    names = getattr(X, "columns", None)
    return list(range(np.shape(X)[1])) if names is None else list(names)


def refuse_names(X: Any) -> None:
    """Raise for two columns of one name, and if only some names are text."""
    names = column_names(X)
    odd = [name for name in names if not isinstance(name, str)]
    if odd and len(odd) < len(names):
        raise TypeError(
            f"Got the column name {odd[0]!r} of type {type(odd[0]).__name__} beside "
            "names that are text, but expected names of one type (feature names are "
            "only supported if all are strings). Convert them: X.columns = "
            "X.columns.astype(str)."
        )
    for j, name in enumerate(names):
        if isinstance(name, str) and name in names[:j]:
            raise ValueError(
                f"Got the column name {name!r} twice (columns {names.index(name)} and "
                f"{j}), but expected different names. Rename or drop one of the two."
            )


def is_frame(X: Any) -> bool:
    """Whether X is a table of pandas, polars or pyarrow."""
    return bool(_module_of(X)) and len(getattr(X, "shape", ())) == 2


def read_columns(X: Any) -> list[Column]:
    """Columns of a frame, or of an array of objects or text."""
    labels = [
        f"column {name!r}" if isinstance(name, str) else f"column {j}"
        for j, name in enumerate(column_names(X))
    ]
    if is_frame(X):
        read = _READERS[_module_of(X)]
        columns = [read(X, j, label) for j, label in enumerate(labels)]
    elif X.dtype.kind in "fiub":
        numbers = np.asarray(X, dtype=np.float64)
        columns = [
            Column(label, "number", numbers[:, j], plain=True)
            for j, label in enumerate(labels)
        ]
    else:
        columns = [_from_objects(X[:, j], label) for j, label in enumerate(labels)]
    for column in columns:
        if column.kind == "number" and np.isinf(column.values).any():
            column.refuse_infinity(int(np.flatnonzero(np.isinf(column.values))[0]))
    return columns


def _module_of(X: Any) -> str:
    """Package that a table comes from; "" for what is no table of a known package."""
    package = type(X).__module__.partition(".")[0]
    return package if package in sys.modules and package in _READERS else ""


def _from_pandas(X: Any, position: int, label: str) -> Column:
    series = X.iloc[:, position]
    dtype = series.dtype
    if hasattr(dtype, "categories"):
        codes = series.cat.codes.to_numpy()
        return _from_categories(label, series.cat.categories.tolist(), codes)
    kind = getattr(dtype, "kind", "O")
    if kind in "iufb":
        numbers = series.to_numpy(dtype=np.float64, na_value=np.nan)
        return Column(label, "boolean" if kind == "b" else "number", numbers, False)
    if kind == "M":
        zone = getattr(series.dt, "tz", None)
        if zone is not None:
            series = series.dt.tz_localize(None)
        dates = series.to_numpy(dtype="datetime64[us]")
        return Column(label, "date", dates, zone=_zone_name(zone))
    if kind == "m":
        return _durations(label, series.to_numpy(dtype="timedelta64[us]"))
    return _from_objects(series.to_numpy(dtype=object), label)


def _from_polars(X: Any, position: int, label: str) -> Column:
    polars = sys.modules["polars"]
    series = X.to_series(position)
    dtype = series.dtype
    if dtype.is_numeric() or dtype == polars.Boolean:
        numbers = series.cast(polars.Float64).to_numpy()
        kind = "boolean" if dtype == polars.Boolean else "number"
        return Column(label, kind, np.array(numbers, dtype=np.float64))
    if dtype in (polars.Date, polars.Datetime):
        series = series.cast(polars.Datetime("us"))
        zone = dtype.time_zone if dtype == polars.Datetime else None
        if zone is not None:
            series = X.to_series(position).dt.replace_time_zone(None)
        dates = series.to_numpy().astype("datetime64[us]")
        return Column(label, "date", dates, zone=_zone_name(zone))
    if dtype == polars.Duration:
        return _durations(label, series.to_numpy().astype("timedelta64[us]"))
    if dtype in (polars.Categorical, polars.Enum):
        text = series.cast(polars.String).to_list()
        return replace(_from_objects(_objects(text), label), categorical=True)
    return _from_objects(_objects(series.to_list()), label)


def _from_pyarrow(X: Any, position: int, label: str) -> Column:
    column = X.column(position)
    types = sys.modules["pyarrow"].types
    if types.is_integer(column.type) or types.is_floating(column.type):
        numbers = column.cast("float64").to_numpy()
        return Column(label, "number", np.array(numbers, dtype=np.float64))
    read = _from_objects(_objects(column.to_pylist()), label)
    return replace(read, categorical=types.is_dictionary(column.type))


_READERS = {"pandas": _from_pandas, "polars": _from_polars, "pyarrow": _from_pyarrow}


def _objects(values: Sequence[Any]) -> Values:
    """A 1-D array of objects, also of those that are sequences themselves."""
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


def _durations(label: str, values: Values) -> Column:
    """Lengths of time as numbers of seconds."""
    seconds = values / np.timedelta64(1, "s")
    return Column(label, "number", seconds.astype(np.float64))


def _from_categories(label: str, categories: list[Any], codes: Values) -> Column:
    """A column of a categorical type; categories of odd types by their text."""
    numbers = all(isinstance(c, Real) for c in categories)
    if not numbers:
        categories = [str(c) for c in categories]
    if numbers and categories:
        table = np.array([*categories, np.nan], dtype=np.float64)
        truth = all(isinstance(c, bool) for c in categories)
        return Column(label, "boolean" if truth else "number", table[codes], True)
    return Column(label, "text", _objects([*categories, None])[codes], True)


def _from_objects(values: Values, label: str) -> Column:
    """A column of Python objects, by what they are."""
    types = set(map(type, values))
    if types <= {str, type(None)} and str in types:
        return Column(label, "text", values)
    if types <= {int, float}:
        return Column(label, "number", values.astype(np.float64))
    present = np.fromiter((not _is_gap(v) for v in values), bool, len(values))
    if not present.any():
        return Column(label, "empty", np.full(len(values), np.nan))
    kinds = {_kind(t) for t in map(type, values[present])}
    if kinds == {"boolean", "number"}:
        kinds = {"number"}
    if len(kinds) > 1 or kinds == {""}:
        _refuse_mixture(label, values, present)
    (kind,) = kinds
    dtype, gap, convert = _FORMS[kind]
    filled = np.full(len(values), gap, dtype=dtype)
    filled[present] = [convert(value) for value in values[present]]
    if kind == "duration":
        return _durations(label, filled)
    zones = {_zone_name(getattr(value, "tzinfo", None)) for value in values[present]}
    return Column(label, kind, filled, zone=zones.pop() if len(zones) == 1 else None)


_WITH_GAPS = float | np.floating | Decimal | np.datetime64 | np.timedelta64


def _is_gap(value: Any) -> bool:
    """Whether a value stands for none: None, NaN, NA, NaT."""
    if value is None:
        return True
    if isinstance(value, _WITH_GAPS):
        return bool(value != value)
    return type(value).__name__ in ("NAType", "NaTType")


_TYPES = {
    "text": str,
    "boolean": bool | np.bool_,
    "duration": datetime.timedelta | np.timedelta64,
    "number": Real | Decimal,
    "date": datetime.date | np.datetime64,
}


def _kind(cls: type) -> str:
    """Kind of a column of objects of one type; "" for a type that is not known."""
    return next((kind for kind, of in _TYPES.items() if issubclass(cls, of)), "")


def _refuse_mixture(label: str, values: Values, present: NDArray[np.bool_]) -> NoReturn:
    """Raise for a column that is neither numbers nor text nor dates."""
    rows = np.flatnonzero(present)
    kinds = [_kind(type(values[i])) for i in rows]
    if "" in kinds:
        Column(label, "", values).refuse(
            int(rows[kinds.index("")]),
            "a number, a truth value, a date or text",
            "Convert the column, for example to text with astype(str), or drop it.",
        )
    first = rows[0]
    other = next(i for i, k in zip(rows, kinds, strict=True) if k != kinds[0])
    raise ValueError(
        f"Got {values[first]!r} (row {first}) and {values[other]!r} (row {other}) "
        f"in {label}, but expected values of one type. Convert the column to text with "
        "astype(str), or to numbers with pandas.to_numeric."
    )


def _zone_name(zone: Any) -> str | None:
    """Name of a time zone; one name for UTC."""
    name = None if zone is None else str(zone)
    return "UTC" if name in ("Etc/UTC", "GMT", "UTC+00:00", "+00:00") else name


def local_time(value: Any) -> Any:
    """A date without its time zone: the hour of the day is what the clock showed."""
    if isinstance(value, datetime.datetime):
        return value.replace(tzinfo=None)
    return value


# Of each kind of objects: type of the column, gap, and how a value is converted.
_FORMS: dict[str, tuple[Any, Any, Callable[[Any], Any]]] = {
    "text": (object, None, str),
    "number": (np.float64, np.nan, float),
    "boolean": (np.float64, np.nan, float),
    "date": ("datetime64[us]", "NaT", lambda v: np.datetime64(local_time(v), "us")),
    "duration": ("timedelta64[us]", "NaT", lambda v: np.timedelta64(v, "us")),
}
