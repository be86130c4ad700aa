"""Posterior, calibration and intervals over Dask arrays and DataFrames.

Sums and scores of partitions are made on the workers and added up there; intervals are
made partition by partition. Needs ``pip install mapie-claps[dask]``.
"""

from collections.abc import Callable
from functools import partial, reduce
from itertools import zip_longest
from operator import add
from typing import Any

import numpy as np

from ._validation import import_extra
from .conformal.calibrated import CalibratedRegressor
from .conformal.calibration import Calibration
from .conformal.shift import check_values
from .estimators.base import LastLayerEstimator

dask = import_extra("dask", "dask", "dask.array", "dask.dataframe")

__all__ = ["conformalize", "fit_posterior", "predict_interval"]


def fit_posterior(estimator: LastLayerEstimator, X: Any, y: Any) -> Any:
    """Return a copy whose posterior rests on all rows of a Dask collection.

    Networks, noise variance and scaling stay as they are: fit the estimator before, on
    rows that fit in memory, and let these rows be among X if they are to count.

    Parameters
    ----------
    estimator : ClapsRegressor or ClapsModule
        Fitted; it is not changed.
    X, y : dask.array.Array, or dask.dataframe.DataFrame and Series
        Training rows. y is partitioned as X is; indexes of both are compared.

    Returns
    -------
    ClapsRegressor or ClapsModule
        A fitted copy; see :func:`predict_interval` for an example.
    """
    return estimator.with_sums(_reduced(add, estimator.partial_sums, X, y))


def conformalize(
    estimator: Any,
    X: Any,
    y: Any,
    confidence_level: Any = 0.9,
    *,
    weights: Any = None,
    partition: Any = None,
    **params: Any,
) -> CalibratedRegressor:
    """Calibrate on a Dask collection, with the exact conformal quantile.

    Parameters
    ----------
    estimator, confidence_level, **params
        Parameters of :class:`~mapie_claps.CalibratedRegressor`, and a fitted estimator.
    X, y
        Calibration rows, which it has not seen, as in :func:`fit_posterior`.
    weights, partition : callable, or name of a column, optional
        Functions of X; see ``CalibratedRegressor.conformalize``.

    Returns
    -------
    CalibratedRegressor
        Calibrated; for :func:`predict_interval`, and for arrays and batches.
    """
    conformal = CalibratedRegressor(estimator, confidence_level, **params)
    given = check_values(weights, partition)
    rows = _reduced(Calibration.add, lambda X, y: conformal._score(X, y, *given), X, y)
    return conformal._set(rows, given)


def predict_interval(
    conformal: CalibratedRegressor, X: Any, allow_infinite_bounds: bool = False
) -> Any:
    """Predict intervals over a Dask collection, lazily.

    Parameters
    ----------
    conformal, X, allow_infinite_bounds
        As in ``CalibratedRegressor.predict_interval``, of a Dask array or DataFrame.

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
    >>> from mapie_claps.distributed import (
    ...     conformalize, fit_posterior, predict_interval)
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> model = ClapsModule(torch.nn.Linear(2, 1)).fit(X[:20], X[:20, 0])
    >>> big = da.from_array(X, chunks=(20, 2))
    >>> model = fit_posterior(model, big[:40], big[:40, 0])
    >>> conformal = conformalize(model, big[40:], big[40:, 0])
    >>> points, intervals = predict_interval(conformal, big)
    >>> intervals.compute().shape
    (60, 2, 1)
    """
    levels = conformal.levels
    ends = [f"{end}_{level:g}" for end in ("lower", "upper") for level in levels]
    columns = ["prediction", *ends]

    def predict(rows: Any) -> Any:
        points, bounds = conformal.predict_interval(rows, allow_infinite_bounds)
        found = np.column_stack([points, bounds[:, 0], bounds[:, 1]])
        # type(rows): a DataFrame of pandas.
        return type(rows)(found, rows.index, columns) if is_frame else found

    rows, is_frame = _whole_rows("X", X), not hasattr(X, "rechunk")
    if is_frame:
        return rows.map_partitions(predict, meta=predict(X._meta.iloc[:0]))
    found = rows.map_blocks(
        predict,
        drop_axis=list(range(2, X.ndim)),
        chunks=(X.chunks[0], len(columns)),
        meta=np.empty((0, 0)),
    )
    both = [found[:, 1 : 1 + len(levels)], found[:, 1 + len(levels) :]]
    return found[:, 0], dask.array.stack(both, axis=1, allow_unknown_chunksizes=True)


def _reduced(merge: Any, function: Callable[[Any, Any], Any], X: Any, y: Any) -> Any:
    """Sum of what a function gives of each partition with rows, on the workers."""
    X, y = _whole_rows("X", X), _whole_rows("y", y)
    if hasattr(y, "rechunk") and hasattr(X, "rechunk") and y.shape == X.shape[:1]:
        y = y.rechunk({0: X.chunks[0]})
    pairs = [np.ravel(values.to_delayed()).tolist() for values in (X, y)]
    one, both = (dask.delayed(f, traverse=False) for f in (_of_partition, _sum))
    shared = dask.delayed(function, traverse=False)
    matched = zip_longest(*pairs, fillvalue=np.empty(0))
    parts = [one(shared, *pair) for pair in matched]
    found = reduce(partial(both, merge), parts).compute()
    if not found:
        raise ValueError("Got X without rows, but expected at least one.")
    return found[0]


def _of_partition(function: Callable[[Any, Any], Any], X: Any, y: Any) -> list[Any]:
    """What the function gives, if rows belong to their targets; none without rows."""
    indexes = [part.index for part in (X, y) if hasattr(part, "index")]
    same = len(indexes) < 2 or indexes[0].equals(indexes[1])
    if np.shape(y) != (len(X),) or not same:
        raise ValueError(
            f"Got a partition of {len(X)} rows of X with y of shape {np.shape(y)}, or "
            "of other rows by its index. Partition y as X is, in the same order: take "
            "both from one DataFrame, for example."
        )
    return [function(X, y)] if len(X) else []


def _sum(merge: Any, first: list[Any], second: list[Any]) -> list[Any]:
    return [merge(*first, *second)] if first and second else first + second


def _whole_rows(name: str, values: Any) -> Any:
    """A Dask collection whose partitions hold all columns of their rows."""
    if not hasattr(values, "to_delayed"):
        raise TypeError(
            f"Got {name} of type {type(values).__name__}, but expected a Dask array or "
            "DataFrame. Use CalibratedRegressor for arrays and batches."
        )
    if hasattr(values, "rechunk"):
        return values.rechunk(dict.fromkeys(range(1, values.ndim), -1))
    return values
