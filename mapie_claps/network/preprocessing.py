"""A table as people have it → a matrix of finite numbers for the networks.

Each column has been read as one number per row (``tables``). A ``ColumnTransformer``
makes the inputs of the networks of them, numbers first, 0/1 inputs last; the user guide
says what a column becomes. What may surprise is kept as remarks.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import issparse
from scipy.stats import norm, rankdata
from sklearn import config_context
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.compose import ColumnTransformer
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.linear_model import Ridge
from sklearn.model_selection import PredefinedSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler, TargetEncoder
from sklearn.utils import check_array, column_or_1d
from torch import Tensor

from .._validation import check_real, raise_for, validate_data, warn_if_reordered
from .batches import NEEDS_Y, column
from .rows import check_groups, equal_rows, folds_of
from .tables import (
    ColumnReader,
    as_table,
    column_names,
    fit_reader,
    package_of,
    read_columns,
    read_table,
    records_of,
)

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
MIN_ROWS, MIN_SHARE = 25, 0.05  # of a frequent level: the smaller of both
COVERED = 0.8  # of the rows of a column, by levels with inputs of their own
MAX_LEVELS = 256  # 0/1 inputs of one column
N_FOLDS = 5
SMOOTH = 2.0  # rows of the overall mean that each level is given
N_DONORS = 16
UNCOUNTABLE = 10**9  # values of a column that is not categorical: no two rows agree
SMALLEST, LARGEST = 1e-152, 1e150  # the squares of both are numbers
WILD, MIN_STEP = 20.0, math.log(5)  # robust units; step to the next value
TAIL, ISOLATED = 10, 10.0  # next values; their mean steps
CODES, ROWS_PER_CODE = range(20, 1_001), 5  # different integers that may be codes
DAY = 86_400.0  # seconds
YEAR = 365.2425 * DAY


class TrainingData(NamedTuple):
    """Rows of positive weight."""

    table: Any
    y: Array
    weight: Array  # of mean one
    labels: Tensor | None  # (n,), of rows that belong together
    rows: NDArray[np.intp]  # (n,), their numbers in what was given

    def take(self, rows: NDArray[np.intp]) -> "TrainingData":
        """Some of the rows."""
        table = getattr(self.table, "iloc", self.table)
        table = table.take(rows) if package_of(table) == "pyarrow" else table[rows]
        labels = None if self.labels is None else self.labels[torch.from_numpy(rows)]
        return TrainingData(
            table, self.y[rows], self.weight[rows], labels, self.rows[rows]
        )


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
    remarks: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)  # of the columns, if they have any

    @property
    def is_plain(self) -> bool:
        """Whether the inputs are the columns of X, all of them numbers without gaps."""
        return bool(self.readers) and all(
            r.kind == "numbers" and not r.gaps and not r.levels for r in self.readers
        )

    def encode(self, X: Any) -> EncodedRows:
        """Inputs of the networks for rows of a table with the columns of fit."""
        table = as_table(X, min_rows=0)
        if not table.shape[0]:
            return EncodedRows(np.empty((0, len(self.output_names))), None)
        if not self.readers:
            return EncodedRows(_finite(self.transformer.transform(table)), None)
        codes, unseen = read_table(table, self.readers, self.is_plain, self.names)
        values = codes if self.is_plain else self.transformer.transform(codes)
        if not unseen.any():
            return EncodedRows(np.ascontiguousarray(values), None)
        middle = self.donors.mean(axis=0)
        return EncodedRows(self.replace(values, unseen, middle), unseen)

    def replace(self, values: Array, unseen: Mask, known: Array) -> Array:
        """Inputs (n, p), known ones where they rest on values that never occurred."""
        affected = unseen.astype(np.float32) @ self.sources > 0
        return np.where(affected, known, values)

    def n_known(self, unseen: Mask) -> NDArray[np.int64]:  # (n, n_columns) → (n,)
        """How many values are known where one is not: of such columns the fewest."""
        counts = [len(reader.levels) or UNCOUNTABLE for reader in self.readers]
        fewest: NDArray[np.int64] = np.where(unseen, counts, UNCOUNTABLE).min(axis=1)
        return fewest


def fit_table(
    data: TrainingData, categorical_features: Any, preprocessor: Any, seed: int
) -> tuple[TableEncoder, Array]:
    """Learn the encoding from training rows; return it with their inputs (n, p).

    Inputs that rest on y are cross-fitted, so that no training row sees its own y:
    encoding the same rows again gives slightly different ones.
    """
    table, y, weight, together, row_numbers = data
    labels = column_names(table)
    names = [n if isinstance(n, str) else f"x{j}" for j, n in enumerate(labels)]
    named = _categorical_positions(labels, categorical_features)
    if preprocessor is not None:
        return _fit_preprocessor(table, y, preprocessor, named)
    remarks: list[str] = []
    columns = read_columns(table)
    readers = [fit_reader(c, j in named, remarks) for j, c in enumerate(columns)]
    codes, _ = read_table(table, readers)
    blocks = _blocks(readers, codes)
    columns_of = {name: positions for name, _, positions in blocks}
    if not any(columns_of.values()):
        raise ValueError(
            f"Got X with the columns {names}, none of which can be used: each is empty "
            "or an ID. Add a column, or name one in categorical_features."
        )
    # Normal scores, so that a long tail of y hides no effect.
    scores: Array = norm.ppf((rankdata(y) - 0.5) / len(y))
    wild: list[str] = []
    for j in columns_of["number"]:
        wild += wild_remarks(codes[:, j], f"column {labels[j]!r}", row_numbers)
        if _look_like_codes(codes[:, j], scores):
            remarks.append(
                f"Took column {labels[j]!r} as numbers, although its integers look "
                "like codes: y depends on them, but not in their order. Pass "
                f"categorical_features=[{labels[j]!r}] if they are codes."
            )
    remarks += wild[:3]  # one broken row may be wild in many columns
    transformer = ColumnTransformer(blocks, verbose_feature_names_out=False)
    transformer.set_output(transform="default")
    # scikit-learn 1.9's TargetEncoder cannot be fitted where routing is enabled.
    with config_context(enable_metadata_routing=False):
        values = np.ascontiguousarray(transformer.fit_transform(codes, scores))
    output_names, sources = _outputs(transformer, readers, names)
    places = transformer.output_indices_
    if means := columns_of["level_mean"]:
        others = np.compress(~sources[means].any(axis=0), values, axis=1)
        groups = None if together is None else together.numpy()
        folds = folds_of(len(y), groups, N_FOLDS, seed)
        left = _remainder(others, scores, weight, folds)
        encoder, levels = transformer.named_transformers_["level_mean"], codes[:, means]
        for rest, held_out in folds.split():
            encoder.fit(levels[rest], left[rest])
            outputs = encoder.transform(levels[held_out])
            values[held_out, places["level_mean"]] = outputs
        encoder.fit(levels, left)
    n_numbers = max(places[block].stop for block in ("number", "date", "level_mean"))
    donors = transformer.transform(_donors(readers, codes, y, seed))
    found = transformer, output_names, n_numbers, readers, sources, donors, remarks
    return TableEncoder(*found, [n for n in labels if isinstance(n, str)]), values


def _blocks(readers: list[ColumnReader], codes: Array) -> list[Any]:
    """Transformers with their columns: numbers first, then 0/1 inputs."""
    numbers, dates = (
        [j for j, r in enumerate(readers) if r.kind == kind and not r.levels]
        for kind in ("numbers", "dates")
    )
    flagged = [j for j in (*numbers, *dates) if readers[j].gaps]
    fill = SimpleImputer(strategy="median") if flagged else "passthrough"
    needed = min(MIN_ROWS, math.ceil(MIN_SHARE * len(codes)))
    frequent, means = [], []
    for j in (j for j, reader in enumerate(readers) if reader.levels):
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
    return [
        ("number", fill, numbers),
        ("date", make_pipeline(DateParts(), SimpleImputer(strategy="median")), dates),
        ("level_mean", TargetEncoder(target_type="continuous", smooth=SMOOTH), means),
        ("missing", MissingIndicator(features="all"), flagged),
        ("level", levels, frequent),
    ]


def _outputs(
    transformer: ColumnTransformer, readers: list[ColumnReader], names: list[str]
) -> tuple[list[str], Mask]:
    """Names of the inputs, and on which columns they rest (n_columns, p)."""
    # Columns are called <0>, <1>, …, levels by their places.
    marked = transformer.get_feature_names_out([f"<{j}>" for j in range(len(names))])
    marked[transformer.output_indices_["level_mean"]] += "_mean"
    sources = [[f"<{j}>" in label for label in marked] for j in range(len(names))]

    def shown(mark: re.Match[str]) -> str:
        j, level = int(mark[1]), mark[2]
        return names[j] + ("" if level is None else f"_{readers[j].show(int(level))}")

    outputs = []
    for label in marked:
        label = re.sub(r"missingindicator_(.*)", r"\1_missing", label)
        label = label.replace("infrequent_sklearn", "rare")
        outputs.append(re.sub(r"<(\d+)>(?:_(\d+)\.0)?", shown, label))
    return outputs, np.array(sources)


def _remainder(
    others: Array, scores: Array, weight: Array, folds: PredefinedSplit
) -> Array:
    """What a linear model of other inputs, fitted in other folds, leaves of y."""
    if not others.shape[1]:
        return scores
    with np.errstate(over="ignore", invalid="ignore"):  # refused a little later
        scaled = np.nan_to_num(StandardScaler().fit_transform(others))
    left = scores.copy()
    # Not cross_val_predict, which refuses weights where metadata routing is enabled.
    for rest, held_out in folds.split():
        line = Ridge().fit(scaled[rest], scores[rest], weight[rest])
        left[held_out] -= line.predict(scaled[held_out])
    return left


def _donors(readers: list[ColumnReader], codes: Array, y: Array, seed: int) -> Array:
    """Known values: of rows that spread over y; of levels that spread by mean of y."""
    rng = np.random.default_rng(seed)
    places = (np.arange(N_DONORS) + 0.5) / N_DONORS
    donors = codes[np.argsort(y, kind="stable")[(places * len(y)).astype(np.intp)]]
    for j, reader in enumerate(readers):
        if reader.levels:
            level = codes[:, j].astype(np.intp)
            means = np.bincount(level, y - y.mean()) / np.bincount(level)
            picks = (places * len(means)).astype(np.intp)
            donors[:, j] = rng.permutation(np.argsort(means, kind="stable")[picks])
    return donors


def wild_rows(values: Array) -> NDArray[np.intp]:
    """Rows with values far from all others, such as a slipped decimal point.

    At most three, or 0.1 % of the rows: those more than 20 robust units from the
    median, beyond a step in this distance by a factor of at least five and, in
    logarithms, of ten times the mean step of the next ten values. A long tail, as of
    prices and counts, has no such step.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        far = np.nan_to_num(np.abs(values - np.nanmedian(values)))
        unit = np.median(far[far > 0]) / 0.6745 if far.any() else 1.0
        log = np.log(np.clip(far / unit, 1e-9, 1e300))
    n_most = max(3, len(values) // 1_000)
    rows = np.argsort(-log)[: n_most + TAIL + 1]
    log = log[rows]
    for n in range(len(rows) - TAIL - 1, 0, -1):
        mean_step = (log[n : n + TAIL] - log[n + TAIL]).mean()
        is_step = log[n - 1] - log[n] > max(MIN_STEP, ISOLATED * mean_step)
        if is_step and log[n - 1] > math.log(WILD):
            return rows[:n]
    return rows[:0]


def wild_remarks(
    values: Array, name: str, row_numbers: NDArray[np.intp], more: str = ""
) -> list[str]:
    """Remarks on the wildest values of a column, by row."""
    return [
        f"Got {float(values[row])!r} in {name}, row {row_numbers[row]} of those that "
        f"the estimator was fitted on, which is more than {WILD:g} robust standard "
        f"deviations from the median and far from all other values. {more}Check it, or "
        "leave it out."
        for row in wild_rows(values)[:3].tolist()
    ]


def _look_like_codes(values: Array, scores: Array) -> bool:
    """Whether y depends on integers that repeat, in no order.

    Means of y by level then vary between neighbours as much as between all levels.
    """
    known = ~np.isnan(values)
    levels, places = np.unique(values[known], return_inverse=True)
    n, scores = len(levels), scores[known]
    repeated = n in CODES and len(scores) >= ROWS_PER_CODE * n
    if not repeated or (levels != np.rint(levels)).any():
        return False
    count = np.bincount(places)
    mean, n_rows = np.bincount(places, scores) / count, len(scores)
    within = float(((scores - mean[places]) ** 2).sum()) / (n_rows - n)
    # Sums of squares less what noise adds to them, in units of one row.
    squares = float((count * (mean - scores.mean()) ** 2).sum())
    between = (squares - (n - 1) * within) / (n_rows - float((count**2).sum()) / n_rows)
    weight = count[1:] * count[:-1] / (count[1:] + count[:-1])
    squares = float((weight * np.diff(mean) ** 2).sum())
    nearby = (squares - (n - 1) * within) / (2 * float(weight.sum()))
    # Six standard errors of the variance between levels that make no difference.
    clear = between * n_rows > 6 * math.sqrt(2 * n) * within
    return clear and between > 0.03 * within and nearby > 0.6 * between


def _fit_preprocessor(
    table: Any, y: Array, preprocessor: Any, named: set[int]
) -> tuple[TableEncoder, Array]:
    """Fit a user's transformer; the last of its outputs may be 0/1 inputs."""
    if named:
        raise ValueError(
            "Got categorical_features beside a preprocessor, but expected one of them. "
            "Encode these columns in the preprocessor."
        )
    transformer = clone(preprocessor)
    outputs = transformer.fit_transform(table, y)
    try:
        names = list(map(str, transformer.get_feature_names_out()))
    except (AttributeError, ValueError):
        names = [f"output {k}" for k in range(outputs.shape[1])]
    values = _finite(outputs)
    numbers = np.flatnonzero(~np.isin(values, (0, 1)).all(axis=0))
    return TableEncoder(transformer, names, int(numbers.max(initial=-1)) + 1), values


def _finite(outputs: Any) -> Array:
    """Outputs of a user's transformer, if these are finite numbers."""
    dense = outputs.toarray() if issparse(outputs) else outputs
    name = "X as the preprocessor gives it"
    values: Array = check_array(dense, dtype=np.float64, input_name=name)
    return values


def _categorical_positions(names: list[Any], categorical_features: Any) -> set[int]:
    """Positions of the columns that the user named as categorical."""
    given = categorical_features
    if isinstance(given, str) and given == "from_dtype":
        return set()
    try:
        # Names, positions, also from the end, or a mask; True is no name 1.
        items = [names.index(i) if isinstance(i, str) else i for i in given]
        return set(np.arange(len(names))[items].tolist()) if items else set()
    except (IndexError, TypeError, ValueError):
        expected = f"'from_dtype', or names, positions or a mask of the columns {names}"
        hint = "With 'from_dtype' text, truth values and categories are recognised."
        raise_for("categorical_features", given, expected, hint)


class DateParts(TransformerMixin, BaseEstimator):
    """Parts of dates (seconds since 1970) that vary, and the days between two dates."""

    def fit(self, X: Array, y: Any = None) -> Self:
        """Choose the parts, and the pairs of columns that occur together."""
        self.parts_ = []
        for dates in X.T:
            known = dates[~np.isnan(dates)]
            parts = [p for p in DATE_PARTS if np.ptp(known) >= MIN_RANGE.get(p, 0.0)]
            varying = [p for p in parts if np.ptp(DATE_PARTS[p](known)) > 0]
            self.parts_.append(varying or ["days"])
        columns = range(X.shape[1])
        pairs = combinations(columns, 2) if len(columns) <= 4 else pairwise(columns)
        gap = np.isnan(X)
        self.pairs_ = [[i, j] for i, j in pairs if not (gap[:, i] | gap[:, j]).all()]
        return self

    def transform(self, X: Array) -> Array:
        """Parts of each date, then the differences; NaN for a gap."""
        both = zip(X.T, self.parts_, strict=True)
        outputs = [DATE_PARTS[part](dates) for dates, parts in both for part in parts]
        outputs += [(X[:, j] - X[:, i]) / DAY for i, j in self.pairs_]
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
    day: Array = since_first / np.timedelta64(1, "D") + 1
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
# A season can be told from a trend after a year only.
MIN_RANGE = {"season_sin": YEAR, "season_cos": YEAR, "day": 60 * DAY}


def check_columns(estimator: Any, X: Any, table: Any, *, reset: bool) -> None:
    """Set or check number and names of the columns of X, of which a table was made."""
    if not reset and table.shape[1] == estimator.n_features_in_:
        # MAPIE asks with a row of zeros if a model is fitted; it has no names.
        probe = type(table) is np.ndarray and len(table) == 1 and not table.any()
        if probe or records_of(X) is not None:  # ordered by their names
            return
    # Frames of libraries that are not known by name have become arrays.
    named = X if hasattr(X, "columns") or hasattr(X, "__dataframe__") else table
    validate_data(estimator, named, reset=reset, skip_check_array=True)


def check_training_data(
    estimator: Any, X: Any, y: Any, sample_weight: Any, groups: Any = None
) -> TrainingData:
    """Check what ``fit`` was given, and set the columns of the estimator."""
    if y is None:
        raise ValueError(NEEDS_Y)
    check_real("y", y)
    warn_if_reordered(X, y)
    table = as_table(X, min_rows=2)
    check_columns(estimator, X, table, reset=True)
    n = table.shape[0]
    target = column("y", column_or_1d(y, warn=True), n).numpy()
    labels = None if groups is None else torch.from_numpy(check_groups(groups, n))
    data = TrainingData(table, target, np.ones(n), labels, np.arange(n))
    if sample_weight is None:
        return data
    weight = column("sample_weight", sample_weight, n, "non-negative").numpy()
    # A power of two rounds nothing, and keeps the sum from an overflow.
    weight = np.ldexp(weight, -np.frexp(weight.max())[1])
    kept = np.flatnonzero(weight > SMALLEST)
    if len(kept) < 2:
        raise ValueError(
            f"Got sample_weight that is zero in all rows but {len(kept)}, but "
            "expected at least 2. Leave sample_weight out to weigh rows alike."
        )
    data = data._replace(weight=weight)
    data = data if len(kept) == n else data.take(kept)
    return data._replace(weight=data.weight / data.weight.mean())


def merge_equal_rows(data: TrainingData) -> TrainingData:
    """Rows that differ in X or y, with the weight of all that are equal to them."""
    equal = equal_rows(data.table, data.y)
    first = np.unique(equal, return_index=True)[1]
    if len(first) == len(equal):
        return data
    first.sort()  # in the order in which they came
    total = np.bincount(equal, data.weight)[equal[first]]
    return data.take(first)._replace(weight=total / total.mean())


def tame_targets(data: TrainingData) -> tuple[TrainingData, list[str]]:
    """Wild targets count as the nearest of the others; with remarks on them.

    One of them would set the unit of y, and the noise everywhere.
    """
    wild, y = wild_rows(data.y), data.y.copy()
    others = np.delete(y, wild)
    y[wild] = np.clip(y[wild], others.min(), others.max())
    text = "The fit takes the nearest of the others in its place. "
    return data._replace(y=y), wild_remarks(data.y, "y", data.rows, text)


def fit_scaler(values: Array, weight: Array, labels: Sequence[str]) -> StandardScaler:
    """Standardise columns (n, p) by the training rows; a constant keeps its unit."""
    low, high = values.min(axis=0), values.max(axis=0)
    large = np.maximum(high, -low) > LARGEST
    bad = large | ((low < high) & (high - low < SMALLEST))
    for k in np.flatnonzero(bad).tolist():
        raise ValueError(
            f"Got {labels[k]} with values from {low[k]} to {high[k]}, the square of "
            f"whose range {'overflows' if large[k] else 'underflows'}. Multiply it by "
            f"a constant, for example {'1e-100' if large[k] else '1e150'}."
        )
    uniform = bool((weight == 1).all())
    return StandardScaler().fit(values, sample_weight=None if uniform else weight)
