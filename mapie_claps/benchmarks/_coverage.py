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
Inside = NDArray[np.bool_]

LEVELS = (0.8, 0.9, 0.95)
N_TRAIN = 60
N_COLUMNS = 2
N_FOLDS = 5
CHUNK = 2_000  # replications whose rows are predicted together
TINY: dict[str, Any] = (
    {"hidden_layer_sizes": (8,), "representation_size": 4, "n_members": 1}
    | {"views": ("raw",), "max_steps": 15, "tol": None, "device": "cpu"}
    | {"prior_precision": 1.0, "last_layer": "trained"}
)
PLAIN = {"target_map": None, "two_sided_noise": False, "residual_shape": False}

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
}
TIED = ("discrete", "bounded")
#: What a law may have beyond μ and √v; a wrong shape and map have nothing to do with y.
SHAPES = ("two-sided", "shaped", "mapped", "all three", "wrong shape", "wrong map")


class Case(NamedTuple):
    """A generator of the data, and what the score is given of the network."""

    generator: str
    scale: str = "claps"  # or "random", "shuffled"
    support: Any = None
    law: str = ""  # or one of SHAPES, or "learned"
    ranks: str = "one rank"  # or "two ranks", or "quantile", which is one end alone

    @property
    def name(self) -> str:
        """How tables call it."""
        scale = "" if self.scale == "claps" else f"{self.scale} scale"
        support = "" if self.support is None else f"support={self.support!r}"
        ranks = "" if self.ranks == "one rank" else self.ranks
        words = (self.generator, scale, support, self.law, ranks)
        return ", ".join(filter(None, words))

    @property
    def score(self) -> ClapsScore:
        """The score that MAPIE is given."""
        return ClapsScore(support=self.support, sym=self.ranks != "two ranks")

    def draw(self, rng: Generator, n: int) -> tuple[Array, Array]:
        """Rows of the generator."""
        if self.generator == "discrete":
            X = rng.integers(-2, 3, (n, N_COLUMNS)).astype(np.float64)
        else:
            X = rng.uniform(-2, 2, (n, N_COLUMNS))
        mean = np.sin(2 * X[:, 0]) + X[:, 1]
        return X, TARGETS[self.generator](rng, X, mean)


