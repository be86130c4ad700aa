"""A table as people have it → a matrix of finite numbers for the networks.

Each column has been read as one number per row (``tables``). A ``ColumnTransformer``
makes the inputs of the networks of them:

- *Numbers* stay as they are. A gap becomes the median (``SimpleImputer``), and a column
  with gaps in training gets a flag (``MissingIndicator``).
- *Dates*, and text that can all be read as dates, become the parts that vary and the
  days between two dates (``DateParts``).
- *Text, truth values and categories* get one 0/1 input per frequent level
  (``OneHotEncoder``) if frequent levels have 80 % of the rows. A level is frequent if
  it has 25 rows, or 5 % of the rows where that is less, and is among the 128 largest of
  its column. Rare levels share one input. Where they have as many rows together as a
  frequent level needs, and where most levels are rare, the column gets the cross-fitted
  mean and the count of each level (``LevelMeans``).
- Text that is nearly unique is left out, with a remark.

Numbers come first, 0/1 inputs last. If all columns are numbers without gaps, the
``ColumnTransformer`` passes them through and ``encode`` does without it. Values that
never occurred in training are marked, so that they can count as lack of data.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import issparse
from scipy.stats import norm, rankdata
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.compose import ColumnTransformer
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils import check_array, column_or_1d
from torch import Tensor

from .._validation import (
    ANY_NUMBER,
    check_real,
    raise_for,
    validate_data,
    warn_if_reordered,
)
from .batches import check_has_target, column, weights
from .rows import check_groups, equal_rows
from .tables import (
    ColumnReader,
    as_numbers,
    column_names,
    fit_reader,
    package_of,
    read_columns,
    refuse_infinity,
)
from .tables import as_table as as_table

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
MIN_ROWS, MIN_SHARE = 25, 0.05  # of a frequent level: the smaller of both
COVERED = 0.8  # of the rows of a column, by levels with inputs of their own
MAX_LEVELS = 128  # 0/1 inputs of one column
N_FOLDS = 5
N_DONORS = 16
UNCOUNTABLE = 10**9  # values of a column that is not categorical: no two rows agree
SMALLEST = 1e-152  # range of y, or weight in units of the mean: its square is a number
DAY = 86_400.0  # seconds
YEAR = 365.2425 * DAY


class EncodedRows(NamedTuple):
    """Inputs of the networks for some rows."""

    values: Array  # (n, p)
    unseen: Mask | None  # (n, n_columns), values that never occurred in training


@dataclass(eq=False)
class TableEncoder:
    """How the columns of X become the inputs of the networks.

    With a user's transformer there are no readers, and nothing is known of values that
    never occurred.
    """

    transformer: Any
    output_names: list[str]
    n_numbers: int  # how many of the inputs, the first ones, are not 0 or 1
    readers: list[ColumnReader] = field(default_factory=list)  # one per column
    sources: Mask = field(default_factory=lambda: np.zeros((0, 0), dtype=bool))
    donors: Array = field(default_factory=lambda: np.zeros((N_DONORS, 0)))
    order: list[int] = field(default_factory=list)  # of outputs of a user's transformer
    remarks: list[str] = field(default_factory=list)  # on columns read in an odd way

    @property
    def is_plain(self) -> bool:
        """Whether the inputs are the columns of X, all of them numbers without gaps."""
        roles = {(reader.role, reader.gaps) for reader in self.readers}
        return roles == {("number", False)}

    def encode(self, X: Any) -> EncodedRows:
        """Inputs of the networks for rows of a table with the columns of fit."""
        table = as_table(X, min_rows=0)
        if not table.shape[0]:
            return EncodedRows(np.empty((0, len(self.output_names))), None)
        if not self.readers:
            outputs = self.transformer.transform(table)
            return EncodedRows(_finite(outputs, self.transformer)[:, self.order], None)
        codes, unseen = self._read(table)
        values = codes if self.is_plain else self._transformed(codes)
        if not unseen.any():
            return EncodedRows(np.ascontiguousarray(values), None)
        middle = self.donors.mean(axis=0)
        return EncodedRows(np.where(self._affected(unseen), middle, values), unseen)

    def _read(self, table: Any) -> tuple[Array, Mask]:
        """One number per column, and whether the value is new; (n, n_columns) both."""
        numbers = as_numbers(table) if self.is_plain else None
        if numbers is not None:
            refuse_infinity(numbers, column_names(table))
            return numbers, np.isnan(numbers)
        # An array of numbers knows no other types, so it may stand for any column.
        strict = not isinstance(table, np.ndarray) or table.dtype.kind not in "fiub"
        both = zip(self.readers, read_columns(table), strict=True)
        found = [reader.read(column, strict) for reader, column in both]
        codes, unseen = (np.column_stack(parts) for parts in zip(*found, strict=True))
        refuse_infinity(codes, column_names(table))
        return codes, unseen

    def _transformed(self, codes: Array) -> Array:
        """What ``transformer.transform`` gives, in half the time for one row."""
        used = [(t, c) for _, t, c in self.transformer.transformers_ if t != "drop"]
        return np.hstack([t.transform(codes[:, columns]) for t, columns in used])

    def _affected(self, unseen: Mask) -> Mask:  # (n, n_columns) → (n, p)
        """Inputs that rest on values which never occurred."""
        affected: Mask = unseen.astype(np.float32) @ self.sources.astype(np.float32) > 0
        return affected

    def alternatives(self, values: Array, unseen: Mask) -> Iterator[Array]:
        """Rows with known values in place of those that never occurred, by draw."""
        affected = self._affected(unseen)
        for donor in self.donors:
            yield np.where(affected, donor, values)

    def n_known(self, unseen: Mask) -> NDArray[np.int64]:  # (n, n_columns) → (n,)
        """How many values are known where one is not: of such columns the fewest."""
        counts = [len(reader.levels) or UNCOUNTABLE for reader in self.readers]
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
    labels = column_names(table)
    names = [n if isinstance(n, str) else f"x{j}" for j, n in enumerate(labels)]
    named = _categorical_positions(labels, categorical_features)
    if preprocessor is not None:
        if named:
            raise_for(
                "preprocessor",
                preprocessor,
                "None beside categorical_features",
                "Name these columns in the preprocessor.",
            )
        return _fit_preprocessor(table, y, preprocessor)
    remarks: list[str] = []
    columns = read_columns(table)
    readers = [fit_reader(c, j in named, remarks) for j, c in enumerate(columns)]
    both = zip(readers, columns, strict=True)
    codes = np.column_stack([reader.read(column)[0] for reader, column in both])
    refuse_infinity(codes, labels)
    blocks = _blocks(readers, codes, seed)
    if not blocks:
        raise ValueError(
            f"Got X with the columns {names}, none of which can be used: each is empty "
            "or an ID. Add a column, or name one in categorical_features."
        )
    transformer = ColumnTransformer(blocks).set_output(transform="default")
    if blocks[0][1] == "passthrough":
        transformer.fit(codes[:2])
        values = codes
    else:
        remainder = _remainder(blocks, codes, y, weight, seed)
        values = np.ascontiguousarray(transformer.fit_transform(codes, remainder))
    outputs, used, is_number = map(
        list, zip(*_outputs(transformer, readers, names), strict=True)
    )
    sources = np.zeros((len(names), len(outputs)), dtype=bool)
    for k, positions in enumerate(used):
        sources[positions, k] = True
    donors = transformer.transform(_donors(readers, codes, y, seed))
    encoder = TableEncoder(
        transformer, outputs, sum(is_number), readers, sources, donors, [], remarks
    )
    return encoder, values


def _blocks(readers: list[ColumnReader], codes: Array, seed: int) -> list[Any]:
    """Transformers with their columns: numbers first, then 0/1 inputs."""
    numbers, dates, categories = (
        [j for j, reader in enumerate(readers) if reader.role == role]
        for role in ("number", "date", "category")
    )
    flagged = [j for j in (*numbers, *dates) if readers[j].gaps]
    if len(numbers) == len(readers) and not flagged:
        return [("number", "passthrough", numbers)]
    needed = min(MIN_ROWS, math.ceil(MIN_SHARE * len(codes)))
    frequent, means = [], []
    for j in categories:
        counts = np.sort(np.bincount(codes[:, j].astype(np.intp)))[::-1]
        own = counts[: MAX_LEVELS - (len(counts) > MAX_LEVELS)]
        n_own = own[own >= needed].sum()
        frequent += [j] if n_own >= COVERED * len(codes) else []
        means += [j] if len(codes) - n_own >= needed or j not in frequent else []
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
        ("level", levels, frequent),
    ]
    return [block for block in blocks if block[2]]


def _remainder(
    blocks: list[Any], codes: Array, y: Array, weight: Array, seed: int
) -> Array:
    """What a linear model of the columns without level means leaves of y.

    In normal scores of y, so that neither other columns nor a long tail of y hide what
    a level adds.
    """
    scores: Array = norm.ppf((rankdata(y) - 0.5) / len(y))
    means = [j for name, _, columns in blocks if name == "level_mean" for j in columns]
    others = [
        (a, b, [j for j in columns if j not in means]) for a, b, columns in blocks
    ]
    others = [block for block in others if block[2]]
    if not means or not others:
        return scores
    inputs = ColumnTransformer(others).set_output(transform="default")
    with np.errstate(over="ignore", invalid="ignore"):  # refused a little later
        scaled = StandardScaler().fit_transform(inputs.fit_transform(codes))
    scores -= cross_val_predict(
        Ridge(),
        np.nan_to_num(scaled),
        scores,
        cv=_folds(len(y), seed),
        params={"sample_weight": weight},
    )
    return scores


def _folds(n: int, seed: int) -> KFold:
    return KFold(min(N_FOLDS, n), shuffle=True, random_state=seed)


def _donors(
    readers: list[ColumnReader], codes: Array, y: Array, seed: int
) -> Array:  # (N_DONORS, n_columns)
    """Known values: of rows that spread over y; of levels that spread by mean of y."""
    rng = np.random.default_rng(seed)
    places = (np.arange(N_DONORS) + 0.5) / N_DONORS
    donors = codes[np.argsort(y, kind="stable")[(places * len(y)).astype(np.intp)]]
    for j, reader in enumerate(readers):
        if reader.role == "category":
            level = codes[:, j].astype(np.intp)
            means = np.bincount(level, y - y.mean()) / np.bincount(level)
            picks = (places * len(means)).astype(np.intp)
            donors[:, j] = rng.permutation(np.argsort(means, kind="stable")[picks])
    return donors


def _outputs(
    transformer: ColumnTransformer, readers: list[ColumnReader], names: list[str]
) -> Iterator[tuple[str, list[int], bool]]:
    """Of each input the name, the columns that it rests on, whether it is a number."""
    for block, fitted, columns in transformer.transformers_:
        if block in ("number", "missing"):
            suffix = "_missing" if block == "missing" else ""
            yield from ((names[j] + suffix, [j], not suffix) for j in columns)
        elif block in ("date", "level_mean"):
            labels = fitted.get_feature_names_out([names[j] for j in columns])
            for label, used in zip(labels, fitted.sources, strict=True):
                yield label, [columns[k] for k in used], True
        elif block == "level":
            for label in fitted.get_feature_names_out([str(j) for j in columns]):
                position, _, code = label.partition("_")
                j, rare = int(position), code == "infrequent_sklearn"
                level = "rare" if rare else readers[j].show(int(float(code)))
                yield f"{names[j]}_{level}", [j], False


def _fit_preprocessor(
    table: Any, y: Array, preprocessor: Any
) -> tuple[TableEncoder, Array]:
    """Fit a user's transformer; those of its outputs that are 0 or 1 come last."""
    if not hasattr(preprocessor, "fit_transform") or isinstance(preprocessor, type):
        raise_for(
            "preprocessor",
            preprocessor,
            "a transformer with fit_transform and transform",
            "Pass None, or for example a sklearn.compose.ColumnTransformer.",
        )
    transformer = clone(preprocessor)
    values = _finite(transformer.fit_transform(table, y), transformer)
    is_number = ~((values == 0) | (values == 1)).all(axis=0)
    order = np.argsort(~is_number, kind="stable").tolist()
    names = [_output_name(transformer, k) for k in order]
    encoder = TableEncoder(transformer, names, int(is_number.sum()), order=order)
    return encoder, np.ascontiguousarray(values[:, order])


