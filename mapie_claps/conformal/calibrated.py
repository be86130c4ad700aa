"""The calibrated object of the library: ``CalibratedRegressor``."""

import copy
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import _safe_indexing, check_random_state
from sklearn.utils.validation import _num_samples

from .._validation import (
    check_choice,
    check_integer,
    check_share,
    check_unmasked,
    raise_for,
)
from ..estimators.base import MAX_SEEN_ROWS
from ..estimators.predictive import PredictiveDistribution
from ..network.batches import check_has_target, column, is_batches, items_of
from .calibration import Calibration, ScoreBounds, interval, rows_by_group
from .distribution import (
    check_same_fit,
    distribution_of,
    fit_id_of,
    last_step,
    row_blocks,
    transformed,
)
from .mapie import CalibratedMapie
from .scale_estimator import ClapsScaleEstimator
from .score import ClapsScore
from .shift import (
    check_all_used,
    check_enough_weight,
    check_groups,
    check_weights,
    effective_sample_size,
    labels_at,
    weights_at,
)
from .support import check_support

Array = NDArray[np.float64]
SEEN_SHARE = 0.05  # of calibration rows; fewer hardly change a rank
RowsAndEnds = Iterator[tuple[PredictiveDistribution, ScoreBounds]]


class CalibratedRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
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
        fitted on a copy by ``fit``, or fitted already. Of a search, such as
        ``GridSearchCV``, ``fit`` takes the model that it chose.
    confidence_level : float or sequence of float, default=0.9
        Levels 1 − α of the intervals.
    sym : bool, default=True
        One rank for both ends, or one rank at α/2 for each; see
        :class:`~mapie_claps.ClapsScore`.
    support : str, tuple, array-like or None, default="auto"
        Values that y can take; see :class:`~mapie_claps.ClapsScore`.
    calibration_fraction : float, default=0.25
        Share of the rows that ``fit`` keeps back.
    keep_training_rows : bool, default=False
        Whether ``fit`` keeps the rows that it fitted on, for
        :func:`~mapie_claps.diagnostics.nearest_rows`. They stay in memory and in
        pickles; ``save`` never writes them.
    random_state : int, RandomState or None, default=None
        Seed of the split, and of a default estimator.

    Attributes
    ----------
    estimator_ : estimator
        The fitted estimator.
    calibration_ : Calibration
        Scores of the calibration rows, their weights and groups.
    training_rows_ : tuple of X and y
        The rows that ``fit`` fitted on, if ``keep_training_rows``.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import CalibratedRegressor, ClapsRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-2, 2, (400, 1))
    >>> y = np.exp(X[:, 0] + rng.normal(0, 0.3, 400))
    >>> model = CalibratedRegressor(
    ...     ClapsRegressor.paper(target_map="log"), random_state=0).fit(X, y)
    >>> y_pred, y_interval = model.predict_interval(X[:5])
    >>> y_interval.shape, bool((y_interval > 0).all())
    ((5, 2, 1), True)
    >>> model.predict_quantiles(X[:5], [0.05, 0.5, 0.95]).shape
    (5, 3)
    >>> bool(model.probability([[0.0]], above=5.0)[0] < 0.1)
    True

    A fitted estimator, and calibration rows in batches:

    >>> batches = [(X[i : i + 50], y[i : i + 50]) for i in range(200, 400, 50)]
    >>> fitted = ClapsRegressor.paper(random_state=0).fit(X[:200], y[:200])
    >>> model = CalibratedRegressor(fitted, [0.8, 0.9]).conformalize(batches)
    >>> [intervals.shape for _, intervals in model.iter_intervals(batches[:2])]
    [(50, 2, 2), (50, 2, 2)]
    """

    estimator_: Any
    calibration_: Calibration
    training_rows_: tuple[Any, Any]

    def __init__(
        self,
        estimator: Any = None,
        confidence_level: float | Sequence[float] = 0.9,
        *,
        sym: bool = True,
        support: Any = "auto",
        calibration_fraction: float = 0.25,
        keep_training_rows: bool = False,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.estimator = estimator
        self.confidence_level = confidence_level
        self.sym = sym
        self.support = support
        self.calibration_fraction = calibration_fraction
        self.keep_training_rows = keep_training_rows
        self.random_state = random_state

    @classmethod
    def from_mapie(
        cls, mapie: Any, confidence_level: float | Sequence[float] | None = None
    ) -> Self:
        """Take over model and scores of a calibrated MAPIE object, to save them.

        Parameters
        ----------
        mapie : object
            A calibrated ``SplitConformalRegressor`` (``MapieRegressor`` of MAPIE 0.9
            with ``cv="prefit"`` or ``"split"``) with a ``ClapsScore``.
        confidence_level : float or sequence of float, optional
            Levels of the intervals; None for those of the object. MAPIE 0.9 keeps
            none.

        Returns
        -------
        CalibratedRegressor
            Object with the same intervals. MAPIE keeps absolute scores, so that it
            has no distribution unless the score was made with ``sym=False``.
        """
        host = CalibratedMapie.of(mapie)
        if host is None or not isinstance(host.score, ClapsScore):
            with_what = "" if host is None else ", whose score is another one"
            raise TypeError(
                f"Got a {type(mapie).__name__}{with_what}, but expected a calibrated "
                "SplitConformalRegressor of MAPIE with conformity_score=ClapsScore()."
            )
        if not host.ensemble.is_split:
            raise TypeError(
                f"Got a {type(mapie).__name__}, whose scores come from one model per "
                "fold, but expected one model. Use SplitConformalRegressor, or "
                "keep the rows and calibrate again."
            )
        levels = host.levels if confidence_level is None else confidence_level
        if levels is None:
            raise ValueError(
                "Got confidence_level=None, but MapieRegressor of MAPIE 0.9 keeps no "
                "level. Pass for example confidence_level=0.9."
            )
        score, model = host.score, host.ensemble.point_model
        fit_id = getattr(host.conformity_scores, "fit_id", None)
        check_same_fit(model, fit_id)
        if fit_id is None and fit_id_of(model) is not None:
            raise ValueError(
                "Got conformity scores that do not say how they were made. Leave the "
                "scores as they are in MAPIE's object, or calibrate again."
            )
        made = cls(model, levels, sym=score.sym, support=score.support)
        scores = np.array(host.conformity_scores, dtype=np.float64)
        return made._set(made._calibration(scores, not score.sym))

    @classmethod
    def from_scores(
        cls,
        estimator: Any,
        scores: ArrayLike,
        confidence_level: float | Sequence[float] = 0.9,
        *,
        signed: bool = False,
        sym: bool = True,
        support: Any = "auto",
        weights: Any = None,
        groups: Any = None,
    ) -> Self:
        """Calibrate from scores that were computed earlier or elsewhere.

        Parameters
        ----------
        estimator : estimator
            The fitted estimator that the scores were computed with.
        scores : array-like of shape (n_cal,)
            What ``score_rows`` of an object with this estimator and support gives.
        confidence_level, sym, support
            Parameters of the object.
        signed : bool, default=False
            Whether scores have their sign. Without it there are intervals of one rank,
            but no distribution.
        weights, groups : array-like of shape (n_cal,), optional
            Likelihood ratios and labels of the rows; see ``conformalize``.

        Returns
        -------
        CalibratedRegressor
            A calibrated object.
        """
        check_unmasked("scores", scores)
        values = np.array(scores, dtype=np.float64)
        wrong = np.isnan(values) if signed else ~(values >= 0)
        if values.ndim != 1 or not len(values) or wrong.any():
            kind = "none of them NaN" if signed else "none of them negative or NaN"
            raise ValueError(
                f"Got scores of shape {values.shape}, but expected at least one "
                f"number per calibration row, {kind}."
            )
        weights, groups = check_weights(weights), check_groups(groups)
        for name, value in (("weights", weights), ("groups", groups)):
            if not isinstance(value, np.ndarray | tuple | None):
                raise TypeError(
                    f"Got {name} of type {type(value).__name__}, but from_scores has "
                    "no rows to apply it to. Pass one number or label for each score; "
                    "EpistemicGroups(...).labels(estimator, X) gives labels."
                )
        check_all_used(weights, groups, len(values))
        made = cls(estimator, confidence_level, sym=sym, support=support)
        return made._set(made._calibration(values, signed, weights, groups))

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        weights: Any = None,
        groups: Any = None,
    ) -> Self:
        """Fit the estimator on a part of the rows, and calibrate on the rest.

        Parameters
        ----------
        X : array-like of shape (n, p)
            Inputs; rows must be exchangeable, since which are kept back is random.
        y : array-like of shape (n,)
            Targets.
        sample_weight : array-like of shape (n,), optional
            Weights of the rows in the fit. Calibration counts every row once.
        weights, groups : callable or array-like of shape (n,), optional
            Likelihood ratios and groups for calibration; see ``conformalize``.

        Returns
        -------
        CalibratedRegressor
            The calibrated object. If anything fails it is left as it was.
        """
        share, kept_too = self.calibration_fraction, self.keep_training_rows
        check_share("calibration_fraction", share, hint="Use 0.25 if unsure.")
        check_choice("keep_training_rows", kept_too, (True, False), "Use False.")
        check_has_target(y)
        n = _num_samples(X)
        target = column("y", y, n).numpy()
        if sample_weight is not None:
            column("sample_weight", sample_weight, n)
        n_cal = round(share * n)
        if n_cal < 1 or n - n_cal < 2:
            raise ValueError(
                f"Got {n} rows, of which calibration_fraction={share!r} keeps back "
                f"{n_cal}, but expected at least 1 to calibrate on and 2 to fit on. "
                "Collect more rows."
            )
        random = check_random_state(self.random_state)
        order = random.permutation(n)
        template = self.estimator
        if template is None:
            from ..estimators.regressor import ClapsRegressor

            template = ClapsRegressor(random_state=random.randint(2**31 - 1))
        kept, rest = order[:n_cal], order[n_cal:]
        given = check_weights(weights), check_groups(groups)
        check_all_used(*given, n)
        w, g = (
            _safe_indexing(v, kept) if isinstance(v, np.ndarray | tuple) else v
            for v in given
        )
        training = _safe_indexing(X, rest), _safe_indexing(y, rest)
        weight = {}
        if sample_weight is not None:
            weight["sample_weight"] = _safe_indexing(sample_weight, rest)
        fitted = clone(template).fit(*training, **weight)
        fresh = self._copy(getattr(fitted, "best_estimator_", fitted))
        if kept_too:
            fresh.training_rows_ = training
        rows = fresh._score(_safe_indexing(X, kept), target[kept], w, g)
        fresh._set(rows, given)
        self.__dict__ = fresh.__dict__
        return self

    def conformalize(
        self, X: Any, y: Any = None, *, weights: Any = None, groups: Any = None
    ) -> Self:
        """Compute the scores of the calibration rows; earlier ones are dropped.

        Adaptive levels start again too, unless ``update_posterior`` has dropped the
        scores: then they go on.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of (X, y)
            Calibration rows, which the estimator has not seen. ``ClapsRegressor`` and
            ``ClapsModule`` know rows that they were fitted on: there is a warning if
            more of them come than equal rows of a table explain.
        y : array-like of shape (n,), optional
            Their targets, unless X is an iterable of batches.
        weights : array-like of shape (n,) or callable, optional
            Likelihood ratios p_target(x) / p_source(x) of the rows, up to a constant,
            for rows to predict whose x has another distribution. A function of X, such
            as :func:`~mapie_claps.likelihood_ratio` gives, also serves the rows to
            predict; numbers have to be passed there again.
        groups : array-like of shape (n,), callable, str or int, optional
            Groups that are calibrated apart: labels, a function of X, the name or
            position of a column, :class:`~mapie_claps.ColumnGroups` or
            :class:`~mapie_claps.EpistemicGroups`. They must be fixed before
            calibration.

        Returns
        -------
        CalibratedRegressor
            This object, calibrated. If anything fails it is left as it was.
        """
        functions = check_weights(weights), check_groups(groups)
        rows = self._score(X, y, *functions, by_hand=True)
        before = vars(self).get("calibration_")
        if before is not None and not len(before):
            rows = replace(rows, levels=before.levels)
        return self._set(rows, functions)

    def partial_conformalize(
        self, X: Any, y: Any = None, *, weights: Any = None, groups: Any = None
    ) -> Self:
        """Add calibration rows to those there are.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of (X, y)
            Calibration rows.
        y : array-like of shape (n,), optional
            Their targets, unless X is an iterable of batches.
        weights, groups : optional
            As in ``conformalize``; functions that were given there are used again.

        Returns
        -------
        CalibratedRegressor
            This object, calibrated.
        """
        before = vars(self).get("calibration_")
        if before is None or (not len(before) and before.fit_id is None):
            return self.conformalize(X, y, weights=weights, groups=groups)
        self._check_same()
        given = self._row_values(weights, groups, "partial_conformalize")
        return self._set(before.add(self._score(X, y, *given, by_hand=True)))

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
        scores = self._score(X, y).scores
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
        scores = self._one_rank("quantiles")
        alpha = 1 - np.asarray(self.levels)
        ends = scores.bounds(alpha, sym=self.sym, allow_infinite=allow_infinite_bounds)
        return ends.upper[0] if self.sym else np.concatenate(ends)

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
        model = self._fitted()
        parts = [p for p, _ in row_parts(model, X) if _num_samples(p)]
        return np.concatenate([np.empty(0), *(model.predict(p) for p in parts)])

    def predict_interval(
        self,
        X: Any,
        allow_infinite_bounds: bool = False,
        *,
        weights: Any = None,
        groups: Any = None,
    ) -> tuple[Array, Array]:
        """Predict points and intervals, in the shapes of MAPIE.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of batches
            Inputs; batches may be X or (X, y), also of no rows. A list of arrays with
            two or more dimensions is a list of batches.
        allow_infinite_bounds : bool, default=False
            Whether bounds may be infinite where there are too few scores.
        weights, groups : optional
            Likelihood ratios and labels of these rows, if calibration had them and not
            as functions of X. A row whose own weight is too large for a finite
            interval has infinite bounds.

        Returns
        -------
        tuple of ndarray
            Points (n,), intervals (n, 2, n_levels).
        """
        pairs = list(
            self.iter_intervals(
                X, allow_infinite_bounds, weights=weights, groups=groups
            )
        )
        if len(pairs) == 1:
            return pairs[0]
        none = np.empty(0), np.empty((0, 2, len(self.levels)))
        points, bounds = zip(none, *pairs, strict=True)
        return np.concatenate(points), np.concatenate(bounds)

    def iter_intervals(
        self,
        X: Any,
        allow_infinite_bounds: bool = False,
        *,
        weights: Any = None,
        groups: Any = None,
    ) -> Iterator[tuple[Array, Array]]:
        """Predict points and intervals one batch at a time, in flat memory.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of batches
            Inputs, as in ``predict_interval``; large batches are divided.
        allow_infinite_bounds : bool, default=False
            Whether bounds may be infinite where there are too few scores.
        weights, groups : optional
            As in ``predict_interval``.

        Yields
        ------
        tuple of ndarray
            Points (n,), intervals (n, 2, n_levels) of one batch.
        """
        support = check_support(self.support)
        pairs = self.rows_and_ends(X, allow_infinite_bounds, weights, groups)
        for rows, ends in pairs:
            yield rows.mean, interval(rows, ends, support)

    def explain(self, X: Any, **params: Any) -> Any:
        """Explain predictions: the mean, the intervals, and the two parts of v.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of batches
            Inputs.
        **params : dict
            Parameters of :func:`mapie_claps.explain` and of ``predict_interval``.

        Returns
        -------
        Explanation
            Arrays by row.
        """
        from ..diagnostics import explain

        return explain(self, X, **params)

    def predict_quantiles(
        self, X: Any, levels: float | ArrayLike, tails: str = "infinite"
    ) -> Array:
        r"""Predict calibrated quantiles of y.

        The n signed scores of the calibration rows cut the line into n + 1 parts of
        equal probability: a conformal predictive system.

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
        scores = self._one_rank("quantiles")
        lower, outside = wanted < 0.5, 2 * np.minimum(wanted, 1 - wanted)
        ends = scores.bounds(outside, sym=False, allow_infinite=True)
        at = np.where(lower, *ends)[0]
        if tails == "normal":
            # Ranks from below pass over infinite scores: the tail starts after them.
            first = 1 + int(np.isposinf(scores.scores).sum())
            at = np.where(np.isfinite(at), at, _tail(scores.scores, wanted, first))
        support, found = check_support(self.support), [np.empty((0, len(wanted)))]
        for rows in self._distributions(X):  # rounded outwards, as intervals are
            ends = interval(rows, ScoreBounds(at[None], at[None]), support)
            found.append(np.where(lower, ends[:, 0], ends[:, 1]))
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
        not_above = self._probability_up_to(rows, above, "above")
        if below is None:
            return 1 - not_above
        up_to = self._probability_up_to(rows, below, "below", strict=True)
        return np.maximum(up_to - not_above, 0.0)

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
        values = np.sort(self._one_rank("draws").signed_scores)
        finite = values[np.isfinite(values)]
        at = np.arange(1, len(finite) + 1) / (len(values) + 1)
        random, support = check_random_state(random_state), check_support(self.support)
        found = [np.empty((0, n_samples))]
        for rows in self._distributions(X):
            level = random.uniform(size=(len(rows), n_samples))
            score = _tail(values, level)
            if len(finite):
                inside = (level >= at[0]) & (level <= at[-1])
                score = np.where(inside, np.interp(level, at, finite), score)
            found.append(support.of(rows.targets).nearest(rows.quantile(score)))
        return np.concatenate(found)

    def observe(
        self,
        X: Any,
        y: Any = None,
        *,
        gamma: float | None = None,
        window: int | None = None,
        intervals: ArrayLike | None = None,
        time: Any = None,
        weights: Any = None,
        groups: Any = None,
    ) -> Self:
        r"""Observe targets that have arrived: adaptive confidence levels (ACI).

        :math:`\alpha_{t+1} = \alpha_t + \gamma(\alpha - \mathrm{miss}_t)`, for each
        level and, if there are groups, for each group. In the long run a share
        1 − α of all rows is covered, whatever they do; nothing is promised for a
        single row. An :math:`\alpha_t` of 0 or less gives infinite intervals, one of 1
        or more empty ones (the lower end just above the upper one).

        The rows' scores join the calibration scores. They must not enter the posterior
        as well.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of (X, y)
            Rows in the order of time. Rows of one call were predicted together, at the
            levels that the object has now; so call it once for each row if each was
            predicted after the one before was known.
        y : array-like of shape (n,), optional
            Their targets, unless X is an iterable of batches, each of which counts as
            one call.
        gamma : float, optional
            Step size in [0, 1]; 0.01 at first, then as before.
        window : int, optional
            Keep the newest calibration scores only, of each group if there are groups;
            all of them at first, then as before.
        intervals : array-like of shape (n, 2, n_levels), optional
            Intervals that were issued for these rows, if levels or scores have changed
            since. By default those that ``predict_interval(X)`` would give now.
        time : array-like of shape (n,), number or date, optional
            When the rows were: a row before the one observed last is refused.
        weights, groups : optional
            As in ``predict_interval``.

        Returns
        -------
        CalibratedRegressor
            This object. If anything fails it is left as it was.
        """
        rows = self._calibrated()
        for name, value in (("intervals", intervals), ("time", time)):
            if value is not None and y is None:
                raise ValueError(
                    f"Got {name} together with batches as X. Call observe(X, y, "
                    f"{name}=...) for each batch."
                )
        weights, groups = self._row_values(weights, groups, "observe")
        alpha, n_rows = 1 - np.asarray(self.levels), 0
        for X_, y_ in row_parts(self._fitted(), X, y, need_y=True):
            n = _num_samples(X_)
            w, g = (
                v[n_rows : n_rows + n] if isinstance(v, np.ndarray | tuple) else v
                for v in (weights, groups)
            )
            new = self._score(X_, y_, w, g)
            n_rows += n
            if not n:
                continue
            missed = None if intervals is None else _missed(intervals, y_, len(alpha))
            rows = rows.observe(
                new, alpha, sym=self.sym, gamma=gamma, window=window, time=time,
                missed=missed,
            )  # fmt: skip
        check_all_used(weights, groups, n_rows)
        return self._set(rows)

    def update_posterior(
        self, X: Any, y: Any = None, sample_weight: Any = None
    ) -> Self:
        """Let rows enter the posterior; all scores are dropped.

        The scores were made with the posterior as it was. Calibrate again, with
        ``conformalize``, on rows that the posterior has not seen. Adaptive levels stay
        as they are.

        Parameters
        ----------
        X : array-like of shape (n, ...), or iterable of (X, y)
            Rows.
        y : array-like of shape (n,), optional
            Their targets, unless X is an iterable of batches.
        sample_weight : array-like of shape (n,), optional
            Weights of the rows in the posterior.

        Returns
        -------
        CalibratedRegressor
            This object, no longer calibrated. If anything fails it is left as it was.
        """
        model = self._fitted()
        if not hasattr(model, "update_posterior"):
            raise TypeError(
                f"Got an estimator of type {type(model).__name__}, whose posterior "
                "cannot be updated. Use a ClapsRegressor or ClapsModule, not within a "
                "Pipeline, or fit it again."
            )
        updated = model.update_posterior(X, y, sample_weight)
        before = vars(self).get("calibration_")
        fresh = self._copy(updated)
        fresh.calibration_ = Calibration(
            np.empty(0), levels=None if before is None else before.levels
        )
        self.__dict__ = fresh.__dict__
        return self

    def save(self, path: Any) -> None:
        """Write the calibrated object to a file, without pickle.

        Parameters
        ----------
        path : path-like
            File to write; see :func:`mapie_claps.load`. Weights and groups as
            functions can be stored if they come from ``likelihood_ratio`` with its
            default classifier, ``ColumnGroups`` or ``EpistemicGroups``.
        """
        from ..files import save

        save(self, path)

    @property
    def levels(self) -> list[float]:
        """Confidence levels as a list."""
        hint = "Use for example 0.9, or [0.8, 0.9]."
        given = self.confidence_level
        each = [given] if np.ndim(given) == 0 else list(given)  # type: ignore[arg-type]
        if not each:
            raise_for("confidence_level", given, "at least one level", hint)
        return [check_share("confidence_level", level, hint=hint) for level in each]

    @property
    def conformity_scores_(self) -> Array:
        """Absolute scores of the calibration rows, in the order in which they came."""
        return np.abs(self._calibrated().scores)

    @property
    def signed_scores_(self) -> Array:
        """Signed scores of the calibration rows."""
        return self._calibrated().signed_scores.copy()

    @property
    def effective_sample_size_(self) -> float | dict[Any, float]:
        """Rows of equal weight that the calibration rows are worth; of each group."""
        rows = self._calibrated()
        weights = np.ones(len(rows)) if rows.weights is None else rows.weights
        groups = rows_by_group(rows.groups).items()
        sizes = {label: effective_sample_size(weights[i]) for label, i in groups}
        return sizes.get(None, sizes)

    @property
    def adaptive_levels_(self) -> Any:
        """Levels 1 − α_t at which the next interval is issued, (n_levels,).

        A dict by group if there are groups.
        """
        rows, nominal = self.calibration_, np.asarray(self.levels)
        levels = None if rows.levels is None else rows.levels.at(1 - nominal)
        labels = rows.labels
        if levels is not None and (rows.groups is not None or not len(rows)):
            moved = [v for v in levels.labels if v is not None or not len(rows)]
            labels = list(dict.fromkeys(labels + moved))
        found = {
            label: nominal if levels is None else 1 - levels.of(label)
            for label in labels
        }
        return found.get(None, found)

    @property
    def observed_coverage_(self) -> Array:
        """Share of the observed rows that their intervals covered, (n_levels,)."""
        levels, alpha = self.calibration_.levels, 1 - np.asarray(self.levels)
        levels = None if levels is None else levels.at(alpha)
        if levels is None or not levels.n_observed:
            return np.full(len(alpha), np.nan)
        return np.asarray(1 - levels.n_missed / levels.n_observed)

    def rows_and_ends(
        self, X: Any, allow_infinite_bounds: bool, weights: Any, groups: Any
    ) -> RowsAndEnds:
        """Distributions of rows and the scores at their ends, some rows at a time."""
        self._calibrated()
        model, first_row = self._fitted(), 0
        weights, groups = self._row_values(weights, groups, "predict_interval")
        alpha = 1 - np.asarray(self.levels)
        for X_, _ in row_parts(model, X):
            for block in row_blocks(X_):
                scores = self._calibrated()  # it may have changed since the last batch
                rows = _distribution(model, block, first_row)
                ends = scores.bounds(
                    alpha,
                    sym=self.sym,
                    labels=labels_at(groups, block, rows, first_row),
                    weights=weights_at(weights, block, len(rows), first_row),
                    allow_infinite=allow_infinite_bounds,
                    first_row=first_row,
                )
                yield rows, ends
                first_row += len(rows)
        check_all_used(weights, groups, first_row)

    def __sklearn_is_fitted__(self) -> bool:
        return bool(len(vars(self).get("calibration_", ())))

    def _fitted(self) -> Any:
        """The fitted estimator."""
        found = getattr(self, "estimator_", self.estimator)
        if found is None:
            raise NotFittedError(
                f"Got a {type(self).__name__} without a fitted estimator. Call fit, or "
                "pass an estimator that is fitted."
            )
        return found

    def _calibrated(self) -> Calibration:
        """Scores, if the estimator is still the one that they were made with."""
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(
                f"Got a {type(self).__name__} that is not calibrated. Call fit, or "
                "conformalize with a fitted estimator (again, if update_posterior has "
                "dropped the scores), or make it with from_scores."
            )
        self._check_same()
        return self.calibration_

    def _check_same(self) -> None:
        """Raise if what the scores were made with has changed since."""
        check_same_fit(self._fitted(), self.calibration_.fit_id)
        if check_support(self.support).key != self.calibration_.support.key:
            raise ValueError(
                f"Got support={self.support!r}, but the calibration rows were scored "
                "with another one. Call conformalize again."
            )

    def _one_rank(self, what: str) -> Calibration:
        """Scores, if one rank holds for all rows."""
        rows = self._calibrated()
        if not rows.is_plain:
            raise ValueError(
                f"Got {what} of an object whose rows differ in rank, by weights, "
                "groups or adaptive levels. Use predict_interval (with sym=False its "
                "ends are the quantiles at α/2 and 1 − α/2), or calibrate without them."
            )
        return rows

    def _row_values(self, weights: Any, groups: Any, method: str) -> tuple[Any, Any]:
        """Weights and groups of further rows: those given, or as at calibration."""
        rows, found = self.calibration_, []
        for name, value in (("weights", weights), ("groups", groups)):
            had = getattr(rows, name) is not None
            if value is None and had:
                value = vars(self).get(f"{name}_")  # a function of X
            if (value is None) == had:
                raise ValueError(
                    f"Got {'no ' if had else ''}{name} in {method}, but the object was "
                    f"calibrated {'with' if had else 'without'} them. "
                    f"{f'Pass {name}= to {method}' if had else 'Leave it out'}, or "
                    "calibrate again, with a function of X to be asked for nothing "
                    "here."
                )
            found.append(value)
        return check_weights(found[0]), check_groups(found[1])

    def _calibration(
        self,
        scores: Array,
        signed: bool = True,
        weights: Array | None = None,
        groups: Any = None,
    ) -> Calibration:
        """Scores that were made with the estimator and the support of this object."""
        fit_id, support = fit_id_of(self._fitted()), check_support(self.support)
        return Calibration(scores, signed, weights, groups, fit_id, support)

    def _score(
        self,
        X: Any,
        y: Any,
        weights: Any = None,
        groups: Any = None,
        by_hand: bool = False,
    ) -> Calibration:
        """Signed scores of some rows, with weights and labels.

        Rows that were chosen by hand may have been chosen wrongly.
        """
        model, support, n_rows = self._fitted(), check_support(self.support), 0
        scores, own_weights, labels = [np.empty(0)], [np.empty(0)], []
        known = compared = 0
        for X_, target in row_parts(model, X, y, need_y=True):
            n = _num_samples(X_)
            y_ = column("y", target, n).numpy()
            if not n:
                continue
            rows = distribution_of(model, X_, first_row=n_rows)
            scores.append(support.score(rows, y_))
            own_weights.append(weights_at(weights, X_, n, n_rows))
            labels += labels_at(groups, X_, rows, n_rows) or ()
            n_rows += n
            if by_hand and hasattr(last_step(model), "count_seen"):
                found = last_step(model).count_seen(transformed(model, X_), y_)
                known, compared = known + found[0], compared + found[1]
        check_all_used(weights, groups, n_rows)
        _warn_if_seen(model, known, compared)
        return self._calibration(
            np.concatenate(scores),
            weights=None if weights is None else np.concatenate(own_weights),
            groups=None if groups is None else tuple(labels),
        )

    def _set(self, rows: Calibration, functions: tuple[Any, Any] | None = None) -> Self:
        """Take over calibration rows, and functions of X for weights and groups."""
        check_choice("sym", self.sym, (True, False), "Use True for one rank.")
        check_enough_weight(rows, self.levels)  # first: a warning may be an error
        new = {"estimator_": self._fitted(), "calibration_": rows}
        for name, value in zip(("weights_", "groups_"), functions or (), strict=False):
            new[name] = None if isinstance(value, np.ndarray | tuple) else value
        self.__dict__ = vars(self) | new
        return self

    def _copy(self, estimator: Any) -> Self:
        """A copy with another fitted estimator, not calibrated."""
        fresh = copy.copy(self)
        params = {name: getattr(self, name) for name in self.get_params(deep=False)}
        fresh.__dict__ = params | {"estimator_": estimator}
        return fresh

    def _distributions(self, X: Any) -> Iterator[PredictiveDistribution]:
        """Distributions of rows, some at a time."""
        model = self._fitted()
        for X_, _ in row_parts(model, X):
            for block in row_blocks(X_):
                yield _distribution(model, block, 0)

    def _probability_up_to(
        self, X: Any, limit: Any, name: str, strict: bool = False
    ) -> Array:
        """P(y ≤ limit), or P(y < limit); they differ where a support has gaps."""
        ordered = np.sort(self._one_rank("a probability").signed_scores)
        values, support = _checked_limits(name, limit), check_support(self.support)
        found, start = [np.empty((0, *values.shape[1:]))], 0
        for rows in self._distributions(X):
            stop = start + len(rows)
            own = values[start:stop] if values.ndim else np.full(len(rows), values)
            start = stop
            if len(own) != len(rows):
                break
            cut = support.of(rows.targets).cut(own, strict)
            score = rows.score(cut)
            middle = rows.median if cut.ndim == 1 else rows.median[:, None]
            # Below the domain of a map, not above it.
            score = np.where(np.isposinf(score) & (cut < middle), -np.inf, score)
            below = np.searchsorted(ordered, score, side="left")
            up_to = np.searchsorted(ordered, score, side="right")
            found.append((below + up_to + 1) / (2 * (len(ordered) + 1)))
        if values.ndim and len(values) != start:
            raise ValueError(
                f"Got {name} for {len(values)} rows, but X has "
                f"{'at least ' * (len(values) < start)}{start}. Pass one number, or as "
                "many as X has rows."
            )
        return np.concatenate(found)


