"""Dask: the same numbers as in memory, also where a worker dies."""

import sys
import time
from importlib import import_module
from threading import Event, Thread

import cloudpickle
import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from conftest import heteroscedastic, tiny, two_heads
from distributed import Client, LocalCluster

from mapie_claps import CalibratedRegressor, ClapsModule, EpistemicGroups
from mapie_claps.distributed import conformalize, fit_posterior, predict_interval

X, y = heteroscedastic(600)
LEVELS = [0.8, 0.9]
COLUMNS = ["a", "b", "c"]


@pytest.fixture(scope="module")
def module():
    return ClapsModule(two_heads(), prior_precision=1.0).fit(X[:50], y[:50])


@pytest.fixture(scope="module")
def regressor():
    return tiny(n_members=2).fit(X[:50], y[:50])


@pytest.fixture(scope="module")
def of_frame():
    return tiny().fit(pd.DataFrame(X[:50], columns=COLUMNS), y[:50])


@pytest.fixture(autouse=True)
def threads_of_this_process():
    with dask.config.set(scheduler="threads"):
        yield


def chunked(*arrays, size=37):
    return [da.from_array(a, chunks=(size, *a.shape[1:])) for a in arrays]


def in_memory(model):
    model = model.with_sums(model.partial_sums(X[:300], y[:300]))
    conformal = CalibratedRegressor(model, LEVELS)
    conformal.conformalize(X[300:500], y[300:500])
    return conformal.predict_interval(X[500:])


def on_dask(model, rows, targets):
    model = fit_posterior(model, rows[:300], targets[:300])
    conformal = conformalize(model, rows[300:500], targets[300:500], LEVELS)
    return dask.compute(*predict_interval(conformal, rows[500:]))


def close(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10)


@pytest.mark.parametrize("which", ["module", "regressor"])
def test_arrays_on_threads(which, request):
    model = request.getfixturevalue(which)
    rows = da.from_array(X, chunks=(70, 2))  # columns are joined
    targets = da.from_array(y, chunks=111)
    close(on_dask(model, rows, targets), in_memory(model))


def test_frames_keep_their_index(of_frame):
    data = pd.DataFrame(X, columns=COLUMNS, index=[f"row {i:03}" for i in range(600)])
    data["y"] = y
    frame = dd.from_pandas(data, npartitions=5)
    # A filter leaves partitions of unknown size, some of them empty.
    frame = frame[(frame.index < "row 100") | (frame.index >= "row 400")]
    kept = data[(data.index < "row 100") | (data.index >= "row 400")]
    fitted = fit_posterior(of_frame, frame[COLUMNS], frame["y"])
    conformal = conformalize(fitted, frame[COLUMNS], frame["y"], LEVELS)
    table = predict_interval(conformal, frame[COLUMNS])
    expected = conformal.predict_interval(kept[COLUMNS])
    bounds = ["lower_0.8", "lower_0.9", "upper_0.8", "upper_0.9"]
    assert list(table.columns) == ["prediction", *bounds]
    found = table.compute()
    assert list(found.index) == list(kept.index)
    np.testing.assert_allclose(found["prediction"], expected[0], rtol=1e-10)
    np.testing.assert_allclose(found["upper_0.9"], expected[1][:, 1, 1], rtol=1e-10)
    whole = of_frame.with_sums(of_frame.partial_sums(kept[COLUMNS], kept["y"]))
    np.testing.assert_allclose(
        fitted.posterior_covariance_, whole.posterior_covariance_, rtol=1e-8
    )


def test_errors(module):
    rows, targets = chunked(X, y, size=100)
    with pytest.raises(TypeError, match="Got X of type ndarray, but expected a Dask"):
        fit_posterior(module, X, y)
    with pytest.raises(TypeError, match="Got y of type ndarray, but expected a Dask"):
        conformalize(module, rows, y)
    with pytest.raises(ValueError, match="Got weights of 600 rows, but X has 100"):
        conformalize(module, rows, targets, weights=np.ones(600))
    with pytest.raises(ValueError, match=r"100 rows of X with y of shape \(0,\)"):
        conformalize(module, rows, targets[:300])
    with pytest.raises(ValueError, match=r"100 rows of X with y of shape \(50,\)"):
        fit_posterior(module, rows, targets[:300].rechunk(50))
    with pytest.raises(ValueError, match="without rows"):
        fit_posterior(module, rows[:0], targets[:0])


