"""Tables as people have them: text, categories, dates and gaps, nothing done by hand.

``ClapsRegressor`` gets each table as pandas reads it: fit, conformalize, predict,
explain, save and load. Beside it a pipeline with one-hot categories and an imputer, and
gradient boosting with native categories under MAPIE's CQR, which get the same parts of
dates. Each split takes at most --max-rows rows of a seeded permutation: 60 % to fit,
20 % to calibrate, 20 % to test. Peers are tuned as in the peers benchmark.

The same runs tell what values that never occurred do to the epistemic part, and the
coverage by which cells are missing. Times are seconds of one processor. Finished runs
are kept in OUT/runs.jsonl; the same command goes on where it stopped.

--wide measures instead time and memory of one large generated table of 30 columns of
mixed types, beside the same table as numbers.

Examples
--------
    python -m mapie_claps.benchmarks tables --smoke
    python -m mapie_claps.benchmarks tables --data FOLDER --datasets taxis credit
    python -m mapie_claps.benchmarks tables --wide 100000
"""

import argparse
import warnings
from functools import partial
from pathlib import Path

import numpy as np

from ..studies.arguments import (
    add_data_arguments,
    check_names,
    check_numbers,
    seeds_of,
)
from ..studies.data import MIN_ROWS, Dataset, read_cells, split_rows
from ..studies.runner import Run, check_mapie, run_and_report, split_run
from ..studies.scoring import score_intervals
from ..studies.store import Row
from ._generated_tables import rentals
from ._table_methods import TableMethod, missing_columns, table_methods
from ._table_report import write_report
from ._table_wide import wide_report, wide_runs

ALPHA = 0.1
TABLES = ("taxis", "credit", "sns", "diamonds")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_data_arguments(parser, seeds=10, out="benchmark_tables")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="default: all")
    parser.add_argument("--wide", type=int, metavar="N", help="rows of a large table")


def run(arguments: argparse.Namespace) -> int:
    """Run what is missing and print the report; 1 if a run failed."""
    if arguments.wide is not None:
        check_numbers(arguments, wide=MIN_ROWS)
        runs = wide_runs(arguments.wide, arguments.smoke)
        report = partial(wide_report, arguments.wide)
        return run_and_report(runs, arguments.out, 1, report)
    check_mapie((1, 6), "has the right CQR intervals of fitted models")
    methods, names = table_methods(arguments.smoke), arguments.methods
    check_names("methods", names or (), methods)
    runs = [
        plan(data, seed, name, method, arguments.max_rows)
        for seed in seeds_of(arguments)
        for data in _datasets(arguments, seed)
        for name, method in methods.items()
        if not names or name in names
    ]
    return run_and_report(runs, arguments.out, arguments.jobs, write_report)


def plan(
    data: Dataset, seed: int, name: str, method: TableMethod, max_rows: int
) -> Run:
    """One method on one split."""
    split = {"seed": seed, "max_rows": max_rows}
    key = {"name": name, "alpha": ALPHA} | method.key
    row = {"dataset": data.name, "seed": seed, "method": name, "alpha": ALPHA}
    compute = partial(measure, row, data, seed, method, max_rows)
    return split_run("tables", data, split, key, compute, method.uses_claps)


def measure(
    row: Row, data: Dataset, seed: int, method: TableMethod, max_rows: int
) -> list[Row]:
    """Run a method on a split and score its bounds."""
    split = split_rows(data, seed, max_rows)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (lower, upper), found = method.run(split, seed, ALPHA)
    found["warnings"] = sorted({f"{w.category.__name__}: {w.message}" for w in caught})
    sizes = zip(("n_train", "n_cal", "n_test"), map(len, split[1::2]), strict=True)
    scores = score_intervals(split.y_test, lower, upper, ALPHA)
    covered = (lower <= split.y_test) & (split.y_test <= upper)
    missing, patterns = np.array(missing_columns(split.X_test)), {}
    for name in np.unique(missing):
        rows = missing == name
        width = float((upper - lower)[rows].sum())
        patterns[str(name)] = [int(covered[rows].sum()), int(rows.sum()), width]
    return [row | dict(sizes) | scores | found | {"patterns": patterns}]


def _datasets(arguments: argparse.Namespace, seed: int) -> list[Dataset]:
    """The tables that are named in the folder, or a generated one."""
    if arguments.smoke or arguments.data is None:
        return [rentals(200 if arguments.smoke else arguments.max_rows, seed)]
    return [
        read_table(arguments.data / f"{name}.csv")
        for name in arguments.datasets or TABLES
    ]


def read_table(path: Path) -> Dataset:
    """A CSV file as pandas reads it; the target is its last column."""
    import pandas as pd

    if not path.is_file():
        raise ValueError(
            f"Got the path {str(path)!r}, but no such file is there. Correct --data "
            "FOLDER or --datasets NAME."
        )
    # pandas would rename a second column of a name, and shift rows that are too long.
    target = read_cells(path)[0][-1]
    frame = pd.read_csv(path)
    try:
        y = frame.pop(frame.columns[-1]).to_numpy(dtype=np.float64)
    except ValueError as error:
        raise ValueError(
            f"Got {target!r}, the last column of {path.name}, as target ({error}), but "
            "expected numbers. Put the target last."
        ) from None
    if not np.isfinite(y).all():
        raise ValueError(
            f"Got {int((~np.isfinite(y)).sum())} missing or infinite values in "
            f"{target!r}, the target of {path.name}. Leave these rows out."
        )
    return Dataset(path.stem, frame, y, target)
