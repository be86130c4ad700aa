"""Tables as people have them: numbers, levels, gaps and dates become inputs."""

import copy
import datetime
import re
import warnings
from functools import partial

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import sklearn
import torch
from conftest import tiny
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

from mapie_claps import CalibratedRegressor, explain
from mapie_claps.network.preprocessing import (
    MAX_LEVELS,
    MIN_ROWS,
    N_DONORS,
    N_FOLDS,
    TrainingData,
    check_columns,
    check_training_data,
    fit_scaler,
    fit_table,
    wild_remarks,
)
from mapie_claps.network.rows import folds_of
from mapie_claps.network.tables import as_table

N = 120
refused = partial(pytest.raises, (ValueError, TypeError))
CATEGORICAL = {"city": "category", "zip": "category"}


def fit(X, y=None, weight=None, categorical_features="from_dtype", preprocessor=None):
    n = len(X)
    y = np.arange(float(n)) if y is None else y
    weight = np.ones(n) if weight is None else weight
    data = TrainingData(as_table(X), y, weight, None, np.arange(n))
    return fit_table(data, categorical_features, preprocessor, 0)


def names(X, **options):
    return fit(X, **options)[0].output_names


def mixed(n=N, seed=0):
    rng = np.random.default_rng(seed)
    day = pd.Timestamp("2023-01-30") + pd.to_timedelta(rng.integers(0, 900, n), "D")
    sold = day + pd.to_timedelta(rng.integers(0, 90, n), "D")
    frame = pd.DataFrame(
        {
            "area": rng.normal(size=n),
            "rooms": rng.integers(1, 6, n),
            "city": rng.choice(["Bonn", "Köln", "Ulm"], n),
            "zip": rng.choice([f"5{i:04d}" for i in range(30)], n),
            "garden": rng.random(n) < 0.5,
            "listed": day.astype("datetime64[us]"),
            "sold": sold.astype("datetime64[us]"),
        }
    )
    frame.loc[rng.random(n) < 0.2, "area"] = np.nan
    frame.loc[rng.random(n) < 0.2, "city"] = None
    return frame


def test_an_array_of_numbers_stays_as_it_is():
    X = np.random.default_rng(0).normal(size=(50, 4))
    encoder, inputs = fit(X)
    assert encoder.is_plain
    assert encoder.output_names == ["x0", "x1", "x2", "x3"]
    assert encoder.n_numbers == 4
    np.testing.assert_array_equal(inputs, X)
    values, unseen = encoder.encode(X)
    assert unseen is None
    assert np.shares_memory(values, X)
    np.testing.assert_array_equal(encoder.transformer.transform(X), X)
    encoder.transformer = None  # which is too slow for one row, and not asked
    for table in (X, pd.DataFrame(X)):
        np.testing.assert_array_equal(encoder.encode(table).values, X)


@pytest.mark.parametrize("dtype", ["int32", "float32", "bool", "Int64", "boolean"])
def test_a_frame_of_numbers_and_truth_values_stays_as_it_is(dtype):
    X = (np.random.default_rng(0).normal(size=(50, 3)) > 0).astype("int8")
    frame = pd.DataFrame(X, columns=list("abc")).astype({"c": dtype})
    encoder, inputs = fit(frame)
    np.testing.assert_array_equal(inputs, X.astype(float))
    np.testing.assert_array_equal(encoder.encode(frame).values, X)


CONVERSIONS = {
    "polars": pl.from_pandas,
    "pyarrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
    "nullable": lambda frame: frame.convert_dtypes(),
    "arrow-backed": lambda frame: frame.convert_dtypes(dtype_backend="pyarrow"),
    "category": lambda frame: frame.astype(CATEGORICAL),
    "polars category": lambda frame: pl.from_pandas(frame.astype(CATEGORICAL)),
    "objects": lambda frame: frame.astype(object),
    "array": lambda frame: frame.to_numpy(dtype=object),
    "list": lambda frame: frame.to_numpy(dtype=object).tolist(),
    "dates as text": lambda frame: frame.astype({"sold": str}),
}


@pytest.mark.parametrize("convert", CONVERSIONS.values(), ids=CONVERSIONS)
def test_every_kind_of_table_gives_the_same_inputs(convert):
    frame = mixed()
    encoder, inputs = fit(frame)
    other, other_inputs = fit(convert(frame))
    np.testing.assert_array_equal(inputs, other_inputs)
    values = encoder.encode(frame).values
    np.testing.assert_array_equal(values, encoder.encode(convert(frame)).values)
    np.testing.assert_array_equal(values, other.encode(frame).values)


