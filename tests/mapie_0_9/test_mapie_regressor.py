"""MAPIE 0.9: MapieRegressor around a fitted estimator."""

import numpy as np
import pytest
from known_model import Shaped, table
from mapie.metrics import regression_coverage_score
from mapie.regression import MapieRegressor

from mapie_claps import CalibratedRegressor, ClapsScore, explain

X, Y = table(500)
CAL, TEST = (X[:200], Y[:200]), (X[200:], Y[200:])
MODEL = Shaped().fit(X, Y)


def calibrated(cal=CAL):
    mapie = MapieRegressor(MODEL, conformity_score=ClapsScore(MODEL), cv="prefit")
    return mapie.fit(*cal)


def test_the_five_lines():
    y_pred, bounds = calibrated().predict(TEST[0], alpha=0.1)
    assert bounds.shape == (300, 2, 1)
    np.testing.assert_array_equal(y_pred, MODEL.predict(TEST[0]))
    found = regression_coverage_score(TEST[1], bounds[:, 0, 0], bounds[:, 1, 0])
    assert found > 0.8


def test_infinite_bounds():
    mapie = calibrated((X[:5], Y[:5]))
    _, bounds = mapie.predict(TEST[0], alpha=0.1, allow_infinite_bounds=True)
    assert np.isinf(bounds).all()
    with pytest.raises(ValueError, match="Number of samples of the score is too low"):
        mapie.predict(TEST[0], alpha=0.1)


@pytest.mark.parametrize("cv", ["prefit", "split"])
def test_an_empty_score_names_the_fix(cv):
    mapie = MapieRegressor(MODEL, conformity_score=ClapsScore(), cv=cv)
    with pytest.raises(ValueError, match=r"ClapsScore\(fitted\).*cv='prefit'"):
        mapie.fit(*CAL)


@pytest.mark.parametrize("cv", [4, "split"])
def test_other_modes_predict_with_another_model(cv):
    mapie = MapieRegressor(
        MODEL, conformity_score=ClapsScore(MODEL), cv=cv, method="base"
    )
    with pytest.raises(ValueError, match="not those of the estimator"):
        mapie.fit(*CAL)


def test_optimize_beta_is_refused():
    with pytest.raises(ValueError, match="minimize_interval_width=True"):
        calibrated().predict(TEST[0], alpha=0.1, optimize_beta=True)


def test_levels_come_with_the_prediction():
    mapie = calibrated()
    why = explain(mapie, TEST[0], alpha=[0.1, 0.4])
    _, bounds = mapie.predict(TEST[0], alpha=[0.1, 0.4])
    np.testing.assert_array_equal(why.lower, bounds[:, 0])
    np.testing.assert_array_equal(why.upper, bounds[:, 1])
    assert why.confidence_level == (0.9, 0.6)
    with pytest.raises(ValueError, match="Pass for example alpha=0.1"):
        explain(mapie, TEST[0])
    with pytest.raises(ValueError, match="from_mapie: confidence_level=0.9"):
        CalibratedRegressor.from_mapie(mapie)
