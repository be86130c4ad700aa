"""Compare CLAPS with what a user would pick instead, on the same splits.

Methods: MAPIE's CQR, split and residual-normalised intervals on HistGradientBoosting, a
quantile forest with CQR, a random forest with crepes, NGBoost and a Gaussian process
with the std score, and ClapsRegressor() with its defaults. Each split takes at most
--max-rows rows of a seeded permutation: 60 % to fit, 20 % to calibrate, 20 % to test.
Peers are tuned over the grids in mapie_claps/benchmarks/_peers.py, and the best peer is
picked, by the cross-validated interval score on the training rows.

Finished runs are kept in OUT/rows.jsonl; the same command goes on where it stopped, and
with nothing left to run it writes the tables and the picture again.

Examples
--------
    python -m mapie_claps.benchmarks peers --smoke
    python -m mapie_claps.benchmarks peers --data FOLDER --out results
    python -m mapie_claps.benchmarks peers --csv my.csv --target price --out mine
"""

import argparse
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from . import _data
from ._peers import BY_NAME, PEERS
from ._report import write_report
from ._runs import Task, append_row, check_settings, key_of, read_rows, run_all

DESCRIPTION = "CLAPS against tuned peers: coverage, width, interval score, time"
ADVICE = 'Install what is missing with: pip install "mapie-claps[bench]"'

MAPIE_FLOOR = (1, 6)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("--data", type=Path, metavar="FOLDER", help="CSV files, target last")
    add("--datasets", nargs="+", metavar="NAME", help="files in FOLDER (paper's eight)")
    add(
        "--csv", type=Path, metavar="FILE", help="your own data: numbers, with a header"
    )
    add("--target", metavar="COLUMN", help="column of FILE to predict")
    add(
        "--methods",
        nargs="+",
        metavar="NAME",
        help=f"of {', '.join(BY_NAME)}; 'peers' for all but claps (default: all)",
    )
    add("--seeds", type=int, default=10, metavar="N", help="splits 0 to N − 1 (10)")
    add("--confidence-level", type=float, default=0.9, metavar="LEVEL")
    add("--max-rows", type=int, default=5000, metavar="N", help="rows per split (5000)")
    add("--out", type=Path, default=Path("benchmark_peers"), metavar="FOLDER")
    add("--jobs", type=int, default=1, metavar="N", help="processes (1)")
    add("--smoke", action="store_true", help="quick trial: 150 rows, short grids")


def run(arguments: argparse.Namespace) -> int:
    """Run what is missing and write the report; 1 if a run failed."""
    methods = _methods(arguments.methods)
    _check_numbers(arguments)
    datasets = _datasets(arguments)
    seeds = 1 if arguments.smoke else arguments.seeds
    settings = {
        "alpha": round(1 - arguments.confidence_level, 12),
        "max_rows": arguments.max_rows,
        "quick": arguments.smoke,
    }
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    rows = read_rows(out)
    check_settings(out, rows, settings)
    finished = {key_of(row) for row in rows}
    # Seeds outermost: what an interruption leaves is balanced over the data sets.
    tasks = [
        Task(dataset, seed, method, **settings)
        for seed in range(seeds)
        for dataset in datasets
        for method in methods
    ]
    missing = [task for task in tasks if task.key not in finished]
    failed = _run_with_bar(missing, len(tasks), arguments.jobs, out)
    wanted = {task.key for task in tasks}
    _write(write_report([r for r in read_rows(out) if key_of(r) in wanted], out))
    for (name, seed, method), message in failed:
        _write(f"FAILED {method} on {name}, seed {seed}: {message}\n")
    return 1 if failed else 0


def _run_with_bar(
    tasks: list[Task], total: int, jobs: int, out: Path
) -> list[tuple[Any, str]]:
    from tqdm import tqdm

    with tqdm(total=total, initial=total - len(tasks), unit="run") as bar:

        def done(row: dict[str, Any]) -> None:
            append_row(out, row)
            bar.set_postfix_str(f"{row['dataset']} {row['seed']} {row['method']}")
            bar.update()

        return run_all(tasks, jobs, done)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _methods(names: list[str] | None) -> list[str]:
    """Names with 'peers' spelt out, in the order of the tables; all are installed."""
    wanted = set(names or BY_NAME)
    if "peers" in wanted:
        wanted = (wanted - {"peers"}) | set(PEERS)
    unknown = sorted(wanted - set(BY_NAME))
    if unknown:
        raise ValueError(
            f"Got --methods {' '.join(unknown)}, but expected names of "
            f"{', '.join(BY_NAME)} or 'peers'."
        )
    modules = {BY_NAME[name].requires for name in wanted} - {None} | {"tqdm"}
    absent = sorted(str(m) for m in modules if find_spec(str(m)) is None)
    if absent:
        raise ValueError(f"Got no module named {', '.join(absent)}. {ADVICE}")
    installed = version("mapie")
    if tuple(int(part) for part in installed.split(".")[:2]) < MAPIE_FLOOR:
        raise ValueError(
            f"Got MAPIE {installed}, but the benchmark needs 1.6 or later, whose CQR "
            "intervals are right. Install it: pip install -U mapie"
        )
    return [name for name in BY_NAME if name in wanted]


def _check_numbers(arguments: argparse.Namespace) -> None:
    level = arguments.confidence_level
    if not 0 < level < 1:
        raise ValueError(
            f"Got --confidence-level {level}, but expected a number between 0 and 1. "
            "Use 0.9 if unsure."
        )
    for name, low in (("seeds", 1), ("jobs", 1), ("max_rows", _data.MIN_ROWS)):
        value = getattr(arguments, name)
        if value < low:
            raise ValueError(
                f"Got --{name.replace('_', '-')} {value}, but expected at least {low}. "
                "Leave it out to get the default."
            )


def _datasets(arguments: argparse.Namespace) -> list[_data.Dataset]:
    """Load what the options name: exactly one source."""
    if (arguments.csv is None) != (arguments.target is None):
        raise ValueError(
            f"Got --csv {arguments.csv} and --target {arguments.target}, but expected "
            "both or none. Give --csv FILE --target COLUMN."
        )
    named = [arguments.smoke, arguments.csv is not None, arguments.data is not None]
    if sum(named) > 1:
        raise ValueError(
            "Got more than one of --smoke, --csv and --data, but expected one source "
            "of data. Drop the others."
        )
    if arguments.smoke:
        return [_data.load_diabetes_rows()]
    if arguments.csv is not None:
        return [_data.load_csv(arguments.csv, arguments.target)]
    names = arguments.datasets or _data.PAPER_DATASETS
    return [_data.load_named(name, arguments.data) for name in names]
