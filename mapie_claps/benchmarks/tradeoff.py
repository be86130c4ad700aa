"""Accuracy against time: the settings that trade one for the other.

Finished runs are kept in OUT/runs.jsonl; the same command goes on where it stopped.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from ..studies.data import Dataset, split_rows
from ..studies.runner import Run, finished_rows, run_missing
from ..studies.scoring import geometric_mean, score_intervals
from ..studies.store import Row, run_key
from ..studies.text import markdown_table
from ._arguments import add_data_arguments, check_numbers, load_datasets
from ._generated import GENERATORS, generate
from ._peer_table import claps_parameters

REFERENCE = "default (n_members=6)"
SETTINGS: dict[str, dict[str, Any]] = {
    REFERENCE: {},
    "n_members=12": {"n_members": 12},
    "n_members=3": {"n_members": 3},
    "n_members=1": {"n_members": 1},
    "max_steps=1000": {"max_steps": 1000},
    "max_steps=300": {"max_steps": 300},
    'views=("bins",)': {"views": ("bins",)},
    'views=("periodic",)': {"views": ("periodic",)},
    'views=("raw",)': {"views": ("raw",)},
    "scaling_rate=0": {"scaling_rate": 0.0},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_data_arguments(parser, seeds=2, out="benchmark_tradeoff")
    parser.add_argument(
        "--generated",
        action="store_true",
        help="the eight generated sets; beside the others if --data or --datasets is "
        "given, else alone",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run what is missing and print the table; 1 if a run failed."""
    check_numbers(arguments)
    extra = {"max_steps": 10} if arguments.smoke else {}
    runs = [
        plan(data, seed, arguments.max_rows, name, {"tol": None} | params | extra)
        for seed in range(1 if arguments.smoke else arguments.seeds)
        for data in _datasets(arguments, seed)
        for name, params in SETTINGS.items()
    ]
    failures = run_missing(runs, arguments.out, arguments.jobs)
    text = report(finished_rows(runs, arguments.out))
    (arguments.out / "tradeoff.md").write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    sys.stdout.writelines(map(str, failures))
    return 1 if failures else 0


def _datasets(arguments: argparse.Namespace, seed: int) -> Iterator[Dataset]:
    """The data sets asked for; the seed draws the rows of the generated ones."""
    generated = arguments.generated and not arguments.smoke
    if not generated or arguments.data or arguments.datasets:
        yield from load_datasets(arguments)
    yield from (generate(name, seed) for name in GENERATORS if generated)


def plan(
    data: Dataset, seed: int, max_rows: int, name: str, params: dict[str, Any]
) -> Run:
    """One setting on one split of one data set."""
    key = run_key(
        "tradeoff",
        data=data.key,
        split={"seed": seed, "max_rows": max_rows},
        method={"name": name, "parameters": claps_parameters(**params)},
    )
    label = f"{name} on {data.name}, seed {seed}"
    return Run(label, key, partial(measure, data, seed, max_rows, name, params))


def measure(
    data: Dataset, seed: int, max_rows: int, name: str, params: dict[str, Any]
) -> list[Row]:
    """Interval score at level 0.9 and fit time of one setting on one split."""
    from mapie.regression import SplitConformalRegressor

    from .. import ClapsRegressor, ClapsScore

    split = split_rows(data, seed, max_rows)
    model = ClapsRegressor(random_state=seed, **params)
    start = time.perf_counter()
    model.fit(split.X_train, split.y_train)
    seconds = time.perf_counter() - start
    mapie = SplitConformalRegressor(model, 0.9, ClapsScore(), prefit=True)
    mapie.conformalize(split.X_cal, split.y_cal)
    lower, upper = mapie.predict_interval(split.X_test)[1][:, :, 0].T
    score = score_intervals(split.y_test, lower, upper, 0.1)["interval_score"]
    row = {"dataset": data.name, "seed": seed, "method": name}
    return [row | {"interval_score": score, "fit_seconds": seconds}]


def report(rows: Sequence[Row]) -> str:
    """Geometric means over all runs of the ratios to the default."""
    default = {(r["dataset"], r["seed"]): r for r in rows if r["method"] == REFERENCE}
    lines = []
    for method in SETTINGS:
        pairs = [
            (row, default[row["dataset"], row["seed"]])
            for row in rows
            if row["method"] == method and (row["dataset"], row["seed"]) in default
        ]
        ratios = [
            geometric_mean([ours[field] / other[field] for ours, other in pairs])
            for field in ("interval_score", "fit_seconds")
        ]
        if pairs:
            lines.append([f"`{method}`", *(f"{ratio:.3f}" for ratio in ratios)])
    header = ["setting", "interval score / default", "fit time / default"]
    datasets = ", ".join(sorted({row["dataset"] for row in rows}))
    n_seeds = len({row["seed"] for row in rows})
    return f"{markdown_table(header, lines)}\nData sets: {datasets}; {n_seeds} seeds.\n"
