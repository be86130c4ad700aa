"""From ten thousand to half a million rows: interval score and fit time.

ClapsRegressor() with its defaults against CatBoost (MultiQuantile), LightGBM and
HistGradientBoosting, each with two quantiles, CQR, 500 trees at most, a learning rate
of 0.1, and early stopping on a tenth of the training rows. A split takes the number of
rows asked for: 60 % to fit, 20 % to calibrate, 20 % to test. Sets are CSV files of
--data, target last, as far as they have that many rows (the largest size that a file
does not reach is replaced by all its rows), and generated ones. Times are those of the
process, on one thread.

Finished runs are kept in OUT/runs.jsonl; the same command goes on where it stopped.

Examples
--------
    python -m mapie_claps.benchmarks rows --smoke
    python -m mapie_claps.benchmarks rows --data FOLDER --datasets diamonds --out many
"""

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..studies.arguments import check_names
from ..studies.data import Array, Dataset, Table, load_named, split_rows, take_rows
from ..studies.rows import grouped, where
from ..studies.runner import run_and_report, split_run
from ..studies.scoring import estimate, score_intervals
from ..studies.store import Row
from ..studies.text import lowest_in_bold, markdown_table
from ._generated import GENERATORS, generate
from ._peer_table import claps_method
from ._peer_tuning import Method, Params, ordered

ALPHA = 0.1
SIZES = (10_000, 50_000, 500_000)
GENERATED = ("geo", "trees", "fried")
TREES = {"rate": 0.1, "trees": 500, "patience": 20, "held_out": 0.1}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("--data", type=Path, metavar="FOLDER", help="CSV files, target last")
    add("--datasets", nargs="+", default=[], metavar="NAME", help="files in FOLDER")
    add("--generated", nargs="*", default=list(GENERATED), metavar="NAME")
    add("--sizes", nargs="+", type=int, default=list(SIZES), metavar="N")
    add("--methods", nargs="+", default=list(METHODS), metavar="NAME")
    add("--seeds", type=int, default=1, metavar="N", help="splits 0 to N − 1 (1)")
    add("--out", type=Path, default=Path("benchmark_rows"), metavar="FOLDER")
    add("--jobs", type=int, default=1, metavar="N", help="processes (1)")
    add("--smoke", action="store_true", help="quick trial on 400 rows")


def run(arguments: argparse.Namespace) -> int:
    """Run what is missing and print the table; 1 if a run failed."""
    check_names("methods", arguments.methods, METHODS)
    check_names("generated", arguments.generated, GENERATORS)
    low = min([*arguments.sizes, arguments.seeds * 100])
    if low < 100:
        raise ValueError(
            f"Got --sizes {arguments.sizes} and --seeds {arguments.seeds}, but "
            "expected at least 100 rows and one seed. Leave them out."
        )
    sizes, names = arguments.sizes, arguments.generated
    methods = [METHODS[name] for name in arguments.methods]
    if arguments.smoke:
        sizes, names, arguments.seeds = [400], ["fried"], 1
        quick = claps_method(max_steps=30, tol=None)
        methods = [quick if method.name == "claps" else method for method in methods]
    files = [load_named(name, arguments.data, True) for name in arguments.datasets]
    runs = [
        split_run(
            "rows",
            data,
            {"seed": seed, "rows": size},
            method.key | {"alpha": ALPHA},
            partial(measure, data, seed, size, method),
            uses_claps=method.parameters is not None,
        )
        for seed in range(arguments.seeds)
        for data in [*files, *(generate(name, seed, max(sizes)) for name in names)]
        for size in sorted({min(size, len(data.y)) for size in sizes})
        for method in methods
    ]
    return run_and_report(runs, arguments.out, arguments.jobs, report)


def measure(data: Dataset, seed: int, n: int, method: Method) -> list[Row]:
    """Fit, calibrate, and score on test rows; times of the process."""
    split, params = split_rows(data, seed, n), method.grid[0]
    start = time.process_time()
    model = method.fit(split.X_train, split.y_train, params, seed, ALPHA)
    fitted = time.process_time()
    predict = method.calibrate(model, split.X_cal, split.y_cal, params, ALPHA)
    lower, upper = predict(split.X_test)
    done = time.process_time()
    row = {"dataset": data.name, "rows": n, "seed": seed, "method": method.name}
    row |= score_intervals(split.y_test, lower, upper, ALPHA)
    times = {"fit_seconds": fitted - start, "predict_seconds": done - fitted}
    return [row | times | {"unit": float(np.std(split.y_train))}]


