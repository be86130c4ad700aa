"""Displays: what is drawn, where, and what is refused."""

import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
from formula_model import Formula
from mapie.conformity_scores import AbsoluteConformityScore
from mapie_api import calibrated_prefit
from matplotlib import pyplot
from matplotlib.dates import AutoDateLocator
from matplotlib.figure import Figure
from scipy.stats import norm

from mapie_claps import CalibratedRegressor, Explanation, PredictiveVariance, explain
from mapie_claps.plots import (
    ColumnsDisplay,
    CoverageDisplay,
    IntervalDisplay,
    PredictiveDensityDisplay,
    WidestRowsDisplay,
)

LEVELS = [0.6, 0.9]


def one():
    return Figure().subplots()


def two():
    return Figure().subplots(2)


@pytest.fixture
def why():
    """Four rows at two levels; v is four times h² in the last two."""
    half = np.array([[1.0, 2.0], [1.0, 2.0], [2.0, 4.0], [2.0, 4.0]])
    mu = np.array([0.0, 1.0, 2.0, 3.0])
    variance = PredictiveVariance(np.ones(4), np.array([0.0, 0.0, 3.0, 3.0]))
    noise = 2 * half / variance.scale_ratio[:, None]
    bounds = mu[:, None] - half, mu[:, None] + half
    return Explanation(mu, *bounds, (0.6, 0.9), *variance, noise)


@pytest.fixture
def calibrated(data):
    model = Formula(lambda a, b, c: 0.2 + 0.1 * a**2, lambda a, b, c: 0.1 + c**2)
    return CalibratedRegressor(model, LEVELS).conformalize(*data[1])


def band(collection):
    """Lowest and highest y of a band."""
    y = collection.get_paths()[0].vertices[:, 1]
    return y.min(), y.max()


def texts(labels):
    return [label.get_text() for label in labels]


def test_bands_are_the_interval_and_the_width_that_noise_needs(why):
    ax = one()
    points = [0.0, 1.0], [5.0, 6.0]
    display = IntervalDisplay(why, [3, 0, 1, 2], level=1, training_rows=points).plot(ax)
    outer, inner = ax.collections
    names = ["epistemic: lack of data", "aleatoric: noise", "prediction"]
    assert texts(ax.get_legend().get_texts()) == [*names, "training rows"]
    np.testing.assert_array_equal(ax.lines[-1].get_ydata(), points[1])
    assert band(outer) == (-2.0, 7.0)  # largest end: 3 + 4
    assert band(inner) == (-2.0, 5.0)  # half of the half-width 4 at μ = 3
    assert display.ax_ is ax
    assert display.figure_ is ax.figure
    assert ax.get_title() == "90 % prediction interval and why it is wide"


def test_rows_of_a_table_are_bars_sorted_by_prediction(calibrated, data):
    X, y = data[2]
    ax = one()
    IntervalDisplay.from_estimator(calibrated, X, y, ax=ax)
    bars = ax.collections[0].get_segments()
    assert len(bars) == 100 < len(X)
    assert all(low[0] == high[0] for low, high in bars)
    prediction, true = ax.lines
    assert (np.diff(prediction.get_ydata()) >= 0).all()
    assert set(true.get_ydata()) <= set(y)
    assert "sorted by prediction" in ax.get_xlabel()


def test_a_grid_is_drawn_as_bands_over_the_column_that_varies(calibrated, data, why):
    X = np.repeat(data[2][0][:1], 20, axis=0)
    X[:, 1] = np.linspace(-1, 1, 20)
    for rows, name in ((X, "x1"), (pd.DataFrame(X, columns=["a", "b", "c"]), "b")):
        ax = one()
        IntervalDisplay.from_estimator(calibrated, rows, ax=ax)
        assert band(ax.collections[0])[0] < band(ax.collections[0])[1]
        assert ax.get_xlabel() == name
    ax = one()
    IntervalDisplay(why, np.datetime64("2024-01-01") + np.arange(4)).plot(ax)
    assert isinstance(ax.xaxis.get_major_locator(), AutoDateLocator)
    for rows in (pd.DataFrame({"city": list("abcd")}), None):
        ax = one()
        IntervalDisplay(why, rows).plot(ax)
        assert "sorted by prediction" in ax.get_xlabel()