def _output_name(transformer: Any, k: int) -> str:
    try:
        return str(transformer.get_feature_names_out()[k])
    except (AttributeError, ValueError):
        return f"output {k}"


def _finite(outputs: Any, transformer: Any) -> Array:
    """Outputs of a user's transformer, if these are finite numbers."""
    dense = outputs.toarray() if issparse(outputs) else outputs
    values: Array = check_array(
        dense, dtype=np.float64, input_name="preprocessor output", **ANY_NUMBER
    )
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        row, k = bad[0].tolist()
        raise ValueError(
            f"Got {values[row, k].item()!r} from the preprocessor in row {row} of "
            f"{_output_name(transformer, k)!r}, but expected finite numbers. Add an "
            "imputer, for example sklearn.impute.SimpleImputer."
        )
    return values


def _categorical_positions(names: list[Any], categorical_features: Any) -> set[int]:
    """Positions of the columns that the user named as categorical."""
    given = categorical_features
    if isinstance(given, str) and given == "from_dtype":
        return set()
    items = np.asarray(given, dtype=object)
    truth = [isinstance(item, bool | np.bool_) for item in np.ravel(items)]
    if items.ndim == 1 and len(items) == len(names) and all(truth):
        return set(np.flatnonzero(items).tolist())
    if items.ndim == 1 and not any(truth):
        n = len(names)
        places = {i: j for j, name in enumerate(names) for i in (name, j, j - n)}
        if all(isinstance(i, str | int | np.integer) and i in places for i in items):
            return {places[item] for item in items}
    raise_for(
        "categorical_features",
        given,
        f"'from_dtype', or names, positions or a mask of the columns {names}",
        "Use 'from_dtype' if unsure: text, truth values and categories are recognised.",
    )


