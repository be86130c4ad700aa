"""Do reasons and intervals tell the truth, on data whose truth is known?

noise     generated means and noises: noise and lack of data against the truth
permuted  real tables with y permuted, and with known noise added to a known mean
reasons   rows whose reason changes with the random state alone
sparse    coverage in a region that lost 99 % of its training rows
equal     the same rows, some of them twice: noise, coverage, jackknife+-after-bootstrap
levels    the same table with a column as text and as integers
counts    integer targets that are never negative, beside CQR
small     24 to 200 rows, beside ridge regression and a Gaussian process

truth_bounds.csv says what must hold, for means over seeds; names of ratios hold a "/",
and their mean is the geometric one. FOLDER has the paper's CSV files, and folders choice,
tables and met with further ones, the target last. The same command goes on where it was
stopped. With another commit on PYTHONPATH, ``--only small`` makes a small.csv; put into
OUT as small_before.csv, it is compared with.

    python docs/studies/truth.py --smoke
    python docs/studies/truth.py --data FOLDER --out docs/benchmarks/truth --jobs 2
"""

import argparse
import hashlib
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import engine
import numpy as np
import pandas as pd
from engine import Array, Row, Run, number
from mapie.regression import (
    ConformalizedQuantileRegressor,
    CrossConformalRegressor,
    JackknifeAfterBootstrapRegressor,
)
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor, kernels
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale

from mapie_claps import CalibratedRegressor, ClapsRegressor, ClapsScore, explain
from mapie_claps.diagnostics import diagnose

ALPHA, LEVEL = 0.1, 0.9
CLAPS, WITHOUT_KERNEL = "CLAPS", "CLAPS, kernel=False"
N_NEW = 1000  # rows to predict
MIN_NEW = 50  # a table with fewer left has no part in a case
GP_OPTIMISED_ROWS, GP_ROWS = 500, 1000
N_JACKKNIFE, N_RESAMPLINGS = 3, 20
NAMES = {"method", "set", "seed", "kind", "rows", "size", "r2", "case"}  # no measures
Model = Callable[..., ClapsRegressor]
Table = pd.DataFrame


# What CLAPS and its peers tell of new rows --------------------------------------------


class Told(NamedTuple):
    """Mean and both parts of the variance."""

    mean: Array
    noise: Array
    lack: Array

    def against(self, mean: Array, sd: Any) -> Row:
        """The comparison with true means and standard deviations of the noise."""
        error = float(np.mean((self.mean - mean) ** 2))
        return {
            "noise/true": float(np.median(np.sqrt(self.noise) / sd)),
            "lack/true": float(np.mean(self.lack)) / error,
            "true lack": error / float(np.mean(np.square(sd))),
        }


def told(model: Any, X: Any) -> Told:
    why = explain(model, X)
    return Told(why.prediction, why.aleatoric, why.epistemic)


def matern(length_scale: Any) -> Any:
    shape = kernels.Matern(length_scale, (1e-2, 1e3), nu=2.5)
    return 1.0 * shape + kernels.WhiteKernel(0.5, (1e-6, 10.0))


def tell_gp(X: Array, y: Array, new: Array, seed: int) -> Told:
    """A length scale for each column, by marginal likelihood on a part of the rows."""
    rows = np.random.default_rng(seed).permutation(len(X))
    few, many = rows[:GP_OPTIMISED_ROWS], rows[:GP_ROWS]
    kernel = matern(np.ones(X.shape[1]))
    kernel = GaussianProcessRegressor(kernel).fit(X[few], y[few]).kernel_
    model = GaussianProcessRegressor(kernel, optimizer=None).fit(X[many], y[many])
    mean, std = model.predict(new, return_std=True)
    noise = np.full(len(new), kernel.k2.noise_level)
    return Told(mean, noise, np.maximum(std**2 - noise, 0.0))


def tell_ensemble(X: Array, y: Array, new: Array, seed: int) -> Told:
    """Five networks of the paper, by Gaussian likelihood."""
    model = ClapsRegressor.paper
    members = [told(model(random_state=5 * seed + k).fit(X, y), new) for k in range(5)]
    mean, noise, _ = np.mean(members, axis=0)
    return Told(mean, noise, np.var([member.mean for member in members], axis=0))


