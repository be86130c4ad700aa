"""The four sensitivity analyses of the appendix."""

from collections.abc import Callable, Iterable

import numpy as np

from .. import metrics
from ..conformal.score import ClapsScore
from ..estimators.regressor import ClapsRegressor
from .benchmark import load_rows, split_rows, training
from .methods import CONFIDENCE_LEVEL, Split, split_interval
from .runs import Experiment, Options, Row

CASES = ("concrete", "energy", "bike", "california")
PRIOR_PRECISIONS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
CALIBRATION_FRACTIONS = (0.10, 0.15, 0.20, 0.30)
REPRESENTATION_SIZES = (16, 32, 64, 128)
VARIANCE_FLOORS = (1e-6, 1e-5, 1e-4, 1e-3)

# A grid value, the split it is tried on, and the fitted model.
Setting = tuple[float, Split, ClapsRegressor]


def _fit(split: Split, seed: int, options: Options, **params: float) -> ClapsRegressor:
    model = ClapsRegressor.paper(**training(options), **params, random_state=seed)
    return model.fit(split.X_train, split.y_train)


def prior_precision(case: str, seed: int, options: Options) -> Iterable[Setting]:
    """Another λ with the trained network held fixed."""
    split = split_rows(*load_rows(case, options), seed)
    model = _fit(split, seed, options)
    for value in PRIOR_PRECISIONS:
        yield value, split, model.with_prior_precision(value)


def calibration_size(case: str, seed: int, options: Options) -> Iterable[Setting]:
    """More calibration rows at the expense of training rows; the test rows stay."""
    X, y = load_rows(case, options)
    for value in CALIBRATION_FRACTIONS:
        split = split_rows(X, y, seed, value)
        yield value, split, _fit(split, seed, options)


def representation_size(case: str, seed: int, options: Options) -> Iterable[Setting]:
    """Another size of φ behind a hidden layer of 64."""
    split = split_rows(*load_rows(case, options), seed)
    for value in REPRESENTATION_SIZES:
        yield value, split, _fit(split, seed, options, representation_size=value)


def variance_floor(case: str, seed: int, options: Options) -> Iterable[Setting]:
    """Another floor under h², in training and after it."""
    split = split_rows(*load_rows(case, options), seed)
    for value in VARIANCE_FLOORS:
        yield value, split, _fit(split, seed, options, variance_floor=value)


def rows_against_reference(settings: Iterable[Setting], reference: float) -> list[Row]:
    """One row per grid value; width and score relative to the reference value."""
    rows = [_row(*setting) for setting in settings]
    base = next(row for row in rows if row["value"] == reference)
    for row in rows:
        row["width_ratio"] = float(metrics.width_ratio(row["width"], base["width"]))
        row["score_difference"] = float(
            metrics.score_difference(row["score"], base["score"])
        )
        # The paper adds up scores of data sets whose units differ; this does not.
        row["relative_score"] = row["score_difference"] / base["score"]
    return rows


def _row(value: float, split: Split, model: ClapsRegressor) -> Row:
    """Intervals and variance of one fitted model."""
    bounds = split_interval(model, split, ClapsScore(model))
    found = metrics.evaluate_intervals(split.y_test, bounds, CONFIDENCE_LEVEL)
    row = {name: float(v[0]) for name, v in found.items()}
    variance = model.predict_variance(split.X_test)
    parts = variance.aleatoric, variance.epistemic
    # The floor lives in units of standardised y.
    floor = metrics.noise_floor_diagnostics(
        variance.aleatoric / np.var(split.y_train), model.variance_floor
    )
    return {
        "value": value,
        **row,
        "violation": float(metrics.violation_rate(found["coverage"], CONFIDENCE_LEVEL)),
        "epistemic_fraction": metrics.epistemic_fraction(*parts),
        "scale_ratio": metrics.scale_ratio(*parts),
        "min_h2": floor["min"],
        "p01_h2": floor["p01"],
        "floor_active": floor["floor_active"],
    }


class _Rows:
    """Rows of one analysis; a class, for a closure does not travel to a process."""

    def __init__(
        self,
        settings: Callable[[str, int, Options], Iterable[Setting]],
        reference: float,
    ) -> None:
        self.settings, self.reference = settings, reference

    def __call__(self, case: str, seed: int, options: Options) -> list[Row]:
        return rows_against_reference(
            self.settings(case, seed, options), self.reference
        )


def _experiment(
    title: str,
    settings: Callable[[str, int, Options], Iterable[Setting]],
    grid: tuple[float, ...],
    reference: float,
) -> Experiment:
    return Experiment(
        settings.__name__,
        title,
        CASES,
        5,
        _Rows(settings, reference),
        {"grid": list(grid)},
    )


SENSITIVITY = (
    _experiment("Prior precision", prior_precision, PRIOR_PRECISIONS, 1.0),
    _experiment("Calibration size", calibration_size, CALIBRATION_FRACTIONS, 0.20),
    _experiment(
        "Representation dimension", representation_size, REPRESENTATION_SIZES, 64
    ),
    _experiment("Variance floor", variance_floor, VARIANCE_FLOORS, 1e-3),
)