def test_names_and_sources_of_the_inputs():
    encoder, inputs = fit(mixed())
    found = encoder.output_names
    parts = ["days", "season_sin", "season_cos", "day", "weekday"]
    expected = [f"{date}_{part}" for date in ("listed", "sold") for part in parts]
    expected = ["area", "rooms", *expected, "listed_to_sold", "zip_mean"]
    assert found[: encoder.n_numbers] == expected
    levels = [n for n in found[encoder.n_numbers :] if not n.startswith("zip_5")]
    expected = ["area_missing", "city_Bonn", "city_Köln", "city_Ulm", "city_missing"]
    assert levels == [*expected, "garden_True"]
    assert inputs.shape == (N, len(found))
    assert not np.isin(inputs[:, : encoder.n_numbers], (0, 1)).all(axis=0).any()
    assert np.isin(inputs[:, encoder.n_numbers :], (0, 1)).all()
    where = {
        name: np.flatnonzero(encoder.sources[:, k]).tolist()
        for k, name in enumerate(found)
    }
    assert where["city_Ulm"] == [2]
    assert where["area_missing"] == [0]
    assert where["listed_to_sold"] == [5, 6]
    assert where["zip_mean"] == [3]


@pytest.mark.parametrize("seed", range(25))
def test_random_frames(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(25, 80))
    day = np.datetime64("1969-12-30")
    kinds = {
        "number": rng.normal(size=n) * 10.0 ** rng.integers(-5, 6),
        "integer": rng.integers(-3, rng.integers(3, 10**6), n),
        "constant": np.full(n, rng.normal()),
        "truth": rng.random(n) < rng.random(),
        "few": rng.choice(list("abcdefg")[: rng.integers(1, 8)], n),
        "many": rng.choice([f"z{i}" for i in range(50)], n),
        "category": pd.Categorical(rng.choice(list("pqrs"), n)),
        "date": (day + rng.integers(0, 900, n)).astype("datetime64[us]"),
        "text date": (day + rng.integers(0, 900, n)).astype(str),
        "length": rng.integers(0, 10**5, n).astype("timedelta64[s]"),
    }
    chosen = rng.choice(list(kinds), rng.integers(1, 8))
    frame = pd.DataFrame({f"c{j}": kinds[k] for j, k in enumerate(chosen)})
    for name in frame:
        if rng.random() < 0.4:
            frame[name] = frame[name].where(rng.random(n) < 0.8)
    encoder, inputs = fit(frame, rng.normal(size=n))
    values, unseen = encoder.encode(frame)
    assert unseen is None  # every value of the training rows was seen
    assert np.isfinite(values).all()
    fitted_to_y = [k.endswith("_mean") for k in encoder.output_names]
    same = ~np.array(fitted_to_y)
    np.testing.assert_array_equal(values[:, same], inputs[:, same])
    parts = [encoder.encode(frame[i : i + 7]).values for i in range(0, n, 7)]
    np.testing.assert_array_equal(np.vstack(parts), values)
    np.testing.assert_array_equal(encoder.encode(pl.from_pandas(frame)).values, values)
    spoiled = frame.astype(object).where(rng.random(frame.shape) < 0.7, None)
    values, unseen = encoder.encode(spoiled)
    assert np.isfinite(values).all()
    if unseen is not None:
        draws = encoder.replace(values, unseen, encoder.donors[:, None])
        assert np.isfinite(draws).all()


def test_gaps_are_filled_with_the_median_and_flagged():
    X = np.array([[1.0, 1], [np.nan, 2], [4, 3], [9, 4]])
    encoder, inputs = fit(X)
    assert encoder.output_names == ["x0", "x1", "x0_missing"]
    expected = [[1, 1, 0], [4, 2, 1], [4, 3, 0], [9, 4, 0]]
    np.testing.assert_array_equal(inputs, expected)
    # A gap in the second column never occurred, one in the first did.
    unseen = encoder.encode(np.array([[np.nan, 2.0], [1, np.nan]])).unseen
    np.testing.assert_array_equal(unseen, [[False, False], [False, True]])


def levels_of(counts):
    return pd.DataFrame(
        {"v": [f"v{k:03d}" for k, n in counts.items() for _ in range(n)]}
    )


def test_a_level_has_an_input_of_its_own_if_it_has_enough_rows():
    frame = levels_of({0: 800, 1: MIN_ROWS, 2: MIN_ROWS - 1})
    assert names(frame) == ["v_v000", "v_v001", "v_rare"]
    frame = levels_of({0: 800, 1: MIN_ROWS, 2: MIN_ROWS - 1, 3: 1})
    assert names(frame) == ["v_mean", "v_v000", "v_v001", "v_rare"]
    # Where frequent levels have few of the rows, all are told by their means.
    rare = dict.fromkeys(range(1, 60), MIN_ROWS - 1)
    assert names(levels_of({0: 800} | rare)) == ["v_mean"]
    # In a small table a twentieth of the rows will do.
    assert names(levels_of(dict.fromkeys(range(20), 2)))[:2] == ["v_v000", "v_v001"]
    assert names(levels_of(dict.fromkeys(range(30), 3))) == ["v_mean"]


