"""Command line: run experiments, then write tables, figures and report."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ..conformal import mapie as _mapie
from ..datasets import DATA_VARIABLE
from .benchmark import BENCHMARK
from .figures import write_figures
from .report import write_report
from .runs import (
    Experiment,
    Options,
    Row,
    Store,
    execute,
    plan,
    rows_of,
    seconds_of,
    unfinished,
)
from .sensitivity import SENSITIVITY
from .synthetic import CONTRACTION, MECHANISM
from .tables import write_rows, write_tables

EXPERIMENTS: dict[str, Experiment] = {
    e.name: e for e in (MECHANISM, CONTRACTION, BENCHMARK, *SENSITIVITY)
}
SMOKE_SEEDS = 2


def parser() -> argparse.ArgumentParser:
    """Arguments of the command."""
    lines = [
        f"  {e.name:<21}{e.title} ({e.n_seeds} seeds)" for e in EXPERIMENTS.values()
    ]
    made = argparse.ArgumentParser(
        prog="python -m mapie_claps.experiments",
        description=(
            "Run an experiment of the CLAPS paper and write its tables, figures and "
            "the report of claims. Finished runs are kept: the same command continues "
            "where it was interrupted."
        ),
        epilog="names:\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "name",
        choices=[*EXPERIMENTS, "all", "report"],
        metavar="NAME",
        help="an experiment (see below), all, or report to write the output anew",
    )
    made.add_argument("--seeds", type=_positive, help="number of seeds per case")
    made.add_argument(
        "--jobs", type=_positive, default=1, help="processes, of one thread each"
    )
    made.add_argument(
        "--data",
        metavar="FOLDER",
        help=f"folder with <data set>.csv, target last (or set {DATA_VARIABLE}); "
        "what is not there is downloaded",
    )
    made.add_argument(
        "--out",
        type=Path,
        default=None,
        metavar="FOLDER",
        help="where output goes (paper_results; with --smoke paper_results_smoke)",
    )
    made.add_argument(
        "--smoke",
        action="store_true",
        help="5 steps, 2 seeds, data that scikit-learn ships: shows that it runs",
    )
    return made


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"got {text}, but expected at least 1")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    args = parser().parse_args(arguments)
    if not _mapie.MAPIE_PASSES_STD:
        sys.stderr.write("The experiments need MAPIE 1.5 or later.\n")
        return 2
    options = Options(args.data, args.smoke)
    out = args.out or Path("paper_results_smoke" if args.smoke else "paper_results")
    n_seeds = args.seeds or (SMOKE_SEEDS if args.smoke else None)
    store = Store(out / "runs")
    plans = {name: plan(e, n_seeds, options) for name, e in EXPERIMENTS.items()}
    chosen = EXPERIMENTS if args.name == "all" else [args.name]
    if args.name != "report":
        runs = [run for name in chosen for run in plans[name]]
        started = time.perf_counter()
        try:
            execute(runs, store, args.jobs)
        except KeyboardInterrupt:
            sys.stderr.write("Interrupted; the same command continues from here.\n")
            return 130
        _say(
            f"{len(runs)} runs in {time.perf_counter() - started:.0f} s with "
            f"{args.jobs} job(s); processor time of all runs "
            f"{seconds_of(runs, store, 'cpu_seconds'):.0f} s"
        )
    rows = {name: rows_of(planned, store) for name, planned in plans.items()}
    for file in write_output(rows, out, options, unfinished(plans, store)):
        _say(str(file))
    return 0


def write_output(
    rows: dict[str, list[Row]],
    out: Path,
    options: Options,
    incomplete: dict[str, tuple[int, int]],
) -> list[Path]:
    """Rows, tables, figures and report."""
    written = write_rows(rows, out / "rows") + write_tables(rows, out / "tables")
    figures = write_figures(rows, out / "figures", options)
    if not figures:
        _say("No figures: install mapie-claps[plot].")
    return [*written, *figures, write_report(rows, out / "report.md", incomplete)]


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
