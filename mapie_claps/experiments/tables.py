"""Tables: ours, the paper's, and the difference or distance."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from ..studies.data import PAPER_DATASETS, Array
from ..studies.rows import grouped, values_of, where
from ..studies.store import Row
from ..studies.text import csv_table, markdown_table, number

#: Columns of the published tables, and the fields of our rows that they are about.
COLUMNS = {
    "Marg. Cov.": "coverage",
    "Sparse Cov.": "sparse_coverage",
    "Noisy Cov.": "noisy_coverage",
    "Region Gap": "region_gap",
    "Cov. LACP": "coverage_lacp",
    "Cov. CLAPS": "coverage_claps",
    "Coverage": "coverage",
    "Cov. Err.": "coverage_error",
    "Viol. Rate": "violation",
    "Avg. Width": "width",
    "Int. Score": "score",
    "Rel. Width Red.": "width_reduction",
    "Width Rank": "width_rank",
    "Score Rank": "score_rank",
    "Width Ratio": "width_ratio",
    "Score delta": "score_difference",
    "Epi. Frac.": "epistemic_fraction",
    "Epi. Frac. of Means": "epistemic_fraction_of_means",
    "Scale Ratio": "scale_ratio",
    "Min h2": "min_h2",
    "P01 h2": "p01_h2",
    "Floor Active": "floor_active",
}

#: A second reading of a published column, which our tables show after the first.
SECOND_READING = {"Epi. Frac.": "Epi. Frac. of Means"}
PUBLISHED_LABEL = {second: first for first, second in SECOND_READING.items()}
#: Experiments on real data, and the names of their tables of distances.
DISTANCE_TABLES = {"benchmark": "distance", "further_seeds": "distance_further_seeds"}


@dataclass(frozen=True)
class Table:
    """One published table and where its figures are found in our rows."""

    name: str  # of the file in published/
    experiment: str
    key: str  # of our rows, which the first column of the table is about
    case: str | None = None  # the data set, if it is about one

    @property
    def columns(self) -> dict[str, str]:
        """Published label → our name."""
        header = (label for label in published(self.name)[0] if label in COLUMNS)
        pairs = ((label, SECOND_READING.get(label, label)) for label in header)
        return {label: COLUMNS[label] for pair in pairs for label in pair}


TABLES = (
    Table("exp1_synthetic_mechanism", "mechanism", "method"),
    Table("exp2_contraction", "contraction", "case"),
    Table("exp3_real_benchmark", "benchmark", "method"),
    *(Table(f"exp3_{name}", "benchmark", "method", name) for name in PAPER_DATASETS),
    Table("app_prior_precision_sensitivity", "prior_precision", "value"),
    Table("app_calibration_size_sensitivity", "calibration_size", "value"),
    Table("app_feature_dimension_sensitivity", "representation_size", "value"),
    Table("app_variance_floor_sensitivity", "variance_floor", "value"),
)


@cache
def published(name: str) -> tuple[dict[str, str], ...]:
    """Rows of a published table, as text."""
    return read_lines("published", f"{name}.csv")


def read_lines(*path: str) -> tuple[dict[str, str], ...]:
    """Lines of a CSV file of this package, as text."""
    file = resources.files(__package__).joinpath(*path)
    return tuple(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"))))


def label_of(value: Any) -> str:
    """A method, case or grid value of ours as text.

    Examples
    --------
    >>> label_of(1e-4), label_of("CLAPS")
    ('0.0001', 'CLAPS')
    """
    return value if isinstance(value, str) else f"{value:g}"


def fill(table: Table, rows: Sequence[Row]) -> list[Row]:
    """All cells: mean and deviation over seeds, beside what the paper gives.

    NaN where there is no run, or where the paper gives nothing.
    """
    found = []
    for line in published(table.name):
        label = next(iter(line.values()))
        wanted = label_of(float(label)) if table.key == "value" else label
        mine = [
            row
            for row in rows
            if table.case in (None, row["case"]) and label_of(row[table.key]) == wanted
        ]
        seeds = grouped(mine, "seed").values()
        for column, metric in table.columns.items():
            each = [float(np.mean([row[metric] for row in seed])) for seed in seeds]
            mean = float(np.mean(each)) if each else math.nan
            sd = float(np.std(each, ddof=1)) if len(each) > 1 else math.nan
            cell = {"row": label, "column": column, "ours": mean, "sd": sd}
            printed = PUBLISHED_LABEL.get(column, column)
            paper = float(line.get(printed, math.nan))
            paper_sd = float(line.get(f"{printed} sd", math.nan))
            cell |= {"seeds": len(each), "paper": paper, "paper_sd": paper_sd}
            found.append(cell | {"difference": mean - paper})
    return found


def to_markdown(cells: Sequence[Row]) -> str:
    """Three lines for each row: ours, the paper's, the difference."""
    columns = values_of(cells, "column")
    lines = []
    for label in values_of(cells, "row"):
        row = where(cells, row=label)
        differences = [_decimals(c["difference"], "+") for c in row]
        lines += [
            [label, "ours", *(_with_sd(c["ours"], c["sd"]) for c in row)],
            ["", "paper", *(_with_sd(c["paper"], c["paper_sd"]) for c in row)],
            ["", "difference", *(d.replace("-", "−") for d in differences)],
        ]
    return markdown_table(["", "", *columns], lines, align="ll" + "r" * len(columns))