def test_inputs_of_a_column_grow_with_its_levels_up_to_a_limit():
    widths = [
        len(names(levels_of(dict.fromkeys(range(n), MIN_ROWS))))
        for n in (2, 3, 20, 21, MAX_LEVELS, MAX_LEVELS + 1, 2 * MAX_LEVELS)
    ]
    assert widths == [1, 3, 20, 21, MAX_LEVELS, MAX_LEVELS + 1, 1]


def test_no_training_row_sees_its_own_target():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"v": [f"v{c}" for c in rng.integers(0, 30, N)]})
    groups, y = torch.arange(N) // 2, rng.permutation(N).astype(float)
    folds = folds_of(N, groups.numpy(), N_FOLDS, 0).test_fold
    assert (folds[::2] == folds[1::2]).all()
    held_out = folds == 3
    changed = y.copy()
    changed[held_out] = y[held_out][::-1]
    both = [
        TrainingData(frame, target, np.ones(N), groups, np.arange(N))
        for target in (y, changed)
    ]
    inputs, others = (fit_table(d, "from_dtype", None, 0)[1][:, 0] for d in both)
    np.testing.assert_array_equal(inputs[held_out], others[held_out])
    assert (inputs != others).any()


def test_a_level_is_seen_behind_other_columns_and_a_long_tail():
    rng = np.random.default_rng(0)
    codes, x = rng.integers(0, 100, 900), rng.normal(size=900)
    effect = rng.normal(0, 0.3, 100)
    y = np.exp(2 * x + effect[codes] + rng.normal(0, 0.1, 900))
    frame = pd.DataFrame({"x": x, "v": [f"v{c}" for c in codes]})
    for weight in (None, rng.uniform(0.5, 2, 900)):
        encoder, inputs = fit(frame, y, weight)
        found = inputs[:, encoder.output_names.index("v_mean")]
        assert np.corrcoef(found, effect[codes])[0, 1] > 0.9


@pytest.mark.parametrize("n_values", [1, 2, 3, 20, 21, 200])
def test_unseen_levels_are_marked_and_have_known_alternatives(n_values):
    rng = np.random.default_rng(0)
    codes = np.arange(480) % n_values
    frame = pd.DataFrame({"v": [f"v{code}" for code in codes]})
    encoder, inputs = fit(
        frame, rng.normal(size=n_values)[codes] + rng.normal(size=480)
    )
    assert encoder.encode(pd.DataFrame({"v": ["v0"]})).unseen is None
    values, unseen = encoder.encode(pd.DataFrame({"v": ["v0", "other", None]}))
    assert unseen.tolist() == [[False], [True], [True]]
    assert encoder.n_known(unseen[1:]).tolist() == [n_values] * 2
    draws = encoder.replace(values, unseen, encoder.donors[:, None])
    assert draws.shape == (N_DONORS, 3, inputs.shape[1])
    np.testing.assert_array_equal(draws[:, 0], np.tile(values[0], (N_DONORS, 1)))
    possible = encoder.encode(frame).values
    for draw in draws[:, 1]:
        assert (draw == possible).all(axis=1).any()
    assert len(np.unique(draws[:, 1], axis=0)) == min(n_values, N_DONORS)


def test_alternatives_replace_all_that_rests_on_the_unseen_value_and_no_more():
    frame = mixed()
    encoder, _ = fit(frame)
    row = frame.head(1).assign(sold=pd.NaT, area=0.5, city="Rom")
    values, unseen = encoder.encode(row)
    assert np.flatnonzero(unseen[0]).tolist() == [2, 6]
    assert encoder.n_known(unseen).tolist() == [4]
    touched = [
        n.startswith(("sold", "city", "listed_to")) for n in encoder.output_names
    ]
    draws = encoder.replace(values, unseen, encoder.donors[:, None])[:, 0]
    assert np.isfinite(draws).all()
    kept = ~np.array(touched)
    np.testing.assert_array_equal(
        draws[:, kept], np.tile(values[0, kept], (N_DONORS, 1))
    )
    days = draws[:, encoder.output_names.index("listed_to_sold")]
    assert days.min() >= 0
    assert days.max() < 90
    assert (np.ptp(draws[:, touched], axis=0) > 0).all()


def test_a_gap_in_an_array_of_numbers():
    X = np.random.default_rng(0).normal(size=(50, 3))
    encoder, _ = fit(X)
    holes = X[:4].copy()
    holes[1:3, 1] = np.nan
    values, unseen = encoder.encode(holes)
    np.testing.assert_array_equal(unseen, np.isnan(holes))
    assert np.isfinite(values).all()
    for draw in encoder.replace(values, unseen, encoder.donors[:, None]):
        assert np.isin(draw[:, 1], X[:, 1]).all()
        np.testing.assert_array_equal(draw[:, 0], X[:4, 0])
    assert encoder.n_known(unseen).min() > 10**6


def test_a_column_without_values_is_one_of_gaps():
    encoder, _ = fit(mixed())
    frame = mixed().assign(city=np.nan, garden=None, sold=None, area=None)
    unseen = encoder.encode(frame).unseen
    assert np.flatnonzero(unseen.any(axis=0)).tolist() == [4, 6]


