"""The widest rows, and why they are wide."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import _safe_indexing

from .._validation import check_integer
from ..reasons.explain import explain
from ._display import Display, check_level, finite_bars
from ._intervals import LACK, NOISE
from ._style import ALEATORIC, EPISTEMIC, Array, percent


@dataclass(repr=False, eq=False)
class WidestRowsDisplay(Display):
    """The rows with the widest intervals, each split into noise and lack of data.

    Parameters
    ----------
    labels : list of str
        Names of the rows, widest first.
    aleatoric_width, epistemic_width : ndarray of shape (n,)
        Width that noise alone would need, and what lack of data adds.
    confidence_level : float
        Level of the intervals.
    reasons : list of str, optional
        Why each row is wide, in words that are written on its bar.

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
    >>> from mapie_claps.plots import WidestRowsDisplay
    >>> display = WidestRowsDisplay(["row 4"], np.ones(1), np.array([2.0]), 0.9)
    >>> ax = display.plot(Figure().subplots()).ax_
    >>> [text.get_text() for text in ax.get_yticklabels()]
    ['row 4']
    """

    figsize = (7, 3.8)

    labels: list[str]
    aleatoric_width: Array
    epistemic_width: Array
    confidence_level: float
    reasons: list[str] | None = None

    @classmethod
    def from_estimator(
        cls,
        mapie: Any,
        X: ArrayLike,
        *,
        n_rows: int = 10,
        level: int = 0,
        background: Any = None,
        ax: Any = None,
        **explain_params: Any,
    ) -> Self:
        """Draw the widest rows of a calibrated MAPIE regressor.

        Parameters
        ----------
        mapie : object
            A calibrated MAPIE regressor, see :func:`~mapie_claps.explain`.
        X : array-like of shape (n, p)
            Inputs. Rows of a pandas DataFrame are named by its index.
        n_rows : int, default=10
            Number of rows to show; all if there are fewer.
        level : int, default=0
            Position of the confidence level.
        background : array-like of shape (m, p), optional
            Rows to compare with, such as those of the calibration. With it the bars say
            which columns make the rows wide.
        ax : matplotlib Axes, optional
            Axes to draw on.
        **explain_params : dict
            Passed to :func:`~mapie_claps.explain`.

        Returns
        -------
        WidestRowsDisplay
            The display.
        """
        check_integer("n_rows", n_rows, low=1, hint="Use 10.")
        why = explain(mapie, X, **explain_params)
        level = check_level(why, level)
        order = np.argsort(-why.width[:, level], kind="stable")[:n_rows]
        names = getattr(X, "index", None) if hasattr(X, "iloc") else None
        labels = [f"row {i if names is None else names[i]}" for i in order]
        reasons = None
        if background is not None:
            widest = _safe_indexing(X, order)
            options = {"by_column": True, "background": background} | explain_params
            adds: Any = explain(mapie, widest, **options).by_column
            reasons = [adds.sentence(i, level) for i in range(len(order))]
        return cls(
            labels,
            why.aleatoric_width[order, level],
            why.epistemic_width[order, level],
            why.confidence_level[level],
            reasons,
        ).plot(ax)

    def _draw(self, ax: Any) -> None:
        place = np.arange(len(self.labels))
        labels, noise, lack = finite_bars(
            self.labels, self.aleatoric_width, self.epistemic_width
        )
        ax.barh(place, noise, color=ALEATORIC, label=NOISE)
        ax.barh(place, lack, left=noise, color=EPISTEMIC, label=LACK)
        for y, text in enumerate(self.reasons or ()):
            _, _, causes = text.partition(": ")  # the width is what the bar shows
            ax.annotate(
                causes,
                (0, y),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
            )
        ax.set_yticks(place, labels)
        ax.invert_yaxis()
        ax.set_xlabel(f"width of the {percent(self.confidence_level)} interval")
        ax.legend(
            frameon=False,
            fontsize=9,
            ncols=2,
            loc="lower center",
            bbox_to_anchor=(0.5, 1.0),
        )
