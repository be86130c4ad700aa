"""Count how often intervals cover, against the exact law of that count.

Three parts. "fixed": one network, calibration rows and one test row drawn anew in each
replication. "split": a network fitted anew in each replication, calibrated by MAPIE.
"cv+": the same for MAPIE's cross-conformal method, which promises 1 − 2α; one test row
of each refit is held against it, since rows of one refit are not independent. Limits
are quantiles of the binomial (fixed, cv+) and beta-binomial (split) law, such that all
lines together raise a false alarm with probability 0.01 at most. Where scores are tied
(discrete data) coverage may only exceed its law, and the limit is one-sided.

Finished lines are kept in OUT/coverage.csv; the same command goes on where it stopped.

Examples
--------
    python -m mapie_claps.benchmarks coverage --smoke
    python -m mapie_claps.benchmarks coverage --out results
"""

import argparse
import csv
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from ._coverage import (
    CASES,
    Case,
    binomial_limits,
    covered_by_cross_refit,
    covered_by_fixed_network,
    covered_by_split_refit,
    exact_coverage,
    fit_network,
    refit_limits,
)

DESCRIPTION = "coverage over many replications, against its exact law"

LEVELS = (0.8, 0.9, 0.95)
N_CALS = (20, 50, 100)
REFIT_N_CALS = (20, 100)
REFIT_CASES = (Case("heteroscedastic"), Case("heavy-tailed"))
CROSS_CASES = (Case("heteroscedastic"),)
SPLIT_TEST_ROWS = 100
CROSS_ROWS, CROSS_TEST_ROWS, N_FOLDS = 60, 20, 5
FAMILY_ERROR = 0.01


@dataclass(frozen=True)
class Count:
    """One line of the table: what was counted."""

    part: str  # "fixed", "split" or "cv+"
    case: str
    n_cal: int
    level: float
    replications: int
    tested: int  # test rows held against the law
    covered: int  # of these
    mean_coverage: float  # over all test rows


@dataclass(frozen=True)
class Verdict:
    """The law of a count, and whether the count agrees."""

    promised: float
    low: float
    high: float
    two_sided: bool

    def holds(self, count: Count) -> bool:
        """Whether the share covered lies within the limits."""
        share = count.covered / count.tested
        return self.low <= share <= self.high


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("--replications", type=int, default=10_000, metavar="N", help="fixed (10000)")
    add("--split-refits", type=int, default=300, metavar="N", help="split (300)")
    add("--cross-refits", type=int, default=200, metavar="N", help="cv+ (200)")
    add("--seed", type=int, default=0, metavar="SEED")
    add("--out", type=Path, default=Path("coverage_results"), metavar="FOLDER")
    add("--smoke", action="store_true", help="quick trial: 200, 4 and 3 replications")


def run(arguments: argparse.Namespace) -> int:
    """Count what is missing and write the table; 1 if a count is outside its law."""
    sizes = arguments.replications, arguments.split_refits, arguments.cross_refits
    if min(sizes) < 1 or arguments.seed < 0:
        raise ValueError(
            f"Got {sizes} replications and seed {arguments.seed}, but expected at "
            "least 1 each and a seed of at least 0. Leave them out for the defaults."
        )
    if arguments.smoke:
        sizes = 200, 4, 3
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    counts = read_counts(out)
    for job in _jobs(*sizes):
        if not any(_belongs(count, job) for count in counts):
            counts += _count(job, arguments.seed)
            _write_csv(out, counts)
    counts = [c for job in _jobs(*sizes) for c in counts if _belongs(c, job)]
    text = _markdown(counts)
    (out / "coverage.md").write_text(text, encoding="utf-8")
    print(text)  # noqa: T201
    return 0 if all(v.holds(c) for c, v in judged(counts)) else 1


@dataclass(frozen=True)
class _Job:
    part: str
    case: Case
    replications: int


def _jobs(n_fixed: int, n_split: int, n_cross: int) -> Iterator[_Job]:
    yield from (_Job("fixed", case, n_fixed) for case in CASES)
    yield from (_Job("split", case, n_split) for case in REFIT_CASES)
    yield from (_Job("cv+", case, n_cross) for case in CROSS_CASES)


def _belongs(count: Count, job: _Job) -> bool:
    found = count.part, count.case, count.replications
    return found == (job.part, job.case.name, job.replications)


