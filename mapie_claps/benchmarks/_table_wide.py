"""Time and memory of one table of mixed types, beside the same table as numbers."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..studies.data import take_rows
from ..studies.runner import Run
from ..studies.scoring import score_intervals
from ..studies.store import Row, run_key
from ..studies.text import markdown_table, number
from ._generated_tables import wide_table
from ._peer_table import claps_parameters
from ._speed_timing import Settings, peak_above, run_child
from ._table_methods import SHORT

N_COLUMNS = 30
KINDS = {"mixed": "mixed types", "numbers": "as numbers"}


def wide_runs(n_rows: int, smoke: bool) -> list[Run]:
    """Both tables, each in a process of its own."""
    params: dict[str, Any] = SHORT if smoke else {}
    method = {"parameters": claps_parameters(**params)}
    split = {"n_rows": n_rows, "n_columns": N_COLUMNS}
    measure = partial(run_child, Settings(smoke=smoke), measure_wide, params=params)
    return [
        Run(
            f"{label}, {n_rows:,} rows",
            run_key(
                "tables_wide",
                data={"name": "wide_table", "kind": kind},
                split=split,
                method=method,
            ),
            partial(measure, kind=kind, n_rows=n_rows),
        )
        for kind, label in KINDS.items()
    ]


def measure_wide(kind: str, n_rows: int, params: dict[str, Any]) -> list[Row]:
    """Fit on the first half of 2n rows, predict the second."""
    from .. import CalibratedRegressor, ClapsRegressor

    frame, numbers, y = wide_table(2 * n_rows, N_COLUMNS)
    X = frame if kind == "mixed" else numbers
    del frame, numbers
    first, second = np.arange(n_rows), np.arange(n_rows, 2 * n_rows)
    X_fit, X_new = take_rows(X, first), take_rows(X, second)
    model = CalibratedRegressor(
        ClapsRegressor(random_state=0, **params), random_state=0
    )
    fit, _ = _measured(lambda: model.fit(X_fit, y[first]))
    predict, (_, bounds) = _measured(lambda: model.predict_interval(X_new))
    lower, upper = bounds[:, :, 0].T
    row = {"kind": kind, "n_inputs": len(model.estimator_.table_.outputs())}
    row |= {"fit": fit, "predict_interval": predict}
    return [row | score_intervals(y[second], lower, upper, alpha=0.1)]


def _measured(function: Callable[[], Any]) -> tuple[Row, Any]:
    """Seconds of the clock and of the processor and MB at the peak, with the result."""
    wall, cpu = time.perf_counter(), time.process_time()
    megabytes, result = peak_above(function)
    found = {
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "megabytes": megabytes,
    }
    return found, result


def wide_report(n_rows: int, rows: Sequence[Row], out: Path) -> str:
    """One line for each table and step."""
    lines = []
    for row in rows:
        scores = [f"{row['coverage']:.3f}", number(row["interval_score"])]
        for step in ("fit", "predict_interval"):
            used = (row[step][f] for f in ("cpu_seconds", "seconds", "megabytes"))
            cells = [KINDS[row["kind"]], str(row["n_inputs"]), step]
            lines.append([*cells, *(f"{value:.0f}" for value in used), *scores])
    header = ["table", "inputs", "step", "seconds of CPU", "seconds", "peak MB above"]
    title = (
        f"CalibratedRegressor on {n_rows:,} rows of {N_COLUMNS} columns, then as many "
        "new ones; MB above those of the process with both tables\n\n"
    )
    return title + markdown_table([*header, "coverage", "interval score"], lines)
