"""X, y: the data of the paper's experiments.

One generator whose true mean and noise are known, and a loader for the eight public
regression tables. No table comes with the package.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from ._validation import check_choice, check_integer, check_number

__all__ = [
    "DATASETS",
    "SyntheticData",
    "load_dataset",
    "make_heteroscedastic_sparse",
]

Array = NDArray[np.float64]

DATA_VARIABLE = "MAPIE_CLAPS_DATA"
DOMAIN = (-4.0, 4.0)
NOISY = (1.0, 3.0)
SPARSE = (-3.0, -1.5)
NOISE, STRONG_NOISE = 0.2, 0.5


@dataclass(frozen=True)
class SyntheticData:
    """Rows of a synthetic problem, with what a model should find.

    Parameters
    ----------
    X : ndarray of shape (n, 1)
        Inputs.
    y : ndarray of shape (n,)
        Targets.
    mean : ndarray of shape (n,)
        True mean of y given X.
    noise_variance : ndarray of shape (n,)
        True variance of y given X.
    regions : dict of ndarray of bool, shape (n,)
        Rows in the ``"sparse"`` and in the ``"noisy"`` region.

    Examples
    --------
    >>> from mapie_claps.datasets import make_heteroscedastic_sparse
    >>> data = make_heteroscedastic_sparse(5, random_state=0)
    >>> data.X.shape, data.regions["noisy"].shape
    ((5, 1), (5,))
    """

    X: Array
    y: Array
    mean: Array
    noise_variance: Array
    regions: dict[str, NDArray[np.bool_]]


def make_heteroscedastic_sparse(
    n_samples: int = 500,
    *,
    keep_probability: float = 1.0,
    random_state: int | np.random.RandomState | None = None,
) -> SyntheticData:
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
    SyntheticData
        Inputs, targets, true mean and noise variance, regions.

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
    kept: Array = np.empty(0)
    while len(kept) < n:
        x = rng.uniform(*DOMAIN, size=2 * n)
        stays = ~_inside(x, SPARSE) | (rng.uniform(size=len(x)) < keep)
        kept = np.concatenate([kept, x[stays]])
    x = kept[:n]
    mean = np.sin(1.5 * x) + 0.3 * x
    noise = np.where(_inside(x, NOISY), STRONG_NOISE, NOISE)
    y = mean + noise * rng.standard_normal(n)
    regions = {"sparse": _inside(x, SPARSE), "noisy": _inside(x, NOISY)}
    return SyntheticData(x[:, None], y, mean, noise**2, regions)


def _inside(x: Array, interval: tuple[float, float]) -> NDArray[np.bool_]:
    return (x > interval[0]) & (x < interval[1])


@dataclass(frozen=True)
class _Source:
    """Where a table comes from and what it must look like.

    The columns at OpenML stand in the order of the original table, which is ours.
    """

    n_rows: int
    n_features: int
    openml: dict[str, Any] | None  # arguments that pick the table at OpenML
    target: str = "default-target"
    drop: tuple[str, ...] = ()  # second targets that must not serve as features
    # Category names at OpenML in the order of the original codes, which start at 1.
    codes: dict[str, tuple[str, ...]] | None = None
    # Constant columns of the original that OpenML left out, by position.
    constants: tuple[tuple[int, float], ...] = ()


NAVAL_TARGETS = (
    "gt_compressor_decay_state_coefficient",
    "gt_turbine_decay_state_coefficient",
)


def _naval_source(target: str, other: str) -> _Source:
    """One table with two targets."""
    constants = ((8, 288.0), (11, 0.998))
    openml = {"data_id": 44969}
    return _Source(11934, 16, openml, target, (other,), constants=constants)


#: Names that :func:`load_dataset` knows, with size and source of each table.
DATASETS: dict[str, _Source] = {
    "concrete": _Source(1030, 8, {"data_id": 44959}, "strength"),
    "energy": _Source(768, 8, {"data_id": 44960}, "heating_load", ("cooling_load",)),
    "yacht": _Source(308, 6, {"name": "yacht_hydrodynamics", "version": 1}),
    "airfoil": _Source(1503, 5, {"data_id": 44957}, "sound_pressure"),
    "wine_red": _Source(1599, 11, {"data_id": 44972}, "quality"),
    "naval": _naval_source(*NAVAL_TARGETS),
    "naval_turbine": _naval_source(*reversed(NAVAL_TARGETS)),
    "bike": _Source(
        17379,
        12,
        {"name": "Bike_Sharing_Demand", "version": 2},
        "count",
        codes={
            "season": ("spring", "summer", "fall", "winter"),
            "weather": ("clear", "misty", "rain", "heavy_rain"),
            "holiday": ("False", "True"),
            "workingday": ("False", "True"),
        },
    ),
    "california": _Source(20640, 8, None),
}


def load_dataset(
    name: str, data_home: str | os.PathLike[str] | None = None
) -> tuple[Array, Array]:
    """Load one of the eight tables of the paper's benchmark.

    A file ``<name>.csv`` (one header line, numbers, target in the last column) in a
    local folder comes first. Without it the table is fetched through scikit-learn:
    California from ``fetch_california_housing``, the others from OpenML, into
    scikit-learn's data home. Number of rows and columns are checked in both cases.

    Parameters
    ----------
    name : str
        "concrete" (compressive strength), "energy" (heating load), "yacht",
        "airfoil", "wine_red", "naval" (decay of the compressor), "naval_turbine" (the
        same table with the decay of the turbine as target, which the paper's figures
        fit), "bike" (hourly counts) or "california".
    data_home : path, optional
        Folder with the CSV files. By default that of the environment variable
        ``MAPIE_CLAPS_DATA``, if set.

    Returns
    -------
    X : ndarray of shape (n, p)
        Inputs.
    y : ndarray of shape (n,)
        Targets.

    Notes
    -----
    The project's results come from CSV files. The download from OpenML is tested with a
    stand-in for the server: table numbers, names and category names were taken from
    public code that uses them, and not run against OpenML itself. A table fetched
    there may have its rows in another order, and ``bike`` holds temperature, humidity
    and wind in other units; neither matters to standardised inputs beyond the splits.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> from mapie_claps.datasets import load_dataset
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = np.random.default_rng(0).normal(size=(308, 7))
    ...     file = pathlib.Path(folder, "yacht.csv")
    ...     np.savetxt(file, table, delimiter=",", header="a,b,c,d,e,f,y")
    ...     X, y = load_dataset("yacht", folder)
    >>> X.shape, y.shape
    ((308, 6), (308,))
    """
    check_choice("name", name, tuple(DATASETS), "These are the paper's tables.")
    source = DATASETS[name]
    given = data_home if data_home is not None else os.environ.get(DATA_VARIABLE)
    if given is not None and not Path(given).is_dir():
        raise FileNotFoundError(
            f"Got data_home={str(given)!r}, which is not a folder. Name the folder "
            f"that holds {name}.csv (argument data_home, or the environment variable "
            f"{DATA_VARIABLE}), or leave both out to download."
        )
    file = None if given is None else Path(given) / f"{name}.csv"
    if file is not None and file.exists():
        table = _read_csv(file)
        X, y, origin = table[:, :-1], table[:, -1], str(file)
    else:
        X, y = _fetch(name, source)
        origin = "the download"
    expected = (source.n_rows, source.n_features)
    if X.shape != expected or y.shape != expected[:1]:
        raise ValueError(
            f"Got {X.shape[0]} rows and {X.shape[1]} columns beside the target from "
            f"{origin}, but {name} has {expected[0]} and {expected[1]}. Put the "
            f"original table, with its target last, into {name}.csv."
        )
    if not (np.isfinite(X).all() and np.isfinite(y).all()):
        raise ValueError(
            f"Got missing or infinite values in {origin}, but {name} has none. Put "
            f"the original table, with its target last, into {name}.csv."
        )
    return X, y


def _read_csv(file: Path) -> Array:
    """A table of numbers under one header line."""
    try:
        return np.loadtxt(file, delimiter=",", skiprows=1, ndmin=2)
    except ValueError as error:
        raise ValueError(
            f"Got {str(file)!r} that is no table of numbers: {error}. Expected one "
            "header line, then numbers with commas between, the target last."
        ) from error


def _fetch(name: str, source: _Source) -> tuple[Array, Array]:
    """Download, or say which file to place where."""
    from sklearn.datasets import fetch_california_housing

    try:
        if source.openml is not None:
            return _fetch_openml(source)
        X, y = fetch_california_housing(return_X_y=True)
        return np.asarray(X, dtype=np.float64), np.asarray(y, dtype=np.float64)
    # Beyond network errors, a changed table shows up as KeyError or ValueError.
    except Exception as error:
        raise RuntimeError(
            f"Could not download {name!r} ({type(error).__name__}: {error}). Place a "
            f"file {name}.csv (header line, {source.n_features} columns, target last, "
            f"{source.n_rows} rows) in a folder and pass it as data_home, or name the "
            f"folder in the environment variable {DATA_VARIABLE}."
        ) from error


def _fetch_openml(source: _Source) -> tuple[Array, Array]:
    """Table of OpenML with the columns of the original one."""
    from sklearn.datasets import fetch_openml

    # Neither frames nor this parser need pandas.
    bunch = fetch_openml(
        **(source.openml or {}),
        target_column=source.target,
        as_frame=False,
        parser="liac-arff",
    )
    columns = [
        _original_codes(bunch, j, column, source)
        for j, column in enumerate(bunch.feature_names)
        if column not in source.drop
    ]
    for position, value in source.constants:
        columns.insert(position, np.full(len(bunch.data), value))
    y = np.asarray(bunch.target, dtype=np.float64)
    return np.column_stack(columns), y


def _original_codes(bunch: Any, j: int, column: str, source: _Source) -> Array:
    """A column as numbers; categories get the codes of the original table."""
    values = np.asarray(bunch.data[:, j])
    names = (bunch.get("categories") or {}).get(column)
    if names is None:
        return values.astype(np.float64)
    order = (source.codes or {}).get(column, names)
    codes = np.array([order.index(category) + 1 for category in names], dtype=float)
    return np.asarray(codes[values.astype(int)], dtype=np.float64)
