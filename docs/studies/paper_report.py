"""Our figures beside the published ones: tables, claims of the paper, pictures.

``published`` holds the tables of the paper, ``columns.csv`` the fields of our rows that
their columns are about, and ``claims.csv`` the claims of its analyses. A line of claims
is one check on an experiment; a line without a claim continues the claim above it,
which holds if all its checks do.

measure   fields of our rows, or "a - b" or "a / b" of two of them
of        methods, sizes or grid values; "each" of them; "steps" from each to the next;
          "span", the largest mean minus the smallest
against   what is subtracted, run by run; "/" before it for relative differences;
          "others" for all methods but the one; "mean of data sets"
on        data sets, on each of which the relation is asked for; "each" for all;
          "together: …" for some of them taken together; empty for all together
needed    on how many of them it must hold; empty for all
relation  "clearly above 0" (by two standard errors), "clearly below 0", "not clearly
          below 0", "above 0", "below 0", "within 0.1 of 1" (these three are about
          the mean alone), joined by "and"; empty for figures that are only shown
note      shown where the claim does not hold
"""

import math
import re
from collections.abc import Callable, Collection, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import engine
import numpy as np
import pandas as pd
from engine import PAPER_DATASETS, Array, Estimate

FOLDER = Path(__file__).parent / "published"
Frame = pd.DataFrame
Rows = Mapping[str, Frame]  # by experiment

# Tables -------------------------------------------------------------------------------

#: A second reading of a published column, which our tables show after the first.
FIRST, SECOND = "Epi. Frac.", "Epi. Frac. of Means"
#: Experiments on real data, and the names of their tables of distances.
DISTANCE_TABLES = {"benchmark": "distance", "further_seeds": "distance_further_seeds"}
GRIDS = {
    "prior_precision": "app_prior_precision_sensitivity",
    "calibration_size": "app_calibration_size_sensitivity",
    "representation_size": "app_feature_dimension_sensitivity",
    "variance_floor": "app_variance_floor_sensitivity",
}


CELL = "row", "column", "ours", "sd", "seeds", "paper", "paper_sd", "difference"


class Table(NamedTuple):
    """One published table and where its figures are found in our rows."""

    name: str  # of the file in published/
    experiment: str
    key: str  # of our rows, which the first column of the table is about
    case: str | None = None  # the data set, if it is about one


TABLES = (
    Table("exp1_synthetic_mechanism", "mechanism", "method"),
    Table("exp2_contraction", "contraction", "case"),
    Table("exp3_real_benchmark", "benchmark", "method"),
    *(Table(f"exp3_{name}", "benchmark", "method", name) for name in PAPER_DATASETS),
    *(Table(name, experiment, "value") for experiment, name in GRIDS.items()),
)


@cache
def published(name: str) -> list[dict[str, str]]:
    return engine.read_csv(FOLDER / f"{name}.csv")


COLUMNS = {line["column"]: line["field"] for line in published("columns")}


def label_of(value: Any) -> str:
    """A method, case or grid value of ours as text."""
    return value if isinstance(value, str) else f"{value:g}"


def fill(table: Table, rows: Frame) -> Frame:
    """All cells: mean and deviation over seeds, beside what the paper gives.

    NaN where there is no run, or where the paper gives nothing.
    """
    own = rows if table.case is None else rows[rows["case"] == table.case]
    labels = own[table.key].map(label_of).rename("label")
    by_seed = own.groupby([labels, "seed"]).mean(numeric_only=True).reset_index()
    found = []
    for line in published(table.name):
        label = next(iter(line.values()))
        wanted = label_of(float(label)) if table.key == "value" else label
        seeds = by_seed[by_seed["label"] == wanted]
        shown = [c for c in line if c in COLUMNS for c in (c, *[SECOND] * (c == FIRST))]
        for column in shown:
            ours, printed = (
                seeds[COLUMNS[column]],
                FIRST if column == SECOND else column,
            )
            names = printed, f"{printed} sd"
            paper, paper_sd = (float(line.get(name, "nan")) for name in names)
            cell = label, column, ours.mean(), ours.std(), len(ours), paper, paper_sd
            found.append((*cell, ours.mean() - paper))
    return Frame(found, columns=CELL)