def test_intervals_of_another_score_have_one_band(calibrated, data):
    score, model, ax = AbsoluteConformityScore(), calibrated.estimator, one()
    mapie, options = calibrated_prefit(model, score, data[1], 0.9)
    IntervalDisplay.from_estimator(mapie, data[2][0], ax=ax, **options)
    assert texts(ax.get_legend().get_texts()) == ["interval", "prediction"]


def test_infinite_intervals_are_not_drawn_but_named(why):
    ax, upper = one(), why.upper.copy()
    upper[3] = np.inf
    why = replace(why, upper=upper)
    IntervalDisplay(why, np.arange(4)).plot(ax)
    assert "(1 of 4 are infinite and not drawn)" in ax.get_title()
    axes = two()
    CoverageDisplay(why, y=np.zeros(4), groups=[0, 0, 1, 1]).plot(axes)
    assert texts(axes[1].get_xticklabels()) == ["0", "1 (infinite)"]
    ax = one()
    WidestRowsDisplay(why, n_rows=2).plot(ax)
    assert texts(ax.get_yticklabels()) == ["row 3 (infinite)", "row 2"]


def test_groups_against_numpy(why):
    axes = two()
    y, groups = [0.0, 4.5, 2.0, 3.0], [0, 0, 1, 1]
    table = CoverageDisplay(why, y=y, groups=groups, level=1).plot(axes).table_
    np.testing.assert_array_equal(table["coverage"], [0.5, 1.0])
    assert table["coverage_low"].tolist() == pytest.approx([0.0126, 0.1581], abs=1e-4)
    for each in axes:
        assert texts(each.get_xticklabels()) == ["0", "1"]
    heights = [bar.get_height() for bar in axes[1].patches]
    np.testing.assert_allclose(heights, [4.0, 4.0, 0.0, 4.0])  # noise, then lack
    assert axes[0].lines[-1].get_ydata()[0] == 0.9
    last = CoverageDisplay(why, y=y, groups=groups, level=-1).plot(two()).table_
    np.testing.assert_array_equal(last["coverage"], table["coverage"])
    alone = CoverageDisplay(why, y=y).plot(two())
    assert texts(alone.ax_[1].get_xticklabels()) == ["all"]
    with pytest.raises(ValueError, match="Got no y, without which there is no covera"):
        CoverageDisplay(why).plot(two())


def test_the_widest_rows_come_first(calibrated, data):
    X = pd.DataFrame(data[2][0], index=[f"id{i}" for i in range(120)])
    why, ax = explain(calibrated, X), one()
    WidestRowsDisplay.from_estimator(calibrated, X, n_rows=3, level=1, ax=ax)
    order = np.argsort(-why.width[:, 1])[:3]
    assert texts(ax.get_yticklabels()) == [f"row id{i}" for i in order]
    lengths = np.array([bar.get_width() for bar in ax.patches]).reshape(2, 3)
    np.testing.assert_allclose(lengths.sum(axis=0), why.width[order, 1])
    np.testing.assert_allclose(lengths[0], why.aleatoric_width[order, 1])
    with pytest.raises(ValueError, match="Got n_rows=0"):
        WidestRowsDisplay(why, X, n_rows=0).plot(ax)


def test_the_widest_rows_say_which_columns_are_to_blame(calibrated, data):
    X, background, ax = data[2][0][:20], data[1][0], one()
    options = {"n_rows": 2, "background": background, "ax": ax}
    WidestRowsDisplay.from_estimator(calibrated, X, **options)
    rows = np.argsort(-explain(calibrated, X).width[:, 0])[:2]
    assert texts(ax.get_yticklabels()) == [f"row {i}" for i in rows]
    adds = explain(calibrated, X, background=background).by_column
    said = [adds.sentence(i).split(": ", 1)[1].replace("; ", "\n ") for i in rows]
    assert texts(ax.texts) == [f" {each}" for each in said]


