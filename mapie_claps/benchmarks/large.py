"""Ten million rows on one machine, two Dask workers against one, CV+ of many rows.

``python -m mapie_claps.benchmarks large out_of_core``, ``... large dask`` and
``... large cv_plus``.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from .. import (
    ClapsModule,
    ClapsRegressor,
    ClapsScore,
    StreamingConformalRegressor,
    partial_sums,
    train_on_batches,
    with_sums,
)
from ..studies.arguments import check_numbers
from ..studies.data import Array
from ._networks import seeded_network
from ._speed_timing import peak_mb, run_code

Rows = tuple[Array, Array]
TRAINING_ROWS = 20_000
SIZE = 64
CV_PLUS_ROWS = 5_000  # to predict; with 10⁵ rows to fit a matrix would take 4 GB
TORCH_ALONE = """
import json, torch
from mapie_claps.benchmarks._speed_timing import peak_mb
print(json.dumps(peak_mb()))
"""


def chunk(seed: int, n: int, p: int) -> Rows:
    """Rows whose mean and noise depend on the first columns."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    noise = 0.2 + 0.3 * np.abs(X[:, 2])
    return X, np.sin(X[:, 0]) + X[:, 1] + noise * rng.standard_normal(n)


class Chunks:
    """Rows made when they are asked for; the same in every pass."""

    def __init__(self, n_rows: int, p: int, size: int, seed: int) -> None:
        self.n_rows, self.p, self.size, self.seed = n_rows, p, size, seed

    def __iter__(self) -> Iterator[Rows]:
        for i, start in enumerate(range(0, self.n_rows, self.size)):
            n = min(self.size, self.n_rows - start)
            yield chunk(self.seed * 1_000_003 + i, n, self.p)


def fitted(estimator: str, p: int) -> ClapsModule | ClapsRegressor:
    """Train on a sample: ClapsRegressor, or a network of one's own on batches."""
    if estimator == "ClapsRegressor":
        return regressor().fit(*chunk(0, TRAINING_ROWS, p))
    network = seeded_network(p, SIZE, SIZE)
    train_on_batches(network, Chunks(TRAINING_ROWS, p, 64, 0), n_epochs=2)
    return ClapsModule(network).fit(Chunks(TRAINING_ROWS, p, 2000, 0))


def regressor() -> ClapsRegressor:
    """One network with one hidden layer."""
    params: dict[str, Any] = {"n_members": 1, "views": ("raw",), "max_steps": 500}
    params |= {"hidden_layer_sizes": (SIZE,), "representation_size": SIZE}
    return ClapsRegressor(**params, tol=None, random_state=0)


def out_of_core(args: argparse.Namespace) -> None:
    """Posterior, calibration and intervals, each over all the rows."""
    done = stages(
        f"{args.estimator}, {args.rows:,} rows x {args.columns} columns in each stage, "
        f"chunks of {args.chunk:,}"
    )

    rows = partial(Chunks, args.rows, args.columns, args.chunk)
    for _ in rows(1):
        pass
    done("making the rows alone")
    model = fitted(args.estimator, args.columns)
    done(f"training on {TRAINING_ROWS:,} rows")
    model = with_sums(model, partial_sums(model, rows(1)))
    done("posterior")
    conformal = StreamingConformalRegressor(model, 0.9).conformalize(rows(2))
    done("calibration")
    found = coverage_and_width(conformal, rows(3))
    done("intervals")
    say(found)


def stages(title: str) -> Callable[[str], None]:
    """Print the head of a table, and give what prints a line of it."""
    base = float(run_code(TORCH_ALONE))
    say(
        f"{title}; {torch.get_num_threads()} thread(s)\n"
        f"interpreter with torch loaded: {base:.0f} MB\n"
        "| stage | seconds | seconds of CPU | peak MB above torch |\n|---|---|---|---|"
    )
    start = time.perf_counter(), time.process_time()

    def done(stage: str) -> None:
        nonlocal start
        now = time.perf_counter(), time.process_time()
        wall, cpu = now[0] - start[0], now[1] - start[1]
        say(f"| {stage} | {wall:.1f} | {cpu:.1f} | {peak_mb() - base:.0f} |")
        start = now

    return done