def test_rows_of_another_order_are_not_paired(of_frame):
    """X and y have as many rows in each partition, but not the same ones."""
    frame = dd.from_pandas(pd.DataFrame(X, columns=COLUMNS), npartitions=4)
    targets = pd.Series(y).sample(frac=1.0, random_state=0)
    series = dd.from_pandas(targets, npartitions=4, sort=False)
    message = "or of other rows by its index. Partition y as X is"
    with pytest.raises(ValueError, match=message):
        conformalize(of_frame, frame, series)
    with pytest.raises(ValueError, match=message):
        fit_posterior(of_frame, frame, series)


def test_arrays_of_unknown_chunk_sizes(module):
    """A filter leaves chunks whose size is known when they are computed."""
    conformal = CalibratedRegressor(module, LEVELS)
    conformal.conformalize(X[300:500], y[300:500])
    rows = da.from_array(X, chunks=(70, 3))
    kept = rows[rows[:, 0] > 0]
    assert np.isnan(kept.shape[0])
    found = dask.compute(*predict_interval(conformal, kept))
    close(found, conformal.predict_interval(X[X[:, 0] > 0]))


def test_a_model_that_changes_before_the_graph_is_computed():
    model = tiny().fit(X[:100], y[:100])
    conformal = CalibratedRegressor(model).conformalize(X[300:], y[300:])
    _, intervals = predict_interval(conformal, da.from_array(X, chunks=(100, 3)))
    assert intervals.compute().shape == (600, 2, 1)
    model.set_params(scale="aleatoric")
    with pytest.raises(ValueError, match="fitted again or updated, or whose scale"):
        intervals.compute()


def ratio(rows):
    return np.exp(0.5 * np.asarray(rows)[:, 0])


def side(rows):
    return (np.asarray(rows)[:, 1] > 0).astype(int)


@pytest.mark.parametrize(
    ("given", "params"),
    [
        ({}, {"sym": False, "support": "non-negative"}),
        ({"weights": ratio}, {}),
        ({"partition": EpistemicGroups([0.01])}, {}),
        ({"weights": ratio, "partition": side}, {}),
    ],
)
def test_parameters_weights_and_groups_are_those_in_memory(module, given, params):
    here = CalibratedRegressor(module, LEVELS, **params)
    here.conformalize(X[50:400], y[50:400], **given)
    rows = chunked(X[50:400], y[50:400])
    there = conformalize(module, *rows, LEVELS, **given, **params)
    close([there.signed_scores_], [here.signed_scores_])
    found = predict_interval(there, *chunked(X[400:]), allow_infinite_bounds=True)
    expected = here.predict_interval(X[400:], allow_infinite_bounds=True)
    close(dask.compute(*found), expected)


def test_the_name_of_a_column_as_groups(of_frame):
    frame = pd.DataFrame(X, columns=COLUMNS).assign(c=side(X), y=y)
    by_name = CalibratedRegressor(of_frame)
    by_name.conformalize(frame[COLUMNS], y, partition="c")
    whole = dd.from_pandas(frame, npartitions=3)
    there = conformalize(of_frame, whole[COLUMNS], whole["y"], partition="c")
    found = predict_interval(there, whole[COLUMNS]).compute()
    expected = by_name.predict_interval(frame[COLUMNS])[1]
    np.testing.assert_allclose(found["upper_0.9"], expected[:, 1, 0], rtol=1e-10)


def test_without_dask(monkeypatch):
    monkeypatch.setitem(sys.modules, "dask", None)
    monkeypatch.delitem(sys.modules, "mapie_claps.distributed")
    with pytest.raises(ImportError, match=r"pip install 'mapie-claps\[dask\]'"):
        import_module("mapie_claps.distributed")


def test_what_goes_to_the_workers_can_be_sent(regressor):
    rows, targets = chunked(X, y)
    conformal = conformalize(regressor, rows[100:], targets[100:], LEVELS)
    lazy = predict_interval(conformal, rows)
    sent = cloudpickle.loads(cloudpickle.dumps(lazy))
    close(dask.compute(*sent), conformal.predict_interval(X))


BEGUN = Event()


def slowly(block):
    BEGUN.set()
    time.sleep(0.02)
    return block


def test_a_worker_leaves_in_the_middle_of_a_run(regressor):
    """Workers are threads here, which start in no time."""
    BEGUN.clear()
    rows, targets = chunked(X, y, size=30)
    rows = rows.map_blocks(slowly, dtype=float, meta=np.empty((0, 3)))
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=False,
            dashboard_address="127.0.0.1:0",  # any free port
        ) as cluster,
        Client(cluster) as client,
        dask.config.set(scheduler="distributed"),
    ):

        def send_away():
            BEGUN.wait(20)
            client.retire_workers([cluster.workers[0].address])

        thread = Thread(target=send_away)
        thread.start()
        found = on_dask(regressor, rows, targets)
        thread.join()
        assert len(client.scheduler_info()["workers"]) == 1
    close(found, in_memory(regressor))