def _held_out(n: int, seed: int) -> Any:
    """Rows for early stopping, and the others."""
    order = np.random.default_rng(seed).permutation(n)
    return np.split(order, [round(TREES["held_out"] * n)])


def _catboost(X: Table, y: Array, params: Params, seed: int, alpha: float) -> Any:
    from ._peer_catboost import fit_quantiles, quantile_band

    trees = {"iterations": params["trees"], "learning_rate": params["rate"]}
    stopping = (*_held_out(len(y), seed), params["patience"])
    model = fit_quantiles(X, y, trees, seed, alpha, stopping)
    return lambda X, params: quantile_band(model, X, {"iterations": 0})


def _lightgbm(X: Table, y: Array, params: Params, seed: int, alpha: float) -> Any:
    from lightgbm import LGBMRegressor, early_stopping

    few, many = _held_out(len(y), seed)
    options: dict[str, Any] = {"n_estimators": params["trees"], "verbose": -1}
    options |= {"learning_rate": params["rate"], "n_jobs": 1, "random_state": seed}
    rows = {"eval_X": take_rows(X, few), "eval_y": y[few]}
    rows["callbacks"] = [early_stopping(params["patience"], verbose=False)]

    def fit(level: float) -> Any:
        model = LGBMRegressor(objective="quantile", alpha=level, **options)
        return model.fit(take_rows(X, many), y[many], **rows)

    return _two_quantiles(fit, alpha)


def _histgb(X: Table, y: Array, params: Params, seed: int, alpha: float) -> Any:
    from sklearn.ensemble import HistGradientBoostingRegressor

    options: dict[str, Any] = {"loss": "quantile", "max_iter": params["trees"]}
    options |= {"learning_rate": params["rate"], "random_state": seed}
    options |= {"validation_fraction": params["held_out"], "early_stopping": True}
    options |= {"n_iter_no_change": params["patience"]}
    options |= {"categorical_features": "from_dtype"}

    def fit(level: float) -> Any:
        return HistGradientBoostingRegressor(quantile=level, **options).fit(X, y)

    return _two_quantiles(fit, alpha)


def _two_quantiles(fit: Callable[[float], Any], alpha: float) -> Any:
    models = [fit(level) for level in (alpha / 2, 1 - alpha / 2)]
    return lambda X, params: ordered(*(np.asarray(m.predict(X)) for m in models))


METHODS = {
    method.name: method
    for method in (
        Method("catboost", "CatBoost", _catboost, "mapie_cqr", [TREES]),
        Method("lightgbm", "LightGBM", _lightgbm, "mapie_cqr", [TREES]),
        Method("histgb", "HistGradientBoosting", _histgb, "mapie_cqr", [TREES]),
        claps_method(tol=None),
    )
}


def report(rows: Sequence[Row], out: Path) -> str:
    """Score, coverage and fit time by data set and size."""
    lines = []
    methods = [m for m in METHODS if where(rows, method=m)]
    for (dataset, size), here in grouped(rows, "dataset", "rows").items():
        score, covered, took = (
            [estimate(r[field] for r in where(here, method=m)) for m in methods]
            for field in ("interval_score", "coverage", "fit_seconds")
        )
        texts = [
            f"{text} ({c.mean:.3f}; {t.mean:.0f} s)"
            for text, c, t in zip(lowest_in_bold(score), covered, took, strict=True)
        ]
        lines.append([dataset, f"{size:,}", *texts])
    header = ["data", "rows", *(METHODS[m].label for m in methods)]
    text = (
        markdown_table(header, lines)
        + "\nInterval score at level 0.9, lower is better; in brackets coverage and "
        "the time to fit, in seconds of the process on one thread.\n"
    )
    (out / "rows.md").write_text(text, encoding="utf-8")
    return text
