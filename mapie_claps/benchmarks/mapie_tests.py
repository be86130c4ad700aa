"""Run MAPIE's own tests with our estimator and score in place of MAPIE's.

MAPIE's wheel brings its tests along. Those of regression, conformity scores, the life
cycle and conditional coverage run here in a process of their own, where
``LinearRegression`` and ``DummyRegressor`` are a small ``ClapsRegressor`` and the
absolute score and the score by standard deviations are ``ClapsScore``. Nothing of
MAPIE is copied. Tables of 500 rows are cut to ``--rows``: leave-one-out takes seconds.

Prints how many tests passed, and every exception with its reason. A failure that is not
in the list of exceptions is printed as such, and the command ends with 1.

Needs pip install "mapie-claps[tests,conditional]" and MAPIE 1.5 or later.

Examples
--------
    python -m mapie_claps.benchmarks mapie_tests
    python -m mapie_claps.benchmarks mapie_tests --files test_common.py
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..studies.arguments import check_numbers
from ..studies.text import markdown_table, write_files
from ._mapie_exceptions import EXCEPTIONS

FILES = (
    "test_common.py",
    "test_regression.py",
    "test_conformity_scores_bounds.py",
    "test_conformity_scores_property.py",
    "test_conformity_scores_utils.py",
    "test_conditional.py",
)
# Names of the environment variables that the plugin reads.
REPORT, ROWS = "MAPIE_CLAPS_REPORT", "MAPIE_CLAPS_ROWS"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("--files", nargs="+", default=FILES, metavar="NAME", help="of MAPIE's tests")
    add("--select", metavar="WORDS", help="only tests with these words, as pytest -k")
    add("--rows", type=int, default=60, metavar="N", help="in place of 500 rows (60)")
    add("--out", type=Path, metavar="FOLDER", help="write the report here, too")


def run(arguments: argparse.Namespace) -> int:
    """Run the tests and print the report; 1 if a failure is not an exception."""
    check_numbers(arguments, rows=20)
    lines = outcomes(tests_of_mapie(arguments.files), arguments)
    text, unlisted = report(lines)
    sys.stdout.write(text)
    if arguments.out is not None:
        write_files({"mapie_tests.md": text}, arguments.out)
    return 1 if unlisted else 0


def tests_of_mapie(names: Iterable[str]) -> list[Path]:
    """Where the tests are; MAPIE itself is not imported."""
    spec = find_spec("mapie")
    folders = [] if spec is None else spec.submodule_search_locations or []
    found = [Path(folder) / "tests" / name for folder in folders for name in names]
    missing = [path.name for path in found if not path.is_file()]
    if missing or not found:
        raise ValueError(
            f"Got MAPIE {version('mapie')} without {', '.join(missing) or 'tests'}. "
            "Install a wheel that brings its tests along, for example with: pip "
            'install --force-reinstall "mapie>=1.6"; --files names those to run.'
        )
    return found


def outcomes(tests: Sequence[Path], arguments: argparse.Namespace) -> list[Any]:
    """What became of each test, in a process of its own."""
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--tb=no"]
    command += ["-p", "mapie_claps.benchmarks._mapie_swap", "-p", "no:cacheprovider"]
    command += ["-k", arguments.select] if arguments.select else []
    command += [f"--rootdir={tests[0].parent}", *map(str, tests)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.jsonl"
        env = os.environ | {REPORT: str(path), ROWS: str(arguments.rows)}
        ended = subprocess.run(
            command, env=env, capture_output=True, text=True, check=False
        )
        # pytest ends with 0 if all passed, with 1 if some failed.
        if ended.returncode not in (0, 1) or not path.exists():
            raise RuntimeError(
                f"pytest ended with {ended.returncode}: {ended.stdout[-2000:]}"
                f"{ended.stderr[-2000:]}"
            )
        content = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in content.splitlines()]


def reason_of(line: dict[str, str]) -> str | None:
    """Why a failure is an exception; None if it is none."""
    name = f"{line['file']}::{line['test']}"
    for reason, (_, patterns) in EXCEPTIONS.items():
        for test, message in patterns.items():
            if re.search(test, name) and re.search(message, line["message"]):
                return reason
    return None


def report(lines: Sequence[dict[str, str]]) -> tuple[str, int]:
    """Counts by file, exceptions by reason and test, and how many have no reason."""
    counts = Counter((line["file"], line["outcome"]) for line in lines)
    by_file = [
        [name, str(counts[name, "passed"]), str(counts[name, "failed"])]
        for name in dict.fromkeys(line["file"] for line in lines)
    ]
    failed = [(line, reason_of(line)) for line in lines if line["outcome"] == "failed"]
    unlisted = [line for line, reason in failed if reason is None]
    reasons = dict.fromkeys(reason for _, reason in failed if reason is not None)
    tests = Counter((reason, line["test"].split("[")[0]) for line, reason in failed)
    exceptions = [
        [reason, f"`{test}`", str(count)]
        for reason in reasons
        for (own, test), count in tests.items()
        if own == reason
    ]
    passed = sum(line["outcome"] == "passed" for line in lines)
    parts = [
        f"MAPIE {version('mapie')}: {passed} passed, {len(failed)} failed, of which "
        f"{len(failed) - len(unlisted)} are exceptions with a reason and "
        f"{len(unlisted)} are not.\n",
        markdown_table(["MAPIE's tests", "passed", "failed"], by_file, "lrr"),
        "Exceptions:\n",
        markdown_table(["reason", "test", "cases"], exceptions, "llr"),
        "".join(f"- {reason}: {EXCEPTIONS[reason][0]}.\n" for reason in reasons),
    ]
    parts += [
        f"NO REASON: {line['file']}::{line['test']}: {line['message'][:300]}\n"
        for line in unlisted
    ]
    return "\n".join(parts), len(unlisted)
