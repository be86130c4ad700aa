"""Generated data sets on which the default recipe was chosen, beside public ones.

The law of each set is fixed; the seed draws its rows. Six of them imitate the kind of
table, not the rows, of sets in the paper's benchmark (house prices, concrete, a ship's
propulsion, hired bicycles, wine, a wing); docs/recipe.md says what that means.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..studies.data import Array, Dataset

Rows = tuple[Array, Array]  # X (n, p) and y (n,)
Generator = np.random.Generator


def prices_on_a_map(rng: Generator, n: int) -> Rows:
    """Prices in towns on a map: skewed columns, rough in space, capped at the top."""
    law = np.random.default_rng(11)
    surface = _bumps(law)
    centre, share = law.uniform(0, 1, (12, 2)), law.dirichlet(np.ones(12))
    radius = law.uniform(0.01, 0.08, 12)
    town = rng.choice(12, n, p=share)
    place = centre[town] + rng.normal(size=(n, 2)) * radius[town][:, None]
    level = surface(place)
    income = np.exp(rng.normal(size=n) * 0.45 + 0.25 * np.tanh(level))
    age = rng.integers(1, 53, n).astype(float)
    rooms = np.exp(1.6 + 0.3 * np.log(income) + 0.25 * rng.standard_t(4, n))
    bedrooms = rooms * np.exp(-1.6 + 0.15 * rng.standard_t(3, n))
    population = np.exp(7 + 0.8 * rng.normal(size=n))
    occupancy = np.exp(1 + 0.25 * rng.standard_t(3, n))
    log_price = 0.7 * np.log(income) + 0.45 * level - 0.35 * np.log(occupancy)
    log_price += 0.004 * age * (age > 30) + 0.1 * np.log(bedrooms)
    log_price += 0.3 * np.tanh(income - 2) * (level > 0.3)
    noise = (0.18 + 0.12 * (level > 0.5)) * rng.standard_t(5, n)
    price = np.exp(log_price + 0.6 + noise)
    latitude, longitude = place[:, 1] * 10 + 32, place[:, 0] * 10 - 124
    columns = [income, age, rooms, bedrooms, population, occupancy, latitude, longitude]
    return np.column_stack(columns), np.minimum(price, np.quantile(price, 0.955))


def strength_of_a_mixture(rng: Generator, n: int) -> Rows:
    """Strength of a material by its ingredients: many zeros, a few curing times."""

    def often_zero(share: float, amount: Callable[[], Array]) -> Array:
        return np.where(rng.random(n) < share, 0, amount())

    cement = rng.uniform(100, 540, n)
    slag = often_zero(0.45, lambda: rng.uniform(10, 350, n))
    ash = often_zero(0.55, lambda: rng.uniform(24, 200, n))
    water = rng.normal(181, 21, n).clip(120, 247)
    plasticiser = often_zero(0.37, lambda: rng.gamma(4, 2.3, n))
    coarse = rng.normal(972, 77, n)
    fine = rng.normal(773, 80, n)
    days = [1.0, 3, 7, 14, 28, 56, 90, 180, 365]
    share_of_days = [0.01, 0.13, 0.12, 0.06, 0.42, 0.09, 0.1, 0.04, 0.03]
    age = rng.choice(days, n, p=share_of_days)

    binder = cement + 0.8 * slag * (1 - np.exp(-age / 40))
    binder += 0.4 * ash * (1 - np.exp(-age / 60))
    ratio = water * (1 - 0.012 * np.minimum(plasticiser, 12)) / binder
    balance = 1 - np.abs(fine / (fine + coarse) - 0.44)
    strength = 95 / 4 ** (1.3 * ratio) * (0.28 + 0.2 * np.log1p(age)) * balance
    strength -= 1e-5 * (coarse - 970) ** 2
    strength += 3 * np.sin(coarse / 17) + 2.5 * np.sin(fine / 23)
    y = strength * (1 + 0.05 * rng.normal(size=n)) + 1.5 * rng.normal(size=n)
    columns = [cement, slag, ash, water, plasticiser, coarse, fine, age]
    return np.column_stack(columns), y


def sum_of_trees(rng: Generator, n: int) -> Rows:
    """Forty random trees: steps along the axes, the home ground of boosted trees."""
    n_columns = 10
    law = np.random.default_rng(33)
    share = np.r_[np.full(4, 0.18), np.full(n_columns - 4, 0.28 / (n_columns - 4))]
    trees = [_random_tree(law, share, depth=4) for _ in range(40)]
    X = rng.normal(size=(n, n_columns))
    X[:, 5:] = np.exp(X[:, 5:] * 0.7) - 1
    mean = np.sum([tree(X) for tree in trees], axis=0) / 6
    return X, mean + (0.25 + 0.35 * (X[:, 0] > 0.5)) * rng.normal(size=n)


def output_of_a_simulator(rng: Generator, n: int) -> Rows:
    """A state behind redundant columns of all units: noise of the last digits only."""
    law = np.random.default_rng(44)
    mixing = law.normal(size=(4, 14))
    units = law.uniform(1, 1e4, 14)
    speed = rng.integers(1, 10, n) / 9
    decay = rng.integers(0, 52, n) / 1000
    other_decay = rng.integers(0, 27, n) / 1000
    state = [speed, speed**2, decay * 10 * speed, other_decay * 20 * (1 + speed)]
    signals = np.column_stack(state) @ mixing
    X = np.tanh(signals * 0.5) + 0.3 * signals
    X = np.column_stack([X * units, speed * 27])
    return X * (1 + 1e-5 * rng.normal(size=X.shape)), 0.95 + decay


def hourly_counts(rng: Generator, n: int) -> Rows:
    """Counts by hour, weekday, month and weather: integers in cycles that interact."""
    hour, weekday = rng.integers(0, 24, n), rng.integers(0, 7, n)
    working = (weekday < 5) & (rng.random(n) > 0.03)
    month, year = rng.integers(1, 13, n), rng.integers(0, 2, n)
    temperature = 0.5 - 0.35 * np.cos(2 * np.pi * (month - 1) / 12)
    temperature = temperature + 0.1 * rng.normal(size=n)
    temperature += 0.06 * np.sin(2 * np.pi * (hour - 9) / 24)
    humidity, wind = rng.beta(5, 3, n), rng.gamma(3, 0.06, n)
    weather = rng.choice([1, 2, 3], n, p=[0.66, 0.26, 0.08])

    rush = np.exp(-((hour - 8) ** 2) / 3) + 1.2 * np.exp(-((hour - 17.5) ** 2) / 5)
    leisure = 0.1 + 1.1 * np.exp(-((hour - 14) ** 2) / 22)
    by_hour = np.where(working, 0.15 + 1.3 * rush, leisure) * (hour > 5) + 0.05
    rate = 300 * by_hour * (0.4 + 1.3 * np.clip(temperature, 0, 0.8)) * (1 + 0.6 * year)
    rate *= np.array([1, 0.9, 0.5])[weather - 1] * (1.2 - 0.5 * humidity)
    rate *= np.exp(0.15 * rng.normal(size=n))
    holiday = rng.random(n) < 0.03
    felt = temperature * 0.93 + 0.02 * rng.normal(size=n)
    season = month % 12 // 3 + 1
    calendar = [season, year, month, hour, holiday, weekday, working]
    X = np.column_stack([*calendar, weather, temperature, felt, humidity, wind])
    return X.astype(float), rng.poisson(rate).astype(float)


def grades(rng: Generator, n: int) -> Rows:
    """Whole grades from 3 to 8: a weak signal, and a sixth of the rows repeated."""
    law = np.random.default_rng(66)
    mixing = np.eye(11) + 0.3 * law.normal(size=(11, 11))
    X = np.exp(0.35 * (rng.normal(size=(n, 11)) @ mixing))
    signal = np.log(X) @ (law.normal(size=11) * 0.25)
    signal += 0.25 * np.sin(2 * X[:, 0]) - 0.2 * (X[:, 1] > 1.5)
    noise = 0.55 * rng.normal(size=n)
    y = np.round(5.6 + signal / signal.std() * 0.5 + noise).clip(3, 8)
    repeated = rng.choice(n, n // 6)
    X[-len(repeated) :], y[-len(repeated) :] = X[repeated], y[repeated]
    order = rng.permutation(n)
    return X[order], y[order]


def friedman(rng: Generator, n: int) -> Rows:
    """Friedman's first function: smooth, with noise that grows along one column."""
    X = rng.random((n, 10))
    mean = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2
    mean += 10 * X[:, 3] + 5 * X[:, 4]
    return X, mean + (0.5 + 2 * X[:, 5]) * rng.normal(size=n)


