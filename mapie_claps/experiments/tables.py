"""Tables: ours, the paper's, and the difference."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from ..studies.data import PAPER_DATASETS
from ..studies.rows import values_of, where
from ..studies.store import Row
from ..studies.text import MISSING, csv_table, markdown_table, write_files

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


@dataclass(frozen=True)
class Cell:
    """Mean and standard deviation over seeds, beside what the paper gives."""

    row: str
    column: str
    mean: float
    sd: float
    n_seeds: int
    paper: float
    paper_sd: float

    @property
    def difference(self) -> float:
        """Ours minus the paper's."""
        return self.mean - self.paper


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


def fill(table: Table, rows: Sequence[Row]) -> list[Cell]:
    """All cells; NaN where there is no run."""
    found = []
    for line in published(table.name):
        label = next(iter(line.values()))
        wanted = label_of(float(label)) if table.key == "value" else label
        mine = [
            row
            for row in rows
            if table.case in (None, row["case"]) and label_of(row[table.key]) == wanted
        ]
        for column, metric in table.columns.items():
            values = means_by_seed(mine, metric)
            sd = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
            printed = PUBLISHED_LABEL.get(column, column)
            paper, paper_sd = (
                float(line.get(name, math.nan)) for name in (printed, f"{printed} sd")
            )
            mean = float(np.mean(values)) if values else math.nan
            cell = Cell(label, column, mean, sd, len(values), paper, paper_sd)
            found.append(cell)
    return found


def means_by_seed(rows: Sequence[Row], metric: str) -> list[float]:
    """Mean of a metric over the rows of each seed."""
    return [
        float(np.mean([row[metric] for row in where(rows, seed=seed)]))
        for seed in sorted(values_of(rows, "seed"))
    ]


def to_csv(cells: Sequence[Cell]) -> str:
    """One line per cell."""

    def text(value: float) -> str:
        return "" if math.isnan(value) else f"{value:.6g}"

    names = ("row", "column", "ours", "sd", "seeds", "paper", "paper_sd", "difference")
    lines = []
    for c in cells:
        figures = map(text, (c.paper, c.paper_sd, c.difference))
        lines.append([c.row, c.column, text(c.mean), text(c.sd), c.n_seeds, *figures])
    return csv_table(names, lines)


def to_markdown(cells: Sequence[Cell]) -> str:
    """Three lines for each row: ours, the paper's, the difference."""
    columns = list(dict.fromkeys(cell.column for cell in cells))
    lines = []
    for label in dict.fromkeys(cell.row for cell in cells):
        row = [cell for cell in cells if cell.row == label]
        lines += [
            [label, "ours", *(_with_sd(c.mean, c.sd) for c in row)],
            ["", "paper", *(_with_sd(c.paper, c.paper_sd) for c in row)],
            ["", "difference", *(_signed(c.difference) for c in row)],
        ]
    return markdown_table(["", "", *columns], lines, align="ll" + "r" * len(columns))


def _digits(value: float) -> str:
    """Four decimals, as the paper, fewer where numbers are large."""
    return f"{value:.4f}" if abs(value) < 100 else f"{value:.1f}"


def _with_sd(mean: float, sd: float) -> str:
    if math.isnan(mean):
        return MISSING
    return _digits(mean) + ("" if math.isnan(sd) else f" ± {_digits(sd)}")


def _signed(value: float) -> str:
    if math.isnan(value):
        return MISSING
    return ("+" if value >= 0 else "−") + _digits(abs(value))


def write_tables(rows: Mapping[str, Sequence[Row]], folder: Path) -> list[Path]:
    """CSV and Markdown of every table whose experiment has rows."""
    files = {}
    for table in TABLES:
        if rows.get(table.experiment):
            cells = fill(table, rows[table.experiment])
            files[f"{table.name}.csv"] = to_csv(cells)
            files[f"{table.name}.md"] = to_markdown(cells)
    return write_files(files, folder)


def write_rows(rows: Mapping[str, Sequence[Row]], folder: Path) -> list[Path]:
    """Every row of every run, one CSV for each experiment."""

    def text(value: Any) -> Any:
        return f"{value:.8g}" if isinstance(value, float) else value

    files = {
        f"{name}.csv": csv_table(
            list(found[0]), [[text(v) for v in row.values()] for row in found]
        )
        for name, found in rows.items()
        if found
    }
    return write_files(files, folder)
