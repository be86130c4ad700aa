"""Numbers and tables as text."""

import csv
import io
import math
from collections.abc import Iterable, Sequence
from typing import Any

from .scoring import Estimate

MISSING = "–"


def number(value: float | None, digits: str = ".4g") -> str:
    """Four significant digits, or a dash.

    Examples
    --------
    >>> number(12.3456), number(None)
    ('12.35', '–')
    """
    return MISSING if value is None or math.isnan(value) else f"{value:{digits}}"


def plus_minus(found: Estimate | None) -> str:
    """Mean and standard error."""
    if found is None or math.isnan(found.error):
        return number(found.mean if found else None)
    error = f"{found.error:.2g}" if found.error < 99.5 else f"{found.error:.0f}"
    return f"{number(found.mean)} ± {error}"


def markdown_table(
    header: Sequence[str], lines: Iterable[Sequence[str]], align: str = ""
) -> str:
    """Table in Markdown; ``align`` has one letter per column, "r" for numbers.

    Examples
    --------
    >>> print(markdown_table(["a", "b"], [["x", "1"]], align="lr"), end="")
    | a | b |
    |---|---:|
    | x | 1 |
    """
    letters = align.ljust(len(header), "l")
    rule = "|" + "|".join("---:" if a == "r" else "---" for a in letters) + "|"
    rows = ["| " + " | ".join(line) + " |" for line in (header, *lines)]
    return "\n".join([rows[0], rule, *rows[1:]]) + "\n"


def csv_table(header: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """Table in CSV."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([header, *lines])
    return stream.getvalue()
