import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from conftest import tiny
from matplotlib.colors import to_rgb
from matplotlib.dates import AutoDateLocator
from matplotlib.figure import Figure

from mapie_claps import Explanation, PredictiveVariance, explain
from mapie_claps.diagnostics import coverage_interval
from mapie_claps.plots import (
    CalibrationLevelsDisplay,
    ComparisonDisplay,
    ContractionDisplay,
    CoverageDisplay,
    IntervalDisplay,
    WidestRowsDisplay,
    WidthDisplay,
)
from mapie_claps.plots import _style as style
from mapie_claps.plots._display import column_of, is_curve

LEVELS = [0.6, 0.9]


@pytest.fixture
def one():
    return Figure().subplots()


@pytest.fixture
def two():
    return Figure().subplots(2)


@pytest.fixture
def why():
    """Four rows at two levels; v is four times h² in the last two."""
    half = np.array([[1.0, 2.0], [1.0, 2.0], [2.0, 4.0], [2.0, 4.0]])
    mu = np.array([0.0, 1.0, 2.0, 3.0])
    variance = PredictiveVariance(np.ones(4), np.array([0.0, 0.0, 3.0, 3.0]))
    return Explanation(mu, mu[:, None] - half, mu[:, None] + half, (0.6, 0.9), variance)


class Prefit:
    """Calibrated split conformal prediction, in the words of either MAPIE."""

    def __init__(self, fitted, cal):
        from mapie_claps import ClapsScore

        score = ClapsScore(fitted)
        try:
            from mapie.regression import SplitConformalRegressor
        except ImportError:
            from mapie.regression import MapieRegressor

            old = MapieRegressor(fitted, conformity_score=score, cv="prefit")
            self.mapie, self.params = old.fit(*cal), {"alpha": [0.4, 0.1]}
        else:
            new = SplitConformalRegressor(fitted, LEVELS, score, prefit=True)
            self.mapie, self.params = new.conformalize(*cal), {}


@pytest.fixture(scope="module")
def calibrated(fitted, data):
    return Prefit(fitted, data[1])


def band(collection):
    """Lowest and highest y of a band."""
    y = collection.get_paths()[0].vertices[:, 1]
    return y.min(), y.max()


def test_bands_are_the_interval_and_the_width_that_noise_needs(why, one):
    display = IntervalDisplay.from_predictions([3, 0, 1, 2], why, level=1, ax=one)
    outer, inner = one.collections
    assert band(outer) == (-2.0, 7.0)  # largest end: 3 + 4
    assert band(inner) == (-2.0, 5.0)  # half of the half-width 4 at μ = 3
    assert display.ax_ is one
    assert display.figure_ is one.figure
    assert "90 %" in one.get_title()


def test_the_band_of_noise_is_as_wide_as_the_explanation_says(why, one):
    noise_width = 0.5 * why.width
    shaped = replace(why, noise_width=noise_width)
    IntervalDisplay.from_predictions(np.arange(4), shaped, level=1, ax=one)
    band = one.collections[1].get_paths()[0].vertices
    for i in range(4):
        at = band[band[:, 0] == i, 1]
        np.testing.assert_allclose(np.ptp(at), noise_width[i, 1])


def test_intervals_of_a_calibrated_regressor(calibrated, data, one):
    X, y = data[2]
    display = IntervalDisplay.from_estimator(
        calibrated.mapie,
        X,
        feature=1,
        training_rows=(X[:, 1], y),
        ax=one,
        **calibrated.params,
    )
    np.testing.assert_array_equal(display.x, X[:, 1])
    labels = [text.get_text() for text in one.get_legend().get_texts()]
    assert labels == [
        "epistemic: lack of data",
        "aleatoric: noise",
        "prediction",
        "training rows",
    ]


def test_level_must_exist(why, fitted, data, one):
    with pytest.raises(ValueError, match=r"Got level=2, but the intervals have 2"):
        IntervalDisplay.from_predictions(np.arange(4), why, level=2, ax=one)
    with pytest.raises(ValueError, match="not calibrated has none"):
        WidthDisplay.from_estimator(fitted, data[2][0], ax=one)
    with pytest.raises(ValueError, match=r"Got level=2, but the intervals have 2"):
        CoverageDisplay.from_predictions(why, np.zeros(4), groups=[0] * 4, level=2)


def test_rows_of_a_table_are_bars_sorted_by_prediction(calibrated, data, one):
    X, y = data[2]
    display = IntervalDisplay.from_estimator(
        calibrated.mapie, X, y=y, ax=one, **calibrated.params
    )
    mu = display.explanation.prediction
    np.testing.assert_array_equal(np.argsort(display.x), np.argsort(mu))
    bars = one.collections[0].get_segments()
    assert len(bars) == 100 < len(X)
    assert all(low[0] == high[0] for low, high in bars)
    drawn = dict(zip(("prediction", "true value"), one.lines, strict=True))
    assert (np.diff(drawn["prediction"].get_ydata()) >= 0).all()
    assert set(drawn["true value"].get_ydata()) <= set(y)
    assert "sorted by prediction" in one.get_xlabel()
    assert repr(display) == "IntervalDisplay(x: 120, y: 120)"


