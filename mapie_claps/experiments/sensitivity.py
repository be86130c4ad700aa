"""The four sensitivity analyses of the appendix."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from .. import ClapsRegressor, ClapsScore, metrics
from ..studies.data import Dataset, Split
from ..studies.store import Row
from .benchmark import evaluate, split_rows
from .experiment import GRIDS
from .methods import split_interval, variance_metrics

# A grid value, the split it is tried on, and the fitted model.
Setting = tuple[float, Split, ClapsRegressor]


def _fit(split: Split, seed: int, **params: Any) -> ClapsRegressor:
    model = ClapsRegressor.paper(**params, random_state=seed)
    return model.fit(split.X_train, split.y_train)


def prior_precision(data: Dataset, seed: int, training: dict[str, Any]) -> list[Row]:
    """Another λ with the trained network held fixed."""
    split = split_rows(data, seed)
    model = _fit(split, seed, **training)
    grid = GRIDS["prior_precision"]
    models = ((v, split, model.with_prior_precision(v)) for v in grid)
    return rows_against_reference(models, 1.0)


def calibration_size(data: Dataset, seed: int, training: dict[str, Any]) -> list[Row]:
    """More calibration rows at the expense of training rows; the test rows stay."""
    splits = ((v, split_rows(data, seed, v)) for v in GRIDS["calibration_size"])
    models = ((v, split, _fit(split, seed, **training)) for v, split in splits)
    return rows_against_reference(models, 0.20)


def representation_size(
    data: Dataset, seed: int, training: dict[str, Any]
) -> list[Row]:
    """Another size of φ behind a hidden layer of 64."""
    return _over_parameter("representation_size", 64, data, seed, training)


def variance_floor(data: Dataset, seed: int, training: dict[str, Any]) -> list[Row]:
    """Another floor under h², in training and after it."""
    return _over_parameter("variance_floor", 1e-3, data, seed, training)


def _over_parameter(
    name: str, reference: float, data: Dataset, seed: int, training: dict[str, Any]
) -> list[Row]:
    """A network for each value of one parameter."""
    split = split_rows(data, seed)
    models = (
        (value, split, _fit(split, seed, **training, **{name: value}))
        for value in GRIDS[name]
    )
    return rows_against_reference(models, reference)


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
    # The floor lives in units of standardised y.
    h2 = model.predict_variance(split.X_test).aleatoric / np.var(split.y_train)
    floor = metrics.noise_floor_diagnostics(h2, model.variance_floor)
    return {
        "value": value,
        **evaluate(split.y_test, bounds),
        **variance_metrics(model, split.X_test),
        "min_h2": floor["min"],
        "p01_h2": floor["p01"],
        "floor_active": floor["floor_active"],
    }
