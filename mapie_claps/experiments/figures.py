"""Figures where a picture says more than a table. Needs matplotlib (extra ``plot``)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..datasets import NOISY, SPARSE
from ..studies.rows import where
from ..studies.store import Row
from .experiment import Options
from .protocol import GRIDS, METHODS, SYNTHETIC
from .tables import SECOND_READING, TABLES, fill

OURS, PAPER = "#1f6f8b", "#c2592e"
DPI = 90
Rows = Mapping[str, list[Row]]


def write_figures(rows: Rows, folder: Path, options: Options) -> list[Path]:
    """PNG files of all experiments that have rows; none without matplotlib."""
    try:
        # The object interface leaves pyplot, its backend and its state alone.
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return []
    figures = {
        "mechanism": ((10, 5.5), ["mechanism"], draw_mechanism),
        "contraction": ((10, 3), ["contraction"], draw_contraction),
        "benchmark_ranks": ((7, 3.2), ["benchmark"], draw_ranks),
        "sensitivity": ((10, 7), GRIDS, draw_sensitivity),
    }
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, (size, needed, draw) in figures.items():
        if all(rows.get(experiment) for experiment in needed):
            figure = Figure(figsize=size, layout="constrained")
            FigureCanvasAgg(figure)
            draw(figure, rows, options)
            written.append(folder / f"{name}.png")
            figure.savefig(written[-1], dpi=DPI)
    return written


def draw_mechanism(figure: Any, rows: Rows, options: Options) -> None:
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


def _cells(experiment: str, rows: Rows) -> list[Row]:
    """Those of the experiment's first table."""
    table = next(t for t in TABLES if t.experiment == experiment)
    return fill(table, rows[experiment])


def _curve(ax: Any, cells: Sequence[Row], column: str, scale: str = "log") -> None:
    """Ours with its standard deviation, and the paper's; a second reading if any."""
    chosen = where(cells, column=column)
    x = [float(c["row"]) for c in chosen]
    mean, paper = [c["ours"] for c in chosen], [c["paper"] for c in chosen]
    sd = np.nan_to_num([c["sd"] for c in chosen])
    ax.errorbar(x, mean, sd, color=OURS, marker="o", ms=4, capsize=2, label="ours")
    ax.plot(x, paper, color=PAPER, marker="s", ms=4, ls="--", label="paper")
    second = where(cells, column=SECOND_READING.get(column))
    if second:
        means = [c["ours"] for c in second]
        ax.plot(x, means, color=OURS, ls=":", label="ours, ratio of means")
    ax.set_xscale(scale)


def draw_contraction(figure: Any, rows: Rows, options: Options) -> None:
    """The epistemic part as training rows are added."""
    cells = _cells("contraction", rows)
    columns = ("Epi. Frac.", "Scale Ratio", "Width Ratio", "Score delta")
    for ax, column in zip(figure.subplots(1, 4), columns, strict=True):
        _curve(ax, cells, column)
        ax.set_title(column)
        ax.set_xlabel("training rows")
        ax.legend(frameon=False, fontsize=8)


def draw_ranks(figure: Any, rows: Rows, options: Options) -> None:
    """Mean ranks of the methods on the real data."""
    cells = _cells("benchmark", rows)
    axes = figure.subplots(1, 2, sharey=True)
    for ax, column in zip(axes, ("Width Rank", "Score Rank"), strict=True):
        chosen = where(cells, column=column)[::-1]
        names = [c["row"] for c in chosen]
        ax.hlines(names, 1, 6, color="0.9", lw=1)
        ax.plot([c["ours"] for c in chosen], names, "o", color=OURS, label="ours")
        ax.plot([c["paper"] for c in chosen], names, "s", color=PAPER, label="paper")
        ax.set_xlim(0.8, 6.2)
        ax.set_title(f"{column} (1 is best)")
    axes[1].legend(frameon=False, fontsize=8, loc="upper right")


def draw_sensitivity(figure: Any, rows: Rows, options: Options) -> None:
    """Coverage, width and epistemic share over the four grids."""
    columns = ("Coverage", "Width Ratio", "Epi. Frac.")
    axes = figure.subplots(len(columns), len(GRIDS))
    for down, grid in zip(axes.T, GRIDS, strict=True):
        cells = _cells(grid, rows)
        for ax, column in zip(down, columns, strict=True):
            _curve(ax, cells, column, "linear" if grid == "calibration_size" else "log")
            if grid == "representation_size":
                ax.set_xscale("log", base=2)
        down[0].set_title(grid.replace("_", " "))
        down[0].axhline(0.9, color="0.6", lw=0.8)
    for ax, column in zip(axes[:, 0], columns, strict=True):
        ax.set_ylabel(column)
    entries = axes[-1, 0].get_legend_handles_labels()
    figure.legend(*entries, loc="outside lower center", ncols=3, frameon=False)
