"""Time and memory of CLAPS beside what it is compared with, and the bounds to keep.

All times of a section are taken in one process, in turns, with equal types and a fixed
number of threads; the shortest of several counts. Import time and peak memory are taken
in processes of their own.

Sections: posterior (against laplace-torch and the limit), intervals (MAPIE's
predict_interval), training (skorch, MLPRegressor), growth (rows and features), import,
threads (n_jobs), default (the default fit against MAPIE's CQR, with its profile),
boosting (the default fit on one and two cores against quantiles of HistGradientBoosting
and CatBoost), row (one row at a time), export (ONNX against Python) and, with --against
alone, against (another source tree, such as a checkout of an earlier commit).

With --clock cpu and one thread, times are those of the processor, which others who
compute on the same machine disturb less.

Examples
--------
    python -m mapie_claps.benchmarks speed --smoke
    python -m mapie_claps.benchmarks speed --only posterior intervals --out results
    python -m mapie_claps.benchmarks speed --only default --data FOLDER
    python -m mapie_claps.benchmarks speed --only against --against FOLDER
"""

import argparse
import csv
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from ..studies.arguments import check_installed, check_names, check_numbers
from ..studies.text import csv_table, markdown_table, write_files
from ._speed_timing import CLOCKS, Result, Settings

#: Section → module and function that yields its results.
SECTIONS = {
    "posterior": ("_speed_posterior", "posterior"),
    "intervals": ("_speed_interval", "intervals"),
    "training": ("_speed_training", "training"),
    "growth": ("_speed_posterior", "growth"),
    "import": ("_speed_training", "imports"),
    "threads": ("_speed_training", "threads"),
    "default": ("_speed_training", "default_fit"),
    "boosting": ("_speed_boosting", "boosting"),
    "row": ("_speed_row", "one_row"),
    "export": ("_speed_export", "exports"),
    "against": ("_speed_against", "against"),
}
HEADER = ("what", "CLAPS", "against", "its figure", "ratio", "required", "met")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("--only", nargs="+", metavar="NAME", help=f"of {', '.join(SECTIONS)}")
    add("--data", type=Path, metavar="FOLDER", help="the paper's eight CSV files")
    add("--threads", type=int, default=1, metavar="N", help="threads of torch (1)")
    add("--repeats", type=int, default=3, metavar="N", help="best of N (3)")
    add("--clock", choices=tuple(CLOCKS), default="wall", help="which time (wall)")
    add("--against", type=Path, metavar="FOLDER", help="another tree of the library")
    add("--out", type=Path, metavar="FOLDER", help="write tables, section by section")
    add("--smoke", action="store_true", help="short version: tiny sizes, no bounds")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the table as it grows, and write it."""
    names = _sections(arguments.only)
    if arguments.against is None and "against" in names:
        if arguments.only:
            raise ValueError("Got --only against, but no folder. Add --against FOLDER.")
        names.remove("against")
    check_numbers(arguments, threads=1, repeats=1)
    repeats = 1 if arguments.smoke else arguments.repeats
    settings = Settings(
        arguments.smoke,
        arguments.threads,
        repeats,
        arguments.clock,
        arguments.data,
        _tree(arguments.against),
    )
    import torch
    from threadpoolctl import threadpool_limits

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


def _tree(folder: Path | None) -> Path | None:
    """Another source tree, if it is one."""
    if folder is not None and not (folder / "mapie_claps" / "__init__.py").is_file():
        raise ValueError(
            f"Got --against {folder}, but expected a folder with mapie_claps in it, "
            "such as: git worktree add FOLDER COMMIT"
        )
    return None if folder is None else folder.resolve()


def _sections(names: list[str] | None) -> list[str]:
    check_names("only", names or (), SECTIONS)
    chosen = [name for name in SECTIONS if name in (names or SECTIONS)]
    check_installed(["skorch"] if "training" in chosen else [])
    return chosen


def _measure(names: Iterable[str], settings: Settings) -> Iterator[Result]:
    """Results one by one, each printed at once."""
    sys.stdout.write(markdown_table(HEADER, []))
    for name in names:
        module, function = SECTIONS[name]
        measure = getattr(import_module(f".{module}", __package__), function)
        for result in measure(settings):
            sys.stdout.write(f"| {' | '.join(cells(result))} |\n")
            sys.stdout.flush()
            yield replace(result, section=name)


def cells(result: Result) -> list[str]:
    """One line of the table."""
    sign = "≥" if result.kind == "faster" else "≤"
    required = "" if result.bound is None else f"{sign} {result.bound:g}"
    met = {None: "", True: "yes", False: "**no**"}[result.met]
    ours, other = (f"{v:.3g} {result.unit}" for v in (result.ours, result.other))
    ratio = f"{result.ratio:.2f}"
    return [result.case, ours, result.against, other, ratio, required, met]


def report(results: list[Result]) -> str:
    """All tables, one per section, and the profiles below."""
    parts = []
    for name in SECTIONS:
        rows = [r for r in results if r.section == name]
        if rows:
            table = markdown_table(HEADER, map(cells, rows))
            parts.append(f"## {name.capitalize()}\n\n{table}")
        notes = [f"- {r.case}: {r.note}\n" for r in rows if r.note]
        if notes:
            parts.append(f"Where the time goes:\n\n{''.join(notes)}")
    return "\n".join(parts)


def write(results: list[Result], folder: Path) -> None:
    """Write speed.md and speed.csv; sections measured before and not now stay."""
    measured = {result.section for result in results}
    before = read(folder / "speed.csv") if (folder / "speed.csv").exists() else []
    results = results + [r for r in before if r.section not in measured]
    results.sort(key=lambda r: list(SECTIONS).index(r.section))
    header = [*(f.name for f in fields(Result)), "ratio", "met"]
    lines = [[*astuple(r), r.ratio, r.met] for r in results]
    files = {"speed.md": report(results), "speed.csv": csv_table(header, lines)}
    write_files(files, folder)


def read(file: Path) -> list[Result]:
    """Results that an earlier run wrote."""
    kinds: dict[str, Callable[[str], Any]] = {"ours": float, "other": float}
    kinds["bound"] = lambda text: float(text) if text else None
    names = [f.name for f in fields(Result)]
    with file.open(newline="", encoding="utf-8") as lines:
        return [
            Result(**{name: kinds.get(name, str)(line[name]) for name in names})
            for line in csv.DictReader(lines)
        ]
