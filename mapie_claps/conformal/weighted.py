"""Weights of rows under covariate shift: checks, effective sample size, warnings.

A weight is the likelihood ratio p_target(x) / p_source(x) of a row, up to a constant
that is the same for calibration and test rows.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._validation import check_real
from ..exceptions import EffectiveSampleSizeWarning

Array = NDArray[np.float64]
# Effective rows per unit of 1/α below which a warning is due: 50 rows at level 0.9,
# where coverage given the calibration rows has a standard deviation of 0.04.
ROWS_PER_MISS = 5


def effective_sample_size(weights: ArrayLike) -> float:
    r"""Compute how many rows of equal weight the weighted ones are worth.

    :math:`n_{\mathrm{eff}} = (\sum_i w_i)^2 / \sum_i w_i^2`.

    Parameters
    ----------
    weights : array-like of shape (n,)
        Likelihood ratios, of at least 0 and not all of them 0.

    Returns
    -------
    float
        n for equal weights, 1 if one row has all the weight.

    Examples
    --------
    >>> from mapie_claps import effective_sample_size
    >>> effective_sample_size([1.0, 1.0, 1.0]), effective_sample_size([1.0, 0.0, 0.0])
    (3.0, 1.0)
    """
    given = np.asarray(weights, dtype=np.float64)
    checked = checked_weights(given, len(np.atleast_1d(given)))
    check_some_weight(checked)
    return worth(checked)


def worth(weights: Array) -> float:
    """Effective sample size; 0 without any weight."""
    share = _shares(weights)
    return float(share.sum() ** 2 / np.square(share).sum()) if share.any() else 0.0


def _shares(weights: Array) -> Array:
    """Weights in units of the largest: sums and squares could overflow."""
    return weights / (weights.max(initial=0.0) or 1.0)


def checked_weights(weights: Any, n: int) -> Array:
    """Weights (n,), each finite and at least 0."""
    check_real("weights", weights)
    values = np.asarray(weights, dtype=np.float64)
    hint = "Pass likelihood ratios p_target(x) / p_source(x), one for each row."
    if values.shape != (n,):
        raise ValueError(
            f"Got weights of shape {values.shape} for {n} rows, but expected one "
            f"number per row. {hint}"
        )
    # By the extremes: a mask of a million rows is a megabyte.
    if not (values.min(initial=0) >= 0 and values.max(initial=0) < np.inf):
        row = int(np.flatnonzero(~(np.isfinite(values) & (values >= 0)))[0])
        raise ValueError(
            f"Got weights with {float(values[row])!r} in row {row}, but expected "
            f"finite numbers of at least 0. {hint}"
        )
    return values


def check_some_weight(weights: Array) -> None:
    """Raise if no calibration row has any weight."""
    if not weights.any():
        raise ValueError(
            f"Got weights that are zero in all {len(weights)} calibration rows: none "
            "of them is like the rows to predict, and no finite interval can be made. "
            "Calibrate on rows from where predictions are needed."
        )


def warn_if_few(weights: Array, levels: Sequence[float], of: str = "") -> None:
    """Warn where weights leave so few effective rows that ranks depend on luck."""
    n_effective = worth(weights)
    needed = ROWS_PER_MISS / (1 - max(levels))
    # Few rows of about equal weight are what the user has; a few that outweigh the
    # rest are not.
    if n_effective < min(needed, len(weights) / 2):
        top = np.sort(_shares(weights))[::-1]
        tenth = top[: max(1, len(top) // 10)].sum() / (top.sum() or 1.0)
        warnings.warn(
            f"Got {len(weights)} weighted calibration rows{of} that are worth "
            f"{n_effective:.1f} rows of equal weight, where confidence_level="
            f"{max(levels):g} should have {needed:.0f}: a tenth of the rows has "
            f"{tenth:.0%} of the weight. Coverage holds on average, but depends on "
            "these few rows. Calibrate on more rows, or clip the weights harder.",
            EffectiveSampleSizeWarning,
            stacklevel=5,
        )


def warn_of_infinite(n_infinite: int, n: int, first: int, largest: float) -> None:
    """Warn of test rows whose own weight is too large for a finite interval."""
    warnings.warn(
        f"Got {n_infinite} of {n} rows, the first of them row {first}, whose own "
        f"weight is too large for a finite interval: it is more than {largest:.4g}, "
        "which the weight of all calibration rows allows. Their bounds are infinite. "
        "Calibrate on rows like them, or pass allow_infinite_bounds=True if that is "
        "what you expect.",
        EffectiveSampleSizeWarning,
        stacklevel=5,
    )
