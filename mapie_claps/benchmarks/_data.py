"""Data sets of the benchmarks: numbers from a CSV file, and seeded splits."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..datasets import load_dataset

Array = NDArray[np.float64]

PAPER_DATASETS = (
    "concrete",
    "energy",
    "yacht",
    "airfoil",
    "wine_red",
    "naval",
    "bike",
    "california",
)
MIN_ROWS = 50  # below, a fifth of the rows cannot calibrate a level of 0.9


@dataclass(frozen=True)
class Dataset:
    """A name, features (n, p) and targets (n,)."""

    name: str
    X: Array
    y: Array


class Split(NamedTuple):
    """Training, calibration and test rows."""

    X_train: Array
    y_train: Array
    X_cal: Array
    y_cal: Array
    X_test: Array
    y_test: Array


def split_rows(dataset: Dataset, seed: int, max_rows: int) -> Split:
    """60/20/20 split by a seeded permutation of which ``max_rows`` rows are kept.

    Parameters
    ----------
    dataset : Dataset
        Features and targets.
    seed : int
        Seed of the permutation; one seed, one split, for all methods.
    max_rows : int
        Rows kept, from the front of the permutation.

    Returns
    -------
    Split
        The three parts.

    Examples
    --------
    >>> import numpy as np
    >>> data = Dataset("line", np.arange(10.0)[:, None], np.arange(10.0))
    >>> [len(part) for part in split_rows(data, seed=0, max_rows=10)[1::2]]
    [6, 2, 2]
    """
    rows = np.random.default_rng(seed).permutation(len(dataset.y))[:max_rows]
    n_train, n_cal = int(0.6 * len(rows)), int(0.2 * len(rows))
    train, cal, test = np.split(rows, [n_train, n_train + n_cal])
    X, y = dataset.X, dataset.y
    return Split(X[train], y[train], X[cal], y[cal], X[test], y[test])


def load_csv(path: Path, target: str | None = None) -> Dataset:
    """Read a CSV file with a header and numbers only.

    Parameters
    ----------
    path : Path
        The file.
    target : str or None, default=None
        Column to predict; None takes the last.

    Returns
    -------
    Dataset
        Named after the file.
    """
    if not path.is_file():
        raise ValueError(
            f"Got the path {str(path)!r}, but no such file is there. Give the path of "
            "a CSV file with a header."
        )
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = [line for line in csv.reader(file) if line]
    if len(lines) <= MIN_ROWS:
        raise ValueError(
            f"Got {max(0, len(lines) - 1)} rows in {path.name}, but expected at least "
            f"{MIN_ROWS}: a fifth of them calibrates the intervals. Collect more rows."
        )
    header, body = [name.strip() for name in lines[0]], lines[1:]
    target = header[-1] if target is None else target
    if target not in header:
        raise ValueError(
            f"Got target={target!r}, but {path.name} has the columns "
            f"{', '.join(header)}. Name one of them."
        )
    columns = [_numbers(path, header, body, j) for j in range(len(header))]
    y = columns.pop(header.index(target))
    if not columns or np.ptp(y) == 0:
        raise ValueError(
            f"Got {len(columns)} feature columns and {len(np.unique(y))} distinct "
            f"values of {target!r} in {path.name}, but expected at least one column "
            "and two values. Choose another target."
        )
    return Dataset(path.stem, np.column_stack(columns), y)


def _numbers(path: Path, header: list[str], body: list[list[str]], j: int) -> Array:
    """Column j as floats, or an error that names the cell and the remedy."""
    values = np.empty(len(body))
    for i, line in enumerate(body):
        where = f"row {i + 1}, column {header[j]!r} of {path.name}"
        if len(line) != len(header):
            raise ValueError(
                f"Got {len(line)} cells in row {i + 1} of {path.name}, but the header "
                f"has {len(header)}. Repair the file (commas inside text need quotes)."
            )
        cell = line[j].strip()
        try:
            values[i] = float(cell or "nan")
        except ValueError:
            raise ValueError(
                f"Got the text {cell!r} in {where}, but expected numbers only. Encode "
                "categories first, for example with sklearn.preprocessing."
                "OneHotEncoder or OrdinalEncoder, or drop the column."
            ) from None
        if not np.isfinite(values[i]):
            raise ValueError(
                f"Got the missing or infinite value {cell!r} in {where}. Impute it "
                "first, for example with sklearn.impute.SimpleImputer, or drop the row."
            )
    return values


def load_named(name: str, folder: Path | None) -> Dataset:
    """Read ``folder/name.csv``, target last; or one of the paper's sets anywhere."""
    path = None if folder is None else folder / f"{name}.csv"
    if path is not None and path.is_file():
        return load_csv(path)
    if name in PAPER_DATASETS:
        return Dataset(name, *load_dataset(name, folder))
    found = [] if folder is None else sorted(p.stem for p in folder.glob("*.csv"))
    raise ValueError(
        f"Got the data set {name!r}, but {str(folder)!r} has the CSV files: "
        f"{', '.join(found) or 'none'}. Name one of these with --datasets, correct "
        "--data FOLDER, or use --csv FILE --target COLUMN for your own data."
    )


def load_diabetes_rows(n_rows: int = 150) -> Dataset:
    """First rows of scikit-learn's diabetes data, which need no download."""
    from sklearn.datasets import load_diabetes

    X, y = load_diabetes(return_X_y=True)
    return Dataset("diabetes", X[:n_rows], y[:n_rows].astype(np.float64))
