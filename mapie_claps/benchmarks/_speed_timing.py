"""How the ``speed`` benchmark measures: clocks, bounds, and processes of their own."""

import cProfile
import ctypes
import gc
import json
import os
import pstats
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from timeit import timeit
from typing import Any, Literal, NamedTuple, TypeVar

T = TypeVar("T")
Kind = Literal["faster", "cost"]
Calls = Mapping[str, Callable[[], Any]]
CLOCKS: dict[str, Callable[[], float]] = {
    "wall": time.perf_counter,
    # On a shared machine, and with one thread, the processor's time is the fairer.
    "cpu": time.process_time,
}
UNITS = {"s": 1.0, "ms": 1e3, "µs": 1e6, "µs per row": 1e6}  # of times in seconds
SECONDS, MOST_REPEATS = 10.0, 30
CHILD = """
import json, torch
from {module} import {name}
torch.set_num_threads({threads})
print(json.dumps({name}(**{params!r})))
"""


class Settings(NamedTuple):
    """What holds for all measurements of one run."""

    smoke: bool = False
    threads: int = 1
    repeats: int = 3
    clock: str = "wall"
    data: Path | None = None  # folder of CSV files
    against: Path | None = None  # folder of another source tree of the library

    def size(self, full: T, smoke: T) -> T:
        """Number of rows or steps, or several: less in the short version."""
        return smoke if self.smoke else full


class Result(NamedTuple):
    """One line of the table.

    Where more is better ("faster") the ratio is ``other / ours``, and must reach the
    bound; where less is ("cost") it is ``ours / other``, and must stay below.
    """

    case: str
    against: str
    ours: float
    other: float
    unit: str
    kind: Kind
    bound: float | None = None
    note: str = ""
    section: str = ""  # set by the command, as is the day
    day: str = ""

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


def compare(
    case: str,
    times: Mapping[str, float],
    kind: Kind,
    bounds: Mapping[str, float] = {},
    unit: str = "s",
    note: str = "",
) -> Iterator[Result]:
    """Ours, the first of some times in seconds, against each of the others."""
    ours, *others = (UNITS[unit] * seconds for seconds in times.values())
    for against, other in zip([*times][1:], others, strict=True):
        yield Result(case, against, ours, other, unit, kind, bounds.get(against), note)


def best_of(
    functions: Calls, settings: Settings, repeats: int | None = None, calls: int = 1
) -> dict[str, float]:
    """Shortest time of a call of each function, all of them taking turns.

    What is short is disturbed most: it is repeated for some seconds, and what takes
    microseconds is called several times in each turn.
    """
    clock = CLOCKS[settings.clock]
    best = dict.fromkeys(functions, float("inf"))
    least = settings.repeats if repeats is None else repeats
    end = time.monotonic() + settings.size(SECONDS, 0.0)
    gc.collect()
    turn = 0
    while turn < least or (time.monotonic() < end and turn < MOST_REPEATS):
        for name, function in functions.items():
            seconds = timeit(function, gc.enable, clock, calls) / calls
            best[name] = min(best[name], seconds)
        turn += 1
    return best


@contextmanager
def on_threads(n: int) -> Iterator[None]:
    """No more threads than n, of torch and of OpenMP; what was set comes back."""
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        with threadpool_limits(n):
            yield
    finally:
        torch.set_num_threads(before)


def run_child(settings: Settings, function: Callable[..., Any], **params: Any) -> Any:
    """What a function of this package returns in a new process; here if short."""
    if settings.smoke:
        return function(**params)
    where = {"module": function.__module__, "name": function.__name__}
    return run_code(CHILD.format(**where, threads=settings.threads, params=params))


def run_code(code: str, tree: Path | None = None) -> Any:
    """What lines of Python print as JSON in a new process; one thread in a tree."""
    seen = {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"} if tree else {}
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tree, env=os.environ | seen
    )
    if done.returncode:
        where = f"of the tree {tree.name}" if tree else "of its own"
        raise RuntimeError(
            f"A measurement in a process {where} failed:\n{done.stderr.strip()}"
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


def time_shares(
    function: Callable[[], Any], phases: Mapping[str, tuple[str, str]], clock: str
) -> dict[str, float]:
    """Shares of the time of functions, each by file and name, with all they call."""
    profiler = cProfile.Profile(CLOCKS[clock])
    profiler.runcall(function)
    found: Any = pstats.Stats(profiler)
    shares = dict.fromkeys(phases, 0.0)
    for (file, _, name), (_, _, _, seconds, _) in found.stats.items():
        for what, where in phases.items():
            if where == (Path(file).name, name):
                shares[what] += seconds / found.total_tt
    return shares


def as_note(shares: Mapping[str, float]) -> str:
    """Shares in words."""
    return ", ".join(f"{what} {100 * share:.0f} %" for what, share in shares.items())
