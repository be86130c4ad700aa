"""interval → why: ``explain`` splits what any of the routes through MAPIE gave."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..conformal import mapie as _mapie
from ..estimators.variance import PredictiveVariance

__all__ = ["Explanation", "explain"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Explanation:
    """Prediction, interval and the reasons for its width, row by row.

    Parameters
    ----------
    prediction : ndarray of shape (n,)
        Point prediction.
    lower, upper : ndarray of shape (n, n_levels)
        Bounds; without columns if what was explained is not calibrated.
        ``aleatoric_width`` and ``epistemic_width`` split them in proportion to √v,
        which is how ``ClapsScore`` makes them; for another score they only say what
        the two parts of v are at this row.
    confidence_level : tuple of float
        Levels of the bounds.
    variance : PredictiveVariance
        Aleatoric and epistemic part of v.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import Explanation, PredictiveVariance
    >>> why = Explanation(
    ...     np.zeros(1), np.array([[-2.0]]), np.array([[2.0]]), (0.9,),
    ...     PredictiveVariance(np.array([3.0]), np.array([1.0])))
    >>> why.width, why.epistemic_width.round(3)
    (array([[4.]]), array([[0.536]]))
    """

    prediction: Array
    lower: Array
    upper: Array
    confidence_level: tuple[float, ...]
    variance: PredictiveVariance

    @property
    def aleatoric(self) -> Array:
        """Aleatoric variance h²."""
        return self.variance.aleatoric

    @property
    def epistemic(self) -> Array:
        """Epistemic variance."""
        return self.variance.epistemic

    @property
    def epistemic_fraction(self) -> Array:
        """Share of the epistemic part in v."""
        return self.variance.epistemic_fraction

    @property
    def width(self) -> Array:
        """Width of the intervals, shape (n, n_levels)."""
        return self.upper - self.lower

    @property
    def aleatoric_width(self) -> Array:
        """Width that noise alone would need, width · h / √v."""
        return self.width / self.variance.scale_ratio[:, None]

    @property
    def epistemic_width(self) -> Array:
        """Width that lack of data adds to it."""
        added = 1 - 1 / self.variance.scale_ratio[:, None]
        return np.where(added > 0, self.width, 0.0) * added


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
        ``Pipeline``; or such an estimator or pipeline itself. For the "plus" and
        "minmax" methods the parts are means over the models of the folds, which make
        the bounds.
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
    ensemble = _mapie.ensemble_of(mapie_or_estimator)
    if ensemble is None:
        prediction = np.asarray(mapie_or_estimator.predict(X))
        none = np.empty((len(prediction), 0))
        variance = _variance([mapie_or_estimator], X)
        return Explanation(prediction, none, none, (), variance)
    levels = _mapie.levels_of(mapie_or_estimator)
    if levels is None:
        if alpha is None:
            raise ValueError(
                "Got alpha=None, but MapieRegressor of MAPIE 0.9 keeps no level. Pass "
                "explain(mapie, X, alpha=0.1)."
            )
        levels = [1 - float(a) for a in np.atleast_1d(np.asarray(alpha))]
        prediction, bounds = mapie_or_estimator.predict(
            X, alpha=alpha, **predict_params
        )
    elif alpha is not None:
        raise ValueError(
            f"Got alpha={alpha!r}, but {type(mapie_or_estimator).__name__} was made "
            f"with confidence_level={levels}. Leave alpha out."
        )
    else:
        prediction, bounds = mapie_or_estimator.predict_interval(X, **predict_params)
    variance = _variance(_mapie.scale_models(ensemble), X)
    return Explanation(
        np.asarray(prediction), bounds[:, 0], bounds[:, 1], tuple(levels), variance
    )


def _variance(models: list[Any], X: ArrayLike) -> PredictiveVariance:
    """Parts of v, mean over the models."""
    parts = []
    for model in models:
        last, seen = _mapie.split_pipeline(model, X)
        if not hasattr(last, "predict_variance"):
            raise TypeError(
                f"Got a {type(last).__name__}, which does not split its variance. "
                "explain needs an estimator with predict_variance, such as "
                "ClapsRegressor."
            )
        parts.append(last.predict_variance(seen))
    return PredictiveVariance(
        np.mean([p.aleatoric for p in parts], axis=0),
        np.mean([p.epistemic for p in parts], axis=0),
    )
