"""Two bets against exchangeability, and MAPIE's own classes with our scale."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from conftest import heteroscedastic, tiny
from mapie.conditional_conformal_prediction import ConditionalSplitConformalRegressor
from mapie.conformity_scores import ResidualNormalisedScore
from mapie.regression import TimeSeriesRegressor

from mapie_claps import (
    CalibratedRegressor,
    ClapsScaleEstimator,
    ClapsScore,
    EpistemicGroups,
    ExchangeabilityMonitor,
    load,
)
from mapie_claps.conformal.mapie import JumperMartingale
from mapie_claps.exceptions import ExchangeabilityWarning

X, Y = heteroscedastic(1200, seed=11)
CAL, NEW = slice(200, 500), slice(500, 800)


@pytest.fixture(scope="module")
def model():
    return tiny().fit(X[:200], Y[:200])


@pytest.fixture(scope="module")
def calibrated(model):
    return CalibratedRegressor(model).conformalize(X[CAL], Y[CAL])


def test_exchangeable_rows_raise_no_alarm(calibrated):
    monitor = ExchangeabilityMonitor(calibrated, X[CAL]).update(X[NEW], Y[NEW])
    assert monitor.changed == "nothing"
    assert monitor.n_rows == {"inputs": 300, "noise": 300}
    assert monitor.alarm_rows == {"inputs": None, "noise": None}
    assert "Nothing speaks against" in repr(monitor)


def test_changed_noise_is_told_from_rows_from_elsewhere(model, calibrated):
    monitor = ExchangeabilityMonitor(calibrated, X[CAL])
    y = model.predict(X[NEW]) + 3 * (Y[NEW] - model.predict(X[NEW]))
    with pytest.warns(ExchangeabilityWarning, match="noise or the relation to x has"):
        monitor.update(X[NEW], y)
    assert monitor.changed == "noise"
    assert monitor.wealth["noise"] > 40 or monitor.alarm_rows["noise"] is not None
    with pytest.warns(ExchangeabilityWarning, match="both"):
        monitor.update(X[NEW] + 4.0)
    assert monitor.changed == "both"


def test_rows_from_elsewhere_are_seen_before_labels_arrive(calibrated):
    monitor = ExchangeabilityMonitor(calibrated, X[CAL])
    with pytest.warns(ExchangeabilityWarning, match="Rows come from elsewhere"):
        monitor.update(iter([X[500:600] + 4.0, X[600:700] + 4.0]))
    assert monitor.changed == "inputs"
    assert monitor.n_rows == {"inputs": 200, "noise": 0}


def test_another_model_is_not_taken_for_other_rows():
    model = tiny().fit(X[:200], Y[:200])
    calibrated = CalibratedRegressor(model).conformalize(X[CAL], Y[CAL])
    monitor = ExchangeabilityMonitor(calibrated, X[CAL])
    model.fit(X[:200], -Y[:200])
    with pytest.raises(ValueError, match="changed since calibration"):
        monitor.update(X[NEW])
    with pytest.raises(ValueError, match="changed since calibration"):
        ExchangeabilityMonitor(calibrated, X[CAL])


def test_labels_that_arrive_late_do_not_count_inputs_twice(calibrated):
    late = ExchangeabilityMonitor(calibrated, X[CAL]).update(X[NEW])
    late.update(X[NEW], Y[NEW], inputs_seen=True)
    once = ExchangeabilityMonitor(calibrated, X[CAL]).update(X[NEW], Y[NEW])
    assert late.wealth == once.wealth
    batches = ExchangeabilityMonitor(calibrated, X[CAL])
    batches.update([(X[500:650], Y[500:650]), (X[650:800], Y[650:800])])
    assert batches.wealth == pytest.approx(once.wealth)
    with pytest.raises(ValueError, match="inputs_seen=True without y"):
        late.update(X[NEW], inputs_seen=True)


def test_the_level_is_shared_between_both(calibrated):
    monitor = ExchangeabilityMonitor(calibrated, X[CAL], test_level=0.1)
    assert [bet.level for bet in monitor._bets.values()] == [0.05, 0.05]
    with pytest.raises(ValueError, match="Got test_level=1.5"):
        ExchangeabilityMonitor(calibrated, X[CAL], test_level=1.5)


def test_saved_between_two_rows(calibrated, tmp_path):
    whole = ExchangeabilityMonitor(calibrated, X[CAL]).update(X[NEW], Y[NEW])
    half = ExchangeabilityMonitor(calibrated, X[CAL]).update(X[500:650], Y[500:650])
    half.save(tmp_path / "monitor")
    again = load(tmp_path / "monitor").update(X[650:800], Y[650:800])
    assert again.wealth == pytest.approx(whole.wealth)
    assert again.n_rows == whole.n_rows
    with pytest.warns(ExchangeabilityWarning):
        half.update(X[NEW] + 4.0)
    half.save(tmp_path / "monitor")
    again = ExchangeabilityMonitor.load(tmp_path / "monitor")
    assert (again.changed, again.alarm_rows) == (half.changed, half.alarm_rows)
    assert again.update(X[NEW] + 4.0).changed == "inputs"  # no second warning


def test_dask_gives_what_memory_does(calibrated):
    def parts(*arrays):
        return [da.from_array(a, chunks=(70, *a.shape[1:])) for a in arrays]

    here = ExchangeabilityMonitor(calibrated, X[CAL]).update(X[NEW], Y[NEW])
    there = ExchangeabilityMonitor(calibrated, *parts(X[CAL]))
    there.update(*parts(X[NEW]))
    there.update(*parts(X[NEW], Y[NEW]), inputs_seen=True)
    assert there.wealth == pytest.approx(here.wealth)
    frame = pd.DataFrame(X[NEW])
    table = dd.from_pandas(frame, npartitions=3)
    named = ExchangeabilityMonitor(calibrated, X[CAL]).update(
        table, dd.from_pandas(pd.Series(Y[NEW]), npartitions=3)
    )
    assert named.wealth == pytest.approx(here.wealth)


def test_a_change_is_seen_after_many_rows_without_one():
    """MAPIE's own bet would have 10⁻²⁸ of its wealth left."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=20_200)
    bet = JumperMartingale(values[:200], 0.025, rng).after(values[200:])
    assert bet.alarm is None
    assert 0 < bet.wealth < 1
    after = bet.after(rng.normal(1.0, 1.0, size=200))
    assert 20_000 < after.alarm < 20_150
    assert bet.alarm is None  # that object stays as it is