def _count(job: _Job, seed: int) -> list[Count]:
    """All levels and calibration sizes of one job."""
    key = zlib.crc32(f"{job.part} {job.case.name}".encode())
    rng = np.random.default_rng([seed, key])
    n = job.replications
    if job.part == "fixed":
        model = fit_network(job.case.law, rng)
        covered = covered_by_fixed_network(job.case, model, N_CALS, LEVELS, n, rng)
        return _lines(job, N_CALS, 1, covered.tolist())
    if job.part == "split":
        refits = [
            covered_by_split_refit(job.case, REFIT_N_CALS, LEVELS, SPLIT_TEST_ROWS, rng)
            for _ in range(n)
        ]
        covered = np.sum(refits, axis=0)
        return _lines(job, REFIT_N_CALS, SPLIT_TEST_ROWS, covered.tolist())
    inside = np.stack(
        [
            covered_by_cross_refit(
                job.case, CROSS_ROWS, LEVELS, CROSS_TEST_ROWS, N_FOLDS, int(refit_seed)
            )
            for refit_seed in rng.integers(2**62, size=n)
        ]
    )
    first = inside[:, 0].sum(axis=0)
    lines = _lines(job, (CROSS_ROWS,), 1, [first.tolist()])
    means = inside.mean(axis=(0, 1))
    return [
        Count(**{**asdict(line), "mean_coverage": round(float(mean), 6)})
        for line, mean in zip(lines, means, strict=True)
    ]


def _lines(
    job: _Job, n_cals: tuple[int, ...], n_test: int, covered: list[list[int]]
) -> list[Count]:
    tested = job.replications * n_test
    return [
        Count(
            job.part,
            job.case.name,
            n_cal,
            level,
            job.replications,
            tested,
            number,
            round(number / tested, 6),
        )
        for n_cal, by_level in zip(n_cals, covered, strict=True)
        for level, number in zip(LEVELS, by_level, strict=True)
    ]


def judged(counts: list[Count]) -> list[tuple[Count, Verdict]]:
    """Every count with its law, at an error shared out among all."""
    error = FAMILY_ERROR / max(1, len(counts))
    return [(count, _verdict(count, error)) for count in counts]


def _verdict(count: Count, error: float) -> Verdict:
    two_sided = count.part != "cv+" and not count.case.startswith("discrete")
    promised = exact_coverage(count.n_cal, count.level)
    if count.part == "cv+":
        promised = 1 - 2 * (1 - count.level)
        limits = binomial_limits(count.tested, promised, error, two_sided)
    elif count.part == "split":
        n_test = count.tested // count.replications
        limits = refit_limits(
            count.replications, n_test, count.n_cal, count.level, error, two_sided
        )
    else:
        limits = binomial_limits(count.tested, promised, error, two_sided)
    low, high = (limit / count.tested for limit in limits)
    return Verdict(promised, low, high, two_sided)


def read_counts(out: Path) -> list[Count]:
    """Lines that an earlier run left."""
    file = out / "coverage.csv"
    if not file.exists():
        return []
    kinds = {f.name: f.type for f in fields(Count)}
    with file.open(newline="", encoding="utf-8") as lines:
        return [
            Count(**{k: kinds[k](v) for k, v in line.items() if k in kinds})  # type: ignore[operator]
            for line in csv.DictReader(lines)
        ]


def _write_csv(out: Path, counts: list[Count]) -> None:
    """Counts with their limits, under another name first: an interrupt loses none."""
    partial = out / "coverage.csv.partial"
    with partial.open("w", newline="", encoding="utf-8") as file:
        names = [f.name for f in fields(Count)]
        writer = csv.writer(file)
        writer.writerow([*names, "promised", "low", "high", "holds"])
        for count, verdict in judged(counts):
            limits = verdict.promised, verdict.low, verdict.high
            writer.writerow(
                [
                    *asdict(count).values(),
                    *(round(x, 6) for x in limits),
                    verdict.holds(count),
                ]
            )
    partial.replace(out / "coverage.csv")


def _markdown(counts: list[Count]) -> str:
    verdicts = judged(counts)
    failed = sum(not v.holds(c) for c, v in verdicts)
    lines = [
        f"{len(counts)} counts, {failed} outside their limits.",
        "",
        "| part | case | n_cal | level | replications | covered | law | limits "
        "| mean over all test rows | holds |",
        "|---|---|---:|---:|---:|---:|---:|---|---:|---|",
    ]
    for c, v in verdicts:
        law = f"{v.promised:.4f}" if v.two_sided else f"≥ {v.promised:.4f}"
        lines.append(
            f"| {c.part} | {c.case} | {c.n_cal} | {c.level} | {c.replications} | "
            f"{c.covered / c.tested:.4f} | {law} | {v.low:.4f} to {v.high:.4f} | "
            f"{c.mean_coverage:.4f} | {'yes' if v.holds(c) else 'NO'} |"
        )
    return "\n".join(lines) + "\n"
