"""Our figures beside the published ones: tables, claims of the paper, pictures.

``published`` holds the tables of the paper, and ``claims.csv`` the claims of its
analyses. A line of that file is one check on an experiment; a line without a claim
continues the claim above it, which holds if all its checks do.

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
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import engine
import numpy as np
from engine import PAPER_DATASETS, Array, Estimate, Row, estimate, values_of, where

FOLDER = Path(__file__).parent / "published"
Rows = Mapping[str, Sequence[Row]]  # by experiment

# Tables -------------------------------------------------------------------------------

#: Columns of the published tables, and the fields of our rows that they are about.
COLUMNS = {
    "Marg. Cov.": "coverage",
    "Sparse Cov.": "sparse_coverage",
    "Noisy Cov.": "noisy_coverage",
    "Region Gap": "region_gap",
    "Cov. LACP": "coverage_lacp",
    "Cov. CLAPS": "coverage_claps",
    "Coverage": "coverage",
    "Cov. Err.": "coverage_error",
    "Viol. Rate": "violation",
    "Avg. Width": "width",
    "Int. Score": "score",
    "Rel. Width Red.": "width_reduction",
    "Width Rank": "width_rank",
    "Score Rank": "score_rank",
    "Width Ratio": "width_ratio",
    "Score delta": "score_difference",
    "Epi. Frac.": "epistemic_fraction",
    "Epi. Frac. of Means": "epistemic_fraction_of_means",
    "Scale Ratio": "scale_ratio",
    "Min h2": "min_h2",
    "P01 h2": "p01_h2",
    "Floor Active": "floor_active",
}
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


def label_of(value: Any) -> str:
    """A method, case or grid value of ours as text."""
    return value if isinstance(value, str) else f"{value:g}"


def fill(table: Table, rows: Sequence[Row]) -> list[Row]:
    """All cells: mean and deviation over seeds, beside what the paper gives.

    NaN where there is no run, or where the paper gives nothing.
    """
    found = []
    for line in published(table.name):
        label = next(iter(line.values()))
        wanted = label_of(float(label)) if table.key == "value" else label
        mine = [
            row
            for row in rows
            if table.case in (None, row["case"]) and label_of(row[table.key]) == wanted
        ]
        by_seed = [where(mine, seed=seed) for seed in values_of(mine, "seed")]
        shown = [c for c in line if c in COLUMNS for c in (c, *[SECOND] * (c == FIRST))]
        for column in shown:
            field, printed = COLUMNS[column], FIRST if column == SECOND else column
            each = [float(np.mean([row[field] for row in seed])) for seed in by_seed]
            mean = float(np.mean(each)) if each else math.nan
            sd = float(np.std(each, ddof=1)) if len(each) > 1 else math.nan
            paper = float(line.get(printed, math.nan))
            cell = {"row": label, "column": column, "ours": mean, "sd": sd}
            cell |= {"seeds": len(each), "paper": paper}
            cell["paper_sd"] = float(line.get(f"{printed} sd", math.nan))
            found.append(cell | {"difference": mean - paper})
    return found


def cells_to_markdown(cells: Sequence[Row]) -> str:
    """Three lines for each row: ours, the paper's, the difference."""
    columns, lines = values_of(cells, "column"), []
    for label in values_of(cells, "row"):
        row = where(cells, row=label)
        differences = [_decimals(c["difference"], "+") for c in row]
        lines += [
            [label, "ours", *(_with_sd(c["ours"], c["sd"]) for c in row)],
            ["", "paper", *(_with_sd(c["paper"], c["paper_sd"]) for c in row)],
            ["", "difference", *(d.replace("-", "−") for d in differences)],
        ]
    return engine.markdown_table(
        ["", "", *columns], lines, align="ll" + "r" * len(columns)
    )


def _decimals(value: float, sign: str = "") -> str:
    """Four decimals, as the paper, fewer where numbers are large."""
    return engine.number(value, f"{sign}.4f" if abs(value) < 100 else f"{sign}.1f")


