"""Do reasons and intervals tell the truth, on data whose truth is known?

noise     generated means and noises: noise and lack of data against the truth
permuted  real tables with y permuted, and with known noise added to a known mean
reasons   rows whose reason changes with the random state alone
sparse    coverage in a region that lost 99 % of its training rows
equal     the same rows, some of them twice: noise, coverage, jackknife+-after-bootstrap
levels    the same table with a column as text and as integers
counts    integer targets that are never negative, beside CQR
small     24 to 200 rows, beside ridge regression and a Gaussian process

truth_bounds.csv says what must hold for means over seeds; names of ratios hold a "/",
and their means are geometric. FOLDER holds the paper's CSV files, and others in folders
choice, met and tables, the target last. The same command goes on where it was stopped.
With another commit on PYTHONPATH, ``--only small --without-peers`` writes a small.csv
that, in OUT as small_before.csv, is compared with.

    python docs/studies/truth.py --data FOLDER --out docs/benchmarks/truth --jobs 2
"""

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import chain, product
from pathlib import Path
from time import process_time
from timeit import repeat
from typing import Any, NamedTuple

import engine
import numpy as np
import pandas as pd
from engine import Array, Row, Run
from mapie import regression as mapie
from scipy.stats import gmean
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor, kernels
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale

from mapie_claps import CalibratedRegressor, ClapsRegressor, ClapsScore, explain
from mapie_claps.diagnostics import diagnose

CLAPS, WITHOUT_KERNEL = "CLAPS", "CLAPS, kernel=False"
ALPHA, LEVEL, SCORE = 0.1, 0.9, "score/sd(y)"
N_NEW, MIN_NEW = 1000, 50  # rows to predict; a table with fewer left is not used
NAMES = {"method", "set", "seed", "kind", "rows", "size", "r2", "levels"}  # no measures
HEAD = "part", "measure", "rows", "bound", "mean", "lowest", "highest", "within", "met"
GENERATED = Path("generated")  # in place of a file
Model = Callable[..., ClapsRegressor]  # with the random state of the run
Rows = Iterator[Row]
Table = pd.DataFrame


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
    """A length scale for each column, by marginal likelihood on at most 500 rows."""
    rows = np.random.default_rng(seed).permutation(len(X))
    few, many = rows[:500], rows[:1000]
    kernel = matern(np.ones(X.shape[1]))
    kernel = GaussianProcessRegressor(kernel).fit(X[few], y[few]).kernel_
    model = GaussianProcessRegressor(kernel, optimizer=None).fit(X[many], y[many])
    mean, std = model.predict(new, return_std=True)
    noise = np.full(len(new), kernel.k2.noise_level)
    return Told(mean, noise, np.maximum(std**2 - noise, 0.0))


def tell_ensemble(X: Array, y: Array, new: Array, seed: int) -> Told:
    """Five of the paper's networks, trained by the Gaussian likelihood."""
    models = [ClapsRegressor.paper(random_state=5 * seed + k) for k in range(5)]
    members = [told(model.fit(X, y), new) for model in models]
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


PEERS = {"GP": tell_gp, "deep ensemble": tell_ensemble, "CatBoost": tell_catboost}
MEANS: dict[str, Callable[[Array], Array]] = {
    "linear": lambda X: X[:, 0],
    "additive": lambda X: np.sin(2 * X[:, 0]) + X[:, 1] ** 2 / 2 + X[:, 2],
    "interaction": lambda X: X[:, 0] * X[:, 1] + np.sin(2 * X[:, 2]),
}
UNEVEN = "additive, uneven noise"


def noise(seed: int, new: Model, _: Table, **case: Any) -> Rows:
    """The noise has a variance of 1, also on average where it is uneven."""
    method, size, kind, r2 = case.values()
    n, p = map(int, size.split(" × "))
    rng, function = np.random.default_rng(seed), MEANS[kind.split(",")[0]]
    X, sample = rng.standard_normal((n + N_NEW, p)), rng.standard_normal((20_000, p))
    mean = function(X) * np.sqrt(r2 / (1 - r2)) / function(sample).std()
    sd = np.exp(X[:, 0] / 2 - 0.25) if kind == UNEVEN else np.ones(len(X))
    y = mean + sd * rng.standard_normal(len(X))
    if method in PEERS:  # which expect standardised targets
        centre, unit = y[:n].mean(), y[:n].std()
        parts = PEERS[method](X[:n], (y[:n] - centre) / unit, X[n:], seed)
        mean, sd = (mean - centre) / unit, sd / unit
    else:
        options = {"kernel": False} if method == WITHOUT_KERNEL else {}
        parts = told(new(**options).fit(X[:n], y[:n]), X[n:])
    yield parts.against(mean[n:], sd[n:])


