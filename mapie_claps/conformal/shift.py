"""Rows that are not exchangeable with the calibration rows: groups and weights."""

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from sklearn.utils import _safe_indexing

from .._validation import check_integer, check_number, check_unmasked, raise_for
from ..estimators.predictive import PredictiveDistribution
from ..exceptions import EffectiveSampleSizeWarning
from ..network.batches import column
from ..network.target import IDENTITY
from .calibration import ALL_ROWS, Calibration, rows_by_group
from .distribution import distribution_of

Array = NDArray[np.float64]
OTHER = "other"
ROWS_PER_MISS = 5  # effective rows per unit of 1/α below which a warning is due
MANY_CLIPPED = 0.01  # share of the target rows


@dataclass(frozen=True)
class ColumnGroups:
    """The values of one column of X as groups, rare ones of them together.

    Parameters
    ----------
    column : str or int
        Name of a column of a DataFrame, or position of a column of an array.
    values : sequence, optional
        Values that are groups of their own, by default all; others are "other".

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import ColumnGroups
    >>> X_train = np.array([[0.1, 1], [0.4, 1], [0.2, 2], [0.9, 3]])
    >>> groups = ColumnGroups.from_training(X_train, 1, min_rows=2)
    >>> groups.values, groups(X_train)
    ((1.0,), (1.0, 1.0, 'other', 'other'))
    """

    column: str | int
    values: Sequence[Any] | None = None

    @classmethod
    def from_training(cls, X: Any, column: str | int, min_rows: int = 100) -> Self:
        """Keep the values of a column that at least ``min_rows`` training rows have."""
        check_integer("min_rows", min_rows, low=1, hint="Use 100 if unsure.")
        counts = Counter(cls(column)(X))
        kept = [label for label, count in counts.items() if count >= min_rows]
        return cls(column, tuple(sorted(kept, key=lambda v: (isinstance(v, str), v))))

    def __call__(self, X: Any) -> tuple[Any, ...]:
        """Values of the column, or "other", for each row."""
        table = X if hasattr(X, "columns") else np.asarray(X)
        names = list(map(str, getattr(X, "columns", ())))
        if isinstance(self.column, str) and self.column not in names:
            expected = f"one of the columns {names}" if names else "a position"
            raise_for("partition", self.column, expected, "Or pass one label per row.")
        labels = checked_labels(_safe_indexing(table, self.column, axis=1))
        known = set(labels if self.values is None else self.values)
        return tuple(v if v in known else OTHER for v in labels)


@dataclass(frozen=True)
class EpistemicGroups:
    r"""Bins of the epistemic fraction: groups by how little is known of a row.

    A row's group is the number of edges at or below its
    :math:`\varphi^\top\Sigma\varphi / v`.

    Parameters
    ----------
    edges : sequence of float
        Inner edges, ascending and between 0 and 1; one edge makes two groups.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import ClapsRegressor, EpistemicGroups
    >>> X = np.linspace(-1, 1, 60)[:, None]
    >>> model = ClapsRegressor.paper(random_state=0).fit(X, X[:, 0])
    >>> len(EpistemicGroups.from_training(model, X, n_groups=3).edges)
    2
    """

    edges: Sequence[float]

    def __post_init__(self) -> None:
        values = np.asarray(self.edges, dtype=np.float64)
        padded = np.concatenate([[0.0], values.ravel(), [1.0]])
        if values.ndim != 1 or not len(values) or not (np.diff(padded) > 0).all():
            hint = "Use for example [0.05, 0.2], or EpistemicGroups.from_training."
            raise_for("edges", self.edges, "ascending numbers between 0 and 1", hint)
        object.__setattr__(self, "edges", tuple(values.tolist()))

    @classmethod
    def from_training(cls, estimator: Any, X: Any, n_groups: int = 3) -> Self:
        """Edges at quantiles of training rows, for at most so many groups."""
        n_groups = check_integer("n_groups", n_groups, low=2, hint="Use 3 if unsure.")
        fraction = _epistemic_fraction(distribution_of(estimator, X))
        edges = np.unique(np.quantile(fraction, np.arange(1, n_groups) / n_groups))
        # Raises if all rows are known equally well.
        return cls(edges[(edges > 0) & (edges < 1)].tolist())

    def __call__(self, rows: PredictiveDistribution) -> tuple[int, ...]:
        """Number of the bin of each row of what ``predict_distribution`` gives."""
        found = np.searchsorted(self.edges, _epistemic_fraction(rows), side="right")
        return tuple(found.tolist())


