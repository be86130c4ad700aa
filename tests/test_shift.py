"""Groups and weights: where they come from, and what is refused."""

import numpy as np
import pandas as pd
import pytest
from conftest import tiny
from known_model import Plain, Shaped, table

from mapie_claps import (
    CalibratedRegressor,
    ColumnGroups,
    EpistemicGroups,
    likelihood_ratio,
)
from mapie_claps.exceptions import EffectiveSampleSizeWarning

X, Y = table(600)
CAL, TEST = slice(0, 300), slice(300, 600)
LEVELS = [0.5, 0.9]
MODEL = Shaped().fit(X, Y)


def tilt(X):
    return np.exp(0.4 * np.asarray(X)[:, 0])


def side(X):
    return np.where(np.asarray(X)[:, 1] > 0, "n", "s")


def calibrated(model=MODEL, **given):
    return CalibratedRegressor(model, LEVELS).conformalize(X[CAL], Y[CAL], **given)


@pytest.mark.parametrize(
    "names", [["weights"], ["partition"], ["weights", "partition"]]
)
def test_arrays_functions_batches_and_steps_agree(names):
    functions = {
        k: v for k, v in (("weights", tilt), ("partition", side)) if k in names
    }
    cal, test = ({k: f(X[s]) for k, f in functions.items()} for s in (CAL, TEST))
    whole = calibrated(**functions)
    expected = whole.predict_interval(X[TEST])[1]
    halves = [(X[:100], Y[:100]), (X[100:300], Y[100:300])]
    batches = CalibratedRegressor(MODEL, LEVELS).conformalize(iter(halves), **cal)
    found = batches.predict_interval([X[300:310], X[310:310], X[310:]], **test)[1]
    np.testing.assert_array_equal(found, expected)
    parts = list(whole.iter_intervals([X[300:350], X[350:]]))
    np.testing.assert_array_equal(np.concatenate([b for _, b in parts]), expected)
    steps = CalibratedRegressor(MODEL, LEVELS).conformalize(*halves[0], **functions)
    steps.partial_conformalize(*halves[1])
    np.testing.assert_array_equal(steps.predict_interval(X[TEST])[1], expected)
    scores = CalibratedRegressor.from_scores(
        MODEL, whole.signed_scores_, LEVELS, signed=True, **cal
    )
    np.testing.assert_array_equal(scores.predict_interval(X[TEST], **test)[1], expected)
    nothing = CalibratedRegressor(MODEL, LEVELS).conformalize(
        X[:0], Y[:0], **functions | {k: [] for k in names if k == "partition"}
    )
    assert len(nothing.calibration_) == 0
    given = {"partition": side(X[CAL])} if "partition" in names else {}
    nothing.partial_conformalize(X[CAL], Y[CAL], **given)
    given = {"partition": side(X[TEST])} if "partition" in names else {}
    np.testing.assert_array_equal(
        nothing.predict_interval(X[TEST], **given)[1], expected
    )


