"""Rows that come one after another: levels follow misses, and nothing counts twice."""

import copy

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import heteroscedastic, tiny
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mapie_claps import (
    CalibratedRegressor,
    StreamingConformalRegressor,
    load,
    update_posterior,
)
from mapie_claps.conformal.row_keys import keys_to_keep, known_rows
from mapie_claps.metrics import coverage

X, Y = heteroscedastic(700, seed=7)
LEVELS = [0.8, 0.9]


@pytest.fixture(scope="module")
def model():
    return tiny().fit(X[:150], Y[:150])


@pytest.fixture
def cal(model):
    return CalibratedRegressor(model, LEVELS).conformalize(X[150:300], Y[150:300])


def one_by_one(cal, rows, y=Y, **options):
    issued = []
    for i in rows:
        issued.append(cal.predict_interval(X[i : i + 1])[1])
        cal.observe(X[i : i + 1], y[i : i + 1], **options)
    return np.concatenate(issued)


def test_levels_follow_the_misses_of_the_intervals_issued(cal):
    rows = range(300, 400)
    issued = one_by_one(cal, rows, gamma=0.05)
    missed = (Y[rows, None] < issued[:, 0]) | (Y[rows, None] > issued[:, 1])
    alpha = 1 - np.array(LEVELS)
    expected = alpha + 0.05 * (alpha - missed).sum(axis=0)
    np.testing.assert_allclose(1 - cal.adaptive_levels_, expected, atol=1e-12)
    np.testing.assert_allclose(cal.observed_coverage_, 1 - missed.mean(axis=0))
    assert len(cal.conformity_scores_) == 250


@pytest.mark.parametrize("sym", [True, False])
def test_the_bound_on_long_run_coverage_holds_whatever_happens(model, sym):
    """|misses/T − α| ≤ (max(α, 1 − α) + γ) / (γT), also when nothing is covered."""
    cal = CalibratedRegressor(model, LEVELS, sym=sym)
    cal.conformalize(X[150:300], Y[150:300])
    y, gamma = Y.copy(), 0.1
    y[350:] += 1e6 * np.arange(350)  # a trend that no score has seen
    issued = one_by_one(cal, range(300, 450), y, gamma=gamma, window=100)
    found = coverage(y[300:450], issued)
    alpha = 1 - np.array(LEVELS)
    bound = (np.maximum(alpha, 1 - alpha) + gamma) / (gamma * 150)
    assert (np.abs(1 - found - alpha) <= bound + 1e-12).all()
    assert np.isinf(issued).any()
    assert len(cal.conformity_scores_) == 100


def test_levels_beyond_their_range_give_empty_and_infinite_intervals(cal):
    cal.observe(X[300:301], Y[300:301], gamma=1.0)
    state = cal._adaptive()
    state.current[None] = np.array([1.0, -0.01])
    _, bounds = cal.predict_interval(X[301:305])
    empty, infinite = bounds[:, :, 0], bounds[:, :, 1]
    assert (empty[:, 0] > empty[:, 1]).all()
    np.testing.assert_allclose(empty[:, 0], empty[:, 1], rtol=1e-12)
    assert np.isinf(infinite).all()
    missed = cal._missed(cal._kept().last(3), state)
    np.testing.assert_array_equal(missed, [[True, False]] * 3)


def test_rows_of_one_call_were_predicted_together(model, cal):
    issued = cal.predict_interval(X[300:320])[1]
    cal.observe(X[300:320], Y[300:320], gamma=0.02)
    y = Y[300:320, None]
    missed = ((y < issued[:, 0]) | (y > issued[:, 1])).sum(axis=0)
    alpha = 1 - np.array(LEVELS)
    expected = alpha + 0.02 * (20 * alpha - missed)
    np.testing.assert_allclose(1 - cal.adaptive_levels_, expected)
    batches = StreamingConformalRegressor(model, LEVELS)
    batches.conformalize(X[150:300], Y[150:300])
    batches.observe([(X[300:320], Y[300:320]), (X[320:340], Y[320:340])], gamma=0.02)
    cal.observe(X[320:340], Y[320:340])
    np.testing.assert_array_equal(batches.adaptive_levels_, cal.adaptive_levels_)
    np.testing.assert_array_equal(
        batches.predict_interval(X[340:])[1], cal.predict_interval(X[340:])[1]
    )


