"""``ClapsScore`` number by number, called as MAPIE calls it."""

from types import SimpleNamespace

import numpy as np
import pytest
from known_model import Plain, Shaped, table
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from mapie_claps import CalibratedRegressor, ClapsScaleEstimator, ClapsScore

X, Y = table(60)
PLAIN, SHAPED = Plain().fit(X, Y), Shaped().fit(X, Y)
MU, STD = PLAIN.predict(X, return_std=True)
SIGNED = (Y - MU) / STD
ALPHA = np.array([0.5, 0.25])


def ensemble(model):
    return SimpleNamespace(single_estimator_=model, use_split_method_=True)


def bounds(score, model, scores, rows=X, alpha=ALPHA, **options):
    return score.get_bounds(rows, alpha, ensemble(model), scores, **options)


def test_scores_by_hand():
    for score in (ClapsScore(PLAIN), ClapsScore(PLAIN, sym=False)):
        found = score.get_signed_conformity_scores(Y, MU, X=X)
        np.testing.assert_array_equal(found, SIGNED)
    found = ClapsScore().get_conformity_scores(Y, MU, y_std=STD)
    np.testing.assert_array_equal(found, np.abs(SIGNED))
    found = ClapsScore(sym=False).get_conformity_scores(Y, MU, y_std=STD)
    np.testing.assert_array_equal(found, SIGNED)
    score = ClapsScore(support=(0, None))
    found = score.get_conformity_scores(Y, MU, y_std=STD.astype(np.float32))
    np.testing.assert_array_equal(np.isinf(found), Y < 0)
    assert found.dtype == np.float64


def test_scores_of_a_distribution_know_its_fit():
    mu, std = SHAPED.predict(X, return_std=True)
    expected = SHAPED.predict_distribution(X).score(Y)
    assert not np.allclose(expected, (Y - mu) / std)
    found = ClapsScore(sym=False).get_conformity_scores(Y, mu, y_std=std)
    np.testing.assert_array_equal(found, expected)
    assert found.fit_id == SHAPED.fit_id_
    held = ClapsScore(SHAPED).get_conformity_scores(Y, mu, X=X)
    np.testing.assert_array_equal(held, np.abs(expected))
    assert held.fit_id == SHAPED.fit_id_
    # Folds copy the array, and the distribution is lost: mean and std alone.
    alone = ClapsScore(sym=False).get_conformity_scores(Y, mu, y_std=np.array(std))
    np.testing.assert_array_equal(alone, (Y - mu) / np.asarray(std))
    assert alone.fit_id is None


def test_scores_that_cannot_be():
    free = ClapsScore()
    with pytest.raises(ValueError, match=r"Got ClapsScore\(\) without an estimator, a"):
        free.get_conformity_scores(Y, MU)
    with pytest.raises(ValueError, match="1 of 60 rows without .*resampling="):
        free.get_conformity_scores(Y, np.r_[np.nan, MU[1:]], y_std=STD)
    with pytest.raises(ValueError, match=r"Got ClapsScore\(Plain\) whose predictions"):
        ClapsScore(PLAIN).get_conformity_scores(Y, MU + 1e-9, X=X)
    with pytest.raises(ValueError, match=r"Got predictions of shape \(60, 1\)"):
        free.get_conformity_scores(Y, MU[:, None], y_std=STD)
    with pytest.raises(ValueError, match=r"standard deviation of shape \(59,\)"):
        free.get_conformity_scores(Y, MU, y_std=STD[1:])
    with pytest.raises(
        ValueError, match="Got y with NaN or infinity. Got nan in y, ro"
    ):
        free.get_conformity_scores(np.r_[Y[:-1], np.nan], MU, y_std=STD)
    masked = np.ma.masked_greater(Y, 0)
    with pytest.raises(ValueError, match="Got y as a masked array"):
        free.get_conformity_scores(masked, MU, y_std=STD)
    for bad in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="Got a standard deviation of .* in row 3"):
            free.get_conformity_scores(Y, MU, y_std=np.r_[STD[:3], bad, STD[4:]])
    with pytest.raises(ValueError, match="Got a prediction of inf in row 59"):
        free.get_conformity_scores(Y, np.r_[MU[:-1], np.inf], y_std=STD)


