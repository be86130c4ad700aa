"""CLAPS around other people's models, in MAPIE's classes."""

import numpy as np
import pytest
from conftest import heteroscedastic, tiny
from mapie.regression import CrossConformalRegressor, SplitConformalRegressor
from sklearn.linear_model import Ridge

from mapie_claps import CalibratedRegressor, ClapsResidualRegressor, ClapsScore

X, Y = heteroscedastic(400)
NEW = X[300:]


def around(**params):
    return ClapsResidualRegressor(Ridge(), tiny(), random_state=0, **params)


@pytest.mark.parametrize("prefit", [False, True])
def test_split_intervals_are_those_of_our_own_object(prefit):
    model = around()
    if prefit:
        model.fit(X[:150], Y[:150])
    mapie = SplitConformalRegressor(model, 0.9, ClapsScore(), prefit=prefit)
    if not prefit:
        mapie.fit(X[:150], Y[:150])
    mapie.conformalize(X[150:300], Y[150:300])
    points, bounds = mapie.predict_interval(NEW)
    np.testing.assert_array_equal(points, Ridge().fit(X[:150], Y[:150]).predict(NEW))
    ours = CalibratedRegressor(around().fit(X[:150], Y[:150]), sym=True)
    ours.conformalize(X[150:300], Y[150:300])
    np.testing.assert_allclose(bounds, ours.predict_interval(NEW)[1])
    same = CalibratedRegressor.from_mapie(mapie)
    np.testing.assert_array_equal(same.predict_interval(NEW)[1], bounds)


def test_folds():
    mapie = CrossConformalRegressor(around(), 0.9, ClapsScore(), cv=3, random_state=0)
    mapie.fit_conformalize(X[:150], Y[:150])
    bounds = mapie.predict_interval(NEW)[1]
    covered = (bounds[:, 0, 0] <= Y[300:]) & (Y[300:] <= bounds[:, 1, 0])
    assert 0.8 < covered.mean() < 1