def cells_to_markdown(cells: Frame) -> str:
    """Three lines for each row: ours, the paper's, the difference."""
    columns, lines = cells["column"].unique().tolist(), []
    for label, row in cells.groupby("row", sort=False):
        differences = [_decimals(value, "+") for value in row["difference"]]
        lines += [
            [label, "ours", *map(_with_sd, row["ours"], row["sd"])],
            ["", "paper", *map(_with_sd, row["paper"], row["paper_sd"])],
            ["", "difference", *(d.replace("-", "−") for d in differences)],
        ]
    return engine.markdown_table(["", "", *columns], lines, "ll" + "r" * len(columns))


def _decimals(value: float, sign: str = "") -> str:
    """Four decimals, as the paper, fewer where numbers are large."""
    return engine.number(value, f"{sign}.4f" if abs(value) < 100 else f"{sign}.1f")


def _with_sd(mean: float, sd: float) -> str:
    return _decimals(mean) + ("" if math.isnan(sd) else f" ± {_decimals(sd)}")


def distances(rows: Frame) -> Frame:
    """log(ours / published) of scores and widths, by data set and method."""
    ours, found = rows.groupby(["case", "method"])[["score", "width"]].mean(), []
    for case in PAPER_DATASETS:
        for line in published(f"exp3_{case}"):
            if (key := (case, line["Method"])) in ours.index:
                theirs = [float(line[name]) for name in ("Int. Score", "Avg. Width")]
                found.append((*key, *np.log(ours.loc[key] / theirs)))
    names = "case", "method", "log_score_ratio", "log_width_ratio"
    return Frame(found, columns=names)


def mean_distance(found: Frame) -> Array:
    ratios = found[["log_score_ratio", "log_width_ratio"]]
    return np.asarray(ratios.abs().mean())


def distances_to_markdown(found: Frame) -> str:
    """Mean |log ratio|, score / width, by data set and method, and their means."""
    methods, lines = found["method"].unique().tolist(), []
    groups = [*found.groupby("case", sort=False), ("**all**", found)]
    for name, group in groups:
        means = [mean_distance(group[group["method"] == m]) for m in methods]
        pairs = [f"{score:.2f} / {width:.2f}" for score, width in means]
        lines.append([name, *pairs, f"{np.mean(mean_distance(group)):.3f}"])
    header = ["score / width", *methods, "all"]
    return engine.markdown_table(header, lines, align="l" + "r" * (len(header) - 1))


def write_output(rows: Rows, out: Path, failed: Collection[str]) -> list[Path]:
    """Every row of every run, tables, distances and the report of claims."""
    files = {f"rows/{name}.csv": to_csv(own, "%.8g") for name, own in rows.items()}
    for table in TABLES:
        if table.experiment in rows:
            cells = fill(table, rows[table.experiment])
            files[f"tables/{table.name}.csv"] = to_csv(cells, "%.6g")
            files[f"tables/{table.name}.md"] = cells_to_markdown(cells)
    for experiment, name in DISTANCE_TABLES.items():
        if experiment in rows:
            found = distances(rows[experiment])
            files[f"tables/{name}.csv"] = to_csv(found, "%.4f")
            files[f"tables/{name}.md"] = distances_to_markdown(found)
    files["report.md"] = report_of(rows, failed)
    return engine.write_files(files, out)


def to_csv(frame: Frame, digits: str) -> str:
    return str(frame.to_csv(index=False, float_format=digits))


# Claims -------------------------------------------------------------------------------

# Fields that are differences already, and are written with their sign.
DIFFERENCES = ("score_difference", "relative_score", "width_reduction")
RELATION = re.compile(r"([a-z ]+) (-?[\d.e-]+)(?: of ([\d.]+))?")
CLEAR = 2.0  # standard errors
Runs = Any  # a series of numbers by data set and seed
Found = dict[str, Estimate]


def holds(relation: str, found: Estimate) -> bool:
    """Whether an estimate is as the table claims."""
    match = RELATION.fullmatch(relation)
    if match is None:
        raise ValueError(
            f"Got the relation {relation!r}, but expected one of those above."
        )
    words, number, centre = match[1], float(match[2]), float(match[3] or 0)
    beyond = found.mean - number
    clear = abs(beyond) >= CLEAR * found.error  # never, if the error is NaN
    return {
        "clearly above": beyond > 0 and clear,
        "clearly below": beyond < 0 and clear,
        "not clearly below": math.isfinite(found.error) and not (beyond < 0 and clear),
        "above": beyond > 0,
        "below": beyond < 0,
        "within": abs(found.mean - centre) < number,
    }[words]


