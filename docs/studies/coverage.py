"""Count how often intervals cover, against the exact law of that count.

Validity rests on exchangeable rows alone. So the cases include noise that no network
here can fit and scales, shapes and maps that mean nothing: the law is the same.

fixed   one network; new calibration rows and one test row in each replication
split   CalibratedRegressor divides the rows itself, each time: single rows, rows that
        are there twice, groups that share an error; the test row is of a new group
cv+     MAPIE's cross-conformal method and our own, refitted each time, which promise
        1 − 2α and are held to 1 − α less two standard errors
shift   weighted intervals under a known covariate shift, beside unweighted ones
groups  coverage given the group, and given how unknown a row is
time    long-run coverage of levels that follow the misses, under drift and a jump

Limits are such that all lines together raise a false alarm with probability 0.01 at
most. Where scores are tied (discrete data) coverage may only exceed its law. Finished
counts are kept in OUT/runs.jsonl; the same command goes on where it stopped.

    python docs/studies/coverage.py --smoke
    python docs/studies/coverage.py --out docs/trust --jobs 2
"""

import argparse
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import engine
import numpy as np
import pandas as pd
from engine import Array, Row, Run, covered_rank
from mapie.regression import CrossConformalRegressor
from scipy.stats import binom
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.linear_model import LinearRegression

from mapie_claps import (
    CalibratedRegressor,
    ClapsRegressor,
    ClapsResidualRegressor,
    ClapsScore,
    EpistemicGroups,
    PredictiveDistribution,
)
from mapie_claps.network.target import (
    MonotoneMap,
    NoiseShape,
    fit_noise_shape,
    fit_target_map,
)

Generator = np.random.Generator
LEVELS = (0.8, 0.9, 0.95)
N_TRAIN, N_FOLDS = 60, 5
FAMILY_ERROR = 0.01
TILT, N_CAL = 1.2, 100  # target density ∝ exp(TILT · x₀) times that of the source
N_STREAM, GAMMA, WINDOW = 2_000, 0.01, 500
GROUPS = (20, 60)  # calibration rows of two groups
SIZE = {"hidden_layer_sizes": (8, 4), "max_steps": 15}
TINY = partial(ClapsRegressor.paper, **SIZE)
LEARNING = partial(ClapsRegressor, **SIZE, kernel=False, target_map="spline")
FIELDS = (
    *("part", "case", "n_cal", "level", "replications"),
    *("covered", "law", "promised", "low", "high", "holds"),
)

#: Generator → targets around a smooth mean m of uniform inputs.
TARGETS: dict[str, Callable[[Generator, Array, Array], Array]] = {
    "gaussian": lambda rng, X, m: m + 0.3 * rng.standard_normal(len(X)),
    "heteroscedastic": lambda rng, X, m: (
        m + 0.1 * (1 + X[:, 0] ** 2) * rng.standard_normal(len(X))
    ),
    # Student's t with two degrees of freedom: its variance is infinite.
    "heavy-tailed": lambda rng, X, m: m + 0.2 * rng.standard_t(2, len(X)),
    "skewed": lambda rng, X, m: m + 0.5 * rng.exponential(size=len(X)),
    # Whole numbers in X and in y, so that scores are tied.
    "discrete": lambda rng, X, m: rng.poisson(np.exp(0.5 * m)).astype(np.float64),
    # Skewed, and nothing below zero: many rows lie on it.
    "bounded": lambda rng, X, m: np.maximum(m + 0.5 * rng.exponential(size=len(X)), 0),
    # Noise that grows to one side, where the covariate shift goes.
    "tilted": lambda rng, X, m: (
        m + 0.3 * np.exp(0.8 * X[:, 0]) * rng.standard_normal(len(X))
    ),
}


