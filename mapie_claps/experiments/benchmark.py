"""Experiment 3: six methods on eight real data sets."""

from typing import Any

import numpy as np

from .. import metrics
from ..studies.data import Array, Dataset, Split, make_split, seeded_order
from ..studies.store import Row
from .experiment import CALIBRATION_FRACTION, MAX_ROWS, TEST_FRACTION
from .methods import CONFIDENCE_LEVEL, METHODS, PaperMethods


def split_rows(
    data: Dataset, seed: int, calibration_fraction: float = CALIBRATION_FRACTION
) -> Split:
    """At most 5,000 rows in a seeded order: test, then calibration, then training.

    The test rows are the same for every calibration fraction.
    """
    order = seeded_order(data, seed, MAX_ROWS)
    n_test = round(TEST_FRACTION * len(order))
    n_cal = round(calibration_fraction * len(order))
    test, cal, train = np.split(order, [n_test, n_test + n_cal])
    return make_split(data, train, cal, test)


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