def tell_catboost(X: Array, y: Array, new: Array, seed: int) -> Told:
    """Virtual ensembles of one booster of mean and variance."""
    from catboost import CatBoostRegressor

    options = {"allow_writing_files": False, "thread_count": 1, "verbose": False}
    options |= {"posterior_sampling": True, "iterations": 500, "random_seed": seed}
    model = CatBoostRegressor(loss_function="RMSEWithUncertainty", **options).fit(X, y)
    kind = {"prediction_type": "TotalUncertainty", "virtual_ensembles_count": 10}
    mean, lack, noise = model.virtual_ensembles_predict(new, thread_count=1, **kind).T
    return Told(mean, noise, lack)


TELLERS = {
    "Gaussian process": tell_gp,
    "deep ensemble": tell_ensemble,
    "CatBoost": tell_catboost,
}


# Known means and noises ---------------------------------------------------------------

MEANS: dict[str, Callable[[Array], Array]] = {
    "linear": lambda X: X[:, 0],
    "additive": lambda X: np.sin(2 * X[:, 0]) + X[:, 1] ** 2 / 2 + X[:, 2],
    "interaction": lambda X: X[:, 0] * X[:, 1] + np.sin(2 * X[:, 2]),
}
UNEVEN = "additive, uneven noise"


def truth_of(X: Array, kind: str, r2: float) -> tuple[Array, Array]:
    """Mean and standard deviation of the noise, whose variance is 1 on average."""
    function = MEANS[kind.split(",")[0]]
    sample = function(np.random.default_rng(0).standard_normal((20_000, 5)))
    mean = (function(X) - sample.mean()) / sample.std() * math.sqrt(r2 / (1 - r2))
    return mean, np.exp(X[:, 0] / 2 - 0.25) if kind == UNEVEN else np.ones(len(X))


def noise(
    seed: int, new: Model, *, method: str, size: str, kind: str, r2: float
) -> Iterator[Row]:
    n, p = map(int, size.split(" × "))
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n + N_NEW, p))
    mean, sd = truth_of(X, kind, r2)
    y = mean + sd * rng.standard_normal(len(X))
    if method in TELLERS:
        unit = y[:n].std()  # peers expect standardised targets
        parts = TELLERS[method](X[:n], y[:n] / unit, X[n:], seed)
        found = Told(unit * parts.mean, unit**2 * parts.noise, unit**2 * parts.lack)
    else:
        options = {"kernel": False} if method == WITHOUT_KERNEL else {}
        found = told(new(random_state=seed, **options).fit(X[:n], y[:n]), X[n:])
    yield found.against(mean[n:], sd[n:])


def shuffled(table: Table, seed: int, max_rows: int | None = None) -> tuple[Table, Any]:
    """Inputs and targets of at most so many rows, in a seeded order."""
    rows = np.random.default_rng(seed).permutation(len(table))[:max_rows]
    table = table.iloc[rows].reset_index(drop=True)
    return table.iloc[:, :-1], table.iloc[:, -1].to_numpy(np.float64)


def codes(X: Table) -> Array:
    """Text as numbers, for boosting."""
    numeric = pd.api.types.is_numeric_dtype
    columns = [X[c] if numeric(X[c]) else pd.factorize(X[c])[0] for c in X]
    return np.column_stack(columns).astype(np.float64)


def reason_of(model: Any, X: Any) -> Any:
    return np.asarray(diagnose(model, X)["reason"])


def permuted(seed: int, new: Model, table: Table, *, kind: str) -> Iterator[Row]:
    """Targets that have nothing to do with x, or whose mean is that of a booster."""
    X, y = shuffled(table, seed, 2000)
    rng, n = np.random.default_rng(seed + 1), len(y) * 3 // 4
    if kind == "permuted":
        mean, sd, y = np.full(len(y), y.mean()), np.std(y), rng.permutation(y)
    else:
        booster = HistGradientBoostingRegressor(random_state=0).fit(codes(X), y)
        mean = booster.predict(codes(X))
        sd = float(kind.removeprefix("noise ")) * np.std(mean)
        y = mean + sd * rng.standard_normal(len(y))
    model = new(random_state=seed).fit(X[:n], y[:n])
    collect = float(np.mean(reason_of(model, X[n:]) == "collect data here"))
    yield told(model, X[n:]).against(mean[n:], sd) | {"collect": collect}


def reasons(seed: int, new: Model, table: Table, *, rows: int) -> Iterator[Row]:
    """The same training rows with three random states."""
    X, y = shuffled(table, seed, rows + 500)
    models = [new(random_state=state).fit(X[:rows], y[:rows]) for state in range(3)]
    first, *others = (reason_of(model, X[rows:]) for model in models)
    yield {"changed": float(np.mean(np.any([first != r for r in others], axis=0)))}


