"""Contributions of columns: exactly additive, fair, and on the user's columns."""

from itertools import permutations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from conftest import tiny
from formula_model import Formula
from mapie.conformity_scores import AbsoluteConformityScore
from mapie_api import calibrated_prefit

from mapie_claps import CalibratedRegressor, explain
from mapie_claps.diagnostics import ColumnContributions


def assert_additive(why, atol=1e-8):
    """Contributions and the reference are the widths, or √v, of the rows."""
    total, adds = why.by_column.total, why.by_column
    for i, part in enumerate(("aleatoric", "epistemic")):
        found = getattr(adds, part).sum(axis=1) + adds.reference[i]
        np.testing.assert_allclose(found, why.width_parts[:, i], rtol=0, atol=atol)
        np.testing.assert_allclose(total[:, i], found, rtol=0, atol=atol)


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
    why = explain(Formula(noise, lack), X, background=background)
    assert_additive(why, 1e-12)
    for i, x in enumerate(X):
        for part, f in (("aleatoric", noise), ("epistemic", lack)):
            found = getattr(why.by_column, part)[i, :, 0]
            np.testing.assert_allclose(found, shapley(f, x, background), atol=1e-9)


@pytest.mark.parametrize("n", [2, 10])
def test_predictions_grow_with_rows_times_columns(n, monkeypatch):
    model = Formula(lambda a, b, c: 1 + a**2, lambda a, b, c: 1 + b**2)
    X, background = np.ones((n, 3)), np.random.default_rng(0).normal(size=(40, 3))
    whole = explain(model, X, background=background).by_column
    # Each row and each background row once, and the steps between.
    assert model.n_predicted == n + 40 + n * 2 * 16 * (3 - 1)
    monkeypatch.setattr("mapie_claps.diagnostics.by_column.BLOCK_ELEMENTS", 1)
    blocks = explain(model, X, background=background).by_column
    np.testing.assert_array_equal(blocks.epistemic, whole.epistemic)


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
def test_tables_of_every_kind_keep_their_values(kind):
    convert = {
        "pandas": lambda t: t,
        "polars": pl.from_pandas,
        "pyarrow": pa.Table.from_pandas,
    }[kind]
    (table, y), X = mixed_table(150, 0), mixed_table(4, 1)[0]
    background = mixed_table(30, 2)[0]
    if kind != "pandas":
        for each in (table, X, background):
            each["code"] = each["code"].astype(str)
    model = tiny().fit(convert(table), y)
    X.loc[0, "size"] = np.nan
    why = explain(model, convert(X), background=convert(background))
    assert_additive(why)
    assert why.by_column.names == ("size", "code", "city", "day", "new")
    shown = why.by_column.values
    assert shown[0, 0] == "missing"
    assert list(shown[:, 2]) == list(X["city"])
    assert shown[1, 3] == str(X["day"][1].date())
    np.testing.assert_array_equal(why.epistemic, explain(model, convert(X)).epistemic)


def contributions(aleatoric, epistemic, reference=(10.0, 1.0)):
    """Of one row, in columns a, b, c, …"""
    names = tuple("abcdefgh"[: len(aleatoric)])
    return ColumnContributions(
        names,
        np.array([[str(i) for i in range(len(names))]]),
        np.array(aleatoric)[None, :, None],
        np.array(epistemic)[None, :, None],
        np.array(reference)[:, None],
    )


@pytest.mark.parametrize(
    ("adds", "cause"),
    [
        ([9.0, 1.0, 0.5], "mostly a=0"),
        # The leader alone explains half, another is nearly as large.
        ([1.0, 7.0, 5.0], "mostly b=1 and c=2 together"),
        ([0.47, 0.51, 0.02], "mostly b=1 and a=0 together"),
        ([6.0, 2.9, 0.0], "mostly a=0"),
        ([6.0, 3.1, 0.0], "mostly a=0 and b=1 together"),
        # The leader is far ahead of each other column and not most of it.
        ([2.0, *[0.9] * 6], "mostly a=0, b=1 and c=2 together"),
        ([5.0, 5.0, 5.0], "mostly a=0, b=1 and c=2 together"),
        # A column that takes away is no cause.
        ([9.0, -3.0, 0.0], "mostly a=0"),
        ([1.0] * 6, "mostly a=0, b=1, c=2 and 3 more together"),
        ([0.01, 0.02, 0.03], "no more than usual"),
        ([-5.0, 1.0, 1.0], "no more than usual"),
    ],
)
def test_sentences_name_every_column_near_the_leader(adds, cause):
    said = contributions([0.0] * len(adds), adds).sentence(0)
    assert said.endswith(f"lack of data, {cause}")
    assert "noise, no more than usual; " in said
    # More than a hundredth of the width, and nothing in print.
    said = contributions([0.0], [0.3], (20.3, 0.1)).sentence(0)
    assert said.endswith("; 0 lack of data, no more than usual")


