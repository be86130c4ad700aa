"""What the shape of the noise is worth: map, two sides, shape, support; and the CRPS.

ClapsRegressor() with its defaults, with each device switched off, and with all of them
off; beside it methods that bend to the data, each with its own default settings: CQR on
HistGradientBoosting and CatBoost, a quantile forest with CQR, and for the CRPS the
distributions of the forest, of NGBoost and of CatBoost (mean and variance). Each split
takes at most --max-rows rows of a seeded permutation: 60 % to fit, 20 % to calibrate,
20 % to test. What is not calibrated (the distributions of others) is fitted to the
calibration rows too. Others see text, dates and gaps as numbers, encoded as for our
networks.

Finished runs are kept in OUT/runs.jsonl; the same command goes on where it stopped.

Examples
--------
    python -m mapie_claps.benchmarks shape --smoke
    python -m mapie_claps.benchmarks shape --data FOLDER --datasets sns taxis
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..studies.arguments import (
    add_data_arguments,
    check_installed,
    check_names,
    load_datasets,
    seeds_of,
)
from ..studies.data import Dataset, split_rows
from ..studies.rows import paired_ratios, values_of, where
from ..studies.runner import Run, check_mapie, run_and_report, split_run
from ..studies.scoring import estimate, geometric_mean
from ..studies.store import Row
from ..studies.text import MISSING, markdown_table, number
from ._peer_table import claps_parameters
from ._shape_methods import DEFAULT, LEVELS, PEERS, claps, peer

ALPHA = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_data_arguments(parser, seeds=5, out="benchmark_shape")
    names = f"of {DEFAULT!r}, {', '.join(map(repr, PEERS))} (default: all)"
    parser.add_argument("--methods", nargs="+", metavar="NAME", help=names)


def run(arguments: argparse.Namespace) -> int:
    """Run what is missing and print the tables; 1 if a run failed."""
    methods = arguments.methods or [DEFAULT, *PEERS]
    check_names("methods", methods, [DEFAULT, *PEERS])
    check_installed(PEERS[name][1] for name in methods if name in PEERS)
    check_mapie((1, 6), "has the right CQR intervals of fitted models")
    params = {"tol": None} | ({"max_steps": 10} if arguments.smoke else {})
    runs = [
        plan(_with_text(data), seed, name, arguments.max_rows, params)
        for seed in seeds_of(arguments)
        for data in load_datasets(arguments, text=True)
        for name in methods
    ]
    return run_and_report(runs, arguments.out, arguments.jobs, report)


def _with_text(data: Dataset) -> Dataset:
    """Text columns as text: what looks like a date is one for us, no category."""
    if not hasattr(data.X, "iloc"):
        return data
    words = data.X.select_dtypes("category").columns
    return replace(data, X=data.X.astype(dict.fromkeys(words, object)))


def plan(data: Dataset, seed: int, name: str, n: int, params: dict[str, Any]) -> Run:
    """One method on one split of at most n rows of one data set."""
    ours = name == DEFAULT
    method = {"name": name, "alpha": ALPHA, "levels": len(LEVELS)}
    method |= {"parameters": claps_parameters(**params)} if ours else {}
    split = {"seed": seed, "max_rows": n}
    compute = partial(measure, data, seed, name, n, params)
    return split_run("shape", data, split, method, compute, ours)


def measure(
    data: Dataset, seed: int, name: str, n: int, params: dict[str, Any]
) -> list[Row]:
    """Rows of one method on one split."""
    method = partial(claps, params) if name == DEFAULT else partial(peer, name)
    found = method(split_rows(data, seed, n), seed, ALPHA)
    return [{"dataset": data.name, "seed": seed} | row for row in found]


def report(rows: Sequence[Row], out: Path) -> str:
    """Three tables: devices switched off, the others, and the CRPS."""
    n_seeds, names = len(values_of(rows, "seed")), values_of(rows, "method")
    text = f"{n_seeds} splits of each data set; level {1 - ALPHA:g}.\n"
    devices = [DEFAULT, *(n for n in names if n != DEFAULT and n not in PEERS)]
    others = [name for name in names if name in (DEFAULT, *PEERS)]
    without = "Interval score of CLAPS, and its factor without a device"
    tables = {
        without: (devices, "interval_score", True),
        "Interval score": (others, "interval_score", False),
        "CRPS": (others, "crps", False),
    }
    for title, (methods, field, ratio) in tables.items():
        text += f"\n**{title}**\n\n{_table(rows, methods, field, ratio)}"
    (out / "shape.md").write_text(text, encoding="utf-8")
    return text


def _table(rows: Sequence[Row], methods: list[str], field: str, ratio: bool) -> str:
    """Means over the seeds, or ratios to the first method: one line per data set."""
    known = [row for row in rows if row.get(field) is not None]
    methods = [m for m in methods if where(known, method=m)]
    if not methods:
        return MISSING + "\n"
    own = {m: where(known, method=m) for m in methods}
    ratios = {m: paired_ratios(own[m], own[methods[0]], field) for m in methods}
    lines: list[list[str]] = []
    for data in values_of(rows, "dataset"):
        found = (where(own[m], dataset=data) for m in methods)
        cells = [number(estimate(row[field] for row in some).mean) for some in found]
        if ratio:
            each = (ratios[m].get(data, []) for m in methods[1:])
            cells[1:] = [number(geometric_mean(r), ".3f") for r in each]
        lines.append([data, *cells])
    together = ([r for each in ratios[m].values() for r in each] for m in methods)
    means = [number(geometric_mean(r), ".3f") for r in together]
    lines.append(["ratio to the first", *means])
    return markdown_table(["", *methods], lines, "l" + "r" * len(methods))
