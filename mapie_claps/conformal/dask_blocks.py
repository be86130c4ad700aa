"""What a worker makes of one block of rows: points and bounds, as array or frame."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .bounds import bounds_of_rows
from .dask_partitions import check_partition
from .parts import check_unchanged
from .quantile import ScoreEnds
from .row_rule import RowRule, RowValues
from .support import Support

Array = NDArray[np.float64]


def points_and_bounds(
    estimator: Any,
    fingerprint: str | None,
    ends: ScoreEnds | RowRule,
    support: Support | None,
    names: tuple[str, ...],
    X: Any,
    *beside: Any,
) -> Array:
    """Points, lower and upper bounds as columns."""
    check_unchanged(estimator, fingerprint)  # the graph may be computed much later
    for name, value in zip(names, beside, strict=True):
        check_partition(X, value, name)
    if not len(X):
        levels = ends.alpha if isinstance(ends, RowRule) else ends.lower
        return np.empty((0, 1 + 2 * len(levels)))
    if isinstance(ends, RowRule) and names:
        given = {
            name: np.asarray(value).reshape(len(X))
            for name, value in zip(names, beside, strict=True)
        }
        values = RowValues(
            given.get("weights", ends.values.weights),
            given.get("groups", ends.values.groups),
        )
        ends = replace(ends, values=values)
    points, lower, upper = bounds_of_rows(estimator, X, ends, {}, 0, support)
    return np.concatenate([points[:, None], lower, upper], axis=1)


def as_intervals(joined: Array) -> Array:
    """From columns to the shape of MAPIE, (n, 2, n_levels)."""
    return joined[:, 1:].reshape(len(joined), 2, -1)


def as_frame(
    predict: Callable[..., Array], columns: list[str], X: Any, *beside: Any
) -> Any:
    """Points and bounds of a frame's rows, with its index."""
    import pandas as pd

    return pd.DataFrame(predict(X, *beside), X.index, columns)


def column_names(levels: list[float]) -> list[str]:
    """Names of the columns of points and bounds."""
    bounds = [f"{side}_{level:g}" for side in ("lower", "upper") for level in levels]
    return ["prediction", *bounds]
