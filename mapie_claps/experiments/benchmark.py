"""Experiment 3: six methods on eight real data sets."""

from typing import Any

from .. import metrics
from ..studies.data import Array, Dataset, Split, make_split, seeded_order
from ..studies.store import Row
from .experiment import CALIBRATION_FRACTION, MAX_ROWS, TRAINING_FRACTION
from .methods import CONFIDENCE_LEVEL, METHODS, PaperMethods


def split_rows(
    data: Dataset, seed: int, calibration_fraction: float = CALIBRATION_FRACTION
) -> Split:
    """At most 5,000 rows in a seeded order: training, then calibration, then test.

    The test rows are the same for every calibration fraction: those that round(0.6 n)
    training and round(0.2 n) calibration rows leave.
    """
    order = seeded_order(data, seed, MAX_ROWS)
    n = len(order)
    n_seen = round(TRAINING_FRACTION * n) + round(CALIBRATION_FRACTION * n)
    n_train = n_seen - round(calibration_fraction * n)
    return make_split(data, order[:n_train], order[n_train:n_seen], order[n_seen:])


def evaluate(y: Array, bounds: Array) -> Row:
    """Metrics of one method on one split."""
    found = metrics.evaluate_intervals(y, bounds, CONFIDENCE_LEVEL)
    row = {name: float(value[0]) for name, value in found.items()}
    violation = metrics.violation_rate(found["coverage"], CONFIDENCE_LEVEL)
    return row | {"violation": float(violation)}


def benchmark_rows(data: Dataset, seed: int, training: dict[str, Any]) -> list[Row]:
    """One row per method, with its ranks among them."""
    split = split_rows(data, seed)
    methods = PaperMethods(split, seed, training)
    rows = [evaluate(split.y_test, methods.interval(m)) for m in METHODS]
    widths, scores = ([row[name] for row in rows] for name in ("width", "score"))
    width_ranks, score_ranks = (metrics.average_ranks([v])[0] for v in (widths, scores))
    reference = widths[METHODS.index("Split CP")]
    return [
        {
            "method": method,
            **rows[j],
            "width_reduction": float(
                metrics.relative_width_reduction([widths[j]], [reference])
            ),
            "width_rank": float(width_ranks[j]),
            "score_rank": float(score_ranks[j]),
        }
        for j, method in enumerate(METHODS)
    ]
