"""Methods of the ``tables`` benchmark: how each gets from a data frame to bounds.

Boosting and the pipeline get what a user would have to make by hand: dates as the same
parts and differences that ``ClapsRegressor`` makes, IDs left out, text as categories.
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from ..network.columns import FewValues, ManyValues
from ..network.dates import DATE_PARTS, DAY, Dates
from ..network.frames import column_names, read_columns
from ..network.table import Block, TableEncoder, as_table
from ..network.table_fit import fit_table
from ..studies.data import Array, Split, Table
from ._peer_table import METHODS
from ._peer_tuning import Bounds, Method, shortened, tune

Row = dict[str, Any]


class NativeColumns:
    """A table for methods that take categories and gaps, but neither dates nor text.

    Numbers keep their gaps, dates become parts and differences, text a categorical
    type; values that did not occur in the training rows are missing.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> rows = pd.DataFrame({"day": ["2024-01-01", "2024-01-03"], "city": ["A", "B"]})
    >>> native = NativeColumns().fit(rows, np.zeros(2)).transform(rows)
    >>> native["day_weekday"].tolist(), str(native["city"].dtype)
    ([0.0, 2.0], 'category')
    """

    encoder_: TableEncoder

    def fit(self, X: Table, y: Array) -> Self:
        """Learn from training rows which column is what; y has no influence."""
        table = as_table(X)
        self.encoder_ = fit_table(table, y, np.ones(len(y)), "from_dtype", 0)[0]
        return self

    def transform(self, X: Table) -> Any:
        """Numbers and categories in a pandas data frame."""
        import pandas as pd

        columns, names = read_columns(as_table(X)), column_names(X)
        found: dict[str, Any] = {}
        seconds: dict[int, Array] = {}
        for block in self.encoder_.blocks:
            if isinstance(block, Dates):
                (j,) = block.positions
                seconds[j] = block.read(columns[j])
        for block in self.encoder_.blocks:
            found |= self._block(block, columns, names, seconds)
        return pd.DataFrame(found)

    @staticmethod
    def _block(
        block: Block, columns: Any, names: Any, seconds: dict[int, Array]
    ) -> dict[str, Any]:
        import pandas as pd

        positions = block.positions
        if isinstance(block, FewValues | ManyValues):
            values = [block.categories.show(v) for v in block.categories.values]
            codes = block.read(columns[positions[0]])
            codes[codes == len(values)] = -1
            dtype = pd.CategoricalDtype(values)
            return {names[positions[0]]: pd.Categorical.from_codes(codes, dtype=dtype)}
        if isinstance(block, Dates):
            s, name = seconds[positions[0]], names[positions[0]]
            filled = np.where(np.isnan(s), block.fill, s)
            parts = {f"{name}_{p}": DATE_PARTS[p].of(filled) for p in block.parts}
            return {k: np.where(np.isnan(s), np.nan, v) for k, v in parts.items()}
        if len(positions) == 2 and positions[0] in seconds:
            first, second = positions
            days = (seconds[second] - seconds[first]) / DAY
            return {f"{names[first]}_to_{names[second]}": days}
        return {names[j]: columns[j].values for j in positions}


@dataclass(frozen=True)
class TableMethod:
    """A method of the benchmark: what it is called and what it does with a split."""

    name: str
    label: str
    run: Callable[[Split, int, float], Row]
    key: dict[str, Any]
    uses_claps: bool = False


def _calibrated(model: Any, split: Split, alpha: float) -> Any:
    """MAPIE's split-conformal object over a model, fitted and calibrated."""
    from mapie.regression import SplitConformalRegressor

    from .. import ClapsScore

    mapie = SplitConformalRegressor(model, 1 - alpha, ClapsScore(), prefit=False)
    mapie.fit(split.X_train, split.y_train)
    return mapie.conformalize(split.X_cal, split.y_cal)


def _claps(split: Split, seed: int, alpha: float, **params: Any) -> Row:
    """The table as it is: fit, conformalize, predict, explain, save, load."""
    from .. import CalibratedRegressor, ClapsRegressor, explain, load, save

    clock = Clock()
    mapie = _calibrated(ClapsRegressor(random_state=seed, **params), split, alpha)
    fitted = clock.lap()
    bounds = mapie.predict_interval(split.X_test)[1][:, :, 0]
    predicted = clock.lap()
    why = explain(mapie, split.X_test)
    explained = clock.lap()
    kept = CalibratedRegressor.from_mapie(mapie)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.claps")
        clock.lap()
        save(kept, file)
        again = load(file)
        stored, size = clock.lap(), file.stat().st_size
    same = again.predict_interval(split.X_test)[1][:, :, 0]
    if not np.array_equal(why.lower[:, 0], bounds[:, 0]):
        raise RuntimeError("explain and predict_interval give other bounds.")
    if not np.array_equal(same, bounds):
        raise RuntimeError("The loaded file gives other bounds.")
    return {
        "bounds": (bounds[:, 0], bounds[:, 1]),
        "unseen": unseen_values(mapie, kept.estimator, split.X_test),
        "fit_seconds": fitted,
        "predict_seconds": predicted,
        "explain_seconds": explained,
        "file_seconds": stored,
        "file_kilobytes": size / 1024,
    }


