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
from typing import Any

import numpy as np
from scipy.stats import binom

from ..studies.arguments import check_numbers
from ..studies.runner import Run, finished_rows, run_missing
from ..studies.scoring import SplitSize, covered_limits, covered_rank
from ..studies.store import Row, run_key
from ..studies.text import csv_table, markdown_table, write_files
from . import _coverage, _coverage_drift
from ._coverage import LEVELS, Case
from ._peer_table import claps_parameters

#: How to count, cases, numbers of calibration rows, test rows per replication.
PARTS: dict[str, tuple[Any, tuple[Case, ...], tuple[int, ...], int]] = {
    "fixed": (_coverage.fixed_network, _coverage.CASES, (20, 50, 100), 1),
    "split": (
        _coverage.split_refits,
        (
            Case("heteroscedastic"),
            Case("heavy-tailed"),
            Case("skewed", law="learned"),
            Case("skewed", law="learned", ranks="two ranks"),
        ),
        (20, 100),
        100,
    ),
    "cv+": (_coverage.cross_refits, (Case("heteroscedastic"),), (60,), 20),
}
FAMILY_ERROR = 0.01
#: Of one count: what, test rows held against the law, those covered, mean over all.
FIELDS = (
    *("part", "case", "n_cal", "level", "replications"),
    *("tested", "covered", "mean_coverage"),
)


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
    check_numbers(arguments, replications=1, split_refits=1, cross_refits=1, seed=0)
    sizes = arguments.replications, arguments.split_refits, arguments.cross_refits
    sizes = (200, 4, 3) if arguments.smoke else sizes
    chosen, seed, out = arguments.parts, arguments.seed, arguments.out
    runs = [
        plan(part, case, n, seed)
        for part, n in zip(PARTS, sizes, strict=True)
        for case in PARTS[part][1]
        if part in chosen
    ]
    parts = [part for part in _coverage_drift.PARTS if part in chosen]
    drift = [plan_drift(part, sizes[0], seed) for part in parts]
    failures = run_missing(runs + drift, out)
    files: dict[str, str] = {}
    counts, findings = judged(finished_rows(runs, out)), finished_rows(drift, out)
    if runs:
        files |= {"coverage.md": markdown_of(counts), "coverage.csv": csv_of(counts)}
    if drift:
        files["drift.md"] = _coverage_drift.table_of(findings)
    write_files(files, out)
    texts = [text for name, text in files.items() if name.endswith(".md")]
    sys.stdout.writelines([*texts, *map(str, failures)])
    holds = all(row["holds"] for row in counts + findings)
    return 0 if not failures and holds else 1


def plan_drift(part: str, n: int, seed: int) -> Run:
    """One part about rows that are not exchangeable."""
    split = {"part": part, "replications": n, **_coverage_drift.SETTINGS}
    compute = partial(_coverage_drift.findings, part, n, seed)
    return Run(part, _key("coverage of drift", {"seed": seed}, split, {}), compute)


def plan(part: str, case: Case, replications: int, seed: int) -> Run:
    """All levels and calibration sizes of one part and case."""
    *_, n_cals, n_test = PARTS[part]
    data = {"generator": case.generator, "seed": seed}
    split = {"part": part, "n_cal": n_cals, "n_test": n_test, "levels": LEVELS}
    split |= {"folds": _coverage.N_FOLDS, "replications": replications}
    key = _key("coverage", data, split, {"case": case._asdict()})
    compute = partial(count, part, case, replications, seed)
    return Run(f"{part}, {case.name}", key, compute)


def _key(study: str, data: Row, split: Row, method: Row) -> dict[str, Any]:
    parameters = claps_parameters(**_coverage.TINY)
    return run_key(
        study,
        data=data | {"n_train": _coverage.N_TRAIN},
        split=split,
        method=method | {"parameters": parameters},
    )


def count(part: str, case: Case, n: int, seed: int) -> list[Row]:
    """Count one part and case in n replications."""
    covered_in, _, n_cals, n_test = PARTS[part]
    rng = np.random.default_rng([seed, zlib.crc32(f"{part} {case.name}".encode())])
    inside = covered_in(case, n_cals, n_test, n, rng)
    # Rows of one refit of CV+ are not independent: the first is held against the law.
    held = inside[:, :, :1] if part == "cv+" else inside
    covered, means = held.sum(axis=(0, 2)).tolist(), inside.mean(axis=(0, 2)).tolist()
    of = part, case.name
    rows = [
        (*of, n_cal, level, n, n * held.shape[2], covered[i][j], round(means[i][j], 6))
        for i, n_cal in enumerate(n_cals)
        for j, level in enumerate(LEVELS)
    ]
    return [dict(zip(FIELDS, row, strict=True)) for row in rows]


def judged(counts: list[Row]) -> list[Row]:
    """Every count with its law, at an error shared out among all."""
    error = FAMILY_ERROR / max(1, len(counts))
    return [row | _verdict(row, error) for row in counts]


def _verdict(row: Row, error: float) -> Row:
    """The law of a count, and whether the count agrees."""
    case, n_cal, tested = row["case"], row["n_cal"], row["tested"]
    # Targets outside a support share the score +∞.
    tied = case.startswith(_coverage.TIED) or "support" in case
    two_sided = row["part"] != "cv+" and not tied
    tail, alpha = error / 2 if two_sided else error, 1 - row["level"]
    n_ranks = 2 if case.endswith("two ranks") else 1
    # Where scores are tied, this is a lower bound.
    promised = covered_rank(n_cal, alpha, n_ranks) / (n_cal + 1)
    if row["part"] == "cv+":
        promised = 1 - 2 * alpha
    if row["part"] == "split":
        sizes = [SplitSize(n_cal, tested // row["replications"])] * row["replications"]
        low, high = covered_limits(sizes, alpha, tail, n_ranks)
    else:
        low, high = binom.ppf([tail, 1 - tail], tested, promised).tolist()
    high = high if two_sided else tested
    limits = {"low": low / tested, "high": high / tested, "two_sided": two_sided}
    return {"promised": promised, "holds": low <= row["covered"] <= high} | limits


def csv_of(counts: list[Row]) -> str:
    """Counts with their limits."""
    rounded = ("promised", "low", "high")
    lines = [
        [*(row[f] for f in FIELDS), *(round(row[f], 6) for f in rounded), row["holds"]]
        for row in counts
    ]
    return csv_table([*FIELDS, *rounded, "holds"], lines)


def markdown_of(counts: list[Row]) -> str:
    """The table, and how many counts are outside their limits."""
    lines = [
        [
            *(str(row[field]) for field in FIELDS[:5]),
            f"{row['covered'] / row['tested']:.4f}",
            ("" if row["two_sided"] else "≥ ") + f"{row['promised']:.4f}",
            f"{row['low']:.4f} to {row['high']:.4f}",
            f"{row['mean_coverage']:.4f}",
            "yes" if row["holds"] else "NO",
        ]
        for row in counts
    ]
    header = [*FIELDS[:5], "covered", "law", "limits"]
    header += ["mean over all test rows", "holds"]
    failed = sum(not row["holds"] for row in counts)
    title = f"{len(counts)} counts, {failed} outside their limits.\n\n"
    return title + markdown_table(header, lines, align="llrrrrrlrl")
