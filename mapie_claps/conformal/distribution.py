"""A fitted model → its predictive distribution, and its intervals between scores.

All that is asked of an estimator, and all that grows with test rows times calibration
rows.
"""

from collections.abc import Iterator, Sequence
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing, gen_batches
from sklearn.utils.validation import _num_samples

from .._validation import check_real
from ..estimators.predictive import PredictiveDistribution
from ..network.batches import is_batches, items_of
from .support import Support

Array = NDArray[np.float64]
BLOCK_ROWS = 2**16  # rows that a model predicts at a time
BLOCK_ELEMENTS = 2**21  # of one n_test × n_cal block
NO_ROWS = PredictiveDistribution(np.empty(0), np.empty(0), np.empty(0), np.empty(0))


def distribution_of(
    model: Any, X: Any, params: dict[str, Any] | None = None, first_row: int = 0
) -> PredictiveDistribution:
    """Predictive distribution of a fitted model, checked.

    It comes from ``predict_distribution`` of the model or of the last step of a
    pipeline, otherwise from ``predict(X, return_std=True)``.
    """
    last = last_step(model)
    if not params and hasattr(last, "predict_distribution"):
        seen = X if last is model else transformed(model, X)
        return _checked(last.predict_distribution(seen), first_row)
    check_gives_std(model)
    mu, std = model.predict(X, return_std=True, **(params or {}))
    return from_mean_and_std(mu, std, first_row)


def from_mean_and_std(
    mu: ArrayLike, std: Any, first_row: int = 0
) -> PredictiveDistribution:
    """The distribution that standard deviations carry, or that of μ and √v alone."""
    carried = getattr(std, "distribution", None)
    if isinstance(carried, PredictiveDistribution):
        return _checked(carried, first_row)
    check_real("predictions", mu)
    check_real("standard deviations", std)
    centre, scale = (np.asarray(v, dtype=np.float64) for v in (mu, std))
    if scale.shape != centre.shape or scale.ndim != 1:
        raise ValueError(
            f"Got a standard deviation of shape {scale.shape} for predictions of shape "
            f"{centre.shape}, but expected one number of each per row from "
            "predict(X, return_std=True). Fit the estimator with a one-dimensional y."
        )
    return _checked(PredictiveDistribution(centre, scale), first_row)


def mean_and_std_alone(rows: PredictiveDistribution) -> PredictiveDistribution:
    """Mean and standard deviation of y without shape, map and range of targets."""
    if rows.is_plain and rows.targets is None:
        return rows
    parts = None if rows.aleatoric is None else rows.variance
    return PredictiveDistribution(rows.prediction, rows.std, *(parts or ()))


def _checked(rows: PredictiveDistribution, first_row: int) -> PredictiveDistribution:
    """The distribution, if its centre is finite and its scale positive as well."""
    floor = "Add a WhiteKernel, or wrap the estimator in ClapsResidualRegressor."
    for values, name, expected, hint in (
        (rows.centre, "prediction", "finite", "Look at this row of X."),
        (rows.scale, "standard deviation", "positive finite", floor),
    ):
        bad = ~np.isfinite(values) | (values <= 0) * (values is rows.scale)
        if bad.any():
            at = int(np.argmax(bad))
            raise ValueError(
                f"Got a {name} of {float(values[at])!r} in row {first_row + at}, but "
                f"expected {expected} numbers. {hint}"
            )
    return rows


def last_step(model: Any) -> Any:
    """Last step of a pipeline, or the model itself."""
    return model[-1] if isinstance(model, Pipeline) else model


def transformed(model: Any, X: Any) -> Any:
    """X as the last step of a fitted pipeline sees it."""
    is_chain = isinstance(model, Pipeline) and len(model) > 1
    return model[:-1].transform(X) if is_chain else X


def fit_id_of(*models: Any) -> str | None:
    """Identity of the fit, or of all fits; None for models that have none."""
    found: list[Any] = []
    for model in models:
        found.append(getattr(last_step(model), "fit_id_", None))
    return None if None in found else " ".join(found)


def check_same_fit(models: Sequence[Any], fit_id: str | None) -> None:
    """Raise if the models are not those that the scores were computed with."""
    if not fit_id or fit_id_of(*models) in (None, fit_id):
        return
    raise ValueError(
        f"Got a {type(last_step(models[0])).__name__} that was fitted again or "
        "updated, or whose scale changed, since the calibration rows were scored, so "
        "its intervals would not be calibrated. Call conformalize again, or use a "
        "copy.deepcopy of the estimator for changes."
    )


def gives_std(model: Any) -> bool:
    """Whether a model gives a distribution, or ``predict`` takes ``return_std``."""
    while isinstance(model, Pipeline):
        model = model[-1]
    names = signature(getattr(model, "predict", object)).parameters
    return hasattr(model, "predict_distribution") or "return_std" in names