class LevelMeans(TransformerMixin, BaseEstimator):
    """Mean of y by level, shrunk, and log(1 + number of rows); both cross-fitted.

    The mean of a level of n rows is drawn towards that of all rows by the factor
    nτ²/(nτ² + σ²), as the posterior mean of a random effect with variance τ² between
    and σ² within levels. (``TargetEncoder(smooth="auto")`` of scikit-learn leaves a
    level of one row where it is.) Training rows see the rows of other folds only.

    Parameters
    ----------
    n_levels : list of int
        Number of levels of each column, which holds their places 0, 1, ….
    seed : int
        Seed of the folds.
    """

    def __init__(self, n_levels: list[int], seed: int) -> None:
        self.n_levels, self.seed = n_levels, seed

    def fit(self, X: Array, y: Array) -> Self:
        """Means and counts of all rows."""
        columns = zip(X.T.astype(np.intp), self.n_levels, strict=True)
        effects = [level_effects(places, y, n) for places, n in columns]
        self.means_, self.log_counts_ = ([e[k] for e in effects] for k in (0, 1))
        self.sources = [[k] for k in range(X.shape[1])] * 2
        return self

    def transform(self, X: Array) -> Array:
        """Means of all columns, then their counts."""
        places = X.T.astype(np.intp)
        both = zip((*self.means_, *self.log_counts_), (*places, *places), strict=True)
        return np.column_stack([values[place] for values, place in both])

    def fit_transform(self, X: Array, y: Array) -> Array:
        """Fit, and transform each row by the rows of other folds."""
        outputs = np.empty((len(X), 2 * X.shape[1]))
        for rest, held_out in _folds(len(X), self.seed).split(X):
            outputs[held_out] = self.fit(X[rest], y[rest]).transform(X[held_out])
        self.fit(X, y)
        return outputs

    def get_feature_names_out(self, input_features: Sequence[str]) -> NDArray[Any]:
        """Names of the outputs."""
        pairs = [f"{name}_{of}" for of in ("mean", "count") for name in input_features]
        return np.array(pairs, dtype=object)


