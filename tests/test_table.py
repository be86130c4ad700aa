"""Tables as people have them: categories, gaps, dates and IDs become numbers."""

import copy
import dataclasses
import datetime

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from mapie_claps.network.columns import N_DONORS, N_FOLDS, _effects
from mapie_claps.network.table import as_table
from mapie_claps.network.table_fit import FEW_VALUES, fit_table

N = 120


def fit(X, y=None, weight=None, categorical_features="from_dtype", seed=0):
    n = len(X)
    y = np.arange(float(n)) if y is None else y
    weight = np.ones(n) if weight is None else weight
    return fit_table(as_table(X), y, weight, categorical_features, seed)


def read(encoder, X):
    return encoder.read(as_table(X))


def names(encoder):
    return [out.name for out in encoder.outputs()]


def mixed(n=N, seed=0):
    rng = np.random.default_rng(seed)
    day = pd.Timestamp("2023-01-30") + pd.to_timedelta(rng.integers(0, 900, n), "D")
    frame = pd.DataFrame(
        {
            "area": rng.normal(size=n),
            "rooms": rng.integers(1, 6, n),
            "city": rng.choice(["Bonn", "Köln", "Ulm"], n),
            "zip": rng.choice([f"5{i:04d}" for i in range(30)], n),
            "garden": rng.random(n) < 0.5,
            "listed": day.astype("datetime64[us]"),
            "sold": (day + pd.to_timedelta(rng.integers(0, 90, n), "D")).astype(
                "datetime64[us]"
            ),
        }
    )
    frame.loc[rng.random(n) < 0.2, "area"] = np.nan
    frame.loc[rng.random(n) < 0.2, "city"] = None
    return frame


def test_an_array_of_numbers_stays_as_it_is():
    X = np.random.default_rng(0).normal(size=(50, 4))
    encoder, inputs = fit(X)
    assert encoder.is_identity
    assert names(encoder) == ["x0", "x1", "x2", "x3"]
    np.testing.assert_array_equal(inputs, X)
    encoded = read(encoder, X)[10:20].encode()
    assert encoded.unseen is None
    assert np.shares_memory(encoded.values, X)


@pytest.mark.parametrize("dtype", ["int32", "float32", "bool", "Int64", "boolean"])
def test_a_frame_of_numbers_and_truth_values_stays_as_it_is(dtype):
    X = (np.random.default_rng(0).normal(size=(50, 3)) > 0).astype("int8")
    frame = pd.DataFrame(X, columns=list("abc")).astype({"c": dtype})
    encoder, inputs = fit(frame)
    np.testing.assert_array_equal(inputs, X.astype(float))
    np.testing.assert_array_equal(read(encoder, frame).encode().values, X)


CONVERSIONS = {
    "polars": pl.from_pandas,
    "pyarrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
    "nullable": lambda frame: frame.convert_dtypes(),
    "arrow-backed": lambda frame: frame.convert_dtypes(dtype_backend="pyarrow"),
    "category": lambda frame: frame.astype({"city": "category", "zip": "category"}),
    "objects": lambda frame: frame.astype(object),
    "array": lambda frame: frame.to_numpy(dtype=object),
    "dates as text": lambda frame: frame.astype({"sold": str}),
}


@pytest.mark.parametrize("convert", CONVERSIONS.values(), ids=CONVERSIONS)
def test_every_kind_of_frame_gives_the_same_inputs(convert):
    frame = mixed()
    encoder, inputs = fit(frame)
    other, other_inputs = fit(convert(frame))
    np.testing.assert_array_equal(inputs, other_inputs)
    values = read(encoder, frame).encode().values
    np.testing.assert_array_equal(values, read(encoder, convert(frame)).encode().values)
    np.testing.assert_array_equal(values, read(other, frame).encode().values)


def test_names_and_sources_of_the_inputs():
    encoder, inputs = fit(mixed())
    parts = ["days", "season_sin", "season_cos", "day", "weekday"]
    expected = ["area", "rooms", "zip_mean", "zip_count"]
    expected += [f"listed_{part}" for part in parts]
    expected += ["listed_to_sold", *(f"sold_{part}" for part in parts)]
    assert encoder.n_numbers == len(expected)
    expected += ["area_missing", "city_Bonn", "city_Köln", "city_Ulm", "city_missing"]
    expected += ["garden_True"]
    assert names(encoder) == expected
    assert inputs.shape == (N, len(expected))
    sources = {out.name: out.positions for out in encoder.outputs()}
    assert sources["city_Ulm"] == [2]
    assert sources["area_missing"] == [0]
    assert sources["listed_to_sold"] == [5, 6]