def cv_plus(args: argparse.Namespace) -> None:
    """MAPIE's CV+ over five folds: each row to predict meets every fitted row."""
    from mapie.regression import CrossConformalRegressor

    done = stages(
        f"CV+, five folds of {args.rows:,} rows x {args.columns} columns, "
        f"{CV_PLUS_ROWS:,} rows to predict"
    )
    mapie = CrossConformalRegressor(regressor(), 0.9, ClapsScore(), "plus", cv=5)
    mapie.fit_conformalize(*chunk(1, args.rows, args.columns))
    done("six fits and the scores")
    rows = Chunks(CV_PLUS_ROWS, args.columns, CV_PLUS_ROWS, 3)
    found = coverage_and_width(mapie, rows)
    done("intervals")
    say(found)


def coverage_and_width(conformal: Any, rows: Chunks) -> str:
    """Share of covered targets and mean width over all chunks, as text."""
    covered, width = 0, 0.0
    for X, y in rows:
        lower, upper = conformal.predict_interval(X)[1][:, :, 0].T
        covered += int(((lower <= y) & (y <= upper)).sum())
        width += float((upper - lower).sum())
    coverage, width = covered / rows.n_rows, width / rows.n_rows
    return f"coverage at level 0.9: {coverage:.4f}, mean width {width:.3f}"


def dask_workers(args: argparse.Namespace) -> None:
    """The same posterior and scores with one worker process and with two."""
    import dask
    from distributed import Client, LocalCluster

    torch.set_num_threads(1)
    model = fitted("ClapsRegressor", args.columns)
    n_chunks = args.rows // args.chunk
    say(
        f"Dask: posterior and scores, {n_chunks} partitions of {args.chunk:,} rows x "
        f"{args.columns}, one thread per worker\n| workers | seconds |\n|---|---|"
    )
    seconds, results = [], []
    local = {"threads_per_worker": 1, "dashboard_address": None, "memory_limit": 0}
    for n_workers in (1, 2):
        with (
            LocalCluster(n_workers=n_workers, **local) as cluster,
            Client(cluster) as client,
            dask.config.set(scheduler=client),
        ):
            client.run(torch.set_num_threads, 1)
            _dask_run(model, 2 * n_workers, 1000, args.columns)  # imports on workers
            start = time.perf_counter()
            results.append(_dask_run(model, n_chunks, args.chunk, args.columns)[1])
            seconds.append(time.perf_counter() - start)
        say(f"| {n_workers} | {seconds[-1]:.1f} |")
    say(f"one worker / two workers: {seconds[0] / seconds[1]:.2f}")
    gap = abs(results[0] - results[1])
    say(f"largest difference of the quantiles between the runs: {gap:.1e}")
    chunks = (chunk(i, args.chunk, args.columns) for i in range(2))
    here = with_sums(model, partial_sums(model, chunks))
    there, _ = _dask_run(model, 2, args.chunk, args.columns)
    X = chunk(10**6, 1000, args.columns)[0]
    one, two = (np.stack(m.predict_parts(X)) for m in (there, here))
    gap = np.abs(one / two - 1).max()
    say(f"largest relative difference to the run in memory (two partitions): {gap:.1e}")


def _dask_run(model: Any, n_chunks: int, size: int, p: int) -> tuple[Any, float]:
    """Posterior and calibration: the model, and the quantile at level 0.9."""
    import dask
    import dask.array as da

    from mapie_claps.distributed import conformalize, fit_posterior

    parts = [dask.delayed(chunk)(i, size, p) for i in range(n_chunks)]  # on the workers
    X, y = (
        da.concatenate([da.from_delayed(part[j], shape, float) for part in parts])
        for j, shape in enumerate([(size, p), (size,)])
    )
    model = fit_posterior(model, X, y)
    return model, float(conformalize(model, X, y).quantiles()[0])


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("stage", choices=tuple(STAGES))
    add("--rows", type=int, help="default: 10^7, on Dask 2 * 10^6, for CV+ 10^5")
    add("--columns", type=int, default=32)
    add("--chunk", type=int, default=50_000)
    names = ("ClapsRegressor", "ClapsModule")
    add("--estimator", choices=names, default=names[0], help="for out_of_core")


def run(arguments: argparse.Namespace) -> int:
    """Run one of the benchmarks."""
    stage, n_rows = STAGES[arguments.stage]
    if arguments.rows is None:
        arguments.rows = n_rows
    check_numbers(arguments, rows=3, columns=3, chunk=3)
    stage(arguments)
    return 0


# Each with its number of rows.
STAGES: dict[str, tuple[Callable[[argparse.Namespace], None], int]] = {
    "out_of_core": (out_of_core, 10_000_000),
    "dask": (dask_workers, 2_000_000),
    "cv_plus": (cv_plus, 100_000),
}
