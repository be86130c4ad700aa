"""Workers of joblib and Dask have as many threads as their share of the cores."""

import threading

import numpy as np
import pytest
import torch
from conftest import heteroscedastic, tiny
from distributed import Client, LocalCluster
from joblib import parallel_config
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from mapie_claps.network.units import Unit

X, y = heteroscedastic(120)
MODEL = tiny(n_members=6, validation_fraction=0.12, max_steps=60, n_jobs=2)


class Running:
    """How many units of this process run at a time."""

    lock, now, most = threading.Lock(), 0, 0
    run = Unit.run

    @classmethod
    def counted(cls, unit, rates):
        with cls.lock:
            cls.now += 1
            cls.most = max(cls.most, cls.now)
        try:
            return cls.run(unit, rates)
        finally:
            with cls.lock:
                cls.now -= 1


def fit_and_count(seed):
    """Most units at a time in this process, and torch's threads before and after."""
    before = torch.get_num_threads()
    Unit.run = lambda *args: Running.counted(*args)
    prediction = clone(MODEL).set_params(random_state=seed).fit(X, y).predict(X[:5])
    return Running.most, before, torch.get_num_threads(), prediction


class Counting(type(MODEL)):
    """A regressor that counts."""

    def fit(self, X, y, sample_weight=None):
        Unit.run = lambda *args: Running.counted(*args)
        super().fit(X, y, sample_weight)
        self.n_units_, self.n_threads_ = Running.most, torch.get_num_threads()
        return self


def threads_used(estimator, X, y):
    return max(estimator.n_units_, estimator.n_threads_)


@pytest.fixture(autouse=True)
def as_before():
    yield
    Unit.run, Running.most = Running.run, 0


@pytest.fixture
def no_setting(monkeypatch):
    """Nothing in the environment that would say one thread anyhow."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_setting")
def test_grid_search_in_processes():
    params = MODEL.get_params()
    grid = {"weight_decay": [0.1, 0.01]}
    with parallel_config("loky", inner_max_num_threads=1):
        search = GridSearchCV(
            Counting(**params), grid, cv=2, n_jobs=2, scoring=threads_used, refit=False
        ).fit(X, y)
    for split in ("split0_test_score", "split1_test_score"):
        np.testing.assert_array_equal(search.cv_results_[split], 1)


def test_grid_search_in_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with parallel_config("threading"):
            search = GridSearchCV(
                Counting(**MODEL.get_params()),
                {"weight_decay": [0.1, 0.01]},
                cv=2,
                n_jobs=2,
                scoring=lambda model, X, y: model.n_units_,
                refit=False,
            ).fit(X, y)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    # One fit may have had both cores when the other began with its one.
    assert search.cv_results_["mean_test_score"].max() <= 3


@pytest.mark.usefixtures("no_setting")
def test_a_dask_worker_of_two_threads():
    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=2,
            processes=True,
            dashboard_address="127.0.0.1:0",  # any free port
        ) as cluster,
        Client(cluster) as client,
    ):
        found = client.gather(client.map(fit_and_count, range(3), pure=False))
    for most, before, after, _ in found:
        assert most <= 2
        assert (before, after) == (1, 1)
    expected = [
        clone(MODEL).set_params(random_state=seed).fit(X, y).predict(X[:5])
        for seed in range(3)
    ]
    np.testing.assert_array_equal([each[3] for each in found], expected)
