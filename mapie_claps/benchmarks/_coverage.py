"""Replications of conformal prediction.

Validity rests on exchangeable rows alone. So the cases below include noise that no
network here can fit and scales that mean nothing; the law of coverage is the same.
"""

import warnings
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from mapie.regression import CrossConformalRegressor, SplitConformalRegressor
from numpy.typing import NDArray

from .. import CalibratedRegressor, ClapsRegressor, ClapsScore
from ..estimators.local_law import LocalLaw
from ..estimators.residual_shape import fit_residual_shape
from ..estimators.variance import with_law
from ..network.target_choice import fit_target_map
from ..studies.data import Array

Generator = np.random.Generator
Counts = NDArray[np.int64]

N_TRAIN = 60
N_COLUMNS = 2
CHUNK = 2_000  # replications whose rows are predicted together
TINY: dict[str, Any] = (
    {"hidden_layer_sizes": (8,), "representation_size": 4, "n_members": 1}
    | {"views": ("raw",), "max_steps": 15, "tol": None, "device": "cpu"}
    | {"prior_precision": 1.0, "last_layer": "trained"}
)
PLAIN = {"target_map": None, "two_sided_noise": False, "residual_shape": False}


class Draw(NamedTuple):
    """Rows of one generator."""

    X: Array  # (n, N_COLUMNS)
    y: Array  # (n,)


#: Generator → noise around a smooth mean of uniform inputs.
NOISE: dict[str, Callable[[Generator, Array], Array]] = {
    "gaussian": lambda rng, X: 0.3 * rng.standard_normal(len(X)),
    "heteroscedastic": lambda rng, X: (
        0.1 * (1 + X[:, 0] ** 2) * rng.standard_normal(len(X))
    ),
    # Student's t with two degrees of freedom: its variance is infinite.
    "heavy-tailed": lambda rng, X: 0.2 * rng.standard_t(2, len(X)),
    "skewed": lambda rng, X: 0.5 * rng.exponential(size=len(X)),
}
BOUNDED = "bounded"  # skewed, and nothing below zero: many rows lie on it
DISCRETE = "discrete"  # whole numbers in X and in y, so that scores are tied


#: What a law may have beyond μ and √v; a wrong shape and map have nothing to do with y.
LAWS = ("two-sided", "shaped", "mapped", "all three", "wrong shape", "wrong map")


class Case(NamedTuple):
    """A generator of the data, and what the score is given of the network."""

    generator: str
    scale: str = "claps"  # or "random", "shuffled"
    support: Any = None
    law: str = ""  # or one of LAWS, or "learned"
    ranks: str = "one rank"  # or "two ranks", or "quantile", which is one end alone

    @property
    def name(self) -> str:
        """How tables call it."""
        scale = "" if self.scale == "claps" else f", {self.scale} scale"
        support = "" if self.support is None else f", support={self.support!r}"
        law = f", {self.law}" if self.law else ""
        ranks = "" if self.ranks == "one rank" else f", {self.ranks}"
        return self.generator + scale + support + law + ranks

    def draw(self, rng: Generator, n: int) -> Draw:
        """Rows of the generator."""
        discrete = self.generator == DISCRETE
        if discrete:
            X = rng.integers(-2, 3, (n, N_COLUMNS)).astype(np.float64)
        else:
            X = rng.uniform(-2, 2, (n, N_COLUMNS))
        mean = np.sin(2 * X[:, 0]) + X[:, 1]
        if discrete:
            return Draw(X, rng.poisson(np.exp(0.5 * mean)).astype(np.float64))
        if self.generator == BOUNDED:
            return Draw(X, np.maximum(mean + NOISE["skewed"](rng, X), 0))
        return Draw(X, mean + NOISE[self.generator](rng, X))


CASES = (
    *(Case(name) for name in (*NOISE, DISCRETE)),
    Case(DISCRETE, support="integer"),
    Case("heteroscedastic", "random"),
    Case("heteroscedastic", "shuffled"),
    *(Case("skewed", law=law) for law in LAWS),
    Case("skewed", law="all three", ranks="two ranks"),
    Case("heavy-tailed", law="wrong shape", ranks="two ranks"),
    Case("skewed", law="all three", ranks="quantile"),
    Case("skewed", law="wrong map", ranks="quantile"),
    Case("skewed", support=(-1.0, 2.5)),
    Case(DISCRETE, support="count", law="all three"),
    Case("bounded", law="learned", support="auto"),
)


def fit_network(case: Case, rng: Generator) -> ClapsRegressor:
    """A tiny network, fitted to a few rows of the case; more where it is to learn."""
    seed, params, n_rows = int(rng.integers(2**31)), TINY | PLAIN, N_TRAIN
    if case.law == "learned":
        params, n_rows = TINY | {"target_map": "spline", "n_members": 4}, 5 * N_TRAIN
    return ClapsRegressor(**params, random_state=seed).fit(*case.draw(rng, n_rows))


def law_of(case: Case, model: ClapsRegressor, X: Array, rng: Generator) -> LocalLaw:
    """What the network says, or what the case puts in its place."""
    if case.scale == "shuffled":  # μ and √v of rows that have nothing to do with y
        X = case.draw(rng, len(X)).X
    law = model.predict_law(X)
    if case.scale == "random":
        std = np.exp(2 * rng.standard_normal(len(X)))
        law = LocalLaw.symmetric(law.centre, std)
    return _with_shape(case, law, X) if case.law in LAWS else law


