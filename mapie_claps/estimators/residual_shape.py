"""How standardised residuals of held-out training rows are distributed. NumPy only.

Fixed before calibration, so that the rank of the scores keeps its guarantee. Each
member of an ensemble holds out other rows; the residuals that it leaves there, in units
of its own scale, stand for those of the ensemble. Only how the two tails compare is
taken from them: the size of both is what calibration finds.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from ..network.target_curves import MonotoneSpline
from ..network.target_map import Identity, TargetMap

Array = NDArray[np.float64]
TAILS = np.array([0.25, 0.1, 0.05, 0.025])  # probabilities at which tails are compared
N_NODES = 32
LEVELS = (np.arange(N_NODES) + 0.5) / N_NODES
MIN_RESIDUALS = 100
# With t the clearest asymmetry, in standard errors, a share t²/(t² + PRIOR) of all of
# them is kept: two fifths of two standard errors, four fifths of five.
PRIOR = 6.0


@dataclass(frozen=True, eq=False)
class ResidualShape:
    """A strictly increasing map of residuals to scores, and the residuals' law.

    Parameters
    ----------
    curve : TargetMap
        Residual → signed score. The identity for a symmetric law; otherwise both ends
        of an interval [−q, q] of scores leave equal shares of the residuals outside.
    nodes : ndarray of shape (n_nodes,)
        Residuals at evenly spaced levels, for means over the law.
    """

    curve: TargetMap = field(default_factory=Identity)
    nodes: Array = field(default_factory=lambda: ndtri(LEVELS))


def fit_residual_shape(residual: Array, learn_curve: bool = True) -> ResidualShape:
    """Shape of the residuals, shrunk towards symmetry where they are few."""
    if len(residual) < MIN_RESIDUALS:
        return ResidualShape()
    ordered = np.sort(residual)
    nodes = np.quantile(ordered, LEVELS)
    curve = _curve(ordered) if learn_curve else Identity()
    return ResidualShape(curve, nodes)


def _curve(ordered: Array) -> TargetMap:
    """Spline that sends both tails of equal probability to scores of equal size."""
    upper, upper_error = _quantile(ordered, 1 - TAILS)
    lower, lower_error = _quantile(ordered, TAILS)
    half = (upper - lower) / 2  # (m,), increasing
    if not (half[0] > 0 and (np.diff(half) > 0).all()):
        return Identity()  # so many equal residuals that quantiles coincide
    overlap = 2 * TAILS / (1 - TAILS) * upper_error * lower_error
    variance = (upper_error**2 + lower_error**2 + overlap) / 4
    median, error = _quantile(ordered, np.array([0.5]))
    shift, variance = np.r_[median, (upper + lower) / 2], np.r_[error**2, variance]
    # Quantiles among equal values seem to have no error.
    variance = np.maximum(variance, half[0] ** 2 / len(ordered))
    clearest = (shift**2 / variance).max()
    shift = shift * (clearest / (clearest + PRIOR))
    score = np.r_[-half[::-1], 0.0, half]
    at = score + np.r_[shift[:0:-1], shift]
    # A tail must not turn back, nor come nearer than a tenth of its width.
    steps = np.maximum(np.diff(at), 0.1 * np.diff(score))
    middle = len(half)
    at = shift[0] + np.r_[0.0, np.cumsum(steps)] - np.cumsum(steps)[middle - 1]
    spline = MonotoneSpline.through(at, score)
    # Beyond the last quantiles both sides keep their proportion.
    ends = score[[0, -1]] / (at[[0, -1]] - at[middle])
    slope = np.r_[ends[0], spline.slope[1:-1], ends[1]]
    return MonotoneSpline(0.0, 1.0, at, score, slope)


def _quantile(ordered: Array, level: Array) -> tuple[Array, Array]:
    """Quantiles of sorted values, and their standard errors by order statistics."""
    step = np.sqrt(level * (1 - level) / len(ordered))
    above, below = (
        np.quantile(ordered, np.clip(level + side * step, 0, 1)) for side in (1, -1)
    )
    return np.quantile(ordered, level), (above - below) / 2
