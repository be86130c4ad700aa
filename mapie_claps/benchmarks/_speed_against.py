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
from typing import NamedTuple

from ._speed_timing import CLOCKS, Result, Settings

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
cases, n, steps, repeats, clock = json.loads(sys.argv[1])
clock = getattr(time, clock)
rng = np.random.default_rng(0)
X = rng.normal(size=(n, 12))
noise = rng.normal(size=n)
y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.3 * (1 + (X[:, 2] > 0)) * noise
skewed = np.exp(0.7 * X[:, 0] + 0.4 * noise)
params = {"random_state": 0, "tol": None}
params |= {"max_steps": steps} if steps else {}

def fit_symmetric():
    return lambda: ClapsRegressor(**params).fit(X, y)

def fit_skewed():
    return lambda: ClapsRegressor(**params).fit(X, skewed)

def posterior():
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(12, 64), torch.nn.SiLU(), torch.nn.Linear(64, 64),
        torch.nn.SiLU(), torch.nn.Linear(64, 1)).double().eval()
    h2 = lambda x: 0.1 + x[:, 0] ** 2
    model = ClapsModule(net, noise_variance=h2, prior_precision=1.0)
    return lambda: model.fit(X, y)

def intervals(**others):
    few = params | {"max_steps": 30} | others
    model = ClapsRegressor(**few).fit(X[:2000], y[:2000])
    mapie = SplitConformalRegressor(model, 0.9, ClapsScore(), prefit=True)
    mapie.conformalize(X[-1000:], y[-1000:])
    return lambda: mapie.predict_interval(X)

def intervals_of_networks():
    known = ClapsRegressor().get_params()
    return intervals(**({"kernel": False} if "kernel" in known else {}))

def best(call):
    times = []
    for _ in range(repeats):
        start = clock()
        call()
        times.append(clock() - start)
    return min(times)

print(json.dumps([best(globals()[case]()) for case in cases]))
"""


class Case(NamedTuple):
    """A function of ``CODE``, and what is asked of it."""

    function: str
    text: str
    rows: int
    repeats: int  # in one process
    bound: float


CASES = (
    Case("fit_symmetric", "default fit, symmetric target", 3000, 1, 1.5),
    Case("fit_skewed", "default fit, skewed target", 3000, 1, 1.5),
    Case("posterior", "ClapsModule.fit", 200_000, 5, 1.0 + NOISE),
    Case("intervals", "predict_interval", 20_000, 3, 1.0 + NOISE),
    Case(
        "intervals_of_networks",
        "predict_interval without a kernel",
        20_000,
        3,
        1.0 + NOISE,
    ),
)


def against(settings: Settings) -> Iterator[Result]:
    """Default fit, posterior of a user's network and intervals, in both trees."""
    other, here = settings.against, Path(__file__).resolve().parents[2]
    if other is None:
        return
    clock = CLOCKS[settings.clock].__name__
    if settings.smoke:  # a process takes long to start
        names = [case.function for case in CASES]
        ours, others = (_run(t, [names, 300, 5, 1, clock]) for t in (here, other))
        for case, a, b in zip(CASES, ours, others, strict=True):
            yield Result(case.text, f"tree {other.name}", a, b, "s", "cost")
        return
    for case in CASES:
        arguments: list[object] = [
            [case.function],
            case.rows,
            0,
            case.repeats,
            clock,
        ]
        # The trees take turns.
        turns = [
            [_run(tree, arguments)[0] for tree in (here, other)]
            for _ in range(settings.repeats)
        ]
        both = min(t[0] for t in turns), min(t[1] for t in turns)
        text = f"{case.text}, {case.rows:,} × 12"
        yield Result(text, f"tree {other.name}", *both, "s", "cost", case.bound)


def _run(tree: Path, arguments: list[object]) -> list[float]:
    """Seconds of some cases with one tree."""
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
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found
