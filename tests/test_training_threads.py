"""torch's number of threads after fits that overlap in time."""

import threading

import pytest
import torch

from mapie_claps.network.threads import THREADING_PAYS_FROM, threads_for


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
