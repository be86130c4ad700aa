"""Displays of what ``explain`` gives: intervals, coverage, widest rows, columns."""

from dataclasses import KW_ONLY, dataclass
from textwrap import fill
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import _safe_indexing

from .._validation import check_integer
from ..diagnostics.by_column import PARTS, counted
from ..diagnostics.explanation import Explanation, explain
from ..diagnostics.permuted_rows import columns_of
from ..diagnostics.tables import group_columns
from ._display import (
    ALEATORIC,
    EPISTEMIC,
    LACK,
    LEGEND,
    NOISE,
    NOMINAL,
    ROWS,
    ExplanationDisplay,
    column_of,
    stacked_bars,
)

MAX_BARS = 100  # more could not be told apart


@dataclass(eq=False, repr=False)
class IntervalDisplay(ExplanationDisplay):
    """Prediction intervals, with their two parts as bands or bars.

    The inner part is what noise alone would need, the outer what lack of data adds.
    Rows that differ in one column only, such as a grid, are drawn as bands over it.
    Rows of a table are drawn as bars, sorted by prediction or over a column: at most
    100 of them, evenly spread.

    Parameters
    ----------
    explanation : Explanation
        What :func:`~mapie_claps.explain` gave.
    X : array-like of shape (n, p) or (n,), optional
        Inputs of these rows.
    y : array-like of shape (n,), optional
        True values of the rows.
    level : int, default=0
        Position of the confidence level.
    feature : int or str, optional
        Column of numbers or dates on the horizontal axis, by position or name. If
        None, the only column, or, of several, the rows sorted by prediction.
    training_rows : tuple of array-like, optional
        x and y of points to draw.

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from mapie_claps import Explanation, PredictiveVariance
    >>> from mapie_claps.plots import IntervalDisplay
    >>> half, variance = np.ones((3, 1)), PredictiveVariance(np.ones(3), 3 * np.ones(3))
    >>> why = Explanation(np.zeros(3), -half, half, (0.9,), variance, half)
    >>> display = IntervalDisplay(why, np.arange(3)).plot(Figure().subplots())
    >>> display.ax_.get_title()
    '90 % prediction interval and why it is wide'
    """

    figsize = (8, 4.2)

    _: KW_ONLY
    feature: int | str | None = None
    training_rows: tuple[ArrayLike, ArrayLike] | None = None

    def _draw(self, ax: Any) -> None:
        title = f"{self._percent()} prediction interval and why it is wide"
        why, (x, xlabel, bars) = self.explanation, self._axis()
        order = np.argsort(x)
        if bars and len(order) > MAX_BARS:
            order = order[np.linspace(0, len(order) - 1, MAX_BARS).round().astype(int)]
        x = x[order]
        lower, upper = (e[order, self.level] for e in (why.lower, why.upper))
        infinite = ~np.isfinite(upper - lower)
        lower, upper = (np.where(infinite, np.nan, end) for end in (lower, upper))
        draw, lw = (ax.vlines, 2.5) if bars else (ax.fill_between, 0)
        if why.noise_width is None:
            draw(x, lower, upper, color=ALEATORIC, lw=lw, label="interval")
        else:
            # Both ends move towards the centre alike: bounds need not be symmetric.
            inner = self._parts()[0][order] / 2
            centre = (lower + upper) / 2
            draw(x, lower, upper, color=EPISTEMIC, lw=lw, label=LACK)
            ends = centre - inner, centre + inner
            draw(x, *ends, color=ALEATORIC, lw=lw, label=NOISE)
        line: Any = {"ls": "", "marker": "_", "ms": 4} if bars else {"lw": 1.2}
        ax.plot(x, why.prediction[order], color="black", label="prediction", **line)
        if self.training_rows is not None:
            points = [np.asarray(part).ravel() for part in self.training_rows]
            ax.plot(*points, ".", color=ROWS, ms=3, label="training rows")
        if self.y is not None:
            true = np.asarray(self.y)[order]
            ax.plot(x, true, ".", color=ROWS, ms=4, label="true value")
        if infinite.any():
            title += f"\n({infinite.sum()} of {len(x)} are infinite and not drawn)"
        ax.set(xlabel=xlabel, ylabel="y", title=title)
        ax.legend(**LEGEND)

    def _axis(self) -> tuple[Any, str, bool]:
        """Positions and name of the horizontal axis, and whether rows are bars."""
        several = self.X is None or len(columns_of(self.X)) > 1
        if self.feature is None and several:
            rank = np.argsort(np.argsort(self.explanation.prediction, kind="stable"))
            return rank, "rows, sorted by prediction", True
        name, values, alone = column_of(self.X, self.feature)
        if values.dtype.kind != "M":
            try:
                values = values.astype(np.float64)
            except (TypeError, ValueError):
                raise ValueError(
                    f"Got feature={name!r}, whose values are not numbers or dates (for "
                    f"example {values.flat[0]!r}). Leave feature out to sort the rows "
                    "by prediction, or use CoverageDisplay with groups."
                ) from None
        return values, name, not alone


