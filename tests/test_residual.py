"""CLAPS around other people's models."""

import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from conftest import heteroscedastic, tiny
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import (
    HistGradientBoostingRegressor,
    RandomForestRegressor,
    StackingRegressor,
)
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mapie_claps import (
    CalibratedRegressor,
    ClapsResidualRegressor,
    EpistemicGroups,
    explain,
    load,
)
from mapie_claps.diagnostics import diagnose, nearest_rows, predict_frame, rank_rows

X, Y = heteroscedastic(500)
TRAIN, CAL, NEW = (X[:200], Y[:200]), (X[200:320], Y[200:320]), X[320:]


def around(model, **params):
    """With a small network for the residuals."""
    return ClapsResidualRegressor(model, tiny(), **({"random_state": 0} | params))


@pytest.fixture(scope="module")
def fitted():
    return around(Ridge()).fit(*TRAIN)


@pytest.fixture(scope="module")
def calibrated(fitted):
    return CalibratedRegressor(fitted, [0.8, 0.9]).conformalize(*CAL)


class Recorder(LinearRegression):
    """Remembers what each fit was given."""

    fits: list = []  # noqa: RUF012

    def fit(self, X, y, sample_weight=None):
        Recorder.fits.append((np.asarray(X), np.asarray(y), sample_weight))
        return super().fit(X, y, sample_weight)


@pytest.mark.parametrize(
    "model",
    [
        RandomForestRegressor(10, random_state=0),
        HistGradientBoostingRegressor(max_iter=10, random_state=0),
        make_pipeline(StandardScaler(), KNeighborsRegressor()),
        TransformedTargetRegressor(make_pipeline(StandardScaler(), Ridge())),
        StackingRegressor([("line", Ridge())]),
    ],
)
def test_predictions_are_those_of_the_model_to_the_bit(model):
    ours = CalibratedRegressor(around(model), cv=None, random_state=0)
    ours.fit(X[:300], Y[:300])
    inner = ours.estimator_.estimator_
    np.testing.assert_array_equal(ours.predict(NEW), inner.predict(NEW))
    points, bounds = ours.predict_interval(NEW)
    np.testing.assert_array_equal(points, inner.predict(NEW))
    np.testing.assert_array_equal(ours.explain(NEW).prediction, points)
    assert (bounds[:, 0] < bounds[:, 1]).all()
    alone = clone(model).fit(*TRAIN)
    same = around(model).fit(*TRAIN)
    np.testing.assert_array_equal(same.predict(NEW), alone.predict(NEW))


def test_the_distribution_is_that_of_the_residual_moved(fitted):
    rows, residual = (
        fitted.predict_distribution(NEW),
        fitted.residual_regressor_.predict_distribution(NEW),
    )
    point = fitted.estimator_.predict(NEW)
    np.testing.assert_allclose(rows.score(Y[320:]), residual.score(Y[320:] - point))
    np.testing.assert_allclose(rows.median, residual.median + point)
    np.testing.assert_array_equal(rows.prediction, point)
    assert not np.allclose(rows.mean, point)
    np.testing.assert_array_equal(explain(fitted, NEW).prediction, point)
    mean, std = fitted.predict(NEW, return_std=True)
    np.testing.assert_array_equal(mean, point)
    np.testing.assert_allclose(std**2, fitted.predict_variance(NEW).total)


@pytest.mark.filterwarnings("ignore:Got a table in which more than a tenth")
def test_residuals_are_those_of_rows_left_out():
    Recorder.fits = []
    twice = np.r_[np.arange(60), np.arange(60)]  # equal rows share a fold
    weight = np.linspace(1, 2, 120)
    model = around(Recorder(), cv=4).fit(X[twice], Y[twice], sample_weight=weight)
    *folds, last = Recorder.fits
    assert len(folds) == 4
    assert last[0].shape == (120, 3)
    np.testing.assert_array_equal(last[2], weight)
    held_out = []
    for rows, _, own in folds:
        seen = {row.tobytes() for row in rows}
        rest = [i for i in range(60) if X[i].tobytes() not in seen]
        assert len(rows) + 2 * len(rest) == 120
        assert len(own) == len(rows)
        held_out += rest
    assert sorted(held_out) == list(range(60))
    assert model.residual_regressor_.sums_.n_rows == 60


