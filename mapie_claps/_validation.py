"""Checks of arguments: the parameter, the value found, what is accepted, the remedy."""

import inspect
import math
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from numbers import Integral, Real
from typing import Any, NoReturn

import numpy as np
from sklearn.utils import check_array

try:
    from sklearn.utils.validation import validate_data as validate_data
except ImportError:  # scikit-learn < 1.6 has it as a method

    def validate_data(_estimator: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Validate input and set ``n_features_in_`` and ``feature_names_in_``."""
        if not kwargs.pop("skip_check_array", False):
            return _estimator._validate_data(*args, **kwargs)
        (X,) = args
        _estimator._check_feature_names(X, reset=kwargs["reset"])
        _estimator._check_n_features(X, reset=kwargs["reset"])
        return X


# Argument of check_array that leaves NaN and infinity to the caller; 1.6 renamed it.
_RENAMED = "ensure_all_finite" in inspect.signature(check_array).parameters
ANY_NUMBER = {"ensure_all_finite" if _RENAMED else "force_all_finite": False}


def check_number(
    name: str,
    value: Any,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    low_open: bool = False,
    high_open: bool = False,
    hint: str,
) -> float:
    """Return ``value`` as a float if it is a finite real number in the interval."""
    real = isinstance(value, Real) and not isinstance(value, bool)
    above = real and (value > low if low_open else value >= low)
    below = real and (value < high if high_open else value <= high)
    if above and below and math.isfinite(value):
        return float(value)
    opening = "(" if low_open or math.isinf(low) else "["
    closing = ")" if high_open or math.isinf(high) else "]"
    interval = f"{opening}{low:g}, {high:g}{closing}"
    raise_for(name, value, f"a finite number in {interval}", hint)


# A share, a level: strictly between 0 and 1.
check_share = partial(check_number, low=0, high=1, low_open=True, high_open=True)


def check_integer(name: str, value: Any, *, low: int, hint: str) -> int:
    """Return ``value`` as an int if it is an integer of at least ``low``."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if whole and value >= low:
        return int(value)
    raise_for(name, value, f"an integer of at least {low}", hint)


def check_choice(name: str, value: Any, choices: Sequence[Any], hint: str) -> Any:
    """Return ``value`` if it is one of the choices."""
    for choice in choices:
        if isinstance(value, type(choice)) and value == choice:
            return choice
    raise_for(name, value, "one of " + ", ".join(map(repr, choices)), hint)


def raise_for(name: str, value: Any, expected: str, hint: str) -> NoReturn:
    """Raise the error of all checks."""
    raise ValueError(f"Got {name}={value!r}, but expected {expected}. {hint}")


def warn_if_reordered(X: Any, y: Any) -> None:
    """Warn if X and y have the same row labels in another order (pandas).

    Rows and targets are paired by position, as everywhere in scikit-learn.
    """
    rows: Any = getattr(X, "index", None)
    labels: Any = getattr(y, "index", None)
    both = hasattr(rows, "equals") and hasattr(labels, "equals")
    if not both or rows.equals(labels):
        return
    there, here = list(rows), list(labels)  # Int64 and int64 count as equal
    if there != here and Counter(there) == Counter(here):
        warnings.warn(
            "Got X and y with the same index in another order. Rows and targets are "
            "paired by position: pass y.loc[X.index] if labels are meant, or "
            "y.reset_index(drop=True) and X.reset_index(drop=True) if positions are.",
            UserWarning,
            stacklevel=3,
        )


_WARNED: set[tuple[str, ...]] = set()


def warn_once(text: str, columns: Sequence[str], stacklevel: int) -> None:
    """Warn of a table, once for tables of these columns unless all are asked for.

    Python's own memory is emptied by every ``warnings.catch_warnings``, and a search
    enters one for each fit.
    """
    key = (re.sub(r"row \d+", "row", text), *columns)  # rows differ between folds
    actions = [f[0] for f in warnings.filters if issubclass(UserWarning, f[2])]
    if actions[:1] == ["always"] or key not in _WARNED:
        warnings.warn(text, UserWarning, stacklevel=stacklevel + 1)
        _WARNED.add(key)


def check_real(name: str, values: Any, any_type: bool = False) -> None:
    """Raise for what NumPy would make numbers of in silence.

    Values behind a mask, and unless any type will do imaginary parts, and dates, of
    which it counts nanoseconds.
    """
    if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values).any():
        raise ValueError(
            f"Got {name} as a masked array with {int(np.ma.count_masked(values))} "
            "masked values, but masks are not read. Pass X.filled(np.nan) for gaps in "
            "X; leave rows out whose target, weight or score is masked."
        )
    if any_type:
        return
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(
            f"Got {name} whose rows have different lengths, but expected one number "
            "per row."
        ) from error
    if array.dtype.kind in "cmM":
        raise ValueError(
            f"Got {name} of type {array.dtype}, but expected real numbers. Convert "
            "them first. (Complex data not supported; dates neither.)"
        )


check_unmasked = partial(check_real, any_type=True)


def is_missing(value: Any) -> bool:
    """None, or what does not equal itself: NaN, NaT, and NA, which answers with NA."""
    return value is None or str(value == value) in ("False", "<NA>")


def where_bad(name: str, values: Any) -> str:
    """First row that is no finite number, and what to do; "" if none is found."""
    for row, value in enumerate(np.asarray(values, dtype=object).ravel().tolist()):
        try:
            good = value is not None and math.isfinite(float(value))
        except (TypeError, ValueError):
            good = False
        if not good:
            return (
                f" Got {value!r} in {name}, row {row}, but expected finite numbers. "
                f"Leave rows without a number in {name} out, or convert it."
            )
    return ""


def new_tensors_on(device: Any) -> AbstractContextManager[object]:
    """New tensors on this device, whatever ``torch.set_default_device`` says.

    Ours live on the CPU, and those that a network makes have to meet its weights.
    """
    import torch

    target = torch.device(device)
    # Not torch.get_default_device: up to torch 2.6 it fails after a reset to None.
    same = torch.empty(0).device.type == target.type
    return nullcontext() if same else target


def import_extra(extra: str, *names: str) -> Any:
    """Import modules that an extra installs, and return the first of them."""
    try:
        first, *_ = map(import_module, names)
    except ImportError as error:
        raise ImportError(
            f"{names[0]} cannot be imported: pip install 'mapie-claps[{extra}]'."
        ) from error
    return first
