"""Figures where a picture says more than a table. Needs matplotlib (extra ``plot``)."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..datasets import NOISY, SPARSE
from ..studies.store import Row
from .experiment import Options
from .protocol import METHODS, SYNTHETIC
from .tables import SECOND_READING, TABLES, Cell, fill

OURS, PAPER = "#1f6f8b", "#c2592e"
DPI = 90


def write_figures(
    rows: Mapping[str, list[Row]], folder: Path, options: Options
) -> list[Path]:
    """PNG files of all experiments that have rows; none without matplotlib."""
    try:
        # The object interface leaves pyplot, its backend and its state alone.
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return []
    grids = [t.experiment for t in TABLES if t.key == "value"]
    figures: list[tuple[str, tuple[float, float], list[str], Callable[..., None]]] = [
        ("mechanism", (10, 5.5), ["mechanism"], draw_mechanism),
        ("contraction", (10, 3), ["contraction"], draw_contraction),
        ("benchmark_ranks", (7, 3.2), ["benchmark"], draw_ranks),
        ("sensitivity", (10, 7), grids, draw_sensitivity),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, size, needed, draw in figures:
        if all(rows.get(experiment) for experiment in needed):
            figure = Figure(figsize=size, layout="constrained")
            FigureCanvasAgg(figure)
            draw(figure, options if draw is draw_mechanism else rows)
            written.append(folder / f"{name}.png")
            figure.savefig(written[-1], dpi=DPI)
    return written


def draw_mechanism(figure: Any, options: Options) -> None:
    """Intervals of every method over the whole domain, seed 0."""
    from .runs import synthetic_methods

    training = options.training(synthetic=True)
    methods, _ = synthetic_methods(SYNTHETIC["n_train"], 0, training)
    x = np.linspace(-4, 4, 400)
    mean = np.sin(1.5 * x) + 0.3 * x
    methods.split = split = methods.split._replace(X_test=x[:, None], y_test=mean)
    axes = figure.subplots(2, 3, sharex=True, sharey=True)
    for ax, method in zip(axes.flat, METHODS, strict=True):
        lower, upper = methods.interval(method).T
        ax.axvspan(*NOISY, color="0.88", lw=0)
        ax.axvspan(*SPARSE, color="#f3e3c3", lw=0)
        ax.plot(split.X_train[:, 0], split.y_train, ".", ms=2, color="0.45")
        ax.fill_between(x, lower, upper, color=OURS, alpha=0.35, lw=0)
        ax.plot(x, mean, color="black", lw=1)
        ax.set_title(method)
    figure.suptitle(
        "90 % intervals, true mean (line), training points; "
        "sparse region left, noisy region right"
    )


def _cells(name: str, rows: Mapping[str, list[Row]]) -> list[Cell]:
    table = next(t for t in TABLES if t.name == name)
    return fill(table, rows[table.experiment])


def _curve(ax: Any, cells: Sequence[Cell], column: str, log: bool = True) -> None:
    """Ours with its standard deviation, and the paper's; a second reading if any."""
    chosen = [c for c in cells if c.column == column]
    x = [float(c.row) for c in chosen]
    mean, paper = [c.mean for c in chosen], [c.paper for c in chosen]
    sd = np.nan_to_num([c.sd for c in chosen])
    ax.errorbar(x, mean, sd, color=OURS, marker="o", ms=4, capsize=2, label="ours")
    ax.plot(x, paper, color=PAPER, marker="s", ms=4, ls="--", label="paper")
    second = [c.mean for c in cells if c.column == SECOND_READING.get(column)]
    if second:
        ax.plot(x, second, color=OURS, ls=":", label="ours, ratio of means")
    if log:
        ax.set_xscale("log")
    ax.set_title(column)


def draw_contraction(figure: Any, rows: Mapping[str, list[Row]]) -> None:
    """The epistemic part as training rows are added."""
    cells = _cells("exp2_contraction", rows)
    columns = ("Epi. Frac.", "Scale Ratio", "Width Ratio", "Score delta")
    for ax, column in zip(figure.subplots(1, 4), columns, strict=True):
        _curve(ax, cells, column)
        ax.set_xlabel("training rows")
        ax.legend(frameon=False, fontsize=8)


def draw_ranks(figure: Any, rows: Mapping[str, list[Row]]) -> None:
    """Mean ranks of the methods on the real data."""
    cells = _cells("exp3_real_benchmark", rows)
    axes = figure.subplots(1, 2, sharey=True)
    for ax, column in zip(axes, ("Width Rank", "Score Rank"), strict=True):
        chosen = [c for c in cells if c.column == column][::-1]
        names = [c.row for c in chosen]
        ax.hlines(names, 1, 6, color="0.9", lw=1)
        ax.plot([c.mean for c in chosen], names, "o", color=OURS, label="ours")
        ax.plot([c.paper for c in chosen], names, "s", color=PAPER, label="paper")
        ax.set_xlim(0.8, 6.2)
        ax.set_title(f"{column} (1 is best)")
    axes[1].legend(frameon=False, fontsize=8, loc="upper right")


def draw_sensitivity(figure: Any, rows: Mapping[str, list[Row]]) -> None:
    """Coverage, width and epistemic share over the four grids."""
    tables = [t for t in TABLES if t.key == "value"]
    columns = ("Coverage", "Width Ratio", "Epi. Frac.")
    axes = figure.subplots(len(columns), len(tables))
    for j, table in enumerate(tables):
        cells = _cells(table.name, rows)
        for i, column in enumerate(columns):
            _curve(axes[i, j], cells, column, log=table.experiment[0] != "c")
            axes[i, j].set_title("")
            if table.experiment == "representation_size":
                axes[i, j].set_xscale("log", base=2)
            if j == 0:
                axes[i, j].set_ylabel(column)
        axes[0, j].set_title(table.experiment.replace("_", " "))
        axes[0, j].axhline(0.9, color="0.6", lw=0.8)
    entries = axes[-1, 0].get_legend_handles_labels()
    figure.legend(*entries, loc="outside lower center", ncols=3, frameon=False)