@dataclass(eq=False, repr=False)
class CoverageDisplay(ExplanationDisplay):
    """Coverage and width by group, or along a feature cut into bins of equal count.

    Parameters
    ----------
    explanation, X, y, level
        As in :class:`IntervalDisplay`; y is needed, X if a feature is cut into bins.
    groups : array-like of shape (n,), optional
        Group of each row. If None, bins of a feature.
    feature : int or str, default=0
        Column to cut into bins, by position or name.
    n_bins : int, default=8
        Bins, of about the same number of rows.

    Attributes
    ----------
    table_ : dict of ndarray
        What is drawn: see :func:`~mapie_claps.diagnostics.summarise`.

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from mapie_claps import Explanation, PredictiveVariance
    >>> from mapie_claps.plots import CoverageDisplay
    >>> half, variance = np.ones((4, 1)), PredictiveVariance(np.ones(4), 3 * np.ones(4))
    >>> why = Explanation(np.zeros(4), -half, half, (0.9,), variance, half)
    >>> display = CoverageDisplay(why, y=[0, 3, 0, 0], groups=list("aabb"))
    >>> display.plot(Figure().subplots(2)).table_["coverage"]
    array([0.5, 1. ])
    """

    n_axes = 2
    figsize = (7, 5)

    _: KW_ONLY
    groups: ArrayLike | None = None
    feature: int | str = 0
    n_bins: int = 8

    def _draw(self, ax: Any) -> None:
        if self.y is None:
            raise ValueError("Got no y, without which there is no coverage. Pass y.")
        why, percent, name = self.explanation, self._percent(), "group"
        groups, n_bins = self.groups, None
        if groups is None:
            name, groups, _ = column_of(self.X, self.feature)
            n_bins = self.n_bins
        # The first group is all rows; each group has one entry per level.
        n_levels = len(why.confidence_level)
        chosen = slice(n_levels + self.level % n_levels, None, n_levels)
        columns = group_columns(why, self.y, groups, n_bins)
        self.table_ = table = {key: values[chosen] for key, values in columns.items()}
        found = table["coverage"]
        limits = found - table["coverage_low"], table["coverage_high"] - found
        style: Any = {"fmt": "o", "color": "black", "capsize": 3, "label": "coverage"}
        ax[0].errorbar(np.arange(len(found)), found, limits, **style)
        level = why.confidence_level[self.level]
        ax[0].axhline(level, color=NOMINAL, ls="--", lw=1, label=percent)
        ax[0].set_ylabel("coverage")
        ax[0].legend(**LEGEND)
        parts = table["aleatoric_width"], table["epistemic_width"]
        stacked_bars(ax[1], table["group"].tolist(), parts, horizontal=False)
        ax[0].set_xticks(ax[1].get_xticks(), ax[1].get_xticklabels())
        ax[1].set(xlabel=name, ylabel="mean width")