# Intervals ----------------------------------------------------------------------------


def scored(ends: Array, y: Array, unit: Any = 1.0) -> Row:
    found = engine.score_intervals(y, *ends.T, ALPHA)
    score = found["interval_score"] / float(unit)
    return {"coverage": found["coverage"], "score/sd(y)": score}


def intervals(calibrated: Any, X: Any, **options: Any) -> Array:
    return np.asarray(calibrated.predict_interval(X, **options)[1][:, :, 0])


def split_ends(fitted: Any, X: Any, y: Array, i: int, j: int) -> Array:
    """Calibrate on rows from i to j and predict those behind."""
    model = CalibratedRegressor(fitted, LEVEL).conformalize(X[i:j], y[i:j])
    return intervals(model, X[j:])


def cqr_ends(X: Any, y: Array, i: int, j: int) -> Array:
    """The same with boosted quantiles, fitted on rows up to i."""
    model, X = HistGradientBoostingRegressor(loss="quantile", random_state=0), codes(X)
    host = ConformalizedQuantileRegressor(model, LEVEL).fit(X[:i], y[:i])
    host.conformalize(X[i:j], y[i:j])
    return intervals(host, X[j:], symmetric_correction=True)


def fifths(y: Array) -> tuple[int, int]:
    return int(0.6 * len(y)), int(0.8 * len(y))


def sparse(seed: int, new: Model, table: Table) -> Iterator[Row]:
    """Calibration and test rows are as they were."""
    X, y = shuffled(table, seed, 4000)
    component = PCA(1, random_state=0).fit_transform(scale(X))[:, 0]
    (i, j), inside = fifths(y), component > np.quantile(component, 0.8)
    kept = ~inside[:i] | (np.random.default_rng(seed + 1).random(i) < 0.01)
    model = new(random_state=seed).fit(X[:i][kept], y[:i][kept])
    ends, inside, sd = split_ends(model, X, y, i, j), inside[j:], np.std(y)
    there = scored(ends[inside], y[j:][inside], sd)
    everywhere = scored(ends, y[j:], sd)
    yield {f"{name} inside": value for name, value in there.items()} | everywhere


