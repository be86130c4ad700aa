"""Tables of ``benchmarks reasons``."""

from collections.abc import Sequence
from pathlib import Path

from ..studies.data import PAPER_DATASETS
from ..studies.rows import by_dataset, paired_differences, values_of, where
from ..studies.scoring import estimate, geometric_estimate, stratified_estimate
from ..studies.store import Row
from ..studies.text import csv_table, markdown_table, number, plus_minus

REMOTENESS = "CLAPS, remoteness"  # in place of the epistemic part
RANKING = {
    "rho": "rho",
    "rho_here": "rho, known region",
    "sparsification": "sparse",
    "share_of_best": "share",
    "top_fifth": "top fifth",
    "auroc": "foreign",
}
TRUTH = {
    "noise_error": "mean abs. log(h²/σ²)",
    "noise_rho": "rho of h² with σ²",
    "size_here": "epistemic / squared error, known region",
    "size_foreign": "the same, foreign",
}
AGAINST = {
    "CLAPS": ("rho", "sparsification", "share_of_best", "auroc"),
    REMOTENESS: ("auroc",),
}
ERRORS = {
    "error_here": "squared error / variance of y, known region",
    "error_foreign": "the same, foreign",
}
CAUSES = {
    "seed": ("seed", 1, ""),
    "noise column first": ("aleatoric_first", 1, ".3f"),
    "missing column first": ("epistemic_first", 1, ".3f"),
    "largest error of the sum": ("additivity", 1, ".1e"),
    "ms per row of a quarter": ("seconds_per_row_few", 1000, ".1f"),
    "ms per row of all": ("seconds_per_row_all", 1000, ".1f"),
}
LOW_IS_GOOD = {"sparsification", "noise_error", "collect"}
RATIOS = {"size_here", "size_foreign", "collect", *ERRORS}  # geometric means


def report(rows: Sequence[Row], out: Path) -> str:
    """All tables, as text and in files."""
    parts, real = [], where(rows, kind="real")
    groups = {
        "Known mean and noise": where(rows, kind="known"),
        "The paper's data sets": [r for r in real if r["dataset"] in PAPER_DATASETS],
        "Other real data sets": [r for r in real if r["dataset"] not in PAPER_DATASETS],
    }
    for title, found in groups.items():
        if not found:
            continue
        fields = RANKING | (TRUTH if title.startswith("Known") else ERRORS)
        parts.append(f"### {title}\n\n{_summary(found, fields)}")
        for ours, compared in AGAINST.items():
            if where(found, method=ours):
                parts.append(_against(ours, found, compared))
        own = [row for row in found if row["method"] != REMOTENESS]
        parts += [_by_dataset(own, "rho"), _by_dataset(found, "auroc")]
    if collected := where(rows, kind="collect"):
        summary = _summary(collected, {"collect": "error / random rows"})
        parts += [f"### Collecting\n\n{summary}", _by_dataset(collected, "collect")]
    if causes := where(rows, kind="causes"):
        lines = [
            [f"{scale * row[field]:{form}}" for field, scale, form in CAUSES.values()]
            for row in causes
        ]
        parts.append("### Causes\n\n" + markdown_table([*CAUSES], lines))
    parts.append(
        "Means over data sets ± standard error over seeds; of ratios geometric means. "
        f"{len(values_of(rows, 'seed'))} seeds.\n"
    )
    text = "\n".join(parts)
    (out / "reasons.md").write_text(text, encoding="utf-8")
    (out / "reasons.csv").write_text(_csv(rows), encoding="utf-8")
    return text


def _summary(rows: Sequence[Row], fields: dict[str, str]) -> str:
    """One line per method."""
    lines = [
        [method, *(_mean(where(rows, method=method), field) for field in fields)]
        for method in values_of(rows, "method")
    ]
    return markdown_table(["model", *fields.values()], lines)


def _mean(rows: Sequence[Row], field: str) -> str:
    """Mean over data sets ± standard error over seeds; nothing if not measured."""
    strata = by_dataset([row for row in rows if field in row], field)
    if not strata:
        return ""
    if field in RATIOS:
        return plus_minus(geometric_estimate(strata), ".2f", ".2f")
    return plus_minus(stratified_estimate(strata), ".3f", ".3f")


def _against(ours: str, rows: Sequence[Row], fields: Sequence[str]) -> str:
    """By how much it is better than each other model, and on how many data sets."""
    lines, mine = [], where(rows, method=ours)
    for method in values_of(rows, "method"):
        if method in AGAINST:
            continue
        others, cells = where(rows, method=method), []
        for field in fields:
            pair = (others, mine) if field in LOW_IS_GOOD else (mine, others)
            gains = paired_differences(*pair, field)
            ahead = sum(estimate(each).mean > 0 for each in gains.values())
            mean = plus_minus(stratified_estimate(gains), "+.3f", ".3f")
            cells.append(f"{mean}, on {ahead} of {len(gains)}")
        lines.append([method, *cells])
    header = [RANKING[field] for field in fields]
    return markdown_table([f"{ours} is better than", *header], lines)


def _by_dataset(rows: Sequence[Row], field: str) -> str:
    """One line per data set, the best model in bold; how often each is best."""
    methods, choose = values_of(rows, "method"), min if field in LOW_IS_GOOD else max
    lines, best = [], dict.fromkeys(methods, 0)
    for dataset in values_of(rows, "dataset"):
        here = where(rows, dataset=dataset)
        means = {
            m: estimate(r[field] for r in where(here, method=m)).mean for m in methods
        }
        first = choose(values_of(here, "method"), key=means.__getitem__)
        best[first] += 1
        cells = {m: number(mean, ".3f") for m, mean in means.items()}
        cells[first] = f"**{cells[first]}**"
        lines.append([dataset, *cells.values()])
    lines.append(["best on", *map(str, best.values())])
    return markdown_table([RANKING.get(field, field), *methods], lines)


def _csv(rows: Sequence[Row]) -> str:
    """Every figure of every run."""
    header = list(dict.fromkeys(name for row in rows for name in row))
    cells = ([row.get(name) for name in header] for row in rows)
    lines = [[f"{c:.5g}" if isinstance(c, float) else c for c in row] for row in cells]
    return csv_table(header, lines)