def test_intervals_that_were_issued_earlier(cal):
    wide = np.tile([[-1e9], [1e9]], (5, 1, 2))
    cal.observe(X[300:305], Y[300:305] + 100, intervals=wide, gamma=0.01)
    np.testing.assert_array_equal(cal.observed_coverage_, [1, 1])
    with pytest.raises(ValueError, match=r"intervals of shape \(5, 2, 1\)"):
        cal.observe(X[300:305], Y[300:305], intervals=wide[:, :, :1])
    with pytest.raises(ValueError, match="intervals together with batches"):
        cal.observe([(X[300:305], Y[300:305])], intervals=wide)


def test_groups_follow_their_own_misses(model):
    groups = np.where(X[:, 1] > 0, 1, 0)
    cal = CalibratedRegressor(model, 0.9).conformalize(
        X[150:300], Y[150:300], groups=groups[150:300]
    )
    y = Y + 50.0 * groups
    cal.observe(X[300:360], y[300:360], groups=groups[300:360], gamma=0.01)
    levels = cal.adaptive_levels_
    assert levels[1] > 0.95
    assert levels[0] < 0.91


def test_rows_out_of_order_are_refused_and_nothing_is_lost(cal):
    cal.observe(X[300:303], Y[300:303], time=[1.0, 2.0, 2.0])
    before = copy.deepcopy(vars(cal))
    with pytest.raises(ValueError, match=r"row 0 at time 1.5, which is before .* 2.0"):
        cal.observe(X[303:304], Y[303:304], time=1.5)
    with pytest.raises(ValueError, match=r"row 2 at time 3, which is before .* 5"):
        cal.observe(X[303:306], Y[303:306], time=[4, 5, 3])
    with pytest.raises(ValueError, match="one finite number or date"):
        cal.observe(X[303:306], Y[303:306], time=[4, np.nan, 6])
    np.testing.assert_array_equal(
        cal.conformity_scores_, np.abs(before["_state"].rows.scores)
    )
    assert cal._adaptive() is before["_state"].followed or (
        cal._adaptive().n_observed == before["_state"].followed.n_observed == 3
    )
    cal.observe(X[303:304], Y[303:304], time=2.5)


def test_time_stamps_as_times(cal):
    cal.observe(X[300:301], Y[300:301], time=pd.Timestamp("2024-05-01"))
    with pytest.raises(
        ValueError, match="2024-04-30T.* which is before .* 2024-05-01T"
    ):
        cal.observe(X[301:302], Y[301:302], time=pd.Timestamp("2024-04-30"))
    with pytest.raises(ValueError, match="without a time zone|numbers, or dates"):
        cal.observe(X[301:302], Y[301:302], time="yesterday-ish")


def test_keys_do_not_depend_on_the_shape_of_y():
    table = np.array([["a", 1.0], ["b", 2.0]], dtype=object)
    flat, column = np.array([1.0, 2.0]), np.array([[1.0], [2.0]])
    np.testing.assert_array_equal(
        keys_to_keep(table, flat), keys_to_keep(table, column)
    )


def test_dates_as_times(cal):
    cal.observe(X[300:301], Y[300:301], time=np.datetime64("2024-05-01"))
    with pytest.raises(ValueError, match="before the row observed last"):
        cal.observe(X[301:302], Y[301:302], time=np.datetime64("2024-04-30T23:00"))


@pytest.mark.parametrize(
    "rows",
    [
        (X[310:315], np.full(5, np.nan)),
        ([(X[310:315], Y[310:315]), (X[315:320], Y[315:317])],),
    ],
    ids=["y", "second batch"],
)
def test_a_failed_call_changes_nothing(cal, rows):
    cal.observe(X[300:310], Y[300:310])
    before = cal.predict_interval(X[310:])[1]
    with pytest.raises(ValueError, match="Got y"):
        cal.observe(*rows)
    np.testing.assert_array_equal(cal.predict_interval(X[310:])[1], before)


@pytest.mark.parametrize("options", [{"gamma": -0.1}, {"gamma": 2}, {"window": 0}])
def test_bad_options(cal, options):
    name = next(iter(options))
    with pytest.raises(ValueError, match=f"Got {name}="):
        cal.observe(X[300:301], Y[300:301], **options)


def test_before_calibration(model):
    with pytest.raises(NotFittedError, match="not calibrated"):
        CalibratedRegressor(model).observe(X[:1], Y[:1])