class Check:
    """One line of the table on the rows of its experiment."""

    def __init__(self, line: Mapping[str, str], rows: Frame) -> None:
        self.line, self.of, self.against = line, line["of"], line["against"]
        self.measures = _split(line["measure"])
        self.relations = [r for r in line["relation"].split(" and ") if r]
        self.key = next(t.key for t in TABLES if t.experiment == line["experiment"])
        names = _split(line["on"].removeprefix("together: "))
        each = names == ["each"]
        own = rows if each or not names else rows[rows["case"].isin(names)]
        # Where the case is what is compared, its runs are those of one data set.
        group = "" if self.key == "case" else own["case"]
        own = own.assign(label=own[self.key].map(label_of), group=group)
        self.rows = own.set_index(["group", "seed"])
        # Data sets on each of which the relation is asked for.
        apart = each or (len(names) > 1 and not line["on"].startswith("together"))
        self.cases = own["case"].unique().tolist() if apart else []
        difference = bool(self.against) or self.of == "steps"
        self.signed = difference or line["measure"] in DIFFERENCES

    def estimates(self, case: str | None = None) -> Found:
        """Estimates by name, of one data set or of all together."""
        several = len(self.measures) > 1
        return {
            (f"{_words(measure)}, {name}" if several else name): found
            for measure in self.measures
            for name, found in self._of_measure(measure, case).items()
        }

    def _of_measure(self, measure: str, case: str | None) -> Found:
        own = self.rows if case is None else self.rows[self.rows["case"] == case]
        values = own.eval(measure)
        runs = {n: values[own["label"] == n] for n in self.rows["label"].unique()}
        if self.of == "span":
            means = [_mean(r).mean for r in runs.values()]
            return {"span": Estimate(max(means) - min(means), math.nan, len(means))}
        if self.of == "steps":
            return {f"{a} to {b}": _mean(runs[b] - runs[a]) for a, b in pairwise(runs)}
        wanted = list(runs) if self.of == "each" else _split(self.of)
        if not self.against:
            return {one: _mean(runs[one]) for one in wanted}
        if self.against == "mean of data sets":
            return {f"{one} − {self.against}": _gap(runs[one]) for one in wanted}
        relative = self.against.startswith("/")
        others = _split(self.against.removeprefix("/"))
        pairs = [
            (one, other)
            for one in wanted
            for other in (runs if others == ["others"] else others)
            if other != one
        ]
        if relative:
            return {f"{a} to {b}": _mean(runs[a] / runs[b] - 1) for a, b in pairs}
        return {f"{a} − {b}": _mean(runs[a] - runs[b]) for a, b in pairs}

    def result(self) -> tuple[str, str]:
        """Figures, and where the check does not hold, in words."""
        title = f"{_words(self.measures[0])}: " if len(self.measures) == 1 else ""
        if not self.cases:
            found = self.estimates()
            return title + self._listed(found), ", ".join(self._failed(found))
        by_case = {case: self.estimates(case) for case in self.cases}
        names = list(by_case[self.cases[0]])
        title += f"{names[0]}, on " if len(names) == 1 else ""
        weakest = "; ".join(f"{c} {self._weakest(f)}" for c, f in by_case.items())
        if not self.relations:
            return title + weakest, ""
        good = [case for case, found in by_case.items() if not self._failed(found)]
        needed = int(self.line["needed"] or len(self.cases))
        count = f"on {len(good)} of {len(self.cases)} data sets"
        which = f"{self.line['relation']} {count} ({', '.join(good) or 'none'})"
        why = f"{count}, where {needed} are asked for"
        return f"{which}; {title}{weakest}", "" if len(good) >= needed else why

    def _failed(self, found: Found) -> list[str]:
        return [
            n for n, e in found.items() if not all(holds(r, e) for r in self.relations)
        ]

    def _listed(self, found: Found) -> str:
        colon = "" if self.key == "method" else ":"
        texts = {name: as_text(e, self.signed) for name, e in found.items()}
        return "; ".join(f"{name}{colon} {text}" for name, text in texts.items())

    def _weakest(self, found: Found) -> str:
        """The estimate of each measure that supports the claim least."""
        sign = 1 if "clearly above" in self.line["relation"] else -1
        texts = []
        for m in self.measures:
            own = {n: e for n, e in found.items() if n.startswith(_words(m))} or found
            name = min(own, key=lambda n: sign * own[n].mean)
            text = as_text(own[name], self.signed)
            texts.append(f"{text} ({name})" if len(found) > 1 else text)
        return ", ".join(texts)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(";") if part.strip()]


