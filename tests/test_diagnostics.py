import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from conftest import heteroscedastic, tiny
from scipy.stats import binom
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mapie_claps import ClapsScore, explain
from mapie_claps.diagnostics import (
    coverage_interval,
    diagnose,
    rank_rows,
    summarise,
)
from mapie_claps.exceptions import OutsideCalibrationWarning
from mapie_claps.reasons.calibration_range import chance_of_extremes
from mapie_claps.reasons.tables import _table

LEVELS = [0.8, 0.9]


@pytest.fixture(scope="module")
def calibrated(fitted, data):
    """A calibrated MAPIE object, and what its levels need when predicting."""
    try:
        from mapie.regression import SplitConformalRegressor
    except ImportError:
        from mapie.regression import MapieRegressor

        old = MapieRegressor(fitted, conformity_score=ClapsScore(fitted), cv="prefit")
        return old.fit(*data[1]), {"alpha": [1 - level for level in LEVELS]}
    new = SplitConformalRegressor(
        fitted,
        confidence_level=LEVELS,
        conformity_score=ClapsScore(fitted),
        prefit=True,
    )
    return new.conformalize(*data[1]), {}


def test_table_of_a_fitted_estimator(fitted, data):
    X = data[2][0]
    table = diagnose(fitted, X)
    mu, std = fitted.predict(X, return_std=True)
    np.testing.assert_array_equal(table["prediction"], mu)
    np.testing.assert_allclose(table["aleatoric"] + table["epistemic"], std**2)
    assert list(table) == ["prediction", "aleatoric", "epistemic", "epistemic_fraction"]


def test_widths_add_up_at_every_level(calibrated, data):
    mapie, levels = calibrated
    table = diagnose(mapie, data[2][0], **levels)
    for level in LEVELS:
        width = table[f"upper_{level}"] - table[f"lower_{level}"]
        parts = table[f"aleatoric_width_{level}"] + table[f"epistemic_width_{level}"]
        np.testing.assert_allclose(parts, width)
        np.testing.assert_allclose(
            table[f"aleatoric_width_{level}"],
            width * np.sqrt(1 - table["epistemic_fraction"]),
        )


def test_rows_keep_the_index_of_a_frame(data):
    frame = pd.DataFrame(data[0][0], columns=["a", "b", "c"])
    model = tiny().fit(frame, data[0][1])
    some = frame.iloc[[7, 3]]
    assert list(diagnose(model, some).index) == [7, 3]
    assert list(diagnose(fitted_on_arrays(data), data[2][0][:2].tolist()).index) == [
        0,
        1,
    ]


def fitted_on_arrays(data):
    return tiny().fit(*data[0])


def test_standing_among_the_calibration_rows(fitted, data):
    cal, test = data[1][0], data[2][0]
    reference = fitted.predict_variance(cal).epistemic
    expected = [
        np.mean(reference <= e) for e in fitted.predict_variance(test).epistemic
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = diagnose(fitted, test, X_calibration=cal)
    np.testing.assert_allclose(table["epistemic_quantile"], expected)
    beyond = ((test > cal.max(axis=0)) | (test < cal.min(axis=0))).any(axis=1)
    np.testing.assert_array_equal(table["outside"], beyond | (np.array(expected) == 1))


@pytest.mark.parametrize("shift", [8.0, -8.0])
def test_inputs_beyond_calibration_are_reported(fitted, data, shift):
    moved = data[2][0].copy()
    moved[:, 1] += shift
    side = "above" if shift > 0 else "below"
    message = rf"Got 120 of 120 rows of X with column 1 {side} .* 130 rows"
    with pytest.warns(OutsideCalibrationWarning, match=message):
        table = diagnose(fitted, moved, X_calibration=data[1][0])
    assert table["outside"].all()


def test_columns_of_a_pipeline_are_those_its_last_step_sees(data):
    pipe = make_pipeline(StandardScaler(), tiny()).fit(*data[0])
    far = data[2][0] + 50
    with pytest.warns(
        OutsideCalibrationWarning, match=r"column \d above 2\.\d+|3\.\d+"
    ):
        diagnose(pipe, far, X_calibration=data[1][0])


def test_chance_of_extremes_against_simulation():
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(20_000, 30))
    k = (draws[:, :20] > draws[:, 20:].max(axis=1, keepdims=True)).sum(axis=1)
    for at_least in (1, 3, 6):
        p = chance_of_extremes(at_least, 20, 10)
        # four standard errors of the simulated share
        assert abs(np.mean(k >= at_least) - p) < 4 * np.sqrt(p * (1 - p) / len(k))
    assert chance_of_extremes(0, 20, 10) == 1


def test_exchangeable_rows_are_rarely_reported(fitted):
    reported = 0
    for seed in range(60):
        X, _ = heteroscedastic(200, seed=seed)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            diagnose(fitted, X[:100], X_calibration=X[100:])
        reported += len(found)
    assert reported <= binom.ppf(0.9999, 60, 0.01)


