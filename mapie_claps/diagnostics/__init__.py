"""interval → why: what makes it wide, which columns, which rows, and what to do."""

from ..metrics import coverage_interval
from .by_column import ColumnContributions
from .explanation import Explanation, explain
from .tables import diagnose, nearest_rows, rank_rows, summarise

__all__ = [
    "ColumnContributions",
    "Explanation",
    "coverage_interval",
    "diagnose",
    "explain",
    "nearest_rows",
    "rank_rows",
    "summarise",
]