def test_gaps_are_filled_with_the_median_and_flagged():
    X = np.array([[1.0, 1], [np.nan, 2], [4, 3], [9, 4]])
    encoder, inputs = fit(X)
    assert names(encoder) == ["x0", "x1", "x0_missing"]
    expected = [[1, 1, 0], [4, 2, 1], [4, 3, 0], [9, 4, 0]]
    np.testing.assert_array_equal(inputs, expected)
    # A gap in the second column never occurred, one in the first did.
    unseen = read(encoder, np.array([[np.nan, 2.0], [1, np.nan]])).encode().unseen
    np.testing.assert_array_equal(unseen, [[0, 0, 0], [0, 1, 0]])


def test_means_by_category_are_those_of_random_effects():
    rng = np.random.default_rng(0)
    codes = np.repeat(np.arange(40), rng.integers(1, 60, 40))
    effect = rng.normal(0, 2.0, 40)
    y = 5 + effect[codes] + rng.normal(0, 1.0, len(codes))
    mean, log_count = _effects(codes, y, np.ones(len(y)), 41)
    n = np.bincount(codes, minlength=41)
    np.testing.assert_allclose(np.expm1(log_count), n)
    # With the true variances; an empty category has the overall mean.
    raw = np.array([y[codes == c].mean() for c in range(40)])
    ideal = y.mean() + (raw - y.mean()) * n[:40] * 4 / (n[:40] * 4 + 1)
    np.testing.assert_allclose(mean[:40], ideal, atol=0.15)
    assert mean[40] == pytest.approx(y.mean())
    noise = rng.normal(size=len(codes))
    shrunk = _effects(codes, noise, np.ones(len(y)), 40)[0]
    assert np.ptp(shrunk) < 0.3 * np.ptp([noise[codes == c].mean() for c in range(40)])


def test_a_row_of_weight_two_is_two_rows():
    codes, y = np.array([0, 0, 1, 1, 2]), np.array([1.0, 2, 4, 6, 9])
    twice = np.array([0, 0, 0, 1, 1, 2, 2])
    y_twice = np.array([1.0, 1, 2, 4, 6, 9, 9])
    weighted = _effects(codes, y, np.array([2.0, 1, 1, 1, 2]), 3)
    np.testing.assert_allclose(weighted, _effects(twice, y_twice, np.ones(7), 3))


def test_no_training_row_sees_its_own_target():
    frame, y = mixed()[["zip"]], np.random.default_rng(0).normal(size=N)
    inputs = fit(frame, y)[1]
    for row in (0, 7):
        changed = y.copy()
        changed[row] += 100
        other = fit(frame, changed)[1]
        np.testing.assert_array_equal(other[row], inputs[row])
        assert (other[:, 0] != inputs[:, 0]).sum() > N / N_FOLDS


@pytest.mark.parametrize("n_values", [1, 2, 3, FEW_VALUES, FEW_VALUES + 1])
def test_unseen_categories_are_marked_and_have_known_alternatives(n_values):
    text = [f"v{i % n_values}" for i in range(6 * FEW_VALUES)]
    encoder, inputs = fit(pd.DataFrame({"v": text}))
    known = read(encoder, pd.DataFrame({"v": ["v0"]})).encode()
    assert known.unseen is None
    rows = read(encoder, pd.DataFrame({"v": ["v0", "other", None]})).encode()
    assert not rows.unseen[0].any()
    assert rows.unseen[1:].all()
    assert encoder.n_known(rows.unseen[1:]).tolist() == [n_values] * 2
    draws = np.array(list(encoder.alternatives(rows.values, rows.unseen)))
    assert draws.shape == (N_DONORS, 3, inputs.shape[1])
    np.testing.assert_array_equal(draws[:, 0], np.tile(rows.values[0], (N_DONORS, 1)))
    possible = read(encoder, pd.DataFrame({"v": text})).encode().values
    for draw in draws[:, 1]:
        assert (draw == possible).all(axis=1).any()
    if n_values <= FEW_VALUES:
        assert len(np.unique(draws[:, 1], axis=0)) == min(n_values, N_DONORS)


