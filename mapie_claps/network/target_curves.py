"""Curved maps of the target: Yeo and Johnson's power, and a monotone spline."""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import yeojohnson_normmax

from .target_map import TargetMap

__all__ = ["MonotoneSpline", "YeoJohnson"]

Array = NDArray[np.float64]

MARGIN = 0.5  # standard deviations beyond the data where a curve becomes a line
SPLINE_KNOTS = 13
TAIL_ROWS = 5
# No piece of a spline is steeper or flatter than its mean slope by more than this.
SLOPE_RATIO = 100.0


class _Standardised(TargetMap):
    """T(y) = f(x) with x = (y − centre)/unit: curved on a range of x, a line beyond."""

    centre: float
    unit: float

    def forward(self, y: ArrayLike) -> Array:
        """Compute T(y)."""
        x = (np.asarray(y, dtype=np.float64) - self.centre) / self.unit
        inside = np.clip(x, *self._range())
        return self._curve(inside) + self._slope(inside) * (x - inside)

    def inverse(self, z: ArrayLike) -> Array:
        """Compute T⁻¹(z)."""
        z_ = np.asarray(z, dtype=np.float64)
        ends = np.array(self._range())
        inside = np.clip(z_, *self._curve(ends))
        x = self._inverse_curve(inside)
        # Exactly the end, not its image's image, so that both lines meet the curve.
        x = np.where(z_ < inside, ends[0], np.where(z_ > inside, ends[1], x))
        y: Array = self.centre + self.unit * (x + (z_ - inside) / self._slope(x))
        return y

    def derivative(self, y: ArrayLike) -> Array:
        """Compute T′(y)."""
        x = (np.asarray(y, dtype=np.float64) - self.centre) / self.unit
        slope: Array = self._slope(np.clip(x, *self._range())) / self.unit
        return slope

    def _rounding(self, y: Array, z: Array) -> Array:
        # y may be the small difference of large numbers, z that of its knots.
        size = np.abs(z) + np.abs(self._curve(np.array(self._range()))).max()
        room: Array = np.abs(y) + abs(self.centre) + size / self.derivative(y)
        return room

    @abstractmethod
    def _range(self) -> tuple[float, float]:
        """Where f is curved."""

    @abstractmethod
    def _curve(self, x: Array) -> Array:
        """Compute f(x) for x in the range."""

    @abstractmethod
    def _inverse_curve(self, z: Array) -> Array:
        """Compute x with f(x) = z, for z in the image of the range."""

    @abstractmethod
    def _slope(self, x: Array) -> Array:
        """Compute f′(x) for x in the range."""


@dataclass(frozen=True)
class YeoJohnson(_Standardised):
    """Yeo and Johnson's power map of the standardised target."""

    centre: float
    unit: float
    power: float  # in [0, 2]: 1 is a line, 0 a logarithm above the mean
    low: float
    high: float

    @classmethod
    def fit(cls, y: Array) -> "YeoJohnson":
        """Choose the power by maximum likelihood of a normal law."""
        centre, unit = float(y.mean()), float(y.std())
        x = (y - centre) / unit
        power = float(np.clip(yeojohnson_normmax(x), 0.0, 2.0))
        low, high = float(x.min()) - MARGIN, float(x.max()) + MARGIN
        return cls(centre, unit, power, low, high)

    def _range(self) -> tuple[float, float]:
        return self.low, self.high

    def _curve(self, x: Array) -> Array:
        power = np.where(x < 0, 2 - self.power, self.power)
        grown = np.log1p(np.abs(x))
        with np.errstate(invalid="ignore"):
            bent = np.where(power > 0, np.expm1(power * grown) / power, grown)
        return np.copysign(bent, x)

    def _inverse_curve(self, z: Array) -> Array:
        power = np.where(z < 0, 2 - self.power, self.power)
        size = np.abs(z)
        with np.errstate(invalid="ignore"):
            grown = np.where(power > 0, np.log1p(power * size) / power, size)
        return np.copysign(np.expm1(grown), z)

    def _slope(self, x: Array) -> Array:
        power = np.where(x < 0, 2 - self.power, self.power)
        slope: Array = np.exp((power - 1) * np.log1p(np.abs(x)))
        return slope


