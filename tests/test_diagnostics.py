"""Explanations and tables, on models that are formulas and on fitted ones."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from formula_model import Formula
from mapie.conformity_scores import AbsoluteConformityScore, ResidualNormalisedScore
from mapie_api import calibrated_prefit
from scipy.stats import binom
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import BayesianRidge, LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mapie_claps import (
    CalibratedRegressor,
    ClapsScaleEstimator,
    ClapsScore,
    explain,
)
from mapie_claps.diagnostics import (
    diagnose,
    nearest_rows,
    predict_frame,
    rank_rows,
    summarise,
)
from mapie_claps.exceptions import OutsideCalibrationWarning

LEVELS = [0.8, 0.9]
PARTS = ("aleatoric", "epistemic", "epistemic_fraction")


def noise(a, b, c):
    return 0.2 + 0.1 * np.abs(a)


def lack(a, b, c):
    return 0.05 + 0.1 * c**2


@pytest.fixture
def formula():
    return Formula(noise, lack)


@pytest.fixture
def calibrated(formula, data):
    return CalibratedRegressor(formula, LEVELS).conformalize(*data[1])


def test_a_fitted_estimator_has_parts_and_no_interval(formula, data):
    X = data[2][0]
    why = explain(formula, X)
    h, added = noise(*X.T), lack(*X.T)
    np.testing.assert_allclose(why.aleatoric, h**2)
    np.testing.assert_allclose(why.epistemic, (h + added) ** 2 - h**2)
    np.testing.assert_allclose(why.epistemic_fraction, 1 - h**2 / (h + added) ** 2)
    np.testing.assert_array_equal(why.prediction, X[:, 0])
    assert why.confidence_level == ()
    assert why.lower.shape == (len(X), 0)
    assert list(why.columns()) == ["prediction", *PARTS]


def test_widths_are_what_noise_needs_and_the_rest(calibrated, data):
    X, before = data[2][0], calibrated.estimator.n_predicted
    why = calibrated.explain(X)
    assert calibrated.estimator.n_predicted == before + len(X)  # one pass
    points, bounds = calibrated.predict_interval(X)
    np.testing.assert_array_equal(why.prediction, points)
    np.testing.assert_array_equal(np.stack([why.lower, why.upper], axis=1), bounds)
    assert why.confidence_level == (0.8, 0.9)
    np.testing.assert_allclose(why.aleatoric_width + why.epistemic_width, why.width)
    share = noise(*X.T) / (noise(*X.T) + lack(*X.T))
    np.testing.assert_allclose(why.aleatoric_width, why.width * share[:, None])


def test_mapie_gives_the_explanation_of_the_calibrated_object(calibrated, data):
    X, model = data[2][0], calibrated.estimator
    mapie, levels = calibrated_prefit(model, ClapsScore(model), data[1], LEVELS)
    theirs, ours = explain(mapie, X, **levels), explain(calibrated, X)
    for name, values in ours.columns().items():
        np.testing.assert_allclose(theirs.columns()[name], values, err_msg=name)


def test_noise_alone_goes_through_shape_and_map(fitted_regressor, data):
    """The width with v = h² at the same two scores, not in proportion to √v."""
    model = CalibratedRegressor(fitted_regressor, 0.9).conformalize(*data[1])
    X = data[2][0]
    why, rows = explain(model, X), fitted_regressor.predict_distribution(X)
    q = np.sort(model.conformity_scores)[int(np.ceil(0.9 * 131)) - 1]
    low, high = rows.noise_alone.interval(np.array([-q]), np.array([q]))
    np.testing.assert_allclose(why.aleatoric_width, high - low)
    assert (why.epistemic_width >= 0).all()


def test_widths_of_another_score_have_no_parts(formula, data):
    X, y = data[2]
    mapie, options = calibrated_prefit(formula, AbsoluteConformityScore(), data[1], 0.9)
    why = explain(mapie, X, **options)
    np.testing.assert_allclose(why.aleatoric, noise(*X.T) ** 2)
    for part in ("aleatoric_width", "epistemic_width"):
        with pytest.raises(ValueError, match="width has no aleatoric and epistemic"):
            getattr(why, part)
    table = diagnose(mapie, X, **options)
    assert {"lower", "upper", "width", "epistemic"} <= set(table)
    assert not {"aleatoric_width", "epistemic_width"} & set(table)
    assert len(summarise(mapie, X, y, **options)["width"]) == 1


def test_a_scale_of_ours_in_mapies_residual_score_is_explained(formula, data):
    X = data[2][0]
    score = ResidualNormalisedScore(
        residual_estimator=ClapsScaleEstimator(formula), prefit=True
    )
    centre = LinearRegression().fit(*data[0])
    mapie, options = calibrated_prefit(centre, score, data[1], 0.9)
    why = explain(mapie, X, **options)
    share = noise(*X.T) / (noise(*X.T) + lack(*X.T))
    np.testing.assert_allclose(why.aleatoric_width[:, 0], why.width[:, 0] * share)
    table = diagnose(mapie, X[:5], X_calibration=data[1][0], **options)
    np.testing.assert_allclose(table["epistemic"], why.epistemic[:5])


def test_infinite_intervals_are_lack_of_data(formula, data):
    few = CalibratedRegressor(formula, (0.5, 0.99))
    few.conformalize(data[1][0][:5], data[1][1][:5])
    why = explain(few, data[2][0], allow_infinite_bounds=True)
    assert np.isinf(why.width[:, 1]).all()
    assert np.isinf(why.epistemic_width[:, 1]).all()
    assert np.isfinite(why.epistemic_width[:, 0]).all()
    assert np.isnan(why.width_parts[:, :, 1]).all()


def test_an_explanation_prints_as_a_table(calibrated, data):
    why = explain(calibrated, pd.DataFrame(data[2][0][:2], index=["a", "b"]))
    title, first, second = repr(why).splitlines()
    ends = [f"{end}_{level}" for level in LEVELS for end in ("lower", "upper")]
    assert title.split() == ["prediction", *ends, "epistemic_fraction"]
    assert first.split()[:2] == ["a", f"{why.prediction[0]:.6f}"]
    assert second.split()[0] == "b"


def test_pipelines_are_explained(data):
    pipe = make_pipeline(StandardScaler(), Formula(noise, lack)).fit(*data[0])
    seen = pipe[0].transform(data[2][0])
    why = explain(pipe, data[2][0])
    np.testing.assert_allclose(why.aleatoric, noise(*seen.T) ** 2)
    neighbours = nearest_rows(pipe, data[0][0][:4], data[0][0], n_neighbors=1)
    np.testing.assert_array_equal(neighbours["neighbour"], np.arange(4))


def test_models_without_parts_are_refused(data):
    process = GaussianProcessRegressor(alpha=0.1).fit(*data[0])
    with pytest.raises(ValueError, match="standard deviation alone, without parts"):
        explain(process, data[2][0])
    with pytest.raises(TypeError, match="LinearRegression, whose predict takes no"):
        explain(LinearRegression().fit(*data[0]), data[2][0])


def test_tables_keep_their_index(calibrated, data):
    X, _ = data[2]
    table = diagnose(calibrated, pd.DataFrame(X, index=[f"id{i}" for i in range(120)]))
    assert table.index[7] == "id7"
    assert list(diagnose(calibrated, X[:2].tolist()).index) == [0, 1]


def test_predictions_as_a_frame(calibrated, data):
    X, why = data[2][0][:7], explain(calibrated, data[2][0][:7])
    frame = predict_frame(calibrated, pd.DataFrame(X, index=list("abcdefg")))
    assert list(frame.index) == list("abcdefg")
    ends = ("lower", "upper", "width", "aleatoric_width", "epistemic_width")
    names = [f"{end}_{level}" for level in LEVELS for end in ends]
    assert list(frame) == ["prediction", *names, *PARTS]
    for name in frame:
        np.testing.assert_array_equal(frame[name], why.columns()[name])
    of_polars = predict_frame(calibrated, pl.DataFrame(X))
    assert isinstance(of_polars, pl.DataFrame)
    np.testing.assert_array_equal(of_polars, frame)


def test_a_frame_of_a_model_without_parts(formula, data):
    ridge = BayesianRidge().fit(*data[0])
    model = CalibratedRegressor(ridge, 0.9).conformalize(*data[1])
    frame, bounds = predict_frame(model, data[2][0]), model.predict_interval(data[2][0])
    np.testing.assert_array_equal(frame[["lower", "upper"]], bounds[1][:, :, 0])
    parts = ["aleatoric_width", "epistemic_width", "epistemic_fraction"]
    assert frame[parts].isna().all(axis=None)
    mapie, options = calibrated_prefit(formula, AbsoluteConformityScore(), data[1], 0.9)
    frame = predict_frame(mapie, data[2][0], **options)
    assert frame[parts[:2]].isna().all(axis=None)
    assert frame[parts[2]].between(0, 1).all()


def test_standing_among_the_calibration_rows(formula, data):
    cal, test = data[1][0], data[2][0]
    reference = formula.predict_distribution(cal).epistemic
    expected = [np.mean(reference <= e) for e in explain(formula, test).epistemic]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = diagnose(formula, test, X_calibration=cal)
    np.testing.assert_allclose(table["epistemic_quantile"], expected)
    assert table["outside"].sum() <= binom.ppf(0.9999, len(test), 0.01)
    far = np.array([[0.0, 0.0, 30.0], [0.0, 0.0, 0.0]])
    assert list(diagnose(formula, far, X_calibration=cal)["outside"]) == [True, False]


@pytest.mark.parametrize(("shift", "side"), [(20.0, "above"), (-20.0, "below")])
def test_inputs_beyond_calibration_are_reported(data, shift, side):
    moved, known = (
        pd.DataFrame(data[i][0].copy(), columns=list("abc")) for i in (2, 1)
    )
    moved["b"] += shift
    known.iloc[3, 1] = np.nan
    formula = Formula(lambda a, b, c: np.ones(len(a)), lack)
    message = rf"Got 120 of 120 rows of X with b {side} .* all 130 rows"
    with pytest.warns(OutsideCalibrationWarning, match=message):
        diagnose(formula, moved, X_calibration=known)


def test_exchangeable_rows_are_rarely_reported(formula):
    reported = outside = 0
    for seed in range(60):
        X = np.random.default_rng(seed).normal(size=(200, 3))
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            table = diagnose(formula, X[:100], X_calibration=X[100:])
        reported += len(found)
        outside += table["outside"].sum()
    assert reported <= binom.ppf(0.9999, 60, 0.01)
    # Rows of one table share their calibration rows: wider than a binomial.
    assert outside <= 1.6 * 6000 * 0.01


def test_what_is_not_told_by_the_data_is_not_called_irreducible(data):
    """Noise that is extrapolated may be anything: the reason is not known."""
    model = Formula(lambda a, b, c: 1 + a**2, lambda a, b, c: 0.02 * (1 + a**2))
    far = np.array([[9.0, 0.0, 0.0], [0.1, 0.0, 0.0]])
    assert list(diagnose(model, far)["reason"]) == ["irreducible"] * 2
    cal = {"X_calibration": data[1][0]}
    assert list(diagnose(model, far, **cal)["reason"]) == ["not known", "irreducible"]
    ranked = rank_rows(model, far, **cal)
    assert list(ranked["reason"]) == ["not known", "irreducible"]
    unknown = Formula(model.noise, lambda a, b, c: 1 + a**2)
    assert list(diagnose(unknown, far, **cal)["reason"]) == ["collect data here"] * 2


def test_summary_by_group_against_numpy(calibrated, data):
    X, y = data[2]
    groups = np.where(X[:, 0] > 0, "right", "left")
    table = summarise(calibrated, X, y, groups=groups)
    assert list(table["group"]) == ["all"] * 2 + ["left"] * 2 + ["right"] * 2
    why = explain(calibrated, X)
    row, mask = table.iloc[5], groups == "right"
    inside = (why.lower[mask, 1] <= y[mask]) & (y[mask] <= why.upper[mask, 1])
    assert row["n"] == mask.sum()
    assert row["coverage"] == pytest.approx(inside.mean())
    assert row["coverage_low"] < row["coverage"] < row["coverage_high"]
    assert row["width"] == pytest.approx(why.width[mask, 1].mean())
    for name in PARTS:
        assert row[name] == pytest.approx(getattr(why, name)[mask].mean())
    bins = summarise(calibrated, X, y, groups=pd.qcut(X[:, 0], 4))
    assert list(bins["n"]) == [120] * 2 + [30] * 8


def test_ranks_and_reasons(formula, data):
    why = explain(formula, data[2][0])
    for by in PARTS:
        ranked = rank_rows(formula, data[2][0], by=by, n_rows=5)
        np.testing.assert_array_equal(ranked["row"], np.argsort(-getattr(why, by))[:5])
    table = diagnose(formula, data[2][0])
    narrowing = 1 - np.sqrt(1 - why.epistemic_fraction**2)
    np.testing.assert_allclose(table["narrowing"], narrowing)
    collect = table["reason"].to_numpy() == "collect data here"
    np.testing.assert_array_equal(collect, narrowing >= 0.1)
    assert 0 < collect.sum() < len(collect)


def with_row(model, x):
    """The model after a measurement that agrees with it."""
    return model.update_posterior(x, np.atleast_1d(model.predict(x)))


def test_a_measurement_narrows_as_the_table_says(fitted, data):
    """Against a posterior that has seen the row."""
    X = data[2][0][:5]
    before = fitted.predict_variance(X).total
    for i, narrowing in enumerate(diagnose(fitted, X)["narrowing"]):
        left = with_row(fitted, X[i : i + 1]).predict_variance(X[i : i + 1]).total
        share = 1 - np.sqrt(left[0] / before[i])
        assert narrowing == pytest.approx(share, rel=1e-6, abs=1e-12)


def test_neighbours_are_the_nearest_in_phi(fitted, data):
    X, X_train, y_train = data[2][0][:5], *data[0]
    mapie, _ = calibrated_prefit(fitted, ClapsScore(fitted), data[1], 0.9)
    table = nearest_rows(mapie, X, X_train, y_train=y_train)
    own = CalibratedRegressor(fitted).conformalize(*data[1])
    same = nearest_rows(own, X, X_train, y_train=y_train)
    pd.testing.assert_frame_equal(same, table)
    assert list(table["row"]) == [i for i in range(5) for _ in range(3)]
    phi, phi_train = fitted.embed(X), fitted.embed(X_train)
    unit = np.sqrt(np.mean(((phi_train - phi_train.mean(axis=0)) ** 2).sum(axis=1)))
    for i, group in table.groupby("row"):
        distances = np.linalg.norm(phi_train - phi[i], axis=1)
        nearest = np.argsort(distances)[:3]
        np.testing.assert_array_equal(group["neighbour"], nearest)
        np.testing.assert_allclose(group["distance"], distances[nearest] / unit)
        np.testing.assert_array_equal(group["y"], y_train[group["neighbour"]])


def test_a_module_of_ones_own_and_images(fitted_module, data):
    X = data[2][0]
    variance = fitted_module.predict_variance(X)
    table = diagnose(fitted_module, X, X_calibration=data[1][0])
    np.testing.assert_allclose(table["epistemic"], variance.epistemic)
    assert sorted(rank_rows(fitted_module, X[:9])["row"]) == list(range(9))


@pytest.mark.parametrize(
    ("call", "arguments", "message"),
    [
        (summarise, {"groups": [1, 2, 3]}, r"Got groups of shape \(3,\) for 120 rows"),
        (summarise, {"y": [1.0]}, r"Got y of shape \(1,\), but expected one num"),
        (rank_rows, {"by": "width"}, "Got by='width'"),
        (rank_rows, {"n_rows": 0}, "Got n_rows=0"),
        (nearest_rows, {"X_train": [[1.0]], "n_neighbors": 0}, "Got n_neighbors=0"),
        (
            nearest_rows,
            {"X_train": np.zeros((2, 3)), "y_train": [1.0]},
            r"inconsistent numbers of samples: \[2, 1\]",
        ),
    ],
)
def test_bad_input_names_the_argument(calibrated, data, call, arguments, message):
    target = {"y": data[2][1]} if call is summarise else {}
    with pytest.raises(ValueError, match=message):
        call(calibrated, data[2][0], **target | arguments)


def test_models_that_cannot_tell_are_named(formula, data):
    with pytest.raises(TypeError, match="Got a Formula, which has no intervals to sum"):
        summarise(formula, *data[2])
    plain = LinearRegression().fit(*data[0])
    with pytest.raises(TypeError, match="LinearRegression, which has no representatio"):
        nearest_rows(plain, data[2][0], data[0][0])