def sound_of_a_wing(rng: Generator, n: int) -> Rows:
    """Few columns on log scales and grids, a sharp curve, little noise."""
    frequency = np.exp(rng.uniform(np.log(200), np.log(20000), n))
    angle = rng.choice(np.linspace(0, 22, 15), n)
    chord = rng.choice([0.025, 0.05, 0.1, 0.15, 0.23, 0.3], n)
    speed = rng.choice([31.7, 39.6, 55.5, 71.3], n)
    thickness = 0.002 * np.exp(0.09 * angle) * chord / 0.3 * (1 + 0.2 * np.sin(angle))
    strouhal = np.log10(frequency * thickness / speed * 3 + 1e-3)
    strouhal -= 0.6 * np.tanh(angle / 9 - 1)
    level = 130 - 11 * strouhal**2
    level += 50 * np.log10(speed / 71.3) + 6 * np.log10(chord / 0.3)
    level += 2.5 * np.exp(-((strouhal - 0.3) ** 2) / 0.02) * (angle > 5)
    noise = (0.8 + 0.8 * (frequency > 5000)) * rng.normal(size=n)
    columns = [frequency, angle, chord, speed, thickness]
    return np.column_stack(columns), level + noise


#: Name → function, number of rows, what is added to the seed.
GENERATORS: dict[str, tuple[Callable[[Generator, int], Rows], int, int]] = {
    "geo": (prices_on_a_map, 5000, 1000),
    "mix": (strength_of_a_mixture, 1030, 2000),
    "trees": (sum_of_trees, 5000, 3000),
    "simul": (output_of_a_simulator, 5000, 4000),
    "count": (hourly_counts, 5000, 5000),
    "grade": (grades, 1600, 6000),
    "fried": (friedman, 1500, 7000),
    "wave": (sound_of_a_wing, 1500, 8000),
}


