"""Compute the runs that are not stored yet: processes, progress bar, interruption.

This module imports nothing slow, so that a new process sets its number of threads
before NumPy and torch are loaded.
"""

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .store import Line, Row, Store, identity, run_key

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Run:
    """What to compute, and the key under which it is kept."""

    label: str  # for the progress bar and for errors
    key: dict[str, Any]  # see run_key
    compute: Callable[[], list[Row]]  # with several processes it must be picklable


def split_run(
    study: str,
    data: Any,
    split: dict[str, Any],
    method: dict[str, Any],
    compute: Callable[[], list[Row]],
    uses_claps: bool = True,
) -> Run:
    """A method on one split of a data set; see :func:`~.store.run_key`."""
    parts = {"data": data.key, "split": split, "method": method}
    key = run_key(study, **parts, uses_claps=uses_claps)
    label = f"{method.get('name', study)} on {data.name}, seed {split['seed']}"
    return Run(label, key, compute)


@dataclass(frozen=True)
class Failure:
    """A run that raised, with its error in words."""

    run: Run
    message: str

    def __str__(self) -> str:
        return f"FAILED {self.run.label}: {self.message}\n"


def run_missing(runs: Sequence[Run], out: Path, jobs: int = 1) -> list[Failure]:
    """Compute what is not stored in ``out``, and store each run once it is finished.

    A run that raises is returned, and the others go on: one failure must not end hours
    of work.
    """
    from tqdm import tqdm  # comes with laplace-torch

    store = Store(out)
    finished = store.by_key()
    pending = [run for run in runs if identity(run.key) not in finished]
    failures = []
    done = len(runs) - len(pending)
    with tqdm(total=len(runs), initial=done, unit="run") as bar:
        for run, result in _results(pending, jobs):
            if isinstance(result, str):
                failures.append(Failure(run, result))
            else:
                store.add(result)
            bar.set_postfix_str(run.label)
            bar.update()
    return failures


def run_and_report(
    runs: Sequence[Run], out: Path, jobs: int, report: Callable[[list[Row], Path], str]
) -> int:
    """Compute what is missing and print the report; 1 if a run failed."""
    failures = run_missing(runs, out, jobs)
    out.mkdir(parents=True, exist_ok=True)
    sys.stdout.write(report(finished_rows(runs, out), out))
    sys.stdout.writelines(map(str, failures))
    return 1 if failures else 0


def finished_lines(runs: Sequence[Run], out: Path) -> list[Line]:
    """Stored lines of the runs that are finished, in the order of the runs."""
    stored = Store(out).by_key()
    keys = [identity(run.key) for run in runs]
    return [stored[key] for key in keys if key in stored]


def finished_rows(runs: Sequence[Run], out: Path) -> list[Row]:
    """Rows of the runs that are finished, in the order of the runs."""
    return [row for line in finished_lines(runs, out) for row in line["rows"]]


def _results(runs: Sequence[Run], jobs: int) -> Iterator[tuple[Run, Line | str]]:
    """Lines, or errors in words, in the order in which the runs end."""
    if jobs == 1 or len(runs) < 2:
        yield from ((run, _compute(run)) for run in runs)
        return
    # A forked process may hang in torch; a spawned one starts clean.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_start_worker)
    try:
        futures = {pool.submit(_compute, run): run for run in runs}
        for future in as_completed(futures):
            error = future.exception()
            yield futures[future], str(error) if error else future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _compute(run: Run) -> Line | str:
    """The line of a run, computed on one thread, or its error."""
    from threadpoolctl import threadpool_limits

    started, worked = time.perf_counter(), time.process_time()
    try:
        with threadpool_limits(1):
            rows = run.compute()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return {
        "key": run.key,
        "rows": rows,
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - worked,
    }


def _start_worker() -> None:
    """One thread, and an end when the parent ends, even by ``kill -9``."""
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """Wait for a pipe that the system closes when the parent process is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def check_mapie(floor: tuple[int, int], reason: str) -> None:
    """Raise if the installed MAPIE is older than what a study needs."""
    installed = version("mapie")
    if tuple(int(part) for part in installed.split(".")[:2]) < floor:
        raise ValueError(
            f"Got MAPIE {installed}, but expected {floor[0]}.{floor[1]} or later, "
            f"which {reason}. Install it: pip install -U mapie"
        )
