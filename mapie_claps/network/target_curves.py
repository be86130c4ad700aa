"""Curved maps of the target: Yeo and Johnson's power, and a monotone spline."""

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import yeojohnson_normmax

from .target_map import TargetMap

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
        ends, image, slopes = self._ends
        inside = np.minimum(np.maximum(z_, image[0]), image[1])
        x, beyond = self._inverse_curve(inside), z_ - inside
        if beyond.any():
            # Exactly the end, not its image's image, so that lines meet the curve.
            below = beyond < 0
            x = np.where(below, ends[0], np.where(beyond > 0, ends[1], x))
            x = x + beyond / np.where(below, slopes[0], slopes[1])
        y: Array = self.centre + self.unit * x
        return y

    def derivative(self, y: ArrayLike) -> Array:
        """Compute T′(y)."""
        x = (np.asarray(y, dtype=np.float64) - self.centre) / self.unit
        low, high = self._ends[0]
        slope: Array = self._slope(np.minimum(np.maximum(x, low), high)) / self.unit
        return slope

    @cached_property
    def _ends(self) -> tuple[Array, Array, Array]:
        """Ends of the range, their images and the slopes there."""
        ends = np.array(self._range())
        return ends, self._curve(ends), self._slope(ends)

    def _rounding(self, y: Array, z: Array) -> Array:
        # y may be the small difference of large numbers, z that of its knots.
        size = np.abs(z) + np.abs(self._ends[1]).max()
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

    def _piece(self, knots: Array, value: Array) -> Array:
        """Of the piece that holds each value: x, z, width, rise, left, right slope.

        The slopes are in units of the chord's.
        """
        i = np.searchsorted(knots[1:-1], value, side="right")
        found: Array = self._pieces[:, i]
        return found

    @cached_property
    def _pieces(self) -> Array:  # (6, m - 1)
        width, rise = np.diff(self.x), np.diff(self.z)
        slopes = [part * width / rise for part in (self.slope[:-1], self.slope[1:])]
        return np.stack([self.x[:-1], self.z[:-1], width, rise, *slopes])

    def _curve(self, x: Array) -> Array:
        x0, z0, width, rise, left, right = self._piece(self.x, x)
        t = (x - x0) / width
        inner = t * (1 - t)
        share = (t * t + left * inner) / (1 + (left + right - 2) * inner)
        out: Array = z0 + rise * share
        return out

    def _inverse_curve(self, z: Array) -> Array:
        x0, z0, width, rise, left, right = self._piece(self.z, z)
        share = (z - z0) / rise
        bend = share * (left + right - 2)
        a, b = 1 - left + bend, left - bend
        # The root in [0, 1], in the form that cancels nothing.
        t = 2 * share / (b + np.sqrt(np.maximum(b * b + 4 * a * share, 0.0)))
        out: Array = x0 + width * np.minimum(np.maximum(t, 0.0), 1.0)
        return out

    def _slope(self, x: Array) -> Array:
        x0, _, width, rise, left, right = self._piece(self.x, x)
        t = (x - x0) / width
        inner = t * (1 - t)
        above = right * t * t + 2 * inner + left * (1 - t) ** 2
        out: Array = rise / width * above / (1 + (left + right - 2) * inner) ** 2
        return out
