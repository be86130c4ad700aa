"""Compare CLAPS with what a user would pick instead, on the same splits.

Methods: CQR, split and residual-normalised intervals on HistGradientBoosting, a
quantile forest with CQR, a random forest with the difficulties of crepes, NGBoost and
a Gaussian process scaled by their standard deviations, CatBoost with CQR and scaled by
its own variance, and ClapsRegressor() with its defaults. Each split takes at most
5,000 rows of a seeded permutation: 60 % to fit, 20 % to calibrate, 20 % to test.
Peers are tuned over the grids below, and the best peer is picked, by the
cross-validated interval score on the training rows.

Finished runs are kept in OUT/runs.jsonl; the same command goes on where it stopped, and
with nothing left to run it writes the tables and the picture again.

    python docs/studies/peers.py --smoke
    python docs/studies/peers.py --data FOLDER --out docs/benchmarks/peers --jobs 2
    python docs/studies/peers.py --data FOLDER --datasets mine --methods gp claps
"""

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import engine
import numpy as np
from engine import Array, Dataset, Row, Run, Split, score_intervals
from peers_report import write_report
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.metrics import mean_pinball_loss
from sklearn.model_selection import KFold, cross_val_predict

from mapie_claps import CalibratedRegressor, ClapsRegressor, conformal_quantile

Params = Mapping[str, Any]
Bounds = tuple[Array, Array]

ALPHA, N_FOLDS, N_PARTS = 0.1, 3, 5
GP_OPTIMISED_ROWS = 300  # rows for the kernel's parameters: each step costs n²·p + n³
GP_ROWS = 3000  # rows that the posterior is conditioned on
HISTGB = ("learning_rate", "max_leaf_nodes", "min_samples_leaf", "max_iter")
#: Levels of the values of equal probability for which the CRPS is computed.
CRPS_LEVELS = (np.arange(100) + 0.5) / 100


def crps(y: Array, values: Array) -> float:
    """Of values of equal probability, ascending: twice their mean pinball loss."""
    pairs = zip(CRPS_LEVELS, values.T, strict=True)
    return 2 * float(np.mean([mean_pinball_loss(y, v, alpha=a) for a, v in pairs]))


class Band(NamedTuple):
    """Interval before calibration, and by what one unit of q widens it.

    The interval for a conformal quantile q is [lower − q·unit, upper + q·unit]. Two
    quantiles have unit 1: that is CQR. A centre with a scale has lower = upper. MAPIE
    and crepes make the same intervals of them, which a test holds.
    """

    lower: Array
    upper: Array
    unit: Array

    def scores(self, y: Array) -> Array:
        """Conformity scores max(lower − y, y − upper) / unit."""
        return np.maximum(self.lower - y, y - self.upper) / self.unit

    def widened(self, q: float | Array) -> Bounds:
        """Bounds for the conformal quantile q, one or one for each row."""
        return self.lower - q * self.unit, self.upper + q * self.unit


def centred(centre: Any, unit: Any) -> Band:
    return Band(np.asarray(centre), np.asarray(centre), np.asarray(unit))


def ordered(lower: Array, upper: Array) -> Band:
    """Band of two quantiles, which may cross."""
    return Band(np.minimum(lower, upper), np.maximum(lower, upper), np.ones(len(lower)))


# Methods: (X, y, params, seed) → a function from X to Band ----------------------------

Bands = Callable[[Array], Band]


def histgb(params: Params, seed: int, **options: Any) -> HistGradientBoostingRegressor:
    options |= {name: params[name] for name in HISTGB}
    return HistGradientBoostingRegressor(
        random_state=seed, early_stopping=False, **options
    )


def cqr_histgb(X: Array, y: Array, params: Params, seed: int) -> Bands:
    make = partial(histgb, params, seed, loss="quantile")
    models = [make(quantile=level).fit(X, y) for level in (ALPHA / 2, 1 - ALPHA / 2)]
    return lambda X: ordered(*(model.predict(X) for model in models))


def split_histgb(X: Array, y: Array, params: Params, seed: int) -> Bands:
    model = histgb(params, seed).fit(X, y)
    return lambda X: centred(model.predict(X), np.ones(len(X)))


def normalised_histgb(X: Array, y: Array, params: Params, seed: int) -> Bands:
    """Mean on all rows; |residual| on the residuals of models that had not seen them.

    Residuals of the fitted rows themselves would be too small.
    """
    folds = KFold(3, shuffle=True, random_state=seed)
    residual = np.abs(y - cross_val_predict(histgb(params, seed), X, y, cv=folds))
    typical = float(residual.mean()) or 1.0
    shape = {"learning_rate": 0.1, "max_leaf_nodes": 8, "min_samples_leaf": 20}
    shape["max_iter"] = max(1, params["residual_iter"])
    # The gamma loss needs positive targets, and predicts positive ones.
    spread = histgb(shape, seed, loss="gamma")
    spread.fit(X, np.maximum(residual / typical, 1e-3))
    mean, constant = histgb(params, seed).fit(X, y), not params["residual_iter"]
    return lambda X: centred(
        mean.predict(X), typical * (np.ones(len(X)) if constant else spread.predict(X))
    )


