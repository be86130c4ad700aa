"""Scores → intervals and distributions: the one calibrated object of the library.

Scores are one number per calibration row and are kept (8 MB per million rows): the
exact conformal quantile needs them. All else stays within one batch.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import _safe_indexing, check_random_state
from sklearn.utils.validation import _num_samples
from torch import Tensor

from .._validation import check_choice, check_number
from ..estimators.local_law import LocalLaw
from ..estimators.regressor import ClapsRegressor
from ..estimators.variance import Parts
from ..files.codec import Context, register, saved_as
from ..files.methods import SaveMixin
from ..network.batches import check_has_target, column, is_batches, items_of
from .bounds import predict_law
from .distribution import PredictiveDistribution
from .explanation import Explanation
from .parts import check_unchanged, fingerprint_of, parts_of
from .quantile import ScoreEnds, conformal_rank, score_ends
from .support import Support, check_support, score_rows

__all__ = ["CalibratedRegressor"]

Array = NDArray[np.float64]


class CalibratedRegressor(PredictiveDistribution, SaveMixin):
    r"""Calibrated intervals and predictive distributions, from ``fit`` to a file.

    :math:`C_\alpha(x) = \{y : |s(x, y)| \le q_\alpha\}`, with :math:`q_\alpha` the
    :math:`\lceil(n+1)(1-\alpha)\rceil`-th smallest of the calibration rows' scores.

    ``fit`` keeps back some rows, fits the estimator on the others and calibrates on
    those kept back. With a fitted estimator, ``conformalize`` calibrates on rows that
    it has not seen; they may come in batches and need not fit in memory. Intervals are
    those of ``SplitConformalRegressor(estimator, conformity_score=ClapsScore(),
    prefit=True)`` of MAPIE, to the last bit; beyond them the same scores give
    quantiles, probabilities and draws.

    Parameters
    ----------
    estimator : estimator or None, default=None
        With ``predict(X, return_std=True)``; None for a ``ClapsRegressor``. To be
        fitted on a copy by ``fit``, or fitted already.
    confidence_level : float or sequence of float, default=0.9
        Levels 1 − α of the intervals.
    sym : bool, default=True
        One rank for both ends, or one rank at α/2 for each; see
        :class:`~mapie_claps.ClapsScore`.
    support : str, tuple, array-like or None, default=None
        Values that y can take; see :class:`~mapie_claps.ClapsScore`.
    calibration_fraction : float, default=0.25
        Share of the rows that ``fit`` keeps back.
    random_state : int, RandomState or None, default=None
        Seed of the split, and of a default estimator.

    Attributes
    ----------
    estimator_ : estimator
        The fitted estimator.
    signed_scores_ : ndarray of shape (n_cal,)
        Signed scores of the calibration rows, in the order in which they came.
    conformity_scores_ : ndarray of shape (n_cal,)
        Their absolute values.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import CalibratedRegressor, ClapsRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-2, 2, (400, 1))
    >>> y = np.exp(X[:, 0] + rng.normal(0, 0.3, 400))
    >>> model = CalibratedRegressor(
    ...     ClapsRegressor(n_members=2, target_map="log"), random_state=0).fit(X, y)
    >>> y_pred, y_interval = model.predict_interval(X[:5])
    >>> y_interval.shape, bool((y_interval > 0).all())
    ((5, 2, 1), True)
    >>> model.predict_quantiles(X[:5], [0.05, 0.5, 0.95]).shape
    (5, 3)
    >>> bool(model.probability([[0.0]], above=5.0)[0] < 0.1)
    True
    """

    def __init__(
        self,
        estimator: Any = None,
        confidence_level: float | Sequence[float] = 0.9,
        *,
        sym: bool = True,
        support: Any = None,
        calibration_fraction: float = 0.25,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.estimator = estimator
        self.confidence_level = confidence_level
        self.sym = check_choice("sym", sym, (True, False), "Use True for one rank.")
        self.support = check_support(support)
        self.calibration_fraction = check_number(
            "calibration_fraction",
            calibration_fraction,
            low=0,
            high=1,
            low_open=True,
            high_open=True,
            hint="Use 0.25 if unsure.",
        )
        self.random_state = random_state
        _checked_levels(confidence_level)

    @classmethod
    def from_scores(
        cls,
        estimator: Any,
        scores: ArrayLike,
        confidence_level: float | Sequence[float] = 0.9,
        *,
        signed: bool = False,
        sym: bool = True,
        support: Any = None,
    ) -> Self:
        """Calibrate from scores that were computed earlier or elsewhere.

        Parameters
        ----------
        estimator : estimator
            The fitted estimator that the scores were computed with.
        scores : array-like of shape (n_cal,)
            What ``score_rows`` of an object with this estimator and support gives.
        confidence_level : float or sequence of float, default=0.9
            Levels of the intervals.
        signed : bool, default=False
            Whether scores have their sign. Without it there are intervals of one rank,
            but no distribution.
        sym : bool, default=True
            Whether one rank serves both ends.
        support : str, tuple, array-like or None, default=None
            Values that y can take.

        Returns
        -------
        CalibratedRegressor
            A calibrated object.
        """
        values = np.asarray(scores, dtype=np.float64)
        wrong = np.isnan(values) if signed else ~(values >= 0)
        if values.ndim != 1 or not len(values) or wrong.any():
            kind = "none of them NaN" if signed else "none of them negative or NaN"
            raise ValueError(
                f"Got scores of shape {values.shape}, but expected at least one "
                f"number per calibration row, {kind}."
            )
        made = cls(estimator, confidence_level, sym=sym, support=support)
        return made._set_scores(values, signed)

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the estimator on a part of the rows, and calibrate on the rest.

        Parameters
        ----------
        X : array-like of shape (n, p)
            Inputs; rows must be exchangeable, since which are kept back is random.
        y : array-like of shape (n,)
            Targets.
        sample_weight : array-like of shape (n,), optional
            Weights of the rows in the fit. Calibration counts every row once.

        Returns
        -------
        CalibratedRegressor
            The calibrated object. If anything fails it is left as it was.
        """
        n = _num_samples(X)
        n_cal = round(self.calibration_fraction * n)
        if n_cal < 1 or n - n_cal < 2:
            raise ValueError(
                f"Got {n} rows, of which calibration_fraction="
                f"{self.calibration_fraction!r} keeps back {n_cal}, but expected at "
                "least 1 to calibrate on and 2 to fit on. Collect more rows."
            )
        random = check_random_state(self.random_state)
        order = random.permutation(n)
        template = self.estimator
        if template is None:
            template = ClapsRegressor(random_state=random.randint(2**31 - 1))
        kept, rest = order[:n_cal], order[n_cal:]
        weight = {}
        if sample_weight is not None:
            weight["sample_weight"] = _safe_indexing(sample_weight, rest)
        fitted = clone(template).fit(
            _safe_indexing(X, rest), _safe_indexing(y, rest), **weight
        )
        scores = self._score_with(fitted, _safe_indexing(X, kept), np.asarray(y)[kept])
        self.estimator_ = fitted
        return self._set_scores(scores)

    def conformalize(self, X: Any, y: Any = None) -> Self:
        """Compute the scores of the calibration rows; earlier ones are dropped.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of (X, y)
            Calibration rows, which the estimator has not seen.
        y : array-like of shape (n,), optional
            Their targets, unless X is an iterable of batches.

        Returns
        -------
        CalibratedRegressor
            The calibrated object.
        """
        return self._set_scores(self._score_with(self._fitted(), X, y))

    def partial_conformalize(self, X: Any, y: Any = None) -> Self:
        """Add calibration rows to those there are.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of (X, y)
            Calibration rows.
        y : array-like of shape (n,), optional
            Their targets, unless X is an iterable of batches.

        Returns
        -------
        CalibratedRegressor
            The calibrated object.
        """
        self._check_estimator()
        earlier = getattr(self, "signed_scores_", np.empty(0))
        more = self._score_with(self._fitted(), X, y)
        signed = getattr(self, "_signed", True)
        if not signed:
            more = np.abs(more)
        return self._set_scores(np.concatenate([earlier, more]), signed)

    def score_rows(self, X: Any, y: Any = None, signed: bool = False) -> Array:
        """Compute scores without keeping them.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of (X, y)
            Rows.
        y : array-like of shape (n,), optional
            Their targets, unless X is an iterable of batches.
        signed : bool, default=False
            Whether scores keep their sign.

        Returns
        -------
        ndarray of shape (n,)
            Scores.
        """
        scores = self._score_with(self._fitted(), X, y)
        return scores if signed else np.abs(scores)

    def quantiles(self, allow_infinite_bounds: bool = False) -> Array:
        """Conformal quantile of each level.

        Parameters
        ----------
        allow_infinite_bounds : bool, default=False
            Whether to give infinity where there are too few scores, not an error.

        Returns
        -------
        ndarray of shape (n_levels,), or (2, n_levels) with ``sym=False``
            Quantiles of the absolute scores; or signed scores of both ends.
        """
        ends = self._ends(allow_infinite_bounds)
        return ends.upper.copy() if self.sym else np.stack(ends)

    def predict(self, X: Any) -> Array:
        """Predict the mean of y.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of batches
            Inputs.

        Returns
        -------
        ndarray of shape (n,)
            Point predictions.
        """
        parts = (part for part, _ in self._parts(X) if _num_samples(part))
        found = [self._fitted().predict(part) for part in parts]
        return np.concatenate([np.empty(0), *found])

    def predict_interval(
        self, X: Any, allow_infinite_bounds: bool = False
    ) -> tuple[Array, Array]:
        """Predict points and intervals, in the shapes of MAPIE.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of batches
            Inputs; batches may be X or (X, y), also of no rows. A list of arrays with
            two or more dimensions is a list of batches.
        allow_infinite_bounds : bool, default=False
            Whether bounds may be infinite where there are too few scores.

        Returns
        -------
        tuple of ndarray
            Points (n,), intervals (n, 2, n_levels).
        """
        parts = list(self.iter_intervals(X, allow_infinite_bounds))
        points = [np.empty(0), *(p for p, _ in parts)]
        intervals = [np.empty((0, 2, len(self.levels))), *(i for _, i in parts)]
        return np.concatenate(points), np.concatenate(intervals)

    def iter_intervals(
        self, X: Any, allow_infinite_bounds: bool = False
    ) -> Iterator[tuple[Array, Array]]:
        """Predict points and intervals one batch at a time, in flat memory.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of batches
            Inputs; batches may be X or (X, y), also of no rows. A list of arrays with
            two or more dimensions is a list of batches.
        allow_infinite_bounds : bool, default=False
            Whether bounds may be infinite where there are too few scores.

        Yields
        ------
        tuple of ndarray
            Points (n,), intervals (n, 2, n_levels) of one batch.
        """
        ends = self._ends(allow_infinite_bounds)
        n_rows = 0
        for X_, _ in self._parts(X):
            if not _num_samples(X_):
                yield np.empty(0), np.empty((0, 2, len(ends.lower)))
                continue
            points, lower, upper = bounds_of_rows(
                self._fitted(), X_, ends, {}, n_rows, self.support
            )
            yield points, np.stack([lower, upper], axis=1)
            n_rows += len(points)

    def explain(self, X: Any, allow_infinite_bounds: bool = False) -> Explanation:
        """Explain predictions: the mean, the intervals, and the two parts of v.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of batches
            Inputs.
        allow_infinite_bounds : bool, default=False
            Whether bounds may be infinite where there are too few scores.

        Returns
        -------
        Explanation
            Arrays by row.
        """
        return explain_rows(self, X, self._ends(allow_infinite_bounds))
