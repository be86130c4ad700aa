"""v → score → interval: ``ClapsScore``, for MAPIE's regressors."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import _safe_indexing, gen_batches
from sklearn.utils.validation import _num_samples

from . import mapie as _mapie
from .quantile import OUTWARDS, check_rank, conformal_quantile, conformal_rank, ends
from .support import check_support, move_inwards

__all__ = ["ClapsScore"]

Array = NDArray[np.float64]
# Elements of one n_test × n_cal block of the cross-conformal methods.
BLOCK_ELEMENTS = 2**21
PREDICTED_ROWS = 2**16  # test rows that a model predicts at a time


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
        if _mapie.HAS_STD_ROAD:
            super().__init__(sym=True)
        else:
            super().__init__(sym=True, consistency_check=False)
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
        y, y_pred = np.asarray(y, dtype=np.float64), np.asarray(y_pred)
        if y_pred.shape != y.shape:
            raise ValueError(
                f"Got predictions of shape {y_pred.shape} for targets of shape "
                f"{y.shape}, but expected one number per row. Fit the estimator with "
                "a one-dimensional y."
            )
        if self.estimator is not None:
            y_std = self._std_of_held_estimator(X, y_pred)
        if y_std is None:
            raise ValueError(
                "Got ClapsScore() without an estimator, and no standard deviation from "
                "MAPIE. Only MAPIE 1.5 and later ask the estimator for it: pass the "
                "fitted estimator, ClapsScore(fitted), with prefit=True (cv='prefit' "
                "in MAPIE 0.9), or upgrade MAPIE."
            )
        if np.isnan(y_pred).any():
            raise ValueError(
                f"Got {int(np.isnan(y_pred).sum())} rows without an out-of-sample "
                "prediction (NaN in y_pred), so that they have no score. With "
                "JackknifeAfterBootstrapRegressor raise the number of resamplings "
                "(resampling=...)."
            )
        scores: Array = (y - y_pred) / _checked_std(y_std, len(y))
        return scores

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
        std = _checked_std(y_std, max(1, len(np.atleast_1d(y_pred))))
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
        params = {
            **(predict_params.pop("predict_params", None) or {}),
            **predict_params,
        }
        scores = np.asarray(conformity_scores, dtype=np.float64)
        if _mapie.uses_folds(estimator, method):
            mu, lower, upper = _cross_bounds(
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
            q = conformal_quantile(scores, list(alpha_np), allow_infinite_bounds)
            mu, lower, upper = _split_bounds(
                _mapie.point_model(estimator), X, q, params
            )
        if self.support is not None:
            lower, upper = move_inwards(lower, upper, self.support)
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


def _checked_std(y_std: ArrayLike, n: int, first_row: int = 0) -> Array:
    """Scale as (n,) float64, finite and positive."""
    std = np.asarray(y_std, dtype=np.float64)
    if std.shape != (n,):
        raise ValueError(
            f"Got a standard deviation of shape {std.shape} for {n} rows, but expected "
            "one number per row from predict(X, return_std=True)."
        )
    bad = ~(np.isfinite(std) & (std > 0))
    if bad.any():
        row = first_row + int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"Got a standard deviation of {float(std[bad][0])!r} in row {row}, but "
            "expected positive finite numbers. Give the estimator a floor on its "
            "variance (a GP: a WhiteKernel)."
        )
    return std


def _predict_with_std(
    model: Any, X: ArrayLike, params: dict[str, Any], first_row: int = 0
) -> tuple[Array, Array]:
    """μ and √v of one model, checked."""
    mu, std = model.predict(X, return_std=True, **params)
    mu = np.asarray(mu, dtype=np.float64)
    return mu, _checked_std(std, len(mu), first_row)


def _split_bounds(
    model: Any, X: ArrayLike, q: Array, params: dict[str, Any]
) -> tuple[Array, Array, Array]:
    """μ and μ ± q√v of one model; beyond the results, memory for some rows only."""
    n = _num_samples(X)
    if n <= PREDICTED_ROWS or params:  # parameters may hold a value per row
        return _bounds_of_rows(model, X, q, params, 0)
    mu, lower, upper = np.empty(n), np.empty((n, len(q))), np.empty((n, len(q)))
    for rows in gen_batches(n, PREDICTED_ROWS):
        part = _safe_indexing(X, rows)
        mu[rows], lower[rows], upper[rows] = _bounds_of_rows(
            model, part, q, params, rows.start
        )
    return mu, lower, upper


def _bounds_of_rows(
    model: Any, X: ArrayLike, q: Array, params: dict[str, Any], first_row: int
) -> tuple[Array, Array, Array]:
    mu, std = _predict_with_std(model, X, params, first_row)
    return mu, *ends(mu, std, q)


def _predict_folds(
    ensemble: Any, X: ArrayLike, params: dict[str, Any]
) -> tuple[Array, Array]:
    """μ and √v of the models of the folds, one column each."""
    pairs = [_predict_with_std(m, X, params) for m in ensemble.estimators_]
    return np.stack([p[0] for p in pairs], 1), np.stack([p[1] for p in pairs], 1)


def _row_blocks(n_test: int, n_cal: int) -> list[slice]:
    """Test rows in blocks whose n_test × n_cal matrix stays small."""
    size = max(1, BLOCK_ELEMENTS // max(1, n_cal))
    return [slice(i, i + size) for i in range(0, n_test, size)]


def _cross_bounds(
    X: ArrayLike,
    alphas: Array,
    ensemble: Any,
    scores: Array,  # (n_cal,)
    aggregate: bool,
    method: str,
    allow_infinite: bool,
    params: dict[str, Any],
) -> tuple[Array, Array, Array]:
    """Bounds of CV+, jackknife+ and their minmax forms, in row blocks."""
    n = len(scores)
    ranks = [conformal_rank(n, a) for a in alphas]
    for rank, alpha in zip(ranks, alphas, strict=True):
        check_rank(rank, n, alpha, allow_infinite)
    mu, std = _predict_folds(ensemble, X, params)
    lower = np.full((len(mu), len(ranks)), -np.inf)
    upper = np.full((len(mu), len(ranks)), np.inf)
    finite = [j for j, rank in enumerate(ranks) if rank <= n]
    kept = [ranks[j] for j in finite]
    one_sided = _plus if method == "plus" else _minmax
    points = np.empty(len(mu))
    for block in _row_blocks(len(mu), n):
        centre = _mapie.aggregate_folds(ensemble, mu[block])
        scale = _mapie.aggregate_folds(ensemble, std[block])
        if finite:  # the lower bound is the upper one of −y
            lower[block, finite] = -one_sided(-centre, scale, scores, kept)
            upper[block, finite] = one_sided(centre, scale, scores, kept)
        points[block] = _mapie.aggregate_points(ensemble, centre)
    if not aggregate:
        points[:] = _mapie.point_model(ensemble).predict(X, **params)
    return points, lower, upper


def _plus(centre: Array, scale: Array, scores: Array, ranks: list[int]) -> Array:
    """k-th smallest of μ₋ᵢ(x) + Rᵢ √v₋ᵢ(x) over the calibration rows i."""
    by_row = centre + scale * (scores * OUTWARDS)
    order = sorted({k - 1 for k in ranks})
    by_row.partition(order, axis=1)
    bounds: Array = np.nextafter(by_row[:, [k - 1 for k in ranks]], np.inf)
    return bounds


def _minmax(centre: Array, scale: Array, scores: Array, ranks: list[int]) -> Array:
    """Largest of μ₋ᵢ(x) + q √v₋ᵢ(x) over the calibration rows i."""
    quantiles = np.sort(scores)[[k - 1 for k in ranks]] * OUTWARDS
    largest = [(centre + scale * q).max(axis=1) for q in quantiles]
    bounds: Array = np.nextafter(np.stack(largest, axis=1), np.inf)
    return bounds