def test_a_row_of_zeros_and_an_empty_table_pass():
    encoder, inputs = fit(mixed())
    zeros = encoder.encode(np.zeros((1, 7))).values
    assert zeros.shape == (1, inputs.shape[1])
    assert np.isfinite(zeros).all()
    assert encoder.encode(mixed().head(0)).values.shape == (0, inputs.shape[1])


def test_levels_of_any_type():
    for levels, expected in (
        ([3, 1, 2], ["v_1", "v_2", "v_3"]),
        ([False, True, False], ["v_True"]),
        ([2.5, 0.5, 1.5], ["v_0.5", "v_1.5", "v_2.5"]),
        ([1, "a", 1], ["v_a"]),
        (pd.cut([0, 5, 9], 3), ["v_(-0.009, 3.0]", "v_(3.0, 6.0]", "v_(6.0, 9.0]"]),
        (pd.to_datetime(["2024-01-02"] * 3), ["v_2024-01-02 00:00:00"]),
    ):
        frame = pd.DataFrame({"v": pd.Categorical(list(levels) * 4)})
        encoder, inputs = fit(frame)
        assert encoder.output_names == expected
        np.testing.assert_array_equal(encoder.encode(frame).values, inputs)


def test_named_columns_are_categorical():
    X = np.column_stack([np.arange(12) % 3, np.arange(12.0)])
    frame = pd.DataFrame(X, columns=["kind", "size"])
    expected = ["size", "kind_0", "kind_1", "kind_2"]
    for named in (["kind"], [0], [-2], [True, False], np.array([0]), ("kind", 0)):
        assert names(frame, categorical_features=named) == expected
    assert len(names(X, categorical_features=[0])) == 4
    for wrong in ("kind", ["other"], [2], [True], [[0]], [0.5], None):
        with refused(match=r"Got categorical_features=.*'kind', 'si"):
            fit(frame, categorical_features=wrong)


def test_named_columns_of_dates_and_of_unique_text_are_categorical():
    days = pd.Series(["2024-01-01", "2024-01-02", "2024-01-03"] * 10)
    frame = pd.DataFrame({"id": [f"u{i}" for i in range(30)], "day": days})
    frame["on"] = pd.to_datetime(days)
    encoder, _ = fit(frame, categorical_features=["id", "day", "on"])
    assert encoder.output_names[:2] == ["id_mean", "day_2024-01-01"]
    assert encoder.output_names[-1] == "on_2024-01-03T00:00:00"
    assert encoder.remarks == []


def test_an_id_is_left_out():
    frame = mixed().assign(id=[f"u{i}" for i in range(N)], void=np.nan)
    encoder, _ = fit(frame)
    first, second = encoder.remarks
    assert "column 'id' out: nearly all of its texts differ" in first
    assert "column 'void' out: it has no values" in second
    assert not any("id" in name or "void" in name for name in encoder.output_names)
    assert encoder.encode(frame.assign(id=3)).unseen is None
    with refused(match=r"\['id', 'void'\], none of which can be used"):
        fit(frame[["id", "void"]])


def test_text_that_looks_like_numbers_or_dates_is_remarked_on():
    number = [f"{i % 40 / 10:.1f}" for i in range(N)]
    day = [f"2024-01-{1 + i % 28:02d}" for i in range(N - 1)] + ["unknown"]
    code = [f"5{i % 40:04d}" for i in range(N)]
    frame = pd.DataFrame({"number": number, "day": day, "code": code})
    first, second = fit(frame)[0].remarks
    assert "column 'number' as categories, although its texts" in first
    assert "column 'day' as categories" in second
    assert "pandas.to_datetime" in second
    assert fit(frame, categorical_features=["number", "day"])[0].remarks == []


def test_integers_that_look_like_codes_are_remarked_on():
    rng = np.random.default_rng(0)
    store, hour = rng.integers(0, 200, 4_000), rng.integers(0, 24, 4_000)
    effect, noise = rng.normal(size=200), rng.normal(size=4_000)
    y = effect[store] + np.sin(hour / 4) + 0.5 * noise
    frame = pd.DataFrame(
        {"store": store, "hour": hour, "count": rng.poisson(40, 4_000)}
    )
    (remark,) = fit(frame, y)[0].remarks
    assert "'store' as numbers" in remark
    assert "categorical_features=['store']" in remark
    assert fit(frame, y, categorical_features=["store"])[0].remarks == []
    assert fit(frame, noise)[0].remarks == []
    gaps = frame["store"].where(rng.random(4_000) < 0.9).to_frame()
    assert len(fit(gaps, y)[0].remarks) == 1
    assert fit(gaps + 0.5, y)[0].remarks == []  # no integers


def wild_values(values):
    return wild_remarks(values, "y", np.arange(len(values)))


