"""Intervals over one input, and widths split into their parts."""

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from ..explanation import Explanation, explain
from ._style import ALEATORIC, EPISTEMIC, ROWS, Array, new_axes, percent

NOISE, LACK = "aleatoric: noise", "epistemic: lack of data"


def _check_level(why: Explanation, level: int) -> None:
    if not -len(why.confidence_level) <= level < len(why.confidence_level):
        raise ValueError(
            f"Got level={level!r}, but the intervals have "
            f"{len(why.confidence_level)} levels. Pass the position of one of them; a "
            "fitted estimator that is not calibrated has none."
        )


class IntervalDisplay:
    """Prediction interval over one input, with its two parts as bands.

    The inner band is what noise alone would need, the outer what lack of data adds.

    Parameters
    ----------
    x : ndarray of shape (n,)
        Input on the horizontal axis, in any order.
    explanation : Explanation
        What :func:`~mapie_claps.explain` gave for these rows.
    level : int, default=0
        Position of the confidence level to draw.

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

    def __init__(self, x: Array, explanation: Explanation, *, level: int = 0) -> None:
        self.x = x
        self.explanation = explanation
        self.level = level

    @classmethod
    def from_estimator(
        cls,
        mapie: Any,
        X: ArrayLike,
        *,
        feature: int = 0,
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
            Inputs, for example a grid over one column.
        feature : int, default=0
            Column on the horizontal axis.
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
        x = np.asarray(X)[:, feature]
        return cls.from_predictions(
            x, why, level=level, training_rows=training_rows, ax=ax
        )

    @classmethod
    def from_predictions(
        cls,
        x: ArrayLike,
        explanation: Explanation,
        *,
        level: int = 0,
        training_rows: tuple[ArrayLike, ArrayLike] | None = None,
        ax: Any = None,
    ) -> Self:
        """Draw intervals that were explained before.

        Parameters
        ----------
        x : array-like of shape (n,)
            Input on the horizontal axis.
        explanation : Explanation
            What :func:`~mapie_claps.explain` gave.
        level : int, default=0
            Position of the confidence level.
        training_rows : tuple of array-like, optional
            x and y of points to draw.
        ax : matplotlib Axes, optional
            Axes to draw on.

        Returns
        -------
        IntervalDisplay
            The display.
        """
        _check_level(explanation, level)
        x = np.asarray(x, dtype=np.float64)
        return cls(x, explanation, level=level).plot(ax, training_rows=training_rows)

    def plot(
        self,
        ax: Any = None,
        *,
        training_rows: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> Self:
        """Draw.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Axes to draw on; a new figure if None.
        training_rows : tuple of array-like, optional
            x and y of points to draw.

        Returns
        -------
        IntervalDisplay
            The display.
        """
        ax = new_axes(ax, figsize=(8, 4.2))
        why, order = self.explanation, np.argsort(self.x)
        x, mu = self.x[order], why.prediction[order]
        lower, upper = why.lower[order, self.level], why.upper[order, self.level]
        # Both ends move towards the centre alike: bounds need not be symmetric.
        share = 1 / why.variance.scale_ratio[order]
        centre = (lower + upper) / 2
        inner = share * (upper - lower) / 2
        ax.fill_between(x, lower, upper, color=EPISTEMIC, lw=0, label=LACK)
        ax.fill_between(
            x, centre - inner, centre + inner, color=ALEATORIC, lw=0, label=NOISE
        )
        ax.plot(x, mu, color="black", lw=1.2, label="prediction")
        if training_rows is not None:
            ax.plot(
                np.asarray(training_rows[0]).ravel(),
                np.asarray(training_rows[1]),
                ".",
                color=ROWS,
                ms=3,
                label="training rows",
            )
        level = why.confidence_level[self.level]
        ax.set(
            xlabel="x",
            ylabel="y",
            title=f"{percent(level)} prediction interval and why it is wide",
        )
        ax.legend(frameon=False, fontsize=9)
        self.ax_, self.figure_ = ax, ax.figure
        return self


class WidthDisplay:
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

    def __init__(
        self, aleatoric_width: Array, epistemic_width: Array, confidence_level: float
    ) -> None:
        self.aleatoric_width = aleatoric_width
        self.epistemic_width = epistemic_width
        self.confidence_level = confidence_level

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
        _check_level(why, level)
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

    def plot(self, ax: Any = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Axes to draw on; a new figure if None.

        Returns
        -------
        WidthDisplay
            The display.
        """
        ax = new_axes(ax, figsize=(7, 3.8))
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
        self.ax_, self.figure_ = ax, ax.figure
        return self
