"""Members stop when held-out rows say so, and train side by side with equal results."""

import threading

import numpy as np
import pytest
import torch
from conftest import heteroscedastic, tiny
from joblib import Parallel, delayed
from sklearn.model_selection import GridSearchCV

from mapie_claps.estimators import ensemble_training
from mapie_claps.network import threads
from mapie_claps.network.stopping import (
    AUTO,
    LITTLE_NOISE,
    LOST_BY,
    LOST_FROM,
    PATIENCE,
    PATIENCE_WITH_LITTLE_NOISE,
    members_that_stop,
)
from mapie_claps.network.threads import resolve_jobs, side_by_side
from mapie_claps.network.units import Unit, units_of

X, y = heteroscedastic(200)
VIEWS = [slice(0, 2), slice(2, 4), slice(4, 6)]


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def several(**params):
    wanted = {"n_members": 6, "validation_fraction": 0.12, "max_steps": 120}
    return tiny(**(wanted | params))


def test_a_member_stops_after_waiting():
    losses = [[3.0, 3.0], [2.0, 4.0], [1.0, 4.0], [0.5, 5.0]]
    assert members_that_stop(losses, [0, 1], 3) == {1}
    assert members_that_stop(losses, [0], 3) == set()
    assert members_that_stop(losses, [0, 1], None) == set()
    assert members_that_stop(losses[:3], [0, 1], 3) == set()


def test_a_view_that_lost_stops():
    falling = [[-0.1 * e] * 4 + [LOST_BY + 0.01 - 0.1 * e] * 2 for e in range(6)]
    assert members_that_stop(falling[: LOST_FROM - 1], range(6), AUTO, VIEWS) == set()
    assert members_that_stop(falling, range(6), AUTO, VIEWS) == {4, 5}
    assert members_that_stop(falling, [0, 5], AUTO, VIEWS) == {5}
    assert members_that_stop(falling, range(6), 5, VIEWS) == set()
    near = [[row[0]] * 4 + [row[4] - 0.02] * 2 for row in falling]
    assert members_that_stop(near, range(6), AUTO, VIEWS) == set()


def test_little_noise_waits_longer():
    rising = [[0.1 * e, LITTLE_NOISE + 0.1 * e] for e in range(10)]

    def stopped(n):
        return members_that_stop(rising[: n + 1], [0, 1], AUTO, [slice(0, 1)])

    assert stopped(PATIENCE - 1) == set()
    assert stopped(PATIENCE) == {0}
    assert stopped(PATIENCE_WITH_LITTLE_NOISE) == {0, 1}


def test_units_mix_views_and_are_at_least_two():
    assert units_of(range(6), VIEWS, False) == [[0, 2, 4], [1, 3, 5]]
    assert units_of([0, 1], VIEWS, False) == [[0], [1]]
    assert units_of([3], VIEWS, False) == [[3]]
    assert [len(u) for u in units_of(range(9), [slice(0, 9)], False)] == [3, 3, 3]
    assert units_of(range(6), VIEWS, True) == [[0, 1, 2, 3, 4, 5]]
    assert units_of([], VIEWS, True) == units_of([], VIEWS, False) == []


def test_members_that_stopped_keep_their_best_state(monkeypatch):
    """Stopping changes no path: the state kept is that of the full run so far."""
    found = {}

    def spy(self, better):
        original(self, better)
        for k, state, is_better in zip(self.members, self.states, better, strict=True):
            if is_better:
                found.setdefault(k, []).append([w.clone() for w in state.best])

    original = Unit.keep_best
    monkeypatch.setattr(Unit, "keep_best", spy)
    noise = np.random.default_rng(1).normal(size=200)
    model = several(patience=2, max_steps=200, learning_rate=0.03).fit(X, noise)
    assert model.n_iter_ < 200
    for k, states in found.items():
        kept = model.network_.weights_of_member(k)
        for a, b in zip(kept, states[-1], strict=True):
            assert torch.equal(a.float(), b)


def test_noise_needs_few_steps_and_a_clean_signal_many():
    noise = np.random.default_rng(1).normal(size=400)
    inputs = heteroscedastic(400)[0]
    clean = np.sin(2 * inputs[:, 0])
    full = {"max_steps": 400, "learning_rate": 0.02, "patience": "auto"}
    steps = [several(**full).fit(inputs, t).n_iter_ for t in (noise, clean)]
    assert steps[0] < 0.8 * steps[1]
    assert several(max_steps=400, patience=None).fit(inputs, noise).n_iter_ == 400


