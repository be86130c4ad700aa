"""MAPIE 1.5 and later: estimators that MAPIE fits, cross-conformal methods, explain."""

import copy

import numpy as np
import pytest
from conftest import heteroscedastic, tiny
from mapie.conformity_scores import StdConformityScore
from mapie.metrics.regression import regression_coverage_score
from mapie.regression import (
    CrossConformalRegressor,
    JackknifeAfterBootstrapRegressor,
    SplitConformalRegressor,
)
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.model_selection import GridSearchCV, PredefinedSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from test_fingerprint import Fingerprinted

from mapie_claps import ClapsRegressor, ClapsScore, conformal_rank, explain
from mapie_claps.conformal import bounds as bounds_module


def split(estimator, data, level=0.9, score=None):
    mapie = SplitConformalRegressor(
        estimator,
        confidence_level=level,
        conformity_score=score or ClapsScore(),
        prefit=False,
    )
    return mapie.fit(*data[0]).conformalize(*data[1])


def test_the_five_lines(data):
    X_test, y_test = data[2]
    y_pred, bounds = split(tiny(), data).predict_interval(X_test)
    direct = tiny().fit(*data[0])
    np.testing.assert_array_equal(y_pred, direct.predict(X_test))
    assert regression_coverage_score(y_test, bounds)[0] > 0.8


@pytest.mark.parametrize("held", [False, True])
def test_prefit_equals_not_prefit(data, held):
    model = tiny().fit(*data[0])
    mapie = SplitConformalRegressor(
        model,
        confidence_level=[0.5, 0.9],
        conformity_score=ClapsScore(model) if held else ClapsScore(),
        prefit=True,
    ).conformalize(*data[1])
    expected = split(tiny(), data, [0.5, 0.9]).predict_interval(data[2][0])
    for got, want in zip(mapie.predict_interval(data[2][0]), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)


def test_upper_bound_is_that_of_mapies_std_score(data):
    """MAPIE's own lower bound takes one order statistic too few; its upper is right."""
    ours = split(tiny(), data).predict_interval(data[2][0])[1]
    theirs = split(tiny(), data, score=StdConformityScore()).predict_interval(
        data[2][0]
    )
    np.testing.assert_allclose(ours[:, 1], theirs[1][:, 1], rtol=1e-10)


def test_both_bounds_are_mapies_where_the_rank_is_whole(data):
    few = [data[0], (data[1][0][:99], data[1][1][:99]), data[2]]
    ours = split(tiny(), few).predict_interval(data[2][0])[1]
    theirs = split(tiny(), few, score=StdConformityScore()).predict_interval(data[2][0])
    np.testing.assert_allclose(ours, theirs[1], rtol=1e-10)


def test_nine_rows_are_enough_for_ninety_per_cent(data):
    few = [data[0], (data[1][0][:9], data[1][1][:9]), data[2]]
    mapie = split(tiny(), few)
    assert np.isfinite(mapie.predict_interval(data[2][0])[1]).all()


def test_too_few_rows(data):
    few = [data[0], (data[1][0][:8], data[1][1][:8]), data[2]]
    mapie = split(tiny(), few)
    with pytest.raises(
        ValueError, match="Got 8 calibration scores, but confidence_lev"
    ):
        mapie.predict_interval(data[2][0])
    _, bounds = mapie.predict_interval(data[2][0], allow_infinite_bounds=True)
    assert (bounds[:, 0] == -np.inf).all()
    assert (bounds[:, 1] == np.inf).all()


@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")  # MAPIE's check
@pytest.mark.parametrize("level", [1.5, 0.0, 1.0, -0.1])
def test_level_outside_the_unit_interval(data, level):
    mapie = split(tiny(), data, level)
    with pytest.raises(ValueError, match=r"are between 0 and 1|Got confidence_level="):
        mapie.predict_interval(data[2][0])


def test_an_estimator_without_standard_deviation(data):
    booster = HistGradientBoostingRegressor(max_iter=2)
    with pytest.raises(TypeError, match="whose predict takes no return_std"):
        split(booster, data)


