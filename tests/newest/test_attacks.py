"""What no other file attacks: tests of MAPIE on a calibrated model, folders that cannot
be written, drawings of unusual intervals, memory of CV+, processes that fork."""

import copy
import os
import threading
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import heteroscedastic, tiny
from mapie.conditional_conformal_prediction import ConditionalSplitConformalRegressor
from mapie.exchangeability_testing import (
    OnlineMartingaleTest,
    PValuePermutationTest,
    SequentialMonteCarloTest,
)
from mapie.regression import SplitConformalRegressor
from matplotlib.figure import Figure

from mapie_claps import ClapsScore, save
from mapie_claps.conformal import bounds
from mapie_claps.plots import CoverageDisplay, IntervalDisplay, WidestRowsDisplay


@pytest.fixture(scope="module")
def mapie(fitted, data):
    split = SplitConformalRegressor(fitted, 0.9, ClapsScore(fitted), prefit=True)
    return split.conformalize(*data[1])


# MAPIE's exchangeability tests


@pytest.mark.parametrize(
    "make",
    [
        lambda m: PValuePermutationTest(
            mapie_estimator=m, random_state=0, num_permutations=99, warn=False
        ),
        lambda m: SequentialMonteCarloTest(
            "binomial_mixture",
            mapie_estimator=m,
            random_state=0,
            num_permutations=99,
            warn=False,
        ),
    ],
)
def test_permutation_tests_see_drift_and_change_nothing(make, mapie, data):
    X, y = heteroscedastic(120, seed=5)
    expected = mapie.predict_interval(data[2][0])[1]
    assert make(mapie).run(X, y).is_exchangeable is not False
    late = y + 5 * (np.arange(120) >= 60)
    assert make(mapie).run(X, late).is_exchangeable is False
    np.testing.assert_array_equal(mapie.predict_interval(data[2][0])[1], expected)


def test_a_martingale_sees_drift_and_changes_nothing(mapie, data):
    expected = mapie.predict_interval(data[2][0])[1]
    X, y = heteroscedastic(200, seed=6)
    monitor = OnlineMartingaleTest(mapie, random_state=0, warn=False)
    monitor.update(*data[1])
    assert monitor.is_exchangeable is not False
    monitor.update(X, y + 5)
    assert monitor.is_exchangeable is False
    np.testing.assert_array_equal(mapie.predict_interval(data[2][0])[1], expected)


# Conditional coverage


def test_conditional_intervals_hold_their_groups_and_their_scale(fitted, data):
    """Two groups, each covered by itself; widths follow √v within a group."""

    def groups(X):
        right = X[:, 0] > 0
        return np.column_stack([right, ~right]).astype(float)

    conditional = ConditionalSplitConformalRegressor(
        groups, fitted, 0.8, ClapsScore(fitted, support=None), prefit=True
    )
    X_cal, y_cal = heteroscedastic(60, seed=7)
    X = heteroscedastic(60, seed=8)[0]
    conditional.conformalize(X_cal, y_cal)
    mu, found = conditional.predict_interval(X[:12])
    _, std = fitted.predict(X[:12], return_std=True)
    half = (found[:, 1, 0] - found[:, 0, 0]) / 2
    np.testing.assert_allclose((found[:, 1, 0] + found[:, 0, 0]) / 2, mu, atol=1e-6)
    for right in (True, False):
        rows = (X[:12, 0] > 0) == right
        ratio = half[rows] / std[rows]
        np.testing.assert_allclose(ratio, ratio.mean(), rtol=1e-4)
        # The quantile of the group's own scores, one row to either side.
        inside = (X_cal[:, 0] > 0) == right
        mu_cal, std_cal = fitted.predict(X_cal[inside], return_std=True)
        scores = np.sort(np.abs(y_cal[inside] - mu_cal) / std_cal)
        rank = int(np.ceil(0.8 * (len(scores) + 1)))
        assert scores[rank - 2] * 0.999 <= ratio.mean() <= scores[rank] * 1.001


# Folders


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="needs users")
def test_a_folder_that_cannot_be_written_keeps_its_file(fitted, tmp_path):
    """As a user without rights, since the administrator may write anywhere."""
    path = tmp_path / "model.claps"
    save(fitted, path)
    content = path.read_bytes()
    tmp_path.chmod(0o555)
    nobody = 65534 if os.geteuid() == 0 else os.geteuid()
    me = os.geteuid()
    os.seteuid(nobody)
    try:
        with pytest.raises(PermissionError):
            save(copy.copy(fitted), path)
    finally:
        os.seteuid(me)
        tmp_path.chmod(0o755)
    assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["model.claps"]


# Drawings


@pytest.mark.parametrize(
    "rows", ["infinite", "one", "constant", "huge"], ids=lambda name: name
)
def test_drawings_of_unusual_intervals(rows, fitted, data):
    X, y = (part[:20] for part in data[2])
    n_cal, scale = (5 if rows == "infinite" else 60), (1e9 if rows == "huge" else 1.0)
    model = fitted
    if rows == "huge":
        model = tiny().fit(data[0][0], 1e9 * data[0][1])
    mapie = SplitConformalRegressor(model, 0.9, ClapsScore(model), prefit=True)
    mapie.conformalize(data[1][0][:n_cal], scale * data[1][1][:n_cal])
    if rows == "one":
        X, y = X[:1], y[:1]
    if rows == "constant":
        X = np.repeat(X[:1], 20, axis=0)
    params = {"allow_infinite_bounds": True} if rows == "infinite" else {}
    for display in (IntervalDisplay, WidestRowsDisplay):
        figure = Figure()
        drawn = display.from_estimator(mapie, X, ax=figure.subplots(), **params)
        figure.canvas.draw()
        if rows == "infinite" and display is IntervalDisplay:
            assert "20 of 20 are infinite" in drawn.ax_.get_title()
    figure = Figure()
    CoverageDisplay.from_estimator(
        mapie, X, scale * y, feature=0, ax=figure.subplots(2), **params
    )
    figure.canvas.draw()


# CV+ of many rows


def folds(n_cal):
    """Five models that cost nothing, and MAPIE's table of who saw which row."""
    models = [
        SimpleNamespace(
            predict=lambda X, return_std=False, shift=shift: (
                (X[:, 0] + shift, 1 + X[:, 0] ** 2) if return_std else X[:, 0]
            )
        )
        for shift in range(5)
    ]
    fold = np.arange(n_cal) % 5
    return SimpleNamespace(
        estimators_=models,
        single_estimator_=models[0],
        k_=None,
        _aggregate_with_mask=lambda by_fold, _: by_fold[:, fold],
        agg_function="mean",
        method="plus",
        use_split_method_=False,
    )


def test_memory_of_cv_plus_does_not_grow_with_test_rows():
    """5,000 × 100,000 numbers would take 4 GB."""
    n_cal = 100_000
    rng = np.random.default_rng(0)
    scores, peaks = np.abs(rng.normal(size=n_cal)), []
    for n_test in (50, 150):
        X = rng.normal(size=(n_test, 1))
        tracemalloc.start()
        bounds.cross_bounds(
            X, np.array([0.1]), folds(n_cal), scores, False, "plus", False, {}
        )
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]
    assert peaks[1] < 500e6


# Processes


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_that_forks_after_threads_with_one_thread_of_torch(fitted, data):
    """As docs/faq.md says: one thread for torch in a process that will fork."""
    X = data[2][0]
    threads = [threading.Thread(target=fitted.predict, args=(X,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = fitted.predict(X)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, fitted.predict(X).tobytes())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        found = np.frombuffer(file.read())
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(found, expected)