def _one_hot(split: Split, seed: int, alpha: float, **params: Any) -> Row:
    """What had to be done by hand: one-hot categories, imputer, then ClapsRegressor."""
    from sklearn.compose import make_column_selector, make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    from .. import ClapsRegressor

    split = native_split(split)
    clock = Clock()
    one_hot = OneHotEncoder(
        handle_unknown="ignore", drop="if_binary", sparse_output=False
    )
    imputer = SimpleImputer(strategy="median", add_indicator=True)
    columns = make_column_transformer(
        (imputer, make_column_selector(dtype_include="number")),
        (one_hot, make_column_selector(dtype_include="category")),
    )
    pipeline = make_pipeline(columns, ClapsRegressor(random_state=seed, **params))
    mapie = _calibrated(pipeline, split, alpha)
    fitted = clock.lap()
    bounds = mapie.predict_interval(split.X_test)[1][:, :, 0]
    return {
        "bounds": (bounds[:, 0], bounds[:, 1]),
        "fit_seconds": fitted,
        "predict_seconds": clock.lap(),
    }


def _peer(method: Method, split: Split, seed: int, alpha: float) -> Row:
    """A peer, tuned on the training rows as in the ``peers`` benchmark."""
    split = native_split(split)
    X, y = split.X_train, split.y_train
    clock = Clock()
    choice = tune(method, X, y, alpha, seed)
    tuned = clock.lap()
    model = method.fit(X, y, choice.params, seed, alpha)
    rows = split.X_cal, split.y_cal
    predict = method.calibrate(model, *rows, choice.params, alpha)
    fitted = clock.lap()
    bounds: Bounds = predict(split.X_test)
    return {
        "bounds": bounds,
        "tune_seconds": tuned,
        "fit_seconds": fitted,
        "predict_seconds": clock.lap(),
        "params": choice.params,
    }


def native_split(split: Split) -> Split:
    """The split with all three tables as ``NativeColumns`` of the training rows."""
    native = NativeColumns().fit(split.X_train, split.y_train)
    parts = list(split)
    parts[::2] = [native.transform(X) for X in split[::2]]
    return Split(*parts)


class Clock:
    """Seconds of the processor, which other work on the machine disturbs least."""

    def __init__(self) -> None:
        self._last = time.process_time()

    def lap(self) -> float:
        """Since the last lap."""
        before, self._last = self._last, time.process_time()
        return self._last - before


def missing_columns(X: Table) -> list[str]:
    """Which columns are missing in each row, in words; "none" for a complete row."""
    columns = read_columns(as_table(X))
    gaps = {str(name): c.gap for name, c in zip(column_names(X), columns, strict=True)}
    names = [name for name, gap in gaps.items() if gap.any()]
    table = zip(*(gaps[name] for name in names), strict=True)
    rows = table if names else [()] * len(X)
    return [
        ", ".join(n for n, gap in zip(names, row, strict=True) if gap) or "none"
        for row in rows
    ]


UNSEEN = "a value that never occurred"
N_CHANGED = 200  # test rows whose values are replaced by new ones


def unseen_values(mapie: Any, model: Any, X: Table) -> Row:
    """What a new value does to the epistemic variance, by column that is categorical.

    The median ratio of the row with a new value to the row as it was, and the share of
    rows in which the epistemic variance is larger.
    """
    from .. import explain

    few, encoder = X.iloc[:N_CHANGED], model.table_
    before = explain(mapie, few)
    found: Row = {}
    for block in encoder.blocks:
        if not isinstance(block, FewValues | ManyValues):
            continue
        name = encoder.names[block.positions[0]]
        if block.categories.kind != "text":  # a new truth value does not exist
            continue
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


def table_methods(smoke: bool = False) -> list[TableMethod]:
    """The methods; a short version of each for a trial."""
    from ._peer_table import claps_parameters

    short: dict[str, Any] = (
        {"n_members": 2, "max_steps": 40, "tol": None} if smoke else {}
    )
    params = claps_parameters(**short)
    methods = [
        TableMethod(name, label, partial(run, **short), {"parameters": params}, True)
        for name, label, run in (
            ("claps", "CLAPS, table as it is", _claps),
            ("one-hot", "one-hot, imputer, CLAPS", _one_hot),
        )
    ]
    peers = [m for m in METHODS if m.text and m.calibration == "mapie_cqr"]
    for method in peers:
        peer = shortened(method) if smoke else method
        run = partial(_peer, peer)
        methods.append(TableMethod(method.name, method.label, run, peer.key))
    return methods
