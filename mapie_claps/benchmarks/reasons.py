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
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..studies.arguments import (
    add_data_arguments,
    check_names,
    load_datasets,
    seeds_of,
)
from ..studies.data import Array, Dataset, first_component, seeded_order
from ..studies.runner import Run, finished_rows, run_and_report
from ..studies.store import Row, run_key
from ._reasons_models import MODELS, Claps, Predicted, fit_model, parameters_of
from ._reasons_problems import ADDED_NOISE, KNOWN, Known, known_problem
from ._reasons_report import REMOTENESS, report

N_KNOWN = {"train": 800, "test": 800}
COLLECT = {"start": 150, "add": 75}
MAX_COLLECT_COLUMNS = 64  # collecting fits each model three times; trees are slow here
FOREIGN = 0.8  # quantile of the first principal component
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
    problems = _problems(arguments)
    runs = [
        problem.run(seed, name, arguments.smoke)
        for last in (False, True)  # collecting comes last: it takes the longest
        for seed in seeds_of(arguments)
        for problem in problems
        for name in arguments.models
        if name in problem.models and (problem.kind == "collect") is last
    ]
    if arguments.stored:
        sys.stdout.write(report(finished_rows(runs, arguments.out), arguments.out))
        return 0
    return run_and_report(runs, arguments.out, arguments.jobs, report)


class Problem(NamedTuple):
    """What models are measured on, and how."""

    kind: str
    about: dict[str, Any]  # data, for the key
    sizes: dict[str, Any]
    measure: Callable[[int, str, bool], list[Row]]  # from seed, model, smoke

    @property
    def models(self) -> list[str]:
        """Models that it measures: others than ours have no reasons."""
        return ["CLAPS"] if self.kind == "causes" else list(MODELS)

    def run(self, seed: int, model: str, smoke: bool) -> Run:
        """One model on one split."""
        key = run_key(
            f"reasons {self.kind}",
            data=self.about,
            split={"seed": seed, "measures": MEASURES} | self.sizes,
            method=parameters_of(model, smoke),
            uses_claps=model in ("CLAPS", "deep ensemble", "GP"),
        )
        name = self.about.get("generated", self.about.get("name"))
        label = f"{self.kind} {name}, seed {seed}, {model}"
        return Run(label, key, partial(self.measure, seed, model, smoke))


def _problems(arguments: argparse.Namespace) -> list[Problem]:
    """Generated problems and data sets, as far as they are asked for."""
    smoke, n = arguments.smoke, 150 if arguments.smoke else arguments.max_rows
    found: list[Problem] = []
    if arguments.only != "real":
        sizes = {"train": 100, "test": 100} if smoke else N_KNOWN
        for name in KNOWN:
            measure = partial(measure_generated, name, sizes)
            found.append(Problem("known", {"generated": name}, sizes, measure))
        sizes = dict.fromkeys(CAUSES_ROWS, 60) if smoke else CAUSES_ROWS
        causes = partial(measure_causes, sizes)
        found.append(Problem("causes", {"generated": "causes"}, sizes, causes))
    for data in () if arguments.only == "known" else load_datasets(arguments):
        key, rows, of = data.key, {"max_rows": n}, (data, n)
        region: dict[str, Any] = rows | {"foreign": FOREIGN}
        found.append(Problem("real", key, region, partial(measure_real, *of)))
        enough = len(data.y) >= 2 * (COLLECT["start"] + COLLECT["add"])
        if enough and data.X.shape[1] <= MAX_COLLECT_COLUMNS:
            collect = partial(measure_collecting, *of)
            found.append(Problem("collect", key, rows | COLLECT, collect))
        if data.name in ADDED_NOISE:
            noised = key | {"noise": "added"}
            found.append(Problem("known", noised, rows, partial(measure_noised, *of)))
    return found


