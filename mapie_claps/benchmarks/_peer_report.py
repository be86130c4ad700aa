"""Tables, headline and picture of the ``peers`` benchmark."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ..experiments.tables import published
from ..studies import scoring
from ..studies.data import PAPER_DATASETS, Array
from ..studies.rows import grouped, values_of, where
from ..studies.scoring import Estimate, estimate, geometric_mean
from ..studies.store import Row
from ..studies.text import (
    csv_table,
    lowest_in_bold,
    markdown_table,
    number,
    plus_minus,
)
from ._peer_table import BY_NAME, CLAPS, FIRST_PEERS

LEFT_OUT = "naval"  # nearly free of noise: its ratio would rule the mean
#: Fields of a row that are averaged, with their names in tables.
MEASURES = {
    "coverage": "coverage",
    "width": "width",
    "interval_score": "interval score",
    "crps": "CRPS",
    "cv_score": "CV score",
    "tune_seconds": "tuning (s)",
    "fit_seconds": "fit (s)",
    "predict_seconds": "predict (s)",
}
# Okabe and Ito's palette, which the colour-blind can tell apart; markers differ too.
COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#CC79A7", "#999")
MARKERS = "osD^vPXhp<>"
LOOK: dict[str, Any] = {"markeredgecolor": "black", "markeredgewidth": 0.6}
LOOK |= {"linestyle": "none", "markersize": 7}
CLAPS_LOOK: dict[str, Any] = {"color": "#D55E00", "marker": "*", "markersize": 11}
TITLE = """# CLAPS against tuned peers

