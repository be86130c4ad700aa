"""The methods of the ``peers`` benchmark and their grids.

To add a peer, write how it is fitted and what band it then gives, and add one entry to
``METHODS``. Libraries are imported by the functions that use them.

Each grid holds the library's default or something close to it. Costs are kept down by
parameters that one fitted model can vary (``free``), not by poor settings.
"""

import warnings
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from ..studies.data import Array, Table
from ._peer_catboost import CATBOOST
from ._peer_tuning import Band, Method, Params, centred, grid_of, ordered

Bands = Callable[[Any, Params], Band]  # (X, params) → Band
GP_OPTIMISED_ROWS = 300  # rows for the kernel's parameters: each step costs n²·p + n³
GP_ROWS = 3000  # rows that the posterior is conditioned on
HISTGB = ("learning_rate", "max_leaf_nodes", "min_samples_leaf", "max_iter")


def _histgb(params: Params, seed: int, **options: Any) -> Any:
    from sklearn.ensemble import HistGradientBoostingRegressor

    options |= {name: params[name] for name in HISTGB}
    options |= {"early_stopping": False, "categorical_features": "from_dtype"}
    return HistGradientBoostingRegressor(random_state=seed, **options)


def _at_iteration(model: Any, X: Table, n_iter: int) -> Array:
    """Prediction of the first ``n_iter`` trees of a HistGradientBoostingRegressor."""
    if n_iter == model.n_iter_:
        return np.asarray(model.predict(X))
    return np.asarray(next(islice(model.staged_predict(X), n_iter - 1, None)))


def _histgb_grid(*shapes: tuple[float, int, int, tuple[int, ...]]) -> list[Any]:
    """Entries (learning rate, leaves, rows in a leaf, iterations to choose from)."""
    values = [((rate,), (n,), (rows,), i) for rate, n, rows, i in shapes]
    return [e for v in values for e in grid_of(**dict(zip(HISTGB, v, strict=True)))]


def _cqr_histgb(X: Table, y: Array, params: Params, seed: int, alpha: float) -> Bands:
    make = partial(_histgb, params, seed, loss="quantile")
    models = [make(quantile=level).fit(X, y) for level in (alpha / 2, 1 - alpha / 2)]
    return lambda X, params: ordered(
        *(_at_iteration(model, X, params["max_iter"]) for model in models)
    )


def _split_histgb(X: Table, y: Array, params: Params, seed: int, alpha: float) -> Bands:
    model = _histgb(params, seed).fit(X, y)
    return lambda X, params: centred(
        _at_iteration(model, X, params["max_iter"]), np.ones(len(X))
    )


def _normalised(X: Table, y: Array, params: Params, seed: int, alpha: float) -> Bands:
    """Mean on all rows; |residual| on the residuals of models that had not seen them.

    Residuals of the fitted rows themselves would be too small.
    """
    from sklearn.model_selection import KFold, cross_val_predict

    folds = KFold(3, shuffle=True, random_state=seed)
    residual = np.abs(y - cross_val_predict(_histgb(params, seed), X, y, cv=folds))
    typical = float(residual.mean()) or 1.0
    shape = {"learning_rate": 0.1, "max_leaf_nodes": 8, "min_samples_leaf": 20}
    shape["max_iter"] = max(1, params["residual_iter"])
    # The gamma loss needs positive targets, and predicts positive ones.
    spread = _histgb(shape, seed, loss="gamma")
    spread.fit(X, np.maximum(residual / typical, 1e-3))
    mean = _histgb(params, seed).fit(X, y)

    def band(X: Table, params: Params) -> Band:
        n_iter = params["residual_iter"]
        unit = _at_iteration(spread, X, n_iter) if n_iter else np.ones(len(X))
        return centred(mean.predict(X), typical * unit)

    return band


def _cqr_forest(X: Array, y: Array, params: Params, seed: int, alpha: float) -> Bands:
    from quantile_forest import RandomForestQuantileRegressor

    options = {"max_features": params["max_features"], "random_state": seed}
    forest = RandomForestQuantileRegressor(**options).fit(X, y)

    def band(X: Array, params: Params) -> Band:
        tail = params["tail"] * alpha
        return ordered(*forest.predict(X, quantiles=[tail, 1 - tail]).T)

    return band


def _crepes(X: Array, y: Array, params: Params, seed: int, alpha: float) -> Bands:
    from crepes.extras import DifficultyEstimator
    from sklearn.ensemble import RandomForestRegressor

    options = {"max_features": params["max_features"], "random_state": seed}
    forest = RandomForestRegressor(oob_score=True, **options).fit(X, y)
    # crepes adds beta = 0.01 to a difficulty in units of y: standardise, so that it
    # means the same for every data set.
    spread = float(np.std(y))
    residuals = (y - forest.oob_prediction_) / spread

    def spread_of_trees(X: Array) -> Any:
        trees = np.stack([tree.predict(X) for tree in forest.estimators_])
        return np.std(trees, axis=0) / spread

    def band(new: Array, params: Params) -> Band:
        given: dict[str, Any] = {"f": spread_of_trees}
        if params["difficulty"] != "trees":
            given = {"X": X, "residuals": residuals, "k": params["difficulty"]}
        return centred(
            forest.predict(new), DifficultyEstimator().fit(**given).apply(new)
        )

    return band


def _ngboost(X: Array, y: Array, params: Params, seed: int, alpha: float) -> Bands:
    from ngboost import NGBRegressor
    from sklearn.tree import DecisionTreeRegressor

    tree = DecisionTreeRegressor(max_depth=params["max_depth"], random_state=seed)
    options = {"learning_rate": 0.05, "random_state": seed, "verbose": False}
    model = NGBRegressor(Base=tree, n_estimators=params["n_estimators"], **options)
    model.fit(X, y)

    def band(X: Array, params: Params) -> Band:
        predicted = model.pred_dist(X, max_iter=params["n_estimators"])
        return centred(predicted.loc, predicted.scale)

    return band


