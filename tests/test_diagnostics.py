import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from conftest import heteroscedastic, tiny
from mapie.conformity_scores import (
    AbsoluteConformityScore,
    GammaConformityScore,
    ResidualNormalisedScore,
)
from mapie_api import calibrated_prefit
from scipy.stats import binom
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mapie_claps import ClapsScaleEstimator, ClapsScore, PredictiveVariance, explain
from mapie_claps.diagnostics import (
    coverage_interval,
    diagnose,
    rank_rows,
    summarise,
)
from mapie_claps.exceptions import OutsideCalibrationWarning
from mapie_claps.reasons.as_table import as_table
from mapie_claps.reasons.calibration_range import (
    chance_of_extremes,
    distance_beyond,
    distance_from_others,
    rows_outside,
)

LEVELS = [0.8, 0.9]


@pytest.fixture(scope="module")
def calibrated(fitted, data):
    """A calibrated MAPIE object, and what its levels need when predicting."""
    return calibrated_prefit(fitted, ClapsScore(fitted), data[1], LEVELS)


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
    assert table["outside"].sum() <= binom.ppf(0.9999, len(test), 0.01)


def test_a_row_is_outside_by_more_than_calibration_rows_are():
    """Eleven values 0 … 10 and one at 14: a gap of 4 in units of the range 10."""
    seen = np.append(np.arange(11.0), 14.0)
    np.testing.assert_allclose(
        distance_from_others(seen), [1 / 13] + [0] * 10 + [4 / 10]
    )
    rows = np.array([-6.0, -5.5, 5.0, 19.5, 20.0])  # limits: 0.4 · 14 on both sides
    np.testing.assert_allclose(
        distance_beyond(rows, seen), [6 / 14, 5.5 / 14, 0, 5.5 / 14, 6 / 14]
    )
    found = rows_outside({"column 0": rows}, {"column 0": seen})
    np.testing.assert_array_equal(found, [True, False, False, False, True])


def test_what_calibration_has_never_seen_is_outside():
    constant, rare = np.zeros(50), np.append(np.zeros(49), 1.0)
    test = {"column 0": np.array([0.0, 1.0]), "column 1": np.array([0.0, 1.0])}
    found = rows_outside(test, {"column 0": constant, "column 1": rare})
    np.testing.assert_array_equal(found, [False, True])


@pytest.mark.parametrize("law", ["normal", "standard_t", "integers", "lognormal"])
@pytest.mark.parametrize("n_cal", [40, 150])
def test_exchangeable_rows_are_rarely_outside(law, n_cal):
    rng = np.random.default_rng(0)
    draw = {
        "normal": rng.standard_normal,
        "standard_t": lambda size: rng.standard_t(2, size),
        "integers": lambda size: rng.poisson(3, size).astype(float),
        "lognormal": rng.lognormal,
    }[law]
    n_outside = 0
    for _ in range(100):
        size = {"size": (n_cal + 20, 13)}
        values = np.asarray(draw(**size))
        names = [f"column {j}" for j in range(13)]
        test = dict(zip(names, values[n_cal:].T, strict=True))
        calibration = dict(zip(names, values[:n_cal].T, strict=True))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            n_outside += rows_outside(test, calibration).sum()
    # Rows of one table share their calibration rows: wider than a binomial law.
    assert n_outside <= 1.6 * 2000 * max(0.01, 1 / (n_cal + 1))


@pytest.mark.parametrize("shift", [20.0, -20.0])
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


def test_reasons_say_how_much_narrower_an_interval_could_be(fitted, data):
    X = data[2][0]
    variance = fitted.predict_variance(X)
    share = variance.epistemic_fraction
    narrowing = 1 - np.sqrt(1 - share**2)
    for threshold in (0.1, float(np.median(narrowing))):
        table = rank_rows(fitted, X, n_rows=len(X), min_narrowing=threshold)
        table = pd.DataFrame(table).sort_values("row")
        np.testing.assert_allclose(table["narrowing"], narrowing)
        limit = 1 - np.sqrt(variance.aleatoric / variance.total)
        np.testing.assert_allclose(table["narrowing_limit"], limit)
        collect = table["reason"].to_numpy() == "collect data here"
        np.testing.assert_array_equal(collect, narrowing >= threshold)
    assert 0 < collect.sum() < len(X)


