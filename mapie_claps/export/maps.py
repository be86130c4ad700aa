"""T⁻¹ in torch, of plain operations that an engine has."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..network.target_curves import MonotoneSpline, YeoJohnson
from ..network.target_map import Identity, Log, SquareRoot, TargetMap

Inverse = Callable[[Any, Tensor], Tensor]


def constant(values: Any) -> Tensor:
    """Numbers as a tensor, see graph.py."""
    return torch.as_tensor(np.array(values, dtype=np.float64))


def number_left(x: Tensor, values: Tensor, equal: bool = False) -> Tensor:
    """How many of a few values are less than each x, or also equal; shape of x.

    In one column: onnxruntime 1.31 cannot compare three axes where there are no rows.
    """
    column = x.flatten()[:, None]
    left = column >= values if equal else column > values
    return left.sum(-1).reshape(x.shape)


def inverse_of(target_map: TargetMap) -> Callable[[Tensor], Tensor]:
    """The function y = T⁻¹(z)."""
    if type(target_map) not in _INVERSES:
        raise ValueError(
            "Got a model whose target_map is a transformer of scikit-learn, which "
            "cannot be exported. Fit with target_map='auto', 'spline', 'yeo-johnson', "
            "'log', 'sqrt' or None."
        )
    return partial(_INVERSES[type(target_map)], target_map)


def _line_beyond(curve: Inverse, target_map: Any, z: Tensor) -> Tensor:
    """A curve on a range, a line beyond."""
    ends, image, slopes = map(constant, target_map._ends)
    inside = torch.minimum(torch.maximum(z, image[0]), image[1])
    x = curve(target_map, inside)
    x = torch.where(z < inside, ends[0] + (z - inside) / slopes[0], x)
    x = torch.where(z > inside, ends[1] + (z - inside) / slopes[1], x)
    return constant(target_map.centre) + constant(target_map.unit) * x


def _power(target_map: YeoJohnson, z: Tensor) -> Tensor:
    size, power = z.abs(), target_map.power
    below, above = (
        (1 + constant(p) * size).log() / constant(p) if p > 0 else size
        for p in (2 - power, power)
    )
    return torch.where(z < 0, 1 - below.exp(), above.exp() - 1)


def _spline(target_map: MonotoneSpline, z: Tensor) -> Tensor:
    pieces = constant(target_map._pieces)  # (6, m − 1)
    i = number_left(z, pieces[1], equal=True).sub(1).clamp(min=0)
    x0, z0, width, rise, left, right = (values[i] for values in pieces.unbind())
    share = (z - z0) / rise
    bend = share * (left + right - 2)
    a, b = 1 - left + bend, left - bend
    root = (b * b + 4 * a * share).clamp(min=0).sqrt()
    return x0 + width * (2 * share / (b + root)).clamp(min=0, max=1)


_INVERSES: dict[type, Inverse] = {
    Identity: lambda _, z: z,
    Log: lambda _, z: z.exp(),
    SquareRoot: lambda _, z: z.clamp(min=0).square(),
    YeoJohnson: partial(_line_beyond, _power),
    MonotoneSpline: partial(_line_beyond, _spline),
}
