"""MAPIE 1.5 and later: models that MAPIE fits, cross-conformal methods, its tests."""

import copy
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from known_model import Plain, Shaped, explained, table
from mapie.conditional_conformal_prediction import ConditionalSplitConformalRegressor
from mapie.conformity_scores import ResidualNormalisedScore, StdConformityScore
from mapie.exchangeability_testing import OnlineMartingaleTest, PValuePermutationTest
from mapie.metrics.regression import regression_coverage_score
from mapie.regression import (
    CrossConformalRegressor,
    JackknifeAfterBootstrapRegressor,
    SplitConformalRegressor,
    TimeSeriesRegressor,
)
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.model_selection import KFold, PredefinedSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mapie_claps import (
    CalibratedRegressor,
    ClapsScaleEstimator,
    ClapsScore,
    PredictiveDistribution,
    conformal_rank,
)
from mapie_claps.conformal.distribution import ScoreBounds
from mapie_claps.conformal.support import Support

X, Y = table(400)
FIT, CAL, TEST = (X[:150], Y[:150]), (X[150:280], Y[150:280]), (X[280:], Y[280:])


def split(estimator, level=0.9, score=None, cal=CAL):
    mapie = SplitConformalRegressor(
        estimator,
        confidence_level=level,
        conformity_score=score or ClapsScore(),
        prefit=False,
    )
    return mapie.fit(*FIT).conformalize(*cal)


def cross(estimator=None, level=0.9, **params):
    return CrossConformalRegressor(
        estimator or Shaped(),
        confidence_level=level,
        conformity_score=params.pop("score", ClapsScore()),
        **({"cv": 3, "random_state": 0} | params),
    ).fit_conformalize(X[:60], Y[:60])


@pytest.mark.parametrize(
    "estimator",
    [
        Shaped(),
        GaussianProcessRegressor(RBF() + WhiteKernel(), optimizer=None),
        make_pipeline(StandardScaler(), Shaped()),
    ],
    ids=["distribution", "process", "pipeline"],
)
def test_a_model_that_mapie_fits(estimator):
    mapie = split(estimator, [0.5, 0.9])
    y_pred, bounds = mapie.predict_interval(TEST[0])
    model = mapie._mapie_regressor.estimator_.single_estimator_
    assert model is not estimator
    expected = CalibratedRegressor(model, [0.5, 0.9]).conformalize(*CAL)
    for found, want in zip(
        (y_pred, bounds), expected.predict_interval(TEST[0]), strict=True
    ):
        np.testing.assert_array_equal(found, want)
    assert regression_coverage_score(TEST[1], bounds)[1] > 0.8
    assert CalibratedRegressor.from_mapie(mapie).levels == [0.5, 0.9]
    prefit = SplitConformalRegressor(model, [0.5, 0.9], ClapsScore(), prefit=True)
    again = prefit.conformalize(*CAL).predict_interval(TEST[0])[1]
    np.testing.assert_array_equal(again, bounds)


def test_what_is_refused():
    with pytest.raises(TypeError, match="return_std"):  # in Python's words
        split(HistGradientBoostingRegressor(max_iter=2))
    mapie = split(Shaped())
    for call in (mapie.predict_interval, lambda X, **p: explained(mapie, X, **p)):
        with pytest.raises(ValueError, match="minimize_interval_width=True"):
            call(TEST[0], minimize_interval_width=True)
    with pytest.raises(ValueError, match=r"Got alpha=0.1, .*confidence_level=\[0.9\]"):
        explained(mapie, TEST[0], alpha=0.1)
    raw = SplitConformalRegressor(Shaped(), 0.9, ClapsScore(), prefit=False)
    for call in (CalibratedRegressor.from_mapie, lambda m: explained(m, X)):
        with pytest.raises(ValueError, match="not calibrated"):
            call(raw)
    held = ClapsScore(Shaped().fit(*FIT))
    with pytest.raises(ValueError, match="not those of the estimator that MAPIE predi"):
        cross(score=held)
    with pytest.raises(TypeError, match="with one model per fold, but expected"):
        CalibratedRegressor.from_mapie(cross())


def test_one_score_for_two_models_and_a_model_fitted_again():
    score, ways = ClapsScore(), []
    for rows in (slice(75), slice(75, 150)):
        model = Shaped().fit(X[rows], Y[rows])
        mapie = SplitConformalRegressor(model, 0.9, score, prefit=True)
        ways.append(mapie.conformalize(*CAL))
    for mapie in ways:
        assert mapie.predict_interval(TEST[0])[1].shape == (120, 2, 1)
    model.fit(*FIT)
    for call in (
        mapie.predict_interval,
        lambda X: explained(mapie, X),
        lambda X: CalibratedRegressor.from_mapie(mapie),
    ):
        with pytest.raises(ValueError, match="Got a Shaped that was fitted again"):
            call(TEST[0])


# Models of folds


