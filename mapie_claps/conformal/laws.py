"""μ and √v of any model, checked, and the law that they or the model speak of."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._validation import check_unmasked, where_bad
from ..estimators.local_law import LocalLaw

Array = NDArray[np.float64]


def law_of(mu: ArrayLike, std: Any, first_row: int = 0) -> LocalLaw:
    """The law that an array of standard deviations carries, or the symmetric one."""
    law: LocalLaw | None = getattr(std, "law", None)
    if law is not None:
        return checked_law(law, first_row)
    mu_ = checked_centre(mu, first_row)
    return LocalLaw.symmetric(mu_, checked_std(std, len(mu_), first_row))


def checked_law(law: LocalLaw, first_row: int = 0) -> LocalLaw:
    """The law, if its centre is finite, and its scales are positive, too."""
    checked_centre(law.centre, first_row)
    checked_std(law.above, len(law), first_row)
    if law.below is not law.above:
        checked_std(law.below, len(law), first_row)
    return law


def checked_centre(mu: ArrayLike, first_row: int = 0) -> Array:
    """Predictions as float64, none of them NaN or infinite."""
    check_unmasked("predictions", mu)
    values = np.asarray(mu, dtype=np.float64)
    bad = ~np.isfinite(values)
    if bad.any():
        row = first_row + int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"Got a prediction of {float(values[bad][0])!r} in row {row}, but expected "
            "finite numbers. Look at this row of X, or at the estimator."
        )
    return values


def checked_predictions(y: ArrayLike, mu: ArrayLike) -> tuple[Array, Array]:
    """Targets and predictions, one of each per row."""
    check_unmasked("y", y)
    target, centre = np.asarray(y, dtype=np.float64), np.asarray(mu)
    if centre.shape != target.shape:
        raise ValueError(
            f"Got predictions of shape {centre.shape} for targets of shape "
            f"{target.shape}, but expected one number per row. Fit the estimator with "
            "a one-dimensional y."
        )
    if not np.isfinite(target).all():  # MAPIE looks, unless scikit-learn is told not to
        raise ValueError(f"Got y with NaN or infinity.{where_bad('y', target)}")
    return target, centre


def checked_std(std: ArrayLike, n: int, first_row: int = 0) -> Array:
    """Scale as (n,) float64, finite and positive."""
    check_unmasked("standard deviations", std)
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
