"""Speed of training: against skorch, an MLP and boosting; two processes against one."""

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from joblib import parallel_config
from mapie.regression import ConformalizedQuantileRegressor, CrossConformalRegressor
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPRegressor
from torch import Tensor
from torch.nn.functional import gaussian_nll_loss

from .. import ClapsRegressor, ClapsScore
from ..network import defaults  # private: what "auto" means
from ..studies.data import PAPER_DATASETS, Array, Dataset, load_named, split_rows
from ._networks import TwoHeads, make_rows
from ._speed_timing import (
    Result,
    Settings,
    as_note,
    best_of,
    compare,
    on_threads,
    time_shares,
)

Rows = NDArray[np.float32]
WIDTH = 64
LEARNING_RATE, WEIGHT_DECAY = 1e-3, 1e-3
AGAINST_SLOWER, ON_TWO_CORES = 1.5, 1.5
GOALS = [(100, 8, 0.5), (3000, 12, 10.0)]  # seconds of the default fit, n × p
SIZES = [(300, 12), (3000, 12), (3000, 100), (30_000, 12), (300_000, 12)]  # boosting
# Cores → n_jobs of ours; 1 trains the same groups of members as 2, None all at once.
N_JOBS: Any = {1: {"one core": None, "n_jobs=1": 1}, 2: {"n_jobs=2": 2}}
LEVELS = (0.05, 0.5, 0.95)
# What the profile tells apart: names of torch's functions, or a function of ours in
# its file with all that it calls.
OPERATIONS = {
    "matrix products": ("mm", "bmm", "addmm", "baddbmm"),
    "activations and slopes": ("silu", "silu_backward", "sin", "cos"),
    "optimiser": ("_fused_adamw_",),
}
PHASES = {
    "evaluation": ("trainer.py", "_evaluate"),
    "training in all": ("trainer.py", "train"),
    "posterior": ("members.py", "fit_last_layers"),
}


def datasets(settings: Settings, *sizes: tuple[int, int]) -> Iterator[Dataset]:
    """The paper's data sets where there is a folder of them, else generated rows."""
    if settings.data is not None and not settings.smoke:
        yield from (load_named(name, settings.data) for name in PAPER_DATASETS)
    else:
        yield from (Dataset("generated", *make_rows(n, p)) for n, p in sizes)


def fit_claps(X: Rows, y: Rows, n_members: int, batch_size: int, steps: int) -> None:
    """The same network and optimiser in ClapsRegressor, without hold-out."""
    params: dict[str, Any] = {"hidden_layer_sizes": (WIDTH, WIDTH)}
    params |= {"representation_size": WIDTH, "prior_precision": 1.0}
    params |= {"views": ("raw",), "scaling_rate": 0.0, "beta": 0.0, "tol": None}
    params |= {"learning_rate": LEARNING_RATE, "weight_decay": WEIGHT_DECAY}
    params |= {"n_members": n_members, "batch_size": batch_size, "max_steps": steps}
    params |= {"schedule": "constant", "validation_fraction": 0.0}
    ClapsRegressor(**params, random_state=0).fit(X, y)


