"""y → z = T(y): increasing maps of the target by knots, and the shape of the noise.

A map is fitted on training targets, before calibration, and continues beyond their
range. Networks, h², Σ and v live in z; the ends of intervals come back through T⁻¹.
Every map is sampled on one class, so that none needs an inverse of its own. NumPy only.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

Array = NDArray[np.float64]
Transform = Callable[[Array], Any]  # of a column, as in scikit-learn
EPS, TINY = float(np.finfo(np.float64).eps), float(np.finfo(np.float64).tiny)
MAPS = ("identity", "yeo-johnson", "spline", "log", "sqrt")  # that have a name
# Roundings of a pass through a map and back, in units in the last place: an end that
# moves outwards by this much loses no y whose rounded T(y) lies inside.
ROUNDINGS = 16.0
MIN_DISTINCT = 8  # distinct training targets below which nothing is bent
STRAIGHT = 0.99  # squared correlation of T(y) and y from which T is a line
SPLINE_KNOTS = 13
TAIL_ROWS = 5
# No piece of a spline is steeper or flatter than its mean slope by more than this.
SLOPE_RATIO = 100.0
SAMPLES = 65  # of a curve; T is met to 1e-4
MARGIN = 0.5  # standard deviations beyond the data where Yeo–Johnson becomes a line
FOLDS, FOLD_STEP = 10.0, 0.25  # log and sqrt reach e¹⁰ times beyond the data
LOG_RANGE = -660.0, 690.0  # of log(y) on knots, so that slopes are finite
# Ranges beyond the training targets up to which a transformer is followed.
BEYOND = 0.5 ** np.arange(12.0, -1.0, -1.0)
# Shape of the noise: probabilities at which tails are compared, levels of the nodes.
TAILS = np.array([0.25, 0.1, 0.05, 0.025])
NODE_LEVELS = (np.arange(32) + 0.5) / 32
MIN_RESIDUALS = 100
# With t the clearest asymmetry, in standard errors, a share t²/(t² + PRIOR) of all of
# them is kept: two fifths of two standard errors, four fifths of five.
PRIOR = 6.0


@dataclass(frozen=True, eq=False)
class MonotoneMap:
    """Increasing function by knots: rational quadratic pieces and linear tails.

    Increasing by construction, with an inverse in closed form (Gregory and Delbourgo).
    A value outside ``domain`` has no image. Without knots it is the identity.

    Parameters
    ----------
    x, z : ndarray of shape (m,)
        Knots and their images, both increasing. x counts in units of ``unit`` from
        ``centre``, so that nothing is lost where y is large and varies little.
    slope : ndarray of shape (m,)
        dz/dx at the knots, positive.
    domain : tuple of two floats
        Smallest and largest value of y that has an image.
    centre, unit : float
        Origin and unit of x.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps.network.target import fit_target_map
    >>> T = fit_target_map("log", np.array([1.0, 10.0, 100.0]))
    >>> T.forward([1.0, 50.0, -1.0]).round(4)
    array([0.   , 3.912,   nan])
    >>> T.inverse(T.forward([1.0, 50.0]))
    array([ 1., 50.])
    """

    x: Array = field(default_factory=lambda: np.empty(0))
    z: Array = field(default_factory=lambda: np.empty(0))
    slope: Array = field(default_factory=lambda: np.empty(0))
    domain: tuple[float, float] = (-np.inf, np.inf)
    centre: float = 0.0
    unit: float = 1.0

    @classmethod
    def through(
        cls, x: ArrayLike, z: ArrayLike, **kwargs: Any
    ) -> "MonotoneMap":  # kwargs: domain, centre, unit
        """Map through increasing points, with slopes between those of the chords."""
        x_, z_ = np.asarray(x, dtype=np.float64), np.asarray(z, dtype=np.float64)
        chord = np.diff(z_) / np.diff(x_)
        # The harmonic mean stays near the flatter chord, as in PCHIP: no overshoot.
        inner = 2 / (1 / chord[1:] + 1 / chord[:-1])
        return cls(x_, z_, np.r_[chord[0], inner, chord[-1]], **kwargs)

    @property
    def is_identity(self) -> bool:
        """Whether T(y) = y."""
        return len(self.x) == 0

    def forward(self, y: ArrayLike) -> Array:
        """Compute z = T(y); NaN outside the domain."""
        y_ = np.asarray(y, dtype=np.float64)
        if self.is_identity:
            return y_
        x, inside = self._standardise(y_)
        x0, z0, width, rise, left, right = self._piece(self.x, inside)
        t = (inside - x0) / width
        inner = t * (1 - t)
        share = (t * t + left * inner) / (1 + (left + right - 2) * inner)
        tail = np.where(x < inside, self.slope[0], self.slope[-1]) * (x - inside)
        low, high = self.domain
        inside_domain = (y_ >= low) & (y_ <= high)
        return np.where(inside_domain, z0 + rise * share + tail, np.nan)

    def inverse(self, z: ArrayLike) -> Array:
        """Compute T⁻¹(z), clipped to the domain; ±∞ stays."""
        z_ = np.asarray(z, dtype=np.float64)
        if self.is_identity:
            return z_
        inside = np.minimum(np.maximum(z_, self.z[0]), self.z[-1])
        x0, z0, width, rise, left, right = self._piece(self.z, inside)
        share = (inside - z0) / rise
        bend = share * (left + right - 2)
        a, b = 1 - left + bend, left - bend
        # The root in [0, 1], in the form that cancels nothing.
        t = 2 * share / (b + np.sqrt(np.maximum(b * b + 4 * a * share, 0.0)))
        tail = np.where(z_ < inside, self.slope[0], self.slope[-1])
        with np.errstate(over="ignore"):
            x = x0 + width * np.minimum(np.maximum(t, 0.0), 1.0) + (z_ - inside) / tail
            y = np.clip(self.centre + self.unit * x, *self.domain)
        return np.where(np.isinf(z_), z_, y)

    def derivative(self, y: ArrayLike) -> Array:
        """Compute T′(y)."""
        y_ = np.asarray(y, dtype=np.float64)
        if self.is_identity:
            return np.ones_like(y_)
        inside = self._standardise(y_)[1]
        x0, _, width, rise, left, right = self._piece(self.x, inside)
        t = (inside - x0) / width
        inner = t * (1 - t)
        above = right * t * t + 2 * inner + left * (1 - t) ** 2
        slope = rise / width * above / (1 + (left + right - 2) * inner) ** 2
        return np.asarray(slope / self.unit)

    def end(self, z: ArrayLike, side: float) -> Array:
        """Compute T⁻¹(z), rounded downwards (side −1) or upwards (+1); ±∞ stays."""
        z_ = np.asarray(z, dtype=np.float64)
        if self.is_identity:
            return z_
        finite = np.isfinite(z_)
        z_ = np.where(finite, z_, 0.0)
        y = self.inverse(z_)
        # Sizes of what is rounded on the way to y and back, in units of y: those of the
        # piece and its neighbours, since rounding may move a value from one to another.
        i = np.searchsorted(self.x[1:-1], self._standardise(y)[1], side="right")
        j, k = np.maximum(i - 1, 0), np.minimum(i + 2, len(self.x) - 1)
        with np.errstate(over="ignore", invalid="ignore"):
            size = np.abs(z_) + np.abs(self.z[j]) + np.abs(self.z[k])
            size = size / self.derivative(y) + np.abs(y) + abs(self.centre)
            size += self.unit * (np.abs(self.x[j]) + np.abs(self.x[k]))
            out = y + side * (ROUNDINGS * EPS * size)
        out = np.where(np.isnan(out), side * np.inf, np.nextafter(out, side * np.inf))
        # An infinite end holds all targets, those outside the domain as well.
        return np.where(finite, np.clip(out, *self.domain), z)

    def _standardise(self, y: Array) -> tuple[Array, Array]:
        """Compute x of y, and the same on the range of the knots."""
        with np.errstate(over="ignore"):
            x = (y - self.centre) / self.unit
        return x, np.minimum(np.maximum(x, self.x[0]), self.x[-1])

    def _piece(self, knots: Array, value: Array) -> tuple[Array, ...]:
        """Of the piece that holds each value: x, z, width, rise, left, right slope.

        The slopes are in units of the chord's.
        """
        i = np.searchsorted(knots[1:-1], value, side="right")
        x0, z0 = self.x[i], self.z[i]
        width, rise = self.x[i + 1] - x0, self.z[i + 1] - z0
        chord = rise / width
        return x0, z0, width, rise, self.slope[i] / chord, self.slope[i + 1] / chord


IDENTITY = MonotoneMap()


def fit_target_map(target_map: Any, y: Array) -> MonotoneMap:
    """Fit a map by its name, or a scikit-learn transformer, to training targets."""
    if target_map is None:
        return IDENTITY
    if _is_transformer(target_map):
        return _transformer_map(target_map, y)
    if not isinstance(target_map, str) or target_map not in MAPS:
        raise ValueError(
            f"Got target_map={target_map!r}, but expected one of "
            f"{', '.join(map(repr, MAPS))}, or a scikit-learn transformer with "
            "inverse_transform. Use 'auto' if unsure."
        )
    if target_map in ("log", "sqrt"):
        low = 0.0 if target_map == "sqrt" else TINY
        if y.min() < low:
            expected = "non-negative" if target_map == "sqrt" else "positive"
            raise ValueError(
                f"Got target_map={target_map!r}, but expected {expected} training "
                f"targets (the smallest is {float(y.min())!r}). Use 'auto', or add a "
                "constant to y."
            )
        return _sqrt(y) if target_map == "sqrt" else _log(y)
    if target_map == "identity" or not can_be_bent(y):
        return IDENTITY
    return _spline(y) if target_map == "spline" else _yeo_johnson(y)


def candidate_maps(y: Array) -> list[MonotoneMap]:
    """The identity, the spline and Yeo and Johnson's power, if they bend y enough."""
    if not can_be_bent(y):
        return [IDENTITY]
    curves = [_spline(y), _yeo_johnson(y)]
    squared = [np.corrcoef(curve.forward(y), y)[0, 1] ** 2 for curve in curves]
    bent = [curve for curve, r2 in zip(curves, squared, strict=True) if r2 < STRAIGHT]
    return [IDENTITY, *bent]


