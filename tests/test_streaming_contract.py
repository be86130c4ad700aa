"""What a ``StreamingConformalRegressor`` promises as an object.

It is no scikit-learn estimator, as MAPIE's ``SplitConformalRegressor`` is none: nothing
to fit, nothing to clone. What scikit-learn's checks ask of an estimator beyond that
is tested here in its own words.
"""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import heteroscedastic, tiny
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

from mapie_claps import StreamingConformalRegressor

X, Y = heteroscedastic(120)


@pytest.fixture(scope="module")
def model():
    return tiny().fit(X[:60], Y[:60])


@pytest.fixture
def calibrated(model):
    return StreamingConformalRegressor(model, [0.5, 0.9]).conformalize(X[60:], Y[60:])


def test_it_is_no_estimator_of_scikit_learn(calibrated):
    assert not isinstance(calibrated, BaseEstimator)
    for name in ("fit", "get_params", "set_params"):
        assert not hasattr(calibrated, name)


def test_the_constructor_keeps_what_it_is_given(model):
    levels = [0.5, 0.9]
    conformal = StreamingConformalRegressor(model, levels)
    given = {"estimator": model, "confidence_level": levels}
    assert vars(conformal) == {**given, "sym": True, "support": "auto"}
    assert repr(conformal) == f"StreamingConformalRegressor({model!r}, [0.5, 0.9])"


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.predict_interval(X),
        lambda c: next(c.iter_intervals(X)),
        lambda c: c.quantiles(),
        lambda c: c.explain(X),
    ],
)
def test_before_calibration(model, call):
    conformal = StreamingConformalRegressor(model)
    with pytest.raises(NotFittedError, match="not calibrated. Call conformalize"):
        call(conformal)
    np.testing.assert_array_equal(conformal.predict(X), model.predict(X))


def test_an_estimator_that_is_not_fitted():
    conformal = StreamingConformalRegressor(tiny())
    with pytest.raises(NotFittedError, match="not fitted"):
        conformal.conformalize(X, Y)
    assert not hasattr(conformal, "conformity_scores_")


def test_a_failed_calibration_leaves_the_old_one(calibrated):
    before = calibrated.predict_interval(X)[1]
    broken = [(X[:10], Y[:10]), (X[:10], Y[:9])]
    for step in (calibrated.conformalize, calibrated.partial_conformalize):
        with pytest.raises(ValueError, match="Got y of shape"):
            step(broken)
        np.testing.assert_array_equal(calibrated.predict_interval(X)[1], before)


def test_calibrating_again_starts_clean(model, calibrated):
    calibrated.predict_interval(X)  # keeps quantiles
    rows = X[60:110], Y[60:110]
    calibrated.conformalize(*rows)
    fresh = StreamingConformalRegressor(model, [0.5, 0.9]).conformalize(*rows)
    np.testing.assert_array_equal(
        calibrated.predict_interval(X)[1], fresh.predict_interval(X)[1]
    )


def test_a_level_changed_after_calibration_is_used(calibrated):
    expected = calibrated.predict_interval(X)[1][:, :, 1:]
    calibrated.confidence_level = 0.9
    np.testing.assert_array_equal(calibrated.predict_interval(X)[1], expected)


def test_predictions_change_nothing(calibrated):
    inputs, scores = X.copy(), calibrated.conformity_scores_.copy()
    first = calibrated.predict_interval(X)
    second = calibrated.predict_interval(X)
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(X, inputs)
    np.testing.assert_array_equal(calibrated.conformity_scores_, scores)


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))]
)
def test_copies(calibrated, duplicate):
    other = duplicate(calibrated)
    np.testing.assert_array_equal(
        other.predict_interval(X)[1], calibrated.predict_interval(X)[1]
    )


def test_quantiles_are_a_copy(calibrated):
    before = calibrated.predict_interval(X)[1]
    calibrated.quantiles()[:] /= 2
    np.testing.assert_array_equal(calibrated.predict_interval(X)[1], before)


def test_a_batch_of_no_rows_changes_nothing(model, calibrated):
    scores, intervals = calibrated.conformity_scores_, calibrated.predict_interval(X)[1]
    none = (X[:0], Y[:0])
    calibrated.conformalize([none, (X[60:], Y[60:]), none])
    np.testing.assert_array_equal(calibrated.conformity_scores_, scores)
    batches = [none, (X[:50], Y[:50]), none, (X[50:], Y[50:])]
    found = list(calibrated.iter_intervals(batches))
    assert [i.shape for _, i in found] == [(n, 2, 2) for n in (0, 50, 0, 70)]
    np.testing.assert_allclose(
        np.concatenate([i for _, i in found]), intervals, rtol=1e-10
    )
    assert calibrated.predict([none]).shape == (0,)
    assert calibrated.explain([none]).width.shape == (0, 2)
    assert calibrated.predict_interval(X[:0])[1].shape == (0, 2, 2)
    with pytest.raises(ValueError, match=r"Got y of shape \(0, 2\) for 0 rows of X"):
        calibrated.conformalize([(X[:0], np.empty((0, 2))), (X[60:], Y[60:])])


def test_a_list_of_tables_is_a_list_of_batches(calibrated):
    expected = calibrated.predict_interval(X)
    for tables in ([X[:60], X[60:]], (torch.from_numpy(X[:7]), pd.DataFrame(X[7:]))):
        for found, whole in zip(
            calibrated.predict_interval(tables), expected, strict=True
        ):
            np.testing.assert_allclose(found, whole, rtol=1e-10)
    with pytest.raises(ValueError, match=r"Got a batch of 1 parts, .* \(X, y\)"):
        calibrated.conformalize([X[:60], X[60:]])


class Table:
    """μ and √v are the columns; not an estimator of torch."""

    def predict(self, X, return_std=False):
        mu, std = np.asarray(X).T
        return (mu, std) if return_std else mu


@pytest.mark.parametrize("bad", [-1.0, 0.0, np.nan, np.inf])
def test_the_scale_is_checked_when_predicting(bad):
    conformal = StreamingConformalRegressor.from_scores(Table(), np.arange(1.0, 20.0))
    rows = np.array([[0.0, 1.0], [1.0, 2.0], [2.0, bad]])
    message = r"Got a standard deviation of .* in row 2, but expected positive"
    with pytest.raises(ValueError, match=message):
        conformal.predict_interval(rows)
    with pytest.raises(ValueError, match=message):
        conformal.predict_interval([(rows[:2], None), (rows[2:], None)])


def test_scores_are_those_that_are_set(model, calibrated):
    scores = calibrated.conformity_scores_.copy()
    before = calibrated.predict_interval(X)[1]
    other = StreamingConformalRegressor.from_scores(model, scores, [0.5, 0.9])
    scores /= 2  # the caller's own array
    np.testing.assert_array_equal(other.predict_interval(X)[1], before)
    other.conformity_scores_ = scores
    halved = other.predict_interval(X)[1]
    np.testing.assert_allclose(np.diff(halved, axis=1), np.diff(before, axis=1) / 2)
