"""why → picture: plots in the style of scikit-learn's displays (extra ``plot``).

Every display is made by ``from_estimator`` or ``from_predictions``, keeps what it draws
as attributes, and draws itself with ``plot(ax=None)``; ``ax_`` and ``figure_`` are then
there for changes. Colours are told apart by colour-blind readers and in grey.
"""

from ._columns import ColumnsDisplay
from ._comparison import ComparisonDisplay
from ._contraction import ContractionDisplay
from ._coverage import CalibrationLevelsDisplay, CoverageDisplay
from ._density import PredictiveDensityDisplay
from ._intervals import IntervalDisplay, WidthDisplay
from ._widest import WidestRowsDisplay

__all__ = [
    "CalibrationLevelsDisplay",
    "ColumnsDisplay",
    "ComparisonDisplay",
    "ContractionDisplay",
    "CoverageDisplay",
    "IntervalDisplay",
    "PredictiveDensityDisplay",
    "WidestRowsDisplay",
    "WidthDisplay",
]
