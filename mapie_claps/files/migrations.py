"""How files of earlier versions are read: one function per step.

A migration takes the configuration and the tensors of version n and returns those of
version n + 1. Files of every version are kept in the tests.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
UNKNOWN_NETWORK = ""  # version 1 did not say to which network its sums belong
Migration = Callable[[Any, Tensors], tuple[Any, Tensors]]


def migrate(version: int, config: Any, tensors: Tensors) -> tuple[Any, Tensors]:
    """Configuration and tensors as the newest version has them."""
    while version in MIGRATIONS:
        config, tensors = MIGRATIONS[version](config, dict(tensors))
        version += 1
    return config, tensors


def _from_1_to_2(config: Any, tensors: Tensors) -> tuple[Any, Tensors]:
    """Tags in place of class names, sums of residuals, one kind of model."""
    kind, state = config["class"], config["state"]
    convert = {
        "ClapsRegressor": _regressor_1,
        "ClapsModule": _module_1,
        "StreamingConformalRegressor": _streaming_1,
    }
    return convert[kind](state, tensors), tensors


def _streaming_1(state: Any, tensors: Tensors) -> Any:
    inner, _ = _from_1_to_2(state["estimator"], tensors)
    names = ("confidence_level", "scores")
    since = {"signed": False, "sym": True, "support": None}
    return {"streaming": {"estimator": inner, **since, **{n: state[n] for n in names}}}


# Parameters that version 1 did not have, as what it did.
SINCE_1 = {
    "kernel": False,
    "target_map": None,
    "two_sided_noise": False,
    "residual_shape": False,
}


def _regressor_1(state: Any, tensors: Tensors) -> Any:
    params, fitted = SINCE_1 | state["params"], _fitted_1(state)
    for name in ("scaler_X_", "scaler_y_"):
        fitted[name] = {"standard scaler": fitted[name]["StandardScaler"]}
    model = fitted["model_"]["PredictiveModel"]
    network = model.pop("network")["HeteroscedasticNetwork"]
    # Parameters of a view moved into the view.
    stored = network["state"]["dict"].items()
    moved = {k.replace(".frequency", ".view.frequency"): v for k, v in stored}
    network["state"] = {"dict": moved}
    fitted["network_"] = {"ensemble": network}
    posterior = model["posterior"]["LastLayerPosterior"]
    plain = model["homoscedastic"]["LastLayerPosterior"]
    variance = model["residual_variance"]
    n_rows = posterior["moments"]["LastLayerMoments"]["n_rows"]
    fitted["sums_"] = _sums(
        _moments_1(posterior, tensors),
        _moments_1(plain, tensors, variance),
        targets=_spread(n_rows, float(n_rows)),
        residuals=_spread(n_rows, n_rows * variance),
        held_out=None,
    )
    fitted["model_"] = _model(model, 0.0, 1.0)
    return {"regressor": {"params": {"dict": params}, "fitted": {"dict": fitted}}}


def _module_1(state: Any, tensors: Tensors) -> Any:
    params, fitted = state["params"], _fitted_1(state)
    network = fitted["network_"]["FeatureNetwork"]
    head = network["noise_head"]
    fitted["network_"] = {
        "own network with its head": {
            "backbone": {"own network": network["backbone"]["Backbone"]},
            "noise_head": head and {"noise head": head["NoiseHead"]},
        }
    }
    model = fitted["model_"]["ModulePredictive"]
    one = "fitted.model_.member_weight"
    tensors[one] = torch.ones(1, dtype=torch.float64)
    model["member_weight"] = {"tensor": one}
    sums = fitted["sums_"]["LastLayerSums"]
    plain = sums["plain"]["LastLayerMoments"]
    spread = sums["spread"]["Spread"]
    square = 2 * float(tensors[plain["loss"]["tensor"]][0])
    held_out = sums["held_out"]
    if held_out is not None:
        rows = dict(held_out["HeldOutRows"]["batch"]["FeatureBatch"])
        rows["residual"] = rows.pop("y")
        key = held_out["HeldOutRows"]["key"]
        held_out = {"held-out rows": {"rows": {"rows": rows}, "key": key}}
    fitted["sums_"] = _sums(
        {"moments": sums["moments"]["LastLayerMoments"]},
        {"moments": plain},
        targets={"spread": spread},
        residuals=_spread(spread["weight"], square),
        held_out=held_out,
    )
    fitted["model_"] = _model(model, model["centre"], model["unit"])
    return {"module": {"params": {"dict": params}, "fitted": {"dict": fitted}}}


def _fitted_1(state: Any) -> Any:
    """Fitted attributes, without those that are properties since."""
    gone = ("prior_precision_", "residual_variance_")
    return {name: v for name, v in state["fitted"].items() if name not in gone}


def _sums(moments: Any, plain: Any, **others: Any) -> Any:
    parts = {"moments": moments, "plain": plain, "network": UNKNOWN_NETWORK}
    return {"sums": parts | others}


def _model(model: Any, centre: float, unit: float) -> Any:
    """Posteriors without their sums, which version 1 kept in them."""
    posteriors = {}
    for name in ("posterior", "homoscedastic"):
        content = dict(model[name]["LastLayerPosterior"])
        del content["moments"]
        posteriors[name] = {"posterior": content}
    names = ("residual_variance", "member_weight")
    rest = {n: model[n] for n in names}
    return {"last layer": {**posteriors, **rest, "centre": centre, "unit": unit}}


def _moments_1(posterior: Any, tensors: Tensors, variance: float = 1.0) -> Any:
    """Sums of residuals, with h² = 1 restored, from sums of targets.

    Version 1 summed HᵀWy; with y = Hw + r and the trained weights w, HᵀWr is HᵀWy less
    HᵀWH w.
    """
    stored = dict(posterior["moments"]["LastLayerMoments"])
    names = {k: stored[k]["tensor"] for k in ("gram", "cross")}
    gram, cross = (tensors[names[k]] * variance for k in ("gram", "cross"))
    trained = tensors[posterior["trained"]["tensor"]]
    if gram.ndim == 2:
        along = gram * trained
    else:
        along = (gram @ trained[..., None]).squeeze(-1)
    tensors[names["gram"]], tensors[names["cross"]] = gram, cross - along
    return {"moments": stored}


def _spread(weight: float, squares: float) -> Any:
    """Sums of numbers whose mean is zero."""
    return {"spread": {"weight": float(weight), "mean": 0.0, "squares": squares}}


# Fields of version 3, by the tag of what has them, as what version 2 did.
SINCE_2: dict[str, dict[str, Any]] = {
    "covariance": {"smooth": 0.0, "ratio": 1.0},
    "kernel member": {"dual": None},
}


def _from_2_to_3(config: Any, tensors: Tensors) -> tuple[Any, Tensors]:
    """A smooth part of covariances, kernel members with a mean of all rows."""
    return _with_fields(config, SINCE_2), tensors


def _with_fields(node: Any, since: dict[str, dict[str, Any]]) -> Any:
    """The same configuration, with fields added under some tags."""
    if isinstance(node, list):
        return [_with_fields(value, since) for value in node]
    if not isinstance(node, dict):
        return node
    found = {key: _with_fields(value, since) for key, value in node.items()}
    for tag, fields in since.items():
        if isinstance(found.get(tag), dict) and len(found) == 1:
            found[tag] = fields | found[tag]
    return found


MIGRATIONS: dict[int, Migration] = {1: _from_1_to_2, 2: _from_2_to_3}
