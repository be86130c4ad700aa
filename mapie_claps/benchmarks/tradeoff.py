"""Accuracy against time: the settings that trade one for the other."""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..conformal.score import ClapsScore
from ..estimators.regressor import ClapsRegressor
from ._data import PAPER_DATASETS, Dataset, Split, load_diabetes_rows, load_named
from ._data import split_rows as split_dataset
from ._generated import GENERATED, generate
from ._runs import Row, append_row, key_of, read_rows
from ._scoring import interval_score

DESCRIPTION = "interval score and fit time of cheaper and dearer settings"
SETTINGS: dict[str, dict[str, Any]] = {
    "default (n_members=6)": {},
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
REFERENCE = "default (n_members=6)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("--data", type=Path, metavar="FOLDER", help="CSV files, target last")
    add("--datasets", nargs="+", metavar="NAME", help="the paper's eight if not given")
    add(
        "--generated",
        action="store_true",
        help="the eight generated sets; beside the others if --data or --datasets is "
        "given, else alone",
    )
    add("--seeds", type=int, default=2, metavar="N", help="splits 0 to N − 1 (2)")
    add("--max-rows", type=int, default=5000, metavar="N", help="rows per split (5000)")
    add("--out", type=Path, default=Path("benchmark_tradeoff"), metavar="FOLDER")
    add("--smoke", action="store_true", help="quick trial on 150 rows")


def run(arguments: argparse.Namespace) -> int:
    """Run what is missing and print the table."""
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    finished = {key_of(row) for row in read_rows(out)}
    extra = {"max_steps": 10} if arguments.smoke else {}
    for seed in range(1 if arguments.smoke else arguments.seeds):
        for data in _datasets(arguments, seed):
            split = split_dataset(data, seed, arguments.max_rows)
            for method, params in SETTINGS.items():
                if (data.name, seed, method) not in finished:
                    row = {"dataset": data.name, "seed": seed, "method": method}
                    append_row(out, row | measure(split, seed, params | extra))
    text = report(read_rows(out))
    (out / "tradeoff.md").write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return 0


def _datasets(arguments: argparse.Namespace, seed: int) -> Iterator[Dataset]:
    """The data sets asked for; the seed draws the rows of the generated ones."""
    generated = list(GENERATED) if arguments.generated else []
    if arguments.smoke:
        yield load_diabetes_rows()
        return
    alone = generated and not (arguments.data or arguments.datasets)
    for name in [] if alone else arguments.datasets or PAPER_DATASETS:
        yield load_named(name, arguments.data)
    for name in generated:
        yield generate(name, seed)


def measure(split: Split, seed: int, params: dict[str, Any]) -> Row:
    """Interval score at level 0.9 and fit time of one setting on one split."""
    from mapie.regression import SplitConformalRegressor

    model = ClapsRegressor(random_state=seed, tol=None).set_params(**params)
    start = time.perf_counter()
    model.fit(split.X_train, split.y_train)
    seconds = time.perf_counter() - start
    mapie = SplitConformalRegressor(model, 0.9, ClapsScore(), prefit=True)
    mapie.conformalize(split.X_cal, split.y_cal)
    bounds = mapie.predict_interval(split.X_test)[1][:, :, 0]
    score = interval_score(bounds[:, 0], bounds[:, 1], split.y_test, 0.1)
    return {"interval_score": score, "fit_seconds": seconds}


def report(rows: Sequence[Row]) -> str:
    """Geometric means over all runs of the ratios to the default."""
    by_key = {key_of(row): row for row in rows}
    lines = [
        "| setting | interval score / default | fit time / default |",
        "|---|---|---|",
    ]
    for method in SETTINGS:
        pairs = [
            (row, by_key[row["dataset"], row["seed"], REFERENCE])
            for row in rows
            if row["method"] == method
        ]
        if not pairs:
            continue
        cells = []
        for field in ("interval_score", "fit_seconds"):
            logs = [np.log(ours[field] / default[field]) for ours, default in pairs]
            cells.append(f"{np.exp(np.mean(logs)):.3f}")
        lines.append("| " + " | ".join([f"`{method}`", *cells]) + " |")
    datasets = sorted({row["dataset"] for row in rows})
    seeds = {row["seed"] for row in rows}
    lines += ["", f"Data sets: {', '.join(datasets)}; {len(seeds)} seeds."]
    return "\n".join(lines) + "\n"