def test_minimize_interval_width_is_refused(data):
    with pytest.raises(ValueError, match="minimize_interval_width=True"):
        split(tiny(), data).predict_interval(data[2][0], minimize_interval_width=True)


def test_grid_search_inside_mapie(data):
    search = GridSearchCV(tiny(), {"variance_floor": [1e-3, 1.0]}, cv=2).fit(*data[0])
    pipe = make_pipeline(StandardScaler(), tiny(**{"variance_floor": 1e-3}))
    assert split(pipe, data).predict_interval(data[2][0])[1].shape == (120, 2, 1)
    mapie = SplitConformalRegressor(
        search.best_estimator_, conformity_score=ClapsScore(), prefit=True
    ).conformalize(*data[1])
    assert mapie.predict_interval(data[2][0])[1].shape == (120, 2, 1)


def test_a_gaussian_process_that_mapie_fits(data):
    gp = GaussianProcessRegressor(RBF() + WhiteKernel(), normalize_y=True)
    _, bounds = split(gp, data).predict_interval(data[2][0])
    assert regression_coverage_score(data[2][1], bounds)[0] > 0.8


def test_a_scale_that_is_switched_changes_the_interval(data):
    model = tiny().fit(*data[0]).set_params(scale="constant")
    mapie = SplitConformalRegressor(model, conformity_score=ClapsScore(), prefit=True)
    _, bounds = mapie.conformalize(*data[1]).predict_interval(data[2][0])
    width = bounds[:, 1] - bounds[:, 0]
    np.testing.assert_allclose(width, np.full_like(width, width[0, 0]), rtol=1e-10)


def cross_oracle(mapie, data, X_test, alpha, method):
    """CV+ and CV-minmax from the models of the folds, row by row."""
    ensemble = mapie._mapie_regressor.estimator_
    n = len(data[1])
    k = conformal_rank(n, alpha)
    rows = []
    for i in range(n):
        fold = int(np.flatnonzero(ensemble.k_[i] == 1)[0])
        model = ensemble.estimators_[fold]
        mu_i, std_i = model.predict(data[0][i : i + 1], return_std=True)
        mu, std = model.predict(X_test, return_std=True)
        rows.append((abs(data[1][i] - mu_i[0]) / std_i[0], mu, std))
    if method == "plus":
        low = np.sort([mu - r * std for r, mu, std in rows], axis=0)[n - k]
        up = np.sort([mu + r * std for r, mu, std in rows], axis=0)[k - 1]
    else:
        q = sorted(r for r, _, _ in rows)[k - 1]
        low = np.min([mu - q * std for _, mu, std in rows], axis=0)
        up = np.max([mu + q * std for _, mu, std in rows], axis=0)
    return np.stack([low, up], axis=1)


@pytest.mark.parametrize("method", ["plus", "minmax"])
@pytest.mark.parametrize("aggregate", ["mean", None])
def test_cross_conformal_against_its_definition(method, aggregate, monkeypatch):
    X, y = heteroscedastic(60)
    X_test = heteroscedastic(15, seed=1)[0]
    mapie = CrossConformalRegressor(
        tiny(),
        confidence_level=[0.9, 0.7],
        conformity_score=ClapsScore(),
        method=method,
        cv=3,
        random_state=0,
    ).fit_conformalize(X, y)
    monkeypatch.setattr(bounds_module, "BLOCK_ELEMENTS", 4 * 60)
    points, got = mapie.predict_interval(X_test, aggregate_point_predictions=aggregate)
    for j, alpha in enumerate((0.1, 0.3)):
        expected = cross_oracle(mapie, (X, y), X_test, alpha, method)
        np.testing.assert_allclose(got[:, :, j], expected, rtol=1e-10)
    single = mapie._mapie_regressor.estimator_.single_estimator_.predict(X_test)
    assert np.array_equal(points, single) == (aggregate is None)


