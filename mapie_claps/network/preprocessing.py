"""A table as people have it → a matrix of finite numbers for the networks.

First every column is read as one number per row, whatever library the table is from:
a number, the number of a category (gaps are a category too), or seconds since 1970.
Then a ``ColumnTransformer`` makes the inputs of the networks:

- *Numbers* stay as they are. A gap becomes the median (``SimpleImputer``), and columns
  that had gaps in training get a flag (``MissingIndicator``).
- *Dates*, and text that can all be read as dates, become the parts that varied in
  training and the days between two dates (``DateParts``).
- *Text, truth values and categories* get one 0/1 input per frequent level
  (``OneHotEncoder``). A level is frequent if it has 10 rows, or 5 % of the rows where
  that is less, and belongs to the 128 largest of its column. All rare levels share one
  more input. Where they have as many rows together as a frequent level needs, the
  column also gets the cross-fitted mean and the count of each level (``LevelMeans``).
- Text that is nearly unique is left out, with a remark.

The numbers come first and the 0/1 inputs last. Where all columns are numbers without
gaps the ``ColumnTransformer`` passes them through, and ``encode`` does without it.
Values that never occurred in training are marked, so that prediction can count them as
lack of data.
"""

import datetime
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import combinations, pairwise
from numbers import Real
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from scipy.stats import norm, rankdata
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.compose import ColumnTransformer
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils import check_array, column_or_1d

from .._validation import (
    ANY_NUMBER,
    check_real,
    check_unmasked,
    raise_for,
    validate_data,
    warn_if_reordered,
)
from .batches import check_has_target, column, weights

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

MIN_ROWS, MIN_SHARE = 10, 0.05  # that a level of its own needs: the smaller of both
MAX_LEVELS = 128  # 0/1 inputs of one column
N_FOLDS = 5
N_DONORS = 16
ENOUGH_ROWS = 1_000  # of a column, for quantiles, and to tell what its texts are
UNCOUNTABLE = 10**9  # values of a column that is not categorical: no two rows agree
NEARLY_UNIQUE, ENOUGH_FOR_AN_ID = 0.9, 20  # share of distinct texts; fewer may differ
SMALLEST = 1e-152  # range of y, or weight in units of their mean: its square is > 0
DECIMAL = re.compile(r"[+-]?\d*[.,]\d+")  # not of a code
NUMBER_OR_DATE = re.compile(
    r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?|\d{1,4}([-/.])\d{1,2}\4\d{1,4}\b.*"
)
ISO_DATE = re.compile(
    r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:?\d\d)?)?"
)
# Month before day, as pandas reads it, unless some row has a month above 12.
DATE_FORMATS = ("%Y/%m/%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%d %b %Y", "%b %d, %Y")
TIME_FORMATS = ("", " %H:%M", " %H:%M:%S")
FORMATS = ("iso", *(date + time for date in DATE_FORMATS for time in TIME_FORMATS))
DAY = 86_400.0  # seconds
YEAR = 365.2425 * DAY


# ------------------------------------------------------------- fitted on training rows


class EncodedRows(NamedTuple):
    """Inputs of the networks for some rows."""

    values: Array  # (n, p)
    unseen: Mask | None  # (n, n_columns), values that never occurred in training


@dataclass(eq=False)
class TableEncoder:
    """How the columns of X become the inputs of the networks.

    Plain data: numbers, strings, lists, arrays, transformers of scikit-learn and of
    this module.
    """

    names: list[str]  # of the columns of X, x0 … where they have none
    readers: "list[ColumnReader]"  # one per column; none with a user's preprocessor
    transformer: Any
    output_names: list[str]
    n_numbers: int  # how many of the inputs, the first ones, are not 0 or 1
    sources: Mask  # (p, n_columns), columns that each input rests on
    donors: Array  # (N_DONORS, p), inputs of values that occurred in training
    order: list[int]  # of the outputs of a user's preprocessor, numbers first
    remarks: list[str]  # on columns that are not used, or not as one may expect

    @property
    def is_plain(self) -> bool:
        """Whether the inputs are the columns of X, all of them numbers without gaps."""
        return bool(self.readers) and all(
            r.role == "number" and not r.gaps for r in self.readers
        )

    def encode(self, X: Any) -> EncodedRows:
        """Inputs of the networks for the rows of a table with the columns of fit."""
        table = as_table(X, min_rows=0)
        if not self.readers:
            values = _finite_outputs(
                self.transformer, self.transformer.transform(table)
            )
            return EncodedRows(values[:, self.order], None)
        codes, unseen = self._read(table)
        if self.is_plain or not len(codes):
            values = codes if self.is_plain else np.empty((0, len(self.output_names)))
        else:
            values = self.transformer.transform(codes)
        if unseen is None:
            return EncodedRows(np.ascontiguousarray(values), None)
        middle = self.donors.mean(axis=0)
        return EncodedRows(np.where(self._inputs(unseen), middle, values), unseen)

    def _read(self, table: Any) -> tuple[Array, Mask | None]:
        """One number per column (n, n_columns), and which values are new."""
        if self.is_plain:
            numbers = _numbers(table)
            if numbers is not None:
                unseen = np.isnan(numbers)
                return numbers, unseen if unseen.any() else None
        is_array = isinstance(table, np.ndarray) and table.dtype.kind in "fiub"
        both = zip(self.readers, read_columns(table), strict=True)
        found = [reader.read(column, not is_array) for reader, column in both]
        codes, unseen = (np.column_stack(parts) for parts in zip(*found, strict=True))
        return codes, unseen if unseen.any() else None

    def _inputs(self, unseen: Mask) -> Mask:  # (n, n_columns) → (n, p)
        """Inputs that rest on values not seen in training."""
        rests: Mask = unseen.astype(np.float32) @ self.sources.T.astype(np.float32) > 0
        return rests

    def alternatives(self, values: Array, unseen: Mask) -> Iterator[Array]:
        """The rows with their unseen values replaced by known ones, draw by draw."""
        replaced = self._inputs(unseen)
        for donor in self.donors:
            yield np.where(replaced, donor, values)

    def n_known(self, unseen: Mask) -> NDArray[np.int64]:  # (n, n_columns) → (n,)
        """How many values are known where one is not: of such columns the fewest."""
        counts = [len(r.levels) or UNCOUNTABLE for r in self.readers]
        fewest: NDArray[np.int64] = np.where(unseen, counts, UNCOUNTABLE).min(axis=1)
        return fewest


