"""Random tables, parameters and calls, drawn by hypothesis, and what came of each.

A case is plain data: what a user could type. ``run_case`` takes it through fit,
conformalize and predict and names the outcome.
"""

import re
import traceback
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import ClapsRegressor, ClapsScore
from ..exceptions import NotPositiveDefiniteError, TrainingDivergedError

# What the documentation names; NotFittedError is a ValueError.
DOCUMENTED = (ValueError, TypeError, TrainingDivergedError, NotPositiveDefiniteError)
DTYPES = ("float64", "float32", "float16", "int64", "uint8", "bool", "object", "str")
CORRUPTIONS = (None, None, None, "nan", "inf", "huge", "tiny", "constant", "duplicates")
HARMLESS = (None, None, None, "constant", "duplicates", "tiny")
NUMBERS = ("float64", "float64", "float32", "int64")
# Fields of TableSpec: for tables that are fit for use, and for any.
TABLES: dict[str, tuple[Any, Any]] = {
    "n": (range(4, 41), range(41)),
    "p": ((2,), (2, 2, 2, 0, 1, 3, 4, 5)),
    "container": (
        ("array", "array", "list", "fortran"),
        ("array", "list", "frame", "sparse", "fortran"),
    ),
    "dtype": (NUMBERS, DTYPES),
    "corruption": (HARMLESS, CORRUPTIONS),
    "y_dtype": (NUMBERS, DTYPES),
    "y_corruption": (HARMLESS, CORRUPTIONS),
    "y_shape": (("flat",), ("flat", "flat", "flat", "column", "pair", "short")),
    "surprise": (
        (None, None, "gaps", "unseen", "polars"),
        ("gaps", "unseen", "polars", "order", "renamed", "retyped", "objects"),
    ),
}
REFUSED_SURPRISES = ("order", "renamed")  # of a table that is no longer that of fit
# The valid values come first; N_INVALID counts those that are not.
PARAMETERS: dict[str, tuple[Any, ...]] = {
    "hidden_layer_sizes": ((4,), (), (3, 2), 4, (0,), "4"),
    "representation_size": (3, 1, 8, 0, 2.5),
    "n_members": (1, 2, 3, 0, None),
    "views": (("bins", "periodic", "raw"), ("periodic",), ["raw"], (), "raw", (1,)),
    "scaling_rate": (0.0, 3.0, 1e6, -1.0),
    "n_bins": (0, 4, 16, 10**6, -1),
    "max_steps": (1, 3, 6, 0, True),
    "batch_size": ("auto", 1, 7, 10**6, "all"),
    "learning_rate": (1e-2, 1.0, 1e-300, 1e30, 0.0, float("nan")),
    "schedule": ("cosine", "constant", "linear"),
    "weight_decay": (0.0, 1e-3, 10.0, -1.0),
    "dropout": (0.0, 0.5, 0.99, 1.0),
    "beta": (0.0, 0.5, 1.0, 2.0),
    "validation_fraction": (0.12, 0.5, 0.0, 0.9),
    "patience": (None, 1, 0),
    "tol": (None, 0.05, -1.0),
    "variance_floor": (1e-6, 1e-3, 1e-300, 1e6, 0.0),
    "prior_precision": ("grid", "marglik", 1.0, 1e-300, 1e300, 0.0, "best"),
    "last_layer": ("ridge", "trained", "none"),
    "hessian_structure": ("full", "diag", "kron"),
    "scale": ("claps", "aleatoric", "posterior", "constant", "total"),
    "device": ("cpu", "auto", "abacus"),
    "kernel": (False, True, "yes"),
    "target_map": (None, "auto", "yeo-johnson", "spline", "log", "sqrt", "cube"),
    "two_sided_noise": (True, False, 1.5),
    "residual_shape": (True, False, None),
    "categorical_features": ("from_dtype", [0], [-1], ["nowhere"], 7),
    "random_state": (0, None, 2**32 - 1, -1, "seed"),
}
N_INVALID = dict.fromkeys(PARAMETERS, 1)
N_INVALID |= dict.fromkeys(("hidden_layer_sizes", "views", "learning_rate"), 3)
N_INVALID |= dict.fromkeys(("representation_size", "n_members", "max_steps"), 2)
N_INVALID |= dict.fromkeys(("validation_fraction", "prior_precision"), 2)
N_INVALID |= dict.fromkeys(("hessian_structure", "random_state"), 2)
N_INVALID |= {"categorical_features": 2}
FIXED: dict[str, Any] = {
    "hidden_layer_sizes": (4,),
    "representation_size": 3,
    "n_members": 3,  # one of each view
    "max_steps": 3,
    "tol": None,
    "kernel": False,  # fits of many cases are fast without
}
LEVELS = (0.9, 0.5, 0.7, [0.5, 0.8], [0.7, 0.6, 0.7], 0.999, 0.0, 1.0, 1.5, -0.1)
N_VALID_LEVELS = 5
SUPPORTS: tuple[Any, ...] = (None, "integer", [0.0, 1.0, 2.0], "counts", [])
N_VALID_SUPPORTS = 3
CALIBRATION_MODES = ("split", "split", "prefit", "held", "plus", "minmax", "base")


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
    y_shape: str  # "flat", "column", "pair" or "short"
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
    mixed: bool = False  # frames of numbers, text, dates and truth values


