"""v → MAPIE's own residual-normalised score: ``ClapsScaleEstimator``."""

from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from .distribution import distribution_of
from .mapie import RESIDUAL_SCORE_CLIP


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

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Predict √v(x), (n,), in units of y."""
        check_is_fitted(self)
        std = distribution_of(self.estimator, X).std
        if len(std) and std.min() < RESIDUAL_SCORE_CLIP:
            raise ValueError(
                f"Got a scale of {float(std.min())!r}, but MAPIE's "
                f"ResidualNormalisedScore clips it at {RESIDUAL_SCORE_CLIP} when "
                "calibrating and not when predicting, which ruins the coverage. Fit on "
                "y multiplied by a constant, or use ClapsScore."
            )
        return std

    @property
    def n_features_in_(self) -> int:
        """Number of columns that the wrapped estimator was fitted on."""
        n_features: int = self.estimator.n_features_in_
        return n_features

    def __sklearn_is_fitted__(self) -> bool:
        check_is_fitted(self.estimator)
        return True

    def __sklearn_clone__(self) -> Self:
        # A clone of the wrapped estimator would be unfitted, hence useless.
        return self
