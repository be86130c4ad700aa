"""Inside either MAPIE: a fitted estimator, split calibration, several levels."""

import numpy as np
import pytest
from conftest import tiny
from mapie.conformity_scores import ResidualNormalisedScore
from mapie_api import prefit_intervals
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mapie_claps import ClapsScaleEstimator, ClapsScore, conformal_quantile, explain

LEVELS = [0.6, 0.9]


def by_hand(model, data, levels):
    mu, std = model.predict(data[1][0], return_std=True)
    scores = np.abs(data[1][1] - mu) / std
    q = conformal_quantile(scores, [1 - v for v in levels])
    mu, std = (a[:, None] for a in model.predict(data[2][0], return_std=True))
    return np.stack([mu - q * std, mu + q * std], axis=1)


def test_three_ways_to_the_same_interval(fitted, data):
    expected = by_hand(fitted, data, LEVELS)
    residual = ResidualNormalisedScore(
        residual_estimator=ClapsScaleEstimator(fitted), prefit=True
    )
    for score in (ClapsScore(fitted), residual):
        mu, got = prefit_intervals(fitted, score, data[1], data[2][0], LEVELS)
        np.testing.assert_allclose(got, expected, rtol=1e-10)
        np.testing.assert_array_equal(mu, fitted.predict(data[2][0]))


def test_levels_are_nested_and_cover(fitted, data):
    _, bounds = prefit_intervals(
        fitted, ClapsScore(fitted), data[1], data[2][0], LEVELS
    )
    assert (bounds[:, 0, 1] < bounds[:, 0, 0]).all()
    assert (bounds[:, 1, 1] > bounds[:, 1, 0]).all()
    y = data[2][1]
    inside = (bounds[:, 0, 1] <= y) & (y <= bounds[:, 1, 1])
    assert inside.mean() > 0.8


def test_in_a_pipeline(data):
    pipe = make_pipeline(StandardScaler(), tiny()).fit(*data[0])
    _, got = prefit_intervals(pipe, ClapsScore(pipe), data[1], data[2][0], LEVELS)
    np.testing.assert_allclose(got, by_hand(pipe, data, LEVELS), rtol=1e-10)


def test_a_gaussian_process_works_too(data):
    gp = GaussianProcessRegressor(RBF() + WhiteKernel(), normalize_y=True)
    gp.fit(*data[0])
    _, got = prefit_intervals(gp, ClapsScore(gp), data[1], data[2][0], LEVELS)
    np.testing.assert_allclose(got, by_hand(gp, data, LEVELS), rtol=1e-10)


def test_another_model_in_the_centre(fitted, data):
    booster = HistGradientBoostingRegressor(max_iter=20).fit(*data[0])
    score = ResidualNormalisedScore(
        residual_estimator=ClapsScaleEstimator(fitted), prefit=True
    )
    mu, bounds = prefit_intervals(booster, score, data[1], data[2][0], 0.9)
    np.testing.assert_array_equal(mu, booster.predict(data[2][0]))
    width = bounds[:, 1, 0] - bounds[:, 0, 0]
    std = fitted.predict(data[2][0], return_std=True)[1]
    np.testing.assert_allclose(width / std, width[0] / std[0], rtol=1e-10)


def test_targets_of_tiny_scale_keep_their_coverage(data):
    (X, y), (X_cal, y_cal), (X_test, y_test) = data
    model = tiny().fit(X, 1e-12 * y)
    _, bounds = prefit_intervals(
        model, ClapsScore(model), (X_cal, 1e-12 * y_cal), X_test, 0.9
    )
    inside = (bounds[:, 0, 0] <= 1e-12 * y_test) & (1e-12 * y_test <= bounds[:, 1, 0])
    assert inside.mean() > 0.8


def test_one_row_as_mapies_conditional_class_asks_for_it(fitted, data):
    """ConditionalSplitConformalRegressor inverts the score with one number a row."""
    row = data[2][0][:1]
    mu, std = fitted.predict(row, return_std=True)
    got = ClapsScore(fitted).get_estimation_distribution(mu[0], -2.0, X=row)
    assert float(got) == pytest.approx(mu[0] - 2 * std[0])


def test_a_score_that_holds_another_estimator_raises(fitted, data):
    other = tiny(random_state=1).fit(*data[0])
    with pytest.raises(ValueError, match="not those of the estimator that MAPIE predi"):
        prefit_intervals(fitted, ClapsScore(other), data[1], data[2][0], 0.9)
    gp = GaussianProcessRegressor(RBF() + WhiteKernel()).fit(*data[0])
    with pytest.raises(ValueError, match="use ClapsScaleEstimator"):
        prefit_intervals(gp, ClapsScore(fitted), data[1], data[2][0], 0.9)


def test_an_equal_copy_is_not_the_same_object(fitted, data):
    """Equal predictions pass calibration; the bounds know which object predicts."""
    twin = clone(fitted).fit(*data[0])
    with pytest.raises(ValueError, match="MAPIE predicts with another object, a Claps"):
        prefit_intervals(fitted, ClapsScore(twin), data[1], data[2][0], 0.9)


def test_clone_of_the_scale_estimator_keeps_what_it_wraps(fitted, data):
    scale = clone(ClapsScaleEstimator(fitted))
    np.testing.assert_array_equal(
        scale.predict(data[2][0]), fitted.predict(data[2][0], return_std=True)[1]
    )
    assert scale.n_features_in_ == 3


def test_explain_an_estimator_and_a_pipeline(fitted, data):
    X = data[2][0]
    why = explain(fitted, X)
    part = fitted.predict_variance(X)
    np.testing.assert_array_equal(why.aleatoric, part.aleatoric)
    np.testing.assert_array_equal(why.epistemic, part.epistemic)
    np.testing.assert_array_equal(why.prediction, fitted.predict(X))
    assert why.lower.shape == (120, 0)
    pipe = make_pipeline(StandardScaler(), fitted)
    pipe[0].fit(X)
    np.testing.assert_array_equal(
        explain(pipe, X).aleatoric,
        fitted.predict_variance(pipe[0].transform(X)).aleatoric,
    )


class NoNumbers(RegressorMixin, BaseEstimator):
    """A scale that is NaN in the second row."""

    def fit(self, X, y):
        self.n_features_in_ = 1
        return self

    def predict(self, X, return_std):
        return np.zeros(len(X)), np.where(np.arange(len(X)) == 1, np.nan, 1.0)


def test_a_scale_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="Got a standard deviation of nan in row 1"):
        ClapsScaleEstimator(NoNumbers().fit(None, None)).predict(np.zeros((3, 1)))
