"""The report: every claim of the paper's analyses, with our figures and a verdict."""

from collections.abc import Mapping, Sequence

from ..studies.rows import values_of
from ..studies.scoring import CLEAR
from ..studies.store import Row
from ..studies.text import markdown_table
from .claims import Claim, check_claims

HOW_TO_READ = f"""# Claims of the paper, checked

Each line restates one claim of the paper's analyses of its results, with our figure.
A figure is a mean ± its standard error over runs; a difference is taken run by run
(same data set, same seed, same split) before it is averaged. A claim of direction
holds if the mean difference has the claimed sign and is at least {CLEAR:g} standard
errors from zero. Where a line counts data sets, it counts those on which this is so. A
claim that there is no gain holds if no gain is clear. A claim of size is about the mean
alone: "near" means within 0.02 for a coverage and 0.05 for a ratio. With one seed there
is no standard error, and no direction is clear. Where a line compares with several
methods on several data sets, it shows the comparison that supports the claim least.
Where data sets are averaged they are taken as given: the standard error comes from the
seeds within each. Runs on real data share rows between seeds, so that their standard
errors are somewhat too small.
"""


def to_markdown(
    found: Sequence[Claim],
    n_seeds: Mapping[str, int],
    unfinished: Mapping[str, tuple[int, int]],
) -> str:
    """The report."""
    held = sum(claim.holds for claim in found)
    seeds = ", ".join(f"{name} {n}" for name, n in n_seeds.items())
    parts = [HOW_TO_READ, f"{held} of {len(found)} claims hold. Seeds: {seeds}.\n"]
    if unfinished:
        names = ", ".join(f"{n} ({a} of {b} runs)" for n, (a, b) in unfinished.items())
        parts.append(f"Not checked, because they are unfinished: {names}.\n")
    for source in dict.fromkeys(claim.source for claim in found):
        lines = []
        for claim in found:
            if claim.source == source:
                why = f": {claim.why}" if claim.why else ""
                verdict = "holds" if claim.holds else f"**does not hold**{why}"
                lines.append([claim.text, claim.figures, verdict])
        table = markdown_table(["claim", "ours", "verdict"], lines)
        parts.append(f"## {source}\n\n{table}")
    return "\n".join(parts)


def report_of(
    rows: Mapping[str, Sequence[Row]], unfinished: Mapping[str, tuple[int, int]]
) -> str:
    """The report of all finished experiments.

    ``unfinished`` has the finished and planned runs of the others: a mean over some of
    the data sets says nothing about a claim, and they are only listed.
    """
    rows = {n: found for n, found in rows.items() if n not in unfinished}
    n_seeds = {n: len(values_of(found, "seed")) for n, found in rows.items() if found}
    return to_markdown(check_claims(rows), n_seeds, unfinished)
