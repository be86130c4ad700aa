"""v → score → interval: ``ClapsScore``, for MAPIE's regressors."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._validation import check_choice
from ..estimators.variance import with_fingerprint
from . import mapie as _mapie
from .bounds import cross_bounds, split_bounds
from .laws import checked_predictions, checked_std, law_of
from .parts import check_gives_std, check_unchanged, fingerprint_of
from .quantile import score_bounds
from .support import Support, check_support, score_rows

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

    That is the paper's score, and what ``ClapsRegressor.paper()`` and any estimator
    with ``predict(X, return_std=True)`` give. A default ``ClapsRegressor()`` learns in
    ``fit``, from training rows alone, a map z = T(y) of the target, noise with two
    sides and the shape g of the residuals: the score is then the absolute value of
    g((z − μ)/√v±), and the interval all y whose score is at most :math:`q_\alpha`. One
    rank, and the same guarantee: what is fixed before calibration may shape the score.

    Parameters
    ----------
    estimator : estimator or None, default=None
        A fitted estimator with ``predict(X, return_std=True)``; the object itself
        that MAPIE predicts with. Needed by MAPIE before 1.5, which does not ask an
        estimator for its standard deviation, and by MAPIE's
        ``ConditionalSplitConformalRegressor``. With None, MAPIE (1.5 or later) asks
        the estimator that it fits.
    support : str, tuple, array-like or None, default="auto"
        Values that y can take: "integer" (from 0 where no training target of a
        ``ClapsRegressor`` was negative), "non-negative", "count" (integers from 0), a
        range as a tuple (low, high), where None is no bound, a list of values, or
        "training", the range of the estimator's training targets, and the integers if
        all of these were integers. End points move to the nearest such value, which
        loses no value that y can take: coverage stays or rises. A calibration target
        outside has the score +∞: the rank pays for it. "auto" takes what the training
        targets of a ``ClapsRegressor`` tell: an end on which at least 1 % and ten of
        them lie, no fewer than on the next value, is a bound (zero for claims, a cap
        for prices), and at most 16 distinct integers are grades. None takes nothing.
    sym : bool, default=True
        One rank of the absolute scores for both ends. False takes the
        :math:`\lceil(n+1)(1-\alpha/2)\rceil`-th score on each side, which adapts both
        ends to the calibration rows and needs twice as many of them.

    Notes
    -----
    Any estimator with ``predict(X, return_std=True)`` works, a Gaussian process too.
    In split mode the bounds are one quantile and one multiplication. Where the rank
    exceeds the number of scores and infinite bounds are allowed, they are infinite.
    CV+ and jackknife+ combine μ and √v of several models, which have no common shape:
    there the score is the paper's, with mean and standard deviation of y, and as valid
    as ever. MAPIE's ``TimeSeriesRegressor`` refuses scores that ask for a standard
    deviation: pass it ``ResidualNormalisedScore(ClapsScaleEstimator(model),
    prefit=True)``, or use ``CalibratedRegressor.observe``.
    ``minimize_interval_width`` is refused: it would choose on calibration scores.

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
        self,
        estimator: Any = None,
        *,
        support: str | ArrayLike | None = "auto",
        sym: bool = True,
    ) -> None:
        check_choice("sym", sym, (True, False), "Use True for one rank.")
        super().__init__(**(_mapie.SCORE_OPTIONS | {"sym": sym}))
        if estimator is not None:
            check_gives_std(estimator)
        self.estimator = estimator
        self.support = check_support(support)
        self._given_support = support
        self._made_shaped = self._has_scored = False

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse what scores were made with: bounds would be made in another way."""
        if name in ("sym", "support") and self.__dict__.get("_has_scored"):
            raise AttributeError(
                f"Got {name}={value!r} for a score that has calibrated. Make a new "
                f"ClapsScore({name}=...) and calibrate with it."
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        """As it was made."""
        parts = [] if self.estimator is None else [repr(self.estimator)]
        if not (isinstance(self._given_support, str) and self._given_support == "auto"):
            parts.append(f"support={self._given_support!r}")
        if not self.sym:
            parts.append("sym=False")
        return f"ClapsScore({', '.join(parts)})"

    @property
    def multi_output(self) -> bool:
        """False: y is one column. MAPIE reads it before it asks its model for a scale.

        The one chance to refuse a model that has none in words that help.
        """
        model = _mapie.calibrating_model()
        if model is not None:
            check_gives_std(model)
        return False

    def get_signed_conformity_scores(
        self,
        y: ArrayLike,
        y_pred: ArrayLike,
        X: ArrayLike | None = None,
        y_std: ArrayLike | None = None,
        **kwargs: Any,
    ) -> Array:
        """Compute (y − μ) / √v, or what the law of a ``ClapsRegressor`` says.

        Parameters
        ----------
        y : array-like of shape (n,)
            Targets.
        y_pred : array-like of shape (n,)
            Predictions of MAPIE's estimator.
        X : array-like of shape (n, p), optional
            Inputs, for a score that holds an estimator.
        y_std : array-like of shape (n,), optional
            √v of MAPIE's estimator, from MAPIE 1.5 on; it may carry a law.
        **kwargs : dict
            Ignored.

        Returns
        -------
        ndarray of shape (n,)
            Signed scores.
        """
        return self._scored(y, y_pred, X, y_std)[0]

    def _scored(
        self, y: ArrayLike, y_pred: ArrayLike, X: ArrayLike | None, y_std: Any
    ) -> tuple[Array, str | None, bool]:
        """Signed scores, fingerprint of their model, whether a law shaped them."""
        target, mu = checked_predictions(y, y_pred)
        made_with = getattr(y_std, "fingerprint", None)
        if self.estimator is not None:
            y_std = self._std_of_held_estimator(X, mu)
            made_with = fingerprint_of(self.estimator)
        if y_std is None:
            raise ValueError(
                "Got ClapsScore() without an estimator, and no standard deviation from "
                "MAPIE. Only MAPIE 1.5 and later ask the estimator for it: pass the "
                "fitted estimator, ClapsScore(fitted), with prefit=True (cv='prefit' "
                "in MAPIE 0.9), or upgrade MAPIE."
            )
        _mapie.check_out_of_sample(mu)
        if getattr(y_std, "rows", None) is not None:
            y_std.rows.warn_if_fitted(target)
        law = law_of(mu, y_std)
        scores = score_rows(law, target, self.support or Support())
        return scores, made_with, not law.is_plain

    def get_conformity_scores(
        self, y: ArrayLike, y_pred: ArrayLike, **kwargs: Any
    ) -> Array:
        """Compute scores, absolute if one rank is taken, and how they were made.

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
        scores, made_with, shaped = self._scored(
            y, y_pred, kwargs.get("X"), kwargs.get("y_std")
        )
        self._made_shaped = self._made_shaped or shaped
        self._has_scored = True
        return with_fingerprint(
            np.abs(scores) if self.sym else scores, made_with, shaped
        )

    def get_estimation_distribution(
        self,
        y_pred: ArrayLike,
        conformity_scores: ArrayLike,
        X: ArrayLike | None = None,
        y_std: ArrayLike | None = None,
        **kwargs: Any,
    ) -> Array:
        """Compute μ + score · √v, or the inverse of the law's score.

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
        law = getattr(y_std, "law", None)
        if law is not None and not law.is_plain:
            scores = np.asarray(conformity_scores, dtype=np.float64)
            by_row = scores.reshape(len(law), -1) if scores.ndim == 1 else scores
            found: Array = law.quantile(by_row)
            return found[:, 0] if y_pred.ndim == 1 and scores.ndim < 2 else found
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
            Refused: it would choose on calibration scores.
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
                "Got minimize_interval_width=True (optimize_beta in MAPIE 0.9), which "
                "would choose on calibration scores. Leave it False."
            )
        self._check_same_estimator(estimator)
        params = _mapie.predict_params_of(predict_params)
        scores = np.asarray(conformity_scores, dtype=np.float64)
        support = self.support or Support()
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
                self.sym,
            )
            law = law_of(mu, np.ones(len(mu)))
            return mu, *support.of(law).snap(lower, upper)
        model = _mapie.point_model(estimator)
        check_unchanged(model, getattr(conformity_scores, "fingerprint", None))
        ends = score_bounds(scores, list(alpha_np), self.sym, allow_infinite_bounds)
        shaped = self._are_shaped(conformity_scores)
        return split_bounds(model, X, ends, params, support, shaped)

    def check_known(self, conformity_scores: Array) -> None:
        """Raise for scores that do not say how they were made.

        Parameters
        ----------
        conformity_scores : ndarray of shape (n_cal,)
            Calibration scores of MAPIE's object.
        """
        self._are_shaped(conformity_scores)

    def _are_shaped(self, conformity_scores: Array) -> bool:
        """Whether scores were made by a law with a shape, as bounds must be."""
        if self.estimator is not None:
            return True  # asked both times
        shaped: bool | None = getattr(conformity_scores, "shaped", None)
        if shaped is None and self._made_shaped:
            raise ValueError(
                "Got conformity scores that do not say how they were made, so that no "
                "bounds can be made in the same way. Leave the scores in MAPIE's "
                "object, and use a new ClapsScore() for each of them."
            )
        return bool(shaped)

    def _std_of_held_estimator(self, X: ArrayLike | None, y_pred: Array) -> Any:
        """√v of the held estimator, whose μ must be what MAPIE predicts."""
        mu, std = self.estimator.predict(X, return_std=True)
        if not np.array_equal(np.asarray(mu).ravel(), y_pred):
            raise ValueError(
                f"Got ClapsScore({type(self.estimator).__name__}) whose predictions "
                "are not those of the estimator that MAPIE predicts with. Give both "
                "the same fitted object and prefit=True (cv='prefit' in MAPIE 0.9); "
                "to scale another model's intervals use ClapsScaleEstimator."
            )
        return std

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
