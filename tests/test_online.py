"""Rows that come one after another: adaptive levels, windows, a new posterior."""

import copy

import numpy as np
import pytest
from conftest import tiny
from known_model import Shaped, table

from mapie_claps import CalibratedRegressor

X, Y = table(700, seed=7)
LEVELS = [0.8, 0.9]
ALPHA = 1 - np.array(LEVELS)


@pytest.fixture
def cal():
    model = Shaped().fit(X, Y)
    return CalibratedRegressor(model, LEVELS).conformalize(X[150:300], Y[150:300])


def one_by_one(cal, rows, y=Y, **options):
    issued = []
    for i in rows:
        issued.append(cal.predict_interval(X[i : i + 1])[1])
        cal.observe(X[i : i + 1], y[i : i + 1], **options)
    return np.concatenate(issued)


def levels_of(cal, label=None):
    """Levels 1 − α_t of the next interval."""
    return 1 - cal.calibration_.levels_at(1 - np.asarray(cal.levels)).of(label)


def missed(y, issued):
    return (y[:, None] < issued[:, 0]) | (y[:, None] > issued[:, 1])


def test_levels_follow_the_misses_of_the_intervals_issued(cal):
    issued = one_by_one(cal, range(300, 400), gamma=0.05)
    out = missed(Y[300:400], issued)
    expected = ALPHA + 0.05 * (ALPHA - out).sum(axis=0)
    np.testing.assert_allclose(1 - levels_of(cal), expected, atol=1e-12)
    np.testing.assert_allclose(cal.observed_coverage_, 1 - out.mean(axis=0))
    assert len(cal.conformity_scores) == 250


@pytest.mark.parametrize("sym", [True, False])
def test_the_bound_on_long_run_coverage_holds_whatever_happens(cal, sym):
    """|misses/T − α| ≤ (max(α, 1 − α) + γ) / (γT), also when nothing is covered."""
    cal.set_params(sym=sym)
    y, gamma = Y.copy(), 0.1
    y[350:] += 1e6 * np.arange(350)  # a trend that no score has seen
    issued = one_by_one(cal, range(300, 450), y, gamma=gamma, window=100)
    share = missed(y[300:450], issued).mean(axis=0)
    bound = (np.maximum(ALPHA, 1 - ALPHA) + gamma) / (gamma * 150)
    assert (np.abs(share - ALPHA) <= bound + 1e-12).all()
    assert np.isinf(issued).any()
    assert len(cal.conformity_scores) == 100


def test_levels_beyond_their_range_give_empty_and_infinite_intervals(cal):
    inside = cal.predict(X[300:309])  # no row is missed
    cal.observe(X[300:309], inside, gamma=1.0)
    assert (levels_of(cal) < 0.2).all()
    low, high = np.moveaxis(cal.predict_interval(X[301:305])[1], 1, 0)
    assert (low[:, 0] > high[:, 0]).all()  # α_t = 0.2 + 9 · 0.2
    np.testing.assert_allclose(low[:, 0], high[:, 0], rtol=1e-12)
    assert (low[:, 1] < high[:, 1]).all()
    cal.observe(X[310:314], Y[310:314] + 1e9)
    assert np.isinf(cal.predict_interval(X[301:305])[1]).all()


def test_rows_of_one_call_were_predicted_together(cal):
    other = copy.deepcopy(cal)
    issued = cal.predict_interval(X[300:320])[1]
    cal.observe(X[300:320], Y[300:320], gamma=0.02)
    expected = ALPHA + 0.02 * (20 * ALPHA - missed(Y[300:320], issued).sum(axis=0))
    np.testing.assert_allclose(1 - levels_of(cal), expected)
    other.observe(
        [(X[300:320], Y[300:320]), (X[:0], Y[:0]), (X[320:340], Y[320:340])], gamma=0.02
    )
    cal.observe(X[320:340], Y[320:340])
    np.testing.assert_array_equal(levels_of(other), levels_of(cal))
    np.testing.assert_array_equal(
        other.predict_interval(X[340:])[1], cal.predict_interval(X[340:])[1]
    )