class Case(NamedTuple):
    """A generator of the data, and what the score is given of the network."""

    generator: str
    scale: str = ""  # or "random scale", "shuffled scale", "around a line"
    shape: str = ""  # or "shaped", "mapped", "both", "wrong shape", "wrong map"
    support: Any = None
    ranks: str = ""  # or "two ranks", or "quantile", which is one end alone

    @property
    def name(self) -> str:
        support = "" if self.support is None else f"support={self.support!r}"
        words = self.generator, self.scale, support, self.shape, self.ranks
        return ", ".join(filter(None, words))

    @property
    def options(self) -> dict[str, Any]:
        return {"support": self.support, "sym": self.ranks != "two ranks"}

    def inputs(self, rng: Generator, n: int) -> Array:
        whole = self.generator == "discrete"
        X = rng.integers(-2, 3, (n, 2)) if whole else rng.uniform(-2, 2, (n, 2))
        return X.astype(np.float64)

    def targets(self, rng: Generator, X: Array) -> Array:
        return TARGETS[self.generator](rng, X, np.sin(2 * X[:, 0]) + X[:, 1])

    def draw(self, rng: Generator, n: int) -> tuple[Array, Array]:
        X = self.inputs(rng, n)
        return X, self.targets(rng, X)

    def network(self, rng: Generator) -> Any:
        """A tiny network, fitted to a few rows; more where it is to learn a shape."""
        seed, learns = int(rng.integers(2**31)), self.support == "auto"
        if self.scale == "around a line":
            model = ClapsResidualRegressor(
                LinearRegression(), TINY(), random_state=seed
            )
            return model.fit(*self.draw(rng, 5 * N_TRAIN))
        model, n = (LEARNING, 5 * N_TRAIN) if learns else (TINY, N_TRAIN)
        return model(random_state=seed).fit(*self.draw(rng, n))

    def rows(self, model: Any, X: Array, rng: Generator) -> PredictiveDistribution:
        """What the network says, or what the case puts in its place."""
        if self.scale == "shuffled scale":  # of rows that have nothing to do with y
            X = self.inputs(rng, len(X))
        found = model.predict_distribution(X)
        if self.scale == "random scale":
            std = np.exp(2 * rng.standard_normal(len(X)))
            return PredictiveDistribution(found.centre, std)
        if not self.shape:
            return found
        shape, target_map = shape_and_map(self)
        centre = target_map.forward(found.centre)
        scale = found.scale * target_map.derivative(found.centre)
        return PredictiveDistribution(centre, scale, shape=shape, target_map=target_map)


@cache
def shape_and_map(case: Case) -> tuple[NoiseShape, MonotoneMap]:
    """Of the case, fixed before any calibration row is drawn."""
    rng = np.random.default_rng(0)
    noise, (_, y) = rng.exponential(size=500), case.draw(rng, 500)
    residuals = {"wrong shape": 1 - noise**2, "shaped": noise - 1, "both": noise - 1}
    residual = residuals.get(case.shape)
    shape = NoiseShape() if residual is None else fit_noise_shape(residual)
    y = -np.exp(2 * rng.standard_normal(500)) if case.shape == "wrong map" else y
    mapped = case.shape in ("mapped", "both", "wrong map")
    return shape, fit_target_map("spline" if mapped else "identity", y)


CASES = (
    *(Case(name) for name in ("gaussian", "heteroscedastic", "heavy-tailed", "skewed")),
    Case("discrete"),
    Case("discrete", support="integer"),
    Case("heteroscedastic", "random scale"),
    Case("heteroscedastic", "shuffled scale"),
    Case("heteroscedastic", "around a line"),
    *(Case("skewed", shape=shape) for shape in ("shaped", "mapped", "wrong map")),
    Case("skewed", shape="wrong shape"),
    Case("skewed", shape="both", ranks="two ranks"),
    Case("heavy-tailed", shape="wrong shape", ranks="two ranks"),
    Case("skewed", shape="both", ranks="quantile"),
    Case("skewed", support=(-1.0, 2.5)),
    Case("discrete", shape="both", support="count"),
    Case("bounded", support="auto"),
    Case("discrete", support="auto"),
)


class Known:
    """A model of rows whose distributions are there already: X holds their numbers."""

    def __init__(self, rows: PredictiveDistribution) -> None:
        self.rows = rows

    def predict_distribution(self, X: Array) -> PredictiveDistribution:
        return self.rows.take(np.asarray(X)[:, 0].astype(int))


class Line(RegressorMixin, BaseEstimator):
    """Least squares, with a standard deviation that means nothing: quick to fit."""

    def fit(self, X: Array, y: Array) -> "Line":
        self.weights_ = np.linalg.lstsq(np.c_[X, np.ones(len(X))], y)[0]
        self.fitted_ = True
        return self

    def predict(self, X: Array, return_std: bool = False) -> Any:
        mean = np.c_[X, np.ones(len(X))] @ self.weights_
        return (mean, 1.0 + np.abs(X[:, 0])) if return_std else mean