def _with_shape(case: Case, law: LocalLaw, X: Array) -> LocalLaw:
    """Skew, shape and map as the case has them, fixed before any calibration row."""
    rng = np.random.default_rng(0)
    noise = rng.exponential(size=500)
    every = case.law == "all three"
    skew = 0.7 * np.tanh(X[:, 0]) if every or case.law == "two-sided" else None
    shape, targets = None, case.draw(rng, 500).y
    if every or case.law == "shaped":
        shape = fit_residual_shape(noise - 1)
    elif case.law == "wrong shape":
        shape = fit_residual_shape(1 - noise**2)
    elif case.law == "wrong map":
        targets = -np.exp(2 * rng.standard_normal(500))
    mapped = every or case.law in ("mapped", "wrong map")
    target_map = fit_target_map("spline" if mapped else "identity", targets)
    unit = target_map.derivative(law.centre) ** 2
    return LocalLaw.from_parts(
        target_map.forward(law.centre),
        np.asarray(law.aleatoric) * unit,
        np.asarray(law.epistemic) * unit,
        skew,
        shape,
        target_map,
    )


def covered_by_fixed_network(
    case: Case, n_cals: Sequence[int], levels: Sequence[float], n: int, rng: Generator
) -> Counts:  # (len(n_cals), len(levels))
    """Of n replications, how many cover their one test row; calibration rows are new.

    Smaller calibration sets are the first rows of the largest.
    """
    model = fit_network(case, rng)
    covered = np.zeros((len(n_cals), len(levels)), dtype=np.int64)
    size = max(n_cals) + 1
    for start in range(0, n, CHUNK):
        X, y = case.draw(rng, min(CHUNK, n - start) * size)
        law = law_of(case, model, X, rng)
        for first in range(0, len(y), size):
            rows = slice(first, first + size)
            for i, n_cal in enumerate(n_cals):
                lower, upper = bounds_of_last_row(
                    case, y[rows], law.take(rows), n_cal, levels
                )
                covered[i] += (lower <= y[rows][-1]) & (y[rows][-1] <= upper)
    return covered


def bounds_of_last_row(
    case: Case, y: Array, law: LocalLaw, n_cal: int, levels: Sequence[float]
) -> tuple[Array, Array]:
    """What MAPIE calls on a ``ClapsScore``, without an object of MAPIE's."""
    cal, last = law.take(slice(0, n_cal)), law.take(slice(len(law) - 1, len(law)))
    # Stands where MAPIE keeps the fitted model; its predictions were made before.
    model = SimpleNamespace(predict_law=lambda X: last)
    row = np.empty((1, N_COLUMNS))
    two = case.ranks == "two ranks"
    score = ClapsScore(support=case.support, sym=not two)
    scores = score.get_conformity_scores(
        y[:n_cal], cal.centre, y_std=with_law(cal.above, cal, None)
    )
    if case.ranks == "quantile":
        signed = cal.score(y[:n_cal])
        calibrated = CalibratedRegressor.from_scores(
            model, signed, signed=True, support=case.support
        )
        upper = calibrated.predict_quantiles(row, levels)
        return np.full(len(levels), -np.inf), upper[0]
    ensemble, alpha = SimpleNamespace(single_estimator_=model), 1 - np.asarray(levels)
    _, lower, upper = score.get_bounds(
        row, alpha, ensemble, scores, allow_infinite_bounds=True
    )
    return lower[0], upper[0]


def covered_by_split_refit(
    case: Case, n_cals: Sequence[int], levels: Any, n_test: int, rng: Generator
) -> Counts:  # (len(n_cals), len(levels))
    """Test rows covered after one fit, by MAPIE from end to end."""
    model = fit_network(case, rng)
    cal, test = case.draw(rng, max(n_cals)), case.draw(rng, n_test)
    covered = []
    for n_cal in n_cals:
        score = ClapsScore(support=case.support, sym=case.ranks != "two ranks")
        mapie = SplitConformalRegressor(model, list(levels), score, prefit=True)
        mapie.conformalize(cal.X[:n_cal], cal.y[:n_cal])
        inside = _inside(mapie, test, allow_infinite_bounds=True)
        covered.append(inside.sum(axis=0))
    return np.stack(covered)


def covered_by_cross_refit(
    case: Case, n: int, levels: Sequence[float], n_test: int, n_folds: int, seed: int
) -> NDArray[np.bool_]:  # (n_test, len(levels))
    """Which test rows CV+ covers after it fitted all folds on n rows."""
    rng = np.random.default_rng(seed)
    rows, test = case.draw(rng, n), case.draw(rng, n_test)
    model = ClapsRegressor(**TINY, random_state=seed % 2**31)
    score = ClapsScore(support=case.support, sym=case.ranks != "two ranks")
    mapie = CrossConformalRegressor(
        model, list(levels), score, "plus", n_folds, random_state=seed % 2**31
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        mapie.fit_conformalize(rows.X, rows.y)
    return _inside(mapie, test)


def _inside(
    mapie: Any, test: Draw, **options: bool
) -> NDArray[np.bool_]:  # (n_test, n_levels)
    bounds = mapie.predict_interval(test.X, **options)[1]
    y = test.y[:, None]
    inside: NDArray[np.bool_] = (bounds[:, 0] <= y) & (y <= bounds[:, 1])
    return inside
