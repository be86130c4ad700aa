"""What the displays share: axes to draw on, an explanation, colours, columns of X."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..diagnostics.explanation import Explanation, explain
from ..diagnostics.permuted_rows import columns_of

Array = NDArray[np.float64]
# Okabe-Ito palette; the two parts also differ in lightness, for print in grey.
ALEATORIC, EPISTEMIC, NOMINAL, ROWS = "#56B4E9", "#D55E00", "#0072B2", "0.25"
NOISE, LACK = "aleatoric: noise", "epistemic: lack of data"
LEGEND: Any = {"frameon": False, "fontsize": 9}


class Display(ABC):
    """A picture that keeps what it draws, and its axes ``ax_`` and ``figure_``."""

    n_axes: ClassVar[int] = 1
    figsize: ClassVar[tuple[float, float]] = (7, 4)

    def plot(self, ax: Any = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : matplotlib Axes or array of Axes, optional
            Axes to draw on, as many as ``ax_`` has; a new figure if None.

        Returns
        -------
        Display
            The display itself.
        """
        if ax is None:
            try:
                import matplotlib.pyplot as plt
            except ImportError as error:
                raise ImportError(
                    "Plots need matplotlib. Install it with "
                    "pip install 'mapie-claps[plot]'."
                ) from error
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

    @abstractmethod
    def _draw(self, ax: Any) -> None:
        """Put everything on the axes."""


@dataclass(eq=False, repr=False)
class ExplanationDisplay(Display):
    """A picture of intervals that were explained, at one of their levels."""

    explanation: Explanation
    X: Any = None
    y: ArrayLike | None = None
    _: KW_ONLY
    level: int = 0

    @classmethod
    def from_estimator(
        cls,
        model: Any,
        X: Any,
        y: ArrayLike | None = None,
        *,
        ax: Any = None,
        **params: Any,
    ) -> Self:
        """Explain rows, and draw.

        Parameters
        ----------
        model : object
            A calibrated object, see :func:`~mapie_claps.explain`.
        X : array-like of shape (n, p)
            Inputs.
        y : array-like of shape (n,), optional
            Targets.
        ax : matplotlib Axes or array of Axes, optional
            Axes to draw on; a new figure if None.
        **params : dict
            Parameters of the display and of :func:`~mapie_claps.explain`.

        Returns
        -------
        Display
            The display, drawn.
        """
        names = {field.name for field in fields(cls)}
        own = {name: params.pop(name) for name in names & params.keys()}
        return cls(cls._explained(model, X, own, params), X, y, **own).plot(ax)

    @classmethod
    def _explained(
        cls, model: Any, X: Any, own: dict[str, Any], params: dict[str, Any]
    ) -> Explanation:
        """What is drawn, of parameters of the display and of ``explain``."""
        return explain(model, X, **params)

    def _percent(self) -> str:
        """The level as text, "90 %"."""
        levels = self.explanation.confidence_level
        if not -len(levels) <= self.level < len(levels):
            raise ValueError(
                f"Got level={self.level!r}, but the intervals have {len(levels)} "
                "levels. Pass the position of one of them; a fitted estimator that is "
                "not calibrated has none."
            )
        return f"{100 * levels[self.level]:g} %"

    def _parts(self) -> tuple[Array, Array]:
        """Widths that noise needs and that lack of data adds, (n,)."""
        why = self.explanation
        return why.aleatoric_width[:, self.level], why.epistemic_width[:, self.level]


def column_of(X: Any, feature: int | str | None) -> tuple[str, NDArray[Any], bool]:
    """Name and values of a column, and whether rows differ in no other one."""
    found = {str(name): np.asarray(c) for name, c in columns_of(X).items()}
    columns = found or {"x": np.asarray(X)}
    names = list(columns)
    name = feature if isinstance(feature, str) else names[feature or 0]
    if name not in columns:
        raise ValueError(
            f"Got feature={feature!r}, but X has the columns {names}. Pass one of "
            "them, or its position."
        )
    values = columns.pop(name)
    return name, values, all(len(set(map(str, c))) == 1 for c in columns.values())


def stacked_bars(
    ax: Any, labels: Sequence[Any], parts: Sequence[Array], horizontal: bool
) -> None:
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
