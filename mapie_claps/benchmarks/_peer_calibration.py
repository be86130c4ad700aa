"""From a fitted model and calibration rows to intervals, made by MAPIE and crepes.

Each function takes a band function, calibration rows and α, and returns a function
from X to bounds. MAPIE sees the columns of the band in place of X, so that methods may
take any table, and each band is computed once; CLAPS sees the rows themselves.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .. import ClapsScore, StreamingConformalRegressor
from ..metrics import crps
from ..studies.data import Array, Split, Table
from ..studies.fitted import Fitted, RowsTo
from ._peer_tuning import Band, Bounds

BandOf = Callable[[Table], Band]
Predict = Callable[[Table], Bounds]


def _part(name: str) -> RowsTo:
    """Function from the columns of a band to a part of it."""
    return lambda columns: getattr(Band(*columns.T), name)


def _conformalized(
    mapie: Any, fitted: Any, X_cal: Table, y_cal: Array, **options: Any
) -> Predict:
    """MAPIE on the columns (n, 3) of a band function, or on the rows themselves."""

    def seen(X: Table) -> Any:
        return np.stack(fitted(X), axis=1) if callable(fitted) else X

    def predict(X: Table) -> Bounds:
        interval = mapie.predict_interval(seen(X), **options)[1]
        return interval[:, 0, 0], interval[:, 1, 0]

    mapie.conformalize(seen(X_cal), y_cal)
    return predict


def mapie_cqr(band: BandOf, X_cal: Table, y_cal: Array, alpha: float) -> Predict:
    """MAPIE's CQR, with the symmetric correction, on fitted quantiles."""
    from mapie.regression import ConformalizedQuantileRegressor

    # MAPIE wants a third model for the point prediction, which is not scored.
    models = [Fitted(_part(name)) for name in ("lower", "upper", "middle")]
    mapie = ConformalizedQuantileRegressor(models, 1 - alpha, prefit=True)
    return _conformalized(mapie, band, X_cal, y_cal, symmetric_correction=True)


def _mapie_split(
    score_of: Callable[[Any], Any],
    fitted: Any,
    X_cal: Table,
    y_cal: Array,
    alpha: float,
) -> Predict:
    """MAPIE's split method on a band function, or on a model that is one of ours."""
    from mapie.regression import SplitConformalRegressor

    model = Fitted(_part("middle"), _part("unit")) if callable(fitted) else fitted
    mapie = SplitConformalRegressor(model, 1 - alpha, score_of(model), prefit=True)
    return _conformalized(mapie, fitted, X_cal, y_cal)


def _normalised(model: Fitted) -> Any:
    from mapie.conformity_scores import ResidualNormalisedScore

    return ResidualNormalisedScore(Fitted(_part("unit")), prefit=True)


mapie_absolute = partial(_mapie_split, lambda model: "absolute")
mapie_residual_normalised = partial(_mapie_split, _normalised)
# Our score on mean and standard deviation, or with all that a ClapsRegressor learned.
mapie_std = mapie_claps = partial(_mapie_split, ClapsScore)


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


#: Levels of the values of equal probability for which the CRPS is computed.
CRPS_LEVELS = (np.arange(100) + 0.5) / 100


def std_crps(band: BandOf, split: Split) -> float:
    """CRPS of centre and scale with the law of the signed calibration scores."""
    cal, test = band(split.X_cal), band(split.X_test)
    law = np.quantile((split.y_cal - cal.middle) / cal.unit, CRPS_LEVELS)
    return crps(split.y_test, test.middle[:, None] + test.unit[:, None] * law)


def claps_crps(model: Any, split: Split) -> float:
    """CRPS of the conformal predictive system on a fitted ``ClapsRegressor``."""
    conformal = StreamingConformalRegressor(model, 0.9)
    conformal.conformalize([(split.X_cal, split.y_cal)])
    values = conformal.predict_quantiles(split.X_test, CRPS_LEVELS, "normal")
    return crps(split.y_test, values)


CRPS = {"mapie_std": std_crps, "mapie_claps": claps_crps}