@pytest.mark.parametrize(
    ("noise", "lack", "shown"),
    [
        (7.6, 4.2, "wide by 11.8: 7.6 noise, ; 4.2 lack"),
        (2.46, 2.44, "wide by 4.9: 2.5 noise, ; 2.4 lack"),
        (10.4, 0.2, "wide by 10.6: 10.4 noise, ; 0.2 lack"),
        (20.3, 0.4, "wide by 21: 21 noise, ; 0 lack"),
        (0.4, 20.3, "wide by 21: 1 noise, ; 20 lack"),
        (0.00123, 0.0001, "wide by 0.00133: 0.00123 noise, ; 0.00010 lack"),
        (0.0, 0.0, "not wide: both ends are the same value"),
        (2.9, 0.004, "wide by 2.9: 2.9 noise, ; 0 lack"),
        (1.1e-7, 2e-8, "wide by 1.30e-7: 1.10e-7 noise, ; 0.20e-7 lack"),
        (253_410.0, 12_000.0, "wide by 265000: 253000 noise, ; 12000 lack"),
        (2.94e9, 1.2e8, "wide by 3.06e9: 2.94e9 noise, ; 0.12e9 lack"),
        (26.45, 1.4, "wide by 28: 27 noise, ; 1 lack"),
    ],
)
def test_numbers_add_up_as_they_are_printed(noise, lack, shown):
    said = contributions([0.0], [0.0], (noise, lack)).sentence(0)
    said = said.replace("no more than usual", "")
    assert said.startswith(shown)


def test_sentences_say_what_is_usual():
    model = Formula(lambda a, b: 10 + 20 * (a > 0), lambda a, b: 1 + 10 * (b > 0))
    X = pd.DataFrame({"hour": [17.0, -1.0], "depth": [-1.0, 2.25]})
    usual = pd.DataFrame({"hour": [-1.0, -2.0], "depth": [-1.0, -2.0]})
    adds = explain(model, X, background=usual[["depth", "hour"]]).by_column
    assert repr(adds).splitlines() == [
        "row 0: wide by 31: 30 noise, mostly hour=17; 1 lack of data, no more than "
        "usual",
        "row 1: wide by 21: 10 noise, no more than usual; 11 lack of data, mostly "
        "depth=2.25",
    ]
    frame = adds.to_frame()
    assert frame.loc[0, ("aleatoric", "hour")] == pytest.approx(20)
    assert frame.loc[1, ("epistemic", "depth")] == pytest.approx(10)
    many = explain(model, pd.concat([X] * 4), background=usual).by_column
    assert len(repr(many).splitlines()) == 6
    assert repr(many).endswith("\n... of 8 rows")
    named = explain(model, X.set_axis(["a", "b"]), background=usual).by_column
    assert list(named.to_frame().index) == ["a", "b"]
    assert repr(named).splitlines()[1].startswith("row b: wide by 21: 10 noise")


