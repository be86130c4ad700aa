"""Which columns make an interval wide: bars for one row, a summary for many."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._validation import check_integer
from ..conformal.contributions import PARTS, ColumnContributions, counted
from ..conformal.explanation import Explanation
from ..reasons.explain import explain
from ._display import Display
from ._intervals import LACK, NOISE
from ._style import ALEATORIC, EPISTEMIC, ROWS, Array, percent


@dataclass(repr=False, eq=False)
class ColumnsDisplay(Display):
    """What each column adds to noise and to lack of data.

    For one row the bars add up to the difference between its width and that of the
    reference. For many rows they are mean sizes without sign.

    Parameters
    ----------
    labels : list of str
        Columns, the largest contributions first.
    aleatoric, epistemic : ndarray of shape (n_columns,)
        Contributions of the columns.
    title : str
        Title of the plot.
    quantity : str
        What the columns contribute to, the label of the horizontal axis.

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
    >>> from mapie_claps.plots import ColumnsDisplay
    >>> display = ColumnsDisplay(
    ...     ["hour=17", "district=7"], np.array([9.0, 1.0]), np.array([0.5, 8.5]),
    ...     "row 3", "added to the width")
    >>> ax = display.plot(Figure().subplots()).ax_
    >>> [text.get_text() for text in ax.get_yticklabels()]
    ['hour=17', 'district=7']
    """

    figsize = (7, 4.2)

    labels: list[str]
    aleatoric: Array
    epistemic: Array
    title: str
    quantity: str

    @classmethod
    def from_estimator(
        cls,
        mapie: Any,
        X: ArrayLike,
        *,
        row: int | None = None,
        level: int = 0,
        n_columns: int = 10,
        ax: Any = None,
        **explain_params: Any,
    ) -> Self:
        """Explain rows by column, and draw one of them or all together.

        Parameters
        ----------
        mapie : object
            A calibrated MAPIE regressor or a fitted estimator, see
            :func:`~mapie_claps.explain`.
        X : array-like of shape (n, p)
            Rows to explain.
        row : int, optional
            Position of the row to draw; all rows together if None.
        level : int, default=0
            Position of the confidence level.
        n_columns : int, default=10
            Columns to show, those of the largest contributions.
        ax : matplotlib Axes, optional
            Axes to draw on.
        **explain_params : dict
            Passed to :func:`~mapie_claps.explain`, for example ``background``.

        Returns
        -------
        ColumnsDisplay
            The display.
        """
        why = explain(mapie, X, by_column=True, **explain_params)
        return cls.from_predictions(
            why, row=row, level=level, n_columns=n_columns, ax=ax
        )

    @classmethod
    def from_predictions(
        cls,
        explanation: Explanation,
        *,
        row: int | None = None,
        level: int = 0,
        n_columns: int = 10,
        ax: Any = None,
    ) -> Self:
        """Draw contributions that were computed before.

        Parameters
        ----------
        explanation : Explanation
            What :func:`~mapie_claps.explain` gave with ``by_column=True``.
        row : int, optional
            Position of the row to draw; all rows together if None.
        level : int, default=0
            Position of the confidence level.
        n_columns : int, default=10
            Columns to show, those of the largest contributions.
        ax : matplotlib Axes, optional
            Axes to draw on.

        Returns
        -------
        ColumnsDisplay
            The display.
        """
        check_integer("n_columns", n_columns, low=1, hint="Use 10.")
        adds = explanation.by_column
        if adds is None:
            raise ValueError(
                "Got an explanation without contributions of columns. Make it with "
                "explain(..., by_column=True)."
            )
        adds.check_position(row, level)
        if row is None:
            found = adds.summary(level)
            labels: list[str] = [str(name) for name in found["column"]]
            parts = [found[part] for part in PARTS]
            rows = counted(len(adds), "row")
            title = f"Mean contribution of each column over {rows}"
        else:
            labels = [
                f"{name}={value}"
                for name, value in zip(adds.names, adds.values[row], strict=True)
            ]
            parts = [getattr(adds, part)[row, :, level] for part in PARTS]
            title = adds.sentence(row, level)
        order = np.argsort(-np.abs(np.stack(parts)).sum(axis=0), kind="stable")
        order = order[:n_columns]
        quantity = _quantity(adds, level, row is None)
        aleatoric, epistemic = (part[order] for part in parts)
        shown = [labels[j] for j in order]
        return cls(shown, aleatoric, epistemic, title, quantity).plot(ax)

    def _draw(self, ax: Any) -> None:
        place = np.arange(len(self.labels))
        height = 0.38
        sides: list[tuple[NDArray[Any], float, str, str]] = [
            (self.aleatoric, -height / 2, ALEATORIC, NOISE),
            (self.epistemic, height / 2, EPISTEMIC, LACK),
        ]
        for values, shift, colour, label in sides:
            ax.barh(place + shift, values, height, color=colour, label=label)
        ax.axvline(0, color=ROWS, lw=0.8)
        ax.set_yticks(place, self.labels)
        ax.invert_yaxis()
        ax.set_xlabel(self.quantity)
        ax.set_title(self.title, fontsize=9, wrap=True)
        ax.legend(frameon=False, fontsize=9)


def _quantity(adds: ColumnContributions, level: int, many: bool) -> str:
    """Label of the horizontal axis."""
    what = "standard deviation"
    if adds.confidence_level:
        what = f"width of the {percent(adds.confidence_level[level])} interval"
    how = "mean size of what is added to" if many else "added to"
    return f"{how} the {what}, compared with the reference"
