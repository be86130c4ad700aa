"""Inside either MAPIE: a fitted estimator, split calibration, several levels."""

import copy
import pickle

import numpy as np
import pytest
from known_model import Plain, Shaped, explained, table
from mapie.conformity_scores import AbsoluteConformityScore, ResidualNormalisedScore
from mapie_api import calibrated_prefit, prefit_intervals
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mapie_claps import (
    CalibratedRegressor,
    ClapsScaleEstimator,
    ClapsScore,
    conformal_quantile,
)

LEVELS = [0.6, 0.9]
X, Y = table(400)
FIT, CAL, TEST = (X[:100], Y[:100]), (X[100:250], Y[100:250]), X[250:]
PLAIN, SHAPED = Plain().fit(*FIT), Shaped().fit(*FIT)


def by_hand(model, levels=LEVELS):
    mu, std = model.predict(CAL[0], return_std=True)
    q = conformal_quantile(np.abs(CAL[1] - mu) / std, [1 - v for v in levels])
    mu, std = (np.asarray(a)[:, None] for a in model.predict(TEST, return_std=True))
    return np.stack([mu - q * std, mu + q * std], axis=1)


def gaussian_process():
    return GaussianProcessRegressor(RBF() + WhiteKernel(), optimizer=None)


@pytest.mark.parametrize(
    "model",
    [
        PLAIN,
        gaussian_process().fit(*FIT),
        make_pipeline(StandardScaler(), gaussian_process()).fit(*FIT),
    ],
    ids=["formula", "process", "pipeline"],
)
def test_both_scores_give_the_interval_by_hand(model):
    residual = ResidualNormalisedScore(
        residual_estimator=ClapsScaleEstimator(model), prefit=True
    )
    for score in (ClapsScore(model), residual):
        mu, got = prefit_intervals(model, score, CAL, TEST, LEVELS)
        np.testing.assert_allclose(got, by_hand(model), rtol=1e-9)
        np.testing.assert_array_equal(mu, model.predict(TEST))


def test_another_model_in_the_centre():
    booster = HistGradientBoostingRegressor(max_iter=20).fit(*FIT)
    score = ResidualNormalisedScore(
        residual_estimator=clone(ClapsScaleEstimator(PLAIN)), prefit=True
    )
    mapie, options = calibrated_prefit(booster, score, CAL, 0.9)
    points, bounds, noise = explained(mapie, TEST, **options)
    np.testing.assert_array_equal(points, booster.predict(TEST))
    width = bounds[:, 1, 0] - bounds[:, 0, 0]
    std = PLAIN.predict(TEST, return_std=True)[1]
    np.testing.assert_allclose(width / std, width[0] / std[0], rtol=1e-9)
    assert np.isnan(noise).all()  # √v makes the width, of which no parts are known


def test_the_shape_of_a_distribution_comes_through():
    expected = CalibratedRegressor(SHAPED, LEVELS).conformalize(*CAL)
    mapie, options = calibrated_prefit(SHAPED, ClapsScore(SHAPED), CAL, LEVELS)
    assert not np.allclose(expected.predict_interval(TEST)[1], by_hand(SHAPED))
    for host in (mapie, copy.deepcopy(mapie), pickle.loads(pickle.dumps(mapie))):
        predict = getattr(host, "predict_interval", host.predict)
        for got, want in zip(
            predict(TEST, **options), expected.predict_interval(TEST), strict=True
        ):
            np.testing.assert_array_equal(got, want)
    found, wanted = explained(mapie, TEST, **options), explained(expected, TEST)
    np.testing.assert_array_equal(found[2], wanted[2])


def test_taken_over_from_mapie():
    for sym in (True, False):
        score = ClapsScore(SHAPED, sym=sym, support=(-9, 9))
        mapie, options = calibrated_prefit(SHAPED, score, CAL, LEVELS)
        model = CalibratedRegressor.from_mapie(mapie, LEVELS)
        predict = getattr(mapie, "predict_interval", mapie.predict)
        np.testing.assert_array_equal(
            model.predict_interval(TEST)[1], predict(TEST, **options)[1]
        )
        assert (model.sym, model.support) == (sym, (-9, 9))
    assert model.cdf(TEST, 0.0).shape == (150,)  # signed scores
    other, _ = calibrated_prefit(SHAPED, AbsoluteConformityScore(), CAL, LEVELS)
    for wrong in (other, SHAPED):
        with pytest.raises(TypeError, match="without ClapsScore, or with one"):
            CalibratedRegressor.from_mapie(wrong, 0.9)
    assert explained(other, TEST, **options)[2] is None
    inner = getattr(mapie, "_mapie_regressor", mapie)
    inner.conformity_scores_ = np.array(inner.conformity_scores_)
    with pytest.raises(ValueError, match="do not say how they were made"):
        CalibratedRegressor.from_mapie(mapie, 0.9)


def test_nine_rows_are_enough_and_eight_are_not():
    nine = CAL[0][:9], CAL[1][:9]
    # MAPIE 0.9 refuses them itself, before it asks a score.
    _, bounds = prefit_intervals(
        PLAIN, ClapsScore(PLAIN), nine, TEST, 0.9, allow_infinite_bounds=True
    )
    assert np.isfinite(bounds).all()
    eight = CAL[0][:8], CAL[1][:8]
    _, bounds = prefit_intervals(
        PLAIN, ClapsScore(PLAIN), eight, TEST, 0.9, allow_infinite_bounds=True
    )
    assert (bounds[:, 0] == -np.inf).all()
    assert (bounds[:, 1] == np.inf).all()
    with pytest.raises(ValueError, match="Got 8 calibration scores|too low"):
        prefit_intervals(PLAIN, ClapsScore(PLAIN), eight, TEST, 0.9)


def test_a_score_that_holds_another_estimator_raises():
    other = Plain(shift=1.0).fit(*FIT)
    with pytest.raises(ValueError, match="not those of the estimator that MAPIE predi"):
        prefit_intervals(PLAIN, ClapsScore(other), CAL, TEST, 0.9)
    twin = Plain().fit(*FIT)  # equal predictions pass calibration
    with pytest.raises(ValueError, match="is another object than the Plain that MAPIE"):
        prefit_intervals(PLAIN, ClapsScore(twin), CAL, TEST, 0.9)


@pytest.mark.parametrize("factor", [1e-12, 1e12])
def test_targets_of_any_scale(factor):
    class Scaled(Plain):
        def predict(self, X, return_std=False):
            mu, std = super().predict(X, return_std=True)
            return (factor * mu, factor * std) if return_std else factor * mu

    model = Scaled().fit(*FIT)
    cal = CAL[0], factor * CAL[1]
    _, got = prefit_intervals(model, ClapsScore(model), cal, TEST, LEVELS)
    np.testing.assert_allclose(got / factor, by_hand(PLAIN), rtol=1e-9)
