"""Tables, parameters and calls of one case, and its outcome.

A case is plain data: what a user could type. ``run_case`` takes it through fit,
conformalize and predict and names the outcome; ``_fuzz_draw`` draws cases.
"""

import re
import tempfile
import traceback
import warnings
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
CALIBRATION_MODES = (
    *("split", "prefit", "held", "plus", "minmax", "base"),  # of MAPIE
    *("calibrated", "batches"),  # of the library
)
REFUSED_SURPRISES = ("order", "renamed")  # of a table that is no longer that of fit
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
    y = _corrupted(y, spec.y_corruption, rng)
    if kinds:
        frame = _surprising(_mixed_frame(X, kinds, rng), spec.surprise, rng)
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
    if container == "nullable" and X.dtype.kind in "fi" and X.itemsize > 2:
        import pandas as pd

        return pd.DataFrame(X).add_prefix("column ").convert_dtypes()
    if container == "masked":
        return np.ma.masked_array(X, np.arange(X.size).reshape(X.shape) == 0)
    if container == "swapped":
        return X.astype(X.dtype.newbyteorder())
    if container == "strided":
        return np.repeat(np.repeat(X, 2, axis=0), 2, axis=1)[::2, ::2]
    X = np.asfortranarray(X) if container == "fortran" else X
    X.flags.writeable = container != "read-only"
    return X


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
    long = np.concatenate([y, y[:1]]) if len(y) else np.zeros(1)
    columns = {"flat": y, "column": y[:, None], "pair": pair}
    return (columns | {"short": y[:-1], "long": long})[shape]


def _weights(kind: str | None, n: int) -> NDArray[np.float64] | None:
    random = np.random.default_rng(n).uniform(0, 1e6, n)
    kinds = {"ones": np.ones(n), "zeros": np.zeros(n), "random": random}
    kinds |= {"negative": -np.ones(n), "short": np.ones(max(0, n - 1))}
    kinds |= {"long": np.ones(n + 1)}
    return None if kind is None else kinds[kind]


