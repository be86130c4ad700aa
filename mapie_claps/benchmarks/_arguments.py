"""Options that the benchmarks on data sets share, and the data sets they name."""

import argparse
from pathlib import Path

from ..studies import data as _data


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


def check_numbers(arguments: argparse.Namespace) -> None:
    """Raise if a number is too small."""
    for name, low in (("seeds", 1), ("jobs", 1), ("max_rows", _data.MIN_ROWS)):
        value = getattr(arguments, name)
        if value < low:
            raise ValueError(
                f"Got --{name.replace('_', '-')} {value}, but expected at least {low}. "
                "Leave it out to get the default."
            )


def load_datasets(
    arguments: argparse.Namespace, text: bool = False
) -> list[_data.Dataset]:
    """Load the data sets; with ``text`` their features may hold text and gaps."""
    if arguments.smoke:
        return [_data.load_diabetes_rows()]
    names = arguments.datasets or _data.PAPER_DATASETS
    return [_data.load_named(name, arguments.data, text) for name in names]
