"""Time of CLAPS beside what it is compared with, as ratios within one process.

Everything in a section is measured in turns in one process, with one thread or two; the
shortest of several counts, so that others on the same machine disturb ratios little.

fit     the default fit against three quantile fits of HistGradientBoosting
rows    20,000 intervals against three predictions of HistGradientBoosting
row     one row through CalibratedRegressor against MAPIE's SplitConformalRegressor
import  the package, in a new process, against torch, scikit-learn and MAPIE

With ``--against PYTHON``, an interpreter of an environment with another commit of
mapie_claps, the same fits and intervals run there too, in turns with those here.

    python docs/studies/speed.py --smoke
    python docs/studies/speed.py --out docs/benchmarks/speed
    python docs/studies/speed.py --only fit --against ../old/.venv/bin/python
"""

import argparse
import gc
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import engine
import numpy as np
from engine import Array
from mapie.regression import SplitConformalRegressor
from sklearn.ensemble import HistGradientBoostingRegressor

from mapie_claps import CalibratedRegressor, ClapsRegressor, ClapsScore

SIZES = ((300, 12), (3_000, 12), (30_000, 12), (3_000, 100))
N_INTERVALS = 20_000
HEADER = ("what", "threads", "CLAPS", "against", "its figure", "ratio")
HISTGB = "3 × HistGradientBoosting"
IMPORTS = {
    "CLAPS": "from mapie_claps import ClapsRegressor, CalibratedRegressor",
    "torch + scikit-learn + MAPIE": "import torch, sklearn.ensemble, mapie.regression",
}
Calls = Mapping[str, Callable[[], Any]]
# A process that makes the calls it is told to, with names that all commits have.
WORKER = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
import numpy as np, torch
from mapie.regression import SplitConformalRegressor
from mapie_claps import ClapsRegressor, ClapsScore
torch.set_num_threads(1)

