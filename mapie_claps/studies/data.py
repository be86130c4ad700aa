"""Data sets of the studies: CSV files, seeded splits, a hash of the content."""

import codecs
import csv
import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Table = Any  # (n, p) array, or a pandas data frame where there are text columns

SMALL = ("concrete", "energy", "yacht", "airfoil", "wine_red")
PAPER_DATASETS = (*SMALL, "naval", "bike", "california")
MIN_ROWS = 50  # below, a fifth of the rows cannot calibrate a level of 0.9
MAX_ROWS = 5000
CALIBRATION_SHARE = 0.2  # of the rows of a split


@dataclass(frozen=True)
class Dataset:
    """Features (n, p) and targets (n,), with the names of data set and target."""

    name: str
    X: Table
    y: Array
    target: str = "y"

    @cached_property
    def content_hash(self) -> str:
        """Hash of features and targets; column names and the file's layout are free."""
        return content_hash(self.X, self.y)

    @property
    def key(self) -> dict[str, Any]:
        """What the key of a run says of the data."""
        names = {"name": self.name, "target": self.target}
        return names | {"sha256": self.content_hash}


def content_hash(X: Table, y: Array) -> str:
    """First 16 digits of the SHA-256 of all values, column by column."""
    found = hashlib.sha256(repr(X.shape).encode())
    frame = hasattr(X, "iloc")
    for j in range(X.shape[1]):
        column = np.asarray(X.iloc[:, j] if frame else X[:, j])
        if column.dtype.kind in "biuf":
            found.update(np.ascontiguousarray(column, dtype=np.float64).tobytes())
        else:
            found.update(repr([str(value) for value in column]).encode())
    found.update(np.ascontiguousarray(y, dtype=np.float64).tobytes())
    return found.hexdigest()[:16]


class Split(NamedTuple):
    """Rows to train on, to calibrate with and to test on."""

    X_train: Table
    y_train: Array
    X_cal: Table
    y_cal: Array
    X_test: Table
    y_test: Array


def take_rows(X: Table, rows: Any) -> Table:
    """Rows of an array or of a data frame."""
    return X.iloc[rows] if hasattr(X, "iloc") else X[rows]


def split_rows(
    data: Dataset,
    seed: int,
    max_rows: int = MAX_ROWS,
    calibration_share: float = CALIBRATION_SHARE,
) -> Split:
    """Split at most ``max_rows`` rows 60/20/20 in a seeded order.

    A fifth is for testing, whatever the share of the calibration rows.

    Examples
    --------
    >>> import numpy as np
    >>> data = Dataset("line", np.arange(10.0)[:, None], np.arange(10.0))
    >>> [len(part) for part in split_rows(data, seed=0)[1::2]]
    [6, 2, 2]
    """
    order = seeded_order(data, seed, max_rows)
    n_train = int(round(0.8 - calibration_share, 12) * len(order))
    n_cal = int(calibration_share * len(order))
    return make_split(data, *np.split(order, [n_train, n_train + n_cal]))


def seeded_order(data: Dataset, seed: int, max_rows: int = MAX_ROWS) -> NDArray[Any]:
    """The first ``max_rows`` of a seeded permutation of the rows."""
    return np.random.default_rng(seed).permutation(len(data.y))[:max_rows]


def make_split(data: Dataset, *parts: NDArray[Any]) -> Split:
    """Split with the given training, calibration and test rows."""
    X, y = data.X, data.y
    return Split(*(a for rows in parts for a in (take_rows(X, rows), y[rows])))


def first_component(X: Array) -> Callable[[Array], Array]:
    """From rows to their position along the first principal component of X."""
    from sklearn.decomposition import PCA
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    axis = make_pipeline(StandardScaler(), PCA(1, svd_solver="full")).fit(X)
    return lambda rows: np.asarray(axis.transform(rows)[:, 0])


def load_csv(path: Path, target: str | None = None, text: bool = False) -> Dataset:
    """Read a CSV file in UTF-8 with a header; the target is the last column if None.

    With ``text`` the features may hold text and gaps: X is then a data frame (needs
    pandas) with categories and NaN where there are any.
    """
    header, body = read_cells(path)
    if len(body) < MIN_ROWS:
        raise ValueError(
            f"Got {len(body)} rows in {path.name}, but expected at least "
            f"{MIN_ROWS}: a fifth of them calibrates the intervals. Collect more rows."
        )
    target = header[-1] if target is None else target
    if target not in header:
        raise ValueError(
            f"Got target={target!r}, but {path.name} has the columns "
            f"{', '.join(header)}. Name one of them."
        )
    columns = {
        name: _column(path, name, cells, text and name != target)
        for name, cells in zip(header, zip(*body, strict=True), strict=True)
    }
    y = columns.pop(target)
    if not columns or np.ptp(y) == 0:
        raise ValueError(
            f"Got {len(columns)} feature columns and {len(np.unique(y))} distinct "
            f"values of {target!r} in {path.name}, but expected at least one column "
            "and two values. Choose another target."
        )
    if all(c.dtype.kind == "f" and np.isfinite(c).all() for c in columns.values()):
        return Dataset(path.stem, np.column_stack(list(columns.values())), y, target)
    import pandas as pd

    words = [name for name, c in columns.items() if c.dtype.kind == "O"]
    X = pd.DataFrame(columns).astype(dict.fromkeys(words, "category"))
    return Dataset(path.stem, X, y, target)


