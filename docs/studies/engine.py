"""What the studies share: data, splits, stored runs, estimates and tables of text.

A study makes a list of :class:`Run`, hands it to :func:`run_missing` and makes its
tables from the rows of the runs that are finished. ``OUT/runs.jsonl`` holds one line
for each of them: ``key`` (see :func:`run_key`), ``rows`` (what the run found),
``seconds`` and ``cpu_seconds``. A run is found again only if its whole key is the same:
other data, another split, parameter or version of the code is another run, so that one
folder may hold all of them, and an interrupted command goes on where it stopped.
"""

import argparse
import csv
import hashlib
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import redirect_stdout, suppress
from dataclasses import asdict, dataclass, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Row = dict[str, Any]
Line = dict[str, Any]

PAPER_DATASETS = (
    *("concrete", "energy", "yacht", "airfoil", "wine_red"),
    *("naval", "bike", "california"),
)
MIN_ROWS = 50  # below, a fifth of the rows cannot calibrate a level of 0.9
MAX_ROWS = 5000
FILE = "runs.jsonl"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

#: Part of every key. Raise "protocol" when splits, the tuning of peers or a measure
#: change: all runs are then computed again. Raise "claps" when a fitted ClapsRegressor
#: or ClapsScore predicts something else with the same parameters: only the runs that
#: contain it are computed again. Other defaults need neither: they are in the key.
RESULTS_VERSION = {"protocol": 1, "claps": 7}


# Commands -----------------------------------------------------------------------------


def new_parser(description: str | None, out: str) -> argparse.ArgumentParser:
    """Parser with the options that all studies share."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path(out), metavar="FOLDER", help=f"({out})")
    add("--jobs", type=int, default=1, metavar="N", help="processes of one thread (1)")
    add("--smoke", action="store_true", help="quick trial: shows that it runs, no more")
    return parser


def run_command(
    parser: argparse.ArgumentParser,
    run: Callable[[argparse.Namespace], int],
    given: Sequence[str] | None,
) -> int:
    """Run a study and return its exit status; bad input ends with its message."""
    arguments = parser.parse_args(given)
    try:
        return run(arguments)
    except (ValueError, OSError, RuntimeError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted; the same command continues from here.\n")
        return 130


# Data ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dataset:
    """Features (n, p) and targets (n,), with the names of data set and target."""

    name: str
    X: Array
    y: Array
    target: str = "y"

    @cached_property
    def key(self) -> dict[str, str]:
        """What the key of a run says of the data: the layout of the file is free."""
        found = hashlib.sha256(repr(self.X.shape).encode())
        for column in (*self.X.T, self.y):
            found.update(np.ascontiguousarray(column, dtype=np.float64).tobytes())
        digest = found.hexdigest()[:16]
        return {"name": self.name, "target": self.target, "sha256": digest}


def load_named(name: str, folder: Path | None) -> Dataset:
    """Numbers of ``folder/name.csv``, with a header; the last column is the target."""
    if folder is None or not (folder / f"{name}.csv").is_file():
        raise ValueError(
            f"Got --data {folder}, but expected a folder with {name}.csv, whose last "
            "column is the target. Correct it, or try --smoke, which needs no data."
        )
    with (folder / f"{name}.csv").open(newline="", encoding="utf-8-sig") as stream:
        header = [column.strip() for column in next(csv.reader(stream), [])]
        values = np.loadtxt(stream, delimiter=",", ndmin=2, comments=None)
    if len(values) < MIN_ROWS or not np.isfinite(values).all():
        raise ValueError(
            f"Got {len(values)} rows and {np.sum(~np.isfinite(values))} gaps in "
            f"{name}.csv, but expected {MIN_ROWS} rows without any. Repair the file."
        )
    return Dataset(name, values[:, :-1], values[:, -1], header[-1])


def load_diabetes_rows(n_rows: int = 150) -> Dataset:
    """First rows of scikit-learn's diabetes data, for trials."""
    from sklearn.datasets import load_diabetes

    X, y = load_diabetes(return_X_y=True)
    return Dataset("diabetes", X[:n_rows], y[:n_rows].astype(np.float64))


