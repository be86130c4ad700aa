"""Generated tables with text, dates, gaps, an ID and a skewed target."""

from typing import Any

import numpy as np

from ..studies.data import Array, Dataset


def rentals(n: int, seed: int = 0) -> Dataset:
    """Monthly rents: a number with gaps, two districts, many zip codes, a date, an ID.

    Rents are skewed to the right. Areas are missing more often in the harbour.

    Examples
    --------
    >>> data = rentals(100)
    >>> list(data.X), data.target
    (['listing', 'area', 'rooms', 'district', 'zip', 'listed', 'lift'], 'rent')
    """
    import pandas as pd

    rng = np.random.default_rng(seed)
    n_zips = 60
    by_zip = np.random.default_rng(99).normal(0, 0.15, n_zips)
    district = rng.choice(3, n, p=[0.46, 0.46, 0.08])
    share = 1 / (5 + np.arange(n_zips))  # a few are common and many rare
    zips = rng.choice(n_zips, n, p=share / share.sum())
    area = rng.lognormal(4.1, 0.35, n)
    days = rng.integers(0, 730, n)
    lift = rng.random(n) < 0.4
    level = np.array([0.0, 0.25, 0.6])[district] + by_zip[zips] + 0.05 * lift
    level += 0.8 * np.log(area / 60) + 0.1 * days / 730
    noise = np.array([0.06, 0.18, 0.06])[district]
    rent = 700 * np.exp(level + noise * rng.standard_normal(n))
    hidden = rng.random(n) < np.array([0.05, 0.05, 0.3])[district]
    names = np.array(["north", "south", "harbour"], dtype=object)[district]
    names[rng.random(n) < 0.03] = None
    X = pd.DataFrame(
        {
            "listing": [f"L{seed:02d}-{i:06d}" for i in range(n)],
            "area": np.where(hidden, np.nan, area.round(1)),
            "rooms": np.clip((area / 25).round(), 1, 7).astype(int),
            "district": names,
            "zip": [f"5{z:04d}" for z in zips],
            "listed": (np.datetime64("2024-01-01") + days).astype(str),
            "lift": lift,
        }
    )
    return Dataset("rentals", X, rent.round(0), "rent")


def wide_table(n: int, n_columns: int, seed: int = 0) -> tuple[Any, Array, Array]:
    """A frame of mixed types, the same table as numbers, and y.

    A third of the columns are numbers (half of them with gaps), a third categories (of
    2 to 500 values), the rest dates and truth values. As numbers, categories are their
    codes, dates days, and gaps the median.

    Examples
    --------
    >>> frame, numbers, y = wide_table(50, 6)
    >>> frame.shape, numbers.shape, y.shape
    ((50, 6), (50, 6), (50,))
    """
    import pandas as pd

    rng = np.random.default_rng(seed)
    frame: dict[str, Any] = {}
    numbers, y = np.empty((n, n_columns)), np.zeros(n)
    sizes = (2, 5, 12, 50, 500)
    for j in range(n_columns):
        if j % 3 == 0:
            x = rng.standard_normal(n)
            y += np.sin(x) / (j + 1)
            if j % 6 == 0:
                x = np.where(rng.random(n) < 0.1, np.nan, x)
            frame[f"number_{j}"] = x
            numbers[:, j] = np.where(np.isnan(x), np.nanmedian(x), x)
        elif j % 3 == 1:
            size = sizes[(j // 3) % len(sizes)]
            codes = rng.integers(0, size, n)
            y += rng.standard_normal(size)[codes] / (j + 1)
            values = [f"value {k}" for k in range(size)]
            frame[f"category_{j}"] = pd.Categorical.from_codes(codes, values)
            numbers[:, j] = codes
        elif j % 2:
            day = rng.integers(0, 1500, n)
            y += np.sin(day / 58) / (j + 1)
            frame[f"date_{j}"] = np.datetime64("2021-01-01", "s") + 86_400 * day
            numbers[:, j] = day
        else:
            truth = rng.random(n) < 0.3
            y += truth / (j + 1)
            frame[f"truth_{j}"] = truth
            numbers[:, j] = truth
    noise = 0.2 + 0.2 * numbers[:, 0] ** 2
    return pd.DataFrame(frame), numbers, y + noise * rng.standard_normal(n)
