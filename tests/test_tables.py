"""``ClapsRegressor`` on tables as they are, from ``fit`` to the saved file."""

import copy
import pickle
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from conftest import heteroscedastic, tiny
from mapie_api import calibrated_prefit, prefit_intervals
from sklearn.base import clone

from mapie_claps import (
    CalibratedRegressor,
    ClapsRegressor,
    ClapsScore,
    StreamingConformalRegressor,
    explain,
    load,
    partial_sums,
    save,
    sums_of,
    update_posterior,
    with_sums,
)
from mapie_claps.diagnostics import diagnose, rank_rows, summarise
from mapie_claps.distributed import conformalize, fit_posterior, predict_interval
from mapie_claps.estimators.unseen import parts_over_draws
from mapie_claps.exceptions import FileFormatError
from mapie_claps.network.columns import N_DONORS
from mapie_claps.posterior.scales import PredictiveParts

LEVEL = {"north": 0.0, "south": 2.0, "harbour": 5.0, None: 1.0}


def table(n=300, seed=0):
    """Rents: text with gaps, many zip codes, a truth value, a date, numbers."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "area": rng.uniform(20, 150, n),
            "district": rng.choice(["north", "south", "harbour"], n),
            "zip": rng.choice([f"z{i}" for i in range(40)], n),
            "garden": rng.random(n) < 0.5,
            "listed": np.datetime64("2024-01-01", "s") + rng.integers(0, 10**7, n),
        }
    )
    frame.loc[rng.random(n) < 0.1, "district"] = None
    frame.loc[rng.random(n) < 0.1, "area"] = np.nan
    level = frame["district"].astype(object).where(frame["district"].notna(), None)
    effect = frame["zip"].str[1:].astype(int) % 7
    y = level.map(LEVEL).astype(float) + effect + frame["area"].fillna(80) / 50
    return frame, (y + rng.normal(0, 0.3, n)).to_numpy()


TRAIN, Y_TRAIN = table()
TEST, Y_TEST = table(120, seed=1)


def model_of_tables(**params):
    return tiny(**({"n_members": 3, "n_bins": 4, "max_steps": 300} | params))


@pytest.fixture(scope="module")
def model():
    return model_of_tables().fit(TRAIN, Y_TRAIN)


def outputs(model, X):
    return np.stack(model.predict(X, return_std=True))


def test_a_table_teaches_more_than_its_numbers(model):
    numbers = model_of_tables().fit(TRAIN[["area"]], Y_TRAIN)
    error = np.mean((model.predict(TEST) - Y_TEST) ** 2)
    assert error < 0.2 * np.mean((numbers.predict(TEST[["area"]]) - Y_TEST) ** 2)


def test_prediction_and_parts_agree(model):
    for X in (TEST, TEST.assign(zip="new"), TEST.assign(garden=None)):
        mu, std = model.predict(X, return_std=True)
        parts = model.predict_parts(X)
        np.testing.assert_array_equal(model.predict(X), mu)
        np.testing.assert_array_equal(parts.prediction, mu)
        np.testing.assert_array_equal(parts.std, std)
        one_by_one = [model.predict(X.iloc[[i]])[0] for i in range(3)]
        np.testing.assert_allclose(one_by_one, mu[:3], rtol=1e-10)


UNSEEN = {
    "few values": {"district": "airport"},
    "many values": {"zip": "z99"},
    "gap in a truth value": {"garden": None},
    "gap in a date": {"listed": pd.NaT},
    "two columns": {"district": "airport", "zip": "z99"},
}


@pytest.mark.parametrize("change", UNSEEN.values(), ids=UNSEEN)
def test_values_that_never_occurred_raise_the_epistemic_part(model, change):
    known, unseen = (
        model.predict_parts(TEST),
        model.predict_parts(TEST.assign(**change)),
    )
    assert np.median(unseen.epistemic / known.epistemic) > 1.2
    if set(change) & {"district", "zip"}:  # which matter
        assert unseen.epistemic.mean() > 5 * known.epistemic.mean()
    # The noise is that of known values.
    assert 0.3 < unseen.aleatoric.mean() / known.aleatoric.mean() < 3


def test_the_epistemic_part_of_an_unseen_district_is_what_districts_differ_by(model):
    parts = model.predict_parts(TEST.assign(district="airport"))
    true = np.var([0.0, 2.0, 5.0, 1.0])
    assert 0.5 * true < np.median(parts.epistemic) < 3 * true
    each = [model.predict(TEST.assign(district=d)) for d in LEVEL]
    np.testing.assert_allclose(parts.prediction, np.mean(each, axis=0), rtol=1e-8)


def test_unseen_values_against_plain_numpy(model):
    encoder = model.table_
    X = TEST.head(4).assign(district=["north", "airport", "airport", None], zip="z99")
    values, unseen = encoder.read(X).encode()
    rng = np.random.default_rng(0)
    fake = rng.random((3, N_DONORS, 4))
    calls = iter(range(N_DONORS))

    def predict(draw):
        import torch

        return PredictiveParts(*map(torch.from_numpy, fake[:, next(calls)]))

    found = parts_over_draws(encoder, values, unseen, predict, True)
    mu, noise, lack = found[:3]
    n_known = np.array([40, 4, 4, 40])
    spread = fake[0].var(axis=0) + fake[1].mean(axis=0) / n_known
    np.testing.assert_allclose(mu, fake[0].mean(axis=0))
    np.testing.assert_allclose(noise, fake[1].mean(axis=0))
    expected = fake[2].mean(axis=0) + spread * (1 + 1 / n_known)
    np.testing.assert_allclose(lack, expected)


@pytest.mark.parametrize("scale", ["aleatoric", "constant"])
def test_scales_without_lack_of_data_stay_so(model, scale):
    other = copy.deepcopy(model).set_params(scale=scale)
    assert not other.predict_parts(TEST.assign(zip="new")).epistemic.any()


def test_a_gap_in_an_array_of_numbers(data):
    (X, y), (X_test, _) = data[0], data[2]
    plain = tiny().fit(X, y)
    holes = X_test.copy()
    holes[::2, 1] = np.nan
    before, after = plain.predict_parts(X_test), plain.predict_parts(holes)
    np.testing.assert_array_equal(after.prediction[1::2], before.prediction[1::2])
    assert (after.epistemic[::2] > before.epistemic[::2]).mean() > 0.8
    # Where gaps were there in training they are values like others.
    X = X.copy()
    X[::5, 1] = np.nan
    learned = tiny().fit(X, y)
    assert learned.network_.encoding.n_raw == 4
    assert np.isfinite(outputs(learned, holes)).all()


@pytest.mark.parametrize("views", [("bins",), ("periodic",), ("raw",)])
def test_a_table_of_categories_alone(views):
    X = TRAIN[["district", "garden"]]
    model = tiny(views=views, n_bins=4, max_steps=200).fit(X, Y_TRAIN)
    south = model.predict(X.assign(district="south"))
    assert (south > model.predict(X.assign(district="north"))).all()


def test_rows_of_weight_zero_are_not_seen():
    weight = np.where(TRAIN["district"] == "harbour", 0.0, 1.0)
    model = model_of_tables().fit(TRAIN, Y_TRAIN, weight)
    kept = model_of_tables().fit(TRAIN[weight > 0], Y_TRAIN[weight > 0])
    np.testing.assert_array_equal(outputs(model, TEST), outputs(kept, TEST))
    north, harbour = (
        model.predict_parts(TEST.assign(district=d)).epistemic.mean()
        for d in ("north", "harbour")
    )
    assert harbour > 5 * north


def test_named_categories():
    frame = TRAIN.assign(zip=TRAIN["zip"].str[1:].astype(int))
    named = model_of_tables(categorical_features=["zip"]).fit(frame, Y_TRAIN)
    as_number = model_of_tables().fit(frame, Y_TRAIN)
    test = TEST.assign(zip=TEST["zip"].str[1:].astype(int))
    errors = [np.mean((m.predict(test) - Y_TEST) ** 2) for m in (named, as_number)]
    assert errors[0] < 0.5 * errors[1]
    with pytest.raises(ValueError, match=r"Got categorical_features=\['code'\].*'zip'"):
        model_of_tables(categorical_features=["code"]).fit(frame, Y_TRAIN)


def test_every_kind_of_frame_gives_the_same_predictions(model):
    expected = outputs(model, TEST)
    for other in (
        pl.from_pandas(TEST),
        TEST.convert_dtypes(),
        TEST.convert_dtypes(dtype_backend="pyarrow"),
        TEST.astype({"district": "category", "listed": str}),
    ):
        np.testing.assert_array_equal(outputs(model, other), expected)
    again = model_of_tables().fit(pl.from_pandas(TRAIN), Y_TRAIN)
    np.testing.assert_array_equal(outputs(again, TEST), expected)


def test_copies_clones_and_pickles(model):
    for other in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        clone(model).fit(TRAIN, Y_TRAIN),
    ):
        np.testing.assert_array_equal(outputs(other, TEST), outputs(model, TEST))


def test_saved_and_loaded(model, tmp_path):
    save(model, tmp_path / "model.claps")
    other = load(tmp_path / "model.claps")
    for X in (TEST, TEST.assign(zip="new"), TEST.assign(garden=None)):
        np.testing.assert_array_equal(outputs(other, X), outputs(model, X))
    assert other.get_params() == model.get_params()
    assert next(iter(other.input_columns(TEST))) == "area"
    named = model_of_tables(categorical_features=["zip"], max_steps=5)
    save(named.fit(TRAIN, Y_TRAIN), tmp_path / "named.claps")
    assert load(tmp_path / "named.claps").categorical_features == ["zip"]


@pytest.mark.parametrize("fault", ["names", "positions", "donors", "values"])
def test_a_file_whose_table_does_not_fit(model, tmp_path, fault):
    bad = copy.deepcopy(model)
    block = next(b for b in bad.table_.blocks if hasattr(b, "categories"))
    if fault == "names":
        bad.table_.names.append("more")
    elif fault == "positions":
        block.positions[0] = 99
    elif fault == "donors":
        block.donors[:] = np.nan
    else:
        block.categories.values.append("more")
    save(bad, tmp_path / "model.claps")
    with pytest.raises(FileFormatError, match="Cannot load"):
        load(tmp_path / "model.claps")


def test_mapie_from_table_to_reasons(model):
    half = len(TEST) // 2
    rows = TEST.assign(district=TEST["district"].where(TEST.index % 9 > 0, "airport"))
    rows = rows.iloc[half:]
    cal = TEST.iloc[:half], Y_TEST[:half]
    mapie, params = calibrated_prefit(model, ClapsScore(model), cal, 0.9)
    why = explain(mapie, rows, **params)
    assert np.isfinite(why.width).all()
    new = (rows["district"] == "airport").to_numpy()
    assert why.epistemic_width[new].min() > why.epistemic_width[~new].mean()
    ranked = rank_rows(mapie, rows, n_rows=int(new.sum()), **params)
    assert new[ranked["row"]].mean() > 0.8
    found = diagnose(mapie, rows, X_calibration=cal[0], **params)
    assert len(found) == len(rows)
    groups = rows["district"].fillna("unknown")
    by_district = summarise(mapie, rows, Y_TEST[half:], groups=groups, **params)
    assert "airport" in set(by_district["group"])


def test_a_fitted_model_passes_the_probe_of_mapie_without_a_word(model):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cal = TEST, Y_TEST
        _, interval = prefit_intervals(model, ClapsScore(model), cal, TEST, 0.9)
    assert np.isfinite(interval).all()
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        model.predict(TEST.to_numpy())


def test_sums_of_parts_are_sums_of_the_whole(model):
    parts = [slice(0, 50), slice(50, 120)]
    whole = partial_sums(model, TEST, Y_TEST)
    added = sum(
        (partial_sums(model, TEST.iloc[p], Y_TEST[p]) for p in parts[1:]),
        partial_sums(model, TEST.iloc[parts[0]], Y_TEST[parts[0]]),
    )
    batches = ((pl.from_pandas(TEST.iloc[p]), Y_TEST[p]) for p in parts)
    for sums in (added, partial_sums(model, batches)):
        np.testing.assert_allclose(
            sums.moments.gram, whole.moments.gram, rtol=1e-9, atol=1e-9
        )
    more = update_posterior(model, TEST, Y_TEST)
    assert more.sums_.n_rows == len(TRAIN) + len(TEST)
    before, after = (m.predict_parts(TEST).epistemic for m in (model, more))
    assert after.mean() < before.mean()
    with_sums(model, sums_of(model) + whole)


def test_streaming_over_frames(model):
    def batches():
        for start in range(0, len(TEST), 40):
            rows = slice(start, start + 40)
            yield TEST.iloc[rows], Y_TEST[rows]

    stream = StreamingConformalRegressor(model).conformalize(batches())
    whole = StreamingConformalRegressor(model).conformalize(TEST, Y_TEST)
    np.testing.assert_allclose(stream.quantiles(), whole.quantiles())
    found = stream.predict_interval(part for part, _ in batches())[1]
    np.testing.assert_allclose(found, whole.predict_interval(TEST)[1])


def test_dask_over_frames(model):
    dd = pytest.importorskip("dask.dataframe")
    frame = dd.from_pandas(TEST.assign(y=Y_TEST), npartitions=3)
    X, y = frame[list(TEST)], frame["y"]
    grown = fit_posterior(model, X, y)
    np.testing.assert_allclose(
        grown.sums_.moments.gram,
        partial_sums(model, TEST, Y_TEST).moments.gram,
        rtol=1e-9,
        atol=1e-9,
    )
    conformal = conformalize(model, X, y)
    found = predict_interval(conformal, X).compute()
    expected = conformal.predict_interval(TEST)[1]
    np.testing.assert_allclose(found["lower_0.9"], expected[:, 0, 0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda X: X[X.columns[::-1]],
            r"same order.*\s*Pass X\[model.feature_names_in_",
        ),
        (lambda X: X.drop(columns="zip"), r"now missing:\s*- zip\s*Pass X\["),
        (lambda X: X.assign(extra=1), r"unseen at fit time:\s*- extra\s*Pass X\["),
        (lambda X: X.assign(area="big"), r"Got 'big' in column 'area', row 0"),
        (lambda X: X.assign(area=np.inf), r"Got inf in column 'area', row 0"),
        (lambda X: X.assign(listed="soon"), r"Got 'soon' in column 'listed', row 0"),
    ],
)
def test_errors_of_prediction_name_the_column(model, change, message):
    for method in (model.predict, model.predict_parts):
        with pytest.raises(ValueError, match=message):
            method(change(TEST))
    with pytest.raises(ValueError, match=message):
        partial_sums(model, change(TEST), Y_TEST)
    np.testing.assert_array_equal(outputs(model, TEST), outputs(model, TEST))


def test_errors_of_fit_name_the_column_and_change_nothing(model):
    before = outputs(model, TEST)
    other = copy.deepcopy(model)
    mixed = TRAIN.assign(zip=[3, *TRAIN["zip"][1:]])
    with pytest.raises(ValueError, match=r"Got 3 \(row 0\) and 'z.*in column 'zip'"):
        other.fit(mixed, Y_TRAIN)
    with pytest.raises(ValueError, match=r"overflow when squared \(column 'area'"):
        other.fit(TRAIN.assign(area=1e200 * TRAIN["area"]), Y_TRAIN)
    with pytest.raises(ValueError, match=r"1 sample\(s\).*minimum of 2"):
        other.fit(TRAIN.head(1), Y_TRAIN[:1])
    with pytest.raises(ValueError, match="values of y for .* rows of X"):
        other.fit(TRAIN, Y_TRAIN[:-1])
    np.testing.assert_array_equal(outputs(other, TEST), before)


def test_the_warning_about_an_id_points_to_the_caller():
    frame = TRAIN.assign(id=[f"u{i}" for i in range(len(TRAIN))])
    with pytest.warns(UserWarning, match="Left column 'id' out") as found:
        model_of_tables(max_steps=5).fit(frame, Y_TRAIN)
    assert [w.filename for w in found] == [__file__]


def test_numbers_are_trained_as_before(data):
    """Bit by bit what the networks gave before they took tables."""
    X, y = heteroscedastic(60)
    model = ClapsRegressor(max_steps=20, tol=None, random_state=0).fit(X, y)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    other = ClapsRegressor(max_steps=20, tol=None, random_state=0).fit(frame, y)
    np.testing.assert_array_equal(outputs(model, X), outputs(other, frame))
    assert model.table_.is_identity


@pytest.mark.parametrize("change", [{"a": "other"}, {"a": "b", "b": "a"}])
def test_columns_of_a_table_without_rows_are_checked(change):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(60, 2)), columns=["a", "b"])
    model = CalibratedRegressor(tiny(), 0.8, random_state=0).fit(X, X["a"])
    points, bounds = model.predict_interval(X[:0])
    assert points.shape == (0,)
    assert bounds.shape == (0, 2, 1)
    for call in (model.predict_interval, model.predict_quantiles):
        levels = () if call == model.predict_interval else ([0.5],)
        with pytest.raises(ValueError, match="feature names should match"):
            call(X[:0].rename(columns=change), *levels)
