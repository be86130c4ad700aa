"""What one run of each experiment computes."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import ClapsRegressor, ClapsScore, metrics
from ..datasets import SyntheticData, make_heteroscedastic_sparse
from ..studies.data import Array, Dataset, Split, make_split, seeded_order
from ..studies.store import Row
from .methods import PaperMethods, split_interval
from .protocol import CONFIDENCE_LEVEL as LEVEL
from .protocol import FRACTIONS, GRIDS, METHODS, REFERENCES, SYNTHETIC

Training = dict[str, Any]  # overrides of ``ClapsRegressor.paper``


def rows_of(
    name: str, case: str, data: Any, seed: int, training: Training
) -> list[Row]:
    """Rows of one run of an experiment; synthetic ones need no data."""
    if name == "mechanism":
        rows = mechanism_rows(seed, training)
    elif name == "contraction":
        rows = [contraction_row(int(case), seed, training)]
    elif name in GRIDS:
        rows = grid_rows(name, data, seed, training)
    else:
        rows = benchmark_rows(data, seed, training)
    return [{"case": case, "seed": seed} | row for row in rows]


def synthetic_methods(
    n_train: int, seed: int, training: Training
) -> tuple[PaperMethods, SyntheticData]:
    """The methods on the synthetic problem, and its test rows."""
    # Three streams: calibration and test rows do not depend on the training size.
    sizes = n_train, SYNTHETIC["n_calibration"], SYNTHETIC["n_test"]
    train, cal, test = (
        make_heteroscedastic_sparse(n, keep_probability=k, random_state=3 * seed + i)
        for i, (n, k) in enumerate(zip(sizes, (SYNTHETIC["keep"], 1, 1), strict=True))
    )
    split = Split(train.X, train.y, cal.X, cal.y, test.X, test.y)
    return PaperMethods(split, seed, training), test


def mechanism_rows(seed: int, training: Training) -> list[Row]:
    """Experiment 1, one row per method: coverage by region, width, score."""
    methods, test = synthetic_methods(SYNTHETIC["n_train"], seed, training)
    rows = []
    for method in METHODS:
        on_regions = test.y, methods.interval(method), test.regions
        found = {"region_gap": metrics.region_gap(*on_regions, LEVEL)}
        found |= metrics.evaluate_intervals(*on_regions[:2], LEVEL)
        for name, share in metrics.regional_coverage(*on_regions).items():
            found[f"{name}_coverage"] = share
        rows.append({"method": method} | _numbers(found))
    return rows


def contraction_row(n_train: int, seed: int, training: Training) -> Row:
    """Experiment 2: CLAPS against LACP with this many training rows."""
    methods, test = synthetic_methods(n_train, seed, training)
    lacp, claps = (
        metrics.evaluate_intervals(test.y, methods.interval(m), LEVEL)
        for m in ("LACP", "CLAPS")
    )
    compared = {
        "width_ratio": metrics.width_ratio(claps["width"], lacp["width"]),
        "score_difference": metrics.score_difference(claps["score"], lacp["score"]),
        "coverage_lacp": lacp["coverage"],
        "coverage_claps": claps["coverage"],
    }
    return variance_metrics(methods.heteroscedastic, test.X) | _numbers(compared)


def split_rows(
    data: Dataset, seed: int, calibration_fraction: float = FRACTIONS["calibration"]
) -> Split:
    """At most 5,000 rows in a seeded order: training, then calibration, then test.

    The test rows are the same for every calibration fraction: those that round(0.6 n)
    training and round(0.2 n) calibration rows leave.
    """
    order = seeded_order(data, seed, FRACTIONS["max_rows"])
    n = len(order)
    n_seen = sum(round(FRACTIONS[part] * n) for part in ("training", "calibration"))
    n_train = n_seen - round(calibration_fraction * n)
    return make_split(data, *np.split(order, [n_train, n_seen]))


def benchmark_rows(data: Dataset, seed: int, training: Training) -> list[Row]:
    """Experiment 3, one row per method, with its ranks among them."""
    split = split_rows(data, seed)
    methods = PaperMethods(split, seed, training)
    rows: list[Row] = [
        {"method": m} | evaluate(split, methods.interval(m)) for m in METHODS
    ]
    width_ranks, score_ranks = (
        metrics.average_ranks([[row[name] for row in rows]])[0]
        for name in ("width", "score")
    )
    reference = rows[METHODS.index("Split CP")]["width"]
    for j, row in enumerate(rows):
        narrower = metrics.relative_width_reduction([row["width"]], [reference])
        row["width_reduction"] = float(narrower)
        row["width_rank"] = float(width_ranks[j])
        row["score_rank"] = float(score_ranks[j])
    return rows


def grid_rows(name: str, data: Dataset, seed: int, training: Training) -> list[Row]:
    """Appendix, one row per grid value; width and score relative to the reference."""

    def fit(**params: Any) -> ClapsRegressor:
        model = ClapsRegressor.paper(**training, **params, random_state=seed)
        return model.fit(split.X_train, split.y_train)

    split = split_rows(data, seed)
    # Another λ leaves the trained network as it is.
    trained = fit() if name == "prior_precision" else None
    rows = []
    for value in GRIDS[name]:
        if trained is not None:
            model = trained.with_prior_precision(value)
        elif name == "calibration_size":
            # More calibration rows at the expense of training rows.
            split = split_rows(data, seed, value)
            model = fit()
        else:
            model = fit(**{name: value})
        row = {"value": value}
        row |= evaluate(split, split_interval(model, split, ClapsScore(model)))
        row |= variance_metrics(model, split.X_test)
        # The floor lives in units of standardised y.
        h2 = model.predict_variance(split.X_test).aleatoric / np.var(split.y_train)
        floor = metrics.noise_floor_diagnostics(h2, model.variance_floor)
        row |= {"min_h2": floor["min"], "p01_h2": floor["p01"]}
        rows.append(row | {"floor_active": floor["floor_active"]})
    base = next(row for row in rows if row["value"] == REFERENCES[name])
    width, score = base["width"], base["score"]
    for row in rows:
        row["width_ratio"] = float(metrics.width_ratio(row["width"], width))
        row["score_difference"] = float(metrics.score_difference(row["score"], score))
        # The paper adds up scores of data sets whose units differ; this does not.
        row["relative_score"] = row["score_difference"] / score
    return rows


def evaluate(split: Split, bounds: Array) -> Row:
    """Metrics of one method on the test rows."""
    found = metrics.evaluate_intervals(split.y_test, bounds, LEVEL)
    violation = metrics.violation_rate(found["coverage"], LEVEL)
    return _numbers(found | {"violation": violation})


def variance_metrics(model: ClapsRegressor, X: Array) -> Row:
    """Epistemic fraction in both readings, and scale ratio."""
    variance = model.predict_variance(X)
    parts = variance.aleatoric, variance.epistemic
    means = np.mean(parts, axis=1)
    return {
        "epistemic_fraction": metrics.epistemic_fraction(*parts),
        "epistemic_fraction_of_means": float(means[1] / means.sum()),
        "scale_ratio": metrics.scale_ratio(*parts),
    }


def _numbers(found: Mapping[str, Array]) -> Row:
    """Arrays of one value each as numbers."""
    return {name: value.item() for name, value in found.items()}
