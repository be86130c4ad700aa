"""MAPIE 0.9: MapieRegressor around a fitted estimator."""

import numpy as np
import pytest
from conftest import tiny
from mapie.metrics import regression_coverage_score
from mapie.regression import MapieRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mapie_claps import ClapsScore, explain


def calibrated(model, data):
    mapie = MapieRegressor(model, conformity_score=ClapsScore(model), cv="prefit")
    return mapie.fit(*data[1])


def test_the_five_lines(fitted, data):
    X_test, y_test = data[2]
    y_pred, bounds = calibrated(fitted, data).predict(X_test, alpha=0.1)
    assert bounds.shape == (120, 2, 1)
    np.testing.assert_array_equal(y_pred, fitted.predict(X_test))
    assert regression_coverage_score(y_test, bounds[:, 0, 0], bounds[:, 1, 0]) > 0.8


def test_infinite_bounds(fitted, data):
    few = [data[0], (data[1][0][:5], data[1][1][:5]), data[2]]
    mapie = calibrated(fitted, few)
    _, bounds = mapie.predict(data[2][0], alpha=0.1, allow_infinite_bounds=True)
    assert np.isinf(bounds).all()
    with pytest.raises(ValueError, match="Number of samples of the score is too low"):
        mapie.predict(data[2][0], alpha=0.1)


def test_an_empty_score_names_the_fix(fitted, data):
    mapie = MapieRegressor(fitted, conformity_score=ClapsScore(), cv="prefit")
    with pytest.raises(ValueError, match=r"ClapsScore\(fitted\).*cv='prefit'"):
        mapie.fit(*data[1])


def test_an_empty_score_names_the_fix_with_split(fitted, data):
    mapie = MapieRegressor(fitted, conformity_score=ClapsScore(), cv="split")
    with pytest.raises(ValueError, match=r"ClapsScore\(fitted\).*cv='prefit'"):
        mapie.fit(*data[1])


@pytest.mark.parametrize("cv", [4, "split"])
def test_other_modes_predict_with_another_model(fitted, data, cv):
    mapie = MapieRegressor(
        fitted, conformity_score=ClapsScore(fitted), cv=cv, method="base"
    )
    with pytest.raises(ValueError, match="not those of the estimator"):
        mapie.fit(*data[1])


def test_optimize_beta_is_refused(fitted, data):
    with pytest.raises(ValueError, match="minimize_interval_width=True"):
        calibrated(fitted, data).predict(data[2][0], alpha=0.1, optimize_beta=True)


@pytest.mark.parametrize("as_pipeline", [False, True])
def test_explain(fitted, data, as_pipeline):
    X = data[2][0]
    model = (
        make_pipeline(StandardScaler(), tiny()).fit(*data[0]) if as_pipeline else fitted
    )
    mapie = calibrated(model, data)
    why = explain(mapie, X, alpha=[0.1, 0.4])
    _, bounds = mapie.predict(X, alpha=[0.1, 0.4])
    np.testing.assert_array_equal(why.lower, bounds[:, 0])
    np.testing.assert_array_equal(why.upper, bounds[:, 1])
    assert why.confidence_level == (0.9, 0.6)
    std = model.predict(X, return_std=True)[1]
    np.testing.assert_allclose(why.variance.total, std**2, rtol=1e-12)
    with pytest.raises(ValueError, match=r"explain\(mapie, X, alpha=0.1\)"):
        explain(mapie, X)