def test_the_bets_and_what_is_unspent_are_one_martingale():
    """Given p-values of 1/4 and 3/4 with equal chance, wealth is expected to stay."""
    rng = np.random.default_rng(0)
    past = [0.5] * 30 + rng.choice([0.25, 0.75], size=1500).tolist()
    lost = JumperMartingale(np.ones(1), 0.025, rng, past)
    assert lost._n_bets > 1
    for until in (10, 700, 1530):
        now, up, down = (
            JumperMartingale(np.ones(1), 0.025, rng, past[:until] + more).wealth
            for more in ([], [0.75], [0.25])
        )
        assert (up + down) / 2 == pytest.approx(now, rel=1e-12)


@pytest.mark.filterwarnings("error")
def test_wealth_without_end(calibrated):
    rng = np.random.default_rng(0)
    bet = JumperMartingale(np.zeros(10), 0.025, rng).after(np.arange(1.0, 2500.0))
    assert bet.wealth == np.inf
    monitor = ExchangeabilityMonitor(calibrated, X[CAL])
    with pytest.raises(ExchangeabilityWarning):
        monitor.update(X[NEW] + 4.0)
    assert monitor.changed == "inputs"  # counted, although the warning is an error


def test_a_failed_update_counts_no_row(calibrated, monkeypatch):
    monitor = ExchangeabilityMonitor(calibrated, X[CAL])
    before = monitor.wealth, monitor.n_rows

    def stopped(self, values):
        raise KeyboardInterrupt

    noise = monitor._bets["noise"]
    monkeypatch.setattr(noise, "after", stopped.__get__(noise))
    with pytest.raises(KeyboardInterrupt):
        monitor.update(X[NEW], Y[NEW])
    with pytest.raises(ValueError, match="Got y"):
        monitor.update(X[NEW], Y[:3])
    assert (monitor.wealth, monitor.n_rows) == before
    with pytest.raises(ValueError, match="no calibration rows as a reference"):
        ExchangeabilityMonitor(calibrated, X[:0])


@pytest.mark.parametrize("method", ["aci", "enbpi"])
def test_time_series_of_mapie_through_the_scale_estimator(model, method):
    score = ResidualNormalisedScore(
        residual_estimator=ClapsScaleEstimator(model), prefit=True, sym=True
    )
    series = TimeSeriesRegressor(
        model, method=method, cv="prefit", conformity_score=score
    ).fit(X[CAL], Y[CAL])
    _, bounds = series.predict(X[NEW], confidence_level=0.9)
    width = bounds[:, 1, 0] - bounds[:, 0, 0]
    std = model.predict(X[NEW], return_std=True)[1]
    np.testing.assert_allclose(width / std, width[0] / std[0])
    inside = (bounds[:, 0, 0] <= Y[NEW]) & (Y[NEW] <= bounds[:, 1, 0])
    assert inside.mean() > 0.8
    if method == "aci":
        far = Y[NEW][:10] + 100.0
        series.adapt_conformal_inference(
            X[NEW][:10], far, gamma=0.005, confidence_level=0.9
        )
        assert series.current_alpha[0.1] == pytest.approx(0.1 - 10 * 0.005 * 0.9)


def test_time_series_of_mapie_refuses_our_score(model):
    series = TimeSeriesRegressor(
        model, method="aci", cv="prefit", conformity_score=ClapsScore(model)
    )
    with pytest.raises(ValueError, match="method='aci' is not supported"):
        series.fit(X[CAL], Y[CAL])


def test_conditional_class_of_mapie_with_bins_of_the_epistemic_fraction(model):
    """For groups that do not overlap it gives what one calibration per group does."""
    bins = EpistemicGroups.from_training(model, X[:200], n_groups=2)

    def feature_map(X):
        labels = bins.of_law(model.predict_law(X)).astype(int)
        return np.eye(2)[labels]

    conditional = ConditionalSplitConformalRegressor(
        feature_map, model, 0.8, ClapsScore(model), prefit=True
    ).conformalize(X[CAL], Y[CAL])
    found = conditional.predict_interval(X[500:530])[1]
    grouped = CalibratedRegressor(model, 0.8).conformalize(X[CAL], Y[CAL], groups=bins)
    expected = grouped.predict_interval(X[500:530])[1]
    # Linear programs break ties of neighbouring ranks either way.
    np.testing.assert_allclose(found, expected, rtol=0.05, atol=0.05)
    std = model.predict(X[500:530], return_std=True)[1]
    width = (found[:, 1] - found[:, 0])[:, 0]
    for label in (0, 1):
        rows = feature_map(X[500:530])[:, label] == 1
        np.testing.assert_allclose(width[rows] / std[rows], (width / std)[rows][0])
