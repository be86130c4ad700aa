"""Metrics of predictive distributions: quantiles, and values of equal probability."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._validation import check_unmasked, raise_for

Array = NDArray[np.float64]


def quantile_loss(y: ArrayLike, y_quantiles: ArrayLike, levels: ArrayLike) -> Array:
    r"""Mean quantile (pinball) loss at each level, lower is better.

    :math:`\max(\tau (y - q),\, (\tau - 1)(y - q))`.

    Parameters
    ----------
    y : array-like of shape (n,)
        Targets.
    y_quantiles : array-like of shape (n, m)
        Predicted quantiles, for example by ``CalibratedRegressor.predict_quantiles``.
    levels : array-like of shape (m,)
        Their levels τ.

    Returns
    -------
    ndarray of shape (m,)
        Losses; infinite where a quantile is.

    Examples
    --------
    >>> from mapie_claps.metrics import quantile_loss
    >>> quantile_loss([1.0, 3.0], [[1.0, 2.0], [1.0, 2.0]], [0.5, 0.9])
    array([0.5, 0.5])
    """
    y_, values = _checked(y, y_quantiles, "y_quantiles")
    level = np.atleast_1d(np.asarray(levels, dtype=np.float64))
    if level.shape != (values.shape[1],) or not ((level > 0) & (level < 1)).all():
        raise_for(
            "levels",
            levels,
            f"{values.shape[1]} numbers between 0 and 1, one for each quantile",
            "Pass the levels that were predicted.",
        )
    gap = y_[:, None] - values
    loss: Array = np.maximum(level * gap, (level - 1) * gap).mean(axis=0)
    return loss


def crps(y: ArrayLike, y_values: ArrayLike) -> float:
    r"""Mean continuous ranked probability score, lower is better.

    :math:`\mathrm{E}|Y - y| - \tfrac12 \mathrm{E}|Y - Y'|` with Y and Y' independent
    draws from the prediction.

    Parameters
    ----------
    y : array-like of shape (n,)
        Targets.
    y_values : array-like of shape (n, m)
        Values of equal probability in each row: quantiles at the levels
        (1/2)/m … (m − 1/2)/m, or draws. The distribution is taken to be these values
        and nothing else, so tails count as far as values are in them: with quantiles of
        a conformal predictive system ask for ``tails="normal"``.

    Returns
    -------
    float
        Mean score; the mean absolute error where m is 1, infinite where a value is.

    Examples
    --------
    >>> from mapie_claps.metrics import crps
    >>> crps([0.0], [[-1.0, 1.0]]), crps([3.0], [[0.0]])
    (0.5, 3.0)
    """
    y_, values = _checked(y, y_values, "y_values")
    if np.isinf(values).any():  # E|Y − y| is, and so is what would be taken off it
        return math.inf
    ordered = np.sort(values, axis=1)
    m = ordered.shape[1]
    distance = np.abs(ordered - y_[:, None]).mean(axis=1)
    # Σ over pairs of |a − b| / 2m², from the ranks of sorted values.
    spread = ordered @ (2.0 * np.arange(1, m + 1) - m - 1) / m**2
    return float((distance - spread).mean())


def _checked(y: ArrayLike, y_values: ArrayLike, name: str) -> tuple[Array, Array]:
    """Targets (n,) and values (n, m)."""
    check_unmasked("y", y)
    check_unmasked(name, y_values)
    y_, values = (np.asarray(a, dtype=np.float64) for a in (y, y_values))
    if y_.ndim != 1 or values.ndim != 2 or len(values) != len(y_) or not values.size:
        raise ValueError(
            f"Got y of shape {y_.shape} and {name} of shape {values.shape}, but "
            "expected (n,) and (n, m). Pass one row of values for each target."
        )
    if np.isnan(values).any() or not np.isfinite(y_).all():
        raise ValueError(
            f"Got y with {int((~np.isfinite(y_)).sum())} values that are not finite, "
            f"and {name} with {int(np.isnan(values).sum())} NaN, but expected numbers. "
            "Leave these rows out."
        )
    return y_, values
