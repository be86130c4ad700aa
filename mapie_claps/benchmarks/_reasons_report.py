"""Tables of ``benchmarks reasons``."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..studies.data import PAPER_DATASETS
from ..studies.scoring import stratified_estimate
from ..studies.store import Row
from ..studies.text import csv_table, markdown_table

RANKING = {
    "rho": "rho",
    "rho_here": "rho, known region",
    "sparsification": "sparse",
    "top_fifth": "top fifth",
    "auroc": "foreign",
}
TRUTH = {
    "noise_error": "mean abs. log(h²/σ²)",
    "noise_rho": "rho of h² with σ²",
    "size_here": "epistemic / squared error, known region",
    "size_foreign": "the same, foreign",
}
LOW_IS_GOOD = {"sparsification", "noise_error", "collect"}
RATIOS = {"size_here", "size_foreign", "collect"}  # geometric means


def report(rows: Sequence[Row], out: Path) -> str:
    """All tables, as text and in files."""
    parts = []
    for title, found in _groups(rows).items():
        fields = RANKING | (TRUTH if title.startswith("Known") else {})
        parts.append(f"### {title}\n\n{_summary(found, fields)}")
        parts.append(_by_dataset(found, "rho"))
        parts.append(_by_dataset(found, "auroc"))
    collected = [r for r in rows if r["kind"] == "collect"]
    if collected:
        parts.append("### Collecting\n\n" + _by_dataset(collected, "collect"))
    causes = [r for r in rows if r["kind"] == "causes"]
    if causes:
        parts.append("### Causes\n\n" + _causes(causes))
    parts.append(
        "Means over data sets ± standard error over seeds; of ratios geometric means. "
        f"{len({r['seed'] for r in rows})} seeds.\n"
    )
    text = "\n".join(parts)
    (out / "reasons.md").write_text(text, encoding="utf-8")
    (out / "reasons.csv").write_text(_csv(rows), encoding="utf-8")
    return text


def _groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by what they were measured on."""

    def kind(row: Row) -> str | None:
        if row["kind"] == "known":
            return "Known mean and noise"
        if row["kind"] != "real":
            return None
        paper = row["dataset"] in PAPER_DATASETS
        return "The paper's data sets" if paper else "Other real data sets"

    found: dict[str, list[Row]] = {}
    for row in rows:
        if kind(row) is not None:
            found.setdefault(str(kind(row)), []).append(row)
    return found


def _summary(rows: Sequence[Row], fields: dict[str, str]) -> str:
    """One line per method."""
    lines = []
    for method in dict.fromkeys(r["method"] for r in rows):
        own = [r for r in rows if r["method"] == method]
        lines.append([method, *(_mean(own, field) for field in fields)])
    return markdown_table(["model", *fields.values()], lines)


def _mean(rows: Sequence[Row], field: str) -> str:
    """Mean over data sets ± standard error over seeds."""
    strata: dict[str, list[float]] = {}
    for row in rows:
        value = np.log(row[field]) if field in RATIOS else row[field]
        strata.setdefault(row["dataset"], []).append(float(value))
    found = stratified_estimate(strata)
    if field in RATIOS:
        centre = float(np.exp(found.mean))
        return f"{centre:.2f} ± {centre * found.error:.2f}"
    return f"{found.mean:.3f} ± {found.error:.3f}"


def _by_dataset(rows: Sequence[Row], field: str) -> str:
    """One line per data set, the best model in bold; how often each is best."""
    methods = list(dict.fromkeys(r["method"] for r in rows))
    lines, best = [], dict.fromkeys(methods, 0)
    for dataset in dict.fromkeys(r["dataset"] for r in rows):
        means = {}
        for method in methods:
            values = [
                r[field]
                for r in rows
                if (r["dataset"], r["method"]) == (dataset, method)
            ]
            means[method] = float(np.mean(values)) if values else np.nan
        sign = 1 if field in LOW_IS_GOOD else -1
        first = min(means, key=lambda m: (np.isnan(means[m]), sign * means[m]))
        best[first] += 1
        cells = [f"{means[m]:.3f}" for m in methods]
        bold = [
            f"**{c}**" if m == first else c for m, c in zip(methods, cells, strict=True)
        ]
        lines.append([dataset, *bold])
    lines.append(["best on", *(str(best[m]) for m in methods)])
    name = {"rho": "rho", "auroc": "foreign"}.get(field, field)
    return markdown_table([name, *methods], lines)


def _causes(rows: Sequence[Row]) -> str:
    lines = [
        [
            str(r["seed"]),
            f"{r['aleatoric_first']:.3f}",
            f"{r['epistemic_first']:.3f}",
            f"{r['additivity']:.1e}",
            f"{1000 * r['seconds_per_row']:.0f}",
        ]
        for r in rows
    ]
    header = ["seed", "noise column first", "missing column first"]
    return markdown_table([*header, "largest error of the sum", "ms per row"], lines)


def _csv(rows: Sequence[Row]) -> str:
    """Every figure of every run."""
    header = list(dict.fromkeys(name for row in rows for name in row))
    lines = [[_cell(row.get(name)) for name in header] for row in rows]
    return csv_table(header, lines)


def _cell(value: object) -> object:
    if value is None:
        return ""
    return f"{value:.5g}" if isinstance(value, float) else value
