"""y → z = T(y): strictly increasing maps of the target, fixed before calibration.

A map is fitted on training targets, continues beyond their range, and is inverted to
rounding. Networks, h², Σ and v live in z; interval ends come back through the inverse.
The maps that are fitted here hold nothing but numbers and arrays.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import yeojohnson_normmax
from sklearn.base import clone

from .._validation import raise_for

__all__ = [
    "Identity",
    "Log",
    "MonotoneSpline",
    "SquareRoot",
    "TargetMap",
    "TransformerMap",
    "YeoJohnson",
    "fit_target_map",
]

Array = NDArray[np.float64]
EPS = float(np.finfo(np.float64).eps)

# Roundings of a pass through a map and back, in units in the last place: an end that
# moves outwards by this much loses no y whose rounded T(y) lies inside.
ROUNDINGS = 16.0
MARGIN = 0.5  # standard deviations beyond the data where a curve becomes a line
SPLINE_KNOTS = 13
TAIL_ROWS = 5
# No piece of a spline is steeper or flatter than its mean slope by more than this.
SLOPE_RATIO = 100.0
MIN_DISTINCT = 8  # distinct training targets below which nothing is bent
# Ranges beyond the training targets at which a transformer is looked at.
BEYOND = np.array([0.1, 0.5, 1.0])


class TargetMap(ABC):
    """A strictly increasing function T of the target, with inverse and derivative.

    A value outside ``domain`` has no image: ``forward`` gives NaN there.
    """

    @property
    def domain(self) -> tuple[float, float]:
        """Smallest and largest end point that makes sense."""
        return -np.inf, np.inf

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
        y = self.inverse(np.where(finite, z_, 0.0))
        with np.errstate(all="ignore"):
            out = y + side * ROUNDINGS * EPS * self._rounding(y, z_)
        out = np.where(np.isnan(out), side * np.inf, np.nextafter(out, side * np.inf))
        return np.clip(np.where(finite, out, z_), *self.domain)

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

    @property
    def domain(self) -> tuple[float, float]:
        """From 0 to infinity."""
        return 0.0, np.inf

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

    @property
    def domain(self) -> tuple[float, float]:
        """From 0 to infinity."""
        return 0.0, np.inf

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
        return self.centre + self.unit * (x + (z_ - inside) / self._slope(x))

    def derivative(self, y: ArrayLike) -> Array:
        """Compute T′(y)."""
        x = (np.asarray(y, dtype=np.float64) - self.centre) / self.unit
        slope: Array = self._slope(np.clip(x, *self._range())) / self.unit
        return slope

    def _rounding(self, y: Array, z: Array) -> Array:
        # y may be the small difference of large numbers, z that of its knots.
        size = np.abs(z) + np.abs(self._curve(np.array(self._range()))).max()
        return np.abs(y) + abs(self.centre) + size / self.derivative(y)

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


@dataclass(frozen=True, eq=False)
class TransformerMap(TargetMap):
    """A fitted scikit-learn transformer with ``inverse_transform``.

    Where the inverse does not lead back, the end is infinite: nothing is lost.
    """

    transformer: Any
    y_range: tuple[float, float]  # of the training targets
    z_range: tuple[float, float]

    @classmethod
    def fit(cls, transformer: Any, y: Array) -> "TransformerMap":
        """Fit a copy; refuse one that is flat, falls or clips near the targets."""
        values = np.unique(y)
        y_range = float(values[0]), float(values[-1])
        fitted = cls(clone(transformer).fit(y[:, None]), y_range, (np.nan, np.nan))
        span = max(np.ptp(values), np.abs(values).max() * 1e-3)
        below, above = values[0] - span * BEYOND[::-1], values[-1] + span * BEYOND
        z = fitted.forward(np.r_[below, values, above])
        inside = z[len(below) : len(z) - len(above)]
        name = type(transformer).__name__
        if not np.isfinite(inside).all():
            bad = float(values[~np.isfinite(inside)][0])
            _refuse(name, f"gives no finite number for the target {bad!r}")
        steps = np.diff(z)
        flat = np.flatnonzero(np.isfinite(steps) & (steps <= 0))
        if len(flat):
            at = float(np.r_[below, values, above][flat[0]])
            _refuse(name, f"does not increase at y = {at:g}")
        back = fitted.inverse(inside)
        if not np.allclose(back, values, rtol=1e-6, atol=1e-6 * span):
            worst = int(np.abs(back - values).argmax())
            _refuse(
                name,
                f"sends {float(values[worst])!r} to {float(inside[worst])!r} and back "
                f"to {float(back[worst])!r}",
            )
        return replace(fitted, z_range=(float(inside[0]), float(inside[-1])))

    def forward(self, y: ArrayLike) -> Array:
        """Compute ``transform``; NaN where that is not finite."""
        z = self._apply(self.transformer.transform, y)
        return np.where(np.isfinite(z), z, np.nan)

    def inverse(self, z: ArrayLike) -> Array:
        """Compute ``inverse_transform``."""
        return self._apply(self.transformer.inverse_transform, z)

    def derivative(self, y: ArrayLike) -> Array:
        """Slope over a millionth of y, on the side where there is one."""
        y_ = np.asarray(y, dtype=np.float64)
        step = 1e-6 * np.maximum(np.abs(y_), 1e-6)
        here, above = self.forward(y_), self.forward(y_ + step)
        below = self.forward(y_ - step)
        up, down = (above - here) / step, (here - below) / step
        up, down = np.where(np.isnan(up), down, up), np.where(np.isnan(down), up, down)
        slope: Array = (up + down) / 2
        return slope

    def end(self, z: ArrayLike, side: float) -> Array:
        """T⁻¹(z) rounded outwards; infinite where the inverse does not lead back."""
        z_ = np.asarray(z, dtype=np.float64)
        y = self.inverse(np.where(np.isfinite(z_), z_, 0.0))
        again = self.forward(np.where(np.isfinite(y), y, np.nan))
        with np.errstate(all="ignore"):
            leads_back = np.abs(again - z_) <= 1e-6 * (np.abs(z_) + 1.0)
            # Another branch of the function may lead back too: −1/y does beyond 0.
            leads_back &= (z_ <= self.z_range[1]) | (y >= self.y_range[1])
            leads_back &= (z_ >= self.z_range[0]) | (y <= self.y_range[0])
            # An outside transformer's roundings are unknown: ask for more room.
            out = y + side * 2**20 * EPS * np.abs(y)
        return np.where(leads_back, np.nextafter(out, side * np.inf), side * np.inf)

    def _apply(self, function: Any, values: ArrayLike) -> Array:
        """Apply a column function to an array of any shape; NaN where it raises."""
        values_ = np.asarray(values, dtype=np.float64)
        column = values_.reshape(-1, 1)
        with np.errstate(all="ignore"):
            try:
                out = function(column)
            except ValueError:  # Box–Cox refuses all rows for one that it cannot take
                out = np.array([_or_nan(function, row) for row in column])
        return np.asarray(out, dtype=np.float64).reshape(values_.shape)


def _or_nan(function: Any, row: Array) -> float:
    """Value of one row, NaN where the function raises."""
    try:
        return float(np.asarray(function(row[None])).item())
    except ValueError:
        return np.nan


def _refuse(name: str, found: str) -> None:
    """Raise for a transformer that is no strictly increasing map."""
    raise ValueError(
        f"Got target_map={name}(...), which {found}, but expected a strictly "
        "increasing map with its inverse, also beyond the training targets. Use "
        "target_map='auto', 'log' or 'sqrt', or a transformer that neither clips nor "
        "is flat, such as PowerTransformer."
    )


MAPS = ("identity", "yeo-johnson", "spline", "log", "sqrt")


def is_transformer(value: object) -> bool:
    """Whether a value can be asked for a map and its inverse."""
    needed = ("fit", "transform", "inverse_transform")
    return all(hasattr(value, name) for name in needed)


def fit_target_map(target_map: Any, y: Array) -> TargetMap:
    """Fit a map by its name, or a transformer, to training targets."""
    if is_transformer(target_map):
        return TransformerMap.fit(target_map, y)
    if target_map == "log":
        _check_domain(target_map, y, y > 0, "positive")
        return Log()
    if target_map == "sqrt":
        _check_domain(target_map, y, y >= 0, "non-negative")
        return SquareRoot()
    if target_map not in ("yeo-johnson", "spline") or not can_be_bent(y):
        return Identity()
    return YeoJohnson.fit(y) if target_map == "yeo-johnson" else MonotoneSpline.fit(y)


def can_be_bent(y: Array) -> bool:
    """Whether there are enough distinct targets to fit a curve to."""
    ordered = np.unique(y)
    # Values that differ by less than rounding can move are one.
    apart = np.diff(ordered) > 1e-9 * np.abs(ordered).max()
    return bool(apart.sum() >= MIN_DISTINCT)


def _check_domain(
    name: str, y: Array, inside: NDArray[np.bool_], expected: str
) -> None:
    if not inside.all():
        raise_for(
            "target_map",
            name,
            f"{expected} training targets (the smallest is {float(y.min())!r})",
            "Use 'auto', or add a constant to y.",
        )
