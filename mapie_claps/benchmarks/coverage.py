"""Count how often intervals cover, against the exact law of that count.

Three parts. "fixed": one network; new calibration rows and one test row in each
replication. "split": a new network in each replication, calibrated by MAPIE. "cv+": the
same for MAPIE's cross-conformal method, which promises 1 − 2α; one test row of each
refit is held against it, since rows of one refit are not independent. Limits are
quantiles of the binomial (fixed, cv+) and beta-binomial (split) law, such that all
lines together raise a false alarm with probability 0.01 at most. Where scores are tied
(discrete data) coverage may only exceed its law, and the limit is one-sided.

Four further parts are about rows that are not exchangeable, in a table of their own
(``drift.md``): "shift", weighted intervals under a known covariate shift beside
unweighted ones; "groups", coverage given the group and given how unknown a row is;
"time", long-run coverage of levels that follow the misses, under drift and after a
jump; "monitor", false alarms of both bets together, and how long an alarm takes.

Finished counts are kept in OUT/runs.jsonl; the same command goes on where it stopped.

Examples
--------
    python -m mapie_claps.benchmarks coverage --smoke
    python -m mapie_claps.benchmarks coverage --out results
    python -m mapie_claps.benchmarks coverage --parts shift groups time monitor
"""

import argparse
import sys
import zlib
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..studies.arguments import check_numbers
from ..studies.runner import Run, finished_rows, run_missing
from ..studies.scoring import SplitSize, covered_limits, covered_rank
from ..studies.store import Row, run_key
from ..studies.text import csv_table, markdown_table, write_files
from . import _coverage, _coverage_drift
from ._coverage import CASES, Case
from ._peer_table import claps_parameters

#: Cases, numbers of calibration rows, test rows per replication.
PARTS: dict[str, tuple[tuple[Case, ...], tuple[int, ...], int]] = {
    "fixed": (CASES, (20, 50, 100), 1),
    "split": (
        (
            Case("heteroscedastic"),
            Case("heavy-tailed"),
            Case("skewed", law="learned"),
            Case("skewed", law="learned", ranks="two ranks"),
        ),
        (20, 100),
        100,
    ),
    "cv+": ((Case("heteroscedastic"),), (60,), 20),
}
LEVELS = (0.8, 0.9, 0.95)
N_FOLDS = 5
FAMILY_ERROR = 0.01


class Count(NamedTuple):
    """One line of the table: what was counted."""

    part: str  # "fixed", "split" or "cv+"
    case: str
    n_cal: int
    level: float
    replications: int
    tested: int  # test rows held against the law
    covered: int  # of these
    mean_coverage: float  # over all test rows


class Verdict(NamedTuple):
    """The law of a count, and whether the count agrees."""

    promised: float
    low: float
    high: float
    holds: bool
    two_sided: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("--replications", type=int, default=10_000, metavar="N", help="fixed (10000)")
    add("--split-refits", type=int, default=300, metavar="N", help="split (300)")
    add("--cross-refits", type=int, default=200, metavar="N", help="cv+ (200)")
    every = [*PARTS, *_coverage_drift.PARTS]
    add("--parts", nargs="+", choices=every, default=every, metavar="PART", help="all")
    add("--seed", type=int, default=0, metavar="SEED")
    add("--out", type=Path, default=Path("coverage_results"), metavar="FOLDER")
    add("--smoke", action="store_true", help="quick trial: 200, 4 and 3 replications")


def run(arguments: argparse.Namespace) -> int:
    """Count what is missing and write the table; 1 if a count is outside its law."""
    sizes = arguments.replications, arguments.split_refits, arguments.cross_refits
    check_numbers(arguments, replications=1, split_refits=1, cross_refits=1, seed=0)
    sizes = (200, 4, 3) if arguments.smoke else sizes
    chosen = arguments.parts
    runs = [
        plan(part, case, n, arguments.seed)
        for part, n in zip(PARTS, sizes, strict=True)
        for case in PARTS[part][0]
        if part in chosen
    ]
    drift = [
        plan_drift(part, sizes[0], arguments.seed)
        for part in _coverage_drift.PARTS
        if part in chosen
    ]
    failures = run_missing(runs + drift, arguments.out)
    files: dict[str, str] = {}
    holds = True
    if runs:
        counts = judged([Count(**row) for row in finished_rows(runs, arguments.out)])
        files |= {"coverage.md": markdown_of(counts), "coverage.csv": csv_of(counts)}
        holds = all(v.holds for _, v in counts)
    if drift:
        rows = finished_rows(drift, arguments.out)
        files["drift.md"] = _coverage_drift.table_of(rows)
        holds = holds and all(row["holds"] for row in rows)
    write_files(files, arguments.out)
    texts = [text for name, text in files.items() if name.endswith(".md")]
    sys.stdout.writelines([*texts, *map(str, failures)])
    return 0 if not failures and holds else 1


def plan_drift(part: str, n: int, seed: int) -> Run:
    """One part about rows that are not exchangeable."""
    data = {"n_train": _coverage.N_TRAIN, "seed": seed}
    split = {"part": part, "replications": n, **_coverage_drift.SETTINGS}
    method = {"parameters": claps_parameters(**_coverage.TINY)}
    key = run_key("coverage of drift", data=data, split=split, method=method)
    return Run(part, key, partial(_coverage_drift.findings, part, n, seed))