def test_weights_reach_the_last_step_of_a_pipeline():
    Recorder.fits = []
    pipe = make_pipeline(StandardScaler(), Recorder())
    around(pipe).fit(*TRAIN, sample_weight=np.ones(200))
    assert all(weight is not None for _, _, weight in Recorder.fits)
    with pytest.raises(ValueError, match="Got sample_weight for a KNeighborsRegressor"):
        around(KNeighborsRegressor()).fit(*TRAIN, sample_weight=np.ones(200))


def test_a_fitted_model_stays_as_it_is():
    model = Ridge().fit(X[:100], Y[:100])
    before = model.coef_.copy()
    ours = around(model, prefit=True)
    assert clone(ours).estimator is model
    ours.fit(X[100:300], Y[100:300])
    assert ours.estimator_ is model
    np.testing.assert_array_equal(model.coef_, before)
    with pytest.raises(NotFittedError):
        around(Ridge(), prefit=True).fit(*TRAIN)


def test_conformalize_divides_the_rows_for_a_fitted_model():
    model = Ridge().fit(X[:100], Y[:100])
    ours = CalibratedRegressor(model, cv=None, random_state=0)
    ours.conformalize(X[100:320], Y[100:320])
    assert ours.estimator_.estimator_ is model
    assert len(ours.conformity_scores) == 55
    assert ours.estimator_.residual_regressor_.sums_.n_rows == 165
    np.testing.assert_array_equal(ours.predict(NEW), model.predict(NEW))
    with pytest.warns(UserWarning, match="on which the estimator was fitted"):
        ours.conformalize(X[100:320], Y[100:320])  # from some of which it has learned
    ours.conformalize(X[320:], Y[320:])  # the same residual model, other scores
    assert len(ours.conformity_scores) == 180
    with pytest.raises(NotFittedError):
        CalibratedRegressor(Ridge()).conformalize(*CAL)


def test_exact_predictions_of_a_fitted_model_give_a_warning():
    model = KNeighborsRegressor(1).fit(*TRAIN)
    with pytest.warns(UserWarning, match="predicts 200 of 200 targets exactly"):
        around(model, prefit=True).fit(*TRAIN)
    counts = np.round(Y[:200])  # a value that others have is no sign
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        around(model, prefit=True).fit(*CAL)
        around(model.fit(X[:200], counts), prefit=True).fit(X[:200], counts)


def test_lack_of_data_grows_where_a_tree_is_constant_and_a_line_is_not():
    far = np.zeros((2, 3))
    far[1, 0] = 30.0
    for model in (Ridge(), HistGradientBoostingRegressor(max_iter=20)):
        inside, outside = around(model).fit(*TRAIN).predict_variance(far).epistemic
        assert outside > 5 * inside


def test_reasons_groups_and_tables_as_for_our_own_networks(calibrated):
    why = explain(calibrated, NEW[:5], background=X[:60])
    width = why.by_column.total.sum(axis=1)
    np.testing.assert_allclose(width, why.width)
    assert "wide by" in why.by_column.sentence(0)
    assert "narrowing" in diagnose(calibrated, NEW)
    table = nearest_rows(calibrated, NEW[:2], X[:200], y_train=Y[:200], n_neighbors=2)
    assert len(table) == 4
    assert len(rank_rows(calibrated, NEW[:20], n_rows=2)) == 2
    frame = calibrated.predict_frame(pd.DataFrame(NEW, index=range(9, 189)))
    assert frame.index[0] == 9
    assert frame.equals(predict_frame(calibrated, pd.DataFrame(NEW, index=frame.index)))
    model = calibrated.estimators_[0]
    edges = EpistemicGroups.from_training(model, X[:200], 2)
    by_group = CalibratedRegressor(model).conformalize(*CAL, partition=edges)
    assert by_group.predict_interval(NEW)[1].shape == (180, 2, 1)
    adaptive = CalibratedRegressor(model).conformalize(*CAL).observe(NEW, Y[320:])
    assert adaptive.calibration_.levels.n_observed == 180
    quantiles = calibrated.predict_quantiles(NEW, [0.1, 0.5, 0.9])
    assert (np.diff(quantiles) >= 0).all()


