"""interval → evaluation: what the paper reports and MAPIE's metrics lack.

``y_interval`` is what MAPIE's ``predict_interval`` returns, shape (n, 2, n_levels), or
(n, 2) for one level; results have one entry per level. Bounds may be infinite, which
MAPIE's own metrics refuse. Where theirs are right they do the work.
"""

from ._across_runs import (
    average_ranks,
    relative_width_reduction,
    score_difference,
    violation_rate,
    width_ratio,
)
from ._distributions import crps, quantile_loss
from ._intervals import (
    coverage,
    coverage_error,
    crossed_intervals,
    evaluate_intervals,
    interval_score,
    mean_width,
    region_gap,
    regional_coverage,
)
from ._variance import (
    epistemic_fraction,
    neg_predictive_nll,
    noise_floor_diagnostics,
    predictive_nll,
    scale_ratio,
)

__all__ = [
    "average_ranks",
    "coverage",
    "coverage_error",
    "crossed_intervals",
    "crps",
    "epistemic_fraction",
    "evaluate_intervals",
    "interval_score",
    "mean_width",
    "neg_predictive_nll",
    "noise_floor_diagnostics",
    "predictive_nll",
    "quantile_loss",
    "region_gap",
    "regional_coverage",
    "relative_width_reduction",
    "scale_ratio",
    "score_difference",
    "violation_rate",
    "width_ratio",
]