CASES = (
    *(Case(name) for name in TARGETS if name != "bounded"),
    Case("discrete", support="integer"),
    Case("heteroscedastic", "random"),
    Case("heteroscedastic", "shuffled"),
    *(Case("skewed", law=law) for law in SHAPES),
    Case("skewed", law="all three", ranks="two ranks"),
    Case("heavy-tailed", law="wrong shape", ranks="two ranks"),
    Case("skewed", law="all three", ranks="quantile"),
    Case("skewed", law="wrong map", ranks="quantile"),
    Case("skewed", support=(-1.0, 2.5)),
    Case("discrete", support="count", law="all three"),
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
        X, _ = case.draw(rng, len(X))
    law = model.predict_law(X)
    if case.scale == "random":
        std = np.exp(2 * rng.standard_normal(len(X)))
        law = LocalLaw.symmetric(law.centre, std)
    return _with_shape(case, law, X) if case.law in SHAPES else law


def _with_shape(case: Case, law: LocalLaw, X: Array) -> LocalLaw:
    """Skew, shape and map as the case has them, fixed before any calibration row."""
    rng = np.random.default_rng(0)
    noise, (_, targets) = rng.exponential(size=500), case.draw(rng, 500)
    skew = shape = None
    if case.law in ("two-sided", "all three"):
        skew = 0.7 * np.tanh(X[:, 0])
    if case.law in ("shaped", "wrong shape", "all three"):
        wrong = case.law == "wrong shape"
        shape = fit_residual_shape(1 - noise**2 if wrong else noise - 1)
    if case.law == "wrong map":
        targets = -np.exp(2 * rng.standard_normal(500))
    mapped = case.law in ("mapped", "wrong map", "all three")
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


def chunk_sizes(n: int, largest: int) -> list[int]:
    """Sizes of the parts of n replications, of which only the last may be smaller."""
    sizes: list[int] = np.diff([*range(0, n, largest), n]).tolist()
    return sizes


def fixed_network(
    case: Case, n_cals: Sequence[int], n_test: int, n: int, rng: Generator
) -> Inside:  # (n, n_cals, 1, levels)
    """Whether one test row is covered, n times; calibration rows are new.

    Smaller calibration sets are the first rows of the largest.
    """
    model, inside = fit_network(case, rng), []
    size = max(n_cals) + 1
    for chunk in chunk_sizes(n, CHUNK):
        X, y = case.draw(rng, chunk * size)
        law = law_of(case, model, X, rng)
        for first in range(0, len(y), size):
            rows = slice(first, first + size)
            given, new = (case, y[rows], law.take(rows)), y[rows][-1]
            ends = (bounds_of_last_row(*given, n_cal, LEVELS) for n_cal in n_cals)
            inside.append([[(a <= new) & (new <= b)] for a, b in ends])
    return np.array(inside)


def bounds_of_last_row(
    case: Case, y: Array, law: LocalLaw, n_cal: int, levels: Sequence[float]
) -> tuple[Array, Array]:
    """What MAPIE calls on a ``ClapsScore``, without an object of MAPIE's."""
    cal, last = law.take(slice(0, n_cal)), law.take(slice(len(law) - 1, len(law)))
    # Stands where MAPIE keeps the fitted model; its predictions were made before.
    model = SimpleNamespace(predict_law=lambda X: last)
    row = np.empty((1, N_COLUMNS))
    if case.ranks == "quantile":
        calibrated = CalibratedRegressor.from_scores(
            model, cal.score(y[:n_cal]), signed=True, support=case.support
        )
        upper = calibrated.predict_quantiles(row, levels)
        return np.full(len(levels), -np.inf), upper[0]
    score = case.score
    scores = score.get_conformity_scores(
        y[:n_cal], cal.centre, y_std=with_law(cal.above, cal, None)
    )
    ensemble, alpha = SimpleNamespace(single_estimator_=model), 1 - np.asarray(levels)
    _, lower, upper = score.get_bounds(
        row, alpha, ensemble, scores, allow_infinite_bounds=True
    )
    return lower[0], upper[0]


def split_refits(
    case: Case, n_cals: Sequence[int], n_test: int, n: int, rng: Generator
) -> Inside:  # (n, n_cals, n_test, levels)
    """Which test rows are covered after each of n fits, by MAPIE from end to end."""
    inside = []
    for _ in range(n):
        model = fit_network(case, rng)
        (X, y), test = case.draw(rng, max(n_cals)), case.draw(rng, n_test)
        each = []
        for n_cal in n_cals:
            mapie = SplitConformalRegressor(
                model, list(LEVELS), case.score, prefit=True
            )
            mapie.conformalize(X[:n_cal], y[:n_cal])
            each.append(_inside(mapie, *test, allow_infinite_bounds=True))
        inside.append(each)
    return np.array(inside)


def cross_refits(
    case: Case, n_cals: Sequence[int], n_test: int, n: int, rng: Generator
) -> Inside:  # (n, 1, n_test, levels)
    """Which test rows CV+ covers after it fitted all folds, n times."""
    inside = []
    for seed in rng.integers(2**62, size=n).tolist():
        rng, state = np.random.default_rng(seed), {"random_state": seed % 2**31}
        rows, test = case.draw(rng, n_cals[0]), case.draw(rng, n_test)
        model = ClapsRegressor(**TINY, **state)
        mapie = CrossConformalRegressor(
            model, list(LEVELS), case.score, "plus", N_FOLDS, **state
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            mapie.fit_conformalize(*rows)
        inside.append([_inside(mapie, *test)])
    return np.array(inside)


def _inside(mapie: Any, X: Array, y: Array, **options: bool) -> Inside:
    """Which targets lie in their intervals, (n, levels)."""
    bounds = mapie.predict_interval(X, **options)[1]
    inside: Inside = (bounds[:, 0] <= y[:, None]) & (y[:, None] <= bounds[:, 1])
    return inside