def cross_oracle(mapie, X_test, alpha, method):
    """CV+ and CV-minmax from the distributions of the folds' models, row by row."""
    ensemble = mapie._mapie_regressor.estimator_
    k, rows = conformal_rank(60, alpha), []
    for i in range(60):
        model = ensemble.estimators_[int(np.flatnonzero(ensemble.k_[i] == 1)[0])]
        score = abs(model.predict_distribution(X[i : i + 1]).score(Y[i : i + 1])[0])
        rows.append((score, model.predict_distribution(X_test).quantile))
    if method == "plus":
        low = np.sort([at(-r)[:, 0] for r, at in rows], axis=0)[60 - k]
        up = np.sort([at(r)[:, 0] for r, at in rows], axis=0)[k - 1]
    else:
        q = sorted(r for r, _ in rows)[k - 1]
        low = np.min([at(-q)[:, 0] for _, at in rows], axis=0)
        up = np.max([at(q)[:, 0] for _, at in rows], axis=0)
    return np.stack([low, up], axis=1)


@pytest.mark.parametrize("method", ["plus", "minmax"])
@pytest.mark.parametrize("aggregate", ["mean", None])
def test_cross_conformal_against_its_definition(method, aggregate, monkeypatch):
    mapie = cross(level=[0.9, 0.7], method=method)
    for module in ("score", "distribution"):
        monkeypatch.setattr(f"mapie_claps.conformal.{module}.BLOCK_ELEMENTS", 8 * 60)
    points, got = mapie.predict_interval(TEST[0], aggregate_point_predictions=aggregate)
    for j, alpha in enumerate((0.1, 0.3)):
        expected = cross_oracle(mapie, TEST[0], alpha, method)
        np.testing.assert_allclose(got[:, :, j], expected, rtol=1e-9, atol=1e-12)
    single = mapie._mapie_regressor.estimator_.single_estimator_.predict(TEST[0])
    assert np.array_equal(points, single) == (aggregate is None)
    found = explained(mapie, TEST[0], aggregate_point_predictions=aggregate)
    np.testing.assert_array_equal(found[1], got)
    whole = cross(method=method, score=ClapsScore(support="integer"))
    _, bounds = whole.predict_interval(TEST[0])
    np.testing.assert_array_equal(bounds, np.round(bounds))


def test_cross_conformal_base_uses_mean_and_std_of_the_model_of_all_rows():
    """Scores of folds have no shape, so the bounds have none either."""
    mapie = cross(method="base")
    mu, bounds = mapie.predict_interval(TEST[0])
    np.testing.assert_allclose(bounds.mean(axis=1)[:, 0], mu, rtol=1e-8, atol=1e-10)
    found = explained(mapie, TEST[0])
    np.testing.assert_array_equal(found[1], bounds)
    assert found[2] is not None
    two = cross(method="plus", score=ClapsScore(sym=False)).predict_interval(TEST[0])
    assert (two[1][:, 0] < two[1][:, 1]).all()


@pytest.mark.parametrize("method", ["plus", "minmax"])
def test_cross_conformal_with_infinite_bounds(method):
    mapie = cross(level=[0.99, 0.5], method=method)
    with pytest.raises(ValueError, match="Got 60 calibration scores"):
        mapie.predict_interval(TEST[0])
    _, bounds = mapie.predict_interval(TEST[0], allow_infinite_bounds=True)
    assert np.isinf(bounds[:, :, 0]).all()
    assert np.isfinite(bounds[:, :, 1]).all()
    found = explained(mapie, TEST[0], allow_infinite_bounds=True)
    np.testing.assert_array_equal(found[1], bounds)


def test_a_row_lies_within_the_bounds_of_its_own_score():
    rng = np.random.default_rng(0)
    mu, y = rng.normal(size=(2, 500)) * 10.0 ** rng.uniform(-8, 8, (2, 500))
    for m, s, t in zip(mu, 10.0 ** rng.uniform(-6, 6, 500), y, strict=True):
        score = np.abs(ClapsScore().get_signed_conformity_scores([t], [m], y_std=[s]))
        rows = [PredictiveDistribution(np.array([m]), np.array([s]))]
        for ends in (
            ScoreBounds(-score, score, np.zeros(1, int), [1]),
            ScoreBounds(-score[None], score[None]),
        ):
            ((low, high),) = ends.interval(rows, Support())[..., 0]
            assert low <= t <= high


def test_jackknife_after_bootstrap():
    params = {"resampling": 25, "random_state": 0}
    ours, theirs = (
        JackknifeAfterBootstrapRegressor(Shaped(), conformity_score=score, **params)
        .fit_conformalize(X[:80], Y[:80])
        .predict_interval(TEST[0])[1]
        for score in (ClapsScore(), StdConformityScore())
    )
    np.testing.assert_allclose(ours[:, 1], theirs[:, 1], rtol=1e-9)