def _words(measure: str) -> str:
    return measure.replace("_", " ")


def _mean(runs: Runs) -> Estimate:
    """Mean of the means of all data sets, which are taken as given.

    The standard error comes from the seeds within each; what differs between data sets
    does not enter it. Differences are of the runs that both have.
    """
    each = runs.dropna().groupby(level=0).agg(["mean", "sem"])
    error = (each["sem"] ** 2).sum(skipna=False) ** 0.5 / max(len(each), 1)
    return Estimate(float(each["mean"].mean()), float(error), len(runs))


def _gap(runs: Runs) -> Estimate:
    """Mean over all runs, minus the mean of the means of data sets."""
    return Estimate(float(runs.mean()) - _mean(runs).mean, math.nan, len(runs))


def as_text(found: Estimate, signed: bool) -> str:
    """Mean ± standard error with four decimals, fewer where numbers are large."""
    mean, error = (
        f"{v:.4f}" if abs(v) < 10 else f"{v:.2f}"
        for v in (abs(found.mean), found.error)
    )
    sign = "−" if round(found.mean, 9) < 0 else "+" if signed else ""
    return sign + mean + ("" if math.isnan(found.error) else f" ± {error}")


def check_claims(rows: Rows) -> list[tuple[str, str, str, str]]:
    """Source, claim, our figures, and why it does not hold, empty if it does."""
    table: list[list[dict[str, str]]] = []
    for line in published("claims"):
        if line["claim"]:
            table.append([])
        table[-1].append(line)
    claims = []
    for lines in table:
        first, ours = lines[0], rows.get(lines[0]["experiment"])
        if ours is not None:
            checks = [Check(line, ours).result() for line in lines]
            figures, missing = zip(*checks, strict=True)
            missing = [m for m in missing if m]
            note = f" ({first['note']})" if first["note"] else ""
            why = f"not {', '.join(missing)}{note}" if missing else ""
            text = "; ".join(figures)
            claims.append((first["source"], first["claim"], text, why))
    return claims


HOW_TO_READ = f"""# Claims of the paper, checked

Each line restates one claim of the paper's analyses of its results, with our figure: a
mean ± its standard error over runs. Differences are taken run by run (same data set,
same seed, same split). A claim of direction holds if the mean has the claimed sign and
is at least {CLEAR:g} standard errors from zero, on as many data sets as the line says;
with one seed there is no standard error, and no direction is clear. A claim that there
is no gain holds if no gain is clear. A claim of size is about the mean alone: "near" is
within 0.02 for a coverage and 0.05 for a ratio. Where several methods are compared on
several data sets, the comparison that supports the claim least is shown. Data sets are
taken as given: standard errors come from the seeds within each, which share rows of
real data, so that they are somewhat too small.
"""


def report_of(rows: Rows, failed: Collection[str]) -> str:
    """The report of all experiments that are finished.

    A mean over some of the data sets says nothing about a claim: experiments of which
    runs failed are only listed.
    """
    rows = {n: r for n, r in rows.items() if n not in failed}
    found = check_claims(rows)
    held = sum(not why for *_, why in found)
    seeds = ", ".join(f"{n} {r['seed'].nunique()}" for n, r in rows.items())
    parts = [HOW_TO_READ, f"{held} of {len(found)} claims hold. Seeds: {seeds}.\n"]
    if failed:
        parts.append(f"Not checked, because runs failed: {', '.join(failed)}.\n")
    for source in dict.fromkeys(claim[0] for claim in found):
        lines = [
            [text, figures, f"**does not hold**: {why}" if why else "holds"]
            for own, text, figures, why in found
            if own == source
        ]
        table = engine.markdown_table(["claim", "ours", "verdict"], lines)
        parts.append(f"## {source}\n\n{table}")
    return "\n".join(parts)


# Pictures -----------------------------------------------------------------------------

OURS, PAPER = "#1f6f8b", "#c2592e"
Bands = Callable[[Array, Array], tuple[Any, dict[str, Array]]]