def test_notebooks_show_text_and_never_run_it():
    """Names of columns and rows, and values, come from a table of anybody."""
    model, evil = Formula(lambda a: 1 + a, lambda a: 1 + a), "<script>alert(1)</script>"
    X = pd.DataFrame({evil: np.arange(7.0)}, index=[f"{evil}{i}" for i in range(7)])
    why = explain(model, X, background=X[:2])
    found = why._repr_html_()
    assert "<script" not in found
    assert found.count("<tr") == 6  # a heading and five rows
    assert "&lt;script&gt;alert(1)&lt;/script&gt;4</th>" in found
    assert found.endswith("<p>... of 7 rows</p>")
    assert "noise, mostly &lt;script&gt;alert(1)&lt;/script&gt;=4; " in found
    assert f"<td>{why.epistemic_fraction[4]:.4g}</td>" in found
    assert "<th>why</th>" not in explain(model, X)._repr_html_()
    assert "<th>why</th>" in why.by_column._repr_html_()


def test_noise_beyond_the_background_is_not_known():
    """As a row of the background it is known, and few rows cannot tell."""
    model = Formula(lambda a: 1 + 0.1 * a, lambda a: a)
    X, known = np.array([[50.0], [30.0]]), np.arange(31.0)[:, None]
    adds = explain(model, X, background=known).by_column
    assert adds.outside.tolist() == [True, False]
    assert adds.sentence(0) == (
        "wide by 56: 6 not known (outside the background); 50 lack of data, mostly "
        "x0=50"
    )
    assert adds.sentence(1).startswith("wide by 34: 4 noise, mostly x0=30; 30 lack of")
    assert explain(model, X, background=known[:19]).by_column.outside is None


def test_infinite_intervals_have_no_contributions(fitted, data):
    X, y = data[1]
    few = CalibratedRegressor(fitted, 0.9).conformalize(X[:5], y[:5])
    infinite = {"background": X[:40], "allow_infinite_bounds": True}
    with pytest.raises(ValueError, match="infinite intervals for all background rows"):
        explain(few, X[:3], **infinite)
    few = CalibratedRegressor(fitted, (0.99, 0.5)).conformalize(X[:20], y[:20])
    why = explain(few, X[:3], **infinite)
    assert why.by_column.sentence(0).startswith("infinitely wide: the calibration rows")
    assert why.by_column.sentence(0, level=1).startswith("wide by")
    assert_additive(why)
    assert np.isnan(why.by_column.epistemic[:, :, 0]).all()


def test_groups_are_a_function_of_the_rows_on_a_path(fitted, data):
    X, y = data[1]

    def side(rows):
        return np.asarray(rows)[:, 0] > 0

    model = CalibratedRegressor(fitted, 0.8).conformalize(X, y, partition=side)
    assert_additive(explain(model, X[:3], background=X[:20]))
    labels = side(X)
    model = CalibratedRegressor(fitted, 0.8).conformalize(X, y, partition=labels)
    with pytest.raises(ValueError, match="Got partition of single rows together"):
        explain(model, X, background=X, partition=labels)


def test_categories_of_both_tables_are_kept():
    """A category that only the background has becomes no gap."""
    seen, long = [], "b" * 40

    class Codes(Formula):
        def predict_distribution(self, X):
            seen.append(set(X["kind"].astype(str)))
            return super().predict_distribution(X[["size"]])

    def table(*kinds):
        kind = pd.Categorical(kinds)
        return pd.DataFrame({"size": np.arange(len(kind)) + 1.0, "kind": kind})

    model = Codes(lambda a: a, lambda a: a)
    why = explain(model, table("a", long), background=table("c", "d"))
    assert seen[-1] == {"a", long, "c", "d"}
    assert why.by_column.values[1, 1] == "b" * 29 + "…"
    np.testing.assert_array_equal(why.by_column.aleatoric[:, 1], 0)


def test_bad_input_is_named(fitted, data):
    X, background = data[2][0], data[1][0]
    for rows, message in (
        (pd.DataFrame(background), "in one only: 0, 1, 2, x0, x1, x2"),
        (background[:, 0], r"a background of shape \(130, 0\), but"),
        (background[:, :2], r"a background of shape \(130, 2\), .* only: x2\)"),
        (background[:0], r"a background of shape \(0, 3\)"),
    ):
        with pytest.raises(ValueError, match=message):
            explain(fitted, X, background=rows)
    mapie, options = calibrated_prefit(fitted, AbsoluteConformityScore(), data[1], 0.9)
    with pytest.raises(ValueError, match="width has no aleatoric and epistemic part"):
        explain(mapie, X[:3], background=background, **options)