def can_be_bent(y: Array) -> bool:
    """Whether there are enough distinct targets to fit a curve to."""
    ordered = np.unique(y)
    # Values that differ by less than rounding can move are one.
    apart = np.diff(ordered) > 1e-9 * np.abs(ordered).max()
    return bool(apart.sum() >= MIN_DISTINCT and 0 < y.std() < np.inf)


def _spline(y: Array) -> MonotoneMap:
    """Send quantiles of y to those of a normal law; tied values to their middle."""
    centre, unit = float(y.mean()), float(y.std())
    ordered = np.sort((y - centre) / unit)
    n = len(ordered)
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
    ends = np.array([x.min() - MARGIN, x.max() + MARGIN])
    # Evenly spaced where the function is a power: the logarithm of 1 + |x|.
    low, high = np.sign(ends) * np.log1p(np.abs(ends))
    grown = np.linspace(low, high, SAMPLES)
    x = np.sign(grown) * np.expm1(np.abs(grown))
    slope = np.exp((power - 1) * grown)
    return MonotoneMap(x, yeojohnson(x, power), slope, centre=centre, unit=unit)


def _log(y: Array) -> MonotoneMap:
    z = _even(np.log(y.min()) - FOLDS, np.log(y.max()) + FOLDS)
    return MonotoneMap(np.exp(z), z, np.exp(-z), domain=(TINY, np.inf))


