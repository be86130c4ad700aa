"""Time and memory of CLAPS beside what it is compared with, and the bounds to keep.

All times of a section are taken in one process, in turns, with equal types and a fixed
number of threads; the shortest of several counts. Import time and peak memory are taken
in processes of their own.

Sections: posterior (against laplace-torch and the limit), intervals (MAPIE's
predict_interval), training (skorch, MLPRegressor), growth (rows and features), import,
threads (n_jobs), default (the default fit against MAPIE's CQR, with its profile).

With --clock cpu and one thread, times are those of the processor, which others who
compute on the same machine disturb less.

Examples
--------
    python -m mapie_claps.benchmarks speed --smoke
    python -m mapie_claps.benchmarks speed --only posterior intervals --out results
    python -m mapie_claps.benchmarks speed --only default --data FOLDER
"""

import argparse
import csv
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

import torch
from threadpoolctl import threadpool_limits

from .._validation import check_integer
from ._speed_interval import intervals
from ._speed_posterior import growth, posterior
from ._speed_process import imports, threads
from ._speed_timing import CLOCKS, Result, Settings
from ._speed_training import default_fit, training

DESCRIPTION = "time and memory against laplace-torch, MAPIE, skorch, scikit-learn"
SECTIONS: dict[str, Callable[[Settings], Iterator[Result]]] = {
    "posterior": posterior,
    "intervals": intervals,
    "training": training,
    "growth": growth,
    "import": imports,
    "threads": threads,
    "default": default_fit,
}
HEADER = (
    "| what | CLAPS | against | its figure | ratio | required | met |\n"
    "|---|---|---|---|---|---|---|\n"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("--only", nargs="+", metavar="NAME", help=f"of {', '.join(SECTIONS)}")
    add("--data", type=Path, metavar="FOLDER", help="the paper's eight CSV files")
    add("--threads", type=int, default=1, metavar="N", help="threads of torch (1)")
    add("--repeats", type=int, default=3, metavar="N", help="best of N (3)")
    add("--clock", choices=tuple(CLOCKS), default="wall", help="which time (wall)")
    add("--out", type=Path, metavar="FOLDER", help="write tables, section by section")
    add("--smoke", action="store_true", help="short version: tiny sizes, no bounds")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the table as it grows, and write it."""
    names = _sections(arguments.only)
    for name in ("threads", "repeats"):
        check_integer(name, getattr(arguments, name), low=1, hint="Leave it out.")
    settings = Settings(
        smoke=arguments.smoke,
        threads=arguments.threads,
        repeats=1 if arguments.smoke else arguments.repeats,
        clock=arguments.clock,
        data=arguments.data,
    )
    before = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        # The rivals draw from torch's global generator.
        with threadpool_limits(settings.threads), torch.random.fork_rng(devices=[]):
            results = list(_measure(names, settings))
    finally:
        torch.set_num_threads(before)
    if arguments.out is not None:
        write(results, arguments.out)
    return 0


def _sections(names: list[str] | None) -> list[str]:
    unknown = sorted(set(names or ()) - set(SECTIONS))
    if unknown:
        raise ValueError(
            f"Got --only {' '.join(unknown)}, but expected names of "
            f"{', '.join(SECTIONS)}."
        )
    chosen = [name for name in SECTIONS if name in (names or SECTIONS)]
    if "training" in chosen and find_spec("skorch") is None:
        raise ValueError(
            "Got no module named skorch, which the section training compares with. "
            'Install it with: pip install "mapie-claps[bench]"'
        )
    return chosen


def _measure(names: Iterable[str], settings: Settings) -> Iterator[Result]:
    """Results one by one, each printed at once."""
    sys.stdout.write(HEADER)
    for name in names:
        for result in SECTIONS[name](settings):
            sys.stdout.write(line(result))
            sys.stdout.flush()
            yield result


def line(result: Result) -> str:
    """One line of the Markdown table."""
    sign = "≥" if result.kind == "faster" else "≤"
    required = "" if result.bound is None else f"{sign} {result.bound:g}"
    met = {None: "", True: "yes", False: "**no**"}[result.met]
    ours, other = (f"{v:.3g} {result.unit}" for v in (result.ours, result.other))
    cells = (result.case, ours, result.against, other, f"{result.ratio:.2f}")
    return f"| {' | '.join(cells)} | {required} | {met} |\n"


def report(results: list[Result]) -> str:
    """All tables, one per section, and the profiles below."""
    parts = []
    for name in SECTIONS:
        rows = [r for r in results if r.section == name]
        if not rows:
            continue
        parts.append(f"## {name.capitalize()}\n\n{HEADER}{''.join(map(line, rows))}")
        notes = [f"- {r.case}: {r.note}\n" for r in rows if r.note]
        if notes:
            parts.append(f"Where the time goes:\n\n{''.join(notes)}")
    return "\n".join(parts)


def write(results: list[Result], folder: Path) -> None:
    """Write speed.md and speed.csv; sections measured before and not now stay."""
    folder.mkdir(parents=True, exist_ok=True)
    measured = {result.section for result in results}
    before = read(folder / "speed.csv") if (folder / "speed.csv").exists() else []
    results = results + [r for r in before if r.section not in measured]
    results.sort(key=lambda r: list(SECTIONS).index(r.section))
    (folder / "speed.md").write_text(report(results), encoding="utf-8")
    with (folder / "speed.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*Result.__dataclass_fields__, "ratio", "met"])
        for r in results:
            writer.writerow([*vars(r).values(), r.ratio, r.met])


def read(file: Path) -> list[Result]:
    """Results that an earlier run wrote."""
    with file.open(newline="", encoding="utf-8") as rows:
        return [
            Result(
                row["section"],
                row["case"],
                row["against"],
                float(row["ours"]),
                float(row["other"]),
                row["unit"],
                "faster" if row["kind"] == "faster" else "cost",
                float(row["bound"]) if row["bound"] else None,
                row["note"],
            )
            for row in csv.DictReader(rows)
        ]
