"""Many runs: in parallel, with progress, each kept on disk as soon as it is finished.

A run is one case (a data set, a training size) under one seed. It leaves one line in
``<out>/runs/<experiment>.jsonl``; a line that an interruption cut short is ignored, and
its run is done again.
"""

import json
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """What a run needs to know beside its case and seed."""

    data_home: str | None = None
    smoke: bool = False  # few steps, stand-in data: shows that it works, no more


@dataclass(frozen=True)
class Experiment:
    """Cases, and the function that makes the rows of one of them."""

    name: str
    title: str
    cases: tuple[str, ...]
    n_seeds: int  # where the command line says nothing
    rows_of: Callable[[str, int, Options], list[Row]]
    settings: dict[str, Any]  # what, if changed, makes kept runs out of date


@dataclass(frozen=True)
class Run:
    """One case of one experiment under one seed."""

    experiment: Experiment
    case: str
    seed: int
    options: Options

    @property
    def key(self) -> dict[str, Any]:
        """What tells this run from others; the folder of the data does not."""
        settings = self.experiment.settings | {"smoke": self.options.smoke}
        # Through JSON and back, so that it equals what is read from disk.
        plain: dict[str, Any] = json.loads(
            json.dumps({"case": self.case, "seed": self.seed, "settings": settings})
        )
        return plain

    def execute(self) -> dict[str, Any]:
        """The line that this run leaves."""
        started, worked = time.perf_counter(), time.process_time()
        rows = self.experiment.rows_of(self.case, self.seed, self.options)
        named = [{"case": self.case, "seed": self.seed} | row for row in rows]
        return self.key | {
            "seconds": time.perf_counter() - started,
            "cpu_seconds": time.process_time() - worked,
            "rows": named,
        }


class Store:
    """Finished runs on disk.

    Parameters
    ----------
    folder : Path
        Where the files are; made when first needed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, experiment: Experiment) -> Path:
        """File of one experiment."""
        return self.folder / f"{experiment.name}.jsonl"

    def lines(self, experiment: Experiment) -> list[dict[str, Any]]:
        """Whole lines."""
        file = self.file(experiment)
        return list(_parse(file.read_text().splitlines())) if file.exists() else []

    def add(self, experiment: Experiment, line: dict[str, Any]) -> None:
        """Append one line, after ending one that was cut short."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.file(experiment)
        cut = file.exists() and not file.read_text().endswith("\n")
        with file.open("a") as stream:
            stream.write(("\n" if cut else "") + json.dumps(line) + "\n")

    def find(self, runs: Sequence[Run]) -> list[dict[str, Any] | None]:
        """The line of each run, None where it is not finished."""
        experiments = {run.experiment.name: run.experiment for run in runs}
        kept = {
            name: {_identity(line): line for line in self.lines(experiment)}
            for name, experiment in experiments.items()
        }
        return [kept[run.experiment.name].get(_identity(run.key)) for run in runs]


def _parse(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue


def _identity(line: dict[str, Any]) -> str:
    return json.dumps({k: line[k] for k in ("case", "seed", "settings")})


def plan(experiment: Experiment, n_seeds: int | None, options: Options) -> list[Run]:
    """All runs of an experiment, seed by seed."""
    seeds = range(n_seeds if n_seeds is not None else experiment.n_seeds)
    return [
        Run(experiment, case, seed, options)
        for seed in seeds
        for case in experiment.cases
    ]


def execute(runs: Sequence[Run], store: Store, jobs: int = 1) -> None:
    """Do the runs that are not on disk yet."""
    pending = [
        run for run, line in zip(runs, store.find(runs), strict=True) if line is None
    ]
    # tqdm comes with laplace-torch.
    from tqdm import tqdm

    with tqdm(total=len(runs), initial=len(runs) - len(pending), unit="run") as bar:
        for run, line in _finished(pending, jobs):
            store.add(run.experiment, line)
            bar.set_postfix_str(f"{run.experiment.name} {run.case} seed {run.seed}")
            bar.update()


def _finished(runs: Sequence[Run], jobs: int) -> Iterator[tuple[Run, dict[str, Any]]]:
    """Runs with their lines, in the order in which they finish."""
    if jobs == 1 or len(runs) < 2:
        for run in runs:
            yield run, run.execute()
        return
    # A forked process may hang in torch; a spawned one starts clean.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_one_thread)
    try:
        futures = {pool.submit(run.execute): run for run in runs}
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _one_thread() -> None:
    """Several processes with several threads each get into one another's way."""
    import torch

    torch.set_num_threads(1)


def unfinished(
    plans: Mapping[str, Sequence[Run]], store: Store
) -> dict[str, tuple[int, int]]:
    """Finished and planned runs of each plan that is not complete."""
    done = {
        name: sum(line is not None for line in store.find(runs))
        for name, runs in plans.items()
    }
    return {
        name: (done[name], len(runs))
        for name, runs in plans.items()
        if done[name] < len(runs)
    }


def rows_of(runs: Sequence[Run], store: Store) -> list[Row]:
    """Rows of finished runs in the order of the plan."""
    lines = [line for line in store.find(runs) if line is not None]
    return [row for line in lines for row in line["rows"]]


def seconds_of(runs: Sequence[Run], store: Store, clock: str = "seconds") -> float:
    """Time that the finished runs took, added up; "cpu_seconds" is without waiting."""
    return float(sum(line[clock] for line in store.find(runs) if line is not None))
