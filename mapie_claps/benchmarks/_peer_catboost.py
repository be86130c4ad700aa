"""CatBoost as a peer: two quantiles for CQR, and a mean with a variance for the scale.

One fitted model gives the prediction of any smaller number of trees, so the number of
trees is chosen by cross-validation from one fit, which stands in for early stopping:
no further rows have to be held out.
"""

from typing import Any, NamedTuple

import numpy as np

from ..studies.data import Array, Table, take_rows
from ._peer_tuning import Band, Method, Params, centred, grid_of, ordered

#: (depth, learning rate, numbers of trees). CatBoost's own defaults are depth 6 and
#: 1,000 trees of a rate that it takes from the number of rows, often near 0.05; 500 of
#: rate 0.1 go as far. Trees of depth 4 cost a third and are better on small sets.
SHAPES = ((6, 0.1, (100, 250, 500)), (4, 0.1, (250, 500, 1000)))
GRID = [
    entry
    for depth, rate, trees in SHAPES
    for entry in grid_of(depth=(depth,), learning_rate=(rate,), iterations=trees)
]


class Fitted(NamedTuple):
    """A model of standardised targets: both losses start from zero."""

    model: Any
    centre: float
    unit: float


def _catboost(loss: str, seed: int, **params: Any) -> Any:
    from catboost import CatBoostRegressor

    options: dict[str, Any] = {"loss_function": loss, "random_seed": seed}
    # By default it writes a folder catboost_info where the command was started.
    options |= {"allow_writing_files": False, "thread_count": 1, "verbose": False}
    return CatBoostRegressor(**options, **params)


def _fit(loss: str, X: Table, y: Array, params: Params, seed: int) -> Fitted:
    centre, unit = float(np.mean(y)), float(np.std(y))
    model = _catboost(loss, seed, **params)
    model.fit(_plain(X), (y - centre) / unit, cat_features=_categories(X))
    return Fitted(model, centre, unit)


def fit_with_early_stopping(
    X: Table, y: Array, params: Params, few: Any, many: Any, seed: int, alpha: float
) -> Fitted:
    """Two quantiles from the rows ``many``, as many trees as suit the rows ``few``."""
    centre, unit = float(np.mean(y)), float(np.std(y))
    plain, z = _plain(X), (y - centre) / unit
    trees = {"iterations": params["trees"], "learning_rate": params["rate"]}
    model = _catboost(_quantiles(alpha), seed, **trees)
    model.fit(
        take_rows(plain, many),
        z[many],
        cat_features=_categories(X),
        eval_set=(take_rows(plain, few), z[few]),
        early_stopping_rounds=params["patience"],
    )
    return Fitted(model, centre, unit)


def _predict(fitted: Fitted, X: Table, params: Params, kind: str) -> Array:  # (2, n)
    """Both outputs of the first trees, for standardised targets."""
    options = {"ntree_end": params["iterations"], "thread_count": 1}
    return np.asarray(fitted.model.predict(_plain(X), kind, **options)).T


def _categories(X: Table) -> list[str] | None:
    """Names of the categorical columns of a data frame."""
    if not hasattr(X, "iloc"):
        return None
    return [str(name) for name in X.columns if X[name].dtype == "category"]


def _plain(X: Table) -> Table:
    """Categories as text, a gap as a value of its own: CatBoost takes no NaN there."""
    found = _categories(X)
    if not found:
        return X
    text = {c: X[c].astype(object).where(X[c].notna(), "").astype(str) for c in found}
    return X.assign(**text)


def fit_quantiles(X: Table, y: Array, params: Params, seed: int, alpha: float) -> Any:
    """Both quantiles of one model."""
    return _fit(_quantiles(alpha), X, y, params, seed)


def _quantiles(alpha: float) -> str:
    return f"MultiQuantile:alpha={alpha / 2:.12g},{1 - alpha / 2:.12g}"


def quantile_band(model: Fitted, X: Table, params: Params) -> Band:
    """Both quantiles of the first trees, of all trees where the number is zero."""
    bounds = model.centre + model.unit * _predict(model, X, params, "RawFormulaVal")
    return ordered(*bounds)


def fit_variance(X: Table, y: Array, params: Params, seed: int, alpha: float) -> Any:
    return _fit("RMSEWithUncertainty", X, y, params, seed)


def predict_variance(model: Fitted, X: Table, params: Params) -> Band:
    mean, variance = _predict(model, X, params, "RMSEWithUncertainty")
    return centred(model.centre + model.unit * mean, model.unit * np.sqrt(variance))


CATBOOST = (
    Method(
        "cqr-catboost",
        "CatBoost MultiQuantile + CQR",
        *(fit_quantiles, quantile_band, "mapie_cqr"),
        GRID,
        free=("iterations",),
        slow=True,
        requires="catboost",
        text=True,
    ),
    Method(
        "std-catboost",
        "CatBoost mean and variance + std score",
        *(fit_variance, predict_variance, "mapie_std"),
        GRID,
        free=("iterations",),
        slow=True,
        requires="catboost",
        text=True,
    ),
)
