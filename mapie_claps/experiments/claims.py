"""The claims of the paper's analyses, read from ``claims.csv`` and checked.

A line of the table is one check on an experiment; a line without a claim continues the
claim above it, which holds if all its checks do.

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
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ..studies.rows import by_dataset, paired_differences, paired_ratios, values_of
from ..studies.scoring import Estimate, estimate, stratified_estimate
from ..studies.store import Row
from .tables import TABLES, label_of, published, read_lines

# Fields that are differences already, and are written with their sign.
DIFFERENCES = ("score_difference", "relative_score", "width_reduction")
RELATION = re.compile(r"([a-z ]+) (-?[\d.e-]+)(?: of ([\d.]+))?")
QUANTILES = (
    "In experiment 1 the paper's CQR is 1.8 times as wide as its other adaptive "
    "methods. The settings of its quantile network are not given; ours has the same "
    "backbone, steps and rate as the other networks."
)
Found = dict[str, Estimate]


class Claim(NamedTuple):
    """A statement of the paper and what our runs say about it."""

    source: str
    text: str
    figures: str
    holds: bool
    why: str = ""  # shown where the claim does not hold


class Relation:
    """What is claimed of an estimate, in the words of the table."""

    def __init__(self, text: str) -> None:
        words, number, centre = RELATION.fullmatch(text).groups()  # type: ignore[union-attr]
        self.text, self.words = text, str(words)
        self.number, self.centre = float(number), float(centre or 0)
        # Direction of a claim about a direction, else 0.
        self.sign = {"clearly above": 1, "clearly below": -1}.get(self.words, 0)

    def holds(self, found: Estimate) -> bool:
        """Whether the estimate is as claimed."""
        below = found.below(self.number)
        return {
            "clearly above": found.above(self.number),
            "clearly below": below,
            "not clearly below": math.isfinite(found.error) and not below,
            "above": found.mean > self.number,
            "below": found.mean < self.number,
            "within": abs(found.mean - self.centre) < self.number,
        }[self.words]

    def shortfall(self, failed: Found) -> Iterator[str]:
        """Differences of the wrong sign, and those that are too small."""
        right = [n for n, e in failed.items() if self.sign * (e.mean - self.number) > 0]
        wrong = [n for n in failed if n not in right]
        if wrong:
            yield f"Not {self.text.removeprefix('clearly ')}: {', '.join(wrong)}."
        if right:
            near = f"less than two standard errors from {self.number:g}"
            yield f"Of the claimed sign, but {near}: {', '.join(right)}."


class Check:
    """One line of the table on the rows of its experiment."""

    def __init__(self, line: Mapping[str, str], rows: Sequence[Row]) -> None:
        self.line, self.of, self.against = line, line["of"], line["against"]
        self.measures = _split(line["measure"])
        self.relations = [Relation(r) for r in line["relation"].split(" and ") if r]
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

    def _runs(self, measure: str, label: str, case: str | None = None) -> list[Row]:
        """Measure of one label by data set and seed."""
        whole = self.key == "case"  # where the case is what is compared
        return [
            {"dataset": "" if whole else row["case"], "seed": row["seed"]}
            | {"value": _value(row, measure)}
            for row in self.rows
            if label_of(row[self.key]) == label and case in (None, row["case"])
        ]

    def result(self) -> tuple[str, str]:
        """Figures, and what is missing where the check does not hold."""
        title = f"{_words(self.measures[0])}: " if len(self.measures) == 1 else ""
        if not self.cases:
            found = self.estimates()
            return title + self._listed(found), self._shortfall(found)
        by_case = {case: self.estimates(case) for case in self.cases}
        names = list(by_case[self.cases[0]])
        title += f"{names[0]}, on " if len(names) == 1 else ""
        weakest = "; ".join(f"{c} {self._weakest(f)}" for c, f in by_case.items())
        if not self.relations:
            return title + weakest, ""
        good = [
            case
            for case, found in by_case.items()
            if all(r.holds(e) for r in self.relations for e in found.values())
        ]
        needed = int(self.line["needed"] or len(self.cases))
        count = f"on {len(good)} of {len(self.cases)} data sets"
        which = f"{self.line['relation']} {count} ({', '.join(good) or 'none'})"
        why = f"{count.capitalize()}, where {needed} are asked for."
        return f"{which}; {title}{weakest}", "" if len(good) >= needed else why

    def _listed(self, found: Found) -> str:
        colon = "" if self.key == "method" else ":"
        texts = {name: as_text(e, self.signed) for name, e in found.items()}
        return "; ".join(f"{name}{colon} {text}" for name, text in texts.items())

    def _weakest(self, found: Found) -> str:
        """The estimate of each measure that supports the claim least."""
        sign = next((r.sign for r in self.relations if r.sign), -1)
        texts = []
        for m in self.measures:
            own = {n: e for n, e in found.items() if n.startswith(_words(m))} or found
            name = min(own, key=lambda n: sign * own[n].mean)
            text = as_text(own[name], self.signed)
            texts.append(f"{text} ({name})" if len(found) > 1 else text)
        return ", ".join(texts)

    def _shortfall(self, found: Found) -> str:
        """Which estimates are not as claimed, in words."""
        parts = []
        for relation in self.relations:
            failed = {n: e for n, e in found.items() if not relation.holds(e)}
            if failed and relation.sign:
                parts += [self._extreme(relation.sign), *relation.shortfall(failed)]
            elif failed:
                parts.append(f"Not {relation.text}: {self._listed(failed)}.")
                if relation.words == "within" and not self.against:
                    parts.append(self._furthest(relation.centre, failed))
        return " ".join(filter(None, parts))

    def _extreme(self, sign: int) -> str:
        """The method that is best instead, where one is said to be."""
        if self.against != "others" or len(self.measures) > 1:
            return ""
        each = Check({**self.line, "of": "each", "against": ""}, self.rows)
        found = each.estimates()
        best = max(found, key=lambda name: sign * found[name].mean)
        word = "Largest" if sign > 0 else "Smallest"
        return f"{word} mean: {best} ({as_text(found[best], each.signed)})."

    def _furthest(self, centre: float, failed: Found) -> str:
        """The run that is furthest from the centre, and where the others are."""
        name = max(failed, key=lambda n: abs(failed[n].mean - centre))
        runs = self._runs(self.measures[0], name)
        far = max(runs, key=lambda run: abs(run["value"] - centre))
        others = [run["value"] for run in runs if run is not far] or [far["value"]]
        return (
            f"At {name} the run furthest away is {far['dataset']}, seed {far['seed']}, "
            f"with {far['value']:.2f}; the others: {min(others):.2f} to "
            f"{max(others):.2f}."
        )


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(";") if part.strip()]


def _words(measure: str) -> str:
    return measure.replace("_", " ")


def _value(row: Row, measure: str) -> float:
    """A field, or the difference or ratio of two."""
    match measure.split():
        case [first, "-", second]:
            return float(row[first] - row[second])
        case [first, "/", second]:
            return float(row[first] / row[second])
    return float(row[measure])


def _mean(runs: Sequence[Row]) -> Estimate:
    """Mean over runs, stratified by data set."""
    return stratified_estimate(by_dataset(runs, "value"))


def _gap(runs: Sequence[Row]) -> Estimate:
    """Mean over all runs, minus the mean of the means of data sets."""
    whole = estimate(run["value"] for run in runs)
    return Estimate(whole.mean - _mean(runs).mean, math.nan, whole.n)


def _paired(
    one: Sequence[Row], other: Sequence[Row], relative: bool = False
) -> Estimate:
    """Difference run by run, or relative difference."""
    if not relative:
        return stratified_estimate(paired_differences(one, other, "value"))
    ratios = paired_ratios(one, other, "value")
    return stratified_estimate({d: [r - 1 for r in x] for d, x in ratios.items()})


def as_text(found: Estimate, signed: bool) -> str:
    """Mean ± standard error with four decimals, fewer where numbers are large.

    Examples
    --------
    >>> as_text(Estimate(-0.25, 0.5, 4), signed=True)
    '−0.2500 ± 0.5000'
    """
    mean, error = (
        f"{v:.4f}" if abs(v) < 10 else f"{v:.2f}"
        for v in (abs(found.mean), found.error)
    )
    sign = "−" if found.mean < 0 else "+" if signed else ""
    return sign + mean + ("" if math.isnan(found.error) else f" ± {error}")


def _noise(rows: Sequence[Row]) -> str:
    """The data sets on which our likelihood-trained network is furthest off."""
    parts = []
    for name in ("yacht", "naval"):
        paper = {line["Method"]: line for line in published(f"exp3_{name}")}
        lacp, split = (float(paper[m]["Avg. Width"]) for m in ("LACP", "Split CP"))
        line = {"experiment": "benchmark", "measure": "width", "of": "LACP"}
        line |= {"against": "/ Split CP", "on": name, "relation": ""}
        (ours,) = Check(line, rows).estimates().values()
        parts.append(f"{name} {as_text(ours, True)} (paper {lacp / split - 1:+.2f})")
    return (
        "Width of the likelihood-trained network relative to the squared-error one, "
        "LACP to Split CP, on Yacht (185 training rows) and Naval (nearly free of "
        f"noise): {'; '.join(parts)}."
    )


def check_claims(rows: Mapping[str, Sequence[Row]]) -> list[Claim]:
    """All claims about experiments that have rows."""
    table: list[list[dict[str, str]]] = []
    for line in read_lines("claims.csv"):
        if line["claim"]:
            table.append([])
        table[-1].append(line)
    claims = []
    for lines in table:
        first, ours = lines[0], rows.get(lines[0]["experiment"])
        if ours:
            checks = [Check(line, ours).result() for line in lines]
            figures, missing = zip(*checks, strict=True)
            note = first["note"].replace("{quantiles}", QUANTILES)
            note = _noise(ours) if note == "{noise}" else note
            why = " ".join(filter(None, (*missing, note))) if any(missing) else ""
            text = "; ".join(figures)
            claims.append(Claim(first["source"], first["claim"], text, not why, why))
    return claims
