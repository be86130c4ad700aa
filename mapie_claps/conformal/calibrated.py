"""The calibrated object of the library: ``CalibratedRegressor``."""

import copy
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import check_cv
from sklearn.utils import _safe_indexing, check_random_state, indexable
from sklearn.utils.validation import _num_samples, check_is_fitted, has_fit_parameter

from .._validation import (
    check_choice,
    check_integer,
    check_share,
    check_unmasked,
    raise_for,
)
from ..estimators.predictive import PredictiveDistribution
from ..estimators.regressor import ClapsRegressor
from ..estimators.residual import ClapsResidualRegressor
from ..network.batches import NEEDS_Y, column
from ..network.rows import divide, rows_together, take_groups
from ..network.tables import as_numbers, column_names
from .calibration import ALL_ROWS, Calibration, rows_by_group
from .distribution import (
    ScoreBounds,
    average,
    check_gives_std,
    check_same_fit,
    distribution_of,
    distributions,
    fit_id_of,
    gives_std,
    last_step,
    row_parts,
    transformed,
)
from .mapie import CalibratedMapie
from .score import UNKNOWN_SCORES, ClapsScore
from .shift import RowValues, check_values, effective_sizes, warn_if_few_count
from .support import check_support

Array = NDArray[np.float64]
# With fewer rows cv="auto" takes folds: a quarter of them would be missed in the fit,
# and be few to calibrate on.
SMALL_TABLE, AUTO_FOLDS = 250, 5
SEEN_SHARE = 0.05  # of calibration rows; fewer hardly change a rank
# Root mean square that scores of a right variance do not have; rows that tell it.
# Without noise a floor of the variance makes it next to nothing.
NO_NOISE, UNUSUAL, MIN_SCORES = 1e-3, (0.3, 2.5), 30


class CalibratedRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    r"""Calibrated intervals and predictive distributions, from ``fit`` to a file.

    :math:`C_\alpha(x) = \{y : |s(x, y)| \le q_\alpha\}`, with :math:`q_\alpha` the
    :math:`\lceil(n+1)(1-\alpha)\rceil`-th smallest of the calibration rows' scores.

    ``fit`` keeps back some rows, fits the estimator on the others and calibrates on
    those kept back; in small tables every row trains and calibrates (CV+). With a
    fitted estimator, ``conformalize`` calibrates on rows that it has not seen.
    Intervals are those of ``SplitConformalRegressor(estimator,
    conformity_score=ClapsScore(), prefit=True)`` of MAPIE, to the last bit; beyond
    them the same scores give quantiles and probabilities.

    Parameters
    ----------
    estimator : estimator or None, default=None
        None for a ``ClapsRegressor``, or any regressor: one without
        ``predict(X, return_std=True)`` keeps its predictions, and CLAPS learns its
        errors (:class:`~mapie_claps.ClapsResidualRegressor`). ``fit`` fits a copy of
        it; ``conformalize`` takes one that is fitted. Of a search, such as
        ``GridSearchCV``, ``fit`` takes the model that it chose.
    confidence_level : float or sequence of float, default=0.9
        Levels 1 − α of the intervals.
    sym : "auto" or bool, default="auto"
        One rank for both ends (True), or one at α/2 for each (False); see
        :class:`~mapie_claps.ClapsScore`. "auto" takes two if held-out training rows of
        a ``ClapsRegressor`` prefer them and there are enough calibration rows; with
        folds it takes one.
    support : str, tuple, array-like or None, default="auto"
        Values that y can take; see :class:`~mapie_claps.ClapsScore`.
    cv : "auto", "split", int, splitter or None, default="auto"
        How ``fit`` calibrates: None or "split" keeps rows back; a number K fits a model
        for each of K folds, which scores the rows of its fold (CV+). "auto" takes five
        folds below 250 rows, unless weights or a partition are given. A splitter of
        scikit-learn, such as ``KFold(10)``, must have every row in one test fold, and
        rows that are equal or of one group in the same.
    calibration_fraction : float, default=0.25
        Share of the rows that ``fit`` keeps back, without folds.
    random_state : int, RandomState or None, default=None
        Seed of the split, and of a default estimator.

    Attributes
    ----------
    estimators_ : list of estimator
        The fitted estimator, or those of the folds.
    calibration_ : Calibration
        Scores of the calibration rows, with their weights, partition or folds.

    Notes
    -----
    - Coverage is at least 1 − α if rows are exchangeable. With folds, the model of row
      i's fold makes ends of the row's score; the ⌈(1−α)(n+1)⌉-th smallest upper and
      the ⌊α(n+1)⌋-th smallest lower end count. Coverage is then at least
      1 − 2α − √(2/n), and about 1 − α in practice. Points are means over folds.
    - Batches: without y, X may be an iterable of (X, y), or of X where no targets are
      needed. A list of arrays with two or more dimensions is a list of batches.
    - ``weights`` are likelihood ratios p_target(x) / p_source(x), up to a constant, for
      rows to predict whose x has another distribution. A row whose own weight is too
      large for a finite interval has infinite bounds.
    - ``partition`` are groups that are calibrated apart: labels, a column's name or
      position, :class:`~mapie_claps.ColumnGroups` or
      :class:`~mapie_claps.EpistemicGroups`. They must be fixed before calibration.
    - Both may be functions of X, such as :func:`~mapie_claps.likelihood_ratio` gives,
      which then serve further rows too; values of single rows are passed again.
    - ``allow_infinite_bounds`` gives infinite bounds where there are too few scores,
      rather than an error.
    - Methods that change the object return it; a call that fails changes nothing.

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
    >>> bool(model.cdf([[0.0]], 5.0)[0] > 0.9)
    True
    """

    estimators_: list[Any]
    calibration_: Calibration
    weights_: Any  # function of X, if calibration was given one
    partition_: Any

    def __init__(
        self,
        estimator: Any = None,
        confidence_level: float | Sequence[float] = 0.9,
        *,
        sym: bool | str = "auto",
        support: Any = "auto",
        cv: Any = "auto",
        calibration_fraction: float = 0.25,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.estimator = estimator
        self.confidence_level = confidence_level
        self.sym = sym
        self.support = support
        self.cv = cv
        self.calibration_fraction = calibration_fraction
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
            with ``cv="prefit"``) with a ``ClapsScore``; one with ``sym=False`` for
            predictive distributions.
        confidence_level : float or sequence of float, optional
            Levels; by default those of the object. MAPIE 0.9 keeps none.
        """
        host = CalibratedMapie.of(mapie)
        ours = host is not None and isinstance(host.score, ClapsScore)
        if host is None or not ours or not host.ensemble.is_split:
            raise TypeError(
                f"Got a {type(mapie).__name__} without ClapsScore, or with one model "
                "per fold, but expected a calibrated SplitConformalRegressor of MAPIE "
                "with conformity_score=ClapsScore()."
            )
        levels = confidence_level
        if levels is None:
            levels = host.checked_levels(None)
        score, model = host.score, host.ensemble.point_model
        fit_id = getattr(host.conformity_scores, "fit_id", None)
        check_same_fit([model], fit_id)
        if fit_id != fit_id_of(model):
            raise ValueError(UNKNOWN_SCORES)
        params = {"sym": score.sym, "support": score.support}
        scores = np.asarray(host.conformity_scores)
        return cls.from_scores(model, scores, levels, signed=not score.sym, **params)

    @classmethod
    def from_scores(
        cls,
        estimator: Any,
        scores: ArrayLike,
        confidence_level: float | Sequence[float] = 0.9,
        *,
        signed: bool = False,
        weights: Any = None,
        partition: Any = None,
        **params: Any,
    ) -> Self:
        """Calibrate from scores that were computed earlier or elsewhere.

        Parameters
        ----------
        estimator, confidence_level, **params
            Parameters of the object; the estimator is that which made the scores.
        scores : array-like of shape (n_cal,)
            What ``score_rows`` of an object with this estimator and support gives.
        signed : bool, default=False
            Whether scores have their sign; without it there is no distribution.
        weights, partition : array-like of shape (n_cal,), optional
            Of the rows; see Notes.
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
        given = check_values(weights, partition)
        if not all(isinstance(value, np.ndarray | None) for value in given):
            raise TypeError(
                "Got weights or partition as a function, but from_scores has no rows "
                "for it. Pass a value per score: what the function gives for its row."
            )
        given.check_length(len(values))
        made = cls(estimator, confidence_level, **params)
        how = fit_id_of(*made.fitted_models), check_support(made.support)
        return made._set(Calibration(values, signed, *given, *how))

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        weights: Any = None,
        partition: Any = None,
    ) -> Self:
        """Fit on some rows and calibrate on others, once or for each fold.

        Parameters
        ----------
        X, y : array-like of shape (n, p) and (n,)
            Rows and targets; exchangeable, since which are kept back is random.
        sample_weight : array-like of shape (n,), optional
            Weights of the rows in the fit. Calibration counts every row once.
        groups : array-like of shape (n,), optional
            Labels of rows that belong together, such as a patient's or copies of one
            row: they stay on one side of the split, or in one fold, as rows do that
            are equal in X and y. The estimator gets them if its ``fit`` takes them.
        weights, partition : callable or array-like of shape (n,), optional
            For calibration; see Notes.
        """
        given = check_values(weights, partition)
        return self._fit(X, y, given, sample_weight, groups)

    def _fit(
        self,
        X: Any,
        y: Any,
        given: RowValues,
        sample_weight: Any = None,
        groups: Any = None,
        prefit: bool = False,  # the estimator itself is not fitted again
    ) -> Self:
        """Fit copies of a template, and calibrate on rows that they have not seen."""
        random = check_random_state(self.random_state)
        if y is None:
            raise ValueError(NEEDS_Y)
        X, y = indexable(X)[0], indexable(y)[0]
        n = _num_samples(X)
        target = column("y", y, n).numpy()
        # Here rows have the numbers that the user knows; a part of them would not.
        numbers = as_numbers(X)
        if numbers is not None and np.isinf(numbers).any():
            row, place = np.argwhere(np.isinf(numbers))[0][:2]
            raise ValueError(
                f"Got infinity in X, row {row}, column {column_names(X)[place]!r}, but "
                "expected finite numbers. Leave such rows out, or use NaN for gaps."
            )
        given.check_length(n)
        with_values = any(value is not None for value in given)
        labels = rows_together(X, target, groups)
        folds = self._folds(X, target, labels, with_values, random)
        template = _template(self.estimator, random.randint(2**31 - 1), prefit)
        of_rows = {}
        if sample_weight is not None:
            of_rows["sample_weight"] = column("sample_weight", sample_weight, n).numpy()
        if groups is not None and has_fit_parameter(template, "groups"):
            of_rows["groups"] = np.asarray(groups)
        models = []
        for fold in range(folds.max() + 1):
            rest = np.flatnonzero(folds != fold)
            training = _safe_indexing(X, rest), _safe_indexing(y, rest)
            params = {name: values[rest] for name, values in of_rows.items()}
            if "groups" in params and len(set(params["groups"].tolist())) < 2:
                del params["groups"]  # one group is left
            fitted = clone(template).fit(*training, **params)
            models.append(getattr(fitted, "best_estimator_", fitted))
        fresh = copy.copy(self)  # not calibrated
        kept = {k: v for k, v in vars(self).items() if not k.endswith("_")}
        fresh.__dict__ = kept | {"estimators_": models}
        if len(models) == 1:
            back = np.flatnonzero(folds == 0)
            own = [v[back] if isinstance(v, np.ndarray) else v for v in given]
            rows = fresh._score(_safe_indexing(X, back), target[back], *own)
        else:
            support = check_support(self.support)
            rows = Calibration.of_folds(models, folds, X, target, support)
        self.__dict__ = fresh._set(rows, given).__dict__
        return self

    def conformalize(
        self, X: Any, y: Any = None, *, weights: Any = None, partition: Any = None
    ) -> Self:
        """Compute the scores of the calibration rows; earlier ones are dropped.

        Adaptive levels start again.

        Parameters
        ----------
        X : array-like of shape (n, ...), or batches
            Calibration rows, which the estimator has not seen; ``ClapsRegressor`` and
            ``ClapsModule`` know theirs, and there is a warning. For a fitted regressor
            without a standard deviation the rows are divided, as in ``fit``: from some
            of them its errors are learned, the others calibrate.
        y, weights, partition : array-like of shape (n,), optional
            Their targets, and what the Notes say; the last two may be functions of X.
        """
        model, given = self._single("conformalize"), check_values(weights, partition)
        if not gives_std(model):
            if gives_std(getattr(model, "best_estimator_", None)):
                check_gives_std(model)  # says what to pass
            if y is None:
                raise ValueError(
                    f"Got batches, or no y, for a {type(model).__name__}, whose errors "
                    "are learned from some of the rows. Pass X and y as arrays."
                )
            check_is_fitted(model)
            return self._fit(X, y, given, prefit=True)
        rows = Calibration.joined(self._scored(X, y, given, by_hand=True))
        return self._set(rows, given)

    def partial_conformalize(self, X: Any, y: Any = None, **rows: Any) -> Self:
        """Add calibration rows, as ``conformalize`` takes them, to those there are."""
        if not self.__sklearn_is_fitted__():  # perhaps calibrated on no rows so far
            functions = {k: vars(self).get(f"{k}_") for k in RowValues._fields}
            return self.conformalize(X, y, **functions | rows)
        before = self._calibrated()
        given = self._row_values("partial_conformalize", **rows)
        new = self._scored(X, y, given, by_hand=True)
        return self._set(Calibration.joined([before, *new]))

    def score_rows(self, X: Any, y: Any = None, signed: bool = False) -> Array:
        """Compute scores (n,), absolute or signed, of rows as in ``conformalize``."""
        scores = self._score(X, y).scores
        return scores if signed else np.abs(scores)

    def predict(self, X: Any) -> Array:
        """Predict the mean of y, (n,)."""
        models, parts = self.fitted_models, [np.empty(0)]
        for part, _ in row_parts(models[0], X):
            if _num_samples(part):
                parts.append(average([m.predict(part) for m in models]))
        return np.concatenate(parts)

    def predict_interval(
        self, X: Any, allow_infinite_bounds: bool = False, **rows: Any
    ) -> tuple[Array, Array]:
        """Predict points (n,) and intervals (n, 2, n_levels), as MAPIE does.

        Parameters
        ----------
        X : array-like or batches
            Inputs.
        allow_infinite_bounds : bool, default=False
            See Notes.
        **rows
            ``weights`` and ``partition`` of these rows, if calibration had them and not
            as functions of X.
        """
        found = self.iter_intervals(X, allow_infinite_bounds, **rows)
        none = np.empty(0), np.empty((0, 2, len(self.levels)))
        points, bounds = zip(none, *found, strict=True)
        return np.concatenate(points), np.concatenate(bounds)

    def iter_intervals(
        self, X: Any, allow_infinite_bounds: bool = False, **rows: Any
    ) -> Iterator[tuple[Array, Array]]:
        """Predict as ``predict_interval`` does, one batch at a time, in flat memory."""
        support = check_support(self.support)
        for part, ends in self.rows_and_ends(X, allow_infinite_bounds, **rows):
            points = average([each.prediction for each in part])
            yield points, ends.interval(part, support)

    def predict_frame(self, X: Any, **rows: Any) -> Any:
        """Predict a frame, as :func:`mapie_claps.diagnostics.predict_frame` does."""
        from ..diagnostics import predict_frame

        return predict_frame(self, X, **rows)

    def explain(self, X: Any, **params: Any) -> Any:
        """Explain predictions, as :func:`mapie_claps.explain` does."""
        from ..diagnostics import explain

        return explain(self, X, **params)

    def predict_quantiles(self, X: Any, levels: float | ArrayLike) -> Array:
        r"""Predict calibrated quantiles of y: a conformal predictive system.

        Parameters
        ----------
        X : array-like or batches
            Inputs.
        levels : float or array-like of shape (m,)
            Levels τ in (0, 1): rank :math:`\lceil\tau(n+1)\rceil` among the signed
            scores from the median up, :math:`\lfloor\tau(n+1)\rfloor` below it, so that
            quantiles (n, m) err outwards: α/2 and 1 − α/2 make the interval of
            ``sym=False``. Beyond the outermost scores they are infinite.
        """
        hint = "Use for example [0.05, 0.5, 0.95]."
        each = np.atleast_1d(np.asarray(levels, dtype=object))
        wanted = np.array([check_share("levels", level, hint=hint) for level in each])
        scores, lower = self._one_rank("quantiles"), wanted < 0.5
        # Both ends of intervals of which one counts; 1 itself is no miscoverage.
        alpha = np.minimum(2 * np.minimum(wanted, 1 - wanted), np.nextafter(1, 0))
        ends = scores.bounds(alpha, sym=False, allow_infinite=True)
        support, found = check_support(self.support), [np.empty((0, len(wanted)))]
        for _, rows, _ in distributions(self.fitted_models, X):
            bounds = ends.interval(rows, support)
            found.append(np.where(lower, bounds[:, 0], bounds[:, 1]))
        return np.concatenate(found)

    def cdf(self, X: Any, y: ArrayLike) -> Array:
        """Predict the probability that a target is at most y.

        With k scores below that of y and t equal to it, (k + (t + 1)/2)/(n + 1): the
        middle of what a conformal predictive system leaves open. Where a ``support``
        has gaps, the score is taken half way to the next value. Values y are a number,
        or (n,) or (n, m) for the rows.
        """
        scores, support = self._one_rank("a probability"), check_support(self.support)
        check_unmasked("y", y)
        try:
            values = np.asarray(y, dtype=np.float64)
        except (TypeError, ValueError):
            values = np.full((), np.nan)
        if values.ndim > 2 or np.isnan(values).any():
            expected = "a number, (n,) or (n, m) numbers, none of them missing"
            raise_for("y", y, expected, "Leave out rows without a value.")
        stop, found = 0, [np.empty((0, *values.shape[1:]))]
        for _, each, start in distributions(self.fitted_models, X):
            stop = start + len(each[0])
            own = values[start:stop] if values.ndim else np.full(len(each[0]), values)
            if len(own) != len(each[0]):
                break
            counted = np.ones(own.shape)
            known = scores.distribution_scores(support.of(each[0].targets))
            for j, rows in enumerate(each):
                score = rows.score(support.of(rows.targets).cut(own))
                of_model = slice(None) if scores.folds is None else scores.folds == j
                ordered = np.sort(known[of_model])
                for side in ("left", "right"):  # below, and up to it
                    counted += np.searchsorted(ordered, score, side)
            found.append(counted / (2 * (len(known) + 1)))
        if values.ndim and len(values) != stop:
            raise ValueError(
                f"Got y for {len(values)} rows, but X has "
                f"{'at least ' * (len(values) < stop)}{stop}. Pass one number, or as "
                "many as X has rows."
            )
        return np.concatenate(found)

    def observe(
        self,
        X: Any,
        y: Any = None,
        *,
        gamma: float | None = None,
        window: int | None = None,
        **rows: Any,
    ) -> Self:
        r"""Observe targets that have arrived: adaptive confidence levels (ACI).

        :math:`\alpha_{t+1} = \alpha_t + \gamma(\alpha - \mathrm{miss}_t)`, for each
        level and group: in the long run a share 1 − α of all rows is covered. An
        :math:`\alpha_t` of 0 or less gives infinite intervals, one of 1 or more empty
        ones (the lower end just above the upper one). The rows' scores join the
        calibration scores; they must not enter the posterior as well.

        Parameters
        ----------
        X, y : array-like or batches
            Rows in the order of time. Rows of one call, or of one batch, count as
            predicted together, at the levels that the object has now.
        gamma : float, optional
            Step size in [0, 1]; 0.01 at first, then as before.
        window : int, optional
            Newest calibration scores to keep, of each group; all of them at first, then
            as before.
        **rows
            As in ``predict_interval``.
        """
        self._single("observe")
        found = self._calibrated()
        given = self._row_values("observe", **rows)
        for new in self._scored(X, y, given, by_hand=True):
            if len(new):
                one = self._takes_one_rank(found)
                found = found.observe(new, self._alpha, one, gamma, window)
        return self._set(found)

    def save(self, path: Any) -> None:
        """Write to a file, without pickle; :func:`mapie_claps.load` reads it.

        Weights and partition as functions must be those of this library.
        """
        from ..files import save

        save(self, path)

    @property
    def estimator_(self) -> Any:
        """The fitted estimator, where there is one."""
        if len(self.estimators_) == 1:
            return self.estimators_[0]
        raise AttributeError("Got one model for each fold: use estimators_.")

    @property
    def n_features_in_(self) -> int:
        """Number of columns that the estimator was fitted on."""
        return int(self.estimators_[0].n_features_in_)

    @property
    def levels(self) -> list[float]:
        """Confidence levels as a list."""
        hint = "Use for example 0.9, or [0.8, 0.9]."
        given: Any = self.confidence_level
        each = [given] if np.ndim(given) == 0 else list(given)
        if not each:
            raise_for("confidence_level", given, "at least one level", hint)
        return [check_share("confidence_level", level, hint=hint) for level in each]

    @property
    def conformity_scores(self) -> Array:
        """Absolute scores of the calibration rows, in the order in which they came."""
        return np.abs(self._calibrated().scores)

    @property
    def signed_scores_(self) -> Array:
        """Signed scores of the calibration rows."""
        return self._calibrated().signed_scores.copy()

    @property
    def effective_sample_size_(self) -> float | dict[Any, float]:
        """Rows of equal weight that the calibration rows are worth; of each group."""
        sizes = effective_sizes(self._calibrated())
        return sizes.get(ALL_ROWS, sizes)

    @property
    def observed_coverage_(self) -> Array:
        """Share of the observed rows that their intervals covered, (n_levels,)."""
        levels = self.calibration_.levels_at(self._alpha)
        return np.asarray(1 - levels.n_missed / (levels.n_observed or np.nan))

    def rows_and_ends(
        self, X: Any, allow_infinite_bounds: bool, **rows: Any
    ) -> Iterator[tuple[list[PredictiveDistribution], ScoreBounds]]:
        """Distributions of rows and the scores at their ends, some rows at a time."""
        self._calibrated()
        given, n_rows = self._row_values("predict_interval", **rows), 0
        for block, each, n_rows in distributions(self.fitted_models, X):
            own, labels = given.at(block, each[0], n_rows)
            # It may have been calibrated again since the last batch.
            scores = self._calibrated()
            options = labels, own, allow_infinite_bounds, n_rows
            one = self._takes_one_rank(scores)
            yield each, scores.bounds(self._alpha, one, *options)
            n_rows += len(each[0])
        given.check_length(n_rows)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        model = _template(self.estimator, 0)
        tags.input_tags = model.__sklearn_tags__().input_tags
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return len(vars(self).get("calibration_", ())) > 0

    @property
    def _alpha(self) -> Array:
        """Miscoverages, (n_levels,)."""
        return 1 - np.asarray(self.levels)

    @property
    def fitted_models(self) -> list[Any]:
        """The fitted estimator, or those of the folds."""
        found: list[Any] = vars(self).get("estimators_", [self.estimator])
        if found == [None]:
            raise NotFittedError(
                f"Got a {type(self).__name__} without a fitted estimator. Call fit, or "
                "pass an estimator that is fitted."
            )
        return found

    def _single(self, what: str) -> Any:
        """The fitted estimator, if there is one alone."""
        if len(self.fitted_models) > 1:
            raise ValueError(
                f"Got {what} of an object with one model for each fold (CV+), but "
                "expected a single one. Fit with cv=None, which keeps rows back."
            )
        return self.fitted_models[0]

    def _takes_one_rank(self, rows: Calibration) -> bool:
        """Whether both ends have one rank; not decided on calibration scores."""
        if self.sym != "auto":
            return bool(self.sym)
        last = last_step(self.fitted_models[0])
        if not getattr(last, "prefers_two_ranks_", False) or not rows.signed:
            return True
        groups = rows_by_group(rows.partition).values()
        few = min(len(rows.scores[some]) for some in groups) + 1 < 2 / self._alpha.min()
        return few or rows.folds is not None

    def _calibrated(self) -> Calibration:
        """Scores, if estimator and support are still those they were made with."""
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(
                f"Got a {type(self).__name__} that is not calibrated. Call fit, or "
                "conformalize with a fitted estimator, or make it with from_scores."
            )
        check_same_fit(self.fitted_models, self.calibration_.fit_id)
        if check_support(self.support).key != self.calibration_.support.key:
            raise ValueError(
                f"Got support={self.support!r}, but the calibration rows were scored "
                "with another one. Call conformalize again."
            )
        return self.calibration_

    def _one_rank(self, what: str) -> Calibration:
        """Scores, if one rank holds for all rows."""
        rows = self._calibrated()
        if any(v is not None for v in (rows.weights, rows.partition, rows.levels)):
            raise ValueError(
                f"Got {what} of an object whose rows differ in rank, by weights, "
                "partition or adaptive levels. Use predict_interval."
            )
        return rows

    def _row_values(
        self, method: str, weights: Any = None, partition: Any = None
    ) -> RowValues:
        """Weights and partition of further rows: those given, or as at calibration."""
        found = []
        for name, value in (("weights", weights), ("partition", partition)):
            had = getattr(self.calibration_, name) is not None
            if value is None and had:
                value = vars(self).get(f"{name}_")  # a function of X
            if (value is None) == had:
                do = f"Pass {name}= to {method}, or" if had else "Leave it out, or"
                raise ValueError(
                    f"Got {'no ' * had}{name} in {method}, but the object was "
                    f"calibrated {'with' if had else 'without'} them. {do} calibrate "
                    "again, with a function of X to be asked for nothing here."
                )
            found.append(value)
        return check_values(*found)

    def _scored(
        self, X: Any, y: Any, given: RowValues, by_hand: bool = False
    ) -> Iterator[Calibration]:
        """Signed scores of one batch after another, with weights and labels.

        The first of them has no rows. Rows chosen by hand may be those of the fit.
        """
        model, no_rows = self._single("scores of new rows"), np.empty(0)
        none_of = RowValues(*(None if value is None else no_rows for value in given))
        how = fit_id_of(model), check_support(self.support)
        none = Calibration(no_rows, True, *none_of, *how, target_scores=no_rows)
        n_rows, seen = 0, np.zeros(2, dtype=int)
        yield none
        for part, target in row_parts(model, X, y, need_y=True):
            y_ = column("y", target, _num_samples(part)).numpy()
            if not len(y_):
                continue
            rows = distribution_of(model, part, first_row=n_rows)
            scores, own = none.support.scores(rows, y_)
            values = given.at(part, rows, n_rows)._asdict()
            yield replace(none, scores=scores, target_scores=own, **values)
            n_rows += len(y_)
            if by_hand and hasattr(last_step(model), "count_seen"):
                seen += last_step(model).count_seen(transformed(model, part), y_)
        given.check_length(n_rows)
        _warn_if_seen(model, *seen.tolist())

    def _score(self, X: Any, y: Any, *given: Any) -> Calibration:
        """Signed scores of rows that were not chosen by hand."""
        return Calibration.joined(self._scored(X, y, RowValues(*given)))

    def _set(self, rows: Calibration, given: RowValues | None = None) -> Self:
        """Take over calibration rows, and weights and partition as functions of X."""
        check_choice("sym", self.sym, ("auto", True, False), "Use True for one rank.")
        # First: a warning may be an error.
        warn_if_few_count(rows, self.levels)
        if given is not None:
            _warn_if_unusual(rows, self._alpha.min())
        new = {"estimators_": self.fitted_models, "calibration_": rows}
        for name, value in zip(("weights_", "partition_"), given or (), strict=False):
            new[name] = None if isinstance(value, np.ndarray) else value
        self.__dict__ = vars(self) | new
        return self

    def _folds(
        self,
        X: Any,
        y: Array,
        labels: NDArray[np.intp],  # rows of equal ones stay together
        with_values: bool,  # whether rows have weights or a partition
        random: np.random.RandomState,
    ) -> NDArray[np.intp]:
        """Fold of each row, (n,); where rows are kept back theirs is 0, the rest −1."""
        cv, share = self.cv, self.calibration_fraction
        n, n_labels = len(labels), len(np.unique(labels))
        check_share("calibration_fraction", share, hint="Use 0.25 if unsure.")
        if isinstance(cv, str):
            check_choice("cv", cv, ("auto", "split", None), "Or use a number of folds.")
            few = cv == "auto" and n_labels < SMALL_TABLE and not with_values
            cv = max(2, min(AUTO_FOLDS, n_labels)) if few else None
        if cv is not None:
            if with_values:
                raise ValueError(
                    f"Got weights or a partition with cv={cv!r}, but calibration with "
                    "one model for each fold (CV+) takes neither. Fit with cv=None, "
                    "which keeps rows back."
                )
            if not isinstance(cv, Real):
                return _folds_of(cv, X, y, labels)
            hint = "Use 10, or None for a split."
            return divide(labels, check_integer("cv", cv, low=2, hint=hint), random)
        n_cal = round(share * n)
        if n_cal < 1 or n - n_cal < 2 or n_labels < 2:
            raise ValueError(
                f"Got {n} rows, {n_labels} of them different or of different groups. "
                f"Of these calibration_fraction={share!r} keeps back {n_cal}, but "
                "expected at least 1 to calibrate on and 2 to fit on. Collect more "
                "rows, or use cv=10, which keeps none back."
            )
        return np.where(take_groups(labels, share, random.permutation(n_labels)), 0, -1)