def _gp(X: Array, y: Array, params: Params, seed: int, alpha: float) -> Any:
    """Kernel by marginal likelihood on a subset, posterior on (nearly) all rows."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor, kernels
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rows = np.random.default_rng(seed).permutation(len(X))
    scales = np.ones(X.shape[1]), (1e-2, 1e3)  # one per column, and their bounds
    rbf = params["kernel"] == "RBF"
    shape = kernels.RBF(*scales) if rbf else kernels.Matern(*scales, nu=2.5)
    kernel = kernels.ConstantKernel(1.0, (1e-3, 1e4)) * shape
    kernel += kernels.WhiteKernel(0.1, (1e-7, 10.0))
    gp = partial(GaussianProcessRegressor, alpha=1e-8, normalize_y=True)
    scaler = StandardScaler().fit(X)
    few, many = rows[:GP_OPTIMISED_ROWS], rows[:GP_ROWS]
    with warnings.catch_warnings():
        # A column without influence drives its length scale to the bound, rightly.
        warnings.filterwarnings("ignore", "The optimal value found", ConvergenceWarning)
        kernel = gp(kernel).fit(scaler.transform(X[few]), y[few]).kernel_
    pipeline = make_pipeline(StandardScaler(), gp(kernel, optimizer=None))
    return pipeline.fit(X[many], y[many])


def _realmlp(X: Table, y: Array, params: Params, seed: int, alpha: float) -> Bands:
    """RealMLP of pytabkit: both quantiles with one network and its own defaults."""
    from pytabkit import RealMLP_TD_Regressor

    loss = f"multi_pinball({alpha / 2:.12g},{1 - alpha / 2:.12g})"
    options = {"train_metric_name": loss, "val_metric_name": loss, "random_state": seed}
    model = RealMLP_TD_Regressor(device="cpu", n_threads=1, **options).fit(X, y)
    return lambda X, params: ordered(*np.asarray(model.predict(X), dtype=float).T)


def _claps(X: Table, y: Array, params: Params, seed: int, alpha: float) -> Any:
    from .. import ClapsRegressor

    return ClapsRegressor(random_state=seed, **params).fit(X, y)


def claps_parameters(**params: Any) -> dict[str, Any]:
    """All parameters of ``ClapsRegressor``; the seed is that of the split."""
    from .. import ClapsRegressor

    found: dict[str, Any] = ClapsRegressor(**params).get_params()
    del found["random_state"]
    return found


def claps_method(name: str = "claps", label: str = "CLAPS", **params: Any) -> Method:
    """``ClapsRegressor`` with the given parameters, not tuned."""
    key = partial(claps_parameters, **params)
    return Method(name, label, _claps, "mapie_claps", [params], parameters=key)


SPLIT = Method(
    "split-histgb",
    "Split HistGB (MAPIE)",
    *(_split_histgb, "mapie_absolute"),
    _histgb_grid(
        (0.1, 31, 20, (50, 100, 200)),
        (0.1, 8, 5, (100, 200, 400)),
        (0.2, 3, 5, (150, 500)),
    ),
    free=("max_iter",),
)
METHODS = (
    Method(
        "cqr-histgb",
        "CQR HistGB (MAPIE)",
        *(_cqr_histgb, "mapie_cqr"),
        _histgb_grid((0.1, 31, 20, (50, 100, 200)), (0.1, 6, 10, (50, 100, 200, 400))),
        free=("max_iter",),
    ),
    SPLIT,
    Method(
        "normalised-histgb",
        "Residual-normalised HistGB (MAPIE)",
        *(_normalised, "mapie_residual_normalised"),
        grid_of(residual_iter=(0, 10, 30, 100)),
        free=("residual_iter",),
        after=SPLIT,
    ),
    Method(
        "cqr-forest",
        "Quantile forest + CQR",
        *(_cqr_forest, "mapie_cqr"),
        grid_of(max_features=(1.0, 1 / 3), tail=(0.5, 1.0)),
        free=("tail",),
        requires="quantile_forest",
        text=False,
    ),
    Method(
        "crepes",
        "RF + difficulty (crepes)",
        *(_crepes, "crepes_normalised"),
        grid_of(max_features=(1.0, 1 / 3), difficulty=(5, 25, "trees")),
        free=("difficulty",),
        requires="crepes",
        text=False,
    ),
    Method(
        "ngboost",
        "NGBoost + std score",
        *(_ngboost, "mapie_std"),
        grid_of(max_depth=(3, 5), n_estimators=(40, 80, 160)),
        free=("n_estimators",),
        slow=True,
        requires="ngboost",
        text=False,
    ),
    Method(
        "gp",
        "GP (ARD) + std score",
        *(_gp, "mapie_std"),
        grid_of(kernel=("RBF", "Matern 5/2")),
        slow=True,
        text=False,
    ),
    *CATBOOST,
    claps_method(),
)
#: Run only if named: it is not tuned, costs more than all other peers together, and
#: comes with an extra of its own.
REALMLP = Method(
    "realmlp", "RealMLP + CQR", _realmlp, "mapie_cqr", [{}], requires="pytabkit"
)
BY_NAME = {method.name: method for method in (*METHODS[:-1], REALMLP, METHODS[-1])}
CLAPS = "claps"
PEERS = tuple(method.name for method in METHODS[:-1])
#: The peers of the first report: the ratio to one of them compares with its figures.
FIRST_PEERS = PEERS[: -len(CATBOOST)]
