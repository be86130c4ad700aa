"""An interval together with the reasons for its width."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..estimators.predictive import PredictiveDistribution, PredictiveVariance
from .by_column import ColumnContributions, column_contributions, counted, more_than

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
        Width of the interval with v = h², as if there were no lack of data. None if
        √v does not make the width, as with MAPIE's absolute score; the width then has
        no parts.
    by_column : ColumnContributions, optional
        What each column adds to both parts of the width.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import Explanation
    >>> half, noise, lack = np.array([[2.0]]), np.array([9.0]), np.array([7.0])
    >>> why = Explanation(np.zeros(1), -half, half, (0.9,), noise, lack, 1.5 * half)
    >>> why.width, why.epistemic_width
    (array([[4.]]), array([[1.]]))
    >>> why
    Explanation of 1 row, level 0.9
    prediction  lower  upper  epistemic_fraction
             0     -2      2              0.4375
    """

    prediction: Array
    lower: Array
    upper: Array
    confidence_level: tuple[float, ...]
    aleatoric: Array
    epistemic: Array
    noise_width: Array | None = None
    by_column: ColumnContributions | None = None

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
                "Got intervals of a score that does not scale them by the model's "
                "standard deviation, so their width has no aleatoric and epistemic "
                "part. Calibrate with ClapsScore, or read aleatoric and epistemic, the "
                "parts of the variance."
            )
        return np.minimum(self.noise_width, self.width)

    @property
    def epistemic_width(self) -> Array:
        """Width that lack of data adds to it."""
        return self.width - np.where(np.isinf(self.width), 0.0, self.aleatoric_width)

    @property
    def width_parts(self) -> Array:
        """Both parts of the width, shape (n, 2, n_levels), NaN where it is infinite.

        Of √v, with one level, if what was explained is not calibrated.
        """
        if self.confidence_level:
            found = np.stack([self.aleatoric_width, self.epistemic_width], axis=1)
        else:
            noise, both = (
                np.sqrt(self.aleatoric),
                np.sqrt(self.aleatoric + self.epistemic),
            )
            found = np.stack([noise, both - noise], axis=1)[:, :, None]
        return np.where(np.isfinite(found).all(axis=1, keepdims=True), found, np.nan)

    def columns(self) -> dict[str, Array]:
        """Everything by row; several levels are told apart as in ``lower_0.9``."""
        columns = {"prediction": self.prediction}
        names = ["lower", "upper", "width"]
        if self.noise_width is not None:
            names += ["aleatoric_width", "epistemic_width"]
        for j, level in enumerate(self.confidence_level):
            suffix = "" if len(self.confidence_level) == 1 else f"_{level:g}"
            for name in names:
                columns[name + suffix] = getattr(self, name)[:, j]
        for name in ("aleatoric", "epistemic", "epistemic_fraction"):
            columns[name] = getattr(self, name)
        return columns

    def __repr__(self) -> str:
        """The first rows as a table."""
        columns, n = self.columns(), len(self.prediction)
        shown = [c for c in columns if c.startswith(("pred", "lower", "upper"))]
        shown.append("epistemic_fraction")
        rows = [shown] + [[f"{columns[c][i]:.4g}" for c in shown] for i in range(n)[:5]]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.rjust, row, widths)) for row in rows]
        levels = ", ".join(f"{level:g}" for level in self.confidence_level)
        head = f"Explanation of {counted(n, 'row')}"
        head += f", level {levels}" if levels else ""
        return "\n".join([head, *lines, *more_than(5, n)])


def explain(
    model: Any,
    X: ArrayLike,
    *,
    by_column: bool = False,
    background: Any = None,
    n_background: int = 16,
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
        Shapley values, from 2 · ``n_background`` · (p − 1) predictions for each row.
    background : array-like of shape (m, p), optional
        Rows that those of X are compared with, for example the calibration rows; they
        imply ``by_column``. By default the rows of X.
    n_background : int, default=16
        Background rows that are used, evenly spread over their widths. Their mean is
        the reference.
    **predict_params : dict
        Passed to ``predict_interval``, for example ``allow_infinite_bounds=True``;
        ``alpha``, which MAPIE 0.9 takes when it predicts.

    Returns
    -------
    Explanation
        Arrays by row, and ``by_column``, a
        :class:`~mapie_claps.diagnostics.ColumnContributions`, if it was asked for.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import ClapsRegressor, explain
    >>> X = np.linspace(-1, 1, 60)[:, None]
    >>> model = ClapsRegressor(n_members=2, max_steps=60, random_state=0)
    >>> why = explain(model.fit(X, X[:, 0]), X[-3:], by_column=True, background=X)
    >>> bool((why.epistemic_fraction < 1).all()), why.by_column.names
    (True, ('x0',))
    """
    why = _explain(model, X, predict_params)
    if not by_column and background is None:
        return why
    for name in ("weights", "partition"):
        value = predict_params.get(name)
        if value is not None and not callable(value):
            raise ValueError(
                f"Got {name} of single rows together with by_column=True, which also "
                f"predicts other rows. Calibrate with {name} as a function of X."
            )
    adds = column_contributions(
        lambda rows: _explain(model, rows, predict_params).width_parts,
        X,
        why.width_parts,
        background,
        n_background,
    )
    return replace(why, by_column=adds)


def _explain(model: Any, X: Any, params: dict[str, Any]) -> Explanation:
    """The interval and both parts of v of some rows, in one pass of each model."""
    # What calibrates loads MAPIE; numbers that were explained before do without.
    from ..conformal.calibrated import interval_parts

    found = interval_parts(model, X, **params)
    variance, noise = mean_variance(found.distributions), None
    lower, upper = found.bounds[:, 0], found.bounds[:, 1]
    if found.noise_bounds is not None:
        noise = found.noise_bounds[:, 1] - found.noise_bounds[:, 0]
    elif found.scaled:  # the width is in proportion to √v
        noise = (upper - lower) / variance.scale_ratio[:, None]
    levels = tuple(found.levels)
    return Explanation(found.points, lower, upper, levels, *variance, noise)


def mean_variance(of_models: Sequence[PredictiveDistribution]) -> PredictiveVariance:
    """Parts of v, as the mean over models."""
    return PredictiveVariance(*np.mean([rows.variance for rows in of_models], axis=0))


def models_of(model: Any, folds: bool = True) -> list[Any]:
    """Models that make the bounds; without folds, one that was fitted on all rows."""
    from ..conformal.calibrated import CalibratedRegressor
    from ..conformal.mapie import CalibratedMapie
    from ..conformal.scale_estimator import ClapsScaleEstimator

    if isinstance(model, CalibratedRegressor):
        return model.fitted_models if folds else model.fitted_models[:1]
    host = CalibratedMapie.of(model)
    if host is None:
        return [model]
    if isinstance(host.residual_estimator, ClapsScaleEstimator):
        return [host.residual_estimator.estimator]
    if folds and host.ensemble.uses_folds():
        return host.ensemble.fold_models
    return [host.ensemble.point_model]


def as_table(columns: dict[str, Any], index: Any = None) -> Any:
    """DataFrame, or the columns themselves where pandas is missing."""
    try:
        import pandas as pd
    except ImportError:
        return columns
    # Lists have an ``index`` too, which is a method.
    return pd.DataFrame(columns, index=None if callable(index) else index)
