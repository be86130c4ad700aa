"""Command line: run experiments, then write tables, figures and report."""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..studies.arguments import check_numbers
from ..studies.runner import check_mapie, finished_lines, run_missing
from ..studies.store import Row, Store
from ..studies.text import write_files
from .experiment import EXPERIMENTS, Options

SMOKE_SEEDS = 2
DATA_VARIABLE = "MAPIE_CLAPS_DATA"


def parser() -> argparse.ArgumentParser:
    """Arguments of the command."""
    names = [
        f"\n  {e.name:<21}{e.title} ({e.n_seeds} seeds)" for e in EXPERIMENTS.values()
    ]
    made = argparse.ArgumentParser(
        prog="python -m mapie_claps.experiments",
        description="Run an experiment of the CLAPS paper and write its tables, "
        "figures and the report of claims. Finished runs are kept in OUT/runs.jsonl: "
        "the same command continues where it was interrupted.",
        epilog="names:" + "".join(names),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    name = "an experiment (see below), all, or report to write the output again"
    add("name", choices=[*EXPERIMENTS, "all", "report"], metavar="NAME", help=name)
    add("--seeds", type=int, help="number of seeds per case")
    add("--jobs", type=int, default=1, help="processes, of one thread each")
    where = f"folder with <data set>.csv, target last (or set {DATA_VARIABLE}); "
    add("--data", metavar="FOLDER", help=where + "what is not there is downloaded")
    where = "where output goes (paper_results; with --smoke paper_results_smoke)"
    add("--out", type=Path, metavar="FOLDER", help=where)
    smoke = "5 steps, 2 seeds, data that scikit-learn ships: shows that it runs"
    add("--smoke", action="store_true", help=smoke)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    command = parser()
    args = command.parse_args(arguments)
    try:
        check_numbers(args, seeds=1, jobs=1)
        check_mapie((1, 5), "the experiments need, for its standard deviations")
        return _run(args)
    except (ValueError, OSError, RuntimeError) as error:
        command.error(str(error))
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted; the same command continues from here.\n")
        return 130


def _run(args: argparse.Namespace) -> int:
    options = Options(args.data, args.smoke)
    out = args.out or Path("paper_results_smoke" if args.smoke else "paper_results")
    n_seeds = args.seeds or (SMOKE_SEEDS if args.smoke else None)
    chosen = {"report": [], "all": list(EXPERIMENTS)}.get(args.name, [args.name])
    # Keys hold a hash of the data, which are loaded only for runs that can be there.
    wanted = {line["key"].get("study") for line in Store(out).lines()} | set(chosen)
    plans = {
        name: experiment.plan(n_seeds, options) if name in wanted else []
        for name, experiment in EXPERIMENTS.items()
    }
    runs = [run for name in chosen for run in plans[name]]
    started = time.perf_counter()
    failures = run_missing(runs, out, args.jobs) if runs else []
    lines = {name: finished_lines(plan, out) for name, plan in plans.items()}
    if runs:
        worked = sum(line["cpu_seconds"] for name in chosen for line in lines[name])
        sys.stdout.write(
            f"{len(runs)} runs in {time.perf_counter() - started:.0f} s with "
            f"{args.jobs} job(s); processor time of all runs {worked:.0f} s\n"
        )
    counts = {n: (len(lines[n]), e.n_runs(n_seeds)) for n, e in EXPERIMENTS.items()}
    unfinished = {n: both for n, both in counts.items() if both[0] < both[1]}
    rows = {n: [row for x in found for row in x["rows"]] for n, found in lines.items()}
    for file in write_output(rows, out, options, unfinished):
        sys.stdout.write(f"{file}\n")
    sys.stdout.writelines(map(str, failures))
    return 1 if failures else 0


def write_output(
    rows: Mapping[str, list[Row]],
    out: Path,
    options: Options,
    unfinished: Mapping[str, tuple[int, int]],
) -> list[Path]:
    """Rows, tables, figures and report."""
    from .figures import write_figures
    from .report import report_of
    from .tables import all_tables

    written = write_files(all_tables(rows), out)
    figures = write_figures(rows, out / "figures", options)
    if not figures:
        sys.stdout.write("No figures: install mapie-claps[plot].\n")
    report = {"report.md": report_of(rows, unfinished)}
    return written + figures + write_files(report, out)


if __name__ == "__main__":
    sys.exit(main())