def equal(seed: int, new: Model, table: Table) -> Iterator[Row]:
    X, y = shuffled(table, seed)
    rng, n = np.random.default_rng(seed + 1), len(y) * 3 // 4
    every = np.arange(n)
    kinds = {
        "as they are": every,
        "a tenth twice": np.r_[every, rng.choice(n, n // 10, replace=False)],
        "a quarter twice": np.r_[every, rng.choice(n, n // 4, replace=False)],
        "all twice": np.r_[every, every],
        "bootstrap": rng.integers(0, n, n),
    }
    found: list[Told] = []
    for kind, rows in kinds.items():
        model = CalibratedRegressor(new(random_state=seed), LEVEL, random_state=seed)
        model.fit(X.iloc[rows].reset_index(drop=True), y[rows])
        found.append(told(model, X[n:]))
        ratio = float(np.median(found[-1].noise) / np.median(found[0].noise))
        row = {"kind": kind, "noise/as they are": ratio}
        yield row | scored(intervals(model, X[n:]), y[n:], np.std(y))
    if seed % 10 < N_JACKKNIFE:
        given: Any = new(random_state=seed), LEVEL, ClapsScore(), "plus", N_RESAMPLINGS
        host = JackknifeAfterBootstrapRegressor(*given, random_state=seed)
        host.fit_conformalize(X[:n], y[:n])
        ratio = float(np.median(told(host, X[n:]).lack) / np.median(found[0].lack))
        row = {"kind": "jackknife+-after-bootstrap", "lack/split": ratio}
        yield row | scored(intervals(host, X[n:]), y[n:], np.std(y))


def level_rows(k: int, n: int, seed: int) -> tuple[Table, Array, Array]:
    """n rows with each level equally often, then new ones; means and targets."""
    rng = np.random.default_rng(seed)
    level = np.r_[rng.permutation(np.arange(n) % k), rng.integers(0, k, 2 * N_NEW)]
    X = pd.DataFrame({"level": level, "flag": rng.integers(0, 2, len(level))})
    mean = rng.normal(0, 10, (k, 2))[level, X["flag"]]
    return X, mean, mean + rng.standard_normal(len(X))


def named(X: Table, column: str) -> Table:
    return X.assign(**{column: [f"c{value}" for value in X[column]]})


def levels(seed: int, new: Model, table: Table, *, case: str) -> Iterator[Row]:
    """A column of integers, and the same as text; new rows are the last thousand."""
    if case == "fit time":
        times = []
        for k in (12, 100) * 3:
            X, _, y = level_rows(k, 3000, seed)
            X, start = named(X, "level"), time.process_time()
            new(random_state=seed).fit(X, y)
            times.append(time.process_time() - start)
        yield {"time/12 levels": min(times[1::2]) / min(times[::2])}
        return
    if case == "bikeshare":
        X, y = shuffled(table, seed)
        mean, column, (i, j) = None, "hr", fifths(y)
    else:
        n, column = int(case.split()[0]), "level"
        i, j = 30 * n, 30 * n + N_NEW
        X, mean, y = level_rows(n, i, seed)
    peer, first = scored(cqr_ends(X, y, i, j), y[j:]), None
    for kind, rows in {"integers": X, "text": named(X, column)}.items():
        model = new(random_state=seed).fit(rows[:i], y[:i])
        score = scored(split_ends(model, rows, y, i, j), y[j:])["score/sd(y)"]
        first, parts = first or score, told(model, rows[j:])
        share = float(np.mean(parts.lack / (parts.noise + parts.lack)))
        row = {"kind": kind, "score/integers": score / first, "lack share": share}
        truth = {} if mean is None else parts.against(mean[j:], 1.0)
        yield row | {"score/boosting": score / peer["score/sd(y)"]} | truth


def counts(seed: int, new: Model, table: Table) -> Iterator[Row]:
    X, y = shuffled(table, seed, 6000)
    i, j = fifths(y)
    model = new(random_state=seed).fit(X[:i], y[:i])
    ends = split_ends(model, X, y, i, j)
    ours, peer = scored(ends, y[j:]), scored(cqr_ends(X, y, i, j), y[j:])
    yield {
        "negative": float(np.mean(ends < 0)),
        "not integer": float(np.mean(ends != np.round(ends))),
        "coverage": ours["coverage"],
        "coverage of CQR": peer["coverage"],
        "score/CQR": ours["score/sd(y)"] / peer["score/sd(y)"],
    }


SMALL_PEERS = {
    "ridge": RidgeCV(np.logspace(-3, 3, 13)),
    "Gaussian process": GaussianProcessRegressor(matern(1.0), normalize_y=True),
}


def small(
    seed: int, new: Model, table: Table, *, rows: int, method: str
) -> Iterator[Row]:
    """Peers are calibrated by CV+ of five folds, with absolute residuals."""
    X, y = shuffled(table, seed, rows + N_NEW)
    try:
        if method == CLAPS:
            ours = CalibratedRegressor(new(random_state=seed), LEVEL, random_state=seed)
            model: Any = ours.fit(X[:rows], y[:rows])
        else:
            peer = make_pipeline(StandardScaler(), SMALL_PEERS[method])
            model = CrossConformalRegressor(peer, LEVEL, random_state=seed)
            model.fit_conformalize(X[:rows], y[:rows])
        yield scored(intervals(model, X[rows:]), y[rows:], np.std(y))
    except ValueError:  # refuses so few rows
        yield {"coverage": None, "score/sd(y)": None}


# Parts --------------------------------------------------------------------------------


class Part(NamedTuple):
    """How rows are measured: every file with every combination of the options."""

    measure: Callable[..., Iterator[Row]]
    by: Sequence[str]  # fields that name the lines, for each of its tables
    within: str = ""  # fields over whose groups a range is shown
    files: Sequence[str] = ()
    options: Mapping[str, Sequence[Any]] = {}
    n_seeds: int | None = None  # if not --seeds


CHOICE = "choice/*.csv"
REAL = CHOICE, "met/*.csv", "tables/*.csv"
SPARSE = *(f"{name}.csv" for name in engine.PAPER_DATASETS), CHOICE
EQUAL = "met/penguins.csv", "met/hitters.csv", "met/seattle_weather.csv"
BIKES = "met/bikeshare.csv"
COUNTS = BIKES, "met/doctor_visits.csv", "wine_red.csv", "tables/white_wine.csv"
NOISE = {
    "method": (CLAPS, WITHOUT_KERNEL, *TELLERS),
    "size": ("200 × 30", "400 × 10", "1000 × 10", "3000 × 10"),
    "kind": (*MEANS, UNEVEN),
    "r2": (0.0, 0.1, 0.3, 0.5, 0.8, 0.95),
}
KINDS = {"kind": ("permuted", "noise 0.5", "noise 1")}
CASES = (
    *(f"{k} levels" for k in (12, 20, 21, 40, 60, 100, 200)),
    "bikeshare",
    "fit time",
)
SMALL = {"method": (CLAPS, *SMALL_PEERS), "rows": (24, 50, 100, 200)}
PARTS = {
    "noise": Part(noise, ["method r2", "method size"], "size kind r2", (), NOISE),
    "permuted": Part(permuted, ["kind"], "set", REAL, KINDS),
    "reasons": Part(reasons, ["rows"], "set", [CHOICE], {"rows": (100, 300, 1500)}),
    "sparse": Part(sparse, ["set"], "", SPARSE),
    "equal": Part(equal, ["set kind"], "", EQUAL, n_seeds=10),
    "levels": Part(levels, ["case kind"], "", [BIKES], {"case": CASES}),
    "counts": Part(counts, ["set"], "", COUNTS, n_seeds=5),
    "small": Part(small, ["rows method"], "set", [CHOICE], SMALL, n_seeds=20),
}


@cache
def read(path: Path) -> Table:
    return pd.read_csv(path)


@cache
def file_key(path: Path | None) -> Row:
    if path is None:
        return {"name": "generated"}
    return {"name": path.stem, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def compute(
    name: str, path: Path | None, seed: int, params: Row, case: Row
) -> list[Row]:
    given = () if path is None else (read(path),)
    about = {"set": file_key(path)["name"], "seed": seed} | case
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        new = partial(ClapsRegressor, **params)
        return [about | row for row in PARTS[name].measure(seed, new, *given, **case)]


def plan(name: str, arguments: argparse.Namespace) -> Iterator[Run]:
    """Runs of a part; seeds outermost, so that what an interruption leaves is even."""
    part, params = PARTS[name], arguments.params
    found = {p: sorted(arguments.data.glob(p)) for p in part.files}
    if missing := ", ".join(pattern for pattern, paths in found.items() if not paths):
        raise ValueError(
            f"Got --data {arguments.data}, but expected {missing} in it for the part "
            f"{name!r}. Correct the folder, or choose parts with --only."
        )
    paths = [path for some in found.values() for path in some] or [None]
    first, n = arguments.first_seed, part.n_seeds or arguments.seeds
    options = product(*part.options.values())
    cases = [dict(zip(part.options, values, strict=True)) for values in options]
    for seed, case, path in product(range(first, first + n), cases, paths):
        method = case.get("method", CLAPS)
        if method != CLAPS and arguments.without_peers:
            continue
        if path and len(read(path)) < case.get("rows", 0) + MIN_NEW:
            continue
        key = engine.run_key(
            f"truth, {name}",
            data=file_key(path),
            split={"seed": seed},
            method=case | (parameters(params) if CLAPS in method else {}),
            uses_claps=CLAPS in method,
        )
        label = ", ".join([name, *map(str, case.values()), f"seed {seed}"])
        yield Run(label, key, partial(compute, name, path, seed, params, case))


def parameters(params: Row) -> Row:
    """All numbers of the recipe, or those of a commit that had none."""
    model = ClapsRegressor(**params)
    try:
        return {"parameters": repr(engine.claps_parameters(model))}
    except ImportError:
        return {"parameters": repr(model.get_params(deep=False))}


# Tables -------------------------------------------------------------------------------


def mean(values: Any) -> float:
    """Mean of a column, of ratios the geometric one."""
    with np.errstate(divide="ignore"):
        ratios = "/" in str(values.name)
        return float(np.exp(np.log(values).mean()) if ratios else values.mean())


def means(frame: Table, by: str, measure: str) -> Any:
    """One for each group, without those that no row has measured."""
    groups = by.split() or [lambda _: "all"]
    return frame.dropna(subset=measure).groupby(groups, sort=False)[measure].agg(mean)


def cell(frame: Table, within: str, measure: str) -> str:
    """The mean, and the lowest and highest of the groups."""
    own, text = means(frame, within, measure), number(mean(frame[measure]), ".3g")
    return f"{text} ({own.min():.3g} to {own.max():.3g})" if len(own) > 1 else text


def tables(part: Part, frame: Table) -> str:
    """Tables in Markdown, one below the other."""
    shown, texts = [name for name in frame if name not in NAMES], []
    for by in part.by:
        lines = [
            [*map(str, names), *(cell(rows, part.within, name) for name in shown)]
            for names, rows in frame.groupby(by.split(), sort=False, dropna=False)
        ]
        align = "l" * len(by.split()) + "r" * len(shown)
        texts.append(engine.markdown_table([*by.split(), *shown], lines, align))
    return "\n".join(texts)


def judged(name: str, frame: Table) -> Iterator[list[str]]:
    """A line for each bound: mean, groups furthest out, how many hold."""
    if "method" in frame:
        frame = frame[frame["method"] == CLAPS]
    for bound in engine.read_csv(Path(__file__).with_name("truth_bounds.csv")):
        if bound["part"] != name or bound["measure"] not in frame:
            continue
        rows = frame.query(bound["rows"]) if bound["rows"] else frame
        found = means(rows, bound["by"], bound["measure"])
        if found.empty:
            continue
        low, high = float(bound["low"] or "-inf"), float(bound["high"] or "inf")
        n = int(found.between(low, high).sum())
        ends = [
            f"{found[at]:.3g} ({', '.join(map(str, np.atleast_1d(at)))})"
            for at in (found.idxmin(), found.idxmax())
        ]
        limits = f"{bound['low'] or '…'} to {bound['high'] or '…'}"
        texts = name, bound["measure"], bound["rows"] or "all", limits
        holds = "yes" if n == len(found) else "NO"
        yield [*texts, f"{mean(found):.3g}", *ends, f"{n} of {len(found)}", holds]


def make_tables(folder: Path) -> Path:
    """Tables for trials, under the names of those that the parts ask for."""
    rng, n = np.random.default_rng(0), 160
    for pattern in {pattern for part in PARTS.values() for pattern in part.files}:
        path = folder / pattern.replace("*", "made")
        path.parent.mkdir(parents=True, exist_ok=True)
        X = {"hr": rng.integers(0, 24, n), "x": rng.normal(size=n).round(3)}
        X |= {"g": rng.choice(["a", "b"], n)} if path.parent.name == "met" else {}
        y = rng.poisson(np.exp(1 + 0.5 * X["x"]))
        pd.DataFrame(X | {"y": y}).to_csv(path, index=False)
    return folder


def main(given: Sequence[str] | None = None) -> int:
    parser = engine.new_parser(__doc__, "truth_results")
    add, names = parser.add_argument, list(PARTS)
    add("--data", type=Path, default=Path("data"), metavar="FOLDER", help="(data)")
    add("--only", nargs="+", choices=names, default=names, metavar="PART", help="all")
    add("--seeds", type=int, default=3, metavar="N", help="where a part has no own (3)")
    add("--first-seed", type=int, default=0, metavar="N", help="(0)")
    add("--without-peers", action="store_true", help="CLAPS with its defaults alone")
    return engine.run_command(parser, run, given)


def run(arguments: argparse.Namespace) -> int:
    """Run what is missing, write tables and print bounds; 1 if a run failed."""
    arguments.params, out = {}, arguments.out
    if arguments.smoke:
        arguments.params = {"max_steps": 5, "n_members": 1}
        arguments.data = make_tables(out / "data")
    failures, lines = [], []
    for name in arguments.only:
        runs = list(plan(name, arguments))
        runs = runs[:: 1 + len(runs) // 4] if arguments.smoke else runs
        failures += engine.run_missing(runs, out, arguments.jobs)
        frame = pd.DataFrame(engine.finished_rows(runs, out))
        files = {f"{name}.csv": frame.to_csv(index=False, float_format="%.5g")}
        lines += judged(name, frame)
        before = out / f"{name}_before.csv"
        if before.is_file():
            old = pd.read_csv(before).assign(method="CLAPS before")
            frame = pd.concat([frame, old])
        files[f"{name}.md"] = tables(PARTS[name], frame)
        engine.write_files(files, out)
    head = (
        "part",
        "measure",
        "rows",
        "bound",
        "mean",
        "lowest",
        "highest",
        "within",
        "met",
    )
    text = engine.markdown_table(head, lines, "llllrllr")
    engine.write_files({"bounds.md": text}, out)
    print(text, *failures, sep="")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