def test_alternatives_replace_all_that_rests_on_the_unseen_value_and_no_more():
    frame = mixed()
    encoder, _ = fit(frame)
    row = frame.head(1).assign(sold=pd.NaT, area=0.5, city="Rom")
    encoded = read(encoder, row).encode()
    marked = [n for n, u in zip(names(encoder), encoded.unseen[0], strict=True) if u]
    assert all(name.startswith(("sold", "city", "listed_to_sold")) for name in marked)
    assert "listed_to_sold" in marked
    for draw in encoder.alternatives(encoded.values, encoded.unseen):
        assert np.isfinite(draw).all()
        kept = ~encoded.unseen
        np.testing.assert_array_equal(draw[kept], encoded.values[kept])


def test_categories_without_rows_were_not_seen():
    frame = pd.DataFrame(
        {"v": pd.Categorical(["a", "b"] * 10, categories=["a", "b", "c"])}
    )
    encoder, inputs = fit(frame)
    assert inputs.shape == (20, 1)
    frame.loc[0, "v"] = "c"
    assert read(encoder, frame).encode().unseen[:, 0].tolist() == [True] + [False] * 19


def test_categories_of_any_type():
    for categories, expected in (
        ([3, 1, 2], ["v_1", "v_2", "v_3"]),
        ([False, True, False], ["v_True"]),
        ([2.5, 0.5, 1.5], ["v_0.5", "v_1.5", "v_2.5"]),
        (pd.cut([0, 5, 9], 3), ["v_(-0.009, 3.0]", "v_(3.0, 6.0]", "v_(6.0, 9.0]"]),
        (pd.to_datetime(["2024-01-02"] * 3), ["v_2024-01-02 00:00:00"]),
    ):
        frame = pd.DataFrame({"v": pd.Categorical(list(categories) * 4)})
        encoder, inputs = fit(frame)
        assert names(encoder) == expected
        np.testing.assert_array_equal(read(encoder, frame).encode().values, inputs)


def test_named_columns_are_categorical():
    X = np.column_stack([np.arange(12) % 3, np.arange(12.0)])
    frame = pd.DataFrame(X, columns=["kind", "size"])
    expected = ["size", "kind_0", "kind_1", "kind_2"]
    for named in (["kind"], [0], [-2], [True, False], np.array([0])):
        assert names(fit(frame, categorical_features=named)[0]) == expected
    assert len(fit(X, categorical_features=[0])[0].outputs()) == 4
    for wrong in ("kind", ["other"], [2], [True], [[0]], [0.5], None):
        with pytest.raises(ValueError, match=r"Got categorical_features=.*'kind', 'si"):
            fit(frame, categorical_features=wrong)


def test_a_named_column_of_dates_or_of_unique_text_is_categorical():
    frame = pd.DataFrame(
        {"id": [f"u{i}" for i in range(30)], "day": ["2024-01-01"] * 30}
    )
    encoder, _ = fit(frame, categorical_features=["id", "day"])
    assert names(encoder) == ["id_mean", "id_count", "day_2024-01-01"]


def test_parts_of_dates():
    dates = pd.to_datetime(["2024-02-29 06:00", "2025-03-03 18:00", "2024-07-01 00:00"])
    encoder, inputs = fit(pd.DataFrame({"t": dates}))
    part = dict(zip(names(encoder), inputs.T, strict=True))
    np.testing.assert_array_equal(part["t_day"], [29, 3, 1])
    np.testing.assert_array_equal(part["t_weekday"], [3, 0, 0])
    np.testing.assert_array_equal(part["t_hour"], [6, 18, 0])
    np.testing.assert_allclose(part["t_hour_sin"], [1, -1, 0], atol=1e-12)
    np.testing.assert_allclose(part["t_hour_cos"], [0, 0, 1], atol=1e-12)
    assert part["t_days"][0] - part["t_days"][2] == -122.75
    np.testing.assert_allclose(
        part["t_season_sin"] ** 2 + part["t_season_cos"] ** 2, np.ones(3)
    )


def test_dates_of_one_week_have_no_season_and_no_hour():
    days = pd.DataFrame({"t": pd.date_range("2024-01-01", periods=7)})
    assert names(fit(days)[0]) == ["t_days", "t_weekday"]
    once = pd.DataFrame({"t": pd.to_datetime(["2024-01-01"] * 5)})
    assert names(fit(once)[0]) == ["t_days"]


