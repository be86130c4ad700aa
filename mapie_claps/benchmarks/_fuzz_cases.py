"""Tables, parameters and calls of one case, and its outcome.

A case is plain data: what a user could type. ``run_case`` takes it through fit,
conformalize and predict and names the outcome; ``_fuzz_draw`` draws cases.
"""

import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import (
    CalibratedRegressor,
    ClapsRegressor,
    ClapsScore,
    StreamingConformalRegressor,
    explain,
    load,
    save,
)
from ..exceptions import NotPositiveDefiniteError, TrainingDivergedError

# What the documentation names; NotFittedError is a ValueError.
DOCUMENTED = (ValueError, TypeError, TrainingDivergedError, NotPositiveDefiniteError)
CROSS = ("plus", "minmax", "base")
CALIBRATION_MODES = (
    *("split", "prefit", "held", *CROSS),  # of MAPIE
    *("calibrated", "batches"),  # of the library
)
# Types of numbers that a table of this kind is made of; it is an array of others.
ONLY_OF = {
    "sparse": ("float64", "float32"),
    "nullable": ("float64", "float32", "int64"),
}
FIXED: dict[str, Any] = {
    "hidden_layer_sizes": (4,),
    "representation_size": 3,
    "n_members": 1,
    "max_steps": 3,
    "tol": None,
    # Fits of many cases are fast without; drawn by a part of them.
    "kernel": False,
    "prior_precision": 1.0,
    "target_map": None,
    "two_sided_noise": False,
    "residual_shape": False,
}


@dataclass(frozen=True)
class TableSpec:
    """How to make one X with its y."""

    n: int
    p: int
    container: str
    dtype: str
    corruption: str | None
    y_dtype: str
    y_corruption: str | None
    y_shape: str  # "flat", "column", "pair", "short" or "long"
    seed: int
    surprise: str | None = None  # what is special about a table of mixed types


@dataclass(frozen=True)
class FuzzCase:
    """All that one call of the user's consists of."""

    train: TableSpec
    cal: TableSpec
    test: TableSpec
    params: dict[str, Any] = field(default_factory=dict)
    weights: str | None = None
    mode: str = "split"
    level: Any = 0.9
    support: Any = None
    sym: bool = True
    allow_infinite: bool = False
    kinds: int = 0  # types of a frame's columns, one after another from this on
    further: bool = False  # whether to explain, save and ask for a distribution, too


@dataclass(frozen=True)
class Outcome:
    """Outcome of a case; ``failure`` is None where that is as documented."""

    kind: str
    message: str = ""
    failure: str | None = None


def make_table(spec: TableSpec, kinds: int = 0) -> tuple[Any, Any]:
    """X and y as the specification says; the same each time."""
    rng = np.random.default_rng(spec.seed)
    X = _corrupted(3 * rng.standard_normal((spec.n, spec.p)), spec.corruption, rng)
    signal = X[:, 0] if spec.p else np.zeros(spec.n)
    with np.errstate(invalid="ignore", over="ignore"):
        y = np.nan_to_num(signal) + rng.standard_normal(spec.n)
    y = _cast(_corrupted(y, spec.y_corruption, rng), spec.y_dtype)
    shapes = {
        "flat": y,
        "column": y[:, None],
        "pair": np.column_stack([y, y]),
        "short": y[:-1],
        "long": np.concatenate([y, y[:1]]) if len(y) else np.zeros(1),
    }
    if kinds:
        table = _surprising(_mixed_frame(X, kinds, rng), spec.surprise, rng)
    else:
        table = _contain(_cast(X, spec.dtype), spec)
    return table, shapes[spec.y_shape]