def generate(name: str, seed: int, n_rows: int | None = None) -> Dataset:
    """Draw the rows of one of ``GENERATORS``, as many as usual or another number."""
    draw, n, shift = GENERATORS[name]
    return Dataset(name, *draw(np.random.default_rng(shift + seed), n_rows or n))


def _bumps(law: Generator) -> Callable[[Array], Array]:
    """Sum of Gaussian bumps of three widths on the unit square."""
    numbers = {0.05: 60, 0.15: 25, 0.4: 8}
    centres = [law.uniform(0, 1, (k, 2)) for k in numbers.values()]
    heights = [law.normal(size=k) * width**0.3 for width, k in numbers.items()]

    def surface(place: Array) -> Array:  # (n, 2) → (n,)
        total = np.zeros(len(place))
        for centre, height, width in zip(centres, heights, numbers, strict=True):
            squares = ((place[:, None] - centre[None]) ** 2).sum(-1)
            total += np.exp(-squares / 2 / width**2) @ height
        return total

    return surface


def _random_tree(law: Generator, share: Array, depth: int) -> Callable[[Array], Any]:
    """Tree of the given depth; a split takes column j with probability share[j]."""
    if depth == 0:
        leaf = law.normal()
        return lambda X: leaf
    column, threshold = law.choice(len(share), p=share), law.normal() * 0.9
    left, right = (_random_tree(law, share, depth - 1) for _ in range(2))
    return lambda X: np.where(X[:, column] < threshold, left(X), right(X))
