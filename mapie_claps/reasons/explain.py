"""interval → why: ``explain`` splits the width of what any way through MAPIE gave."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..conformal import mapie as _mapie
from ..conformal.bounds import recorded_parts
from ..conformal.contributions import counted
from ..conformal.explanation import Explanation, Recorded, explanation_of
from ..conformal.parts import check_splits_variance, parts_of, split_pipeline
from ..conformal.scale_estimator import ClapsScaleEstimator
from ..conformal.score import ClapsScore
from ..estimators.variance import PredictiveVariance
from .by_column import column_contributions


def explain(
    mapie_or_estimator: Any,
    X: ArrayLike,
    *,
    alpha: float | Iterable[float] | None = None,
    by_column: bool = False,
    background: Any = None,
    n_background: int = 16,
    random_state: int = 0,
    **predict_params: Any,
) -> Explanation:
    """Explain predictions: μ, the interval, and the two parts of v.

    With ``by_column=True`` it also says what each column of the table adds to both
    parts of the width, compared with background rows: Shapley values, estimated on
    paths from background rows to the row that is explained. They add up to the
    difference between the row and the mean of the background rows to rounding.

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
    by_column : bool, default=False
        Whether to compute contributions of the columns of X, which must be a table.
        Each row takes 2 · ``n_background`` · (p − 1) predictions.
    background : array-like of shape (m, p), optional
        Rows that those of X are compared with, for example the calibration rows, which
        MAPIE does not keep. By default the rows of X themselves.
    n_background : int, default=16
        Background rows that are used: evenly spread over the widths of (at most 2,000
        of) the background. Their mean is the reference.
    random_state : int, default=0
        Seed of the orders in which columns are changed.
    **predict_params : dict
        Passed to MAPIE's ``predict_interval``, or ``predict`` of 0.9, for example
        ``allow_infinite_bounds=True``.

    Returns
    -------
    Explanation
        Arrays by row; with ``by_column=True`` its attribute ``by_column`` is a
        :class:`~mapie_claps.diagnostics.ColumnContributions`.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import ClapsRegressor, explain
    >>> X = np.linspace(-1, 1, 60)[:, None]
    >>> model = ClapsRegressor(n_members=2, random_state=0).fit(X, X[:, 0])
    >>> why = explain(model, X)
    >>> bool((why.epistemic_fraction < 1).all()), why.confidence_level
    (True, ())

    What makes the last three rows wider than all rows together?

    >>> adds = explain(model, X[-3:], by_column=True, background=X).by_column
    >>> adds.names, adds.aleatoric.shape
    (('x0',), (3, 1, 1))
    """

    def of(rows: Any) -> Explanation:
        return _explain(mapie_or_estimator, rows, alpha, predict_params)

    if background is not None and not by_column:
        raise ValueError(
            "Got background without by_column=True, which alone compares rows with it. "
            "Pass by_column=True, or leave background out."
        )
    why = of(X)
    if not by_column:
        return why
    for name in ("weights", "groups"):
        value = predict_params.get(name)
        if value is not None and not callable(value):
            raise ValueError(
                f"Got {name} of single rows together with by_column=True, which also "
                "predicts rows between them and the background. Calibrate with "
                f"{name} as a function of X, or leave by_column out."
            )
    if background is None and len(why.prediction) < 2:
        raise ValueError(
            f"Got by_column=True for {counted(len(why.prediction), 'row')} and no "
            "background to compare with. Pass background, for example the calibration "
            "rows."
        )
    rows = X if background is None else background
    adds = column_contributions(of, X, rows, n_background, random_state)
    return replace(why, by_column=adds)


def _explain(
    mapie_or_estimator: Any, X: Any, alpha: Any, predict_params: dict[str, Any]
) -> Explanation:
    """The interval and both parts of v of some rows."""
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


def last_step_with(
    method: str, mapie_or_estimator: Any, X: ArrayLike, instead: str, lost: str = ""
) -> tuple[Any, Any]:
    """Last step of the model, which must have a method, and X as that step sees it."""
    last, seen = split_pipeline(model_of(mapie_or_estimator), X)
    if not hasattr(last, method):
        raise TypeError(
            f"Got a {type(last).__name__}, which has no {method}{lost}. Use "
            f"ClapsRegressor or ClapsModule, or {instead}."
        )
    return last, seen


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
