"""Do reasons and intervals tell the truth, on data whose truth is known?

noise     generated means and noises: noise and lack of data against the truth
permuted  real tables with y permuted, and with known noise added to a known mean
reasons   rows whose reason changes with the random state alone, in real tables
seeds     the same in generated data
sparse    coverage in a region that lost 99 % of its training rows
equal     the same rows, some of them twice: noise, coverage, jackknife+-after-bootstrap
levels    the same table with a column as text and as integers
counts    integer targets that are never negative, beside CQR
small     24 to 200 rows, beside ridge regression and a Gaussian process

truth_bounds.csv says what must hold for means over seeds; names of ratios hold a "/",
and their means are geometric. FOLDER holds the paper's CSV files, and others in folders
choice, met and tables, the target last. The same command goes on where it was stopped.

    python docs/studies/truth.py --data FOLDER --out docs/benchmarks/truth --jobs 2
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from time import process_time
from timeit import repeat
from typing import Any

import engine
import numpy as np
import pandas as pd
import parts
from engine import Array, Row
from mapie import regression as mapie
from parts import (
    CLAPS,
    LEVEL,
    N_NEW,
    SCORE,
    Model,
    Part,
    Rows,
    Table,
    Told,
    intervals,
    scored,
    shuffled,
    told,
)
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor, kernels
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale

from mapie_claps import CalibratedRegressor, ClapsRegressor, ClapsScore
from mapie_claps.diagnostics import diagnose

WITHOUT_KERNEL = "CLAPS, kernel=False"


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


def problem(seed: int, size: str, kind: str, r2: float) -> Any:
    """Inputs, means, standard deviations, targets, and how many rows are for training.

    The noise has a variance of 1, also on average where it is uneven.
    """
    n, p = map(int, size.split(" × "))
    rng, function = np.random.default_rng(seed), MEANS[kind.split(",")[0]]
    X, sample = rng.standard_normal((n + N_NEW, p)), rng.standard_normal((20_000, p))
    mean = function(X) * np.sqrt(r2 / (1 - r2)) / function(sample).std()
    sd = np.exp(X[:, 0] / 2 - 0.25) if kind == UNEVEN else np.ones(len(X))
    return X, mean, sd, mean + sd * rng.standard_normal(len(X)), n


def noise(seed: int, new: Model, _: Table, *, method: str, **case: Any) -> Rows:
    X, mean, sd, y, n = problem(seed, **case)
    if method in PEERS:  # which expect standardised targets
        centre, unit = y[:n].mean(), y[:n].std()
        parts = PEERS[method](X[:n], (y[:n] - centre) / unit, X[n:], seed)
        mean, sd = (mean - centre) / unit, sd / unit
    else:
        options = {"kernel": False} if method == WITHOUT_KERNEL else {}
        parts = told(new(**options).fit(X[:n], y[:n]), X[n:])
    yield parts.against(mean[n:], sd[n:])


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
    yield changed(new, X, y, rows)


def seeds(seed: int, new: Model, _: Table, **case: Any) -> Rows:
    """The same with generated means and noises."""
    X, _mean, _sd, y, n = problem(seed, **case)
    yield changed(new, X, y, n)


def changed(new: Model, X: Any, y: Array, n: int) -> Row:
    models = [new(random_state=state).fit(X[:n], y[:n]) for state in range(3)]
    first, *others = (diagnose(model, X[n:])["reason"] for model in models)
    return {"changed": float(np.mean(np.any([first != o for o in others], axis=0)))}


def split_ends(fitted: Any, X: Any, y: Array, i: int, j: int) -> Array:
    """Calibrate on rows from i to j and predict those behind."""
    model = CalibratedRegressor(fitted, LEVEL).conformalize(X[i:j], y[i:j])
    return intervals(model, X[j:])


def thinned(table: Table, seed: int) -> Any:
    """Training rows without 99 % of a region, the others as they were.

    Inputs, targets, where calibration and test rows begin, and who lies inside.
    """
    X, y, i, j = shuffled(table, seed, 4000)
    component = PCA(1, random_state=0).fit_transform(scale(X))[:, 0]
    inside = component > np.quantile(component, 0.8)
    kept = ~inside[:i] | (np.random.default_rng(seed + 1).random(i) < 0.01)
    rows = np.r_[np.flatnonzero(kept), np.arange(i, len(y))]
    n = int(kept.sum())
    return X.iloc[rows], y[rows], n, n + j - i, inside[rows]


def scored_inside(ends: Array, y: Array, inside: Array, unit: float) -> Row:
    there = scored(ends[inside], y[inside], unit)
    found = {f"{name} inside": value for name, value in there.items()}
    return found | scored(ends, y, unit)


def sparse(seed: int, new: Model, table: Table) -> Rows:
    """Calibration and test rows are as they were."""
    X, y, i, j, inside = thinned(table, seed)
    ends = split_ends(new().fit(X[:i], y[:i]), X, y, i, j)
    yield scored_inside(ends, y[j:], inside[j:], np.std(table.iloc[:, -1]))


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
            options: Any = LEVEL, ClapsScore(), "plus", 30
            host = mapie.JackknifeAfterBootstrapRegressor(
                new(), *options, random_state=seed
            )
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
    coded = pd.get_dummies(X)  # which takes no text
    cqr = mapie.ConformalizedQuantileRegressor(boosting, LEVEL).fit(coded[:i], y[:i])
    cqr.conformalize(coded[i:j], y[i:j])
    of_cqr = intervals(cqr, coded[j:], symmetric_correction=True)
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
ROWS = {"rows": (100, 300, 1500)}
SEEDS = {
    "size": ("100 × 10", "300 × 10", "1500 × 10"),
    "kind": NOISE["kind"],
    "r2": (0.0, 0.3, 0.8, 0.95),
}
KINDS = {"kind": ("permuted", "noise 0.5", "noise 1")}
LEVELS = "12", "20", "21", "40", "60", "100", "200", "bikeshare", "fit time"
SMALL = {"method": (CLAPS, *SMALL_PEERS), "rows": (24, 50, 100, 200)}
PARTS = {
    "noise": Part(noise, ["method r2", "method size"], "size kind r2", (), NOISE),
    "permuted": Part(permuted, ["kind"], "set", REAL, KINDS),
    "reasons": Part(reasons, ["rows"], "set", [CHOICE], ROWS),
    "seeds": Part(seeds, ["size"], "kind r2", (), SEEDS),
    "sparse": Part(sparse, ["set"], "", SPARSE),
    "equal": Part(equal, ["set kind"], "", EQUAL, n_seeds=10),
    "levels": Part(levels, ["levels kind"], "", [BIKES], {"levels": LEVELS}),
    "counts": Part(counts, ["set"], "", COUNTS, n_seeds=5),
    "small": Part(small, ["rows method"], "set", [CHOICE], SMALL, n_seeds=20),
}


def main(given: Sequence[str] | None = None) -> int:
    return parts.main("truth", __doc__, PARTS, given)


if __name__ == "__main__":
    sys.exit(main())
