"""Training rows → how each column of their table is encoded."""

import re
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any, NoReturn

import numpy as np
from scipy.stats import norm

from .._validation import raise_for
from .columns import (
    DONOR_LEVELS,
    Array,
    Categories,
    Codes,
    Encoded,
    FewValues,
    ManyValues,
    Mask,
    Numbers,
    remainders,
)
from .dates import (
    IN_ZONE,
    Dates,
    Difference,
    date_format,
    is_date,
    parsed,
    seconds_since_1970,
    usual_date_format,
)
from .frames import Column, column_names, read_columns
from .table import Block, TableEncoder, check_finite, is_plain, joined

FEW_VALUES = 20  # categories up to which each has an input of its own
NEARLY_UNIQUE = 0.9  # share of distinct texts from which a column is an ID
ENOUGH_FOR_AN_ID = 20  # texts; fewer may all differ by chance
ENOUGH_TO_TELL = 1_000  # texts, whether most are numbers or dates
MOSTLY = 0.2  # share of texts that may be something else
DECIMAL = re.compile(r"[+-]?\d*[.,]\d+")  # not of a code
NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?")
DATES_IN_ALL_PAIRS = 4  # dates of which all pairs are subtracted; of more, neighbours


def fit_table(
    X: Any,  # of as_table
    y: Array,
    weight: Array,
    categorical_features: Any,
    seed: int,
    rows: Mask | None = None,
) -> tuple[TableEncoder, Array]:
    """Learn the encoding from training rows; return it with their inputs (n, p).

    ``rows`` says which rows of X are those of y and weight. Inputs that rest on y are
    cross-fitted, so that no training row sees its own y: encoding the same rows again
    gives slightly different ones.
    """
    named = categorical_positions(X, categorical_features)
    names = [
        name if isinstance(name, str) else f"x{j}"
        for j, name in enumerate(column_names(X))
    ]
    kept = slice(None) if rows is None else rows
    rng = np.random.default_rng(seed)
    if is_plain(X) and not named:
        check_finite(X)
        plain = np.array(X[kept], dtype=np.float64, order="C")
        if not np.isnan(plain).any():
            numbers = Numbers.fit(list(range(len(names))), list(plain.T), rng)
            return TableEncoder(names, [numbers], []), plain
    fit = _Fit(y, weight, rng)
    for position, column in enumerate(read_columns(X)):
        part = replace(column, values=column.values[kept])
        fit.add(position, part, position in named)
    return fit.finish(names)


def plain_encoder(names: list[str], mean: Array, scale: Array) -> TableEncoder:
    """The encoding of numbers without gaps, known by mean and standard deviation."""
    draws = norm.ppf(DONOR_LEVELS)
    rng, both = np.random.default_rng(0), zip(mean, scale, strict=True)
    donors = np.array([m + s * rng.permutation(draws) for m, s in both]).T
    positions = list(range(len(names)))
    return TableEncoder(names, [Numbers(positions, mean.copy(), [], donors)], [])


class _Fit:
    """Blocks of a table and the inputs of its training rows, column by column."""

    def __init__(self, y: Array, weight: Array, rng: np.random.Generator) -> None:
        self.y, self.weight, self.rng = y, weight, rng
        self.numbers: dict[int, Array] = {}
        self.dates: dict[int, Array] = {}
        self.many: dict[int, tuple[Categories, Codes]] = {}
        self.blocks: list[Block] = []
        self.parts: list[Encoded] = []
        self.remarks: list[str] = []

    def add(self, position: int, column: Column, named: bool) -> None:
        """Learn one column by its kind."""
        if column.kind == "empty" or column.gap.all():
            self._leave_out(column, "it has no values in the training rows")
        elif named or column.kind == "boolean":
            self._categorical(position, column)
        elif column.categorical:
            if column.kind != "text" or not self._is_id(column):
                self._categorical(position, column)
        elif column.kind == "number":
            self.numbers[position] = column.values
        elif column.kind == "date":
            form = f"iso{IN_ZONE}{column.zone}" if column.zone else "iso"
            self._date(position, form, seconds_since_1970(column.values))
        else:
            self._text(position, column)

    def _text(self, position: int, column: Column) -> None:
        """Dates, categories, or an ID."""
        form = date_format(column.values[~column.gap].tolist())
        if form is not None:
            self._date(position, form, seconds_since_1970(parsed(column, form)))
        elif not self._is_id(column):
            self.remarks += misread_text(column)
            self._categorical(position, column)

    def _is_id(self, column: Column) -> bool:
        """Leave out text that is nearly unique, and say so."""
        texts = column.values[~column.gap].tolist()
        n, distinct = len(texts), len(set(texts))
        if n <= ENOUGH_FOR_AN_ID or distinct <= NEARLY_UNIQUE * n:
            return False
        self._leave_out(
            column,
            f"{distinct} of its {n} texts differ (for example {texts[0]!r}), so that "
            "it tells rows apart and says nothing about new ones. Convert it if these "
            "are numbers, or name it in categorical_features to use it",
        )
        return True

    def _leave_out(self, column: Column, reason: str) -> None:
        remedy = "Drop it from X to silence this warning."
        self.remarks.append(f"Left {column.label} out: {reason}. {remedy}")

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
            self.many[position] = categories, codes

    def _keep(self, block: Block, inputs: Encoded) -> None:
        self.blocks.append(block)
        self.parts.append(inputs)

    def finish(self, names: list[str]) -> tuple[TableEncoder, Array]:
        """Numbers together, differences of dates, then columns of many categories."""
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
        if self.many:
            others = np.hstack(
                [np.empty((len(self.y), 0))] + [p.values for p in self.parts]
            )
            folds = remainders(others, self.y, self.weight, self.rng)
            for position, (categories, codes) in self.many.items():
                self._keep(*ManyValues.fit([position], categories, codes, folds))
        if not self.blocks:
            raise ValueError(
                f"Got X with the columns {names}, none of which can be used: each is "
                "empty or an ID. Add a column, or name one in categorical_features."
            )
        encoder = TableEncoder(names, self.blocks, self.remarks)
        return encoder, joined(self.parts, encoder.order()).values


def misread_text(column: Column) -> list[str]:
    """A remark on text that is mostly numbers with decimals, or mostly dates."""
    rows = np.flatnonzero(~column.gap)[:ENOUGH_TO_TELL]
    texts = column.values[rows].tolist()
    form = usual_date_format(texts)
    decimals = sum(bool(DECIMAL.fullmatch(t.strip())) for t in texts)
    if form is None and decimals < 0.5 * len(texts):
        return []
    what, to = ("dates", "to_datetime") if form else ("numbers", "to_numeric")
    odd = [
        (i, t)
        for i, t in zip(rows.tolist(), texts, strict=True)
        if not (is_date(t, form) if form else NUMBER.fullmatch(t.strip()))
    ]
    if len(odd) > MOSTLY * len(texts):
        return []
    others = f", but not {odd[0][1]!r} in row {odd[0][0]}" if odd else ""
    example = texts[0] if not odd or odd[0][0] else texts[-1]
    return [
        f"Took {column.label} as categories, although its texts look like {what} (for "
        f"example {example!r}{others}). Convert "
        f"it with pandas.{to}(..., errors='coerce'), which makes gaps of the rest, or "
        "name it in categorical_features to silence this warning."
    ]


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