@dataclass(frozen=True, eq=False)
class MonotoneSpline(_Standardised):
    """Rational quadratic pieces through (x, z) with the given slopes at the knots.

    Increasing by construction, with a closed-form inverse (Gregory and Delbourgo).
    """

    centre: float
    unit: float
    x: Array  # (m,), increasing
    z: Array  # (m,), increasing
    slope: Array  # (m,), positive

    @classmethod
    def through(
        cls, x: Array, z: Array, centre: float = 0.0, unit: float = 1.0
    ) -> "MonotoneSpline":
        """Spline through increasing points, with slopes between those of the chords."""
        chord = np.diff(z) / np.diff(x)
        # The harmonic mean stays near the flatter chord, as in PCHIP: no overshoot.
        inner = 2 / (1 / chord[1:] + 1 / chord[:-1])
        return cls(centre, unit, x, z, np.r_[chord[0], inner, chord[-1]])

    @classmethod
    def fit(cls, y: Array, n_knots: int = SPLINE_KNOTS) -> "MonotoneSpline":
        """Send quantiles of y to those of a normal law; tied values to their middle."""
        centre, unit = float(y.mean()), float(y.std())
        ordered = np.sort((y - centre) / unit)
        n = len(ordered)
        # Evenly spaced in z, so that the tails are resolved as the middle is; a few
        # targets lie beyond the outer knots, whose slopes would be noise otherwise.
        level = ndtr(np.linspace(-1, 1, n_knots) * ndtri(1 - min(TAIL_ROWS / n, 0.1)))
        x = ordered[(level * (n - 1)).round().astype(int)]
        x = x[np.r_[True, np.diff(x) > 1e-6]]
        if len(x) < 2:  # nearly all targets are one, next to the others: a line
            x = ordered[[0, -1]]
        rank = np.searchsorted(ordered, x, "left") + np.searchsorted(
            ordered, x, "right"
        )
        z = ndtri(rank / (2 * n))
        chord = np.diff(z) / np.diff(x)
        mean = (z[-1] - z[0]) / (x[-1] - x[0])
        chord = np.clip(chord, mean / SLOPE_RATIO, mean * SLOPE_RATIO)
        z = z[0] + np.r_[0.0, np.cumsum(chord * np.diff(x))]
        return cls.through(x, z, centre, unit)

    def _range(self) -> tuple[float, float]:
        return float(self.x[0]), float(self.x[-1])

    def _piece(self, knots: Array, value: Array) -> NDArray[np.intp]:
        """Number of the piece that holds each value."""
        right = np.searchsorted(knots, value, side="right") - 1
        return np.clip(right, 0, len(knots) - 2)

    def _parts(self, i: NDArray[np.intp]) -> tuple[Array, Array, Array, Array]:
        """Width, rise, and the slopes at both ends in units of the chord's."""
        width, rise = self.x[i + 1] - self.x[i], self.z[i + 1] - self.z[i]
        return (
            width,
            rise,
            self.slope[i] * width / rise,
            self.slope[i + 1] * width / rise,
        )

    def _curve(self, x: Array) -> Array:
        i = self._piece(self.x, x)
        width, rise, left, right = self._parts(i)
        t = (x - self.x[i]) / width
        inner = t * (1 - t)
        share = (t * t + left * inner) / (1 + (left + right - 2) * inner)
        out: Array = self.z[i] + rise * share
        return out

    def _inverse_curve(self, z: Array) -> Array:
        i = self._piece(self.z, z)
        width, rise, left, right = self._parts(i)
        share = (z - self.z[i]) / rise
        bend = share * (left + right - 2)
        a, b = 1 - left + bend, left - bend
        # The root in [0, 1], in the form that cancels nothing.
        t = 2 * share / (b + np.sqrt(np.maximum(b * b + 4 * a * share, 0.0)))
        out: Array = self.x[i] + width * np.clip(t, 0.0, 1.0)
        return out

    def _slope(self, x: Array) -> Array:
        i = self._piece(self.x, x)
        width, rise, left, right = self._parts(i)
        t = (x - self.x[i]) / width
        inner = t * (1 - t)
        above = right * t * t + 2 * inner + left * (1 - t) ** 2
        out: Array = rise / width * above / (1 + (left + right - 2) * inner) ** 2
        return out