def test_rows_of_noise_are_no_place_to_collect_data():
    """87 % noise: one measurement brings 1 − √(1 − 0.13²) = 0.008 of the width."""
    table = rank_rows(MostlyNoise(), np.arange(20.0)[:, None], n_rows=20)
    assert set(table["reason"]) == {"irreducible"}
    far = rank_rows(MostlyNoise(), [[0.0], [1000.0]], n_rows=2)
    assert list(far["reason"]) == ["collect data here", "irreducible"]


class MostlyNoise:
    """Noise of 0.87, lack of data of 0.13, and much more beyond x = 100."""

    def predict(self, X):
        return np.zeros(len(X))

    def predict_variance(self, X):
        x = np.asarray(X)[:, 0]
        lack = np.where(x > 100, 10.0, 0.13 - 1e-3 * x / 20)
        return PredictiveVariance(np.full(len(x), 0.87), lack)


@pytest.mark.parametrize("score", [AbsoluteConformityScore, GammaConformityScore])
def test_widths_of_another_score_have_no_parts(data, score):
    """Intervals of one width everywhere are not explained by parts that vary."""
    X, y = data[2]
    y = 50 + y  # positive, for the second score
    model = tiny().fit(data[0][0], 50 + data[0][1])
    cal = data[1][0], 50 + data[1][1]
    mapie, options = calibrated_prefit(model, score(), cal, 0.9)
    why = explain(mapie, X, **options)
    assert not why.scaled
    np.testing.assert_array_equal(why.epistemic, model.predict_variance(X).epistemic)
    for part in ("aleatoric_width", "epistemic_width"):
        with pytest.raises(ValueError, match="width has no aleatoric and epistemic"):
            getattr(why, part)
    table = diagnose(mapie, X, **options)
    assert {"lower", "upper", "width", "epistemic"} <= set(table)
    assert not {"aleatoric_width", "epistemic_width"} & set(table)
    assert len(summarise(mapie, X, y, **options)["width"]) == 1


def test_a_scale_of_ours_in_mapies_residual_score_is_explained(fitted, data):
    X = data[2][0]
    score = ResidualNormalisedScore(
        residual_estimator=ClapsScaleEstimator(fitted), prefit=True
    )
    centre = LinearRegression().fit(*data[0])
    mapie, options = calibrated_prefit(centre, score, data[1], 0.9)
    why = explain(mapie, X, **options)
    assert why.scaled
    variance = fitted.predict_variance(X)
    np.testing.assert_array_equal(why.epistemic, variance.epistemic)
    ratio = why.width[:, 0] / np.sqrt(variance.total)
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-8)
    np.testing.assert_allclose(why.aleatoric_width + why.epistemic_width, why.width)


def test_without_pandas_tables_are_dicts_of_arrays(monkeypatch):
    columns = {"a": np.arange(3)}
    assert isinstance(as_table(columns), pd.DataFrame)
    # Only around the table: scikit-learn 1.5 itself trips over a missing pandas here.
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert as_table(columns) is columns


def test_bad_input_names_the_argument(fitted, calibrated, data):
    X, y = data[2]
    mapie, levels = calibrated
    with pytest.raises(TypeError, match="has no intervals to summarise"):
        summarise(fitted, X, y)
    with pytest.raises(ValueError, match=r"Got groups of shape \(3,\) for 120 rows"):
        summarise(mapie, X, y, groups=[1, 2, 3], **levels)
    for missing in (None, np.nan, pd.NA, pd.NaT):
        labels = np.array(["a", missing] * 60, dtype=object)
        with pytest.raises(ValueError, match="Got groups with 60 missing labels"):
            summarise(mapie, X, y, groups=labels, **levels)
    for wrong in (y[:-1], y[:, None]):
        with pytest.raises(ValueError, match=r"Got y of shape .* for 120 rows of X"):
            summarise(mapie, X, wrong, **levels)
    with pytest.raises(ValueError, match="Got by='width'"):
        rank_rows(fitted, X, by="width")
    nullable = pd.array(["a", None] * 60, dtype="string")
    with pytest.raises(ValueError, match="Got groups with 60 missing labels"):
        summarise(mapie, X, y, groups=nullable, **levels)
    with pytest.raises(ValueError, match="Got min_narrowing=2"):
        rank_rows(fitted, X, min_narrowing=2)
    with pytest.raises(ValueError, match="Got n_rows=0"):
        rank_rows(fitted, X, n_rows=0)
    with pytest.raises(ValueError, match="Got n_covered=5, but expected at most n=4"):
        coverage_interval(5, 4)
    with pytest.raises(ValueError, match="Got confidence=1"):
        coverage_interval(1, 4, 1)