StreamingConformalRegressor = CalibratedRegressor


class IntervalParts(NamedTuple):
    """Intervals, and the distributions that made them.

    Parameters
    ----------
    points : ndarray of shape (n,)
        Point predictions.
    bounds : ndarray of shape (n, 2, n_levels)
        Intervals; without levels if the model is not calibrated.
    levels : list of float
        Confidence levels.
    distributions : list of PredictiveDistribution
        Of the model that makes the bounds, or of the model of each fold.
    noise_bounds : ndarray of shape (n, 2, n_levels) or None
        Intervals with v = h², at the same scores. None where several models make the
        bounds, MAPIE's own score does, or a model gives no parts of v.
    scaled : bool
        Whether the scale √v of the distributions makes the width.
    """

    points: Array
    bounds: Array
    levels: list[float]
    distributions: list[PredictiveDistribution]
    noise_bounds: Array | None = None
    scaled: bool = True


def interval_parts(
    model: Any,
    X: Any,
    alpha: Any = None,
    allow_infinite_bounds: bool = False,
    weights: Any = None,
    groups: Any = None,
    **predict_params: Any,
) -> IntervalParts:
    """Intervals of a calibrated object, and what they are made of, in one pass.

    Parameters
    ----------
    model : object
        A ``CalibratedRegressor``, a calibrated MAPIE regressor, or a fitted estimator.
    X : array-like of shape (n, ...)
        Inputs.
    alpha : float or sequence of float, optional
        Miscoverages, for ``MapieRegressor`` of MAPIE 0.9.
    allow_infinite_bounds : bool, default=False
        Whether bounds may be infinite where there are too few scores.
    weights, groups : optional
        As in ``CalibratedRegressor.predict_interval``.
    **predict_params : dict
        Further parameters of MAPIE's ``predict_interval``; its score then makes the
        bounds, which takes a second pass.

    Returns
    -------
    IntervalParts
        Points, intervals and distributions.
    """
    host = None
    if not isinstance(model, CalibratedRegressor):
        host = CalibratedMapie.of(model)
        if weights is not None or groups is not None:
            raise ValueError(
                f"Got weights or groups with a {type(model).__name__}, but only "
                "CalibratedRegressor takes them. Leave them out."
            )
    elif alpha is not None or predict_params:
        raise ValueError(
            f"Got {', '.join(['alpha'] * (alpha is not None) + [*predict_params])} "
            "with a CalibratedRegressor, whose levels are its confidence_level and "
            "whose estimator takes no parameters. Leave them out."
        )
    if isinstance(model, CalibratedRegressor):
        pairs = model.rows_and_ends(X, allow_infinite_bounds, weights, groups)
        return _joined(pairs, model.support, model.levels)
    if host is None:
        rows = distribution_of(model, X, predict_params)
        none = np.empty((len(rows), 2, 0))
        return IntervalParts(rows.mean, none, [], [rows], none)
    levels, ensemble = host.checked_levels(alpha), host.ensemble
    ours = isinstance(host.score, ClapsScore)
    if ours and not ensemble.uses_folds() and not predict_params:
        miss, scores = 1 - np.asarray(levels), host.conformity_scores
        pairs = host.score.rows_and_ends(
            X, ensemble, miss, scores, allow_infinite_bounds, {}
        )
        return _joined(pairs, host.score.support, levels)
    if allow_infinite_bounds:
        predict_params = predict_params | {"allow_infinite_bounds": True}
    points, bounds = host.predict_interval(model, X, alpha, predict_params)
    scale = host.residual_estimator
    models = ensemble.fold_models if ensemble.uses_folds() else [ensemble.point_model]
    scaled = ours or host.has_std_score
    if isinstance(scale, ClapsScaleEstimator):
        models, scaled = [scale.estimator], True
    found = [distribution_of(each, X) for each in models]
    return IntervalParts(points, bounds, levels, found, None, scaled)