def measure_generated(
    name: str, sizes: dict[str, int], seed: int, model: str, smoke: bool
) -> list[Row]:
    """A generated problem."""
    rng = np.random.default_rng([seed, len(name)])
    # Foreign rows leave the training rows: draw enough for what is to stay.
    train, test = KNOWN[name](rng, 2 * sizes["train"]), KNOWN[name](rng, sizes["test"])
    here = np.flatnonzero(~train.foreign)[: sizes["train"]]
    predict = fit_model(model, train.X[here], train.y[here], seed, smoke)
    row = {"kind": "known", "dataset": name, "seed": seed, "method": model}
    return known_rows(row, test, predict(test.X))


def measure_noised(
    data: Dataset, n: int, seed: int, model: str, smoke: bool
) -> list[Row]:
    """A real table as the truth, with noise added."""
    known = known_problem(data, seed, n)
    n_train = 2 * len(known.y) // 3
    here = np.flatnonzero(~known.foreign[:n_train])
    predict = fit_model(model, known.X[here], known.y[here], seed, smoke)
    test = Known(*(values[n_train:] for values in known))
    name = f"{data.name} + noise"
    row = {"kind": "known", "dataset": name, "seed": seed, "method": model}
    return known_rows(row, test, predict(test.X))


def measure_real(
    data: Dataset, n: int, seed: int, model: str, smoke: bool
) -> list[Row]:
    """Rows from here and rows from a region that training rows lack."""
    order = seeded_order(data, seed, n)
    train, test = np.split(order, [2 * len(order) // 3])
    position = first_component(data.X[train])
    along = position(data.X[train])
    cut = np.quantile(along, FOREIGN)
    here = train[along <= cut]
    predict = fit_model(model, data.X[here], data.y[here], seed, smoke)
    foreign = position(data.X[test]) > cut
    found = predict(data.X[test])
    squares = (data.y[test] - found.mu) ** 2
    row: Row = {"kind": "real", "dataset": data.name, "seed": seed, "method": model}
    for name, rows in (("here", ~foreign), ("foreign", foreign)):
        row[f"error_{name}"] = float(squares[rows].mean() / data.y[test].var())
    return ranked_rows(row, found, squares, foreign)


def measure_collecting(
    data: Dataset, n: int, seed: int, model: str, smoke: bool
) -> list[Row]:
    """Error after adding the most unknown rows, and after adding random ones."""
    from ..diagnostics import rank_rows

    order = seeded_order(data, seed, n)
    train, test = np.split(order, [2 * len(order) // 3])
    start, pool = np.split(train, [COLLECT["start"]])
    predict = fit_model(model, data.X[start], data.y[start], seed, smoke)
    unknown = np.argsort(-predict(data.X[pool]).epistemic, kind="stable")
    chosen = {
        "random": np.random.default_rng(seed).permutation(len(pool)),
        "epistemic": unknown,
    }
    if isinstance(predict, Claps):
        table = rank_rows(predict.model, data.X[pool], by="gain", n_rows=COLLECT["add"])
        chosen["gain"] = np.asarray(table["row"])
    errors = {}
    for name, rows in chosen.items():
        more = np.concatenate([start, pool[rows[: COLLECT["add"]]]])
        again = fit_model(model, data.X[more], data.y[more], seed, smoke)
        found = again(data.X[test]).mu - data.y[test]
        errors[f"rmse_{name}"] = float(np.sqrt(np.mean(found**2)))
    row = {"kind": "collect", "dataset": data.name, "seed": seed, "method": model}
    base = errors["rmse_random"]
    found_ = [row | errors | {"collect": errors["rmse_epistemic"] / base}]
    if "rmse_gain" in errors:
        gain = {"method": f"{model}, by gain", "collect": errors["rmse_gain"] / base}
        found_.append(row | gain)
    return found_


def known_rows(row: Row, test: Known, found: Predicted) -> list[Row]:
    """The parts against what is true."""
    from scipy.stats import spearmanr

    squares, foreign = (found.mu - test.mu) ** 2, np.asarray(test.foreign)
    here = ~foreign
    log_ratio = np.log(np.maximum(found.aleatoric[here], 1e-300) / test.noise[here])
    row = row | {"noise_error": float(np.mean(np.abs(log_ratio))), "noise_rho": 0.0}
    if np.ptp(found.aleatoric[here]) > 0:  # else it is constant
        correlation = spearmanr(found.aleatoric[here], test.noise[here]).statistic
        row["noise_rho"] = float(correlation)
    for name, rows in (("here", here), ("foreign", foreign)):
        ratio = found.epistemic[rows].mean() / squares[rows].mean()
        row[f"size_{name}"] = float(ratio)
    return ranked_rows(row, found, squares, foreign)


def ranked_rows(row: Row, found: Predicted, squares: Array, foreign: Any) -> list[Row]:
    """What the epistemic part ranks and, beside it, the remoteness of CLAPS."""
    rows = [row | ranking_measures(found.epistemic, squares, foreign)]
    if found.remoteness is not None:
        ranked = ranking_measures(found.remoteness, squares, foreign)
        kept = {name: row[name] for name in ("kind", "dataset", "seed")}
        rows.append(kept | {"method": REMOTENESS} | ranked)
    return rows


def ranking_measures(
    epistemic: Array, squares: Array, foreign: Any
) -> dict[str, float]:
    """How well the epistemic part ranks squared errors and foreign rows."""
    from scipy.stats import spearmanr
    from sklearn.metrics import roc_auc_score

    def rho(rows: Any) -> float:
        if np.ptp(epistemic[rows]) == 0:
            return 0.0
        return float(spearmanr(epistemic[rows], squares[rows]).statistic)

    def area(order: Any) -> float:
        kept = np.cumsum(squares[order]) / np.arange(1, len(squares) + 1)
        return float(kept.mean() / squares.mean())

    order = np.argsort(epistemic, kind="stable")
    found, best = area(order), area(np.argsort(squares))
    top = order[-(len(order) // 5) :]
    return {
        "rho": rho(slice(None)),
        "rho_here": rho(~foreign),
        "sparsification": found,
        "share_of_best": (1 - found) / (1 - best),
        "top_fifth": float(squares[top].mean() / squares.mean()),
        "auroc": float(roc_auc_score(foreign, epistemic)),
    }


def measure_causes(
    sizes: dict[str, int], seed: int, model: str, smoke: bool
) -> list[Row]:
    """Share of the rows of a region in which its cause is named first."""
    import time

    from .. import CalibratedRegressor, explain
    from ._reasons_problems import CAUSES, named_causes

    X, y, _ = named_causes(sizes["train"], 3 * seed, foreign=False)
    predict = fit_model(model, X, y, seed, smoke)
    assert isinstance(predict, Claps)  # noqa: S101 - others have no reasons
    X_cal, y_cal, _ = named_causes(sizes["background"], 3 * seed + 1, foreign=False)
    calibrated = CalibratedRegressor(predict.model).conformalize(X_cal, y_cal)
    pool, _, _ = named_causes(40 * sizes["test"], 3 * seed + 2, foreign=True)
    regions = {
        "aleatoric": pool[(pool["hour"] > 18) & (pool["depth"] < 6)],
        "epistemic": pool[pool["depth"] > 7],
    }
    row: Row = {"kind": "causes", "dataset": "causes", "seed": seed, "method": model}
    worst, seconds = 0.0, {"few": 0.0, "all": 0.0}
    for part, rows in regions.items():
        some = rows[: sizes["test"]]
        for name, shown in (("few", some[: sizes["test"] // 4]), ("all", some)):
            started = time.process_time()
            why = explain(calibrated, shown, by_column=True, background=X_cal)
            seconds[name] += (time.process_time() - started) / len(shown) / 2
        adds = why.by_column
        assert adds is not None  # noqa: S101 - asked for above
        first = adds.leading(part) == CAUSES[part]
        row[f"{part}_first"] = float(np.mean(first))
        for i, name in enumerate(CAUSES):
            error = getattr(adds, name).sum(1) + adds.reference[i] - adds.total[:, i]
            worst = max(worst, float(np.abs(error).max()))
    times = {f"seconds_per_row_{name}": value for name, value in seconds.items()}
    return [row | {"additivity": worst} | times]
