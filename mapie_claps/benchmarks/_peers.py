"""The methods of the ``peers`` benchmark and their grids.

Each grid holds the library's default or something close to it. Costs are kept down by
parameters that one fitted model can vary (``free``), not by poor settings.
"""

import warnings
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ..estimators.regressor import ClapsRegressor
from . import _calibration
from ._tuning import Array, Band, Bounds, Method, Params

GP_OPTIMISED_ROWS = 300  # rows for the kernel's parameters: each step costs n²·p + n³
GP_ROWS = 3000  # rows that the posterior is conditioned on
NGBOOST_LEARNING_RATE = 0.05


def _centred(centre: Array, unit: Array) -> Band:
    return Band(centre, centre, unit)


def _calibrate_with(
    make: Callable[..., Callable[[Array], Bounds]], band: Callable[..., Band]
) -> Callable[..., Callable[[Array], Bounds]]:
    """Calibrate function of a method from one of :mod:`._calibration`."""

    def calibrate(
        model: Any, X_cal: Array, y_cal: Array, params: Params, alpha: float
    ) -> Callable[[Array], Bounds]:
        of_rows = _calibration.remember_last(lambda X: band(model, X, params))
        return make(of_rows, X_cal, y_cal, alpha)

    return calibrate


def _method(
    name: str,
    label: str,
    fit: Callable[..., Any],
    band: Callable[..., Band],
    calibration: Callable[..., Callable[[Array], Bounds]],
    grid: list[dict[str, Any]],
    **options: Any,
) -> Method:
    calibrate = _calibrate_with(calibration, band)
    return Method(name, label, fit, band, calibrate, grid, **options)


def _histgb(params: Params, seed: int, **options: Any) -> HistGradientBoostingRegressor:
    return HistGradientBoostingRegressor(
        learning_rate=params["learning_rate"],
        max_iter=params["max_iter"],
        max_leaf_nodes=params["max_leaf_nodes"],
        min_samples_leaf=params["min_samples_leaf"],
        early_stopping=False,
        random_state=seed,
        **options,
    )


def _at_iteration(model: HistGradientBoostingRegressor, X: Array, n_iter: int) -> Array:
    """Prediction of the first ``n_iter`` trees."""
    if n_iter == model.n_iter_:
        return np.asarray(model.predict(X))
    stages = islice(model.staged_predict(X), n_iter - 1, n_iter)
    return np.asarray(next(stages))


def _histgb_grid(
    *shapes: tuple[float, int, int, tuple[int, ...]],
) -> list[dict[str, Any]]:
    """Entries (learning rate, leaves, rows in a leaf, iterations to choose from)."""
    return [
        {
            "learning_rate": rate,
            "max_leaf_nodes": leaves,
            "min_samples_leaf": rows,
            "max_iter": n_iter,
        }
        for rate, leaves, rows, iterations in shapes
        for n_iter in iterations
    ]


def _fit_histgb_quantiles(
    X: Array, y: Array, params: Params, seed: int, alpha: float
) -> list[HistGradientBoostingRegressor]:
    return [
        _histgb(params, seed, loss="quantile", quantile=level).fit(X, y)
        for level in (alpha / 2, 1 - alpha / 2)
    ]


def _ordered(lower: Array, upper: Array) -> Band:
    """Band of two quantiles, which may cross."""
    return Band(np.minimum(lower, upper), np.maximum(lower, upper), np.ones(len(lower)))


def _histgb_quantile_band(
    models: list[HistGradientBoostingRegressor], X: Array, params: Params
) -> Band:
    lower, upper = (_at_iteration(m, X, params["max_iter"]) for m in models)
    return _ordered(lower, upper)


def _fit_histgb(
    X: Array, y: Array, params: Params, seed: int, alpha: float
) -> HistGradientBoostingRegressor:
    return _histgb(params, seed).fit(X, y)


def _histgb_band(
    model: HistGradientBoostingRegressor, X: Array, params: Params
) -> Band:
    return _centred(_at_iteration(model, X, params["max_iter"]), np.ones(len(X)))


