"""Tables of the ``tables`` benchmark."""

from collections.abc import Sequence
from pathlib import Path

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
    parts = (table(rows) for table in (scores, by_hand, details, unseen, patterns))
    text = "\n".join(filter(None, parts))
    (out / "tables.md").write_text(text, encoding="utf-8")
    return text


def _labels() -> dict[str, str]:
    return {method.name: method.label for method in table_methods()}


def scores(rows: Sequence[Row]) -> str:
    """Interval score, one line per table, one column per method."""
    labels, methods = _labels(), values_of(rows, "method")
    lines = []
    for dataset in values_of(rows, "dataset"):
        runs = (where(rows, dataset=dataset, method=m) for m in methods)
        found = (estimate(r["interval_score"] for r in some) for some in runs)
        lines.append([dataset, *lowest_in_bold(found)])
    title = "Interval score at level 0.9, mean ± standard error over splits\n\n"
    return title + markdown_table(["table", *(labels[m] for m in methods)], lines)


def by_hand(rows: Sequence[Row]) -> str:
    """CLAPS on the table as it is against each other method, paired by split."""
    labels, lines = _labels(), []
    for (dataset, method), others in grouped(rows, "dataset", "method").items():
        scores = {row["seed"]: row["interval_score"] for row in others}
        ours = where(rows, dataset=dataset, method=CLAPS)
        pairs = [
            (row["interval_score"], scores[row["seed"]])
            for row in ours
            if row["seed"] in scores
        ]
        if method != CLAPS and pairs:
            score, other = np.transpose(pairs)
            gap = estimate(score - other)
            within = gap.mean <= gap.error if gap.n > 1 else gap.mean <= 0
            ratio = f"{score.mean() / other.mean():.3f}"
            verdict = "yes" if within else "no"
            lines.append([dataset, labels[method], ratio, plus_minus(gap), verdict])
    if not lines:
        return ""
    header = ["table", "against", "ratio of means", "paired difference"]
    title = "CLAPS on the table as it is, against each\n\n"
    return title + markdown_table([*header, "at most one standard error worse"], lines)


def details(rows: Sequence[Row]) -> str:
    """Coverage, width and times, one line per table and method."""
    labels, lines = _labels(), []
    fields = ("coverage", "width", "tune_seconds", "fit_seconds", "predict_seconds")
    for (dataset, method), runs in grouped(rows, "dataset", "method").items():
        sizes = [SplitSize(r["n_cal"], r["n_test"]) for r in runs]
        low, high = coverage_limits(sizes, runs[0]["alpha"])
        covered, *found = (plus_minus(estimate(r.get(f) for r in runs)) for f in fields)
        cells = [str(len(runs)), covered, f"{low:.3f} to {high:.3f}", *found]
        lines.append([dataset, labels[method], *cells])
    header = ["table", "method", "splits", "coverage", "99.9 % limits", "width"]
    header += ["tuning (s)", "fit (s)", "predict (s)"]
    text = "All measures\n\n" + markdown_table(header, lines)
    kept = [row for row in rows if "file_kilobytes" in row]
    if kept:
        explain, file, size = (
            float(np.median([row[f] for row in kept]))
            for f in ("explain_seconds", "file_seconds", "file_kilobytes")
        )
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
        ours = where(rows, dataset=dataset, method=CLAPS)
        runs = [row["unseen"] for row in ours]
        for column in sorted({name for run in runs for name in run}):
            found = [run[column] for run in runs if column in run]
            cells = [
                number(float(np.median([f[part] for f in found])))
                for part in ("epistemic", "aleatoric")
            ]
            share = np.mean([f["larger"] for f in found])
            lines.append([dataset, column, *cells, f"{share:.3f}"])
    if not lines:
        return ""
    header = ["table", "column with a new value", "lack of data, times", "noise, times"]
    title = "Values that never occurred in training: medians over rows and splits\n\n"
    return title + markdown_table([*header, "share of rows with more lack"], lines)


def patterns(rows: Sequence[Row]) -> str:
    """Coverage and mean width of CLAPS by which columns are missing."""
    lines = []
    for dataset in values_of(rows, "dataset"):
        found: dict[str, list[float]] = {}
        for row in where(rows, dataset=dataset, method=CLAPS):
            for name, counts in row["patterns"].items():
                total = found.setdefault(name, [0.0, 0.0, 0.0])
                found[name] = [a + b for a, b in zip(total, counts, strict=True)]
        if len(found) < 2:
            continue
        for name, (covered, n, width) in sorted(found.items(), key=lambda x: -x[1][1]):
            low, high = coverage_interval(int(covered), int(n))
            few = " (few rows)" if n < FEW_ROWS else ""
            cells = [f"{n:.0f}{few}", f"{covered / n:.3f}", f"{low:.3f} to {high:.3f}"]
            lines.append([dataset, name, *cells, number(width / n)])
    if not lines:
        return ""
    header = ["table", "missing", "test rows", "coverage", "95 % limits", "mean width"]
    title = "Coverage of CLAPS by which columns are missing, all splits together\n\n"
    note = "\nThe guarantee is for all rows together, not for each pattern.\n"
    return title + markdown_table(header, lines) + note
