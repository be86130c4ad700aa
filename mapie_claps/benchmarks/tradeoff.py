"""Accuracy against time: the settings that trade one for the other.

With --variants, changes of the recipe that are no settings instead: how the default
was looked after, see docs/recipe.md.

Finished runs are kept in OUT/runs.jsonl; the same command goes on where it stopped.
"""

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..studies.arguments import add_data_arguments, load_datasets, seeds_of
from ..studies.data import Dataset
from ..studies.rows import paired_ratios, values_of, where
from ..studies.runner import run_and_report
from ..studies.scoring import geometric_estimate
from ..studies.store import Row
from ..studies.text import markdown_table, plus_minus
from . import peers
from ._generated import GENERATORS, generate
from ._peer_table import claps_method, claps_parameters
from ._peer_tuning import Method
from ._variants import VARIANTS, fit_variant

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

REFERENCES = (REFERENCE, next(iter(VARIANTS)))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_data_arguments(parser, seeds=2, out="benchmark_tradeoff")
    text = (
        "the eight generated sets; beside the others if --data or --datasets is given"
    )
    parser.add_argument("--generated", action="store_true", help=f"{text}, else alone")
    text = "changes of the recipe that are no settings, in place of the settings"
    parser.add_argument("--variants", action="store_true", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Run what is missing and print the table; 1 if a run failed."""
    extra = {"tol": None} | ({"max_steps": 10} if arguments.smoke else {})
    methods = [claps_method(name, **(p | extra)) for name, p in SETTINGS.items()]
    if arguments.variants:
        # The networks and the kernel in units of y, trained to the end; one change.
        params = extra | {"target_map": None, "patience": None}
        fit = partial(Method, fit=fit_variant, calibration="mapie_std")
        key = partial(claps_parameters, **params)
        methods = [
            fit(name, name, grid=[params | {"variant": name}], parameters=key)
            for name in VARIANTS
        ]
    runs = [
        peers.plan(data, seed, method, 0.1, arguments.max_rows, "tradeoff")
        for seed in seeds_of(arguments)
        for data in _datasets(arguments, seed)
        for method in methods
    ]
    return run_and_report(runs, arguments.out, arguments.jobs, report)


def _datasets(arguments: argparse.Namespace, seed: int) -> Iterator[Dataset]:
    """The data sets asked for; the seed draws the rows of the generated ones."""
    generated = arguments.generated and not arguments.smoke
    if not generated or arguments.data or arguments.datasets:
        yield from load_datasets(arguments)
    yield from (generate(name, seed) for name in GENERATORS if generated)


def report(rows: Sequence[Row], out: Path) -> str:
    """Geometric means over data sets of the ratios to the default."""
    default = [row for row in rows if row["method"] in REFERENCES]
    lines = []
    for method in values_of(rows, "method"):
        found = [
            paired_ratios(where(rows, method=method), default, field)
            for field in ("interval_score", "fit_seconds")
        ]
        if all(found):
            texts = [plus_minus(geometric_estimate(r), ".3f", ".3f") for r in found]
            lines.append([f"`{method}`" if method in SETTINGS else method, *texts])
    header = ["setting", "interval score / default", "fit time / default"]
    datasets = ", ".join(sorted(values_of(rows, "dataset")))
    n_seeds = len(values_of(rows, "seed"))
    text = (
        f"{markdown_table(header, lines)}\nData sets: {datasets}; {n_seeds} seeds. "
        "Standard errors are those over seeds.\n"
    )
    (out / "tradeoff.md").write_text(text, encoding="utf-8")
    return text
