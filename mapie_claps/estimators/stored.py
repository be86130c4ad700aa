"""Fitted estimators as fields of a file, and what a file may say of them."""

import math
from dataclasses import replace
from typing import Any

import torch
from sklearn.utils.validation import check_is_fitted

from ..exceptions import FileFormatError
from ..files.codec import Context, WrongPartError
from ..files.migrations import UNKNOWN_NETWORK
from ..network.table_fit import plain_encoder
from ..posterior.gaussian import LastLayerPosterior
from ..posterior.scales import LastLayerModel
from .base import LastLayerEstimator


def estimator_to_fields(estimator: Any) -> dict[str, Any]:
    """Parameters and fitted attributes, for a file."""
    check_is_fitted(estimator, "model_")
    params = estimator.get_params(deep=False)
    params.pop("module", None)
    if callable(params.get("noise_variance")):
        params["noise_variance"] = None
    fitted = {k: v for k, v in vars(estimator).items() if k.endswith("_")}
    return {"params": params, "fitted": fitted}


def set_fitted(estimator: LastLayerEstimator, fitted: dict[str, Any]) -> None:
    """Give an estimator the fitted attributes of a file, if they can be its own."""
    for name, value in fitted.items():
        if not name.isidentifier() or name.startswith("_") or not name.endswith("_"):
            raise FileFormatError(f"Got the attribute {name!r}.")
        setattr(estimator, name, value)
    n_members, size = estimator.network_.trained_weights().shape
    for posterior in (estimator.model_.posterior, estimator.model_.homoscedastic):
        if posterior is not None:
            _check_posterior(posterior, (n_members, size))
    _check_model(estimator.model_, n_members)


def check_sums(estimator: LastLayerEstimator) -> None:
    """Raise unless the sums are the estimator's own.

    Earlier files did not say to which network they belong, or not in which units.
    """
    belong_to = estimator._sums_belong_to()
    if estimator.sums_.network in (UNKNOWN_NETWORK, estimator.network_.fingerprint()):
        estimator.sums_ = replace(estimator.sums_, network=belong_to)
    estimator.sums_.check_network(belong_to)


def check_columns(estimator: Any) -> None:
    """Raise unless scalers, table, kernel and sums fit the columns of a regressor.

    One of version 1, which took numbers only, is given its table.
    """
    n_columns, n_inputs = estimator.n_features_in_, estimator.network_.encoding.n_raw
    for name, n in (("scaler_X_", n_inputs), ("scaler_y_", 1)):
        found = getattr(estimator, name).n_features_in_
        if found != n:
            raise FileFormatError(
                f"Got a {name} for {found} columns, but expected {n}, as the network "
                f"has {n_inputs} inputs."
            )
    if "input_clip_" not in vars(estimator):  # files written before there was one
        estimator.input_clip_ = estimator.input_clip
    clip = estimator._clip()
    if clip is not None and not (isinstance(clip, float | int) and 0 < clip < math.inf):
        raise FileFormatError(
            f"Got input_clip={clip!r}, but expected a number above 0."
        )
    if not hasattr(estimator, "table_"):
        if n_columns != n_inputs:
            raise FileFormatError(
                f"Got {n_columns} columns, but a network of {n_inputs} inputs."
            )
        names = getattr(estimator, "feature_names_in_", range(n_columns))
        labels = [f"x{name}" if isinstance(name, int) else name for name in names]
        scaler = estimator.scaler_X_
        estimator.table_ = plain_encoder(labels, scaler.mean_, scaler.scale_)
    estimator.table_.check_sizes(n_columns, n_inputs)
    if estimator.kernel_ is not None:
        estimator.kernel_.check(n_inputs)
    check_sums(estimator)


def refuse_parts(context: Context, kind: str) -> None:
    """Raise for what the file has no use for."""
    for name in ("network", "noise_variance"):
        if getattr(context, name) is not None:
            raise WrongPartError(
                f"Got {name} of type {type(getattr(context, name)).__name__}, but the "
                f"file holds a {kind}, which is stored whole. Leave it out."
            )


def _check_model(model: LastLayerModel, n_members: int) -> None:
    """Raise for numbers that no fit leaves behind."""
    weight = model.member_weight
    if tuple(weight.shape) != (n_members,) or weight.dtype != torch.float64:
        raise FileFormatError(
            f"Got a member_weight of shape {tuple(weight.shape)} and type "
            f"{weight.dtype}, but expected ({n_members},) and torch.float64."
        )
    if not bool((weight >= 0).all()) or not abs(float(weight.sum()) - 1) < 1e-6:
        raise FileFormatError(
            f"Got a member_weight of {weight.tolist()}, but expected shares of one."
        )
    for name in ("residual_variance", "unit"):
        if not 0 < (value := getattr(model, name)) < math.inf:
            raise FileFormatError(
                f"Got {name}={value!r}, but expected a positive finite number."
            )
    if not math.isfinite(model.centre):
        raise FileFormatError(f"Got centre={model.centre!r}, but expected a number.")


def _check_posterior(posterior: LastLayerPosterior, vector: tuple[int, int]) -> None:
    """Raise unless all tensors fit the network."""
    matrices = (vector, (*vector, vector[1]))
    expected = {
        "mean": (posterior.mean, (vector,)),
        "trained": (posterior.trained, (vector,)),
        "scale": (posterior.scale, matrices),
    }
    for name, (tensor, shapes) in expected.items():
        if tuple(tensor.shape) not in shapes or tensor.dtype != torch.float64:
            raise FileFormatError(
                f"Got a posterior whose {name} has shape {tuple(tensor.shape)} and "
                f"type {tensor.dtype}, but expected {shapes[-1]} and torch.float64."
            )
        if not bool(torch.isfinite(tensor).all()):
            raise FileFormatError(f"Got a posterior whose {name} is not finite.")