def _joined(pairs: RowsAndEnds, support: Any, levels: list[float]) -> IntervalParts:
    """Parts of rows that came some at a time."""
    values = check_support(support)
    found, none = list(pairs), np.empty((0, len(levels)))
    some = [p for p in found if len(p[0])] or found[:1]
    some = some or [(_no_rows(), ScoreBounds(none, none))]
    bounds = np.concatenate([interval(*pair, values) for pair in some])
    names = ("centre", "scale", "aleatoric", "epistemic")
    parts = {k: [getattr(rows, k) for rows, _ in some] for k in names}
    whole = {k: np.concatenate(v) for k, v in parts.items() if v[0] is not None}
    rows = replace(some[0][0], **whole)
    noise = None
    if rows.aleatoric is not None:
        alone = [interval(r.noise_alone, ends, values) for r, ends in some]
        noise = np.concatenate(alone)
    points = np.concatenate([rows.mean for rows, _ in some])
    return IntervalParts(points, bounds, levels, [rows], noise)


def row_parts(
    model: Any, X: Any, y: Any = None, need_y: bool = False
) -> Iterator[tuple[Any, Any]]:
    """Parts of X as the user gave them, each with its y."""
    listed = isinstance(X, list | tuple) and bool(X) and not is_batches(X)
    if listed and y is None:  # tables without targets, not one array as a list
        listed = all(len(getattr(part, "shape", ())) > 1 for part in X)
        X = iter(X) if listed else X
    for x, target, weight in items_of(X, y, None, need_y):
        if need_y and weight is not None:
            raise ValueError(
                "Got a batch (X, y, sample_weight), but expected (X, y): calibration "
                "counts every row once. Leave the weights out; likelihood ratios for "
                "a covariate shift are passed as weights=, a function of X."
            )
        if need_y:
            check_has_target(target)
        is_tensor = hasattr(x, "detach") and not hasattr(model, "partial_sums")
        yield x.detach().cpu().numpy() if is_tensor else x, target


