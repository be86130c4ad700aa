"""Contributions of columns: exactly additive, fair, and on the user's columns."""

from itertools import permutations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from conftest import tiny
from mapie.conformity_scores import AbsoluteConformityScore
from mapie_api import calibrated_prefit
from matplotlib.figure import Figure
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mapie_claps import (
    CalibratedRegressor,
    ClapsRegressor,
    ClapsScore,
    PredictiveVariance,
    explain,
)
from mapie_claps.benchmarks._reasons_problems import CAUSES, named_causes
from mapie_claps.plots import ColumnsDisplay
from mapie_claps.reasons.by_column import column_contributions


def assert_additive(why, atol=1e-8):
    adds = why.by_column
    for i, part in enumerate(("aleatoric", "epistemic")):
        found = getattr(adds, part).sum(axis=1) + adds.reference[i]
        np.testing.assert_allclose(found, adds.total[:, i], rtol=0, atol=atol)
    if adds.confidence_level:
        np.testing.assert_allclose(adds.total[:, 0], why.aleatoric_width)
        np.testing.assert_allclose(adds.total[:, 1], why.epistemic_width)


class Formula:
    """A model whose √h² and lack of data are formulas of the columns."""

    def __init__(self, noise, lack):
        self.noise, self.lack, self.n_predicted = noise, lack, 0

    def predict(self, X):
        return np.zeros(len(X))

    def predict_variance(self, X):
        self.n_predicted += len(X)
        h, added = self.noise(*np.asarray(X).T), self.lack(*np.asarray(X).T)
        return PredictiveVariance(h**2, (h + added) ** 2 - h**2)


def shapley(f, x, background):
    """Mean over all orders and all background rows, column by column."""
    p = len(x)
    total, n = np.zeros(p), 0
    for z in background:
        for order in permutations(range(p)):
            row = z.copy()
            for j in order:
                before = f(*row)
                row[j] = x[j]
                total[j] += f(*row) - before
            n += 1
    return total / n


def test_columns_that_act_in_pairs_get_their_shapley_values():
    """Orders with their reverses are exact for effects of two columns together."""
    rng = np.random.default_rng(0)

    def noise(a, b, c, d):
        return 5 + a * b + 0.3 * c * d + np.sin(c)

    def lack(a, b, c, d):
        return 3 + 0.5 * a * c + d**2

    X, background = rng.uniform(0, 1, (3, 4)), rng.uniform(0, 1, (6, 4))
    why = explain(Formula(noise, lack), X, by_column=True, background=background)
    assert_additive(why, 1e-12)
    for i, x in enumerate(X):
        np.testing.assert_allclose(
            why.by_column.aleatoric[i, :, 0], shapley(noise, x, background), atol=1e-9
        )
        np.testing.assert_allclose(
            why.by_column.epistemic[i, :, 0], shapley(lack, x, background), atol=1e-9
        )


def test_three_columns_together_come_near_their_shapley_values():
    rng = np.random.default_rng(1)

    def noise(a, b, c):
        return 1 + a * b * c

    X, background = rng.uniform(1, 2, (1, 3)), rng.uniform(0, 1, (60, 3))
    model = Formula(noise, lambda a, b, c: 1 + 0 * a)
    why = explain(model, X, by_column=True, background=background, n_background=60)
    exact = shapley(noise, X[0], background)
    np.testing.assert_allclose(why.by_column.aleatoric[0, :, 0], exact, rtol=0.1)
    np.testing.assert_allclose(why.by_column.epistemic, 0, atol=1e-12)


@pytest.mark.parametrize("n", [1, 10])
def test_predictions_grow_with_rows_times_columns(n):
    model = Formula(lambda a, b, c: 1 + a**2, lambda a, b, c: 1 + b**2)
    X, background = np.ones((n, 3)), np.random.default_rng(0).normal(size=(40, 3))
    explain(model, X, by_column=True, background=background, n_background=8)
    # The rows twice, the background once, and the steps between.
    assert model.n_predicted == 2 * n + 40 + n * 2 * 8 * (3 - 1)