def test_counts_keep_their_support():
    y = np.random.default_rng(0).poisson(np.exp(X[:, 0] / 2))
    model = CalibratedRegressor(
        ClapsResidualRegressor(Ridge(), tiny(noise_shape=True), random_state=0),
        cv=None,
        random_state=0,
    ).fit(X[:320], y[:320])
    ends = model.predict_interval(NEW)[1]
    assert (ends >= 0).all()
    np.testing.assert_array_equal(ends, np.round(ends))


def test_folds_keep_the_predictions_of_a_fitted_model_to_the_bit():
    model = Ridge().fit(X[:50], Y[:50])
    ours = CalibratedRegressor(around(model, prefit=True), random_state=0)
    ours.fit(X[50:200], Y[50:200])
    assert len(ours.estimators_) == 5
    np.testing.assert_array_equal(ours.predict(NEW), model.predict(NEW))
    np.testing.assert_array_equal(ours.predict_interval(NEW)[0], model.predict(NEW))


def test_small_tables_take_folds():
    model = CalibratedRegressor(around(Ridge()), random_state=0).fit(X[:60], Y[:60])
    assert len(model.estimators_) == 5
    each = [m.estimator_.predict(NEW) for m in model.estimators_]
    np.testing.assert_allclose(model.predict(NEW), np.mean(each, axis=0))


def test_bad_arguments_are_named_and_change_nothing(fitted):
    before = fitted.predict(NEW)
    model = clone(fitted).set_params(cv=1)
    with pytest.raises(ValueError, match="Got cv=1"):
        model.fit(*TRAIN)
    with pytest.raises(ValueError, match="requires y to be passed"):
        fitted.fit(X, None)
    np.testing.assert_array_equal(fitted.predict(NEW), before)
    for other in (tiny(target_map="log"), Ridge()):
        with pytest.raises(ValueError, match="Got residual_regressor="):
            ClapsResidualRegressor(Ridge(), other).fit(*TRAIN)
    with pytest.raises(NotFittedError):
        around(Ridge()).predict(NEW)
    with pytest.raises(ValueError, match="different groups, for 2 folds"):
        around(Ridge()).fit(X[:1], Y[:1])
    with pytest.raises(ValueError, match="Got batches, or no y, for a Ridge"):
        CalibratedRegressor(Ridge().fit(*TRAIN)).conformalize([CAL, CAL])


def test_a_model_that_predicts_nonsense_is_refused():
    class Broken(LinearRegression):
        def predict(self, X):
            return np.full(len(X), np.nan)

    with pytest.raises(ValueError, match="Got predictions of the estimator with NaN"):
        around(Broken()).fit(*TRAIN)


@pytest.mark.parametrize("steps", [[], [StandardScaler()]])
def test_a_file_holds_both_models(steps, tmp_path):
    booster = HistGradientBoostingRegressor(max_iter=5, random_state=0)
    model = CalibratedRegressor(
        around(make_pipeline(*steps, booster)), cv=None, random_state=0
    ).fit(*TRAIN)
    model.save(tmp_path / "model.claps")
    again = load(tmp_path / "model.claps")
    assert again.predict_frame(NEW).equals(model.predict_frame(NEW))


def test_a_file_takes_models_of_scikit_learn_alone(fitted, tmp_path, monkeypatch):
    calibrated = CalibratedRegressor(around(Recorder())).fit(*TRAIN)
    with pytest.raises(TypeError, match="Recorder, of which skops does not trust"):
        calibrated.save(tmp_path / "model.claps")
    monkeypatch.setitem(sys.modules, "skops.io", None)
    with pytest.raises(ImportError, match=r"pip install 'mapie-claps\[skops\]'"):
        CalibratedRegressor(fitted).conformalize(*CAL).save(tmp_path / "model.claps")
    assert not list(tmp_path.iterdir())
