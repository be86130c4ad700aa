"""What each parameter of ``ClapsModule`` may be."""

from typing import Any

from .._validation import check_choice, check_integer, check_number, raise_for
from ..network.own import NOISE_OUTPUTS
from .parameters import check_prior_precision, check_scale, choose_device

_CHOICES: dict[str, tuple[tuple[str, ...], str]] = {
    "noise_output": (NOISE_OUTPUTS, "Use 'variance' for a head that gives h²."),
    "hessian_structure": (
        ("full", "diag"),
        "Use 'full' up to a few thousand features.",
    ),
    "last_layer": (("trained", "ridge"), "Use 'trained' to keep the predictions."),
    "precision": (("float64", "module"), "Use 'float64' if unsure."),
}


def check_module_parameters(params: dict[str, Any]) -> None:
    """Raise for a value that no data could make valid."""
    check_scale(params["scale"])
    for name, (choices, hint) in _CHOICES.items():
        check_choice(name, params[name], choices, hint)
    if params["hessian_structure"] == "diag" and params["last_layer"] == "ridge":
        raise_for(
            "last_layer",
            "ridge",
            "'trained' with hessian_structure='diag'",
            "A diagonal does not determine refitted weights.",
        )
    _check_numbers(params)
    choose_device(params["device"])


def _check_numbers(params: dict[str, Any]) -> None:
    value = params["prior_precision"]
    if isinstance(value, str):
        hint = "Or use a positive number, for example 1.0."
        check_choice("prior_precision", value, ("grid", "marglik"), hint)
    else:
        check_prior_precision(value)
    for name, high, hint in (
        ("validation_fraction", 0.5, "Use 0.12 if unsure."),
        ("variance_penalty", float("inf"), "Use 1.0 if unsure."),
    ):
        check_number(name, params[name], low=0, low_open=True, high=high, hint=hint)
    check_integer("batch_size", params["batch_size"], low=1, hint="Use 1024 if unsure.")
