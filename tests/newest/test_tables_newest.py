"""Tables around MAPIE: taken over, saved, refused with the remedy; the benchmark."""

import numpy as np
import pandas as pd
import pytest
from conftest import heteroscedastic, tiny
from mapie.regression import CrossConformalRegressor, SplitConformalRegressor
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mapie_claps import CalibratedRegressor, ClapsScore, load, save
from mapie_claps.benchmarks.__main__ import main
from mapie_claps.benchmarks._generated_tables import rentals
from mapie_claps.benchmarks._table_methods import missing_columns, native_split
from mapie_claps.studies.data import Split

X, Y = heteroscedastic(160)
TRAIN, CAL, TEST = slice(0, 80), slice(80, 140), slice(140, 160)


def split(score=None, **options):
    options = {"confidence_level": [0.8, 0.9], "prefit": False} | options
    mapie = SplitConformalRegressor(tiny(), conformity_score=score, **options)
    return mapie.fit(X[TRAIN], Y[TRAIN]).conformalize(X[CAL], Y[CAL])


@pytest.mark.parametrize("sym", [True, False])
def test_a_mapie_object_is_taken_over_and_saved(sym, tmp_path):
    mapie = split(ClapsScore(sym=sym))
    model = CalibratedRegressor.from_mapie(mapie)
    save(model, tmp_path / "model.claps")
    expected = mapie.predict_interval(X[TEST])[1]
    for found in (model, load(tmp_path / "model.claps")):
        np.testing.assert_array_equal(found.predict_interval(X[TEST])[1], expected)
    with pytest.raises(TypeError, match="CalibratedRegressor.from_mapie"):
        save(mapie, tmp_path / "mapie.claps")


def test_other_objects_are_not_taken_over():
    with pytest.raises(TypeError, match="whose score is another one"):
        CalibratedRegressor.from_mapie(split("absolute"))
    for method in ("plus", "base"):
        folds = CrossConformalRegressor(
            tiny(),
            confidence_level=0.8,
            conformity_score=ClapsScore(),
            cv=2,
            method=method,
        )
        folds.fit_conformalize(X[TRAIN], Y[TRAIN])
        with pytest.raises(TypeError, match="one model per fold"):
            CalibratedRegressor.from_mapie(folds)
    with pytest.raises(TypeError, match="Got a ClapsRegressor, but expected"):
        CalibratedRegressor.from_mapie(tiny())


def test_pipelines_and_searches(tmp_path):
    pipeline = make_pipeline(StandardScaler(), tiny()).fit(X[TRAIN], Y[TRAIN])
    with pytest.raises(TypeError, match="without a pipeline.*pipeline\\[-1\\]"):
        save(pipeline, tmp_path / "pipeline.claps")
    search = GridSearchCV(tiny(max_steps=5), {"beta": [0.0, 0.5]}, cv=2)
    model = CalibratedRegressor(search, random_state=0).fit(X, Y)
    save(model, tmp_path / "chosen.claps")
    assert load(tmp_path / "chosen.claps").estimator.beta in (0.0, 0.5)


def test_a_calibrated_regressor_is_an_estimator():
    model = CalibratedRegressor(tiny(), [0.5, 0.9], random_state=0).fit(X, Y)
    assert repr(model).endswith("[0.5, 0.9]) calibrated on 40 rows")
    again = clone(model)
    assert again.get_params()["confidence_level"] == [0.5, 0.9]
    assert np.isfinite(again.fit(X, Y).score(X, Y))
    assert repr(CalibratedRegressor()) == "CalibratedRegressor(confidence_level=0.9)"
    with pytest.raises(ValueError, match="values of y for .* rows of X"):
        model.fit(X, Y[:-1])
    with pytest.raises(ValueError, match="Got nan in y, row 3,"):
        model.fit(X, np.where(np.arange(len(Y)) == 3, np.nan, Y))
    holes = X.copy()
    holes[7, 1] = np.inf
    with pytest.raises(ValueError, match="Got inf in column 1, row 7,"):
        model.fit(holes, Y)


def test_native_columns_and_missing_patterns():
    data = rentals(120)
    rows = [data.X, data.y, data.X, data.y, data.X.assign(zip="new"), data.y]
    found = native_split(Split(*rows)).X_test
    assert found["zip"].isna().all()
    assert found["area"].isna().sum() == data.X["area"].isna().sum()
    assert "listing" not in found
    assert "listed_weekday" in found
    rows = pd.DataFrame({"a": [1.0, np.nan], "b": ["x", None]})
    assert missing_columns(rows) == ["none", "a, b"]


def test_the_benchmark_of_a_large_table(tmp_path, capsys):
    arguments = ["tables", "--smoke", "--wide", "300", "--out", str(tmp_path)]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    for part in ("300 rows of 30 columns", "mixed types", "as numbers"):
        assert part in text
    assert text.count("| predict_interval |") == 2
    assert main(arguments) == 0  # nothing is measured again
    assert capsys.readouterr().out == text
    with pytest.raises(SystemExit):
        main(["tables", "--wide", "3"])
    assert "Got --wide 3, but expected at least 50" in capsys.readouterr().err


def test_the_benchmark_of_tables(tmp_path, capsys):
    arguments = ["tables", "--smoke", "--out", str(tmp_path)]
    arguments += ["--methods", "claps", "one-hot"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    for part in ("Interval score", "paired difference", "never occurred", "missing"):
        assert part in text
    assert main(arguments) == 0
    assert capsys.readouterr().out == text