@pytest.mark.parametrize("sym", [1, "both", None])
def test_sym_is_true_or_false(sym):
    with pytest.raises(ValueError, match=rf"Got sym={sym!r}, .*Use True for one rank"):
        ClapsScore(sym=sym)


def test_values_of_a_score_by_hand():
    free, q = ClapsScore(), np.array([[-1.0, 2.0]])
    for found in (
        ClapsScore(PLAIN).get_estimation_distribution(MU, SIGNED, X=X),
        free.get_estimation_distribution(MU, SIGNED, y_std=STD),
    ):
        np.testing.assert_allclose(found, Y, rtol=1e-12)
        assert type(found) is np.ndarray
    found = free.get_estimation_distribution(MU[:, None], q, y_std=STD)
    np.testing.assert_array_equal(found, MU[:, None] + q * STD[:, None])
    one = free.get_estimation_distribution(3.0, -2.0, y_std=[10.0])
    assert (one.shape, one) == ((), -17)
    with pytest.raises(ValueError, match="without an estimator, and no standard dev"):
        free.get_estimation_distribution(MU, SIGNED)


def test_values_of_the_score_of_a_distribution():
    mu, std = SHAPED.predict(X, return_std=True)
    rows = SHAPED.predict_distribution(X)
    scores, score = rows.score(Y), ClapsScore()
    found = score.get_estimation_distribution(mu, scores, y_std=std)
    np.testing.assert_allclose(found, Y, rtol=1e-9)
    found = score.get_estimation_distribution(mu[:, None], ALPHA, y_std=std)
    np.testing.assert_array_equal(found, rows.quantile(ALPHA))
    one = SHAPED.predict(X[:1], return_std=True)
    held = ClapsScore(SHAPED).get_estimation_distribution(one[0][0], 2.0, X=X[:1])
    assert held.shape == ()
    assert held == rows.quantile(2.0)[0, 0]


def test_bounds_by_hand():
    scores = np.array([0.5, 1.0, 2.0])  # ranks 2 and 3
    for score in (ClapsScore(PLAIN), ClapsScore()):
        mu, low, high = bounds(score, PLAIN, scores)
        np.testing.assert_array_equal(mu, MU)
        np.testing.assert_allclose(low, MU[:, None] - STD[:, None] * [1, 2])
        np.testing.assert_allclose(high, MU[:, None] + STD[:, None] * [1, 2])
    signed = np.array([-3.0, -1.0, -0.3, 0.2, 0.4, 1.0, 5.0], dtype=object)
    score = ClapsScore(support="integer", sym=False)
    _, low, high = bounds(score, PLAIN, signed)
    np.testing.assert_array_equal(low, np.round(MU[:, None] - STD[:, None] * [1, 3]))
    np.testing.assert_array_equal(high, np.round(MU[:, None] + STD[:, None] * [1, 5]))
    with pytest.raises(ValueError, match="Got 1 calibration scores"):
        bounds(ClapsScore(), PLAIN, scores[:1])
    few = {"allow_infinite_bounds": True}
    _, low, high = bounds(ClapsScore(), PLAIN, scores[:1], **few)
    assert (low[:, 1] == -np.inf).all()
    assert (high[:, 1] == np.inf).all()
    assert np.isfinite(high[:, 0]).all()
    assert ClapsScore().get_effective_calibration_samples(scores) == np.inf
    with pytest.raises(ValueError, match="Got confidence_level=0 "):
        bounds(ClapsScore(), PLAIN, scores, alpha=np.array([1.0]), **few)