def test_rows_are_explained_alike_alone_and_together(fitted, data):
    X, background = data[2][0][:4], data[1][0]
    together = explain(fitted, X, by_column=True, background=background).by_column
    alone = explain(fitted, X[2:3], by_column=True, background=background).by_column
    np.testing.assert_allclose(alone.epistemic[0], together.epistemic[2], atol=1e-12)
    assert alone.sentence(0) == together.sentence(2)


def test_all_levels_of_a_calibrated_object(fitted, data):
    X, background = data[2][0][:3], data[1][0]
    mapie, options = calibrated_prefit(fitted, ClapsScore(fitted), data[1], [0.8, 0.9])
    why = explain(mapie, X, by_column=True, background=background, **options)
    assert why.by_column.aleatoric.shape == (3, 3, 2)
    assert_additive(why)
    calibrated = CalibratedRegressor(fitted, [0.8, 0.9]).conformalize(*data[1])
    ours = explain(calibrated, X, by_column=True, background=background)
    np.testing.assert_allclose(
        ours.by_column.epistemic, why.by_column.epistemic, rtol=1e-6, atol=1e-9
    )


def test_pipelines_are_explained_by_the_columns_that_go_in(data):
    pipe = make_pipeline(StandardScaler(), tiny()).fit(*data[0])
    why = explain(pipe, data[2][0][:3], by_column=True, background=data[1][0])
    assert_additive(why)
    assert why.by_column.names == ("x0", "x1", "x2")


