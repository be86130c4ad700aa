"""The report: every claim of the paper's analyses, with our figures and a verdict."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from . import benchmark_claims, claims, data_set_claims, sensitivity_claims
from .evidence import CLEAR, NEAR_COVERAGE, NEAR_RATIO, Claim
from .runs import Row

CLAIMS: dict[str, tuple[Callable[[Sequence[Row]], list[Claim]], ...]] = {
    "mechanism": (claims.mechanism,),
    "contraction": (claims.contraction,),
    "benchmark": (benchmark_claims.aggregate, data_set_claims.by_data_set),
    "prior_precision": (sensitivity_claims.prior_precision,),
    "calibration_size": (sensitivity_claims.calibration_size,),
    "representation_size": (sensitivity_claims.representation_size,),
    "variance_floor": (sensitivity_claims.variance_floor,),
}

HOW_TO_READ = f"""# Claims of the paper, checked

Each line restates one claim of the paper's analyses of its results, with our figure.
A figure is a mean ± its standard error over runs; a difference is taken run by run
(same data set, same seed, same split) before it is averaged. A claim of direction
holds if the mean difference has the claimed sign and is at least {CLEAR:g} standard
errors from zero. Where a line counts data sets, it counts those on which this is so. A
claim that there is no gain holds if no gain is clear. A claim of size is about the mean
alone: "near" means within {NEAR_COVERAGE:g} for a coverage and {NEAR_RATIO:g} for a
ratio. With one seed there is no standard error, and no direction is clear.
Where data sets are averaged they are taken as given: the standard error comes from the
seeds within each. Runs on real data share rows between seeds, so that their standard
errors are somewhat too small.
"""


def check(rows: dict[str, list[Row]]) -> list[Claim]:
    """All claims about experiments that have rows."""
    return [
        claim
        for name, functions in CLAIMS.items()
        if rows.get(name)
        for function in functions
        for claim in function(rows[name])
    ]


def to_markdown(
    found: Sequence[Claim],
    n_seeds: dict[str, int],
    unfinished: Mapping[str, tuple[int, int]] = MappingProxyType({}),
) -> str:
    """The report."""
    held = sum(claim.holds for claim in found)
    seeds = ", ".join(f"{name} {n}" for name, n in n_seeds.items())
    lines = [
        HOW_TO_READ,
        f"{held} of {len(found)} claims hold. Seeds: {seeds}.",
    ]
    if unfinished:
        names = ", ".join(f"{n} ({a} of {b} runs)" for n, (a, b) in unfinished.items())
        lines += ["", f"Not checked, for they are unfinished: {names}."]
    for source in dict.fromkeys(claim.source for claim in found):
        lines += [
            "",
            f"## {source}",
            "",
            "| claim | ours | verdict |",
            "|---|---|---|",
        ]
        lines += [_line(claim) for claim in found if claim.source == source]
    return "\n".join(lines) + "\n"


def _line(claim: Claim) -> str:
    verdict = "holds" if claim.holds else "**does not hold**"
    if not claim.holds and claim.why:
        verdict += f": {claim.why}"
    return f"| {claim.text} | {claim.figures} | {verdict} |"


def write_report(
    rows: dict[str, list[Row]],
    file: Path,
    unfinished: Mapping[str, tuple[int, int]] = MappingProxyType({}),
) -> Path:
    """Write the report.

    Parameters
    ----------
    rows : dict
        Rows by experiment.
    file : Path
        Where the report goes.
    unfinished : mapping of str to (int, int)
        Finished and planned runs of experiments that are not complete: a mean over some
        of the data sets says nothing about a claim, and they are only listed.

    Returns
    -------
    Path
        The file.
    """
    rows = {name: found for name, found in rows.items() if name not in unfinished}
    n_seeds = {
        name: len({row["seed"] for row in found})
        for name, found in rows.items()
        if found
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(to_markdown(check(rows), n_seeds, unfinished))
    return file