@pytest.mark.parametrize(
    "text",
    [
        ["2024-01-31", "2024-02-01"],
        ["2024-01-31T10:00:00Z", "2024-02-01T10:00:00Z"],
        ["2024-01-31 10:00:00.5+01:00", "2024-02-01 10:00:00.5+01:00"],
        ["2024/01/31", "2024/02/01"],
        ["01/31/2024", "02/01/2024"],
        ["31/01/2024 09:30", "01/02/2024 09:30"],
        ["31.01.2024", "01.02.2024"],
        ["31 Jan 2024", "01 Feb 2024"],
        ["Jan 31, 2024", "Feb 01, 2024"],
    ],
)
def test_text_that_all_parses_as_dates(text):
    frame = pd.DataFrame({"t": text * 10})
    encoder, inputs = fit(frame)
    assert names(encoder)[:2] == ["t_days", "t_weekday"]
    np.testing.assert_array_equal(inputs[:2, 1], [2, 3])
    assert inputs[1, 0] - inputs[0, 0] == 1
    bad = frame.assign(t=[*text, "soon"] + text * 8 + text[:1])
    with pytest.raises(
        ValueError, match=r"Got 'soon' in column 't', row 2, but expect"
    ):
        read(encoder, bad)
    assert names(fit(bad)[0])[-1] == "t_soon"


def test_the_hour_is_that_of_the_clock():
    utc = pd.date_range("2024-07-01 22:30", periods=30, freq="h", tz="UTC")
    local = utc.tz_convert("Asia/Tokyo")
    naive = pd.DataFrame({"t": local.tz_localize(None)})
    expected = fit(naive)[1]
    frame = pd.DataFrame({"t": local})
    for table in (frame, pl.from_pandas(frame), frame.astype(object)):
        np.testing.assert_array_equal(fit(table)[1], expected)


def test_another_time_zone_than_in_fit_is_refused():
    utc = pd.date_range("2024-07-01 22:30", periods=30, freq="h", tz="UTC")
    local = pd.DataFrame({"t": utc.tz_convert("Asia/Tokyo")})
    encoder, expected = fit(local)
    other = pd.DataFrame({"t": utc})
    for table in (other, pl.from_pandas(other), other.astype(object)):
        with pytest.raises(
            ValueError,
            match=r"zone 'UTC' in column 't', but 'Asia/Tokyo' in fit.*tz_convert",
        ):
            read(encoder, table)
    for table in (local, pl.from_pandas(local), local.astype(object)):
        np.testing.assert_array_equal(read(encoder, table).encode().values, expected)
    clock = pd.DataFrame({"t": local["t"].dt.tz_localize(None)})
    for table in (clock, clock.astype(str)):  # that knows no zone
        np.testing.assert_array_equal(read(encoder, table).encode().values, expected)
    read(fit(clock)[0], other)
    read(fit(other)[0], pd.DataFrame({"t": utc.tz_convert("Etc/UTC")}))


def test_lengths_of_time_are_numbers():
    frame = pd.DataFrame({"wait": pd.to_timedelta(np.arange(20), "min")})
    for table in (frame, pl.from_pandas(frame), frame.astype(object)):
        np.testing.assert_array_equal(fit(table)[1][:, 0], 60 * np.arange(20))


def test_python_objects_are_read_by_their_values():
    rows = [
        [1, "a", True, datetime.date(2024, 1, 1), None],
        [2.5, "b", False, datetime.date(2024, 1, 2), 3],
        [None, None, None, None, 4],
    ] * 8
    expected = ["x0", "x3_days", "x3_weekday", "x4", "x0_missing"]
    expected += ["x1_a", "x1_b", "x1_missing", "x2_False", "x2_True", "x2_missing"]
    expected += ["x3_missing", "x4_missing"]
    for X in (rows, np.array(rows, dtype=object)):
        assert names(fit(X)[0]) == expected


def test_an_id_is_left_out():
    frame = mixed().assign(id=[f"u{i}" for i in range(N)], void=np.nan)
    encoder, _ = fit(frame)
    messages = encoder.remarks
    assert len(messages) == 2
    assert "column 'id' out: 120 of its 120 texts differ" in messages[0]
    assert "column 'void' out: it has no values" in messages[1]
    assert not any("id" in name or "void" in name for name in names(encoder))
    frame["id"] = 3  # what is left out may be anything
    read(encoder, frame)


