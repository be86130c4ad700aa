"""v → score → interval: ``ClapsScore``, for MAPIE's regressors."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import gen_batches

from .._validation import check_choice, check_unmasked, where_bad
from ..estimators.predictive import ROUND_OUT, PredictiveDistribution, StdArray
from . import mapie as _mapie
from .calibration import Calibration, ScoreBounds, interval
from .distribution import (
    check_gives_std,
    check_same_fit,
    distribution_of,
    fit_id_of,
    from_mean_and_std,
    mean_and_std_alone,
    row_blocks,
)
from .quantile import conformal_rank, raise_too_few
from .support import check_support

Array = NDArray[np.float64]
BLOCK_ELEMENTS = 2**21  # of one n_test × n_cal block of the cross-conformal methods


UNKNOWN_SCORES = (
    "Got conformity scores that do not say how they were made, so that no bounds can "
    "be made in the same way. Leave the scores as they are in MAPIE's object."
)


class ClapsScore(_mapie.ScoreBase):  # type: ignore[misc]
    r"""Residual in units of the local scale.

    :math:`A(x, y) = |y - \mu(x)| / \sqrt{v(x)}`, and back,
    :math:`C_\alpha(x) = [\mu(x) - q_\alpha\sqrt{v(x)},\, \mu(x) +
    q_\alpha\sqrt{v(x)}]`,
    where :math:`q_\alpha` is the :math:`\lceil(n+1)(1-\alpha)\rceil`-th smallest
    calibration score. The interval covers with probability at least
    :math:`1-\alpha` if calibration and test rows are exchangeable given the fitted
    estimator; rows that the estimator was fitted on break that.

    A default ``ClapsRegressor()`` learns from training rows a map z = T(y) of the
    target and the shape g of the residuals: the score is then the absolute value of
    g((z − μ)/√v), with the same guarantee.

    Parameters
    ----------
    estimator : estimator or None, default=None
        The fitted estimator itself that MAPIE predicts with, with ``predict(X,
        return_std=True)``. Needed by MAPIE before 1.5, which does not ask for a
        standard deviation, and by its ``ConditionalSplitConformalRegressor``.
    support : str, tuple, array-like or None, default="auto"
        Values that y can take: "integer" (from 0 where no training target of a
        ``ClapsRegressor`` was negative), "non-negative", "count" (integers from 0), a
        range as a tuple (low, high), where None is no bound, a list of values, or
        "training", the range of the estimator's training targets, and the integers if
        all of these were integers. End points move to the nearest such value, which
        loses none that y can take. A calibration target outside has the score +∞.
        "auto" takes what the training targets of a ``ClapsRegressor`` tell: an end on
        which at least 1 % and ten of them lie, no fewer than on the next value, is a
        bound (zero for claims, a cap for prices), and at most 16 distinct integers are
        grades. None takes nothing.
    sym : bool, default=True
        One rank of the absolute scores for both ends. False takes the
        :math:`\lceil(n+1)(1-\alpha/2)\rceil`-th score on each side, which adapts both
        ends to the calibration rows and needs twice as many of them.

    Notes
    -----
    CV+ and jackknife+ combine mean and standard deviation of several models, which
    have no common shape. MAPIE's ``TimeSeriesRegressor`` refuses scores that ask for a
    standard deviation: pass it ``ResidualNormalisedScore(ClapsScaleEstimator(model),
    prefit=True)``, or use ``CalibratedRegressor.observe``.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie.regression import SplitConformalRegressor
    >>> from mapie_claps import ClapsRegressor, ClapsScore
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-2, 2, (300, 1))
    >>> y = X[:, 0] ** 2 + rng.normal(0, 0.1, 300)
    >>> mapie = SplitConformalRegressor(
    ...     ClapsRegressor.paper(random_state=0), confidence_level=0.9,
    ...     conformity_score=ClapsScore(), prefit=False)
    >>> mapie = mapie.fit(X[:200], y[:200]).conformalize(X[200:], y[200:])
    >>> y_pred, y_interval = mapie.predict_interval([[1.0]])
    >>> y_interval.shape
    (1, 2, 1)
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        support: str | ArrayLike | None = "auto",
        sym: bool = True,
    ) -> None:
        check_choice("sym", sym, (True, False), "Use True for one rank.")
        super().__init__(sym=sym, **_mapie.SCORE_OPTIONS)
        if estimator is not None:
            check_gives_std(estimator)
        self.estimator = estimator
        self.support = support
        self._support = check_support(support)

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse what scores are made with: bounds would be made in another way."""
        if name in ("sym", "support") and name in vars(self):
            raise AttributeError(
                f"Got {name}={value!r} for a score that is there already. Make a new "
                f"ClapsScore({name}=...) and calibrate with it."
            )
        super().__setattr__(name, value)

    def get_signed_conformity_scores(
        self,
        y: ArrayLike,
        y_pred: ArrayLike,
        X: ArrayLike | None = None,
        y_std: Any = None,
        **kwargs: Any,
    ) -> Array:
        """Signed scores (n,): (y − μ)/√v, or what the model's distribution says.

        Scores know the identity of the fit if the whole distribution made them, which
        ``y_std`` (MAPIE 1.5 or later) may carry, and not mean and √v alone.
        """
        check_unmasked("y", y)
        target, mu = np.asarray(y, dtype=np.float64), np.asarray(y_pred)
        if mu.shape != target.shape:
            raise ValueError(
                f"Got predictions of shape {mu.shape} for targets of shape "
                f"{target.shape}, but expected one number per row. Fit the estimator "
                "with a one-dimensional y."
            )
        if not np.isfinite(target).all():  # scikit-learn may be told not to look
            raise ValueError(f"Got y with NaN or infinity.{where_bad('y', target)}")
        if y_std is not None:
            _mapie.check_out_of_sample(mu)
        rows, fit_id = self._rows(mu, X, y_std), None
        if self.estimator is not None:
            fit_id = fit_id_of(self.estimator)
            if not np.array_equal(rows.mean, mu):
                self._raise_other("whose predictions are not those of the estimator")
        elif getattr(y_std, "distribution", None) is not None:
            fit_id = y_std.fit_id
        return StdArray.carry(self._support.score(rows, target), fit_id)

    def get_conformity_scores(
        self, y: ArrayLike, y_pred: ArrayLike, **kwargs: Any
    ) -> Array:
        """Scores (n,), absolute if one rank is taken."""
        scores = self.get_signed_conformity_scores(y, y_pred, **kwargs)
        if self.sym:
            scores = StdArray.carry(np.abs(scores), scores.fit_id)  # type: ignore[attr-defined]
        return scores

    def get_estimation_distribution(
        self,
        y_pred: ArrayLike,
        conformity_scores: ArrayLike,
        X: ArrayLike | None = None,
        y_std: Any = None,
        **kwargs: Any,
    ) -> Array:
        """Values of y with these scores: μ + score · √v, or the score's inverse.

        ``y_pred`` is (n,) or (n, m), or a number for one row; scores broadcast to it.
        """
        centre = np.asarray(y_pred, dtype=np.float64)
        scores = np.asarray(conformity_scores, dtype=np.float64)
        n = 1 if y_std is None else len(np.atleast_1d(y_std))
        rows = self._rows(centre.reshape(n, -1)[:, 0], X, y_std)
        if rows.is_plain:
            by_row = (-1,) + (1,) * (centre.ndim - 1) if centre.ndim else ()
            return np.asarray(centre + scores * rows.scale.reshape(by_row))
        one_each = scores.ndim == 1 and centre.ndim == 1
        found = rows.quantile(scores[:, None] if one_each else scores)
        return found.reshape(np.broadcast_shapes(centre.shape, scores.shape))

    def get_effective_calibration_samples(self, scores: Array) -> float:
        """Infinity: bounds check the number of rows, where it is exact."""
        return np.inf

    def get_bounds(
        self,
        X: ArrayLike,
        alpha_np: Array,
        estimator: Any,
        conformity_scores: Array,
        ensemble: bool = False,
        method: str = "base",
        optimize_beta: bool = False,
        allow_infinite_bounds: bool = False,
        **predict_params: Any,
    ) -> tuple[Array, Array, Array]:
        """Predictions (n,), lower and upper bounds (n, n_alpha); called by MAPIE.

        ``method`` is how models of folds make the bounds, ``ensemble`` whether points
        aggregate theirs. Further parameters go to the models' ``predict``.
        """
        if optimize_beta:
            raise ValueError(
                "Got minimize_interval_width=True (optimize_beta in MAPIE 0.9), which "
                "would choose on calibration scores. Leave it False."
            )
        models = _mapie.Ensemble(estimator)
        params = (predict_params.pop("predict_params", None) or {}) | predict_params
        options = np.asarray(alpha_np), conformity_scores, allow_infinite_bounds, params
        if models.uses_folds(method):
            points, lower, upper = self._cross_bounds(
                X, models, *options, ensemble, method
            )
            support = self._support.of(None)
            return points, support.nearest(lower), support.nearest(upper)
        parts, found = [], []
        for rows, ends in self.rows_and_ends(X, models, *options):
            parts.append(rows.mean)
            found.append(interval(rows, ends, self._support))
        bounds = np.concatenate(found)
        return np.concatenate(parts), bounds[:, 0], bounds[:, 1]

    def rows_and_ends(
        self,
        X: Any,
        models: _mapie.Ensemble,
        alpha: Array,
        conformity_scores: Array,
        allow_infinite: bool,
        params: dict[str, Any],
    ) -> Iterator[tuple[PredictiveDistribution, ScoreBounds]]:
        """Distributions of rows and the scores at their ends, some rows at a time."""
        model = models.point_model
        if self.estimator is not None and model is not self.estimator:
            name = type(model).__name__
            self._raise_other(f"which is another object than the {name}")
        fit_id = getattr(conformity_scores, "fit_id", None)
        check_same_fit(model, fit_id)
        scores = Calibration(np.asarray(conformity_scores, float), not self.sym)
        ends = scores.bounds(alpha, sym=self.sym, allow_infinite=allow_infinite)
        first_row = 0
        for block in [X] if params else row_blocks(X):  # they may hold a value per row
            rows = distribution_of(model, block, params, first_row)
            first_row += len(rows)
            if fit_id is None and self.estimator is None:
                if not isinstance(conformity_scores, StdArray) and not rows.is_plain:
                    raise ValueError(UNKNOWN_SCORES)
                rows = mean_and_std_alone(rows)
            yield rows, ends

    def _cross_bounds(
        self,
        X: Any,
        models: _mapie.Ensemble,
        alpha: Array,
        conformity_scores: Array,
        allow_infinite: bool,
        params: dict[str, Any],
        aggregate: bool,
        method: str,
    ) -> tuple[Array, Array, Array]:
        """Bounds of CV+, jackknife+ and their minmax forms, in row blocks."""
        scores = np.asarray(conformity_scores, dtype=np.float64)
        n, n_ends = len(scores), 1 if self.sym else 2
        below = scores if self.sym else np.where(np.isposinf(scores), np.inf, -scores)
        ranks = [conformal_rank(n, each / n_ends) for each in alpha]
        if max(ranks) > n and not allow_infinite:
            raise_too_few(n, float(alpha.min()), n_ends)
        each = [distribution_of(model, X, params) for model in models.fold_models]
        mu, std = (np.stack([getattr(r, k) for r in each], 1) for k in ("mean", "std"))
        points, size = np.empty(len(mu)), (len(mu), len(ranks))
        lower, upper = np.full(size, -np.inf), np.full(size, np.inf)
        finite = [j for j, rank in enumerate(ranks) if rank <= n]
        kept = [ranks[j] for j in finite]
        one_sided = _plus if method == "plus" else _minmax
        for block in gen_batches(len(mu), max(1, BLOCK_ELEMENTS // max(1, n))):
            centre, scale = models.by_row(mu[block]), models.by_row(std[block])
            if finite:  # the lower bound is the upper one of −y
                lower[block, finite] = -one_sided(-centre, scale, below, kept)
                upper[block, finite] = one_sided(centre, scale, scores, kept)
            points[block] = models.aggregate(centre)
        if not aggregate:
            points[:] = models.point_model.predict(X, **params)
        return points, lower, upper

    def _rows(self, mu: Array, X: Any, y_std: Any) -> PredictiveDistribution:
        """Distribution of the held estimator, or of what MAPIE passes."""
        if self.estimator is not None:
            return distribution_of(self.estimator, X)
        if y_std is not None:
            return from_mean_and_std(mu, y_std)
        raise ValueError(
            "Got ClapsScore() without an estimator, and no standard deviation from "
            "MAPIE. Only MAPIE 1.5 and later ask the estimator for it, and not all of "
            "their classes: pass the fitted estimator, ClapsScore(fitted), with "
            "prefit=True (cv='prefit' in MAPIE 0.9)."
        )

    def _raise_other(self, found: str) -> None:
        raise ValueError(
            f"Got ClapsScore({type(self.estimator).__name__}) {found} that MAPIE "
            "predicts with. Give both the same fitted object and prefit=True "
            "(cv='prefit' in MAPIE 0.9); to scale another model's intervals use "
            "ClapsScaleEstimator."
        )


def _plus(centre: Array, scale: Array, scores: Array, ranks: list[int]) -> Array:
    """k-th smallest of μ₋ᵢ(x) + Rᵢ √v₋ᵢ(x) over the calibration rows i."""
    by_row = centre + scale * (scores * ROUND_OUT)
    by_row.partition(sorted({k - 1 for k in ranks}), axis=1)
    bounds: Array = np.nextafter(by_row[:, [k - 1 for k in ranks]], np.inf)
    return bounds


def _minmax(centre: Array, scale: Array, scores: Array, ranks: list[int]) -> Array:
    """Largest of μ₋ᵢ(x) + q √v₋ᵢ(x) over the calibration rows i."""
    quantiles = np.sort(scores)[[k - 1 for k in ranks]] * ROUND_OUT
    largest = [(centre + scale * q).max(axis=1) for q in quantiles]
    bounds: Array = np.nextafter(np.stack(largest, axis=1), np.inf)
    return bounds