def test_wild_values_are_named_and_long_tails_pass():
    rng = np.random.default_rng(0)
    y = rng.normal(size=500)
    assert wild_values(y) == []
    y[[17, 40]] = 1e4, -1e4
    messages = wild_values(y)
    assert len(messages) == 2
    assert "Got 10000.0 in y, row 17 of those" in "".join(messages)
    assert wild_values(np.where(np.arange(500) < 4, 1e4, y)) == []  # too many
    tails = [rng.lognormal(0, s, 2_000) for s in (1, 2)]
    tails += [rng.standard_t(3, 2_000), rng.negative_binomial(0.3, 0.01, 2_000)]
    for tail in tails:
        assert wild_values(tail.astype(float)) == []
    rare = np.where(np.arange(500) < 30, np.arange(500.0), 0)  # IQR of zero
    assert wild_values(rare) == []
    rare[7] = 1e5
    assert "row 7" in wild_values(rare)[0]
    for quiet in (np.zeros(50), np.eye(50)[0], np.array([1.0, 1e9]), large_numbers()):
        assert wild_values(quiet) == []
    frame = mixed()
    frame.loc[5, "area"] = 1e6
    (remark,) = fit(frame)[0].remarks
    assert remark.startswith("Got 1000000.0 in column 'area', row 5 of those")


def large_numbers():
    return np.array([-1e308, 1e308] * 20)


def test_a_search_shows_each_remark_once():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"key": [f"u{i}" for i in range(60)], "a1": rng.normal(size=60)}
    )
    frame.loc[5, "a1"] = 1e6
    search = GridSearchCV(
        tiny(max_steps=2), {"learning_rate": [0.1, 0.01]}, cv=3, refit=False
    )
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        warnings.simplefilter("always", BytesWarning)  # SciPy has one of its own
        search.fit(frame, frame["a1"].to_numpy() > 0)
    ours = [warning for warning in found if warning.category is UserWarning]
    texts = sorted(str(warning.message)[:20] for warning in ours)
    assert texts == ["Got 1000000.0 in col", "Left column 'key' ou"]
    with pytest.warns(UserWarning, match="Left column 'key' out"):
        tiny(max_steps=2).fit(frame.drop(5), np.arange(59.0))


@pytest.mark.filterwarnings("error")
def test_rows_as_records():
    frame, y = mixed(), np.random.default_rng(0).normal(size=N)
    model = tiny(max_steps=2).fit(frame[:80], y[:80])
    calibrated = CalibratedRegressor(model).conformalize(frame[80:], y[80:])
    row = frame.iloc[[3]]
    record = row.to_dict("records")[0]
    for X in (
        record,
        [record],
        dict(reversed(record.items())),
        frame.iloc[3],
        pl.from_pandas(row).to_struct("row"),
    ):
        np.testing.assert_array_equal(model.predict(X), model.predict(row))
        for found, expected in zip(
            calibrated.predict_interval(X),
            calibrated.predict_interval(row),
            strict=True,
        ):
            np.testing.assert_array_equal(found, expected)
        for rows in (frame[:30], pl.from_pandas(frame[:30])):
            why = explain(calibrated, X, background=rows, allow_infinite_bounds=True)
            assert why.by_column.names == tuple(frame)
    assert model.predict([record, record]).shape == (2,)
    for wrong in ("many", np.inf):
        with refused(match=f"Got {wrong!r} in column 'area', row 1"):
            model.predict([record, record | {"area": wrong}])
    short = {key: record[key] for key in list(record)[1:]} | {"heat": 1}
    for X in (short, [short], [record, short]):
        with refused(match=r"row \d of X, in which \['area', 'heat'\] are missing"):
            calibrated.predict_interval(X)
    with refused(match=r"X.to_frame\(\) if this is a column"):
        model.predict(frame["area"])
    with refused(match=r"type list.*Pass pandas.DataFrame\(X\)"):
        tiny().fit([record] * 5, y[:5])
    unnamed = tiny(max_steps=2).fit(np.column_stack([y, y]), y)
    with refused(match=r"type dict.*pandas.DataFrame\(\[record\]\)"):
        unnamed.predict({"area": 1})


def test_parts_of_dates():
    dates = pd.to_datetime(["2024-02-29 06:00", "2025-03-03 18:00", "2024-07-01 00:00"])
    encoder, inputs = fit(pd.DataFrame({"t": dates}))
    part = dict(zip(encoder.output_names, inputs.T, strict=True))
    np.testing.assert_array_equal(part["t_day"], [29, 3, 1])
    np.testing.assert_array_equal(part["t_weekday"], [3, 0, 0])
    np.testing.assert_array_equal(part["t_hour"], [6, 18, 0])
    np.testing.assert_allclose(part["t_hour_sin"], [1, -1, 0], atol=1e-12)
    np.testing.assert_allclose(part["t_hour_cos"], [0, 0, 1], atol=1e-12)
    assert part["t_days"][0] - part["t_days"][2] == -122.75
    np.testing.assert_allclose(
        part["t_season_sin"] ** 2 + part["t_season_cos"] ** 2, np.ones(3)
    )
    days = pd.DataFrame({"t": pd.date_range("2024-01-01", periods=7)})
    assert names(days) == ["t_days", "t_weekday"]
    assert names(days.head(1).sample(5, replace=True)) == ["t_days"]