def test_state_is_saved_between_two_rows(model, cal, tmp_path):
    whole = copy.deepcopy(cal)
    one_by_one(whole, range(300, 340), gamma=0.03, window=120)
    one_by_one(cal, range(300, 320), gamma=0.03, window=120, time=7)
    cal.save(tmp_path / "c.claps")
    again = load(tmp_path / "c.claps")
    with pytest.raises(ValueError, match="before the row observed last"):
        again.observe(X[320:321], Y[320:321], time=6)
    one_by_one(again, range(320, 340))  # step size and window come with the file
    np.testing.assert_array_equal(again.adaptive_levels_, whole.adaptive_levels_)
    np.testing.assert_array_equal(again.observed_coverage_, whole.observed_coverage_)
    np.testing.assert_array_equal(
        again.predict_interval(X[340:])[1], whole.predict_interval(X[340:])[1]
    )


def test_a_row_enters_the_posterior_or_the_scores(cal, tmp_path):
    cal.observe(X[300:310], Y[300:310])
    levels = cal.adaptive_levels_
    cal.update_posterior(X[310:360], Y[310:360])
    with pytest.raises(NotFittedError, match="dropped by update_posterior"):
        cal.predict_interval(X[:1])
    cal.save(tmp_path / "c.claps")
    for it in (cal, load(tmp_path / "c.claps")):
        with pytest.raises(ValueError, match="Got 40 of 50 rows.*row 0, that have ent"):
            it.conformalize(X[320:370], Y[320:370])
        with pytest.raises(ValueError, match="1 of 5 rows.* first of them row 4"):
            it.conformalize(X[306:311], Y[306:311])
        it.conformalize(X[400:500], Y[400:500])
        np.testing.assert_array_equal(it.adaptive_levels_, levels)
        with pytest.raises(ValueError, match="have entered the posterior"):
            it.observe(X[330:331], Y[330:331])
        it.observe(X[500:510], Y[500:510])
    again = load(tmp_path / "c.claps").conformalize(X[400:500], Y[400:500])
    again.observe(X[500:510], Y[500:510])
    np.testing.assert_array_equal(
        again.predict_interval(X[510:])[1], cal.predict_interval(X[510:])[1]
    )


def test_the_posterior_is_that_of_the_function(model, cal):
    cal.update_posterior(iter([(X[310:330], Y[310:330]), (X[330:360], Y[330:360])]))
    expected = update_posterior(model, X[310:360], Y[310:360])
    np.testing.assert_allclose(
        cal.estimator_.predict_variance(X).epistemic,
        expected.predict_variance(X).epistemic,
    )
    with pytest.raises(ValueError, match="50 of 50 rows"):
        cal.conformalize(X[310:360], Y[310:360])


def test_a_pipeline_has_no_posterior_to_update():
    pipe = make_pipeline(StandardScaler(), tiny()).fit(X[:100], Y[:100])
    cal = CalibratedRegressor(pipe).conformalize(X[100:200], Y[100:200])
    with pytest.raises(TypeError, match="Pipeline, whose posterior cannot be updated"):
        cal.update_posterior(X[200:], Y[200:])
    cal.observe(X[200:210], Y[200:210])


def test_a_new_calibration_starts_with_new_levels(cal):
    cal.observe(X[300:340], Y[300:340] + 9.0, gamma=0.01, time=5)
    assert (cal.adaptive_levels_ > LEVELS).all()
    cal.partial_conformalize(X[340:350], Y[340:350])  # more rows of the same
    assert (cal.adaptive_levels_ > LEVELS).all()
    cal.conformalize(X[150:300], Y[150:300])
    np.testing.assert_array_equal(cal.adaptive_levels_, LEVELS)
    fresh = CalibratedRegressor(cal.estimator, LEVELS)
    fresh.conformalize(X[150:300], Y[150:300])
    np.testing.assert_array_equal(
        cal.predict_interval(X[350:])[1], fresh.predict_interval(X[350:])[1]
    )
    cal.observe(X[300:301], Y[300:301], time=1)  # nothing was observed before


@pytest.mark.parametrize("levels", [0.5, [0.5, 0.6], [0.5, 0.8, 0.9]])
def test_another_confidence_level_starts_with_new_levels(model, cal, levels, tmp_path):
    cal.observe(X[300:340], Y[300:340] + 9.0, gamma=0.02, window=150, time=5)
    cal.set_params(confidence_level=levels)
    np.testing.assert_array_equal(cal.adaptive_levels_, np.atleast_1d(levels))
    assert np.isnan(cal.observed_coverage_).all()
    scores = cal.signed_scores_
    fresh = CalibratedRegressor.from_scores(model, scores, levels, signed=True)
    np.testing.assert_array_equal(
        cal.predict_interval(X[350:])[1], fresh.predict_interval(X[350:])[1]
    )
    cal.save(tmp_path / "c.claps")
    for it in (cal, load(tmp_path / "c.claps")):
        with pytest.raises(ValueError, match="before the row observed last"):
            it.observe(X[340:341], Y[340:341], time=4)
        it.observe(X[340:341], Y[340:341] + 99)
        expected = np.atleast_1d(levels) * 1.02  # step size and window stay
        np.testing.assert_allclose(it.adaptive_levels_, expected)
        assert len(it.conformity_scores_) == 150


