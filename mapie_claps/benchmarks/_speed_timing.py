"""How the ``speed`` benchmark measures: clocks, bounds, and processes of their own."""

import ctypes
import gc
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

CLOCKS: dict[str, Callable[[], float]] = {
    "wall": time.perf_counter,
    # On a shared machine, and with one thread, the processor's time is the fairer.
    "cpu": time.process_time,
}
SECONDS, MOST_REPEATS = 10.0, 30
CALLS = 50  # of which a measurement of single rows consists
CHILD = """
import json, torch
from {module} import {name}
torch.set_num_threads({threads})
print(json.dumps({name}(**{params!r})))
"""


@dataclass(frozen=True)
class Settings:
    """What holds for all measurements of one run."""

    smoke: bool = False
    threads: int = 1
    repeats: int = 3
    clock: str = "wall"
    data: Any = None  # folder of CSV files
    against: Path | None = None  # folder of another source tree of the library

    def size(self, full: int, smoke: int) -> int:
        """Number of rows or steps: less in the short version."""
        return smoke if self.smoke else full


@dataclass(frozen=True)
class Result:
    """One line of the table.

    Where more is better ("faster") the ratio is ``other / ours``, and must reach the
    bound; where less is ("cost") it is ``ours / other``, and must stay below.
    """

    case: str
    against: str
    ours: float
    other: float
    unit: str
    kind: Literal["faster", "cost"]
    bound: float | None = None
    note: str = ""
    section: str = ""  # set by the command

    @property
    def ratio(self) -> float:
        """How many times faster than the other, or how many times its cost."""
        faster = self.kind == "faster"
        return self.other / self.ours if faster else self.ours / self.other

    @property
    def met(self) -> bool | None:
        """Whether the bound holds; None where there is none."""
        if self.bound is None:
            return None
        faster = self.kind == "faster"
        return self.ratio >= self.bound if faster else self.ratio <= self.bound


def best_of(
    functions: Mapping[str, Callable[[], Any]],
    settings: Settings,
    repeats: int | None = None,
) -> dict[str, float]:
    """Shortest time of each function, all of them taking turns.

    What is short is disturbed most: it is repeated for some seconds.
    """
    clock = CLOCKS[settings.clock]
    best = dict.fromkeys(functions, float("inf"))
    least = settings.repeats if repeats is None else repeats
    end = time.monotonic() + (0.0 if settings.smoke else SECONDS)
    gc.collect()
    turn = 0
    while turn < least or (time.monotonic() < end and turn < MOST_REPEATS):
        for name, function in functions.items():
            start = clock()
            function()
            best[name] = min(best[name], clock() - start)
        turn += 1
    return best


def microseconds(
    functions: Mapping[str, Callable[[], Any]], settings: Settings
) -> dict[str, float]:
    """Shortest time of one of 50 calls of each function."""

    def repeated(call: Callable[[], Any]) -> None:
        for _ in range(CALLS):
            call()

    calls = {name: partial(repeated, call) for name, call in functions.items()}
    return {k: 1e6 * t / CALLS for k, t in best_of(calls, settings).items()}


def run_child(settings: Settings, function: Callable[..., Any], **params: Any) -> Any:
    """What a function of this package returns in a new process; here if short."""
    if settings.smoke:
        return function(**params)
    where = {"module": function.__module__, "name": function.__name__}
    return run_code(CHILD.format(**where, threads=settings.threads, params=params))


def run_code(code: str) -> Any:
    """What a few lines of Python print as JSON, from a new process."""
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(
            f"A measurement in a process of its own failed:\n{done.stderr.strip()}"
        )
    return json.loads(done.stdout.splitlines()[-1])


def peak_above(function: Callable[[], Any]) -> tuple[float, Any]:
    """MB of memory that a call has at its peak above what there was, and its result."""
    gc.collect()
    with suppress(AttributeError, OSError):  # where there is glibc
        ctypes.CDLL(None).malloc_trim(0)  # what is free and kept would count as there
    before = peak_mb(reset=True)
    result = function()
    return max(0.0, peak_mb() - before), result


def peak_mb(reset: bool = False) -> float:
    """Largest resident memory of this process; on Linux since the last reset."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")  # see proc(5)
        status = Path("/proc/self/status").read_text()
    except OSError:  # elsewhere: since the start of the process
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024
