"""Import time, and processes side by side."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from joblib import parallel_config
from sklearn.model_selection import GridSearchCV

from ..conformal.score import ClapsScore
from ..estimators.regressor import ClapsRegressor
from ._speed_timing import Result, Settings, best_of, run_code
from ._speed_training import make_rows

ALLOWED_MS = 100.0
IMPORT = """
import json, time
import torch, mapie.regression, laplace
clock = time.{clock}
start = clock()
{statement}
print(json.dumps(1e3 * (clock() - start)))
"""
CLOCK_NAMES = {"wall": "perf_counter", "cpu": "process_time"}
STATEMENTS = (
    "import mapie_claps",
    "from mapie_claps import ClapsRegressor, ClapsScore",
    "from mapie_claps import *",
)


def imports(settings: Settings) -> Iterator[Result]:
    """Item 5: what an import adds to those of torch, mapie and laplace."""
    for statement in STATEMENTS[: settings.size(3, 1)]:
        code = IMPORT.format(clock=CLOCK_NAMES[settings.clock], statement=statement)
        times = [run_code(code) for _ in range(settings.repeats)]
        yield Result(
            "import",
            f"`{statement}` after torch, mapie and laplace",
            f"allowed {ALLOWED_MS:.0f} ms",
            min(times),
            ALLOWED_MS,
            "ms",
            "cost",
            1.0,
        )


def threads(settings: Settings) -> Iterator[Result]:
    """Item 6: two processes against one, by the clock on the wall."""
    steps, n = settings.size(400, 5), settings.size(2000, 100)
    X, y = (a.astype(np.float64) for a in make_rows(n, 8))

    def regressor() -> ClapsRegressor:
        return ClapsRegressor(max_steps=steps, tol=None, random_state=0)

    def search(n_jobs: int) -> Any:
        grid = {"weight_decay": [1e-4, 1e-3]}
        return GridSearchCV(regressor(), grid, n_jobs=n_jobs, cv=2).fit(X, y)

    def cross(n_jobs: int) -> Any:
        from mapie.regression import CrossConformalRegressor

        return CrossConformalRegressor(
            regressor(), conformity_score=ClapsScore(), cv=4, n_jobs=n_jobs
        ).fit_conformalize(X, y)

    calls: dict[str, Callable[[int], Any]] = {
        "GridSearchCV": search,
        "CrossConformalRegressor": cross,
    }
    # Processes take long to start: the short version makes do with threads.
    backend = "threading" if settings.smoke else "loky"
    for name, call in calls.items():
        with parallel_config(backend):
            call(2)  # starts the workers, which joblib keeps, and their imports
            best = best_of(
                {"1": partial(call, 1), "2": partial(call, 2)},
                replace(settings, clock="wall"),
            )
        yield Result(
            "threads",
            f"{name}(n_jobs=2) over ClapsRegressor, {n:,} × 8",
            "n_jobs=1",
            best["2"],
            best["1"],
            "s",
            "faster",
            1.0,
        )