def _epistemic_fraction(rows: PredictiveDistribution) -> Array:
    return replace(rows, target_map=IDENTITY).variance.epistemic_fraction


class RowValues(NamedTuple):
    """Weights and partition: functions of X, or one value for each row."""

    weights: Any = None
    partition: Any = None

    def at(self, X: Any, rows: PredictiveDistribution, start: int) -> "RowValues":
        """Weights and labels of some rows, whose first is number ``start``."""
        found, n = list(self), len(rows)
        self.check_length(start + n, at_least=True)
        for i, checked in enumerate((checked_weights, checked_labels)):
            if callable(self[i]):
                seen = rows if isinstance(self[i], EpistemicGroups) else X
                found[i] = checked(self[i](seen), n)
            elif self[i] is not None:
                found[i] = self[i][start : start + n]
        return RowValues(*found)

    def check_length(self, n: int, at_least: bool = False) -> None:
        """Raise if values were given for other than n rows."""
        for name, values in self._asdict().items():
            given = len(values) if isinstance(values, np.ndarray) else n
            if given < n or (given > n and not at_least):
                found = f"{'at least ' * at_least}{n}. Pass one for each row."
                raise ValueError(f"Got {name} of {given} rows, but X has {found}")


def check_values(weights: Any = None, partition: Any = None) -> RowValues:
    """Weights and partition as functions of X, or of all rows."""
    if weights is not None and not callable(weights):
        weights = checked_weights(weights)
    if isinstance(partition, str | int) and not isinstance(partition, bool):
        partition = ColumnGroups(partition)
    elif partition is not None and not callable(partition):
        partition = checked_labels(partition)
    return RowValues(weights, partition)


def checked_labels(labels: Any, n: int | None = None) -> NDArray[Any]:
    """One label per row, text or a number, none missing."""
    check_unmasked("partition", labels)
    given = np.array(labels, dtype=object)
    wrong = given.ndim != 1 or n not in (None, len(given))
    found = f"of shape {given.shape}" + f" for {n} rows" * (n is not None)
    for row, label in enumerate([] if wrong else given):
        given[row] = label.item() if isinstance(label, np.generic) else label
        # NaN does not equal itself.
        if not isinstance(given[row], str | int | float) or label != label:
            wrong, found = True, f"with {label!r} in row {row}"
            break
    if wrong:
        raise ValueError(
            f"Got partition {found}, but expected one label per row, text or a number. "
            "Pass a column of X; give rows without a label one of their own."
        )
    return given


def checked_weights(weights: Any, n: int | None = None) -> Array:
    """Weights (n,), each finite and at least 0."""
    n = len(np.atleast_1d(weights)) if n is None else n
    return column("weights", weights, n, sign="non-negative").numpy()


def effective_sizes(rows: Calibration) -> dict[Any, float]:
    """(Σ w)² / Σ w² of each group: rows of equal weight that its rows are worth."""
    weights = np.ones(len(rows)) if rows.weights is None else rows.weights
    sizes = {}
    for label, some in rows_by_group(rows.partition).items():
        largest = weights[some].max(initial=0.0) or 1.0
        share = weights[some] / largest  # sums and squares could overflow
        sizes[label] = float(share.sum() ** 2 / (np.square(share).sum() or 1.0))
    return sizes


