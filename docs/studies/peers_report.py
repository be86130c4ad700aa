"""Tables, headline and picture of the ``peers`` study."""

import math
from collections.abc import Sequence
from pathlib import Path

import engine
import numpy as np
import pandas as pd
from engine import Estimate, Row, estimate, number, plus_minus
from paper_report import published
from scipy.stats import betabinom, gmean

#: Names of the methods in stored runs, and in tables, in their order.
LABELS = {
    "cqr-histgb": "CQR HistGB (MAPIE)",
    "split-histgb": "Split HistGB (MAPIE)",
    "normalised-histgb": "Residual-normalised HistGB (MAPIE)",
    "cqr-forest": "Quantile forest + CQR",
    "crepes": "RF + difficulty (crepes)",
    "ngboost": "NGBoost + std score",
    "gp": "GP (ARD) + std score",
    "cqr-catboost": "CatBoost MultiQuantile + CQR",
    "std-catboost": "CatBoost mean and variance + std score",
    "claps": "CLAPS",
}
ALPHA, CLAPS = 0.1, "claps"
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
MARKERS = "osD^vPXhp*"
TITLE = """# CLAPS against tuned peers

{}
Interval score, mean ± standard error over seeds, lower is better. For each data \
set and seed the peer with the lowest cross-validated interval score on the training \
rows is picked. Only seeds that every method has finished count.
"""
Frame = pd.DataFrame
Table = dict[tuple[str, str], dict[str, Estimate]]


def aggregate(frame: Frame) -> Table:
    """Estimates by data set, in the order of the runs, and method, in that above."""
    groups = dict(list(frame.groupby(["dataset", "method"])))
    return {
        (dataset, method): {m: estimate(groups[dataset, method][m]) for m in MEASURES}
        for dataset in frame["dataset"].unique()
        for method in LABELS
        if (dataset, method) in groups
    }


def compare(frame: Frame, dataset: str) -> Row | None:
    """CLAPS and the peers on one data set, over the seeds that all methods have.

    None if there is no such seed. What is said of CLAPS is NaN if it was not run.
    """
    own = frame[frame["dataset"] == dataset].sort_values("seed")
    n_methods = own.groupby("seed")["method"].transform("nunique")
    own = own[n_methods == frame["method"].nunique()]
    ours, peers = own[own["method"] == CLAPS], own[own["method"] != CLAPS]
    if peers.empty:
        return None
    # For each seed, the peer with the lowest score on training rows.
    picks = peers.loc[peers.groupby("seed")["cv_score"].idxmin()]
    means = peers.groupby("method")["interval_score"].mean()
    scores = picks["interval_score"].to_numpy()
    claps = ours["interval_score"].to_numpy() if len(ours) else np.nan * scores
    published_score = None
    if dataset in engine.PAPER_DATASETS:
        lines = published(f"exp3_{dataset}")
        of_claps = next(line for line in lines if line["Method"] == "CLAPS")
        published_score = float(of_claps["Int. Score"])
    ratio = float(claps.mean() / scores.mean())
    error = estimate(claps - ratio * scores).error / float(scores.mean())
    return {
        "dataset": dataset,
        "n_seeds": len(picks),
        "picked": picks["method"].value_counts(),
        "peer": estimate(scores),
        "best": means.idxmin(),  # seen afterwards
        "best_score": float(means.min()),
        "limits": coverage_limits(picks[["n_cal", "n_test"]].to_numpy().tolist()),
        "claps": estimate(claps),
        "ratio": Estimate(ratio, error, len(picks)),  # error of paired differences
        "coverage": float(ours["coverage"].mean()),
        "paper": published_score,
    }


