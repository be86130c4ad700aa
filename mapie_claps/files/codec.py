"""Fitted objects ↔ JSON and named tensors, for a fixed list of types.

A JSON number, string, boolean, null or list stands for itself. All else is an object
with one key that says what it is: ``tensor``, ``array`` (both name a tensor of the
file), ``strings``, ``tuple``, ``dict``, or the name of a type below with its fields.
"""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from ..exceptions import FileFormatError
from ..network.ensemble import (
    N_FREQUENCIES,
    HeteroscedasticNetwork,
    PiecewiseLinearEncoding,
)
from ..network.noise_head import NoiseHead
from ..posterior.feature_network import FeatureNetwork
from ..posterior.gaussian import FeatureBatch, LastLayerMoments, LastLayerPosterior
from ..posterior.module_scales import ModulePredictive
from ..posterior.scales import PredictiveModel
from ..posterior.sums import HeldOutRows, LastLayerSums, Spread

DATACLASSES: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        FeatureBatch,
        FeatureNetwork,
        HeldOutRows,
        LastLayerMoments,
        LastLayerPosterior,
        LastLayerSums,
        ModulePredictive,
        NoiseHead,
        PredictiveModel,
        Spread,
    )
}
_SCALER_FIELDS = ("mean_", "scale_", "var_", "n_samples_seen_", "n_features_in_")


class Encoder:
    """Turns objects into JSON values, and gathers their tensors."""

    def __init__(self, **by_type: Callable[[Any], Any]) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.by_type = by_type  # further types, by the name of their class

    def encode(self, value: Any, name: str) -> Any:
        """JSON value of an object; ``name`` is where it stands."""
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, np.generic):
            return self.encode(value.item(), name)
        if isinstance(value, Tensor):
            return {"tensor": self._keep(name, value)}
        if isinstance(value, np.ndarray):
            return self._array(value, name)
        if isinstance(value, list):
            return [self.encode(v, f"{name}.{i}") for i, v in enumerate(value)]
        if isinstance(value, tuple):
            return {"tuple": self.encode(list(value), name)}
        if isinstance(value, dict) and all(isinstance(k, str) for k in value):
            return {"dict": self.encode_fields(value, name)}
        return self._object(value, name)

    def encode_fields(self, values: dict[str, Any], name: str) -> dict[str, Any]:
        """JSON values of named objects."""
        return {k: self.encode(v, f"{name}.{k}") for k, v in values.items()}

    def _keep(self, name: str, tensor: Tensor) -> str:
        # A clone: safetensors refuses tensors that share memory.
        self.tensors[name] = tensor.detach().cpu().clone().contiguous()
        return name

    def _array(self, value: np.ndarray[Any, Any], name: str) -> Any:
        if value.dtype.kind in "OUT":
            strings = value.tolist()
            if value.ndim == 1 and all(isinstance(s, str) for s in strings):
                return {"strings": strings}
        if value.dtype.kind not in "fiub":
            raise _cannot_save(value, name)
        return {"array": self._keep(name, torch.from_numpy(np.array(value)))}

    def _object(self, value: Any, name: str) -> Any:
        kind = type(value).__name__
        if kind in self.by_type:
            return {kind: self.encode_fields(self.by_type[kind](value), name)}
        if is_dataclass(value) and DATACLASSES.get(kind) is type(value):
            content = {f.name: getattr(value, f.name) for f in fields(value)}
            return {kind: self.encode_fields(content, name)}
        if type(value) is StandardScaler:
            content = {k: getattr(value, k) for k in _SCALER_FIELDS}
            return {kind: self.encode_fields(content, name)}
        if type(value) is HeteroscedasticNetwork:
            return {kind: self.encode_fields(_network_fields(value), name)}
        raise _cannot_save(value, name)


def _cannot_save(value: Any, name: str) -> TypeError:
    return TypeError(
        f"Got {name} of type {type(value).__name__}, which the file format does not "
        "know. Save a fitted ClapsRegressor, ClapsModule or "
        "StreamingConformalRegressor whose parameters are numbers, strings or tuples "
        "(random_state: an integer or None)."
    )


class Decoder:
    """Turns JSON values back into objects."""

    def __init__(
        self, tensors: dict[str, Tensor], **by_type: Callable[[dict[str, Any]], Any]
    ) -> None:
        self.tensors = tensors
        self.by_type = by_type

    def decode(self, node: Any) -> Any:
        """Object of a JSON value."""
        if isinstance(node, list):
            return [self.decode(n) for n in node]
        if not isinstance(node, dict):
            return node
        if len(node) != 1:
            raise FileFormatError(f"Got an object with the keys {sorted(node)}.")
        ((kind, content),) = node.items()
        return self._object(kind, content)

    def _object(self, kind: str, content: Any) -> Any:
        if kind in ("tensor", "array"):
            tensor = self.tensors[content]
            return tensor if kind == "tensor" else tensor.numpy()
        if kind == "strings":
            return np.array([str(s) for s in content], dtype=object)
        if kind == "tuple":
            return tuple(self.decode(content))
        if kind not in {"dict", *self.by_type, *DATACLASSES, *_BUILDERS}:
            raise FileFormatError(f"Got an object of the unknown type {kind!r}.")
        values = {k: self.decode(v) for k, v in content.items()}
        if kind == "dict":
            return values
        if kind in self.by_type:
            return self.by_type[kind](values)
        if kind in DATACLASSES:
            return DATACLASSES[kind](**values)
        return _BUILDERS[kind](**values)


