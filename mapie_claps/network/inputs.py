"""Arrays of the user → checked rows, their units, a seed."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight

from .._compat import validate_data
from ..exceptions import FileFormatError
from ..files.codec import Context, register

Array = NDArray[np.float64]
SMALLEST_RANGE = 1e-152  # of y: its square must be a number
SMALLEST_WEIGHT = 1e-152  # in units of the mean weight, for the same reason


def check_training_data(
    estimator: Any, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None
) -> tuple[Array, Array, Array]:
    """Rows of positive weight, in float64; weights have mean one."""
    X_, y_ = validate_data(
        estimator,
        X,
        y,
        dtype=np.float64,
        order="C",
        y_numeric=True,
        ensure_min_samples=2,
    )
    y_ = np.asarray(y_, dtype=np.float64)
    weight = _check_sample_weight(sample_weight, X_, dtype=np.float64)
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
    if not kept.all():
        X_, y_, weight = X_[kept], y_[kept], weight[kept]
    return X_, y_, _with_mean_one(weight)


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
    X: Array, y: Array, weight: Array
) -> tuple[StandardScaler, StandardScaler]:
    """Standardise by the training rows; a constant keeps its unit."""
    uniform = None if (weight == 1).all() else weight
    with np.errstate(over="ignore", invalid="ignore"):
        scaler_X = StandardScaler().fit(X, sample_weight=uniform)
        scaler_y = StandardScaler().fit(y[:, None], sample_weight=uniform)
    if y.min() != y.max() and np.ptp(y) < SMALLEST_RANGE:
        raise ValueError(
            f"Got y with a range of {float(np.ptp(y))!r}, whose square underflows. "
            "Multiply y by a constant, for example 1e150."
        )
    for name, scaler in (("X", scaler_X), ("y", scaler_y)):
        bad = ~np.isfinite(scaler.scale_) | ~np.isfinite(scaler.mean_)
        if bad.any():
            raise ValueError(
                f"Got {name} whose values overflow when squared (column "
                f"{int(np.flatnonzero(bad)[0])}). Divide them by a constant, for "
                "example 1e100."
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