def check_gives_std(model: Any) -> None:
    """Raise unless ``predict`` of the model takes ``return_std``."""
    last = last_step(model)
    do = (
        "Keep its predictions with ClapsResidualRegressor(model) or "
        "CalibratedRegressor(model), or use ClapsRegressor or a Gaussian process."
    )
    if hasattr(last, "predict_interval"):
        do = "Pass this step, with rows that the steps before it have transformed."
    elif hasattr(last, "best_estimator_"):
        do = (
            "Pass the model that it chose, search.best_estimator_, with prefit=True; "
            "or let CalibratedRegressor(search).fit(X, y) do both."
        )
    elif gives_std(model):
        return
    name = type(last).__name__
    raise TypeError(f"Got a {name}, whose predict takes no return_std. {do}")


def row_parts(
    model: Any, X: Any, y: Any = None, need_y: bool = False
) -> Iterator[tuple[Any, Any]]:
    """Arrays, or batches one after another, as the user gave them, each with its y."""
    if y is None and isinstance(X, list | tuple) and X and not is_batches(X):
        tables = all(len(getattr(part, "shape", ())) > 1 for part in X)
        X = iter(X) if tables else X  # tables without targets, not one array as a list
    for x, target, weight in items_of(X, y, None, need_y):
        if need_y and weight is not None:
            raise ValueError(
                "Got a batch (X, y, sample_weight), but expected (X, y): calibration "
                "counts every row once. Leave the weights out."
            )
        if hasattr(x, "detach") and not hasattr(model, "partial_sums"):
            x = x.detach().cpu().numpy()  # other models know no tensors
        yield x, target


def distributions(
    models: Sequence[Any], X: Any
) -> Iterator[tuple[Any, list[PredictiveDistribution], int]]:
    """X, what each model says, and the number of the first row, in blocks of rows."""
    first_row = 0
    for part, _ in row_parts(models[0], X):
        n = _num_samples(part)
        for rows in gen_batches(max(n, 1), BLOCK_ROWS):
            block = part if n <= BLOCK_ROWS else _safe_indexing(part, rows)
            each = [NO_ROWS] * len(models)
            if n:
                each = [distribution_of(m, block, first_row=first_row) for m in models]
            yield block, each, first_row
            first_row += len(each[0])


def average(each: Sequence[Array]) -> Array:
    """Mean of arrays; of equal ones to the last bit."""
    first = np.asarray(each[0], dtype=np.float64)
    return np.asarray(first + np.mean([other - first for other in each], axis=0))


class ScoreBounds(NamedTuple):
    """Signed scores between which intervals lie, (n, m), or (1, m) for all rows.

    Of several models the outermost ends count (minmax). With folds (CV+) the scores are
    those of all calibration rows; the k-th smallest of all upper ends counts, and the
    k-th largest of all lower ones.
    """

    lower: Array  # or (n_cal,)
    upper: Array
    folds: NDArray[np.intp] | None = None  # (n_cal,)
    ranks: Sequence[int] = ()  # k of each level; beyond n_cal ends are infinite

    def interval(
        self, rows: Sequence[PredictiveDistribution], support: Support
    ) -> Array:  # (n, 2, m)
        """Intervals of rows of which each model says something."""
        if self.folds is None:
            found = _of_model(rows[0], self.lower, self.upper, support)
            for model in rows[1:]:
                ends = _of_model(model, self.lower, self.upper, support)
                found[:, 0] = np.minimum(found[:, 0], ends[:, 0])
                found[:, 1] = np.maximum(found[:, 1], ends[:, 1])
            return found
        found = np.empty((len(rows[0]), 2, len(self.ranks)))
        at, own = np.array(self.ranks) - 1, [self.folds == j for j in range(len(rows))]
        size = max(1, BLOCK_ELEMENTS // (2 * len(self.folds)))
        for start in range(0, len(found), size):
            block = slice(start, start + size)
            each = [
                _of_model(model.take(block), self.lower[i], self.upper[i], support)
                for model, i in zip(rows, own, strict=True)
            ]
            ends = np.concatenate(each, axis=2) * [[-1], [1]]  # outwards is up
            padded = np.pad(ends, ((0, 0), (0, 0), (0, 1)), constant_values=np.inf)
            padded.partition(np.unique(at), axis=2)
            found[block] = padded[:, :, at] * [[-1], [1]]
        return np.sort(found, axis=1)  # they may cross at levels below one half


def _of_model(
    rows: PredictiveDistribution, lower: Array, upper: Array, support: Support
) -> Array:  # (n, 2, m)
    """Intervals of one model, with ends at values that y can take."""
    low, high = rows.interval(lower, upper)
    known = support.of(rows.targets)
    if not known.is_everything:
        low, high = known.nearest(low, -1), known.nearest(high, 1)
    bounds = np.stack([low, high], axis=1)
    empty = lower > upper
    if empty.any():  # they hold no value, at a place that has a meaning
        middle = rows.median[:, None]
        bounds[:, 0] = np.where(empty, np.nextafter(middle, np.inf), bounds[:, 0])
        bounds[:, 1] = np.where(empty, middle, bounds[:, 1])
    return bounds