def _with_sd(mean: float, sd: float) -> str:
    return _decimals(mean) + ("" if math.isnan(sd) else f" ± {_decimals(sd)}")


def rows_to_csv(rows: Sequence[Row], digits: str) -> str:
    """One line per row, its floats with so many digits, an empty cell for NaN."""
    lines = [
        [f"{v:{digits}}" if isinstance(v, float) else v for v in row.values()]
        for row in rows
    ]
    return engine.csv_table(
        rows[0], [["" if v == "nan" else v for v in x] for x in lines]
    )


def distances(rows: Sequence[Row]) -> list[Row]:
    """log(ours / published) of scores and widths, by data set and method."""
    found = []
    for case in PAPER_DATASETS:
        ours = where(rows, case=case)
        for line in published(f"exp3_{case}") if ours else ():
            mine = where(ours, method=line["Method"])
            ratios = {
                f"log_{name}_ratio": math.log(
                    np.mean([row[name] for row in mine]) / float(line[label])
                )
                for name, label in (("score", "Int. Score"), ("width", "Avg. Width"))
            }
            found.append({"case": case, "method": line["Method"]} | ratios)
    return found


def mean_distance(found: Sequence[Row]) -> Array:
    ratios = [[d["log_score_ratio"], d["log_width_ratio"]] for d in found]
    return np.asarray(np.mean(np.abs(ratios), axis=0))


def distances_to_markdown(found: Sequence[Row]) -> str:
    """Mean |log ratio|, score / width, by data set and method, and their means."""
    methods = values_of(found, "method")
    groups = {case: where(found, case=case) for case in values_of(found, "case")}
    lines = []
    for name, group in (groups | {"**all**": list(found)}).items():
        means = [mean_distance(where(group, method=m)) for m in methods]
        pairs = [f"{score:.2f} / {width:.2f}" for score, width in means]
        lines.append([name, *pairs, f"{np.mean(mean_distance(group)):.3f}"])
    header = ["score / width", *methods, "all"]
    return engine.markdown_table(header, lines, align="l" + "r" * (len(header) - 1))


def write_output(rows: Rows, out: Path, failed: Collection[str]) -> list[Path]:
    """Every row of every run, tables, distances and the report of claims."""
    files = {f"rows/{n}.csv": rows_to_csv(r, ".8g") for n, r in rows.items() if r}
    for table in TABLES:
        if ours := rows.get(table.experiment):
            cells = fill(table, ours)
            files[f"tables/{table.name}.csv"] = rows_to_csv(cells, ".6g")
            files[f"tables/{table.name}.md"] = cells_to_markdown(cells)
    for experiment, name in DISTANCE_TABLES.items():
        if found := distances(rows.get(experiment, ())):
            files[f"tables/{name}.csv"] = rows_to_csv(found, ".4f")
            files[f"tables/{name}.md"] = distances_to_markdown(found)
    files["report.md"] = report_of(rows, failed)
    return engine.write_files(files, out)


# Claims -------------------------------------------------------------------------------

