"""y → z = T(y): strictly increasing maps of the target, fixed before calibration.

A map is fitted on training targets, continues beyond their range, and is inverted to
rounding. Networks, h², Σ and v live in z; interval ends come back through the inverse.
NumPy only.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
EPS = float(np.finfo(np.float64).eps)
MAPS = ("identity", "yeo-johnson", "spline", "log", "sqrt")  # that have a name

# Roundings of a pass through a map and back, in units in the last place: an end that
# moves outwards by this much loses no y whose rounded T(y) lies inside.
ROUNDINGS = 16.0


class TargetMap(ABC):
    """A strictly increasing function T of the target, with inverse and derivative.

    A value outside ``domain`` has no image: ``forward`` gives NaN there.
    """

    # Smallest and largest end point that makes sense.
    domain: ClassVar[tuple[float, float]] = (-np.inf, np.inf)

    @abstractmethod
    def forward(self, y: ArrayLike) -> Array:
        """Compute z = T(y); NaN outside the domain."""

    @abstractmethod
    def inverse(self, z: ArrayLike) -> Array:
        """Compute y = T⁻¹(z)."""

    @abstractmethod
    def derivative(self, y: ArrayLike) -> Array:
        """Compute T′(y)."""

    def end(self, z: ArrayLike, side: float) -> Array:
        """T⁻¹(z), rounded downwards (side −1) or upwards (side +1)."""
        z_ = np.asarray(z, dtype=np.float64)
        finite = np.isfinite(z_)
        out = self.outwards(self.inverse(np.where(finite, z_, 0.0)), z_, side)
        # An infinite end holds all targets, those outside the domain as well.
        return np.where(finite, out, z_)

    def outwards(self, y: Array, z: Array, side: float | Array) -> Array:
        """Move y = T⁻¹(z) downwards (side −1) or upwards (side +1) by its rounding."""
        infinite = np.multiply(side, np.inf)
        with np.errstate(all="ignore"):
            out = y + side * (ROUNDINGS * EPS * self._rounding(y, z))
        out = np.where(np.isnan(out), infinite, np.nextafter(out, infinite))
        low, high = self.domain
        return np.minimum(np.maximum(out, low), high)

    def _rounding(self, y: Array, z: Array) -> Array:
        """Size of what is rounded on the way to y and back, in units of y."""
        return np.abs(y) + np.abs(z) / self.derivative(y)


@dataclass(frozen=True)
class Identity(TargetMap):
    """T(y) = y."""

    def forward(self, y: ArrayLike) -> Array:
        """Return y."""
        return np.asarray(y, dtype=np.float64)

    def inverse(self, z: ArrayLike) -> Array:
        """Return z."""
        return np.asarray(z, dtype=np.float64)

    def derivative(self, y: ArrayLike) -> Array:
        """Return ones."""
        return np.ones_like(np.asarray(y, dtype=np.float64))

    def end(self, z: ArrayLike, side: float) -> Array:
        """Return z: nothing is rounded."""
        return np.asarray(z, dtype=np.float64)


@dataclass(frozen=True)
class Log(TargetMap):
    """T(y) = log(y), for y > 0."""

    domain = (0.0, np.inf)

    def forward(self, y: ArrayLike) -> Array:
        """Compute log(y); NaN where y ≤ 0."""
        y_ = np.asarray(y, dtype=np.float64)
        return np.log(y_, out=np.full(y_.shape, np.nan), where=y_ > 0)

    def inverse(self, z: ArrayLike) -> Array:
        """Compute exp(z)."""
        with np.errstate(over="ignore"):
            return np.exp(np.asarray(z, dtype=np.float64))

    def derivative(self, y: ArrayLike) -> Array:
        """Compute 1/y."""
        with np.errstate(divide="ignore"):
            return 1 / np.asarray(y, dtype=np.float64)


@dataclass(frozen=True)
class SquareRoot(TargetMap):
    """T(y) = √y, for y ≥ 0; z below 0 stands for y = 0."""

    domain = (0.0, np.inf)

    def forward(self, y: ArrayLike) -> Array:
        """Compute √y; NaN where y < 0."""
        y_ = np.asarray(y, dtype=np.float64)
        return np.sqrt(y_, out=np.full(y_.shape, np.nan), where=y_ >= 0)

    def inverse(self, z: ArrayLike) -> Array:
        """Compute z², or 0 where z < 0."""
        return np.square(np.maximum(np.asarray(z, dtype=np.float64), 0.0))

    def derivative(self, y: ArrayLike) -> Array:
        """Compute 1/(2√y), infinite at 0."""
        with np.errstate(divide="ignore"):
            return 0.5 / np.sqrt(np.asarray(y, dtype=np.float64))