@pytest.mark.parametrize("seed", [None, np.random.RandomState(0)])
def test_folds_that_mapie_draws_anew_are_refused(seed):
    """Models would score rows that they were fitted on."""
    host = JackknifeAfterBootstrapRegressor(
        Shaped(), conformity_score=ClapsScore(), resampling=25, random_state=seed
    ).fit_conformalize(X[:80], Y[:80])
    for method in ("plus", "minmax", "base"):
        drawn = cross(cv=KFold(3, shuffle=True, random_state=seed), method=method)
        for mapie in (host, drawn):
            with pytest.raises(ValueError, match="folds to fit, and others to score"):
                mapie.predict_interval(TEST[0])
    cross(cv=KFold(3, shuffle=True, random_state=1)).predict_interval(TEST[0])
    cross(cv=KFold(3)).predict_interval(TEST[0])


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
def test_rows_without_an_out_of_sample_prediction():
    mapie = JackknifeAfterBootstrapRegressor(
        Shaped(), conformity_score=ClapsScore(), resampling=2, random_state=0
    )
    with pytest.raises(ValueError, match=r"rows without an out-of-sample.*resampling="):
        mapie.fit_conformalize(X[:60], Y[:60])
    folds = np.repeat([-1, 0, 1], 20)  # the first 20 rows are in every training part
    for method in ("plus", "minmax", "base"):
        with pytest.raises(ValueError, match="Got 20 of 60 rows without .*a splitter"):
            cross(cv=PredefinedSplit(folds), method=method)


def test_memory_of_cv_plus_does_not_grow_with_test_rows():
    """5,000 × 100,000 numbers would take 4 GB."""
    fold = np.arange(100_000) % 5
    folds = SimpleNamespace(
        estimators_=[Plain(shift=s) for s in range(5)],
        single_estimator_=Plain(),
        k_=np.where(fold[:, None] == np.arange(5), 1.0, np.nan),
        _aggregate_with_mask=lambda by_fold, _: by_fold[:, fold],
        agg_function="mean",
        use_split_method_=False,
    )
    scores, peaks = np.abs(np.random.default_rng(0).normal(size=100_000)), []
    for n_test in (50, 150):
        tracemalloc.start()
        ClapsScore().get_bounds(
            X[:n_test], np.array([0.1]), folds, scores, method="plus"
        )
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]
    assert peaks[1] < 500e6


# Other classes of MAPIE


def test_exchangeability_tests_see_drift_and_change_nothing():
    model = Plain().fit(*FIT)
    mapie = SplitConformalRegressor(model, 0.9, ClapsScore(model), prefit=True)
    mapie.conformalize(*CAL)
    expected = mapie.predict_interval(TEST[0])[1]
    new, y = table(120, seed=5)
    options = {"random_state": 0, "num_permutations": 99, "warn": False}
    for late, exchangeable in ((0.0, True), (5.0, False)):
        test = PValuePermutationTest(mapie_estimator=mapie, **options)
        found = test.run(new, y + late * (np.arange(120) >= 60)).is_exchangeable
        assert (found is not False) == exchangeable
    monitor = OnlineMartingaleTest(mapie, random_state=0, warn=False)
    monitor.update(*CAL)
    assert monitor.is_exchangeable is not False
    monitor.update(new, y + 5)
    assert monitor.is_exchangeable is False
    np.testing.assert_array_equal(mapie.predict_interval(TEST[0])[1], expected)
    again = copy.deepcopy(mapie).predict_interval(TEST[0])[1]
    np.testing.assert_array_equal(again, expected)


def test_conditional_intervals_hold_their_groups_and_their_scale():
    """Two groups, each with a quantile of its own; widths follow √v within a group."""
    model = Plain().fit(*FIT)

    def groups(X):
        return np.column_stack([X[:, 0] > 0, X[:, 0] <= 0]).astype(float)

    score = ClapsScore(model, support=None)
    conditional = ConditionalSplitConformalRegressor(
        groups, model, 0.8, score, prefit=True
    )
    conditional.conformalize(X[150:210], Y[150:210])
    mu, found = conditional.predict_interval(X[280:292])
    std = model.predict(X[280:292], return_std=True)[1]
    np.testing.assert_allclose(found.mean(axis=1)[:, 0], mu, atol=1e-6)
    half = (found[:, 1, 0] - found[:, 0, 0]) / 2 / std
    signed = CalibratedRegressor(model, support=None).score_rows(X[150:210], Y[150:210])
    for right in (True, False):
        ratio = half[(X[280:292, 0] > 0) == right]
        np.testing.assert_allclose(ratio, ratio.mean(), rtol=1e-4)
        scores = np.sort(signed[(X[150:210, 0] > 0) == right])
        rank = int(np.ceil(0.8 * (len(scores) + 1)))  # one row to either side
        assert scores[rank - 2] * 0.999 <= ratio.mean() <= scores[rank] * 1.001


def test_time_series_take_the_scale():
    model = Plain().fit(*FIT)
    score = ResidualNormalisedScore(
        residual_estimator=ClapsScaleEstimator(model), prefit=True, sym=True
    )
    series = TimeSeriesRegressor(
        model, method="aci", cv="prefit", conformity_score=score
    )
    _, bounds = series.fit(*CAL).predict(TEST[0], confidence_level=0.9)
    width = (bounds[:, 1] - bounds[:, 0])[:, 0]
    std = model.predict(TEST[0], return_std=True)[1]
    np.testing.assert_allclose(width / std, width[0] / std[0], rtol=1e-9)
