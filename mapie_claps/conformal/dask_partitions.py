"""Partitions of Dask collections, and what workers compute of the rows in one."""

from functools import partial, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .groups import EpistemicGroups
from .parts import parts_of
from .row_rule import CalibrationRows, RowValues
from .streaming import StreamingConformalRegressor

Array = NDArray[np.float64]


def in_place_of(name: str, value: Any) -> Any:
    """What stands for a collection of values until workers see it."""
    return np.empty(0) if is_collection(name, value) else value


def scores_of_partition(support: Any, estimator: Any, X: Any, y: Any) -> Array:
    """Signed scores of one partition."""
    return rows_of_partition(support, None, estimator, X, y, None, None).scores


def fractions_of_partition(estimator: Any, X: Any) -> Array:
    """Epistemic fractions of one partition."""
    if not len(X):
        return np.empty(0)
    return parts_of(estimator, X).variance.epistemic_fraction


def values_of_rows(one: Any, estimator: Any, X: Any, y: Any = None) -> Array:
    """One number for each row, which workers compute partition by partition."""
    dask = import_dask()
    shared, one = dask.delayed(estimator, traverse=False), dask.delayed(one)
    parts = [(x,) for x in lazy_parts(X)] if y is None else partitions(X, y)
    return np.concatenate(dask.compute(*(one(shared, *part) for part in parts)))


def rows_of_partition(
    support: Any,
    in_posterior: Any,
    estimator: Any,
    X: Any,
    y: Any,
    weights: Any,
    groups: Any,
) -> CalibrationRows:
    """Signed scores, weights and labels of one partition."""
    check_partition(X, y)
    for name, value in (("weights", weights), ("groups", groups)):
        if hasattr(value, "index"):
            check_partition(X, value, name)
    conformal = StreamingConformalRegressor(estimator, support=support)
    if in_posterior is not None:
        conformal.__dict__["_in_posterior"] = in_posterior
    return conformal._rows_of(estimator, X, y, RowValues(weights, groups))


def rows_of_partitions(
    estimator: Any,
    X: Any,
    y: Any,
    support: Any,
    weights: Any,
    groups: Any,
    in_posterior: Any = None,
) -> list[CalibrationRows]:
    """Scores, weights and labels of each partition, computed on the workers.

    Rows whose keys are ``in_posterior`` are refused.
    """
    dask = import_dask()
    shared = dask.delayed(estimator, traverse=False)
    one = dask.delayed(
        partial(rows_of_partition, support, in_posterior), traverse=False
    )
    pairs = partitions(X, y)
    beside = [
        values_of_partitions(name, value, X, len(pairs))
        for name, value in (("weights", weights), ("groups", groups))
    ]
    lazy = [
        one(shared, x, t, w, g) for (x, t), w, g in zip(pairs, *beside, strict=True)
    ]
    return list(dask.compute(*lazy))


def calibration_rows(*arguments: Any) -> CalibrationRows:
    """Rows of all partitions, one after another."""
    return reduce(CalibrationRows.joined, rows_of_partitions(*arguments))


def values_of_partitions(name: str, value: Any, X: Any, n: int) -> list[Any]:
    """A function for all partitions, or the part of a collection of each."""
    if not is_collection(name, value):
        return [value] * n
    if not is_frame(value) and not is_frame(X):
        value = cut_as_rows(name, value, X)
    check_partitions(name, value.npartitions, n)
    found: list[Any] = np.ravel(value.to_delayed()).tolist()
    return found


def check_partitions(name: str, found: int, n: int) -> None:
    """Raise unless there are as many as of X: Dask would use a single one for all."""
    if found != n:
        raise ValueError(
            f"Got {name} cut into {found} and X into {n} partitions. Partition {name} "
            "as X is."
        )


def cut_as_rows(name: str, value: Any, X: Any) -> Any:
    """An array of one value per row, in chunks as long as those of X."""
    lengths = value.shape[0], X.shape[0]
    if value.ndim != 1 or (lengths[0] != lengths[1] and not np.isnan(lengths).any()):
        raise ValueError(
            f"Got {name} of shape {value.shape} for X of shape {X.shape}, but expected "
            "one value per row, shape (n,)."
        )
    return value.rechunk({0: X.chunks[0]})


def is_collection(name: str, value: Any) -> bool:
    """Whether there are values row by row, rather than a function or none."""
    if value is None or callable(value):
        return False
    if isinstance(value, str | int | EpistemicGroups):
        return False
    if not hasattr(value, "to_delayed"):
        raise TypeError(
            f"Got {name} of type {type(value).__name__}, but expected a function of X, "
            "or a Dask array or Series that is partitioned as X is."
        )
    return True


def as_column(name: str, value: Any, X: Any) -> Any:
    """Values of rows in the shape of X, one for all columns."""
    if not hasattr(value, "rechunk"):
        raise TypeError(
            f"Got {name} of type {type(value).__name__}, but X is a Dask array. Pass a "
            "Dask array that is partitioned as X is."
        )
    return cut_as_rows(name, value, X)[(slice(None), *[None] * (X.ndim - 1))]


def check_partition(X: Any, y: Any, name: str = "y") -> None:
    """Raise unless y, or what else belongs to the rows, is partitioned as X is."""
    if len(X) != len(y):
        raise ValueError(
            f"Got a partition with {len(X)} rows of X and {len(y)} of {name}. "
            f"Partition {name} as X is."
        )
    if not (hasattr(X, "index") and hasattr(y, "index")) or X.index.equals(y.index):
        return
    first, second = X.index.tolist(), y.index.tolist()
    row = next((i for i, at in enumerate(first) if at != second[i]), None)
    if row is None:  # equal labels of another type
        return
    raise ValueError(
        f"Got a partition whose row {row} is {first[row]!r} in X and {second[row]!r} "
        f"in {name}. Partition {name} as X is, with the same index in the same order: "
        "take both from one DataFrame, for example."
    )


def partitions(X: Any, y: Any) -> list[tuple[Any, Any]]:
    """Pairs of lazy partitions."""
    if not is_frame(X) and not is_frame(y) and X.shape[0] == y.shape[0]:
        y = y.rechunk({0: X.chunks[0]})
    xs, ys = lazy_parts(X), np.ravel(y.to_delayed()).tolist()
    check_partitions("y", len(ys), len(xs))
    return list(zip(xs, ys, strict=True))


def lazy_parts(X: Any) -> list[Any]:
    """Partitions of whole rows."""
    return list(np.ravel((X if is_frame(X) else whole_rows(X)).to_delayed()))


def is_frame(X: Any) -> bool:
    """Whether X is a Dask DataFrame or Series rather than an array."""
    if not hasattr(X, "to_delayed"):
        raise TypeError(
            f"Got a {type(X).__name__}, but expected a Dask array or DataFrame. Use "
            "StreamingConformalRegressor and partial_sums for arrays and batches."
        )
    return hasattr(X, "map_partitions") and not hasattr(X, "rechunk")


def whole_rows(X: Any) -> Any:
    """An array cut along the rows only."""
    return X.rechunk(dict.fromkeys(range(1, X.ndim), -1))


def import_dask() -> Any:
    """Dask, or an error that says how to get it."""
    try:
        import dask
        import dask.array
    except ImportError as error:
        raise ImportError(
            "mapie_claps.distributed needs Dask: pip install mapie-claps[dask]."
        ) from error
    return dask
