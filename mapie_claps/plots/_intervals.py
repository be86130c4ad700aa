"""Intervals over one input, and widths split into their parts."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from ..conformal.explanation import Explanation
from ..reasons.explain import explain
from ._display import Display, axis_values, check_level, column_of, is_curve
from ._style import ALEATORIC, EPISTEMIC, ROWS, Array, percent

NOISE, LACK = "aleatoric: noise", "epistemic: lack of data"
MAX_BARS = 100  # more could not be told apart


@dataclass(repr=False, eq=False)
class IntervalDisplay(Display):
    """Prediction intervals, with their two parts as bands or bars.

    The inner part is what noise alone would need, the outer what lack of data adds.
    Rows that differ in one column only, such as a grid, are drawn as bands over it.
    Rows of a table are drawn as bars, sorted by prediction or over a column: at most
    100 of them, evenly spread.

    Parameters
    ----------
    x : ndarray of shape (n,)
        Numbers or dates on the horizontal axis, in any order.
    explanation : Explanation
        What :func:`~mapie_claps.explain` gave for these rows.
    level : int, default=0
        Position of the confidence level to draw.
    training_rows : tuple of array-like, optional
        x and y of points to draw.
    xlabel : str, default="x"
        Name of the input.
    y : array-like of shape (n,), optional
        True values of the rows.
    bars : bool, default=False
        Whether to draw one bar per row in place of bands.

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
    >>> from mapie_claps import Explanation, PredictiveVariance
    >>> from mapie_claps.plots import IntervalDisplay
    >>> ones = np.ones(3)
    >>> why = Explanation(0 * ones, -2 * ones[:, None], 2 * ones[:, None], (0.9,),
    ...                   PredictiveVariance(ones, ones))
    >>> display = IntervalDisplay.from_predictions(
    ...     np.arange(3), why, ax=Figure().subplots())
    >>> display.ax_.get_title()
    '90 % prediction interval and why it is wide'
    """

    figsize = (8, 4.2)

    x: Array
    explanation: Explanation
    _: KW_ONLY
    level: int = 0
    training_rows: tuple[ArrayLike, ArrayLike] | None = None
    xlabel: str = "x"
    y: ArrayLike | None = None
    bars: bool = False

    @classmethod
    def from_estimator(
        cls,
        mapie: Any,
        X: ArrayLike,
        *,
        feature: int | str | None = None,
        y: ArrayLike | None = None,
        level: int = 0,
        training_rows: tuple[ArrayLike, ArrayLike] | None = None,
        ax: Any = None,
        **explain_params: Any,
    ) -> Self:
        """Draw the intervals of a calibrated MAPIE regressor.

        Parameters
        ----------
        mapie : object
            A calibrated MAPIE regressor, see :func:`~mapie_claps.explain`.
        X : array-like of shape (n, p)
            Inputs: rows of a table, or a grid over one column.
        feature : int or str, optional
            Column on the horizontal axis, by position or, of a DataFrame, by name. If
            None, the only column, or, of several, the rows sorted by prediction.
        y : array-like of shape (n,), optional
            True values of the rows.
        level : int, default=0
            Position of the confidence level.
        training_rows : tuple of array-like, optional
            x and y of points to draw.
        ax : matplotlib Axes, optional
            Axes to draw on.
        **explain_params : dict
            Passed to :func:`~mapie_claps.explain`.

        Returns
        -------
        IntervalDisplay
            The display.
        """
        why = explain(mapie, X, **explain_params)
        x: Any
        bars, xlabel = True, "rows, sorted by prediction"
        if feature is None and np.shape(X)[1] > 1:
            x = np.argsort(np.argsort(why.prediction, kind="stable"))
        else:
            name, x = column_of(X, feature or 0)
            bars = not is_curve(X, name, feature if isinstance(feature, int) else 0)
            xlabel = name if hasattr(X, "columns") else "x"
        return cls.from_predictions(
            x,
            why,
            level=level,
            training_rows=training_rows,
            xlabel=xlabel,
            y=y,
            bars=bars,
            ax=ax,
        )

    @classmethod
    def from_predictions(
        cls,
        x: ArrayLike,
        explanation: Explanation,
        *,
        level: int = 0,
        training_rows: tuple[ArrayLike, ArrayLike] | None = None,
        xlabel: str = "x",
        y: ArrayLike | None = None,
        bars: bool = False,
        ax: Any = None,
    ) -> Self:
        """Draw intervals that were explained before.

        Parameters
        ----------
        x : array-like of shape (n,)
            Numbers or dates on the horizontal axis.
        explanation : Explanation
            What :func:`~mapie_claps.explain` gave.
        level : int, default=0
            Position of the confidence level.
        training_rows : tuple of array-like, optional
            x and y of points to draw.
        xlabel : str, default="x"
            Name of the input.
        y : array-like of shape (n,), optional
            True values of the rows.
        bars : bool, default=False
            Whether to draw one bar per row in place of bands.
        ax : matplotlib Axes, optional
            Axes to draw on.

        Returns
        -------
        IntervalDisplay
            The display.
        """
        return cls(
            axis_values(xlabel, x),
            explanation,
            level=check_level(explanation, level),
            training_rows=training_rows,
            xlabel=xlabel,
            y=y,
            bars=bars,
        ).plot(ax)

    def _draw(self, ax: Any) -> None:
        why, order = self.explanation, np.argsort(self.x)
        if self.bars and len(order) > MAX_BARS:
            order = order[np.linspace(0, len(order) - 1, MAX_BARS).round().astype(int)]
        x, mu = self.x[order], why.prediction[order]
        lower, upper = why.lower[order, self.level], why.upper[order, self.level]
        infinite = ~np.isfinite(upper - lower)
        lower, upper = (np.where(infinite, np.nan, end) for end in (lower, upper))
        # Both ends move towards the centre alike: bounds need not be symmetric.
        centre = (lower + upper) / 2
        if why.scaled:
            inner = why.aleatoric_width[order, self.level] / 2
        else:  # parts of v, which did not make the width
            inner = (upper - lower) / 2 / why.variance.scale_ratio[order]
        fill = ax.vlines if self.bars else ax.fill_between
        lw = 2.5 if self.bars else 0
        fill(x, lower, upper, color=EPISTEMIC, lw=lw, label=LACK)
        fill(x, centre - inner, centre + inner, color=ALEATORIC, lw=lw, label=NOISE)
        line = {"ls": "", "marker": "_", "ms": 4} if self.bars else {"lw": 1.2}
        ax.plot(x, mu, color="black", label="prediction", **line)
        if self.training_rows is not None:
            points = [np.asarray(part).ravel() for part in self.training_rows]
            ax.plot(*points, ".", color=ROWS, ms=3, label="training rows")
        if self.y is not None:
            true = np.asarray(self.y)[order]
            ax.plot(x, true, ".", color=ROWS, ms=4, label="true value")
        level = why.confidence_level[self.level]
        title = f"{percent(level)} prediction interval and why it is wide"
        if infinite.any():
            title += f"\n({infinite.sum()} of {len(x)} are infinite and not drawn)"
        ax.set(xlabel=self.xlabel, ylabel="y", title=title)
        ax.legend(frameon=False, fontsize=9)


@dataclass(repr=False, eq=False)
class WidthDisplay(Display):
    """Widths of all rows, sorted, split into noise and lack of data.

    Parameters
    ----------
    aleatoric_width, epistemic_width : ndarray of shape (n,)
        Width that noise alone would need, and what lack of data adds.
    confidence_level : float
        Level of the intervals.

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
    >>> from mapie_claps.plots import WidthDisplay
    >>> display = WidthDisplay.from_predictions(
    ...     np.array([1.0, 2.0]), np.array([0.5, 0.1]), 0.9, ax=Figure().subplots())
    >>> display.ax_.get_ylabel()
    'width of the 90 % interval'
    """

    figsize = (7, 3.8)

    aleatoric_width: Array
    epistemic_width: Array
    confidence_level: float

    @classmethod
    def from_estimator(
        cls,
        mapie: Any,
        X: ArrayLike,
        *,
        level: int = 0,
        ax: Any = None,
        **explain_params: Any,
    ) -> Self:
        """Draw the widths of a calibrated MAPIE regressor.

        Parameters
        ----------
        mapie : object
            A calibrated MAPIE regressor, see :func:`~mapie_claps.explain`.
        X : array-like of shape (n, p)
            Inputs.
        level : int, default=0
            Position of the confidence level.
        ax : matplotlib Axes, optional
            Axes to draw on.
        **explain_params : dict
            Passed to :func:`~mapie_claps.explain`.

        Returns
        -------
        WidthDisplay
            The display.
        """
        why = explain(mapie, X, **explain_params)
        level = check_level(why, level)
        return cls.from_predictions(
            why.aleatoric_width[:, level],
            why.epistemic_width[:, level],
            why.confidence_level[level],
            ax=ax,
        )

    @classmethod
    def from_predictions(
        cls,
        aleatoric_width: ArrayLike,
        epistemic_width: ArrayLike,
        confidence_level: float,
        *,
        ax: Any = None,
    ) -> Self:
        """Draw widths that were computed before.

        Parameters
        ----------
        aleatoric_width, epistemic_width : array-like of shape (n,)
            The parts, as :class:`~mapie_claps.Explanation` gives them.
        confidence_level : float
            Level of the intervals.
        ax : matplotlib Axes, optional
            Axes to draw on.

        Returns
        -------
        WidthDisplay
            The display.
        """
        parts = np.asarray(aleatoric_width), np.asarray(epistemic_width)
        return cls(*parts, confidence_level).plot(ax)

    def _draw(self, ax: Any) -> None:
        total = self.aleatoric_width + self.epistemic_width
        order = np.argsort(total)
        share = (np.arange(len(total)) + 0.5) / len(total)
        noise = self.aleatoric_width[order]
        ax.fill_between(share, 0, noise, color=ALEATORIC, lw=0, label=NOISE)
        ax.fill_between(share, noise, total[order], color=EPISTEMIC, lw=0, label=LACK)
        ax.set(
            xlabel="share of rows, narrowest first",
            ylabel=f"width of the {percent(self.confidence_level)} interval",
            xlim=(0, 1),
            ylim=(0, None),
        )
        ax.legend(frameon=False, fontsize=9, loc="upper left")
