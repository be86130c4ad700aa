"""X as people have it → a matrix of finite numbers for the networks.

An array of numbers without gaps stays as it is. Categories, gaps and dates become
numbers by rules that are learned from training rows. Values that never occurred there
are marked, so that prediction can count them as lack of data.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_array

from .._compat import ANY_NUMBER
from .._validation import raise_for
from .columns import (
    Array,
    Categories,
    Codes,
    Encoded,
    FewValues,
    ManyValues,
    Mask,
    Numbers,
    Output,
)
from .dates import Dates, Difference, date_format, parse_dates, seconds_since_1970
from .frames import Column, column_names, is_frame, read_columns

Block = Numbers | FewValues | ManyValues | Dates | Difference

FEW_VALUES = 20  # categories up to which each has an input of its own
NEARLY_UNIQUE = 0.9  # share of distinct texts from which a column is an ID
ENOUGH_FOR_AN_ID = 20  # texts; fewer may all differ by chance
DATES_IN_ALL_PAIRS = 4  # dates of which all pairs are subtracted; of more, neighbours


class EncodedRows(NamedTuple):
    """Inputs of the networks for some rows."""

    values: Array  # (n, p)
    unseen: Mask | None  # (n, p), inputs that rest on unseen values; None if none do


@dataclass(frozen=True)
class TableEncoder:
    """How the columns of X become the inputs of the networks.

    Plain data: numbers, strings, lists and arrays, in small dataclasses.
    """

    names: list[str]  # of the columns of X, x0 … where they have none
    blocks: list[Block]  # each column that is used is in one of them

    @property
    def is_identity(self) -> bool:
        """Whether the inputs are the columns of X, all of them numbers without gaps."""
        return all(
            isinstance(block, Numbers) and not block.flagged for block in self.blocks
        ) and len(self.outputs()) == len(self.names)

    def outputs(self) -> list[Output]:
        """Inputs of the networks, with the columns that they come from."""
        outputs = self._unordered()
        return [outputs[i] for i in self.order()]

    def order(self) -> list[int]:
        """Numbers of the outputs of all blocks, in the order of the inputs."""
        outputs = self._unordered()
        return sorted(
            range(len(outputs)), key=lambda i: (outputs[i].rank, outputs[i].positions)
        )

    def _unordered(self) -> list[Output]:
        return [out for block in self.blocks for out in block.outputs(self.names)]

    def read(self, X: Any) -> "TableRows":
        """Rows of a table, checked and ready to be encoded a few at a time."""
        X = as_table(X)
        if is_plain(X) and self.is_identity:
            check_finite(X)
            return TableRows(self, X, {})
        columns = read_columns(X)
        codes = {
            j: block.read(columns[j])
            for block in self.blocks
            if not isinstance(block, Difference)
            for j in block.positions
        }
        return TableRows(self, np.empty((len(columns[0].values), 0)), codes)

    def donors(self) -> Array:  # (N_DONORS, p)
        """Inputs for values that occurred in training, one row per draw."""
        return np.hstack([block.donors for block in self.blocks])[:, self.order()]

    def alternatives(self, values: Array, unseen: Mask) -> Iterator[Array]:
        """The rows with their unseen values replaced by known ones, draw by draw."""
        for donor in self.donors():
            yield np.where(unseen, donor, values)

    def n_known(self, unseen: Mask) -> NDArray[np.int64]:  # (n, p) → (n,)
        """How many values are known where one is not: of such columns the fewest."""
        counts = np.array([out.n_values for out in self.outputs()])
        fewest: NDArray[np.int64] = np.where(unseen, counts, counts.max()).min(axis=1)
        return fewest


class TableRows:
    """Rows of one table: an array of numbers as it came, or codes of each column."""

    def __init__(
        self, encoder: TableEncoder, plain: NDArray[Any], codes: dict[int, Codes]
    ) -> None:
        self.encoder, self.plain, self.codes = encoder, plain, codes
        self._order, self._is_identity = encoder.order(), encoder.is_identity

    def __len__(self) -> int:
        return len(self.plain)

    def encode(self, rows: slice = slice(None)) -> EncodedRows:
        """Inputs of the networks for some of the rows."""
        codes = {j: column[rows] for j, column in self.codes.items()}
        if self._is_identity and not codes:
            plain = self.plain[rows]
            if not np.isnan(plain).any():
                return EncodedRows(plain, None)
            codes = dict(enumerate(plain.T))
        blocks = self.encoder.blocks
        return _joined(
            [block.encode(*(codes[j] for j in block.positions)) for block in blocks],
            self._order,
        )


def _joined(parts: Sequence[Encoded], order: list[int]) -> EncodedRows:
    """Inputs of all blocks in their order."""
    unseen = np.hstack([part.unseen for part in parts])[:, order]
    values = np.hstack([part.values for part in parts])[:, order]
    return EncodedRows(values, unseen if unseen.any() else None)


def fit_table(
    X: Any, y: Array, weight: Array, categorical_features: Any, seed: int
) -> tuple[TableEncoder, Array]:
    """Learn the encoding from training rows; return it with their inputs (n, p).

    Inputs of training rows that rest on y are cross-fitted, so that no row sees its
    own y: encoding the same rows again gives slightly different ones.
    """
    X = as_table(X)
    named = categorical_positions(X, categorical_features)
    names = [
        n if isinstance(n, str) else f"x{j}" for j, n in enumerate(column_names(X))
    ]
    rng = np.random.default_rng(seed)
    if is_plain(X) and not named:
        check_finite(X)
        plain = np.array(X, dtype=np.float64, order="C")
        columns = list(plain.T)
        numbers = Numbers.fit(list(range(len(names))), columns, rng)
        encoder = TableEncoder(names, [numbers])
        if encoder.is_identity:
            return encoder, plain
        return encoder, _joined([numbers.encode(*columns)], encoder.order()).values
    fit = _Fit(y, weight, rng)
    for position, column in enumerate(read_columns(X)):
        fit.add(position, column, position in named)
    return fit.finish(names)


class _Fit:
    """Blocks of a table and the inputs of its training rows, column by column."""

    def __init__(self, y: Array, weight: Array, rng: np.random.Generator) -> None:
        self.y, self.weight, self.rng = y, weight, rng
        self.numbers: dict[int, Array] = {}
        self.dates: dict[int, Array] = {}
        self.blocks: list[Block] = []
        self.parts: list[Encoded] = []

    def add(self, position: int, column: Column, named: bool) -> None:
        """Learn one column by its kind."""
        if column.kind == "empty" or column.gap.all():
            _warn_left_out(column.label, "it has no values in the training rows")
        elif named or column.categorical or column.kind == "boolean":
            self._categorical(position, column)
        elif column.kind == "number":
            self.numbers[position] = column.values
        elif column.kind == "date":
            self._date(position, "iso", seconds_since_1970(column.values))
        else:
            self._text(position, column)

    def _text(self, position: int, column: Column) -> None:
        """Dates, categories, or an ID."""
        present = ~column.gap
        texts = column.values[present].tolist()
        form = date_format(texts)
        if form is not None:
            dates = np.full(len(present), "NaT", dtype="datetime64[us]")
            dates[present] = parse_dates(texts, form)
            self._date(position, form, seconds_since_1970(dates))
            return
        n, distinct = len(texts), len(set(texts))
        if n > ENOUGH_FOR_AN_ID and distinct > NEARLY_UNIQUE * n:
            _warn_left_out(
                column.label,
                f"{distinct} of its {n} texts differ (for example {texts[0]!r}), so "
                "that it tells rows apart and says nothing about new ones. Convert it "
                "if these are numbers, or name it in categorical_features to use it",
            )
            return
        self._categorical(position, column)

    def _date(self, position: int, form: str, seconds: Array) -> None:
        block = Dates.fit([position], form, seconds, self.rng)
        self.dates[position] = seconds
        self._keep(block, block.encode(seconds))

    def _categorical(self, position: int, column: Column) -> None:
        categories = Categories.fit(column)
        codes = categories.read(column)
        if len(categories) <= FEW_VALUES:
            block = FewValues.fit([position], categories, self.rng)
            self._keep(block, block.encode(codes))
        else:
            self._keep(
                *ManyValues.fit(
                    [position], categories, codes, self.y, self.weight, self.rng
                )
            )

    def _keep(self, block: Block, inputs: Encoded) -> None:
        self.blocks.append(block)
        self.parts.append(inputs)

    def finish(self, names: list[str]) -> tuple[TableEncoder, Array]:
        """Numbers together, then differences of dates."""
        if self.numbers:
            columns = list(self.numbers.values())
            numbers = Numbers.fit(list(self.numbers), columns, self.rng)
            self._keep(numbers, numbers.encode(*columns))
        in_pairs = len(self.dates) <= DATES_IN_ALL_PAIRS
        pairs = combinations(self.dates, 2) if in_pairs else pairwise(self.dates)
        for i, j in pairs:
            both = self.dates[i], self.dates[j]
            difference = Difference.fit([i, j], *both, self.rng)
            if difference is not None:
                self._keep(difference, difference.encode(*both))
        if not self.blocks:
            raise ValueError(
                f"Got X with the columns {names}, none of which can be used: each is "
                "empty or an ID. Add a column, or name one in categorical_features."
            )
        encoder = TableEncoder(names, self.blocks)
        return encoder, _joined(self.parts, encoder.order()).values


def _warn_left_out(label: str, reason: str) -> None:
    warnings.warn(
        f"Left {label} out: {reason}. Drop it from X to silence this warning.",
        UserWarning,
        stacklevel=7,
    )


def as_table(X: Any) -> Any:
    """X as a frame, or as an array of numbers, text or objects with two axes."""
    if is_frame(X):
        for n, what in zip(X.shape, ("sample(s)", "feature(s)"), strict=True):
            if n == 0:
                raise ValueError(
                    f"Found array with 0 {what} (shape={X.shape}) while a minimum of 1 "
                    "is required. Pass a table that is not empty."
                )
        return X
    if hasattr(X, "collect_schema"):
        raise TypeError(
            f"Got X of type {type(X).__name__}, but expected a table in memory. Pass "
            "X.collect()."
        )
    if isinstance(X, list | tuple) and np.asarray(X).dtype.kind in "US":
        X = np.asarray(X, dtype=object)  # or its numbers would become text
    return check_array(X, dtype=None, input_name="X", **ANY_NUMBER)


def is_plain(X: Any) -> bool:
    """Whether a table is an array of numbers."""
    return isinstance(X, np.ndarray) and X.dtype.kind in "fiub"


def check_finite(X: NDArray[Any]) -> None:
    """Raise for the first infinite number of an array."""
    with np.errstate(over="ignore", invalid="ignore"):
        if X.dtype.kind != "f" or np.isfinite(X.sum(dtype=np.float64)):
            return
    infinite = np.argwhere(np.isinf(X))
    if len(infinite):
        row, column = infinite[0].tolist()
        Column(f"column {column}", "number", X[:, column]).refuse_infinity(row)


def categorical_positions(X: Any, categorical_features: Any) -> set[int]:
    """Positions of the columns that the user named as categorical."""
    names = column_names(X)
    if isinstance(categorical_features, str):
        if categorical_features == "from_dtype":
            return set()
        _refuse_categorical(categorical_features, names)
    items = np.asarray(categorical_features)
    if items.ndim != 1:
        _refuse_categorical(categorical_features, names)
    if items.dtype == bool:
        if len(items) != len(names):
            _refuse_categorical(categorical_features, names)
        return set(np.flatnonzero(items).tolist())
    positions = set()
    for item in list(categorical_features):
        if isinstance(item, str) and item in names:
            positions.add(names.index(item))
        elif isinstance(item, int | np.integer) and -len(names) <= item < len(names):
            positions.add(int(item) % len(names))
        else:
            _refuse_categorical(categorical_features, names)
    return positions


def _refuse_categorical(value: Any, names: list[Any]) -> NoReturn:
    raise_for(
        "categorical_features",
        value,
        f"'from_dtype', or names, positions or a mask of the columns {names}",
        "Use 'from_dtype' if unsure: text, truth values and categories are recognised.",
    )