def _corrupted(values: Any, corruption: str | None, rng: np.random.Generator) -> Any:
    if corruption is None or values.size == 0:
        return values
    if corruption == "constant":
        return np.full_like(values, 7.0)
    if corruption == "duplicates":
        return values[rng.integers(0, len(values), len(values)) // 2]
    special = {"nan": np.nan, "inf": np.inf, "huge": 1e300, "tiny": 5e-324}
    values.flat[rng.integers(0, values.size)] = special[corruption]
    return values


def _cast(values: Any, dtype: str) -> Any:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        return values.astype(dtype)


def _contain(X: NDArray[Any], spec: TableSpec) -> Any:
    import pandas as pd
    from scipy.sparse import csr_array

    X.flags.writeable = spec.container != "read-only"
    if spec.dtype not in ONLY_OF.get(spec.container, (spec.dtype,)):
        return X
    forms: dict[str, Callable[[], Any]] = {
        "list": X.tolist,
        "frame": lambda: pd.DataFrame(X).add_prefix("column "),
        "sparse": lambda: csr_array(X),
        "nullable": lambda: pd.DataFrame(X).add_prefix("column ").convert_dtypes(),
        "masked": lambda: np.ma.masked_array(
            X, np.arange(X.size).reshape(X.shape) == 0
        ),
        "swapped": lambda: X.astype(X.dtype.newbyteorder()),
        "strided": lambda: np.repeat(np.repeat(X, 2, axis=0), 2, axis=1)[::2, ::2],
        "fortran": lambda: np.asfortranarray(X),
    }
    return forms.get(spec.container, lambda: X)()


def _mixed_frame(X: NDArray[np.float64], first: int, rng: np.random.Generator) -> Any:
    """Numbers become text, dates, truth values, categories, gaps, or names of rows."""
    import pandas as pd

    columns = {}
    for j, column in enumerate(X.T):
        sign = np.where(column > 0, "above", "below")
        day = np.datetime64("2024-01-01") + rng.integers(0, 500, len(X))
        whole = np.clip(np.nan_to_num(column), -9, 9).astype(int)
        columns[f"c{j}"] = (
            column,
            sign,
            day,
            column > 0,
            rng.integers(0, 60, len(X)).astype(str),
            pd.array(whole, dtype="Int64"),
            pd.Categorical(sign, categories=["above", "below", "never"]),
            day.astype(str),
            [f"row {i} {rng.integers(10**6)}" for i in range(len(X))],
        )[(j + first) % 9]
    return pd.DataFrame(columns, index=range(len(X)))


def _surprising(frame: Any, surprise: str | None, rng: np.random.Generator) -> Any:
    """The table with something that tables of users have, or should not have."""
    import polars as pl

    if surprise is None or frame.empty:
        return frame
    last = frame.columns[-1]
    text = [name for name in frame if frame[name].dtype.kind in "OUT"]
    forms: dict[str, Callable[[], Any]] = {
        "polars": lambda: pl.from_pandas(frame),
        "gaps": lambda: frame.where(rng.random(frame.shape) < 0.7),
        "order": lambda: frame[frame.columns[::-1]],
        "renamed": lambda: frame.rename(columns={last: "other"}),
        "objects": lambda: frame.astype(object),
        "retyped": lambda: frame.assign(**{last: list(range(len(frame)))}),
        "unseen": lambda: frame.assign(**dict.fromkeys(text, "never seen")),
    }
    return forms[surprise]()


def _weights(kind: str | None, n: int) -> NDArray[np.float64] | None:
    kinds = {
        None: None,
        "ones": np.ones(n),
        "random": np.random.default_rng(n).uniform(0, 1e6, n),
        "zeros": np.zeros(n),
        "negative": -np.ones(n),
        "short": np.ones(max(0, n - 1)),
        "long": np.ones(n + 1),
    }
    return kinds[kind]


def run_case(case: FuzzCase) -> Outcome:
    """Run the case and name its outcome; only an interrupt gets out."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            faults = (what for what, wrong in _faults(case) if np.any(wrong))
            failure = next(faults, None)
        except Exception as error:
            name, message, failure = type(error).__name__, str(error), None
            if not isinstance(error, DOCUMENTED):
                if _is_empty_list_in_mapie(error):
                    return Outcome("IndexError of MAPIE, empty list", message)
                failure = f"undocumented {name}: {message}"
            elif not message.strip():
                failure = f"{name} without a message"
            return Outcome(name, message, failure)
    for w in caught:  # whether NumPy complains about arithmetic in this package
        if issubclass(w.category, RuntimeWarning) and "mapie_claps" in w.filename:
            failure = failure or f"{w.filename}:{w.lineno}: {w.message}"
    return Outcome("interval", failure=failure)


def _is_empty_list_in_mapie(error: Exception) -> bool:
    """Whether MAPIE was given an empty list to count the columns of.

    It asks scikit-learn's ``_num_features`` for those of its first row, before it calls
    the estimator or the score (MAPIE 1.6), so that no message of ours can come first.
    """
    where = traceback.extract_tb(error.__traceback__)
    files = [frame.filename for frame in where[1:] if "mapie_claps" in frame.filename]
    ours_asked = any(not name.endswith(Path(__file__).name) for name in files)
    return where[-1].name == "_num_features" and not ours_asked


def _calibrated(case: FuzzCase) -> Any:
    """An object with intervals, by MAPIE or by the library."""
    from mapie.regression import CrossConformalRegressor, SplitConformalRegressor

    X, y = make_table(case.train, case.kinds)
    model = ClapsRegressor(**(FIXED | case.params))
    weight = _weights(case.weights, case.train.n)
    fit_params = {} if weight is None else {"sample_weight": weight}
    shape = {"support": case.support, "sym": case.sym}
    if case.mode in CROSS:
        score = ClapsScore(**shape)
        cross = CrossConformalRegressor(model, case.level, score, case.mode, cv=2)
        return cross.fit_conformalize(X, y, fit_params=fit_params)
    if case.mode == "calibrated":
        calibrated = CalibratedRegressor(model, case.level, random_state=0, **shape)
        return calibrated.fit(X, y, **fit_params)
    X_cal, y_cal = make_table(case.cal, case.kinds)
    prefit = case.mode != "split"
    if prefit:
        model.fit(X, y, **fit_params)
    if case.mode == "batches":
        streaming = StreamingConformalRegressor(model, case.level, **shape)
        batches = [(X_cal[:9], y_cal[:9]), (X_cal[9:], y_cal[9:])]
        return streaming.conformalize(batches)
    score = ClapsScore(model if case.mode == "held" else None, **shape)
    mapie = SplitConformalRegressor(model, case.level, score, prefit)
    if not prefit:
        mapie.fit(X, y, fit_params=fit_params)
    return mapie.conformalize(X_cal, y_cal)


def _faults(case: FuzzCase) -> Iterator[tuple[str, Any]]:
    """What can be wrong with intervals from end to end, and whether or where it is."""
    conformal = _calibrated(case)
    X, _ = make_table(case.test, case.kinds)
    infinite = {"allow_infinite_bounds": case.allow_infinite}
    points, bounds = conformal.predict_interval(X, **infinite)
    if case.further:
        yield from _further_faults(conformal, X, bounds, infinite)
    without = ", without a word"
    yield "columns in another order or of other names" + without, other_columns(case)
    fitted = [case.train]
    if case.mode not in (*CROSS, "calibrated"):  # these split the training rows
        fitted.append(case.cal)
    odd = case.weights in ("zeros", "negative", "short", "long")
    odd |= any(t.y_shape in ("pair", "short", "long") for t in fitted)
    yield "targets or weights of other length or sign" + without, odd
    masked = [t.container == "masked" and t.n * t.p for t in (*fitted, case.test)]
    yield "values behind a mask" + without, not case.kinds and any(masked)
    levels, shapes = np.atleast_1d(case.level), (points.shape, bounds.shape)
    expected = (case.test.n,), (case.test.n, 2, len(levels))
    yield f"shapes {shapes[0]} and {shapes[1]}", shapes != expected
    yield "a prediction that is not finite", ~np.isfinite(points)
    yield "NaN in the bounds", np.isnan(bounds)
    # Calibration targets outside a support or a domain score +∞.
    outside = (
        case.params.get("target_map") in ("log", "sqrt") or case.support is not None
    )
    refused = not (case.allow_infinite or outside)
    yield "infinite bounds that were not allowed", np.isinf(bounds) & refused
    lower, upper = np.moveaxis(bounds[:, :, np.argsort(levels)], 1, 0)
    yield "a lower bound above its upper one", lower > upper
    yield "upper bounds that fall as the level rises", upper[:, 1:] < upper[:, :-1]
    yield "lower bounds that rise with the level", lower[:, 1:] > lower[:, :-1]


def _further_faults(
    conformal: Any, X: Any, bounds: Any, infinite: dict[str, bool]
) -> Iterator[tuple[str, Any]]:
    """Reasons, distribution and file must agree with the intervals."""
    why = explain(conformal, X, **infinite)
    explained = np.stack([why.lower, why.upper], axis=1)
    yield "an explanation of other bounds", not np.array_equal(explained, bounds)
    sound = (why.aleatoric > 0) & (why.epistemic >= 0)
    yield "parts of the variance that are not positive", ~sound
    if not isinstance(conformal, CalibratedRegressor | StreamingConformalRegressor):
        return
    quantiles = conformal.predict_quantiles(X, [0.3, 0.5, 0.7], tails="normal")
    rises = quantiles[:, :-1] <= quantiles[:, 1:]
    yield "quantiles that fall as the level rises", ~rises
    shares = conformal.cdf(X, np.array([-1.0, 0.0, 1.0]) + np.zeros((len(bounds), 1)))
    yield "probabilities that are none", ~((shares > 0) & (shares < 1))
    yield "probabilities that are none", np.diff(shares) < 0
    draws = conformal.sample(X, 2, random_state=0)
    yield "draws that are no numbers", np.isnan(draws)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        save(conformal, path)
        loaded = load(path).predict_interval(X, **infinite)[1]
    yield "a file that gives other bounds", not np.array_equal(loaded, bounds)


def other_columns(case: FuzzCase) -> bool:
    """Whether the test rows have other columns than the training rows."""
    # Tables without rows are drawn without a surprise.
    first, last = (t.surprise if t.n else None for t in (case.train, case.test))
    changes = {"order", "renamed"} if case.train.p > 1 else {"renamed"}
    return bool(case.kinds) and first != last and bool({first, last} & changes)
