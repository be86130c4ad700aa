"""y → z = T(y): increasing maps of the target by knots, and the shape of the noise.

A map is fitted on training targets, before calibration, and continues beyond their
range. Networks, h², Σ and v live in z; the ends of intervals come back through T⁻¹.
Every map is one class, so that none needs an inverse of its own. NumPy only.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from .._validation import check_choice, raise_for

Array = NDArray[np.float64]
EPS, TINY = float(np.finfo(np.float64).eps), float(np.finfo(np.float64).tiny)
MAPS = ("auto", "identity", "yeo-johnson", "spline", "log", "sqrt")
# Roundings of a pass through a map and back, in units in the last place: an end that
# moves outwards by this much loses no y whose rounded T(y) lies inside.
ROUNDINGS = 16.0
# Fewest distinct targets that are bent; squared correlation of T(y) and y of a line.
MIN_DISTINCT, STRAIGHT = 8, 0.99
SPLINE_KNOTS, TAIL_ROWS = 13, 5
SLOPE_RATIO = 100.0  # largest of a piece and the whole of a spline
SAMPLES = 258  # of a map that has a formula
MARGIN = 0.5  # standard deviations beyond the data where Yeo–Johnson becomes a line
# By name: T, the smallest target, and how to say so.
FORMULAS: dict[str, tuple[Any, float, str]] = {
    "log": (np.log, TINY, "positive"),
    "sqrt": (np.sqrt, 0.0, "non-negative"),
}
# Shape of the noise: probabilities at which tails are compared, levels of the nodes.
TAILS, NODE_LEVELS = np.array([0.25, 0.1, 0.05, 0.025]), (np.arange(32) + 0.5) / 32
MIN_RESIDUALS = 100
TAIL, CLEAR_GAIN = 0.05, 0.02  # what two ranks must gain at level 0.9
PRIOR = 6.0  # of an asymmetry of t standard errors a share t²/(t² + PRIOR) is kept


@dataclass(frozen=True, eq=False)
class MonotoneMap:
    """Increasing function by knots: rational quadratic pieces and linear tails.

    The inverse is in closed form (Gregory and Delbourgo). No knots are the identity.
    With origin and unit of x nothing is lost where y is large and varies little.
    """

    x: Array  # (m,), knots, increasing
    z: Array  # (m,), their images, increasing
    slope: Array  # (m,), dz/dx there, positive
    domain: tuple[float, float] = (-np.inf, np.inf)  # values of y that have an image
    centre: float = 0.0
    unit: float = 1.0
    xp: ClassVar[Any] = np  # of knots and of what ``inverse`` takes

    @classmethod
    def through(cls, x: Array, z: Array, **kwargs: Any) -> "MonotoneMap":
        """Map through increasing points, with slopes between those of the chords."""
        chord = np.diff(z) / np.diff(x)
        # The harmonic mean stays near the flatter chord, as in PCHIP: no overshoot.
        inner = 2 / (1 / chord[1:] + 1 / chord[:-1])
        return cls(x, z, np.r_[chord[0], inner, chord[-1]], **kwargs)

    @property
    def is_identity(self) -> bool:
        """Whether T(y) = y."""
        return len(self.x) == 0

    def forward(self, y: ArrayLike) -> Array:
        """Compute z = T(y); NaN outside the domain."""
        y_ = np.asarray(y, dtype=np.float64)
        if self.is_identity:
            return y_
        has_image = (y_ >= self.domain[0]) & (y_ <= self.domain[1])
        return np.where(has_image, self._image(y_)[0], np.nan)

    def inverse(self, z: ArrayLike) -> Array:
        """Compute T⁻¹(z), clipped to the domain; ±∞ stays."""
        xp = self.xp
        z_ = xp.asarray(z, dtype=xp.float64)
        if self.is_identity:
            return z_  # type: ignore[no-any-return]
        inside = xp.minimum(xp.maximum(z_, self.z[0]), self.z[-1])
        x0, z0, width, rise, left, right = self._piece(self.z, inside)
        share = (inside - z0) / rise
        bend = share * (left + right - 2)
        a, b = 1 - left + bend, left - bend
        # The root in [0, 1], in the form that cancels nothing.
        t = 2 * share / (b + xp.sqrt((b * b + 4 * a * share).clip(0.0)))
        tail = xp.where(z_ < inside, self.slope[0], self.slope[-1])
        with np.errstate(over="ignore"):
            x = x0 + width * t.clip(0.0, 1.0) + (z_ - inside) / tail
            y = (self.centre + self.unit * x).clip(*self.domain)
        return xp.where(abs(z_) == np.inf, z_, y)  # type: ignore[no-any-return]

    def derivative(self, y: ArrayLike) -> Array:
        """Compute T′(y)."""
        y_ = np.asarray(y, dtype=np.float64)
        return np.ones_like(y_) if self.is_identity else self._image(y_)[1]

    def end(self, z: ArrayLike, side: Any) -> Array:
        """Compute T⁻¹(z), rounded downwards (side −1) or upwards (+1); ±∞ stays."""
        z_ = np.asarray(z, dtype=np.float64)
        if self.is_identity:
            return z_
        finite = np.isfinite(z_)
        z_ = np.where(finite, z_, 0.0)
        y = self.inverse(z_)
        # Sizes of what is rounded on the way to y and back, in units of y: those of the
        # piece and its neighbours, since rounding may move a value from one to another.
        i = np.searchsorted(self.x[1:-1], (y - self.centre) / self.unit, side="right")
        j, k = np.maximum(i - 1, 0), np.minimum(i + 2, len(self.x) - 1)
        with np.errstate(over="ignore", invalid="ignore"):
            size = np.abs(z_) + np.abs(self.z[j]) + np.abs(self.z[k])
            size = size / self.derivative(y) + np.abs(y) + abs(self.centre)
            size += self.unit * (np.abs(self.x[j]) + np.abs(self.x[k]))
            out = y + side * (ROUNDINGS * EPS * size)
        out = np.where(np.isnan(out), side * np.inf, np.nextafter(out, side * np.inf))
        # An infinite end holds all targets, those outside the domain as well.
        return np.where(finite, np.clip(out, *self.domain), z)

    def _image(self, y: Array) -> tuple[Array, Array]:
        """T and its slope, on the line beyond the knots."""
        with np.errstate(over="ignore"):
            x = (y - self.centre) / self.unit
        inside = np.minimum(np.maximum(x, self.x[0]), self.x[-1])
        x0, z0, width, rise, left, right = self._piece(self.x, inside)
        t = (inside - x0) / width
        inner = t * (1 - t)
        below = 1 + (left + right - 2) * inner
        share = (t * t + left * inner) / below
        tail = np.where(x < inside, self.slope[0], self.slope[-1]) * (x - inside)
        above = right * t * t + 2 * inner + left * (1 - t) ** 2
        slope = rise / width * above / below**2
        return z0 + rise * share + tail, np.asarray(slope / self.unit)

    def _piece(self, knots: Array, value: Array) -> tuple[Array, ...]:
        """Piece of each value: x, z, width, rise, both slopes in units of the chord."""
        i = self.xp.searchsorted(knots[1:-1], value, side="right")
        x0, z0 = self.x[i], self.z[i]
        width, rise = self.x[i + 1] - x0, self.z[i + 1] - z0
        chord = rise / width
        return x0, z0, width, rise, self.slope[i] / chord, self.slope[i + 1] / chord


IDENTITY = MonotoneMap(np.empty(0), np.empty(0), np.empty(0))


def fit_target_map(target_map: Any, y: Array) -> MonotoneMap:
    """Fit a map by its name to training targets."""
    hint = "With another map T fit on T(y), and take the ends of intervals back."
    name = check_choice("target_map", target_map or "identity", MAPS, hint)
    if name in FORMULAS:
        return _formula(name, y)
    if name in ("spline", "yeo-johnson") and can_be_bent(y):
        return _spline(y) if name == "spline" else _yeo_johnson(y)
    return IDENTITY


def candidate_maps(y: Array) -> dict[str, MonotoneMap]:
    """Yeo and Johnson's power and the spline, if they bend y enough."""
    if not can_be_bent(y):
        return {}
    found = {}
    for name, curve in (("yeo-johnson", _yeo_johnson(y)), ("spline", _spline(y))):
        if np.corrcoef(curve.forward(y), y)[0, 1] ** 2 < STRAIGHT:
            found[name] = curve
    return found


