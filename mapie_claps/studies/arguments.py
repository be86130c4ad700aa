"""Options that the studies share, and the data sets that they name."""

import argparse
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from . import data as _data


def add_data_arguments(parser: argparse.ArgumentParser, seeds: int, out: str) -> None:
    """Declare the options, with the default number of seeds and output folder."""
    add = parser.add_argument
    add("--data", type=Path, metavar="FOLDER", help="CSV files, target last")
    add("--datasets", nargs="+", metavar="NAME", help="files in FOLDER (paper's eight)")
    of_seeds = f"splits 0 to N − 1 ({seeds})"
    add("--seeds", type=int, default=seeds, metavar="N", help=of_seeds)
    add("--max-rows", type=int, default=5000, metavar="N", help="rows per split (5000)")
    add("--out", type=Path, default=Path(out), metavar="FOLDER")
    add("--jobs", type=int, default=1, metavar="N", help="processes (1)")
    add("--smoke", action="store_true", help="quick trial on 150 rows")


def check_numbers(arguments: argparse.Namespace, **lowest: int) -> None:
    """Raise if a number is smaller than the lowest that makes sense."""
    for name, low in lowest.items():
        value = getattr(arguments, name)
        if value is not None and value < low:
            raise ValueError(
                f"Got --{name.replace('_', '-')} {value}, but expected at least {low}. "
                "Leave it out to get the default."
            )


def seeds_of(arguments: argparse.Namespace) -> range:
    """The seeds asked for, one of them in a trial; raises if a number is too small."""
    check_numbers(arguments, seeds=1, jobs=1, max_rows=_data.MIN_ROWS)
    return range(1 if arguments.smoke else arguments.seeds)


def check_names(option: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise if a name is not known."""
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(
            f"Got --{option} {' '.join(unknown)}, but expected names of "
            f"{', '.join(known)}."
        )


def check_installed(modules: Iterable[str], extra: str = "bench") -> None:
    """Raise if a module that a study needs is not installed."""
    absent = sorted(name for name in set(modules) if find_spec(name) is None)
    if absent:
        raise ValueError(
            f"Got no module named {', '.join(absent)}. Install what is missing with: "
            f'pip install "mapie-claps[{extra}]"'
        )


def load_datasets(
    arguments: argparse.Namespace, text: bool = False
) -> list[_data.Dataset]:
    """Load the data sets; with ``text`` their features may hold text and gaps."""
    if arguments.smoke:
        return [_data.load_diabetes_rows()]
    names = arguments.datasets or _data.PAPER_DATASETS
    return [_data.load_named(name, arguments.data, text) for name in names]
