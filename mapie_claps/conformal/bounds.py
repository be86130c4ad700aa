"""Models, scores and a rank → bounds: of one model, or of the models of the folds."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import _safe_indexing, gen_batches
from sklearn.utils.validation import _num_samples

from ..estimators.local_law import ROUND_OUT, LocalLaw
from ..estimators.variance import Parts
from . import mapie as _mapie
from .explanation import Recorded
from .laws import checked_law, checked_std, law_of
from .parts import check_gives_std, last_step, parts_of, split_pipeline
from .quantile import ScoreBounds, checked_ranks
from .row_rule import RowRule
from .support import Support

Array = NDArray[np.float64]
# Elements of one n_test × n_cal block of the cross-conformal methods.
BLOCK_ELEMENTS = 2**21
PREDICTED_ROWS = 2**16  # test rows that a model predicts at a time


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


def predict_law(
    model: Any, X: Any, params: dict[str, Any] | None = None, first_row: int = 0
) -> tuple[Array, LocalLaw]:
    """Point predictions and the law of one model, checked."""
    params = params or {}
    recorded, last = _record.get() is not None, last_step(model)
    if not params and hasattr(last, "predict_law"):
        law = checked_law(last.predict_law(split_pipeline(model, X)[1]), first_row)
        return law.prediction, law
    if not params and recorded and hasattr(last, "predict_parts"):
        parts = parts_of(model, X)  # one pass, where predict and they would be two
        law = checked_law(LocalLaw.from_parts(*parts), first_row)
        return law.prediction, law
    check_gives_std(model)
    mu, std = model.predict(X, return_std=True, **params)
    return np.asarray(mu, dtype=np.float64), law_of(mu, std, first_row)


def bounds_of_rows(
    model: Any,
    X: Any,
    ends: ScoreBounds | RowRule,
    params: dict[str, Any],
    support: Support,
    first_row: int = 0,
    shaped: bool = True,
) -> tuple[Array, Array, Array]:
    """Point predictions (n,), lower and upper bounds (n, n_levels) of some rows."""
    points, law = predict_law(model, X, params, first_row)
    if not shaped and not law.is_plain:
        law = LocalLaw.symmetric(points, checked_std(law.std, len(points), first_row))
    if isinstance(ends, RowRule):
        ends = ends(X, law, first_row)
    lower, upper = support.of(law).snap(*law.interval(*ends))
    empty = ends.lower > ends.upper
    if empty.any():  # ends that hold no value, at a place that has a meaning
        middle = law.median[:, None]
        lower = np.where(empty, np.nextafter(middle, np.inf), lower)
        upper = np.where(empty, middle, upper)
    record = _record.get()
    if record is not None:
        width = None
        if not law.is_plain:
            low, high = support.of(law).snap(*law.noise_alone.interval(*ends))
            width = high - low
        record.append(Recorded(model, _parts(model, X, points, law), width))
    return points, lower, upper


def _parts(model: Any, X: Any, points: Array, law: LocalLaw) -> Parts:
    """Parts of v from the law if it has them, otherwise from the model."""
    if law.aleatoric is not None:
        return law.parts
    last, seen = split_pipeline(model, X)
    variance = last.predict_variance(seen)
    return Parts(points, variance.aleatoric, variance.epistemic)


def split_bounds(
    model: Any,
    X: ArrayLike,
    ends: ScoreBounds,
    params: dict[str, Any],
    support: Support,
    shaped: bool,
) -> tuple[Array, Array, Array]:
    """Bounds of one model; beyond the results, memory for some rows only."""
    n, size = _num_samples(X), (_num_samples(X), len(ends.lower))
    if n <= PREDICTED_ROWS or params:  # parameters may hold a value per row
        return bounds_of_rows(model, X, ends, params, support, 0, shaped)
    points, lower, upper = np.empty(n), np.empty(size), np.empty(size)
    for rows in gen_batches(n, PREDICTED_ROWS):
        points[rows], lower[rows], upper[rows] = bounds_of_rows(
            model, _safe_indexing(X, rows), ends, {}, support, rows.start, shaped
        )
    return points, lower, upper


def cross_bounds(
    X: ArrayLike,
    alphas: Array,
    ensemble: Any,
    scores: Array,  # (n_cal,), absolute, or signed for two ranks
    aggregate: bool,
    method: str,
    allow_infinite: bool,
    params: dict[str, Any],
    sym: bool = True,
) -> tuple[Array, Array, Array]:
    """Bounds of CV+, jackknife+ and their minmax forms, in row blocks.

    They do not see the shape of a law, which aggregation over the folds would lose: μ
    and √v of each fold make symmetric scores.
    """
    n = len(scores)
    ranks = checked_ranks(n, alphas, allow_infinite, 1 if sym else 2)
    below = scores if sym else np.where(np.isposinf(scores), np.inf, -scores)
    mu, std = _predict_folds(ensemble, X, params)
    lower = np.full((len(mu), len(ranks)), -np.inf)
    upper = np.full((len(mu), len(ranks)), np.inf)
    finite = [j for j, rank in enumerate(ranks) if rank <= n]
    kept = [ranks[j] for j in finite]
    one_sided = _plus if method == "plus" else _minmax
    points = np.empty(len(mu))
    for block in gen_batches(len(mu), max(1, BLOCK_ELEMENTS // max(1, n))):
        centre = _mapie.aggregate_folds(ensemble, mu[block])
        scale = _mapie.aggregate_folds(ensemble, std[block])
        if finite:  # the lower bound is the upper one of −y
            lower[block, finite] = -one_sided(-centre, scale, below, kept)
            upper[block, finite] = one_sided(centre, scale, scores, kept)
        points[block] = _mapie.aggregate_points(ensemble, centre)
    if not aggregate:
        points[:] = _mapie.point_model(ensemble).predict(X, **params)
    return points, lower, upper


def _predict_folds(
    ensemble: Any, X: ArrayLike, params: dict[str, Any]
) -> tuple[Array, Array]:
    """μ and √v of the models of the folds, one column each."""
    mu, std = [], []
    for model in _mapie.fold_models(ensemble):
        points, law = predict_law(model, X, params)
        mu.append(points)
        std.append(checked_std(law.std, len(points)))
        record = _record.get()
        if record is not None:
            record.append(Recorded(model, _parts(model, X, points, law)))
    return np.stack(mu, 1), np.stack(std, 1)


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