def shuffled(table: Table, seed: int, max_rows: int | None = None) -> Any:
    """Inputs and targets in a seeded order, and where 60 % and 80 % of them end."""
    rows = np.random.default_rng(seed).permutation(len(table))[:max_rows]
    table, n = table.iloc[rows].reset_index(drop=True), len(rows)
    y = table.iloc[:, -1].to_numpy(np.float64)
    return table.iloc[:, :-1], y, int(0.6 * n), int(0.8 * n)


def permuted(seed: int, new: Model, table: Table, *, kind: str) -> Rows:
    """Targets that have nothing to do with x, or whose mean is that of a booster."""
    X, y, _, n = shuffled(table, seed, 2000)
    rng = np.random.default_rng(seed + 1)
    if kind == "permuted":
        mean, sd, y = np.full(len(y), y.mean()), np.std(y), rng.permutation(y)
    else:
        numbers = X.select_dtypes("number")
        booster = HistGradientBoostingRegressor(random_state=0)
        mean = booster.fit(numbers, y).predict(numbers)
        sd = float(kind.removeprefix("noise ")) * np.std(mean)
        y = mean + sd * rng.standard_normal(len(y))
    model = new().fit(X[:n], y[:n])
    collect = np.mean(diagnose(model, X[n:])["reason"] == "collect data here")
    row = {"rows": n, "collect": float(collect)}
    yield row | told(model, X[n:]).against(mean[n:], sd)


def reasons(seed: int, new: Model, table: Table, *, rows: int) -> Rows:
    """The same training rows with three random states."""
    X, y, *_ = shuffled(table, seed, rows + 500)
    models = [new(random_state=state).fit(X[:rows], y[:rows]) for state in range(3)]
    first, *others = (diagnose(model, X[rows:])["reason"] for model in models)
    yield {"changed": float(np.mean(np.any([first != o for o in others], axis=0)))}


def scored(ends: Array, y: Array, unit: Any = 1.0) -> Row:
    found = engine.score_intervals(y, *ends.T, ALPHA)
    score = found["interval_score"] / float(unit)
    return {"coverage": found["coverage"], SCORE: score}


def intervals(calibrated: Any, X: Any, **options: Any) -> Array:
    return np.asarray(calibrated.predict_interval(X, **options)[1][:, :, 0])


def split_ends(fitted: Any, X: Any, y: Array, i: int, j: int) -> Array:
    """Calibrate on rows from i to j and predict those behind."""
    model = CalibratedRegressor(fitted, LEVEL).conformalize(X[i:j], y[i:j])
    return intervals(model, X[j:])


def sparse(seed: int, new: Model, table: Table) -> Rows:
    """Calibration and test rows are as they were."""
    X, y, i, j = shuffled(table, seed, 4000)
    component = PCA(1, random_state=0).fit_transform(scale(X))[:, 0]
    inside = component > np.quantile(component, 0.8)
    kept = ~inside[:i] | (np.random.default_rng(seed + 1).random(i) < 0.01)
    model = new().fit(X[:i][kept], y[:i][kept])
    ends, inside = split_ends(model, X, y, i, j), inside[j:]
    there, sd = scored(ends[inside], y[j:][inside], np.std(y)), np.std(y)
    yield {f"{name} inside": v for name, v in there.items()} | scored(ends, y[j:], sd)


