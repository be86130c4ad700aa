"""The life cycle that MAPIE asks of its regressors, with our estimator and score."""

import numpy as np
import pandas as pd
import pytest
from conftest import heteroscedastic, tiny
from mapie.regression import (
    CrossConformalRegressor,
    JackknifeAfterBootstrapRegressor,
    SplitConformalRegressor,
)
from sklearn.model_selection import GroupKFold, KFold, LeaveOneOut, ShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mapie_claps import ClapsScore
from mapie_claps.exceptions import TrainingDivergedError

# What is tested is the order of calls: most tests calibrate on the rows of the fit.
pytestmark = pytest.mark.filterwarnings("ignore:Got calibration rows on which")

X, Y = heteroscedastic(48)
X_TEST = heteroscedastic(12, seed=1)[0]


def quick(**params):
    return tiny(max_steps=8, hidden_layer_sizes=(4,), representation_size=3, **params)


def split(level=0.9, prefit=False, estimator=None):
    return SplitConformalRegressor(
        estimator or quick(),
        confidence_level=level,
        conformity_score=ClapsScore(),
        prefit=prefit,
    )


def cross(estimator=None, level=0.9, **options):
    options = {"cv": 3, "random_state": 0} | options
    return CrossConformalRegressor(
        estimator or quick(),
        confidence_level=level,
        conformity_score=ClapsScore(),
        **options,
    )


def bootstrap(**options):
    return JackknifeAfterBootstrapRegressor(
        quick(),
        conformity_score=ClapsScore(),
        **({"resampling": 15, "random_state": 0} | options),
    )


def test_order_of_calls_when_mapie_fits():
    mapie = split()
    with pytest.raises(ValueError, match="call fit before calling conformalize"):
        mapie.conformalize(X, Y)
    mapie.fit(X, Y)
    with pytest.raises(ValueError, match="fit method already called"):
        mapie.fit(X, Y)
    for method in (mapie.predict, mapie.predict_interval):
        with pytest.raises(ValueError, match="call conformalize before calling pred"):
            method(X_TEST)
    mapie.conformalize(X, Y)
    with pytest.raises(ValueError, match="conformalize method already called"):
        mapie.conformalize(X, Y)
    assert mapie.predict(X_TEST).shape == (12,)


def test_order_of_calls_with_a_fitted_estimator():
    model = quick().fit(X, Y)
    mapie = split(prefit=True, estimator=model)
    with pytest.raises(ValueError, match="fit method must be skipped"):
        mapie.fit(X, Y)
    with pytest.raises(ValueError, match="call conformalize before calling predict"):
        mapie.predict(X_TEST)
    mapie.conformalize(X, Y)
    np.testing.assert_array_equal(mapie.predict(X_TEST), model.predict(X_TEST))


@pytest.mark.parametrize("make", [cross, bootstrap])
def test_order_of_calls_of_the_cross_methods(make):
    mapie = make()
    for method in (mapie.predict, mapie.predict_interval):
        with pytest.raises(ValueError, match="call fit_conformalize before calling"):
            method(X_TEST)
    first = mapie.fit_conformalize(X, Y).predict_interval(X_TEST)[1]
    with pytest.warns(UserWarning, match="already called"):
        mapie.fit_conformalize(X, 10 * Y)
    again = mapie.predict_interval(X_TEST)[1]
    expected = make().fit_conformalize(X, 10 * Y).predict_interval(X_TEST)[1]
    np.testing.assert_allclose(again, expected, rtol=1e-9)
    assert (again[:, 1] - again[:, 0]).mean() > 3 * (first[:, 1] - first[:, 0]).mean()


def test_the_users_estimator_is_left_unfitted():
    model, score = quick(), ClapsScore()
    before = dict(vars(score))
    SplitConformalRegressor(model, conformity_score=score, prefit=False).fit(
        X, Y
    ).conformalize(X, Y).predict_interval(X_TEST)
    assert vars(model) == model.get_params()
    assert score.estimator is None
    assert vars(score).keys() == before.keys()


