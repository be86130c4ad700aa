"""Rows that come one after another: levels that follow the misses.

Adaptive conformal inference (Gibbs and Candès, 2021): after each row whose interval
was issued at miscoverage α_t, α_{t+1} = α_t + γ(α − miss_t). Whatever the rows do, the
share of misses up to time T differs from α by at most (max(α, 1 − α) + γ) / (γT).
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._validation import check_integer, check_number
from .groups import rows_by_group

Array = NDArray[np.float64]
Labels = NDArray[np.object_]
GAMMA = 0.01


@dataclass(frozen=True, eq=False)
class AdaptiveLevels:
    """Miscoverages in use, of each group, and what they have met so far."""

    alpha: Array  # (m,), promised in the long run
    n_missed: Array  # (m,), rows outside their interval
    n_observed: int = 0
    gamma: float = GAMMA  # step size
    window: int | None = None  # newest calibration rows that are kept; None: all
    time: float | None = None  # of the newest row
    # Group → miscoverages (m,) at which the next interval is issued.
    current: dict[Any, Array] = field(default_factory=dict)

    @classmethod
    def start(cls, alpha: Array) -> "AdaptiveLevels":
        """Before any row."""
        return cls(alpha, np.zeros(len(alpha)))

    def at(self, alpha: Array) -> "AdaptiveLevels":
        """At these miscoverages: from the start, if they are others than so far."""
        if np.array_equal(alpha, self.alpha):
            return self
        options = {k: getattr(self, k) for k in ("gamma", "window", "time")}
        return replace(self.start(alpha), **options)

    def with_options(self, gamma: float | None, window: int | None) -> "AdaptiveLevels":
        """With another step size or window, where one is given."""
        new: dict[str, Any] = {}
        if gamma is not None:
            hint = "Use 0.01; larger steps follow faster and make widths unsteady."
            new["gamma"] = check_number("gamma", gamma, low=0, high=1, hint=hint)
        if window is not None:
            hint = "Use 500, or None."
            new["window"] = check_integer("window", window, low=1, hint=hint)
        return replace(self, **new)

    def of(self, label: Any) -> Array:
        """Miscoverages (m,) of a group."""
        return self.current.get(label, self.alpha)

    def after(
        self, labels: Labels | None, missed: NDArray[np.bool_], time: float | None
    ) -> "AdaptiveLevels":
        """After some rows that were predicted together; ``missed`` is (n, m)."""
        current = dict(self.current)
        every = {None: slice(None)}
        groups: dict[Any, Any] = every if labels is None else rows_by_group(labels)
        for label, rows in groups.items():
            step = self.gamma * (self.alpha - missed[rows]).sum(axis=0)
            current[label] = self.of(label) + step
        return replace(
            self,
            current=current,
            n_observed=self.n_observed + len(missed),
            n_missed=self.n_missed + missed.sum(axis=0),
            time=self.time if time is None else time,
        )

    @property
    def coverage(self) -> Array:
        """Share of the observed rows that lay in their interval, (m,)."""
        if not self.n_observed:
            return np.full(len(self.alpha), np.nan)
        return np.asarray(1 - self.n_missed / self.n_observed)


def check_order(time: Any, n: int, newest: float | None) -> float | None:
    """Time of the last of n rows, which must come one after another."""
    if time is None:
        return None
    given = np.atleast_1d(np.asarray(time))
    if given.dtype.kind in "OU":
        try:
            given = given.astype("datetime64[ns]")
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"Got time as {time!r}, but expected numbers, or dates without a time "
                "zone. Convert them to one zone first."
            ) from error
    dates = given.dtype.kind in "mM"
    if dates:
        if np.isnat(given).any():
            raise ValueError("Got time with a missing date. Leave such rows out.")
        given = given.astype("datetime64[ns]").astype(np.int64)
    values = given.astype(np.float64)
    if values.shape not in ((n,), (1,)) or not np.isfinite(values).all():
        raise ValueError(
            f"Got time of shape {values.shape} for {n} rows, but expected one finite "
            "number or date for each, or one for all."
        )
    before = values[0] if newest is None else newest
    steps = np.diff(np.r_[before, values])
    if (steps < 0).any():
        row = int(np.flatnonzero(steps < 0)[0])
        now, last = given[row], before if row == 0 else given[row - 1]
        if dates:
            now, last = (np.datetime64(int(t), "ns") for t in (now, last))
        raise ValueError(
            f"Got row {row} at time {now}, which is before the row observed last, at "
            f"{last}. Levels follow rows in their order: sort the rows by time and "
            "pass each once. Nothing was changed."
        )
    return float(values[-1])