def coverage_limits(sizes: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """99.9 % limits of the mean coverage of runs with so many calibration, test rows.

    Given the fit and its calibration rows, test rows are covered independently with a
    probability that is Beta(k, n + 1 − k), whatever the model. So each run is a
    beta-binomial count, and their sum a convolution.
    """
    pmf = np.ones(1)
    for n_cal, n_test in sizes:
        k = engine.covered_rank(n_cal, ALPHA)
        law = betabinom.pmf(np.arange(n_test + 1), n_test, k, n_cal + 1 - k)
        pmf = np.convolve(pmf, law)
    low, high = (np.searchsorted(np.cumsum(p), 5e-4, "right") for p in (pmf, pmf[::-1]))
    n = len(pmf) - 1
    return float(low / n), float((n - high) / n)


def write_report(rows: Sequence[Row], out: Path) -> str:
    """Write table.csv, report.md and scores.png, and return the text of the report."""
    if not rows:
        return "No finished runs.\n"
    frame = Frame(rows)
    table, names = aggregate(frame), frame["dataset"].unique()
    comparisons = [c for name in names if (c := compare(frame, name))]
    text = "\n".join([headline(comparisons), score_table(table), detail_table(table)])
    engine.write_files({"table.csv": csv_of(table), "report.md": text}, out)
    draw(table, comparisons, out / "scores.png")
    return text


def headline(comparisons: Sequence[Row]) -> str:
    """CLAPS against the peer that was picked on training rows, in Markdown."""
    lines = [
        [
            c["dataset"],
            str(c["n_seeds"]),
            plus_minus(c["claps"]),
            plus_minus(c["peer"]),
            ", ".join(f"{LABELS[p]} {n}×" for p in LABELS if (n := c["picked"].get(p))),
            plus_minus(c["ratio"]),
            f"{number(c['best_score'])} ({LABELS[c['best']]})",
            number(c["paper"]),
            number(c["coverage"]),
            "{:.4f} to {:.4f}".format(*c["limits"]),
        ]
        for c in comparisons
    ]
    header = ["data", "seeds", "CLAPS", "picked peer", "picks", "ratio"]
    header += ["best peer afterwards", "CLAPS in the paper", "coverage of CLAPS"]
    table = engine.markdown_table([*header, "99.9 % limits"], lines)
    played = [c for c in comparisons if not math.isnan(c["claps"].mean)]
    return "\n".join([TITLE.format(verdict(played)), table])


def verdict(played: Sequence[Row]) -> str:
    if not played:
        return "CLAPS was not run, or no seed has all methods: no comparison.\n"
    ratios = {c["dataset"]: c["ratio"].mean for c in played}
    others = [r for name, r in ratios.items() if name != LEFT_OUT]
    n, mean = len(played), gmean(list(ratios.values()))
    wins = sum(r < 1 for r in ratios.values())
    best = sum(c["claps"].mean < c["best_score"] for c in played)
    inside = sum(c["limits"][0] <= c["coverage"] <= c["limits"][1] for c in played)
    below = [c["claps"].mean < c["paper"] for c in played if c["paper"]]
    sentences = {
        f"CLAPS is better than the picked peer on {wins} of {n} data sets": True,
        f"Geometric mean of the ratio: {mean:.3f}": True,
        f"The same without {LEFT_OUT}: {gmean(others or [1.0]):.3f}": len(others) < n,
        f"CLAPS is better than the peer best afterwards on {best} of {n}": True,
        f"Mean coverage of CLAPS is inside its limits on {inside} of {n}": True,
        f"CLAPS is below its published score on {sum(below)} of {len(below)}": below,
    }
    return "".join(f"- {text}.\n" for text, said in sentences.items() if said)


def score_table(table: Table) -> str:
    methods = [m for m in LABELS if m in {name for _, name in table}]
    nothing, lines = {"interval_score": estimate([])}, []
    for dataset in dict.fromkeys(name for name, _ in table):
        found = [table.get((dataset, m), nothing)["interval_score"] for m in methods]
        best = min(e.mean for e in found if e.n)
        texts = [(plus_minus(e), e.mean == best) for e in found]
        lines.append([dataset, *(f"**{t}**" if bold else t for t, bold in texts)])
    header = ["data", *(LABELS[m] for m in methods)]
    return "## Interval score\n\n" + engine.markdown_table(header, lines)


def detail_table(table: Table) -> str:
    lines = [
        [d, LABELS[m], str(e["coverage"].n), *map(plus_minus, e.values())]
        for (d, m), e in table.items()
    ]
    header = ["data", "method", "seeds", *MEASURES.values()]
    return "## All measures\n\n" + engine.markdown_table(header, lines)


def csv_of(table: Table) -> str:
    names = [f"{m}_{part}" for m in MEASURES for part in ("mean", "se")]
    lines = []
    for key, found in table.items():
        values = [v for e in found.values() for v in (e.mean, e.error)]
        cells = ["" if math.isnan(v) else v for v in values]
        lines.append([*key, found["coverage"].n, *cells])
    return Frame(lines, columns=["dataset", "method", "seeds", *names]).to_csv(
        index=False
    )


def draw(table: Table, comparisons: Sequence[Row], path: Path) -> None:
    """Score of each method relative to the picked peer, on a logarithmic scale."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.add_subplot()
    methods = [m for m in LABELS if m in {name for _, name in table}]
    for j, method in enumerate(methods):
        shift = 0.08 * (j - len(methods) / 2)
        points = [
            (i + shift, found["interval_score"].mean / c["peer"].mean)
            for i, c in enumerate(comparisons)
            if (found := table.get((c["dataset"], method)))
        ]
        look = {"color": COLOURS[j % len(COLOURS)], "marker": MARKERS[j], "ms": 7}
        if method == CLAPS:
            look |= {"color": "#D55E00", "marker": "*", "ms": 11}
        x, y = zip(*points, strict=True)
        axes.plot(x, y, label=LABELS[method], ls="none", mec="black", mew=0.6, **look)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xticks(range(len(comparisons)), [c["dataset"] for c in comparisons])
    axes.set_ylabel("interval score / that of the picked peer")
    axes.set_title("Below the line: better than the peer picked on training rows")
    axes.grid(axis="y", alpha=0.3)
    if comparisons:
        figure.legend(loc="outside right center", frameon=False)
    figure.savefig(path, dpi=150)
