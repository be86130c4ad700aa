"""A CSV file to intervals and a report, by command; bad files end with one line."""

import re
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from conftest import TINY

import mapie_claps.__main__ as command
from mapie_claps import CalibratedRegressor, load
from mapie_claps.datasets import taxis_csv
from mapie_claps.estimators.recipe import RECIPES
from mapie_claps.report import write_report

HOSTILE = "<script>alert('x')</script>"


@pytest.fixture(autouse=True)
def _small_networks(monkeypatch, tmp_path):
    monkeypatch.setitem(RECIPES, "default", TINY)
    monkeypatch.chdir(tmp_path)


def flats(n=120, seed=0):
    rng = np.random.default_rng(seed)
    area = rng.uniform(20, 90, n).round(1)
    return pd.DataFrame(
        {
            "zip": [f"0{z}" for z in rng.integers(1001, 1005, n)],
            "area": np.where(rng.random(n) < 0.1, np.nan, area),
            "house $1$": rng.choice(["12", "14", HOSTILE], n),
            "listed": (np.datetime64("2024-01-01") + rng.integers(0, 700, n)).astype(
                str
            ),
            "rent": (12 * area + rng.normal(0, area)).round(),
        }
    )


def written(table, name):
    table.to_csv(name, index=False)
    return name


def run(*args):
    return command.main([str(arg) for arg in args])


@cache
def saved():  # called where networks are small
    table = written(flats(), "flats.csv")
    assert run("fit", table, "--target", "rent", "--out", "rents.claps") == 0
    return Path("rents.claps").read_bytes()


@pytest.fixture
def fitted():
    Path("rents.claps").write_bytes(saved())
    return "rents.claps"


def test_predict_reads_columns_as_the_fit_did(fitted):
    """Zeros in front stay, text of digits stays text, and the order does not count."""
    new = flats(30, seed=1)
    few = new[new["house $1$"] == "12"]  # by itself it would be read as numbers
    for rows, name in ((new, "new.csv"), (few[list(few)[::-1]], "few.csv")):
        assert run("predict", fitted, written(rows, name), "--out", "out.csv") == 0
        found = pd.read_csv("out.csv", dtype={"zip": str})
        assert found["zip"].tolist() == rows["zip"].tolist()
        expected = load(fitted).predict_interval(rows[list(new)[:-1]])
        np.testing.assert_allclose(found["prediction"], expected[0])
        np.testing.assert_allclose(found[["lower", "upper"]], expected[1][:, :, 0])


def test_columns_of_the_table_keep_their_values(fitted):
    """Also those with a name of ours, as in what was predicted before."""
    new = flats(30, seed=1).assign(width=7.0, lower="low")
    assert run("predict", fitted, written(new, "new.csv"), "--out", "out.csv") == 0
    found = pd.read_csv("out.csv")
    assert (found["width_given"] == 7).all()
    assert (found["lower_given"] == "low").all()
    np.testing.assert_allclose(found["width"], found["upper"] - found["lower"])


def test_options_of_fit(capsys):
    options = ["--level", "0.8", "--level", "0.9", "--drop", "listed", "--text", "area"]
    table = written(flats(), "flats.csv")
    assert run("fit", table, "--target", "rent", "--out", "m.claps", *options) == 0
    assert "120 rows × 3 columns" in capsys.readouterr().err
    model = load("m.claps")
    assert list(model.levels) == [0.8, 0.9]
    assert model.csv_["columns"] == ["zip", "area", "house $1$"]
    assert model.csv_["numbers"] == []
    rows = written(flats(20, seed=2), "new.csv")
    assert run("predict", "m.claps", rows, "--out", "out.csv") == 0
    assert {"lower_0.8", "upper_0.9"} <= set(pd.read_csv("out.csv"))


def test_the_report_is_one_page_that_says_why(fitted):
    test = written(flats(60, seed=3), "test.csv")
    groups = ["--group", "zip", "--group", "area", "--group", "house $1$"]
    assert run("report", fitted, test, "--out", "report.html", *groups) == 0
    page = Path("report.html").read_text(encoding="utf-8")
    assert HOSTILE not in page
    assert "&lt;script&gt;" in page
    assert re.findall(r"(?:src|href)=\"(?!data:image/svg)", page) == []
    assert "http" not in re.sub(r"base64,[^\"]+", "", page)
    assert len(re.findall("<img ", page)) == 7
    assert re.search(r"cover <b>[\d.]+%</b> of 60 rows", page)
    assert len(re.findall("wide by [^<]+; [^<]+ lack of data", page)) == 8
    assert ">missing<" in page
    assert ">01001<" in page


def test_a_report_on_rows_of_the_fit_says_so(fitted, capsys):
    table = written(flats(), "flats.csv")
    assert run("report", fitted, table, "--out", "report.html") == 0
    said = r"The model was fitted on \d+ of 120 rows. Take new ones."
    assert re.search(f"note: {said}", capsys.readouterr().err)
    assert re.search(said, Path("report.html").read_text(encoding="utf-8"))


def test_the_report_of_a_model_in_python(fitted):
    rows = flats(40, seed=4)
    X, y = rows.drop(columns="rent"), rows["rent"]
    write_report(load(fitted), X, y.to_numpy(), "report.html")
    assert "<h1>Intervals for y</h1>" in Path("report.html").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match=r"Got groups=\['rooms'\], but X has the"):
        write_report(load(fitted), X, y, "report.html", groups=["rooms"])