def can_be_bent(y: Array) -> bool:
    """Whether there are enough distinct targets to fit a curve to."""
    ordered = np.unique(y)
    # Values that differ by less than rounding can move are one.
    apart = np.diff(ordered) > 1e-9 * np.abs(ordered).max()
    return bool(apart.sum() >= MIN_DISTINCT and 0 < y.std() < np.inf)


def _spline(y: Array) -> MonotoneMap:
    """Send quantiles of y to those of a normal law; tied values to their middle."""
    centre, unit = float(y.mean()), float(y.std())
    ordered, n = np.sort((y - centre) / unit), len(y)
    # Evenly spaced in z, so that the tails are resolved as the middle is; a few
    # targets lie beyond the outer knots, whose slopes would be noise otherwise.
    level = ndtr(np.linspace(-1, 1, SPLINE_KNOTS) * ndtri(1 - min(TAIL_ROWS / n, 0.1)))
    x = ordered[(level * (n - 1)).round().astype(int)]
    x = x[np.r_[True, np.diff(x) > 1e-6]]
    if len(x) < 2:  # nearly all targets are one, next to the others: a line
        x = ordered[[0, -1]]
    rank = np.searchsorted(ordered, x, "left") + np.searchsorted(ordered, x, "right")
    z = ndtri(rank / (2 * n))
    mean = (z[-1] - z[0]) / (x[-1] - x[0])
    chord = np.diff(z) / np.diff(x)
    chord = np.clip(chord, mean / SLOPE_RATIO, mean * SLOPE_RATIO)
    z = z[0] + np.r_[0.0, np.cumsum(chord * np.diff(x))]
    return MonotoneMap.through(x, z, centre=centre, unit=unit)