def test_one_score_serves_two_objects():
    score = ClapsScore()
    made = [
        SplitConformalRegressor(
            quick(random_state=s), conformity_score=score, prefit=False
        )
        for s in (0, 1)
    ]
    for mapie in made:
        mapie.fit(X, Y)
    for mapie in made:
        mapie.conformalize(X, Y)
    got = [mapie.predict_interval(X_TEST)[1] for mapie in made]
    for bounds, seed in zip(got, (0, 1), strict=True):
        alone = split(estimator=quick(random_state=seed)).fit(X, Y).conformalize(X, Y)
        np.testing.assert_array_equal(bounds, alone.predict_interval(X_TEST)[1])


@pytest.mark.parametrize("make", [split, cross, bootstrap])
def test_repeated_calls_and_rebuilt_objects_agree(make):
    def calibrated():
        mapie = make()
        if isinstance(mapie, SplitConformalRegressor):
            return mapie.fit(X, Y).conformalize(X, Y)
        return mapie.fit_conformalize(X, Y)

    one, other = calibrated(), calibrated()
    np.testing.assert_array_equal(
        one.predict_interval(X_TEST)[1], one.predict_interval(X_TEST)[1]
    )
    np.testing.assert_array_equal(
        one.predict_interval(X_TEST)[1], other.predict_interval(X_TEST)[1]
    )


@pytest.mark.parametrize("make", [split, cross])
def test_levels_alone_together_and_in_any_order(make):
    def bounds(level):
        mapie = make(level=level)
        if isinstance(mapie, SplitConformalRegressor):
            mapie.fit(X, Y).conformalize(X, Y)
        else:
            mapie.fit_conformalize(X, Y)
        return mapie.predict_interval(X_TEST)[1]

    together = bounds([0.9, 0.5, 0.9])
    assert together.shape == (12, 2, 3)
    np.testing.assert_array_equal(together[:, :, 0], together[:, :, 2])
    np.testing.assert_array_equal(together[:, :, :1], bounds(0.9))
    np.testing.assert_array_equal(together[:, :, 1:2], bounds([0.5]))
    assert (together[:, 0, 0] <= together[:, 0, 1]).all()
    assert (together[:, 1, 0] >= together[:, 1, 1]).all()


# MAPIE probes a fitted estimator with a row of zeros that has no names.
@pytest.mark.filterwarnings("ignore:X does not have valid feature names:UserWarning")
@pytest.mark.parametrize("make", [split, cross])
def test_data_frames(make):
    frame, test = (pd.DataFrame(x, columns=["a", "b", "c"]) for x in (X, X_TEST))

    def bounds(x, y, x_test):
        mapie = make()
        if isinstance(mapie, SplitConformalRegressor):
            mapie.fit(x, y).conformalize(x, y)
        else:
            mapie.fit_conformalize(x, y)
        return mapie.predict_interval(x_test)[1]

    expected = bounds(X, Y, X_TEST)
    np.testing.assert_array_equal(bounds(frame, pd.Series(Y), test), expected)
    mapie = split().fit(frame, Y).conformalize(frame, Y)
    with pytest.raises(ValueError, match="feature names"):
        mapie.predict_interval(test[["c", "b", "a"]])


@pytest.mark.parametrize("method", ["base", "plus", "minmax"])
@pytest.mark.parametrize(
    "cv", [2, KFold(3, shuffle=True, random_state=0)], ids=["number", "KFold"]
)
def test_cross_methods_and_splitters(method, cv):
    mapie = cross(method=method, cv=cv).fit_conformalize(X, Y)
    points, bounds = mapie.predict_interval(X_TEST)
    assert points.shape == (12,)
    assert (bounds[:, 0] <= bounds[:, 1]).all()