def test_the_report_of_polars_arrays_and_a_group_named_all():
    rng = np.random.default_rng(0)
    X, y = rng.uniform(size=(90, 2)), rng.normal(size=90)
    model = CalibratedRegressor(cv="split", random_state=0).fit(X[:60], y[:60])
    write_report(model, X[60:], y[60:], "array.html")
    assert Path("array.html").read_text(encoding="utf-8").count("<b>row ") == 8
    table = pl.DataFrame({"x": X[:, 0], "who": ["all", "one", "two"] * 30})
    model = CalibratedRegressor(cv="split", random_state=0).fit(table[:60], y[:60])
    write_report(model, table[60:], y[60:], "polars.html", groups="who")
    page = Path("polars.html").read_text(encoding="utf-8")
    assert [page.count(f"<td>{name}</td>") for name in ("all", "one")] == [2, 1]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "Cannot read bad.csv as CSV in UTF-8: No columns"),
        (b"area,rent\n", "Got bad.csv without rows"),
        (b"area,rent\n1,2,3\n4,5,6\n", "more values in a row than names"),
        (b"area,rent\n1,2\n4,5,6\n", "Cannot read bad.csv as CSV in UTF-8: .* line 3"),
        (b"area,rent\n\xe9,2\n", "Cannot read bad.csv as CSV in UTF-8: .*0xe9"),
        (b"area,price\n1,2\n", "without column 'rent': it has 'area', 'price'"),
        (b"area,rent\n1,2\n3,\n", "Got '' in column 'rent' of bad.csv, row 2, but"),
        (b"area,rent\n1,2\n3,low\n", "Got 'low' in column 'rent' of bad.csv, row 2"),
    ],
)
def test_tables_that_cannot_be_fitted(content, told, capsys):
    Path("bad.csv").write_bytes(content)
    assert run("fit", "bad.csv", "--target", "rent", "--out", "m.claps") == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert re.match(f"error: .*{told}", lines[0])


def test_new_tables_that_do_not_go_with_the_model(fitted, capsys):
    new = flats(20, seed=5).drop(columns="rent")
    few = written(new.drop(columns="area"), "few.csv")
    words = written(new.assign(area="large"), "words.csv")
    whole = written(new, "whole.csv")
    endless = written(new.assign(area=np.inf), "endless.csv")
    rows = written(flats(20, seed=5), "rows.csv")
    told = "Got 'large' in column 'area' of words.csv, row 1"
    cases = [
        (["predict", fitted, few], "without column 'area': it has 'zip', "),
        (["predict", fitted, words], told),
        (["predict", fitted, endless], "Got 'inf' in column 'area' of endless.csv, "),
        (["report", fitted, whole], "without column 'rent': .* predict does not"),
        (["report", fitted, rows, "--group", "rooms"], "without column 'rooms'"),
        (["predict", whole, whole], "Cannot load 'whole.csv'"),
        (["predict", ".", whole], "Is a directory: '.'"),
        (["predict", fitted, "gone.csv"], "No such file"),
    ]
    for args, told in cases:
        assert run(*args, "--out", "out") == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        assert re.match(f"error: .*{told}", lines[0])
    assert run("predict", fitted, whole, "--out", whole) == 2
    assert run("predict", fitted, whole, "--out", "gone/out.csv") == 2
    assert run("fit", whole, "--target", "rent", "--out", ".") == 2
    assert capsys.readouterr().err.count("where no file can be written") == 2
    assert run("fit", rows, "--target", "rent", "--out", "m", "--level", "90") == 2
    assert "Got --level=90.0, but expected" in capsys.readouterr().err
    load(fitted).estimators_[0].save("plain.claps")
    assert run("predict", "plain.claps", whole, "--out", "out") == 2
    assert "not written by the command fit" in capsys.readouterr().err


def test_too_few_rows_are_told_by_fit(capsys):
    few = written(flats(8), "few.csv")
    assert run("fit", few, "--target", "rent", "--out", "few.claps") == 2
    assert "needs at least 9. Calibrate on more rows" in capsys.readouterr().err
    assert not Path("few.claps").exists()


def test_without_pandas_the_extra_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert run("predict", "m.claps", "new.csv", "--out", "out") == 2
    assert "pip install 'mapie-claps[cli]'" in capsys.readouterr().err


def test_notes_of_the_library_are_single_lines(capsys):
    table = flats().assign(id=[f"flat {i}" for i in range(120)])
    args = "--target", "rent", "--out", "m.claps"
    assert run("fit", written(table, "flats.csv"), *args) == 0
    notes = [x for x in capsys.readouterr().err.splitlines() if x.startswith("note: ")]
    assert any("Left column 'id' out" in note for note in notes)


def test_the_shipped_table_has_text_dates_and_gaps():
    table = pd.read_csv(taxis_csv())
    assert table.shape == (1000, 9)
    assert taxis_csv().stat().st_size < 100_000
    assert table.isna().any().sum() == 4
    assert table["fare"].notna().all()
    assert pd.to_datetime(table["pickup"]).dt.year.eq(2019).all()