def test_differences_of_dates_and_their_gaps():
    first = pd.Series(pd.date_range("2024-01-01", periods=6, freq="7D"))
    second = first + pd.to_timedelta([1, 2, 3, 4, 5, 6], "D")
    frame = pd.DataFrame({"a": first.where(first.index > 0), "b": second})
    encoder, inputs = fit(frame)
    days = inputs[:, encoder.output_names.index("a_to_b")]
    np.testing.assert_array_equal(days, [4, 2, 3, 4, 5, 6])
    many = pd.DataFrame(dict.fromkeys("abcde", first))
    pairs = [name for name in names(many) if "_to_" in name]
    assert pairs == ["a_to_b", "b_to_c", "c_to_d", "d_to_e"]
    apart = frame.assign(b=second.where(second.index == 0))
    assert "a_to_b" not in names(apart)


DAYS = [datetime.date(2024, 1, 31), datetime.date(2024, 2, 1)]
FORMATS = ["%Y-%m-%d", "%Y-%m-%dT10:00:00Z", "%Y-%m-%d 10:00:00.5+01:00", "%Y/%m/%d"]


@pytest.mark.parametrize("form", FORMATS)
def test_text_that_all_parses_as_dates(form):
    text = [day.strftime(form) for day in DAYS]
    frame = pd.DataFrame({"t": text * 10})
    encoder, inputs = fit(frame)
    assert encoder.output_names[:2] == ["t_days", "t_weekday"]
    np.testing.assert_array_equal(inputs[:2, 1], [2, 3])
    assert inputs[1, 0] - inputs[0, 0] == 1
    bad = frame.assign(t=[*text, "soon"] + text * 8 + text[:1])
    with refused(match=r"Got 'soon' in column 't', row 2, but expected dates, as in"):
        encoder.encode(bad)
    assert names(bad)[-1] == "t_soon"


@pytest.mark.parametrize("form", ["%m/%d/%Y", "%d.%m.%Y", "%Y%m%d"])
def test_dates_that_do_not_begin_with_the_year_are_not_guessed(form):
    frame = pd.DataFrame({"t": [day.strftime(form) for day in DAYS] * 10})
    encoder, _ = fit(frame)
    assert encoder.output_names == ["t_" + DAYS[0].strftime(form)] or (
        encoder.output_names == ["t_" + DAYS[1].strftime(form)]
    )
    remark = r"Took column 't' as categories.*pandas.to_datetime"
    assert len(encoder.remarks) == (form != "%Y%m%d")
    assert all(re.match(remark, text) for text in encoder.remarks)


def test_the_hour_is_that_of_the_clock_and_the_zone_one_for_all():
    utc = pd.date_range("2024-07-01 22:30", periods=30, freq="h", tz="UTC")
    local = pd.DataFrame({"t": utc.tz_convert("Asia/Tokyo")})
    clock = pd.DataFrame({"t": local["t"].dt.tz_localize(None)})
    encoder, expected = fit(local)
    np.testing.assert_array_equal(fit(clock)[1], expected)
    for table in (
        local,
        pl.from_pandas(local),
        local.astype(object),
        clock.astype(str),
    ):
        np.testing.assert_array_equal(fit(table)[1], expected)
        np.testing.assert_array_equal(encoder.encode(table).values, expected)
    both = [utc[0], local["t"][1]] + [utc[2].tz_localize(None)] * 10
    for mixture in (both, list(map(str, both))):
        with refused(match=r"zones \[.*\] in column 't', but expected one for all"):
            fit(pd.DataFrame({"t": mixture}, dtype=object))


def changed(name, value, row=3):
    frame = mixed().astype({name: object})
    frame.at[row, name] = value
    return frame


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (changed("area", np.inf), r"Got inf in column 'area', row 3.*finite"),
        (
            changed("area", "12 m²"),
            r"Got '12 m²' in column 'area', row 3.*one of them in",
        ),
        (mixed().assign(area="big"), r"Got 'big' in column 'area', row 0.*numbers, as"),
        (mixed().assign(city=4), r"Got 4.0 in column 'city', row 0.*text, as in fit"),
        (mixed().assign(garden="yes"), r"Got 'yes' in column 'garden'.*truth values"),
        (mixed().assign(sold=17), r"Got 17.0 in column 'sold', row 0.*dates, as in"),
        (mixed().assign(sold="soon"), r"Got 'soon' in column 'sold', row 0.*dates, as"),
        (
            mixed().assign(area=pd.Timestamp("2024-01-01")),
            r"Got datetime.*2024, 1, 1.* in column 'area', row 0.*numbers, as in",
        ),
        (changed("city", ("a", 1)), r"Got \('a', 1\) in column 'city', row 3.*or text"),
        (changed("zip", b"50001"), r"Got b'50001' in column 'zip', row 3"),
        (mixed()[[]], r"0 feature\(s\)"),
        (pl.from_pandas(mixed()).lazy(), r"Got X of type LazyFrame.*X.collect\(\)"),
        (mixed()["area"], r"Got X of type Series.*X.to_frame"),
    ],
)
def test_errors_name_the_column_the_value_and_the_remedy(frame, message):
    encoder, _ = fit(mixed())
    with refused(match=message):
        encoder.encode(frame)


