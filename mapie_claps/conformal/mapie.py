"""The one place that knows MAPIE's inner workings.

Facts, as of MAPIE 0.9.2 to 1.6.0:

- A fitted MAPIE object keeps its models in an ``EnsembleRegressor``: ``estimator_`` of
  ``MapieRegressor`` (0.9) and of the hidden ``_mapie_regressor`` (1.x). Its
  ``single_estimator_`` makes the point predictions; ``estimators_`` are the models of
  the folds, and column j of ``k_`` marks the calibration rows of fold j with 1.
- From 1.5 on, MAPIE asks the models for ``predict(X, return_std=True)`` if, and only
  if, the score is an instance of ``StdConformityScore``. That class's own bounds take
  one order statistic too few below, build an n_test × n_cal matrix and ignore
  ``minimize_interval_width``; none of them is used here.
- The number of calibration rows is checked by
  ``score.get_effective_calibration_samples`` from 1.4 on; the check refuses
  n = 1/alpha − 1 rows, for which the rank exists.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from mapie.aggregation_functions import aggregate_all
from mapie.conformity_scores import BaseRegressionScore
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline

try:
    from mapie.conformity_scores import StdConformityScore
except ImportError:  # MAPIE < 1.5
    StdConformityScore = None

__all__ = [
    "HAS_STD_ROAD",
    "ScoreBase",
    "aggregate_folds",
    "aggregate_points",
    "ensemble_of",
    "levels_of",
    "point_model",
    "scale_models",
    "uses_folds",
]

Array = NDArray[np.float64]

HAS_STD_ROAD = StdConformityScore is not None
ScoreBase: Any = StdConformityScore if HAS_STD_ROAD else BaseRegressionScore


def point_model(ensemble: Any) -> Any:
    """Model that makes the point predictions."""
    return ensemble.single_estimator_


def uses_folds(ensemble: Any, method: str) -> bool:
    """Whether bounds come from the models of the folds."""
    return method in ("plus", "minmax") and not ensemble.use_split_method_


def scale_models(ensemble: Any) -> list[Any]:
    """Models whose scale makes the bounds."""
    if uses_folds(ensemble, ensemble.method):
        return list(ensemble.estimators_)
    return [point_model(ensemble)]


def aggregate_folds(ensemble: Any, by_fold: Array) -> Array:
    """From one column per fold to one per calibration row, (n_test, n_cal)."""
    aggregated: Array = ensemble._aggregate_with_mask(by_fold, ensemble.k_)
    return aggregated


def aggregate_points(ensemble: Any, by_row: Array) -> Array:
    """Point predictions from those of the folds, by MAPIE's aggregation function."""
    points: Array = np.asarray(aggregate_all(ensemble.agg_function, by_row))
    return points


def _regressor_of(mapie: Any) -> Any:
    """The object that holds ``estimator_``; None if this is no MAPIE regressor."""
    inner = getattr(mapie, "_mapie_regressor", mapie)
    is_mapie = type(inner).__module__.split(".")[0] == "mapie"
    return inner if is_mapie else None


def ensemble_of(mapie: Any) -> Any:
    """Models of a calibrated MAPIE object; None if this is no MAPIE regressor."""
    inner = _regressor_of(mapie)
    if inner is None:
        return None
    ensemble = getattr(inner, "estimator_", None)
    if not hasattr(ensemble, "single_estimator_"):
        raise ValueError(
            f"Got a {type(mapie).__name__} that is not calibrated or holds no single "
            "regressor. Call conformalize (or fit, in MAPIE 0.9) first."
        )
    return ensemble


def levels_of(mapie: Any) -> Sequence[float] | None:
    """Confidence levels of a MAPIE 1.x object; 0.9 takes them when predicting."""
    alphas = getattr(mapie, "_alphas", None)
    return None if alphas is None else [1 - float(a) for a in alphas]


def split_pipeline(model: Any, X: Any) -> tuple[Any, Any]:
    """Last step of a fitted pipeline, and X as that step sees it."""
    if isinstance(model, Pipeline):
        return model[-1], model[:-1].transform(X) if len(model) > 1 else X
    return model, X