class Split(NamedTuple):
    """Rows to train on, to calibrate with and to test on."""

    X_train: Array
    y_train: Array
    X_cal: Array
    y_cal: Array
    X_test: Array
    y_test: Array


def split_rows(
    data: Dataset, seed: int, max_rows: int, count: Callable[[int], tuple[int, int]]
) -> Split:
    """At most ``max_rows`` rows in a seeded order: training, calibration, test.

    ``count`` gives the numbers of training and calibration rows of n.
    """
    order = np.random.default_rng(seed).permutation(len(data.y))[:max_rows]
    parts = np.split(order, np.cumsum(count(len(order))))
    return Split(*(a for rows in parts for a in (data.X[rows], data.y[rows])))


# Runs ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """What to compute, and the key under which it is kept."""

    label: str  # for the progress bar and for errors
    key: dict[str, Any]  # see run_key
    compute: Callable[[], list[Row]]  # with several processes it must be picklable


def run_key(
    study: str,
    *,
    data: Mapping[str, Any],
    split: Mapping[str, Any],
    method: Mapping[str, Any],
    uses_claps: bool = True,
) -> dict[str, Any]:
    """All that a run depends on, as it is read back from JSON.

    ``data`` is the data set with a hash of its content, or how it is generated;
    ``split`` seed and sizes; ``method`` name and all parameters. ``uses_claps`` is
    False for methods that the studies only measure.
    """
    names = ("protocol", "claps") if uses_claps else ("protocol",)
    version = {name: RESULTS_VERSION[name] for name in names}
    key = {"study": study, "data": data, "split": split, "method": method}
    text = json.dumps(
        key | {"version": version},
        default=lambda v: asdict(v) if is_dataclass(v) else repr(v),  # type: ignore
    )
    plain: dict[str, Any] = json.loads(text)
    return plain


def claps_parameters(model: Any) -> dict[str, Any]:
    """All parameters of a regressor for the key, with every number of its recipe."""
    from mapie_claps.estimators.recipe import RECIPES

    found = model.get_params(deep=False)
    for name in ("random_state", "verbose"):  # the seed is the split's
        del found[name]
    recipe = found["recipe"]
    return found | {"recipe": RECIPES[recipe] if isinstance(recipe, str) else recipe}


def stored_lines(folder: Path) -> list[Line]:
    """All finished runs; a line that an interruption cut short is left out."""
    file, found = folder / FILE, []
    for text in file.read_text("utf-8").splitlines() if file.is_file() else ():
        with suppress(json.JSONDecodeError):
            found.append(json.loads(text))
    return found