def test_parameters_of_predict_reach_the_model():
    scores = np.array([0.5, 1.0, 2.0])
    for params in ({"shift": 2.0}, {"predict_params": {"shift": 2.0}}):
        mu, low, high = bounds(ClapsScore(), PLAIN, scores, **params)
        np.testing.assert_allclose(mu, MU + 2, rtol=1e-12)
        np.testing.assert_allclose((low + high) / 2, MU[:, None] + 2 + 0 * low)


def test_bounds_are_made_as_the_scores_were():
    """By the whole distribution, or by mean and standard deviation alone."""
    mu, std = SHAPED.predict(X, return_std=True)
    score = ClapsScore()
    whole = score.get_conformity_scores(Y, mu, y_std=std)
    alone = score.get_conformity_scores(Y, mu, y_std=np.array(std))
    rows = SHAPED.predict_distribution(X)
    for scores, expected in (
        (whole, rows.quantile(np.sort(whole)[[30]])[:, 0]),
        (alone, mu + np.sort(alone)[30] * np.asarray(std)),
    ):
        _, _, high = bounds(score, SHAPED, scores, alpha=ALPHA[:1])
        np.testing.assert_allclose(high[:, 0], expected, rtol=1e-12)
    with pytest.raises(ValueError, match="do not say how they were made"):
        bounds(score, SHAPED, np.asarray(whole))
    held = bounds(ClapsScore(SHAPED), SHAPED, np.asarray(whole))
    np.testing.assert_array_equal(held[2], bounds(score, SHAPED, whole)[2])


def test_bounds_that_are_refused():
    scores = np.array([0.5, 1.0, 2.0])
    with pytest.raises(ValueError, match="Got minimize_interval_width=True"):
        bounds(ClapsScore(), PLAIN, scores, optimize_beta=True)
    with pytest.raises(ValueError, match="is another object than the Plain that MAPIE"):
        bounds(ClapsScore(Plain().fit(X, Y)), PLAIN, scores)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (HistGradientBoostingRegressor(), "takes no return_std. Keep its predictions"),
        (GridSearchCV(Plain(), {"shift": [0.0]}, cv=2).fit(X, Y), "search.best_estim"),
        (object(), "Got a object, whose predict takes no return_std"),
        (make_pipeline(CalibratedRegressor()), "Pass this step, with rows that"),
    ],
)
def test_models_without_a_standard_deviation(model, message):
    with pytest.raises(TypeError, match=message):
        ClapsScore(model)


def test_the_last_step_of_a_pipeline_is_asked():
    pipe = make_pipeline(FunctionTransformer(np.cos), Shaped()).fit(X, Y)
    mu, std = pipe.predict(X, return_std=True)
    scores = ClapsScore().get_conformity_scores(Y, mu, y_std=std)
    expected = pipe[-1].predict_distribution(np.cos(X))
    np.testing.assert_array_equal(scores, np.abs(expected.score(Y)))
    _, _, high = bounds(ClapsScore(), pipe, scores, alpha=ALPHA[:1])
    top = expected.quantile(np.sort(scores)[[30]])
    np.testing.assert_allclose(high, top, rtol=1e-12)
    alone = make_pipeline(Plain()).fit(X, Y)
    np.testing.assert_array_equal(bounds(ClapsScore(alone), alone, SIGNED)[0], MU)


def test_scale_of_a_fitted_estimator():
    scale = ClapsScaleEstimator(SHAPED)
    np.testing.assert_array_equal(
        scale.predict(X), SHAPED.predict(X, return_std=True)[1]
    )
    assert scale.n_features_in_ == 3
    with pytest.raises(TypeError, match="is already fitted, and has nothing to fit"):
        scale.fit(X, Y)

    class Tiny(Plain):
        def predict(self, X, return_std=False):
            mu = np.zeros(len(X))
            return (mu, mu + 1e-9) if return_std else mu

    with pytest.raises(ValueError, match="Got a scale of 1e-09, .* clips it at 1e-08"):
        ClapsScaleEstimator(Tiny().fit(X, Y)).predict(X)
