"""Speed of training: against skorch, scikit-learn's MLP and gradient boosting.

Also of importing the package, and of two processes against one.
"""

import cProfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from joblib import parallel_config
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPRegressor
from torch import Tensor, nn

from .. import ClapsRegressor, ClapsScore
from ..network import defaults  # private: what "auto" means
from ..studies.data import PAPER_DATASETS, Dataset, load_named, split_rows
from ._networks import TwoHeads, make_rows
from ._speed_timing import CLOCKS, Result, Settings, best_of, run_code

Rows = NDArray[np.float32]
WIDTH = 64
AGAINST_SKORCH, AGAINST_MLP, ALLOWED_MS = 3.0, 1.0, 100.0
LEARNING_RATE, WEIGHT_DECAY = 1e-3, 1e-3
GOALS = [(100, 8, 0.5), (3000, 12, 10.0)]  # seconds of the default fit, n × p
IMPORT = """
import json, time
import torch, mapie.regression, laplace
clock = time.{clock}
start = clock()
{statement}
print(json.dumps(1e3 * (clock() - start)))
"""
STATEMENTS = (
    "import mapie_claps",
    "from mapie_claps import ClapsRegressor, ClapsScore",
    "from mapie_claps import *",
)
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


class GaussianLoss(nn.Module):
    """Negative log-likelihood of mean and variance."""

    def forward(self, out: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        """Mean over the rows."""
        return nn.functional.gaussian_nll_loss(out[0], y, out[1])


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

    network = TwoHeads(X.shape[1], WIDTH, WIDTH, WIDTH, floor=1e-6)
    params: dict[str, Any] = {"optimizer__fused": True, "lr": LEARNING_RATE}
    params |= {"optimizer__weight_decay": WEIGHT_DECAY, "batch_size": batch_size}
    params |= {"iterator_train__shuffle": True, "iterator_train__drop_last": True}
    params |= {"train_split": None, "max_epochs": epochs, "callbacks__print_log": None}
    params |= {"criterion": GaussianLoss, "optimizer": torch.optim.AdamW}
    NeuralNetRegressor(network, **params).fit(X, y[:, None])


def fit_mlp(X: Rows, y: Rows, batch_size: int, epochs: int) -> None:
    """scikit-learn's network: ReLU and squared loss, as it has no others."""
    params: dict[str, Any] = {"alpha": WEIGHT_DECAY, "tol": 0.0, "max_iter": epochs}
    params |= {
        "learning_rate_init": LEARNING_RATE,
        "n_iter_no_change": epochs + 1,
        "random_state": 0,
    }
    params |= {"hidden_layer_sizes": (WIDTH, WIDTH, WIDTH), "batch_size": batch_size}
    MLPRegressor(**params).fit(X, y)


def training(settings: Settings) -> Iterator[Result]:
    """Whole calls of ``fit``, with about as many steps as the defaults take."""
    for n, p in [(200, 3)] if settings.smoke else [(5000, 8), (100_000, 32)]:
        X, y = (a.astype(np.float32) for a in make_rows(n, p))
        batch_size = defaults.batch_size(n)
        in_epoch = n // batch_size
        epochs = settings.size(defaults.max_steps(n) // in_epoch, 1)
        steps, members = epochs * in_epoch, ClapsRegressor().n_members
        calls: dict[str, Callable[[], Any]] = {
            "one": partial(fit_claps, X, y, 1, batch_size, steps),
            "many": partial(fit_claps, X, y, members, batch_size, steps),
            "skorch": partial(fit_skorch, X, y, batch_size, epochs),
            "MLPRegressor": partial(fit_mlp, X, y, batch_size, epochs),
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            times = best_of(calls, settings)
        times["many"] /= members
        per_row = {name: 1e6 * t / (batch_size * steps) for name, t in times.items()}
        for name, other, bound in (
            ("one", "skorch", AGAINST_SKORCH),
            ("one", "MLPRegressor", None),
            ("many", "skorch", AGAINST_SKORCH),
            ("many", "MLPRegressor", AGAINST_MLP),
        ):
            who = "one network" if name == "one" else f"per member of {members}"
            case = f"training, {n:,} × {p}, batches of {batch_size}, {who}"
            both = per_row[name], per_row[other]
            yield Result(case, other, *both, "µs per row", "faster", bound)


def fit_default(X: Any, y: Any) -> ClapsRegressor:
    """ClapsRegressor as it comes; its warning would only disturb the table."""
    return ClapsRegressor(tol=None, random_state=0).fit(X, y)


def fit_cqr(X: Any, y: Any) -> Any:
    """MAPIE's conformalised quantile regression: three models."""
    from mapie.regression import ConformalizedQuantileRegressor

    median = {"loss": "quantile", "quantile": 0.5, "random_state": 0}
    model = HistGradientBoostingRegressor(**median)
    return ConformalizedQuantileRegressor(model, confidence_level=0.9).fit(X, y)


def default_fit(settings: Settings) -> Iterator[Result]:
    """The default ``fit`` against that of MAPIE's CQR, with its profile, and goals."""
    for data in _datasets(settings):
        split = split_rows(data, 0)
        X, y = split.X_train, split.y_train
        fit = partial(fit_default, X, y)
        calls = {"ours": fit, "cqr": partial(fit_cqr, X, y)}
        times = best_of(calls, settings, min(2, settings.repeats))
        case = f"default fit, {data.name}, {len(X):,} × {X.shape[1]}"
        against = "MAPIE CQR, HistGradientBoosting"
        both, note = (times["ours"], times["cqr"]), profile(fit, settings.clock)
        yield Result(case, against, *both, "s", "cost", note=note)
    for n, p, goal in [(60, 3, 0.5)] if settings.smoke else GOALS:
        seconds = best_of({"": partial(fit_default, *make_rows(n, p))}, settings, 2)[""]
        case, against = f"default fit, {n:,} × {p}", f"goal of {goal:g} s"
        yield Result(case, against, seconds, goal, "s", "cost", 1.0)


def _datasets(settings: Settings) -> Iterator[Dataset]:
    if settings.data is not None and not settings.smoke:
        yield from (load_named(name, settings.data) for name in PAPER_DATASETS)
        return
    for n, p in [(100, 3)] if settings.smoke else [(500, 8), (5000, 8), (5000, 16)]:
        yield Dataset("generated", *make_rows(n, p))


def profile(function: Callable[[], Any], clock: str) -> str:
    """Shares of the time: phases by cProfile, operations by torch's profiler.

    Recorded steps run without the interpreter, where cProfile sees nothing of them.
    """
    profiler = cProfile.Profile(CLOCKS[clock])
    profiler.runcall(function)
    stats = profiler.getstats()
    total = sum(entry.inlinetime for entry in stats)
    found = dict.fromkeys(PHASES, 0.0)
    for entry in stats:
        for phase, where in PHASES.items():
            code = entry.code
            if isinstance(code, str):
                continue
            if where == (Path(code.co_filename).name, code.co_name):
                found[phase] += entry.totaltime / total
    with torch.profiler.profile() as operations:
        function()
    times = {e.key: e.self_cpu_time_total for e in operations.key_averages()}
    all_of_them = sum(times.values())
    shares = {
        what: sum(times.get(f"aten::{name}", 0.0) for name in names) / all_of_them
        for what, names in OPERATIONS.items()
    }
    return ", ".join(f"{what} {100 * t:.0f} %" for what, t in (shares | found).items())


def imports(settings: Settings) -> Iterator[Result]:
    """What an import adds to those of torch, mapie and laplace."""
    clock = CLOCKS[settings.clock].__name__
    for statement in STATEMENTS[: settings.size(3, 1)]:
        code = IMPORT.format(clock=clock, statement=statement)
        best = min(run_code(code) for _ in range(settings.repeats))
        case = f"`{statement}` after torch, mapie and laplace"
        against = f"allowed {ALLOWED_MS:.0f} ms"
        yield Result(case, against, best, ALLOWED_MS, "ms", "cost", 1.0)


def threads(settings: Settings) -> Iterator[Result]:
    """Two processes against one, by the clock on the wall."""
    from mapie.regression import CrossConformalRegressor

    steps, n = settings.size(400, 5), settings.size(2000, 100)
    X, y = make_rows(n, 8)
    model = ClapsRegressor(max_steps=steps, tol=None, random_state=0)
    grid = {"weight_decay": [1e-4, 1e-3]}
    calls: dict[str, Callable[[int], Any]] = {
        "GridSearchCV": lambda n_jobs: GridSearchCV(
            model, grid, n_jobs=n_jobs, cv=2
        ).fit(X, y),
        "CrossConformalRegressor": lambda n_jobs: CrossConformalRegressor(
            model, conformity_score=ClapsScore(), cv=4, n_jobs=n_jobs
        ).fit_conformalize(X, y),
    }
    # Processes take long to start: the short version makes do with threads.
    backend = "threading" if settings.smoke else "loky"
    for name, call in calls.items():
        with parallel_config(backend):
            call(2)  # starts the workers, which joblib keeps, and their imports
            calls_of_both = {n_jobs: partial(call, int(n_jobs)) for n_jobs in "21"}
            times = best_of(calls_of_both, replace(settings, clock="wall"))
        case = f"{name}(n_jobs=2) over ClapsRegressor, {n:,} × 8"
        yield Result(case, "n_jobs=1", times["2"], times["1"], "s", "faster", 1.0)
