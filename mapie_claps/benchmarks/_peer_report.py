"""Tables, headline and picture of the ``peers`` benchmark."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ..experiments.tables import published
from ..studies import scoring
from ..studies.data import PAPER_DATASETS, Array
from ..studies.rows import values_of, where
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
EDGE: dict[str, Any] = {"markeredgecolor": "black", "markeredgewidth": 0.6}
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
    """CLAPS and the peers on one data set, over the seeds that all methods have."""

    dataset: str
    n_seeds: int
    picked: dict[str, int]  # how often each peer was picked on training rows
    peer: Estimate  # interval score of the peer picked for each seed
    best_peer: str  # the lowest mean test score, seen afterwards
    best_score: float
    limits: tuple[float, float]  # 99.9 % limits of the mean coverage
    claps: Estimate | None = None  # interval score of CLAPS, if it was run
    ratio: Estimate | None = None  # to the picked peer; error of paired differences
    coverage: float | None = None  # mean coverage of CLAPS
    picked_of_all: dict[str, int] | None = None  # the same among all peers
    ratio_to_all: Estimate | None = None

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


Runs = Sequence[dict[str, Row]]  # of each seed by method


def compare(rows: Sequence[Row], dataset: str) -> PeerComparison | None:
    """Compare on one data set; None if no seed has a finished run of every method."""
    methods = methods_of(rows)
    peers = [name for name in methods if name != CLAPS]
    here = where(rows, dataset=dataset)
    by_seed = [
        {row["method"]: row for row in where(here, seed=seed)}
        for seed in sorted(values_of(here, "seed"))
    ]
    runs = [run for run in by_seed if set(run) == set(methods)]
    if not runs or not peers:
        return None
    # Without any of the first peers there is one comparison, with those there are.
    counts, picked = _picked(runs, [p for p in peers if p in FIRST_PEERS] or peers)
    counts_of_all, picked_of_all = _picked(runs, peers)
    means = {p: float(np.mean([r[p]["interval_score"] for r in runs])) for p in peers}
    best = min(peers, key=lambda name: means[name])
    first = [run[peers[0]] for run in runs]
    sizes = [scoring.SplitSize(row["n_cal"], row["n_test"]) for row in first]
    limits = scoring.coverage_limits(sizes, first[0]["alpha"])
    peer = estimate(picked)
    found = PeerComparison(dataset, len(runs), counts, peer, best, means[best], limits)
    if CLAPS not in methods:
        return found
    scores = np.array([run[CLAPS]["interval_score"] for run in runs])
    return replace(
        found,
        claps=estimate(scores),
        ratio=_ratio(scores, picked),
        coverage=estimate(run[CLAPS]["coverage"] for run in runs).mean,
        picked_of_all=counts_of_all,
        ratio_to_all=_ratio(scores, picked_of_all),
    )


def _picked(runs: Runs, peers: Sequence[str]) -> tuple[dict[str, int], Array]:
    """How often each peer is picked on training rows, and the scores of the picked."""

    def by_training_rows(run: dict[str, Row], name: str) -> float:
        score = run[name]["cv_score"]
        return math.inf if score is None else score  # not tuned: the last to be picked

    picks = [min(peers, key=partial(by_training_rows, run)) for run in runs]
    scores = [run[p]["interval_score"] for run, p in zip(runs, picks, strict=True)]
    return {p: picks.count(p) for p in peers if p in picks}, np.array(scores)


def _ratio(scores: Array, others: Array) -> Estimate:
    """Ratio of the means; its error is that of paired differences."""
    share = float(scores.mean() / others.mean())
    error = estimate(scores - share * others).error / float(others.mean())
    return Estimate(share, error, len(scores))


def write_report(rows: Sequence[Row], out: Path) -> str:
    """Write table.csv, report.md and scores.png, and return the text of the report."""
    if not rows:
        return "No finished runs.\n"
    table = aggregate(rows)
    names = values_of(rows, "dataset")
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
    header = ["data", "seeds", "CLAPS", "picked peer", "picks"]
    header += ["ratio", "ratio to all"]
    header += ["best peer afterwards", "CLAPS in the paper", "coverage of CLAPS"]
    table = markdown_table([*header, "99.9 % limits"], lines)
    return "\n".join([TITLE, table, _verdict(comparisons)])


def _verdict(comparisons: Sequence[PeerComparison]) -> str:
    """Wins, geometric means and coverage in sentences."""
    played = [
        (c, c.claps.mean, c.ratio.mean) for c in comparisons if c.claps and c.ratio
    ]
    if not played:
        return "CLAPS was not run, or no seed has all methods: no comparison.\n"
    n, ratios = len(played), [ratio for *_, ratio in played]
    others = [ratio for c, _, ratio in played if c.dataset != LEFT_OUT]
    wins = sum(ratio < 1 for ratio in ratios)
    best = sum(claps < c.best_score for c, claps, _ in played)
    inside = sum(c.limits[0] <= (c.coverage or 0) <= c.limits[1] for c, *_ in played)
    text = [
        f"- CLAPS is better than the picked peer on {wins} of {n} data sets.",
        f"- Geometric mean of the ratio: {geometric_mean(ratios):.3f}.",
        f"- CLAPS is better than the peer best afterwards on {best} of {n}.",
        f"- Mean coverage of CLAPS is inside its limits on {inside} of {n}.",
    ]
    if len(others) < n:
        text.insert(2, f"- The same without {LEFT_OUT}: {geometric_mean(others):.3f}.")
    text.insert(2, _verdict_to_all([c for c, *_ in played]))
    below = [claps < c.paper for c, claps, _ in played if c.paper]
    if below:
        count = f"{sum(below)} of {len(below)}"
        text.append(f"- CLAPS is below its published score on {count}.")
    return "\n".join(text) + "\n"


def _verdict_to_all(comparisons: Sequence[PeerComparison]) -> str:
    """Wins and geometric means against the peer picked among all."""
    found = {c.dataset: c.ratio_to_all.mean for c in comparisons if c.ratio_to_all}
    wins = sum(ratio < 1 for ratio in found.values())
    text = f"- With CatBoost among the peers: better on {wins} of {len(found)}, "
    text += f"geometric mean {geometric_mean(list(found.values())):.3f}"
    others = [ratio for name, ratio in found.items() if name != LEFT_OUT]
    if len(others) < len(found):
        text += f", without {LEFT_OUT} {geometric_mean(others):.3f}"
    return text + "."


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
        short = [f"{v:.3g}" if isinstance(v, float) else v for v in params.values()]
        return ", ".join(f"{k}={v}" for k, v in zip(params, short, strict=True))

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
        values = [v for m in MEASURES for v in (found[m].mean, found[m].error)]
        texts = ["" if math.isnan(v) else repr(v) for v in values]
        lines.append([*key, found["coverage"].n, *texts])
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
        colour, marker = COLOURS[j % len(COLOURS)], MARKERS[j % len(MARKERS)]
        look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 7}
        look = EDGE | (CLAPS_LOOK if method == CLAPS else look)
        label, places = BY_NAME[method].label, zip(*points, strict=True)
        axes.plot(*places, linestyle="none", label=label, **look)
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
