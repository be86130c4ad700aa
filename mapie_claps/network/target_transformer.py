"""A scikit-learn transformer as a map of the target."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from .target_map import EPS, TargetMap

Array = NDArray[np.float64]
# Ranges beyond the training targets at which a transformer is looked at.
BEYOND = np.array([0.1, 0.5, 1.0])


def is_transformer(value: object) -> bool:
    """Whether a value can be asked for a map and its inverse."""
    needed = ("fit", "transform", "inverse_transform")
    return all(hasattr(value, name) for name in needed)


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
        out = super().end(z, side)
        return np.where(np.isnan(out), side * np.inf, out)

    def outwards(self, y: Array, z: Array, side: float | Array) -> Array:
        """The same for y = T⁻¹(z), z finite."""
        again = self.forward(np.where(np.isfinite(y), y, np.nan))
        with np.errstate(all="ignore"):
            gap = np.abs(again - z) / (np.abs(z) + (np.ptp(self.z_range) or 1.0))
            leads_back = gap <= 1e-6
            # Another branch of the function may lead back too: −1/y does beyond 0.
            leads_back &= (z <= self.z_range[1]) | (y >= self.y_range[1])
            leads_back &= (z >= self.z_range[0]) | (y <= self.y_range[0])
            # An outside transformer's roundings are unknown: ask for more room.
            size = np.abs(y) + np.abs(self.y_range).max()
            out = y + side * (2**20 * EPS * size)
        infinite = np.multiply(side, np.inf)
        return np.where(leads_back, np.nextafter(out, infinite), infinite)

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
