"""Posterior, calibration and intervals over Dask arrays and DataFrames.

Sums and scores of partitions are made on the workers and added up; intervals are made
partition by partition. Needs ``pip install mapie-claps[dask]``.
"""

from functools import reduce
from operator import add
from typing import Any, TypeVar

import numpy as np

from ._validation import import_extra
from .conformal.calibrated import CalibratedRegressor
from .conformal.calibration import Calibration
from .conformal.shift import check_values
from .estimators.base import LastLayerEstimator
from .posterior.last_layer import LastLayerSums

dask = import_extra("dask", "dask", "dask.array", "dask.dataframe")

__all__ = ["conformalize", "fit_posterior", "predict_interval"]

Fitted = TypeVar("Fitted", bound=LastLayerEstimator)


def fit_posterior(estimator: Fitted, X: Any, y: Any) -> Fitted:
    """Return a copy whose posterior rests on all rows of a Dask collection.

    Networks, noise variance and scaling stay as they are: fit the estimator before, on
    rows that fit in memory, and let these rows be among X if they are to count.

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
        A fitted copy; see :func:`predict_interval` for an example.
    """
    parts = _on_partitions(_sums, estimator, X, y)
    merge = dask.delayed(_added, traverse=False)
    while len(parts) > 1:  # pairwise, on the workers
        parts = [merge(*parts[i : i + 2]) for i in range(0, len(parts), 2)]
    (total,) = dask.compute(*parts)
    if total is None:
        raise ValueError("Got X without rows, but expected at least one.")
    return estimator.with_sums(total)


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
    estimator : estimator
        Fitted, with ``predict(X, return_std=True)``.
    X : dask.array.Array of shape (n, ...) or dask.dataframe.DataFrame
        Calibration inputs, not seen by the estimator.
    y : dask.array.Array of shape (n,) or dask.dataframe.Series
        Calibration targets, partitioned as X is; indexes of both are compared.
    confidence_level : float or sequence of float, default=0.9
        Levels of the intervals.
    weights, partition : callable, or name of a column, optional
        Likelihood ratios and groups to calibrate apart as functions of X; see
        ``CalibratedRegressor.conformalize``.
    **params : dict
        Further parameters of :class:`~mapie_claps.CalibratedRegressor`.

    Returns
    -------
    CalibratedRegressor
        Calibrated; for :func:`predict_interval`, and for arrays and batches. One score
        for each row came back from the workers.
    """
    conformal = CalibratedRegressor(estimator, confidence_level, **params)
    given = check_values(weights, partition)
    parts = _on_partitions(_scores, (conformal, given), X, y)
    return conformal._set(reduce(Calibration.add, dask.compute(*parts)), given)


def predict_interval(
    conformal: CalibratedRegressor, X: Any, allow_infinite_bounds: bool = False
) -> Any:
    """Predict intervals over a Dask collection, lazily.

    Parameters
    ----------
    conformal : CalibratedRegressor
        Calibrated.
    X : dask.array.Array of shape (n, ...) or dask.dataframe.DataFrame
        Inputs.
    allow_infinite_bounds : bool, default=False
        Whether bounds may be infinite where there are too few scores.

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
    names = [f"{end}_{level:g}" for end in ("lower", "upper") for level in levels]
    columns = ["prediction", *names]
    parts = _on_partitions(_intervals, (conformal, columns, allow_infinite_bounds), X)
    if not hasattr(X, "rechunk"):
        meta = _intervals((conformal, columns, False), X._meta.iloc[:0])
        return dask.dataframe.from_delayed(parts, meta=meta, divisions=X.divisions)
    blocks = [
        dask.array.from_delayed(part, (n, len(columns)), dtype=np.float64)
        for part, n in zip(parts, X.chunks[0], strict=True)
    ]
    found = dask.array.concatenate(blocks, allow_unknown_chunksizes=True)
    ends = [found[:, 1 : 1 + len(levels)], found[:, 1 + len(levels) :]]
    return found[:, 0], dask.array.stack(ends, axis=1, allow_unknown_chunksizes=True)


def _sums(estimator: LastLayerEstimator, X: Any, y: Any) -> LastLayerSums | None:
    """Sums over one partition; None if it is empty."""
    return estimator.partial_sums(X, y) if len(X) else None


def _added(*parts: LastLayerSums | None) -> LastLayerSums | None:
    """Sum of what there is; None if there is nothing."""
    present = [part for part in parts if part is not None]
    return reduce(add, present) if present else None


def _scores(settings: Any, X: Any, y: Any) -> Calibration:
    """Signed scores of one partition, with weights and labels."""
    conformal, given = settings
    return conformal._score(X, y, *given)  # type: ignore[no-any-return]


def _intervals(settings: Any, X: Any) -> Any:
    """Points, lower and upper bounds of one partition, as an array or a frame."""
    conformal, columns, allow_infinite = settings
    found = np.empty((0, len(columns)))
    if len(X):
        points, bounds = conformal.predict_interval(X, allow_infinite)
        found = np.column_stack([points, bounds[:, 0], bounds[:, 1]])
    # type(X): a DataFrame of pandas.
    return type(X)(found, X.index, columns) if hasattr(X, "iloc") else found


def _checked(function: Any, settings: Any, X: Any, *y: Any) -> Any:
    """``function(settings, X, y)``, if the rows belong to their targets."""
    for target in y:
        indexes = [part.index for part in (X, target) if hasattr(part, "index")]
        same = len(indexes) < 2 or indexes[0].equals(indexes[1])
        if np.shape(target) != (len(X),) or not same:
            raise ValueError(
                f"Got a partition of {len(X)} rows of X with y of shape "
                f"{np.shape(target)}, or of other rows by its index. Partition y as X "
                "is, in the same order: take both from one DataFrame, for example."
            )
    return function(settings, X, *y)


def _on_partitions(function: Any, settings: Any, X: Any, y: Any = None) -> list[Any]:
    """``function(settings, X, y)`` of each partition, lazily."""
    columns = [_partitions("X", X)]
    if y is not None:
        if hasattr(y, "rechunk") and hasattr(X, "rechunk") and y.shape == X.shape[:1]:
            y = y.rechunk({0: X.chunks[0]})
        columns.append(_partitions("y", y))
    n_parts = [len(parts) for parts in columns]
    if len(set(n_parts)) > 1:
        raise ValueError(
            f"Got X and y cut into {n_parts} partitions. Partition y as X is."
        )
    shared = dask.delayed(settings, traverse=False)
    one = dask.delayed(_checked, traverse=False)
    return [one(function, shared, *part) for part in zip(*columns, strict=True)]


def _partitions(name: str, values: Any) -> list[Any]:
    """Partitions of whole rows."""
    if not hasattr(values, "to_delayed"):
        raise TypeError(
            f"Got {name} of type {type(values).__name__}, but expected a Dask array or "
            "DataFrame. Use CalibratedRegressor for arrays and batches."
        )
    if hasattr(values, "rechunk"):
        values = values.rechunk(dict.fromkeys(range(1, values.ndim), -1))
    return list(np.ravel(values.to_delayed()))
