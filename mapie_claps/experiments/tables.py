"""Tables: ours, the paper's, and the difference."""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from ..datasets import DATASETS
from .runs import Row

MISSING = math.nan


@dataclass(frozen=True)
class Table:
    """One published table and where its figures are found in our rows."""

    name: str  # of the file in published/
    title: str
    experiment: str
    key: str  # of our rows, which the first column of the table is about
    columns: dict[str, str]  # published label → our name
    where: dict[str, Any] = field(default_factory=dict)


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


_MARGINAL = {"Coverage": "coverage", "Cov. Err.": "coverage_error"}
_BENCHMARK = _MARGINAL | {"Viol. Rate": "violation"}
_SENSITIVITY = _BENCHMARK | {
    "Width Ratio": "width_ratio",
    "Score delta": "score_difference",
    "Epi. Frac.": "epistemic_fraction",
    "Scale Ratio": "scale_ratio",
}

TABLES = (
    Table(
        "exp1_synthetic_mechanism",
        "Experiment 1: controlled synthetic mechanism",
        "mechanism",
        "method",
        {
            "Marg. Cov.": "coverage",
            "Sparse Cov.": "sparse_coverage",
            "Noisy Cov.": "noisy_coverage",
            "Region Gap": "region_gap",
            "Avg. Width": "width",
            "Int. Score": "score",
        },
    ),
    Table(
        "exp2_contraction",
        "Experiment 2: posterior contraction",
        "contraction",
        "case",
        {
            "Epi. Frac.": "epistemic_fraction",
            "Scale Ratio": "scale_ratio",
            "Width Ratio": "width_ratio",
            "Score delta": "score_difference",
            "Cov. LACP": "coverage_lacp",
            "Cov. CLAPS": "coverage_claps",
        },
    ),
    Table(
        "exp3_real_benchmark",
        "Experiment 3: mean over eight data sets",
        "benchmark",
        "method",
        _BENCHMARK
        | {
            "Rel. Width Red.": "width_reduction",
            "Width Rank": "width_rank",
            "Score Rank": "score_rank",
        },
    ),
    *(
        Table(
            f"exp3_{name}",
            f"Experiment 3: {name}",
            "benchmark",
            "method",
            _BENCHMARK
            | {
                "Avg. Width": "width",
                "Int. Score": "score",
                "Rel. Width Red.": "width_reduction",
            },
            {"case": name},
        )
        for name in DATASETS
    ),
    Table(
        "app_prior_precision_sensitivity",
        "Sensitivity to the prior precision",
        "prior_precision",
        "value",
        _SENSITIVITY,
    ),
    Table(
        "app_calibration_size_sensitivity",
        "Sensitivity to the calibration fraction",
        "calibration_size",
        "value",
        _SENSITIVITY,
    ),
    Table(
        "app_feature_dimension_sensitivity",
        "Sensitivity to the size of the representation",
        "representation_size",
        "value",
        _SENSITIVITY,
    ),
    Table(
        "app_variance_floor_sensitivity",
        "Sensitivity to the variance floor",
        "variance_floor",
        "value",
        _SENSITIVITY
        | {"Min h2": "min_h2", "P01 h2": "p01_h2", "Floor Active": "floor_active"},
    ),
)


def published(name: str) -> list[dict[str, str]]:
    """Rows of a published table, as text."""
    file = resources.files(__package__) / "published" / f"{name}.csv"
    return list(csv.DictReader(io.StringIO(file.read_text())))


def by_seed(rows: Sequence[Row], metric: str) -> dict[int, float]:
    """Mean of a metric over the rows of each seed."""
    seeds = sorted({row["seed"] for row in rows})
    return {
        seed: float(np.mean([row[metric] for row in rows if row["seed"] == seed]))
        for seed in seeds
    }


