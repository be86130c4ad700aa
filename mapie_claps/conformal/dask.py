"""Posterior, calibration and intervals over Dask arrays and DataFrames.

What is ours is thin: sums of partitions that merge, and maps over partitions. Where
they run, retries and the movement of data are Dask's. Public as
``mapie_claps.distributed``.
"""

from functools import partial, reduce
from operator import add
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..estimators.module import ClapsModule
from ..estimators.regressor import ClapsRegressor
from ..estimators.updating import partial_sums, with_sums
from ..posterior.sums import LastLayerSums
from .calibration_state import State
from .dask_partitions import (
    as_column,
    as_intervals,
    by_row,
    check_partition,
    check_partitions,
    import_dask,
    is_frame,
    of_partitions,
    partitions,
    points_and_bounds,
    rows_of_partitions,
    whole_rows,
)
from .parts import fingerprint_of
from .row_rule import CalibrationRows
from .streaming import StreamingConformalRegressor

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
    dask = import_dask()
    parts = of_partitions(_sums_of_partition, estimator, partitions(X, y))
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
    conformal = StreamingConformalRegressor(estimator, support=support)
    parts = rows_of_partitions(conformal, X, y)
    scores = np.concatenate([rows.scores for rows in parts])
    return scores if signed else np.abs(scores)


def conformalize(
    estimator: Any,
    X: Any,
    y: Any,
    confidence_level: Any = 0.9,
    *,
    sym: bool = True,
    support: Any = "auto",
    weights: Any = None,
    groups: Any = None,
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
    weights, groups : callable or Dask array or Series, optional
        Likelihood ratios and groups, as for ``StreamingConformalRegressor``;
        collections are partitioned as X is.

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
    conformal = StreamingConformalRegressor(
        estimator, confidence_level, sym=sym, support=support
    )
    parts = rows_of_partitions(conformal, X, y, weights, groups)
    return conformal._set_rows(reduce(CalibrationRows.joined, parts))


def observe(
    conformal: StreamingConformalRegressor,
    X: Any,
    y: Any,
    *,
    gamma: float | None = None,
    window: int | None = None,
    weights: Any = None,
    groups: Any = None,
) -> StreamingConformalRegressor:
    """Let the levels follow the misses of the rows of a Dask collection.

    Workers compute the scores; partitions are then observed in their order, the rows of
    each as predicted together. See ``StreamingConformalRegressor.observe``.

    Parameters
    ----------
    conformal : StreamingConformalRegressor
        Calibrated; it is changed.
    X : dask.array.Array of shape (n, ...) or dask.dataframe.DataFrame
        Inputs, in the order of time.
    y : dask.array.Array of shape (n,) or dask.dataframe.Series
        Targets, partitioned as X is.
    gamma : float, optional
        Step size.
    window : int, optional
        Newest scores that are kept.
    weights, groups : callable or Dask array or Series, optional
        As in :func:`conformalize`.

    Returns
    -------
    StreamingConformalRegressor
        The object that was given.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np, torch
    >>> from mapie_claps import ClapsModule
    >>> from mapie_claps.distributed import conformalize, observe
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> model = ClapsModule(torch.nn.Linear(2, 1)).fit(X[:20], X[:20, 0])
    >>> cal, new = (da.from_array(part, chunks=(10, 2)) for part in (X[20:40], X[40:]))
    >>> conformal = conformalize(model, cal, cal[:, 0])
    >>> len(observe(conformal, new, new[:, 0], gamma=0.02).conformity_scores_)
    40
    """
    conformal._scores()  # raises if not calibrated
    series, given = by_row(weights, groups)
    values = vars(conformal._values_for(**given, method="observe")) | series
    known = State(in_posterior=conformal._state.in_posterior)
    scorer = conformal._restarted(conformal._fitted(), known)
    found = rows_of_partitions(scorer, X, y, **values)
    parts = [(rows, None) for rows in found if len(rows)]
    return conformal._observe_parts(parts, gamma, window)


def predict_interval(
    conformal: StreamingConformalRegressor,
    X: Any,
    allow_infinite_bounds: bool = False,
    *,
    weights: Any = None,
    groups: Any = None,
) -> Any:
    """Predict intervals over a Dask collection, lazily.

    Parameters
    ----------
    conformal : StreamingConformalRegressor
        Calibrated.
    X : dask.array.Array of shape (n, ...) or dask.dataframe.DataFrame
        Inputs.
    allow_infinite_bounds : bool, default=False
        Whether bounds may be infinite where there are too few scores.
    weights, groups : callable or Dask array or Series, optional
        Likelihood ratios and groups of the rows, partitioned as X is, where
        calibration had them and not as functions of X; indexes are compared.

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
    series, given = by_row(weights, groups)
    # Ends or sorted scores alone: workers have no need of the calibration rows.
    rule, levels = conformal._rule(allow_infinite_bounds, **given), conformal.levels
    model, support = conformal._fitted(), conformal._support()
    known = model, fingerprint_of(model), rule, support, tuple(series)
    if is_frame(X):
        import pandas as pd

        for name, value in series.items():
            check_partitions(name, value.npartitions, X.npartitions)
            if not is_frame(value):  # map_partitions would hand out the whole array
                series[name] = value.to_dask_dataframe(index=X.index)
        bounds = [f"{end}_{level:g}" for end in ("lower", "upper") for level in levels]
        columns = ["prediction", *bounds]
        meta = pd.DataFrame({c: np.empty(0) for c in columns}, X._meta.index[:0])
        # Not aligned: rows of values that stand elsewhere are named, not moved.
        return X.map_partitions(
            partial(points_and_bounds, *known, columns),
            *series.values(),
            meta=meta,
            align_dataframes=False,
        )
    X = whole_rows(X)
    rows, n_columns = X.chunks[0], 1 + 2 * len(levels)
    beside = [as_column(name, value, X) for name, value in series.items()]
    joined = import_dask().array.map_blocks(
        partial(points_and_bounds, *known, None),
        X,
        *beside,
        dtype=np.float64,
        chunks=(rows, (n_columns,)),
        drop_axis=list(range(1, X.ndim)),
        new_axis=[1],
        meta=np.empty((0, n_columns)),
    )
    # Block by block: chunks may be of unknown size, which stack refuses.
    intervals = joined.map_blocks(
        as_intervals,
        dtype=np.float64,
        chunks=(rows, (2,), (len(levels),)),
        new_axis=[2],
        meta=np.empty((0, 2, len(levels))),
    )
    return joined[:, 0], intervals


def _sums_of_partition(estimator: Any, X: Any, y: Any) -> LastLayerSums | None:
    """Sums of one partition; None if it is empty."""
    check_partition(X, y)
    return partial_sums(estimator, X, y) if len(X) else None


def _pairwise(parts: list[Any], merge: Any) -> Any:
    """Merge neighbours until one is left."""
    while len(parts) > 1:
        parts = [merge(*parts[i : i + 2]) for i in range(0, len(parts), 2)]
    return parts[0]


def _merge(*sums: LastLayerSums | None) -> LastLayerSums | None:
    present = [s for s in sums if s is not None]
    return reduce(add, present) if present else None
