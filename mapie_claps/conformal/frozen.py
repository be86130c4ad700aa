"""What all rows of a calibrated model share: ends as residuals, map, support.

For ways to an interval that do without the estimator: one row at a time, and export.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..estimators.local_law import residual_end
from ..estimators.regressor import ClapsRegressor
from ..network.target_map import TargetMap
from .support import Support

Array = NDArray[np.float64]
# By which ends move outwards, in units of their size: other arithmetic than that of the
# calibration scores must lose no target that has the score of the rank.
ROUND_OUT_SHARE = 1e-12


@dataclass(frozen=True, eq=False)
class FrozenRule:
    """From centre and scales of a row to its intervals, at fixed levels."""

    levels: list[float]
    lower: Array  # (m,), residuals of the lower ends
    upper: Array  # (m,)
    nodes: Array  # (k,), residuals of equal probability
    target_map: TargetMap
    support: Support | None  # None: all numbers


def frozen_rule(conformal: Any, what: str) -> FrozenRule:
    """The rule of a calibrated object over a ``ClapsRegressor``, if it has one."""
    estimator = conformal._fitted()
    if not isinstance(estimator, ClapsRegressor):
        raise TypeError(
            f"Got a {type(estimator).__name__} in {what}, but expected a "
            "ClapsRegressor. Use predict_interval."
        )
    conformal._check_one_rank(what)
    ends, law = conformal._ends(allow_infinite=False), estimator._law_of_residuals()
    if not all(np.isfinite(end).all() for end in ends):
        raise ValueError(
            f"Got an infinite rank in {what}: targets of calibration rows are outside "
            "the support or the domain of the map. Lower confidence_level, or use "
            "predict_interval."
        )
    support = conformal._support().of(law)
    return FrozenRule(
        conformal.levels,
        residual_end(law.shape, ends.lower, -1.0),
        residual_end(law.shape, ends.upper, 1.0),
        law.shape.nodes,
        law.target_map,
        None if support.is_everything else support,
    )