def _template(estimator: Any, seed: int, prefit: bool = False) -> Any:
    """What ``fit`` clones: the estimator, or CLAPS around one without a deviation."""
    if estimator is None:
        return ClapsRegressor(random_state=seed)
    # Of a search, its estimator says what the model that it chooses will give.
    searched = estimator.estimator if hasattr(estimator, "refit") else estimator
    if gives_std(searched):
        return estimator
    return ClapsResidualRegressor(estimator, prefit=prefit, random_state=seed)


def _folds_of(cv: Any, X: Any, y: Array, labels: NDArray[np.intp]) -> NDArray[np.intp]:
    """Fold of each row, (n,), by a splitter or pairs of training and test rows."""
    first, n = np.unique(labels, return_index=True)[1], len(labels)
    groups = labels if len(first) < n else None  # KFold warns of what it does not use
    tests = [test for _, test in check_cv(cv).split(X, y, groups)]
    rows = np.concatenate(tests)
    folds = np.repeat(np.arange(len(tests)), [len(t) for t in tests])[np.argsort(rows)]
    each_once = len(tests) > 1 and np.array_equal(np.sort(rows), np.arange(n))
    if not each_once or (folds != folds[first][labels]).any():
        expected = (
            "every row in exactly one of at least two test folds, and rows that are "
            "equal or of one group in the same"
        )
        hint = "Use a number of folds, or GroupKFold for rows that belong together."
        raise_for("cv", cv, expected, hint)
    return folds


