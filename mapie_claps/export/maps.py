"""T⁻¹ in torch, of plain operations that an engine has."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from ..network.target_curves import MonotoneSpline, YeoJohnson
from ..network.target_map import Identity, Log, SquareRoot, TargetMap


def number_left(x: Tensor, values: Tensor, equal: bool = False) -> Tensor:
    """How many of a few values are less than each x, or also equal; shape of x.

    In one column: onnxruntime 1.31 cannot compare three axes where there are no rows.
    """
    column = x.flatten()[:, None]
    left = column >= values if equal else column > values
    return left.sum(-1).reshape(x.shape)


class _Exp(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return z.exp()


class _Square(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return z.clamp(min=0).square()


class _Standardised(nn.Module, ABC):
    """A curve on a range, a line beyond."""

    ends: Tensor  # (2,), of x
    image: Tensor  # (2,)
    slopes: Tensor  # (2,)

    def __init__(self, target_map: Any) -> None:
        super().__init__()
        ends = torch.tensor(target_map._range(), dtype=torch.float64)
        for name, values in (
            ("ends", ends),
            ("image", target_map._curve(ends.numpy())),
            ("slopes", target_map._slope(ends.numpy())),
        ):
            self.register_buffer(name, torch.as_tensor(values, dtype=torch.float64))
        # Tensors, see graph.py.
        self.centre = torch.tensor(target_map.centre, dtype=torch.float64)
        self.unit = torch.tensor(target_map.unit, dtype=torch.float64)

    @abstractmethod
    def curve(self, z: Tensor) -> Tensor:
        """The inverse on the range."""

    def forward(self, z: Tensor) -> Tensor:
        inside = torch.minimum(torch.maximum(z, self.image[0]), self.image[1])
        x = self.curve(inside)
        x = torch.where(z < inside, self.ends[0] + (z - inside) / self.slopes[0], x)
        x = torch.where(z > inside, self.ends[1] + (z - inside) / self.slopes[1], x)
        return self.centre + self.unit * x


class _YeoJohnson(_Standardised):
    def __init__(self, target_map: YeoJohnson) -> None:
        super().__init__(target_map)
        self.power = target_map.power

    def curve(self, z: Tensor) -> Tensor:
        size = z.abs()
        below, above = (_grown(size, p) for p in (2 - self.power, self.power))
        return torch.where(z < 0, 1 - below.exp(), above.exp() - 1)


def _grown(size: Tensor, power: float) -> Tensor:
    p = torch.tensor(power, dtype=torch.float64)
    return (1 + p * size).log() / p if power > 0 else size


class _Spline(_Standardised):
    x: Tensor
    z: Tensor
    width: Tensor
    rise: Tensor
    left: Tensor
    right: Tensor

    def __init__(self, target_map: MonotoneSpline) -> None:
        super().__init__(target_map)
        x, z, slope = (
            torch.from_numpy(values.copy())
            for values in (target_map.x, target_map.z, target_map.slope)
        )
        width, rise = x.diff(), z.diff()
        for name, values in (
            ("x", x[:-1]),
            ("z", z[:-1]),
            ("width", width),
            ("rise", rise),
            ("left", slope[:-1] * width / rise),
            ("right", slope[1:] * width / rise),
        ):
            self.register_buffer(name, values.clone())

    def curve(self, z: Tensor) -> Tensor:
        i = number_left(z, self.z, equal=True).sub(1).clamp(min=0)
        width, rise, left, right = (
            values[i] for values in (self.width, self.rise, self.left, self.right)
        )
        share = (z - self.z[i]) / rise
        bend = share * (left + right - 2)
        a, b = 1 - left + bend, left - bend
        root = (b * b + 4 * a * share).clamp(min=0).sqrt()
        t = (2 * share / (b + root)).clamp(min=0, max=1)
        return self.x[i] + width * t


def inverse_of(target_map: TargetMap) -> nn.Module:
    """A module that computes y = T⁻¹(z)."""
    if isinstance(target_map, Identity):
        return nn.Identity()
    if isinstance(target_map, Log):
        return _Exp()
    if isinstance(target_map, SquareRoot):
        return _Square()
    if isinstance(target_map, YeoJohnson):
        return _YeoJohnson(target_map)
    if isinstance(target_map, MonotoneSpline):
        return _Spline(target_map)
    raise ValueError(
        "Got a model whose target_map is a transformer of scikit-learn, which cannot "
        "be exported. Fit with target_map='auto', 'spline', 'yeo-johnson', 'log', "
        "'sqrt' or None."
    )
