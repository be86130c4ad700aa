"""Models, scores and a rank → bounds: of one model, or of the models of the folds."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import _safe_indexing, gen_batches
from sklearn.utils.validation import _num_samples

from ..estimators.variance import Parts
from . import mapie as _mapie
from .parts import last_step, parts_of, split_pipeline
from .quantile import check_rank, conformal_quantile, conformal_rank
from .scaled_residual import ROUND_OUT, checked_std, interval_bounds

__all__ = ["cross_bounds", "predict_with_std", "recorded_parts", "split_bounds"]

Array = NDArray[np.float64]
# Elements of one n_test × n_cal block of the cross-conformal methods.
BLOCK_ELEMENTS = 2**21
PREDICTED_ROWS = 2**16  # test rows that a model predicts at a time


class Recorded(NamedTuple):
    """Parts of v of some rows, and the model that gave them."""

    model: Any
    parts: Parts


_record: ContextVar[list[Recorded] | None] = ContextVar("_record", default=None)


@contextmanager
def recorded_parts() -> Iterator[list[Recorded]]:
    """Keep the parts of v that bounds are made from, so that one pass gives both.

    The bounds come from MAPIE's own call, with all its parameters and checks; a
    context variable is seen by the thread that asked and by no other.
    """
    record: list[Recorded] = []
    token = _record.set(record)
    try:
        yield record
    finally:
        _record.reset(token)


def predict_with_std(
    model: Any, X: Any, params: dict[str, Any] | None = None, first_row: int = 0
) -> tuple[Array, Array]:
    """μ and √v of one model, checked."""
    record, params = _record.get(), params or {}
    if record is not None and not params and hasattr(last_step(model), "predict_parts"):
        parts = parts_of(model, X)
        mu, std = parts.prediction, parts.std
        record.append(Recorded(model, parts))
    else:
        mu, std = model.predict(X, return_std=True, **params)
        if record is not None:
            last, seen = split_pipeline(model, X)
            variance = last.predict_variance(seen)
            parts = Parts(mu, variance.aleatoric, variance.epistemic)
            record.append(Recorded(model, parts))
    mu = np.asarray(mu, dtype=np.float64)
    return mu, checked_std(std, len(mu), first_row)


def split_bounds(
    model: Any,
    X: ArrayLike,
    alphas: Array,
    scores: Array,  # (n_cal,)
    allow_infinite: bool,
    params: dict[str, Any],
) -> tuple[Array, Array, Array]:
    """μ and μ ± q√v of one model; beyond the results, memory for some rows only."""
    q = conformal_quantile(scores, list(alphas), allow_infinite)
    n = _num_samples(X)
    if n <= PREDICTED_ROWS or params:  # parameters may hold a value per row
        mu, std = predict_with_std(model, X, params)
        return mu, *interval_bounds(mu, std, q)
    mu, lower, upper = np.empty(n), np.empty((n, len(q))), np.empty((n, len(q)))
    for rows in gen_batches(n, PREDICTED_ROWS):
        part = _safe_indexing(X, rows)
        mu[rows], std = predict_with_std(model, part, params, rows.start)
        lower[rows], upper[rows] = interval_bounds(mu[rows], std, q)
    return mu, lower, upper


def cross_bounds(
    X: ArrayLike,
    alphas: Array,
    ensemble: Any,
    scores: Array,  # (n_cal,)
    aggregate: bool,
    method: str,
    allow_infinite: bool,
    params: dict[str, Any],
) -> tuple[Array, Array, Array]:
    """Bounds of CV+, jackknife+ and their minmax forms, in row blocks."""
    n = len(scores)
    ranks = [conformal_rank(n, a) for a in alphas]
    for rank, alpha in zip(ranks, alphas, strict=True):
        check_rank(rank, n, alpha, allow_infinite)
    mu, std = _predict_folds(ensemble, X, params)
    lower = np.full((len(mu), len(ranks)), -np.inf)
    upper = np.full((len(mu), len(ranks)), np.inf)
    finite = [j for j, rank in enumerate(ranks) if rank <= n]
    kept = [ranks[j] for j in finite]
    one_sided = _plus if method == "plus" else _minmax
    points = np.empty(len(mu))
    for block in _row_blocks(len(mu), n):
        centre = _mapie.aggregate_folds(ensemble, mu[block])
        scale = _mapie.aggregate_folds(ensemble, std[block])
        if finite:  # the lower bound is the upper one of −y
            lower[block, finite] = -one_sided(-centre, scale, scores, kept)
            upper[block, finite] = one_sided(centre, scale, scores, kept)
        points[block] = _mapie.aggregate_points(ensemble, centre)
    if not aggregate:
        points[:] = _mapie.point_model(ensemble).predict(X, **params)
    return points, lower, upper


def _predict_folds(
    ensemble: Any, X: ArrayLike, params: dict[str, Any]
) -> tuple[Array, Array]:
    """μ and √v of the models of the folds, one column each."""
    pairs = [predict_with_std(m, X, params) for m in _mapie.fold_models(ensemble)]
    return np.stack([p[0] for p in pairs], 1), np.stack([p[1] for p in pairs], 1)


def _row_blocks(n_test: int, n_cal: int) -> list[slice]:
    """Test rows in blocks whose n_test × n_cal matrix stays small."""
    size = max(1, BLOCK_ELEMENTS // max(1, n_cal))
    return [slice(i, i + size) for i in range(0, n_test, size)]


def _plus(centre: Array, scale: Array, scores: Array, ranks: list[int]) -> Array:
    """k-th smallest of μ₋ᵢ(x) + Rᵢ √v₋ᵢ(x) over the calibration rows i."""
    by_row = centre + scale * (scores * ROUND_OUT)
    order = sorted({k - 1 for k in ranks})
    by_row.partition(order, axis=1)
    bounds: Array = np.nextafter(by_row[:, [k - 1 for k in ranks]], np.inf)
    return bounds


def _minmax(centre: Array, scale: Array, scores: Array, ranks: list[int]) -> Array:
    """Largest of μ₋ᵢ(x) + q √v₋ᵢ(x) over the calibration rows i."""
    quantiles = np.sort(scores)[[k - 1 for k in ranks]] * ROUND_OUT
    largest = [(centre + scale * q).max(axis=1) for q in quantiles]
    bounds: Array = np.nextafter(np.stack(largest, axis=1), np.inf)
    return bounds
