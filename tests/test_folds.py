"""``fit`` with one model for each fold (CV+), and rows that belong together."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from conftest import tiny
from known_model import Plain, Shaped, grades, table
from sklearn.linear_model import BayesianRidge
from sklearn.model_selection import GroupKFold, KFold, ShuffleSplit, TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from mapie_claps import CalibratedRegressor, ColumnGroups, explain, load
from mapie_claps.diagnostics import diagnose, rank_rows

X, Y = table(300)
FIT, TEST = (X[:60], Y[:60]), X[60:]
LEVELS = [0.6, 0.9]


class Grouped(BayesianRidge):
    """Remembers the groups of its training rows."""

    def fit(self, X, y, sample_weight=None, groups=None):
        self.groups_ = groups
        return super().fit(X, y, sample_weight)


@pytest.fixture(scope="module")
def folds():
    return CalibratedRegressor(Shaped(), LEVELS, cv=5, random_state=0).fit(*FIT)


def values_of(model, X_test, signs):
    """fold(i).quantile(sign · |s_i|), or of the signed score, for each row i."""
    by_fold = [m.predict_distribution(X_test) for m in model.estimators_]
    scores, of = model.signed_scores_, model.calibration_.folds
    at = scores if signs is None else signs * np.abs(scores)
    each = [by_fold[j].quantile(s)[:, 0] for s, j in zip(at, of, strict=True)]
    return np.sort(each, axis=0)


def test_intervals_against_their_definition(folds):
    points, bounds = folds.predict_interval(TEST)
    for j, k in enumerate((37, 55)):  # ⌈61 · level⌉; ⌊61 α⌋ = 61 − k
        low, high = values_of(folds, TEST, -1)[60 - k], values_of(folds, TEST, 1)[k - 1]
        np.testing.assert_allclose(bounds[:, 0, j], low, rtol=1e-9)
        np.testing.assert_allclose(bounds[:, 1, j], high, rtol=1e-9)
    means = [m.predict(TEST) for m in folds.estimators_]
    np.testing.assert_allclose(points, np.mean(means, axis=0))
    np.testing.assert_array_equal(folds.predict(TEST), points)
    assert sorted(np.bincount(folds.calibration_.folds)) == [12] * 5
    for i in range(60):  # each row is scored by the model that has not seen it
        model = folds.estimators_[folds.calibration_.folds[i]]
        score = model.predict_distribution(X[i : i + 1]).score(Y[i : i + 1])
        assert folds.signed_scores_[i] == score
    two = copy.copy(folds).set_params(sym=False).predict_interval(TEST)[1][:, :, 1]
    signed = values_of(folds, TEST, None)  # ⌈61 · 0.95⌉ = 58
    np.testing.assert_allclose(two, signed[[2, 57]].T, rtol=1e-9)


def test_the_distribution_is_that_of_the_values(folds):
    values = values_of(folds, TEST, None)
    found = folds.predict_quantiles(TEST, np.arange(1, 61) / 61)
    np.testing.assert_allclose(found, values.T, rtol=1e-9)
    middle = (values[29] + values[30]) / 2
    np.testing.assert_allclose(folds.cdf(TEST, middle), 30.5 / 61)
    outer = folds.predict_quantiles(TEST, [0.001, 0.999])
    np.testing.assert_array_equal(outer, np.tile([-np.inf, np.inf], (len(TEST), 1)))


def test_reasons_are_means_over_the_folds(folds):
    why = explain(folds, TEST)
    parts = [m.predict_distribution(TEST).variance for m in folds.estimators_]
    np.testing.assert_allclose(why.epistemic, np.mean([p[1] for p in parts], axis=0))
    np.testing.assert_array_equal(why.upper, folds.predict_interval(TEST)[1][:, 1])
    assert (why.epistemic_width > 0).all()
    table = diagnose(folds, TEST, X_calibration=X[:60])
    ranked = rank_rows(folds, TEST, n_rows=3)
    assert list(ranked["row"]) == list(np.argsort(-table["epistemic"])[:3])


def test_copies_and_a_model_fitted_again(folds):
    for other in (copy.deepcopy(folds), pickle.loads(pickle.dumps(folds))):
        np.testing.assert_array_equal(
            other.predict_interval(TEST)[1], folds.predict_interval(TEST)[1]
        )
    other.estimators_[3].fit(*FIT)
    with pytest.raises(ValueError, match="Got a Shaped that was fitted again"):
        other.predict_interval(TEST)


def test_a_file_keeps_the_folds(tmp_path):
    pytest.importorskip("safetensors")
    model = CalibratedRegressor(tiny(max_steps=9), 0.8, cv=3, random_state=0).fit(*FIT)
    model.save(tmp_path / "model.claps")
    again = load(tmp_path / "model.claps")
    np.testing.assert_array_equal(
        again.predict_interval(TEST)[1], model.predict_interval(TEST)[1]
    )
    np.testing.assert_array_equal(again.cdf(TEST, 0.0), model.cdf(TEST, 0.0))


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.conformalize(*FIT),
        lambda c: c.partial_conformalize(*FIT),
        lambda c: c.observe(*FIT),
        lambda c: c.score_rows(*FIT),
    ],
)
def test_what_needs_one_model_is_refused(folds, call):
    before = dict(vars(folds))
    with pytest.raises(ValueError, match=r"one model for each fold .* Fit with cv=No"):
        call(folds)
    assert vars(folds) == before
    assert not hasattr(folds, "estimator_")


def test_how_rows_are_divided():
    auto = CalibratedRegressor(Plain(), random_state=0)
    assert len(auto.fit(X[:249], Y[:249]).estimators_) == 5
    assert len(auto.fit(X[:250], Y[:250]).estimators_) == 1
    assert len(auto.fit(*FIT, weights=np.ones(60)).estimators_) == 1
    assert len(auto.fit(*FIT, partition=0).estimators_) == 1
    assert len(auto.set_params(cv="split").fit(*FIT).conformity_scores) == 15
    tiny = CalibratedRegressor(Plain(), random_state=0).fit(X[:24], Y[:24])
    assert np.isfinite(tiny.predict_interval(TEST)[1]).all()
    for cv, message in (
        (1, "Got cv=1, but expected an integer of at least 2"),
        (61, "Got n_samples=60, 60 of them different .* for 61 folds"),
        ("many", "Got cv='many', but expected one of 'auto', 'split', None"),
        (True, "Got cv=True, but expected an integer of at least 2"),
        (object(), "Expected .?cv.? as an integer, (a )?cross-validation object"),
        (ShuffleSplit(3), r"Got cv=Shuf.* every row in exactly one .* Use a number"),
        (TimeSeriesSplit(3), r"Got cv=TimeSeriesSplit\(.*every row in exactly one"),
        ([(range(60), range(60))], r"Got cv=.*every row in exactly one of at least tw"),
    ):
        with pytest.raises(ValueError, match=message):
            auto.set_params(cv=cv).fit(*FIT)
    for given in ({"weights": np.ones(60)}, {"partition": 0}):
        with pytest.raises(ValueError, match="Got weights or a partition with cv=3"):
            auto.set_params(cv=3).fit(*FIT, **given)
    with pytest.raises(ValueError, match="needs at least 99.* or with cv=10"):
        auto.set_params(cv=3, confidence_level=0.99).fit(*FIT).predict_interval(TEST)


def test_a_splitter_says_which_fold_a_row_is_in(tmp_path):
    cv = KFold(4, shuffle=True, random_state=1)
    expected = np.empty(60, dtype=int)
    for fold, (_, test) in enumerate(pairs := list(cv.split(X[:60]))):
        expected[test] = fold
    for given in (cv, pairs):
        model = CalibratedRegressor(tiny(max_steps=2), 0.8, cv=given).fit(*FIT)
        np.testing.assert_array_equal(model.calibration_.folds, expected)
        model.save(tmp_path / "folds.claps")
        again = load(tmp_path / "folds.claps")
        assert repr(again.cv) == repr(given)
        np.testing.assert_array_equal(again.predict(TEST), model.predict(TEST))
    groups = np.arange(60) // 2 % 6
    model = CalibratedRegressor(Plain(), cv=GroupKFold(3)).fit(*FIT, groups=groups)
    folds = model.calibration_.folds
    assert all(len(set(folds[groups == g])) == 1 for g in range(6))
    for more, twice in (({"groups": groups}, FIT), ({}, [np.r_[a, a] for a in FIT])):
        with (
            pytest.warns(UserWarning, match="groups parameter is ignored"),
            pytest.raises(ValueError, match=r"cv=KFold\(.*equal or of one group"),
        ):
            CalibratedRegressor(Plain(), cv=KFold(3)).fit(*twice, **more)


@pytest.mark.parametrize("cv", [None, 4])
def test_rows_that_belong_together_stay_together(cv):
    groups = np.repeat(
        ["a", "b", "c", "d", "e", "f", "g", "h"], [9, 9, 9, 9, 8, 8, 4, 4]
    )
    model = CalibratedRegressor(Grouped(), cv=cv, random_state=0)
    model.fit(*FIT, groups=pd.Series(groups))
    for fold, fitted in enumerate(model.estimators_):
        trained = set(fitted.groups_)
        if cv is None:
            kept = ~np.isin(groups, fitted.groups_)
            assert 9 <= kept.sum() <= 21
        else:
            kept = model.calibration_.folds == fold
        assert trained.isdisjoint(groups[kept])
        assert trained | set(groups[kept]) == set(groups)
        assert len(fitted.groups_) == 60 - kept.sum()
    CalibratedRegressor(Plain(), cv=cv).fit(*FIT, groups=groups)  # takes none


@pytest.mark.parametrize("cv", [None, 5])
def test_equal_rows_stay_together_and_count_by_row(cv):
    twice = np.concatenate([X[:60], X[:60]]), np.concatenate([Y[:60], Y[:60]])
    model = CalibratedRegressor(Plain(), cv=cv, random_state=0)
    model.fit(*twice)
    if cv is None:
        assert (np.unique(model.estimator_.y_, return_counts=True)[1] == 2).all()
        assert len(model.conformity_scores) == 30
    else:
        first, second = np.split(model.calibration_.folds, 2)
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("cv", [None, 5])
@pytest.mark.parametrize("kind", [scipy.sparse.csr_matrix, list, torch.from_numpy])
def test_rows_that_only_the_estimator_reads(kind, cv):
    def numbers(X):
        return X.toarray() if scipy.sparse.issparse(X) else np.asarray(X)

    pipe = make_pipeline(FunctionTransformer(numbers), BayesianRidge())
    model = CalibratedRegressor(pipe, cv=cv, random_state=0).fit(kind(X[:60]), Y[:60])
    expected = CalibratedRegressor(pipe, cv=cv, random_state=0).fit(X[:60], Y[:60])
    np.testing.assert_allclose(
        model.predict_interval(kind(TEST))[1], expected.predict_interval(TEST)[1]
    )
    assert model.predict_interval(kind(TEST)[:0])[1].shape == (0, 2, 1)


@pytest.mark.parametrize("groups", ["g", 3, np.isnan, ColumnGroups("g")])
def test_groups_to_calibrate_apart_are_a_partition(groups):
    with pytest.raises(ValueError, match=r"Got groups of shape \(\) for .* partition"):
        CalibratedRegressor(Plain()).fit(*FIT, groups=groups)


def test_one_rank_or_two_as_training_rows_prefer():
    model = Shaped().fit(X, Y)
    auto = CalibratedRegressor(model, 0.9).conformalize(*FIT)
    one = copy.copy(auto).set_params(sym=True)
    two = copy.copy(auto).set_params(sym=False)
    bounds = [c.predict_interval(TEST)[1] for c in (auto, one, two)]
    np.testing.assert_array_equal(bounds[0], bounds[1])
    model.prefers_two_ranks_ = True
    np.testing.assert_array_equal(auto.predict_interval(TEST)[1], bounds[2])
    CalibratedRegressor(model).conformalize(X[:18], Y[:18]).predict_interval(TEST)
    absolute = CalibratedRegressor.from_scores(model, auto.conformity_scores)
    np.testing.assert_array_equal(absolute.predict_interval(TEST)[1], bounds[1])


def test_supports_of_the_folds():
    y = np.clip(np.round(Y + 1), 0, 3)
    model = CalibratedRegressor(
        Shaped(shift=1.0, targets=replace(grades(), ceiling=np.inf)), LEVELS, cv=5
    ).fit(X[:60], y[:60])
    bounds = model.predict_interval(TEST)[1]
    np.testing.assert_array_equal(bounds, np.round(bounds))
    assert bounds.min() == 0
    values = model.predict_quantiles(TEST[:9], np.arange(1, 61) / 61)
    np.testing.assert_array_equal(values, np.round(values))


def test_scores_that_standard_deviations_do_not_explain():
    model = Plain().fit(X, Y)
    mu = model.predict(X)
    for factor, size in ((20, "2"), (0.01, "0.")):
        with pytest.warns(UserWarning, match=rf"root mean square is {size}.*about 1"):
            found = CalibratedRegressor(model).conformalize(X, mu + factor * (Y - mu))
        assert np.isfinite(found.predict_interval(TEST)[1]).all()
    one = np.where(np.arange(300) == 7, 1e6, Y)
    CalibratedRegressor(model).conformalize(X, one)  # a single row is no reason
    CalibratedRegressor(model).conformalize(X[:20], 99 * Y[:20])  # too few to tell
