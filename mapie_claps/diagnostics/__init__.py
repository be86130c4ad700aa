"""interval → why: what makes it wide, which columns, which rows, and what to do."""

from .by_column import ColumnContributions
from .explanation import Explanation, explain
from .tables import diagnose, nearest_rows, predict_frame, rank_rows, summarise

__all__ = [
    "ColumnContributions",
    "Explanation",
    "diagnose",
    "explain",
    "nearest_rows",
    "predict_frame",
    "rank_rows",
    "summarise",
]