def make_rows(n, p):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, p))
    return X, np.sin(X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * rng.standard_normal(n)

for line in sys.stdin:
    call, n, p, n_new, params = json.loads(line)
    if call == "fit":
        (X, y), model = make_rows(n, p), ClapsRegressor(random_state=0, **params)
        start = time.perf_counter()
        model.fit(X, y)
    else:
        X, y = make_rows(n_new, p)
        mapie = SplitConformalRegressor(model, 0.9, ClapsScore(), prefit=True)
        mapie.conformalize(X[-999:], y[-999:])
        start = time.perf_counter()
        mapie.predict_interval(X)
    print(time.perf_counter() - start, flush=True)
"""


class Result(NamedTuple):
    """One line of the table; a ratio above one says that CLAPS takes longer."""

    section: str
    case: str
    threads: int
    ours: float
    against: str
    other: float

    @property
    def cells(self) -> list[str]:
        ours, other = map(in_units, (self.ours, self.other))
        ratio = f"{self.ours / self.other:.2f}"
        return [self.case, str(self.threads), ours, self.against, other, ratio]


def in_units(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


@contextmanager
def on_threads(n: int) -> Iterator[None]:
    """No more threads than n, of torch and of OpenMP; what was set comes back."""
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        with threadpool_limits(n):
            yield
    finally:
        torch.set_num_threads(before)


def compare(
    case: str, calls: Calls, arguments: argparse.Namespace, n: int = 1
) -> Iterator[Result]:
    """One function against another, in turns of n calls."""
    for threads in (1,) if arguments.smoke else (1, 2):  # two spin on a busy machine
        best = dict.fromkeys(calls, float("inf"))
        for _ in range(arguments.repeats):
            for name, function in calls.items():
                gc.collect()
                with on_threads(threads):
                    start = time.perf_counter()
                    for _ in range(n):
                        function()
                    best[name] = min(best[name], (time.perf_counter() - start) / n)
        (_, ours), (name, other) = best.items()
        yield Result("", case, threads, ours, name, other)


def make_rows(n: int, p: int, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    return X, np.sin(X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * rng.standard_normal(n)


def boosting(X: Array, y: Array) -> list[Any]:
    """The three models of MAPIE's CQR."""
    make = partial(HistGradientBoostingRegressor, loss="quantile", random_state=0)
    return [make(quantile=level).fit(X, y) for level in (0.05, 0.5, 0.95)]


def fits(arguments: argparse.Namespace) -> Iterator[Result]:
    for n, p in arguments.sizes:
        X, y = make_rows(n, p)
        model = ClapsRegressor(random_state=0, **arguments.params)
        calls = {"CLAPS": partial(model.fit, X, y), HISTGB: partial(boosting, X, y)}
        yield from compare(f"default fit, {n:,} × {p}", calls, arguments)


def rows(arguments: argparse.Namespace) -> Iterator[Result]:
    n_new = 200 if arguments.smoke else N_INTERVALS
    for n, p in arguments.sizes[1:3] or arguments.sizes:
        X, y = make_rows(n, p)
        new = make_rows(n_new, p, seed=1)[0]
        model = ClapsRegressor(random_state=0, **arguments.params).fit(X, y)
        conformal = CalibratedRegressor(model).conformalize(*make_rows(999, p, seed=2))
        models = boosting(X, y)
        calls = {
            "CLAPS": partial(conformal.predict_interval, new),
            HISTGB: lambda models=models, new=new: [m.predict(new) for m in models],
        }
        case = f"{n_new:,} intervals, fitted on {n:,} × {p}"
        yield from compare(case, calls, arguments)


def one_row(arguments: argparse.Namespace) -> Iterator[Result]:
    """One NumPy row of one model: through our calibrated object, and through MAPIE."""
    n, p = arguments.sizes[-3:][0]
    X, y = make_rows(n, p)
    model, held = (
        ClapsRegressor(random_state=0, **arguments.params),
        make_rows(999, p, seed=2),
    )
    conformal = CalibratedRegressor(model.fit(X, y)).conformalize(*held)
    mapie = SplitConformalRegressor(model, 0.9, ClapsScore(), prefit=True)
    mapie.conformalize(*held)
    calls = {
        "CLAPS": partial(conformal.predict_interval, X[:1]),
        "MAPIE's SplitConformalRegressor": partial(mapie.predict_interval, X[:1]),
    }
    case, n_calls = f"one row, fitted on {n:,} × {p}", 2 if arguments.smoke else 50
    yield from compare(case, calls, arguments, n_calls)


def imports(arguments: argparse.Namespace) -> Iterator[Result]:
    times: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for _ in range(arguments.repeats):
        for name, statement in IMPORTS.items():
            code = f"import time; t = time.perf_counter(); {statement}"
            code += "; print(time.perf_counter() - t)"
            command = [sys.executable, "-I", "-c", code]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            times[name].append(float(done.stdout))
    (_, ours), (name, other) = ((k, min(v)) for k, v in times.items())
    yield Result("", f"`{IMPORTS['CLAPS']}`", 1, ours, name, other)


def against(arguments: argparse.Namespace) -> Iterator[Result]:
    """Both interpreters stay alive and take turns with the same calls."""
    if arguments.against is None:
        return
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [
        subprocess.Popen([path, "-I", "-c", WORKER], **pipes)  # its own package
        for path in (sys.executable, str(arguments.against))
    ]

    def ask(process: Any, *call: Any) -> float:
        process.stdin.write(json.dumps([*call, arguments.params]) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{process.args[0]} failed at {call}; see its error.")
        return float(answer)

    n_new = 1_200 if arguments.smoke else N_INTERVALS
    try:
        for n, p in arguments.sizes:
            for call, what in (
                ("fit", "default fit"),
                ("rows", f"{n_new:,} intervals"),
            ):
                turns = [
                    [ask(process, call, n, p, n_new) for process in processes]
                    for _ in range(arguments.repeats)
                ]
                ours, other = np.min(turns, axis=0).tolist()
                name = arguments.against.parent.parent.name  # NAME/bin/python
                yield Result("", f"{what}, {n:,} × {p}", 1, ours, name, other)
    finally:
        for process in processes:
            process.communicate()


SECTIONS: dict[str, Callable[[argparse.Namespace], Iterator[Result]]] = {
    **{"fit": fits, "rows": rows, "row": one_row},
    **{"import": imports, "against": against},
}


def main(given: Sequence[str] | None = None) -> int:
    parser = engine.new_parser(__doc__, "speed_results")
    add = parser.add_argument
    names = list(SECTIONS)
    add(
        "--only",
        nargs="+",
        default=names,
        choices=names,
        metavar="NAME",
        help="sections",
    )
    add("--repeats", type=int, default=5, metavar="N", help="best of N (5)")
    add("--against", type=Path, metavar="PYTHON", help="interpreter of another commit")
    return engine.run_command(parser, run, given)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the table as it grows, and write it."""
    arguments.sizes, arguments.params = SIZES, {}  # of ClapsRegressor: its defaults
    if arguments.smoke:
        arguments.sizes, arguments.repeats = ((60, 3),), 1
        arguments.params = {"max_steps": 5, "n_members": 1}
    found: list[Result] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in arguments.only:
            for result in SECTIONS[name](arguments):
                found.append(result._replace(section=name))
                print(f"| {' | '.join(result.cells)} |", flush=True)
    own = [[r for r in found if r.section == name] for name in arguments.only]
    tables = [
        f"## {rows[0].section.capitalize()}\n\n"
        + engine.markdown_table(HEADER, (r.cells for r in rows), "lrrlrr")
        for rows in own
        if rows
    ]
    text = "\n".join([*tables, f"Measured on {date.today().isoformat()}.\n"])
    files = {"speed.md": text, "speed.csv": engine.csv_table(Result._fields, found)}
    engine.write_files(files, arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
