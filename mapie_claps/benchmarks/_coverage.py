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

from .. import ClapsRegressor, ClapsScore
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
DISCRETE = "discrete"  # whole numbers in X and in y, so that scores are tied


class Case(NamedTuple):
    """A generator of the data, and what the score gets to see of the network."""

    generator: str
    scale: str = "claps"  # or "random", "shuffled"
    support: str | None = None

    @property
    def name(self) -> str:
        """How tables call it."""
        scale = "" if self.scale == "claps" else f", {self.scale} scale"
        support = "" if self.support is None else f", support={self.support!r}"
        return self.generator + scale + support

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
        return Draw(X, mean + NOISE[self.generator](rng, X))


CASES = (
    *(Case(name) for name in (*NOISE, DISCRETE)),
    Case(DISCRETE, support="integer"),
    Case("heteroscedastic", "random"),
    Case("heteroscedastic", "shuffled"),
)


def fit_network(case: Case, rng: Generator) -> ClapsRegressor:
    """A tiny network, fitted to a few rows of the case."""
    seed = int(rng.integers(2**31))
    return ClapsRegressor(**TINY, random_state=seed).fit(*case.draw(rng, N_TRAIN))


def predictions(
    case: Case, model: ClapsRegressor, X: Array, rng: Generator
) -> tuple[Array, Array]:
    """μ and √v of the network, or what the case puts in their place."""
    if case.scale == "shuffled":  # μ and √v of rows that have nothing to do with y
        X = case.draw(rng, len(X)).X
    mu, std = model.predict(X, return_std=True)
    if case.scale == "random":
        std = np.exp(2 * rng.standard_normal(len(X)))
    return np.asarray(mu), np.asarray(std)


def covered_by_fixed_network(
    case: Case, n_cals: Sequence[int], levels: Sequence[float], n: int, rng: Generator
) -> Counts:  # (len(n_cals), len(levels))
    """Of n replications, how many cover their one test row; calibration rows are new.

    Smaller calibration sets are the first rows of the largest.
    """
    model = fit_network(case, rng)
    covered = np.zeros((len(n_cals), len(levels)), dtype=np.int64)
    for start in range(0, n, CHUNK):
        size = min(CHUNK, n - start)
        shape = size, max(n_cals) + 1
        X, y = case.draw(rng, size * shape[1])
        mu, std = (a.reshape(shape) for a in predictions(case, model, X, rng))
        for rows in zip(y.reshape(shape), mu, std, strict=True):
            for i, n_cal in enumerate(n_cals):
                lower, upper = bounds_of_last_row(case, *rows, n_cal, levels)
                covered[i] += (lower <= rows[0][-1]) & (rows[0][-1] <= upper)
    return covered


def bounds_of_last_row(
    case: Case, y: Array, mu: Array, std: Array, n_cal: int, levels: Sequence[float]
) -> tuple[Array, Array]:
    """What MAPIE calls on a ``ClapsScore``, without an object of MAPIE's."""
    score = ClapsScore(support=case.support)
    cal = slice(0, n_cal)
    signed = score.get_signed_conformity_scores(y[cal], mu[cal], y_std=std[cal])
    # Stands where MAPIE keeps the fitted model; its predictions were made before.
    model = SimpleNamespace(predict=lambda X, return_std: (mu[-1:], std[-1:]))
    ensemble, alpha = SimpleNamespace(single_estimator_=model), 1 - np.asarray(levels)
    row = np.empty((1, N_COLUMNS))
    _, lower, upper = score.get_bounds(row, alpha, ensemble, np.abs(signed))
    return lower[0], upper[0]


def covered_by_split_refit(
    case: Case, n_cals: Sequence[int], levels: Any, n_test: int, rng: Generator
) -> Counts:  # (len(n_cals), len(levels))
    """Test rows covered after one fit, by MAPIE from end to end."""
    model = fit_network(case, rng)
    cal, test = case.draw(rng, max(n_cals)), case.draw(rng, n_test)
    covered = []
    for n_cal in n_cals:
        score = ClapsScore(support=case.support)
        mapie = SplitConformalRegressor(model, list(levels), score, prefit=True)
        mapie.conformalize(cal.X[:n_cal], cal.y[:n_cal])
        covered.append(_inside(mapie, test).sum(axis=0))
    return np.stack(covered)


def covered_by_cross_refit(
    case: Case, n: int, levels: Sequence[float], n_test: int, n_folds: int, seed: int
) -> NDArray[np.bool_]:  # (n_test, len(levels))
    """Which test rows CV+ covers after it fitted all folds on n rows."""
    rng = np.random.default_rng(seed)
    rows, test = case.draw(rng, n), case.draw(rng, n_test)
    model = ClapsRegressor(**TINY, random_state=seed % 2**31)
    score = ClapsScore(support=case.support)
    mapie = CrossConformalRegressor(
        model, list(levels), score, "plus", n_folds, random_state=seed % 2**31
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        mapie.fit_conformalize(rows.X, rows.y)
    return _inside(mapie, test)


def _inside(mapie: Any, test: Draw) -> NDArray[np.bool_]:  # (n_test, n_levels)
    bounds = mapie.predict_interval(test.X)[1]
    y = test.y[:, None]
    inside: NDArray[np.bool_] = (bounds[:, 0] <= y) & (y <= bounds[:, 1])
    return inside