def test_a_grid_is_drawn_as_bands(calibrated, data, one):
    X = np.repeat(data[2][0][:1], 20, axis=0)
    X[:, 1] = np.linspace(-1, 1, 20)
    display = IntervalDisplay.from_estimator(
        calibrated.mapie, X, feature=1, ax=one, **calibrated.params
    )
    assert not display.bars
    frame = pd.DataFrame(X, columns=list("abc"))
    assert is_curve(frame, "b", 1)
    assert not is_curve(frame, "a", 0)


def test_dates_are_drawn_as_dates_and_text_is_refused(why, one):
    days = np.datetime64("2024-01-01") + np.arange(4)
    IntervalDisplay.from_predictions(days, why, ax=one)
    assert isinstance(one.xaxis.get_major_locator(), AutoDateLocator)
    with pytest.raises(ValueError, match=r"Got feature='city', whose .*'a'.*Leave fea"):
        IntervalDisplay.from_predictions(list("abcd"), why, xlabel="city", ax=one)


def test_the_widest_rows_come_first(calibrated, data, one):
    X = pd.DataFrame(data[2][0], index=[f"id{i}" for i in range(120)])
    why = explain(calibrated.mapie, X.to_numpy(), **calibrated.params)
    display = WidestRowsDisplay.from_estimator(
        calibrated.mapie, X.to_numpy(), n_rows=3, ax=one, **calibrated.params
    )
    order = np.argsort(-why.width[:, 0])[:3]
    assert display.labels == [f"row {i}" for i in order]
    total = display.aleatoric_width + display.epistemic_width
    np.testing.assert_allclose(total, why.width[order, 0])
    assert len(one.patches) == 6
    with pytest.raises(ValueError, match="Got n_rows=0"):
        WidestRowsDisplay.from_estimator(calibrated.mapie, X.to_numpy(), n_rows=0)


def test_the_widest_rows_say_which_columns_are_to_blame(calibrated, data, one):
    X = data[2][0]
    display = WidestRowsDisplay.from_estimator(
        calibrated.mapie,
        X,
        n_rows=2,
        background=data[1][0],
        ax=one,
        **calibrated.params,
    )
    rows = X[[int(label.removeprefix("row ")) for label in display.labels]]
    adds = explain(
        calibrated.mapie,
        rows,
        by_column=True,
        background=data[1][0],
        **calibrated.params,
    ).by_column
    assert display.reasons == [adds.sentence(0), adds.sentence(1)]
    texts = [text.get_text() for text in one.texts]
    assert texts == [text.split(": ", 1)[1] for text in display.reasons]
    assert all("noise, " in text and "lack of data" in text for text in texts)


def test_an_explanation_prints_as_a_table(why):
    lines = repr(why).splitlines()
    assert lines[0] == "Explanation of 4 rows, level 0.6, 0.9"
    assert lines[1].split()[:3] == ["prediction", "lower_0.6", "upper_0.6"]
    assert len(lines) == 6
    frame = why.to_frame(index=list("abcd"))
    assert list(frame.index) == list("abcd")
    np.testing.assert_array_equal(frame["upper_0.9"], why.upper[:, 1])
    assert {"width_0.6", "aleatoric_width_0.6", "epistemic"} <= set(frame.columns)


def test_columns_of_a_frame_go_by_name(one):
    frame = pd.DataFrame({"kind": ["a", "b"], "area": [1.0, 2.0]})
    name, values = column_of(frame, "area")
    assert name == "area"
    np.testing.assert_array_equal(values, [1.0, 2.0])
    assert column_of(frame, 1)[0] == "area"
    assert column_of(frame.to_numpy(), 1)[0] == "feature 1"
    with pytest.raises(ValueError, match=r"Got feature='size', but X has the columns"):
        column_of(frame, "size")
    with pytest.raises(ValueError, match="Got feature='area', but X is an array"):
        column_of(frame.to_numpy(), "area")


def test_a_display_draws_itself_again_with_all_that_it_had(why, one):
    rows = ([0.0, 1.0], [5.0, 6.0])
    first = IntervalDisplay.from_predictions(
        np.arange(4), why, training_rows=rows, xlabel="dose", ax=one
    )
    again = Figure().subplots()
    assert first.plot(again) is first
    assert first.ax_ is again
    assert again.get_xlabel() == "dose"
    np.testing.assert_array_equal(again.lines[-1].get_ydata(), rows[1])


def test_groups_are_named_in_every_drawing(calibrated, data, two):
    X, y = data[2]
    display = CoverageDisplay.from_estimator(
        calibrated.mapie, X, y, n_bins=4, ax=two, **calibrated.params
    )
    again = Figure().subplots(2)
    display.plot(again)
    assert again[1].get_xlabel() == "feature 0"
    for first, second in zip(two, again, strict=True):
        names = [text.get_text() for text in second.get_xticklabels()]
        assert names == [text.get_text() for text in first.get_xticklabels()]
        assert names == display.labels


