"""Random tables, parameters and calls, drawn by hypothesis, and what came of each.

A case is plain data: what a user could type. ``run_case`` takes it through fit,
conformalize and predict and names the outcome.
"""

import re
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..conformal.score import ClapsScore
from ..estimators.regressor import ClapsRegressor
from ..exceptions import NotPositiveDefiniteError, TrainingDivergedError

# What the documentation names; NotFittedError is a ValueError.
DOCUMENTED = (
    ValueError,
    TypeError,
    TrainingDivergedError,
    NotPositiveDefiniteError,
)
CONTAINERS = ("array", "list", "frame", "sparse", "fortran")
DTYPES = ("float64", "float32", "float16", "int64", "uint8", "bool", "object", "str")
SPOILERS = (None, None, None, "nan", "inf", "huge", "tiny", "constant", "duplicates")
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
    "random_state": (0, None, 2**32 - 1, -1, "seed"),
}
N_INVALID = dict.fromkeys(PARAMETERS, 1) | {
    "hidden_layer_sizes": 3,
    "representation_size": 2,
    "n_members": 2,
    "views": 3,
    "max_steps": 2,
    "learning_rate": 3,
    "validation_fraction": 2,
    "prior_precision": 2,
    "hessian_structure": 2,
    "random_state": 2,
}
FIXED: dict[str, Any] = {
    "hidden_layer_sizes": (4,),
    "representation_size": 3,
    "n_members": 3,  # one of each view
    "max_steps": 3,
    "tol": None,
}
LEVELS = (0.9, 0.5, 0.7, [0.5, 0.8], [0.7, 0.6, 0.7], 0.999, 0.0, 1.0, 1.5, -0.1)
N_VALID_LEVELS = 5
SUPPORTS: tuple[Any, ...] = (None, "integer", [0.0, 1.0, 2.0], "counts", [])
N_VALID_SUPPORTS = 3
ROADS = ("split", "split", "prefit", "held", "plus", "minmax", "base")


@dataclass(frozen=True)
class TableSpec:
    """How to make one X with its y."""

    n: int
    p: int
    container: str
    dtype: str
    spoiler: str | None
    y_dtype: str
    y_spoiler: str | None
    y_shape: str  # "flat", "column", "pair" or "short"
    seed: int


@dataclass(frozen=True)
class FuzzCase:
    """All that one call of the user's consists of."""

    train: TableSpec
    cal: TableSpec
    test: TableSpec
    params: dict[str, Any] = field(default_factory=dict)
    weights: str | None = None
    road: str = "split"
    level: Any = 0.9
    support: Any = None
    allow_infinite: bool = False


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

    table, wild_table = _tables(st, pick)
    valid = {
        "train": table,
        "cal": table,
        "test": table,
        "params": parameters(True),
        "weights": pick((None, None, "ones", "random")),
        "level": pick(LEVELS[:N_VALID_LEVELS]),
        "support": pick(SUPPORTS[:N_VALID_SUPPORTS]),
    }
    wild = {
        "train": wild_table,
        "cal": wild_table,
        "test": wild_table,
        "params": parameters(False),
        "weights": pick(("zeros", "negative", "short")),
        "level": pick(LEVELS),
        "support": pick(SUPPORTS),
    }

    def with_wild(names: list[str]) -> Any:
        parts = {k: wild[k] if k in names else valid[k] for k in valid}
        return st.builds(
            FuzzCase, road=pick(ROADS), allow_infinite=st.booleans(), **parts
        )

    names = st.lists(pick(sorted(wild)), max_size=2, unique=True)
    return st.one_of(st.just([]), names).flatmap(with_wild)


def _value(name: str, index: int, valid: bool) -> Any:
    values = PARAMETERS[name]
    if valid:
        values = values[: -N_INVALID[name]]
    return values[index % len(values)]


def _tables(st: Any, pick: Any) -> tuple[Any, Any]:
    """Strategies of tables that are fit for use, and of any."""
    seeds = st.integers(0, 2**16)
    numbers = pick(("float64", "float64", "float32", "int64"))
    valid = st.builds(
        TableSpec,
        n=st.integers(4, 40),
        p=st.just(2),
        container=pick(("array", "array", "list", "fortran")),
        dtype=numbers,
        spoiler=pick((None, None, None, "constant", "duplicates", "tiny")),
        y_dtype=numbers,
        y_spoiler=pick((None, None, None, "constant", "duplicates", "tiny")),
        y_shape=st.just("flat"),
        seed=seeds,
    )
    wild = st.builds(
        TableSpec,
        n=st.integers(0, 40),
        p=st.one_of(st.just(2), st.integers(0, 5)),
        container=pick(CONTAINERS),
        dtype=pick(DTYPES),
        spoiler=pick(SPOILERS),
        y_dtype=pick(DTYPES),
        y_spoiler=pick(SPOILERS),
        y_shape=pick(("flat", "flat", "flat", "column", "pair", "short")),
        seed=seeds,
    )
    return valid, wild


