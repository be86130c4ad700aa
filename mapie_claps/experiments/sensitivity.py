"""The four sensitivity analyses of the appendix."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import ClapsRegressor, ClapsScore, metrics
from ..studies.data import Dataset, Split
from ..studies.store import Row
from .benchmark import evaluate, split_rows
from .experiment import GRIDS
from .methods import split_interval, variance_metrics

#: The grid value that width and score are relative to.
REFERENCES = {
    "prior_precision": 1.0,
    "calibration_size": 0.20,
    "representation_size": 64,
    "variance_floor": 1e-3,
}


def _fitted(
    name: str, data: Dataset, seed: int, training: dict[str, Any]
) -> Iterator[tuple[float, Split, ClapsRegressor]]:
    """Each grid value, the split it is tried on, and the fitted model."""

    def fit(split: Split, **params: Any) -> ClapsRegressor:
        model = ClapsRegressor.paper(**training, **params, random_state=seed)
        return model.fit(split.X_train, split.y_train)

    split = split_rows(data, seed)
    # Another λ leaves the trained network as it is.
    trained = fit(split) if name == "prior_precision" else None
    for value in GRIDS[name]:
        if trained is not None:
            yield value, split, trained.with_prior_precision(value)
        elif name == "calibration_size":
            # More calibration rows at the expense of training rows.
            other = split_rows(data, seed, value)
            yield value, other, fit(other)
        else:
            yield value, split, fit(split, **{name: value})


def grid_rows(
    name: str, data: Dataset, seed: int, training: dict[str, Any]
) -> list[Row]:
    """One row per grid value; width and score relative to the reference value."""
    rows = [_row(*setting) for setting in _fitted(name, data, seed, training)]
    base = next(row for row in rows if row["value"] == REFERENCES[name])
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