def test_weights_on_one_side_only():
    plain, shifted = calibrated(), calibrated(weights=tilt(X[CAL]))
    with pytest.raises(
        ValueError, match="Got weights in predict_interval, but .*Leave"
    ):
        plain.predict_interval(X[TEST], weights=np.ones(300))
    with pytest.raises(ValueError, match="Got partition in partial_conformalize"):
        plain.partial_conformalize(X[CAL], Y[CAL], partition=side)
    with pytest.raises(ValueError, match="Got no weights in observe.*Pass weights= to"):
        shifted.observe(X[TEST], Y[TEST])
    for call in (
        lambda: shifted.predict_quantiles(X[TEST], 0.9),
        lambda: shifted.cdf(X[TEST], 0.0),
    ):
        with pytest.raises(ValueError, match="rows differ in rank"):
            call()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"weights": np.full(300, -1.0)},
            "weights=-1.0 in row 0, but expected non-neg",
        ),
        ({"weights": np.r_[np.ones(299), np.nan]}, "nan in weights, row 299"),
        ({"weights": np.r_[np.inf, np.ones(299)]}, "inf in weights, row 0"),
        ({"weights": np.zeros(300)}, "zero in all 300 calibration rows"),
        ({"weights": np.ones(299)}, "weights of 299 rows, but X has at least 300"),
        ({"weights": np.ones(301)}, "weights of 301 rows, but X has 300"),
        ({"weights": np.ones((300, 2))}, r"shape \(300, 2\) for 300 rows"),
        ({"weights": lambda X: np.ones(3)}, r"shape \(3,\) for 300 rows"),
        ({"partition": side(X[:3])}, "partition of 3 rows, but X has at least 300"),
        ({"partition": ["a", None] * 150}, "None in row 1, but expected one label"),
        ({"partition": np.array([1.0, np.nan] * 150)}, "nan in row 1, but expected"),
        ({"partition": pd.array([1, None] * 150, "Int64")}, "<NA> in row 1, but"),
        ({"partition": X[CAL]}, "one label per row"),
        ({"partition": "district"}, "partition='district', but expected a position"),
        ({"partition": lambda X: side(X)[:7]}, r"shape \(7,\) for 300 rows"),
        ({"partition": np.ma.masked_equal([1, 2] * 150, 2)}, "partition as a masked"),
    ],
)
def test_bad_values_are_refused_and_nothing_is_lost(given, message):
    cal = calibrated()
    before = dict(vars(cal))
    with pytest.raises(ValueError, match=message):
        cal.conformalize(X[CAL], Y[CAL], **given)
    assert vars(cal) == before
    with pytest.raises(ValueError, match=message.replace("299 rows, but", ".* but")):
        calibrated(**given)


def test_few_effective_rows_are_named():
    heavy = np.full(300, 1e-3)
    heavy[:10] = 1.0
    with pytest.warns(EffectiveSampleSizeWarning, match="worth 10.6 rows"):
        cal = calibrated(weights=heavy)
    assert cal.effective_sample_size_ == pytest.approx(10.29**2 / 10.00029)
    none = np.where(side(X) == "n", 0.0, 1.0)
    with pytest.warns(EffectiveSampleSizeWarning, match="group 'n' that are worth 0.0"):
        cal = calibrated(weights=none[CAL], partition=side)
    assert cal.effective_sample_size_["n"] == 0
    assert cal.effective_sample_size_["s"] == (side(X[CAL]) == "s").sum()
    with pytest.warns(EffectiveSampleSizeWarning, match="1 of 2 rows"):
        bounds = cal.predict_interval(
            np.array([[0.0, 1.0, 0.0], [0.0, -1.0, 0.0]]), weights=[0.0, 1.0]
        )[1]
    assert np.isinf(bounds).all(axis=(1, 2)).tolist() == [True, False]


def test_effective_sample_size():
    assert calibrated(weights=np.full(300, 1e300)).effective_sample_size_ == 300
    half = np.repeat([0.0, 3.0], 150)
    assert calibrated(weights=half).effective_sample_size_ == 150


def test_columns_as_groups():
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "g": list("xxxxxyyyyz") * 60})
    groups = ColumnGroups.from_training(frame, "g", min_rows=200)
    assert groups.values == ("x", "y")
    assert groups(frame[7:10]) == ("y", "y", "other")
    assert ColumnGroups("g")(frame[8:10]) == ("y", "z")
    assert ColumnGroups(2)(frame[:2]) == ("x", "x")
    assert ColumnGroups(0)(np.array([[1, 2], [3, 4]])) == (1, 3)
    with pytest.raises(ValueError, match=r"partition='h', .* columns \['a', "):
        ColumnGroups("h")(frame)
    with pytest.raises(ValueError, match="Got min_rows=0"):
        ColumnGroups.from_training(frame, "g", min_rows=0)
    model = Plain().fit(frame[["a", "b"]], Y)
    model.predict = lambda X, return_std=False: Plain.predict(
        model, X[["a", "b"]], return_std
    )
    by_name = CalibratedRegressor(model).conformalize(
        frame[:300], Y[CAL], partition="g"
    )
    labels = CalibratedRegressor(model).conformalize(
        frame[:300], Y[CAL], partition=frame["g"][:300]
    )
    np.testing.assert_array_equal(
        by_name.predict_interval(frame[300:])[1],
        labels.predict_interval(frame[300:], partition=frame["g"][300:])[1],
    )
    assert list(by_name.effective_sample_size_) == ["x", "y", "z"]


