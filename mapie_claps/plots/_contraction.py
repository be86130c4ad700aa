"""The two parts as training rows are added."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone

from ..conformal.parts import parts_of
from ._display import Display
from ._style import ALEATORIC, EPISTEMIC, Array


@dataclass(repr=False, eq=False)
class ContractionDisplay(Display):
    """Mean aleatoric and epistemic standard deviation against training rows.

    Parameters
    ----------
    n_rows : ndarray of shape (m,)
        Numbers of training rows.
    aleatoric, epistemic : ndarray of shape (m,)
        Mean variances over the rows that they were evaluated on.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Axes with the plot.
    figure_ : matplotlib Figure
        Its figure.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from mapie_claps.plots import ContractionDisplay
    >>> display = ContractionDisplay.from_predictions(
    ...     [100, 400], [1.0, 1.0], [0.4, 0.1], ax=Figure().subplots())
    >>> display.ax_.get_xscale()
    'log'
    """

    figsize = (6, 4)

    n_rows: Array
    aleatoric: Array
    epistemic: Array

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: ArrayLike,
        y: ArrayLike,
        X_test: ArrayLike,
        *,
        sizes: Sequence[int],
        ax: Any = None,
    ) -> Self:
        """Fit clones on growing numbers of rows and draw their parts.

        Parameters
        ----------
        estimator : estimator
            With ``predict_variance``, or a ``Pipeline`` that ends in one.
        X : array-like of shape (n, p)
            Training inputs; each clone takes the first rows.
        y : array-like of shape (n,)
            Training targets.
        X_test : array-like of shape (m, p)
            Rows on which the parts are averaged.
        sizes : sequence of int
            Numbers of rows to fit on.
        ax : matplotlib Axes, optional
            Axes to draw on.

        Returns
        -------
        ContractionDisplay
            The display.
        """
        n = len(np.asarray(y))
        if max(sizes) > n:
            raise ValueError(
                f"Got sizes up to {max(sizes)}, but X has {n} rows. Pass sizes of at "
                f"most {n}."
            )
        parts = []
        for size in sizes:
            fitted = clone(estimator).fit(X[:size], y[:size])  # type: ignore[index]
            found = parts_of(fitted, X_test)
            parts.append((found.aleatoric.mean(), found.epistemic.mean()))
        aleatoric, epistemic = np.array(parts).T
        return cls.from_predictions(sizes, aleatoric, epistemic, ax=ax)

    @classmethod
    def from_predictions(
        cls,
        n_rows: ArrayLike,
        aleatoric: ArrayLike,
        epistemic: ArrayLike,
        *,
        ax: Any = None,
    ) -> Self:
        """Draw parts that were computed before.

        Parameters
        ----------
        n_rows : array-like of shape (m,)
            Numbers of training rows.
        aleatoric, epistemic : array-like of shape (m,)
            Mean variances.
        ax : matplotlib Axes, optional
            Axes to draw on.

        Returns
        -------
        ContractionDisplay
            The display.
        """
        arrays = (
            np.asarray(a, dtype=np.float64) for a in (n_rows, aleatoric, epistemic)
        )
        return cls(*arrays).plot(ax)

    def _draw(self, ax: Any) -> None:
        for values, colour, marker, label in (
            (self.aleatoric, ALEATORIC, "o", "aleatoric: noise stays"),
            (self.epistemic, EPISTEMIC, "s", "epistemic: lack of data shrinks"),
        ):
            ax.plot(
                self.n_rows, np.sqrt(values), marker + "-", color=colour, label=label
            )
        ax.set(
            xscale="log",
            yscale="log",
            xlabel="training rows",
            ylabel="standard deviation (root of the mean variance)",
        )
        ax.legend(frameon=False, fontsize=9)
