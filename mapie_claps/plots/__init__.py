"""why → picture: plots in the style of scikit-learn's displays (extra ``plot``).

Every display is made by ``from_estimator``, or of an explanation that is there already
and then drawn with ``plot(ax=None)``; ``ax_`` and ``figure_`` are there for changes.
Colours are told apart by colour-blind readers and in grey.
"""

from ._density import PredictiveDensityDisplay
from ._explained import (
    ColumnsDisplay,
    CoverageDisplay,
    IntervalDisplay,
    WidestRowsDisplay,
)

__all__ = [
    "ColumnsDisplay",
    "CoverageDisplay",
    "IntervalDisplay",
    "PredictiveDensityDisplay",
    "WidestRowsDisplay",
]