def fill(table: Table, rows: Sequence[Row]) -> list[Cell]:
    """All cells; NaN where there is no run."""
    ours = [r for r in rows if all(r[k] == v for k, v in table.where.items())]
    return list(_cells(table, ours))


def _cells(table: Table, rows: Sequence[Row]) -> Iterator[Cell]:
    for line in published(table.name):
        label = next(iter(line.values()))
        mine = [row for row in rows if _same(row[table.key], label)]
        for column, metric in table.columns.items():
            values = list(by_seed(mine, metric).values())
            yield Cell(
                label,
                column,
                float(np.mean(values)) if values else MISSING,
                float(np.std(values, ddof=1)) if len(values) > 1 else MISSING,
                len(values),
                float(line[column]),
                float(line.get(f"{column} sd", MISSING)),
            )


def _same(ours: Any, label: str) -> bool:
    """Whether a value of ours is what a published label names."""
    if isinstance(ours, str):
        return ours == label
    return math.isclose(ours, float(label))


def to_csv(cells: Sequence[Cell]) -> str:
    """One line per cell."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    names = ("row", "column", "ours", "sd", "seeds", "paper", "paper_sd", "difference")
    writer.writerow(names)
    for cell in cells:
        figures = cell.mean, cell.sd, cell.paper, cell.paper_sd, cell.difference
        mean, sd, paper, paper_sd, difference = map(_plain, figures)
        writer.writerow(
            [cell.row, cell.column, mean, sd, cell.n_seeds, paper, paper_sd, difference]
        )
    return stream.getvalue()


def to_markdown(cells: Sequence[Cell]) -> str:
    """Three lines for each row: ours, the paper's, the difference."""
    columns = list(dict.fromkeys(cell.column for cell in cells))
    lines = [
        "| | | " + " | ".join(columns) + " |",
        "|---|---|" + "---:|" * len(columns),
    ]
    for label in dict.fromkeys(cell.row for cell in cells):
        row = [cell for cell in cells if cell.row == label]
        ours = [_with_sd(c.mean, c.sd) for c in row]
        paper = [_with_sd(c.paper, c.paper_sd) for c in row]
        difference = [_signed(c.difference) for c in row]
        lines += [
            f"| {label} | ours | " + " | ".join(ours) + " |",
            "| | paper | " + " | ".join(paper) + " |",
            "| | difference | " + " | ".join(difference) + " |",
        ]
    return "\n".join(lines) + "\n"


def _plain(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.6g}"


def _digits(value: float) -> str:
    """Four decimals, as the paper, fewer where numbers are large."""
    return f"{value:.4f}" if abs(value) < 100 else f"{value:.1f}"


def _with_sd(mean: float, sd: float) -> str:
    if math.isnan(mean):
        return "–"
    return _digits(mean) + ("" if math.isnan(sd) else f" ± {_digits(sd)}")


def _signed(value: float) -> str:
    if math.isnan(value):
        return "–"
    return ("+" if value >= 0 else "−") + _digits(abs(value))


def write_tables(rows: dict[str, list[Row]], folder: Path) -> list[Path]:
    """CSV and Markdown of every table whose experiment has rows."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for table in TABLES:
        if not rows.get(table.experiment):
            continue
        cells = fill(table, rows[table.experiment])
        for ending, text in ((".csv", to_csv(cells)), (".md", to_markdown(cells))):
            file = folder / f"{table.name}{ending}"
            file.write_text(text)
            written.append(file)
    return written


def write_rows(rows: dict[str, list[Row]], folder: Path) -> list[Path]:
    """Every row of every run, one CSV for each experiment."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, found in rows.items():
        if not found:
            continue
        file = folder / f"{name}.csv"
        with file.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, list(found[0]), lineterminator="\n")
            writer.writeheader()
            for row in found:
                writer.writerow({k: _short(v) for k, v in row.items()})
        written.append(file)
    return written


def _short(value: Any) -> Any:
    return f"{value:.8g}" if isinstance(value, float) else value