def test_bins_of_the_epistemic_fraction():
    rows = MODEL.predict_distribution(X)
    fraction = rows.variance.epistemic_fraction
    groups = EpistemicGroups.from_training(MODEL, X, n_groups=3)
    np.testing.assert_allclose(groups.edges, np.quantile(fraction, [1 / 3, 2 / 3]))
    labels = groups(rows)
    np.testing.assert_array_equal(labels, np.searchsorted(groups.edges, fraction))
    given = calibrated(partition=labels[CAL])
    np.testing.assert_array_equal(
        calibrated(partition=groups).predict_interval(X[TEST])[1],
        given.predict_interval(X[TEST], partition=labels[TEST])[1],
    )
    np.testing.assert_array_equal(
        given.predict_interval(X[TEST], partition=groups)[1],
        given.predict_interval(X[TEST], partition=labels[TEST])[1],
    )
    with pytest.raises(TypeError, match=r"as a function, .*Pass a value per score"):
        CalibratedRegressor.from_scores(MODEL, np.ones(9), partition=groups)
    with pytest.raises(ValueError, match="gives a standard deviation alone"):
        EpistemicGroups.from_training(Plain().fit(X, Y), X)
    for edges in ([], [0.5, 0.2], [0.0], [1.2], [0.3, 0.3], [[0.1]]):
        with pytest.raises(ValueError, match="ascending numbers between 0 and 1"):
            EpistemicGroups(edges)


def test_ratios_of_normal_rows_are_near_the_true_ones():
    rng = np.random.default_rng(0)
    source, target = rng.normal(size=(4000, 2)), rng.normal((0.8, 0), 1, (2000, 2))
    ratio = likelihood_ratio(source, target)
    new = rng.normal(size=(500, 2))
    true = 0.8 * new[:, 0] - 0.32
    np.testing.assert_allclose(np.log(ratio(new)), true, atol=0.4)
    cal = calibrated(weights=likelihood_ratio(X[:100], X[:100] + 0.3))
    assert cal.predict_interval(X[TEST])[1].shape == (300, 2, 2)


def test_ratios_of_a_table():
    frame = pd.DataFrame({"a": X[:, 0], "g": side(X)})
    model = tiny(max_steps=2).fit(frame[:150], Y[:150])
    south = (frame["g"] == "s").to_numpy()
    ratio = likelihood_ratio(frame[:300], frame[:300][south[:300]], estimator=model)
    found = ratio(frame[300:])
    assert found[south[300:]].mean() > 2 * found[~south[300:]].mean()


def test_clipping_and_bad_rows_of_a_ratio():
    rng = np.random.default_rng(1)
    source, target = rng.normal(size=(300, 1)), rng.normal(2.0, 1, (300, 1))
    with pytest.warns(EffectiveSampleSizeWarning, match="target rows whose likelihood"):
        ratio = likelihood_ratio(source, target, clip=5)
    assert ratio(target).max() == pytest.approx(5)
    assert ratio(source - 9).min() == pytest.approx(0.2)
    with pytest.raises(ValueError, match="Got clip=1.0"):
        likelihood_ratio(source, target, clip=1.0)
    gap = np.where(np.arange(150).reshape(50, 3) == 4, np.nan, 0.0)
    with pytest.raises(ValueError, match="X_source with 50 rows, of which 1 hold NaN"):
        likelihood_ratio(gap, X)
    with pytest.raises(
        ValueError, match="X_target with 600 rows, .* 2 columns, but .*3"
    ):
        likelihood_ratio(X, X[:, :2])


@pytest.mark.filterwarnings("error")
def test_a_warning_that_is_an_error_changes_nothing():
    cal = calibrated(weights=np.ones(300))
    before = dict(vars(cal))
    new = X[300:301], Y[300:301]
    for call in (
        lambda: cal.conformalize(X[CAL], Y[CAL], weights=np.r_[1e9, np.ones(299)]),
        lambda: cal.partial_conformalize(*new, weights=[1e9]),
        lambda: cal.observe(*new, weights=[1e9]),
    ):
        with pytest.raises(EffectiveSampleSizeWarning):
            call()
        assert vars(cal) == before
