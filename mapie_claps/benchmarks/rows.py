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
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..studies.arguments import check_names
from ..studies.data import (
    Array,
    Dataset,
    Split,
    Table,
    load_named,
    split_rows,
    take_rows,
)
from ..studies.rows import grouped, where
from ..studies.runner import Run, run_and_report, split_run
from ..studies.scoring import estimate, score_intervals
from ..studies.store import Row
from ..studies.text import lowest_in_bold, markdown_table
from ._generated import GENERATORS
from ._peer_table import claps_method
from ._peer_tuning import Band, Method, Params, ordered

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
    sizes, names = sorted(set(arguments.sizes)), arguments.generated
    if arguments.smoke:
        sizes, names = [400], ["fried"]
    runs = []
    for seed in range(1 if arguments.smoke else arguments.seeds):
        for data, size in _plan(arguments, sizes, names, seed):
            for name in arguments.methods:
                method = METHODS[name]
                if arguments.smoke and name == "claps":
                    method = claps_method(max_steps=30, tol=None)
                runs.append(plan(data, seed, size, method))
    return run_and_report(runs, arguments.out, arguments.jobs, report)


def _plan(
    arguments: argparse.Namespace, sizes: Sequence[int], generated: Any, seed: int
) -> list[tuple[Dataset, int]]:
    """Data sets with the numbers of rows to take of them."""
    found = []
    for name in arguments.datasets:
        data = load_named(name, arguments.data, True)
        within = sorted({min(size, len(data.y)) for size in sizes})
        found += [(data, size) for size in within]
    for name in generated:
        draw, _, shift = GENERATORS[name]
        rows = draw(np.random.default_rng(shift + seed), max(sizes))
        found += [(Dataset(name, *rows), size) for size in sizes]
    return found


def plan(data: Dataset, seed: int, n: int, method: Method) -> Run:
    """One method on one split of n rows."""
    split, params = {"seed": seed, "rows": n}, method.key | {"alpha": ALPHA}
    compute = partial(measure, data, seed, n, method)
    return split_run("rows", data, split, params, compute, method.uses_claps)


def measure(data: Dataset, seed: int, n: int, method: Method) -> list[Row]:
    """Fit, calibrate, and score on test rows; times of the process."""
    split: Split = split_rows(data, seed, n)
    params = method.grid[0]
    start = time.process_time()
    model = method.fit(split.X_train, split.y_train, params, seed, ALPHA)
    fitted = time.process_time()
    predict = method.calibrate(model, split.X_cal, split.y_cal, params, ALPHA)
    lower, upper = predict(split.X_test)
    done = time.process_time()
    row = {"dataset": data.name, "rows": n, "seed": seed, "method": method.name}
    found = score_intervals(split.y_test, lower, upper, ALPHA)
    times = {"fit_seconds": fitted - start, "predict_seconds": done - fitted}
    spread = float(np.std(split.y_train))
    return [row | found | times | {"unit": spread}]


def _held_out(n: int, seed: int) -> Any:
    """Rows for early stopping, and the others."""
    order = np.random.default_rng(seed).permutation(n)
    return np.split(order, [round(TREES["held_out"] * n)])


def _fit_catboost(X: Table, y: Array, params: Params, seed: int, alpha: float) -> Any:
    from ._peer_catboost import fit_with_early_stopping

    few, many = _held_out(len(y), seed)
    return fit_with_early_stopping(X, y, params, few, many, seed, alpha)


def _catboost_band(model: Any, X: Table, params: Params) -> Band:
    from ._peer_catboost import quantile_band

    return quantile_band(model, X, {"iterations": 0})


def _fit_lightgbm(X: Table, y: Array, params: Params, seed: int, alpha: float) -> Any:
    from lightgbm import LGBMRegressor, early_stopping

    few, many = _held_out(len(y), seed)
    options: dict[str, Any] = {"n_estimators": params["trees"], "verbose": -1}
    options |= {"learning_rate": params["rate"], "n_jobs": 1, "random_state": seed}
    stop = [early_stopping(params["patience"], verbose=False)]
    return [
        LGBMRegressor(objective="quantile", alpha=level, **options).fit(
            take_rows(X, many),
            y[many],
            eval_X=take_rows(X, few),
            eval_y=y[few],
            callbacks=stop,
        )
        for level in (alpha / 2, 1 - alpha / 2)
    ]


def _fit_histgb(X: Table, y: Array, params: Params, seed: int, alpha: float) -> Any:
    from sklearn.ensemble import HistGradientBoostingRegressor

    options: dict[str, Any] = {"loss": "quantile", "max_iter": params["trees"]}
    options |= {"learning_rate": params["rate"], "random_state": seed}
    options |= {"validation_fraction": params["held_out"], "early_stopping": True}
    options |= {"n_iter_no_change": params["patience"]}
    options |= {"categorical_features": "from_dtype"}
    return [
        HistGradientBoostingRegressor(quantile=level, **options).fit(X, y)
        for level in (alpha / 2, 1 - alpha / 2)
    ]


def _two_models_band(models: Any, X: Table, params: Params) -> Band:
    return ordered(*(np.asarray(model.predict(X)) for model in models))


def _boosted(name: str, label: str, fit: Any, band: Any = _two_models_band) -> Method:
    return Method(name, label, fit, band, "mapie_cqr", [TREES])


METHODS = {
    method.name: method
    for method in (
        _boosted("catboost", "CatBoost", _fit_catboost, _catboost_band),
        _boosted("lightgbm", "LightGBM", _fit_lightgbm),
        _boosted("histgb", "HistGradientBoosting", _fit_histgb),
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