def fit_skorch(X: Rows, y: Rows, batch_size: int, epochs: int) -> None:
    """The same network and optimiser in skorch, silent and without hold-out."""
    from skorch import NeuralNetRegressor

    def loss(out: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        return gaussian_nll_loss(out[0], y, out[1])

    network = TwoHeads(X.shape[1], WIDTH, WIDTH, WIDTH, floor=1e-6)
    params: dict[str, Any] = {"optimizer__fused": True, "lr": LEARNING_RATE}
    params |= {"optimizer__weight_decay": WEIGHT_DECAY, "batch_size": batch_size}
    params |= {"iterator_train__shuffle": True, "iterator_train__drop_last": True}
    params |= {"train_split": None, "max_epochs": epochs, "callbacks__print_log": None}
    params |= {"criterion": lambda: loss, "optimizer": torch.optim.AdamW}
    NeuralNetRegressor(network, **params).fit(X, y[:, None])


def fit_mlp(X: Rows, y: Rows, batch_size: int, epochs: int) -> None:
    """scikit-learn's network: ReLU and squared loss, as it has no others."""
    params: dict[str, Any] = {"alpha": WEIGHT_DECAY, "tol": 0.0, "max_iter": epochs}
    params |= {"learning_rate_init": LEARNING_RATE, "n_iter_no_change": epochs + 1}
    params |= {"hidden_layer_sizes": (WIDTH, WIDTH, WIDTH), "batch_size": batch_size}
    MLPRegressor(**params, random_state=0).fit(X, y)


def training(settings: Settings) -> Iterator[Result]:
    """Whole calls of ``fit``, with about as many steps as the defaults take."""
    for n, p in settings.size([(5000, 8), (100_000, 32)], [(200, 3)]):
        X, y = (a.astype(np.float32) for a in make_rows(n, p))
        batch_size = defaults.batch_size(n)
        in_epoch = n // batch_size
        epochs = settings.size(defaults.max_steps(n) // in_epoch, 1)
        steps, members = epochs * in_epoch, ClapsRegressor().n_members
        calls = {
            "one": partial(fit_claps, X, y, 1, batch_size, steps),
            "many": partial(fit_claps, X, y, members, batch_size, steps),
            "skorch": partial(fit_skorch, X, y, batch_size, epochs),
            "MLPRegressor": partial(fit_mlp, X, y, batch_size, epochs),
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            times = best_of(calls, settings)
        others = {name: t / (batch_size * steps) for name, t in times.items()}
        one, many = others.pop("one"), others.pop("many") / members
        for who, ours, bounds in (
            ("one network", one, {"skorch": 3.0}),
            (f"per member of {members}", many, {"skorch": 3.0, "MLPRegressor": 1.0}),
        ):
            case = f"training, {n:,} × {p}, batches of {batch_size}, {who}"
            both = {"ours": ours} | others
            yield from compare(case, both, "faster", bounds, "µs per row")


def fit_default(X: Array, y: Array, n_jobs: int | None = None) -> None:
    """ClapsRegressor as it comes; its warning would only disturb the table."""
    ClapsRegressor(tol=None, random_state=0, n_jobs=n_jobs).fit(X, y)


def quantile_boosting(level: float) -> HistGradientBoostingRegressor:
    """One of the three models of MAPIE's CQR; its threads are those of OpenMP."""
    params: dict[str, Any] = {"loss": "quantile", "quantile": level}
    return HistGradientBoostingRegressor(**params, random_state=0)


def fit_cqr(X: Array, y: Array) -> None:
    """MAPIE's conformalised quantile regression: three models."""
    ConformalizedQuantileRegressor(quantile_boosting(0.5), 0.9).fit(X, y)


def fit_quantiles(X: Array, y: Array) -> None:
    """The same models without MAPIE."""
    for level in LEVELS:
        quantile_boosting(level).fit(X, y)


def fit_catboost(X: Array, y: Array, cores: int) -> None:
    """All quantiles in one model, stopped early on an eighth of the rows."""
    from catboost import CatBoostRegressor

    few = np.arange(len(X)) % 8 == 0
    model = CatBoostRegressor(
        loss_function=f"MultiQuantile:alpha={','.join(map(str, LEVELS))}",
        iterations=1000,
        early_stopping_rounds=50,
        random_seed=0,
        thread_count=cores,
        allow_writing_files=False,
        verbose=False,
    )
    model.fit(X[~few], y[~few], eval_set=(X[few], y[few]))


def default_fit(settings: Settings) -> Iterator[Result]:
    """The default ``fit`` against that of MAPIE's CQR, with its profile, and goals."""
    sizes = settings.size([(500, 8), (5000, 8), (5000, 16)], [(100, 3)])
    for data in datasets(settings, *sizes):
        X, y = split_rows(data, 0)[:2]
        fit = partial(fit_default, X, y)
        calls = {"ours": fit, "MAPIE CQR, HistGradientBoosting": partial(fit_cqr, X, y)}
        times = best_of(calls, settings, min(2, settings.repeats))
        case = f"default fit, {data.name}, {len(X):,} × {X.shape[1]}"
        yield from compare(case, times, "cost", note=profile(fit, settings.clock))
    for n, p, goal in settings.size(GOALS, [(60, 3, 0.5)]):
        times = best_of({"ours": partial(fit_default, *make_rows(n, p))}, settings, 2)
        case, against = f"default fit, {n:,} × {p}", f"goal of {goal:g} s"
        yield from compare(case, times | {against: goal}, "cost", {against: 1.0})


def boosting(settings: Settings) -> Iterator[Result]:
    """``fit`` alone, with one core and with two, against each and the slower one."""
    for n, p in settings.size(SIZES, [(120, 3)]):
        X, y = make_rows(n, p)
        case = f"default fit, {n:,} × {p}"
        ours: dict[str, float] = {}
        for cores, n_jobs in N_JOBS.items():
            calls = {
                **{k: partial(fit_default, X, y, jobs) for k, jobs in n_jobs.items()},
                "3 × HistGradientBoosting": partial(fit_quantiles, X, y),
                "CatBoost MultiQuantile": partial(fit_catboost, X, y, cores),
            }
            with on_threads(cores):
                times = best_of(calls, settings)
            ours = {name: times.pop(name) for name in n_jobs} | ours
            slower = max(times, key=times.__getitem__)
            times = {"ours": next(iter(ours.values()))} | times
            bound = {slower: AGAINST_SLOWER}
            yield from compare(f"{case}, {cores} core(s)", times, "cost", bound)
        bounds = dict.fromkeys(ours, ON_TWO_CORES)
        yield from compare(f"{case}, n_jobs=2", ours, "faster", bounds)


def profile(function: Callable[[], Any], clock: str) -> str:
    """Shares of the time: phases by cProfile, operations by torch's profiler.

    Recorded steps run without the interpreter, where cProfile sees nothing of them.
    """
    with torch.profiler.profile() as operations:
        function()
    times = {e.key: e.self_cpu_time_total for e in operations.key_averages()}
    total, shares = sum(times.values()), {}
    for what, names in OPERATIONS.items():
        shares[what] = sum(times.get(f"aten::{name}", 0.0) for name in names) / total
    return as_note(shares | time_shares(function, PHASES, clock))


def threads(settings: Settings) -> Iterator[Result]:
    """Two processes against one, by the clock on the wall."""
    n, steps = settings.size((2000, 400), (100, 5))
    X, y = make_rows(n, 8)
    model = ClapsRegressor(max_steps=steps, tol=None, random_state=0)

    def search(n_jobs: int) -> None:
        grid = {"weight_decay": [1e-4, 1e-3]}
        GridSearchCV(model, grid, n_jobs=n_jobs, cv=2).fit(X, y)

    def cross(n_jobs: int) -> None:
        score = ClapsScore()
        mapie = CrossConformalRegressor(model, 0.9, score, cv=4, n_jobs=n_jobs)
        mapie.fit_conformalize(X, y)

    # Processes take long to start: the short version makes do with threads.
    backend = settings.size("loky", "threading")
    for name, call in (("GridSearchCV", search), ("CrossConformalRegressor", cross)):
        with parallel_config(backend):
            call(2)  # starts the workers, which joblib keeps, and their imports
            both = {"ours": partial(call, 2), "n_jobs=1": partial(call, 1)}
            times = best_of(both, settings._replace(clock="wall"))
        case = f"{name}(n_jobs=2) over ClapsRegressor, {n:,} × 8"
        yield from compare(case, times, "faster", {"n_jobs=1": 1.0})