def equal(seed: int, new: Model, table: Table) -> Rows:
    """Medians over new rows, relative to those of the rows as they are."""
    X, y, _, n = shuffled(table, seed)
    rng, every, found = np.random.default_rng(seed + 1), np.arange(n), []
    kinds = {"as they are": every, "bootstrap": rng.integers(0, n, n)}
    for share, k in {"a tenth": 10, "a quarter": 4, "all": 1}.items():
        kinds[f"{share} twice"] = np.r_[every, rng.permutation(n)[: n // k]]
    if seed % 10 < 3:  # many fits
        kinds["jackknife+-after-bootstrap"] = every
    for kind, rows in kinds.items():
        given = X.iloc[rows].reset_index(drop=True), y[rows]
        if kind.startswith("jackknife"):
            options: Any = LEVEL, ClapsScore(), "plus", 20
            host = mapie.JackknifeAfterBootstrapRegressor(new(), *options)
            model = host.fit_conformalize(*given)
        else:
            model = CalibratedRegressor(new(), LEVEL, random_state=seed).fit(*given)
        found.append(np.median(told(model, X[n:])[1:], axis=1))
        noise, lack = (found[-1] / found[0]).tolist()
        row = {"kind": kind, "noise/as they are": noise, "lack/as they are": lack}
        yield row | scored(intervals(model, X[n:]), y[n:], np.std(y))


def level_rows(k: int, n: int, seed: int) -> tuple[Table, Array, Array]:
    """n rows with each level equally often, then new ones; means and targets."""
    rng = np.random.default_rng(seed)
    level = np.r_[rng.permutation(np.arange(n) % k), rng.integers(0, k, 2 * N_NEW)]
    X = pd.DataFrame({"level": level, "flag": rng.integers(0, 2, len(level))})
    mean = rng.normal(0, 10, (k, 2))[level, X["flag"]]
    return X, mean, mean + rng.standard_normal(len(X))


def named(X: Table, column: str) -> Table:
    return X.assign(**{column: [f"c{value}" for value in X[column]]})


def levels(seed: int, new: Model, table: Table, *, levels: str) -> Rows:
    """A level and a flag, or the hours of bikeshare: as integers, then as text."""
    if levels == "fit time":
        times = []
        for k in (12, 100):
            X, _, y = level_rows(k, 3000, seed)
            fit = partial(new().fit, named(X, "level"), y)
            times.append(min(repeat(fit, timer=process_time, number=1, repeat=3)))
        yield {"time/12 levels": times[1] / times[0]}
        return
    if levels.isdigit():
        i, column = 30 * int(levels), "level"
        j, (X, mean, y) = i + N_NEW, level_rows(int(levels), i, seed)
    else:
        X, y, i, j = shuffled(table, seed)
        mean, column = y, X.columns[3]
    first = None
    for kind, rows in {"integers": X, "text": named(X, column)}.items():
        model = new().fit(rows[:i], y[:i])
        score = scored(split_ends(model, rows, y, i, j), y[j:])[SCORE]
        first, parts = first or score, told(model, rows[j:])
        share = float(np.mean(parts.lack / (parts.noise + parts.lack)))
        row = {"kind": kind, "score/integers": score / first, "lack share": share}
        yield row | (parts.against(mean[j:], 1.0) if levels.isdigit() else {})


def counts(seed: int, new: Model, table: Table) -> Rows:
    """CQR is that of MAPIE with boosted quantiles."""
    X, y, i, j = shuffled(table, seed, 6000)
    ends = split_ends(new().fit(X[:i], y[:i]), X, y, i, j)
    boosting = HistGradientBoostingRegressor(loss="quantile", random_state=0)
    cqr = mapie.ConformalizedQuantileRegressor(boosting, LEVEL).fit(X[:i], y[:i])
    cqr.conformalize(X[i:j], y[i:j])
    of_cqr = intervals(cqr, X[j:], symmetric_correction=True)
    ours, peer = scored(ends, y[j:]), scored(of_cqr, y[j:])
    yield {
        "negative": float(np.mean(ends < 0)),
        "not integer": float(np.mean(ends != np.round(ends))),
        "coverage": ours["coverage"],
        "score/CQR": ours[SCORE] / peer[SCORE],
    }


SMALL_PEERS = {
    "ridge": RidgeCV(np.logspace(-3, 3, 13)),
    "GP": GaussianProcessRegressor(matern(1.0), normalize_y=True),
}


def small(seed: int, new: Model, table: Table, *, rows: int, method: str) -> Rows:
    """Peers are calibrated by CV+ of five folds, with absolute residuals."""
    X, y, *_ = shuffled(table, seed, rows + N_NEW)
    try:
        if method == CLAPS:
            fit = CalibratedRegressor(new(), LEVEL, random_state=seed).fit
        else:
            peer = make_pipeline(StandardScaler(), SMALL_PEERS[method])
            host = mapie.CrossConformalRegressor(peer, LEVEL, random_state=seed)
            fit = host.fit_conformalize
        ends = intervals(fit(X[:rows], y[:rows]), X[rows:])
        yield scored(ends, y[rows:], np.std(y))
    except ValueError:  # refuses so few rows
        yield {"coverage": np.nan, SCORE: np.nan}


class Part(NamedTuple):
    """How rows are measured: every file with every combination of the options."""

    measure: Callable[..., Rows]
    by: Sequence[str]  # fields that name the lines, for each of its tables
    within: str = ""  # fields over whose groups a range is shown
    files: Sequence[str] = ()
    options: Mapping[str, Sequence[Any]] = {}
    n_seeds: int | None = None  # if not --seeds


CHOICE, BIKES = "choice/*.csv", "met/bikeshare.csv"
REAL = CHOICE, "met/*.csv", "tables/*.csv"
SPARSE = *(f"{name}.csv" for name in engine.PAPER_DATASETS), CHOICE
EQUAL = "met/penguins.csv", "met/hitters.csv", "met/seattle_weather.csv"
COUNTS = BIKES, "met/doctor_visits.csv", "wine_red.csv", "tables/white_wine.csv"
NOISE = {
    "method": (CLAPS, WITHOUT_KERNEL, *PEERS),
    "size": ("200 × 30", "400 × 10", "1000 × 10", "3000 × 10"),
    "kind": (*MEANS, UNEVEN),
    "r2": (0.0, 0.1, 0.3, 0.5, 0.8, 0.95),
}
KINDS = {"kind": ("permuted", "noise 0.5", "noise 1")}
LEVELS = "12", "20", "21", "40", "60", "100", "200", "bikeshare", "fit time"
SMALL = {"method": (CLAPS, *SMALL_PEERS), "rows": (24, 50, 100, 200)}
PARTS = {
    "noise": Part(noise, ["method r2", "method size"], "size kind r2", (), NOISE),
    "permuted": Part(permuted, ["kind"], "set", REAL, KINDS),
    "reasons": Part(reasons, ["rows"], "set", [CHOICE], {"rows": (100, 300, 1500)}),
    "sparse": Part(sparse, ["set"], "", SPARSE),
    "equal": Part(equal, ["set kind"], "", EQUAL, n_seeds=10),
    "levels": Part(levels, ["levels kind"], "", [BIKES], {"levels": LEVELS}),
    "counts": Part(counts, ["set"], "", COUNTS, n_seeds=5),
    "small": Part(small, ["rows method"], "set", [CHOICE], SMALL, n_seeds=20),
}


@cache
def read(path: Path) -> Table:
    if path == GENERATED:
        numbers = np.random.default_rng(0).poisson(3, (160, 6))
        return pd.DataFrame(numbers, columns=list("abcdey"))
    return pd.read_csv(path)


def compute(name: str, path: Path, seed: int, params: Row, case: Row) -> list[Row]:
    new = partial(ClapsRegressor, random_state=seed, **params)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(PARTS[name].measure(seed, new, read(path), **case))
    return [{"set": path.stem, "seed": seed} | case | row for row in found]


def plan(name: str, arguments: argparse.Namespace) -> Iterator[Run]:
    """Runs of a part; seeds outermost, so that what an interruption leaves is even."""
    part, params, paths = PARTS[name], arguments.params, [GENERATED]
    if part.files and not arguments.smoke:
        found = {p: sorted(arguments.data.glob(p)) for p in part.files}
        if missing := ", ".join(p for p in found if not found[p]):
            raise ValueError(
                f"Got --data {arguments.data}, but expected {missing} in it for the "
                f"part {name!r}. Correct the folder, or choose parts with --only."
            )
        paths = [path for some in found.values() for path in some]
    hashes = {path: pd.util.hash_pandas_object(read(path)).sum() for path in paths}
    parameters: Any = ClapsRegressor(**params).get_params()
    with suppress(ImportError):  # of a commit without recipes
        parameters = engine.claps_parameters(ClapsRegressor(**params))
    first, n = arguments.first_seed, part.n_seeds or arguments.seeds
    options = product(*part.options.values())
    cases = [dict(zip(part.options, values, strict=True)) for values in options]
    for seed, case, path in product(range(first, first + n), cases, paths):
        method = case.get("method", CLAPS)
        left_out = method != CLAPS and arguments.without_peers
        if left_out or len(read(path)) < case.get("rows", 0) + MIN_NEW:
            continue
        key = engine.run_key(
            f"truth, {name}",
            data={"name": path.stem, "hash": int(hashes[path])},
            split={"seed": seed},
            method=case | ({"parameters": repr(parameters)} if CLAPS in method else {}),
            uses_claps=CLAPS in method,
        )
        label = ", ".join([name, path.stem, *map(str, case.values()), f"seed {seed}"])
        yield Run(label, key, partial(compute, name, path, seed, params, case))


def mean(values: Any) -> float:
    """Mean of a column, of ratios the geometric one; NaN is left out."""
    return float(gmean(values.dropna()) if "/" in values.name else values.mean())


def means(frame: Table, by: str, measure: str) -> Any:
    """One for each group, without those in which nothing was measured."""
    frame = frame.dropna(subset=measure)
    texts = frame[by.split()].astype(str).to_numpy()
    groups = pd.Series([", ".join(row) or "all" for row in texts], frame.index, object)
    return frame.groupby(groups, sort=False)[measure].agg(mean)


def cell(frame: Table, within: str, measure: str) -> str:
    """The mean, and the lowest and highest of the groups."""
    own = means(frame, within, measure)
    text = "–" if own.empty else f"{mean(frame[measure]):.3g}"
    return f"{text} ({own.min():.3g} to {own.max():.3g})" if len(own) > 1 else text


def tables(part: Part, frame: Table) -> Iterator[str]:
    shown = [name for name in frame if name not in NAMES]
    for by in map(str.split, part.by):
        lines = [
            [*map(str, names), *(cell(rows, part.within, name) for name in shown)]
            for names, rows in frame.groupby(by, sort=False, dropna=False)
        ]
        head, align = [*by, *shown], "l" * len(by) + "r" * len(shown)
        yield engine.markdown_table(head, lines, align)


def judged(name: str, frame: Table) -> Iterator[list[str]]:
    """A line for each bound: mean, groups furthest out, how many hold."""
    for bound in engine.read_csv(Path(__file__).with_name("truth_bounds.csv")):
        part, query, by, measure, *limits = bound.values()
        if part != name or measure not in frame:
            continue
        own = frame.query(query, engine="python") if query else frame
        if (found := means(own, by, measure)).empty:
            continue
        low, high = (float(limit or "nan") for limit in limits)
        n = len(found) - int(((found < low) | (found > high)).sum())
        ends = [f"{found[at]:.3g} ({at})" for at in (found.idxmin(), found.idxmax())]
        asked = " to ".join(limit or "…" for limit in limits)
        count, holds = f"{n} of {len(found)}", "yes" if n == len(found) else "NO"
        yield [name, measure, query, asked, f"{mean(found):.3g}", *ends, count, holds]


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
    out, lines = arguments.out, []
    arguments.params = {"max_steps": 5, "n_members": 1} if arguments.smoke else {}
    plans = {name: list(plan(name, arguments)) for name in arguments.only}
    if arguments.smoke:
        plans = {name: runs[:: 1 + len(runs) // 3] for name, runs in plans.items()}
    failures = engine.run_missing([*chain(*plans.values())], out, arguments.jobs)
    for name, runs in plans.items():
        frame = pd.DataFrame(engine.finished_rows(runs, out))
        files = {f"{name}.csv": frame.to_csv(index=False, float_format="%.5g")}
        ours = frame.query("method == @CLAPS") if "method" in frame else frame
        lines += judged(name, ours)
        if (before := out / f"{name}_before.csv").is_file():
            frame = pd.concat(
                [frame, pd.read_csv(before).assign(method="CLAPS before")]
            )
        files[f"{name}.md"] = "\n".join(tables(PARTS[name], frame))
        engine.write_files(files, out)
    text = engine.markdown_table(HEAD, lines, "llllrllr")
    engine.write_files({"bounds.md": text}, out)
    print(text, *failures, sep="")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
