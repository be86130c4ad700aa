"""Several methods on the same rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from .. import metrics
from ..reasons.coverage import coverage_limits
from ._display import Display, draw_coverage
from ._style import METHODS, Array


@dataclass(repr=False, eq=False)
class ComparisonDisplay(Display):
    """Coverage, with its exact binomial interval, and mean width of several methods.

    Parameters
    ----------
    names : list of str
        Methods.
    coverage, width, score : ndarray of shape (n_methods,)
        Coverage, mean width and interval score of each.
    limits : ndarray of shape (n_methods, 2)
        95 % binomial interval of each coverage.
    confidence_level : float
        Nominal level.

    Attributes
    ----------
    ax_ : ndarray of two matplotlib Axes
        Coverage above, width below.
    figure_ : matplotlib Figure
        Their figure.

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from mapie_claps.plots import ComparisonDisplay
    >>> narrow = np.array([[-1.0, 1.0], [-1.0, 1.0]])
    >>> display = ComparisonDisplay.from_predictions(
    ...     {"narrow": narrow, "wide": 3 * narrow}, [0.0, 2.0], 0.9,
    ...     ax=Figure().subplots(2))
    >>> display.coverage, display.width
    (array([0.5, 1. ]), array([2., 6.]))
    """

    n_axes = 2
    figsize = (7, 5)

    names: list[str]
    coverage: Array
    width: Array
    score: Array
    limits: Array
    confidence_level: float

    @classmethod
    def from_estimator(
        cls,
        methods: Mapping[str, Any],
        X: ArrayLike,
        y: ArrayLike,
        confidence_level: float,
        *,
        ax: Any = None,
    ) -> Self:
        """Draw calibrated MAPIE (1.x) regressors of one level.

        Parameters
        ----------
        methods : mapping of str to object
            Calibrated MAPIE regressors by name.
        X : array-like of shape (n, p)
            Test inputs.
        y : array-like of shape (n,)
            Test targets.
        confidence_level : float
            Level that all were made with.
        ax : array of two matplotlib Axes, optional
            Axes to draw on.

        Returns
        -------
        ComparisonDisplay
            The display.
        """
        found = {name: mapie.predict_interval(X)[1] for name, mapie in methods.items()}
        return cls.from_predictions(found, y, confidence_level, ax=ax)

    @classmethod
    def from_predictions(
        cls,
        intervals: Mapping[str, ArrayLike],
        y: ArrayLike,
        confidence_level: float,
        *,
        ax: Any = None,
    ) -> Self:
        """Draw intervals that were computed before.

        Parameters
        ----------
        intervals : mapping of str to array-like of shape (n, 2) or (n, 2, 1)
            Bounds by name of the method.
        y : array-like of shape (n,)
            Targets.
        confidence_level : float
            Nominal level.
        ax : array of two matplotlib Axes, optional
            Axes to draw on.

        Returns
        -------
        ComparisonDisplay
            The display.
        """
        if not intervals:
            raise ValueError("Got no methods to compare. Name at least one.")
        found = np.array([metrics.coverage(y, b)[0] for b in intervals.values()])
        width = np.array([metrics.mean_width(b)[0] for b in intervals.values()])
        score = np.array(
            [
                metrics.interval_score(y, b, confidence_level)[0]
                for b in intervals.values()
            ]
        )
        limits = coverage_limits(found, len(np.asarray(y)))
        names = list(intervals)
        return cls(names, found, width, score, limits, confidence_level).plot(ax)

    def _draw(self, ax: Any) -> None:
        x = np.arange(len(self.names))
        colours = [METHODS[i % len(METHODS)] for i in x]
        draw_coverage(ax[0], self.coverage, self.limits, self.confidence_level)
        bars = ax[1].bar(x, self.width, color=colours, edgecolor="black", lw=0.6)
        ax[1].bar_label(
            bars,
            [f"{w:.3g} ({s:.3g})" for w, s in zip(self.width, self.score, strict=True)],
        )
        ax[1].margins(y=0.15)
        ax[1].set_ylabel("mean width (interval score)")
        for each in ax:
            each.set_xticks(x, self.names)