def fit_table(
    X: Any,
    y: Array,
    weight: Array,
    categorical_features: Any,
    preprocessor: Any,
    seed: int,
) -> tuple[TableEncoder, Array]:
    """Learn the encoding from training rows; return it with their inputs (n, p).

    Inputs that rest on y are cross-fitted, so that no training row sees its own y:
    encoding the same rows again gives slightly different ones.
    """
    table = as_table(X)
    names = [
        name if isinstance(name, str) else f"x{j}"
        for j, name in enumerate(_column_names(table))
    ]
    named = _categorical_positions(table, categorical_features)
    if preprocessor is not None:
        if named:
            raise_for(
                "categorical_features",
                categorical_features,
                "'from_dtype' beside a preprocessor, which decides on its own",
                "Name these columns in the preprocessor.",
            )
        return _fit_preprocessor(table, y, preprocessor, names)
    remarks: list[str] = []
    columns = read_columns(table)
    readers = [_reader(c, j in named, remarks) for j, c in enumerate(columns)]
    read = [r.read(c)[0] for r, c in zip(readers, columns, strict=True)]
    codes = np.column_stack(read)
    blocks = _blocks(readers, codes, seed)
    if not blocks:
        raise ValueError(
            f"Got X with the columns {names}, none of which can be used: each is empty "
            "or an ID. Add a column, or name one in categorical_features."
        )
    transformer = ColumnTransformer(blocks).set_output(transform="default")
    if blocks[0][1] == "passthrough":
        values = codes
        transformer.fit(codes[:2])
    else:
        remainder = _remainder(blocks, codes, y, weight, seed)
        values = np.ascontiguousarray(transformer.fit_transform(codes, remainder))
    outputs = _outputs(transformer, readers, names)
    sources = np.zeros((len(outputs), len(names)), dtype=bool)
    for row, (_, positions, _) in zip(sources, outputs, strict=True):
        row[positions] = True
    donors = transformer.transform(_donor_codes(readers, codes, y, seed))
    encoder = TableEncoder(
        names,
        readers,
        transformer,
        [name for name, _, _ in outputs],
        sum(is_number for _, _, is_number in outputs),
        sources,
        donors,
        [],
        remarks,
    )
    return encoder, values


def _blocks(readers: "list[ColumnReader]", codes: Array, seed: int) -> list[Any]:
    """Transformers, with the columns of each: numbers first, then 0/1 inputs."""
    n = len(codes)
    numbers, dates, categories = (
        [j for j, reader in enumerate(readers) if reader.role == role]
        for role in ("number", "date", "category")
    )
    flagged = [j for j in (*numbers, *dates) if readers[j].gaps]
    if len(numbers) == len(readers) and not flagged:
        return [("number", "passthrough", numbers)]
    needed = min(MIN_ROWS, math.ceil(MIN_SHARE * n))
    one_hot, means = [], []
    for j in categories:
        counts = np.sort(np.bincount(codes[:, j].astype(np.intp)))[::-1]
        n_own = MAX_LEVELS if len(counts) <= MAX_LEVELS else MAX_LEVELS - 1
        own = counts[:n_own][counts[:n_own] >= needed]
        one_hot += [j] if len(own) else []
        means += [j] if n - own.sum() >= needed else []
    levels = OneHotEncoder(
        drop="if_binary",
        sparse_output=False,
        min_frequency=needed,
        max_categories=MAX_LEVELS,
    )
    n_levels = [len(readers[j].levels) for j in means]
    blocks = [
        ("number", SimpleImputer(strategy="median"), numbers),
        ("date", DateParts(), dates),
        ("level_mean", LevelMeans(n_levels, seed), means),
        ("missing", MissingIndicator(features="all"), flagged),
        ("level", levels, one_hot),
    ]
    return [block for block in blocks if block[2]]


def _remainder(
    blocks: list[Any], codes: Array, y: Array, weight: Array, seed: int
) -> Array:
    """What a linear model of columns without level means leaves of y.

    Both in normal scores of y, so that neither other columns nor a long tail of y hide
    what a level adds.
    """
    scores: Array = norm.ppf((rankdata(y) - 0.5) / len(y))
    means = {j for name, _, columns in blocks if name == "level_mean" for j in columns}
    others = [
        (a, b, [j for j in columns if j not in means]) for a, b, columns in blocks
    ]
    others = [block for block in others if block[2]]
    if not means or not others:
        return scores
    inputs = ColumnTransformer(others).set_output(transform="default")
    with np.errstate(over="ignore", invalid="ignore"):  # refused a little later
        scaled = StandardScaler().fit_transform(inputs.fit_transform(codes))
    folds = KFold(min(N_FOLDS, len(y)), shuffle=True, random_state=seed)
    fitted = cross_val_predict(
        Ridge(),
        np.nan_to_num(scaled),
        scores,
        cv=folds,
        params={"sample_weight": weight},
    )
    left: Array = scores - fitted
    return left


