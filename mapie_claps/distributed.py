"""Posterior, calibration and intervals over Dask arrays and DataFrames.

Sums and scores of partitions are made on the workers and added up; intervals are made
partition by partition. Where that runs, retries and the movement of data are Dask's.
Needs ``pip install mapie-claps[dask]``.
"""

from functools import reduce
from operator import add
from typing import Any, TypeVar

import numpy as np

from .conformal.calibrated import CalibratedRegressor
from .conformal.calibration import Calibration
from .conformal.shift import EpistemicGroups, check_values
from .estimators.base import LastLayerEstimator
from .posterior.last_layer import LastLayerSums

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
    parts = _on_partitions(_sums, estimator, X, {"y": y})
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
    groups: Any = None,
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
    weights, groups : callable or Dask array or Series, optional
        Likelihood ratios and groups, as for ``CalibratedRegressor.conformalize``;
        collections are partitioned as X is.
    **params : dict
        Further parameters of :class:`~mapie_claps.CalibratedRegressor`.

    Returns
    -------
    CalibratedRegressor
        Calibrated; for :func:`predict_interval`, and for arrays and batches. One score
        for each row came back from the workers.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np, torch
    >>> from mapie_claps import ClapsModule
    >>> from mapie_claps.distributed import conformalize
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> model = ClapsModule(torch.nn.Linear(2, 1)).fit(X[:20], X[:20, 0])
    >>> big = da.from_array(X[20:], chunks=(20, 2))
    >>> len(conformalize(model, big, big[:, 0]).conformity_scores_)
    40
    """
    conformal = CalibratedRegressor(estimator, confidence_level, **params)
    beside = {"y": y, "weights": weights, "groups": groups}
    parts = _import_dask().compute(*_on_partitions(_scores, conformal, X, beside))
    functions = [v if _is_function(v) else None for v in (weights, groups)]
    return conformal._set(reduce(Calibration.add, parts), check_values(*functions))


def predict_interval(
    conformal: CalibratedRegressor,
    X: Any,
    *,
    weights: Any = None,
    groups: Any = None,
    **params: Any,
) -> Any:
    """Predict intervals over a Dask collection, lazily.

    Parameters
    ----------
    conformal : CalibratedRegressor
        Calibrated.
    X : dask.array.Array of shape (n, ...) or dask.dataframe.DataFrame
        Inputs.
    weights, groups : Dask array or Series, optional
        Likelihood ratios and groups of the rows, partitioned as X is, where
        calibration had them and not as functions of X; indexes are compared.
    **params : dict
        Further parameters of ``CalibratedRegressor.predict_interval``.

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
    array = _import_dask().array
    levels = conformal.levels
    names = [f"{end}_{level:g}" for end in ("lower", "upper") for level in levels]
    columns = ["prediction", *names]
    beside = {"weights": weights, "groups": groups}
    parts = _on_partitions(_intervals, (conformal, columns, params), X, beside)
    if not hasattr(X, "rechunk"):
        import pandas as pd
        from dask.dataframe import from_delayed

        meta = pd.DataFrame({c: np.empty(0) for c in columns}, X._meta.index[:0])
        return from_delayed(parts, meta=meta, divisions=X.divisions)
    blocks = [
        array.from_delayed(part, (n, len(columns)), dtype=np.float64)
        for part, n in zip(parts, X.chunks[0], strict=True)
    ]
    found = array.concatenate(blocks, allow_unknown_chunksizes=True)
    ends = [found[:, 1 : 1 + len(levels)], found[:, 1 + len(levels) :]]
    return found[:, 0], array.stack(ends, axis=1, allow_unknown_chunksizes=True)


def _sums(estimator: Any, X: Any, y: Any) -> LastLayerSums | None:
    """Sums over one partition; None if it is empty."""
    return estimator.partial_sums(X, y) if len(X) else None