def cqr_forest(X: Array, y: Array, params: Params, seed: int) -> Bands:
    from quantile_forest import RandomForestQuantileRegressor

    options = {"max_features": params["max_features"], "random_state": seed}
    forest = RandomForestQuantileRegressor(**options).fit(X, y)
    quantiles = [params["tail"] * ALPHA, 1 - params["tail"] * ALPHA]
    return lambda X: ordered(*forest.predict(X, quantiles=quantiles).T)


def crepes(X: Array, y: Array, params: Params, seed: int) -> Bands:
    from crepes.extras import DifficultyEstimator

    options = {"max_features": params["max_features"], "random_state": seed}
    forest = RandomForestRegressor(oob_score=True, **options).fit(X, y)
    # crepes adds beta = 0.01 to a difficulty in units of y: standardise, so that it
    # means the same for every data set.
    spread = float(np.std(y))
    residuals = (y - forest.oob_prediction_) / spread

    def spread_of_trees(X: Array) -> Any:
        trees = np.stack([tree.predict(X) for tree in forest.estimators_])
        return np.std(trees, axis=0) / spread

    given: dict[str, Any] = {"f": spread_of_trees}
    if params["difficulty"] != "trees":
        given = {"X": X, "residuals": residuals, "k": params["difficulty"]}
    difficulty = DifficultyEstimator().fit(**given)
    return lambda X: centred(forest.predict(X), difficulty.apply(X))


def ngboost(X: Array, y: Array, params: Params, seed: int) -> Bands:
    from ngboost import NGBRegressor
    from sklearn.tree import DecisionTreeRegressor

    tree = DecisionTreeRegressor(max_depth=params["max_depth"], random_state=seed)
    options = {"learning_rate": 0.05, "random_state": seed, "verbose": False}
    model = NGBRegressor(Base=tree, n_estimators=params["n_estimators"], **options)
    model.fit(X, y)

    def band(X: Array) -> Band:
        predicted = model.pred_dist(X)
        return centred(predicted.loc, predicted.scale)

    return band


def gaussian_process(X: Array, y: Array, params: Params, seed: int) -> Bands:
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
    pipeline.fit(X[many], y[many])
    return lambda X: centred(*pipeline.predict(X, return_std=True))


def catboost(quantiles: bool, X: Array, y: Array, params: Params, seed: int) -> Bands:
    """Two quantiles, or mean and variance, of standardised targets in one model."""
    from catboost import CatBoostRegressor

    levels = f"MultiQuantile:alpha={ALPHA / 2:.12g},{1 - ALPHA / 2:.12g}"
    loss = levels if quantiles else "RMSEWithUncertainty"
    options: dict[str, Any] = {"loss_function": loss, "random_seed": seed}
    # By default it writes a folder catboost_info where the command was started.
    options |= {"allow_writing_files": False, "thread_count": 1, "verbose": False}
    centre, unit = float(np.mean(y)), float(np.std(y))
    model = CatBoostRegressor(**options, **params).fit(X, (y - centre) / unit)

    def band(X: Array) -> Band:
        kind = "RawFormulaVal" if quantiles else loss
        found = model.predict(X, kind, thread_count=1)
        first, second = np.asarray(found).T
        if quantiles:
            return ordered(centre + unit * first, centre + unit * second)
        return centred(centre + unit * first, unit * np.sqrt(second))

    return band


cqr_catboost, std_catboost = partial(catboost, True), partial(catboost, False)


def grid_of(**values: tuple[Any, ...]) -> list[dict[str, Any]]:
    rows = product(*values.values())
    return [dict(zip(values, row, strict=True)) for row in rows]


def histgb_grid(*shapes: tuple[float, int, int, tuple[int, ...]]) -> list[Any]:
    """Entries (learning rate, leaves, rows in a leaf, iterations to choose from)."""
    values = [((rate,), (n,), (rows,), i) for rate, n, rows, i in shapes]
    return [e for v in values for e in grid_of(**dict(zip(HISTGB, v, strict=True)))]