@dataclass(eq=False, repr=False)
class WidestRowsDisplay(ExplanationDisplay):
    """The rows with the widest intervals, each split into noise and lack of data.

    Bars say which columns make the rows wide if the explanation is by column, as with
    ``from_estimator(model, X, background=X_cal)``.

    Parameters
    ----------
    explanation, X, y, level
        As in :class:`IntervalDisplay`; rows of a pandas DataFrame are named by its
        index, y is not used.
    n_rows : int, default=10
        Number of rows to show; all if there are fewer.
    reasons : dict of int to str, optional
        Why rows are wide, by position, in words that are written on their bars; by
        default the sentences of an explanation by column.

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from mapie_claps import Explanation, PredictiveVariance
    >>> from mapie_claps.plots import WidestRowsDisplay
    >>> half, noise = np.array([[1.0], [2.0]]), np.full((2, 1), 2.0)
    >>> variance = PredictiveVariance(np.ones(2), np.array([0.0, 3.0]))
    >>> why = Explanation(np.zeros(2), -half, half, (0.9,), variance, noise)
    >>> ax = WidestRowsDisplay(why).plot(Figure().subplots()).ax_
    >>> [text.get_text() for text in ax.get_yticklabels()]
    ['row 1', 'row 0']
    """

    _: KW_ONLY
    n_rows: int = 10
    reasons: dict[int, str] | None = None

    @classmethod
    def _explained(
        cls, model: Any, X: Any, own: dict[str, Any], params: dict[str, Any]
    ) -> Explanation:
        """Columns are told apart for the rows that are drawn alone: it takes long."""
        background = params.pop("background", None)
        display = cls(explain(model, X, **params), X, **own)
        if background is not None:
            rows, level = display._widest(), display.level
            params |= {"background": background}
            adds: Any = explain(model, _safe_indexing(X, rows), **params).by_column
            own["reasons"] = {r: adds.sentence(i, level) for i, r in enumerate(rows)}
        return display.explanation

    def _widest(self) -> NDArray[np.intp]:
        check_integer("n_rows", self.n_rows, low=1, hint="Use 10.")
        width = self.explanation.width[:, self.level]
        return np.argsort(-width, kind="stable")[: self.n_rows]

    def _draw(self, ax: Any) -> None:
        percent, rows = self._percent(), self._widest()
        names = self.X.index[rows] if hasattr(self.X, "iloc") else rows
        parts = [part[rows] for part in self._parts()]
        stacked_bars(ax, [f"row {name}" for name in names], parts, horizontal=True)
        adds, reasons = self.explanation.by_column, self.reasons or {}
        if not reasons and adds is not None:
            reasons = {i: adds.sentence(i, self.level) for i in rows}
        for place, i in enumerate(rows if reasons else ()):
            _, _, causes = reasons[i].partition(": ")  # the bar is the width
            where: Any = {"xytext": (4, 0), "textcoords": "offset points"}
            causes = causes.replace("; ", "\n")
            ax.annotate(causes, (0, place), va="center", fontsize=7, **where)
        ax.invert_yaxis()
        ax.set_xlabel(f"width of the {percent} interval")


@dataclass(eq=False, repr=False)
class ColumnsDisplay(ExplanationDisplay):
    """What each column adds to noise and to lack of data.

    For one row the bars add up to the difference between its width and that of the
    reference. For many rows they are mean sizes without sign.

    Parameters
    ----------
    explanation, X, y, level
        As in :class:`IntervalDisplay`; by column, X and y are not used.
    row : int, optional
        Position of the row to draw; all rows together if None. Those with an infinite
        interval are left out.
    n_columns : int, default=10
        Columns to show, those of the largest contributions.

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from mapie_claps import ClapsRegressor, explain
    >>> from mapie_claps.plots import ColumnsDisplay
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> model = ClapsRegressor(n_members=2, max_steps=60, random_state=0)
    >>> why = explain(model.fit(X, X[:, 0]), X[:5], by_column=True, background=X)
    >>> ax = ColumnsDisplay(why, row=3).plot(Figure().subplots()).ax_
    >>> sorted(text.get_text()[:3] for text in ax.get_yticklabels())
    ['x0=', 'x1=']
    """

    _: KW_ONLY
    row: int | None = None
    n_columns: int = 10

    @classmethod
    def _explained(
        cls, model: Any, X: Any, own: dict[str, Any], params: dict[str, Any]
    ) -> Explanation:
        return explain(model, X, **{"by_column": True} | params)

    def _draw(self, ax: Any) -> None:
        check_integer("n_columns", self.n_columns, low=1, hint="Use 10.")
        adds = self.explanation.by_column
        if adds is None:
            raise ValueError(
                "Got an explanation without contributions of columns. Make it with "
                "explain(..., by_column=True)."
            )
        parts = np.stack([getattr(adds, part)[:, :, self.level] for part in PARTS])
        if self.row is None:
            parts, labels = np.abs(parts), list(adds.names)
            shown = parts[:, np.isfinite(parts).all(axis=(0, 2))]
            rows = counted(shown.shape[1], "row")
            title = f"Mean contribution of each column over {rows}"
            parts, what = shown.mean(axis=1), "mean size of what is added to"
        else:
            values = zip(adds.names, adds.values[self.row], strict=True)
            labels = [f"{name}={value}" for name, value in values]
            title, what = adds.sentence(self.row, self.level), "added to"
            parts = parts[:, self.row]
        order = np.argsort(-np.abs(parts).sum(axis=0), kind="stable")[: self.n_columns]
        place, height = np.arange(len(order)), 0.38
        for sign, part, colour, label in zip(
            (-1, 1), parts[:, order], (ALEATORIC, EPISTEMIC), (NOISE, LACK), strict=True
        ):
            at = place + sign * height / 2
            ax.barh(at, part, height, color=colour, label=label)
        ax.axvline(0, color=ROWS, lw=0.8)
        ax.set_yticks(place, [labels[j] for j in order])
        ax.invert_yaxis()
        width = "standard deviation"
        if adds.confidence_level:
            width = f"width of the {self._percent()} interval"
        ax.set_xlabel(f"{what} the {width},\ncompared with the reference")
        ax.set_title(fill(title, 60), fontsize=9)
        ax.legend(**LEGEND)
