"""Throw random tables, parameters, calls and attacks at fit, conformalize and predict.

Every outcome must be a valid interval (right shape, no NaN, lower below upper, nested
in the level, infinite only if allowed) or one of the documented exceptions: ValueError,
TypeError, TrainingDivergedError, NotPositiveDefiniteError, with a message. One more is
MAPIE's own and comes before our code runs: IndexError where X is an empty list.

One case in four is an attack on a promise, which has one right outcome: networks that
mix rows or cannot be watched, batches of any size, another default device, scales that
break after calibration, swapped ends, sums of another network, models that change after
calibration, targets that are no numbers, pipes and damaged files, interrupts at any
line. Prints how often each came, the commonest messages, and every failure with its
case.

Needs pip install "mapie-claps[fuzz]".

Examples
--------
    python -m mapie_claps.benchmarks fuzz --cases 100
    python -m mapie_claps.benchmarks fuzz --cases 2000 --out results
"""

import argparse
import math
import sys
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

from ..studies.text import markdown_table
from ._fuzz_attacks import run_attack
from ._fuzz_cases import FuzzCase, Outcome, run_case, without_numbers
from ._fuzz_draw import Case, draw_case

N_MESSAGES = 25
N_FAILURES = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("--cases", type=int, default=2000, metavar="N", help="cases to try (2000)")
    add("--minutes", type=float, metavar="N", help="stop early after N minutes")
    add("--seed", type=int, default=0, metavar="SEED")
    add("--first", type=int, default=0, metavar="N", help="number of the first case")
    add("--out", type=Path, metavar="FOLDER", help="write the report to FOLDER/fuzz.md")


def run(arguments: argparse.Namespace) -> int:
    """Try the cases and print the report; 1 if any failed."""
    for name, low in (("cases", 1), ("first", 0), ("seed", 0)):
        value = getattr(arguments, name)
        if value < low:
            raise ValueError(f"Got --{name} {value}, but expected at least {low}.")
    for package in ("pandas", "polars", "safetensors"):
        if find_spec(package) is None:
            raise ValueError(
                f"Got no {package}. Install what is missing with: "
                'pip install "mapie-claps[fuzz]"'
            )
    start = time.perf_counter()
    seconds = math.inf if arguments.minutes is None else 60 * arguments.minutes
    outcomes = try_cases(arguments.cases, arguments.seed, seconds, arguments.first)
    text = report(outcomes, time.perf_counter() - start)
    sys.stdout.write(text)
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "fuzz.md").write_text(text, encoding="utf-8")
    return 1 if any(outcome.failure for _, outcome in outcomes) else 0


def try_cases(
    n: int, seed: int, seconds: float = math.inf, first: int = 0
) -> list[tuple[Case, Outcome]]:
    """Outcomes of n cases; a failure is kept and the rest still tried."""
    stop = time.monotonic() + seconds
    outcomes: list[tuple[Case, Outcome]] = []
    for number in range(first, first + n):
        if time.monotonic() > stop:
            break
        case = draw_case(seed, number)
        outcomes.append((case, outcome_of(case)))
    return outcomes


def outcome_of(case: Case) -> Outcome:
    """Run a case of either kind."""
    if isinstance(case, FuzzCase):
        return run_case(case)
    return Outcome(f"attack: {case.attack}", failure=run_attack(case))


def report(outcomes: list[tuple[Case, Outcome]], seconds: float) -> str:
    """Counts of outcomes and messages, then failures, as Markdown."""
    failures = [(case, o) for case, o in outcomes if o.failure]
    kinds = Counter(o.kind for _, o in outcomes)
    messages = Counter(
        (o.kind, without_numbers(o.message)) for _, o in outcomes if o.message
    )
    counts = [[kind, str(count)] for kind, count in kinds.most_common()]
    commonest = [
        [kind, text.replace("|", "/"), str(count)]
        for (kind, text), count in messages.most_common(N_MESSAGES)
    ]
    parts = [
        f"{len(outcomes)} cases in {seconds:.0f} s, {len(failures)} failures.\n",
        markdown_table(["outcome", "cases"], counts, align="lr"),
        f"Commonest of {len(messages)} messages (numbers replaced):\n",
        markdown_table(["exception", "message begins", "cases"], commonest, "llr"),
    ]
    for case, outcome in failures[:N_FAILURES]:
        parts.append(f"FAILURE: {outcome.failure}\n    {case!r}\n")
    return "\n".join(parts)
