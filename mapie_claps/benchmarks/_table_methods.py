"""Methods of the ``tables`` benchmark: how each gets from a data frame to bounds.

Boosting and the pipeline get what a user would have to make by hand: dates as the same
parts and differences that ``ClapsRegressor`` makes, IDs left out, text as categories.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..network.columns import FewValues, ManyValues
from ..network.dates import DAY, Dates, Difference
from ..network.table import TableEncoder, as_table
from ..network.table_fit import fit_table
from ..studies.data import Split, Table
from ..studies.store import Row
from ._peer_table import METHODS, claps_parameters
from ._peer_tuning import Bounds, Method, shortened, tune

SHORT = {"n_members": 2, "max_steps": 40, "tol": None}  # of ClapsRegressor, in a trial
UNSEEN = "a value that never occurred"
N_CHANGED = 200  # test rows whose values are replaced by new ones


def native_split(split: Split) -> Split:
    """A split for methods that take categories and gaps, but neither dates nor text.

    Numbers keep their gaps, dates become parts and differences, text a categorical
    type; values that did not occur in the training rows are missing.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> rows = pd.DataFrame({"day": ["2024-01-01", "2024-01-03"], "city": ["A", "B"]})
    >>> native = native_split(Split(*3 * (rows, np.zeros(2)))).X_test
    >>> native["day_weekday"].tolist(), str(native["city"].dtype)
    ([0.0, 2.0], 'category')
    """
    X, y = as_table(split.X_train), split.y_train
    encoder, _ = fit_table(X, y, np.ones(len(y)), "from_dtype", 0)  # whatever y is
    parts = list(split)
    parts[::2] = [_native_columns(encoder, X) for X in split[::2]]
    return Split(*parts)


def _native_columns(encoder: TableEncoder, X: Table) -> Any:
    """Numbers and categories in a pandas data frame."""
    import pandas as pd

    read, names = encoder.read(as_table(X)).codes, encoder.names
    found: dict[str, Any] = {}
    for block in encoder.blocks:
        first, name = read[block.positions[0]], names[block.positions[0]]
        if isinstance(block, FewValues | ManyValues):
            values = [block.categories.show(v) for v in block.categories.values]
            codes = np.where(first == len(values), -1, first)
            found[name] = pd.Categorical.from_codes(codes, values)
        elif isinstance(block, Dates):
            parts = block.encode(first).values.T
            for part, number in zip(block.parts, parts, strict=False):  # then a flag
                found[f"{name}_{part}"] = np.where(np.isnan(first), np.nan, number)
        elif isinstance(block, Difference):
            j = block.positions[1]
            found[f"{name}_to_{names[j]}"] = (read[j] - first) / DAY
        else:
            found |= {names[j]: read[j] for j in block.positions}
    return pd.DataFrame(found)


@contextmanager
def _timed(row: Row, step: str) -> Iterator[None]:
    """Seconds of the processor, which other work on the machine disturbs least."""
    start = time.process_time()
    yield
    row[f"{step}_seconds"] = time.process_time() - start


def _conformal(model: Any, split: Split, alpha: float) -> tuple[Any, Any, Row]:
    """MAPIE's split-conformal object over a model, its bounds (n, 2) and the times."""
    from mapie.regression import SplitConformalRegressor

    from .. import ClapsScore

    row: Row = {}
    mapie = SplitConformalRegressor(model, 1 - alpha, ClapsScore(), prefit=False)
    with _timed(row, "fit"):
        mapie.fit(split.X_train, split.y_train).conformalize(split.X_cal, split.y_cal)
    with _timed(row, "predict"):
        bounds = mapie.predict_interval(split.X_test)[1][:, :, 0]
    return mapie, bounds, row


def _claps(split: Split, seed: int, alpha: float, **params: Any) -> tuple[Bounds, Row]:
    """The table as it is: fit, conformalize, predict, explain, save, load."""
    from .. import CalibratedRegressor, ClapsRegressor, explain, load, save

    model = ClapsRegressor(random_state=seed, **params)
    mapie, bounds, row = _conformal(model, split, alpha)
    with _timed(row, "explain"):
        why = explain(mapie, split.X_test)
    kept = CalibratedRegressor.from_mapie(mapie)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.claps")
        with _timed(row, "file"):
            save(kept, file)
            again = load(file)
        row["file_kilobytes"] = file.stat().st_size / 1024
    if not np.array_equal(why.lower[:, 0], bounds[:, 0]):
        raise RuntimeError("explain and predict_interval give other bounds.")
    if not np.array_equal(again.predict_interval(split.X_test)[1][:, :, 0], bounds):
        raise RuntimeError("The loaded file gives other bounds.")
    row["unseen"] = unseen_values(mapie, kept.estimator.table_, split.X_test)
    return bounds.T, row