def _sqrt(y: Array) -> MonotoneMap:
    # A line up to 1e-12 of the largest target: the slope at zero is infinite.
    top = np.log(y.max() or 1.0)
    x = np.exp(_even(top - np.log(1e12), top + FOLDS))
    root = np.sqrt(x)
    slope = np.r_[1 / root[0], 0.5 / root]
    return MonotoneMap(np.r_[0.0, x], np.r_[0.0, root], slope, domain=(0.0, np.inf))


def _even(low: float, high: float) -> Array:
    """Logarithms of knots."""
    low, high = np.clip([low, high], *LOG_RANGE)
    return np.linspace(low, high, 2 + int((high - low) / FOLD_STEP))


def _is_transformer(value: object) -> bool:
    """Whether a value can be asked for a map and its inverse."""
    needed = ("fit", "transform", "inverse_transform")
    return all(hasattr(value, name) for name in needed)


def _transformer_map(transformer: Any, y: Array) -> MonotoneMap:
    """Sample a copy, fitted to y; refuse one that is flat, falls or clips."""
    from sklearn.base import clone

    name = type(transformer).__name__
    fitted = clone(transformer).fit(y[:, None])
    values = np.unique(y)
    low, high = float(values[0]), float(values[-1])
    span = max(high - low, max(abs(low), abs(high)) * 1e-3) or 1.0
    z = _apply(fitted.transform, values)
    if np.isnan(z).any():
        bad = float(values[np.isnan(z)][0])
        _refuse(name, f"gives no finite number for the target {bad!r}")
    below, bottom = _continue(fitted.transform, low, -span)
    above, top = _continue(fitted.transform, high, span)
    at = np.r_[below[::-1], values, above]
    around = [_apply(fitted.transform, part) for part in (below[::-1], above)]
    flat = np.flatnonzero(np.diff(np.r_[around[0], z, around[1]]) <= 0)
    if len(flat):
        _refuse(name, f"does not increase at y = {float(at[flat[0]]):g}")
    back = _apply(fitted.inverse_transform, z)
    if not np.allclose(back, values, rtol=1e-6, atol=1e-6 * span):
        worst = int(np.abs(back - values).argmax())
        _refuse(
            name,
            f"sends {float(values[worst])!r} to {float(z[worst])!r} and back to "
            f"{float(back[worst])!r}",
        )
    # Evenly spaced in y, in z and among the targets: one of them resolves the curve.
    inner = np.r_[
        np.linspace(low, high, SAMPLES),
        _apply(fitted.inverse_transform, np.linspace(z[0], z[-1], SAMPLES)),
        np.quantile(values, np.linspace(0, 1, SAMPLES)),
    ]
    x = np.unique(np.r_[below, np.clip(inner, low, high), above])
    z = _apply(fitted.transform, x)
    # Of knots so near one another that rounding decides how T changes, the first stays.
    apart = np.diff(x) > 1e-9 * np.abs(x[1:])
    apart &= np.diff(z) > 1e-12 * np.abs(z[1:])
    x, z = x[np.r_[True, apart]], z[np.r_[True, apart]]
    return MonotoneMap.through(x, z, domain=(bottom, top))