def inside(
    rows: PredictiveDistribution, y: Array, n_cal: int, case: Case, **given: Any
) -> Any:  # (n_new, n_levels)
    """Which rows after the first n_cal lie in the intervals that these make.

    Weights and groups have one value for each row.
    """
    X = np.arange(len(y), dtype=np.float64)[:, None]
    cal = {name: values[:n_cal] for name, values in given.items()}
    conformal = CalibratedRegressor(Known(rows), LEVELS, **case.options)
    conformal.conformalize(X[:n_cal], y[:n_cal], **cal)
    new = X[n_cal:], y[n_cal:, None]
    if case.ranks == "quantile":
        return new[1] <= conformal.predict_quantiles(new[0], LEVELS)
    options = {name: values[n_cal:] for name, values in given.items()}
    return _inside(conformal, *new, allow_infinite_bounds=True, **options)


def _inside(conformal: Any, X: Array, y: Array, **options: Any) -> Any:
    bounds = conformal.predict_interval(X, **options)[1]
    return (bounds[:, 0] <= y) & (y <= bounds[:, 1])


# Parts: (case, n, rng) → (case, n_cal, law, which rows are covered, (n, m)) --

Counts = Iterator[tuple[str, int, str, Any]]


def fixed(case: Case, n: int, rng: Generator) -> Counts:
    """The smaller calibration set has the last rows of the larger one."""
    model, found = case.network(rng), {20: [], N_CAL: []}
    X, y = case.draw(rng, n * (N_CAL + 1))
    every = case.rows(model, X, rng)
    for block in np.arange(len(y)).reshape(n, -1):
        for n_cal, counted in found.items():
            own = block[-n_cal - 1 :]
            counted.append(inside(every.take(own), y[own], n_cal, case)[0])
    # Targets outside a support share the score +∞.
    tied = case.generator in ("discrete", "bounded") or case.support is not None
    for n_cal, counted in found.items():
        yield case.name, n_cal, "at least" if tied else "exact", counted


def split(case: Case, n: int, rng: Generator) -> Counts:
    """A quarter of 80 rows is kept back, with rows that belong together in one part.

    Of m groups of g rows that are kept back, the k smallest scores hold that of a row
    of a new group with a probability of k / (m + 1)g at least: k of all (m + 1)g.
    """
    for name, size in {"single rows": 1, "rows twice": 2, "groups of four": 4}.items():
        counted, labels = [], np.arange(81 if size == 1 else 80 + size) // size
        for seed in rng.integers(2**31, size=n).tolist():
            X, y = case.draw(rng, len(labels))
            if name == "rows twice":
                X, y = X[labels], y[labels]
            y = y + (size == 4) * rng.standard_normal(len(labels))[labels]
            options: Any = {"groups": labels[:80]} if size == 4 else {}
            own = CalibratedRegressor(Line(), LEVELS, cv="split", random_state=seed)
            own.fit(X[:80], y[:80], **options)
            counted.append(_inside(own, X[-1:], y[-1:, None])[0])
        law = "exact" if size == 1 else f"{size} rows"
        yield f"{name}, {case.name}", 20, law, counted


def cross(case: Case, n: int, rng: Generator) -> Counts:
    """One test row after all folds were fitted."""
    own = partial(CalibratedRegressor, Line(), LEVELS, cv=N_FOLDS)
    mapie = partial(CrossConformalRegressor, Line(), list(LEVELS), ClapsScore())
    for size in (30, 120):
        for make in (own, partial(mapie, "plus", N_FOLDS)):
            counted = []
            for seed in rng.integers(2**31, size=n).tolist():
                rows, (X, y) = case.draw(rng, size), case.draw(rng, 1)
                model = make(random_state=seed)
                fit = model.fit if make is own else model.fit_conformalize
                counted.append(_inside(fit(*rows), X, y[:, None])[0])
            name = f"{type(model).__name__}, {case.name}"
            yield name, size, "cv+", counted


