"""torch's number of threads after fits that overlap in time."""

import threading
from functools import partial
from time import sleep

import pytest
import torch

from mapie_claps.network.threads import (
    THREADING_PAYS_FROM,
    Crew,
    side_by_side,
    threads_for,
)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def seen_by_a_new_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.usefixtures("two_threads")
def test_setting_comes_back_after_fits_that_overlap():
    inside, leave = threading.Event(), threading.Event()

    def second_fit():
        with threads_for(1.0):
            inside.set()
            leave.wait(10)

    other = threading.Thread(target=second_fit)
    with threads_for(1.0):
        assert torch.get_num_threads() == 1
        other.start()
        assert inside.wait(10)
    assert torch.get_num_threads() == 2
    leave.set()
    other.join()
    assert torch.get_num_threads() == 2
    assert seen_by_a_new_thread() == 2


@pytest.mark.usefixtures("two_threads")
def test_setting_comes_back_after_an_error():
    with pytest.raises(RuntimeError, match="stop"), threads_for(1.0):
        raise RuntimeError("stop")
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_large_steps_keep_the_threads():
    with threads_for(THREADING_PAYS_FROM):
        assert torch.get_num_threads() == 2


@pytest.fixture(params=["alone", "two threads"])
def crew(request, two_threads):
    with side_by_side(1 if request.param == "alone" else 2, n_tasks=2) as found:
        yield found


def test_results_come_in_the_order_of_the_tasks(crew):
    def late(i):
        sleep(0.02 * (i % 2 == 0))
        return i

    assert list(crew.in_order(partial(late, i) for i in range(7))) == list(range(7))


def test_tasks_are_begun_only_a_few_ahead(crew):
    begun = []

    def task(i):
        begun.append(i)
        return i

    results = crew.in_order(partial(task, i) for i in range(100))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    results.close()
    assert len(begun) <= 6


def test_the_error_of_a_task_reaches_who_asks(crew):
    def task(i):
        if i == 2:
            raise ValueError("task 2")
        return i

    results = crew.in_order(partial(task, i) for i in range(5))
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="task 2"):
        next(results)


@pytest.mark.usefixtures("two_threads")
def test_two_tasks_run_at_the_same_time():
    both = threading.Barrier(2, timeout=10)
    with side_by_side(2, n_tasks=2) as found:
        assert len(list(found.in_order([both.wait, both.wait]))) == 2
    with pytest.raises(threading.BrokenBarrierError):
        list(Crew().in_order([partial(threading.Barrier(2, timeout=0.05).wait)]))