def test_groups_follow_their_own_misses_and_keep_their_own_window(cal):
    groups = np.where(X[:, 1] > 0, "up", "down").astype(object)
    groups[150:170] = "quiet"
    cal.conformalize(X[150:300], Y[150:300], partition=groups[150:300])
    before = cal.predict_interval(X[:1], partition=["quiet"])[1]
    y = Y + 50.0 * (groups == "up")
    cal.observe(
        X[300:360], y[300:360], partition=groups[300:360], gamma=0.01, window=30
    )
    levels = {label: levels_of(cal, label) for label in ("up", "down", "quiet")}
    assert (levels["up"] > 0.95).all()
    assert (levels["down"] < [0.82, 0.91]).all()
    np.testing.assert_array_equal(levels["quiet"], LEVELS)
    np.testing.assert_array_equal(
        cal.predict_interval(X[:1], partition=["quiet"])[1], before
    )
    sizes = cal.effective_sample_size_
    assert (sizes["up"], sizes["down"], sizes["quiet"]) == (30, 30, 20)
    new = cal.predict_interval(X[:1], partition=["new"])[1]
    assert np.isinf(new).all()  # no error once levels move
    cal.observe(X[360:361], y[360:361], partition=["new"])
    assert set(cal.calibration_.partition) == {"up", "down", "quiet", "new"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((X[310:315], np.full(5, np.nan)), "Got y with NaN"),
        (([(X[310:315], Y[310:315]), (X[315:320], Y[315:317])],), "Got y of shape"),
        ((X[310:315], Y[310:315], {"gamma": -0.1}), "Got gamma=-0.1"),
        ((X[310:315], Y[310:315], {"window": 0}), "Got window=0"),
    ],
)
def test_a_failed_call_changes_nothing(cal, rows, message):
    cal.observe(X[300:310], Y[300:310])
    before = dict(vars(cal))
    options = rows[2] if len(rows) > 2 else {}
    with pytest.raises(ValueError, match=message):
        cal.observe(*rows[:2], **options)
    assert vars(cal) == before


def test_a_new_calibration_starts_with_new_levels(cal):
    cal.observe(X[300:340], Y[300:340] + 9.0)
    assert (levels_of(cal) > LEVELS).all()
    cal.partial_conformalize(X[340:350], Y[340:350])  # more rows of the same
    assert (levels_of(cal) > LEVELS).all()
    cal.conformalize(X[150:300], Y[150:300])
    np.testing.assert_array_equal(levels_of(cal), LEVELS)
    assert np.isnan(cal.observed_coverage_).all()


@pytest.mark.parametrize("levels", [0.5, [0.5, 0.6], [0.5, 0.8, 0.9]])
def test_another_confidence_level_starts_with_new_levels(cal, levels):
    cal.observe(X[300:340], Y[300:340] + 9.0, gamma=0.02, window=150)
    cal.set_params(confidence_level=levels)
    np.testing.assert_array_equal(levels_of(cal), np.atleast_1d(levels))
    assert np.isnan(cal.observed_coverage_).all()
    fresh = CalibratedRegressor.from_scores(
        cal.estimator_, cal.signed_scores_, levels, signed=True
    )
    np.testing.assert_array_equal(
        cal.predict_interval(X[350:])[1], fresh.predict_interval(X[350:])[1]
    )
    cal.observe(X[340:341], Y[340:341] + 99)
    expected = np.atleast_1d(levels) * 1.02  # step size and window stay
    np.testing.assert_allclose(levels_of(cal), expected)
    assert len(cal.conformity_scores) == 150


def test_a_row_enters_the_posterior_or_the_scores():
    model = tiny(max_steps=5).fit(X[:150], Y[:150])
    updated = model.update_posterior(X[310:360], Y[310:360])
    cal = CalibratedRegressor(updated, LEVELS)
    with pytest.warns(UserWarning, match="40 of 50 different rows that were compared"):
        cal.conformalize(X[320:370], Y[320:370])
    cal.conformalize(X[370:], Y[370:])
    assert len(cal.conformity_scores) == len(X) - 370
