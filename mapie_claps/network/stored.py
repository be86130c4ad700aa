"""Members of ``ClapsRegressor`` ↔ fields of a file."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ..exceptions import FileFormatError
from ..files.codec import Context, register, saved_as
from .encoding import PiecewiseLinearEncoding
from .ensemble import HeteroscedasticNetwork
from .target_curves import MonotoneSpline, YeoJohnson
from .target_map import Identity, Log, SquareRoot
from .views import VIEW_CLASSES

_FIELDS = ("n_columns", "variance_floor", "views", "scaling_rate", "state")


def _to_fields(network: HeteroscedasticNetwork) -> dict[str, Any]:
    """What fixes the members."""
    return {
        "n_columns": network.encoding.n_raw,
        "variance_floor": network.variance_floor,
        "views": network.views,
        "scaling_rate": network.scaling_rate,
        "state": dict(network.state_dict()),
    }


def _from_fields(values: dict[str, Any], context: Context) -> HeteroscedasticNetwork:
    """Members of the sizes that the stored tensors have, then their weights."""
    n_columns, views, state = (values[k] for k in ("n_columns", "views", "state"))
    floor, rate = float(values["variance_floor"]), float(values["scaling_rate"])
    n_hidden = sum(k.startswith("trunk.") and k.endswith(".weight") for k in state)
    layers = ["first.0", *(f"trunk.{i}" for i in range(n_hidden))]
    sizes = [int(state[f"{layer}.weight"].shape[2]) for layer in layers]
    _check_numbers(floor, rate, state)
    _check_sizes(n_columns, views, rate, sizes, state)
    bins = torch.bincount(state["encoding.column"], minlength=n_columns)
    edges = [torch.zeros(int(n) + 1 if n else 0) for n in bins]
    network = HeteroscedasticNetwork(
        PiecewiseLinearEncoding(edges, _n_numbers(n_columns, state)),
        sizes,
        int(state["mean_head.weight"].shape[0]),
        floor,
        torch.Generator(),
        views,
        rate,
    )
    network.double().load_state_dict(state)
    return network.eval().requires_grad_(False)


def _n_numbers(n_columns: int, state: dict[str, Tensor]) -> int:
    """Columns that are not 0 or 1, as the frequencies tell; all, if there are none."""
    shapes = [t.shape for name, t in state.items() if name.endswith(".view.frequency")]
    found = {int(shape[1]) for shape in shapes if len(shape) == 3} or {n_columns}
    return min(n_columns, *found)


def _check_numbers(floor: float, rate: float, state: dict[str, Tensor]) -> None:
    """Raise for numbers that no training leaves behind."""
    if not floor > 0 or not rate >= 0:
        raise FileFormatError(
            f"Got a network with variance_floor={floor!r} and scaling_rate={rate!r}, "
            "but expected a positive floor and a rate of at least 0."
        )
    for name, tensor in state.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise FileFormatError(f"Got a network whose {name} is not finite.")


def _check_sizes(
    n_columns: int,
    views: list[str],
    scaling_rate: float,
    layer_sizes: list[int],
    state: dict[str, Tensor],
) -> None:
    """Raise unless all sizes agree, before anything is allocated.

    Then the network needs no more memory than the file has bytes for it.
    """
    column = state["encoding.column"]
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    per_bin = ("encoding.left", "encoding.width", "encoding.column")
    expected: dict[str, tuple[int, ...]] = dict.fromkeys(per_bin, (column.numel(),))
    n_members = 0
    for i, name in enumerate(views):
        members = found[f"first.{i}.weight"][0]
        expected |= _first_layer_shapes(
            f"first.{i}",
            name,
            (n_columns, _n_numbers(n_columns, state)),
            column,
            members,
            layer_sizes[0],
            scaling_rate,
        )
        n_members += members
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


def _first_layer_shapes(
    layer: str,
    view: str,
    n_columns: tuple[int, int],  # in all, and of numbers
    column: Tensor,  # of each bin
    n_members: int,
    width: int,
    scaling_rate: float,
) -> dict[str, tuple[int, ...]]:
    """Shapes of one first layer, as told by its view on torch's device without data."""
    n_raw, n_numbers = n_columns
    if column.numel() and not 0 <= int(column.min()) <= int(column.max()) < n_raw:
        raise FileFormatError("Got bins for columns that do not exist.")
    with torch.device("meta"):
        encoding = PiecewiseLinearEncoding([torch.empty(0)])
        encoding.n_raw, encoding.n_outputs = n_raw, n_raw + column.numel()
        encoding.n_numbers = n_numbers
        seen = VIEW_CLASSES[view](encoding, n_members)
    shapes: dict[str, tuple[int, ...]] = {
        f"{layer}.weight": (n_members, seen.n_inputs, width),
        f"{layer}.bias": (n_members, 1, width),
    }
    if scaling_rate:
        shapes[f"{layer}.factor"] = (n_members, seen.n_inputs, 1)
    for name, parameter in seen.named_parameters():
        shapes[f"{layer}.view.{name}"] = tuple(parameter.shape)
    return shapes


register(HeteroscedasticNetwork, "ensemble", _to_fields, _from_fields, _FIELDS)
for tag, kind in (
    ("identity", Identity),
    ("log", Log),
    ("square root", SquareRoot),
    ("yeo-johnson", YeoJohnson),
    ("monotone spline", MonotoneSpline),
):
    saved_as(tag)(kind)
