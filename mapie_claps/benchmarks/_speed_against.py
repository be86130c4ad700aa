"""Speed against another source tree of the library: the same calls, in turns.

Each measurement runs in a process of its own that sees one of the trees, with one
thread; the trees take turns, and the shortest of several counts.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ._speed_timing import Result, Settings

AGAINST_BEFORE = {"default fit": 1.5, "posterior": 1.0, "intervals": 1.0}
NOISE = 0.1  # of a ratio that says "not slower", on a machine that others share

# It runs in trees of different age, so it uses names alone that all of them have.
CODE = """
import json, sys, time, warnings
import numpy as np
import torch
from mapie.regression import SplitConformalRegressor
from mapie_claps import ClapsModule, ClapsRegressor, ClapsScore

warnings.simplefilter("ignore")
torch.set_num_threads(1)
case, n, steps, repeats, clock = json.loads(sys.argv[1])
clock = getattr(time, clock)
rng = np.random.default_rng(0)
X = rng.normal(size=(n, 12))
noise = rng.normal(size=n)
y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.3 * (1 + (X[:, 2] > 0)) * noise
skewed = np.exp(0.7 * X[:, 0] + 0.4 * noise)
params = {"random_state": 0, "tol": None}
if steps:
    params["max_steps"] = steps

def best(call):
    times = []
    for _ in range(repeats):
        start = clock()
        call()
        times.append(clock() - start)
    return min(times)

if case == "symmetric":
    found = best(lambda: ClapsRegressor(**params).fit(X, y))
elif case == "skewed":
    found = best(lambda: ClapsRegressor(**params).fit(X, skewed))
elif case == "posterior":
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(12, 64), torch.nn.SiLU(), torch.nn.Linear(64, 64),
        torch.nn.SiLU(), torch.nn.Linear(64, 1)).double().eval()
    h2 = lambda x: 0.1 + x[:, 0] ** 2
    model = ClapsModule(net, noise_variance=h2, prior_precision=1.0)
    found = best(lambda: model.fit(X, y))
else:
    params["max_steps"] = 30
    model = ClapsRegressor(**params).fit(X[:2000], y[:2000])
    mapie = SplitConformalRegressor(model, 0.9, ClapsScore(), prefit=True)
    mapie.conformalize(X[-1000:], y[-1000:])
    found = best(lambda: mapie.predict_interval(X))
print(json.dumps(found))
"""


def against(settings: Settings) -> Iterator[Result]:
    """Default fit, posterior of a user's network and intervals, in both trees."""
    other = settings.against
    if other is None:
        return
    rows, steps = settings.size(3000, 60), settings.size(0, 5)
    cases = [
        ("default fit", "symmetric", rows, f"{rows:,} × 12, symmetric target"),
        ("default fit", "skewed", rows, f"{rows:,} × 12, skewed target"),
        ("posterior", "posterior", settings.size(200_000, 300), "ClapsModule.fit"),
        ("intervals", "intervals", settings.size(200_000, 300), "predict_interval"),
    ]
    here = Path(__file__).resolve().parents[2]
    for kind, case, n, text in cases:
        best = {here: float("inf"), other: float("inf")}
        inner = 1 if kind == "default fit" else 5
        for _ in range(settings.repeats):
            for tree in best:
                found = _run(tree, [case, n, steps, inner, _clock(settings)])
                best[tree] = min(best[tree], found)
        size = text if kind == "default fit" else f"{text}, {n:,} × 12"
        bound = AGAINST_BEFORE[kind] + (0 if kind == "default fit" else NOISE)
        yield Result(
            f"{kind}, {size}",
            f"the tree {other.name}",
            best[here],
            best[other],
            "s",
            "cost",
            None if settings.smoke else bound,
        )


def _clock(settings: Settings) -> str:
    return "process_time" if settings.clock == "cpu" else "perf_counter"


def _run(tree: Path, arguments: list[object]) -> float:
    """Seconds of one case with one tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE, json.dumps(arguments)],
        capture_output=True,
        text=True,
        cwd=tree,
        env=environment,
    )
    if done.returncode:
        raise RuntimeError(
            f"Got an error from the tree {tree.name}:\n{done.stderr.strip()[-2000:]}"
        )
    return float(json.loads(done.stdout.splitlines()[-1]))
