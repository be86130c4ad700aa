"""How far our scores and widths on real data are from the published ones."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..studies.data import PAPER_DATASETS
from ..studies.rows import where
from ..studies.store import Row
from ..studies.text import csv_table, markdown_table
from .tables import published

#: Experiments on real data, and the names of their tables.
DISTANCE_TABLES = {"benchmark": "distance", "further_seeds": "distance_further_seeds"}


class Distance(NamedTuple):
    """log(ours / published) of one method on one data set, of means over seeds."""

    case: str
    method: str
    score: float
    width: float


def distances(rows: Sequence[Row]) -> list[Distance]:
    """Distances of all data sets that have rows, and of all methods.

    Examples
    --------
    >>> rows = [
    ...     {"case": "yacht", "method": name, "score": 4.4833, "width": 2.8589}
    ...     for name in ("Split CP", "CV+", "LACP", "CQR", "DCP", "CLAPS")]
    >>> lacp = distances(rows)[2]
    >>> lacp.method, lacp.score, lacp.width
    ('LACP', 0.0, 0.0)
    """
    found = []
    for case in PAPER_DATASETS:
        ours = where(rows, case=case)
        for line in published(f"exp3_{case}") if ours else ():
            mine = where(ours, method=line["Method"])
            score, width = (
                math.log(np.mean([row[name] for row in mine]) / float(line[label]))
                for name, label in (("score", "Int. Score"), ("width", "Avg. Width"))
            )
            found.append(Distance(case, line["Method"], score, width))
    return found


def mean_distance(found: Sequence[Distance]) -> float:
    """Mean of |log ratio| over scores and widths.

    Examples
    --------
    >>> mean_distance([Distance("yacht", "CLAPS", -0.25, 0.75)])
    0.5
    """
    return float(np.mean(_means(found)))


def _means(found: Sequence[Distance]) -> list[float]:
    means: list[float] = np.mean(np.abs([d[2:] for d in found]), axis=0).tolist()
    return means


def to_csv(found: Sequence[Distance]) -> str:
    """One line per data set and method, with the sign."""
    lines = [[d.case, d.method, f"{d.score:.4f}", f"{d.width:.4f}"] for d in found]
    return csv_table(["case", "method", "log_score_ratio", "log_width_ratio"], lines)


def to_markdown(found: Sequence[Distance]) -> str:
    """Mean |log ratio|, score / width, by data set and method, and their means."""
    methods = list(dict.fromkeys(d.method for d in found))
    groups = {d.case: [other for other in found if other.case == d.case] for d in found}
    lines = []
    for name, group in (groups | {"**all**": list(found)}).items():
        means = (_means([d for d in group if d.method == m]) for m in methods)
        pairs = [f"{score:.2f} / {width:.2f}" for score, width in means]
        lines.append([name, *pairs, f"{mean_distance(group):.3f}"])
    header = ["score / width", *methods, "all"]
    return markdown_table(header, lines, align="l" + "r" * (len(header) - 1))


def distance_files(rows: Mapping[str, Sequence[Row]]) -> dict[str, str]:
    """CSV and Markdown of the experiments that have rows of the paper's data sets."""
    files = {}
    for experiment, name in DISTANCE_TABLES.items():
        found = distances(rows.get(experiment, ()))
        if found:
            files[f"{name}.csv"] = to_csv(found)
            files[f"{name}.md"] = to_markdown(found)
    return files
