"""A study of parts: files × options × seeds, means of what they measure, bounds.

Each part measures every file with every combination of its options. Names of ratios
hold a "/", and their means are geometric. ``<study>_bounds.csv`` says what must hold
for the means of groups of runs. The same command goes on where it was stopped. With
another commit on PYTHONPATH, ``--only PART --without-peers`` writes a PART.csv that, in
OUT as PART_before.csv, is compared with.
"""

import argparse
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple

import engine
import numpy as np
import pandas as pd
from engine import Array, Row, Run
from scipy.stats import gmean

from mapie_claps import ClapsRegressor, explain

CLAPS = "CLAPS"  # in the name of each method that has it
ALPHA, LEVEL, SCORE = 0.1, 0.9, "score/sd(y)"
N_NEW, MIN_NEW = 1000, 50  # rows to predict; a table with fewer left is not used
#: Fields that name a run, and are no measures.
NAMES = {"method", "model", "set", "seed", "kind", "rows", "size", "r2", "levels"}
HEAD = "part", "measure", "rows", "bound", "mean", "lowest", "highest", "within", "met"
GENERATED = Path("generated")  # in place of a file
Model = Callable[..., ClapsRegressor]  # with the random state of the run
Rows = Iterator[Row]
Table = pd.DataFrame


class Part(NamedTuple):
    """How rows are measured: every file with every combination of the options."""

    measure: Callable[..., Rows]  # (seed, new model, table, **case) → rows
    by: Sequence[str]  # fields that name the lines, for each of its tables
    within: str = ""  # fields over whose groups a range is shown
    files: Sequence[str] = ()
    options: Mapping[str, Sequence[Any]] = {}
    n_seeds: int | None = None  # if not --seeds


# What measures share ------------------------------------------------------------------


class Told(NamedTuple):
    """Mean and both parts of the variance."""

    mean: Array
    noise: Array
    lack: Array

    def against(self, mean: Array, sd: Any) -> Row:
        """The comparison with true means and standard deviations of the noise."""
        error = float(np.mean((self.mean - mean) ** 2))
        return {
            "noise/true": float(np.median(np.sqrt(self.noise) / sd)),
            "lack/true": float(np.mean(self.lack)) / error,
            "true lack": error / float(np.mean(np.square(sd))),
        }


def told(model: Any, X: Any) -> Told:
    why = explain(model, X)
    return Told(why.prediction, why.aleatoric, why.epistemic)


def shuffled(table: Table, seed: int, max_rows: int | None = None) -> Any:
    """Inputs and targets in a seeded order, and where 60 % and 80 % of them end."""
    rows = np.random.default_rng(seed).permutation(len(table))[:max_rows]
    table, n = table.iloc[rows].reset_index(drop=True), len(rows)
    y = table.iloc[:, -1].to_numpy(np.float64)
    return table.iloc[:, :-1], y, int(0.6 * n), int(0.8 * n)


def scored(ends: Array, y: Array, unit: Any = 1.0) -> Row:
    found = engine.score_intervals(y, *ends.T, ALPHA)
    score = found["interval_score"] / float(unit)
    return {"coverage": found["coverage"], SCORE: score}


def intervals(calibrated: Any, X: Any, **options: Any) -> Array:
    return np.asarray(calibrated.predict_interval(X, **options)[1][:, :, 0])


# Runs ---------------------------------------------------------------------------------


@cache
def read(path: Path) -> Table:
    if path == GENERATED:
        numbers = np.random.default_rng(0).poisson(3, (160, 6))
        return pd.DataFrame(numbers, columns=list("abcdey"))
    return pd.read_csv(path)


def compute(part: Part, path: Path, seed: int, params: Row, case: Row) -> list[Row]:
    new = partial(ClapsRegressor, random_state=seed, **params)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(part.measure(seed, new, read(path), **case))
    return [{"set": path.stem, "seed": seed} | case | row for row in found]


def plan(study: str, name: str, part: Part, arguments: argparse.Namespace) -> Any:
    """Runs of a part; seeds outermost, so that what an interruption leaves is even."""
    params, paths = arguments.params, [GENERATED]
    if part.files and not arguments.smoke:
        found = {p: sorted(arguments.data.glob(p)) for p in part.files}
        if missing := ", ".join(p for p in found if not found[p]):
            raise ValueError(
                f"Got --data {arguments.data}, but expected {missing} in it for the "
                f"part {name!r}. Correct the folder, or choose parts with --only."
            )
        paths = [path for some in found.values() for path in some]
    hashes = {path: pd.util.hash_pandas_object(read(path)).sum() for path in paths}
    parameters: Any = ClapsRegressor(**params).get_params()
    with suppress(ImportError):  # of a commit without recipes
        parameters = engine.claps_parameters(ClapsRegressor(**params))
    first, n = arguments.first_seed, part.n_seeds or arguments.seeds
    options = product(*part.options.values())
    cases = [dict(zip(part.options, values, strict=True)) for values in options]
    for seed, case, path in product(range(first, first + n), cases, paths):
        uses_claps = CLAPS in case.get("method", CLAPS)
        left_out = case.get("method", CLAPS) != CLAPS and arguments.without_peers
        if left_out or len(read(path)) < case.get("rows", 0) + MIN_NEW:
            continue
        key = engine.run_key(
            f"{study}, {name}",
            data={"name": path.stem, "hash": int(hashes[path])},
            split={"seed": seed},
            method=case | ({"parameters": repr(parameters)} if uses_claps else {}),
            uses_claps=uses_claps,
        )
        label = ", ".join([name, path.stem, *map(str, case.values()), f"seed {seed}"])
        yield Run(label, key, partial(compute, part, path, seed, params, case))


