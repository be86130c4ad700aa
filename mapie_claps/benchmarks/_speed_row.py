"""Speed of one row at a time: MAPIE, the calibrated object, and its fast path."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from mapie.regression import SplitConformalRegressor

from .. import CalibratedRegressor, ClapsRegressor, ClapsScore
from ..studies.data import Array
from ._networks import make_rows
from ._speed_timing import Result, Settings, microseconds

AGAINST_MAPIE = 8.0


def one_row(settings: Settings) -> Iterator[Result]:
    """One NumPy row of the default model, with and without kernel and map."""
    n = settings.size(3000, 160)
    X, y = make_rows(n, 12)
    models: dict[str, tuple[dict[str, Any], Array]] = {
        "default model": ({}, y),
        "default model, skewed target": ({}, np.exp(y / y.std())),
        "kernel=False": ({"kernel": False}, y),
    }
    train = n * 2 // 3
    for name, (params, target) in models.items():
        model = ClapsRegressor(
            max_steps=settings.size(300, 5), tol=None, random_state=0, **params
        ).fit(X[:train], target[:train])
        rest = X[train:], target[train:]
        mapie = SplitConformalRegressor(model, 0.9, ClapsScore(), prefit=True)
        mapie.conformalize(*rest)
        conformal = CalibratedRegressor(model).conformalize(*rest)
        fast, x = conformal.row_predictor(), X[:1]
        parts = [type(model.target_map_).__name__]
        parts += [] if model.kernel_ is None else ["kernel"]
        case = f"one row, {name} ({', '.join(parts)})"
        calls = {
            "MAPIE's predict_interval": partial(mapie.predict_interval, x),
            "predict_interval": partial(conformal.predict_interval, x),
            "row_predictor": partial(fast, x),
        }
        times = microseconds(calls, settings)
        ours = times.pop("row_predictor")
        for against, time in times.items():
            bound = None if settings.smoke or "MAPIE" not in against else AGAINST_MAPIE
            yield Result(case, against, ours, time, "µs", "faster", bound)