def level_effects(places: NDArray[np.intp], y: Array, n: int) -> tuple[Array, Array]:
    """Shrunk means (n,) of y by level, and log(1 + rows) (n,).

    τ² and σ² are the estimates of the one-way analysis of variance, with one more
    observation of σ² as large as the variance of y: where every row is a level of its
    own, means are drawn in fully.
    """
    count = np.bincount(places, minlength=n)
    n_rows, n_seen, overall = len(y), np.count_nonzero(count), float(y.mean())
    effect = np.bincount(places, y - overall, minlength=n) / np.maximum(count, 1)
    squares = float(((y - overall - effect[places]) ** 2).sum())
    within = (squares + float(y.var())) / (n_rows - n_seen + 1)
    spare = max(1.0, n_rows - float((count**2).sum()) / n_rows)
    excess = float((count * effect**2).sum()) - (n_seen - 1) * within
    between = max(0.0, excess) / spare
    noise = max(within, np.finfo(np.float64).tiny)
    return overall + effect * (count * between / (count * between + noise)), np.log1p(
        count
    )


class DateParts(TransformerMixin, BaseEstimator):
    """Parts of dates (seconds since 1970) that vary, and the days between two dates.

    A gap is filled with the median date, or the median number of days.
    """

    def fit(self, X: Array, y: Any = None) -> Self:
        """Choose the parts, and the pairs of columns that occur together."""
        self.fill_ = np.nanmedian(X, axis=0)
        self.parts_ = [_varying_parts(dates[~np.isnan(dates)]) for dates in X.T]
        columns = range(X.shape[1])
        pairs = combinations(columns, 2) if len(columns) <= 4 else pairwise(columns)
        together = [(i, j) for i, j in pairs if not np.isnan(X[:, j] - X[:, i]).all()]
        self.pairs_ = [[i, j] for i, j in together]
        self.days_ = [float(np.nanmedian(X[:, j] - X[:, i])) for i, j in together]
        self.sources = [[k] for k in columns for _ in self.parts_[k]] + self.pairs_
        return self

    def transform(self, X: Array) -> Array:
        """Parts of each date, then the differences."""
        filled = np.where(np.isnan(X), self.fill_, X)
        both = zip(filled.T, self.parts_, strict=True)
        outputs = [DATE_PARTS[part](dates) for dates, parts in both for part in parts]
        for (i, j), median in zip(self.pairs_, self.days_, strict=True):
            seconds = X[:, j] - X[:, i]
            outputs.append(np.where(np.isnan(seconds), median, seconds) / DAY)
        return np.column_stack(outputs)

    def get_feature_names_out(self, input_features: Sequence[str]) -> NDArray[Any]:
        """Names of the outputs."""
        both = zip(input_features, self.parts_, strict=True)
        names = [f"{name}_{part}" for name, parts in both for part in parts]
        pairs = [f"{input_features[i]}_to_{input_features[j]}" for i, j in self.pairs_]
        return np.array(names + pairs, dtype=object)


