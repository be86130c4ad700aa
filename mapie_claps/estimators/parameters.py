"""What each parameter of ``ClapsRegressor`` and ``ClapsModule`` may be."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from .._validation import check_choice, check_integer, check_number, raise_for
from ..network.own import NOISE_OUTPUTS
from ..network.target_map import MAPS
from ..network.target_transformer import is_transformer
from ..network.views import VIEWS
from ..posterior.scales import SCALES

Check = Callable[[str, Any], object]  # of a name and its value


def check_prior_precision(value: Any) -> float:
    """λ as a positive number."""
    hint = "Use 1.0, as the paper does, if unsure."
    return check_number("prior_precision", value, low=0, low_open=True, hint=hint)


def check_scale(value: Any) -> str:
    """Name of a scale."""
    scale: str = check_choice("scale", value, SCALES, "Use 'claps' if unsure.")
    return scale


def choose_device(value: Any) -> torch.device:
    """Where to train; "auto" takes CUDA if there is any."""
    if isinstance(value, str) and value == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(value)
        torch.empty(0, device=device)
    except (RuntimeError, TypeError, AssertionError, NotImplementedError):
        raise_for("device", value, "a device that torch knows", "Use 'auto' or 'cpu'.")
    return device


def layer_sizes(params: dict[str, Any]) -> tuple[int, ...]:
    """Widths of the hidden layers, then of the representation."""
    hidden = params["hidden_layer_sizes"]
    if isinstance(hidden, str) or not hasattr(hidden, "__iter__"):
        raise_for("hidden_layer_sizes", hidden, "a tuple of integers", "Use (128,).")
    widths = [("hidden_layer_sizes", width) for width in hidden]
    widths.append(("representation_size", params["representation_size"]))
    return tuple(
        check_integer(name, width, low=1, hint="Use for example 128 for each layer.")
        for name, width in widths
    )


def check_parameters(params: dict[str, Any]) -> None:
    """Raise for a value of ``ClapsRegressor`` that no data could make valid."""
    layer_sizes(params)
    _check(params, _OF_REGRESSOR)
    if not params["bias_in_posterior"] and params["last_layer"] == "ridge":
        raise_for(
            "bias_in_posterior",
            params["bias_in_posterior"],
            "True with last_layer='ridge'",
            "A refit moves the bias with the weights; or use last_layer='trained'.",
        )
    fraction = params["validation_fraction"]
    if params["prior_precision"] == "grid" and fraction == 0:
        raise_for(
            "validation_fraction",
            fraction,
            "a share above 0 with prior_precision='grid'",
            "Hold out some rows, for example 0.12, or give prior_precision a number.",
        )


def check_module_parameters(params: dict[str, Any]) -> None:
    """Raise for a value of ``ClapsModule`` that no data could make valid."""
    _check(params, _OF_MODULE)


def _check(params: dict[str, Any], checks: dict[str, Check]) -> None:
    """What both estimators have, and a table of checks."""
    check_scale(params["scale"])
    choose_device(params["device"])
    for name, check in checks.items():
        check(name, params[name])
    value = params["prior_precision"]
    if isinstance(value, str):
        hint = "Or use a positive number, for example 1.0."
        check_choice("prior_precision", value, ("grid", "marglik"), hint)
    else:
        check_prior_precision(value)
    hint, structure = "Use 'full' up to a few thousand features.", "hessian_structure"
    check_choice(structure, params[structure], ("full", "diag"), hint)
    if params[structure] == "diag" and params["last_layer"] == "ridge":
        raise_for(
            "last_layer",
            "ridge",
            "'trained' with hessian_structure='diag'",
            "A diagonal does not determine refitted weights.",
        )


def _number(hint: str, **interval: Any) -> Check:
    return partial(check_number, hint=hint, **interval)


def _integer(low: int, hint: str) -> Check:
    return partial(check_integer, low=low, hint=hint)


def _choice(*choices: Any, hint: str) -> Check:
    return partial(check_choice, choices=choices, hint=hint)


def _or(*others: Any, check: Check) -> Check:
    """Let other values pass, too."""

    def either(name: str, value: Any) -> None:
        if not any(isinstance(value, type(o)) and value == o for o in others):
            check(name, value)

    return either


def _check_target_map(name: str, value: Any) -> None:
    """Name of a map of the target, or a transformer."""
    names = ("auto", *MAPS)
    if value is None or is_transformer(value):
        return
    if not isinstance(value, str) or value not in names:
        listed = ", ".join(map(repr, names))
        expected = f"None, one of {listed}, or a transformer with inverse_transform"
        raise_for(name, value, expected, "Use 'auto' if unsure.")


def _check_jobs(name: str, value: Any) -> None:
    """A number of cores, or −1 and the like, as in scikit-learn."""
    hint = "Use -1 for all cores, 1 for one."
    if check_integer(name, value, low=-(2**31), hint=hint) == 0:
        raise_for(name, value, "None or an integer other than 0", hint)


def _check_views(name: str, value: object) -> None:
    """Names of views, each at most once."""
    if (
        isinstance(value, str)
        or not isinstance(value, Sequence)
        or not value
        or any(view not in VIEWS for view in value)
        or len(set(value)) < len(value)
    ):
        raise_for(
            name,
            value,
            f"a tuple of one or more of {VIEWS}, each at most once",
            "Use ('raw',) for networks on the features alone.",
        )


_POSITIVE: dict[str, Any] = {"low": 0, "low_open": True}
_DEFAULT = "Use the default if unsure."
_DEFAULT_OR_NONE = "Use the default if unsure, None for what torch does."
_OF_MODULE: dict[str, Check] = {
    "noise_output": _choice(
        *NOISE_OUTPUTS, hint="Use 'variance' for a head that gives h²."
    ),
    "last_layer": _choice(
        "trained", "ridge", hint="Use 'trained' to keep the predictions."
    ),
    "precision": _choice("float64", "module", hint="Use 'float64' if unsure."),
    "validation_fraction": _number("Use 0.12 if unsure.", high=0.5, **_POSITIVE),
    "variance_penalty": _number("Use 1.0 if unsure.", **_POSITIVE),
    "batch_size": _integer(1, "Use 1024 if unsure."),
}
_OF_REGRESSOR: dict[str, Check] = {
    "n_members": _integer(1, "Use 1 for one network."),
    "views": _check_views,
    "scaling_rate": _number("Use 0 for no factors.", low=0),
    "n_bins": _integer(0, "Use 0 for no encoding."),
    "max_steps": _or("auto", check=_integer(1, "Use 'auto' if unsure.")),
    "batch_size": _or("auto", check=_integer(1, "Use 'auto' if unsure.")),
    "learning_rate": _number(_DEFAULT, **_POSITIVE),
    "schedule": _choice("cosine", "constant", hint="Use 'cosine'."),
    "weight_decay": _number("Use 0 for no decay.", low=0),
    "dropout": _number("Use 0 for no dropout.", low=0, high=1, high_open=True),
    "beta": _number("Use 0 for the Gaussian likelihood.", low=0, high=1),
    "validation_fraction": _number("Use 0.12 if unsure.", low=0, high=0.5),
    "patience": _or(
        "auto",
        None,
        check=_integer(1, "Use 'auto' if unsure, None to train to the end."),
    ),
    "n_jobs": _or(None, check=_check_jobs),
    "tol": _or(None, check=_number("Use None never to be warned.", low=0)),
    "variance_floor": _number(_DEFAULT, **_POSITIVE),
    "input_clip": _or(None, check=_number(_DEFAULT_OR_NONE, **_POSITIVE)),
    "max_gradient_norm": _or(None, check=_number(_DEFAULT_OR_NONE, **_POSITIVE)),
    "initial_bias": _or(None, check=_number(_DEFAULT_OR_NONE, low=0)),
    "last_layer": _choice("ridge", "trained", hint="Use 'ridge'."),
    "kernel": _choice(True, False, hint="Use False to keep no training rows."),
    "target_map": _check_target_map,
    "two_sided_noise": _choice(True, False, hint="Use True if unsure."),
    "residual_shape": _choice(True, False, hint="Use True if unsure."),
}

# Parameters of ``ClapsRegressor.paper()``.
PAPER: dict[str, Any] = {
    "hidden_layer_sizes": (64, 64),
    "representation_size": 64,
    "n_members": 1,
    "views": ("raw",),
    "scaling_rate": 0.0,
    "max_steps": 150,
    "batch_size": 2**31,
    "learning_rate": 1e-3,
    "schedule": "constant",
    "weight_decay": 0.0,
    "beta": 0.0,
    "validation_fraction": 0.0,
    "patience": None,
    "tol": None,
    "variance_floor": 1e-3,
    "input_clip": None,
    "max_gradient_norm": None,
    "initial_bias": None,
    "prior_precision": 1.0,
    "last_layer": "trained",
    "bias_in_posterior": False,
    "target_map": None,
    "two_sided_noise": False,
    "residual_shape": False,
    "kernel": False,
}
