"""why → picture: plots in the style of scikit-learn's displays (extra ``plot``).

Every display is made by ``from_estimator``, or of an explanation that is there already
and then drawn with ``plot(ax=None)``; ``ax_`` and ``figure_`` are there for changes.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, fields
from textwrap import fill
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._validation import check_integer, import_extra
from .diagnostics.by_column import PARTS, columns_of
from .diagnostics.explanation import Explanation, explain
from .diagnostics.tables import group_columns

__all__ = [
    "ColumnsDisplay",
    "CoverageDisplay",
    "IntervalDisplay",
    "PredictiveDensityDisplay",
    "WidestRowsDisplay",
]

Array = NDArray[np.float64]
# Okabe-Ito palette; the two parts also differ in lightness, for print in grey.
ALEATORIC, EPISTEMIC, NOMINAL, ROWS = "#56B4E9", "#D55E00", "#0072B2", "0.25"
NOISE, LACK = "aleatoric: noise", "epistemic: lack of data"
LEGEND: Any = {"frameon": False, "fontsize": 9}
MAX_BARS, MAX_COLUMNS = 100, 10  # more could not be told apart
MAX_ROWS, N_POINTS = 12, 300  # of densities
MAX_LETTERS = 24  # in a line of the name of a bar
OUTSIDE = 0.001  # share of the scores beyond each end of a curve


class Display:
    """A picture that keeps what it draws, and its axes ``ax_`` and ``figure_``."""

    n_axes: ClassVar[int] = 1
    figsize: ClassVar[tuple[float, float]] = (7, 4)
    _draw: Any  # method that puts everything on the axes

    def plot(self, ax: Any = None) -> Self:
        """Draw on axes, as many as ``ax_`` has, or on a new figure if None."""
        if ax is None:
            plt = import_extra("plot", "matplotlib.pyplot")
            options: Any = {"figsize": self.figsize, "layout": "constrained"}
            _, ax = plt.subplots(self.n_axes, sharex=self.n_axes > 1, **options)
        axes = np.ravel(np.asarray(ax, dtype=object))
        if len(axes) != self.n_axes:
            raise ValueError(
                f"Got ax with {len(axes)} axes, but expected {self.n_axes}. Pass what "
                f"plt.subplots({self.n_axes}) returned, or None."
            )
        self.ax_ = axes[0] if self.n_axes == 1 else axes
        self.figure_ = axes[0].figure
        self._draw(self.ax_)
        return self


@dataclass(eq=False, repr=False)
class ExplanationDisplay(Display):
    """A picture of intervals that were explained, see :class:`IntervalDisplay`."""

    explanation: Explanation
    X: Any = None
    y: ArrayLike | None = None
    _: KW_ONLY
    level: int = 0

    @classmethod
    def from_estimator(
        cls, model: Any, X: Any, y: Any = None, *, ax: Any = None, **params: Any
    ) -> Self:
        """Explain rows of a calibrated object, and draw on ``ax`` or a new figure.

        ``params`` are those of the display and of :func:`~mapie_claps.explain`.
        """
        names = {field.name for field in fields(cls)}
        own = {name: params.pop(name) for name in names & params.keys()}
        return cls(explain(model, X, **params), X, y, **own).plot(ax)

    def _percent(self) -> str:
        """The level as text, "90 %"."""
        levels = self.explanation.confidence_level
        if not -len(levels) <= self.level < len(levels):
            raise ValueError(
                f"Got level={self.level!r}, but there are {len(levels)} levels (none "
                "without calibration). Pass the position of one of them."
            )
        return f"{100 * levels[self.level]:g} %"


@dataclass(eq=False, repr=False)
class IntervalDisplay(ExplanationDisplay):
    """Prediction intervals, with their two parts as bands or bars.

    The inner part is what noise alone would need, the outer what lack of data adds.
    Rows that differ in one column of numbers or dates only, such as a grid, are bands
    over it. Others are bars, sorted by prediction: at most 100 of them, evenly spread.

    Parameters
    ----------
    explanation : Explanation
        What :func:`~mapie_claps.explain` gave.
    X, y : array-like of shape (n, p) and (n,), optional
        Inputs and true values of the rows.
    level : int, default=0
        Position of the confidence level that is drawn.
    training_rows : tuple of array-like, optional
        x and y of points to draw.

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from mapie_claps import Explanation
    >>> from mapie_claps.plots import IntervalDisplay
    >>> half, h2 = np.ones((3, 1)), np.ones(3)
    >>> why = Explanation(0 * h2, -half, half, (0.9,), h2, 3 * h2, half)
    >>> display = IntervalDisplay(why, np.arange(3)).plot(Figure().subplots())
    >>> display.ax_.get_title()
    '90 % prediction interval and why it is wide'
    """

    figsize = (8, 4.2)

    _: KW_ONLY
    training_rows: tuple[ArrayLike, ArrayLike] | None = None

    def _draw(self, ax: Any) -> None:
        title = f"{self._percent()} prediction interval and why it is wide"
        why, xlabel = self.explanation, "rows, sorted by prediction"
        X = np.empty((0, 0)) if self.X is None else self.X
        given = columns_of(X) or {"x": X}
        columns = {str(name): np.asarray(c) for name, c in given.items()}
        varying = [name for name, c in columns.items() if len(set(map(str, c))) > 1]
        bars = len(varying) != 1 or columns[varying[0]].dtype.kind not in "iufM"
        x = np.argsort(np.argsort(why.prediction, kind="stable"))
        if not bars:
            x, xlabel = columns[varying[0]], varying[0]
        order = np.argsort(x)
        if bars and len(order) > MAX_BARS:
            order = order[np.linspace(0, len(order) - 1, MAX_BARS).round().astype(int)]
        x = x[order]
        ends = np.stack([why.lower, why.upper])[:, order, self.level]
        infinite = ~np.isfinite(ends).all(axis=0)
        # Both ends move towards the centre alike: bounds need not be symmetric.
        centre = np.where(infinite, np.nan, ends).mean(axis=0)
        layers = [(why.width, ALEATORIC, "interval")]
        if why.noise_width is not None:
            inner = why.aleatoric_width, ALEATORIC, NOISE
            layers = [(why.width, EPISTEMIC, LACK), inner]
        draw, lw = (ax.vlines, 2.5) if bars else (ax.fill_between, 0)
        for width, colour, label in layers:
            half = width[order, self.level] / 2
            draw(x, centre - half, centre + half, color=colour, lw=lw, label=label)
        line = "_" if bars else "-"
        ax.plot(x, why.prediction[order], line, color="black", label="prediction")
        if self.training_rows is not None:
            points = [np.asarray(part).ravel() for part in self.training_rows]
            ax.plot(*points, ".", color=ROWS, ms=3, label="training rows")
        if self.y is not None:
            true = np.asarray(self.y)[order]
            ax.plot(x, true, ".", color=ROWS, ms=4, label="true value")
        if infinite.any():
            title += f"\n({infinite.sum()} of {len(x)} are infinite and not drawn)"
        ax.set(xlabel=xlabel, ylabel="y", title=title)
        ax.legend(loc="upper left" if bars else "best", **LEGEND)


@dataclass(eq=False, repr=False)
class CoverageDisplay(ExplanationDisplay):
    """Coverage and width by group, or of all rows together.

    As in ``CoverageDisplay.from_estimator(model, X, y, groups=X["district"])``.

    Parameters
    ----------
    explanation, X, y, level
        As in :class:`IntervalDisplay`; y is needed, X is not used.
    groups : array-like of shape (n,), optional
        Group of each row; ``pd.qcut(x, 8)`` gives bins of a number. What is drawn is in
        ``table_``, see :func:`~mapie_claps.diagnostics.summarise`.
    """

    n_axes = 2
    figsize = (7, 5)

    _: KW_ONLY
    groups: ArrayLike | None = None

    def _draw(self, ax: Any) -> None:
        if self.y is None:
            raise ValueError("Got no y, without which there is no coverage. Pass y.")
        why, percent = self.explanation, self._percent()
        # The first group is all rows; each group has one entry per level.
        n_levels = len(why.confidence_level)
        first = self.level % n_levels + (0 if self.groups is None else n_levels)
        columns = group_columns(why, self.y, self.groups)
        self.table_ = table = {k: v[first::n_levels] for k, v in columns.items()}
        found, ends = table["coverage"], (table["coverage_low"], table["coverage_high"])
        style: Any = {"fmt": "o", "color": "black", "capsize": 3, "label": "coverage"}
        ax[0].errorbar(range(len(found)), found, np.abs(ends - found), **style)
        level = why.confidence_level[self.level]
        ax[0].axhline(level, color=NOMINAL, ls="--", lw=1, label=percent)
        ax[0].set_ylabel("coverage")
        ax[0].legend(**LEGEND)
        parts = table["aleatoric_width"], table["epistemic_width"]
        _stacked_bars(ax[1], table["group"].tolist(), parts, horizontal=False)
        ax[0].set_xticks(ax[1].get_xticks(), ax[1].get_xticklabels())
        ax[1].set(xlabel="group", ylabel="mean width")


@dataclass(eq=False, repr=False)
class WidestRowsDisplay(ExplanationDisplay):
    """The rows with the widest intervals, each split into noise and lack of data.

    Bars say which columns make the rows wide if the explanation has a background, as
    in ``WidestRowsDisplay.from_estimator(model, X, background=X_cal)``.

    Parameters
    ----------
    explanation, X, y, level
        As in :class:`IntervalDisplay`; X and y are not used.
    n_rows : int, default=10
        Number of rows to show; all if there are fewer.
    """

    _: KW_ONLY
    n_rows: int = 10

    def _draw(self, ax: Any) -> None:
        check_integer("n_rows", self.n_rows, low=1, hint="Use 10.")
        ax.set_xlabel(f"width of the {self._percent()} interval")
        why, at = self.explanation, self.level
        rows = np.argsort(-why.width[:, at], kind="stable")[: self.n_rows]
        labels = [f"row {i if why.index is None else why.index[i]}" for i in rows]
        parts = [w[rows, at] for w in (why.aleatoric_width, why.epistemic_width)]
        _stacked_bars(ax, labels, parts, horizontal=True)
        ax.invert_yaxis()
        if why.by_column is not None:
            for place, i in enumerate(rows):
                # The bar is the width, which the sentence begins with.
                causes = why.by_column.sentence(i, at).partition(": ")[2]
                causes = " " + causes.replace("; ", "\n ")
                ax.text(0, place, causes, va="center", fontsize=7)


@dataclass(eq=False, repr=False)
class ColumnsDisplay(ExplanationDisplay):
    """What each column adds to noise and to lack of data.

    For one row the bars add up to the difference between its width and that of the
    reference. For many rows they are mean sizes without sign. Ten columns are shown, as
    in ``ColumnsDisplay.from_estimator(model, X, background=X_cal)``.

    Parameters
    ----------
    explanation, X, y, level
        As in :class:`IntervalDisplay`; by column, X and y are not used.
    row : int, optional
        Position of the row to draw; if None, all rows whose interval is finite.
    """

    _: KW_ONLY
    row: int | None = None

    def _draw(self, ax: Any) -> None:
        adds = self.explanation.by_column
        if adds is None:
            raise ValueError(
                "Got an explanation without contributions of columns. Pass background= "
                "to explain or from_estimator, such as the calibration rows."
            )
        parts = np.stack([getattr(adds, part)[:, :, self.level] for part in PARTS])
        if self.row is None:
            parts = np.abs(parts[:, np.isfinite(parts).all(axis=(0, 2))])
            title = f"Mean contribution of each column, n = {parts.shape[1]}"
            labels = list(adds.names)
            parts, xlabel = parts.mean(axis=1), "mean change of"
        else:
            values = zip(adds.names, adds.values[self.row], strict=True)
            labels = [f"{name}={value}" for name, value in values]
            title, xlabel = adds.sentence(self.row, self.level), "added to"
            parts = parts[:, self.row]
        order = np.argsort(-np.abs(parts).sum(axis=0), kind="stable")[:MAX_COLUMNS]
        place, height = np.arange(len(order)), 0.38
        styles = (-0.5, ALEATORIC, NOISE), (0.5, EPISTEMIC, LACK)
        for part, (side, colour, label) in zip(parts[:, order], styles, strict=True):
            ax.barh(place + side * height, part, height, color=colour, label=label)
        ax.axvline(0, color=ROWS, lw=0.8)
        # Long names would leave no room for the bars and the title.
        lines = [fill(labels[j], MAX_LETTERS, break_on_hyphens=False) for j in order]
        ax.set_yticks(place, lines)
        ax.invert_yaxis()
        is_std = not self.explanation.confidence_level
        what = "standard deviation" if is_std else f"{self._percent()} width"
        ax.set_xlabel(f"{xlabel} the {what}")
        ax.set_title(fill(title, 60), fontsize=9)
        ax.legend(**LEGEND)


@dataclass(repr=False, eq=False)
class PredictiveDensityDisplay(Display):
    """Densities of y, one above the other: all, and what noise alone would give.

    Where the curve of noise alone is narrower, more training rows there would narrow
    the other. Densities are those of the signed calibration scores, smoothed by a
    normal kernel, through the score of each row. Values outside the bounds of a
    ``support`` are left out, and its gaps are not drawn. As in
    ``PredictiveDensityDisplay.from_estimator(model, X[:5])``.

    Parameters
    ----------
    model : CalibratedRegressor
        Calibrated, with signed scores.
    X : array-like of shape (n, p)
        Inputs, of at most 12 rows.
    labels : sequence of str, optional
        Names of the rows; by default their positions.

    Attributes
    ----------
    y_, density_ : ndarray of shape (2, n, 300)
        Values of the target, and the density there; first all, then noise alone.
    """

    model: Any
    X: Any
    labels: Sequence[str] | None = None

    @classmethod
    def from_estimator(
        cls, model: Any, X: Any, *, labels: Sequence[str] | None = None, ax: Any = None
    ) -> Self:
        """Make the display of these parameters, and draw on ``ax`` or a new figure."""
        return cls(model, X, labels).plot(ax)

    def _draw(self, ax: Any) -> None:
        from scipy.stats import gaussian_kde

        # What predicts loads torch; other plots do without.
        from .conformal.distribution import distribution_of
        from .conformal.support import check_support

        model = self.model
        if not hasattr(model, "signed_scores_"):
            raise TypeError(
                f"Got a {type(model).__name__}, but expected a calibrated object. Use "
                "CalibratedRegressor(model).conformalize(X, y)."
            )
        rows = distribution_of(model._single("densities"), self.X)
        support = check_support(model.support).of(rows.targets)
        scores = model._calibrated().distribution_scores(support)
        scores = scores[np.isfinite(scores)]
        n, n_scores = len(rows), len(np.unique(scores))
        if rows.aleatoric is None or n > MAX_ROWS or n_scores < 2:
            raise ValueError(
                f"Got {n} rows and {n_scores} different scores, but expected at most "
                f"{MAX_ROWS} rows, at least two scores, and an estimator that splits "
                "its variance, such as ClapsRegressor. Pass for example X[:5]."
            )
        smooth = gaussian_kde(scores)
        room = 3 * np.sqrt(float(smooth.covariance[0, 0]))
        low, high = np.quantile(scores, [OUTSIDE, 1 - OUTSIDE])
        at = np.linspace(low - room, high + room, N_POINTS)
        y = np.stack([each.quantile(at) for each in (rows, rows.noise_alone)])
        with np.errstate(divide="ignore", invalid="ignore"):
            density = smooth(at) / np.gradient(y, at, axis=2)
        shown = np.isfinite(density) & (y >= support.low) & (y <= support.high)
        self.y_, self.density_ = (np.where(shown, v, np.nan) for v in (y, density))
        styles = (EPISTEMIC, "with lack of data"), (ALEATORIC, "noise alone")
        scale = 0.9 / np.nanmax(self.density_)
        for i, place in enumerate(reversed(range(n))):
            for j, (colour, label) in enumerate(styles):
                x, height = self.y_[j, i], place + scale * self.density_[j, i]
                ax.fill_between(x, place, height, color=colour, alpha=0.45, lw=0)
                ax.plot(x, height, color=colour, lw=1.2, label=None if i else label)
        ax.set_yticks(range(n), (self.labels or [f"row {i}" for i in range(n)])[::-1])
        ax.set(xlabel="y", ylabel="density")
        ax.legend(**LEGEND)


def _stacked_bars(ax: Any, labels: Sequence[Any], parts: Any, horizontal: bool) -> None:
    """Bars of both parts; what is infinite has no bar, and its label says so."""
    finite = np.isfinite(parts).all(axis=0)
    noise, lack = np.where(finite, parts, 0.0)
    place, style = np.arange(len(labels)), {"edgecolor": "black", "lw": 0.6}
    draw, base = (ax.barh, "left") if horizontal else (ax.bar, "bottom")
    draw(place, noise, color=ALEATORIC, label=NOISE, **style)
    draw(place, lack, color=EPISTEMIC, label=LACK, **{base: noise}, **style)
    marks = np.where(finite, "", " (infinite)")
    set_ticks = ax.set_yticks if horizontal else ax.set_xticks
    set_ticks(place, [f"{n}{m}" for n, m in zip(labels, marks, strict=True)])
    ax.legend(ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0), **LEGEND)