# Fields that are differences already, and are written with their sign.
DIFFERENCES = ("score_difference", "relative_score", "width_reduction")
RELATION = re.compile(r"([a-z ]+) (-?[\d.e-]+)(?: of ([\d.]+))?")
CLEAR = 2.0  # standard errors
Runs = Mapping[tuple[str, int], float]  # by data set and seed
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

    def __init__(self, line: Mapping[str, str], rows: Sequence[Row]) -> None:
        self.line, self.of, self.against = line, line["of"], line["against"]
        self.measures = _split(line["measure"])
        self.relations = [r for r in line["relation"].split(" and ") if r]
        self.key = next(t.key for t in TABLES if t.experiment == line["experiment"])
        names = _split(line["on"].removeprefix("together: "))
        each = names == ["each"]
        self.rows = [r for r in rows if each or not names or r["case"] in names]
        # Data sets on each of which the relation is asked for.
        apart = each or (len(names) > 1 and not line["on"].startswith("together"))
        self.cases = values_of(self.rows, "case") if apart else []
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
        labels = map(label_of, values_of(self.rows, self.key))
        runs = {label: self._runs(measure, label, case) for label in labels}
        if self.of == "span":
            means = [_mean(r).mean for r in runs.values()]
            return {"span": Estimate(max(means) - min(means), math.nan, len(means))}
        if self.of == "steps":
            return {f"{a} to {b}": _paired(runs[b], runs[a]) for a, b in pairwise(runs)}
        wanted = list(runs) if self.of == "each" else _split(self.of)
        if not self.against:
            return {one: _mean(runs[one]) for one in wanted}
        if self.against == "mean of data sets":
            return {f"{one} − {self.against}": _gap(runs[one]) for one in wanted}
        relative = self.against.startswith("/")
        others = _split(self.against.removeprefix("/"))
        return {
            f"{one} {'to' if relative else '−'} {other}": _paired(
                runs[one], runs[other], relative
            )
            for one in wanted
            for other in (runs if others == ["others"] else others)
            if other != one
        }

    def _runs(self, measure: str, label: str, case: str | None) -> Runs:
        whole = self.key == "case"  # where the case is what is compared
        return {
            ("" if whole else row["case"], row["seed"]): _value(row, measure)
            for row in self.rows
            if label_of(row[self.key]) == label and case in (None, row["case"])
        }

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


def _value(row: Row, measure: str) -> float:
    match measure.split():
        case [first, "-", second]:
            return float(row[first] - row[second])
        case [first, "/", second]:
            return float(row[first] / row[second])
    return float(row[measure])


def _mean(runs: Runs) -> Estimate:
    """Mean of the means of all data sets, which are taken as given.

    The standard error comes from the seeds within each; what differs between data sets
    does not enter it.
    """
    names = dict.fromkeys(name for name, _ in runs)
    each = [estimate(v for (n, _), v in runs.items() if n == name) for name in names]
    mean = float(np.mean([e.mean for e in each])) if each else math.nan
    error = math.sqrt(sum(e.error**2 for e in each)) / len(each) if each else math.nan
    return Estimate(mean, error, len(runs))


def _gap(runs: Runs) -> Estimate:
    """Mean over all runs, minus the mean of the means of data sets."""
    whole = estimate(runs.values())
    return Estimate(whole.mean - _mean(runs).mean, math.nan, whole.n)


def _paired(one: Runs, other: Runs, relative: bool = False) -> Estimate:
    pairs = {key: (value, other[key]) for key, value in one.items() if key in other}
    return _mean({k: a / b - 1 if relative else a - b for k, (a, b) in pairs.items()})


def as_text(found: Estimate, signed: bool) -> str:
    """Mean ± standard error with four decimals, fewer where numbers are large."""
    mean, error = (
        f"{v:.4f}" if abs(v) < 10 else f"{v:.2f}"
        for v in (abs(found.mean), found.error)
    )
    sign = "−" if found.mean < 0 else "+" if signed else ""
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
        if ours:
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
    rows = {n: r for n, r in rows.items() if r and n not in failed}
    found = check_claims(rows)
    held = sum(not why for *_, why in found)
    seeds = ", ".join(f"{n} {len(values_of(r, 'seed'))}" for n, r in rows.items())
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
        if all(rows.get(experiment) for experiment in needed):
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


def _cells(experiment: str, rows: Rows) -> list[Row]:
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
    if column == FIRST:
        means = [c["ours"] for c in where(cells, column=SECOND)]
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
        chosen = where(cells, column=column)[::-1]
        names = [c["row"] for c in chosen]
        ax.hlines(names, 1, 6, color="0.9", lw=1)
        ax.plot([c["ours"] for c in chosen], names, "o", color=OURS, label="ours")
        ax.plot([c["paper"] for c in chosen], names, "s", color=PAPER, label="paper")
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
