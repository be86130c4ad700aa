"""Calibrating by hand on rows of the fit warns; equal rows by right do not."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from conftest import heteroscedastic, tiny
from mapie_api import calibrated_prefit
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mapie_claps import (
    CalibratedRegressor,
    ClapsScore,
    StreamingConformalRegressor,
    load,
    save,
)
from mapie_claps.estimators.fitted_rows import N_KEYS, FittedRows

X, Y = heteroscedastic(300)
FITTED, NEW = slice(0, 150), slice(150, 300)
MODEL = tiny(max_steps=5).fit(X[FITTED], Y[FITTED])
WARNING = "Got calibration rows on which the estimator was fitted"


def repeating(n, seed, n_different=200):
    """Rows drawn with replacement: many are equal by right."""
    kinds, y = heteroscedastic(n_different)
    rows = np.random.default_rng(seed).integers(n_different, size=n)
    frame = pd.DataFrame(kinds[rows].round(1), columns=["a", "b", "c"])
    return frame.assign(kind=[f"k{i % 7}" for i in rows]), y[rows]


def in_mapie(model, X, y):
    calibrated_prefit(model, ClapsScore(model), (X, y), 0.9)


def by_hand(model, X, y):
    CalibratedRegressor(model).conformalize(X, y)


def in_batches(model, X, y):
    halves = slice(0, len(y) // 2), slice(len(y) // 2, None)
    batches = [(X[rows], y[rows]) for rows in halves]
    StreamingConformalRegressor(model).conformalize(batches)


def one_after_another(model, X, y):
    fresh = CalibratedRegressor(model).conformalize(*heteroscedastic(50, seed=9))
    fresh.partial_conformalize(X, y)


WAYS = [in_mapie, by_hand, in_batches, one_after_another]


@pytest.mark.parametrize("way", WAYS, ids=[way.__name__ for way in WAYS])
def test_rows_of_the_fit_warn_and_new_ones_do_not(way):
    with pytest.warns(UserWarning, match=f"{WARNING}: 150 of 150 .* 0 of 150"):
        way(MODEL, X[FITTED], Y[FITTED])
    way(MODEL, X[NEW], Y[NEW])  # warnings are errors


def test_some_rows_of_the_fit_are_enough():
    part = slice(120, 270)
    with pytest.warns(UserWarning, match="30 of 150"):
        by_hand(MODEL, X[part], Y[part])


def test_other_targets_are_other_rows():
    by_hand(MODEL, X[FITTED], Y[NEW])


@pytest.mark.parametrize("way", [in_mapie, by_hand])
def test_equal_rows_by_right_do_not_warn_but_those_of_the_fit_do(way):
    train, y = repeating(150, seed=0)
    model = tiny(max_steps=5).fit(train, y)
    for seed in (1, 2, 3):
        new = repeating(100, seed=seed)
        same = new[0].merge(train.drop_duplicates()).shape[0]
        assert same > 30  # a third and more have an equal row in the fit
        way(model, *new)
    with pytest.warns(UserWarning, match=WARNING):
        way(model, train, y)


def test_a_table_that_repeats_itself_throughout_says_nothing():
    train, y = repeating(300, seed=0, n_different=10)
    by_hand(tiny(max_steps=5).fit(train, y), train, y)


@pytest.mark.parametrize("way", [in_mapie, by_hand])
def test_pipelines_are_known_by_what_their_last_step_sees(way):
    pipeline = make_pipeline(StandardScaler(), PCA(2), tiny(max_steps=5))
    pipeline.fit(X[FITTED], Y[FITTED])
    with pytest.warns(UserWarning, match=WARNING):
        way(pipeline, X[:60], Y[:60])
    way(pipeline, X[NEW], Y[NEW])


def test_fit_keeps_rows_back_without_a_word():
    train, y = repeating(150, seed=0)
    model = CalibratedRegressor(tiny(max_steps=5), random_state=0).fit(train, y)
    with pytest.warns(UserWarning, match=WARNING):
        model.conformalize(train, y)


def test_rows_of_no_weight_were_not_fitted_on():
    weight = np.r_[np.ones(150), np.zeros(150)]
    model = tiny(max_steps=5).fit(X, Y, weight)
    by_hand(model, X[NEW], Y[NEW])
    with pytest.warns(UserWarning, match=WARNING):
        by_hand(model, X[FITTED], Y[FITTED])


def test_a_new_fit_forgets_and_a_pickle_keeps_but_a_file_does_not(tmp_path):
    again = tiny(max_steps=5).fit(X[FITTED], Y[FITTED]).fit(X[NEW], Y[NEW])
    by_hand(again, X[FITTED], Y[FITTED])
    with pytest.warns(UserWarning, match=WARNING):
        by_hand(pickle.loads(pickle.dumps(again)), X[NEW], Y[NEW])
    save(again, tmp_path / "model.claps")
    by_hand(load(tmp_path / "model.claps"), X[NEW], Y[NEW])


def test_of_many_rows_a_part_is_kept_and_compared():
    rng = np.random.default_rng(0)
    numbers, y = rng.random(5 * N_KEYS), rng.normal(size=5 * N_KEYS)
    rows = FittedRows.of(numbers, y)
    assert len(rows.keys) == N_KEYS
    known, compared = rows.overlap(numbers[:2000], y[:2000])
    assert known == compared
    assert 300 < compared < 500  # a fifth
    new = rows.overlap(rng.random(2000), rng.normal(size=2000))
    assert new.known == 0
    assert 300 < new.compared < 500
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows.warn_of(new)
    with pytest.warns(UserWarning, match=WARNING):
        rows.warn_of(rows.overlap(numbers[:2000], y[:2000]))