def _fit_normalised(
    X: Array, y: Array, params: Params, seed: int, alpha: float
) -> tuple[Any, Any, float]:
    """Mean on all rows; |residual| on the residuals of models that had not seen them.

    Residuals of the fitted rows themselves would be too small.
    """
    folds = KFold(3, shuffle=True, random_state=seed)
    outside = cross_val_predict(_histgb(params, seed), X, y, cv=folds)
    residual = np.abs(y - outside)
    typical = float(residual.mean()) or 1.0
    spread = HistGradientBoostingRegressor(
        loss="gamma",  # needs positive targets, predicts positive ones
        max_iter=max(1, params["residual_iter"]),
        max_leaf_nodes=8,
        early_stopping=False,
        random_state=seed,
    ).fit(X, np.maximum(residual / typical, 1e-3))
    return _histgb(params, seed).fit(X, y), spread, typical


def _normalised_band(model: tuple[Any, Any, float], X: Array, params: Params) -> Band:
    mean, spread, typical = model
    unit = np.full(len(X), typical)
    if params["residual_iter"]:
        unit = typical * _at_iteration(spread, X, params["residual_iter"])
    return _centred(np.asarray(mean.predict(X)), unit)


def _fit_quantile_forest(
    X: Array, y: Array, params: Params, seed: int, alpha: float
) -> Any:
    from quantile_forest import RandomForestQuantileRegressor

    return RandomForestQuantileRegressor(
        n_estimators=100,
        max_features=params["max_features"],
        random_state=seed,
    ).fit(X, y), alpha


def _quantile_forest_band(model: tuple[Any, float], X: Array, params: Params) -> Band:
    forest, alpha = model
    tail = params["tail"] * alpha
    lower, upper = forest.predict(X, quantiles=[tail, 1 - tail]).T
    return _ordered(lower, upper)


def _fit_crepes(X: Array, y: Array, params: Params, seed: int, alpha: float) -> Any:
    forest = RandomForestRegressor(
        n_estimators=100,
        max_features=params["max_features"],
        oob_score=True,
        random_state=seed,
    ).fit(X, y)
    return forest, X, y


def _crepes_band(model: tuple[Any, Array, Array], X: Array, params: Params) -> Band:
    from crepes.extras import DifficultyEstimator

    forest, X_train, y_train = model
    # crepes adds beta = 0.01 to a difficulty in units of y: standardise, so that it
    # means the same for every data set.
    spread = float(np.std(y_train))
    difficulty = DifficultyEstimator()
    if params["difficulty"] == "trees":
        difficulty.fit(f=lambda X: _spread_of_trees(forest, X) / spread)
    else:
        residuals = (y_train - forest.oob_prediction_) / spread
        difficulty.fit(X=X_train, residuals=residuals, k=params["difficulty"])
    return _centred(np.asarray(forest.predict(X)), np.asarray(difficulty.apply(X)))


def _spread_of_trees(forest: RandomForestRegressor, X: Array) -> Array:
    """Standard deviation of the trees' predictions."""
    trees = np.stack([tree.predict(X) for tree in forest.estimators_])
    return np.asarray(np.std(trees, axis=0))


def _fit_ngboost(X: Array, y: Array, params: Params, seed: int, alpha: float) -> Any:
    from ngboost import NGBRegressor
    from sklearn.tree import DecisionTreeRegressor

    return NGBRegressor(
        Base=DecisionTreeRegressor(max_depth=params["max_depth"]),
        n_estimators=params["n_estimators"],
        learning_rate=NGBOOST_LEARNING_RATE,
        random_state=seed,
        verbose=False,
    ).fit(X, y)


def _ngboost_band(model: Any, X: Array, params: Params) -> Band:
    predicted = model.pred_dist(X, max_iter=params["n_estimators"])
    return _centred(np.asarray(predicted.loc), np.asarray(predicted.scale))