@dataclass(frozen=True)
class Outcome:
    """What came of a case; ``failure`` is None where that is as documented."""

    kind: str
    message: str = ""
    failure: str | None = None


def strategy() -> Any:
    """Hypothesis strategy of cases; imports the extra.

    A valid case is drawn first, then up to two of its parts are drawn again from all
    values, so that about half of the cases get as far as an interval.
    """
    from hypothesis import strategies as st

    def pick(values: Any) -> Any:
        return st.sampled_from(list(values))

    def parameters(valid: bool) -> Any:
        names = pick(sorted(PARAMETERS))
        return st.dictionaries(names, st.integers(0, 9), max_size=4).map(
            lambda chosen: {name: _value(name, i, valid) for name, i in chosen.items()}
        )

    seeds = st.integers(0, 2**16)
    table, wild_table = (
        st.builds(TableSpec, seed=seeds, **{k: pick(v[i]) for k, v in TABLES.items()})
        for i in (0, 1)
    )
    valid = dict.fromkeys(("train", "cal", "test"), table) | {
        "params": parameters(True),
        "weights": pick((None, None, "ones", "random")),
        "level": pick(LEVELS[:N_VALID_LEVELS]),
        "support": pick(SUPPORTS[:N_VALID_SUPPORTS]),
    }
    wild = dict.fromkeys(("train", "cal", "test"), wild_table) | {
        "params": parameters(False),
        "weights": pick(("zeros", "negative", "short")),
        "level": pick(LEVELS),
        "support": pick(SUPPORTS),
    }
    rest = {"mode": pick(CALIBRATION_MODES), "allow_infinite": st.booleans()}
    rest |= {"mixed": st.booleans(), "sym": st.booleans()}

    def with_wild(names: list[str]) -> Any:
        parts = {k: wild[k] if k in names else valid[k] for k in valid}
        return st.builds(FuzzCase, **parts, **rest)

    names = st.lists(pick(sorted(wild)), max_size=2, unique=True)
    return st.one_of(st.just([]), names).flatmap(with_wild)


def _value(name: str, index: int, valid: bool) -> Any:
    values = PARAMETERS[name]
    if valid:
        values = values[: -N_INVALID[name]]
    return values[index % len(values)]


def make_table(spec: TableSpec, mixed: bool = False) -> tuple[Any, Any]:
    """X and y as the specification says; the same each time."""
    rng = np.random.default_rng(spec.seed)
    X = _corrupted(3 * rng.standard_normal((spec.n, spec.p)), spec.corruption, rng)
    signal = X[:, 0] if spec.p else np.zeros(spec.n)
    with np.errstate(invalid="ignore", over="ignore"):
        y = np.nan_to_num(signal) + rng.standard_normal(spec.n)
    y = _corrupted(y, spec.y_corruption, rng)
    if mixed:
        frame = _surprising(_mixed_frame(X, rng), spec.surprise, rng)
        return frame, _shape(_cast(y, spec.y_dtype), spec.y_shape)
    return _contain(_cast(X, spec.dtype), spec.container), _shape(
        _cast(y, spec.y_dtype), spec.y_shape
    )


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


def _contain(X: NDArray[Any], container: str) -> Any:
    if container == "list":
        return X.tolist()
    if container == "frame":
        import pandas as pd

        return pd.DataFrame(X, columns=[f"column {j}" for j in range(X.shape[1])])
    if container == "sparse" and X.dtype.kind == "f" and X.itemsize > 2:
        from scipy.sparse import csr_array

        return csr_array(X)
    return np.asfortranarray(X) if container == "fortran" else X


def _mixed_frame(X: NDArray[np.float64], rng: np.random.Generator) -> Any:
    """Column j of numbers becomes text, a date, a truth value or many categories."""
    import pandas as pd

    columns = {}
    for j, column in enumerate(X.T):
        sign = np.where(column > 0, "above", "below")
        day = np.datetime64("2024-01-01") + rng.integers(0, 500, len(X))
        many = rng.integers(0, 60, len(X)).astype(str)
        columns[f"c{j}"] = (sign, column, day, column > 0, many)[(j + 1) % 5]
    return pd.DataFrame(columns, index=range(len(X)))


def _surprising(frame: Any, surprise: str | None, rng: np.random.Generator) -> Any:
    """The table with something that tables of users have, or should not have."""
    if surprise is None or frame.empty:
        return frame
    if surprise == "polars":
        import polars as pl

        return pl.from_pandas(frame)
    if surprise == "gaps":
        return frame.where(rng.random(frame.shape) < 0.7)
    if surprise == "order":
        return frame[frame.columns[::-1]]
    if surprise == "renamed":
        return frame.rename(columns={frame.columns[-1]: "other"})
    if surprise == "objects":
        return frame.astype(object)
    last = frame.columns[-1]
    if surprise == "retyped":
        return frame.assign(**{last: list(range(len(frame)))})
    text = [name for name in frame if frame[name].dtype.kind in "OUT"]
    return frame.assign(**dict.fromkeys(text, "never seen"))


