"""Do the two parts of the variance tell the truth?

On generated problems, and on real tables with noise added, mean and noise are known: h²
is compared with the true noise, the epistemic part with the true squared error of μ.
On real data squared residuals take its place. Training rows lack a region throughout
(on real data the top fifth of the first principal component): its test rows are
"foreign". Beside CLAPS: a Gaussian process, CatBoost's virtual ensembles, a deep
ensemble of five, and laplace-torch on a network trained by squared error; and CLAPS
with its remoteness, which is for foreign rows, in place of its epistemic part.

    rho        Spearman's correlation of the epistemic part with the squared error of μ
    sparse     area under the sparsification curve: mean squared error of the rows kept
               when those of the largest epistemic part go first, over that of all rows,
               averaged over how many are kept (random order: 1, smaller is better)
    share      what that order gains over a random one, as a share of what the order of
               the squared errors themselves would gain (random order: 0, at most 1);
               unlike "sparse" it does not depend on how unequal the errors are
    foreign    area under the ROC curve of the epistemic part for foreign rows
    top fifth  mean squared error of the fifth with the largest epistemic part, over
               that of all rows
    collect    error after adding the rows of the largest epistemic part to a small
               training set, over the error after adding random ones

Finished runs are kept in OUT/runs.jsonl; the same command goes on where it stopped, and
prints the tables of what is there with --stored.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..studies.arguments import (
    add_data_arguments,
    check_names,
    load_datasets,
    seeds_of,
)
from ..studies.data import Array, Dataset, seeded_order
from ..studies.runner import Run, finished_rows, run_and_report
from ..studies.store import Row, run_key
from . import _reasons_problems as _problems
from ._reasons_models import MODELS, Predicted, fit_model, parameters_of
from ._reasons_problems import ADDED_NOISE, CAUSES, FOREIGN, KNOWN, Known, named_causes
from ._reasons_report import REMOTENESS, report

Fit = Callable[[Any, Array, Any], Predicted]  # from X, y and new rows
N_KNOWN = {"train": 800, "test": 800}
COLLECT = {"start": 150, "add": 75}
MAX_COLLECT_COLUMNS = 64  # collecting fits each model three times; trees are slow here
MEASURES = 2  # raise it when a measure is added or changed: part of every key
CAUSES_ROWS = {"train": 1500, "background": 200, "test": 100}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_data_arguments(parser, seeds=5, out="benchmark_reasons")
    parser.set_defaults(max_rows=1200)
    names = f"of {', '.join(MODELS)} (all)"
    parser.add_argument("--models", nargs="+", default=list(MODELS), help=names)
    parser.add_argument(
        "--only",
        choices=("known", "real"),
        help="generated problems alone, or real data alone (both)",
    )
    stored = "print the tables of the runs in OUT, and compute nothing"
    parser.add_argument("--stored", action="store_true", help=stored)


def run(arguments: argparse.Namespace) -> int:
    """Run what is missing and print the tables; 1 if a run failed."""
    check_names("models", arguments.models, MODELS)
    problems = list(_asked_for(arguments))
    runs = [
        problem.run(seed, model, arguments.smoke)
        for last in (False, True)  # collecting comes last: it takes the longest
        for seed in seeds_of(arguments)
        for problem in problems
        for model in arguments.models
        if (problem.kind == "collect") is last
        and (problem.kind != "causes" or model == "CLAPS")  # others have no reasons
    ]
    if arguments.stored:
        sys.stdout.write(report(finished_rows(runs, arguments.out), arguments.out))
        return 0
    return run_and_report(runs, arguments.out, arguments.jobs, report)


class Problem(NamedTuple):
    """What models are measured on, and how."""

    kind: str
    name: str
    data: dict[str, Any]  # for the key
    sizes: dict[str, Any]
    measure: Callable[[Fit, int], list[Row]]  # from a model to fit, and the seed

    def run(self, seed: int, model: str, smoke: bool) -> Run:
        """One model on one split."""
        key = run_key(
            f"reasons {self.kind}",
            data=self.data,
            split={"seed": seed, "measures": MEASURES} | self.sizes,
            method=parameters_of(model, smoke),
            uses_claps=model in ("CLAPS", "deep ensemble", "GP"),
        )
        label = f"{self.kind} {self.name}, seed {seed}, {model}"
        return Run(label, key, partial(self.rows, seed, model, smoke))

    def rows(self, seed: int, model: str, smoke: bool) -> list[Row]:
        """What was measured, with what it was measured on."""
        dataset = self.name + (" + noise" if "noise" in self.data else "")
        row = {"kind": self.kind, "dataset": dataset, "seed": seed, "method": model}
        fit = partial(fit_model, model, seed, smoke)
        return [row | measures for measures in self.measure(fit, seed)]


def _asked_for(arguments: argparse.Namespace) -> Iterator[Problem]:
    """Generated problems and data sets."""
    smoke, n = arguments.smoke, 150 if arguments.smoke else arguments.max_rows
    if arguments.only != "real":
        sizes = {"train": 100, "test": 100} if smoke else N_KNOWN
        for name in KNOWN:
            measure = partial(measure_parts, _problems.generated, name, sizes)
            yield Problem("known", name, {"generated": name}, sizes, measure)
        sizes = dict.fromkeys(CAUSES_ROWS, 60) if smoke else CAUSES_ROWS
        causes = partial(measure_causes, sizes)
        yield Problem("causes", "causes", {"generated": "causes"}, sizes, causes)
    for data in () if arguments.only == "known" else load_datasets(arguments):
        name, key, rows = data.name, data.key, {"max_rows": n}
        measure = partial(measure_parts, _problems.real, data, n)
        yield Problem("real", name, key, rows | {"foreign": FOREIGN}, measure)
        enough = len(data.y) >= 2 * (COLLECT["start"] + COLLECT["add"])
        if enough and data.X.shape[1] <= MAX_COLLECT_COLUMNS:
            collect = partial(measure_collecting, data, n)
            yield Problem("collect", name, key, rows | COLLECT, collect)
        if name in ADDED_NOISE:
            measure = partial(measure_parts, _problems.noised, data, n)
            yield Problem("known", name, key | {"noise": "added"}, rows, measure)


def measure_parts(
    make: Callable[..., _problems.Parts], data: Any, size: Any, fit: Fit, seed: int
) -> list[Row]:
    """Both parts of the variance of rows from here and from elsewhere."""
    train, test = make(data, size, seed)
    return part_rows(test, fit(train.X, train.y, test.X))


def part_rows(test: Known, found: Predicted) -> list[Row]:
    """Measures of the parts and, beside them, of the remoteness of CLAPS."""
    squares, foreign = (found.mu - test.mu) ** 2, np.asarray(test.foreign)
    row: Row = {}
    known = not np.isnan(test.noise).any()
    if known:
        noise, true = found.aleatoric[~foreign], test.noise[~foreign]
        log_ratio = np.log(np.maximum(noise, 1e-300) / true)
        row["noise_error"] = float(np.mean(np.abs(log_ratio)))
        row["noise_rho"] = rank_correlation(noise, true)
    for name, rows in (("here", ~foreign), ("foreign", foreign)):
        error = squares[rows].mean()
        if known:
            row[f"size_{name}"] = float(found.epistemic[rows].mean() / error)
        else:
            row[f"error_{name}"] = float(error / test.y.var())
    measured = [row | ranking_measures(found.epistemic, squares, foreign)]
    if found.remoteness is not None:
        ranked = ranking_measures(found.remoteness, squares, foreign)
        measured.append({"method": REMOTENESS} | ranked)
    return measured


def ranking_measures(
    epistemic: Array, squares: Array, foreign: Any
) -> dict[str, float]:
    """How well the epistemic part ranks squared errors and foreign rows."""
    from sklearn.metrics import roc_auc_score

    def area(order: Any) -> float:
        kept = np.cumsum(squares[order]) / np.arange(1, len(squares) + 1)
        return float(kept.mean() / squares.mean())

    order = np.argsort(epistemic, kind="stable")
    found, best = area(order), area(np.argsort(squares))
    top = order[-(len(order) // 5) :]
    return {
        "rho": rank_correlation(epistemic, squares),
        "rho_here": rank_correlation(epistemic[~foreign], squares[~foreign]),
        "sparsification": found,
        "share_of_best": (1 - found) / (1 - best),
        "top_fifth": float(squares[top].mean() / squares.mean()),
        "auroc": float(roc_auc_score(foreign, epistemic)),
    }


def rank_correlation(values: Array, others: Array) -> float:
    """Spearman's correlation; 0 of values that are constant."""
    from scipy.stats import spearmanr

    return float(spearmanr(values, others).statistic) if np.ptp(values) > 0 else 0.0


