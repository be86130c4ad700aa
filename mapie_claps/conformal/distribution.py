"""Signed scores → the whole predictive distribution, as a conformal predictive system.

The n signed scores of the calibration rows cut the line into n + 1 parts of equal
probability: exact at the ranks k/(n + 1), infinite beyond the outer ones unless a tail
is asked for, which has no guarantee.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri
from sklearn.utils import check_random_state
from sklearn.utils.validation import _num_samples

from .._validation import (
    check_choice,
    check_integer,
    check_share,
    check_unmasked,
    raise_for,
)
from ..estimators.local_law import LocalLaw
from .bounds import predict_law
from .calibration_state import CalibrationState
from .quantile import score_bounds
from .row_parts import row_parts

Array = NDArray[np.float64]


class PredictiveDistribution(CalibrationState):
    """Methods for calibrated objects with signed scores, and one rank for all rows."""

    def predict_quantiles(
        self, X: Any, levels: float | ArrayLike, tails: str = "infinite"
    ) -> Array:
        r"""Predict calibrated quantiles of y.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of batches
            Inputs.
        levels : float or array-like of shape (m,)
            Levels τ in (0, 1). The quantile has rank :math:`\lceil\tau(n+1)\rceil`
            among the signed scores from the median up, and
            :math:`\lfloor\tau(n+1)\rfloor` below it, so that y exceeds an upper
            quantile with probability at most 1 − τ and falls below a lower one with
            probability at most τ.
        tails : {"infinite", "normal"}, default="infinite"
            What lies beyond the outermost scores: infinity, or a normal tail of the
            scores' standard deviation, without a guarantee.

        Returns
        -------
        ndarray of shape (n, m)
            Quantiles. Two of them, at α/2 and 1 − α/2, are the interval of
            ``sym=False``.
        """
        hint = "Use for example [0.05, 0.5, 0.95]."
        each = np.atleast_1d(np.asarray(levels, dtype=object))
        wanted = np.array([check_share("levels", level, hint=hint) for level in each])
        check_choice("tails", tails, ("infinite", "normal"), "Use 'infinite'.")
        at = self._scores_at(wanted, tails)
        lower, support = wanted < 0.5, self._support()
        found = [np.empty((0, len(wanted)))]
        for law in self._laws(X):
            # Rounded outwards, as intervals are.
            low, high = support.of(law).snap(*law.interval(at, at))
            found.append(np.where(lower, low, high))
        return np.concatenate(found)

    def cdf(self, X: Any, y: ArrayLike) -> Array:
        """Predict the probability that a target is at most y.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of batches
            Inputs.
        y : float, or array-like of shape (n,) or (n, m)
            Values of the target: one for all rows, or those of each row.

        Returns
        -------
        ndarray of shape (n,) or (n, m)
            With k scores below that of y and t equal to it, (k + (t + 1)/2)/(n + 1):
            the middle of what a conformal predictive system leaves open. Where the
            ``support`` is of whole numbers or a list, the score is taken half way to
            the next possible value; below and above the support it is ∓∞.
        """
        return self._probability_up_to(X, y, "y")

    def probability(
        self, X: Any, *, above: ArrayLike | None = None, below: ArrayLike | None = None
    ) -> Array:
        """Predict the probability that a target lies above, below or between limits.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of batches
            Inputs.
        above, below : float or array-like of shape (n,), optional
            Limits: one of them, or both. They themselves do not count.

        Returns
        -------
        ndarray of shape (n,)
            Probabilities; see ``cdf`` for what they count.
        """
        if above is None and below is None:
            raise ValueError(
                "Got neither above nor below, but expected a limit. Use for example "
                "probability(X, above=10.0)."
            )
        rows = list(X) if isinstance(X, Iterator) else X
        if above is None:
            return self._probability_up_to(rows, below, "below", strict=True)
        if below is None:
            return 1 - self._probability_up_to(rows, above, "above")
        up_to = self._probability_up_to(rows, below, "below", strict=True)
        return np.maximum(up_to - self._probability_up_to(rows, above, "above"), 0.0)

    def _probability_up_to(
        self, X: Any, limit: Any, name: str, strict: bool = False
    ) -> Array:
        """P(y ≤ limit), or P(y < limit); they differ where a support has gaps."""
        ordered = np.sort(self._checked_signed())
        values = _checked_limits(name, limit)
        support = self._support()
        found, start = [np.empty((0, *values.shape[1:]))], 0
        for law in self._laws(X):
            stop = start + len(law)
            own = values[start:stop] if values.ndim else np.full(len(law), values)
            if len(own) != len(law):
                _refuse_number_of_limits(name, len(values), f"at least {stop}")
            score, start = law.position(support.of(law).cut(own, strict)), stop
            below = np.searchsorted(ordered, score, side="left")
            up_to = np.searchsorted(ordered, score, side="right")
            found.append((below + up_to + 1) / (2 * (len(ordered) + 1)))
        if values.ndim and len(values) != start:
            _refuse_number_of_limits(name, len(values), str(start))
        return np.concatenate(found)

    def sample(
        self,
        X: Any,
        n_samples: int = 1,
        random_state: int | np.random.RandomState | None = None,
    ) -> Array:
        """Draw from the predictive distribution of each row.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of batches
            Inputs.
        n_samples : int, default=1
            Draws from each row, independent of one another.
        random_state : int, RandomState or None, default=None
            Seed.

        Returns
        -------
        ndarray of shape (n, n_samples)
            Targets: the distribution is linear between neighbouring scores and has
            normal tails beyond the outermost, see ``predict_quantiles``. With a
            ``support`` they are the nearest values in it.
        """
        n_samples = check_integer("n_samples", n_samples, low=1, hint="Use 100.")
        random, support = check_random_state(random_state), self._support()
        found = [np.empty((0, n_samples))]
        for law in self._laws(X):
            level = random.uniform(size=(len(law), n_samples))
            y = law.quantile(self._interpolated(level))
            found.append(support.of(law).nearest(y))
        return np.concatenate(found)

    def _scores_at(self, levels: Array, tails: str) -> Array:
        """Signed score of each level, by rank."""
        values = self._checked_signed()
        outside = 2 * np.minimum(levels, 1 - levels)  # of two ranks
        ends = score_bounds(values, outside.tolist(), sym=False, allow_infinite=True)
        at = np.where(levels < 0.5, *ends)
        if tails == "infinite":
            return at
        # Ranks from below pass over the infinite scores, so the tail starts after them.
        first = 1 + int(np.isposinf(values).sum())
        return np.where(np.isfinite(at), at, self._tail(levels, first))

    def _interpolated(self, level: Array) -> Array:
        """Signed scores at any level, linear between those of calibration rows."""
        values = np.sort(self._checked_signed())
        finite = values[np.isfinite(values)]
        if not len(finite):
            return self._tail(level)
        at = np.arange(1, len(finite) + 1) / (len(values) + 1)
        inside = np.interp(level, at, finite)
        outside = (level < at[0]) | (level > at[-1])
        return np.where(outside, self._tail(level), inside)

    def _tail(self, level: Array, first: int = 1) -> Array:
        """Scores beyond the outermost, as a normal law continues them.

        ``first`` is the rank of the smallest score.
        """
        values = np.sort(self._checked_signed())
        finite = values[np.isfinite(values)]
        if not len(finite):
            return np.where(level < 0.5, -np.inf, np.inf)
        n = len(values) + 1
        edge = np.where(level < 0.5, first / n, len(finite) / n)
        start = np.where(level < 0.5, finite[0], finite[-1])
        tail: Array = start + finite.std() * (ndtri(level) - ndtri(edge))
        return tail

    def _laws(self, X: Any) -> Iterator[LocalLaw]:
        """Laws of the rows, part by part."""
        self._check_one_rank("a predictive distribution")
        self._check_estimator()
        for X_, _ in row_parts(self._fitted(), X):
            if _num_samples(X_):
                yield predict_law(self._fitted(), X_)[1]


def _checked_limits(name: str, limit: Any) -> Array:
    """Limits as (), (n,) or (n, m), none of them NaN."""
    check_unmasked(name, limit)
    try:
        values = np.asarray(limit, dtype=np.float64)
    except (TypeError, ValueError):
        raise_for(name, limit, "a number, or numbers for each row", "Pass values of y.")
    if values.ndim > 2 or np.isnan(values).any():
        found = "NaN" if np.isnan(values).any() else f"the shape {values.shape}"
        raise_for(
            name,
            found,
            "a number, (n,) or (n, m) numbers, none of them missing",
            "Leave out rows without a value.",
        )
    return values


def _refuse_number_of_limits(name: str, found: int, expected: str) -> None:
    raise ValueError(
        f"Got {name} for {found} rows, but X has {expected}. Pass one number, or as "
        "many as X has rows."
    )