def test_minmax_holds_plus():
    plus = cross(method="plus").fit_conformalize(X, Y).predict_interval(X_TEST)[1]
    minmax = cross(method="minmax").fit_conformalize(X, Y).predict_interval(X_TEST)[1]
    assert (minmax[:, 0] <= plus[:, 0] + 1e-12).all()
    assert (minmax[:, 1] >= plus[:, 1] - 1e-12).all()


def test_groups_stay_together():
    groups = np.arange(48) // 8
    mapie = cross(cv=GroupKFold(3))
    mapie.fit_conformalize(X, Y, groups=groups)
    folds = np.nan_to_num(mapie._mapie_regressor.estimator_.k_)
    for group in range(6):
        rows = folds[groups == group]
        assert (rows == rows[0]).all()


def test_leave_one_out():
    mapie = cross(cv=LeaveOneOut(), estimator=quick(prior_precision=1.0))
    mapie.fit_conformalize(X[:12], Y[:12])
    assert np.isfinite(mapie.predict_interval(X_TEST)[1]).all()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
def test_a_splitter_that_never_holds_out_some_rows():
    mapie = cross(cv=ShuffleSplit(2, test_size=0.2, random_state=0))
    with pytest.raises(ValueError, match="rows without an out-of-sample"):
        mapie.fit_conformalize(X, Y)


def test_sample_weight_goes_through_to_fit():
    weight = np.r_[np.ones(24), np.zeros(24)]
    mapie = split().fit(X, Y, fit_params={"sample_weight": weight}).conformalize(X, Y)
    expected = quick().fit(X[:24], Y[:24]).predict(X_TEST)
    np.testing.assert_allclose(mapie.predict(X_TEST), expected, rtol=1e-6, atol=1e-8)
    constant = split().fit(X, Y, fit_params={"sample_weight": np.full(48, 3.0)})
    np.testing.assert_allclose(
        constant.conformalize(X, Y).predict_interval(X_TEST)[1],
        split().fit(X, Y).conformalize(X, Y).predict_interval(X_TEST)[1],
        rtol=1e-6,
    )


def test_parameters_reach_the_estimator_inside_a_pipeline():
    pipe = make_pipeline(StandardScaler(), quick())
    pipe.set_params(clapsregressor__scale="constant")
    mapie = split(estimator=pipe).fit(X, Y).conformalize(X, Y)
    bounds = mapie.predict_interval(X_TEST)[1]
    width = bounds[:, 1] - bounds[:, 0]
    np.testing.assert_allclose(width, width[0, 0] * np.ones_like(width), rtol=1e-10)


def test_a_fit_that_fails_leaves_mapie_unfitted():
    mapie = split(estimator=quick(learning_rate=1e25, schedule="constant"))
    with pytest.raises(TrainingDivergedError, match="Lower learning_rate"):
        mapie.fit(X, Y)
    with pytest.raises(ValueError, match="call fit before calling conformalize"):
        mapie.conformalize(X, Y)
    mapie = split().fit(X, Y)
    with pytest.raises(ValueError, match="Got inf in column 0, row 0"):
        mapie.conformalize(np.full_like(X, np.inf), Y)
    with pytest.raises(ValueError, match="call conformalize before calling predict"):
        mapie.predict_interval(X_TEST)
    mapie.conformalize(X, Y)
    assert np.isfinite(mapie.predict_interval(X_TEST)[1]).all()


def test_points_lie_inside_split_intervals():
    mapie = split([0.3, 0.9]).fit(X, Y).conformalize(X, Y)
    points, bounds = mapie.predict_interval(X_TEST)
    assert (bounds[:, 0] <= points[:, None]).all()
    assert (points[:, None] <= bounds[:, 1]).all()


@pytest.mark.parametrize("method", ["plus", "minmax"])
def test_cross_bounds_that_are_infinite_at_every_level(method):
    mapie = cross(level=0.999, method=method).fit_conformalize(X, Y)
    _, bounds = mapie.predict_interval(X_TEST, allow_infinite_bounds=True)
    assert (bounds[:, 0] == -np.inf).all()
    assert (bounds[:, 1] == np.inf).all()
