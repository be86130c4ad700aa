"""CatBoost as a peer: two quantiles for CQR, and a mean with a variance for the scale.

One fitted model gives the prediction of any smaller number of trees, so the number of
trees is chosen by cross-validation from one fit, which stands in for early stopping:
no further rows have to be held out.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..studies.data import Array, Table, take_rows
from ._peer_tuning import Band, Method, Params, centred, grid_of, ordered


class Fitted(NamedTuple):
    """A model of standardised targets: both losses start from zero."""

    model: Any
    centre: float
    unit: float


def _fit(
    loss: str, X: Table, y: Array, params: Params, seed: int, stopping: Any = None
) -> Fitted:
    """Fit all rows, or with ``stopping`` (rows to hold out, to fit, patience)."""
    from catboost import CatBoostRegressor

    options: dict[str, Any] = {"loss_function": loss, "random_seed": seed}
    # By default it writes a folder catboost_info where the command was started.
    options |= {"allow_writing_files": False, "thread_count": 1, "verbose": False}
    centre, unit = float(np.mean(y)), float(np.std(y))
    (X, categories), z = _plain(X), (y - centre) / unit
    judged: dict[str, Any] = {"cat_features": categories}
    if stopping:
        few, many, judged["early_stopping_rounds"] = stopping
        judged["eval_set"] = take_rows(X, few), z[few]
        X, z = take_rows(X, many), z[many]
    model = CatBoostRegressor(**options, **params).fit(X, z, **judged)
    return Fitted(model, centre, unit)


def _predict(fitted: Fitted, X: Table, params: Params, kind: str) -> Array:  # (2, n)
    """Both outputs of the first trees, for standardised targets."""
    options = {"ntree_end": params["iterations"], "thread_count": 1}
    return np.asarray(fitted.model.predict(_plain(X)[0], kind, **options)).T


def _plain(X: Table) -> tuple[Table, list[str]]:
    """Categories as text, a gap as a value of its own, and the names of the columns.

    CatBoost takes no NaN there.
    """
    names = list(X.select_dtypes("category")) if hasattr(X, "iloc") else []
    text = {c: X[c].astype(object).where(X[c].notna(), "").astype(str) for c in names}
    return X.assign(**text) if names else X, names


def fit_quantiles(
    X: Table, y: Array, params: Params, seed: int, alpha: float, stopping: Any = None
) -> Fitted:
    """Both quantiles of one model."""
    loss = f"MultiQuantile:alpha={alpha / 2:.12g},{1 - alpha / 2:.12g}"
    return _fit(loss, X, y, params, seed, stopping)


def quantile_band(model: Fitted, X: Table, params: Params) -> Band:
    """Both quantiles of the first trees, of all trees where the number is zero."""
    bounds = model.centre + model.unit * _predict(model, X, params, "RawFormulaVal")
    return ordered(*bounds)


def fit_variance(X: Table, y: Array, params: Params, seed: int, alpha: float) -> Fitted:
    """Mean and variance of one model."""
    return _fit("RMSEWithUncertainty", X, y, params, seed)


def predict_variance(model: Fitted, X: Table, params: Params) -> Band:
    """Mean and standard deviation of the first trees."""
    mean, variance = _predict(model, X, params, "RMSEWithUncertainty")
    return centred(model.centre + model.unit * mean, model.unit * np.sqrt(variance))


def _quantiles(*arguments: Any) -> Any:
    return partial(quantile_band, fit_quantiles(*arguments))


def _variance(*arguments: Any) -> Any:
    return partial(predict_variance, fit_variance(*arguments))


#: CatBoost's own defaults are depth 6 and 1,000 trees of a rate that it takes from the
#: number of rows, often near 0.05; 500 of rate 0.1 go as far. Trees of depth 4 cost a
#: third and are better on small sets.
GRID = [
    *grid_of(depth=(6,), learning_rate=(0.1,), iterations=(100, 250, 500)),
    *grid_of(depth=(4,), learning_rate=(0.1,), iterations=(250, 500, 1000)),
]
_method = partial(
    Method, grid=GRID, free=("iterations",), slow=True, requires="catboost"
)
CATBOOST = (
    _method("cqr-catboost", "CatBoost MultiQuantile + CQR", _quantiles, "mapie_cqr"),
    _method(
        "std-catboost", "CatBoost mean and variance + std score", _variance, "mapie_std"
    ),
)