def warn_if_few_count(rows: Calibration, levels: Sequence[float]) -> None:
    """Raise if no calibration row has weight; warn where few have nearly all of it."""
    if rows.weights is None or not len(rows):
        return
    if not rows.weights.any():
        raise ValueError(
            f"Got weights that are zero in all {len(rows)} calibration rows, so that "
            "no interval is finite. Calibrate on rows like those to predict."
        )
    needed, groups = ROWS_PER_MISS / (1 - max(levels)), rows_by_group(rows.partition)
    for label, n_effective in effective_sizes(rows).items():
        n = len(rows.weights[groups[label]])
        # Few rows of about equal weight are what there is; a few heavy ones are not.
        if n_effective >= min(needed, n / 2):
            continue
        of = "" if label is ALL_ROWS else f" of the group {label!r}"
        warnings.warn(
            f"Got {n} weighted calibration rows{of} that are worth "
            f"{n_effective:.1f} rows of equal weight, where {needed:.0f} are enough: "
            "coverage depends on a few of them. Calibrate on more, or clip harder.",
            EffectiveSampleSizeWarning,
            stacklevel=4,
        )


def likelihood_ratio(
    X_source: Any, X_target: Any, *, estimator: Any = None, clip: float = 20.0
) -> "RowRatio":
    r"""Estimate how much more frequent rows are in the target, as a function of X.

    :math:`w(x) = p_{\mathrm{target}}(x) / p_{\mathrm{source}}(x)`, from a logistic
    regression on standardised columns that tells the two apart. It is right if the
    logarithm of the ratio is linear in the columns.

    Parameters
    ----------
    X_source, X_target : array-like of shape (n, p)
        Other rows from where those to calibrate on come, and those to predict.
    estimator : ClapsRegressor, optional
        Fitted, to turn text, dates and gaps into numbers; by default X is numbers.
    clip : float, default=20.0
        Ratios are clipped to [1/clip, clip].

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import likelihood_ratio
    >>> rng = np.random.default_rng(0)
    >>> ratio = likelihood_ratio(
    ...     rng.normal(0, 1, (500, 2)), rng.normal(0.5, 1, (500, 2)))
    >>> ratio([[0.0, 0.0], [1.0, 1.0]]).round(1)
    array([0.8, 2.3])
    """
    clip = check_number("clip", clip, low=1, low_open=True, hint="Use 20 if unsure.")
    source, target = (_numbers(estimator, X) for X in (X_source, X_target))
    for name, values in (("X_source", source), ("X_target", target)):
        n_bad = int((~np.isfinite(values)).any(axis=1).sum())
        if len(values) < 2 or n_bad or values.shape[1] != source.shape[1]:
            raise ValueError(
                f"Got {name} with {len(values)} rows, of which {n_bad} hold NaN or "
                f"infinity, and {values.shape[1]} columns, but expected two rows or "
                f"more of {source.shape[1]} numbers. Pass estimator= to encode gaps."
            )
    is_target = np.repeat([0, 1], [len(source), len(target)])
    scaler, logit = StandardScaler(), LogisticRegression(max_iter=1000)
    logit.fit(scaler.fit_transform(np.concatenate([source, target])), is_target)
    coef = logit.coef_[0] / scaler.scale_
    constant = logit.intercept_[0] + np.log(len(source) / len(target))
    intercept = float(constant - scaler.mean_ @ coef)
    log_ratio = target @ coef + intercept
    n_high = int((log_ratio > np.log(clip)).sum())
    if n_high > MANY_CLIPPED * len(target):
        warnings.warn(
            f"Got {n_high} of {len(target)} target rows whose likelihood ratio exceeds "
            f"clip={clip:g}. Clipped weights cover them too rarely: collect rows to "
            "calibrate on there, or raise clip.",
            EffectiveSampleSizeWarning,
            stacklevel=2,
        )
    return RowRatio(coef, intercept, clip, estimator)


@dataclass(frozen=True, eq=False)
class RowRatio:
    """Clipped likelihood ratios as a function of X; see ``likelihood_ratio``."""

    coef: Array
    intercept: float
    clip: float
    estimator: Any = None  # that encodes X

    def __call__(self, X: Any) -> Array:
        """Ratios (n,) of rows to calibrate on or to predict."""
        log_ratio = _numbers(self.estimator, X) @ self.coef + self.intercept
        return np.exp(np.clip(log_ratio, -np.log(self.clip), np.log(self.clip)))


def _numbers(estimator: Any, X: Any) -> Array:
    """What the logistic regression sees, (n, d)."""
    if estimator is not None:
        return np.stack(list(estimator.input_columns(X).values()), axis=1)
    values = np.asarray(X, dtype=np.float64)
    return values.reshape(len(values), -1)
