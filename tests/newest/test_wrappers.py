"""What people put around models: it works in MAPIE, or says what to do instead."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import heteroscedastic, tiny
from mapie.regression import CrossConformalRegressor, SplitConformalRegressor
from sklearn.compose import TransformedTargetRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mapie_claps import (
    ClapsModule,
    ClapsScaleEstimator,
    ClapsScore,
    StreamingConformalRegressor,
    explain,
)

X, Y = heteroscedastic(160)
TRAIN, CAL, TEST = slice(0, 80), slice(80, 140), slice(140, 160)


def search():
    return GridSearchCV(tiny(max_steps=10), {"beta": [0.0, 0.5]}, cv=2)


def transformed():
    return TransformedTargetRegressor(tiny(), func=np.sinh, inverse_func=np.arcsinh)


def split(model, prefit, score=None):
    mapie = SplitConformalRegressor(
        model,
        confidence_level=0.9,
        conformity_score=score or ClapsScore(),
        prefit=prefit,
    )
    if not prefit:
        mapie.fit(X[TRAIN], Y[TRAIN])
    return mapie.conformalize(X[CAL], Y[CAL])


@pytest.mark.parametrize("prefit", [False, True])
def test_a_pipeline_works(prefit):
    pipeline = make_pipeline(StandardScaler(), tiny())
    mapie = split(pipeline.fit(X[TRAIN], Y[TRAIN]) if prefit else pipeline, prefit)
    assert np.isfinite(mapie.predict_interval(X[TEST])[1]).all()
    assert (explain(mapie, X[TEST]).epistemic > 0).all()


def test_the_choice_of_a_search_works():
    model = search().fit(X[TRAIN], Y[TRAIN]).best_estimator_
    mapie = split(model, True, ClapsScore(model))
    assert np.isfinite(mapie.predict_interval(X[TEST])[1]).all()


def test_a_search_over_a_pipeline_works_by_its_choice():
    pipeline = make_pipeline(StandardScaler(), tiny(max_steps=10))
    found = GridSearchCV(pipeline, {"clapsregressor__beta": [0.0, 0.5]}, cv=2)
    mapie = split(found.fit(X[TRAIN], Y[TRAIN]).best_estimator_, True)
    assert np.isfinite(mapie.predict_interval(X[TEST])[1]).all()


REFUSED = {
    "search": (search, "GridSearchCV.*search.best_estimator_, with prefit=True"),
    "in a pipeline": (
        lambda: make_pipeline(StandardScaler(), search()),
        "GridSearchCV.*search.best_estimator_",
    ),
    "target": (transformed, "TransformedTargetRegressor.*target_map='log'"),
    "no scale": (LinearRegression, "LinearRegression.*use ClapsScaleEstimator"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_what_gives_no_standard_deviation_is_refused_with_the_remedy(make, message):
    model = make().fit(X[TRAIN], Y[TRAIN])
    with pytest.raises(TypeError, match=message):
        ClapsScore(model)
    with pytest.raises(TypeError, match=message):
        StreamingConformalRegressor(model).conformalize(X[CAL], Y[CAL])
    with pytest.raises(TypeError, match=message):
        ClapsScaleEstimator(model).predict(X[CAL])


@pytest.mark.parametrize("prefit", [False, True])
@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_it_is_refused_before_mapie_asks_for_a_scale(make, message, prefit):
    model = make().fit(X[TRAIN], Y[TRAIN]) if prefit else make()
    with pytest.raises(TypeError, match=message):
        split(model, prefit)


@pytest.mark.parametrize("make", [search, LinearRegression])
def test_it_is_refused_before_models_of_folds_are_asked(make):
    mapie = CrossConformalRegressor(make(), conformity_score=ClapsScore(), cv=2)
    with pytest.raises(TypeError, match=f"Got a {type(make()).__name__}.*return_std"):
        mapie.fit_conformalize(X[CAL], Y[CAL])


def test_a_random_search_is_refused_too():
    found = RandomizedSearchCV(tiny(max_steps=5), {"beta": [0.0, 0.5]}, n_iter=1, cv=2)
    with pytest.raises(TypeError, match="RandomizedSearchCV.*CalibratedRegressor"):
        split(found, False)


def test_where_it_is_read_by_others_the_score_has_one_output():
    assert ClapsScore().multi_output is False


def test_a_transformed_target_with_a_standard_deviation_says_what_to_do():
    model = transformed().fit(X[TRAIN], Y[TRAIN])
    with pytest.raises(
        AttributeError, match="TransformedTargetRegressor.*target_map='log'"
    ):
        model.predict(X[TEST], return_std=True)


def test_rows_of_the_fit_warn_in_mapie():
    model = tiny(max_steps=5).fit(X[CAL], Y[CAL])
    with pytest.warns(UserWarning, match="on which the estimator was fitted: 60 of 60"):
        split(model, True)


def test_a_transformed_target_predicts_points():
    model = transformed().fit(X[TRAIN], Y[TRAIN])
    assert np.isfinite(model.predict(X[TEST])).all()


def test_other_models_with_a_standard_deviation_pass():
    gp = GaussianProcessRegressor(alpha=0.1).fit(X[TRAIN], Y[TRAIN])
    mapie = split(gp, True, ClapsScore(gp))
    assert np.isfinite(mapie.predict_interval(X[TEST])[1]).all()


@pytest.mark.parametrize(
    "model",
    [tiny(), ClapsModule(torch.nn.Linear(3, 1))],
    ids=["regressor", "module"],
)
def test_the_probe_of_mapie_warns_of_nothing(model, own_random_state):
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model.fit(frame[TRAIN], Y[TRAIN])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mapie = SplitConformalRegressor(
            model, confidence_level=0.9, conformity_score=ClapsScore(), prefit=True
        ).conformalize(frame[CAL], Y[CAL])
        mapie.predict_interval(frame[TEST])
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.predict(X[TEST])