@pytest.mark.parametrize("as_frame", [False, True])
def test_infinity_among_numbers_is_named(as_frame):
    X = np.ones((5, 3))
    bad = X.copy()
    bad[2, 1] = -np.inf
    if as_frame:
        X, bad = (pd.DataFrame(a, columns=list("abc")) for a in (X, bad))
    match = f"Got -inf in column {'.b.' if as_frame else '1'}, row 2, but expected f"
    for call in (fit, fit(X)[0].encode):
        with refused(match=match):
            call(bad)


def test_tables_that_are_taken_and_refused():
    assert as_table(torch.ones(3, 2, requires_grad=True)).shape == (3, 2)
    large = np.full((5, 2), 1e308)  # whose sum overflows
    np.testing.assert_array_equal(fit(large)[1], large)
    frame = mixed()
    with refused(match=r"columns of the same name, \['zip'\]"):
        fit(pd.concat([frame, frame[["zip"]]], axis=1))
    with refused(match=r"type list.*Pass pandas.DataFrame\(X\)"):
        as_table(frame.to_dict("records"))
    with refused(match=r"type dict.*pandas.DataFrame\(\[record\]\)"):
        as_table({"area": 1})
    with refused(match=r"0 sample\(s\)"):
        as_table(frame.head(0))
    with refused(match="masked array with 1 masked"):
        as_table(np.ma.masked_equal([[1.0, 2.0]], 2.0))
    with refused(match="Reshape your data"):
        as_table(np.ones(3))


def own():
    return ColumnTransformer(
        [
            ("number", StandardScaler(), ["rooms"]),
            ("level", OneHotEncoder(handle_unknown="ignore"), ["city"]),
        ]
    )


def test_a_transformer_of_the_user():
    frame, transformer = mixed(), own()
    encoder, inputs = fit(frame, preprocessor=transformer)
    assert not hasattr(transformer, "transformers_")  # a clone was fitted
    assert encoder.n_numbers == 1  # the 0/1 outputs come last
    assert encoder.output_names[:2] == ["number__rooms", "level__city_Bonn"]
    values, unseen = encoder.encode(frame.assign(city=["Rom", *frame["city"][1:]]))
    assert unseen is None
    np.testing.assert_array_equal(values[1:], inputs[1:])
    assert not values[0, 1:].any()
    by_position = fit(frame[["rooms"]], preprocessor=FunctionTransformer(np.log))[0]
    assert by_position.output_names == ["output 0"]


class Targets(BaseEstimator):
    """Gives what it is told."""

    def __init__(self, given):
        self.given = given

    def fit_transform(self, X, y):
        return self.given

    transform = fit_transform


def test_what_a_transformer_of_the_user_must_give():
    frame = mixed()
    holes = np.ones((N, 2))
    holes[4, 1] = np.nan
    with refused(match="X as the preprocessor gives it contains NaN"):
        fit(frame, preprocessor=Targets(holes))
    with refused(match="convert"):
        fit(frame, preprocessor=Targets(np.full((N, 1), "text")))
    for wrong in ("passthrough", StandardScaler):
        with refused(match="Cannot clone object"):
            fit(frame, preprocessor=wrong)
    with refused(match="Got categorical_features beside a preprocessor"):
        fit(frame, preprocessor=own(), categorical_features=["zip"])


def test_a_regressor_with_a_transformer_of_the_user():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.lognormal(size=80), "b": rng.normal(size=80)})
    y = np.log(frame["a"].to_numpy()) + 0.1 * rng.normal(size=80)
    log = FunctionTransformer(np.log1p, feature_names_out="one-to-one")
    with_log = make_pipeline(
        ColumnTransformer([("log", log, ["a"])], remainder="passthrough"),
        StandardScaler(),
    )
    model = tiny(preprocessor=with_log).fit(frame, y)
    assert model.preprocessor_ is not with_log
    assert model.table_.output_names == ["log__a", "remainder__b"]
    assert np.corrcoef(model.predict(frame), y)[0, 1] > 0.8


def test_other_settings_of_scikit_learn_change_nothing():
    frame = mixed()
    encoder, inputs = fit(frame)
    values = encoder.encode(frame).values
    with sklearn.config_context(transform_output="pandas"):
        np.testing.assert_array_equal(fit(frame)[1], inputs)
        found = encoder.encode(frame).values
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, values)
    copied = copy.deepcopy(encoder).encode(frame).values
    np.testing.assert_array_equal(copied, values)


