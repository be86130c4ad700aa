"""Values that y can take: bounds, integers, lists; ends of intervals move to them."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .._validation import raise_for
from ..estimators.predictive import PredictiveDistribution, TargetRange

Array = NDArray[np.float64]

TOLERANCE = 1e-9  # by which a target may differ from the value it stands for
ROUNDING = 1e-12  # by which a limit may
# Share of the rounding to the support that the rank knows of. With all of it intervals
# cover no more than their level; but a miss among grades is a whole grade, and interval
# scores are best where fewer are missed. With none of it, grades cover 0.98 for 0.9.
KNOWN = 0.6
NAMES = ("auto", "integer", "non-negative", "count")


@dataclass(frozen=True, eq=False)
class Support:
    """Values that y can take: within bounds, integers, or a list.

    A target outside has the score +∞ at calibration, which makes the quantile larger,
    and no end point lies outside.
    """

    xp: ClassVar[Any] = np  # or torch, for an export

    low: float = -np.inf
    high: float = np.inf
    integer: bool = False
    values: Array | None = None
    learned: str | None = None  # "auto" or "integer": from training targets

    @property
    def is_everything(self) -> bool:
        """Whether all numbers are possible."""
        return self.key == Support().key

    @property
    def has_gaps(self) -> bool:
        """Whether values are apart from one another."""
        return self.integer or self.values is not None

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for equal values of y."""
        listed = None if self.values is None else self.values.tobytes()
        return self.low, self.high, self.integer, listed, self.learned

    def of(self, targets: TargetRange | None) -> "Support":
        """With what training targets tell, if that was asked for."""
        if self.learned is None:
            return self
        if self.learned == "integer":  # no negative end where nothing was negative
            counted = targets is not None and targets.low >= 0
            return Support(0.0 if counted else -np.inf, integer=True)
        if targets is None or not targets.learned:
            return Support()
        return Support(targets.floor, targets.ceiling, targets.integer)

    def contains(self, y: Array) -> NDArray[np.bool_]:
        """Which targets are possible."""
        inside = (y >= self.low) & (y <= self.high)
        if not self.has_gaps:
            return inside
        with np.errstate(invalid="ignore"):  # infinite minus infinite
            gap = np.abs(y - self.nearest(y))
        # Listed values may be small: there is no unit by which to judge.
        return np.asarray(gap <= TOLERANCE * np.maximum(np.abs(y), self.integer))

    def nearest(self, y: Array, side: float = -1.0) -> Array:
        """Possible value nearest to each number; infinite ends stay infinite.

        Half way between two, ``side`` decides: −1 takes the lower one. Intervals lose
        no possible value by it: none lies between an end and the value nearest to it.
        """
        xp = self.xp
        inside: Array = xp.clip(y, self.low, self.high)
        if self.values is not None:
            to = {"side": "right" if side > 0 else "left"}
            inside = self.values[xp.searchsorted(self._between, inside, **to)]
        elif self.integer:
            up = xp.floor(inside + 0.5) if side > 0 else xp.ceil(inside - 0.5)
            inside = up + 0.0  # no −0
        return xp.where(abs(y) == np.inf, y, inside)  # type: ignore[no-any-return]

    def cut(self, y: Array, strict: bool = False) -> Array:
        """Where values up to y (below y if strict) end: half way across gaps."""
        if self.values is not None:
            near = self.nearest(y)  # 0.3 is 3 · 0.1
            at = np.where(np.abs(y - near) <= ROUNDING * np.abs(near), near, y)
            n_up_to = np.searchsorted(self.values, at, "left" if strict else "right")
            cuts: Array = np.r_[-np.inf, self._between, np.inf]
            return cuts[n_up_to]
        at = y
        if self.integer:
            at = np.ceil(y) - 0.5 if strict else np.floor(y) + 0.5
        empty = y <= self.low if strict else y < self.low
        full = y > self.high if strict else y >= self.high
        return np.where(empty, -np.inf, np.where(full, np.inf, at))

    def scores(self, rows: PredictiveDistribution, y: Array) -> Array:  # (2, n)
        """Signed scores of targets for ranks and for distributions; +∞ if impossible.

        Let t be the score of the smallest interval that holds y once its ends have
        moved to the support. With the cuts c⁻ and c⁺ below and above y, an upper end
        moves to y or beyond it if, and only if, it is at c⁻ or above, a lower one at c⁺
        or below. So the interval of a quantile q ≥ 0 holds y if and only if s(c⁻) ≤ q
        and s(c⁺) ≥ −q, that is |t| ≤ q with t = max(s(c⁻), 0) + min(s(c⁺), 0), of which
        at most one term is not zero. The first score lies between t and s(y), where
        intervals hold all targets up to their rank and some more. Without gaps and
        bounds all are s(y).
        """
        known, own = self.of(rows.targets), rows.score(y)
        if known.is_everything:
            return np.stack([own, own])
        possible = known.contains(y)
        value = np.where(possible, known.nearest(y), 0.0)
        below, above = (
            rows.score(known.cut(value, strict)) for strict in (True, False)
        )
        moved = np.maximum(below, 0.0) + np.minimum(above, 0.0)
        with np.errstate(invalid="ignore"):  # of impossible targets
            ranked = KNOWN * moved + (1 - KNOWN) * own
        return np.where(possible, np.stack([ranked, own]), np.inf)

    @property
    def _between(self) -> Array:
        """Half way between listed values."""
        values: Any = self.values
        between: Array = (values[1:] + values[:-1]) / 2
        return between


def check_support(support: Any) -> Support:
    """What a user may pass as ``support``; None for all numbers."""
    if support is None:
        return Support()
    if isinstance(support, Support):
        return support
    if isinstance(support, str) and support in NAMES:
        if support in ("auto", "integer"):
            return Support(integer=support == "integer", learned=support)
        return Support(0.0, integer=support == "count")
    hint = (
        "Use 'count', a range as a tuple, for example (0, 100), or list the values, "
        "for example np.arange(11)."
    )
    names = ", ".join(map(repr, NAMES))
    expected = f"{names}, a tuple (low, high) or a list of finite numbers"
    try:
        if isinstance(support, tuple) and len(support) == 2:  # None: no bound
            low = -np.inf if support[0] is None else float(support[0])
            high = np.inf if support[1] is None else float(support[1])
            if low < high:
                return Support(low, high)
        else:
            values = np.unique(np.asarray(support, dtype=np.float64))
            if values.size and np.ndim(support) == 1 and np.isfinite(values).all():
                return Support(float(values[0]), float(values[-1]), values=values)
    except (TypeError, ValueError):
        pass
    raise_for("support", support, expected, hint)