def test_sorted_widths_end_at_the_widest(calibrated, data, one):
    display = WidthDisplay.from_estimator(
        calibrated.mapie, data[2][0], level=1, ax=one, **calibrated.params
    )
    widest = (display.aleatoric_width + display.epistemic_width).max()
    assert band(one.collections[1])[1] == pytest.approx(widest)
    assert one.get_ylabel() == "width of the 90 % interval"


def test_groups_against_numpy(why, two):
    y = [0.0, 4.5, 2.0, 3.0]
    display = CoverageDisplay.from_predictions(
        why, y, groups=[0, 0, 1, 1], level=1, ax=two
    )
    np.testing.assert_array_equal(display.coverage, [0.5, 1.0])
    np.testing.assert_allclose(display.limits[0], coverage_interval(1, 2))
    np.testing.assert_allclose(display.aleatoric_width, [4.0, 4.0])
    np.testing.assert_allclose(display.epistemic_width, [0.0, 4.0])
    assert [t.get_text() for t in two[1].get_xticklabels()] == ["0", "1"]
    tops = [p.get_y() + p.get_height() for p in two[1].patches]
    assert max(tops) == pytest.approx(8.0)


def test_bins_of_a_feature_hold_all_rows(calibrated, data, two):
    X, y = data[2]
    display = CoverageDisplay.from_estimator(
        calibrated.mapie, X, y, n_bins=4, level=1, ax=two, **calibrated.params
    )
    assert len(display.labels) == 4
    assert two[1].get_xlabel() == "feature 0"
    grouped = CoverageDisplay.from_estimator(
        calibrated.mapie,
        X,
        y,
        groups=np.zeros(len(y)),
        level=1,
        ax=Figure().subplots(2),
        **calibrated.params,
    )
    assert grouped.coverage[0] == pytest.approx(display.coverage.mean())


def test_levels_against_the_diagonal(calibrated, data, one):
    X, y = data[2]
    display = CalibrationLevelsDisplay.from_estimator(
        calibrated.mapie, X, y, ax=one, **calibrated.params
    )
    np.testing.assert_allclose(display.confidence_levels, LEVELS)
    assert (np.diff(display.coverage) >= 0).all()
    assert (display.limits[:, 0] < display.coverage).all()


def test_contraction_fits_clones_on_the_first_rows(data, one):
    X, y = data[0]
    model = tiny()
    display = ContractionDisplay.from_estimator(
        model, X, y, data[2][0], sizes=[40, 150], ax=one
    )
    variance = tiny().fit(X[:40], y[:40]).predict_variance(data[2][0])
    assert display.epistemic[0] == pytest.approx(variance.epistemic.mean())
    assert not hasattr(model, "model_")
    with pytest.raises(ValueError, match="Got sizes up to 151, but X has 150 rows"):
        ContractionDisplay.from_estimator(model, X, y, X, sizes=[151], ax=one)


def test_comparison_of_methods(two):
    class Fixed:
        def __init__(self, half):
            self.half = half

        def predict_interval(self, X):
            ones = np.ones(len(X))
            return 0 * ones, np.stack([-self.half * ones, self.half * ones], 1)

    display = ComparisonDisplay.from_estimator(
        {"a": Fixed(1.0), "b": Fixed(2.0)}, np.zeros((2, 1)), [0.0, 1.5], 0.5, ax=two
    )
    np.testing.assert_array_equal(display.coverage, [0.5, 1.0])
    np.testing.assert_array_equal(display.width, [2.0, 4.0])
    np.testing.assert_allclose(display.score, [2.0 + 0.5 * 2 / 0.5 / 2 * 1.0, 4.0])
    with pytest.raises(ValueError, match="Got no methods"):
        ComparisonDisplay.from_predictions({}, [0.0], 0.9, ax=two)


def test_new_figures_are_made_where_none_are_given(why):
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("Agg")
    single = IntervalDisplay.from_predictions(np.arange(4), why)
    double = CoverageDisplay.from_predictions(why, np.zeros(4), groups=[0, 0, 1, 1])
    assert single.figure_ is not double.figure_
    assert len(double.figure_.axes) == 2
    plt.close("all")


def test_two_axes_are_needed_for_two_quantities(why, one):
    with pytest.raises(ValueError, match="Got ax with 1 axes, but expected 2"):
        CoverageDisplay.from_predictions(why, np.zeros(4), groups=[0] * 4, ax=one)


def test_the_parts_differ_in_lightness_too():
    grey = [np.dot(to_rgb(c), [0.2126, 0.7152, 0.0722]) for c in _colours()]
    assert abs(grey[0] - grey[1]) > 0.15


def _colours():
    return style.ALEATORIC, style.EPISTEMIC


def test_missing_matplotlib_is_named(monkeypatch, why):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"pip install 'mapie-claps\[plot\]'"):
        WidthDisplay.from_predictions([1.0], [1.0], 0.9)
