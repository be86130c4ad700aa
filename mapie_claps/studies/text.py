"""Numbers and tables as text."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
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


def plus_minus(
    found: Estimate | None, digits: str = ".4g", of_error: str = ".2g"
) -> str:
    """Mean and standard error."""
    if found is None or math.isnan(found.error):
        return number(found.mean if found else None, digits)
    of_error = of_error if found.error < 99.5 else ".0f"
    return f"{number(found.mean, digits)} ± {found.error:{of_error}}"


def lowest_in_bold(found: Iterable[Estimate]) -> list[str]:
    """Means and standard errors; a dash for no runs.

    Examples
    --------
    >>> lowest_in_bold([Estimate(2.0, 0.5, 4), Estimate(1.0, 0.5, 4)])
    ['2 ± 0.5', '**1 ± 0.5**']
    """
    each = list(found)
    best = min((e.mean for e in each if e.n), default=None)
    return [f"**{plus_minus(e)}**" if e.mean == best else plus_minus(e) for e in each]


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


def write_files(files: Mapping[str, str], folder: Path) -> list[Path]:
    """Texts by file name, which may hold a folder, written to a folder."""
    paths = [folder / name for name in files]
    for path, text in zip(paths, files.values(), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return paths