def _day_of_month(seconds: Array) -> Array:
    days = np.floor(seconds / DAY).astype("datetime64[D]")
    since_first = days - days.astype("datetime64[M]").astype("datetime64[D]")
    day: Array = since_first.astype(np.float64) + 1
    return day


def _turn(seconds: Array, period: float) -> Array:
    return 2 * np.pi * np.mod(seconds, period) / period


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


def _varying_parts(seconds: Array) -> list[str]:
    """Parts that vary. A season can be told from a trend after a year only."""
    needed = {"season_sin": YEAR, "season_cos": YEAR, "day": 60 * DAY}
    parts = [p for p in DATE_PARTS if np.ptp(seconds) >= needed.get(p, 0.0)]
    return [p for p in parts if np.ptp(DATE_PARTS[p](seconds)) > 0] or ["days"]


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


class TrainingData(NamedTuple):
    """Rows of positive weight."""

    table: Any
    y: Array
    weight: Array  # of mean one
    labels: Tensor | None = None  # (n,), of rows that belong together


def check_training_data(
    estimator: Any, X: Any, y: Any, sample_weight: Any, groups: Any = None
) -> TrainingData:
    """Check what ``fit`` was given, and set the columns of the estimator."""
    check_has_target(y)
    check_real("y", y)
    warn_if_reordered(X, y)
    table = as_table(X, min_rows=2)
    check_columns(estimator, X, table, reset=True)
    n = table.shape[0]
    target = column("y", column_or_1d(y, warn=True), n).numpy()
    labels = None if groups is None else torch.from_numpy(check_groups(groups, n))
    if sample_weight is None:
        return TrainingData(table, target, np.ones(n), labels)
    weight = weights(sample_weight, n).numpy()
    kept = weight > 0
    if kept.sum() < 2:
        raise ValueError(
            f"Got sample_weight that is zero in all rows but {int(kept.sum())}, but "
            "expected at least 2. Leave sample_weight out to weigh rows alike."
        )
    if not kept.all():
        rows = np.flatnonzero(kept)
        table, target, weight = _taken(table, rows), target[kept], weight[kept]
        labels = None if labels is None else labels[torch.from_numpy(rows)]
    with np.errstate(over="ignore"):
        mean = weight.mean()
    if not np.isfinite(mean) or weight.min() / mean < SMALLEST:
        raise ValueError(
            f"Got sample_weight from {weight.min():g} to {weight.max():g}, whose sum "
            "overflows or whose ratios underflow. Divide the weights by a constant, "
            "and set the smallest to zero, which leaves these rows out."
        )
    return TrainingData(table, target, weight / mean, labels)


