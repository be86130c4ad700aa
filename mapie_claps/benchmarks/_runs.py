"""One run (data set, seed, method), and the file that keeps what is finished."""

import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from ._data import Dataset, split_rows
from ._peers import BY_NAME
from ._scoring import interval_score
from ._tuning import shortened, tune

Row = dict[str, Any]
Key = tuple[str, int, str]
SETTINGS = ("alpha", "max_rows", "quick")
ROWS_FILE = "rows.jsonl"


@dataclass(frozen=True)
class Task:
    """What one run needs."""

    dataset: Dataset
    seed: int
    method: str
    alpha: float
    max_rows: int
    quick: bool = False  # two grid entries only

    @property
    def key(self) -> Key:
        """Data set, seed and method."""
        return self.dataset.name, self.seed, self.method


def run_task(task: Task) -> Row:
    """Tune on training rows, fit, calibrate, and score on test rows, on one thread.

    Parameters
    ----------
    task : Task
        What to run.

    Returns
    -------
    dict
        Key, settings, sizes, chosen parameters, cross-validated score, coverage, mean
        width, interval score, times in seconds, and warnings that were given.
    """
    with threadpool_limits(1), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if module := BY_NAME[task.method].requires:
            import_module(module)  # seconds for ngboost, which are not its fit time
        row = _measure(task)
    row["warnings"] = sorted({f"{w.category.__name__}: {w.message}" for w in caught})
    return row


def _measure(task: Task) -> Row:
    split = split_rows(task.dataset, task.seed, task.max_rows)
    method = BY_NAME[task.method]
    if task.quick:
        method = shortened(method)
    X, y, alpha = split.X_train, split.y_train, task.alpha
    choice = tune(method, X, y, alpha, task.seed)
    times = [time.perf_counter()]
    model = method.fit(X, y, choice.params, task.seed, alpha)
    predict = method.calibrate(model, split.X_cal, split.y_cal, choice.params, alpha)
    times.append(time.perf_counter())
    lower, upper = predict(split.X_test)
    times.append(time.perf_counter())
    fit_seconds, predict_seconds = np.diff(times)
    inside = (lower <= split.y_test) & (split.y_test <= upper)
    return {
        "dataset": task.dataset.name,
        "seed": task.seed,
        "method": task.method,
        "alpha": alpha,
        "max_rows": task.max_rows,
        "quick": task.quick,
        "n_train": len(y),
        "n_cal": len(split.y_cal),
        "n_test": len(split.y_test),
        "params": choice.params,
        "cv_score": choice.cv_score,
        "coverage": float(np.mean(inside)),
        "width": float(np.mean(upper - lower)),
        "interval_score": interval_score(lower, upper, split.y_test, alpha),
        "tune_seconds": choice.seconds,
        "fit_seconds": float(fit_seconds),
        "predict_seconds": float(predict_seconds),
    }


def key_of(row: Row) -> Key:
    """Data set, seed and method of a row."""
    return row["dataset"], row["seed"], row["method"]


def read_rows(folder: Path) -> list[Row]:
    """Rows of finished runs; a line cut short by an interruption is left out.

    Parameters
    ----------
    folder : Path
        Folder of the results.

    Returns
    -------
    list of dict
        The last row of each key.
    """
    path = folder / ROWS_FILE
    if not path.is_file():
        return []
    rows: dict[Key, Row] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        rows[key_of(row)] = row
    return list(rows.values())


def append_row(folder: Path, row: Row) -> None:
    """Add one line to the file of rows."""
    path = folder / ROWS_FILE
    with path.open("a+", encoding="utf-8") as file:
        # After an interruption the last line may lack its end.
        text = "" if _ends_with_newline(path) else "\n"
        file.write(text + json.dumps(row) + "\n")


def _ends_with_newline(path: Path) -> bool:
    content = path.read_bytes()
    return not content or content.endswith(b"\n")


def check_settings(folder: Path, rows: Sequence[Row], settings: Row) -> None:
    """Refuse to mix runs of different settings in one folder."""
    for row in rows:
        for name in SETTINGS:
            if row[name] != settings[name]:
                raise ValueError(
                    f"Got {name}={settings[name]!r}, but {str(folder)!r} holds runs "
                    f"with {name}={row[name]!r}. Choose another --out, or the same "
                    "settings."
                )


def run_all(
    tasks: Iterable[Task], jobs: int, done: Callable[[Row], None]
) -> list[tuple[Key, str]]:
    """Run tasks and hand each row over as soon as it is finished.

    Parameters
    ----------
    tasks : iterable of Task
        In the order in which they start.
    jobs : int
        Processes.
    done : callable
        Called with each finished row.

    Returns
    -------
    list of tuple
        Key and error message of runs that failed.
    """
    failed = []
    for key, result in _results(tasks, jobs):
        if isinstance(result, str):
            failed.append((key, result))
        else:
            done(result)
    return failed


def _results(tasks: Iterable[Task], jobs: int) -> Iterator[tuple[Key, Row | str]]:
    if jobs == 1:
        yield from map(_safe, tasks)
        return
    from joblib import Parallel, delayed

    parallel = Parallel(n_jobs=jobs, return_as="generator_unordered")
    yield from parallel(delayed(_safe)(task) for task in tasks)


def _safe(task: Task) -> tuple[Key, Row | str]:
    """Row, or the error: one failed run must not end hours of others."""
    try:
        return task.key, run_task(task)
    except Exception as error:
        return task.key, f"{type(error).__name__}: {error}"
