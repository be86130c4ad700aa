"""Fitted estimators to a file and back, without pickle.

One safetensors file: the tensors, and as its metadata the configuration as JSON with
hashes of both. Reading it builds objects of a fixed list of types and runs nothing that
the file says.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from ..conformal.streaming import StreamingConformalRegressor
from ..estimators.module import ClapsModule
from ..estimators.regressor import ClapsRegressor
from ..exceptions import FileFormatError
from ..network.own import Backbone, private_copy
from ..posterior.gaussian import LastLayerPosterior
from .codec import Decoder, Encoder
from .container import describe, hash_tensors, import_safetensors, read, write

__all__ = ["load", "save"]

Saveable = ClapsRegressor | ClapsModule | StreamingConformalRegressor


def save(estimator: Saveable, path: str | os.PathLike[str]) -> None:
    """Write a fitted estimator to a file.

    The file is written under a temporary name in the same folder, flushed to the disk
    and renamed: at ``path`` there is the old file or the new one, whole. Needs
    ``pip install mapie-claps[save]``.

    Parameters
    ----------
    estimator : ClapsRegressor, ClapsModule or StreamingConformalRegressor
        Fitted. The network of a ``ClapsModule`` is not stored, only a hash of its
        weights: keep it as you keep your networks.
    path : path-like
        File to write or replace.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> from mapie_claps import ClapsRegressor, load, save
    >>> X = np.linspace(-1, 1, 40)[:, None]
    >>> model = ClapsRegressor.paper(random_state=0).fit(X, X[:, 0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.claps")
    ...     save(model, path)
    ...     again = load(path)
    >>> np.array_equal(model.predict(X), again.predict(X))
    True
    """
    encoder = Encoder(Backbone=_backbone_fields)
    state = _encode_estimator(encoder, estimator)
    config = json.dumps({"class": type(estimator).__name__, "state": state})
    write(Path(path), config, encoder.tensors)


def load(
    path: str | os.PathLike[str],
    network: nn.Module | None = None,
    noise_variance: Callable[[Tensor], Tensor] | None = None,
) -> Any:
    """Read an estimator that ``save`` wrote.

    Hashes tell damage, not malice: who can change the file can change them. What a
    changed file can do is give wrong numbers; it cannot run code.

    Parameters
    ----------
    path : path-like
        File to read.
    network : torch.nn.Module, optional
        For a ``ClapsModule``: the network it was fitted with. Names, shapes, dtypes
        and a hash of its weights are compared.
    noise_variance : callable, optional
        For a ``ClapsModule`` whose ``noise_variance`` was a callable: that callable.

    Returns
    -------
    ClapsRegressor, ClapsModule or StreamingConformalRegressor
        The fitted estimator.

    Raises
    ------
    FileFormatError
        If the file is not one of ours, damaged, or written by a newer format.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np, torch
    >>> from mapie_claps import ClapsModule, load, save
    >>> net = torch.nn.Linear(1, 1)
    >>> X = np.linspace(-1, 1, 40)[:, None]
    >>> model = ClapsModule(net).fit(X, X[:, 0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(model, os.path.join(folder, "model.claps"))
    ...     again = load(os.path.join(folder, "model.claps"), network=net)
    >>> np.array_equal(model.predict(X), again.predict(X))
    True
    """
    path = Path(path)
    with _as_file_error(path):
        text, tensors = read(path)
        config = json.loads(text)
        kind = config["class"]
        if kind not in _DECODERS:
            raise FileFormatError(
                f"Got the class {kind!r}, but expected one of {sorted(_DECODERS)}."
            )
        context = _Context(tensors, network, noise_variance)
        return _DECODERS[kind](config["state"], context)


class _WrongPart(TypeError):
    """What the caller passed, or did not pass, does not suit the file."""


class _Context:
    """What the parts of a file are decoded with."""

    def __init__(
        self,
        tensors: dict[str, Tensor],
        network: nn.Module | None,
        noise_variance: Callable[[Tensor], Tensor] | None,
    ) -> None:
        self.network, self.noise_variance = network, noise_variance
        self.decoder = Decoder(tensors, Backbone=self._backbone)

    def _backbone(self, values: dict[str, Any]) -> Backbone:
        """The network given by the user, if it is the one that was saved."""
        if self.network is None:
            raise _WrongPart(
                "Got network=None, but the file holds a ClapsModule, whose network is "
                "not stored. Pass load(path, network=...)."
            )
        copied = private_copy(self.network, values["precision"], values["device"])
        _check_network(copied, values["weights"], values["weights_sha256"])
        noise = values["noise"]
        if values["noise_is_callable"]:
            if self.noise_variance is None:
                raise _WrongPart(
                    "Got noise_variance=None, but the file holds a ClapsModule whose "
                    "noise_variance was a callable, which is not stored. Pass "
                    "load(path, network=..., noise_variance=...)."
                )
            noise = self.noise_variance
        elif self.noise_variance is not None:
            raise _WrongPart(
                f"Got noise_variance={self.noise_variance!r}, but the file holds a "
                "ClapsModule whose noise_variance was no callable. Leave it out, or "
                "fit again with it."
            )
        return Backbone(
            copied,
            values["last_layer_name"],
            values["column"],
            noise,
            values["noise_output"],
            values["precision"],
            values["device"],
        )


def _encode_estimator(encoder: Encoder, estimator: Any) -> dict[str, Any]:
    """Parameters and fitted attributes."""
    if type(estimator) is StreamingConformalRegressor:
        estimator.quantiles(allow_infinite_bounds=True)  # raises if not calibrated
        level = estimator.confidence_level
        return {
            "estimator": {
                "class": type(estimator.estimator).__name__,
                "state": _encode_estimator(encoder, estimator.estimator),
            },
            "confidence_level": encoder.encode(level, "confidence_level"),
            "scores": encoder.encode(estimator.conformity_scores_, "scores"),
        }
    if type(estimator) not in (ClapsRegressor, ClapsModule):
        raise TypeError(
            f"Got an estimator of type {type(estimator).__name__}, but save knows "
            "ClapsRegressor, ClapsModule and StreamingConformalRegressor."
        )
    check_is_fitted(estimator, "model_")
    params = estimator.get_params(deep=False)
    params.pop("module", None)
    if callable(params.get("noise_variance")):
        params["noise_variance"] = None
    fitted = {
        k: v
        for k, v in vars(estimator).items()
        if k.endswith("_") and not k.startswith("_")
    }
    return {
        "params": encoder.encode_fields(params, "params"),
        "fitted": encoder.encode_fields(fitted, "fitted"),
    }


def _decode_regressor(state: dict[str, Any], context: _Context) -> ClapsRegressor:
    for name in ("network", "noise_variance"):
        if getattr(context, name) is not None:
            raise _WrongPart(
                f"Got {name} of type {type(getattr(context, name)).__name__}, but the "
                "file holds a ClapsRegressor, which is stored whole. Leave it out."
            )
    estimator = ClapsRegressor(**_decoded_fields(state["params"], context))
    _set_fitted(estimator, state["fitted"], context)
    network = estimator.model_.network
    n_members, size = network.n_members, network.representation_size
    _check_posterior(estimator.model_.posterior, n_members, size)
    _check_posterior(estimator.model_.homoscedastic, n_members, size)
    weight = estimator.model_.member_weight
    if tuple(weight.shape) != (n_members,) or weight.dtype != torch.float64:
        raise FileFormatError(
            f"Got a member_weight of shape {tuple(weight.shape)} and type "
            f"{weight.dtype}, but expected ({n_members},) and torch.float64."
        )
    return estimator


def _decode_module(state: dict[str, Any], context: _Context) -> ClapsModule:
    params = _decoded_fields(state["params"], context)
    if context.noise_variance is not None:
        params["noise_variance"] = context.noise_variance
    estimator = ClapsModule(context.network, **params)  # type: ignore[arg-type]
    _set_fitted(estimator, state["fitted"], context)
    size = estimator.network_.backbone.last_layer.in_features
    _check_posterior(estimator.model_.posterior, 1, size)
    _check_posterior(estimator.model_.homoscedastic, 1, size)
    return estimator


def _decode_conformal(
    state: dict[str, Any], context: _Context
) -> StreamingConformalRegressor:
    inner = state["estimator"]
    if inner["class"] not in ("ClapsModule", "ClapsRegressor"):
        raise FileFormatError(f"Got an estimator of the class {inner['class']!r}.")
    return StreamingConformalRegressor.from_scores(
        _DECODERS[inner["class"]](inner["state"], context),
        context.decoder.decode(state["scores"]),
        context.decoder.decode(state["confidence_level"]),
    )


_DECODERS: dict[str, Callable[[dict[str, Any], _Context], Any]] = {
    "ClapsModule": _decode_module,
    "ClapsRegressor": _decode_regressor,
    "StreamingConformalRegressor": _decode_conformal,
}


def _decoded_fields(nodes: dict[str, Any], context: _Context) -> dict[str, Any]:
    return {name: context.decoder.decode(node) for name, node in nodes.items()}


def _set_fitted(estimator: Any, nodes: dict[str, Any], context: _Context) -> None:
    for name, value in _decoded_fields(nodes, context).items():
        if not name.isidentifier() or name.startswith("_") or not name.endswith("_"):
            raise FileFormatError(f"Got the attribute {name!r}.")
        setattr(estimator, name, value)


def _check_posterior(posterior: LastLayerPosterior, n_members: int, size: int) -> None:
    """Raise unless all tensors fit the network."""
    vector = (n_members, size + 1)
    matrices = (vector, (*vector, size + 1))
    expected = {
        "mean": (posterior.mean, (vector,)),
        "trained": (posterior.trained, (vector,)),
        "scale": (posterior.scale, matrices),
        "gram": (posterior.moments.gram, matrices),
        "cross": (posterior.moments.cross, (vector,)),
    }
    for name, (tensor, shapes) in expected.items():
        if tuple(tensor.shape) not in shapes or tensor.dtype != torch.float64:
            raise FileFormatError(
                f"Got a posterior whose {name} has shape {tuple(tensor.shape)} and "
                f"type {tensor.dtype}, but expected {shapes[-1]} and torch.float64."
            )


def _backbone_fields(backbone: Backbone) -> dict[str, Any]:
    """Names of the parts of the user's network, and what tells it from others."""
    is_callable = callable(backbone.noise)
    return {
        "last_layer_name": backbone.last_layer_name,
        "column": backbone.column,
        "noise": None if is_callable else backbone.noise,
        "noise_is_callable": is_callable,
        "noise_output": backbone.noise_output,
        "precision": backbone.precision,
        "device": backbone.device,
        "weights": describe(_weights(backbone.network)),
        "weights_sha256": hash_tensors(_weights(backbone.network)),
    }


def _weights(network: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, those that a state_dict leaves out as well."""
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


def _check_network(network: nn.Module, described: dict[str, str], digest: str) -> None:
    """Raise unless the network is the one that was saved."""
    found = describe(_weights(network))
    for name in sorted(described.keys() | found.keys()):
        if described.get(name) != found.get(name):
            raise FileFormatError(
                f"Got a network whose {name!r} is {found.get(name, 'missing')}, but "
                f"the file was saved with {described.get(name, 'no such tensor')} "
                "(after the cast to the precision in use). Pass the network that the "
                "estimator was fitted with."
            )
    if hash_tensors(_weights(network)) != digest:
        raise FileFormatError(
            "Got a network of the right shape with other weights than those the "
            "estimator was fitted with. Load its weights first, or fit again."
        )


@contextmanager
def _as_file_error(path: Path) -> Iterator[None]:
    """Name the file in every error that its content causes."""
    damage = (
        FileFormatError,
        import_safetensors().SafetensorError,
        KeyError,
        TypeError,
        AttributeError,
        ValueError,
        IndexError,
        RuntimeError,
        RecursionError,
    )
    try:
        yield
    except _WrongPart:
        raise
    except damage as error:
        ours = isinstance(error, FileFormatError)
        what = str(error) if ours else f"{type(error).__name__}: {error}"
        raise FileFormatError(f"Cannot load {str(path)!r}. {what}") from error