def merge_equal_rows(
    table: Any, y: Array, weight: Array, labels: Tensor | None
) -> TrainingData:
    """Rows that differ in X or y, with the weight of all that are equal to them."""
    equal = equal_rows(table, y)
    _, first = np.unique(equal, return_index=True)
    if len(first) == len(y):
        return TrainingData(table, y, weight, labels)
    first.sort()  # in the order in which they came
    total = np.bincount(equal, weight)[equal[first]]
    rows = torch.from_numpy(first)
    kept = None if labels is None else labels[rows]
    return TrainingData(_taken(table, first), y[first], total / total.mean(), kept)


def _taken(table: Any, rows: NDArray[np.intp]) -> Any:
    """Some rows of a table, whatever library it is from."""
    if package_of(table) == "pyarrow":
        return table.take(rows)
    return table.iloc[rows] if package_of(table) == "pandas" else table[rows]


def fit_scalers(
    X: Array, y: Array, weight: Array, names: Sequence[str]
) -> tuple[StandardScaler, StandardScaler]:
    """Standardise by the training rows; a constant keeps its unit."""
    uniform = None if (weight == 1).all() else weight
    scalers = []
    for values, labels in (
        (X, [f"the column {name!r} of X" for name in names]),
        (y[:, None], ["y"]),
    ):
        with np.errstate(over="ignore", invalid="ignore"):
            scaler = StandardScaler().fit(values, sample_weight=uniform)
            widths = np.ptp(values, axis=0)
        # StandardScaler takes a variance that overflows for that of a constant.
        found = np.stack([scaler.mean_, scaler.var_, scaler.scale_])
        overflows = ~np.isfinite(found).all(axis=0)
        for k in np.flatnonzero(overflows | ((widths > 0) & (widths < SMALLEST))):
            over, factor = overflows[k], "1e-100" if overflows[k] else "1e150"
            raise ValueError(
                f"Got {labels[k]} with a range of {float(widths[k])!r}, whose square "
                f"{'overflows' if over else 'underflows'}. Multiply it by a constant, "
                f"for example {factor}."
            )
        scalers.append(scaler)
    return scalers[0], scalers[1]
