"""How many threads a fit gets, and the settings of before back again."""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar

import torch

# Multiply-adds of one training step below which a second thread costs more than it
# brings: on two shared cores, steps of 1e7 were tens of times slower with two threads.
THREADING_PAYS_FROM = 5e8

T = TypeVar("T")


class _OneThread:
    """One intra-op thread while anybody is inside; the setting of before comes back.

    torch keeps the number for the process as well as for each thread. Fits that
    overlap in several threads would each restore what they found, which for the later
    ones is the 1 of the first: the number found by the first counts for all.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._before = threading.Lock(), 0, 1

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._before = torch.get_num_threads()
            self._inside += 1
            torch.set_num_threads(1)

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._inside -= 1
            torch.set_num_threads(self._before)

    def allowed(self) -> int:
        """Threads that torch may use in this process, as set outside of any fit."""
        with self._lock:
            return self._before if self._inside else torch.get_num_threads()


_one_thread = _OneThread()


def threads_for(multiply_adds: float) -> AbstractContextManager[None]:
    """One intra-op thread for small steps; the caller's setting comes back."""
    return _one_thread if multiply_adds < THREADING_PAYS_FROM else nullcontext()


class _Cores:
    """Cores that the fits of this process share.

    As many as torch may use: joblib and Dask set that number in their workers so that
    all of them together use each core once, and a user may set it too. Fits in several
    threads of one process each have one; what is left goes to who asks first.
    """

    def __init__(self) -> None:
        self._lock, self._in_use = threading.Lock(), 0

    @contextmanager
    def take(self, wanted: int) -> Iterator[int]:
        """At least one core, at most as many as wanted and free."""
        with self._lock:
            free = _one_thread.allowed() - self._in_use
            taken = max(1, min(wanted, free))
            self._in_use += taken
        try:
            yield taken
        finally:
            with self._lock:
                self._in_use -= taken


_cores = _Cores()


def resolve_jobs(n_jobs: int | None) -> int | None:
    """Cores that ``n_jobs`` asks for, in the manner of scikit-learn; None stays."""
    if n_jobs is None:
        return None
    if n_jobs > 0:
        return n_jobs
    n_cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        n_cores = len(os.sched_getaffinity(0))
    return max(1, n_cores + 1 + n_jobs)


class Crew:
    """Threads that share the work of one fit; without a pool, the caller alone."""

    def __init__(
        self, pool: ThreadPoolExecutor | None = None, n_threads: int = 1
    ) -> None:
        self._pool, self._n_threads = pool, n_threads

    def run_all(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Run tasks at the same time, as far as there are threads."""
        if self._pool is None:
            return [task() for task in tasks]
        return list(self._pool.map(_alone, tasks))

    def in_order(self, tasks: Iterable[Callable[[], T]]) -> Iterator[T]:
        """Results one after the other, tasks being begun a few ahead of who asks."""
        if self._pool is None:
            yield from (task() for task in tasks)
            return
        begun: deque[Future[T]] = deque()
        try:
            for task in tasks:
                begun.append(self._pool.submit(_alone, task))
                if len(begun) > self._n_threads:
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()
        finally:
            for future in begun:  # nobody asks any more
                future.cancel()

    def start(self, task: Callable[[], T]) -> Callable[[], T]:
        """Run a task beside what comes next; the function returned waits for it.

        Without a pool the task runs when it is waited for.
        """
        return task if self._pool is None else self._pool.submit(_alone, task).result


@contextmanager
def side_by_side(n_jobs: int, n_tasks: int) -> Iterator[Crew]:
    """A crew for at most so many tasks at a time, as far as there are cores."""
    with _cores.take(min(n_jobs, n_tasks)) as n_threads:
        if n_threads == 1:
            yield Crew()
            return
        with _one_thread, ThreadPoolExecutor(n_threads) as pool:
            yield Crew(pool, n_threads)


def _alone(task: Callable[[], T]) -> T:
    """Run in a thread of the pool: the number of intra-op threads is its own there."""
    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)
    return task()
