"""Explanations where the models of the folds make the bounds (MAPIE 1.5 or later)."""

import sys

import numpy as np
import pytest
from conftest import tiny
from mapie.regression import CrossConformalRegressor

from mapie_claps import CalibratedRegressor, ClapsScore, explain
from mapie_claps.diagnostics import (
    diagnose,
    nearest_rows,
    predict_frame,
    rank_rows,
    summarise,
)


@pytest.fixture(scope="module")
def folds(data):
    mapie = CrossConformalRegressor(
        tiny(), confidence_level=0.8, conformity_score=ClapsScore(), cv=3
    )
    return mapie.fit_conformalize(*data[0])


def test_parts_are_means_over_the_folds(folds, data):
    X = data[2][0]
    why = explain(folds, X)
    models = folds._mapie_regressor.estimator_.estimators_
    parts = [model.predict_variance(X) for model in models]
    for part in ("aleatoric", "epistemic"):
        expected = np.mean([getattr(each, part) for each in parts], axis=0)
        np.testing.assert_allclose(getattr(why, part), expected)
    _, bounds = folds.predict_interval(X)
    np.testing.assert_array_equal(np.stack([why.lower, why.upper], axis=1), bounds)
    share = np.sqrt(1 - why.epistemic_fraction)
    np.testing.assert_allclose(why.aleatoric_width[:, 0], why.width[:, 0] * share)


def test_tables_of_folds(folds, data):
    X, cal = data[2][0][:5], data[1][0]
    table = diagnose(folds, X, X_calibration=cal)
    reference = explain(folds, cal).epistemic
    expected = [np.mean(reference <= e) for e in table["epistemic"]]
    np.testing.assert_allclose(table["epistemic_quantile"], expected)
    whole = folds._mapie_regressor.estimator_.single_estimator_
    found, given = (nearest_rows(m, X, data[0][0]) for m in (folds, whole))
    np.testing.assert_array_equal(found["neighbour"], given["neighbour"])


def test_tables_without_pandas(fitted, data, monkeypatch):
    """Before 1.6, scikit-learn itself asks for pandas once it has been imported."""
    model = CalibratedRegressor(fitted).conformalize(*data[1])
    X, y = data[2]
    table = diagnose(model, X)
    monkeypatch.setitem(sys.modules, "pandas", None)
    columns = diagnose(model, X)
    assert isinstance(columns, dict)
    np.testing.assert_array_equal(columns["width"], table["width"])
    assert len(rank_rows(model, X, n_rows=3)["row"]) == 3
    assert summarise(model, X, y)["group"].tolist() == ["all"]
    assert isinstance(predict_frame(model, X), dict)