def run_case(case: FuzzCase) -> Outcome:
    """Run the case and name its outcome; only an interrupt gets out."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            failure = _check(case, *_intervals(case))
        except DOCUMENTED as error:
            message, name = str(error), type(error).__name__
            failure = None if message.strip() else f"{name} without a message"
            return Outcome(name, message, failure)
        except Wrong as error:
            return Outcome("interval", failure=str(error))
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
    """Predictions and bounds, from end to end."""
    conformal = _calibrated(case)
    X_test, _ = make_table(case.test, case.kinds)
    points, bounds = conformal.predict_interval(
        X_test, allow_infinite_bounds=case.allow_infinite
    )
    if case.further:
        _check_further(case, conformal, X_test, bounds)
    return points, bounds


def _calibrated(case: FuzzCase) -> Any:
    """An object with intervals, by MAPIE or by the library."""
    from mapie.regression import CrossConformalRegressor, SplitConformalRegressor

    X, y = make_table(case.train, case.kinds)
    model = ClapsRegressor(**(FIXED | case.params))
    weight = _weights(case.weights, case.train.n)
    fit_params = {} if weight is None else {"sample_weight": weight}
    shape = {"support": case.support, "sym": case.sym}
    if case.mode in ("plus", "minmax", "base"):
        score = ClapsScore(**shape)
        cross = CrossConformalRegressor(model, case.level, score, case.mode, cv=2)
        return cross.fit_conformalize(X, y, fit_params=fit_params)
    if case.mode == "calibrated":
        calibrated = CalibratedRegressor(model, case.level, random_state=0, **shape)
        return calibrated.fit(X, y, **fit_params)
    X_cal, y_cal = make_table(case.cal, case.kinds)
    if case.mode != "split":
        model.fit(X, y, **fit_params)
    if case.mode == "batches":
        streaming = StreamingConformalRegressor(model, case.level, **shape)
        streaming.conformalize([(X_cal[:9], y_cal[:9]), (X_cal[9:], y_cal[9:])])
        return streaming
    held = model if case.mode == "held" else None
    prefit = case.mode != "split"
    score = ClapsScore(held, **shape)
    mapie = SplitConformalRegressor(model, case.level, score, prefit)
    if not prefit:
        mapie.fit(X, y, fit_params=fit_params)
    return mapie.conformalize(X_cal, y_cal)


class Wrong(Exception):
    """Something that contradicts the intervals."""


def _check_further(case: FuzzCase, conformal: Any, X: Any, bounds: Any) -> None:
    """Reasons, distribution and file must agree with the intervals."""
    infinite = {"allow_infinite_bounds": case.allow_infinite}
    why = explain(conformal, X, **infinite)
    if not np.array_equal(np.stack([why.lower, why.upper], axis=1), bounds):
        raise Wrong("an explanation of other bounds")
    if not ((why.aleatoric > 0) & (why.epistemic >= 0)).all():
        raise Wrong("parts of the variance that are not positive")
    if not isinstance(conformal, CalibratedRegressor | StreamingConformalRegressor):
        return
    quantiles = conformal.predict_quantiles(X, [0.3, 0.5, 0.7], tails="normal")
    if not (quantiles[:, :-1] <= quantiles[:, 1:]).all():
        raise Wrong("quantiles that fall as the level rises")
    shares = conformal.cdf(X, np.array([-1.0, 0.0, 1.0]) + np.zeros((len(bounds), 1)))
    if not ((shares > 0) & (shares < 1)).all() or (np.diff(shares) < 0).any():
        raise Wrong("probabilities that are none")
    if np.isnan(conformal.sample(X, 2, random_state=0)).any():
        raise Wrong("draws that are no numbers")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        save(conformal, path)
        loaded = load(path).predict_interval(X, **infinite)[1]
    if not np.array_equal(loaded, bounds):
        raise Wrong("a file that gives other bounds")


def _check(case: FuzzCase, points: Any, bounds: Any) -> str | None:
    """What is wrong with the intervals, if anything."""
    if _has_other_columns(case):
        return "columns in another order or of other names, without a word"
    if _has_other_lengths(case):
        return "targets or weights of other length or sign, without a word"
    if _has_masked_values(case):
        return "values behind a mask, without a word"
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
                & (not (case.allow_infinite or _has_impossible_targets(case)))
            ),
            "a lower bound above its upper one": lower > upper,
            "upper bounds that fall as the level rises": np.diff(upper, axis=1) < 0,
            "lower bounds that rise with the level": np.diff(lower, axis=1) > 0,
        }
    return next((what for what, where in found.items() if where.any()), None)


def _has_impossible_targets(case: FuzzCase) -> bool:
    """Whether a calibration target may score +∞: outside a support or a domain."""
    mapped = case.params.get("target_map") in ("log", "sqrt")
    return mapped or case.support is not None


def _has_other_columns(case: FuzzCase) -> bool:
    """Whether the test rows have other columns than the training rows."""
    # Tables without rows are drawn without a surprise.
    first, last = (t.surprise if t.n else None for t in (case.train, case.test))
    changed = first != last and {first, last} & set(REFUSED_SURPRISES)
    wide = case.train.p > 1 and "order" in (first, last)
    return bool(case.kinds and changed) and (wide or "renamed" in (first, last))


def _fitted_tables(case: FuzzCase) -> list[TableSpec]:
    splits = case.mode in ("plus", "minmax", "base", "calibrated")
    return [case.train] if splits else [case.train, case.cal]


def _has_masked_values(case: FuzzCase) -> bool:
    """Whether a table says of one of its values that it is none."""
    tables = [*_fitted_tables(case), case.test]
    return not case.kinds and any(t.container == "masked" and t.n * t.p for t in tables)


def _has_other_lengths(case: FuzzCase) -> bool:
    """Whether targets or weights are not one number for each row, or weigh nothing."""
    bad = ("pair", "short", "long")
    wrong = any(spec.y_shape in bad for spec in _fitted_tables(case))
    return wrong or case.weights in ("zeros", "negative", "short", "long")


def without_numbers(message: str) -> str:
    """First line of a message with its numbers and lists taken out, to count alike."""
    line = message.strip().splitlines()[0] if message.strip() else ""
    line = re.sub(r"[\[(][^\])]*[\])]", "(…)", line)
    return re.sub(r"-?\d[\d.e+-]*", "#", line)[:110]