def _one_hot(
    split: Split, seed: int, alpha: float, **params: Any
) -> tuple[Bounds, Row]:
    """What had to be done by hand: one-hot categories, imputer, then ClapsRegressor."""
    from sklearn.compose import make_column_selector, make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    from .. import ClapsRegressor

    one_hot = OneHotEncoder(
        handle_unknown="ignore", drop="if_binary", sparse_output=False
    )
    imputer = SimpleImputer(strategy="median", add_indicator=True)
    columns = make_column_transformer(
        (imputer, make_column_selector(dtype_include="number")),
        (one_hot, make_column_selector(dtype_include="category")),
    )
    pipeline = make_pipeline(columns, ClapsRegressor(random_state=seed, **params))
    _, bounds, row = _conformal(pipeline, native_split(split), alpha)
    return bounds.T, row


def _peer(method: Method, split: Split, seed: int, alpha: float) -> tuple[Bounds, Row]:
    """A peer, tuned on the training rows as in the ``peers`` benchmark."""
    row: Row = {}
    X, y, X_cal, y_cal, X_test, _ = native_split(split)
    with _timed(row, "tune"):
        params = tune(method, X, y, alpha, seed).params
    with _timed(row, "fit"):
        model = method.fit(X, y, params, seed, alpha)
        predict = method.calibrate(model, X_cal, y_cal, params, alpha)
    with _timed(row, "predict"):
        bounds = predict(X_test)
    return bounds, row | {"params": params}


def missing_columns(X: Table) -> list[str]:
    """Which columns are missing in each row, in words; "none" for a complete row."""
    return [", ".join(X.columns[gaps]) or "none" for gaps in X.isna().to_numpy()]


def unseen_values(mapie: Any, encoder: TableEncoder, X: Table) -> Row:
    """What a new value does to the epistemic variance, by column that is categorical.

    The median ratio of the row with a new value to the row as it was, and the share of
    rows in which the epistemic variance is larger.
    """
    from .. import explain

    few, found = X.iloc[:N_CHANGED], {}
    before = explain(mapie, few)
    for block in encoder.blocks:
        if not isinstance(block, FewValues | ManyValues):
            continue
        if block.categories.kind != "text":  # a new truth value does not exist
            continue
        name = encoder.names[block.positions[0]]
        column = few[name].astype(object).where(few[name].isna(), UNSEEN)
        after = explain(mapie, few.assign(**{name: column}))
        rows = few[name].notna().to_numpy()
        ratio = (after.epistemic / before.epistemic)[rows]
        noise = (after.aleatoric / before.aleatoric)[rows]
        found[name] = {
            "epistemic": float(np.median(ratio)),
            "larger": float((ratio > 1).mean()),
            "aleatoric": float(np.median(noise)),
        }
    return found


@dataclass(frozen=True)
class TableMethod:
    """A method of the benchmark: what it is called and what it does with a split."""

    label: str
    run: Callable[[Split, int, float], tuple[Bounds, Row]]
    key: dict[str, Any]
    uses_claps: bool = False


def table_methods(smoke: bool = False) -> dict[str, TableMethod]:
    """The methods; a short version of each for a trial."""
    short: dict[str, Any] = SHORT if smoke else {}
    key = {"parameters": claps_parameters(**short)}
    as_it_is, by_hand = partial(_claps, **short), partial(_one_hot, **short)
    methods = {
        "claps": TableMethod("CLAPS, table as it is", as_it_is, key, True),
        "one-hot": TableMethod("one-hot, imputer, CLAPS", by_hand, key, True),
    }
    for method in METHODS:
        if method.text and method.calibration == "mapie_cqr":
            peer = shortened(method) if smoke else method
            run = partial(_peer, peer)
            methods[method.name] = TableMethod(method.label, run, peer.key)
    return methods