def _scores(
    conformal: CalibratedRegressor, X: Any, y: Any, weights: Any, groups: Any
) -> Calibration:
    """Signed scores of one partition, with weights and labels."""
    return conformal._score(X, y, *check_values(weights, groups))


def _added(*parts: Any) -> Any:
    """Sum of what there is; None if there is nothing."""
    present = [part for part in parts if part is not None]
    return reduce(add, present) if present else None


def _intervals(settings: Any, X: Any, weights: Any, groups: Any) -> Any:
    """Points, lower and upper bounds of one partition, as an array or a frame."""
    conformal, columns, params = settings
    found = np.empty((0, len(columns)))
    if len(X):
        given = {"weights": weights, "groups": groups} | params
        given = {k: v for k, v in given.items() if v is not None}
        points, bounds = conformal.predict_interval(X, **given)
        found = np.column_stack([points, bounds[:, 0], bounds[:, 1]])
    if not hasattr(X, "iloc"):
        return found
    import pandas as pd

    return pd.DataFrame(found, X.index, columns)


def _on_partitions(
    function: Any, model: Any, X: Any, beside: dict[str, Any]
) -> list[Any]:
    """``function(model, X, *beside)`` of each partition, lazily."""
    delayed = _import_dask().delayed
    columns = [_partitions("X", X)]
    n = len(columns[0])
    for name, value in beside.items():
        if name != "y" and _is_function(value):
            columns.append([value] * n)
            continue
        both_arrays = hasattr(value, "rechunk") and hasattr(X, "rechunk")
        if both_arrays and value.shape[:1] == X.shape[:1]:
            value = value.rechunk({0: X.chunks[0]})
        columns.append(_partitions(name, value))
        if len(columns[-1]) != n:
            raise ValueError(
                f"Got {name} cut into {len(columns[-1])} and X into {n} partitions. "
                f"Partition {name} as X is."
            )
    shared = delayed((function, model, tuple(beside)), traverse=False)
    one = delayed(_checked, traverse=False)
    return [one(shared, *part) for part in zip(*columns, strict=True)]


def _is_function(value: Any) -> bool:
    """Whether weights or groups come from X rather than row by row."""
    return callable(value) or isinstance(value, str | int | EpistemicGroups | None)


def _checked(shared: Any, X: Any, *beside: Any) -> Any:
    """Apply a function to a partition if its rows belong together."""
    function, model, names = shared
    for name, value in zip(names, beside, strict=True):
        if _is_function(value):
            continue
        if np.shape(value) != (len(X),):
            raise ValueError(
                f"Got a partition with {len(X)} rows of X and {name} of shape "
                f"{np.shape(value)}. Partition {name} as X is, one value per row."
            )
        if hasattr(X, "index") and hasattr(value, "index"):
            rows = zip(X.index, value.index, strict=True)
            for row, (here, there) in enumerate(rows):
                if here != there:
                    raise ValueError(
                        f"Got a partition whose row {row} is {here!r} in X and "
                        f"{there!r} in {name}. Partition {name} as X is, with the same "
                        "index in the same order: take both from one DataFrame, for "
                        "example."
                    )
    return function(model, X, *beside)


def _partitions(name: str, values: Any) -> list[Any]:
    """Partitions of whole rows."""
    if not hasattr(values, "to_delayed"):
        raise TypeError(
            f"Got {name} of type {type(values).__name__}, but expected a Dask array or "
            "DataFrame. Use CalibratedRegressor and partial_sums for arrays and "
            "batches."
        )
    if hasattr(values, "rechunk"):
        values = values.rechunk(dict.fromkeys(range(1, values.ndim), -1))
    return list(np.ravel(values.to_delayed()))


def _import_dask() -> Any:
    """Dask, or an error that says how to get it."""
    try:
        import dask
        import dask.array
    except ImportError as error:
        raise ImportError(
            "mapie_claps.distributed needs Dask: pip install mapie-claps[dask]."
        ) from error
    return dask
