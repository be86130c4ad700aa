"""v → score → interval: ``ClapsScore``, for MAPIE's regressors."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..estimators.variance import with_fingerprint
from . import mapie as _mapie
from .bounds import cross_bounds, split_bounds
from .parts import check_unchanged, fingerprint_of
from .scaled_residual import checked_predictions, checked_std, scaled_residual
from .support import check_support, snap_to_support

__all__ = ["ClapsScore"]

Array = NDArray[np.float64]


class ClapsScore(_mapie.ScoreBase):  # type: ignore[misc]
    r"""Residual in units of the local scale.

    :math:`A(x, y) = |y - \mu(x)| / \sqrt{v(x)}`, and back,
    :math:`C_\alpha(x) = [\mu(x) - q_\alpha\sqrt{v(x)},\, \mu(x) +
    q_\alpha\sqrt{v(x)}]`,
    where :math:`q_\alpha` is the :math:`\lceil(n+1)(1-\alpha)\rceil`-th smallest
    calibration score. The interval covers with probability at least
    :math:`1-\alpha` if calibration and test rows are exchangeable given the fitted
    estimator; rows that the estimator was fitted on break that.

    Parameters
    ----------
    estimator : estimator or None, default=None
        A fitted estimator with ``predict(X, return_std=True)``; the object itself
        that MAPIE predicts with. Needed by MAPIE before 1.5, which does not ask an
        estimator for its standard deviation, and by MAPIE's
        ``ConditionalSplitConformalRegressor``. With None, MAPIE (1.5 or later) asks
        the estimator that it fits.
    support : "integer", array-like or None, default=None
        Values that y can take, where they are few: the integers, or those listed. The
        end points then move inwards to the nearest such value, which loses no value
        that y can take, so coverage stays and widths shrink. An interval that holds
        none of them becomes the one nearest to its centre.

    Notes
    -----
    Any estimator with ``predict(X, return_std=True)`` works, a Gaussian process too.
    In split mode the bounds are one quantile and one multiplication. Where the rank
    exceeds the number of scores and infinite bounds are allowed, they are (−∞, ∞).
    The score is symmetric; ``minimize_interval_width`` is refused.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie.regression import SplitConformalRegressor
    >>> from mapie_claps import ClapsRegressor, ClapsScore
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-2, 2, (300, 1))
    >>> y = X[:, 0] ** 2 + rng.normal(0, 0.1, 300)
    >>> mapie = SplitConformalRegressor(
    ...     ClapsRegressor(n_members=2, random_state=0), confidence_level=0.9,
    ...     conformity_score=ClapsScore(), prefit=False)
    >>> mapie = mapie.fit(X[:200], y[:200]).conformalize(X[200:], y[200:])
    >>> y_pred, y_interval = mapie.predict_interval([[1.0]])
    >>> y_interval.shape
    (1, 2, 1)
    """

    def __init__(
        self, estimator: Any = None, *, support: str | ArrayLike | None = None
    ) -> None:
        super().__init__(**_mapie.SCORE_OPTIONS)
        self.estimator = estimator
        self.support = check_support(support)

    def get_signed_conformity_scores(
        self,
        y: ArrayLike,
        y_pred: ArrayLike,
        X: ArrayLike | None = None,
        y_std: ArrayLike | None = None,
        **kwargs: Any,
    ) -> Array:
        """Compute (y − μ) / √v.

        Parameters
        ----------
        y : array-like of shape (n,)
            Targets.
        y_pred : array-like of shape (n,)
            Predictions of MAPIE's estimator.
        X : array-like of shape (n, p), optional
            Inputs, for a score that holds an estimator.
        y_std : array-like of shape (n,), optional
            √v of MAPIE's estimator, from MAPIE 1.5 on.
        **kwargs : dict
            Ignored.

        Returns
        -------
        ndarray of shape (n,)
            Signed scores.
        """
        target, mu = checked_predictions(y, y_pred)
        if self.estimator is not None:
            y_std = self._std_of_held_estimator(X, mu)
        if y_std is None:
            raise ValueError(
                "Got ClapsScore() without an estimator, and no standard deviation from "
                "MAPIE. Only MAPIE 1.5 and later ask the estimator for it: pass the "
                "fitted estimator, ClapsScore(fitted), with prefit=True (cv='prefit' "
                "in MAPIE 0.9), or upgrade MAPIE."
            )
        _mapie.check_out_of_sample(mu)
        return scaled_residual(target, mu, y_std)

    def get_conformity_scores(
        self, y: ArrayLike, y_pred: ArrayLike, **kwargs: Any
    ) -> Array:
        """Compute ``|y − μ| / √v``, with the estimator's fingerprint if it has one.

        Parameters
        ----------
        y : array-like of shape (n,)
            Targets.
        y_pred : array-like of shape (n,)
            Predictions of MAPIE's estimator.
        **kwargs : dict
            X and y_std, see ``get_signed_conformity_scores``.

        Returns
        -------
        ndarray of shape (n,)
            Scores.
        """
        scores = np.abs(self.get_signed_conformity_scores(y, y_pred, **kwargs))
        if self.estimator is not None:
            return with_fingerprint(scores, fingerprint_of(self.estimator))
        given_with = getattr(kwargs.get("y_std"), "fingerprint", None)
        return with_fingerprint(scores, given_with)

    def get_estimation_distribution(
        self,
        y_pred: ArrayLike,
        conformity_scores: ArrayLike,
        X: ArrayLike | None = None,
        y_std: ArrayLike | None = None,
        **kwargs: Any,
    ) -> Array:
        """Compute μ + score · √v, the inverse of the score.

        Parameters
        ----------
        y_pred : array-like of shape (n,) or (n, m), or a number for one row
            Predictions μ.
        conformity_scores : array-like that broadcasts against ``y_pred``
            Scores or their quantiles.
        X : array-like of shape (n, p), optional
            Inputs, for a score that holds an estimator.
        y_std : array-like of shape (n,), optional
            √v, for a score that holds none.
        **kwargs : dict
            Ignored.

        Returns
        -------
        ndarray
            Values of y with these scores.
        """
        if y_std is None:
            if self.estimator is None:
                raise ValueError(
                    "Got ClapsScore() without an estimator where the scale at X is "
                    "needed. Pass the fitted estimator: ClapsScore(fitted), with "
                    "prefit=True."
                )
            y_std = self.estimator.predict(X, return_std=True)[1]
        y_pred = np.asarray(y_pred, dtype=np.float64)
        std = checked_std(y_std, max(1, len(np.atleast_1d(y_pred))))
        shape = (-1,) + (1,) * (y_pred.ndim - 1) if y_pred.ndim else ()
        return np.asarray(y_pred + np.asarray(conformity_scores) * std.reshape(shape))

    def get_effective_calibration_samples(self, scores: Array) -> float:
        """Leave the check of the number of rows to the bounds, where it is exact.

        Parameters
        ----------
        scores : ndarray
            Ignored.

        Returns
        -------
        float
            Infinity, which passes MAPIE's own check.
        """
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
        """Compute predictions and bounds; called by MAPIE.

        Parameters
        ----------
        X : array-like of shape (n, p)
            Test inputs.
        alpha_np : ndarray of shape (n_alpha,)
            Miscoverages.
        estimator : EnsembleRegressor
            MAPIE's models.
        conformity_scores : ndarray of shape (n_cal,)
            Calibration scores.
        ensemble : bool, default=False
            Whether point predictions aggregate those of the folds.
        method : {"base", "plus", "minmax"}, default="base"
            How the models of the folds make the bounds.
        optimize_beta : bool, default=False
            Refused: the score is symmetric.
        allow_infinite_bounds : bool, default=False
            Whether bounds may be infinite where the rank exceeds n_cal.
        **predict_params : dict
            Passed to the models' ``predict``.

        Returns
        -------
        tuple of ndarray
            Predictions (n,), lower and upper bounds (n, n_alpha).
        """
        if optimize_beta:
            raise ValueError(
                "Got minimize_interval_width=True (optimize_beta in MAPIE 0.9), but "
                "the score |y - mu| / sqrt(v) is symmetric. Leave it False."
            )
        self._check_same_estimator(estimator)
        params = _mapie.predict_params_of(predict_params)
        scores = np.asarray(conformity_scores, dtype=np.float64)
        if _mapie.uses_folds(estimator, method):
            mu, lower, upper = cross_bounds(
                X,
                alpha_np,
                estimator,
                scores,
                ensemble,
                method,
                allow_infinite_bounds,
                params,
            )
        else:
            model = _mapie.point_model(estimator)
            check_unchanged(model, getattr(conformity_scores, "fingerprint", None))
            mu, lower, upper = split_bounds(
                model, X, alpha_np, scores, allow_infinite_bounds, params
            )
        if self.support is not None:
            lower, upper = snap_to_support(lower, upper, self.support)
        return mu, lower, upper

    def _std_of_held_estimator(self, X: ArrayLike | None, y_pred: Array) -> Array:
        """√v of the held estimator, whose μ must be what MAPIE predicts."""
        mu, std = self.estimator.predict(X, return_std=True)
        if not np.array_equal(np.asarray(mu).ravel(), y_pred):
            raise ValueError(
                f"Got ClapsScore({type(self.estimator).__name__}) whose predictions "
                "are not those of the estimator that MAPIE predicts with. Give both "
                "the same fitted object and prefit=True (cv='prefit' in MAPIE 0.9); "
                "to scale another model's intervals use ClapsScaleEstimator."
            )
        return np.asarray(std)

    def _check_same_estimator(self, ensemble: Any) -> None:
        if self.estimator is None:
            return
        used = _mapie.point_model(ensemble)
        if used is not self.estimator:
            raise ValueError(
                f"Got ClapsScore({type(self.estimator).__name__}), but MAPIE predicts "
                f"with another object, a {type(used).__name__}. Give both the same "
                "fitted object and prefit=True (cv='prefit' in MAPIE 0.9)."
            )