def read_cells(path: Path) -> tuple[list[str], list[list[str]]]:
    """Header, of different names, and rows as text, each as long as the header."""
    if not path.is_file():
        raise ValueError(
            f"Got the path {str(path)!r}, but no such file is there. Give the path of "
            "a CSV file with a header."
        )
    raw = path.read_bytes()
    try:
        content = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = raw[: error.start].count(b"\n") + 1
        wide = raw[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        raise ValueError(
            f"Got the byte 0x{raw[error.start]:02x} in line {number} of {path.name}, "
            "which is not UTF-8. Save the file as UTF-8, for example with: "
            f"iconv -f {'utf-16' if wide else 'latin1'} -t utf-8 {path.name}"
        ) from None
    try:
        lines = [line for line in csv.reader(io.StringIO(content, newline="")) if line]
    except csv.Error as error:
        raise ValueError(
            f"Got {path.name}, which cannot be read as CSV: {error}. Repair the file."
        ) from None
    if not lines:
        raise ValueError(
            f"Got {path.name} without rows. Give a CSV file with a header."
        )
    header = [name.strip() for name in lines[0]]
    for j, name in enumerate(header):
        if name in header[:j]:  # neither target nor features would be clear
            raise ValueError(
                f"Got the column name {name!r} twice in {path.name} (columns "
                f"{header.index(name) + 1} and {j + 1}), but expected different names. "
                "Rename or drop one of the two."
            )
    for i, line in enumerate(lines[1:], start=1):
        if len(line) != len(header):
            raise ValueError(
                f"Got {len(line)} cells in row {i} of {path.name}, but the header "
                f"has {len(header)}. Repair the file (commas inside text need quotes)."
            )
    return header, lines[1:]


def _column(path: Path, name: str, cells: Any, text: bool) -> NDArray[Any]:
    """Column as floats, as text if allowed, or an error that names the cell."""
    values: NDArray[Any] = np.empty(len(cells))
    for i, cell in enumerate(map(str.strip, cells)):
        where = f"row {i + 1}, column {name!r} of {path.name}"
        try:
            values[i] = float(cell.replace("_", "?") or "nan")  # Python's 1_000
        except ValueError:
            if text:
                return np.array([c.strip() or None for c in cells], dtype=object)
            raise ValueError(
                f"Got the text {cell!r} in {where}, but expected numbers only. Encode "
                "categories first, for example with sklearn.preprocessing."
                "OneHotEncoder or OrdinalEncoder, or drop the column."
            ) from None
        if not np.isfinite(values[i]) and not (text and np.isnan(values[i])):
            raise ValueError(
                f"Got the missing or infinite value {cell!r} in {where}. Impute it "
                "first, for example with sklearn.impute.SimpleImputer, or drop the row."
            )
    return values


def load_named(name: str, folder: Path | None, text: bool = False) -> Dataset:
    """Read ``folder/name.csv``, target last; or one of the paper's sets anywhere."""
    path = None if folder is None else folder / f"{name}.csv"
    if path is not None and path.is_file():
        return load_csv(path, text=text)
    if name in PAPER_DATASETS:
        return load_paper_dataset(name, folder)
    found = [] if folder is None else sorted(p.stem for p in folder.glob("*.csv"))
    raise ValueError(
        f"Got the data set {name!r}, but {str(folder)!r} has the CSV files: "
        f"{', '.join(found) or 'none'}. Name one of these with --datasets, correct "
        "--data FOLDER, or use --csv FILE --target COLUMN for your own data."
    )


def load_paper_dataset(name: str, folder: Path | str | None) -> Dataset:
    """One of the paper's sets, from a folder or downloaded, with its sizes checked."""
    from ..datasets import load_dataset

    return Dataset(name, *load_dataset(name, folder))


def load_diabetes_rows(n_rows: int = 150) -> Dataset:
    """First rows of scikit-learn's diabetes data, which need no download."""
    from sklearn.datasets import load_diabetes

    X, y = load_diabetes(return_X_y=True)
    return Dataset("diabetes", X[:n_rows], y[:n_rows].astype(np.float64))
