"""Throw random tables, parameters, calls and attacks at fit, conformalize and predict.

Every outcome must be a valid interval (right shape, no NaN, lower below upper, nested
in the level, infinite only if allowed) or one of the documented exceptions: ValueError,
TypeError, TrainingDivergedError, NotPositiveDefiniteError, with a message. One more is
MAPIE's own and comes before our code runs: IndexError where X is an empty list. In one
case in four the explanation, the distribution and the saved file have to agree with the
intervals, too.

Tables are arrays of any layout, lists and data frames of numbers, text, dates, truth
values and categories, with gaps, masks, values that training never saw, and columns
that change their order, name or type. One case in four is an attack on a promise, which
has one right outcome: networks that mix rows or cannot be watched, batches of any size,
another default device, scales that break after calibration, swapped ends, NaN among
numbers, sums of another network, models and supports that change after calibration,
targets that are no numbers, pipes and damaged files, interrupts at any line. Prints how
often each came, the commonest messages, and every failure with its number.

A case depends on the seed and its number alone: ``--first 1234 --cases 1`` tries case
1234 again. With ``--out`` finished cases are kept, and found again as long as the code
of the package is the same; several ranges may run at once into one folder.

Needs pip install "mapie-claps[fuzz]".

Examples
--------
    python -m mapie_claps.benchmarks fuzz --cases 100
    python -m mapie_claps.benchmarks fuzz --cases 20000 --out results
"""

import argparse
import hashlib
import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..studies.arguments import check_installed, check_numbers
from ..studies.store import Store, identity, run_key
from ..studies.text import markdown_table, write_files
from ._fuzz_attacks import run_attack
from ._fuzz_cases import FuzzCase, Outcome, run_case, without_numbers
from ._fuzz_draw import Case, draw_case

CHUNK = 250  # cases in one line of the store
N_MESSAGES = 25
N_FAILURES = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("--cases", type=int, default=2000, metavar="N", help="cases to try (2000)")
    add("--minutes", type=float, metavar="N", help="stop early after N minutes")
    add("--seed", type=int, default=0, metavar="SEED")
    add("--first", type=int, default=0, metavar="N", help="number of the first case")
    add("--out", type=Path, metavar="FOLDER", help="keep cases and report here")


def run(arguments: argparse.Namespace) -> int:
    """Try the cases and print the report; 1 if any failed."""
    check_numbers(arguments, cases=1, first=0, seed=0)
    check_installed(("pandas", "polars", "safetensors"), "fuzz")
    minutes = math.inf if arguments.minutes is None else arguments.minutes
    stop = time.monotonic() + 60 * minutes
    store = None if arguments.out is None else Store(arguments.out)
    found = {} if store is None else store.by_key()
    code, lines = digest_of_package(), []
    end = arguments.first + arguments.cases
    for first in range(arguments.first, end, CHUNK):
        n = min(CHUNK, end - first)
        key = run_key(
            "fuzz",
            data={"seed": arguments.seed, "first": first, "cases": n},
            split={},
            method={"code": code},
        )
        line = found.get(identity(key))
        if line is None:
            line = {"key": key} | try_cases(n, arguments.seed, first, stop)
            complete = sum(row["cases"] for row in line["rows"]) == n
            if store is not None and complete:
                store.add(line)
        lines.append(line)
        if time.monotonic() > stop:
            break
    text = report(lines)
    sys.stdout.write(text)
    if arguments.out is not None:
        write_files({"fuzz.md": text}, arguments.out)
    return 1 if any(row["failure"] for line in lines for row in line["rows"]) else 0


def digest_of_package() -> str:
    """Hash of the source, so that what other code gave is not found again."""
    folder = Path(__file__).parents[1]
    found = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        found.update(str(file.relative_to(folder)).encode() + file.read_bytes())
    return found.hexdigest()[:16]


def try_cases(n: int, seed: int, first: int, stop: float = math.inf) -> dict[str, Any]:
    """How often each outcome came; a failure is kept and the rest still tried."""
    start, cpu = time.perf_counter(), time.process_time()
    found: Counter[tuple[str, str, str | None]] = Counter()
    frames: Counter[str] = Counter()
    for number in range(first, first + n):
        if time.monotonic() > stop:
            break
        case = draw_case(seed, number)
        outcome = outcome_of(case)
        if isinstance(case, FuzzCase) and case.kinds:
            tables = (case.train, case.cal, case.test)
            frames.update({"in all"} | {table.surprise or "none" for table in tables})
        failure = outcome.failure and f"case {number}: {outcome.failure}\n    {case!r}"
        found[outcome.kind, without_numbers(outcome.message), failure] += 1
    names = ("kind", "message", "failure")
    return {
        "rows": [
            dict(zip(names, what, strict=True)) | {"cases": count}
            for what, count in found.items()
        ],
        "frames": frames,
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu,
    }


def outcome_of(case: Case) -> Outcome:
    """Run a case of either kind."""
    if isinstance(case, FuzzCase):
        return run_case(case)
    return Outcome(f"attack: {case.attack}", failure=run_attack(case))


def report(lines: Sequence[dict[str, Any]]) -> str:
    """Counts of outcomes and messages, then failures, as Markdown."""
    rows = [row for line in lines for row in line["rows"]]
    kinds: Counter[str] = Counter()
    messages: Counter[tuple[str, str]] = Counter()
    for row in rows:
        kinds[row["kind"]] += row["cases"]
        if row["message"]:
            messages[row["kind"], row["message"]] += row["cases"]
    failures = [row["failure"] for row in rows if row["failure"]]
    counts = [[kind, str(count)] for kind, count in kinds.most_common()]
    commonest = [
        [kind, text.replace("|", "/"), str(count)]
        for (kind, text), count in messages.most_common(N_MESSAGES)
    ]
    seconds = sum(line["cpu_seconds"] for line in lines)
    frames: Counter[str] = sum((Counter(line["frames"]) for line in lines), Counter())
    parts = [
        f"{kinds.total()} cases, {len(failures)} failures; {seconds:.0f} s of CPU.\n",
        markdown_table(["outcome", "cases"], counts, align="lr"),
        "Data frames of mixed columns, and what was done to one of their tables:\n",
        markdown_table(
            ["frames", "cases"],
            [[what, str(count)] for what, count in frames.most_common()],
            align="lr",
        ),
        f"Commonest of {len(messages)} messages (numbers replaced):\n",
        markdown_table(["exception", "message begins", "cases"], commonest, "llr"),
    ]
    parts += [f"FAILURE: {failure}\n" for failure in failures[:N_FAILURES]]
    return "\n".join(parts)