def mixed_table(n, seed):
    """Numbers with gaps, a category of integers, text, dates and truth values."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "size": np.where(rng.random(n) < 0.2, np.nan, rng.normal(size=n)),
            "code": pd.Categorical(rng.integers(0, 4, n)),
            "city": rng.choice(["Oslo", "Rome", "Bonn"], n),
            "day": np.datetime64("2024-01-01", "ns")
            + rng.integers(0, 90, n) * np.timedelta64(1, "D"),
            "new": rng.random(n) < 0.5,
        }
    )
    y = table["size"].fillna(0) + (table["city"] == "Rome") + rng.normal(0, 0.2, n)
    return table, y.to_numpy()


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow"])
def test_tables_of_every_kind_keep_their_types(kind):
    convert = {
        "pandas": lambda t: t,
        "polars": pl.from_pandas,
        "pyarrow": pa.Table.from_pandas,
    }[kind]
    table, y = mixed_table(150, 0)
    if kind != "pandas":
        table["code"] = table["code"].astype(str)
    model = tiny().fit(convert(table), y)
    X, background = mixed_table(4, 1)[0], mixed_table(30, 2)[0]
    if kind != "pandas":
        X["code"], background["code"] = (t["code"].astype(str) for t in (X, background))
    X.loc[0, "size"] = np.nan
    why = explain(
        model,
        convert(X),
        by_column=True,
        background=convert(background),
        n_background=4,
    )
    assert_additive(why)
    assert why.by_column.names == ("size", "code", "city", "day", "new")
    shown = why.by_column.values
    assert shown[0, 0] == "missing"
    assert list(shown[:, 2]) == list(X["city"])
    assert shown[1, 3] == str(X["day"][1].date())
    same = explain(model, convert(X)).epistemic
    np.testing.assert_array_equal(why.epistemic, same)


def test_the_columns_that_cause_the_width_are_named_first():
    """Nine columns: two that cause, two that go with them, four that do nothing."""
    X, y, _ = named_causes(900, 0, foreign=False)
    model = ClapsRegressor(
        n_members=2,
        views=("raw",),
        max_steps=400,
        kernel=False,
        target_map=None,
        tol=None,
        random_state=0,
    ).fit(X, y)
    background, _, _ = named_causes(200, 1, foreign=False)
    pool, _, _ = named_causes(3000, 2, foreign=True)
    regions = {
        "aleatoric": pool[(pool["hour"] > 18) & (pool["depth"] < 6)],
        "epistemic": pool[pool["depth"] > 7],
    }
    for part, rows in regions.items():
        some = rows[:100]
        why = explain(model, some, by_column=True, background=background)
        assert_additive(why)
        first = why.by_column.leading(part)
        assert np.mean(first == CAUSES[part]) >= 0.95, pd.Series(first).value_counts()


def test_sentences_say_what_is_usual(fitted, data):
    model = Formula(lambda a, b: 10 + 20 * (a > 0), lambda a, b: 1 + 10 * (b > 0))
    X = pd.DataFrame({"hour": [17.0, -1.0], "depth": [-1.0, 2.25]})
    usual = pd.DataFrame({"hour": [-1.0, -2.0], "depth": [-1.0, -2.0]})
    adds = explain(model, X, by_column=True, background=usual).by_column
    assert adds.sentence(0) == (
        "wide by 31: 30 noise, mostly hour=17; 1 lack of data, no more than usual"
    )
    assert adds.sentence(1) == (
        "wide by 21: 10 noise, no more than usual; 11 lack of data, mostly depth=2.25"
    )
    assert "row 1: wide by 21" in repr(adds)
    summary = adds.summary()
    assert list(summary["column"]) == ["hour", "depth"]
    np.testing.assert_allclose(summary["aleatoric"], [10, 0])
    np.testing.assert_allclose(summary["epistemic"], [0, 5])
    frame = adds.to_frame(index=X.index)
    assert frame.loc[0, ("aleatoric", "hour")] == pytest.approx(20)
    with pytest.raises(ValueError, match="Got part='width'"):
        adds.leading("width")
    with pytest.raises(IndexError, match="Got row=2, but expected a position among 2"):
        adds.sentence(2)
    with pytest.raises(IndexError, match="Got level=1, .* a position among 1 level,"):
        adds.sentence(-1, level=1)


def test_an_excess_that_nobody_sees_has_no_cause():
    model = Formula(lambda a, b: 10 + a, lambda a, b: 1 + 1e-3 * b)
    X, usual = np.array([[1.0, 2.0]]), np.array([[0.0, 0.0]])
    adds = explain(model, X, by_column=True, background=usual).by_column
    assert repr(adds).splitlines() == [
        "Contributions of 2 columns in 1 row",
        "row 0: wide by 12: 11 noise, mostly x0=1; 1 lack of data, no more than usual",
    ]


def test_infinite_intervals_have_no_contributions(fitted, data):
    few = CalibratedRegressor(fitted, 0.9).conformalize(data[1][0][:5], data[1][1][:5])
    with pytest.raises(ValueError, match="infinite intervals for all background rows"):
        explain(
            few,
            data[2][0][:3],
            by_column=True,
            background=data[1][0],
            allow_infinite_bounds=True,
        )


def test_levels_with_finite_intervals_have_contributions(fitted, data):
    X, y = data[1]
    few = CalibratedRegressor(fitted, (0.99, 0.5)).conformalize(X[:20], y[:20])
    adds = explain(
        few, X[:3], by_column=True, background=X[:40], allow_infinite_bounds=True
    ).by_column
    assert adds.sentence(0).startswith("infinitely wide")
    assert adds.sentence(0, level=1).startswith("wide by")
    found = adds.aleatoric.sum(axis=1) + adds.reference[0]
    np.testing.assert_allclose(found[:, 1], adds.total[:, 0, 1])
    for call in (adds.summary, lambda level: adds.leading("aleatoric", level)):
        with pytest.raises(IndexError, match="Got level=2, but expected a position"):
            call(2)


def test_rows_with_infinite_intervals_are_left_out(fitted, data):
    X_cal, y_cal = data[1]
    edge = np.sort(X_cal[:, 0])[-4]  # three calibration rows lie beyond

    def beyond(X):
        return np.asarray(X)[:, 0] > edge

    few = CalibratedRegressor(fitted, 0.9).conformalize(X_cal, y_cal, groups=beyond)
    known, unknown = X_cal[~beyond(X_cal)][:2], X_cal[beyond(X_cal)][:1]
    adds = explain(
        few,
        np.concatenate([known, unknown]),
        by_column=True,
        background=known,
        allow_infinite_bounds=True,
    ).by_column
    assert np.isnan(adds.epistemic[2]).all()
    assert adds.sentence(2).startswith("infinitely wide: the calibration rows give no")
    assert adds.sentence(0).startswith("wide by 0.")
    assert list(adds.leading("epistemic") == "") == [False, False, True]
    summary = adds.summary()
    assert summary["aleatoric_first"].sum() == pytest.approx(1)
    np.testing.assert_allclose(
        sorted(summary["epistemic"]), sorted(np.abs(adds.epistemic[:2, :, 0]).mean(0))
    )
    alone = explain(
        few, unknown, by_column=True, background=known, allow_infinite_bounds=True
    )
    with pytest.raises(ValueError, match="Got 1 rows whose intervals are all infinite"):
        alone.by_column.summary()


def test_values_of_single_rows_do_not_go_along_a_path(fitted, data):
    X_cal, y_cal = data[1]
    labels = X_cal[:, 0] > 0
    model = CalibratedRegressor(fitted, 0.8).conformalize(X_cal, y_cal, groups=labels)
    with pytest.raises(ValueError, match="Got groups of single rows together"):
        explain(model, X_cal, by_column=True, groups=labels)


def test_bad_input_is_named(fitted, data):
    X, background = data[2][0], data[1][0]
    with pytest.raises(ValueError, match="Got by_column=True for 1 row and no backgr"):
        explain(fitted, X[:1], by_column=True)
    with pytest.raises(ValueError, match="Got background without by_column=True"):
        explain(fitted, X[:1], background=background)
    with pytest.raises(TypeError, match="X of type ndarray and a background of type D"):
        explain(fitted, X, by_column=True, background=pd.DataFrame(background))
    with pytest.raises(ValueError, match=r"background of shape \(130,\)"):
        explain(fitted, X, by_column=True, background=background[:, 0])
    with pytest.raises(ValueError, match=r"background of 2 columns .* only: x2"):
        explain(fitted, X, by_column=True, background=background[:, :2])
    with pytest.raises(ValueError, match="Got n_background=0"):
        explain(fitted, X, by_column=True, n_background=0)
    with pytest.raises(ValueError, match="3 rows of X and 0 background rows"):
        column_contributions(lambda rows: explain(fitted, rows), X[:3], background[:0])
    mapie, options = calibrated_prefit(fitted, AbsoluteConformityScore(), data[1], 0.9)
    with pytest.raises(ValueError, match="no aleatoric and epistemic"):
        explain(mapie, X[:2], by_column=True, background=background, **options)


def test_display_of_one_row_and_of_many(fitted, data):
    X, background = data[2][0][:5], data[1][0]
    why = explain(fitted, X, by_column=True, background=background)
    one = ColumnsDisplay.from_predictions(why, row=2, ax=Figure().subplots())
    order = [int(label[1]) for label in one.labels]
    np.testing.assert_allclose(one.aleatoric, why.by_column.aleatoric[2, order, 0])
    lengths = [bar.get_width() for bar in one.ax_.patches]
    np.testing.assert_allclose(lengths, [*one.aleatoric, *one.epistemic])
    assert one.ax_.get_title() == why.by_column.sentence(2)
    many = ColumnsDisplay.from_estimator(
        fitted, X, background=background, n_columns=2, ax=Figure().subplots()
    )
    assert len(many.labels) == 2
    assert "over 5 rows" in many.ax_.get_title()
    assert many.aleatoric[0] == pytest.approx(why.by_column.summary()["aleatoric"][0])
    with pytest.raises(IndexError, match="Got row='two', but expected a position amo"):
        ColumnsDisplay.from_predictions(why, row="two")
    with pytest.raises(ValueError, match="without contributions of columns"):
        ColumnsDisplay.from_predictions(explain(fitted, X))