def test_nothing_to_learn_from():
    frame = pd.DataFrame({"id": [f"u{i}" for i in range(N)]})
    message = r"columns \['id'\], none of which can be used"
    with pytest.raises(ValueError, match=message):
        fit(frame)


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
            r"\(row \d\) and '12 m²' \(row 3\) in column 'area'",
        ),
        (mixed().assign(area="big"), r"Got 'big' in column 'area', row 0.*numbers, as"),
        (mixed().assign(city=4), r"Got 4.0 in column 'city', row 0.*text, as in fit"),
        (mixed().assign(garden="yes"), r"Got 'yes' in column 'garden'.*truth values"),
        (mixed().assign(sold=17), r"Got 17.0 in column 'sold', row 0.*dates, as in"),
        (mixed().assign(sold="soon"), r"Got 'soon' in column 'sold', row 0.*ISO 8601"),
        (changed("city", ("a", 1)), r"Got \('a', 1\) in column 'city', row 3.*or text"),
        (changed("zip", b"50001"), r"Got b'50001' in column 'zip', row 3"),
        (mixed().head(0), r"Found array with 0 sample\(s\)"),
        (mixed()[[]], r"Found array with 0 feature\(s\)"),
        (pl.from_pandas(mixed()).lazy(), r"Got X of type LazyFrame.*X.collect\(\)"),
        (mixed()["area"], r"Got X as a Series of 120 values.*X.to_frame"),
    ],
)
def test_errors_name_the_column_the_value_and_the_remedy(frame, message):
    encoder, _ = fit(mixed())
    with pytest.raises((ValueError, TypeError), match=message):
        read(encoder, frame)


def test_infinity_in_an_array_is_named():
    X = np.ones((5, 3))
    X[2, 1] = -np.inf
    with pytest.raises(
        ValueError, match=r"Got -inf in column 1, row 2, but expected f"
    ):
        fit(X)
    encoder, _ = fit(np.ones((5, 3)))
    with pytest.raises(
        ValueError, match=r"Got -inf in column 1, row 2, but expected f"
    ):
        read(encoder, X)


def test_numbers_whose_sum_overflows_are_finite():
    X = np.full((5, 2), 1e308)
    np.testing.assert_array_equal(fit(X)[1], X)


def test_a_column_without_values_is_one_of_gaps():
    encoder, _ = fit(mixed())
    frame = mixed().assign(city=np.nan, garden=None, sold=None, area=None)
    encoded = read(encoder, frame).encode()
    marked = {
        out.positions[-1]
        for out, u in zip(encoder.outputs(), encoded.unseen.T, strict=True)
        if u.any()
    }
    assert marked == {4, 6}  # gaps of city and area were seen


def test_a_row_of_zeros_passes_for_every_table():
    encoder, inputs = fit(mixed())
    zeros = read(encoder, np.zeros((1, 7))).encode()
    assert zeros.values.shape == (1, inputs.shape[1])
    assert np.isfinite(zeros.values).all()


def is_plain_data(value):
    if dataclasses.is_dataclass(value):
        return all(
            is_plain_data(getattr(value, f.name)) for f in dataclasses.fields(value)
        )
    if isinstance(value, list):
        return all(is_plain_data(v) for v in value)
    if isinstance(value, np.ndarray):
        return value.dtype == np.float64
    return value is None or type(value) in (str, int, float, bool)


def test_the_encoder_is_plain_data_and_can_be_copied():
    encoder, _ = fit(mixed())
    assert is_plain_data(encoder)
    values = read(encoder, mixed()).encode().values
    other = read(copy.deepcopy(encoder), mixed()).encode().values
    np.testing.assert_array_equal(values, other)


KINDS = {
    "number": lambda rng, n: rng.normal(size=n) * 10.0 ** rng.integers(-5, 6),
    "integer": lambda rng, n: rng.integers(-3, rng.integers(3, 10**6), n),
    "constant": lambda rng, n: np.full(n, rng.normal()),
    "truth": lambda rng, n: rng.random(n) < rng.random(),
    "few": lambda rng, n: rng.choice(list("abcdefg")[: rng.integers(1, 8)], n),
    "many": lambda rng, n: rng.choice([f"z{i}" for i in range(50)], n),
    "category": lambda rng, n: pd.Categorical(rng.choice(list("pqrs"), n)),
    "date": lambda rng, n: np.datetime64("1969-12-30") + rng.integers(0, 900, n),
    "text date": lambda rng, n: (
        np.datetime64("2020-01-01") + rng.integers(0, 900, n)
    ).astype(str),
    "time": lambda rng, n: (
        np.datetime64("2020-01-01T00:00:00") + rng.integers(0, 10**8, n)
    ),
    "length": lambda rng, n: rng.integers(0, 10**5, n).astype("timedelta64[s]"),
}


