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
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import Any

from ..studies.arguments import check_installed, check_names, check_numbers
from ..studies.text import csv_table, markdown_table, write_files
from ._speed_timing import CLOCKS, Result, Settings, on_threads

#: Section → module and function that yields its results.
SECTIONS = {
    "posterior": ("_speed_posterior", "posterior"),
    "intervals": ("_speed_interval", "intervals"),
    "training": ("_speed_training", "training"),
    "growth": ("_speed_posterior", "growth"),
    "import": ("_speed_against", "imports"),
    "threads": ("_speed_training", "threads"),
    "default": ("_speed_training", "default_fit"),
    "boosting": ("_speed_training", "boosting"),
    "row": ("_speed_interval", "one_row"),
    "export": ("_speed_interval", "exports"),
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
    only, tree = arguments.only or (), arguments.against
    check_names("only", only, SECTIONS)
    names = [name for name in SECTIONS if name in (only or SECTIONS)]
    check_installed(["skorch"] if "training" in names else [])
    if tree is None and "against" in only:
        raise ValueError("Got --only against, but no folder. Add --against FOLDER.")
    if tree is not None and not (tree / "mapie_claps" / "__init__.py").is_file():
        raise ValueError(
            f"Got --against {tree}, but expected a folder with mapie_claps in it, "
            "such as: git worktree add FOLDER COMMIT"
        )
    check_numbers(arguments, threads=1, repeats=1)
    settings = Settings(**{name: getattr(arguments, name) for name in Settings._fields})
    if settings.smoke:
        settings = settings._replace(repeats=1)
    import torch

    results, today = [], date.today().isoformat()
    sys.stdout.write(markdown_table(HEADER, []))
    # The rivals draw from torch's global generator.
    with on_threads(settings.threads), torch.random.fork_rng(devices=[]):
        for name in names:
            module, function = SECTIONS[name]
            measure = getattr(import_module(f".{module}", __package__), function)
            for found in measure(settings):
                bound = settings.size(found.bound, None)
                found = found._replace(section=name, bound=bound, day=today)
                results.append(found)
                sys.stdout.write(f"| {' | '.join(cells(results[-1]))} |\n")
                sys.stdout.flush()
    if arguments.out is not None:
        write(results, arguments.out)
    return 0


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
            if rows[0].day:
                parts.append(f"Measured on {rows[0].day}.\n")
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
    lines = [[*r, r.ratio, r.met] for r in results]
    table = csv_table([*Result._fields, "ratio", "met"], lines)
    write_files({"speed.md": report(results), "speed.csv": table}, folder)


def read(file: Path) -> list[Result]:
    """Results that an earlier run wrote."""
    results = []
    with file.open(newline="", encoding="utf-8") as lines:
        for line in csv.DictReader(lines):
            cells: dict[str, Any] = {n: line.get(n, "") for n in Result._fields}
            for name in ("ours", "other", "bound"):
                cells[name] = float(line[name]) if line[name] else None
            results.append(Result(**cells))
    return results
