"""interval → interval on the values that y can take."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._validation import raise_for

Array = NDArray[np.float64]

# End points are computed with rounding; a value of y that lies on one must stay inside.
TOLERANCE = 1e-9


def check_support(support: Any) -> str | Array | None:
    """None, "integer", or the values in order."""
    if support is None or (isinstance(support, str) and support == "integer"):
        return support
    hint = "Use 'integer', or list the values, for example np.arange(11)."
    expected = "'integer' or a list of finite numbers"
    try:
        values = np.unique(np.asarray(support, dtype=np.float64))
    except (TypeError, ValueError):
        raise_for("support", support, expected, hint)
    if values.size == 0 or np.ndim(support) != 1 or not np.isfinite(values).all():
        raise_for("support", support, expected, hint)
    return values


def snap_to_support(
    lower: Array, upper: Array, support: str | Array
) -> tuple[Array, Array]:
    """Smallest interval between supported values that loses none of them."""
    slack = TOLERANCE * np.maximum(np.abs(lower), np.abs(upper))
    slack[~np.isfinite(slack)] = 0.0
    with np.errstate(invalid="ignore"):  # an infinite interval is never empty
        centre = (lower + upper) / 2
    if isinstance(support, str):
        low, up = np.ceil(lower - slack), np.floor(upper + slack)
        nearest = np.round(centre)
    else:
        last = len(support) - 1
        low = support[np.searchsorted(support, lower - slack).clip(0, last)]
        above = np.searchsorted(support, upper + slack, side="right")
        up = support[(above - 1).clip(0, last)]
        nearest = _nearest(support, centre)
    empty = low > up
    return np.where(empty, nearest, low), np.where(empty, nearest, up)


def _nearest(support: Array, value: Array) -> Array:
    """Supported value nearest to each value."""
    right = np.searchsorted(support, value).clip(0, len(support) - 1)
    left = (right - 1).clip(0)
    closer = np.abs(value - support[left]) <= np.abs(support[right] - value)
    nearest: Array = np.where(closer, support[left], support[right])
    return nearest