@dataclass(frozen=True)
class Method:
    """A method of the benchmark, on the command line and in stored keys by its name.

    Each grid holds the library's default or something close to it.
    """

    name: str
    fit: Callable[..., Bands]
    grid: Sequence[Params]
    # Whether the grid is compared on the first fold only; the entry chosen is then
    # scored on all folds, so that the scores of methods compare.
    slow: bool = False
    after: "Method | None" = None  # tuned first; its parameters join each grid entry
    has_law: bool = False  # whether a CRPS says something of it

    @property
    def key(self) -> dict[str, Any]:
        key = {"name": self.name, "grid": list(self.grid), "slow": self.slow}
        if self.name == CLAPS:
            key["parameters"] = engine.claps_parameters(ClapsRegressor())
        return key | ({"after": self.after.key} if self.after else {})


CLAPS = "claps"
SHAPES = (0.1, 31, 20, (50, 100, 200)), (0.1, 8, 5, (100, 200, 400))
SPLIT = Method(
    "split-histgb", split_histgb, histgb_grid(*SHAPES, (0.2, 3, 5, (150, 500)))
)
#: CatBoost's own defaults are depth 6 and 1,000 trees of a rate that it takes from the
#: number of rows, often near 0.05; 500 of rate 0.1 go as far. Trees of depth 4 cost a
#: third and are better on small sets.
CATBOOST = [
    *grid_of(depth=(6,), learning_rate=(0.1,), iterations=(100, 250, 500)),
    *grid_of(depth=(4,), learning_rate=(0.1,), iterations=(250, 500, 1000)),
]
CQR = histgb_grid((0.1, 31, 20, (50, 100, 200)), (0.1, 6, 10, (50, 100, 200, 400)))
SPREAD = grid_of(residual_iter=(0, 10, 30, 100))
FOREST = grid_of(max_features=(1.0, 1 / 3), tail=(0.5, 1.0))
DIFFICULTY = grid_of(max_features=(1.0, 1 / 3), difficulty=(5, 25, "trees"))
NGBOOST = grid_of(max_depth=(3, 5), n_estimators=(40, 80, 160))
KERNELS = grid_of(kernel=("RBF", "Matern 5/2"))
METHODS = (
    Method("cqr-histgb", cqr_histgb, CQR),
    SPLIT,
    Method("normalised-histgb", normalised_histgb, SPREAD, after=SPLIT),
    Method("cqr-forest", cqr_forest, FOREST),
    Method("crepes", crepes, DIFFICULTY),
    Method("ngboost", ngboost, NGBOOST, slow=True, has_law=True),
    Method("gp", gaussian_process, KERNELS, slow=True, has_law=True),
    Method("cqr-catboost", cqr_catboost, CATBOOST, slow=True),
    Method("std-catboost", std_catboost, CATBOOST, slow=True, has_law=True),
)


BY_NAME = {m.name: m for m in (*METHODS, Method(CLAPS, ClapsRegressor, [{}]))}
#: Modules that take seconds to import, which must not count as a method's fit time.
SLOW = {"ngboost": "ngboost", CLAPS: "laplace", "crepes": "crepes.extras"}


# Tuning, on training rows only --------------------------------------------------------


class Choice(NamedTuple):
    """Parameters chosen on training rows, their interval score, the time it took."""

    params: dict[str, Any]
    cv_score: float | None
    seconds: float = 0.0


def calibrated_score(band: Band, y: Array) -> float:
    """Interval score of a band on rows that the model has not seen.

    Each of five parts of the rows is scored with the conformal quantile of the other
    four (their largest score, if the rank exceeds their number).
    """
    scores, part = band.scores(y), np.arange(len(y)) % N_PARTS
    q = np.empty(len(y))
    for i in range(N_PARTS):
        others = scores[part != i]
        q[part == i] = min(conformal_quantile(others, [ALPHA], True)[0], others.max())
    return score_intervals(y, *band.widened(q), ALPHA)["interval_score"]


def tune(method: Method, X: Array, y: Array, seed: int) -> Choice:
    """Choose the grid entry with the lowest cross-validated interval score.

    The seed is that of the folds and of the fits; a grid without a choice has no score.
    """
    if len(method.grid) == 1:
        return Choice(dict(method.grid[0]), None)
    first = tune(method.after, X, y, seed) if method.after else Choice({}, None)
    start = time.perf_counter()
    grid = [{**first.params, **entry} for entry in method.grid]
    folds = list(KFold(N_FOLDS, shuffle=True, random_state=seed).split(X))
    n_compared = 1 if method.slow else N_FOLDS

    def scores_of(grid: list[dict[str, Any]], folds: Any) -> Array:
        scores = np.empty((len(grid), len(folds)))
        for j, (rows, held_out) in enumerate(folds):
            for i, entry in enumerate(grid):
                band = method.fit(X[rows], y[rows], entry, seed)(X[held_out])
                scores[i, j] = calibrated_score(band, y[held_out])
        return scores

    scores = scores_of(grid, folds[:n_compared])
    best = int(np.argmin(scores.mean(axis=1)))
    rest = scores_of([grid[best]], folds[n_compared:])
    seconds = first.seconds + time.perf_counter() - start
    return Choice(grid[best], float(np.append(scores[best], rest).mean()), seconds)