def _outputs(
    transformer: ColumnTransformer, readers: "list[ColumnReader]", names: list[str]
) -> list[tuple[str, list[int], bool]]:
    """Name of each input, the columns that it rests on, whether it is a number."""
    found: list[tuple[str, list[int], bool]] = []
    for name, fitted, columns in transformer.transformers_:
        if name == "number":
            found += [(names[j], [j], True) for j in columns]
        elif name == "missing":
            found += [(f"{names[j]}_missing", [j], False) for j in columns]
        elif name == "level":
            for text in fitted.get_feature_names_out([str(j) for j in columns]):
                position, _, code = text.partition("_")
                j = int(position)
                rare = code == "infrequent_sklearn"
                level = "rare" if rare else readers[j].show(int(float(code)))
                found.append((f"{names[j]}_{level}", [j], False))
        elif name != "remainder":
            labels = fitted.get_feature_names_out([names[j] for j in columns])
            sources = [[columns[k] for k in used] for used in fitted.sources()]
            found += [(*both, True) for both in zip(labels, sources, strict=True)]
    return found


def _donor_codes(
    readers: "list[ColumnReader]", codes: Array, y: Array, seed: int
) -> Array:  # (N_DONORS, n_columns)
    """Values that occurred in training, spread evenly; of levels by their mean of y."""
    rng = np.random.default_rng(seed)
    places = (np.arange(N_DONORS) + 0.5) / N_DONORS
    order_of_dates = rng.permutation(N_DONORS)  # one for all: days between stay likely
    donors = np.zeros((N_DONORS, len(readers)))
    for j, reader in enumerate(readers):
        if reader.role == "category":
            level = codes[:, j].astype(np.intp)
            means = np.bincount(level, y - y.mean()) / np.bincount(level)
            picks = np.argsort(means, kind="stable")[(places * len(means)).astype(int)]
            donors[:, j] = rng.permutation(picks)
        elif reader.role != "none":
            known = codes[~np.isnan(codes[:, j]), j]
            known = known[:: max(1, len(known) // ENOUGH_ROWS)]
            values = np.quantile(known, places, method="inverted_cdf")
            is_date = reader.role == "date"
            donors[:, j] = (
                values[order_of_dates] if is_date else rng.permutation(values)
            )
    return donors


def _fit_preprocessor(
    table: Any, y: Array, preprocessor: Any, names: list[str]
) -> tuple[TableEncoder, Array]:
    """Fit the transformer that the user gave; its 0/1 outputs come last."""
    if not hasattr(preprocessor, "fit_transform") or isinstance(preprocessor, type):
        raise_for(
            "preprocessor",
            preprocessor,
            "a transformer with fit_transform and transform",
            "Pass None, or for example a sklearn.compose.ColumnTransformer.",
        )
    transformer = clone(preprocessor)
    values = _finite_outputs(transformer, transformer.fit_transform(table, y))
    is_number = ~((values == 0) | (values == 1)).all(axis=0)
    order = np.argsort(~is_number, kind="stable").tolist()
    labels = _output_names(transformer, values.shape[1])
    encoder = TableEncoder(
        names,
        [],
        transformer,
        [labels[k] for k in order],
        int(is_number.sum()),
        np.zeros((len(order), len(names)), dtype=bool),
        np.zeros((0, len(order))),
        order,
        [],
    )
    return encoder, np.ascontiguousarray(values[:, order])


def _output_names(transformer: Any, n: int) -> list[str]:
    try:
        return [str(name) for name in transformer.get_feature_names_out()]
    except (AttributeError, ValueError):
        return [f"output {k}" for k in range(n)]


def _finite_outputs(transformer: Any, outputs: Any) -> Array:
    """What a user's preprocessor gave, if these are finite numbers."""
    dense = outputs.toarray() if issparse(outputs) else np.asarray(outputs)
    try:
        values = dense.astype(np.float64, copy=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"Got a preprocessor that gives no numbers: {error}. Add an encoder for "
            "the columns that are not numbers, for example OneHotEncoder."
        ) from error
    if values.ndim != 2 or not values.shape[1]:
        raise ValueError(
            f"Got a preprocessor whose output has shape {values.shape}, but expected "
            "one or more numbers per row."
        )
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        row, k = bad[0].tolist()
        name = _output_names(transformer, values.shape[1])[k]
        raise ValueError(
            f"Got {values[row, k].item()!r} from the preprocessor in {name!r}, row "
            f"{row}, but expected finite numbers. Add an imputer, for example "
            "SimpleImputer."
        )
    return values


def _categorical_positions(X: Any, categorical_features: Any) -> set[int]:
    """Positions of the columns that the user named as categorical."""
    names = _column_names(X)
    if isinstance(categorical_features, str) and categorical_features == "from_dtype":
        return set()
    items = np.asarray(categorical_features)
    if items.ndim == 1 and items.dtype == bool and len(items) == len(names):
        return set(np.flatnonzero(items).tolist())
    found = [] if items.ndim != 1 or items.dtype == bool else list(categorical_features)
    positions = set()
    for item in found:
        if isinstance(item, str) and item in names:
            positions.add(names.index(item))
        elif isinstance(item, int | np.integer) and -len(names) <= item < len(names):
            positions.add(int(item) % len(names))
    if len(found) != len(items.ravel()) or len(positions) < len(set(found)):
        raise_for(
            "categorical_features",
            categorical_features,
            f"'from_dtype', or names, positions or a mask of the columns {names}",
            "Use 'from_dtype' if unsure: text, truth values and categories are "
            "recognised.",
        )
    return positions


# ------------------------------------------------------------------ our transformers


class LevelMeans(TransformerMixin, BaseEstimator):
    """What each level adds to y, shrunk, and how many rows it has, as log(1 + n).

    The mean of a level of n rows is multiplied by nτ²/(nτ² + σ²), as the posterior
    mean of a random effect with variance τ² between and σ² within levels. (With
    ``smooth="auto"`` scikit-learn's ``TargetEncoder`` leaves levels of one row as they
    are.) Training rows see means and counts of the other folds.

    Parameters
    ----------
    n_levels : list of int
        Levels of each column, which has their numbers 0, 1, ….
    seed : int
        Of the folds.
    """

    def __init__(self, n_levels: list[int], seed: int) -> None:
        self.n_levels = n_levels
        self.seed = seed

    def fit(self, X: Array, y: Array) -> "LevelMeans":
        """Means and counts of all rows."""
        columns = zip(X.T.astype(np.intp), self.n_levels, strict=True)
        self.means_, self.log_counts_ = map(
            list,
            zip(*(level_effects(codes, y, n) for codes, n in columns), strict=True),
        )
        return self

    def transform(self, X: Array) -> Array:
        """Means of all columns, then their counts."""
        tables = (*self.means_, *self.log_counts_)
        columns = (*X.T.astype(np.intp),) * 2
        return np.column_stack([t[c] for t, c in zip(tables, columns, strict=True)])

    def fit_transform(self, X: Array, y: Array) -> Array:
        """Fit, and transform each row by the rows of other folds."""
        out = np.empty((len(X), 2 * X.shape[1]))
        folds = KFold(min(N_FOLDS, len(X)), shuffle=True, random_state=self.seed)
        for rest, held_out in folds.split(X):
            out[held_out] = self.fit(X[rest], y[rest]).transform(X[held_out])
        self.fit(X, y)
        return out

    def get_feature_names_out(self, input_features: Sequence[str]) -> NDArray[Any]:
        """Names of the outputs."""
        suffixes = ("mean", "count")
        return np.array([f"{n}_{s}" for s in suffixes for n in input_features], object)

    def sources(self) -> list[list[int]]:
        """Columns that each output comes from."""
        return [[k] for k in range(len(self.n_levels))] * 2


def level_effects(codes: NDArray[np.intp], y: Array, n: int) -> tuple[Array, Array]:
    """Shrunk means (n,) of y by level, and log(1 + rows) (n,).

    τ² and σ² are the estimates of the one-way analysis of variance, with one more
    observation of σ² as large as the variance of y: where every row is a level of its
    own, means are drawn in fully.
    """
    count = np.bincount(codes, minlength=n)
    total, overall = len(y), float(y.mean())
    effect = np.bincount(codes, y - overall, minlength=n) / np.maximum(count, 1)
    n_seen = np.count_nonzero(count)
    within = (((y - overall - effect[codes]) ** 2).sum() + y.var()) / (
        total - n_seen + 1
    )
    spare = max(1.0, total - float((count**2).sum()) / total)
    between = max(0.0, (count * effect**2).sum() - (n_seen - 1) * within) / spare
    noise = max(within, np.finfo(np.float64).tiny)
    shrunk = effect * (count * between / (count * between + noise))
    return overall + shrunk, np.log1p(count)


class DateParts(TransformerMixin, BaseEstimator):
    """Parts of dates (seconds since 1970) that varied in training; days between two.

    A gap is filled with the median date, or the median number of days.
    """

    def fit(self, X: Array, y: Any = None) -> "DateParts":
        """Choose the parts, and the pairs that occur together."""
        self.fill_ = np.nanmedian(X, axis=0)
        self.parts_ = [_varying_parts(dates[~np.isnan(dates)]) for dates in X.T]
        columns = range(X.shape[1])
        pairs = combinations(columns, 2) if len(columns) <= 4 else pairwise(columns)
        self.pairs_ = [
            [i, j] for i, j in pairs if not np.isnan(X[:, i] + X[:, j]).all()
        ]
        self.days_ = [float(np.nanmedian(X[:, j] - X[:, i])) for i, j in self.pairs_]
        return self

    def transform(self, X: Array) -> Array:
        """Parts of each date, then the differences."""
        filled = np.where(np.isnan(X), self.fill_, X)
        outputs = [
            DATE_PARTS[part](dates)
            for dates, parts in zip(filled.T, self.parts_, strict=True)
            for part in parts
        ]
        for (i, j), days in zip(self.pairs_, self.days_, strict=True):
            difference = X[:, j] - X[:, i]
            outputs.append(np.where(np.isnan(difference), days, difference) / DAY)
        return np.column_stack(outputs)

    def get_feature_names_out(self, input_features: Sequence[str]) -> NDArray[Any]:
        """Names of the outputs."""
        both = zip(input_features, self.parts_, strict=True)
        names = [f"{name}_{part}" for name, parts in both for part in parts]
        pairs = [f"{input_features[i]}_to_{input_features[j]}" for i, j in self.pairs_]
        return np.array(names + pairs, dtype=object)

    def sources(self) -> list[list[int]]:
        """Columns that each output comes from."""
        return [[k] for k, parts in enumerate(self.parts_) for _ in parts] + self.pairs_


def _varying_parts(seconds: Array) -> list[str]:
    """Parts that differ. A season needs a year, the day of the month two months."""
    needed = {"season_sin": YEAR, "season_cos": YEAR, "day": 60 * DAY}
    span = float(np.ptp(seconds))
    varying = [
        name
        for name, part in DATE_PARTS.items()
        if span >= needed.get(name, 0.0) and np.ptp(part(seconds)) > 0
    ]
    return varying or ["days"]


def _day_of_month(seconds: Array) -> Array:
    days = np.floor(seconds / DAY).astype("datetime64[D]")
    first = days.astype("datetime64[M]").astype("datetime64[D]")
    day: Array = (days - first).astype(np.float64) + 1
    return day


def _turn(seconds: Array, period: float) -> Array:
    angle: Array = 2 * np.pi * np.mod(seconds, period) / period
    return angle


DATE_PARTS: dict[str, Callable[[Array], Array]] = {
    "days": lambda s: s / DAY,
    "season_sin": lambda s: np.sin(_turn(s, YEAR)),
    "season_cos": lambda s: np.cos(_turn(s, YEAR)),
    "day": _day_of_month,
    "weekday": lambda s: np.mod(np.floor(s / DAY) + 3, 7),  # Monday is 0
    "hour": lambda s: np.mod(s, DAY) / 3600,
    "hour_sin": lambda s: np.sin(_turn(s, DAY)),
    "hour_cos": lambda s: np.cos(_turn(s, DAY)),
}


# ------------------------------------------------------------- one number per column


@dataclass(frozen=True)
class Column:
    """One column: str or None; all else float64 or NaN, dates in seconds."""

    label: str  # as errors call it
    kind: str  # of KINDS
    values: NDArray[Any]  # (n,)
    categorical: bool = False  # by its type
    zone: str | None = None  # in which the clock of all dates was

    @property
    def gap(self) -> Mask:
        """Where a value is missing."""
        if self.kind == "text":
            return np.array([value is None for value in self.values], dtype=bool)
        gap: Mask = np.isnan(self.values)
        return gap

    def refuse(self, row: int, expected: str, hint: str) -> NoReturn:
        """Raise for the value in a row: where, what was found, what to do."""
        value = self.values[row]
        if self.kind == "date":
            value = str(np.datetime64(int(value), "s"))
        value = value.item() if isinstance(value, np.generic) else value
        raise ValueError(
            f"Got {value!r} in {self.label}, row {row}, but expected {expected}. {hint}"
        )


KINDS = {
    "number": ("numbers", "Convert it, for example with pandas.to_numeric."),
    "boolean": ("truth values", "Convert it to truth values or numbers."),
    "date": ("dates", "Convert it, for example with pandas.to_datetime."),
    "text": ("text", "Convert it to text with astype(str)."),
}


@dataclass(frozen=True)
class ColumnReader:
    """How one column becomes one number per row, as learned from training rows."""

    role: str  # "number", "date", "category", or "none" for a column that is left out
    kind: str  # of the column in training
    gaps: bool  # whether it had some
    levels: list[Any]  # of a category, None for a gap; the numbers are their places
    form: str = "iso"  # of dates given as text
    zone: str | None = None

    def read(self, column: Column, strict: bool = True) -> tuple[Array, Mask]:
        """Numbers (n,), and whether the value never occurred in training.

        An array of numbers knows no other types; it is read without ``strict``.
        """
        n = len(column.values)
        if self.role == "none":
            return np.zeros(n), np.zeros(n, dtype=bool)
        if self.role == "date" and column.kind == "text":
            column = self._parsed(column)
        alike = {self.kind if self.role == "category" else self.role}
        alike |= {"number", "boolean"} if alike & {"number", "boolean"} else set()
        if strict and column.kind not in alike:
            present = np.flatnonzero(~column.gap)
            if len(present):
                expected, hint = KINDS[
                    self.kind if self.role == "category" else self.role
                ]
                column.refuse(int(present[0]), f"{expected}, as in fit", hint)
        if self.role == "category":
            place = {level: float(i) for i, level in enumerate(self.levels)}
            values = (None if v != v else v for v in column.values.tolist())
            codes = np.fromiter((place.get(v, np.nan) for v in values), np.float64, n)
            unseen = np.isnan(codes)
            return np.where(unseen, 0.0, codes), unseen
        if self.zone and column.zone not in (None, self.zone):
            raise ValueError(
                f"Got dates in the time zone {column.zone!r} in {column.label}, but "
                f"{self.zone!r} in fit, and the hour of the day is that of the clock. "
                f"Convert them with dt.tz_convert({self.zone!r}), in polars "
                "dt.convert_time_zone."
            )
        codes = column.values if column.kind != "text" else np.full(n, np.nan)
        return codes, np.isnan(codes) & (not self.gaps)

    def _parsed(self, column: Column) -> Column:
        """Dates of a column of text, in the format of the training rows or in ISO's."""
        rows = np.flatnonzero(~column.gap)
        texts = column.values[rows].tolist()
        seconds = np.full(len(column.values), np.nan)
        for form in dict.fromkeys((self.form, "iso")):
            found = parse_dates(texts, form)
            if found is not None:
                seconds[rows] = found
                return Column(column.label, "date", seconds)
        forms = {"ISO 8601" if self.form == "iso" else self.form}
        odd = (
            i
            for i, t in zip(rows, texts, strict=True)
            if not parse_dates([t], self.form)
        )
        column.refuse(
            int(next(odd)),
            f"a date in the format of fit ({forms.pop()})",
            "Correct the value, or leave it empty, which is taken as a gap.",
        )

    def show(self, place: int) -> str:
        """A level as text."""
        level = self.levels[place]
        if level is None:
            return "missing"
        if self.kind == "boolean":
            return str(bool(level))
        if self.kind == "date":
            return str(np.datetime64(int(level), "s"))
        return level if isinstance(level, str) else f"{level:.15g}"


def _reader(column: Column, named: bool, remarks: list[str]) -> ColumnReader:
    """How to read a column of training rows; remarks if that may surprise."""
    known = column.values[~column.gap].tolist()
    gaps = len(known) < len(column.values)
    role, form = "category", "iso"
    if not known:
        role, reason = "none", "it has no values in the training rows"
    elif not named and not column.categorical and column.kind in ("number", "date"):
        role = column.kind
    elif not named and column.kind == "text":
        found = None if column.categorical else date_format(known)
        n, distinct = len(known), len(set(known))
        if found is not None:
            role, form = "date", found
        elif n > ENOUGH_FOR_AN_ID and distinct > NEARLY_UNIQUE * n:
            role, reason = (
                "none",
                f"{distinct} of its {n} texts differ (for example {known[0]!r}), so "
                "that it tells rows apart and says nothing about new ones. Convert it "
                "if these are numbers, or name it in categorical_features to use it",
            )
        elif not column.categorical:
            remarks += misread_text(column)
    if role == "none":
        remedy = "Drop it from X to silence this warning."
        remarks.append(f"Left {column.label} out: {reason}. {remedy}")
    levels = [*sorted(set(known)), *([None] if gaps else [])]
    levels = levels if role == "category" else []
    return ColumnReader(role, column.kind, gaps, levels, form, column.zone)


def misread_text(column: Column) -> list[str]:
    """A remark on text that is mostly numbers with decimals, or mostly dates."""
    rows = np.flatnonzero(~column.gap)[:ENOUGH_ROWS].tolist()
    texts = [column.values[i].strip() for i in rows]
    like = [bool(NUMBER_OR_DATE.fullmatch(text)) for text in texts]
    whole = sum(text.lstrip("+-").isdigit() for text in texts)  # may be codes
    if sum(like) < 0.8 * len(texts) or whole > 0.5 * len(texts):
        return []
    odd = "" if all(like) else f", but not {texts[like.index(False)]!r} in row "
    odd += "" if all(like) else str(rows[like.index(False)])
    return [
        f"Took {column.label} as categories, although its texts look like numbers or "
        f"dates (for example {texts[like.index(True)]!r}{odd}). Convert it with "
        "pandas.to_numeric or pandas.to_datetime, where errors='coerce' makes gaps of "
        "the rest, or name it in categorical_features to silence this warning."
    ]


def date_format(texts: Sequence[str]) -> str | None:
    """The format in which all texts are dates, "iso" for ISO 8601; None if none."""
    for form in FORMATS:
        # The first text rules most formats out at once.
        if parse_dates(texts[:1], form) and parse_dates(texts, form):
            return form
    return None


def parse_dates(texts: Sequence[str], form: str) -> list[float] | None:
    """Texts as seconds since 1970; None unless all are dates of this format."""
    if form == "iso" and not all(map(ISO_DATE.fullmatch, texts)):
        return None
    try:
        if form == "iso":
            dates = [datetime.datetime.fromisoformat(text) for text in texts]
        else:
            dates = [datetime.datetime.strptime(text, form) for text in texts]
    except ValueError:
        return None
    return [_seconds(date) for date in dates]


def _seconds(date: Any) -> float:
    """Seconds since 1970 by the clock, whatever its zone."""
    if isinstance(date, datetime.datetime):
        date = date.replace(tzinfo=None)
    return float(np.datetime64(date, "us").astype(np.int64)) / 1e6


# --------------------------------------------------------------------- tables of users


def as_table(X: Any, min_rows: int = 1) -> Any:
    """X as a frame, or as an array of numbers, text or objects with two axes."""
    if isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "fiub":
        if len(X) >= min_rows and X.shape[1] and not isinstance(X, np.ma.MaskedArray):
            return X
    elif _package(X) and len(getattr(X, "shape", ())) == 2:
        limits = ((min_rows, "sample"), (1, "feature"))
        for n, (least, what) in zip(X.shape, limits, strict=True):
            if n < least:
                raise ValueError(
                    f"Found array with {n} {what}(s) (shape={X.shape}) while a minimum "
                    f"of {least} is required. Pass a larger table."
                )
        _refuse_names(_column_names(X))
        return X
    if hasattr(X, "detach"):  # a tensor
        X = X.detach().cpu().numpy()
    if type(X).__name__ in ("Series", "ChunkedArray") and np.ndim(X) == 1:
        raise ValueError(
            f"Got X as a {type(X).__name__} of {len(X)} values, but expected a table "
            "of rows and columns (Reshape your data). For one column pass "
            "X.to_frame(); one row of a table is table.iloc[[i]], in polars table[[i]]."
        )
    if hasattr(X, "collect_schema"):
        raise TypeError(
            f"Got X of type {type(X).__name__}, but expected a table in memory. Pass "
            "X.collect()."
        )
    # A sparse matrix by keys is a mapping too; check_array refuses it by name.
    records = isinstance(X, list | tuple) and len(X) and isinstance(X[0], Mapping)
    if records or (isinstance(X, Mapping) and not issparse(X)):
        raise TypeError(
            f"Got X as a {type(X).__name__} with named values, but expected a table. "
            "Pass pandas.DataFrame(X), for one record pandas.DataFrame([record])."
        )
    check_unmasked("X", X)
    if isinstance(X, list | tuple) and np.asarray(X).dtype.kind in "US":
        X = np.asarray(X, dtype=object)  # or its numbers would become text
    return check_array(
        X, dtype=None, ensure_min_samples=min_rows, input_name="X", **ANY_NUMBER
    )


def _refuse_names(names: list[Any]) -> None:
    """Raise for two columns of one name, and if only some names are text."""
    odd = [name for name in names if not isinstance(name, str)]
    if odd and len(odd) < len(names):
        raise TypeError(
            f"Got the column name {odd[0]!r} of type {type(odd[0]).__name__} beside "
            "names that are text, but expected names of one type (feature names are "
            "only supported if all are strings). Convert them: X.columns = "
            "X.columns.astype(str)."
        )
    if len(set(names)) < len(names) and not odd:
        twice = next(name for j, name in enumerate(names) if name in names[:j])
        first, second = [j for j, name in enumerate(names) if name == twice][:2]
        raise ValueError(
            f"Got the column name {twice!r} twice (columns {first} and {second}), but "
            "expected different names. Rename or drop one of the two."
        )


def _package(X: Any) -> str:
    """Package that a table comes from; "" for what is no table of a known package."""
    package = type(X).__module__.partition(".")[0]
    return package if package in ("pandas", "polars", "pyarrow") else ""


def _column_names(X: Any) -> list[Any]:
    """Names of the columns of a frame, positions in an array."""
    if _package(X) == "pyarrow":
        return list(X.column_names)
    names = getattr(X, "columns", None)
    return list(range(np.shape(X)[1])) if names is None else list(names)


def _numbers(X: Any) -> Array | None:
    """A table of numbers as a matrix, copied only if it has to be; None for others."""
    if _package(X) == "pandas" and all(
        isinstance(dtype, np.dtype) and dtype.kind in "fiu" for dtype in X.dtypes
    ):
        numbers = X.to_numpy(dtype=np.float64)
    elif isinstance(X, np.ndarray) and X.dtype.kind in "fiub":
        numbers = X
    else:
        return None
    # One order in memory, or sums over rows would differ between kinds of tables.
    numbers = np.ascontiguousarray(numbers, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(numbers.sum()):
            return numbers
    infinite = np.argwhere(np.isinf(numbers))
    if len(infinite):
        j = int(infinite[0, 1])
        _refuse_infinity(Column(_label(_column_names(X)[j]), "number", numbers[:, j]))
    return numbers


def _label(name: Any) -> str:
    return f"column {name!r}"


def _refuse_infinity(column: Column) -> None:
    """Raise for the first number that is not finite."""
    rows = np.flatnonzero(np.isinf(column.values))
    if len(rows):
        column.refuse(
            int(rows[0]),
            "finite numbers",
            "Leave the row out, or replace the value by NaN, which is taken as a gap.",
        )


def read_columns(X: Any) -> list[Column]:
    """Columns of a table, checked for values that no column may hold."""
    labels = [_label(name) for name in _column_names(X)]
    numbers = _numbers(X)
    if numbers is not None:
        return [
            Column(label, "number", numbers[:, j]) for j, label in enumerate(labels)
        ]
    read = {"pandas": _from_pandas, "polars": _from_arrow, "pyarrow": _from_arrow}.get(
        _package(X), lambda X, j, label: _from_objects(X[:, j], label)
    )
    columns = [read(X, j, label) for j, label in enumerate(labels)]
    for found in columns:
        if found.kind == "number":
            _refuse_infinity(found)
    return columns


def _from_pandas(X: Any, position: int, label: str) -> Column:
    series = X.iloc[:, position]
    if hasattr(series.dtype, "categories"):
        levels = series.cat.categories.tolist()
        if not all(isinstance(level, Real) for level in levels):
            levels = [str(level) for level in levels]
        values = _objects([*levels, None])[series.cat.codes.to_numpy()]
        return _from_objects(values, label, categorical=True)
    kind = getattr(series.dtype, "kind", "O")
    if kind in "iufb":
        numbers = series.to_numpy(dtype=np.float64, na_value=np.nan)
        return Column(label, "boolean" if kind == "b" else "number", numbers)
    if kind == "M":
        zone = getattr(series.dt, "tz", None)
        local = series if zone is None else series.dt.tz_localize(None)
        dates = local.to_numpy(dtype="datetime64[us]")
        seconds = np.where(np.isnat(dates), np.nan, dates.astype(np.int64) / 1e6)
        return Column(label, "date", seconds, zone=_zone_name(zone))
    return _from_objects(series.to_numpy(dtype=object), label)


def _from_arrow(X: Any, position: int, label: str) -> Column:
    """A column of polars or pyarrow."""
    polars = _package(X) == "polars"
    series = X.to_series(position) if polars else X.column(position)
    dtype = str(series.dtype if polars else series.type).lower()
    if dtype.startswith(("int", "uint", "float", "double", "halffloat")):
        return Column(label, "number", np.array(series.to_numpy(), dtype=np.float64))
    values = _objects(series.to_list() if polars else series.to_pylist())
    return _from_objects(values, label, dtype.startswith(("cat", "enum", "dict")))


def _objects(values: Sequence[Any]) -> NDArray[Any]:
    """A 1-D array of objects, also of those that are sequences themselves."""
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


def _from_objects(values: Any, label: str, categorical: bool = False) -> Column:
    """A column of Python objects, by what they are."""
    types = set(map(type, values))
    if types <= {str, type(None)} and str in types:
        return Column(label, "text", values, categorical)
    present = np.array([not _is_gap(value) for value in values], dtype=bool)
    rows = np.flatnonzero(present)
    kinds = {_kind(type(value)) for value in values[present]}
    if kinds == {"boolean", "number"}:
        kinds = {"number"}
    if len(kinds) > 1 or "" in kinds:
        _refuse_mixture(label, values, rows)
    kind = kinds.pop() if kinds else "number"
    filled = np.full(len(values), *((None, object) if kind == "text" else (np.nan,)))
    filled[present] = [_CONVERT[kind](value) for value in values[present]]
    zones = {_zone_name(getattr(value, "tzinfo", None)) for value in values[present]}
    zone = zones.pop() if len(zones) == 1 else None
    return Column(
        label, "number" if kind == "duration" else kind, filled, categorical, zone
    )


def _is_gap(value: Any) -> bool:
    """Whether a value stands for none: None, NaN, NA, NaT."""
    if value is None:
        return True
    if isinstance(
        value, float | np.floating | Decimal | np.datetime64 | np.timedelta64
    ):
        return bool(value != value)
    return type(value).__name__ in ("NAType", "NaTType")


_TYPES = {
    "text": str,
    "boolean": bool | np.bool_,
    "duration": datetime.timedelta | np.timedelta64,
    "number": Real | Decimal,
    "date": datetime.date | np.datetime64,
}
_CONVERT: dict[str, Callable[[Any], Any]] = {
    "text": str,
    "boolean": float,
    "duration": lambda v: np.timedelta64(v, "us") / np.timedelta64(1, "s"),
    "number": float,
    "date": _seconds,
}


def _kind(cls: type) -> str:
    """Kind of a column of objects of one type; "" for a type that is not known."""
    return next((kind for kind, of in _TYPES.items() if issubclass(cls, of)), "")


def _refuse_mixture(label: str, values: Any, rows: NDArray[np.intp]) -> NoReturn:
    """Raise for a column that is neither numbers nor text nor dates."""
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


# ----------------------------------------------------------- what estimators check with


def check_columns(estimator: Any, X: Any, table: Any, *, reset: bool) -> None:
    """Set or check number and names of the columns of X, of which a table was made."""
    if not reset and is_probe(table) and table.shape[1] == estimator.n_features_in_:
        return
    # Frames of libraries that are not known by name have become arrays.
    named = X if hasattr(X, "columns") or hasattr(X, "__dataframe__") else table
    try:
        validate_data(estimator, named, reset=reset, skip_check_array=True)
    except ValueError as error:
        if "feature names should match" not in str(error):
            raise
        raise ValueError(
            f"{str(error).rstrip()}\nPass X[model.feature_names_in_], with every "
            "column that fit has seen."
        ) from error


def is_probe(table: Any) -> bool:
    """Whether this is the row of zeros by which MAPIE asks if a model is fitted.

    It has no names, which is nothing that a user should be warned of.
    """
    return isinstance(table, np.ndarray) and len(table) == 1 and not table.any()


def check_training_data(
    estimator: Any, X: Any, y: ArrayLike, sample_weight: ArrayLike | None
) -> tuple[Any, Array, Array]:
    """Rows of positive weight: their table, targets, and weights of mean one."""
    check_has_target(y)
    check_real("y", y)
    warn_if_reordered(X, y)
    table = as_table(X, min_rows=2)
    check_columns(estimator, X, table, reset=True)
    n = table.shape[0]
    target = column("y", column_or_1d(y, warn=True), n).numpy()
    if sample_weight is None:
        return table, target, np.ones(n)
    weight = weights(sample_weight, n).numpy()
    kept = weight > 0
    if kept.sum() < 2:
        raise ValueError(
            f"Got sample_weight with {int(kept.sum())} positive weights, but "
            "expected at least 2. Leave sample_weight out to weigh rows alike."
        )
    if not kept.all():
        table = _rows(table, kept)
        target, weight = target[kept], weight[kept]
    with np.errstate(over="ignore"):
        mean = weight.mean()
    if not np.isfinite(mean) or weight.min() / mean < SMALLEST:
        raise ValueError(
            f"Got sample_weight from {weight.min():g} to {weight.max():g}, whose sum "
            "overflows or whose ratios underflow. Divide the weights by a constant, "
            "and set the smallest to zero, which leaves these rows out."
        )
    return table, target, weight / mean


def _rows(table: Any, kept: Mask) -> Any:
    """Some rows of a table."""
    if _package(table) in ("polars", "pyarrow"):
        return (
            table.filter(sys.modules["pyarrow"].array(kept))
            if (_package(table) == "pyarrow")
            else table.filter(kept)
        )
    return table[kept]


def fit_scalers(
    X: Array, y: Array, weight: Array, names: Sequence[str]
) -> tuple[StandardScaler, StandardScaler]:
    """Standardise by the training rows; a constant keeps its unit."""
    uniform = None if (weight == 1).all() else weight
    labels = [f"the column {name!r} of X" for name in names]
    scalers = []
    for values, columns in ((X, labels), (y[:, None], ["y"])):
        with np.errstate(over="ignore", invalid="ignore"):
            scaler = StandardScaler().fit(values, sample_weight=uniform)
            # StandardScaler takes a variance that overflows for that of a constant.
            found = np.stack([scaler.mean_, scaler.var_, scaler.scale_])
            widths = np.ptp(values, axis=0)
        for label, ok, width in zip(
            columns, np.isfinite(found).all(axis=0), widths, strict=True
        ):
            if not ok:
                raise ValueError(
                    f"Got {label} whose values overflow when squared. Divide them by a "
                    "constant, for example 1e100."
                )
            if 0 < width < SMALLEST:
                raise ValueError(
                    f"Got {label} with a range of {float(width)!r}, whose square "
                    "underflows. Multiply it by a constant, for example 1e150."
                )
        scalers.append(scaler)
    return scalers[0], scalers[1]
