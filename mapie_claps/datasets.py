"""Data of the paper's experiments.

One generator whose true mean and noise are known, and a loader for the eight public
regression tables. No table comes with the package.
"""

import os
from pathlib import Path
from typing import Any, NamedTuple

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


class SyntheticData(NamedTuple):
    """Rows of a synthetic problem, with what a model should find.

    Parameters
    ----------
    X : ndarray of shape (n, 1)
        Inputs.
    y : ndarray of shape (n,)
        Targets.
    mean, noise_variance : ndarray of shape (n,)
        True mean and variance of y given X.
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
    return SyntheticData(x[:, None], y, mean, noise**2, regions)


def _inside(x: Array, interval: tuple[float, float]) -> NDArray[np.bool_]:
    return (x > interval[0]) & (x < interval[1])


class _Source(NamedTuple):
    """Size of a table, and arguments of ``fetch_openml`` if OpenML has it as it was."""

    n_rows: int
    n_features: int
    openml: dict[str, Any] | None = None
    drop: str | None = None  # a second target, which must not serve as a feature


#: Names that :func:`load_dataset` knows, with size and source of each table.
DATASETS: dict[str, _Source] = {
    "concrete": _Source(1030, 8, {"data_id": 44959, "target_column": "strength"}),
    "energy": _Source(
        768, 8, {"data_id": 44960, "target_column": "heating_load"}, "cooling_load"
    ),
    "yacht": _Source(308, 6, {"name": "yacht_hydrodynamics", "version": 1}),
    "airfoil": _Source(1503, 5, {"data_id": 44957, "target_column": "sound_pressure"}),
    "wine_red": _Source(1599, 11, {"data_id": 44972, "target_column": "quality"}),
    "naval": _Source(11934, 16),
    "naval_turbine": _Source(11934, 16),
    "bike": _Source(17379, 12),
    "california": _Source(20640, 8),
}


def load_dataset(
    name: str, data_home: str | os.PathLike[str] | None = None
) -> tuple[Array, Array]:
    """Load one of the eight tables of the paper's benchmark.

    A file ``<name>.csv`` (one header line, numbers, target in the last column) in a
    local folder comes first. Without it the table is fetched through scikit-learn:
    California from ``fetch_california_housing``, others from OpenML, which does not
    have ``bike`` and ``naval`` as they were.

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
    stand-in for the server; rows may come in another order.

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
    source, folder = DATASETS[name], data_home or os.environ.get(DATA_VARIABLE)
    if folder is not None and not Path(folder).is_dir():
        raise FileNotFoundError(
            f"Got data_home={str(folder)!r}, which is not a folder. Name the folder "
            f"that holds {name}.csv (argument data_home, or the environment variable "
            f"{DATA_VARIABLE}), or leave both out to download."
        )
    file = Path(folder or "", f"{name}.csv")
    from_file = folder is not None and file.exists()
    X, y = _read_csv(file) if from_file else _fetch(name, source)
    expected, found = (source.n_rows, source.n_features), X.shape
    wrong = f"{found[0]} rows and {found[1]} columns" if found != expected else ""
    if not (np.isfinite(X).all() and np.isfinite(y).all()):
        wrong = "missing or infinite values"
    if wrong:
        raise ValueError(
            f"Got {wrong} in {file if from_file else 'the download'}, but {name} has "
            f"{expected[0]} rows and {expected[1]} columns of numbers beside the "
            f"target. Put the original table, with its target last, into {name}.csv."
        )
    return X, y


def _read_csv(file: Path) -> tuple[Array, Array]:
    try:
        table = np.loadtxt(file, delimiter=",", skiprows=1, ndmin=2)
    except ValueError as error:
        raise ValueError(
            f"Got {str(file)!r} that is no table of numbers: {error}. Expected one "
            "header line, then numbers with commas between, the target last."
        ) from error
    return table[:, :-1], table[:, -1]


def _fetch(name: str, source: _Source) -> tuple[Array, Array]:
    """Download, or say which file to place where."""
    from sklearn import datasets

    try:
        if name == "california":
            X, y = datasets.fetch_california_housing(return_X_y=True)
        elif source.openml is None:
            raise LookupError("it is not at OpenML as it was")
        else:
            # Neither arrays nor this parser need pandas.
            bunch = datasets.fetch_openml(
                **source.openml, as_frame=False, parser="liac-arff"
            )
            kept = [column != source.drop for column in bunch.feature_names]
            X, y = bunch.data[:, kept], bunch.target
        return np.asarray(X, dtype=np.float64), np.asarray(y, dtype=np.float64)
    # Beyond network errors, a changed table shows up as KeyError or ValueError.
    except Exception as error:
        raise RuntimeError(
            f"Could not download {name!r} ({type(error).__name__}: {error}). Place a "
            f"file {name}.csv (header line, {source.n_features} columns, target last, "
            f"{source.n_rows} rows) in a folder and pass it as data_home, or name the "
            f"folder in the environment variable {DATA_VARIABLE}."
        ) from error
