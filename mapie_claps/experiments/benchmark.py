"""Experiment 3: six methods on eight real data sets."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import metrics
from ..datasets import DATASETS, load_dataset
from .methods import CONFIDENCE_LEVEL, METHODS, Contest, Split
from .runs import Experiment, Options, Row

Array = NDArray[np.float64]

MAX_ROWS = 5000
TEST_FRACTION = CALIBRATION_FRACTION = 0.2
SMOKE_TRAINING = {"max_steps": 5}


def load_rows(name: str, options: Options) -> tuple[Array, Array]:
    """The table, or for a smoke run rows that scikit-learn ships."""
    if options.smoke:
        from sklearn.datasets import load_diabetes

        X, y = load_diabetes(return_X_y=True)
        return X[:250], y[:250]
    return load_dataset(name, options.data_home)


def split_rows(
    X: Array, y: Array, seed: int, calibration_fraction: float = CALIBRATION_FRACTION
) -> Split:
    """At most 5,000 rows in a seeded order: test, then calibration, then training.

    The test rows are the same for every calibration fraction.
    """
    order = np.random.default_rng(seed).permutation(len(X))[:MAX_ROWS]
    n_test = round(TEST_FRACTION * len(order))
    n_calibration = round(calibration_fraction * len(order))
    test, rest = order[:n_test], order[n_test:]
    calibration, train = rest[:n_calibration], rest[n_calibration:]
    return Split(X[train], y[train], X[calibration], y[calibration], X[test], y[test])


def training(options: Options) -> dict[str, Any]:
    """Overrides of ``ClapsRegressor.paper``: none, but for a smoke run."""
    return dict(SMOKE_TRAINING) if options.smoke else {}


def benchmark_rows(case: str, seed: int, options: Options) -> list[Row]:
    """One row per method, with its ranks among them."""
    split = split_rows(*load_rows(case, options), seed)
    methods = Contest(split, seed, training(options))
    found = [
        metrics.evaluate_intervals(
            split.y_test, methods.interval(method), CONFIDENCE_LEVEL
        )
        for method in METHODS
    ]
    widths = [f["width"][0] for f in found]
    scores = [f["score"][0] for f in found]
    width_ranks = metrics.average_ranks([widths])[0]
    score_ranks = metrics.average_ranks([scores])[0]
    reference = widths[METHODS.index("Split CP")]
    rows = []
    for j, method in enumerate(METHODS):
        row = {name: float(value[0]) for name, value in found[j].items()}
        row["violation"] = float(
            metrics.violation_rate(found[j]["coverage"], CONFIDENCE_LEVEL)
        )
        row["width_reduction"] = float(
            metrics.relative_width_reduction([widths[j]], [reference])
        )
        row["width_rank"] = float(width_ranks[j])
        row["score_rank"] = float(score_ranks[j])
        rows.append({"method": method} | row)
    return rows


BENCHMARK = Experiment(
    "benchmark",
    "Experiment 3: real regression benchmark",
    tuple(DATASETS),
    5,
    benchmark_rows,
    {"max_rows": MAX_ROWS},
)