def _fit_gp(X: Array, y: Array, params: Params, seed: int, alpha: float) -> Any:
    """Kernel by marginal likelihood on a subset, posterior on (nearly) all rows."""
    from sklearn.gaussian_process import GaussianProcessRegressor, kernels

    rows = np.random.default_rng(seed).permutation(len(X))
    scales = {
        "length_scale": np.ones(X.shape[1]),
        "length_scale_bounds": (1e-2, 1e3),
    }
    shape = (
        kernels.RBF(**scales)
        if params["kernel"] == "RBF"
        else kernels.Matern(nu=2.5, **scales)
    )
    kernel = kernels.ConstantKernel(1.0, (1e-3, 1e4)) * shape
    kernel += kernels.WhiteKernel(0.1, (1e-7, 10.0))
    gp = partial(GaussianProcessRegressor, alpha=1e-8, normalize_y=True)
    scaler = StandardScaler().fit(X)
    few, many = rows[:GP_OPTIMISED_ROWS], rows[:GP_ROWS]
    with warnings.catch_warnings():
        # A column without influence drives its length scale to the bound, rightly.
        warnings.filterwarnings("ignore", "The optimal value found", ConvergenceWarning)
        kernel = gp(kernel).fit(scaler.transform(X[few]), y[few]).kernel_
    return make_pipeline(StandardScaler(), gp(kernel, optimizer=None)).fit(
        X[many], y[many]
    )


def _std_band(model: Any, X: Array, params: Params) -> Band:
    mean, std = model.predict(X, return_std=True)
    return _centred(np.asarray(mean), np.asarray(std))


def _fit_claps(
    X: Array, y: Array, params: Params, seed: int, alpha: float
) -> ClapsRegressor:
    return ClapsRegressor(random_state=seed, **params).fit(X, y)


SPLIT = _method(
    "split-histgb",
    "Split HistGB (MAPIE)",
    _fit_histgb,
    _histgb_band,
    _calibration.mapie_absolute,
    _histgb_grid(
        (0.1, 31, 20, (50, 100, 200)),
        (0.1, 8, 5, (100, 200, 400)),
        (0.2, 3, 5, (150, 500)),
    ),
    free=("max_iter",),
)

METHODS = (
    _method(
        "cqr-histgb",
        "CQR HistGB (MAPIE)",
        _fit_histgb_quantiles,
        _histgb_quantile_band,
        _calibration.mapie_cqr,
        _histgb_grid((0.1, 31, 20, (50, 100, 200)), (0.1, 6, 10, (50, 100, 200, 400))),
        free=("max_iter",),
    ),
    SPLIT,
    _method(
        "normalised-histgb",
        "Residual-normalised HistGB (MAPIE)",
        _fit_normalised,
        _normalised_band,
        _calibration.mapie_residual_normalised,
        [{"residual_iter": n_iter} for n_iter in (0, 10, 30, 100)],
        free=("residual_iter",),
        after=SPLIT,
    ),
    _method(
        "cqr-forest",
        "Quantile forest + CQR",
        _fit_quantile_forest,
        _quantile_forest_band,
        _calibration.mapie_cqr,
        [
            {"max_features": features, "tail": tail}
            for features in (1.0, 1 / 3)
            for tail in (0.5, 1.0)
        ],
        free=("tail",),
        requires="quantile_forest",
    ),
    _method(
        "crepes",
        "RF + difficulty (crepes)",
        _fit_crepes,
        _crepes_band,
        _calibration.crepes_normalised,
        [
            {"max_features": features, "difficulty": difficulty}
            for features in (1.0, 1 / 3)
            for difficulty in (5, 25, "trees")
        ],
        free=("difficulty",),
        requires="crepes",
    ),
    _method(
        "ngboost",
        "NGBoost + std score",
        _fit_ngboost,
        _ngboost_band,
        _calibration.mapie_std,
        [
            {"max_depth": depth, "n_estimators": n}
            for depth in (3, 5)
            for n in (40, 80, 160)
        ],
        free=("n_estimators",),
        slow=True,
        requires="ngboost",
    ),
    _method(
        "gp",
        "GP (ARD) + std score",
        _fit_gp,
        _std_band,
        _calibration.mapie_std,
        [{"kernel": kernel} for kernel in ("RBF", "Matern 5/2")],
        slow=True,
    ),
    _method(
        "claps",
        "CLAPS",
        _fit_claps,
        _std_band,
        _calibration.mapie_std,
        [{}],
    ),
)
BY_NAME = {method.name: method for method in METHODS}
CLAPS = "claps"
PEERS = tuple(name for name in BY_NAME if name != CLAPS)
