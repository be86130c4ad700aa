"""The claims of the paper's analyses, read from ``claims.csv`` and checked.

A line of the table is one check; a line without a claim continues the claim above it,
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

import csv
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import pairwise
from typing import Any, Self

from ..studies.scoring import Estimate, estimate, stratified_estimate
from ..studies.store import Row
from .tables import TABLES, label_of, published

# Fields that are differences already, and are written with their sign.
DIFFERENCES = ("score_difference", "relative_score", "width_reduction")
NUMBER = r"(-?[\d.e-]+)"
RELATION = re.compile(rf"([a-z ]+?) {NUMBER}(?: of {NUMBER})?")
QUANTILES = (
    "In experiment 1 the paper's CQR is 1.8 times as wide as its other adaptive "
    "methods. The settings of its quantile network are not given; ours has the same "
    "backbone, steps and rate as the other networks."
)
Found = dict[str, Estimate]


@dataclass(frozen=True)
class Claim:
    """A statement of the paper and what our runs say about it."""

    source: str
    text: str
    figures: str
    holds: bool
    why: str = ""  # shown where the claim does not hold


@dataclass(frozen=True)
class Relation:
    """What is claimed of an estimate."""

    words: str
    number: float
    centre: float = 0.0

    @classmethod
    def of(cls, text: str) -> Self:
        """Relation in the words of the table."""
        words, number, centre = RELATION.fullmatch(text).groups()  # type: ignore[union-attr]
        return cls(words, float(number), float(centre or 0))

    def holds(self, found: Estimate) -> bool:
        """Whether the estimate is as claimed."""
        clear = math.isfinite(found.error)
        checks: dict[str, Callable[[], bool]] = {
            "clearly above": lambda: found.above(self.number),
            "clearly below": lambda: found.below(self.number),
            "not clearly below": lambda: clear and not found.below(self.number),
            "above": lambda: found.mean > self.number,
            "below": lambda: found.mean < self.number,
            "within": lambda: abs(found.mean - self.centre) < self.number,
        }
        return checks[self.words]()

    @property
    def sign(self) -> int:
        """Direction of a claim about a direction, else 0."""
        return {"clearly above": 1, "clearly below": -1}.get(self.words, 0)


class Check:
    """One line of the table on the rows of its experiment."""

    def __init__(self, line: Mapping[str, str], rows: Sequence[Row]) -> None:
        self.line, self.rows = line, rows
        self.measures = _split(line["measure"])
        claimed = line["relation"]
        self.relations = [Relation.of(r) for r in claimed.split(" and ") if r]
        self.key = next(t.key for t in TABLES if t.experiment == line["experiment"])
        together = line["on"].startswith("together: ")
        names = _split(line["on"].removeprefix("together: "))
        if together or (len(names) == 1 and names != ["each"]):
            self.rows = [row for row in rows if row["case"] in names]
            names = []
        self.cases = self._labels("case") if names == ["each"] else names

    def _labels(self, key: str) -> list[str]:
        return list(dict.fromkeys(label_of(row[key]) for row in self.rows))

    def estimates(self, case: str | None = None) -> Found:
        """Estimates by name, of one data set or of all together."""
        rows = [r for r in self.rows if case is None or r["case"] == case]
        return {
            (f"{_words(m)}, {name}" if len(self.measures) > 1 else name): found
            for m in self.measures
            for name, found in self._of_measure(rows, m)
        }

    def _of_measure(
        self, rows: Sequence[Row], measure: str
    ) -> Iterator[tuple[str, Estimate]]:
        everything, against = self._labels(self.key), self.line["against"]
        by_label = {label: self._runs(rows, measure, label) for label in everything}
        if self.line["of"] == "span":
            means = [_estimate(runs).mean for runs in by_label.values()]
            yield "span", Estimate(max(means) - min(means), math.nan, len(means))
        elif self.line["of"] == "steps":
            for a, b in pairwise(everything):
                yield f"{a} to {b}", _paired(by_label[b], by_label[a])
        else:
            chosen = (
                everything if self.line["of"] == "each" else _split(self.line["of"])
            )
            for one in chosen:
                if not against:
                    yield one, _estimate(by_label[one])
                elif against == "mean of data sets":
                    runs = by_label[one]
                    gap = estimate(runs.values()).mean - _estimate(runs).mean
                    yield f"{one} − {against}", Estimate(gap, math.nan, len(runs))
                else:
                    yield from self._compared(one, by_label)

    def _compared(
        self, one: str, by_label: dict[str, dict[tuple[str, int], float]]
    ) -> Iterator[tuple[str, Estimate]]:
        """One label against others, run by run."""
        against = self.line["against"]
        relative = against.startswith("/")
        names = _split(against.removeprefix("/"))
        for other in (
            [m for m in by_label if m != one] if names == ["others"] else names
        ):
            found = _paired(by_label[one], by_label[other], relative)
            yield f"{one} {'to' if relative else '−'} {other}", found

    def _runs(
        self, rows: Sequence[Row], measure: str, label: str
    ) -> dict[tuple[str, int], float]:
        """Measure by data set and seed."""
        whole = self.key == "case"  # where the case is what is compared
        return {
            ("" if whole else row["case"], row["seed"]): _value(row, measure)
            for row in rows
            if label_of(row[self.key]) == label
        }

    @property
    def signed(self) -> bool:
        """Whether figures are differences."""
        difference = self.line["against"] or self.line["of"] == "steps"
        return bool(difference) or self.line["measure"] in DIFFERENCES

    def as_claimed(self, found: Found) -> bool:
        """Whether all relations hold for all estimates."""
        return all(r.holds(e) for r in self.relations for e in found.values())

    def result(self) -> tuple[bool, str, str]:
        """Whether the check holds, its figures, and what is missing."""
        title = f"{_words(self.measures[0])}: " if len(self.measures) == 1 else ""
        if not self.cases:
            found = self.estimates()
            holds = self.as_claimed(found)
            why = "" if holds else self._shortfall(found)
            return holds, title + self._listed(found), why
        by_case = {case: self.estimates(case) for case in self.cases}
        names = list(by_case[self.cases[0]])
        title += f"{names[0]}, on " if len(names) == 1 else ""
        weakest = "; ".join(f"{c} {self._weakest(f)}" for c, f in by_case.items())
        if not self.relations:
            return True, title + weakest, ""
        good = [case for case, found in by_case.items() if self.as_claimed(found)]
        needed = int(self.line["needed"] or len(self.cases))
        holds = len(good) >= needed
        count = f"on {len(good)} of {len(self.cases)} data sets"
        which = f"{self.line['relation']} {count} ({', '.join(good) or 'none'})"
        why = "" if holds else f"{count.capitalize()}, where {needed} are asked for."
        return holds, f"{which}; {title}{weakest}", why

    def _listed(self, found: Found) -> str:
        colon = "" if self.key == "method" else ":"
        return "; ".join(
            f"{name}{colon} {as_text(e, self.signed)}" for name, e in found.items()
        )

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
                parts += [self._extreme(relation.sign), *_unclear(relation, failed)]
            elif failed:
                limit = f"{relation.words} {relation.number:g}"
                limit += (
                    f" of {relation.centre:g}" if relation.words == "within" else ""
                )
                parts.append(f"Not {limit}: {self._listed(failed)}.")
                parts.append(self._furthest(relation, failed))
        return " ".join(filter(None, parts))

    def _extreme(self, sign: int) -> str:
        """The method that is best instead, where one is said to be."""
        if self.line["against"] != "others" or len(self.measures) > 1:
            return ""
        each = dict(self.line) | {"of": "each", "against": "", "relation": ""}
        found = Check(each, self.rows).estimates()
        best = max(found, key=lambda name: sign * found[name].mean)
        word = "Largest" if sign > 0 else "Smallest"
        signed = self.line["measure"] in DIFFERENCES
        return f"{word} mean: {best} ({as_text(found[best], signed)})."

    def _furthest(self, relation: Relation, failed: Found) -> str:
        """The run that is furthest from the centre, and where the others are."""
        name = max(failed, key=lambda n: abs(failed[n].mean - relation.centre))
        if relation.words != "within" or self.line["against"]:
            return ""
        runs = self._runs(self.rows, self.measures[0], name)
        if not runs:
            return ""
        far = max(runs, key=lambda run: abs(runs[run] - relation.centre))
        text = f"At {name} the run furthest away is {far[0]}, seed {far[1]}, with "
        others = [value for run, value in runs.items() if run != far]
        rest = f"; the others lie in {min(others):.2f} to {max(others):.2f}"
        return f"{text}{runs[far]:.2f}{rest if others else ''}."


def _unclear(relation: Relation, failed: Found) -> Iterator[str]:
    """Differences of the wrong sign, and those that are too small."""
    distance = {
        n: relation.sign * (e.mean - relation.number) for n, e in failed.items()
    }
    wrong = [n for n, d in distance.items() if not d > 0]
    small = [n for n, d in distance.items() if d > 0]
    if wrong:
        words = relation.words.removeprefix("clearly ")
        yield f"Not {words} {relation.number:g}: {', '.join(wrong)}."
    if small:
        yield (
            f"Of the claimed sign, but less than two standard errors from "
            f"{relation.number:g}: {', '.join(small)}."
        )


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(";") if part.strip()]


def _words(measure: str) -> str:
    return measure.replace("_", " ")


def _value(row: Row, measure: str) -> float:
    """A field, or the difference or ratio of two."""
    first, _, rest = measure.partition(" ")
    if not rest:
        return float(row[first])
    sign, other = rest.split()
    a, b = float(row[first]), float(row[other])
    return a - b if sign == "-" else a / b


def _estimate(runs: Mapping[tuple[str, int], float]) -> Estimate:
    """Mean over runs, stratified by data set."""
    strata: dict[str, list[float]] = {}
    for (case, _), value in runs.items():
        strata.setdefault(case, []).append(value)
    return stratified_estimate(strata)


def _paired(
    one: Mapping[tuple[str, int], float],
    other: Mapping[tuple[str, int], float],
    relative: bool = False,
) -> Estimate:
    """Difference run by run, or relative difference."""
    runs = one.keys() & other.keys()
    return _estimate(
        {
            r: one[r] / other[r] - 1 if relative else one[r] - other[r]
            for r in sorted(runs)
        }
    )


def as_text(found: Estimate, signed: bool) -> str:
    """Mean ± standard error with four decimals, fewer where numbers are large.

    Examples
    --------
    >>> as_text(Estimate(-0.25, 0.5, 4), signed=True)
    '−0.2500 ± 0.5000'
    """

    def digits(value: float) -> str:
        return f"{value:.4f}" if abs(value) < 10 else f"{value:.2f}"

    sign = "−" if found.mean < 0 else "+" if signed else ""
    error = "" if math.isnan(found.error) else f" ± {digits(found.error)}"
    return f"{sign}{digits(abs(found.mean))}{error}"


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
        "LACP to Split CP, on Yacht (184 training rows) and Naval (nearly free of "
        f"noise): {'; '.join(parts)}."
    )


@cache
def claim_table() -> tuple[tuple[dict[str, str], ...], ...]:
    """Checks of each claim, each with the experiment, source and claim it is of."""
    file = resources.files(__package__) / "claims.csv"
    claims: list[list[dict[str, str]]] = []
    for line in csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"))):
        if line["claim"]:
            claims.append([])
        first = claims[-1][0] if claims[-1] else line
        inherited = {name: first[name] for name in ("experiment", "source", "claim")}
        claims[-1].append(line | inherited)
    return tuple(map(tuple, claims))


def check_claims(rows: Mapping[str, Sequence[Row]]) -> list[Claim]:
    """All claims about experiments that have rows."""
    return [
        _check(lines, rows[lines[0]["experiment"]])
        for lines in claim_table()
        if rows.get(lines[0]["experiment"])
    ]


def _check(lines: Sequence[Mapping[str, str]], rows: Sequence[Row]) -> Claim:
    results = [Check(line, rows).result() for line in lines]
    holds = all(result[0] for result in results)
    why = [result[2] for result in results]
    note = lines[0]["note"]
    if not holds and note:
        notes: dict[str, Callable[[], Any]] = {
            "{quantiles}": lambda: QUANTILES,
            "{noise}": lambda: _noise(rows),
        }
        why.append(notes[note]() if note in notes else note)
    figures = "; ".join(result[1] for result in results)
    reason = "" if holds else " ".join(filter(None, why))
    return Claim(lines[0]["source"], lines[0]["claim"], figures, holds, reason)
