"""Problems with a region that training rows lack; of most, mean and noise are known."""

from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator

from ..studies.data import Array, Dataset, first_component, seeded_order

CAUSES = {"aleatoric": "hour", "epistemic": "depth"}
NAMES = ("hour", "light", "depth", "pressure", "load", "spare1", "spare2", "spare3")
# Nearly free of noise: what is added to them is all the noise there is.
ADDED_NOISE = ("gas", "parkinsons", "sml")
FOREIGN = 0.8  # quantile of the first principal component


class Known(NamedTuple):
    """Rows with what μ is compared with, and their true noise."""

    X: Any  # (n, p)
    y: Array
    mu: Array  # true mean; y of real data, of which nobody knows it
    noise: Array  # variance; NaN where nobody knows it
    foreign: Any  # (n,), rows of the region that training rows lack

    def take(self, rows: Any) -> "Known":
        """Some of the rows."""
        return Known(*(values[rows] for values in self))


Parts = tuple[Known, Known]  # training rows, none of them foreign, and test rows


def generated(name: str, sizes: dict[str, int], seed: int) -> Parts:
    """Rows of one of ``KNOWN``."""
    rng = np.random.default_rng([seed, len(name)])
    # Foreign rows leave the training rows: draw enough for what is to stay.
    train, test = KNOWN[name](rng, 2 * sizes["train"]), KNOWN[name](rng, sizes["test"])
    return train.take(np.flatnonzero(~train.foreign)[: sizes["train"]]), test


def noised(data: Dataset, n: int, seed: int) -> Parts:
    """A real table as the truth, with noise added."""
    return _two_thirds(known_problem(data, seed, n))


def real(data: Dataset, n: int, seed: int) -> Parts:
    """Rows of a real table; foreign ones lie far along its first component."""
    rows = seeded_order(data, seed, n)
    X, y, n_train = data.X[rows], data.y[rows], 2 * len(rows) // 3
    along = first_component(X[:n_train])(X)
    foreign = along > np.quantile(along[:n_train], FOREIGN)
    return _two_thirds(Known(X, y, y, np.full(len(y), np.nan), foreign))


def _two_thirds(known: Known) -> Parts:
    """The first two thirds without foreign rows, and the rest."""
    n_train = 2 * len(known.y) // 3
    here = np.flatnonzero(~known.foreign[:n_train])
    return known.take(here), known.take(slice(n_train, None))


def known_problem(data: Dataset, seed: int, n: int) -> Known:
    """Rows of a real table as the truth, with noise that grows along a direction."""
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(data.y))[:n]
    X, mu = data.X[rows], data.y[rows]
    position = first_component(X)(X)
    rank = np.argsort(np.argsort(position)) / len(rows)
    # Along a second, mixed direction, so that noise and region are not the same.
    other = np.argsort(np.argsort(X[:, -1] + 1e-9 * rng.normal(size=len(X))))
    noise = (np.std(data.y) * (0.05 + 0.45 * other / len(rows))) ** 2
    return _with_noise(rng, X, mu, noise, rank >= FOREIGN)


def _waves(rng: Generator, n: int) -> Known:
    """One column, noise on one side and no rows on the other, as in the paper."""
    X = rng.uniform(-3, 3, (n, 1))
    x = X[:, 0]
    noise = 0.05 + 0.45 / (1 + np.exp(-4 * (x - 1)))
    return _with_noise(rng, X, np.sin(2 * x) + 0.3 * x, noise**2, x < -1.8)


def _friedman(rng: Generator, n: int) -> Known:
    """Ten columns, five of which mean nothing; noise grows with the fourth."""
    X = rng.uniform(size=(n, 10))
    mu = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2
    mu = mu + 10 * X[:, 3] + 5 * X[:, 4]
    return _with_noise(rng, X, mu, (0.3 + 2 * X[:, 3] ** 2) ** 2, X[:, 0] > 0.8)


def _bumps(rng: Generator, n: int) -> Known:
    """Five columns, a mean of bumps at random places, noise along a diagonal."""
    X = rng.normal(size=(n, 5))
    law = np.random.default_rng(7)  # the same bumps for all seeds
    centres, heights = law.normal(size=(12, 5)), law.normal(0, 2, 12)
    squares = ((X[:, None] - centres) ** 2).sum(axis=2)
    mu = np.exp(-squares / 3) @ heights
    noise = 0.05 + 0.25 * np.maximum(X[:, 0] + X[:, 1], 0)
    return _with_noise(rng, X, mu, noise**2, X[:, 2] > 0.9)


def _with_noise(
    rng: Generator, X: Array, mu: Array, noise: Array, foreign: Any
) -> Known:
    return Known(X, mu + np.sqrt(noise) * rng.normal(size=len(X)), mu, noise, foreign)


KNOWN = {"waves": _waves, "friedman": _friedman, "bumps": _bumps}


def named_causes(n: int, seed: int, foreign: bool) -> tuple[Any, Array, Array]:
    """A table with one column that makes noise and one along which rows are missing.

    ``light`` goes with ``hour`` and ``pressure`` with ``depth`` (correlation 0.8);
    three columns and one category mean nothing. Noise rises at 17 o'clock; without
    ``foreign`` there are no rows deeper than 6.
    """
    import pandas as pd

    rng = np.random.default_rng(seed)
    hour, depth = rng.uniform(0, 24, n), rng.uniform(0, 10 if foreign else 6, n)
    g = rng.normal(size=(n, 7))
    light = 0.8 * (hour - 12) / 6.93 + 0.6 * g[:, 0]
    pressure = 0.8 * (depth - 5) / 2.89 + 0.6 * g[:, 1]
    columns = [hour, light, depth, pressure, *g[:, 2:6].T]
    table = pd.DataFrame(dict(zip(NAMES, columns, strict=True)))
    table["grade"] = rng.choice(["a", "b", "c"], n)
    step = table["grade"].map({"a": 0.0, "b": 0.5, "c": 1.0}).to_numpy()
    noise = 0.2 + 1.3 / (1 + np.exp(-1.5 * (hour - 17)))
    y = np.sin(depth) + g[:, 2] + 0.5 * pressure + step + noise * g[:, 6]
    return table, y, noise**2