def make_table(spec: TableSpec) -> tuple[Any, Any]:
    """X and y as the specification says; the same each time."""
    rng = np.random.default_rng(spec.seed)
    X = _spoil(3 * rng.standard_normal((spec.n, spec.p)), spec.spoiler, rng)
    signal = X[:, 0] if spec.p else np.zeros(spec.n)
    with np.errstate(invalid="ignore", over="ignore"):
        y = np.nan_to_num(signal) + rng.standard_normal(spec.n)
    y = _spoil(y, spec.y_spoiler, rng)
    return _contain(_cast(X, spec.dtype), spec.container), _shape(
        _cast(y, spec.y_dtype), spec.y_shape
    )


def _spoil(values: Any, spoiler: str | None, rng: np.random.Generator) -> Any:
    if spoiler is None or values.size == 0:
        return values
    if spoiler == "constant":
        return np.full_like(values, 7.0)
    if spoiler == "duplicates":
        return values[rng.integers(0, len(values), len(values)) // 2]
    special = {"nan": np.nan, "inf": np.inf, "huge": 1e300, "tiny": 5e-324}
    values.flat[rng.integers(0, values.size)] = special[spoiler]
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


def _shape(y: NDArray[Any], shape: str) -> Any:
    shapes: dict[str, Callable[[], Any]] = {
        "flat": lambda: y,
        "column": lambda: y[:, None],
        "pair": lambda: np.column_stack([y, y]),
        "short": lambda: y[:-1],
    }
    return shapes[shape]()


def _weights(kind: str | None, n: int) -> NDArray[np.float64] | None:
    made = {
        None: lambda: None,
        "ones": lambda: np.ones(n),
        "zeros": lambda: np.zeros(n),
        "random": lambda: np.random.default_rng(n).uniform(0, 1e6, n),
        "negative": lambda: -np.ones(n),
        "short": lambda: np.ones(max(0, n - 1)),
    }
    return made[kind]()


def run_case(case: FuzzCase) -> Outcome:
    """Name what came of the case; only an interrupt gets out."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            failure = _check(case, *_intervals(case))
        except DOCUMENTED as error:
            return _documented(error)
        except Exception as error:
            if _is_empty_list_in_mapie(error):
                return Outcome("IndexError of MAPIE, empty list", str(error))
            name = type(error).__name__
            return Outcome(name, str(error), f"undocumented {name}: {error}")
    stray = [w for w in caught if _is_stray(w)]
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


def _is_stray(warning: Any) -> bool:
    """Whether NumPy complains about arithmetic in this package."""
    return (
        issubclass(warning.category, RuntimeWarning)
        and "mapie_claps" in warning.filename
    )


def _documented(error: Exception) -> Outcome:
    message = str(error)
    failure = None if message.strip() else f"{type(error).__name__} without a message"
    return Outcome(type(error).__name__, message, failure)


def _intervals(case: FuzzCase) -> tuple[Any, Any]:
    """Predictions and bounds, by MAPIE from end to end."""
    from mapie.regression import CrossConformalRegressor, SplitConformalRegressor

    X, y = make_table(case.train)
    X_cal, y_cal = make_table(case.cal)
    X_test, _ = make_table(case.test)
    model = ClapsRegressor(**(FIXED | case.params))
    weight = _weights(case.weights, case.train.n)
    fit_params = {} if weight is None else {"sample_weight": weight}
    options = {"allow_infinite_bounds": case.allow_infinite}
    if case.road in ("plus", "minmax", "base"):
        cross = CrossConformalRegressor(
            model,
            confidence_level=case.level,
            conformity_score=ClapsScore(support=case.support),
            method=case.road,
            cv=2,
        )
        cross.fit_conformalize(X, y, fit_params=fit_params)
        points, bounds = cross.predict_interval(X_test, **options)
        return points, bounds
    prefit = case.road != "split"
    if prefit:
        model.fit(X, y, **fit_params)
    held = model if case.road == "held" else None
    split = SplitConformalRegressor(
        model,
        confidence_level=case.level,
        conformity_score=ClapsScore(held, support=case.support),
        prefit=prefit,
    )
    if not prefit:
        split.fit(X, y, fit_params=fit_params)
    points, bounds = split.conformalize(X_cal, y_cal).predict_interval(
        X_test, **options
    )
    return points, bounds


def _check(case: FuzzCase, points: Any, bounds: Any) -> str | None:
    """What is wrong with the intervals, if anything."""
    levels = np.atleast_1d(case.level)
    if points.shape != (case.test.n,) or bounds.shape != (case.test.n, 2, len(levels)):
        return f"shapes {points.shape} and {bounds.shape}"
    if not np.isfinite(points).all():
        return "a prediction that is not finite"
    if np.isnan(bounds).any():
        return "NaN in the bounds"
    if not case.allow_infinite and np.isinf(bounds).any():
        return "infinite bounds that were not allowed"
    if (bounds[:, 0] > bounds[:, 1]).any():
        return "a lower bound above its upper one"
    order = np.argsort(levels)
    if (np.diff(bounds[:, 1][:, order], axis=1) < 0).any():
        return "upper bounds that fall as the level rises"
    if (np.diff(bounds[:, 0][:, order], axis=1) > 0).any():
        return "lower bounds that rise with the level"
    return None


def without_numbers(message: str) -> str:
    """First line of a message with its numbers and lists taken out, to count alike."""
    line = message.strip().splitlines()[0] if message.strip() else ""
    line = re.sub(r"[\[(][^\])]*[\])]", "(…)", line)
    return re.sub(r"-?\d[\d.e+-]*", "#", line)[:110]