def _network_fields(network: HeteroscedasticNetwork) -> dict[str, Any]:
    """What fixes the members of ClapsRegressor."""
    encoding = network.encoding
    return {
        "n_columns": encoding.n_outputs - len(encoding.left),
        "variance_floor": network.variance_floor,
        "views": [first.view for first in network.first],
        "scaling_rate": network.first[0].scaling_rate,
        "state": dict(network.state_dict()),
    }


def _build_network(
    n_columns: int,
    variance_floor: float,
    views: list[str],
    scaling_rate: float,
    state: dict[str, Tensor],
) -> HeteroscedasticNetwork:
    """Members of the sizes that the stored tensors have, then their weights."""
    n_hidden = sum(k.startswith("trunk.") and k.endswith(".weight") for k in state)
    layers = ["first.0", *(f"trunk.{i}" for i in range(n_hidden))]
    sizes = [int(state[f"{layer}.weight"].shape[2]) for layer in layers]
    _check_sizes(n_columns, views, scaling_rate, sizes, state)
    bins = torch.bincount(state["encoding.column"], minlength=n_columns)
    network = HeteroscedasticNetwork(
        PiecewiseLinearEncoding([torch.zeros(int(n) + 1 if n else 0) for n in bins]),
        sizes,
        int(state["mean_head.weight"].shape[0]),
        float(variance_floor),
        torch.Generator(),
        views,
        float(scaling_rate),
    )
    network.double().load_state_dict(state)
    return network.eval().requires_grad_(False)


def _check_sizes(
    n_columns: int,
    views: list[str],
    scaling_rate: float,
    layer_sizes: list[int],
    state: dict[str, Tensor],
) -> None:
    """Raise unless the tensors bear out every size, so that none is made in vain.

    Then the network needs no more memory than the file has bytes for it.
    """
    column = state["encoding.column"]
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    expected = _first_layer_shapes(
        n_columns, n_columns + column.numel(), views, scaling_rate, found
    )
    per_bin = ("encoding.left", "encoding.width", "encoding.column")
    expected |= dict.fromkeys(per_bin, (column.numel(),))
    n_members = sum(found[f"first.{i}.weight"][0] for i in range(len(views)))
    layers = {f"trunk.{i}": ab for i, ab in enumerate(pairwise(layer_sizes))}
    layers |= dict.fromkeys(("mean_head", "noise_head"), (layer_sizes[-1], 1))
    for name, (a, b) in layers.items():
        expected |= {f"{name}.weight": (n_members, a, b)}
        expected |= {f"{name}.bias": (n_members, 1, b)}
    if found != expected or min(n_columns, n_members, *layer_sizes) < 1:
        raise FileFormatError(
            f"Got a network of {n_members} members for {n_columns} columns with layers "
            f"of {layer_sizes}, but tensors of the shapes {found}."
        )
    if column.numel() and not 0 <= int(column.min()) <= int(column.max()) < n_columns:
        raise FileFormatError("Got bins for columns that do not exist.")


def _first_layer_shapes(
    n_columns: int,
    n_encoded: int,
    views: list[str],
    scaling_rate: float,
    found: dict[str, tuple[int, ...]],
) -> dict[str, tuple[int, ...]]:
    """Shapes of the first layers; numbers of members and outputs are those found."""
    n_inputs = {
        "bins": n_encoded,
        "periodic": n_columns * (1 + 2 * N_FREQUENCIES),
        "raw": n_columns,
    }
    expected: dict[str, tuple[int, ...]] = {}
    width = found["first.0.weight"][2]
    for i, view in enumerate(views):
        name, members = f"first.{i}", found[f"first.{i}.weight"][0]
        expected[f"{name}.weight"] = (members, n_inputs[view], width)
        expected[f"{name}.bias"] = (members, 1, width)
        if scaling_rate:
            expected[f"{name}.factor"] = (members, n_inputs[view], 1)
        if view == "periodic":
            expected[f"{name}.frequency"] = (members, n_columns, N_FREQUENCIES)
    return expected


def _build_scaler(**values: Any) -> StandardScaler:
    if set(values) != set(_SCALER_FIELDS):
        raise FileFormatError(f"Got a scaler with the fields {sorted(values)}.")
    scaler = StandardScaler()
    for name, value in values.items():
        setattr(scaler, name, value)
    return scaler


_BUILDERS: dict[str, Callable[..., Any]] = {
    "HeteroscedasticNetwork": _build_network,
    "StandardScaler": _build_scaler,
}
