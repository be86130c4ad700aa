"""Partitions of Dask collections, and what workers compute of the rows in one."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .bounds import bounds_of_rows
from .groups import EpistemicGroups
from .parts import check_unchanged, parts_of
from .quantile import ScoreBounds
from .row_rule import CalibrationRows, RowRule, RowValues
from .support import Support

Array = NDArray[np.float64]


def of_partitions(function: Any, model: Any, parts: list[Any]) -> list[Any]:
    """What a function makes of the model and each partition, lazily."""
    delayed = import_dask().delayed
    shared, one = delayed(model, traverse=False), delayed(function, traverse=False)
    return [one(shared, *part) for part in parts]


def fractions_of_partition(estimator: Any, X: Any) -> Array:
    """Epistemic fractions of one partition."""
    if not len(X):
        return np.empty(0)
    return parts_of(estimator, X).variance.epistemic_fraction


def fractions_of_rows(estimator: Any, X: Any) -> Array:
    """Epistemic fractions, computed on the workers."""
    parts = [(x,) for x in lazy_parts(X)]
    lazy = of_partitions(fractions_of_partition, estimator, parts)
    return np.concatenate(import_dask().compute(*lazy))


def rows_of_partition(
    conformal: Any, X: Any, y: Any, weights: Any, groups: Any
) -> CalibrationRows:
    """Signed scores, weights and labels of one partition."""
    check_partition(X, y)
    for name, value in (("weights", weights), ("groups", groups)):
        if hasattr(value, "iloc"):
            check_partition(X, value, name)
    rows: CalibrationRows = conformal._rows_of(X, y, RowValues(weights, groups))
    return rows


def rows_of_partitions(
    conformal: Any, X: Any, y: Any, weights: Any = None, groups: Any = None
) -> list[CalibrationRows]:
    """Scores, weights and labels of each partition, computed on the workers.

    ``conformal`` is sent to them: it should hold no calibration rows.
    """
    pairs = partitions(X, y)
    beside = [
        values_of_partitions(name, value, X, len(pairs))
        for name, value in (("weights", weights), ("groups", groups))
    ]
    parts = [(*pair, w, g) for pair, w, g in zip(pairs, *beside, strict=True)]
    lazy = of_partitions(rows_of_partition, conformal, parts)
    return list(import_dask().compute(*lazy))


def points_and_bounds(
    estimator: Any,
    fingerprint: str | None,
    ends: ScoreBounds | RowRule,
    support: Support,
    names: tuple[str, ...],
    columns: list[str] | None,
    X: Any,
    *beside: Any,
) -> Any:
    """Points, lower and upper bounds of a block of rows; as a frame if columns are."""
    check_unchanged(estimator, fingerprint)  # the graph may be computed much later
    given = dict(zip(names, beside, strict=True))
    for name, value in given.items():
        check_partition(X, value, name)
    if isinstance(ends, RowRule) and given:
        own = {name: np.asarray(v).reshape(len(X)) for name, v in given.items()}
        ends = replace(ends, values=RowValues(**(vars(ends.values) | own)))
    if len(X):
        points, *bounds = bounds_of_rows(estimator, X, ends, {}, support)
        found = np.concatenate([points[:, None], *bounds], axis=1)
    else:
        levels = ends.alpha if isinstance(ends, RowRule) else ends.lower
        found = np.empty((0, 1 + 2 * len(levels)))
    if columns is None:
        return found
    import pandas as pd

    return pd.DataFrame(found, X.index, columns)


def as_intervals(joined: Array) -> Array:
    """From columns of points and bounds to the shape of MAPIE, (n, 2, n_levels)."""
    return joined[:, 1:].reshape(len(joined), 2, -1)


def by_row(weights: Any, groups: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Collections among the two, and both with arrays in the place of collections."""
    given = {"weights": weights, "groups": groups}
    series = {k: value for k, value in given.items() if is_collection(k, value)}
    return series, given | dict.fromkeys(series, np.empty(0))


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
    if callable(value) or isinstance(value, str | int | EpistemicGroups | None):
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