# Runs ---------------------------------------------------------------------------------


def measure(data: Dataset, seed: int, method: Method) -> list[Row]:
    """Tune on training rows, fit, calibrate, and score on test rows."""
    parts = lambda n: (int(0.6 * n), int(0.2 * n))  # noqa: E731
    split = engine.split_rows(data, seed, engine.MAX_ROWS, parts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_module(SLOW.get(method.name, "sklearn"))
        choice = tune(method, split.X_train, split.y_train, seed)
        start = time.perf_counter()
        interval, distribution = fit(method, choice.params, split, seed)
        fitted = time.perf_counter()
        lower, upper = interval(split.X_test)
        done = time.perf_counter()
        values = distribution(split.X_test)
    row = {
        "dataset": data.name,
        "seed": seed,
        "method": method.name,
        "n_cal": len(split.y_cal),
        "n_test": len(lower),
        "params": choice.params,
        "cv_score": choice.cv_score,
        **score_intervals(split.y_test, lower, upper, ALPHA),
        "crps": None if values is None else crps(split.y_test, values),
        "tune_seconds": choice.seconds,
        "fit_seconds": fitted - start,
        "predict_seconds": done - fitted,
    }
    return [row]


def fit(
    method: Method, params: Params, split: Split, seed: int
) -> tuple[Callable[[Array], Bounds], Callable[[Array], Any]]:
    """Functions from X to bounds, and to values of equal probability or None."""
    X, y, X_cal, y_cal = split[:4]
    if method.name == CLAPS:
        model = ClapsRegressor(random_state=seed).fit(X, y)
        conformal = CalibratedRegressor(model, 1 - ALPHA).conformalize(X_cal, y_cal)

        def bounds(X: Array) -> Bounds:
            ends = conformal.predict_interval(X)[1]
            return ends[:, 0, 0], ends[:, 1, 0]

        n = len(conformal.conformity_scores)  # beyond its scores it promises nothing
        levels = CRPS_LEVELS.clip(1 / (n + 1), n / (n + 1))
        return bounds, lambda X: conformal.predict_quantiles(X, levels)
    band = method.fit(X, y, params, seed)
    seen = band(X_cal)
    (q,) = conformal_quantile(seen.scores(y_cal), [ALPHA])
    law = np.quantile((y_cal - seen.lower) / seen.unit, CRPS_LEVELS)

    def values(X: Array) -> Array | None:
        """Centre and scale with the law of the signed calibration scores."""
        if not method.has_law:
            return None
        centre, _, unit = band(X)
        return centre[:, None] + unit[:, None] * law

    return lambda X: band(X).widened(q), values


def plan(data: Dataset, seed: int, method: Method) -> Run:
    key = engine.run_key(
        "peers",
        data=data.key,
        split={"seed": seed, "max_rows": engine.MAX_ROWS},
        method=method.key | {"alpha": ALPHA},
        uses_claps=method.name == CLAPS,
    )
    label = f"{method.name} on {data.name}, seed {seed}"
    return Run(label, key, partial(measure, data, seed, method))


def main(given: Sequence[str] | None = None) -> int:
    parser = engine.new_parser(__doc__, "benchmark_peers")
    add = parser.add_argument
    names, methods = engine.PAPER_DATASETS, list(BY_NAME)
    add("--data", type=Path, metavar="FOLDER", help="<data set>.csv, the target last")
    add("--seeds", type=int, default=10, metavar="N", help="splits of each (10)")
    add("--datasets", nargs="+", default=names, metavar="NAME", help="(paper's eight)")
    add("--methods", nargs="+", default=methods, choices=methods, metavar="NAME")
    parser.epilog = f"methods: {', '.join(methods)}"
    return engine.run_command(parser, run, given)


def run(arguments: argparse.Namespace) -> int:
    """Run what is missing and write the report; 1 if a run failed."""
    methods = [method for n, method in BY_NAME.items() if n in arguments.methods]
    if arguments.smoke:
        data, n_seeds = [engine.load_diabetes_rows()], 1
        methods = [replace(method, grid=method.grid[:2]) for method in methods]
    else:
        data = [engine.load_named(n, arguments.data) for n in arguments.datasets]
        n_seeds = arguments.seeds
    # Seeds outermost: what an interruption leaves is balanced over the data sets.
    runs = [plan(d, seed, m) for seed in range(n_seeds) for d in data for m in methods]
    failures = engine.run_missing(runs, arguments.out, arguments.jobs)
    print(write_report(engine.finished_rows(runs, arguments.out), arguments.out))
    print(*failures, sep="")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
