"""Tables, headline and picture of the ``peers`` benchmark."""

import csv
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ._peers import BY_NAME, CLAPS
from ._runs import Row
from ._summary import (
    LEFT_OUT,
    MEASURES,
    PAPER_CLAPS,
    Cell,
    Contest,
    aggregate,
    contest,
    datasets_of,
    geometric_mean,
    methods_of,
)

# Okabe and Ito's palette, which the colour-blind can tell apart; markers differ too.
COLOURS = (
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#F0E442",
    "#0072B2",
    "#CC79A7",
    "#999999",
    "#D55E00",
)
MARKERS = "osD^vPX*"
Table = dict[tuple[str, str], dict[str, Cell]]


def write_report(rows: Sequence[Row], out: Path) -> str:
    """Write table.csv, report.md and scores.png, and return the text of the report.

    Parameters
    ----------
    rows : sequence of dict
        Finished runs.
    out : Path
        Folder to write to.

    Returns
    -------
    str
        The report in Markdown.
    """
    if not rows:
        return "No finished runs.\n"
    table = aggregate(rows)
    contests = [c for name in datasets_of(rows) if (c := contest(rows, name))]
    text = "\n".join(
        [
            headline(contests),
            score_table(rows, table),
            detail_table(table),
            chosen_parameters(rows),
        ]
    )
    _write_csv(table, out / "table.csv")
    (out / "report.md").write_text(text, encoding="utf-8")
    draw(table, contests, out / "scores.png")
    return text


def number(value: float | None) -> str:
    """Four significant digits, or a dash."""
    if value is None or math.isnan(value):
        return "–"
    return f"{value:.4g}"


def _plus_minus(cell: Cell) -> str:
    if math.isnan(cell.error):
        return number(cell.mean)
    return f"{number(cell.mean)} ± {cell.error:.2g}"


def _markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    table = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in table) + "\n"


def headline(contests: Sequence[Contest]) -> str:
    """CLAPS against the peer that was picked on training rows, in Markdown."""
    lines = []
    for c in contests:
        picked = ", ".join(f"{BY_NAME[p].label} {n}×" for p, n in c.picked.items())
        ratio = Cell(
            c.ratio if c.ratio is not None else math.nan,
            c.ratio_error if c.ratio_error is not None else math.nan,
            c.n_seeds,
        )
        low, high = c.limits
        lines.append(
            [
                c.dataset,
                str(c.n_seeds),
                _plus_minus(c.claps) if c.claps else "–",
                _plus_minus(c.peer),
                picked,
                _plus_minus(ratio),
                f"{number(c.best_score)} ({BY_NAME[c.best_peer].label})",
                number(PAPER_CLAPS.get(c.dataset)),
                number(c.coverage),
                f"{low:.4f} to {high:.4f}",
            ]
        )
    header = (
        "data",
        "seeds",
        "CLAPS",
        "picked peer",
        "picks",
        "ratio",
        "best peer afterwards",
        "CLAPS in the paper",
        "coverage of CLAPS",
        "99.9 % limits",
    )
    title = (
        "# CLAPS against tuned peers\n\n"
        "Interval score, mean ± standard error over seeds, lower is better. For each "
        "data set and seed the peer with the lowest cross-validated interval score on "
        "the training rows is picked. Only seeds that every method has finished count."
    )
    return "\n".join([title, "", _markdown(header, lines), _verdict(contests)])


def _verdict(contests: Sequence[Contest]) -> str:
    """Wins, geometric means and coverage in sentences."""
    played = [(c, c.ratio) for c in contests if c.ratio is not None]
    if not played:
        return "CLAPS was not run, or no seed has all methods: no comparison.\n"
    n = len(played)
    ratios = [ratio for _, ratio in played]
    others = [ratio for c, ratio in played if c.dataset != LEFT_OUT]
    wins = sum(ratio < 1 for ratio in ratios)
    best_wins = sum(c.claps.mean < c.best_score for c, _ in played if c.claps)
    inside = sum(
        c.limits[0] <= c.coverage <= c.limits[1]
        for c, _ in played
        if c.coverage is not None
    )
    text = [
        f"- CLAPS is better than the picked peer on {wins} of {n} data sets.",
        f"- Geometric mean of the ratio: {geometric_mean(ratios):.3f}.",
        f"- CLAPS is better than the peer best afterwards on {best_wins} of {n}.",
        f"- Mean coverage of CLAPS is inside its limits on {inside} of {n}.",
    ]
    if len(others) < n:
        text.insert(2, f"- The same without {LEFT_OUT}: {geometric_mean(others):.3f}.")
    known = [c for c, _ in played if c.dataset in PAPER_CLAPS and c.claps]
    if known:
        below = sum(c.claps.mean < PAPER_CLAPS[c.dataset] for c in known if c.claps)
        text.append(f"- CLAPS is below its published score on {below} of {len(known)}.")
    return "\n".join(text) + "\n"