def measure_collecting(data: Dataset, n: int, fit: Fit, seed: int) -> list[Row]:
    """Error after adding the most unknown rows, and after adding random ones."""
    from ..diagnostics import rank_rows

    order = seeded_order(data, seed, n)
    train, test = np.split(order, [2 * len(order) // 3])
    start, pool = np.split(train, [COLLECT["start"]])
    found, n_add = fit(data.X[start], data.y[start], data.X[pool]), COLLECT["add"]
    chosen = {
        "random": np.random.default_rng(seed).permutation(len(pool)),
        "epistemic": np.argsort(-found.epistemic, kind="stable"),
    }
    if found.model is not None:
        table = rank_rows(found.model, data.X[pool], by="gain", n_rows=n_add)
        chosen["gain"] = np.asarray(table["row"])
    errors = {}
    for name, rows in chosen.items():
        more = np.concatenate([start, pool[rows[:n_add]]])
        error = fit(data.X[more], data.y[more], data.X[test]).mu - data.y[test]
        errors[f"rmse_{name}"] = float(np.sqrt(np.mean(error**2)))
    base = errors["rmse_random"]
    measured: list[Row] = [errors | {"collect": errors["rmse_epistemic"] / base}]
    if "rmse_gain" in errors:
        ratio = errors["rmse_gain"] / base
        measured.append({"method": "CLAPS, by gain", "collect": ratio})
    return measured


def measure_causes(sizes: dict[str, int], fit: Fit, seed: int) -> list[Row]:
    """Share of the rows of a region in which its cause is named first."""
    from .. import CalibratedRegressor, explain

    X, y, _ = named_causes(sizes["train"], 3 * seed, foreign=False)
    model = fit(X, y, X[:1]).model
    X_cal, y_cal, _ = named_causes(sizes["background"], 3 * seed + 1, foreign=False)
    calibrated = CalibratedRegressor(model).conformalize(X_cal, y_cal)
    pool, _, _ = named_causes(40 * sizes["test"], 3 * seed + 2, foreign=True)
    regions = {
        "aleatoric": pool[(pool["hour"] > 18) & (pool["depth"] < 6)],
        "epistemic": pool[pool["depth"] > 7],
    }
    row, worst, seconds = {}, 0.0, {"few": 0.0, "all": 0.0}
    for part, rows in regions.items():
        some = rows[: sizes["test"]]
        for name, shown in (("few", some[: sizes["test"] // 4]), ("all", some)):
            started = time.process_time()
            why = explain(calibrated, shown, by_column=True, background=X_cal)
            seconds[name] += (time.process_time() - started) / len(shown) / 2
        adds = why.by_column
        assert adds is not None  # noqa: S101 - asked for above
        row[f"{part}_first"] = float(np.mean(adds.leading(part) == CAUSES[part]))
        for i, name in enumerate(CAUSES):
            error = getattr(adds, name).sum(1) + adds.reference[i] - adds.total[:, i]
            worst = max(worst, float(np.abs(error).max()))
    times = {f"seconds_per_row_{name}": value for name, value in seconds.items()}
    return [row | {"additivity": worst} | times]