def test_summary_by_group_against_numpy(calibrated, data):
    mapie, levels = calibrated
    X, y = data[2]
    groups = np.where(X[:, 0] > 0, "right", "left")
    table = pd.DataFrame(summarise(mapie, X, y, groups=groups, **levels))
    assert list(table["group"]) == ["all"] * 2 + ["left"] * 2 + ["right"] * 2
    why = explain(mapie, X, **levels)
    row = table[(table["group"] == "right") & (table["confidence_level"] > 0.85)].iloc[
        0
    ]
    mask = groups == "right"
    inside = (why.lower[mask, 1] <= y[mask]) & (y[mask] <= why.upper[mask, 1])
    assert row["n"] == mask.sum()
    assert row["coverage"] == pytest.approx(inside.mean())
    assert row["coverage_low"] < row["coverage"] < row["coverage_high"]
    assert row["width"] == pytest.approx(why.width[mask, 1].mean())
    fraction = why.epistemic_fraction[mask].mean()
    assert row["epistemic_fraction"] == pytest.approx(fraction)


def test_labels_of_groups_keep_their_type(calibrated, data):
    mapie, levels = calibrated
    X, y = data[2]
    mixed = summarise(mapie, X, y, groups=np.array([1, "b"] * 60, object), **levels)
    assert list(mixed["group"]) == ["all", "all", 1, 1, "b", "b"]
    table = summarise(mapie, X, y, groups=(X[:, 0] > 0).astype(int), **levels)
    assert list(table["group"]) == ["all", "all", 0, 0, 1, 1]


@pytest.mark.parametrize(("k", "n"), [(0, 7), (7, 7), (45, 50), (1, 3)])
def test_binomial_limits_leave_half_the_error_on_each_side(k, n):
    low, high = coverage_interval(k, n, 0.9)
    if k > 0:
        assert binom.sf(k - 1, n, low) == pytest.approx(0.05)
    else:
        assert low == 0
    if k < n:
        assert binom.cdf(k, n, high) == pytest.approx(0.05)
    else:
        assert high == 1


def test_ranking_puts_the_largest_part_first(fitted, data):
    X = data[2][0]
    variance = fitted.predict_variance(X)
    for by in ("epistemic", "epistemic_fraction", "aleatoric"):
        table = rank_rows(fitted, X, by=by, n_rows=5)
        expected = np.argsort(-getattr(variance, by))[:5]
        np.testing.assert_array_equal(table["row"], expected)


def test_reasons_follow_the_standing_in_each_part(fitted, data):
    X = data[2][0]
    variance = fitted.predict_variance(X)
    table = pd.DataFrame(rank_rows(fitted, X, n_rows=len(X))).sort_values("row")
    lack, noise = (
        pd.Series(part).rank(method="max").to_numpy()
        for part in (variance.epistemic, variance.aleatoric)
    )
    clear = lack != noise
    collect = table["reason"].to_numpy() == "collect data here"
    np.testing.assert_array_equal(collect[clear], (lack > noise)[clear])
    assert 0 < collect.sum() < len(X)


def test_without_pandas_tables_are_dicts_of_arrays(monkeypatch):
    columns = {"a": np.arange(3)}
    assert isinstance(_table(columns), pd.DataFrame)
    # Only around the table: scikit-learn 1.5 itself trips over a missing pandas here.
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert _table(columns) is columns


def test_bad_input_names_the_argument(fitted, calibrated, data):
    X, y = data[2]
    mapie, levels = calibrated
    with pytest.raises(TypeError, match="has no intervals to summarise"):
        summarise(fitted, X, y)
    with pytest.raises(ValueError, match=r"Got groups of shape \(3,\) for 120 rows"):
        summarise(mapie, X, y, groups=[1, 2, 3], **levels)
    for missing in (None, np.nan):
        labels = np.array(["a", missing] * 60, dtype=object)
        with pytest.raises(ValueError, match="Got groups with 60 missing labels"):
            summarise(mapie, X, y, groups=labels, **levels)
    for wrong in (y[:-1], y[:, None]):
        with pytest.raises(ValueError, match=r"Got y of shape .* for 120 rows of X"):
            summarise(mapie, X, wrong, **levels)
    with pytest.raises(ValueError, match="Got by='width'"):
        rank_rows(fitted, X, by="width")
    with pytest.raises(ValueError, match="Got n_rows=0"):
        rank_rows(fitted, X, n_rows=0)
    with pytest.raises(ValueError, match="Got n_covered=5, but expected at most n=4"):
        coverage_interval(5, 4)
    with pytest.raises(ValueError, match="Got confidence=1"):
        coverage_interval(1, 4, 1)