def plan(part: str, case: Case, replications: int, seed: int) -> Run:
    """All levels and calibration sizes of one part and case."""
    _, n_cals, n_test = PARTS[part]
    data = {"generator": case.generator, "n_train": _coverage.N_TRAIN, "seed": seed}
    split = {"part": part, "n_cal": n_cals, "n_test": n_test, "folds": N_FOLDS}
    split |= {"replications": replications, "levels": LEVELS}
    parameters = claps_parameters(**_coverage.TINY)
    method = {"case": case._asdict(), "parameters": parameters}
    key = run_key("coverage", data=data, split=split, method=method)
    label = f"{part}, {case.name}"
    return Run(label, key, partial(count, part, case, replications, seed))


def count(part: str, case: Case, n: int, seed: int) -> list[Row]:
    """Count one part and case in n replications."""
    _, n_cals, n_test = PARTS[part]
    rng = np.random.default_rng([seed, zlib.crc32(f"{part} {case.name}".encode())])
    if part == "fixed":
        covered = _coverage.covered_by_fixed_network(case, n_cals, LEVELS, n, rng)
        return _rows(part, case, n, n, covered)
    if part == "split":
        refit = _coverage.covered_by_split_refit
        refits = [refit(case, n_cals, LEVELS, n_test, rng) for _ in range(n)]
        return _rows(part, case, n, n * n_test, np.sum(refits, axis=0))
    sizes = n_cals[0], LEVELS, n_test, N_FOLDS
    seeds = rng.integers(2**62, size=n).tolist()
    inside = np.stack(  # (n, n_test, levels)
        [_coverage.covered_by_cross_refit(case, *sizes, s) for s in seeds]
    )
    rows = _rows(part, case, n, n, inside[:, 0].sum(axis=0)[None])
    means = inside.mean(axis=(0, 1)).round(6).tolist()
    return [
        row | {"mean_coverage": mean} for row, mean in zip(rows, means, strict=True)
    ]


def _rows(part: str, case: Case, n: int, tested: int, covered: Any) -> list[Row]:
    """Counts (n_cal, level) as rows."""
    of = part, case.name
    return [
        Count(*of, n_cal, level, n, tested, k, round(k / tested, 6))._asdict()
        for n_cal, by_level in zip(PARTS[part][1], covered.tolist(), strict=True)
        for level, k in zip(LEVELS, by_level, strict=True)
    ]


def exact_coverage(n_cal: int, level: float, n_ranks: int = 1) -> float:
    """P(covered) = k / (n + 1) where scores are not tied; a lower bound if they are."""
    return covered_rank(n_cal, 1 - level, n_ranks) / (n_cal + 1)


def binomial_limits(n: int, probability: float, tail: float) -> tuple[int, int]:
    """Counts that a binomial variable leaves with at most ``tail`` on either side."""
    from scipy.stats import binom

    low, high = binom.ppf([tail, 1 - tail], n, probability)
    return int(low), int(high)


def judged(counts: list[Count]) -> list[tuple[Count, Verdict]]:
    """Every count with its law, at an error shared out among all."""
    error = FAMILY_ERROR / max(1, len(counts))
    return [(count, _verdict(count, error)) for count in counts]


def _verdict(count: Count, error: float) -> Verdict:
    tied = count.case.startswith((_coverage.DISCRETE, _coverage.BOUNDED))
    # Targets outside a support share the score +∞.
    two_sided = count.part != "cv+" and not tied and "support" not in count.case
    tail = error / 2 if two_sided else error
    n_ranks = 2 if count.case.endswith("two ranks") else 1
    promised = exact_coverage(count.n_cal, count.level, n_ranks)
    if count.part == "cv+":
        promised = 1 - 2 * (1 - count.level)
    if count.part == "split":
        size = SplitSize(count.n_cal, count.tested // count.replications)
        sizes, alpha = [size] * count.replications, 1 - count.level
        low, high = covered_limits(sizes, alpha, tail, n_ranks)
    else:
        low, high = binomial_limits(count.tested, promised, tail)
    high = high if two_sided else count.tested
    holds = low <= count.covered <= high
    return Verdict(promised, low / count.tested, high / count.tested, holds, two_sided)


def csv_of(counts: list[tuple[Count, Verdict]]) -> str:
    """Counts with their limits."""
    lines = [[*c, *(round(x, 6) for x in v[:3]), v.holds] for c, v in counts]
    return csv_table([*Count._fields, "promised", "low", "high", "holds"], lines)


def markdown_of(counts: list[tuple[Count, Verdict]]) -> str:
    """The table, and how many counts are outside their limits."""
    lines = [
        [
            *map(str, c[:5]),
            f"{c.covered / c.tested:.4f}",
            ("" if v.two_sided else "≥ ") + f"{v.promised:.4f}",
            f"{v.low:.4f} to {v.high:.4f}",
            f"{c.mean_coverage:.4f}",
            "yes" if v.holds else "NO",
        ]
        for c, v in counts
    ]
    header = [*Count._fields[:5], "covered", "law", "limits"]
    header += ["mean over all test rows", "holds"]
    failed = sum(not v.holds for _, v in counts)
    title = f"{len(counts)} counts, {failed} outside their limits.\n\n"
    return title + markdown_table(header, lines, align="llrrrrrlrl")