def write_figures(rows: Rows, folder: Path, bands: Bands) -> list[Path]:
    # The object interface leaves pyplot, its backend and its state alone.
    from matplotlib.figure import Figure

    figures: dict[str, tuple[Any, Any, Any]] = {
        "mechanism": ((10, 5.5), ["mechanism"], lambda f, _: draw_mechanism(f, bands)),
        "contraction": ((10, 3), ["contraction"], draw_contraction),
        "benchmark_ranks": ((7, 3.2), ["benchmark"], draw_ranks),
        "sensitivity": ((10, 7), GRIDS, draw_sensitivity),
    }
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, (size, needed, draw) in figures.items():
        if set(needed) <= set(rows):
            figure = Figure(figsize=size, layout="constrained")
            draw(figure, rows)
            written.append(folder / f"{name}.png")
            figure.savefig(written[-1], dpi=90)
    return written


def draw_mechanism(figure: Any, bands: Bands) -> None:
    from mapie_claps.datasets import NOISY, SPARSE

    x = np.linspace(-4, 4, 400)
    mean = np.sin(1.5 * x) + 0.3 * x
    split, intervals = bands(x, mean)
    axes = figure.subplots(2, 3, sharex=True, sharey=True)
    for ax, (method, bounds) in zip(axes.flat, intervals.items(), strict=True):
        ax.axvspan(*NOISY, color="0.88", lw=0)
        ax.axvspan(*SPARSE, color="#f3e3c3", lw=0)
        ax.plot(split.X_train[:, 0], split.y_train, ".", ms=2, color="0.45")
        ax.fill_between(x, *bounds.T, color=OURS, alpha=0.35, lw=0)
        ax.plot(x, mean, color="black", lw=1)
        ax.set_title(method)
    figure.suptitle(
        "90 % intervals, true mean (line), training points; "
        "sparse region left, noisy region right"
    )


def _cells(experiment: str, rows: Rows) -> Frame:
    table = next(t for t in TABLES if t.experiment == experiment)
    return fill(table, rows[experiment])


def _curve(ax: Any, cells: Frame, column: str, scale: str = "log") -> None:
    """Ours with its standard deviation, and the paper's; a second reading if any."""
    own = cells[cells["column"] == column]
    x, sd = own["row"].astype(float).tolist(), own["sd"].fillna(0.0)
    style = {"color": OURS, "marker": "o", "ms": 4, "capsize": 2}
    ax.errorbar(x, own["ours"], sd, label="ours", **style)
    ax.plot(x, own["paper"], color=PAPER, marker="s", ms=4, ls="--", label="paper")
    if column == FIRST:
        means = cells.loc[cells["column"] == SECOND, "ours"]
        ax.plot(x, means, color=OURS, ls=":", label="ours, ratio of means")
    ax.set_xscale(scale, **({"base": 2} if x[-1] == 128 else {}))


def draw_contraction(figure: Any, rows: Rows) -> None:
    cells = _cells("contraction", rows)
    columns = ("Epi. Frac.", "Scale Ratio", "Width Ratio", "Score delta")
    for ax, column in zip(figure.subplots(1, 4), columns, strict=True):
        _curve(ax, cells, column)
        ax.set_title(column)
        ax.set_xlabel("training rows")
        ax.legend(frameon=False, fontsize=8)


def draw_ranks(figure: Any, rows: Rows) -> None:
    cells = _cells("benchmark", rows)
    axes = figure.subplots(1, 2, sharey=True)
    for ax, column in zip(axes, ("Width Rank", "Score Rank"), strict=True):
        own = cells[cells["column"] == column][::-1]
        ax.hlines(own["row"], 1, 6, color="0.9", lw=1)
        ax.plot(own["ours"], own["row"], "o", color=OURS, label="ours")
        ax.plot(own["paper"], own["row"], "s", color=PAPER, label="paper")
        ax.set_xlim(0.8, 6.2)
        ax.set_title(f"{column} (1 is best)")
    axes[1].legend(frameon=False, fontsize=8, loc="upper right")


def draw_sensitivity(figure: Any, rows: Rows) -> None:
    columns = ("Coverage", "Width Ratio", "Epi. Frac.")
    axes = figure.subplots(len(columns), len(GRIDS))
    for down, grid in zip(axes.T, GRIDS, strict=True):
        cells = _cells(grid, rows)
        for ax, column in zip(down, columns, strict=True):
            _curve(ax, cells, column, "linear" if grid == "calibration_size" else "log")
        down[0].set_title(grid.replace("_", " "))
        down[0].axhline(0.9, color="0.6", lw=0.8)
    for ax, column in zip(axes[:, 0], columns, strict=True):
        ax.set_ylabel(column)
    entries = axes[-1, 0].get_legend_handles_labels()
    figure.legend(*entries, loc="outside lower center", ncols=3, frameon=False)
