"""Replications of conformal prediction, and the exact law of what they cover.

Validity rests on exchangeable rows alone. So the cases below include noise that no
network here can fit and scales that mean nothing; the law of coverage is the same.
"""

import warnings
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..conformal.quantile import conformal_rank
from ..conformal.score import ClapsScore
from ..estimators.regressor import ClapsRegressor

Array = NDArray[np.float64]
Generator = np.random.Generator

N_TRAIN = 60
N_COLUMNS = 2
CHUNK = 2_000  # replications whose rows are predicted together
TINY: dict[str, Any] = {
    "hidden_layer_sizes": (8,),
    "representation_size": 4,
    "n_members": 1,
    "views": ("raw",),
    "max_steps": 15,
    "tol": None,
    "prior_precision": 1.0,
    "last_layer": "trained",
    "device": "cpu",
}


class Draw(NamedTuple):
    """Rows of one law."""

    X: Array  # (n, N_COLUMNS)
    y: Array  # (n,)


def _curve(X: Array) -> Array:
    curve: Array = np.sin(2 * X[:, 0]) + X[:, 1]
    return curve


def _law(noise: Callable[[Generator, Array], Array]) -> Callable[..., Draw]:
    """Uniform inputs, a smooth mean, and this noise around it."""

    def draw(rng: Generator, n: int) -> Draw:
        X = rng.uniform(-2, 2, (n, N_COLUMNS))
        return Draw(X, _curve(X) + noise(rng, X))

    return draw


def _counts(rng: Generator, n: int) -> Draw:
    """Whole numbers in X and in y, so that scores are tied."""
    X = rng.integers(-2, 3, (n, N_COLUMNS)).astype(np.float64)
    return Draw(X, rng.poisson(np.exp(0.5 * _curve(X))).astype(np.float64))


LAWS: dict[str, Callable[[Generator, int], Draw]] = {
    "gaussian": _law(lambda rng, X: 0.3 * rng.standard_normal(len(X))),
    "heteroscedastic": _law(
        lambda rng, X: 0.1 * (1 + X[:, 0] ** 2) * rng.standard_normal(len(X))
    ),
    # Student's t with two degrees of freedom: its variance is infinite.
    "heavy-tailed": _law(lambda rng, X: 0.2 * rng.standard_t(2, len(X))),
    "skewed": _law(lambda rng, X: 0.5 * rng.exponential(size=len(X))),
    "discrete": _counts,
}


class Case(NamedTuple):
    """A law of the data, and what the score gets to see of the network."""

    law: str
    scale: str = "claps"  # or "random", "shuffled"
    support: str | None = None

    @property
    def name(self) -> str:
        """How tables call it."""
        parts = [self.law]
        if self.scale != "claps":
            parts.append(f"{self.scale} scale")
        if self.support is not None:
            parts.append(f"support={self.support!r}")
        return ", ".join(parts)

    @property
    def has_ties(self) -> bool:
        """Whether scores can be equal, so that coverage is only bounded from below."""
        return self.law == "discrete"


CASES = (
    *(Case(law) for law in LAWS),
    Case("discrete", support="integer"),
    Case("heteroscedastic", "random"),
    Case("heteroscedastic", "shuffled"),
)


def fit_network(law: str, rng: Generator) -> ClapsRegressor:
    """A tiny network, fitted to a few rows of the law."""
    seed = int(rng.integers(2**31))
    return ClapsRegressor(**TINY, random_state=seed).fit(*LAWS[law](rng, N_TRAIN))


class _Recorded:
    """Stands where MAPIE keeps the fitted model; its predictions were made before."""

    def __init__(self, mu: Array, std: Array) -> None:
        self.out = mu, std

    def predict(self, X: Array, return_std: bool = False) -> tuple[Array, Array]:
        return self.out


def predictions(
    case: Case, model: ClapsRegressor, X: Array, rng: Generator
) -> tuple[Array, Array]:
    """μ and √v of the network, or what the case puts in their place."""
    if case.scale == "shuffled":  # μ and √v of rows that have nothing to do with y
        X = LAWS[case.law](rng, len(X)).X
    mu, std = model.predict(X, return_std=True)
    if case.scale == "random":
        std = np.exp(2 * rng.standard_normal(len(X)))
    return np.asarray(mu), np.asarray(std)


def covered_by_fixed_network(
    case: Case,
    model: ClapsRegressor,
    n_cals: Sequence[int],
    levels: Sequence[float],
    n_replications: int,
    rng: Generator,
) -> NDArray[np.int64]:  # (len(n_cals), len(levels))
    """Replications whose one test row is covered; calibration rows drawn anew in each.

    Smaller calibration sets are the first rows of the largest.
    """
    covered = np.zeros((len(n_cals), len(levels)), dtype=np.int64)
    for start in range(0, n_replications, CHUNK):
        size = min(CHUNK, n_replications - start)
        shape = size, max(n_cals) + 1
        X, y = LAWS[case.law](rng, size * shape[1])
        mu, std = (a.reshape(shape) for a in predictions(case, model, X, rng))
        for rows in zip(y.reshape(shape), mu, std, strict=True):
            for i, n_cal in enumerate(n_cals):
                covered[i] += _covers(case, *rows, n_cal=n_cal, levels=levels)
    return covered


