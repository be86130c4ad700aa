"""Posterior, calibration and intervals over Dask arrays and DataFrames.

What is ours is thin: sums of partitions that merge, and maps over partitions. Where
they run, retries and the movement of data are Dask's. Public as
``mapie_claps.distributed``.
"""

from collections.abc import Callable
from functools import partial, reduce
from operator import add
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..estimators.module import ClapsModule
from ..estimators.regressor import ClapsRegressor
from ..estimators.updating import partial_sums, with_sums
from ..posterior.sums import LastLayerSums
from .bounds import bounds_of_rows
from .parts import check_unchanged, fingerprint_of
from .quantile import ScoreEnds
from .streaming import StreamingConformalRegressor
from .support import Support

__all__ = ["conformalize", "conformity_scores", "fit_posterior", "predict_interval"]

Array = NDArray[np.float64]
Fitted = TypeVar("Fitted", ClapsRegressor, ClapsModule)


def fit_posterior(estimator: Fitted, X: Any, y: Any) -> Fitted:
    """Return a copy whose posterior rests on all rows of a Dask collection.

    Each partition gives sums, which are merged pairwise on the workers; the
    posterior is made here. Networks, noise variance and scaling stay as they are: fit
    the estimator before, on rows that fit in memory, and let these rows be among X if
    they are to count.

    Parameters
    ----------
    estimator : ClapsRegressor or ClapsModule
        Fitted; it is not changed.
    X : dask.array.Array of shape (n, ...) or dask.dataframe.DataFrame
        Training inputs.
    y : dask.array.Array of shape (n,) or dask.dataframe.Series
        Training targets, partitioned as X is; indexes of both are compared.

    Returns
    -------
    ClapsRegressor or ClapsModule
        A fitted copy.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np, torch
    >>> from mapie_claps import ClapsModule
    >>> from mapie_claps.distributed import fit_posterior
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> model = ClapsModule(torch.nn.Linear(2, 1)).fit(X[:20], X[:20, 0])
    >>> big = da.from_array(X, chunks=(20, 2))
    >>> fit_posterior(model, big, big[:, 0]).sums_.n_rows
    60
    """
    dask = _import_dask()
    shared = dask.delayed(estimator, traverse=False)
    one = dask.delayed(_sums_of_partition)
    parts = [one(shared, x, t) for x, t in _partitions(X, y)]
    (total,) = dask.compute(_pairwise(parts, dask.delayed(_merge)))
    if total is None:
        raise ValueError("Got X without rows, but expected at least one.")
    return with_sums(estimator, total)


def conformity_scores(
    estimator: Any, X: Any, y: Any, *, signed: bool = False, support: Any = "auto"
) -> Array:
    """Compute the scores of all rows of a Dask collection.

    Parameters
    ----------
    estimator : estimator
        Fitted, with ``predict(X, return_std=True)``.
    X : dask.array.Array of shape (n, ...) or dask.dataframe.DataFrame
        Calibration inputs.
    y : dask.array.Array of shape (n,) or dask.dataframe.Series
        Calibration targets, partitioned as X is; indexes of both are compared.
    signed : bool, default=False
        Whether scores keep their sign.
    support : str, tuple, array-like or None, default="auto"
        Values that y can take; see :class:`~mapie_claps.ClapsScore`.

    Returns
    -------
    ndarray of shape (n,)
        Scores, in the order of the rows: n numbers, in memory.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np, torch
    >>> from mapie_claps import ClapsModule
    >>> from mapie_claps.distributed import conformity_scores
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> model = ClapsModule(torch.nn.Linear(2, 1)).fit(X[:20], X[:20, 0])
    >>> big = da.from_array(X, chunks=(20, 2))
    >>> conformity_scores(model, big, big[:, 0]).shape
    (60,)
    """
    dask = _import_dask()
    shared = dask.delayed(estimator, traverse=False)
    one = dask.delayed(partial(_scores_of_partition, support))
    parts = dask.compute(*(one(shared, x, t) for x, t in _partitions(X, y)))
    scores = np.concatenate(parts)
    return scores if signed else np.abs(scores)


