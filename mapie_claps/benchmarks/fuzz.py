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
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from ..studies.arguments import check_installed, check_numbers
from ..studies.store import Line, Store, identity, run_key
from ..studies.text import markdown_table, write_files
from ._fuzz_attacks import AttackCase, run_attack
from ._fuzz_cases import FuzzCase, Outcome, run_case
from ._fuzz_draw import draw_case

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
    stored = {} if store is None else store.by_key()
    method, lines = {"code": digest_of_package()}, []
    end = arguments.first + arguments.cases
    for first in range(arguments.first, end, CHUNK):
        n = min(CHUNK, end - first)
        data = {"seed": arguments.seed, "first": first, "cases": n}
        key = run_key("fuzz", data=data, split={}, method=method)
        line = stored.get(identity(key))
        if line is None:
            line = {"key": key} | try_cases(n, arguments.seed, first, stop)
            if store is not None and line["tried"] == n:
                store.add(line)
        lines.append(line)
        if time.monotonic() > stop:
            break
    text, failed = report(lines)
    sys.stdout.write(text)
    if arguments.out is not None:
        write_files({"fuzz.md": text}, arguments.out)
    return 1 if failed else 0


def digest_of_package() -> str:
    """Hash of the source, so that what other code gave is not found again."""
    folder = Path(__file__).parents[1]
    found = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        found.update(str(file.relative_to(folder)).encode() + file.read_bytes())
    return found.hexdigest()[:16]


def try_cases(n: int, seed: int, first: int, stop: float = math.inf) -> Line:
    """Count outcomes, messages and frames; a failure is kept and the rest still tried.

    A row is a line of one of the tables of the report, with the number of its cases.
    """
    start, cpu = time.perf_counter(), time.process_time()
    found: Counter[tuple[str, ...]] = Counter()
    for number in range(first, first + n):
        if time.monotonic() > stop:
            break
        case = draw_case(seed, number)
        outcome = outcome_of(case)
        found["outcome", outcome.kind] += 1
        if message := without_numbers(outcome.message):
            found["message", outcome.kind, message] += 1
        if outcome.failure:
            found["failure", f"case {number}: {outcome.failure}\n    {case!r}"] += 1
        if isinstance(case, FuzzCase) and case.kinds:
            surprises = {
                t.surprise or "none" for t in (case.train, case.cal, case.test)
            }
            found.update(("frames", what) for what in ("in all", *surprises))
    return {
        "rows": [{"cells": cells, "cases": count} for cells, count in found.items()],
        "tried": sum(k for cells, k in found.items() if cells[0] == "outcome"),
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu,
    }


def outcome_of(case: FuzzCase | AttackCase) -> Outcome:
    """Run a case of either kind."""
    if isinstance(case, FuzzCase):
        return run_case(case)
    return Outcome(f"attack: {case.attack}", failure=run_attack(case))


def without_numbers(message: str) -> str:
    """First line of a message with its numbers and lists taken out, to count alike."""
    line = message.strip().splitlines()[0] if message.strip() else ""
    line = re.sub(r"[\[(][^\])]*[\])]", "(…)", line)
    return re.sub(r"-?\d[\d.e+-]*", "#", line)[:110].replace("|", "/")


def report(lines: Sequence[Line]) -> tuple[str, int]:
    """Counts of outcomes and messages, then failures, as Markdown; number of these."""
    counts: Counter[tuple[str, ...]] = Counter()
    for line in lines:
        for row in line["rows"]:
            counts[tuple(row["cells"])] += row["cases"]
    tables: defaultdict[str, list[list[str]]] = defaultdict(list)
    for (table, *cells), count in counts.most_common():
        tables[table].append([*cells, str(count)])
    messages, failures = tables["message"], tables["failure"]
    tried, seconds = (sum(x[name] for x in lines) for name in ("tried", "cpu_seconds"))
    parts = [
        f"{tried} cases, {len(failures)} failures; {seconds:.0f} s of CPU.\n",
        markdown_table(["outcome", "cases"], tables["outcome"], "lr"),
        "Data frames of mixed columns, and what was done to one of their tables:\n",
        markdown_table(["frames", "cases"], tables["frames"], "lr"),
        f"Commonest of {len(messages)} messages (numbers replaced):\n",
        markdown_table(
            ["exception", "message begins", "cases"], messages[:N_MESSAGES], "llr"
        ),
    ]
    parts += [f"FAILURE: {failure}\n" for failure, _ in failures[:N_FAILURES]]
    return "\n".join(parts), len(failures)
