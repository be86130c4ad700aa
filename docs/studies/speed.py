"""Time of CLAPS beside what it is compared with, as ratios of calls in turns.

The shortest of several turns counts, so that others on the same machine disturb ratios
little. Everything is measured with one thread and with two.

fit   the default fit against three quantile fits of HistGradientBoosting
rows  20,000 intervals against three predictions of HistGradientBoosting
row   one row through CalibratedRegressor against MAPIE's SplitConformalRegressor

With ``--beside FOLDER``, which holds another commit's mapie_claps, each call of ours is
also made there, in turns; ``--python`` is an interpreter for that commit.

    python docs/studies/speed.py --smoke
    python docs/studies/speed.py --out docs/benchmarks/speed
    python docs/studies/speed.py --beside ../old --out before
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from functools import cache, partial
from pathlib import Path
from typing import Any

import engine
import numpy as np
import pandas as pd
import torch
from engine import Array
from mapie.regression import SplitConformalRegressor
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from mapie_claps import CalibratedRegressor, ClapsRegressor, ClapsScore

SMALL, LARGE = (3_000, 12), (30_000, 12)
SIZES = ((300, 12), SMALL, LARGE, (3_000, 100))
HEADER = ("what", "threads", "CLAPS", "against", "its figure", "ratio")
BOOSTING = "3 × HistGradientBoosting"
Result = tuple[str, str, int, float, str, float]  # see FIELDS
FIELDS = ("section", "case", "threads", "ours", "against", "other")


# Calls, made in the process of each commit with names that all commits have -----------


def make_rows(n: int, p: int, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    return X, np.sin(X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * rng.standard_normal(n)


def new_model(smoke: bool) -> ClapsRegressor:
    params = {"max_steps": 5, "n_members": 1} if smoke else {}
    return ClapsRegressor(random_state=0, **params)


def boosting(n: int, p: int) -> list[Any]:
    """The three models of MAPIE's CQR."""
    make = partial(HistGradientBoostingRegressor, loss="quantile", random_state=0)
    return [make(quantile=level).fit(*make_rows(n, p)) for level in (0.05, 0.5, 0.95)]


@cache
def fitted(what: str, n: int, p: int, smoke: bool) -> Any:
    """Models whose fit is not measured; the last is that of the size in hand."""
    if what == "boosting":
        return boosting(n, p)
    if what == "model":
        return new_model(smoke).fit(*make_rows(n, p))
    model, held = fitted("model", n, p, smoke), make_rows(999, p, seed=2)
    if what == "mapie":
        host = SplitConformalRegressor(model, 0.9, ClapsScore(), prefit=True)
        return host.conformalize(*held)
    return CalibratedRegressor(model).conformalize(*held)


def calls(name: str, n: int, p: int, smoke: bool) -> tuple[Callable[[], Any], int]:
    """A function to measure, and how often it is called in a turn."""
    X, y = make_rows(n, p)
    new = make_rows(200 if smoke else 20_000, p, seed=1)[0]
    few = 2 if smoke else 100
    get = partial(fitted, n=n, p=p, smoke=smoke)
    match name:
        case "fit":
            return partial(new_model(smoke).fit, X, y), 1
        case "fit of boosting":
            return partial(boosting, n, p), 1
        case "rows":
            return partial(get("calibrated").predict_interval, new), 1
        case "rows of boosting":
            models = get("boosting")
            return lambda: [model.predict(new) for model in models], 1
        case "row":
            return partial(get("calibrated").predict_interval, X[:1]), few
    return partial(get("mapie").predict_interval, X[:1]), few


def serve() -> int:
    """Measure what each line of the input asks for: a call, its size and threads."""
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        name, n, p, threads, smoke, cpu = json.loads(line)
        clock = time.process_time if cpu else time.perf_counter
        function, count = calls(name, n, p, smoke)
        torch.set_num_threads(threads)
        gc.collect()
        with threadpool_limits(threads):
            start = clock()
            for _ in range(count):
                function()
            print((clock() - start) / count, flush=True)
    return 0


# The command --------------------------------------------------------------------------


