"""Score of a row and its inverse: (y − μ) / √v, and μ ± q·√v rounded outwards."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "ROUND_OUT",
    "checked_predictions",
    "checked_std",
    "interval_bounds",
    "scaled_residual",
]

Array = NDArray[np.float64]

# A score takes two roundings and its inverse two more, so that μ + q·√v may fall short
# of a y whose score is q. Where y is discrete many rows have that score, and coverage
# would suffer. Four units in the last place of q, and one of the sum, make up for it.
ROUND_OUT = 1 + 4 * np.finfo(np.float64).eps


def scaled_residual(y: ArrayLike, mu: ArrayLike, std: ArrayLike) -> Array:
    """Signed scores (n,) of n rows."""
    target, centre = checked_predictions(y, mu)
    scores: Array = (target - centre) / checked_std(std, len(target))
    return scores


def interval_bounds(
    mu: Array,  # (n,)
    std: Array,  # (n,)
    q: Array,  # (n_levels,)
) -> tuple[Array, Array]:
    """Lower and upper ends μ ∓ q·√v, (n, n_levels), rounded outwards."""
    half = std[:, None] * (q * ROUND_OUT)
    lower, upper = mu[:, None] - half, mu[:, None] + half
    wide = half > 0  # else the ends are μ itself
    return (
        np.where(wide, np.nextafter(lower, -np.inf), lower),
        np.where(wide, np.nextafter(upper, np.inf), upper),
    )


def checked_predictions(y: ArrayLike, mu: ArrayLike) -> tuple[Array, Array]:
    """Targets and predictions, one of each per row."""
    target, centre = np.asarray(y, dtype=np.float64), np.asarray(mu)
    if centre.shape != target.shape:
        raise ValueError(
            f"Got predictions of shape {centre.shape} for targets of shape "
            f"{target.shape}, but expected one number per row. Fit the estimator with "
            "a one-dimensional y."
        )
    return target, centre


def checked_std(std: ArrayLike, n: int, first_row: int = 0) -> Array:
    """Scale as (n,) float64, finite and positive."""
    values = np.asarray(std, dtype=np.float64)
    if values.shape != (n,):
        raise ValueError(
            f"Got a standard deviation of shape {values.shape} for {n} rows, but "
            "expected one number per row from predict(X, return_std=True)."
        )
    bad = ~(np.isfinite(values) & (values > 0))
    if bad.any():
        row = first_row + int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"Got a standard deviation of {float(values[bad][0])!r} in row {row}, but "
            "expected positive finite numbers. Give the estimator a floor on its "
            "variance (a GP: a WhiteKernel)."
        )
    return values
