"""why → what to do: tables of rows, of groups, and of what calibration has not seen.

Tables are pandas DataFrames if pandas is installed, else dicts of arrays.
"""

from .conformal.contributions import ColumnContributions
from .reasons.coverage import coverage_interval
from .reasons.measuring import nearest_rows
from .reasons.remoteness import remoteness
from .reasons.tables import diagnose, rank_rows, summarise

__all__ = [
    "ColumnContributions",
    "coverage_interval",
    "diagnose",
    "nearest_rows",
    "rank_rows",
    "remoteness",
    "summarise",
]