def test_contributions_as_bars(calibrated, data):
    X, background, ax = data[2][0][:5], data[1][0], one()
    why = explain(calibrated, X, background=background)
    ColumnsDisplay(why, row=2).plot(ax)
    order = [int(label[1]) for label in texts(ax.get_yticklabels())]
    adds = why.by_column
    lengths = np.array([bar.get_width() for bar in ax.patches]).reshape(2, 3)
    np.testing.assert_allclose(lengths[0], adds.aleatoric[2, order, 0])
    np.testing.assert_allclose(lengths[1], adds.epistemic[2, order, 0])
    assert ax.get_title().replace("\n", " ") == adds.sentence(2)
    many = one()
    ColumnsDisplay.from_estimator(calibrated, X, background=background, ax=many)
    assert many.get_title() == "Mean contribution of each column, n = 5"
    order = [int(label[1]) for label in texts(many.get_yticklabels())]
    expected = np.abs(adds.epistemic[:, order, 0]).mean(axis=0)
    np.testing.assert_allclose([b.get_width() for b in many.patches[3:]], expected)
    uncalibrated, ax = explain(calibrated.estimator, X, background=background), one()
    ColumnsDisplay(uncalibrated, row=0).plot(ax)
    assert "standard deviation" in ax.get_xlabel()
    with pytest.raises(ValueError, match="without contributions of columns"):
        ColumnsDisplay(explain(calibrated, X)).plot(ax)


def test_densities_of_normal_scores(data):
    """Scores that are normal give a normal density of the scale of each row."""
    model = Formula(lambda a, b, c: 1 + 0 * a, lambda a, b, c: c)
    scores = norm.ppf((np.arange(4000) + 0.5) / 4000)
    calibrated = CalibratedRegressor.from_scores(
        model, scores, signed=True, support=None
    )
    X, ax = np.array([[0.0, 0.0, 0.0], [5.0, 0.0, 1.0]]), one()
    display = PredictiveDensityDisplay.from_estimator(
        calibrated, X, labels=["near", "far"], ax=ax
    )
    for i, (mu, scale) in enumerate([(0, 1), (5, 2)]):
        for j, sd in enumerate((scale, 1)):  # of noise alone
            expected = norm.pdf(display.y_[j, i], mu, sd)
            np.testing.assert_allclose(display.density_[j, i], expected, atol=0.02)
    assert texts(ax.get_yticklabels()) == ["far", "near"]
    bounded = CalibratedRegressor.from_scores(
        model, scores, signed=True, support=(0, None)
    )
    shown = PredictiveDensityDisplay.from_estimator(bounded, X, ax=one())
    assert np.nanmin(shown.y_) >= 0
    assert texts(shown.ax_.get_yticklabels()) == ["row 1", "row 0"]


def test_densities_that_cannot_be_drawn(calibrated, data):
    X = data[2][0]
    draw = partial(PredictiveDensityDisplay.from_estimator, ax=one())
    with pytest.raises(TypeError, match="Got a Formula, but expected a calibrated"):
        draw(calibrated.estimator, X)
    with pytest.raises(ValueError, match="Got 120 rows and 130 different scores, but"):
        draw(calibrated, X)
    same = CalibratedRegressor.from_scores(calibrated.estimator, [1.0] * 9, signed=True)
    with pytest.raises(ValueError, match="Got 2 rows and 1 different scores, but"):
        draw(same, X[:2])


def test_bad_input_is_named(why, data, calibrated, monkeypatch):
    with pytest.raises(ValueError, match=r"Got level=2, but there are 2 levels"):
        IntervalDisplay(why, level=2).plot(one())
    with pytest.raises(ValueError, match="none without calibration"):
        IntervalDisplay.from_estimator(calibrated.estimator, data[2][0], ax=one())
    with pytest.raises(ValueError, match="Got ax with 1 axes, but expected 2"):
        CoverageDisplay(why, y=np.zeros(4), groups=[0] * 4).plot(one())
    with pytest.raises(ValueError, match="Got ax with 2 axes, but expected 1"):
        IntervalDisplay(why).plot(two())
    pyplot.switch_backend("Agg")
    assert len(CoverageDisplay(why, y=np.zeros(4)).plot().figure_.axes) == 2
    pyplot.close("all")
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"pip install 'mapie-claps\[plot\]'"):
        IntervalDisplay(why).plot()
