"""Two bets against exchangeability, and MAPIE's own classes with our scale."""

import numpy as np
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
)
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
    limits = [bet._test.reject_threshold for bet in monitor._bets.values()]
    assert limits == [20, 20]
    with pytest.raises(ValueError, match="Got test_level=1.5"):
        ExchangeabilityMonitor(calibrated, X[CAL], test_level=1.5)


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
