"""Columns of a table → inputs of the networks: one class per kind of column.

Each class reads its column into one number per row (``read``: a value, or the number
of a category) and turns these numbers into inputs (``encode``), with a mask of inputs
that rest on a value which never occurred in training. ``donors`` holds the inputs of
values that did occur, one row per draw.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from ..files.codec import saved_as
from .frames import Column

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Codes = NDArray[Any]  # (n,), float64 or int64

N_DONORS = 16
DONOR_LEVELS = (np.arange(N_DONORS) + 0.5) / N_DONORS
N_FOLDS = 5
ENOUGH_ROWS = 1_000  # of a column, for a median and for donors
ANY_NUMBER = 10**9  # values of a column that is not categorical: no two rows agree


class Encoded(NamedTuple):
    """Inputs of some rows, and which of them rest on values not seen in training."""

    values: Array  # (n, k)
    unseen: Mask  # (n, k)


NUMBER, INDICATOR = 0, 1  # inputs that are numbers come first, 0 or 1 behind


class Output(NamedTuple):
    """One input of the networks."""

    rank: int  # NUMBER or INDICATOR
    positions: list[int]  # columns that it comes from
    name: str
    n_values: int = ANY_NUMBER  # known in training


@saved_as("numbers")
@dataclass(frozen=True)
class Numbers:
    """All columns of numbers: the number or the median; a flag where there were gaps.

    A gap in a column that had none in training is a value not seen.
    """

    positions: list[int]
    fill: Array  # (p,), medians
    flagged: list[int]  # columns (of the p) with gaps in training
    donors: Array  # (N_DONORS, p + number of flags)

    @classmethod
    def fit(
        cls, positions: list[int], columns: list[Array], rng: np.random.Generator
    ) -> "Numbers":
        """Medians and quantiles of some training rows."""
        fill, donors, flagged = [], [], []
        for k, column in enumerate(columns):
            gap = np.isnan(column)
            if gap.any():
                flagged.append(k)
                column = column[~gap]
            known = column[:: max(1, len(column) // ENOUGH_ROWS)]
            fill.append(np.median(known))
            donors.append(rng.permutation(even_quantiles(known)))
        donors += [np.zeros(N_DONORS)] * len(flagged)
        stacked = np.array(donors).T.reshape(N_DONORS, -1)
        return cls(positions, np.array(fill, dtype=np.float64), flagged, stacked)

    def outputs(self, names: list[str]) -> list[Output]:
        """The columns themselves, then the flags."""
        flagged = [self.positions[k] for k in self.flagged]
        return [
            *(Output(NUMBER, [j], names[j]) for j in self.positions),
            *(Output(INDICATOR, [j], f"{names[j]}_missing") for j in flagged),
        ]

    @staticmethod
    def read(column: Column) -> Array:
        """Numbers, NaN for gaps."""
        if column.kind in ("number", "boolean", "empty"):
            return column.values
        column.refuse_kind("number", "Convert it, for example with pandas.to_numeric.")
        return np.full(len(column.values), np.nan)

    def encode(self, *columns: Array) -> Encoded:
        """Numbers with their gaps filled, then the flags."""
        X = np.column_stack(columns)
        gap = np.isnan(X)
        flags = gap[:, self.flagged]
        unseen = gap.copy()
        unseen[:, self.flagged] = False
        values = np.hstack([np.where(gap, self.fill, X), flags])
        return Encoded(values, np.hstack([unseen, np.zeros_like(flags)]))


@saved_as("categories")
@dataclass(frozen=True)
class Categories:
    """The categories that occurred in training; None stands for a gap."""

    kind: str  # "text", "number" or "boolean"
    values: list[str | float | None]

    @classmethod
    def fit(cls, column: Column) -> "Categories":
        """Distinct values in their natural order, the gap last."""
        distinct = set(_comparable(column))
        known: list[Any] = sorted(v for v in distinct if v is not None)  # type: ignore[type-var]
        kind = "text" if column.kind == "date" else column.kind
        return cls(kind, [*known, None] if None in distinct else known)

    def __len__(self) -> int:
        return len(self.values)

    def show(self, value: str | float | None) -> str:
        """A category as text."""
        if value is None:
            return "missing"
        if self.kind == "boolean":
            return str(bool(value))
        return value if isinstance(value, str) else f"{value:.15g}"

    def read(self, column: Column) -> NDArray[np.int64]:
        """Numbers of the categories; their count stands for a value not seen."""
        kinds = {self.kind, "text" if column.kind == "date" else column.kind}
        if len(kinds) > 1 and not kinds <= {"number", "boolean"} and not column.plain:
            hint = "text with astype(str)" if self.kind == "text" else "numbers"
            column.refuse_kind(self.kind, f"Convert it to {hint}.")
        number = {value: i for i, value in enumerate(self.values)}
        codes = (number.get(value, len(number)) for value in _comparable(column))
        return np.fromiter(codes, np.int64, len(column.values))


@saved_as("few values")
@dataclass(frozen=True)
class FewValues:
    """One 0/1 input per category; a single one for two categories."""

    positions: list[int]
    categories: Categories
    donors: Array  # (N_DONORS, k)

    @classmethod
    def fit(
        cls, positions: list[int], categories: Categories, rng: np.random.Generator
    ) -> "FewValues":
        """Donors are the known categories in turn."""
        n = len(categories)
        donors = _one_hot(rng.permutation(np.arange(N_DONORS) % n), n)
        return cls(positions, categories, donors)

    def outputs(self, names: list[str]) -> list[Output]:
        """One input per category, named after it."""
        values = self.categories.values
        shown = values[1:] if len(values) == 2 else values
        name = names[self.positions[0]]
        texts = [f"{name}_{self.categories.show(value)}" for value in shown]
        return [Output(INDICATOR, self.positions, t, len(values)) for t in texts]

    def read(self, column: Column) -> NDArray[np.int64]:
        """Numbers of the categories."""
        return self.categories.read(column)

    def encode(self, codes: Codes) -> Encoded:
        """Which category it is."""
        n = len(self.categories)
        return _marked(_one_hot(codes, n), codes == n, self.donors)


@saved_as("many values")
@dataclass(frozen=True)
class ManyValues:
    """Two inputs: what the category adds to y, shrunk, and how many rows it has.

    What it adds is a mean over its rows of what a linear model of the other columns
    leaves of y, both in normal scores of y, so that neither other columns nor a long
    tail of y hide it. The mean of a category of n rows is multiplied by
    nτ²/(nτ² + σ²), as the posterior mean of a random effect with variance τ² between
    and σ² within categories. Training rows see the means of other folds.
    """

    positions: list[int]
    categories: Categories
    mean: Array  # (K,)
    log_count: Array  # (K,)
    donors: Array  # (N_DONORS, 2)

    @classmethod
    def fit(
        cls,
        positions: list[int],
        categories: Categories,
        codes: Codes,
        folds: "list[Remainder]",
    ) -> tuple["ManyValues", Encoded]:
        """The class, and the inputs of the training rows by cross-fitting.

        The last of the folds is that of all rows, which holds none out.
        """
        n = len(categories)
        inputs = np.empty((len(codes), 2))
        for rest, held_out, y, weight in folds:
            mean, log_count = _effects(codes[rest], y, weight, n)
            inputs[held_out] = np.column_stack([mean, log_count])[codes[held_out]]
        # Evenly along the means: a new category is one more draw of such a mean.
        rng = np.random.default_rng(positions[0])
        picks = ((np.arange(N_DONORS) + 0.5) * n / N_DONORS).astype(int)
        picks = rng.permutation(np.argsort(mean, kind="stable")[picks])
        donors = np.column_stack([mean[picks], log_count[picks]])
        fitted = cls(positions, categories, mean, log_count, donors)
        return fitted, Encoded(inputs, np.zeros(inputs.shape, dtype=bool))

    def outputs(self, names: list[str]) -> list[Output]:
        """Mean and count."""
        name, n = names[self.positions[0]], len(self.categories)
        return [
            Output(NUMBER, self.positions, f"{name}_{suffix}", n)
            for suffix in ("mean", "count")
        ]

    def read(self, column: Column) -> NDArray[np.int64]:
        """Numbers of the categories."""
        return self.categories.read(column)

    def encode(self, codes: Codes) -> Encoded:
        """Mean and count of the category."""
        n = len(self.categories)
        known = np.minimum(codes, n - 1)
        values = np.column_stack([self.mean[known], self.log_count[known]])
        return _marked(values, codes == n, self.donors)


class Remainder(NamedTuple):
    """What a linear model leaves of y in some rows."""

    rows: Mask
    held_out: Mask  # rows that it may be used for
    y: Array  # of the rows, in normal scores
    weight: Array


def remainders(
    inputs: Array, y: Array, weight: Array, rng: np.random.Generator
) -> list[Remainder]:
    """Remainders of the rows outside each fold, and last of all rows."""
    fold = rng.permutation(len(y)) % N_FOLDS
    held_outs = [fold == k for k in range(N_FOLDS)] + [np.zeros(len(y), dtype=bool)]
    found = []
    for held_out in held_outs:
        rest = ~held_out
        z, w = normal_scores(y[rest], weight[rest]), weight[rest]
        found.append(Remainder(rest, held_out, z - _linear(inputs[rest], z, w), w))
    return found


def normal_scores(y: Array, weight: Array) -> Array:
    """Ranks of y, equal ones at their middle, as quantiles of the normal law."""
    values, place = np.unique(y, return_inverse=True)
    count = np.bincount(place, weight, minlength=len(values))
    scores: Array = norm.ppf((np.cumsum(count) - count / 2) / count.sum())
    return scores[place]


def _linear(inputs: Array, z: Array, weight: Array) -> Array:
    """Predictions of a linear model with a slight ridge."""
    with np.errstate(over="ignore", invalid="ignore"):  # refused a little later
        mean = np.average(inputs, axis=0, weights=weight)
        scale = np.sqrt(np.average((inputs - mean) ** 2, axis=0, weights=weight))
        A = (inputs - mean) / np.where(scale > 0, scale, 1.0)
    A = np.nan_to_num(A)
    level = float(np.average(z, weights=weight))
    weighted = A.T * weight
    ridge = weighted @ A + np.eye(A.shape[1])
    fitted: Array = level + A @ np.linalg.solve(ridge, weighted @ (z - level))
    return fitted


def even_quantiles(values: Array) -> Array:
    """As many of the values as there are donors, at even quantiles."""
    picked: Array = np.quantile(values, DONOR_LEVELS, method="inverted_cdf")
    return picked


def _marked(values: Array, unseen: Mask, donors: Array) -> Encoded:
    """Inputs of categories; those of unseen ones are the mean of the donors."""
    values[unseen] = donors.mean(axis=0)
    return Encoded(values, np.repeat(unseen[:, None], values.shape[1], axis=1))


def _one_hot(codes: Codes, n: int) -> Array:
    """(len(codes), n); one column for two categories; all zero for an unseen one."""
    categories = np.arange(n) if n != 2 else np.array([1])
    hot: Array = (codes[:, None] == categories).astype(np.float64)
    return hot


def _effects(codes: Codes, y: Array, weight: Array, n: int) -> tuple[Array, Array]:
    """Shrunk means (n,) of y by category, and log(1 + rows) (n,).

    τ² and σ² are the estimates of the one-way analysis of variance, with one more
    observation of σ² as large as the variance of y: where every row is a category of
    its own, means are drawn in fully.
    """
    count = np.bincount(codes, weight, minlength=n)
    total, overall = count.sum(), float(np.average(y, weights=weight))
    deviation = np.bincount(codes, weight * (y - overall), minlength=n)
    effect = deviation / np.where(count > 0, count, 1.0)
    n_seen = np.count_nonzero(count)
    squares_within = float((weight * (y - overall - effect[codes]) ** 2).sum())
    spread = float(np.average((y - overall) ** 2, weights=weight))
    within = (squares_within + spread) / (max(0.0, total - n_seen) + 1)
    spare = max(1.0, total - float((count**2).sum()) / total)
    squares_between = float((count * effect**2).sum())
    between = max(0.0, squares_between - (n_seen - 1) * within) / spare
    noise = max(within, np.finfo(np.float64).tiny)
    shrunk = effect * (count * between / (count * between + noise))
    return overall + shrunk, np.log1p(count)


def _comparable(column: Column) -> list[str | float | None]:
    """Values as categories are compared; None for gaps."""
    values: list[Any] = column.values.tolist()
    if column.kind == "text":
        return values
    if column.kind == "date":
        return [None if v is None else str(v) for v in values]
    return [None if v != v else v for v in values]