def test_cross_conformal_base_uses_the_model_of_all_rows():
    X, y = heteroscedastic(60)
    mapie = CrossConformalRegressor(
        tiny(), conformity_score=ClapsScore(), method="base", cv=3
    ).fit_conformalize(X, y)
    mu, bounds = mapie.predict_interval(X)
    np.testing.assert_allclose(bounds.mean(axis=1)[:, 0], mu, rtol=1e-8, atol=1e-10)


def test_cross_conformal_with_infinite_bounds():
    X, y = heteroscedastic(24)
    mapie = CrossConformalRegressor(
        tiny(), confidence_level=[0.99, 0.5], conformity_score=ClapsScore(), cv=2
    ).fit_conformalize(X, y)
    with pytest.raises(ValueError, match="Got 24 calibration scores"):
        mapie.predict_interval(X)
    _, bounds = mapie.predict_interval(X, allow_infinite_bounds=True)
    assert np.isinf(bounds[:, :, 0]).all()
    assert np.isfinite(bounds[:, :, 1]).all()


def test_jackknife_after_bootstrap():
    X, y = heteroscedastic(160)
    mapie = JackknifeAfterBootstrapRegressor(
        tiny(), conformity_score=ClapsScore(), resampling=25, random_state=0
    ).fit_conformalize(X[:80], y[:80])
    _, bounds = mapie.predict_interval(X[80:])
    assert regression_coverage_score(y[80:], bounds)[0] > 0.75
    theirs = JackknifeAfterBootstrapRegressor(
        tiny(), conformity_score=StdConformityScore(), resampling=25, random_state=0
    ).fit_conformalize(X[:80], y[:80])
    np.testing.assert_allclose(
        bounds[:, 1], theirs.predict_interval(X[80:])[1][:, 1], rtol=1e-9
    )


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
def test_rows_that_are_never_out_of_bag_name_the_resampling():
    X, y = heteroscedastic(60)
    mapie = JackknifeAfterBootstrapRegressor(
        tiny(max_steps=2), conformity_score=ClapsScore(), resampling=2, random_state=0
    )
    with pytest.raises(ValueError, match=r"rows without an out-of-sample.*resampling="):
        mapie.fit_conformalize(X, y)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("method", ["plus", "minmax", "base"])
def test_rows_that_no_fold_holds_out_name_the_splitter(method):
    X, y = heteroscedastic(60)
    folds = np.repeat([-1, 0, 1], 20)  # the first 20 rows are in every training part
    mapie = CrossConformalRegressor(
        tiny(max_steps=2),
        conformity_score=ClapsScore(),
        cv=PredefinedSplit(folds),
        method=method,
    )
    message = "Got 20 of 60 rows without .* CrossConformalRegressor use a splitter"
    with pytest.raises(ValueError, match=message):
        mapie.fit_conformalize(X, y)


def test_a_held_estimator_is_refused_where_mapie_fits_another(data):
    model = tiny().fit(*data[0])
    mapie = CrossConformalRegressor(tiny(), conformity_score=ClapsScore(model), cv=2)
    with pytest.raises(ValueError, match="not those of the estimator that MAPIE predi"):
        mapie.fit_conformalize(*data[1])


def test_one_score_for_two_models(data):
    """Fingerprints go with the scores, not with the object that computes them."""
    score, ways = ClapsScore(), []
    for rows in (slice(75), slice(75, 150)):
        model = Fingerprinted().fit(data[0][0][rows], data[0][1][rows])
        mapie = SplitConformalRegressor(model, conformity_score=score, prefit=True)
        ways.append(mapie.conformalize(*data[1]))
    for mapie in ways:
        assert mapie.predict_interval(data[2][0])[1].shape == (120, 2, 1)