Interval score, mean ± standard error over seeds, lower is better. For each data \
set and seed the peer with the lowest cross-validated interval score on the training \
rows is picked, among the peers without CatBoost ("ratio") and among all of them \
("ratio to all"). Only seeds that every method has finished count.
"""
Table = dict[tuple[str, str], dict[str, Estimate]]


@dataclass(frozen=True)
class PeerComparison:
    """CLAPS and the peers on one data set, over the seeds that all methods have.

    What says something of CLAPS is NaN if it was not run.
    """

    dataset: str
    n_seeds: int
    picked: dict[str, int]  # how often each peer was picked on training rows
    peer: Estimate  # interval score of the peer picked for each seed
    best_peer: str  # the lowest mean test score, seen afterwards
    best_score: float
    limits: tuple[float, float]  # 99.9 % limits of the mean coverage
    claps: Estimate  # interval score of CLAPS
    ratio: Estimate  # to the picked peer; error of paired differences
    ratio_to_all: Estimate  # to the peer picked among all
    coverage: float  # mean coverage of CLAPS

    @property
    def paper(self) -> float | None:
        """Interval score of CLAPS at level 0.9 as published."""
        if self.dataset not in PAPER_DATASETS:
            return None
        lines = published(f"exp3_{self.dataset}")
        return next(float(x["Int. Score"]) for x in lines if x["Method"] == "CLAPS")


def methods_of(rows: Sequence[Row]) -> list[str]:
    """Names of the methods, in the order of the table of methods."""
    present = values_of(rows, "method")
    return [name for name in BY_NAME if name in present]


def aggregate(rows: Sequence[Row]) -> Table:
    """Estimates of all measures by data set and method."""
    return {
        (dataset, method): {m: estimate(r.get(m) for r in found) for m in MEASURES}
        for dataset, method in product(values_of(rows, "dataset"), methods_of(rows))
        if (found := where(rows, dataset=dataset, method=method))
    }


def compare(rows: Sequence[Row], dataset: str) -> PeerComparison | None:
    """Compare on one data set; None if no seed has a finished run of every method."""
    methods = methods_of(rows)
    peers = [name for name in methods if name != CLAPS]
    by_seed = sorted(grouped(where(rows, dataset=dataset), "seed").items())
    all_runs = [{row["method"]: row for row in found} for _, found in by_seed]
    runs = [run for run in all_runs if set(run) == set(methods)]
    if not runs or not peers:
        return None

    def picked(among: Sequence[str]) -> list[Row]:
        """The peer with the lowest score on training rows, for each seed."""
        return [min((run[p] for p in among), key=_training_score) for run in runs]

    # Without any of the first peers there is one comparison, with those there are.
    picks = picked([p for p in peers if p in FIRST_PEERS] or peers)
    names, scores = [row["method"] for row in picks], _values(picks, "interval_score")
    means = {p: _values([r[p] for r in runs], "interval_score").mean() for p in peers}
    best = min(means, key=means.__getitem__)
    ours = [run.get(CLAPS, {}) for run in runs]
    claps = _values(ours, "interval_score")
    sizes = [scoring.SplitSize(row["n_cal"], row["n_test"]) for row in picks]
    return PeerComparison(
        dataset,
        n_seeds=len(runs),
        picked={p: names.count(p) for p in peers if p in names},
        peer=estimate(scores),
        best_peer=best,
        best_score=float(means[best]),
        limits=scoring.coverage_limits(sizes, picks[0]["alpha"]),
        claps=estimate(claps),
        ratio=_ratio(claps, scores),
        ratio_to_all=_ratio(claps, _values(picked(peers), "interval_score")),
        coverage=float(_values(ours, "coverage").mean()),
    )


def _values(rows: Sequence[Row], field: str) -> Array:
    return np.array([row.get(field, math.nan) for row in rows])


def _training_score(row: Row) -> float:
    score = row["cv_score"]
    return math.inf if score is None else float(score)  # not tuned: the last picked


def _ratio(scores: Array, others: Array) -> Estimate:
    """Ratio of the means; its error is that of paired differences."""
    share = float(scores.mean() / others.mean())
    error = estimate(scores - share * others).error / float(others.mean())
    return Estimate(share, error, len(scores))


def write_report(rows: Sequence[Row], out: Path) -> str:
    """Write table.csv, report.md and scores.png, and return the text of the report."""
    if not rows:
        return "No finished runs.\n"
    table, names = aggregate(rows), values_of(rows, "dataset")
    comparisons = [c for name in names if (c := compare(rows, name))]
    parts = headline(comparisons), score_table(rows, table), detail_table(table)
    text = "\n".join([*parts, chosen_parameters(rows)])
    (out / "table.csv").write_text(csv_of(table), encoding="utf-8")
    (out / "report.md").write_text(text, encoding="utf-8")
    draw(table, comparisons, out / "scores.png")
    return text


def headline(comparisons: Sequence[PeerComparison]) -> str:
    """CLAPS against the peer that was picked on training rows, in Markdown."""
    lines = [
        [
            c.dataset,
            str(c.n_seeds),
            plus_minus(c.claps),
            plus_minus(c.peer),
            ", ".join(f"{BY_NAME[p].label} {n}×" for p, n in c.picked.items()),
            plus_minus(c.ratio),
            plus_minus(c.ratio_to_all),
            f"{number(c.best_score)} ({BY_NAME[c.best_peer].label})",
            number(c.paper),
            number(c.coverage),
            f"{c.limits[0]:.4f} to {c.limits[1]:.4f}",
        ]
        for c in comparisons
    ]
    header = ["data", "seeds", "CLAPS", "picked peer", "picks", "ratio", "ratio to all"]
    header += ["best peer afterwards", "CLAPS in the paper", "coverage of CLAPS"]
    table = markdown_table([*header, "99.9 % limits"], lines)
    return "\n".join([TITLE, table, _verdict(comparisons)])


def _verdict(comparisons: Sequence[PeerComparison]) -> str:
    """Wins, geometric means and coverage in sentences."""
    played = [c for c in comparisons if not math.isnan(c.claps.mean)]
    if not played:
        return "CLAPS was not run, or no seed has all methods: no comparison.\n"
    n = len(played)
    wins, mean, without = _summary({c.dataset: c.ratio.mean for c in played})
    to_all = _summary({c.dataset: c.ratio_to_all.mean for c in played})
    best = sum(c.claps.mean < c.best_score for c in played)
    inside = sum(c.limits[0] <= c.coverage <= c.limits[1] for c in played)
    below = [c.claps.mean < c.paper for c in played if c.paper]
    with_catboost = f"better on {to_all[0]} of {n}, geometric mean {to_all[1]}"
    with_catboost += f", without {LEFT_OUT} {to_all[2]}" if without else ""
    sentences = {
        f"CLAPS is better than the picked peer on {wins} of {n} data sets": True,
        f"Geometric mean of the ratio: {mean}": True,
        f"With CatBoost among the peers: {with_catboost}": True,
        f"The same without {LEFT_OUT}: {without}": without,
        f"CLAPS is better than the peer best afterwards on {best} of {n}": True,
        f"Mean coverage of CLAPS is inside its limits on {inside} of {n}": True,
        f"CLAPS is below its published score on {sum(below)} of {len(below)}": below,
    }
    return "".join(f"- {text}.\n" for text, said in sentences.items() if said)


def _summary(ratios: dict[str, float]) -> tuple[int, str, str]:
    """Wins, geometric mean, and the mean without one set, "" if it is not there."""
    others = [ratio for name, ratio in ratios.items() if name != LEFT_OUT]
    without = f"{geometric_mean(others):.3f}" if len(others) < len(ratios) else ""
    values = list(ratios.values())
    return sum(r < 1 for r in values), f"{geometric_mean(values):.3f}", without


def score_table(rows: Sequence[Row], table: Table) -> str:
    """Interval score, one line per data set, one column per method."""
    methods, nothing = methods_of(rows), {"interval_score": estimate([])}
    lines = []
    for dataset in values_of(rows, "dataset"):
        found = (table.get((dataset, m), nothing)["interval_score"] for m in methods)
        lines.append([dataset, *lowest_in_bold(found)])
    header = ["data", *(BY_NAME[m].label for m in methods)]
    return "## Interval score\n\n" + markdown_table(header, lines)


def detail_table(table: Table) -> str:
    """All measures, one line per data set and method."""
    lines = [
        [d, BY_NAME[m].label, str(e["coverage"].n), *map(plus_minus, e.values())]
        for (d, m), e in table.items()
    ]
    header = ["data", "method", "seeds", *MEASURES.values()]
    return "## All measures\n\n" + markdown_table(header, lines)


def chosen_parameters(rows: Sequence[Row]) -> str:
    """How often each grid entry was chosen."""

    def text(params: dict[str, Any]) -> str:
        short = ((k, f"{v:.3g}" if type(v) is float else v) for k, v in params.items())
        return ", ".join(f"{k}={v}" for k, v in short)

    tuned = [row for row in rows if row["cv_score"] is not None]
    counts = Counter((row["method"], text(row["params"])) for row in tuned)
    order = list(BY_NAME)
    ranked = sorted(counts.items(), key=lambda x: (order.index(x[0][0]), -x[1]))
    lines = [[BY_NAME[method].label, params, str(n)] for (method, params), n in ranked]
    header = ["method", "parameters", "runs"]
    return "## Chosen parameters\n\n" + markdown_table(header, lines)


def csv_of(table: Table) -> str:
    """Means and standard errors in full precision."""
    names = [f"{m}_{part}" for m in MEASURES for part in ("mean", "se")]
    lines = []
    for key, found in table.items():
        values = [v for e in found.values() for v in (e.mean, e.error)]
        cells = ["" if math.isnan(v) else v for v in values]
        lines.append([*key, found["coverage"].n, *cells])
    return csv_table(["dataset", "method", "seeds", *names], lines)


def draw(table: Table, comparisons: Sequence[PeerComparison], path: Path) -> None:
    """Score of each method relative to the picked peer, on a logarithmic scale."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.add_subplot()
    methods = [m for m in BY_NAME if m in {name for _, name in table}]
    for j, method in enumerate(methods):
        shift = 0.08 * (j - len(methods) / 2)
        points = [
            (i + shift, found["interval_score"].mean / c.peer.mean)
            for i, c in enumerate(comparisons)
            if (found := table.get((c.dataset, method)))
        ]
        own = {"color": COLOURS[j % len(COLOURS)], "marker": MARKERS[j % len(MARKERS)]}
        look = LOOK | (CLAPS_LOOK if method == CLAPS else own)
        axes.plot(*zip(*points, strict=True), label=BY_NAME[method].label, **look)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xticks(range(len(comparisons)), [c.dataset for c in comparisons])
    axes.set_ylabel("interval score / that of the picked peer")
    axes.set_title("Below the line: better than the peer picked on training rows")
    axes.grid(axis="y", alpha=0.3)
    if comparisons:
        figure.legend(loc="outside right center", frameon=False)
    figure.savefig(path, dpi=150)
