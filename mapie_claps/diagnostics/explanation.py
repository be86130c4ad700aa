"""An interval together with the reasons for its width."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..estimators.predictive import PredictiveVariance
from ..network.tables import records_of
from .by_column import ColumnContributions, as_html, as_table, column_contributions

Array = NDArray[np.float64]


@dataclass(frozen=True, repr=False, eq=False)
class Explanation:
    """Prediction, interval and the reasons for its width, row by row.

    Parameters
    ----------
    prediction : ndarray of shape (n,)
        Point prediction.
    lower, upper : ndarray of shape (n, n_levels)
        Bounds; without columns if what was explained is not calibrated.
    confidence_level : tuple of float
        Levels of the bounds.
    aleatoric, epistemic : ndarray of shape (n,)
        Parts h² and φᵀΣφ of v.
    noise_width : ndarray of shape (n, n_levels), optional
        Width of the interval with v = h². None if √v does not make the width, as with
        MAPIE's absolute score; the width then has no parts.
    by_column : ColumnContributions, optional
        What each column adds to both parts of the width.
    index : sequence, optional
        Names of the rows; by default their positions.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import Explanation
    >>> half, noise, lack = np.array([[2.0]]), np.array([9.0]), np.array([7.0])
    >>> why = Explanation(np.zeros(1), -half, half, (0.9,), noise, lack, 1.5 * half)
    >>> why.width, why.epistemic_width
    (array([[4.]]), array([[1.]]))
    >>> why
       prediction  lower  upper  epistemic_fraction
    0         0.0   -2.0    2.0              0.4375
    """

    prediction: Array
    lower: Array
    upper: Array
    confidence_level: tuple[float, ...]
    aleatoric: Array
    epistemic: Array
    noise_width: Array | None = None
    by_column: ColumnContributions | None = None
    index: Any = None

    @property
    def epistemic_fraction(self) -> Array:
        """Share of the epistemic part in v."""
        return self.epistemic / (self.aleatoric + self.epistemic)

    @property
    def width(self) -> Array:
        """Width of the intervals, shape (n, n_levels)."""
        return self.upper - self.lower

    @property
    def aleatoric_width(self) -> Array:
        """Width that noise alone would need, width · h / √v for a symmetric score."""
        if self.noise_width is None:
            raise ValueError(
                "Got intervals of a score that does not scale them by √v: their width "
                "has no aleatoric and epistemic part. Calibrate with ClapsScore."
            )
        return np.minimum(self.noise_width, self.width)

    @property
    def epistemic_width(self) -> Array:
        """Width that lack of data adds to it."""
        return self.width - np.where(np.isinf(self.width), 0.0, self.aleatoric_width)

    @property
    def width_parts(self) -> Array:
        """Both parts (n, 2, n_levels) of the width, or of √v; NaN if it is infinite."""
        if self.confidence_level:
            noise, lack = self.aleatoric_width, self.epistemic_width
        else:
            noise = np.sqrt(self.aleatoric)[:, None]
            lack = np.sqrt(self.aleatoric + self.epistemic)[:, None] - noise
        found = np.stack([noise, lack], axis=1)
        return np.where(np.isfinite(found).all(axis=1, keepdims=True), found, np.nan)

    def columns(self) -> dict[str, Array]:
        """Everything by row; several levels are told apart as in ``lower_0.9``."""
        columns, levels = {"prediction": self.prediction}, self.confidence_level
        parts = ["aleatoric_width", "epistemic_width"]
        names = ["lower", "upper", "width"] + parts * (self.noise_width is not None)
        for j, level in enumerate(levels):
            suffix = f"_{level:g}" * (len(levels) > 1)
            columns |= {name + suffix: getattr(self, name)[:, j] for name in names}
        names = ["aleatoric", "epistemic", "epistemic_fraction"]
        return columns | {name: getattr(self, name) for name in names}

    def to_frame(self) -> Any:
        """``columns()`` as a DataFrame with the index of X; a dict without pandas."""
        return as_table(self.columns(), self.index)

    def __repr__(self) -> str:
        """Prediction, ends and the share of lack of data, as a table."""
        return repr(as_table(self._shown(), self.index))

    def _repr_html_(self) -> str | None:
        """The first rows for notebooks, with a sentence each if columns are known."""
        shown: dict[str, Any] = self._shown()
        if self.by_column is not None:
            shown["why"] = self.by_column.first_sentences()
        return as_html(shown, self.index, len(self.prediction))

    def _shown(self) -> dict[str, Array]:
        names = ("prediction", "lower", "upper", "epistemic_fraction")
        return {k: v for k, v in self.columns().items() if k.startswith(names)}


def explain(
    model: Any,
    X: ArrayLike,
    *,
    by_column: bool = False,
    background: Any = None,
    **predict_params: Any,
) -> Explanation:
    """Explain predictions: μ, the interval, and the two parts of v.

    Parameters
    ----------
    model : object
        A ``CalibratedRegressor``, a calibrated MAPIE regressor (parts are means over
        the models of folds if these make the bounds), or a fitted estimator such as
        ``ClapsRegressor``, also as the last step of a ``Pipeline``.
    X : array-like of shape (n, p)
        Inputs.
    by_column : bool, default=False
        Whether to compute what each column of a table adds to both parts of the width:
        Shapley values, from 32 (p − 1) predictions for each row.
    background : array-like of shape (m, p), optional
        Rows to compare those of X with, for example the calibration rows; they imply
        ``by_column``. By default the rows of X. The reference are 16 of the rows,
        evenly spread over their variances.
    **predict_params : dict
        Passed to ``predict_interval``, for example ``allow_infinite_bounds=True``;
        ``alpha``, which MAPIE 0.9 takes when it predicts.

    Returns
    -------
    Explanation
        Arrays by row, and ``by_column`` if it was asked for.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import ClapsRegressor, explain
    >>> X = np.linspace(-1, 1, 60)[:, None]
    >>> model = ClapsRegressor(n_members=2, max_steps=60, random_state=0)
    >>> why = explain(model.fit(X, X[:, 0]), X[-3:], background=X)
    >>> bool((why.epistemic_fraction < 1).all()), why.by_column.names
    (True, ('x0',))
    """
    why = explain_rows(model, X, **predict_params)
    if not by_column and background is None:
        return why
    background = X if background is None else background
    for name in ("weights", "partition"):
        value = predict_params.get(name)
        if value is not None and not callable(value):
            raise ValueError(
                f"Got {name} of single rows together with a background, whose rows are "
                f"predicted too. Calibrate with {name} as a function of X."
            )
    if (records := records_of(X)) is not None and hasattr(background, "columns"):
        X = type(background)(records)[list(background.columns)]
    explained = partial(explain_rows, model, **predict_params)
    adds = column_contributions(explained, X, why, background)
    return replace(why, by_column=adds)


def explain_rows(
    model: Any,
    X: Any,
    alpha: Any = None,
    allow_infinite_bounds: bool = False,
    need_parts: bool = True,
    **params: Any,
) -> Explanation:
    """The interval and both parts of v of some rows, in one pass of each model."""
    # What calibrates loads MAPIE and torch.
    from ..conformal.calibrated import CalibratedRegressor
    from ..conformal.distribution import NO_ROWS, average, distribution_of
    from ..conformal.mapie import CalibratedMapie
    from ..conformal.score import ClapsScaleEstimator, ClapsScore
    from ..conformal.support import check_support

    host, levels, scaled = CalibratedMapie.of(model), list[float](), True
    if host is not None:
        levels, ours = host.checked_levels(alpha), isinstance(host.score, ClapsScore)
        ours_inside = isinstance(host.residual_estimator, ClapsScaleEstimator)
        scaled = ours or ours_inside or host.has_std_score
        if ours and host.ensemble.is_split and not params:
            model, alpha = CalibratedRegressor.from_mapie(model, levels), None
    blocks: list[Any]  # of rows: what models say, points, bounds, those with v = h²
    if isinstance(model, CalibratedRegressor):
        if alpha is not None:
            raise ValueError(
                "Got alpha with a CalibratedRegressor, whose levels are its "
                "confidence_level. Leave it out."
            )
        levels, support = model.levels, check_support(model.support)
        blocks = [([NO_ROWS], np.empty(0), *np.empty((2, 0, 2, len(levels))))]
        for rows, at in model.rows_and_ends(X, allow_infinite_bounds, **params):
            alone = [each.noise_alone for each in rows]
            both = [at.interval(each, support) for each in (rows, alone)]
            blocks.append((rows, average([each.prediction for each in rows]), *both))
    elif host is None:
        rows = [distribution_of(model, X, params)]
        blocks = [(rows, rows[0].prediction, *np.empty((2, len(rows[0]), 2, 0)))]
    else:
        if allow_infinite_bounds:
            params["allow_infinite_bounds"] = True
        at_levels = partial(model.predict, alpha=alpha)  # of MAPIE 0.9
        predict = at_levels if host.levels is None else model.predict_interval
        rows = [distribution_of(each, X) for each in models_of(model)]
        blocks = [(rows, *predict(X, **params), None)]
    found = []
    for rows, points, bounds, alone in blocks:
        parts = PredictiveVariance(*np.full((2, len(points)), np.nan))
        lower, upper = bounds[:, 0], bounds[:, 1]
        known = all(each.aleatoric is not None for each in rows)
        if need_parts or known:
            parts = PredictiveVariance(*np.mean([r.variance for r in rows], axis=0))
        if known and alone is not None:
            noise = alone[:, 1] - alone[:, 0]
        else:  # the width is in proportion to √v
            noise = (upper - lower) / parts.scale_ratio[:, None]
        found.append((points, lower, upper, *parts, noise))
    whole: Any = map(np.concatenate, zip(*found, strict=True))
    points, lower, upper, h2, lack, noise = whole
    level, noise = tuple(levels), noise if scaled else None
    index = X.index if hasattr(X, "iloc") and X.ndim == 2 else None  # not of one row
    return Explanation(points, lower, upper, level, h2, lack, noise, index=index)


def models_of(model: Any, folds: bool = True) -> list[Any]:
    """Models that make the bounds; without folds, one that was fitted on all rows."""
    from ..conformal.calibrated import CalibratedRegressor
    from ..conformal.mapie import CalibratedMapie
    from ..conformal.score import ClapsScaleEstimator

    if isinstance(model, CalibratedRegressor):
        return model.fitted_models if folds else model.fitted_models[:1]
    host = CalibratedMapie.of(model)
    if host is None:
        return [model]
    if isinstance(host.residual_estimator, ClapsScaleEstimator):
        return [host.residual_estimator.estimator]
    use_folds = folds and host.ensemble.uses_folds()
    return host.ensemble.fold_models if use_folds else [host.ensemble.point_model]