# Tables -------------------------------------------------------------------------------


def mean(values: Any) -> float:
    """Mean of a column, of ratios the geometric one; NaN is left out."""
    return float(gmean(values.dropna()) if "/" in values.name else values.mean())


def means(frame: Table, by: str, measure: str) -> Any:
    """One for each group, without those in which nothing was measured."""
    frame = frame.dropna(subset=measure)
    texts = frame[by.split()].astype(str).to_numpy()
    groups = pd.Series([", ".join(row) or "all" for row in texts], frame.index, object)
    return frame.groupby(groups, sort=False)[measure].agg(mean)


def cell(frame: Table, within: str, measure: str) -> str:
    """The mean, and the lowest and highest of the groups."""
    own = means(frame, within, measure)
    text = "–" if own.empty else f"{mean(frame[measure]):.3g}"
    return f"{text} ({own.min():.3g} to {own.max():.3g})" if len(own) > 1 else text


def tables(part: Part, frame: Table) -> Iterator[str]:
    shown = [name for name in frame if name not in NAMES]
    for by in map(str.split, part.by):
        lines = [
            [*map(str, names), *(cell(rows, part.within, name) for name in shown)]
            for names, rows in frame.groupby(by, sort=False, dropna=False)
        ]
        head, align = [*by, *shown], "l" * len(by) + "r" * len(shown)
        yield engine.markdown_table(head, lines, align)


def judged(study: str, name: str, frame: Table) -> Iterator[list[str]]:
    """A line for each bound: mean, groups furthest out, how many hold."""
    for bound in engine.read_csv(Path(__file__).with_name(f"{study}_bounds.csv")):
        part, query, by, measure, *limits = bound.values()
        if part != name or measure not in frame:
            continue
        own = frame.query(query, engine="python") if query else frame
        if (found := means(own, by, measure)).empty:
            continue
        low, high = (float(limit or "nan") for limit in limits)
        n = len(found) - int(((found < low) | (found > high)).sum())
        ends = [f"{found[at]:.3g} ({at})" for at in (found.idxmin(), found.idxmax())]
        asked = " to ".join(limit or "…" for limit in limits)
        count, holds = f"{n} of {len(found)}", "yes" if n == len(found) else "NO"
        yield [name, measure, query, asked, f"{mean(found):.3g}", *ends, count, holds]


def run(study: str, parts: Mapping[str, Part], arguments: argparse.Namespace) -> int:
    """Run what is missing, write tables and print bounds; 1 if a run failed."""
    out, lines = arguments.out, []
    arguments.params = {"max_steps": 5, "n_members": 1} if arguments.smoke else {}
    chosen = {name: parts[name] for name in arguments.only}
    plans = {n: list(plan(study, n, part, arguments)) for n, part in chosen.items()}
    if arguments.smoke:
        plans = {name: runs[:: 1 + len(runs) // 3] for name, runs in plans.items()}
    failures = engine.run_missing([*chain(*plans.values())], out, arguments.jobs)
    for name, runs in plans.items():
        frame = pd.DataFrame(engine.finished_rows(runs, out))
        if not frame.empty:
            ours = frame.query("method == @CLAPS") if "method" in frame else frame
            lines += judged(study, name, ours)
            files = {f"{name}.csv": frame.to_csv(index=False, float_format="%.5g")}
            if (before := out / f"{name}_before.csv").is_file():
                old = pd.read_csv(before).assign(method="CLAPS before")
                frame = pd.concat([frame, old])
            files[f"{name}.md"] = "\n".join(tables(chosen[name], frame))
            engine.write_files(files, out)
    text = engine.markdown_table(HEAD, lines, "llllrllr")
    engine.write_files({"bounds.md": text}, out)
    print(text, *failures, sep="")
    return 1 if failures else 0


def main(
    study: str,
    description: str | None,
    parts: Mapping[str, Part],
    given: Sequence[str] | None,
) -> int:
    parser = engine.new_parser(description, f"{study}_results")
    add, names = parser.add_argument, list(parts)
    add("--data", type=Path, default=Path("data"), metavar="FOLDER", help="(data)")
    add("--only", nargs="+", choices=names, default=names, metavar="PART", help="all")
    add("--seeds", type=int, default=3, metavar="N", help="where a part has no own (3)")
    add("--first-seed", type=int, default=0, metavar="N", help="(0)")
    add("--without-peers", action="store_true", help="CLAPS with its defaults alone")
    return engine.run_command(parser, partial(run, study, parts), given)