def _decimals(value: float, sign: str = "") -> str:
    """Four decimals, as the paper, fewer where numbers are large."""
    return number(value, f"{sign}.4f" if abs(value) < 100 else f"{sign}.1f")


def _with_sd(mean: float, sd: float) -> str:
    return _decimals(mean) + ("" if math.isnan(sd) else f" ± {_decimals(sd)}")


def to_csv(rows: Sequence[Row], digits: str) -> str:
    """One line per row, its floats with so many digits."""
    lines = [
        [f"{v:{digits}}" if isinstance(v, float) else v for v in row.values()]
        for row in rows
    ]
    return csv_table(list(rows[0]), lines)


def distances(rows: Sequence[Row]) -> list[Row]:
    """log(ours / published) of scores and widths, by data set and method.

    Examples
    --------
    >>> rows = [
    ...     {"case": "yacht", "method": name, "score": 4.4833, "width": 2.8589}
    ...     for name in ("Split CP", "CV+", "LACP", "CQR", "DCP", "CLAPS")]
    >>> distances(rows)[2]
    {'case': 'yacht', 'method': 'LACP', 'log_score_ratio': 0.0, 'log_width_ratio': 0.0}
    """
    found = []
    for case in PAPER_DATASETS:
        ours = where(rows, case=case)
        for line in published(f"exp3_{case}") if ours else ():
            mine = where(ours, method=line["Method"])
            ratios = {
                f"log_{name}_ratio": math.log(
                    np.mean([row[name] for row in mine]) / float(line[label])
                )
                for name, label in (("score", "Int. Score"), ("width", "Avg. Width"))
            }
            found.append({"case": case, "method": line["Method"]} | ratios)
    return found


def distances_to_markdown(found: Sequence[Row]) -> str:
    """Mean |log ratio|, score / width, by data set and method, and their means."""
    methods = values_of(found, "method")
    groups = {case: where(found, case=case) for case in values_of(found, "case")}
    lines = []
    for name, group in (groups | {"**all**": list(found)}).items():
        means = [_mean_distance(where(group, method=m)) for m in methods]
        pairs = [f"{score:.2f} / {width:.2f}" for score, width in means]
        lines.append([name, *pairs, f"{np.mean(_mean_distance(group)):.3f}"])
    header = ["score / width", *methods, "all"]
    return markdown_table(header, lines, align="l" + "r" * (len(header) - 1))


def _mean_distance(found: Sequence[Row]) -> Array:
    """Of score and width."""
    ratios = [[d["log_score_ratio"], d["log_width_ratio"]] for d in found]
    return np.asarray(np.mean(np.abs(ratios), axis=0))


def all_tables(rows: Mapping[str, Sequence[Row]]) -> dict[str, str]:
    """Every row of every run, the tables and the distances: texts by file name."""
    files = {
        f"rows/{n}.csv": to_csv(found, ".8g") for n, found in rows.items() if found
    }
    for table in TABLES:
        ours = rows.get(table.experiment)
        if ours:
            cells = fill(table, ours)
            text = to_csv(cells, ".6g").replace(",nan", ",")  # no figure, an empty cell
            files[f"tables/{table.name}.csv"] = text
            files[f"tables/{table.name}.md"] = to_markdown(cells)
    for experiment, name in DISTANCE_TABLES.items():
        found = distances(rows.get(experiment, ()))
        if found:
            files[f"tables/{name}.csv"] = to_csv(found, ".4f")
            files[f"tables/{name}.md"] = distances_to_markdown(found)
    return files
