"""Speed of the default fit against boosting, on as many cores as boosting gets."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from .. import ClapsRegressor
from ..studies.data import Array
from ._networks import make_rows
from ._speed_timing import Result, Settings, best_of

SIZES = ((300, 12), (3000, 12), (3000, 100), (30_000, 12), (300_000, 12))
LEVELS = (0.05, 0.5, 0.95)
ITERATIONS, PATIENCE = 1000, 50
AGAINST_SLOWER, ON_TWO_CORES = 1.5, 1.5


def fit_claps(X: Array, y: Array, cores: int) -> None:
    """The defaults; with more than one core, members side by side."""
    n_jobs = None if cores == 1 else cores
    ClapsRegressor(tol=None, random_state=0, n_jobs=n_jobs).fit(X, y)


def fit_quantiles(X: Array, y: Array) -> None:
    """The three models of MAPIE's CQR; their threads are those of OpenMP."""
    for level in LEVELS:
        params: dict[str, Any] = {"loss": "quantile", "quantile": level}
        HistGradientBoostingRegressor(**params, random_state=0).fit(X, y)


def fit_catboost(X: Array, y: Array, cores: int) -> None:
    """All quantiles in one model, stopped early on an eighth of the rows."""
    from catboost import CatBoostRegressor

    few = np.arange(len(X)) % 8 == 0
    model = CatBoostRegressor(
        loss_function=f"MultiQuantile:alpha={','.join(map(str, LEVELS))}",
        iterations=ITERATIONS,
        random_seed=0,
        thread_count=cores,
        allow_writing_files=False,
        verbose=False,
    )
    held_out = X[few], y[few]
    model.fit(X[~few], y[~few], eval_set=held_out, early_stopping_rounds=PATIENCE)


def boosting(settings: Settings) -> Iterator[Result]:
    """``fit`` alone, with one core and with two, against each and the slower one."""
    for n, p in [(120, 3)] if settings.smoke else SIZES:
        X, y = make_rows(n, p)
        case = f"default fit, {n:,} × {p}"
        ours = []
        for cores in (1, 2):
            times = _on_cores(X, y, cores, settings)
            ours.append(times.pop("ours"))
            slower = max(times, key=lambda name: times[name])
            for name, seconds in times.items():
                bounded = name == slower and not settings.smoke
                bound = AGAINST_SLOWER if bounded else None
                what = f"{case}, {cores} core(s)"
                yield Result(what, name, ours[-1], seconds, "s", "cost", bound)
        bound = None if settings.smoke else ON_TWO_CORES
        what = f"{case}, n_jobs=2"
        yield Result(what, "one core", ours[1], ours[0], "s", "faster", bound)


def _on_cores(X: Array, y: Array, cores: int, settings: Settings) -> dict[str, float]:
    """Seconds of each fit, none of which may use more cores."""
    calls: dict[str, Callable[[], Any]] = {
        "ours": partial(fit_claps, X, y, cores),
        "3 × HistGradientBoosting": partial(fit_quantiles, X, y),
        "CatBoost MultiQuantile": partial(fit_catboost, X, y, cores),
    }
    before = torch.get_num_threads()
    torch.set_num_threads(cores)
    try:
        with threadpool_limits(cores):
            return best_of(calls, settings)
    finally:
        torch.set_num_threads(before)
