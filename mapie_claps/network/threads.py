"""How many threads a training step gets, and the setting of before back again."""

import threading
from contextlib import AbstractContextManager, nullcontext

import torch

# Multiply-adds of one training step below which a second thread costs more than it
# brings: on two shared cores, steps of 1e7 were tens of times slower with two threads.
THREADING_PAYS_FROM = 5e8


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


_one_thread = _OneThread()


def threads_for(multiply_adds: float) -> AbstractContextManager[None]:
    """One intra-op thread for small steps; the caller's setting comes back."""
    return _one_thread if multiply_adds < THREADING_PAYS_FROM else nullcontext()
