"""From a fitted model and calibration rows to intervals, made by MAPIE and crepes."""

from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin

from ..conformal.score import ClapsScore
from ._tuning import Array, Band, Bounds

Predict = Callable[[Array], Bounds]


class Fitted(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Functions of X in the form of a fitted estimator, as MAPIE wants it.

    Parameters
    ----------
    mean : callable
        ``predict(X)``.
    std : callable or None, default=None
        The second part of ``predict(X, return_std=True)``.
    n_features_in_ : int
        Number of columns.

    Examples
    --------
    >>> import numpy as np
    >>> Fitted(lambda X: X[:, 0], n_features_in_=1).predict(np.array([[2.0]]))
    array([2.])
    """

    def __init__(
        self,
        mean: Callable[[Array], Array],
        std: Callable[[Array], Array] | None = None,
        n_features_in_: int = 1,
    ) -> None:
        self.mean = mean
        self.std = std
        self.n_features_in_ = n_features_in_

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Do nothing: the functions are fitted."""
        return self

    def predict(
        self, X: ArrayLike, return_std: bool = False
    ) -> Array | tuple[Array, Array]:
        """Evaluate the functions."""
        rows = np.asarray(X, dtype=np.float64)
        if return_std and self.std is not None:
            return self.mean(rows), self.std(rows)
        return self.mean(rows)

    def __sklearn_is_fitted__(self) -> bool:
        return True


def remember_last(band: Callable[[Array], Band]) -> Callable[[Array], Band]:
    """Band function that does not compute the same rows twice in a row.

    MAPIE asks for the lower bound, the upper bound and the middle one after another,
    which would make the time to predict look longer than it need be.
    """
    last: list[tuple[Array, Band]] = []

    def remembered(X: Array) -> Band:
        if not last or not np.array_equal(last[0][0], X):
            last[:] = [(X, band(X))]
        return last[0][1]

    return remembered


def _bounds(interval: NDArray[Any]) -> Bounds:
    """Bounds from MAPIE's array (n, 2, 1)."""
    return interval[:, 0, 0], interval[:, 1, 0]


def mapie_cqr(
    band: Callable[[Array], Band], X_cal: Array, y_cal: Array, alpha: float
) -> Predict:
    """MAPIE's CQR, with the symmetric correction, on fitted quantiles."""
    from mapie.regression import ConformalizedQuantileRegressor

    def middle(X: Array) -> Array:
        # MAPIE wants a third model for the point prediction, which is not scored.
        lower, upper, _ = band(X)
        return (lower + upper) / 2

    parts = [lambda X: band(X).lower, lambda X: band(X).upper, middle]
    models = [Fitted(part, n_features_in_=X_cal.shape[1]) for part in parts]
    mapie = ConformalizedQuantileRegressor(
        models, confidence_level=1 - alpha, prefit=True
    )
    mapie.conformalize(X_cal, y_cal)
    return lambda X: _bounds(mapie.predict_interval(X, symmetric_correction=True)[1])


def _mapie_split(
    model: Any, score: Any, X_cal: Array, y_cal: Array, alpha: float
) -> Predict:
    """MAPIE's split method on a fitted model."""
    from mapie.regression import SplitConformalRegressor

    mapie = SplitConformalRegressor(
        model, confidence_level=1 - alpha, conformity_score=score, prefit=True
    )
    mapie.conformalize(X_cal, y_cal)
    return lambda X: _bounds(mapie.predict_interval(X)[1])


def _centre(band: Callable[[Array], Band]) -> Callable[[Array], Array]:
    return lambda X: band(X).lower


def _unit(band: Callable[[Array], Band]) -> Callable[[Array], Array]:
    return lambda X: band(X).unit


def mapie_absolute(
    band: Callable[[Array], Band], X_cal: Array, y_cal: Array, alpha: float
) -> Predict:
    """MAPIE's split method with its absolute score."""
    model = Fitted(_centre(band), n_features_in_=X_cal.shape[1])
    return _mapie_split(model, "absolute", X_cal, y_cal, alpha)


def mapie_residual_normalised(
    band: Callable[[Array], Band], X_cal: Array, y_cal: Array, alpha: float
) -> Predict:
    """MAPIE's split method with its residual-normalised score and a fitted scale."""
    from mapie.conformity_scores import ResidualNormalisedScore

    model, scale = (
        Fitted(part, n_features_in_=X_cal.shape[1])
        for part in (_centre(band), _unit(band))
    )
    score = ResidualNormalisedScore(residual_estimator=scale, prefit=True)
    return _mapie_split(model, score, X_cal, y_cal, alpha)


def mapie_std(
    band: Callable[[Array], Band], X_cal: Array, y_cal: Array, alpha: float
) -> Predict:
    """MAPIE's split method with our score on a model's standard deviation."""
    model = Fitted(_centre(band), _unit(band), n_features_in_=X_cal.shape[1])
    return _mapie_split(model, ClapsScore(model), X_cal, y_cal, alpha)


def crepes_normalised(
    band: Callable[[Array], Band], X_cal: Array, y_cal: Array, alpha: float
) -> Predict:
    """Normalised conformal regressor of crepes."""
    from crepes import ConformalRegressor

    centre, _, sigmas = band(X_cal)
    regressor = ConformalRegressor().fit(y_cal - centre, sigmas=sigmas)
    # crepes takes int((1 − confidence)(n + 1)), which binary rounding makes one too
    # small where the product is an integer: 1e-12 keeps its intervals from growing.
    confidence = 1 - alpha - 1e-12

    def predict(X: Array) -> Bounds:
        centre, _, sigmas = band(X)
        interval = regressor.predict_int(centre, sigmas=sigmas, confidence=confidence)
        return interval[:, 0], interval[:, 1]

    return predict