def _shape(y: NDArray[Any], shape: str) -> Any:
    pair = np.column_stack([y, y])
    return {"flat": y, "column": y[:, None], "pair": pair, "short": y[:-1]}[shape]


def _weights(kind: str | None, n: int) -> NDArray[np.float64] | None:
    random = np.random.default_rng(n).uniform(0, 1e6, n)
    kinds = {"ones": np.ones(n), "zeros": np.zeros(n), "random": random}
    kinds |= {"negative": -np.ones(n), "short": np.ones(max(0, n - 1))}
    return None if kind is None else kinds[kind]


def run_case(case: FuzzCase) -> Outcome:
    """Name what came of the case; only an interrupt gets out."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            failure = _check(case, *_intervals(case))
        except DOCUMENTED as error:
            message, name = str(error), type(error).__name__
            failure = None if message.strip() else f"{name} without a message"
            return Outcome(name, message, failure)
        except Exception as error:
            if _is_empty_list_in_mapie(error):
                return Outcome("IndexError of MAPIE, empty list", str(error))
            name = type(error).__name__
            return Outcome(name, str(error), f"undocumented {name}: {error}")
    # Whether NumPy complains about arithmetic in this package.
    stray = [
        w
        for w in caught
        if issubclass(w.category, RuntimeWarning) and "mapie_claps" in w.filename
    ]
    if failure is None and stray:
        failure = f"{stray[0].filename}:{stray[0].lineno}: {stray[0].message}"
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


def _intervals(case: FuzzCase) -> tuple[Any, Any]:
    """Predictions and bounds, by MAPIE from end to end."""
    from mapie.regression import CrossConformalRegressor, SplitConformalRegressor

    X, y = make_table(case.train, case.mixed)
    X_cal, y_cal = make_table(case.cal, case.mixed)
    X_test, _ = make_table(case.test, case.mixed)
    model = ClapsRegressor(**(FIXED | case.params))
    weight = _weights(case.weights, case.train.n)
    fit_params = {} if weight is None else {"sample_weight": weight}
    if case.mode in ("plus", "minmax", "base"):
        score = ClapsScore(support=case.support, sym=case.sym)
        cross = CrossConformalRegressor(model, case.level, score, case.mode, cv=2)
        mapie = cross.fit_conformalize(X, y, fit_params=fit_params)
    else:
        prefit = case.mode != "split"
        if prefit:
            model.fit(X, y, **fit_params)
        held = model if case.mode == "held" else None
        score = ClapsScore(held, support=case.support, sym=case.sym)
        mapie = SplitConformalRegressor(model, case.level, score, prefit)
        if not prefit:
            mapie.fit(X, y, fit_params=fit_params)
        mapie.conformalize(X_cal, y_cal)
    points, bounds = mapie.predict_interval(
        X_test, allow_infinite_bounds=case.allow_infinite
    )
    return points, bounds


def _check(case: FuzzCase, points: Any, bounds: Any) -> str | None:
    """What is wrong with the intervals, if anything."""
    if _should_be_refused(case):
        return "columns in another order or of other names, without a word"
    levels = np.atleast_1d(case.level)
    if points.shape != (case.test.n,) or bounds.shape != (case.test.n, 2, len(levels)):
        return f"shapes {points.shape} and {bounds.shape}"
    order = np.argsort(levels)
    lower, upper = bounds[:, 0][:, order], bounds[:, 1][:, order]
    with np.errstate(invalid="ignore"):  # infinite minus infinite
        found = {
            "a prediction that is not finite": ~np.isfinite(points),
            "NaN in the bounds": np.isnan(bounds),
            "infinite bounds that were not allowed": (
                np.isinf(bounds)
                & (not (case.allow_infinite or case.support is not None))
            ),
            "a lower bound above its upper one": lower > upper,
            "upper bounds that fall as the level rises": np.diff(upper, axis=1) < 0,
            "lower bounds that rise with the level": np.diff(lower, axis=1) > 0,
        }
    return next((what for what, where in found.items() if where.any()), None)


def _should_be_refused(case: FuzzCase) -> bool:
    """Whether the test rows have other columns than the training rows."""
    first, last = case.train.surprise, case.test.surprise
    changed = first != last and {first, last} & set(REFUSED_SURPRISES)
    wide = case.train.p > 1 and "order" in (first, last)
    return case.mixed and bool(changed) and (wide or "renamed" in (first, last))


def without_numbers(message: str) -> str:
    """First line of a message with its numbers and lists taken out, to count alike."""
    line = message.strip().splitlines()[0] if message.strip() else ""
    line = re.sub(r"[\[(][^\])]*[\])]", "(…)", line)
    return re.sub(r"-?\d[\d.e+-]*", "#", line)[:110]