def conformalize(
    estimator: Any,
    X: Any,
    y: Any,
    confidence_level: Any = 0.9,
    *,
    sym: bool = True,
    support: Any = "auto",
) -> StreamingConformalRegressor:
    """Calibrate on a Dask collection, with the exact conformal quantile.

    Parameters
    ----------
    estimator : estimator
        Fitted, with ``predict(X, return_std=True)``.
    X : dask.array.Array of shape (n, ...) or dask.dataframe.DataFrame
        Calibration inputs, not seen by the estimator.
    y : dask.array.Array of shape (n,) or dask.dataframe.Series
        Calibration targets, partitioned as X is; indexes of both are compared.
    confidence_level : float or sequence of float, default=0.9
        Levels of the intervals.
    sym : bool, default=True
        One rank for both ends, or one for each; see
        :class:`~mapie_claps.ClapsScore`.
    support : str, tuple, array-like or None, default="auto"
        Values that y can take; see :class:`~mapie_claps.ClapsScore`.

    Returns
    -------
    StreamingConformalRegressor
        Calibrated; for :func:`predict_interval`, and for arrays and batches.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np, torch
    >>> from mapie_claps import ClapsModule
    >>> from mapie_claps.distributed import conformalize
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> model = ClapsModule(torch.nn.Linear(2, 1)).fit(X[:20], X[:20, 0])
    >>> big = da.from_array(X[20:], chunks=(20, 2))
    >>> conformal = conformalize(model, big, big[:, 0])
    >>> len(conformal.conformity_scores_)
    40
    """
    scores = conformity_scores(estimator, X, y, signed=True, support=support)
    return StreamingConformalRegressor.from_scores(
        estimator, scores, confidence_level, signed=True, sym=sym, support=support
    )


def predict_interval(conformal: StreamingConformalRegressor, X: Any) -> Any:
    """Predict intervals over a Dask collection, lazily.

    Parameters
    ----------
    conformal : StreamingConformalRegressor
        Calibrated.
    X : dask.array.Array of shape (n, ...) or dask.dataframe.DataFrame
        Inputs.

    Returns
    -------
    tuple of dask.array.Array, or dask.dataframe.DataFrame
        Points (n,) and intervals (n, 2, n_levels) for an array. For a DataFrame, a
        DataFrame with the same index and the columns "prediction", and "lower_0.9",
        "upper_0.9" for each level.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np, torch
    >>> from mapie_claps import ClapsModule
    >>> from mapie_claps.distributed import conformalize, predict_interval
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> model = ClapsModule(torch.nn.Linear(2, 1)).fit(X[:20], X[:20, 0])
    >>> big = da.from_array(X[20:], chunks=(20, 2))
    >>> points, intervals = predict_interval(conformalize(model, big, big[:, 0]), big)
    >>> intervals.compute().shape
    (40, 2, 1)
    """
    # The quantiles alone: workers have no need of the calibration scores.
    ends, levels = conformal._ends(allow_infinite=False), conformal.levels
    estimator = conformal._fitted()
    predict = partial(
        _points_and_bounds,
        estimator,
        fingerprint_of(estimator),
        ends,
        conformal._support(),
    )
    if _is_frame(X):
        import pandas as pd

        columns = _column_names(levels)
        meta = pd.DataFrame({c: np.empty(0) for c in columns}, X._meta.index[:0])
        return X.map_partitions(partial(_frame, predict, columns), meta=meta)
    X = _whole_rows(X)
    rows, n_columns = X.chunks[0], 1 + 2 * len(levels)
    joined = X.map_blocks(
        predict,
        dtype=np.float64,
        chunks=(rows, (n_columns,)),
        drop_axis=list(range(1, X.ndim)),
        new_axis=[1],
        meta=np.empty((0, n_columns)),
    )
    # Block by block: chunks may be of unknown size, which stack refuses.
    intervals = joined.map_blocks(
        _intervals,
        dtype=np.float64,
        chunks=(rows, (2,), (len(levels),)),
        new_axis=[2],
        meta=np.empty((0, 2, len(levels))),
    )
    return joined[:, 0], intervals