def test_levels_by_group_where_groups_come_later(cal):
    side = np.where(X[:, 1] > 0, "up", "down")
    cal.observe(X[300:340], Y[300:340] + 9.0).update_posterior(X[340:350], Y[340:350])
    assert (cal.adaptive_levels_ > LEVELS).all()
    cal.conformalize(X[400:500], Y[400:500], groups=side[400:500])
    for level in (cal.adaptive_levels_["up"], cal.adaptive_levels_["down"]):
        np.testing.assert_array_equal(level, LEVELS)
    cal.observe(X[500:501], Y[500:501] + 9.0, groups=["up"])
    assert (cal.adaptive_levels_["up"] > LEVELS).all()
    np.testing.assert_allclose(cal.adaptive_levels_["down"], LEVELS)
    cal.update_posterior(X[350:360], Y[350:360]).conformalize(X[400:500], Y[400:500])
    assert cal.adaptive_levels_.shape == (2,)


def test_a_window_does_not_empty_a_quiet_group(model):
    groups = np.where(np.arange(700) % 50 == 0, "quiet", "busy")
    groups[150:200] = "quiet"
    cal = CalibratedRegressor(model, 0.9)
    cal.conformalize(X[150:300], Y[150:300], groups=groups[150:300])
    before = cal.predict_interval(X[:1], groups=["quiet"])[1]
    busy = groups == "busy"
    busy[:300] = False
    cal.observe(X[busy], Y[busy], groups=groups[busy], window=60)
    np.testing.assert_array_equal(
        cal.predict_interval(X[:1], groups=["quiet"])[1], before
    )
    newest = CalibratedRegressor(model, 0.9).conformalize(X[busy][-60:], Y[busy][-60:])
    kept = cal.signed_scores_[cal._kept().groups == "busy"]
    np.testing.assert_allclose(kept, newest.signed_scores_, rtol=1e-9)


@pytest.mark.parametrize("kind", ["array", "tensor", "table", "mixed table"])
@pytest.mark.parametrize("rounded_first", [False, True])
def test_rows_in_single_precision_are_known_again(kind, rounded_first):
    def rows(single):
        x = X[:20].astype(np.float32) if single else X[:20]
        y = Y[:20].astype(np.float32) if single else Y[:20]
        if kind == "array":
            return x, y
        if kind == "tensor":
            return torch.from_numpy(x), torch.from_numpy(y)
        table = pd.DataFrame(x, columns=["a", "b", "c"])
        if kind == "mixed table":
            table["d"] = list("abcde") * 4
        return table, pd.Series(y)

    known = np.unique(keys_to_keep(*rows(rounded_first)))
    for single in (False, True):
        assert len(known_rows(*rows(single), known)) == 20
    others = X[20:40], Y[20:40]
    assert not len(known_rows(*others, known))
    close = X[:20] + 1e-9, Y[:20]  # equal in single precision, but other rows
    if kind == "array" and not rounded_first:
        assert not len(known_rows(*close, known))


def test_rows_of_the_posterior_in_single_precision_are_refused(cal):
    cal.update_posterior(X[310:360], Y[310:360])
    with pytest.raises(ValueError, match="Got 50 of 50 rows"):
        cal.conformalize(X[310:360].astype(np.float32), Y[310:360].astype(np.float32))


def test_time_stamps_that_single_precision_does_not_tell_apart():
    clock = (1.7e9 + 60 * np.arange(100.0))[:, None]
    known = np.unique(keys_to_keep(clock[:50], np.zeros(50)))
    assert len(known_rows(clock[:50], np.zeros(50), known)) == 50
    assert not len(known_rows(clock[50:], np.zeros(50), known))


def test_fit_starts_again(cal):
    cal.observe(X[300:310], Y[300:310], time=9).update_posterior(X[310:], Y[310:])
    cal.estimator = tiny()
    cal.fit(X, Y)
    np.testing.assert_array_equal(cal.adaptive_levels_, LEVELS)
    assert len(cal.conformity_scores_) == 175