def _warn_if_unusual(rows: Calibration, alpha: float) -> None:
    """Warn of targets that a learned support excludes, and of scores of odd size."""
    outside = int(np.isinf(rows.scores).sum())
    if outside >= alpha * (len(rows) + 1) and rows.support.learned:
        warnings.warn(
            f"Got {outside} of {len(rows)} calibration targets that the training "
            "targets exclude, being negative or no integers. Their scores are "
            "infinite, and so are intervals. Pass support=None if they can occur.",
            UserWarning,
            stacklevel=4,
        )
    known = rows.scores if rows.target_scores is None else rows.target_scores
    finite = np.sort(np.abs(known[np.isfinite(known)]))
    if len(finite) < MIN_SCORES:
        return
    most = finite[: len(finite) - -(-len(finite) // 100)]  # a single row says nothing
    size = float(np.sqrt(np.mean(np.square(most))))
    if size < NO_NOISE or UNUSUAL[0] <= size <= UNUSUAL[1]:
        return
    warnings.warn(
        f"Got calibration scores whose root mean square is {size:.3g} (without the "
        "largest 1 %), but expected about 1: errors are not of the size that the "
        "model's standard deviations say. Intervals hold their level; what they say of "
        "noise and lack of data does not. Was a network trained on y in other units, "
        "or for too long, or on calibration rows?",
        UserWarning,
        stacklevel=4,
    )


def _warn_if_seen(model: Any, known: int, compared: int) -> None:
    """Warn if more rows were fitted on than equal rows of a table explain.

    A new row has an equal one about twice as often as a training row repeats another.
    """
    repeats = getattr(last_step(model), "_equal_share", 0.0)
    if known <= max(2, (SEEN_SHARE + 3 * repeats) * compared):
        return
    warnings.warn(
        f"Got calibration rows on which the estimator was fitted: {known} of "
        f"{compared} different rows that were compared are equal to a training row "
        "in X and y. Errors on fitted rows are too small, and so are intervals. "
        "Calibrate on rows that fit has not seen.",
        UserWarning,
        stacklevel=4,
    )