def score_table(rows: Sequence[Row], table: Table) -> str:
    """Interval score, one line per data set, one column per method."""
    methods = methods_of(rows)
    lines = []
    for dataset in datasets_of(rows):
        cells = {
            m: table[dataset, m]["interval_score"]
            for m in methods
            if (dataset, m) in table
        }
        best = min(c.mean for c in cells.values())
        texts = []
        for m in methods:
            text = _plus_minus(cells[m]) if m in cells else "–"
            bold = m in cells and cells[m].mean == best
            texts.append(f"**{text}**" if bold else text)
        lines.append([dataset, *texts])
    header = ["data", *(BY_NAME[m].label for m in methods)]
    return "## Interval score\n\n" + _markdown(header, lines)


def detail_table(table: Table) -> str:
    """All measures, one line per data set and method."""
    lines = [
        [
            dataset,
            BY_NAME[method].label,
            str(cells["coverage"].n),
            *(_plus_minus(cells[measure]) for measure in MEASURES),
        ]
        for (dataset, method), cells in table.items()
    ]
    header = [
        "data",
        "method",
        "seeds",
        "coverage",
        "width",
        "interval score",
        "CV score",
        "tuning (s)",
        "fit (s)",
        "predict (s)",
    ]
    return "## All measures\n\n" + _markdown(header, lines)


def chosen_parameters(rows: Sequence[Row]) -> str:
    """How often each grid entry was chosen."""
    counts = Counter(
        (
            row["method"],
            ", ".join(
                f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}"
                for k, v in row["params"].items()
            ),
        )
        for row in rows
        if row["cv_score"] is not None
    )
    order = list(BY_NAME)
    lines = [
        [BY_NAME[method].label, params, str(n)]
        for (method, params), n in sorted(
            counts.items(), key=lambda item: (order.index(item[0][0]), -item[1])
        )
    ]
    return "## Chosen parameters\n\n" + _markdown(
        ["method", "parameters", "runs"], lines
    )


def _write_csv(table: Table, path: Path) -> None:
    names = [f"{m}_{part}" for m in MEASURES for part in ("mean", "se")]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["dataset", "method", "seeds", *names])
        for (dataset, method), cells in table.items():
            values = [v for m in MEASURES for v in (cells[m].mean, cells[m].error)]
            texts = ["" if math.isnan(v) else repr(v) for v in values]
            writer.writerow([dataset, method, cells["coverage"].n, *texts])


def draw(table: Table, contests: Sequence[Contest], path: Path) -> None:
    """Score of each method relative to the picked peer, on a logarithmic scale."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    methods = [m for m in BY_NAME if any(name == m for _, name in table)]
    looks = dict(zip(BY_NAME, zip(COLOURS, MARKERS, strict=True), strict=True))
    for j, method in enumerate(methods):
        points = [
            (
                i + 0.08 * (j - len(methods) / 2),
                cells["interval_score"].mean / c.peer.mean,
            )
            for i, c in enumerate(contests)
            if (cells := table.get((c.dataset, method)))
        ]
        colour, marker = looks[method]
        axes.plot(
            [x for x, _ in points],
            [ratio for _, ratio in points],
            linestyle="none",
            marker=marker,
            markersize=11 if method == CLAPS else 7,
            color=colour,
            markeredgecolor="black",
            markeredgewidth=0.6,
            label=BY_NAME[method].label,
        )
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xticks(range(len(contests)), [c.dataset for c in contests])
    axes.set_ylabel("interval score / that of the picked peer")
    axes.set_title("Below the line: better than the peer picked on training rows")
    axes.grid(axis="y", alpha=0.3)
    if contests:
        figure.legend(loc="outside right center", frameon=False)
    figure.savefig(path, dpi=150)