def _covers(
    case: Case, y: Array, mu: Array, std: Array, *, n_cal: int, levels: Sequence[float]
) -> NDArray[np.bool_]:  # (len(levels),)
    """Calibrate on the first rows, test on the last, by the score's own methods."""
    lower, upper = bounds_of_last_row(case, y, mu, std, n_cal, levels)
    covers: NDArray[np.bool_] = (lower <= y[-1]) & (y[-1] <= upper)
    return covers


def bounds_of_last_row(
    case: Case, y: Array, mu: Array, std: Array, n_cal: int, levels: Sequence[float]
) -> tuple[Array, Array]:
    """What MAPIE calls on a ``ClapsScore``, without an object of MAPIE's."""
    score = ClapsScore(support=case.support)
    cal = slice(0, n_cal)
    signed = score.get_signed_conformity_scores(y[cal], mu[cal], y_std=std[cal])
    _, lower, upper = score.get_bounds(
        np.empty((1, N_COLUMNS)),
        1 - np.asarray(levels),
        SimpleNamespace(single_estimator_=_Recorded(mu[-1:], std[-1:])),
        np.abs(signed),
    )
    return lower[0], upper[0]


def covered_by_split_refit(
    case: Case,
    n_cals: Sequence[int],
    levels: Sequence[float],
    n_test: int,
    rng: Generator,
) -> NDArray[np.int64]:  # (len(n_cals), len(levels))
    """Test rows covered after one fit, by MAPIE from end to end."""
    from mapie.regression import SplitConformalRegressor

    model = fit_network(case.law, rng)
    cal, test = LAWS[case.law](rng, max(n_cals)), LAWS[case.law](rng, n_test)
    covered = []
    for n_cal in n_cals:
        mapie = SplitConformalRegressor(
            model,
            confidence_level=list(levels),
            conformity_score=ClapsScore(support=case.support),
            prefit=True,
        ).conformalize(cal.X[:n_cal], cal.y[:n_cal])
        covered.append(_inside(mapie, test).sum(axis=0))
    return np.stack(covered)


def covered_by_cross_refit(
    case: Case, n: int, levels: Sequence[float], n_test: int, n_folds: int, seed: int
) -> NDArray[np.bool_]:  # (n_test, len(levels))
    """Which test rows CV+ covers after it fitted all folds on n rows."""
    from mapie.regression import CrossConformalRegressor

    rng = np.random.default_rng(seed)
    rows, test = LAWS[case.law](rng, n), LAWS[case.law](rng, n_test)
    mapie = CrossConformalRegressor(
        ClapsRegressor(**TINY, random_state=seed % 2**31),
        confidence_level=list(levels),
        conformity_score=ClapsScore(support=case.support),
        method="plus",
        cv=n_folds,
        random_state=seed % 2**31,
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


def exact_coverage(n_cal: int, level: float) -> float:
    """P(covered) = k / (n + 1) where scores are not tied; a lower bound if they are."""
    return conformal_rank(n_cal, 1 - level) / (n_cal + 1)


def binomial_limits(
    n: int, probability: float, error: float, two_sided: bool
) -> tuple[int, int]:
    """Counts that a binomial variable leaves with probability at most ``error``."""
    from scipy.stats import binom

    if not two_sided:
        return int(binom.ppf(error, n, probability)), n
    low, high = binom.ppf([error / 2, 1 - error / 2], n, probability)
    return int(low), int(high)


def refit_limits(
    n_refits: int, n_test: int, n_cal: int, level: float, error: float, two_sided: bool
) -> tuple[int, int]:
    """The same for all test rows of all refits together.

    Given a fit and its calibration rows the test rows are covered independently with
    a probability that is Beta(k, n + 1 − k), whatever the model. So each refit is a
    beta-binomial count, and their sum a convolution.
    """
    from scipy.stats import betabinom

    k = conformal_rank(n_cal, 1 - level)
    pmf = betabinom.pmf(np.arange(n_test + 1), n_test, k, n_cal + 1 - k)
    size = n_refits * n_test + 1
    law = np.fft.irfft(np.fft.rfft(pmf, size) ** n_refits, size)
    cdf = np.cumsum(law)
    if not two_sided:
        return int(np.searchsorted(cdf, error)), size - 1
    low, high = np.searchsorted(cdf, [error / 2, 1 - error / 2])
    return int(low), int(high)
