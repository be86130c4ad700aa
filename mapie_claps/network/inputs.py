"""Arrays of the user → checked rows, their units, a seed."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, _num_samples

from .._compat import validate_data
from .._validation import check_real, warn_if_reordered, where_bad
from ..exceptions import FileFormatError
from ..files.codec import Context, register
from .batches import check_has_target
from .table import as_table

Array = NDArray[np.float64]
SMALLEST_RANGE = 1e-152  # of y: its square must be a number
SMALLEST_WEIGHT = 1e-152  # in units of the mean weight, for the same reason


def check_training_data(
    estimator: Any, X: Any, y: ArrayLike, sample_weight: ArrayLike | None
) -> tuple[Any, NDArray[np.bool_] | None, Array, Array]:
    """A table, its rows of positive weight (None: all), their targets and weights."""
    check_has_target(y)
    check_real("y", y)
    try:
        y_ = validate_data(estimator, "no_validation", y, y_numeric=True)
        y_ = np.asarray(y_, dtype=np.float64)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{str(error).rstrip('.')}.{where_bad('y', y)}") from error
    warn_if_reordered(X, y)
    table = as_table(X, min_rows=2)
    check_columns(estimator, X, table, reset=True)
    check_lengths(table, y_, sample_weight)
    if sample_weight is not None:
        check_real("sample_weight", sample_weight)
    try:
        weight = _check_sample_weight(sample_weight, y_, dtype=np.float64)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"Got sample_weight that cannot be used: {error} Pass one number of at "
            "least 0 for each row of X."
        ) from error
    if not np.isfinite(weight).all():  # scikit-learn may be told not to look
        text = where_bad("sample_weight", weight)
        raise ValueError(f"Got sample_weight with NaN or infinity.{text}")
    if weight.min() < 0:
        raise ValueError(
            f"Got sample_weight with a negative value, {float(weight.min())!r}. Use "
            "zero to leave a row out."
        )
    kept = weight > 0
    if kept.sum() < 2:
        raise ValueError(
            f"Got sample_weight with {int(kept.sum())} positive weights, but "
            "expected at least 2. Leave sample_weight out to weigh rows alike."
        )
    if kept.all():
        return table, None, y_, _with_mean_one(weight)
    return table, kept, y_[kept], _with_mean_one(weight[kept])


def check_lengths(X: Any, y: Any, sample_weight: Any = None) -> None:
    """Raise unless there are as many targets and weights as rows."""
    n = _num_samples(X)
    for name, values in (("y", y), ("sample_weight", sample_weight)):
        if np.asarray(values).ndim and _num_samples(values) != n:
            raise ValueError(
                f"Got {_num_samples(values)} values of {name} for {n} rows of X, but "
                f"expected one for each row. Take {name} from the same rows as X."
            )


def check_target(y: Any) -> None:
    """Raise for the first target that is no finite number."""
    text = where_bad("y", y)
    if text:
        raise ValueError(text.strip())


def check_columns(estimator: Any, X: Any, table: Any, *, reset: bool) -> None:
    """Set or check number and names of the columns of X, of which a table was made."""
    if not reset and is_probe(table) and table.shape[1] == estimator.n_features_in_:
        return
    # Frames of libraries that are not known by name have become arrays.
    named = X if hasattr(X, "columns") or hasattr(X, "__dataframe__") else table
    try:
        validate_data(estimator, named, reset=reset, skip_check_array=True)
    except ValueError as error:
        if "feature names should match" not in str(error):
            raise
        raise ValueError(
            f"{str(error).rstrip()}\nPass X[model.feature_names_in_], with every "
            "column that fit has seen."
        ) from error


def is_probe(table: Any) -> bool:
    """Whether this is the row of zeros by which MAPIE asks if a model is fitted.

    It has no names, which is nothing that a user should be warned of.
    """
    return isinstance(table, np.ndarray) and len(table) == 1 and not table.any()


def _with_mean_one(weight: Array) -> Array:
    """Positive weights in units of their mean."""
    with np.errstate(over="ignore"):
        mean = weight.mean()
    relative: Array = weight / mean
    if not np.isfinite(mean) or relative.min() < SMALLEST_WEIGHT:
        raise ValueError(
            f"Got sample_weight from {weight.min():g} to {weight.max():g}, whose sum "
            "overflows or whose ratios underflow. Divide the weights by a constant, "
            "and set the smallest to zero, which leaves these rows out."
        )
    return relative


def fit_scalers(
    X: Array, y: Array, weight: Array, names: Sequence[str]
) -> tuple[StandardScaler, StandardScaler]:
    """Standardise by the training rows; a constant keeps its unit."""
    uniform = None if (weight == 1).all() else weight
    with np.errstate(over="ignore", invalid="ignore"):
        scaler_X = StandardScaler().fit(X, sample_weight=uniform)
        scaler_y = StandardScaler().fit(y[:, None], sample_weight=uniform)
    with np.errstate(over="ignore"):
        widths = [*np.ptp(X, axis=0).tolist(), float(np.ptp(y))]
    columns = [*(f"the column {name!r} of X" for name in names), "y"]
    for column, width in zip(columns, widths, strict=True):
        if 0 < width < SMALLEST_RANGE:
            raise ValueError(
                f"Got {column} with a range of {width!r}, whose square underflows. "
                "Multiply it by a constant, for example 1e150."
            )
    for name, scaler, labels in (("X", scaler_X, names), ("y", scaler_y, ["y"])):
        # StandardScaler takes a variance that overflows for that of a constant.
        found = np.stack([scaler.mean_, scaler.var_, scaler.scale_])
        bad = ~np.isfinite(found).all(axis=0)
        if bad.any():
            raise ValueError(
                f"Got {name} whose values overflow when squared (column "
                f"{labels[int(np.flatnonzero(bad)[0])]!r}). Divide them by a constant, "
                "for example 1e100."
            )
    return scaler_X, scaler_y


def draw_seed(random_state: int | np.random.RandomState | None) -> int:
    """A seed for torch, without touching numpy's global generator."""
    if random_state is None:
        return int(np.random.default_rng().integers(2**31))
    return int(check_random_state(random_state).randint(2**31 - 1))


_SCALER_FIELDS = ("mean_", "scale_", "var_", "n_features_in_", "n_samples_seen_")


def _scaler_from_fields(values: dict[str, Any], context: Context) -> StandardScaler:
    scaler = StandardScaler()
    shape = (values["n_features_in_"],)
    for name, value in values.items():
        if name in ("mean_", "scale_", "var_") and (
            np.shape(value) != shape or not np.isfinite(value).all()
        ):
            raise FileFormatError(
                f"Got a scaler whose {name} has shape {np.shape(value)} or numbers "
                f"that are not finite, but expected {shape}."
            )
        setattr(scaler, name, value)
    if not (scaler.scale_ > 0).all():
        raise FileFormatError("Got a scaler with a scale that is not positive.")
    return scaler


register(
    StandardScaler,
    "standard scaler",
    lambda scaler: {name: getattr(scaler, name) for name in _SCALER_FIELDS},
    _scaler_from_fields,
    _SCALER_FIELDS,
)
