"""What the displays share: drawing on axes, levels, columns, a panel of coverages."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np

from ..conformal.explanation import Explanation
from ._style import NOMINAL, Array, new_axes, percent


class Display(ABC):
    """A picture that keeps what it draws, and its axes."""

    n_axes: ClassVar[int] = 1
    figsize: ClassVar[tuple[float, float]]

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
        self.ax_ = new_axes(ax, self.n_axes, figsize=self.figsize)
        self.figure_ = np.ravel(np.asarray(self.ax_, dtype=object))[0].figure
        self._draw(self.ax_)
        return self

    def __repr__(self) -> str:
        """Its kind, and how much it shows."""
        shown = ", ".join(
            f"{name}: {len(value)}"
            for name, value in vars(self).items()
            if isinstance(value, np.ndarray) and name != "ax_"
        )
        return f"{type(self).__name__}({shown})"

    @abstractmethod
    def _draw(self, ax: Any) -> None:
        """Put everything on the axes."""


def check_level(why: Explanation, level: int) -> int:
    """Position of the level, counted from the front."""
    n_levels = len(why.confidence_level)
    if not -n_levels <= level < n_levels:
        raise ValueError(
            f"Got level={level!r}, but the intervals have {n_levels} levels. Pass the "
            "position of one of them; a fitted estimator that is not calibrated has "
            "none."
        )
    return level % n_levels


def column_of(X: Any, feature: int | str) -> tuple[str, Array]:
    """Name and values of one column of an array or DataFrame."""
    if not hasattr(X, "columns"):
        if isinstance(feature, str):
            raise ValueError(
                f"Got feature={feature!r}, but X is an array without names. Pass the "
                "position of a column."
            )
        return f"feature {feature}", np.asarray(X)[:, feature]
    key = feature if isinstance(feature, str) else X.columns[feature]
    if key not in list(X.columns):
        raise ValueError(
            f"Got feature={feature!r}, but X has the columns {list(X.columns)}. Pass "
            "one of them, or its position."
        )
    return str(key), np.asarray(X[key])


def axis_values(name: str, values: Any) -> Any:
    """A column as a horizontal axis: numbers, or dates as dates."""
    array = np.asarray(values)
    if array.dtype.kind == "M":
        return array
    try:
        return np.asarray(array, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(
            f"Got feature={name!r}, whose values are not numbers or dates (for example "
            f"{array.flat[0]!r}). Leave feature out to sort the rows by prediction, or "
            "use CoverageDisplay with groups."
        ) from None


def is_curve(X: Any, name: str, position: int) -> bool:
    """Whether the rows differ in one column only, as those of a grid."""
    if hasattr(X, "columns"):
        others = [np.asarray(X[c]) for c in X.columns if str(c) != name]
    else:
        others = list(np.delete(np.asarray(X, dtype=object), position, axis=1).T)
    return all(len(set(map(str, column))) <= 1 for column in others)


def finite_bars(
    labels: Sequence[str], noise: Array, lack: Array
) -> tuple[list[str], Array, Array]:
    """Labels and heights of bars; what is infinite has no bar and says so."""
    finite = np.isfinite(noise) & np.isfinite(lack)
    named = [
        str(label) if drawn else f"{label} (infinite)"
        for label, drawn in zip(labels, finite, strict=True)
    ]
    return named, np.where(finite, noise, 0.0), np.where(finite, lack, 0.0)


def draw_coverage(ax: Any, coverage: Array, limits: Array, level: float) -> None:
    """Coverages side by side with their binomial limits, and the nominal level."""
    ax.errorbar(
        np.arange(len(coverage)),
        coverage,
        np.abs(limits.T - coverage),
        fmt="o",
        color="black",
        capsize=3,
        label="coverage",
    )
    ax.axhline(level, color=NOMINAL, ls="--", lw=1, label=percent(level))
    ax.set_ylabel("coverage")
    ax.legend(frameon=False, fontsize=9)
