"""A real table, and the paper's data, whose true mean and noise are known."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import Bunch, check_random_state

from ._validation import check_integer, check_number

__all__ = ["make_heteroscedastic_sparse", "taxis_csv"]

Array = NDArray[np.float64]

DOMAIN = (-4.0, 4.0)
NOISY = (1.0, 3.0)
SPARSE = (-3.0, -1.5)
NOISE, STRONG_NOISE = 0.2, 0.5


def make_heteroscedastic_sparse(
    n_samples: int = 500,
    *,
    keep_probability: float = 1.0,
    random_state: int | np.random.RandomState | None = None,
) -> Bunch:
    r"""Curve with a noisy region and, if asked, a sparse one.

    :math:`y = \sin(1.5x) + 0.3x + \sigma(x)\varepsilon`, x uniform on (−4, 4), σ = 0.2,
    but 0.5 for x in (1, 3). Points with x in (−3, −1.5) are kept with
    ``keep_probability``; points are drawn until ``n_samples`` are kept.

    Parameters
    ----------
    n_samples : int, default=500
        Number of rows.
    keep_probability : float, default=1.0
        1 for uniform inputs (calibration and test rows), 0.1 for the training rows of
        the experiments.
    random_state : int, RandomState or None, default=None
        Seed.

    Returns
    -------
    Bunch
        X (n, 1) and y (n,), the true ``mean`` and ``noise_variance`` of y given X, and
        ``regions``, with masks of the rows in the "sparse" and in the "noisy" region.

    Examples
    --------
    >>> from mapie_claps.datasets import make_heteroscedastic_sparse
    >>> data = make_heteroscedastic_sparse(
    ...     1000, keep_probability=0.1, random_state=0)
    >>> data.regions["sparse"].mean() < 0.04
    np.True_
    """
    n = check_integer("n_samples", n_samples, low=1, hint="Use 500.")
    keep = check_number(
        "keep_probability", keep_probability, low=0, high=1, hint="Use 0.1."
    )
    rng = check_random_state(random_state)
    x: Array = np.empty(0)
    while len(x) < n:
        drawn = rng.uniform(*DOMAIN, size=2 * n)
        stays = ~_inside(drawn, SPARSE) | (rng.uniform(size=len(drawn)) < keep)
        x = np.concatenate([x, drawn[stays]])
    x = x[:n]
    regions = {"sparse": _inside(x, SPARSE), "noisy": _inside(x, NOISY)}
    mean = np.sin(1.5 * x) + 0.3 * x
    noise = np.where(regions["noisy"], STRONG_NOISE, NOISE)
    y = mean + noise * rng.standard_normal(n)
    return Bunch(X=x[:, None], y=y, mean=mean, noise_variance=noise**2, regions=regions)


def taxis_csv() -> Path:
    """Path of a CSV file with 1,000 taxi trips of New York, March 2019.

    The target is ``fare``, in dollars; the columns are text, a date and numbers, with
    gaps where a zone or a payment is not known. The records are those of the New York
    City Taxi and Limousine Commission. The city's open data law (Administrative Code
    § 23-502) asks for no licence and restricts no use of them. The rows are a random
    sample of those that the project seaborn has chosen; some columns were left out.

    Returns
    -------
    Path
        Where the file is.

    Examples
    --------
    >>> import pandas as pd
    >>> from mapie_claps.datasets import taxis_csv
    >>> trips = pd.read_csv(taxis_csv())
    >>> trips.shape, int(trips["pickup_zone"].isna().sum())
    ((1000, 9), 5)
    """
    return Path(__file__).parent / "data" / "taxis.csv"


def _inside(x: Array, interval: tuple[float, float]) -> NDArray[np.bool_]:
    return (x > interval[0]) & (x < interval[1])
