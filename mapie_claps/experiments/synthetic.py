"""Experiment 1 (controlled mechanism) and experiment 2 (posterior contraction)."""

from typing import Any

from .. import metrics
from ..datasets import SyntheticData, make_heteroscedastic_sparse
from .methods import CONFIDENCE_LEVEL, METHODS, Contest, Split
from .runs import Experiment, Options, Row

TRAINING = {"learning_rate": 1e-2, "max_steps": 300}
N_TRAIN, N_CALIBRATION, N_TEST = 500, 500, 2000
KEEP_PROBABILITY = 0.1
SIZES = (100, 250, 500, 1000, 2000)


def contest(n_train: int, seed: int, options: Options) -> tuple[Contest, SyntheticData]:
    """The methods on the synthetic problem, and its test rows."""
    # Three streams: calibration and test rows do not depend on the training size.
    train = make_heteroscedastic_sparse(
        n_train, keep_probability=KEEP_PROBABILITY, random_state=3 * seed
    )
    calibration = make_heteroscedastic_sparse(N_CALIBRATION, random_state=3 * seed + 1)
    test = make_heteroscedastic_sparse(N_TEST, random_state=3 * seed + 2)
    split = Split(train.X, train.y, calibration.X, calibration.y, test.X, test.y)
    return Contest(split, seed, training(options)), test


def training(options: Options) -> dict[str, Any]:
    """How networks are trained here."""
    return TRAINING | ({"max_steps": 5} if options.smoke else {})


def mechanism_rows(case: str, seed: int, options: Options) -> list[Row]:
    """One row per method: coverage by region, width, score."""
    methods, test = contest(N_TRAIN, seed, options)
    rows = []
    for method in METHODS:
        bounds = methods.interval(method)
        found = metrics.evaluate_intervals(test.y, bounds, CONFIDENCE_LEVEL)
        regional = metrics.regional_coverage(test.y, bounds, test.regions)
        gap = metrics.region_gap(test.y, bounds, test.regions, CONFIDENCE_LEVEL)
        row = {name: float(value[0]) for name, value in found.items()}
        row |= {f"{name}_coverage": float(v[0]) for name, v in regional.items()}
        rows.append({"method": method, "region_gap": float(gap[0])} | row)
    return rows


def contraction_rows(case: str, seed: int, options: Options) -> list[Row]:
    """One row: CLAPS against LACP with this many training rows."""
    methods, test = contest(int(case), seed, options)
    found = {
        method: metrics.evaluate_intervals(
            test.y, methods.interval(method), CONFIDENCE_LEVEL
        )
        for method in ("LACP", "CLAPS")
    }
    lacp, claps = found["LACP"], found["CLAPS"]
    variance = methods.heteroscedastic.predict_variance(test.X)
    parts = variance.aleatoric, variance.epistemic
    row = {
        "epistemic_fraction": metrics.epistemic_fraction(*parts),
        "scale_ratio": metrics.scale_ratio(*parts),
        "width_ratio": metrics.width_ratio(claps["width"], lacp["width"])[0],
        "score_difference": metrics.score_difference(claps["score"], lacp["score"])[0],
        "coverage_lacp": lacp["coverage"][0],
        "coverage_claps": claps["coverage"][0],
    }
    return [{name: float(value) for name, value in row.items()}]


MECHANISM = Experiment(
    "mechanism",
    "Experiment 1: controlled synthetic mechanism",
    ("synthetic",),
    20,
    mechanism_rows,
    TRAINING | {"n": [N_TRAIN, N_CALIBRATION, N_TEST]},
)
CONTRACTION = Experiment(
    "contraction",
    "Experiment 2: posterior contraction",
    tuple(map(str, SIZES)),
    20,
    contraction_rows,
    TRAINING | {"n": [N_CALIBRATION, N_TEST]},
)
