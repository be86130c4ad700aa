"""interval → why: ``explain`` splits the width of what any way through MAPIE gave."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..conformal import mapie as _mapie
from ..conformal.bounds import recorded_parts
from ..conformal.explanation import Explanation, Recorded, explanation_of
from ..conformal.parts import check_splits_variance, parts_of
from ..conformal.scale_estimator import ClapsScaleEstimator
from ..conformal.score import ClapsScore
from ..estimators.variance import PredictiveVariance

__all__ = ["explain"]


def explain(
    mapie_or_estimator: Any,
    X: ArrayLike,
    *,
    alpha: float | Iterable[float] | None = None,
    **predict_params: Any,
) -> Explanation:
    """Explain predictions: μ, the interval, and the two parts of v.

    Parameters
    ----------
    mapie_or_estimator : object
        A calibrated MAPIE regressor around an estimator with ``predict_variance``,
        fitted beforehand or by MAPIE, by itself or as the last step of a
        ``Pipeline``; such an estimator or pipeline itself; or another calibrated
        object with a method ``explain``, such as ``StreamingConformalRegressor``. For
        the "plus" and "minmax" methods the parts are means over the models of the
        folds, which make the bounds.
    X : array-like of shape (n, p)
        Inputs.
    alpha : float or iterable of float, optional
        Miscoverages, for ``MapieRegressor`` of MAPIE 0.9, which takes them when it
        predicts.
    **predict_params : dict
        Passed to MAPIE's ``predict_interval``, or ``predict`` of 0.9, for example
        ``allow_infinite_bounds=True``.

    Returns
    -------
    Explanation
        Arrays by row.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import ClapsRegressor, explain
    >>> X = np.linspace(-1, 1, 60)[:, None]
    >>> model = ClapsRegressor(n_members=2, random_state=0).fit(X, X[:, 0])
    >>> why = explain(model, X)
    >>> bool((why.epistemic_fraction < 1).all()), why.confidence_level
    (True, ())
    """
    if hasattr(mapie_or_estimator, "explain"):
        explained: Explanation = mapie_or_estimator.explain(X, **predict_params)
        return explained
    ensemble = _mapie.ensemble_of(mapie_or_estimator)
    if ensemble is None:
        parts = parts_of(mapie_or_estimator, X)
        none = np.empty((len(parts.prediction), 0))
        return Explanation(parts.prediction, none, none, (), parts.variance)
    score = _mapie.score_of(mapie_or_estimator)
    models, scaled = _scale_models(score, ensemble)
    for model in models:
        check_splits_variance(model)
    with recorded_parts() as record:
        points, bounds, levels = _mapie.predict_interval(
            mapie_or_estimator, X, alpha, predict_params
        )
    # Another score than ours predicts without a record.
    found = [[r for r in record if r.model is model] for model in models]
    if not record:
        found = [[Recorded(model, parts_of(model, X))] for model in models]
    return explanation_of(np.asarray(points), bounds, levels, found, scaled)


def model_of(mapie_or_estimator: Any) -> Any:
    """The fitted model that makes the point predictions."""
    if hasattr(mapie_or_estimator, "explain"):
        chosen = mapie_or_estimator.estimator
        return getattr(mapie_or_estimator, "estimator_", chosen)
    ensemble = _mapie.ensemble_of(mapie_or_estimator)
    return mapie_or_estimator if ensemble is None else _mapie.point_model(ensemble)


def variance_of(mapie_or_estimator: Any, X: ArrayLike) -> PredictiveVariance:
    """Parts of v alone, one pass for each model that makes bounds."""
    has_own = hasattr(mapie_or_estimator, "explain")
    ensemble = None if has_own else _mapie.ensemble_of(mapie_or_estimator)
    if ensemble is None:
        return parts_of(model_of(mapie_or_estimator), X).variance
    models, _ = _scale_models(_mapie.score_of(mapie_or_estimator), ensemble)
    parts = [parts_of(model, X) for model in models]
    return PredictiveVariance(
        np.mean([p.aleatoric for p in parts], axis=0),
        np.mean([p.epistemic for p in parts], axis=0),
    )


def _scale_models(score: Any, ensemble: Any) -> tuple[list[Any], bool]:
    """Models whose v is explained, and whether the width is proportional to √v."""
    scale = _mapie.residual_estimator_of(score)
    if isinstance(scale, ClapsScaleEstimator):
        return [scale.estimator], True
    ours = isinstance(score, ClapsScore) or _mapie.is_std_score(score)
    return _mapie.scale_models(ensemble), ours
