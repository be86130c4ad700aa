"""Coverage: along a feature or by group, and over confidence levels."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import metrics
from ..conformal.explanation import Explanation
from ..reasons.coverage import coverage_limits, group_columns
from ..reasons.explain import explain
from ._display import (
    Display,
    check_level,
    column_of,
    draw_coverage,
    finite_bars,
)
from ._style import ALEATORIC, EPISTEMIC, NOMINAL, Array


@dataclass(repr=False, eq=False)
class CoverageDisplay(Display):
    """Coverage and width by group, or along a feature cut into bins of equal count.

    Parameters
    ----------
    labels : list of str
        Groups.
    coverage : ndarray of shape (n_groups,)
        Coverage of each.
    limits : ndarray of shape (n_groups, 2)
        95 % binomial interval of each coverage.
    aleatoric_width, epistemic_width : ndarray of shape (n_groups,)
        Mean parts of the width.
    confidence_level : float
        Nominal level.
    xlabel : str, default="group"
        What the groups are.

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
    >>> from mapie_claps import Explanation, PredictiveVariance
    >>> from mapie_claps.plots import CoverageDisplay
    >>> ones = np.ones(4)
    >>> why = Explanation(0 * ones, -2 * ones[:, None], 2 * ones[:, None], (0.9,),
    ...                   PredictiveVariance(ones, ones))
    >>> display = CoverageDisplay.from_predictions(
    ...     why, [0, 3, 0, 0], groups=["a", "a", "b", "b"], ax=Figure().subplots(2))
    >>> display.labels, display.coverage
    (['a', 'b'], array([0.5, 1. ]))
    """

    n_axes = 2
    figsize = (7, 5)

    labels: list[str]
    coverage: Array
    limits: Array
    aleatoric_width: Array
    epistemic_width: Array
    confidence_level: float
    xlabel: str = "group"

    @classmethod
    def from_estimator(
        cls,
        mapie: Any,
        X: ArrayLike,
        y: ArrayLike,
        *,
        groups: ArrayLike | None = None,
        feature: int | str = 0,
        n_bins: int = 8,
        level: int = 0,
        ax: Any = None,
        **explain_params: Any,
    ) -> Self:
        """Draw a calibrated MAPIE regressor on test rows.

        Parameters
        ----------
        mapie : object
            A calibrated MAPIE regressor, see :func:`~mapie_claps.explain`.
        X : array-like of shape (n, p)
            Test inputs.
        y : array-like of shape (n,)
            Test targets.
        groups : array-like of shape (n,), optional
            Group of each row. If None, bins of a feature.
        feature : int or str, default=0
            Column to cut into bins, by position or, of a DataFrame, by name.
        n_bins : int, default=8
            Bins, of about the same number of rows.
        level : int, default=0
            Position of the confidence level.
        ax : array of two matplotlib Axes, optional
            Axes to draw on.
        **explain_params : dict
            Passed to :func:`~mapie_claps.explain`.

        Returns
        -------
        CoverageDisplay
            The display.
        """
        why = explain(mapie, X, **explain_params)
        if groups is not None:
            return cls.from_predictions(why, y, groups=groups, level=level, ax=ax)
        name, values = column_of(X, feature)
        labels, bins = _bins(values, n_bins)
        display = cls._of_groups(why, y, bins, level)
        display.labels = [labels[int(j)] for j in display.labels]
        display.xlabel = name
        return display.plot(ax)

    @classmethod
    def from_predictions(
        cls,
        explanation: Explanation,
        y: ArrayLike,
        *,
        groups: ArrayLike,
        level: int = 0,
        ax: Any = None,
    ) -> Self:
        """Draw intervals that were explained before.

        Parameters
        ----------
        explanation : Explanation
            What :func:`~mapie_claps.explain` gave.
        y : array-like of shape (n,)
            Targets.
        groups : array-like of shape (n,)
            Group of each row.
        level : int, default=0
            Position of the confidence level.
        ax : array of two matplotlib Axes, optional
            Axes to draw on.

        Returns
        -------
        CoverageDisplay
            The display.
        """
        return cls._of_groups(explanation, y, np.asarray(groups), level).plot(ax)

    @classmethod
    def _of_groups(
        cls, why: Explanation, y: ArrayLike, labels: NDArray[Any], level: int
    ) -> Self:
        """Coverage and widths by group, not yet drawn."""
        level = check_level(why, level)
        columns = group_columns(why, np.asarray(y), labels, 0.95)
        # The first group is all rows; each group has one entry per level.
        n_levels = len(why.confidence_level)
        chosen = slice(n_levels + level, None, n_levels)
        names = columns["group"][chosen].tolist()
        mean = [
            [part[labels == name, level].mean() for name in names]
            for part in (why.aleatoric_width, why.epistemic_width)
        ]
        limits = np.stack([columns["coverage_low"], columns["coverage_high"]], axis=1)
        return cls(
            [str(name) for name in names],
            columns["coverage"][chosen],
            limits[chosen],
            np.array(mean[0]),
            np.array(mean[1]),
            why.confidence_level[level],
        )

    def _draw(self, ax: Any) -> None:
        x = np.arange(len(self.labels))
        draw_coverage(ax[0], self.coverage, self.limits, self.confidence_level)
        labels, noise, lack = finite_bars(
            self.labels, self.aleatoric_width, self.epistemic_width
        )
        style = {"edgecolor": "black", "lw": 0.6}
        ax[1].bar(x, noise, color=ALEATORIC, label="noise", **style)
        ax[1].bar(x, lack, bottom=noise, color=EPISTEMIC, label="lack of data", **style)
        ax[1].set_ylabel("mean width")
        ax[1].legend(frameon=False, fontsize=9)
        ax[1].set_xlabel(self.xlabel)
        for each in ax:
            each.set_xticks(x, labels)


def _bins(x: Array, n_bins: int) -> tuple[list[str], NDArray[np.intp]]:
    """Names of the bins, and the bin of each row."""
    edges = np.unique(np.quantile(x, np.linspace(0, 1, n_bins + 1)))
    bins: NDArray[np.intp] = np.searchsorted(edges[1:-1], x, side="right")
    names = [f"{a:.2g}…{b:.2g}" for a, b in pairwise(edges)]
    return names or [f"{edges[0]:.2g}"], bins


@dataclass(repr=False, eq=False)
class CalibrationLevelsDisplay(Display):
    """Coverage against the confidence level, for several levels.

    Parameters
    ----------
    confidence_levels : ndarray of shape (n_levels,)
        Nominal levels.
    coverage : ndarray of shape (n_levels,)
        Coverage of each.
    limits : ndarray of shape (n_levels, 2)
        95 % binomial interval of each coverage.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Axes with the plot.
    figure_ : matplotlib Figure
        Its figure.

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from mapie_claps.plots import CalibrationLevelsDisplay
    >>> bounds = np.array([[[-1.0, -3.0], [1.0, 3.0]]] * 2)
    >>> display = CalibrationLevelsDisplay.from_predictions(
    ...     bounds, [0.0, 2.0], [0.5, 0.9], ax=Figure().subplots())
    >>> display.coverage
    array([0.5, 1. ])
    """

    figsize = (4.6, 4.6)

    confidence_levels: Array
    coverage: Array
    limits: Array

    @classmethod
    def from_estimator(
        cls,
        mapie: Any,
        X: ArrayLike,
        y: ArrayLike,
        *,
        ax: Any = None,
        **explain_params: Any,
    ) -> Self:
        """Draw a MAPIE regressor that was calibrated for several levels.

        Parameters
        ----------
        mapie : object
            A calibrated MAPIE regressor, see :func:`~mapie_claps.explain`.
        X : array-like of shape (n, p)
            Test inputs.
        y : array-like of shape (n,)
            Test targets.
        ax : matplotlib Axes, optional
            Axes to draw on.
        **explain_params : dict
            Passed to :func:`~mapie_claps.explain`.

        Returns
        -------
        CalibrationLevelsDisplay
            The display.
        """
        why = explain(mapie, X, **explain_params)
        bounds = np.stack([why.lower, why.upper], axis=1)
        return cls.from_predictions(bounds, y, why.confidence_level, ax=ax)

    @classmethod
    def from_predictions(
        cls,
        y_interval: ArrayLike,
        y: ArrayLike,
        confidence_levels: ArrayLike,
        *,
        ax: Any = None,
    ) -> Self:
        """Draw intervals that were computed before.

        Parameters
        ----------
        y_interval : array-like of shape (n, 2, n_levels)
            What MAPIE's ``predict_interval`` returned.
        y : array-like of shape (n,)
            Targets.
        confidence_levels : array-like of shape (n_levels,)
            Levels of the intervals.
        ax : matplotlib Axes, optional
            Axes to draw on.

        Returns
        -------
        CalibrationLevelsDisplay
            The display.
        """
        found = metrics.coverage(y, y_interval)
        limits = coverage_limits(found, len(np.asarray(y)))
        levels = np.asarray(confidence_levels, dtype=np.float64)
        return cls(levels, found, limits).plot(ax)

    def _draw(self, ax: Any) -> None:
        error = np.abs(self.limits.T - self.coverage)
        ax.plot([0, 1], [0, 1], "--", color=NOMINAL, lw=1, label="nominal")
        ax.errorbar(
            self.confidence_levels,
            self.coverage,
            error,
            fmt="o-",
            color="black",
            capsize=3,
            label="coverage, 95 % binomial interval",
        )
        ax.set(xlabel="confidence level", ylabel="coverage", xlim=(0, 1), ylim=(0, 1))
        ax.legend(frameon=False, fontsize=9, loc="upper left")