MAPIE = "MAPIE's SplitConformalRegressor"
#: What ours is called, what it is compared with and its call, for which sizes.
SECTIONS: dict[str, tuple[str, str, str, Sequence[tuple[int, int]]]] = {
    "fit": ("default fit", BOOSTING, "fit of boosting", SIZES),
    "rows": ("20,000 intervals", BOOSTING, "rows of boosting", (SMALL, LARGE)),
    "row": ("one row", MAPIE, "row of MAPIE", (SMALL,)),
}


class Server:
    """A process with a commit of the package, which makes the calls it is told to."""

    def __init__(self, python: str, folder: Path | None = None) -> None:
        path = os.pathsep.join([str(folder)] if folder else filter(None, sys.path))
        command = [python, str(Path(__file__).resolve()), "--serve"]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        environment = os.environ | {"PYTHONPATH": path}
        self.process: Any = subprocess.Popen(
            command, env=environment, text=True, **pipes
        )

    def seconds(self, *call: Any) -> float:
        self.process.stdin.write(json.dumps(call) + "\n")
        self.process.stdin.flush()
        if not (answer := self.process.stdout.readline()):
            raise RuntimeError(f"{self.process.args} failed at {call}; see its error.")
        return float(answer)


def measure(
    name: str, servers: Mapping[str, Server], arguments: argparse.Namespace
) -> Iterator[Result]:
    """All calls of a section in turns, one line for each thing that is compared."""
    (title, peer, its_call, sizes), (ours, *others) = SECTIONS[name], servers
    for n, p in ((60, 3),) if arguments.smoke else sizes:
        for threads in (1,) if arguments.smoke else (1, 2):  # two spin if it is busy
            turns = {ours: (ours, name), peer: (ours, its_call)}
            turns |= {other: (other, name) for other in others}
            best = dict.fromkeys(turns, float("inf"))
            for _ in range(1 if arguments.smoke else arguments.repeats):
                for what, (where, call) in turns.items():
                    options = threads, arguments.smoke, arguments.cpu
                    seconds = servers[where].seconds(call, n, p, *options)
                    best[what] = min(best[what], seconds)
            case = f"{title}, {n:,} × {p}"
            for what in list(turns)[1:]:
                yield name, case, threads, best[ours], what, best[what]


def cells(result: Result) -> list[str]:
    _, case, threads, ours, against, other = result
    texts = [f"{t:.3g} s" if t >= 1 else f"{1e3 * t:.3g} ms" for t in (ours, other)]
    return [case, str(threads), texts[0], against, texts[1], f"{ours / other:.2f}"]


def main(given: Sequence[str] | None = None) -> int:
    parser = engine.new_parser(__doc__, "speed_results")
    add, names = parser.add_argument, list(SECTIONS)
    add("--only", nargs="+", default=names, choices=names, metavar="NAME", help="all")
    add("--repeats", type=int, default=5, metavar="N", help="best of N (5)")
    add("--cpu", action="store_true", help="processor time, for a busy machine")
    add("--beside", type=Path, metavar="FOLDER", help="with another mapie_claps")
    add("--python", default=sys.executable, help="interpreter for --beside (this one)")
    add("--serve", action="store_true", help=argparse.SUPPRESS)
    return engine.run_command(parser, run, given)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the table as it grows, and write it."""
    if arguments.serve:
        return serve()
    servers, tables, found = {"CLAPS": Server(sys.executable)}, [], []
    if folder := arguments.beside:
        servers[folder.resolve().name] = Server(arguments.python, folder.resolve())
    try:
        for name in arguments.only:
            own = []
            for result in measure(name, servers, arguments):
                own.append(result)
                print(f"| {' | '.join(cells(result))} |", flush=True)
            text = engine.markdown_table(HEADER, map(cells, own), "lrrlrr")
            tables.append(f"## {name.capitalize()}\n\n{text}")
            found += own
    finally:
        for server in servers.values():
            server.process.communicate()
    text = "\n".join([*tables, f"Measured on {date.today().isoformat()}.\n"])
    files = {
        "speed.md": text,
        "speed.csv": pd.DataFrame(found, columns=FIELDS).to_csv(index=False),
    }
    engine.write_files(files, arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