def _continue(transform: Transform, end: float, span: float) -> tuple[Array, float]:
    """Knots beyond an end of the targets, outwards, and the end of the domain there."""
    x = end + span * BEYOND
    finite = ~np.isnan(_apply(transform, x))
    if finite.all():
        return x, float(np.copysign(np.inf, span))
    good, bad = end, float(x[~finite][0])
    for _ in range(100):
        middle = (good + bad) / 2
        if np.isnan(_apply(transform, np.array([middle])))[0]:
            bad = middle
        else:
            good = middle
    # Nearer and nearer to the end of the domain, where T may be steep. The usual end
    # is zero.
    last = good if abs(good) > 1e-12 * abs(span) else 0.0
    return good + (end - good) * 0.5 ** np.arange(1.0, 21.0), last


def _apply(function: Transform, values: Array) -> Array:
    """Apply a function of columns to values (n,); NaN where there is no number."""
    with np.errstate(all="ignore"):
        try:
            out = np.asarray(function(values[:, None]), dtype=np.float64).reshape(-1)
        except ValueError:  # Box–Cox refuses all rows for one that it cannot take
            if len(values) == 1:
                return np.array([np.nan])
            return np.concatenate([_apply(function, v[None]) for v in values])
    return np.where(np.isfinite(out), out, np.nan)


def _refuse(name: str, found: str) -> NoReturn:
    """Raise for a transformer that is no strictly increasing map."""
    raise ValueError(
        f"Got target_map={name}(...), which {found}, but expected a strictly "
        "increasing map with its inverse, also beyond the training targets. Use "
        "target_map='auto', 'log' or 'sqrt', or a transformer that neither clips nor "
        "is flat, such as PowerTransformer."
    )


@dataclass(frozen=True, eq=False)
class NoiseShape:
    """How standardised residuals of held-out training rows are distributed.

    Fixed before calibration, so that ranks of scores keep their guarantee. Only how
    the two tails compare is learned: the size of both is what calibration finds.

    Parameters
    ----------
    curve : MonotoneMap
        Residual → signed score. The identity for a symmetric law; otherwise both ends
        of an interval [−q, q] of scores leave equal shares of the residuals outside.
    nodes : ndarray of shape (32,)
        Residuals at evenly spaced levels, for means over the law.
    """

    curve: MonotoneMap = IDENTITY
    nodes: Array = field(default_factory=lambda: np.asarray(ndtri(NODE_LEVELS)))


def fit_noise_shape(residual: Array) -> NoiseShape:
    """Shape of the residuals, shrunk towards symmetry where they are few."""
    if len(residual) < MIN_RESIDUALS:
        return NoiseShape()
    ordered = np.sort(residual)
    return NoiseShape(_tail_curve(ordered), np.quantile(ordered, NODE_LEVELS))


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
    middle = len(half)
    at = shift[0] + np.r_[0.0, np.cumsum(steps)] - np.cumsum(steps)[middle - 1]
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
