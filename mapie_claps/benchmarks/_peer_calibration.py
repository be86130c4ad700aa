"""From a fitted model and calibration rows to intervals, made by MAPIE and crepes.

Each function takes a band function, calibration rows and α, and returns a function
from X to bounds. MAPIE sees the numbers of the rows in place of X, so that methods may
take any table, and each band is computed once.
"""

from collections.abc import Callable
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin

from .. import ClapsScore
from ..studies.data import Array, Table
from ._peer_tuning import Band, Bounds

BandOf = Callable[[Table], Band]
RowsTo = Callable[[Array], Array]
Predict = Callable[[Table], Bounds]


class Fitted(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Functions of the rows in the form of a fitted estimator, as MAPIE wants it.

    Examples
    --------
    >>> import numpy as np
    >>> Fitted(lambda rows: rows[:, 0]).predict(np.array([[2.0]]))
    array([2.])
    """

    n_features_in_ = 1

    def __init__(self, mean: RowsTo, std: RowsTo | None = None) -> None:
        self.mean = mean
        self.std = std

    def fit(self, X: Table, y: Array) -> Self:
        """Do nothing: the functions are fitted."""
        return self

    def predict(self, X: Array, return_std: bool = False) -> Any:
        """Evaluate the functions."""
        return (self.mean(X), self.std(X)) if return_std and self.std else self.mean(X)

    def __sklearn_is_fitted__(self) -> bool:
        return True


class _CurrentBand:
    """Band of the rows that MAPIE is asked about."""

    def __init__(self, band: BandOf) -> None:
        self.band = band

    def rows(self, X: Table) -> Array:
        """Compute the band of X, and return the numbers of its rows."""
        self.current = self.band(X)
        return np.arange(len(X), dtype=np.float64)[:, None]

    def part(self, name: str) -> RowsTo:
        """Function from numbers of rows to a part of the band."""
        return lambda rows: getattr(self.current, name)[rows[:, 0].astype(int)]


def _bounds(interval: Any) -> Bounds:
    """Bounds from MAPIE's array (n, 2, 1)."""
    return interval[:, 0, 0], interval[:, 1, 0]


def mapie_cqr(band: BandOf, X_cal: Table, y_cal: Array, alpha: float) -> Predict:
    """MAPIE's CQR, with the symmetric correction, on fitted quantiles."""
    from mapie.regression import ConformalizedQuantileRegressor

    current = _CurrentBand(band)
    rows = current.rows(X_cal)
    # MAPIE wants a third model for the point prediction, which is not scored.
    models = [Fitted(current.part(name)) for name in ("lower", "upper", "middle")]
    mapie = ConformalizedQuantileRegressor(models, 1 - alpha, prefit=True)
    mapie.conformalize(rows, y_cal)

    return lambda X: _bounds(
        mapie.predict_interval(current.rows(X), symmetric_correction=True)[1]
    )


def _mapie_split(
    make_score: Callable[[Fitted, Fitted], Any],
) -> Callable[[BandOf, Table, Array, float], Predict]:
    """MAPIE's split method; the score is made of the model and of its scale."""

    def calibrate(band: BandOf, X_cal: Table, y_cal: Array, alpha: float) -> Predict:
        from mapie.regression import SplitConformalRegressor

        current = _CurrentBand(band)
        rows = current.rows(X_cal)
        centre, unit = current.part("middle"), current.part("unit")
        model = Fitted(centre, unit)
        score = make_score(model, Fitted(unit))
        mapie = SplitConformalRegressor(model, 1 - alpha, score, prefit=True)
        mapie.conformalize(rows, y_cal)
        return lambda X: _bounds(mapie.predict_interval(current.rows(X))[1])

    return calibrate


def _residual_normalised(model: Fitted, scale: Fitted) -> Any:
    from mapie.conformity_scores import ResidualNormalisedScore

    return ResidualNormalisedScore(residual_estimator=scale, prefit=True)


mapie_absolute = _mapie_split(lambda model, scale: "absolute")
mapie_residual_normalised = _mapie_split(_residual_normalised)
#: Our score on a model's standard deviation.
mapie_std = _mapie_split(lambda model, scale: ClapsScore(model))


def crepes_normalised(
    band: BandOf, X_cal: Table, y_cal: Array, alpha: float
) -> Predict:
    """Normalised conformal regressor of crepes."""
    from crepes import ConformalRegressor

    centre, _, sigmas = band(X_cal)
    regressor = ConformalRegressor().fit(y_cal - centre, sigmas=sigmas)
    # crepes takes int((1 − confidence)(n + 1)), which binary rounding makes one too
    # small where the product is an integer: 1e-12 keeps its intervals from growing.
    confidence = 1 - alpha - 1e-12

    def predict(X: Table) -> Bounds:
        centre, _, sigmas = band(X)
        interval = regressor.predict_int(centre, sigmas=sigmas, confidence=confidence)
        return interval[:, 0], interval[:, 1]

    return predict
