"""Columns → a table of the user."""

from typing import Any


def as_table(columns: dict[str, Any], index: Any = None) -> Any:
    """DataFrame, or the columns themselves where pandas is missing."""
    try:
        import pandas as pd
    except ImportError:
        return columns
    # Lists have an ``index`` too, which is a method.
    return pd.DataFrame(columns, index=index if isinstance(index, pd.Index) else None)
