"""The methods of the ``shape`` benchmark, each with the settings that it comes with.

A method fits, calibrates and predicts on one split and gives rows with the interval
score at one level and the continuous ranked probability score (CRPS).
"""

import copy
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from scipy.stats import norm
from sklearn.base import clone

from .. import CalibratedRegressor, ClapsRegressor
from ..estimators.residual_law import PLAIN_LAW
from ..estimators.target_range import TargetRange
from ..metrics import crps
from ..network.table import as_table
from ..network.table_fit import fit_table
from ..network.target_map import Identity
from ..studies.data import Array, Split
from ..studies.scoring import score_intervals
from ..studies.store import Row
from ._peer_calibration import mapie_cqr
from ._peer_catboost import fit_quantiles, fit_variance, predict_variance
from ._peer_catboost import quantile_band as catboost_band
from ._peer_tuning import Band, ordered

# A distribution is known by its values at these levels, of equal probability.
LEVELS = (np.arange(50) + 0.5) / 50
DEFAULT = "CLAPS"
CATBOOST: dict[str, Any] = {"iterations": 1000}  # CatBoost's own number of trees


def claps(params: dict[str, Any], split: Split, seed: int, alpha: float) -> list[Row]:
    """The defaults, each device switched off, two ranks.

    A fit that would be the same is not repeated: where no map was chosen, or no skew,
    there is nothing to switch off.
    """

    def fit(**off: Any) -> ClapsRegressor:
        return ClapsRegressor(random_state=seed, **(params | off)).fit(*split[:2])

    full = fit()
    law, targets = full.residual_law_, TargetRange.of(split.y_train, learn=False)
    mapped, skewed = not isinstance(full.target_map_, Identity), law.skew is not None
    unmapped = fit(target_map=None) if mapped else full
    one_sided = fit(two_sided_noise=False) if skewed else full
    # Of the shape only the map and the skew are part of training.
    curve = replace(law.shape, curve=Identity())
    shapeless = _with_law(full, replace(law, shape=curve, targets=targets))
    variants: dict[str, tuple[ClapsRegressor, dict[str, Any]]] = {
        DEFAULT: (full, {}),
        "target_map=None": (unmapped, {}),
        "two_sided_noise=False": (one_sided, {}),
        "residual_shape=False": (shapeless, {}),
        "support=None": (full, {"support": None}),
        "sym=False": (full, {"sym": False}),
        "none of these": (_with_law(unmapped, PLAIN_LAW), {"support": None}),
    }
    found: list[Row] = []
    for name, (model, options) in variants.items():
        conformal = CalibratedRegressor(model, 1 - alpha, **options)
        conformal.conformalize(split.X_cal, split.y_cal)
        lower, upper = conformal.predict_interval(split.X_test)[1][:, :, 0].T
        values = conformal.predict_quantiles(split.X_test, LEVELS, tails="normal")
        row = {"method": name, "map": type(full.target_map_).__name__, "skew": skewed}
        scores = score_intervals(split.y_test, lower, upper, alpha)
        found.append(row | scores | {"crps": crps(split.y_test, values)})
    return found


def _with_law(model: ClapsRegressor, law: Any) -> ClapsRegressor:
    other = copy.copy(model)
    other.residual_law_ = law
    other.__dict__.pop("_digest", None)  # the fingerprint of the other law
    return other


def as_numbers(split: Split, seed: int) -> Split:
    """Text, dates and gaps as the inputs that our networks see."""
    X, y = as_table(split.X_train), split.y_train
    encoder, train = fit_table(X, y, np.ones(len(y)), "from_dtype", seed)

    def encode(X: Any) -> Array:
        return encoder.read(as_table(X)).encode().values

    return Split(train, y, encode(split[2]), split[3], encode(split[4]), split[5])


def _cqr(band: Callable[[Array], Band], split: Split, alpha: float) -> Row:
    """Two quantiles of a model, calibrated by MAPIE."""
    predict = mapie_cqr(band, split.X_cal, split.y_cal, alpha)
    return dict(score_intervals(split.y_test, *predict(split.X_test), alpha))


def cqr_histgb(split: Split, seed: int, alpha: float) -> Row:
    """CQR on scikit-learn's boosting."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    boosting = partial(
        HistGradientBoostingRegressor, loss="quantile", random_state=seed
    )
    models = [
        boosting(quantile=level).fit(split.X_train, split.y_train)
        for level in (alpha / 2, 1 - alpha / 2)
    ]
    return _cqr(lambda X: ordered(*(m.predict(X) for m in models)), split, alpha)


def cqr_catboost(split: Split, seed: int, alpha: float) -> Row:
    """CQR on CatBoost's quantiles."""
    model = fit_quantiles(split.X_train, split.y_train, CATBOOST, seed, alpha)
    return _cqr(lambda X: catboost_band(model, X, CATBOOST), split, alpha)


def quantile_forest(split: Split, seed: int, alpha: float) -> Row:
    """CQR on a quantile forest; the distribution is that of one on all rows."""
    from quantile_forest import RandomForestQuantileRegressor

    ends = [alpha / 2, 1 - alpha / 2]
    forest = RandomForestQuantileRegressor(random_state=seed)
    forest.fit(split.X_train, split.y_train)
    row = _cqr(lambda X: ordered(*forest.predict(X, quantiles=ends).T), split, alpha)
    forest.fit(*_training_and_calibration(split))
    values = forest.predict(split.X_test, quantiles=LEVELS.tolist())
    return row | {"crps": crps(split.y_test, values)}


def ngboost(split: Split, seed: int, alpha: float) -> Row:
    """Normal law of NGBoost, fitted to all rows."""
    from ngboost import NGBRegressor
    from ngboost.learners import default_tree_learner

    tree = clone(default_tree_learner).set_params(random_state=seed)
    model = NGBRegressor(Base=tree, random_state=seed, verbose=False)
    law = model.fit(*_training_and_calibration(split)).pred_dist(split.X_test)
    return _normal(split.y_test, law.loc, law.scale)


def catboost(split: Split, seed: int, alpha: float) -> Row:
    """Normal law of CatBoost's mean and variance, fitted to all rows."""
    model = fit_variance(*_training_and_calibration(split), CATBOOST, seed, alpha)
    band = predict_variance(model, split.X_test, CATBOOST)
    return _normal(split.y_test, band.lower, band.unit)


def _training_and_calibration(split: Split) -> tuple[Array, Array]:
    """Rows for methods that are not calibrated: they need none for that."""
    return np.r_[split.X_train, split.X_cal], np.r_[split.y_train, split.y_cal]


def _normal(y: Array, mean: Array, std: Array) -> Row:
    values = np.asarray(mean)[:, None] + np.asarray(std)[:, None] * norm.ppf(LEVELS)
    return {"crps": crps(y, values)}


PEERS: dict[str, tuple[Callable[[Split, int, float], Row], str]] = {
    "CQR HistGB": (cqr_histgb, "sklearn"),
    "CQR CatBoost": (cqr_catboost, "catboost"),
    "quantile forest": (quantile_forest, "quantile_forest"),
    "NGBoost": (ngboost, "ngboost"),
    "CatBoost": (catboost, "catboost"),
}


def peer(name: str, split: Split, seed: int, alpha: float) -> list[Row]:
    """One of the others, on numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        row = PEERS[name][0](as_numbers(split, seed), seed, alpha)
    return [{"method": name} | row]
