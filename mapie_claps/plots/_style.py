"""Colours, and axes to draw on."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Okabe-Ito palette; the two parts also differ in lightness, for print in grey.
ALEATORIC = "#56B4E9"
EPISTEMIC = "#D55E00"
NOMINAL = "#0072B2"
METHODS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
ROWS = "0.25"


def new_axes(ax: Any, n_rows: int = 1, **figure_options: Any) -> Any:
    """The given axes, or new ones: one, or an array of ``n_rows`` that share x."""
    if ax is None:
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            raise ImportError(
                "Plots need matplotlib. Install it with "
                "pip install 'mapie-claps[plot]'."
            ) from error
        _, ax = plt.subplots(
            n_rows, 1, sharex=n_rows > 1, layout="constrained", **figure_options
        )
    if n_rows == 1:
        return ax
    axes = np.atleast_1d(np.asarray(ax, dtype=object)).ravel()
    if len(axes) != n_rows:
        raise ValueError(
            f"Got ax with {len(axes)} axes, but expected {n_rows}. Pass what "
            f"plt.subplots({n_rows}) returned, or None."
        )
    return axes


def percent(level: float) -> str:
    """Level as text, "90 %"."""
    return f"{100 * level:g} %"