def test_explain_what_mapie_hides(data):
    X = data[2][0]
    direct = tiny().fit(*data[0])
    mapie = split(tiny(), data, [0.8, 0.9])
    why = explain(mapie, X)
    mu, bounds = mapie.predict_interval(X)
    np.testing.assert_array_equal(why.prediction, mu)
    np.testing.assert_array_equal(why.lower, bounds[:, 0])
    np.testing.assert_array_equal(why.upper, bounds[:, 1])
    assert why.confidence_level == pytest.approx((0.8, 0.9))
    part = direct.predict_variance(X)
    np.testing.assert_array_equal(why.aleatoric, part.aleatoric)
    np.testing.assert_array_equal(why.epistemic, part.epistemic)
    np.testing.assert_allclose(why.aleatoric_width + why.epistemic_width, why.width)
    q = why.width[:, 0] / 2 / np.sqrt(part.total)
    np.testing.assert_allclose(
        why.aleatoric_width[:, 0] / 2, q * np.sqrt(part.aleatoric)
    )


def test_explain_a_pipeline_that_mapie_fits(data):
    X = data[2][0]
    why = explain(split(make_pipeline(StandardScaler(), tiny()), data), X)
    direct = make_pipeline(StandardScaler(), tiny()).fit(*data[0])
    part = direct[-1].predict_variance(direct[0].transform(X))
    np.testing.assert_array_equal(why.epistemic, part.epistemic)


def test_explain_cross_conformal_by_the_models_of_the_folds():
    X, y = heteroscedastic(60)
    mapie = CrossConformalRegressor(
        tiny(), conformity_score=ClapsScore(), cv=3, random_state=0
    ).fit_conformalize(X, y)
    why = explain(mapie, X)
    models = mapie._mapie_regressor.estimator_.estimators_
    expected = np.mean([m.predict_variance(X).epistemic for m in models], axis=0)
    np.testing.assert_allclose(why.epistemic, expected, rtol=1e-12)
    np.testing.assert_array_equal(why.upper, mapie.predict_interval(X)[1][:, 1])


@pytest.mark.parametrize("method", ["plus", "minmax", "base"])
def test_explain_asks_every_model_that_makes_bounds_once(method, monkeypatch):
    X, y = heteroscedastic(60)
    mapie = CrossConformalRegressor(
        tiny(), conformity_score=ClapsScore(), method=method, cv=3, random_state=0
    ).fit_conformalize(X, y)
    _, expected = mapie.predict_interval(X)
    asked = []

    def predict_law(model, rows, original=ClapsRegressor.predict_law):
        asked.append(id(model))
        return original(model, rows)

    def refuse(model, rows, **params):
        raise AssertionError("a second pass")

    monkeypatch.setattr(ClapsRegressor, "predict_law", predict_law)
    monkeypatch.setattr(ClapsRegressor, "predict_variance", refuse)
    monkeypatch.setattr(ClapsRegressor, "predict", refuse)
    why = explain(mapie, X)
    assert len(asked) == len(set(asked)) == (1 if method == "base" else 3)
    np.testing.assert_array_equal(why.lower, expected[:, 0])
    np.testing.assert_array_equal(why.upper, expected[:, 1])


def test_explain_infinite_bounds(data):
    few = [data[0], (data[1][0][:5], data[1][1][:5]), data[2]]
    why = explain(split(tiny(), few), data[2][0], allow_infinite_bounds=True)
    assert np.isinf(why.width).all()
    assert not np.isnan(why.epistemic_width).any()


def test_explain_errors(data):
    mapie = split(tiny(), data)
    with pytest.raises(ValueError, match=r"Got alpha=0.1, .*confidence_level=\[0.9\]"):
        explain(mapie, data[2][0], alpha=0.1)
    raw = SplitConformalRegressor(tiny(), conformity_score=ClapsScore(), prefit=False)
    with pytest.raises(ValueError, match="not calibrated"):
        explain(raw, data[2][0])


def test_calibrated_objects_can_be_copied(data):
    mapie = split(tiny(), data)
    again = copy.deepcopy(mapie)
    np.testing.assert_array_equal(
        again.predict_interval(data[2][0])[1], mapie.predict_interval(data[2][0])[1]
    )
