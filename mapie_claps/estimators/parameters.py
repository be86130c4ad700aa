"""What each parameter of ``ClapsRegressor`` may be."""

from collections.abc import Sequence
from typing import Any

import torch

from .._validation import check_choice, check_integer, check_number, raise_for
from ..network.target_choice import MAPS, is_transformer
from ..network.views import VIEWS
from ..posterior.scales import SCALES


def check_prior_precision(value: Any) -> float:
    """λ as a positive number."""
    return check_number(
        "prior_precision",
        value,
        low=0,
        low_open=True,
        hint="Use 1.0, as the paper does, if unsure.",
    )


def check_scale(value: Any) -> str:
    """Name of a scale."""
    scale: str = check_choice("scale", value, SCALES, "Use 'claps' if unsure.")
    return scale


def check_target_map(value: Any) -> None:
    """Name of a map of the target, or a transformer."""
    if value is None or is_transformer(value):
        return
    if not isinstance(value, str) or value not in ("auto", *MAPS):
        names = ", ".join(map(repr, ("auto", *MAPS)))
        raise_for(
            "target_map",
            value,
            f"None, one of {names}, or a transformer with inverse_transform",
            "Use 'auto' if unsure.",
        )


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
    """Raise for a value that no data could make valid."""
    layer_sizes(params)
    choose_device(params["device"])
    _check_training(params)
    check_choice(
        "kernel", params["kernel"], (True, False), "Use False to keep no training rows."
    )
    check_scale(params["scale"])
    check_target_map(params["target_map"])
    for name in ("two_sided_noise", "residual_shape"):
        check_choice(name, params[name], (True, False), "Use True if unsure.")
    structure = check_choice(
        "hessian_structure",
        params["hessian_structure"],
        ("full", "diag"),
        "Use 'full' up to a few thousand features.",
    )
    last_layer = check_choice(
        "last_layer", params["last_layer"], ("ridge", "trained"), "Use 'ridge'."
    )
    if structure == "diag" and last_layer == "ridge":
        raise_for(
            "last_layer",
            last_layer,
            "'trained' with hessian_structure='diag'",
            "A diagonal does not determine refitted weights.",
        )
    if not params["bias_in_posterior"] and last_layer == "ridge":
        raise_for(
            "bias_in_posterior",
            params["bias_in_posterior"],
            "True with last_layer='ridge'",
            "A refit moves the bias with the weights; or use last_layer='trained'.",
        )
    _check_choice_of_prior_precision(params)


def _check_choice_of_prior_precision(params: dict[str, Any]) -> None:
    """λ or the name of a way to choose it."""
    value, fraction = params["prior_precision"], params["validation_fraction"]
    if not isinstance(value, str):
        check_prior_precision(value)
        return
    hint = "Or use a positive number, for example 1.0."
    check_choice("prior_precision", value, ("grid", "marglik"), hint)
    if value == "grid" and fraction == 0:
        raise_for(
            "validation_fraction",
            fraction,
            "a share above 0 with prior_precision='grid'",
            "Hold out some rows, for example 0.12, or give prior_precision a number.",
        )


def _check_training(params: dict[str, Any]) -> None:
    """Parameters of the network's training."""

    def integer(name: str, low: int, hint: str) -> None:
        check_integer(name, params[name], low=low, hint=hint)

    def number(name: str, hint: str, **interval: Any) -> None:
        check_number(name, params[name], hint=hint, **interval)

    integer("n_members", 1, "Use 1 for one network.")
    _check_views(params["views"])
    number("scaling_rate", "Use 0 for no factors.", low=0)
    integer("n_bins", 0, "Use 0 for no encoding.")
    for name in ("max_steps", "batch_size"):
        if not (isinstance(params[name], str) and params[name] == "auto"):
            integer(name, 1, "Use 'auto' if unsure.")
    number("learning_rate", "Use the default if unsure.", low=0, low_open=True)
    check_choice(
        "schedule", params["schedule"], ("cosine", "constant"), "Use 'cosine'."
    )
    number("weight_decay", "Use 0 for no decay.", low=0)
    number("dropout", "Use 0 for no dropout.", low=0, high=1, high_open=True)
    number("beta", "Use 0 for the Gaussian likelihood.", low=0, high=1)
    number("validation_fraction", "Use 0.12 if unsure.", low=0, high=0.5)
    value = params["patience"]
    if not (value is None or (isinstance(value, str) and value == "auto")):
        integer("patience", 1, "Use 'auto' if unsure, None to train to the end.")
    _check_jobs(params["n_jobs"])
    if params["tol"] is not None:
        number("tol", "Use None never to be warned.", low=0)
    number("variance_floor", "Use the default if unsure.", low=0, low_open=True)
    for name in ("input_clip", "max_gradient_norm", "initial_bias"):
        if params[name] is not None:
            hint = "Use the default if unsure, None for what torch does."
            number(name, hint, low=0, low_open=name != "initial_bias")


def _check_jobs(value: Any) -> None:
    """None, a number of cores, or −1 and the like, as in scikit-learn."""
    hint = "Use -1 for all cores, 1 for one."
    if value is None:
        return
    check_integer("n_jobs", value, low=-(2**31), hint=hint)
    if value == 0:
        raise_for("n_jobs", value, "None or an integer other than 0", hint)


def _check_views(value: object) -> None:
    """Names of views, each at most once."""
    if (
        isinstance(value, str)
        or not isinstance(value, Sequence)
        or not value
        or any(view not in VIEWS for view in value)
        or len(set(value)) < len(value)
    ):
        raise_for(
            "views",
            value,
            f"a tuple of one or more of {VIEWS}, each at most once",
            "Use ('raw',) for networks on the features alone.",
        )


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
