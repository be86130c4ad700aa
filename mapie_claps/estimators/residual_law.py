"""What ``fit`` learns of the noise beyond h²: map, sides and shape, and their file."""

import hashlib
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np
from torch import Tensor

from ..files.codec import saved_as
from ..network.target_map import Identity, TargetMap
from ..network.target_transformer import TransformerMap
from .residual_shape import ResidualShape
from .target_range import TargetRange


@saved_as("residual law")
@dataclass(frozen=True, eq=False)
class ResidualLaw:
    """Map of the target, weights of the skew, shape of the residuals."""

    target_map: TargetMap = field(default_factory=Identity)
    skew: Tensor | None = None  # (K, d + 1)
    shape: ResidualShape = field(default_factory=ResidualShape)
    targets: TargetRange | None = None  # None: not known, as in files of version 1

    def text(self) -> str:
        """Text that differs between laws that differ in any number."""
        return digest_of(self)


def digest_of(*values: Any) -> str:
    """Text that differs between dataclasses and arrays that differ in any number."""
    return hashlib.sha256(_text(values).encode()).hexdigest()


def _text(value: Any) -> str:
    """All numbers of a dataclass, however deep."""
    if isinstance(value, Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return f"{value.shape} {value.tobytes().hex()}"
    if isinstance(value, TransformerMap):  # known by what it does
        grid = np.linspace(*value.y_range, 101)
        return f"{value.transformer!r} {value.y_range!r} {_text(value.forward(grid))}"
    if is_dataclass(value):
        parts = (_text(getattr(value, field.name)) for field in fields(value))
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, list | tuple):  # repr leaves out what is long
        return f"{type(value).__name__}({', '.join(map(_text, value))})"
    if isinstance(value, dict):
        return _text(list(value.items()))
    return repr(value)


PLAIN_LAW = ResidualLaw()
saved_as("residual shape")(ResidualShape)
saved_as("target range")(TargetRange)