def shift(case: Case, n: int, rng: Generator) -> Counts:
    """One test row from the tilted density, by the inverse of its distribution."""
    low, high = np.exp(-2 * TILT), np.exp(2 * TILT)
    model, found = case.network(rng), {"weighted": [], "unweighted": []}
    X, size = case.inputs(rng, n * (N_CAL + 1)), N_CAL + 1
    X[N_CAL::size, 0] = np.log(low + rng.uniform(size=n) * (high - low)) / TILT
    every, y = case.rows(model, X, rng), case.targets(rng, X)
    for own in np.arange(len(y)).reshape(n, -1):
        given = every.take(own), y[own], N_CAL, case
        weights = np.exp(TILT * X[own, 0])
        found["weighted"].append(inside(*given, weights=weights)[0])
        found["unweighted"].append(inside(*given)[0])
    yield f"weighted, {case.name}", N_CAL, "at least the level", found["weighted"]
    yield f"unweighted, {case.name}", N_CAL, "nothing", found["unweighted"]


def groups(case: Case, n: int, rng: Generator) -> Counts:
    """Exact where the rows of a group are fixed in number."""
    model = case.network(rng)
    bins = EpistemicGroups.from_training(model, case.inputs(rng, 2_000), n_groups=3)
    # Group 0 lies left, group 1 right; the last row of each is predicted.
    labels = np.repeat([0, 1, 0, 1], [*GROUPS, 1, 1])
    counted: list[Any] = []
    by_bin: dict[Any, list[Any]] = {}
    X = case.inputs(rng, n * len(labels))
    X[:, 0] = np.abs(X[:, 0]) * np.tile(np.where(labels == 0, -1, 1), n)
    every, y = case.rows(model, X, rng), case.targets(rng, X)
    for own in np.arange(len(y)).reshape(n, -1):
        rows = every.take(own), y[own]
        counted.append(inside(*rows, sum(GROUPS), case, partition=labels))
    X, y = case.draw(rng, n * (N_CAL + 1))
    every = case.rows(model, X, rng)
    bin_of = np.array(bins(every))
    for own in np.arange(len(y)).reshape(n, -1):
        rows = every.take(own), y[own]
        (found,) = inside(*rows, N_CAL, case, partition=bin_of[own])
        by_bin.setdefault(bin_of[own[-1]].item(), []).append(found)
    for i, size in enumerate(GROUPS):
        yield f"group of {size} rows", size, "exact", np.array(counted)[:, i]
    for label in sorted(by_bin):
        name = f"epistemic fraction, bin {label}"
        yield name, N_CAL, "at least the level", by_bin[label]