def _yeo_johnson(y: Array) -> MonotoneMap:
    """Power of the largest likelihood of a normal law, between 0 and 2."""
    from scipy.stats import yeojohnson, yeojohnson_normmax  # slow to import

    centre, unit = float(y.mean()), float(y.std())
    x = (y - centre) / unit
    power = float(np.clip(yeojohnson_normmax(x), 0.0, 2.0))
    low, high = x.min() - MARGIN, x.max() + MARGIN
    # Evenly spaced in the logarithm of 1 + |x|, whose multiples are the powers.
    grown = np.linspace(-np.log1p(-low), np.log1p(high), SAMPLES)
    x = np.sign(grown) * np.expm1(np.abs(grown))
    slope = np.exp((power - 1) * grown)
    return MonotoneMap(x, yeojohnson(x, power), slope, centre=centre, unit=unit)


def _formula(name: str, y: Array) -> MonotoneMap:
    """Log or square root, sampled evenly in log y far beyond the training targets."""
    function, low, sign = FORMULAS[name]
    if y.min() < low:
        expected = f"{sign} training targets (the smallest is {float(y.min())!r})"
        raise_for("target_map", name, expected, "Use 'auto', or shift y.")
    top = float(y.max()) or 1.0
    bottom = max(1e-6 * float(y[y > 0].min(initial=top)), TINY)
    x = np.geomspace(bottom, 10 * top, SAMPLES)
    x = np.r_[0.0, x] if low == 0 else x
    return MonotoneMap.through(x, function(x), domain=(low, np.inf))