def _sums_of_partition(estimator: Any, X: Any, y: Any) -> LastLayerSums | None:
    """Sums of one partition; None if it is empty."""
    _check_partition(X, y)
    return partial_sums(estimator, X, y) if len(X) else None


def _pairwise(parts: list[Any], merge: Any) -> Any:
    """Merge neighbours until one is left."""
    while len(parts) > 1:
        parts = [merge(*parts[i : i + 2]) for i in range(0, len(parts), 2)]
    return parts[0]


def _merge(*sums: LastLayerSums | None) -> LastLayerSums | None:
    present = [s for s in sums if s is not None]
    return reduce(add, present) if present else None


def _scores_of_partition(support: Any, estimator: Any, X: Any, y: Any) -> Array:
    """Signed scores of one partition."""
    _check_partition(X, y)
    if not len(X):
        return np.empty(0)
    conformal = StreamingConformalRegressor(estimator, support=support)
    return conformal.score_rows(X, y, signed=True)


def _points_and_bounds(
    estimator: Any,
    fingerprint: str | None,
    ends: ScoreEnds,
    support: Support | None,
    X: Any,
) -> Array:
    """Points, lower and upper bounds as columns."""
    check_unchanged(estimator, fingerprint)  # the graph may be computed much later
    if not len(X):
        return np.empty((0, 1 + 2 * len(ends.lower)))
    points, lower, upper = bounds_of_rows(estimator, X, ends, {}, 0, support)
    return np.concatenate([points[:, None], lower, upper], axis=1)


def _intervals(joined: Array) -> Array:
    """From columns to the shape of MAPIE, (n, 2, n_levels)."""
    return joined[:, 1:].reshape(len(joined), 2, -1)


def _frame(predict: Callable[[Any], Array], columns: list[str], X: Any) -> Any:
    import pandas as pd

    return pd.DataFrame(predict(X), X.index, columns)


def _column_names(levels: list[float]) -> list[str]:
    bounds = [f"{side}_{level:g}" for side in ("lower", "upper") for level in levels]
    return ["prediction", *bounds]


def _check_partition(X: Any, y: Any) -> None:
    if len(X) != len(y):
        raise ValueError(
            f"Got a partition with {len(X)} rows of X and {len(y)} of y. Partition y "
            "as X is."
        )
    if not (hasattr(X, "index") and hasattr(y, "index")) or X.index.equals(y.index):
        return
    first, second = X.index.tolist(), y.index.tolist()
    row = next((i for i, at in enumerate(first) if at != second[i]), None)
    if row is None:  # equal labels of another type
        return
    raise ValueError(
        f"Got a partition whose row {row} is {first[row]!r} in X and {second[row]!r} "
        "in y. Partition y as X is, with the same index in the same order: take "
        "both from one DataFrame, for example."
    )


def _partitions(X: Any, y: Any) -> list[tuple[Any, Any]]:
    """Pairs of lazy partitions."""
    if not _is_frame(X):
        X = _whole_rows(X)
        if not _is_frame(y) and X.shape[0] == y.shape[0]:
            y = y.rechunk({0: X.chunks[0]})
    xs, ys = (np.ravel(part.to_delayed()).tolist() for part in (X, y))
    if len(xs) != len(ys):
        raise ValueError(
            f"Got X in {len(xs)} partitions and y in {len(ys)}. Partition y as X is."
        )
    return list(zip(xs, ys, strict=True))


def _is_frame(X: Any) -> bool:
    """Whether X is a Dask DataFrame or Series rather than an array."""
    if not hasattr(X, "to_delayed"):
        raise TypeError(
            f"Got a {type(X).__name__}, but expected a Dask array or DataFrame. Use "
            "StreamingConformalRegressor and partial_sums for arrays and batches."
        )
    return hasattr(X, "map_partitions") and not hasattr(X, "rechunk")


def _whole_rows(X: Any) -> Any:
    """An array cut along the rows only."""
    return X.rechunk(dict.fromkeys(range(1, X.ndim), -1))


def _import_dask() -> Any:
    try:
        import dask
        import dask.array
    except ImportError as error:
        raise ImportError(
            "mapie_claps.distributed needs Dask: pip install mapie-claps[dask]."
        ) from error
    return dask
