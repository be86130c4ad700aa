"""Experiment 1 (controlled mechanism) and experiment 2 (posterior contraction)."""

from typing import Any

from .. import metrics
from ..datasets import SyntheticData, make_heteroscedastic_sparse
from ..studies.data import Split
from ..studies.store import Row
from .experiment import KEEP_PROBABILITY, SYNTHETIC
from .methods import CONFIDENCE_LEVEL, METHODS, PaperMethods, variance_metrics


def paper_methods(
    n_train: int, seed: int, training: dict[str, Any]
) -> tuple[PaperMethods, SyntheticData]:
    """The methods on the synthetic problem, and its test rows."""
    # Three streams: calibration and test rows do not depend on the training size.
    train = make_heteroscedastic_sparse(
        n_train, keep_probability=KEEP_PROBABILITY, random_state=3 * seed
    )
    cal, test = (
        make_heteroscedastic_sparse(n, random_state=3 * seed + i)
        for i, n in ((1, SYNTHETIC["n_calibration"]), (2, SYNTHETIC["n_test"]))
    )
    split = Split(train.X, train.y, cal.X, cal.y, test.X, test.y)
    return PaperMethods(split, seed, training), test


def mechanism_rows(case: str, seed: int, training: dict[str, Any]) -> list[Row]:
    """One row per method: coverage by region, width, score."""
    methods, test = paper_methods(SYNTHETIC["n_train"], seed, training)
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


def contraction_rows(case: str, seed: int, training: dict[str, Any]) -> list[Row]:
    """One row: CLAPS against LACP with this many training rows."""
    methods, test = paper_methods(int(case), seed, training)
    lacp, claps = (
        metrics.evaluate_intervals(test.y, methods.interval(m), CONFIDENCE_LEVEL)
        for m in ("LACP", "CLAPS")
    )
    row = {
        **variance_metrics(methods.heteroscedastic, test.X),
        "width_ratio": metrics.width_ratio(claps["width"], lacp["width"])[0],
        "score_difference": metrics.score_difference(claps["score"], lacp["score"])[0],
        "coverage_lacp": lacp["coverage"][0],
        "coverage_claps": claps["coverage"][0],
    }
    return [{name: float(value) for name, value in row.items()}]