def online(case: Case, n: int, rng: Generator) -> Counts:
    """n/2000 streams, observed row by row, and with levels that do not follow."""
    t, model = np.arange(N_STREAM), case.network(rng)
    worlds = {
        "drift: noise grows threefold": 1 + 2 * t / N_STREAM,
        "jump: noise trebles halfway": np.where(t < N_STREAM // 2, 1.0, 3.0),
    }
    X = np.arange(N_CAL + N_STREAM, dtype=np.float64)[:, None]
    for name, factor in worlds.items():
        follows, stays = [], []
        for _ in range(max(2, n // 2000)):
            inputs, y = case.draw(rng, len(X))
            rows = case.rows(model, inputs, rng)
            y[N_CAL:] = rows.centre[N_CAL:] + factor * (y - rows.centre)[N_CAL:]
            stays.append(inside(rows, y, N_CAL, case).mean(0))
            conformal = CalibratedRegressor(Known(rows), LEVELS, **case.options)
            conformal.conformalize(X[:N_CAL], y[:N_CAL])
            for i in range(N_CAL, len(X)):
                row = slice(i, i + 1)
                conformal.observe(X[row], y[row], gamma=GAMMA, window=WINDOW)
            follows.append(conformal.observed_coverage_)
        yield f"{name}, level follows", N_CAL, "in the long run", follows
        yield f"{name}, level fixed", N_CAL, "nothing", stays


HETERO, TILTED = Case("heteroscedastic"), Case("tilted")
PARTS: dict[str, tuple[Callable[..., Counts], Sequence[Case]]] = {
    "fixed": (fixed, CASES),
    "split": (split, (HETERO,)),
    "cv+": (cross, (HETERO,)),
    "shift": (shift, (TILTED, Case("tilted", "random scale"))),
    "groups": (groups, (TILTED,)),
    "time": (online, (TILTED,)),
}


def count(part: str, case: Case, n: int) -> list[Row]:
    rng = np.random.default_rng(zlib.crc32(f"{part} {case.name}".encode()))
    n_ranks, rows = 2 if case.ranks == "two ranks" else 1, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few effective rows: they are counted
        for name, n_cal, law, found in PARTS[part][0](case, n, rng):
            for level, covered in zip(LEVELS, np.array(found).T, strict=True):
                of = part, name, n_cal, level, len(covered), float(covered.mean()), law
                row = dict(zip(FIELDS[:7], of, strict=True))
                row["furthest"] = float(np.abs(covered - level).max())
                rank = covered_rank(n_cal, 1 - level, n_ranks)
                promised = {"exact": rank / (n_cal + 1)}
                promised["at least"] = promised["exact"]
                for size in (2, 4):  # of groups
                    promised[f"{size} rows"] = rank / (n_cal + size)
                rows.append(row | {"promised": promised.get(law, level)})
    return rows


def judged(row: Row, error: float) -> Row:
    """A count with its limits, at an error of so much, and whether it agrees."""
    level, n, law, low, high = row["level"], row["replications"], row["law"], 0.0, 1.0
    if law == "in the long run":  # of each stream, whatever its rows do
        bound = (max(level, 1 - level) + GAMMA) / (GAMMA * N_STREAM) + 1e-12
        low, high, holds = level - bound, level + bound, row["furthest"] <= bound
    elif law == "cv+":
        low = level - 2 * (level * (1 - level) / n) ** 0.5
        holds = bool(low <= row["covered"])
    elif law != "nothing":
        tails = (error / 2, 1 - error / 2) if law == "exact" else (error, 1)
        low, high = binom.ppf(tails, n, row["promised"]) / n
        holds = bool(low <= row["covered"] <= high)
    else:
        holds = True
    return row | {"low": float(low), "high": float(high), "holds": holds}


def report(counts: list[Row]) -> dict[str, str]:
    signs = {"exact": "", "in the long run": "→ ", "nothing": "no promise of "}
    lines = [
        [
            *(str(row[field]) for field in FIELDS[:5]),
            f"{row['covered']:.4f}",
            signs.get(row["law"], "≥ ") + f"{row['promised']:.4f}",
            f"{row['low']:.4f} to {row['high']:.4f}",
            "yes" if row["holds"] else "NO",
        ]
        for row in counts
    ]
    failed = sum(not row["holds"] for row in counts)
    title = f"{len(counts)} counts, {failed} outside their limits.\n\n"
    header = [*FIELDS[:5], "covered", "law", "limits", "holds"]
    table = engine.markdown_table(header, lines, align="llrrrrrll")
    csv = pd.DataFrame(counts, columns=FIELDS).to_csv(index=False)
    return {"coverage.md": title + table, "coverage.csv": csv}


def plan(part: str, case: Case, n: int) -> Run:
    """All levels and calibration sizes of one part and case."""
    model = LEARNING if case.support == "auto" else TINY
    key = engine.run_key(
        "coverage",
        data={"generator": case.generator, "n_train": N_TRAIN},
        split={"part": part, "levels": LEVELS, "replications": n},
        method={"case": case, "parameters": engine.claps_parameters(model())},
    )
    return Run(f"{part}, {case.name}", key, partial(count, part, case, n))


def main(given: Sequence[str] | None = None) -> int:
    parser = engine.new_parser(__doc__, "coverage_results")
    add = parser.add_argument
    add("--replications", type=int, default=10_000, metavar="N", help="(10000)")
    every = list(PARTS)
    add("--parts", nargs="+", choices=every, default=every, metavar="PART", help="all")
    return engine.run_command(parser, run, given)


def run(arguments: argparse.Namespace) -> int:
    """Count what is missing and write the table; 1 if a count is outside its law."""
    n = 30 if arguments.smoke else arguments.replications
    runs = [
        plan(part, case, n)
        for part, (_, cases) in PARTS.items()
        for case in cases
        if part in arguments.parts
    ]
    failures = engine.run_missing(runs, arguments.out, arguments.jobs)
    found = engine.finished_rows(runs, arguments.out)
    counts = [judged(row, FAMILY_ERROR / len(found)) for row in found]
    files = report(counts)
    engine.write_files(files, arguments.out)
    print(files["coverage.md"], *failures, sep="")
    return 0 if not failures and all(row["holds"] for row in counts) else 1


if __name__ == "__main__":
    sys.exit(main())
