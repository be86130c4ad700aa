"""Compare CLAPS with what a user would pick instead, on the same splits.

Methods: MAPIE's CQR, split and residual-normalised intervals on HistGradientBoosting, a
quantile forest with CQR, a random forest with crepes, NGBoost and a Gaussian process
with the std score, CatBoost with CQR and with the std score of its own variance, and
ClapsRegressor() with its defaults. Each split takes at most
--max-rows rows of a seeded permutation: 60 % to fit, 20 % to calibrate, 20 % to test
(--calibration-share takes more of the first for the second).
Peers are tuned over the grids in mapie_claps/benchmarks/_peer_table.py, and the best
peer is picked, by the cross-validated interval score on the training rows.

Finished runs are kept in OUT/runs.jsonl; the same command goes on where it stopped, and
with nothing left to run it writes the tables and the picture again. Text columns and
gaps are allowed where all --methods take them: those on boosted trees.

Examples
--------
    python -m mapie_claps.benchmarks peers --smoke
    python -m mapie_claps.benchmarks peers --data FOLDER --out results
    python -m mapie_claps.benchmarks peers --csv my.csv --target price --out mine
"""

import argparse
import time
import warnings
from functools import partial
from importlib import import_module
from pathlib import Path

from ..studies.arguments import (
    add_data_arguments,
    check_installed,
    check_names,
    load_datasets,
    seeds_of,
)
from ..studies.data import CALIBRATION_SHARE, Dataset, load_csv, split_rows
from ..studies.runner import Run, check_mapie, run_and_report, split_run
from ..studies.scoring import score_intervals
from ..studies.store import Row
from ._peer_report import write_report
from ._peer_table import BY_NAME, CLAPS, PEERS, REALMLP
from ._peer_tuning import Method, shortened, tune


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_data_arguments(parser, seeds=10, out="benchmark_peers")
    add = parser.add_argument
    add("--csv", type=Path, metavar="FILE", help="your own data, with a header")
    add("--target", metavar="COLUMN", help="column of FILE to predict")
    names = f"of {', '.join(BY_NAME)}; 'peers' for all but claps and realmlp"
    names += " (default: peers claps)"
    add("--methods", nargs="+", metavar="NAME", help=names)
    add("--confidence-level", type=float, default=0.9, metavar="LEVEL")
    share = f"of the rows to calibrate with ({CALIBRATION_SHARE}); a fifth is to test"
    add("--calibration-share", type=float, default=CALIBRATION_SHARE, help=share)


def run(arguments: argparse.Namespace) -> int:
    """Run what is missing and write the report; 1 if a run failed."""
    methods, level = _methods(arguments.methods), arguments.confidence_level
    if not 0 < level < 1:
        raise ValueError(
            f"Got --confidence-level {level}, but expected a number between 0 and 1. "
            "Use 0.9 if unsure."
        )
    share = arguments.calibration_share
    if not 0.05 <= share <= 0.6:
        raise ValueError(
            f"Got --calibration-share {share}, but expected a number between 0.05 and "
            "0.6. Leave it out to get the default."
        )
    seeds = seeds_of(arguments)
    datasets = _datasets(arguments, all(method.text for method in methods))
    alpha = round(1 - level, 12)
    if arguments.smoke:
        methods = [shortened(method) for method in methods]
    # Seeds outermost: what an interruption leaves is balanced over the data sets.
    runs = [
        plan(data, seed, method, alpha, arguments.max_rows, share=share)
        for seed in seeds
        for data in datasets
        for method in methods
    ]
    return run_and_report(runs, arguments.out, arguments.jobs, write_report)


def plan(
    data: Dataset,
    seed: int,
    method: Method,
    alpha: float,
    n: int,
    study: str = "peers",
    share: float = CALIBRATION_SHARE,
) -> Run:
    """One method on one split of at most n rows of one data set."""
    split: Row = {"seed": seed, "max_rows": n}
    split |= {} if share == CALIBRATION_SHARE else {"calibration_share": share}
    params, ours = method.key | {"alpha": alpha}, method.parameters is not None
    compute = partial(measure, data, seed, method, alpha, n, share)
    return split_run(study, data, split, params, compute, ours)


def measure(
    data: Dataset,
    seed: int,
    method: Method,
    alpha: float,
    n: int,
    share: float = CALIBRATION_SHARE,
) -> list[Row]:
    """Tune on training rows, fit, calibrate, and score on test rows."""
    split = split_rows(data, seed, n, share)
    X, y = split.X_train, split.y_train
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if method.requires:
            import_module(method.requires)  # seconds for ngboost, not its fit time
        choice = tune(method, X, y, alpha, seed)
        start = time.perf_counter()
        model = method.fit(X, y, choice.params, seed, alpha)
        calibration_rows = split.X_cal, split.y_cal
        predict = method.calibrate(model, *calibration_rows, choice.params, alpha)
        fitted = time.perf_counter()
        lower, upper = predict(split.X_test)
        done = time.perf_counter()
        crps = method.crps(model, split, choice.params)
    row = {
        "dataset": data.name,
        "seed": seed,
        "method": method.name,
        "alpha": alpha,
        "n_train": len(y),
        "n_cal": len(split.y_cal),
        "n_test": len(lower),
        "params": choice.params,
        "cv_score": choice.cv_score,
        **score_intervals(split.y_test, lower, upper, alpha),
        "crps": crps,
        "tune_seconds": choice.seconds,
        "fit_seconds": fitted - start,
        "predict_seconds": done - fitted,
        "warnings": sorted({f"{w.category.__name__}: {w.message}" for w in caught}),
    }
    return [row]


def _methods(names: list[str] | None) -> list[Method]:
    """Methods with 'peers' spelt out, in the order of the tables; all are installed."""
    wanted = set(names or ("peers", CLAPS))
    check_names("methods", wanted, [*BY_NAME, "peers"])
    wanted |= set(PEERS) if "peers" in wanted else set()
    chosen = [method for name, method in BY_NAME.items() if name in wanted]
    extra = "networks" if REALMLP in chosen else "bench"
    check_installed({m.requires for m in chosen if m.requires} | {"tqdm"}, extra)
    check_mapie((1, 6), "has the right CQR intervals of fitted models")
    return chosen


def _datasets(arguments: argparse.Namespace, text: bool) -> list[Dataset]:
    """Load what the options name: exactly one source."""
    csv = arguments.csv
    if (csv is None) != (arguments.target is None):
        raise ValueError(
            f"Got --csv {csv} and --target {arguments.target}, but expected both or "
            "none. Give --csv FILE --target COLUMN."
        )
    if sum([arguments.smoke, csv is not None, arguments.data is not None]) > 1:
        raise ValueError(
            "Got more than one of --smoke, --csv and --data, but expected one source "
            "of data. Drop the others."
        )
    if csv is not None:
        return [load_csv(csv, arguments.target, text)]
    return load_datasets(arguments, text)
