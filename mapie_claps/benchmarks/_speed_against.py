"""Speed in processes of their own: an import, and another source tree of the library.

A process sees one of the trees and has one thread; the trees take turns with the same
calls, and the shortest of several counts.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ._speed_timing import CLOCKS, Result, Settings, run_code

ALLOWED_MS = 100.0  # for an import
NOT_SLOWER = 1.1  # as a ratio, on a machine that others share

# It runs in trees of different age, so it uses names alone that all of them have.
CODE = """
import gc, json, time, timeit, warnings
import numpy as np
import torch
from mapie.regression import SplitConformalRegressor
from mapie_claps import ClapsModule, ClapsRegressor, ClapsScore

warnings.simplefilter("ignore")
torch.set_num_threads(1)
rng = np.random.default_rng(0)
X = rng.normal(size=(n, 12))
noise = rng.normal(size=n)
y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.3 * (1 + (X[:, 2] > 0)) * noise
skewed = np.exp(0.7 * X[:, 0] + 0.4 * noise)
params = {"random_state": 0, "tol": None, **params}
clock = getattr(time, clock)

def fit(target):
    return lambda: ClapsRegressor(**params).fit(X, target)

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

def networks():
    known = ClapsRegressor().get_params()
    return intervals(**({"kernel": False} if "kernel" in known else {}))

def best(call):
    return min(timeit.repeat(call, gc.enable, clock, repeats, 1))

"""
IMPORT = """
import json, time
import torch, mapie.regression, laplace
clock = time.{clock}
start = clock()
{statement}
print(json.dumps(1e3 * (clock() - start)))
"""
STATEMENTS = [
    "import mapie_claps",
    "from mapie_claps import ClapsRegressor, ClapsScore",
    "from mapie_claps import *",
]
# What, its call in CODE, rows, repeats in one process, and the bound.
CASES = [
    ("default fit, symmetric target", "fit(y)", 3000, 1, 1.5),
    ("default fit, skewed target", "fit(skewed)", 3000, 1, 1.5),
    ("ClapsModule.fit", "posterior()", 200_000, 5, NOT_SLOWER),
    ("predict_interval", "intervals()", 20_000, 3, NOT_SLOWER),
    ("predict_interval without a kernel", "networks()", 20_000, 3, NOT_SLOWER),
]


def against(settings: Settings) -> Iterator[Result]:
    """Default fit, posterior of a user's network and intervals, in both trees."""
    if settings.against is None:
        return
    here, other = Path(__file__).resolve().parents[2], settings.against.resolve()
    clock = CLOCKS[settings.clock].__name__
    # A process takes long to start: the short version has one for all cases.
    for cases in settings.size([[case] for case in CASES], [CASES]):
        n, repeats = settings.size(cases[0][2:4], (300, 1))
        given = n, repeats, clock, settings.size({}, {"max_steps": 5})
        calls = ", ".join(f"best({call})" for _, call, *_ in cases)
        code = f"n, repeats, clock, params = {given}\n{CODE}"
        code += f"print(json.dumps([{calls}]))"
        turns = [
            [run_code(code, tree) for tree in (here, other)]
            for _ in range(settings.repeats)
        ]
        both = np.min(turns, axis=0).T.tolist()  # (cases, trees)
        for (text, *_, bound), (a, b) in zip(cases, both, strict=True):
            case, tree = f"{text}, {n:,} × 12", f"tree {other.name}"
            yield Result(case, tree, a, b, "s", "cost", bound)


def imports(settings: Settings) -> Iterator[Result]:
    """What an import adds to those of torch, mapie and laplace."""
    clock = CLOCKS[settings.clock].__name__
    for statement in settings.size(STATEMENTS, STATEMENTS[:1]):
        code = IMPORT.format(clock=clock, statement=statement)
        best = min(run_code(code) for _ in range(settings.repeats))
        case = f"`{statement}` after torch, mapie and laplace"
        against = f"allowed {ALLOWED_MS:.0f} ms"
        yield Result(case, against, best, ALLOWED_MS, "ms", "cost", 1.0)