class Estimator(BaseEstimator):
    """To be fitted."""


def test_rows_of_weight_zero_are_left_out_of_every_kind_of_table():
    frame, y = mixed(), np.arange(float(N))
    weight = np.where(np.arange(N) % 3 == 0, 0.0, 2.0)
    expected = fit(frame[weight > 0], y[weight > 0])[1]
    for convert in (lambda X: X, *CONVERSIONS.values()):
        data = check_training_data(Estimator(), convert(frame), y, weight)
        assert data[2].tolist() == [1.0] * 80
        np.testing.assert_array_equal(data[1], y[weight > 0])
        found = fit_table(data, "from_dtype", None, 0)[1]
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("y", "weight", "message"),
    [
        (None, None, "the target y is None"),
        ([1.0, 2.0], None, r"Got y of shape \(2,\) for 3 rows of X"),
        ([1.0, np.nan, 2.0], None, "Got nan in y, row 1"),
        ([1.0, None, 2.0], None, "Got None in y, row 1"),
        ([1.0, "a", 2.0], None, "Got 'a' in y, row 1"),
        (np.ones((3, 2)), None, "1d array"),
        ([1.0, 2.0, 3.0], [1.0, -1.0, 1.0], r"Got sample_weight=-1.0 in row 1"),
        ([1.0, 2.0, 3.0], [1.0, np.inf, 1.0], "Got inf in sample_weight, row 1"),
        ([1.0, 2.0, 3.0], [1.0, 0.0, 0.0], "zero in all rows but 1, but expected at"),
        ([1.0, 2.0, 3.0], [1.0], r"Got sample_weight of shape \(1,\) for 3 rows"),
        ([1.0, 2.0, 3.0], [1e-200, 1.0, 0.0], "zero in all rows but 1"),
    ],
)
def test_targets_and_weights_that_are_refused(y, weight, message):
    with refused(match=message):
        check_training_data(Estimator(), np.ones((3, 2)), y, weight)


def test_weights_of_any_size_are_relative():
    X, y = np.ones((3, 2)), [1.0, 2.0, 3.0]
    for size in (1e-300, 1.0, 1e308):
        weight = check_training_data(Estimator(), X, y, np.array([1, 1, 0.5]) * size)[2]
        np.testing.assert_allclose(weight, [1.2, 1.2, 0.6], rtol=1e-14)
    data = check_training_data(Estimator(), X, y, [1.0, 1e-200, 1.0])
    assert data.y.tolist() == [1.0, 3.0]


def test_names_and_number_of_columns_are_checked():
    frame = pd.DataFrame(np.ones((3, 2)), columns=["a", "b"])
    estimator = Estimator()
    check_training_data(estimator, frame, [1.0, 2.0, 3.0], None)
    assert estimator.feature_names_in_.tolist() == ["a", "b"]
    check_columns(estimator, frame, frame, reset=False)
    zeros = np.zeros((1, 2))
    check_columns(estimator, zeros, zeros, reset=False)  # MAPIE's probe: no warning
    for wrong in (frame[["b", "a"]], frame[["a"]], frame.assign(c=1)):
        with refused(match="feature names should match those that were passed"):
            check_columns(estimator, wrong, wrong, reset=False)
    plain = np.ones((2, 3))
    with (
        pytest.warns(UserWarning, match="valid feature names"),
        refused(match="3 features"),
    ):
        check_columns(estimator, plain, plain, reset=False)
    odd = pd.DataFrame(np.ones((3, 2)), columns=["a", 1])
    with refused(match="string"):
        check_training_data(Estimator(), odd, [1.0, 2.0, 3.0], None)


def test_columns_and_targets_that_cannot_be_standardised():
    X, y, one = np.arange(6.0).reshape(3, 2), np.arange(3.0), np.ones(3)
    weighted = fit_scaler(X, np.array([1.0, 1, 2]), ["a", "b"])
    np.testing.assert_allclose(weighted.mean_, [2.5, 3.5])
    for values, message in (
        (X * [1, 1e200], "Got b .*overflows.*1e-100"),
        (X * [1e-200, 1], "Got a with values from 0.0 to 4e-200.*underflows"),
    ):
        with refused(match=message):
            fit_scaler(values, one, ["a", "b"])
    for factor in (1e200, 1e-200):
        with refused(match="Got y with values from .*flows"):
            tiny(max_steps=2).fit(X, y * factor)
    with refused(match="Got the column 'x0' of X with values from .*overflows"):
        tiny(max_steps=2).fit(X * 1e200, y)


def test_many_levels_where_metadata_routing_is_enabled():
    X = pd.DataFrame({"a": np.arange(200.0), "b": [f"k{i % 80}" for i in range(200)]})
    with sklearn.config_context(enable_metadata_routing=True):
        model = tiny().fit(X, np.arange(200.0) % 7, np.ones(200))
    assert "b_mean" in model.input_columns(X)