def random_frame(rng):
    n = int(rng.integers(25, 80))
    kinds = rng.choice(list(KINDS), rng.integers(1, 8))
    frame = pd.DataFrame({f"c{j}": KINDS[k](rng, n) for j, k in enumerate(kinds)})
    for name in frame:
        if rng.random() < 0.4:
            frame[name] = frame[name].where(rng.random(n) < 0.8)
    return frame


@pytest.mark.parametrize("seed", range(60))
def test_random_frames(seed):
    rng = np.random.default_rng(seed)
    frame = random_frame(rng)
    n = len(frame)
    encoder, inputs = fit(frame, rng.normal(size=n), seed=seed)
    assert np.isfinite(inputs).all()
    rows = read(encoder, frame)
    values, unseen = rows.encode()
    assert unseen is None  # every value of the training rows was seen
    assert values.shape == inputs.shape == (n, len(encoder.outputs()))
    mean_by_category = np.array(
        [out.name.endswith("_mean") for out in encoder.outputs()]
    )
    counts = np.array([out.name.endswith("_count") for out in encoder.outputs()])
    known = ~(mean_by_category | counts)  # the same with and without cross-fitting
    np.testing.assert_array_equal(values[:, known], inputs[:, known])
    parts = [rows[i : i + 7].encode().values for i in range(0, n, 7)]
    np.testing.assert_array_equal(np.vstack(parts), values)
    order = rng.permutation(n)
    shuffled = read(encoder, frame.iloc[order]).encode().values
    np.testing.assert_array_equal(shuffled, values[order])
    other = read(encoder, pl.from_pandas(frame)).encode().values
    np.testing.assert_array_equal(other, values)
    spoiled = frame.astype(object).where(rng.random(frame.shape) < 0.7, None)
    encoded = read(encoder, spoiled).encode()
    for draw in encoder.alternatives(
        encoded.values,
        np.zeros_like(encoded.values, bool)
        if encoded.unseen is None
        else encoded.unseen,
    ):
        assert np.isfinite(draw).all()


def test_two_columns_of_one_name_and_records_are_refused():
    frame = mixed()
    with pytest.raises(ValueError, match=r"name 'zip' twice \(columns 3 and 7\)"):
        fit(pd.concat([frame, frame[["zip"]]], axis=1))
    with pytest.raises(TypeError, match=r"Pass pandas.DataFrame\(X\)"):
        as_table(frame.to_dict("records"))
    with pytest.raises(TypeError, match=r"pandas.DataFrame\(\[record\]\)"):
        as_table({"area": 1})


def test_text_that_looks_like_numbers_or_dates_is_remarked_on():
    number = [f"{i % 40 / 10:.1f}" for i in range(N)]
    day = [f"2024-01-{1 + i % 28:02d}" for i in range(N - 1)] + ["unknown"]
    code = [f"5{i % 40:04d}" for i in range(N)]
    frame = pd.DataFrame({"number": number, "day": day, "code": code})
    remarks = fit(frame)[0].remarks
    assert len(remarks) == 2
    assert (
        "column 'number' as categories, although its texts look like num" in remarks[0]
    )
    assert "but not 'unknown' in row 119" in remarks[1]
    assert "pandas.to_datetime" in remarks[1]
    named = fit(frame, categorical_features=["number", "day"])[0]
    assert named.remarks == []


def test_categories_of_one_row_each_say_nothing():
    y = np.random.default_rng(0).normal(size=N)
    mean, _ = _effects(np.arange(N), y, np.ones(N), N)
    np.testing.assert_allclose(mean, y.mean(), atol=0.05)


def test_a_category_is_seen_behind_other_columns_and_a_long_tail():
    rng = np.random.default_rng(0)
    codes, x = rng.integers(0, 30, 600), rng.normal(size=600)
    effect = rng.normal(0, 0.3, 30)
    y = np.exp(2 * x + effect[codes] + rng.normal(0, 0.1, 600))
    frame = pd.DataFrame({"x": x, "v": [f"v{c}" for c in codes]})
    encoder, inputs = fit(frame, y)
    found = inputs[:, names(encoder).index("v_mean")]
    assert np.corrcoef(found, effect[codes])[0, 1] > 0.95
