"""A CSV file to intervals: ``python -m mapie_claps fit``, ``predict`` and ``report``.

Needs ``pip install mapie-claps[cli]``. Bad input ends with one line and exit code 2.
"""

import argparse
import os
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ._validation import check_share, import_extra

CODE = r"\s*[+-]?0\d"  # as a number it would lose the zeros in front
EXAMPLES = """examples:
  python -m mapie_claps fit flats.csv --target rent --out rents.claps
  python -m mapie_claps predict rents.claps new.csv --out intervals.csv
  python -m mapie_claps report rents.claps test.csv --out report.html
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit code."""
    args = _parser().parse_args(argv)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_: _say("note", message)
        try:
            read = [args.table, getattr(args, "model", args.table)]
            out = Path(args.out).resolve()
            if out in {Path(name).resolve() for name in read}:
                raise ValueError(f"Got --out {args.out}, which is to be read.")
            if out.is_dir() or not os.access(out.parent, os.W_OK):
                raise ValueError(f"Got --out {args.out}, where no file can be written.")
            args.run(args)
        # What the library raises for bad input says what to do.
        except (ImportError, OSError, TypeError, ValueError) as error:
            _say("error", error)
            return 2
    return 0


def fit(args: argparse.Namespace) -> None:
    """Fit and calibrate on a table, and save the model."""
    start = time.perf_counter()
    import_extra("cli", "safetensors")  # not missed after a long fit only
    hint = "Use 0.9 for 90 %."
    levels = [check_share("--level", each, hint=hint) for each in args.level or [0.9]]
    table = _read(args.table)
    hint = "Correct --target, or separate columns by commas."
    _check_columns([args.target], table, args.table, hint)
    _check_columns(args.drop + args.text, table, args.table, "Correct the option.")
    y = _numbers(table, args.target, args.table, gaps=False)
    X = table.drop(columns=[args.target, *args.drop])
    numbers = [name for name in X if name not in args.text and _is_number(X[name])]
    # Loaded late: a wrong file is told at once.
    from .conformal.calibrated import CalibratedRegressor
    from .estimators.regressor import ClapsRegressor

    estimator = ClapsRegressor(verbose=1, random_state=args.seed)
    model: Any = CalibratedRegressor(estimator, levels, random_state=args.seed)
    rows = X.assign(**{k: _numbers(X, k, args.table) for k in numbers})
    model.fit(rows, y).predict_interval(rows[:1])  # raises if there are too few
    # The file keeps what it takes to read another table in the same way.
    model.csv_ = {"target": args.target, "columns": list(X), "numbers": numbers}
    model.save(args.out)
    what = f"{len(X):,} rows × {X.shape[1]} columns, {len(model.calibration_):,} rows"
    _say(args.out, f"{what} to calibrate, {time.perf_counter() - start:.0f} s")


def predict(args: argparse.Namespace) -> None:
    """Write intervals beside the columns of a table."""
    from .diagnostics import predict_frame

    model, table, X = _model_and_rows(args)
    found = predict_frame(model, X)
    given = table.rename(columns={name: f"{name}_given" for name in found})
    given.join(found).to_csv(args.out, index=False)
    _say(args.out, f"{len(X):,} rows")


def report(args: argparse.Namespace) -> None:
    """Write a page with coverage, widths, and reasons in words."""
    from .report import write_report

    model, table, X = _model_and_rows(args)
    target, hint = model.csv_["target"], "Coverage needs the target; predict does not."
    _check_columns([target], table, args.table, hint)
    _check_columns(args.group, X, args.table, "Correct --group.")
    y = _numbers(table, target, args.table, gaps=False)
    write_report(model, X, y, args.out, groups=args.group)
    _say(args.out, f"{len(X):,} rows")


def _parser() -> argparse.ArgumentParser:
    about = "Prediction intervals for a CSV file, and why they are wide."
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m mapie_claps", None, about, EXAMPLES, formatter_class=shape
    )
    verbs = parser.add_subparsers(required=True, metavar="fit | predict | report")
    several: Any = {"action": "append", "default": [], "metavar": "COLUMN"}
    for run, out in ((fit, "x.claps"), (predict, "x.csv"), (report, "x.html")):
        one = verbs.add_parser(run.__name__, help=run.__doc__, description=run.__doc__)
        if run is not fit:
            one.add_argument("model", help="file that fit wrote")
        one.add_argument("table", help="CSV file in UTF-8 with a line of column names")
        one.add_argument("--out", required=True, help=f"file to write, such as {out}")
        one.set_defaults(run=run)
        if run is fit:
            one.add_argument("--target", required=True, help="column to predict")
            text = "level of the intervals, 0.9 by default; may be repeated"
            one.add_argument("--level", type=float, action="append", help=text)
            one.add_argument("--drop", **several, help="column to leave out")
            one.add_argument("--text", **several, help="column of codes, not numbers")
            one.add_argument("--seed", type=int, default=0, help="0 by default")
        if run is report:
            one.add_argument("--group", **several, help="coverage by this column too")
    return parser


def _model_and_rows(args: argparse.Namespace) -> tuple[Any, Any, Any]:
    """What ``fit`` wrote, a table as it is, and its rows as the model knows them."""
    table = _read(args.table)
    from .files import load

    model = load(args.model)
    about = getattr(model, "csv_", None)
    if about is None:
        raise ValueError(f"Got {args.model}, which was not written by the command fit.")
    hint = f"{args.model} was fitted with it."
    _check_columns(about["columns"], table, args.table, hint)
    numbers = {name: _numbers(table, name, args.table) for name in about["numbers"]}
    return model, table, table[about["columns"]].assign(**numbers)


def _read(path: str) -> Any:
    """A table of text, whose rows are counted from 1."""
    pd = import_extra("cli", "pandas")
    try:
        table = pd.read_csv(path, dtype=str)
    except ValueError as error:  # also of the parser, or not UTF-8
        raise ValueError(f"Cannot read {path} as CSV in UTF-8: {error}") from error
    if not len(table) or not isinstance(table.index, pd.RangeIndex):
        raise ValueError(
            f"Got {path} without rows, or with more values in a row than names in its "
            "first line. Write one line of names, then one line for each row."
        )
    return table.set_axis(table.index + 1)


def _check_columns(names: list[str], table: Any, path: str, hint: str) -> None:
    if missing := [name for name in names if name not in table]:
        wanted, there = (", ".join(map(repr, each)) for each in (missing, table))
        raise ValueError(f"Got {path} without column {wanted}: it has {there}. {hint}")


def _is_number(column: Any) -> bool:
    pd = import_extra("cli", "pandas")
    values = column.dropna()
    known = pd.to_numeric(values, errors="coerce").notna().all()
    return bool(known) and not values.str.match(CODE).any()


def _numbers(table: Any, name: str, path: str, gaps: bool = True) -> Any:
    """A column as numbers."""
    pd = import_extra("cli", "pandas")
    text = table[name]
    values = pd.to_numeric(text, errors="coerce").where(lambda v: v - v == 0)  # finite
    bad = values.isna() & (text.notna() | (not gaps))
    if bad.any():
        first = text[bad].fillna("").iloc[0]
        raise ValueError(
            f"Got {first!r} in column {name!r} of {path}, row {bad.idxmax()}, but "
            f"expected a number; {bad.sum()} of {len(bad)} rows have none. Correct "
            "these rows, or leave them out."
        )
    return values


def _say(what: str, text: object) -> None:
    sys.stderr.write(f"{what}: {' '.join(str(text).split())}\n")


if __name__ == "__main__":
    sys.exit(main())