def _no_rows() -> PredictiveDistribution:
    return PredictiveDistribution(*(np.empty(0) for _ in range(4)))


def _distribution(model: Any, X: Any, first_row: int) -> PredictiveDistribution:
    """Distribution of rows, of which there may be none."""
    if not _num_samples(X):
        return _no_rows()
    return distribution_of(model, X, first_row=first_row)


def _warn_if_seen(model: Any, known: int, compared: int) -> None:
    """Warn if more rows were fitted on than equal rows of a table explain.

    Tables may hold equal rows by right. Then a new row has an equal one among the
    training rows about twice as often as a training row repeats an earlier one.
    """
    if known <= max(2, SEEN_SHARE * compared):
        return
    last = last_step(model)
    seen, n = last._seen_rows, last.sums_.n_rows
    # The smallest hashes are kept, which tell how many there are.
    n_different = min(n, len(seen) * 2.0**64 / (float(seen[-1]) + 1))
    n_different = len(seen) if len(seen) < MAX_SEEN_ROWS else n_different
    if known <= (SEEN_SHARE + 3 * (1 - n_different / n)) * compared:
        return
    warnings.warn(
        f"Got calibration rows on which the estimator was fitted: {known} of "
        f"{compared} different rows that were compared are equal to a training row "
        "in X and y. Errors on fitted rows are too small, and so are intervals. "
        "Calibrate on rows that fit has not seen; CalibratedRegressor().fit(X, y) "
        "keeps some back itself.",
        UserWarning,
        stacklevel=4,
    )