def test_nothing_held_out_trains_to_the_end():
    model = several(
        validation_fraction=0.0, prior_precision=1.0, patience="auto", max_steps=400
    ).fit(X, y)
    assert model.n_iter_ == 400


@pytest.mark.parametrize("params", [{}, {"dropout": 0.1}, {"n_members": 5}])
def test_results_are_the_same_for_every_n_jobs(params, two_threads):
    n_threads = []

    def record(original):
        def run(self, rates):
            n_threads.append(threading.get_ident())
            return original(self, rates)

        return run

    original = Unit.run
    Unit.run = record(original)
    try:
        one = several(n_jobs=1, **params).fit(X, y)
        assert len(set(n_threads)) == 1
        n_threads.clear()
        two = several(n_jobs=2, **params).fit(X, y)
        assert len(set(n_threads)) == 2
    finally:
        Unit.run = original
    assert torch.get_num_threads() == 2
    assert one.fingerprint_ == two.fingerprint_
    assert one.loss_curve_ == two.loss_curve_
    for a, b in zip(
        one.predict(X, return_std=True), two.predict(X, return_std=True), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_cores_are_shared_by_fits_in_threads(two_threads):
    """Two fits at a time on two cores have one each, and give the same."""
    most, running, lock = [0], [0], threading.Lock()
    original = Unit.run

    def run(self, rates):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        try:
            return original(self, rates)
        finally:
            with lock:
                running[0] -= 1

    expected = several(n_jobs=1).fit(X, y).predict(X)
    Unit.run = run
    try:
        models = Parallel(2, backend="threading")(
            delayed(several(n_jobs=2).fit)(X, y) for _ in range(4)
        )
    finally:
        Unit.run = original
    assert most[0] <= 3  # one fit may have had both when the other began
    assert threads._cores._in_use == 0
    assert torch.get_num_threads() == 2
    for model in models:
        np.testing.assert_array_equal(model.predict(X), expected)


def test_a_kernel_learns_beside_the_training(two_threads, monkeypatch):
    where = []
    original = ensemble_training.fit_length_scales

    def recorded(*arguments):
        where.append(threading.current_thread() is threading.main_thread())
        return original(*arguments)

    monkeypatch.setattr(ensemble_training, "fit_length_scales", recorded)
    rows = heteroscedastic(200)
    found = [several(n_jobs=n, kernel=True).fit(*rows) for n in (1, 2)]
    assert where == [True, False]
    assert found[0].kernel_ is not None
    assert found[0].fingerprint_ == found[1].fingerprint_


def test_no_more_threads_than_torch_may_use():
    """Joblib and Dask set that number to one in workers that fill the machine."""
    before = torch.get_num_threads()
    try:
        for allowed, expected in ((1, 1), (2, 2)):
            torch.set_num_threads(allowed)
            with side_by_side(4, 4) as crew:
                barrier = threading.Barrier(expected)
                tasks = [lambda b=barrier: (b.wait(20), threading.get_ident())[1]] * 4
                assert len(set(crew.run_all(tasks))) == expected
    finally:
        torch.set_num_threads(before)


def test_grid_search_leaves_the_setting_as_it_was(two_threads):
    search = GridSearchCV(several(max_steps=20), {"weight_decay": [0.1, 0.01]}, cv=2)
    search.fit(X, y)
    assert torch.get_num_threads() == 2


def test_a_fault_in_a_thread_reaches_the_caller(two_threads, monkeypatch):
    def broken(self, rates):
        raise MemoryError("on purpose")

    monkeypatch.setattr(Unit, "run", broken)
    with pytest.raises(MemoryError, match="on purpose"):
        several(n_jobs=2).fit(X, y)
    assert torch.get_num_threads() == 2
    assert threads._cores._in_use == 0


@pytest.mark.parametrize(("n_jobs", "least"), [(1, 1), (3, 3), (-1, 1), (-100, 1)])
def test_n_jobs_in_the_manner_of_scikit_learn(n_jobs, least):
    assert resolve_jobs(n_jobs) >= least
    assert resolve_jobs(-100) == 1
    assert resolve_jobs(None) is None


@pytest.mark.parametrize("n_jobs", [0, 1.5, "all", True])
def test_n_jobs_that_make_no_sense(n_jobs):
    with pytest.raises((ValueError, TypeError), match="n_jobs"):
        several(n_jobs=n_jobs).fit(X, y)
