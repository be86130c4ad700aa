"""Dask: the same numbers as in memory, also where a worker dies."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster
from distributed.utils import get_mp_context
from own_networks import Convolution, Pair, seeded, table
from test_fingerprint import Fingerprinted

from mapie_claps import (
    ClapsModule,
    ClapsRegressor,
    EpistemicGroups,
    StreamingConformalRegressor,
    partial_sums,
    with_sums,
)
from mapie_claps.distributed import (
    conformalize,
    conformity_scores,
    fit_posterior,
    observe,
    predict_interval,
)

pytestmark = pytest.mark.usefixtures("own_random_state")
X, y = table(600)
LEVELS = [0.8, 0.9]


@pytest.fixture(scope="module")
def module():
    return ClapsModule(seeded(Pair), prior_precision=1.0).fit(X[:50], y[:50])


@pytest.fixture(scope="module")
def regressor():
    return ClapsRegressor(
        max_steps=40,
        n_members=2,
        hidden_layer_sizes=(8,),
        representation_size=6,
        tol=None,
        random_state=0,
    ).fit(X[:50], y[:50])


@pytest.fixture(autouse=True)
def threads_of_this_process():
    with dask.config.set(scheduler="threads"):
        yield


def in_memory(model):
    model = with_sums(model, partial_sums(model, X[:300], y[:300]))
    conformal = StreamingConformalRegressor(model, LEVELS)
    conformal.conformalize(X[300:500], y[300:500])
    return conformal.predict_interval(X[500:])


def on_dask(model, rows, targets):
    model = fit_posterior(model, rows[:300], targets[:300])
    conformal = conformalize(model, rows[300:500], targets[300:500], LEVELS)
    return dask.compute(*predict_interval(conformal, rows[500:]))


@pytest.mark.parametrize("which", ["module", "regressor"])
def test_arrays_on_threads(which, request):
    model = request.getfixturevalue(which)
    rows = da.from_array(X, chunks=(70, 2))  # columns are joined
    targets = da.from_array(y, chunks=111)
    for ours, theirs in zip(
        on_dask(model, rows, targets), in_memory(model), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10)


def test_images(request):
    rng = np.random.default_rng(0)
    images, y = rng.normal(size=(90, 1, 8, 8)), rng.normal(size=90)
    model = ClapsModule(seeded(Convolution), prior_precision=1.0).fit(images, y)
    conformal = conformalize(
        model, da.from_array(images, chunks=(40, 1, 4, 8)), da.from_array(y)
    )
    _, intervals = predict_interval(conformal, da.from_array(images, chunks=40))
    assert intervals.shape == (90, 2, 1)
    np.testing.assert_allclose(
        intervals.compute(), conformal.predict_interval(images)[1], rtol=1e-10
    )


def test_frames_keep_their_index(regressor):
    columns = ["a", "b", "c"]
    model = ClapsRegressor(**regressor.get_params()).fit(
        pd.DataFrame(X[:50], columns=columns), y[:50]
    )
    data = pd.DataFrame(X, columns=columns, index=[f"row {i:03}" for i in range(600)])
    data["y"] = y
    frame = dd.from_pandas(data, npartitions=5)
    # A filter leaves partitions of unknown size, some of them empty.
    frame = frame[(frame.index < "row 100") | (frame.index >= "row 400")]
    kept = data[(data.index < "row 100") | (data.index >= "row 400")]
    fitted = fit_posterior(model, frame[columns], frame["y"])
    conformal = conformalize(fitted, frame[columns], frame["y"], LEVELS)
    table = predict_interval(conformal, frame[columns])
    expected = conformal.predict_interval(kept[columns])
    assert list(table.columns) == [
        "prediction",
        "lower_0.8",
        "lower_0.9",
        "upper_0.8",
        "upper_0.9",
    ]
    found = table.compute()
    assert list(found.index) == list(kept.index)
    np.testing.assert_allclose(found["prediction"], expected[0], rtol=1e-10)
    np.testing.assert_allclose(found["upper_0.9"], expected[1][:, 1, 1], rtol=1e-10)
    whole = with_sums(model, partial_sums(model, kept[columns], kept["y"]))
    np.testing.assert_allclose(
        fitted.posterior_covariance_, whole.posterior_covariance_, rtol=1e-8
    )


def test_errors(module):
    rows, targets = da.from_array(X, chunks=(100, 3)), da.from_array(y, chunks=100)
    with pytest.raises(TypeError, match="Got a ndarray"):
        fit_posterior(module, X, y)
    with pytest.raises(ValueError, match="Got y cut into 3 and X into 6 partitions"):
        conformity_scores(module, rows, targets[:300])
    with pytest.raises(ValueError, match="100 rows of X and 50 of y"):
        fit_posterior(module, rows, targets[:300].rechunk(50))
    with pytest.raises(ValueError, match="without rows"):
        fit_posterior(module, rows[:0], targets[:0])


def test_rows_of_another_order_are_not_paired(regressor):
    """X and y have as many rows in each partition, but not the same ones."""
    rows = pd.DataFrame(X, columns=["a", "b", "c"])
    targets = pd.Series(y).sample(frac=1.0, random_state=0)
    frame = dd.from_pandas(rows, npartitions=4)
    series = dd.from_pandas(targets, npartitions=4, sort=False)
    assert frame.map_partitions(len).compute().tolist() == [150] * 4
    assert series.map_partitions(len).compute().tolist() == [150] * 4
    message = r"row 0 is \d+ in X and \d+ in y. Partition y as X is"
    with pytest.raises(ValueError, match=message):
        conformity_scores(regressor, frame, series)
    with pytest.raises(ValueError, match=message):
        fit_posterior(regressor, frame, series)


def test_arrays_of_unknown_chunk_sizes(module):
    """A filter leaves chunks whose size is known when they are computed."""
    conformal = StreamingConformalRegressor(module, LEVELS)
    conformal.conformalize(X[300:500], y[300:500])
    rows = da.from_array(X, chunks=(70, 3))
    kept = rows[rows[:, 0] > 0]
    assert np.isnan(kept.shape[0])
    points, intervals = dask.compute(*predict_interval(conformal, kept))
    expected = conformal.predict_interval(X[X[:, 0] > 0])
    np.testing.assert_allclose(points, expected[0], rtol=1e-10)
    np.testing.assert_allclose(intervals, expected[1], rtol=1e-10)


class Negative:
    """A scale of −1 in the rows whose first column is negative."""

    def predict(self, X, return_std):
        x = np.asarray(X)[:, 0]
        return x, np.where(x < 0, -1.0, 1.0)


def test_the_scale_is_checked_when_predicting():
    conformal = StreamingConformalRegressor.from_scores(Negative(), np.ones(99))
    _, intervals = predict_interval(conformal, da.from_array(X, chunks=(600, 3)))
    with pytest.raises(ValueError, match=r"standard deviation of -1\.0 in row \d+"):
        intervals.compute()


def test_a_model_that_changes_before_the_graph_is_computed():
    model = Fingerprinted().fit(X[:300], y[:300])
    conformal = StreamingConformalRegressor(model).conformalize(X[300:], y[300:])
    _, intervals = predict_interval(conformal, da.from_array(X, chunks=(100, 3)))
    assert intervals.compute().shape == (600, 2, 1)
    model.set_params(unit=2.0)
    with pytest.raises(ValueError, match="has changed since calibration"):
        intervals.compute()


def slowly(block, marker):
    """Hand a block on, a little later; say where."""
    with open(os.path.join(marker, f"{os.getpid()}"), "a") as file:
        file.write(".")
    time.sleep(0.1)
    return block


@pytest.fixture
def cluster():
    """Two worker processes, forked from one that has imported mapie_claps already."""
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        context = get_mp_context()
        context.set_forkserver_preload(["distributed", "mapie_claps"])
        with LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address="127.0.0.1:0",  # any free port
        ) as cluster:
            yield cluster


def test_a_worker_ends_in_the_middle_of_a_run(cluster, regressor, tmp_path):
    expected = in_memory(regressor)
    # By name: a client in the configuration is sent along to a worker that is started
    # again, which fails since it cannot be pickled, and the cluster never closes.
    with Client(cluster) as client, dask.config.set(scheduler="distributed"):
        rows = da.from_array(X, chunks=(30, 3)).map_blocks(
            slowly, str(tmp_path), dtype=float, meta=np.empty((0, 3))
        )
        targets = da.from_array(y, chunks=30)
        victim = next(iter(client.run(os.getpid).values()))
        mark = tmp_path / str(victim)

        def end_the_victim():
            while not mark.exists() or len(mark.read_text()) < 2:
                time.sleep(0.02)
            os.kill(victim, signal.SIGKILL)

        killer = Thread(target=end_the_victim)
        killer.start()
        found = on_dask(regressor, rows, targets)
        killer.join()
        assert victim not in client.run(os.getpid).values()
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10)


@pytest.fixture
def processes(tmp_path):
    """A scheduler and a worker, each a process of its own."""
    file = tmp_path / "scheduler.json"
    options = ["--scheduler-file", str(file), "--no-dashboard"]
    here = str(Path(__file__).parent)
    paths = os.pathsep.join([here, str(Path(here).parent)])
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.dask_{kind}", *options, *more],
            env={**os.environ, "PYTHONPATH": paths},
            **quiet,
        )
        for kind, more in (
            ("scheduler", ["--port", "0"]),
            ("worker", ["--nthreads", "1", "--no-nanny", "--death-timeout", "60"]),
        )
    ]
    while not file.exists() and started[0].poll() is None:
        time.sleep(0.05)
    yield file, started[0]
    for process in started:
        process.kill()
        process.wait()


def test_the_scheduler_is_killed_in_the_middle_of_a_run(module, processes, tmp_path):
    """An error comes, and what was calibrated before is as it was."""
    file, scheduler = processes
    before = StreamingConformalRegressor(module, LEVELS)
    before.conformalize(X[300:500], y[300:500])
    expected = before.predict_interval(X[500:])

    def slow(block, mark=str(tmp_path / "mark")):
        Path(mark).touch()
        time.sleep(0.2)
        return block

    def end_the_scheduler():
        while not (tmp_path / "mark").exists():
            time.sleep(0.02)
        scheduler.send_signal(signal.SIGKILL)

    rows = da.from_array(X, chunks=(30, 3)).map_blocks(
        slow, dtype=float, meta=np.empty((0, 3))
    )
    targets = da.from_array(y, chunks=30)
    # The client tries to find a lost scheduler again for as long as it tried at first.
    with (
        Client(scheduler_file=str(file), timeout=5),
        dask.config.set(scheduler="distributed"),
    ):
        killer = Thread(target=end_the_scheduler)
        killer.start()
        with pytest.raises(Exception, match="cancel|clos|lost|scheduler"):
            on_dask(module, rows, targets)
        killer.join()
        assert scheduler.wait() == -signal.SIGKILL
    for ours, theirs in zip(before.predict_interval(X[500:]), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def ratio(rows):
    return np.exp(0.5 * np.asarray(rows)[:, 0])


def side(rows):
    return (np.asarray(rows)[:, 1] > 0).astype(int)


def chunked(*arrays):
    return [da.from_array(a, chunks=(37, *a.shape[1:])) for a in arrays]


@pytest.mark.parametrize(
    "given", [{"weights": ratio}, {"groups": side}, {"weights": ratio, "groups": side}]
)
@pytest.mark.parametrize("as_numbers", [False, True])
def test_weights_and_groups_are_those_in_memory(module, given, as_numbers):
    cal, new = slice(50, 400), slice(400, 600)
    here = StreamingConformalRegressor(module, LEVELS)
    here.conformalize(X[cal], y[cal], **given)
    expected = here.predict_interval(X[new], allow_infinite_bounds=True)

    def values(rows):
        return {k: chunked(f(X[rows]))[0] for k, f in given.items()}

    there = conformalize(
        module,
        *chunked(X[cal], y[cal]),
        LEVELS,
        **(values(cal) if as_numbers else given),
    )
    found = predict_interval(
        there, *chunked(X[new]), True, **(values(new) if as_numbers else {})
    )
    for ours, theirs in zip(dask.compute(*found), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10)


def test_rows_observed_partition_by_partition(module):
    here = StreamingConformalRegressor(module, LEVELS).conformalize(
        X[50:300], y[50:300]
    )
    for start in range(300, 600, 50):
        rows = slice(start, start + 50)
        here.observe(X[rows], y[rows], gamma=0.02, window=200)
    there = conformalize(module, *chunked(X[50:300], y[50:300]), LEVELS)
    rows = da.from_array(X[300:], chunks=(50, 2)), da.from_array(y[300:], chunks=50)
    observe(there, *rows, gamma=0.02, window=200)
    for ours, theirs in zip(
        there.predict_interval(X[:9]), here.predict_interval(X[:9]), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10)


def test_weights_that_cannot_be(module):
    rows = chunked(X[50:400], y[50:400])
    for bad, message in (
        (np.full(350, -1.0), "-1.0 in row 0"),
        (np.zeros(350), "zero in all 350"),
    ):
        with pytest.raises(ValueError, match=message):
            conformalize(module, *rows, weights=chunked(bad)[0])
    there = conformalize(module, *rows, weights=ratio)
    before = there.conformity_scores_.copy()
    with pytest.raises(ValueError, match="gamma"):
        observe(there, *chunked(X[400:], y[400:]), gamma=-1.0)
    np.testing.assert_array_equal(there.conformity_scores_, before)


@pytest.mark.parametrize("name", ["weights", "groups"])
def test_values_whose_index_is_another_one_are_refused(module, name):
    columns = [str(i) for i in range(X.shape[1])]
    frame = pd.DataFrame(X, columns=columns)
    model = ClapsModule(seeded(Pair), prior_precision=1.0).fit(frame[:50], y[:50])
    frame = frame[50:]
    frame["y"], frame["v"] = y[50:], np.arange(550.0) % 2 + 1
    whole = dd.from_pandas(frame, npartitions=5)
    turned = dd.from_pandas(frame.iloc[::-1], npartitions=5, sort=False)
    rows = whole[columns]
    with pytest.raises(ValueError, match=rf"row 0 is \d+ in X and \d+ in {name}"):
        conformalize(model, rows, whole["y"], **{name: turned["v"]})
    there = conformalize(model, rows, whole["y"], **{name: whole["v"]})
    here = StreamingConformalRegressor(model).conformalize(
        frame[columns], y[50:], **{name: frame["v"].to_numpy()}
    )
    own = {name: frame["v"].to_numpy()}
    expected = here.predict_interval(frame[columns], **own)[1]
    found = predict_interval(there, rows, **{name: whole["v"]}).compute()
    np.testing.assert_allclose(found["upper_0.9"], expected[:, 1, 0], rtol=1e-6)
    by_function = predict_interval(
        there, rows, **{name: lambda rows: frame["v"].loc[rows.index]}
    ).compute()
    pd.testing.assert_frame_equal(by_function, found)
    lengths = tuple(whole.map_partitions(len).compute())
    array = da.from_array(own[name], chunks=(lengths,))
    by_array = predict_interval(there, rows, **{name: array}).compute()
    pd.testing.assert_frame_equal(by_array, found)
    with pytest.raises(ValueError, match=rf"row 0 is \d+ in X and \d+ in {name}"):
        predict_interval(there, rows, **{name: turned["v"]}).compute()
    for call in (
        lambda v: conformalize(model, rows, whole["y"], **{name: v}),
        lambda v: predict_interval(there, rows, **{name: v}),
        lambda v: observe(there, rows, whole["y"], **{name: v}),
    ):
        with pytest.raises(TypeError, match=f"Got {name} of type Series, but expected"):
            call(frame["v"])


def test_values_of_half_the_rows_are_not_used_twice(module):
    """Dask hands a single partition to all of X; files all number rows from 0."""
    halves = [pd.DataFrame(X[i : i + 20], columns=list("abc")) for i in (0, 20)]
    rows = dd.from_delayed([dask.delayed(h) for h in halves], meta=halves[0][:0])
    label = dd.from_pandas(pd.Series(["a"] * 20), npartitions=1)
    conformal = conformalize(module, *chunked(X[50:], y[50:]), groups=lambda x: side(x))
    with pytest.raises(
        ValueError, match="Got groups cut into 1 and X into 2 partitions"
    ):
        predict_interval(conformal, rows, groups=label)
    labels = da.from_array(side(X[:40]), chunks=10)
    for bad in (labels[:20], labels[:1], labels[:, None]):
        with pytest.raises(
            ValueError, match=r"Got groups of shape .* one value per ro"
        ):
            predict_interval(conformal, *chunked(X[:40]), groups=bad)


def test_partitions_without_rows_keep_the_kind(module):
    empty = conformalize(module, *chunked(X[:0], y[:0]), LEVELS, weights=ratio)
    empty.partial_conformalize(X[50:400], y[50:400])
    whole = conformalize(module, *chunked(X[50:400], y[50:400]), LEVELS, weights=ratio)
    np.testing.assert_allclose(
        empty.predict_interval(X[400:])[1], whole.predict_interval(X[400:])[1]
    )


def test_groups_by_epistemic_fraction(module):
    bins = EpistemicGroups.from_training(module, X[:50], n_groups=2)
    here = StreamingConformalRegressor(module).conformalize(
        X[50:400], y[50:400], groups=bins
    )
    there = conformalize(module, *chunked(X[50:400], y[50:400]), groups=bins)
    np.testing.assert_allclose(
        there.predict_interval(X[400:])[1], here.predict_interval(X[400:])[1]
    )


def test_rows_of_the_posterior_are_not_observed(module):
    there = StreamingConformalRegressor(module).conformalize(X[50:200], y[50:200])
    there.update_posterior(X[200:300], y[200:300])
    there.conformalize(X[300:500], y[300:500])
    with pytest.raises(ValueError, match="posterior"):
        observe(there, *chunked(X[200:300], y[200:300]))


def test_groups_by_the_name_of_a_column(module):
    frame = pd.DataFrame(X, columns=["a", "b", "side"])
    frame["side"] = side(X)
    model = ClapsModule(seeded(Pair), prior_precision=1.0).fit(frame[:50], y[:50])
    here = StreamingConformalRegressor(model).conformalize(
        frame[50:], y[50:], groups="side"
    )
    whole = dd.from_pandas(frame.assign(y=y)[50:], npartitions=3)
    rows = whole[list(frame)]
    there = conformalize(model, rows, whole["y"], groups="side")
    found = predict_interval(there, rows).compute()
    expected = here.predict_interval(frame[50:])[1]
    np.testing.assert_allclose(found["upper_0.9"], expected[:, 1, 0], rtol=1e-6)