def _tail(scores: Array, level: Array, first: int = 1) -> Array:
    """Scores beyond the outermost, as a normal distribution continues them.

    ``first`` is the rank of the smallest score.
    """
    finite = scores[np.isfinite(scores)]
    if not len(finite):
        return np.where(level < 0.5, -np.inf, np.inf)
    n, lower = len(scores) + 1, level < 0.5
    edge = np.where(lower, first / n, len(finite) / n)
    start = np.where(lower, finite.min(), finite.max())
    tail: Array = start + finite.std() * (ndtri(level) - ndtri(edge))
    return tail


def _checked_limits(name: str, limit: Any) -> Array:
    """Limits as (), (n,) or (n, m), none of them NaN."""
    check_unmasked(name, limit)
    expected = "a number, (n,) or (n, m) numbers, none of them missing"
    try:
        values = np.asarray(limit, dtype=np.float64)
    except (TypeError, ValueError):
        raise_for(name, limit, expected, "Pass values of y.")
    if values.ndim > 2 or np.isnan(values).any():
        found = "NaN" if np.isnan(values).any() else f"the shape {values.shape}"
        raise_for(name, found, expected, "Leave out rows without a value.")
    return values


def _missed(intervals: Any, y: Any, m: int) -> NDArray[np.bool_]:
    """Rows (n, m) outside the intervals that were issued."""
    target = np.asarray(y, dtype=np.float64).reshape(-1, 1)
    bounds = np.asarray(intervals, dtype=np.float64)
    if bounds.shape == (len(target), 2) and m == 1:
        bounds = bounds[:, :, None]
    if bounds.shape != (len(target), 2, m) or np.isnan(bounds).any():
        raise ValueError(
            f"Got intervals of shape {bounds.shape} with {int(np.isnan(bounds).sum())} "
            f"NaN, but expected ({len(target)}, 2, {m}) numbers: what predict_interval "
            "returned for these rows."
        )
    missed: NDArray[np.bool_] = (target < bounds[:, 0]) | (target > bounds[:, 1])
    return missed