@dataclass(frozen=True, eq=False)
class NoiseShape:
    """How standardised residuals of held-out training rows are distributed.

    Only how the two tails compare is learned; calibration finds the size of both. Both
    ends of an interval [−q, q] of scores leave equal shares of the residuals outside.
    """

    curve: MonotoneMap = IDENTITY  # residual → signed score
    # Residuals at evenly spaced levels, (32,).
    nodes: Array = field(default_factory=lambda: np.asarray(ndtri(NODE_LEVELS)))


def fit_noise_shape(residual: Array) -> NoiseShape:
    """Shape of the residuals, shrunk towards symmetry where they are few."""
    if len(residual) < MIN_RESIDUALS:
        return NoiseShape()
    return NoiseShape(
        _tail_curve(np.sort(residual)), np.quantile(residual, NODE_LEVELS)
    )


def prefers_two_ranks(residual: Array, shape: NoiseShape) -> bool:
    """Whether two ranks, one for each end, would serve held-out rows clearly better.

    By the interval score of each half of them, with ranks from the other half.
    """
    if len(residual) < MIN_RESIDUALS:
        return False
    loss = np.zeros(2)
    for known, judged in ((slice(0, None, 2), slice(1, None, 2)),) * 2:
        score, r = shape.curve.forward(residual[known]), residual[judged]
        q = np.quantile(np.abs(score), 1 - 2 * TAIL)
        two = np.quantile(score, [TAIL, 1 - TAIL])
        for k, ends in enumerate((np.array([-q, q]), two)):
            low, high = shape.curve.inverse(ends)
            missed = np.maximum(low - r, 0) + np.maximum(r - high, 0)
            loss[k] += float(np.mean(high - low + missed / TAIL))
        residual = residual[::-1]
    return bool(loss[1] < (1 - CLEAR_GAIN) * loss[0])


def _tail_curve(ordered: Array) -> MonotoneMap:
    """Send both tails of equal probability to scores of equal size."""
    upper, upper_error = _quantile(ordered, 1 - TAILS)
    lower, lower_error = _quantile(ordered, TAILS)
    half = (upper - lower) / 2  # (m,), increasing
    if not (half[0] > 0 and (np.diff(half) > 0).all()):
        return IDENTITY  # so many equal residuals that quantiles coincide
    overlap = 2 * TAILS / (1 - TAILS) * upper_error * lower_error
    variance = (upper_error**2 + lower_error**2 + overlap) / 4
    median, error = _quantile(ordered, np.array([0.5]))
    shift, variance = np.r_[median, (upper + lower) / 2], np.r_[error**2, variance]
    # Quantiles among equal values seem to have no error.
    variance = np.maximum(variance, half[0] ** 2 / len(ordered))
    clearest = (shift**2 / variance).max()
    shift = shift * (clearest / (clearest + PRIOR))
    score = np.r_[-half[::-1], 0.0, half]
    at = score + np.r_[shift[:0:-1], shift]
    # A tail must not turn back, nor come nearer than a tenth of its width.
    steps = np.maximum(np.diff(at), 0.1 * np.diff(score))
    at, middle = np.r_[0.0, np.cumsum(steps)], len(half)
    at = shift[0] + at - at[middle]
    slope = MonotoneMap.through(at, score).slope
    # Beyond the last quantiles both sides keep their proportion.
    slope[[0, -1]] = score[[0, -1]] / (at[[0, -1]] - at[middle])
    return MonotoneMap(at, score, slope)


def _quantile(ordered: Array, level: Array) -> tuple[Array, Array]:
    """Quantiles of sorted values, and their standard errors by order statistics."""
    step = np.sqrt(level * (1 - level) / len(ordered))
    above, below = (
        np.quantile(ordered, np.clip(level + side * step, 0, 1)) for side in (1, -1)
    )
    return np.quantile(ordered, level), (above - below) / 2
