"""Tables of the ``tables`` benchmark."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..reasons.coverage import coverage_interval
from ..studies.rows import grouped, values_of, where
from ..studies.scoring import SplitSize, coverage_limits, estimate
from ..studies.store import Row
from ..studies.text import lowest_in_bold, markdown_table, number, plus_minus
from ._table_methods import table_methods

CLAPS = "claps"
FEW_ROWS = 50  # of a missing pattern, below which its coverage says little


def write_report(rows: Sequence[Row], out: Path) -> str:
    """Write tables.md and return its text."""
    if not rows:
        return "No finished runs.\n"
    labels = {name: method.label for name, method in table_methods().items()}
    named = [row | {"label": labels[row["method"]]} for row in rows]
    parts = (table(named) for table in (scores, by_hand, details, unseen, patterns))
    text = "\n".join(filter(None, parts))
    (out / "tables.md").write_text(text, encoding="utf-8")
    return text


def _table(title: str, header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table with a title; nothing without lines."""
    return f"{title}\n\n{markdown_table(header, lines)}" if lines else ""


def scores(rows: Sequence[Row]) -> str:
    """Interval score, one line per table, one column per method."""
    labels, lines = values_of(rows, "label"), []
    for dataset in values_of(rows, "dataset"):
        runs = (where(rows, dataset=dataset, label=label) for label in labels)
        found = (estimate(r["interval_score"] for r in some) for some in runs)
        lines.append([dataset, *lowest_in_bold(found)])
    title = "Interval score at level 0.9, mean ± standard error over splits"
    return _table(title, ["table", *labels], lines)


def by_hand(rows: Sequence[Row]) -> str:
    """CLAPS on the table as it is against each other method, paired by split."""
    ours = {
        (row["dataset"], row["seed"]): row["interval_score"]
        for row in where(rows, method=CLAPS)
    }
    lines = []
    for (dataset, method), runs in grouped(rows, "dataset", "method").items():
        paired = [row for row in runs if (dataset, row["seed"]) in ours]
        if method == CLAPS or not paired:
            continue
        score = np.array([ours[dataset, row["seed"]] for row in paired])
        other = np.array([row["interval_score"] for row in paired])
        gap, ratio = estimate(score - other), f"{score.mean() / other.mean():.3f}"
        within = gap.mean <= (gap.error if gap.n > 1 else 0)
        cells = [ratio, plus_minus(gap), "yes" if within else "no"]
        lines.append([dataset, runs[0]["label"], *cells])
    header = ["table", "against", "ratio of means", "paired difference"]
    header.append("at most one standard error worse")
    return _table("CLAPS on the table as it is, against each", header, lines)


def details(rows: Sequence[Row]) -> str:
    """Coverage, width and times, one line per table and method."""
    lines = []
    fields = ("coverage", "width", "tune_seconds", "fit_seconds", "predict_seconds")
    for (dataset, label), runs in grouped(rows, "dataset", "label").items():
        sizes = [SplitSize(r["n_cal"], r["n_test"]) for r in runs]
        low, high = coverage_limits(sizes, runs[0]["alpha"])
        covered, *found = (plus_minus(estimate(r.get(f) for r in runs)) for f in fields)
        cells = [str(len(runs)), covered, f"{low:.3f} to {high:.3f}", *found]
        lines.append([dataset, label, *cells])
    header = ["table", "method", "splits", "coverage", "99.9 % limits", "width"]
    header += ["tuning (s)", "fit (s)", "predict (s)"]
    text = _table("All measures", header, lines)
    if kept := [row for row in rows if "file_kilobytes" in row]:
        medians = ("explain_seconds", "file_seconds", "file_kilobytes")
        explain, file, size = (np.median([row[f] for row in kept]) for f in medians)
        text += (
            f"\nOf CLAPS, medians: explain {explain:.2f} s, save and load "
            f"{file:.2f} s, file {size:.0f} kB. The loaded file gave the same bounds "
            f"in all {len(kept)} runs.\n"
        )
    return text


def unseen(rows: Sequence[Row]) -> str:
    """What a value that never occurred does to both parts of the variance."""
    lines = []
    for dataset in values_of(rows, "dataset"):
        runs = where(rows, dataset=dataset, method=CLAPS)
        for column in sorted({name for run in runs for name in run["unseen"]}):
            found = [run["unseen"][column] for run in runs if column in run["unseen"]]
            epistemic, noise = (
                number(float(np.median([f[part] for f in found])))
                for part in ("epistemic", "aleatoric")
            )
            share = np.mean([f["larger"] for f in found])
            lines.append([dataset, column, epistemic, noise, f"{share:.3f}"])
    header = ["table", "column with a new value", "lack of data, times", "noise, times"]
    header.append("share of rows with more lack")
    title = "Values that never occurred in training: medians over rows and splits"
    return _table(title, header, lines)


def patterns(rows: Sequence[Row]) -> str:
    """Coverage and mean width of CLAPS by which columns are missing."""
    lines = []
    for dataset in values_of(rows, "dataset"):
        runs = where(rows, dataset=dataset, method=CLAPS)
        found: dict[str, Any] = {}
        for name, counts in (item for run in runs for item in run["patterns"].items()):
            found[name] = found.get(name, 0) + np.array(counts)
        if len(found) < 2:
            continue
        for name, (covered, n, width) in sorted(found.items(), key=lambda x: -x[1][1]):
            low, high = coverage_interval(int(covered), int(n))
            few = " (few rows)" if n < FEW_ROWS else ""
            cells = [f"{n:.0f}{few}", f"{covered / n:.3f}", f"{low:.3f} to {high:.3f}"]
            lines.append([dataset, name, *cells, number(width / n)])
    header = ["table", "missing", "test rows", "coverage", "95 % limits", "mean width"]
    title = "Coverage of CLAPS by which columns are missing, all splits together"
    note = "\nThe guarantee is for all rows together, not for each pattern.\n"
    return _table(title, header, lines) + (note if lines else "")