def store_line(line: Line, folder: Path) -> None:
    """Append one run, after ending a line that was cut short."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / FILE).open("a+b") as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - 1))
        cut = stream.read() not in (b"", b"\n")
        text = json.dumps(line, ensure_ascii=False)
        stream.write((("\n" if cut else "") + text + "\n").encode())


def identity(key: Mapping[str, Any]) -> str:
    """A key as one string, whatever the order of its parts."""
    return json.dumps(key, sort_keys=True)


def run_missing(runs: Sequence[Run], out: Path, jobs: int = 1) -> list[str]:
    """Compute what is not stored in ``out``, and store each run once it is finished.

    Runs that raise are returned in words, and the others go on: one failure must not
    end hours of work.
    """
    from tqdm import tqdm  # comes with laplace-torch

    finished = {identity(line["key"]) for line in stored_lines(out)}
    pending = [run for run in runs if identity(run.key) not in finished]
    failures = []
    with tqdm(total=len(runs), initial=len(runs) - len(pending), unit="run") as bar:
        for label, result in _results(pending, jobs):
            if isinstance(result, str):
                failures.append(f"FAILED {label}: {result}\n")
            else:
                store_line(result, out)
            bar.set_postfix_str(label)
            bar.update()
    return failures


def finished_rows(runs: Sequence[Run], out: Path) -> list[Row]:
    """Rows of the runs that are finished, in the order of the runs."""
    stored = {identity(line["key"]): line["rows"] for line in stored_lines(out)}
    return [row for run in runs for row in stored.get(identity(run.key), ())]


def _results(runs: Sequence[Run], jobs: int) -> Iterator[tuple[str, Line | str]]:
    """Labels with lines, or errors in words, in the order in which the runs end."""
    if jobs == 1 or len(runs) < 2:
        yield from map(_compute, runs)
        return
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))  # of the new processes
    # A forked process may hang in torch; a spawned one starts clean.
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"))
    try:
        for future in as_completed([pool.submit(_compute, run) for run in runs]):
            yield future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _compute(run: Run) -> tuple[str, Line | str]:
    """The line of a run, computed on one thread, or its error."""
    from threadpoolctl import threadpool_limits

    started, worked = time.perf_counter(), time.process_time()
    try:
        # Standard output is the report's.
        with threadpool_limits(1), redirect_stdout(sys.stderr):
            line: Line = {"key": run.key, "rows": run.compute()}
    except Exception as error:
        return run.label, f"{type(error).__name__}: {error}"
    line["seconds"] = time.perf_counter() - started
    return run.label, line | {"cpu_seconds": time.process_time() - worked}


def score_intervals(
    y: Array, lower: Array, upper: Array, alpha: float
) -> dict[str, float]:
    from mapie_claps.metrics import evaluate_intervals

    bounds = np.stack([lower, upper], axis=1)
    found = evaluate_intervals(y, bounds, 1 - alpha)
    names = {"coverage": "coverage", "width": "width", "interval_score": "score"}
    return {name: float(found[figure][0]) for name, figure in names.items()}


@dataclass(frozen=True)
class Estimate:
    """Mean over runs, its standard error (NaN for one run), and the number of runs."""

    mean: float
    error: float
    n: int


def estimate(values: Iterable[float | None]) -> Estimate:
    """Mean and standard error of numbers; None and NaN are left out."""
    given = np.array([v for v in values if v is not None and v == v], dtype=np.float64)
    n = len(given)
    mean = float(given.mean()) if n else math.nan
    error = float(given.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan
    return Estimate(mean, error, n)


def covered_rank(n_cal: int, alpha: float, n_ranks: int = 1) -> int:
    """How many of the n + 1 gaps between calibration scores an interval holds.

    One rank holds the k smallest. Two hold what lies between the k-th score and the
    k-th from the other end, with k for α/2: 2k − n − 1 gaps. The coverage given the
    calibration rows is Beta(k, n + 1 − k) with this number, which may be n + 1.
    """
    from mapie_claps import conformal_rank

    rank = min(conformal_rank(n_cal, alpha / n_ranks), n_cal + 1)
    return rank if n_ranks == 1 else 2 * rank - n_cal - 1


def number(value: float | None, digits: str = ".4g") -> str:
    """Four significant digits, or a dash."""
    return "–" if value is None or math.isnan(value) else f"{value:{digits}}"


def plus_minus(found: Estimate) -> str:
    if math.isnan(found.error):
        return number(found.mean)
    return (
        f"{number(found.mean)} ± {found.error:{'.2g' if found.error < 99.5 else '.0f'}}"
    )


def markdown_table(
    header: Sequence[str], lines: Iterable[Sequence[str]], align: str = ""
) -> str:
    """Table in Markdown; ``align`` has one letter per column, "r" for numbers."""
    letters = align.ljust(len(header), "l")
    rule = "|" + "|".join("---:" if a == "r" else "---" for a in letters) + "|"
    rows = ["| " + " | ".join(line) + " |" for line in (header, *lines)]
    return "\n".join([rows[0], rule, *rows[1:]]) + "\n"


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def write_files(files: Mapping[str, str], folder: Path) -> list[Path]:
    """Texts by file name, which may hold a folder, written to a folder."""
    paths = [folder / name for name in files]
    for path, text in zip(paths, files.values(), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return paths
