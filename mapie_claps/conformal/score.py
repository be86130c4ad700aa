"""v → score → interval, for MAPIE: ``ClapsScore`` and ``ClapsScaleEstimator``."""

from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import gen_batches
from sklearn.utils.validation import check_is_fitted

from .._validation import check_choice, check_real, where_bad
from ..estimators.predictive import PredictiveDistribution, StdArray
from . import mapie as _mapie
from .calibration import Calibration
from .distribution import (
    BLOCK_ELEMENTS,
    check_gives_std,
    check_same_fit,
    distribution_of,
    fit_id_of,
    from_mean_and_std,
    mean_and_std_alone,
)
from .support import check_support

Array = NDArray[np.float64]
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
        range as a tuple (low, high), where None is no bound, or a list of values. End
        points move to the nearest such value, and the score of a target is drawn to
        that of the smallest interval that then holds it; it is +∞ if the target is
        impossible. "auto" takes what training targets of a ``ClapsRegressor`` tell:
        integers if all are, zero as a bound if none is negative, and an end on which at
        least 1 % and ten of them lie, no fewer than on the next value (a cap for
        prices). None takes nothing.
    sym : bool, default=True
        One rank of the absolute scores for both ends. False takes the
        :math:`\lceil(n+1)(1-\alpha/2)\rceil`-th score on each side, which adapts both
        ends to the calibration rows and needs twice as many of them.

    Notes
    -----
    With ``CrossConformalRegressor`` each fold's own model scores its rows; jackknife+
    after bootstrap combines mean and standard deviation of several models. MAPIE's
    ``TimeSeriesRegressor`` refuses scores that ask for a standard deviation: pass it
    ``ResidualNormalisedScore(ClapsScaleEstimator(model), prefit=True)``, or use
    ``CalibratedRegressor.observe``.

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

    def get_signed_conformity_scores(
        self,
        y: ArrayLike,
        y_pred: ArrayLike,
        X: ArrayLike | None = None,
        y_std: Any = None,
        **kwargs: Any,
    ) -> StdArray:
        """Signed scores (n,): (y − μ)/√v, or what the model's distribution says.

        Scores know the identity of the fit if the whole distribution made them, which
        ``y_std`` (MAPIE 1.5 or later) may carry, and not mean and √v alone.
        """
        check_real("y", y)
        target, mu = np.asarray(y, dtype=np.float64), np.asarray(y_pred)
        if mu.shape != target.shape:
            raise ValueError(
                f"Got predictions of shape {mu.shape} for targets of shape "
                f"{target.shape}, but expected one number per row. Fit the estimator "
                "with a one-dimensional y."
            )
        if not np.isfinite(target).all():  # scikit-learn may be told not to look
            raise ValueError(f"Got y with NaN or infinity.{where_bad('y', target)}")
        missing = 0 if y_std is None else int(np.isnan(mu).sum())
        if missing:
            raise ValueError(
                f"Got {missing} of {len(mu)} rows without an out-of-sample prediction, "
                "so that they have no score. With CrossConformalRegressor use a "
                "splitter whose test folds hold every row, such as KFold; with "
                "JackknifeAfterBootstrapRegressor raise resampling=...."
            )
        rows, fit_id, again = self._rows(mu, X, y_std), None, None
        if self.estimator is not None:
            fit_id = fit_id_of(self.estimator)
            if not np.array_equal(rows.prediction, mu):
                self._raise_other("whose predictions are not those of the estimator")
        elif getattr(y_std, "distribution", None) is not None:
            fit_id = y_std.fit_id
        elif X is not None:  # folds may have made it
            again = X, target
        scores, _ = self._support.scores(rows, target)
        return StdArray.carry(scores, fit_id, rows=again)

    def get_conformity_scores(
        self, y: ArrayLike, y_pred: ArrayLike, **kwargs: Any
    ) -> Array:
        """Scores (n,), absolute if one rank is taken."""
        scores = self.get_signed_conformity_scores(y, y_pred, **kwargs)
        if not self.sym:
            return scores
        absolute = np.abs(np.asarray(scores))
        return StdArray.carry(absolute, scores.fit_id, rows=scores.rows)

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
        models.check_folds()
        params = (predict_params.pop("predict_params", None) or {}) | predict_params
        ends_of = partial(
            Calibration.bounds,
            alpha=np.asarray(alpha_np),
            sym=self.sym,
            allow_infinite=allow_infinite_bounds,
        )
        scores = Calibration(np.asarray(conformity_scores, float), not self.sym)
        if models.uses_folds(method):
            options: Any = ends_of, params, ensemble, method
            known = getattr(conformity_scores, "rows", None)
            points, bounds = self._cross_bounds(X, models, scores, known, *options)
            return points, bounds[:, 0], bounds[:, 1]
        model, fit_id = models.point_model, getattr(conformity_scores, "fit_id", "")
        if self.estimator is not None and model is not self.estimator:
            name = type(model).__name__
            self._raise_other(f"which is another object than the {name}")
        check_same_fit([model], fit_id)
        ends, rows = ends_of(scores), distribution_of(model, X, params)
        if not fit_id and self.estimator is None:
            if fit_id is not None and not rows.is_plain:
                raise ValueError(UNKNOWN_SCORES)
            rows = mean_and_std_alone(rows)
        bounds = ends.interval([rows], self._support)
        return rows.prediction, bounds[:, 0], bounds[:, 1]

    def _cross_bounds(
        self,
        X: Any,
        models: Any,
        scores: Calibration,
        known_rows: Any,
        ends_of: Any,
        params: Any,
        aggregate: bool,
        method: str,
    ) -> tuple[Array, Array]:
        """Points and bounds of CV+, jackknife+ and their minmax forms.

        Where each row has one model that has not seen it, that model's distribution
        makes the row's score; MAPIE's scores know mean and standard deviation alone.
        Where a row has several, these are aggregated, and all is made of them.
        """
        each = [distribution_of(model, X, params) for model in models.fold_models]
        mu, folds = np.stack([rows.prediction for rows in each], 1), models.folds
        if folds is None:
            scores = replace(scores, folds=np.arange(len(scores)))
        elif known_rows is None or params:
            each = [mean_and_std_alone(rows) for rows in each]
            scores = replace(scores, folds=folds)
        else:
            own = models.fold_models, folds, *known_rows, self._support
            scores = Calibration.of_folds(*own)
        ends = ends_of(replace(scores, folds=None) if method == "minmax" else scores)
        points, bounds = [], []
        for block in gen_batches(len(mu), max(1, BLOCK_ELEMENTS // (2 * len(scores)))):
            centre, rows = models.by_row(mu[block]), [r.take(block) for r in each]
            if folds is None:
                std = models.by_row(np.stack([r.std for r in rows], 1))
                rows = list(map(from_mean_and_std, centre.T, std.T))
            bounds.append(ends.interval(rows, self._support))
            points.append(models.aggregate(centre))
        if not aggregate:
            points = [models.point_model.predict(X, **params)]
        return np.concatenate(points), np.concatenate(bounds)

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


class ClapsScaleEstimator(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    r"""Fitted regressor whose prediction is its local scale, :math:`\sqrt{v(x)}`.

    For MAPIE's ``ResidualNormalisedScore(residual_estimator=..., prefit=True)``, also
    when another model makes the point predictions: a gradient booster in the centre,
    CLAPS for the width. The regressor must not have seen the calibration rows.

    Parameters
    ----------
    estimator : estimator
        A fitted estimator with ``predict(X, return_std=True)``.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import ClapsRegressor, ClapsScaleEstimator
    >>> X = np.linspace(-1, 1, 50)[:, None]
    >>> model = ClapsRegressor.paper(random_state=0).fit(X, X[:, 0])
    >>> scale = ClapsScaleEstimator(model)
    >>> np.array_equal(scale.predict(X), model.predict(X, return_std=True)[1])
    True
    """

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def fit(self, X: ArrayLike, y: ArrayLike) -> NoReturn:
        """Refuse: what is wrapped is fitted already."""
        raise TypeError(
            "ClapsScaleEstimator wraps an estimator that is already fitted, and has "
            "nothing to fit. Use ResidualNormalisedScore(residual_estimator="
            "ClapsScaleEstimator(fitted), prefit=True)."
        )

    def predict(self, X: ArrayLike) -> Array:
        """Predict √v(x), (n,), in units of y."""
        check_is_fitted(self)
        std = distribution_of(self.estimator, X).std
        if len(std) and std.min() < _mapie.RESIDUAL_SCORE_CLIP:
            raise ValueError(
                f"Got a scale of {float(std.min())!r}, but MAPIE's "
                f"ResidualNormalisedScore clips it at {_mapie.RESIDUAL_SCORE_CLIP} "
                "when calibrating and not when predicting, which ruins the coverage. "
                "Fit on y multiplied by a constant, or use ClapsScore."
            )
        return std

    @property
    def n_features_in_(self) -> int:
        """Number of columns that the wrapped estimator was fitted on."""
        return int(self.estimator.n_features_in_)

    def __sklearn_is_fitted__(self) -> bool:
        check_is_fitted(self.estimator)
        return True

    def __sklearn_clone__(self) -> Self:
        # A clone of the wrapped estimator would be unfitted, hence useless.
        return self
