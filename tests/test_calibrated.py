"""``CalibratedRegressor``: from ``fit`` to intervals, distributions and copies."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import tiny
from known_model import Plain, Shaped, explained, grades, table
from mapie_api import calibrated_prefit
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch.utils.data import DataLoader, TensorDataset

from mapie_claps import CalibratedRegressor, ClapsScore, conformal_quantile, explain

X, Y = table(500)
CAL, TEST = slice(100, 300), slice(300, 500)
LEVELS = [0.6, 0.9]
MODEL = Shaped(log=True).fit(X, np.exp(Y))
Z = np.exp(Y)


@pytest.fixture
def cal():
    return CalibratedRegressor(MODEL, LEVELS).conformalize(X[CAL], Z[CAL])


@pytest.mark.usefixtures("own_random_state")
def test_one_interval_by_every_way(cal):
    """The inverse of the score by hand, MAPIE, batches, loaders, stored scores."""
    points, bounds = cal.predict_interval(X[TEST])
    score = np.sort(np.abs(MODEL.predict_distribution(X[CAL]).score(Z[CAL])))
    q = score[[int(np.ceil(201 * level)) - 1 for level in LEVELS]]
    rows = MODEL.predict_distribution(X[TEST])
    expected = rows.quantile(np.r_[-q, q]).reshape(200, 2, 2)
    np.testing.assert_allclose(bounds, expected, rtol=1e-9)
    np.testing.assert_array_equal(points, rows.mean)
    inside = (bounds[:, 0] <= Z[TEST, None]) & (Z[TEST, None] <= bounds[:, 1])
    np.testing.assert_array_equal(inside, np.abs(rows.score(Z[TEST]))[:, None] <= q)
    mapie, options = calibrated_prefit(
        MODEL, ClapsScore(MODEL), (X[CAL], Z[CAL]), LEVELS
    )
    predict = getattr(mapie, "predict_interval", mapie.predict)
    again = CalibratedRegressor.from_mapie(mapie, LEVELS)
    data = TensorDataset(torch.from_numpy(X[CAL]), torch.from_numpy(Z[CAL]))
    loader = CalibratedRegressor(MODEL, LEVELS)
    loader.conformalize(DataLoader(data, batch_size=37))
    stored = CalibratedRegressor.from_scores(MODEL, cal.conformity_scores, LEVELS)
    for found in (
        predict(X[TEST], **options),
        again.predict_interval(X[TEST]),
        loader.predict_interval([X[300:310], torch.from_numpy(X[310:])]),
        stored.predict_interval(iter([(X[300:400], None), X[400:400], X[400:]])),
        explained(mapie, X[TEST], **options),
        explained(cal, X[TEST]),
    ):
        np.testing.assert_array_equal(found[0], points)
        np.testing.assert_array_equal(found[1], bounds)
    np.testing.assert_array_equal(cal.predict(X[TEST]), points)


def test_large_tables_are_predicted_in_blocks(cal, monkeypatch):
    expected, shares = cal.predict_interval(X), cal.cdf(X, Z)
    monkeypatch.setattr("mapie_claps.conformal.distribution.BLOCK_ROWS", 64)
    np.testing.assert_array_equal(cal.predict_interval(X)[1], expected[1])
    assert [len(p) for p, _ in cal.iter_intervals(X)] == [64] * 7 + [52]
    np.testing.assert_array_equal(cal.cdf(X, Z), shares)
    np.testing.assert_array_equal(explained(cal, X)[1], expected[1])


def test_parts_of_intervals(cal):
    found = explain(cal, [X[300:310], X[310:310], X[310:]])
    expected = MODEL.predict_distribution(X[TEST])
    np.testing.assert_array_equal(found.epistemic, expected.variance.epistemic)
    np.testing.assert_array_equal(found.prediction, expected.mean)
    q = conformal_quantile(cal.conformity_scores, 1 - np.array(LEVELS))
    low, high = expected.noise_alone.interval(-q, q)
    np.testing.assert_array_equal(found.noise_width, high - low)
    assert (found.lower < low).all()
    assert found.confidence_level == tuple(LEVELS)
    assert explain(cal, iter([])).noise_width.shape == (0, 2)
    assert explain(MODEL, X).lower.shape == (500, 0)
    plain = CalibratedRegressor(Plain().fit(X, Y)).conformalize(X, Y)
    assert plain.predict_frame(X)["aleatoric_width"].isna().all()
    with pytest.raises(ValueError, match="Got alpha with a CalibratedRegressor"):
        explain(cal, X, alpha=0.1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'partition'"):
        explain(MODEL, X, partition=1)


# Fit


def test_fit_keeps_rows_back():
    model = CalibratedRegressor(Shaped(), LEVELS, random_state=0)
    assert model.fit(X, Y) is model
    assert len(model.conformity_scores) == 125
    assert len(model.estimator_.y_) == 375
    kept = ~np.isin(Y, model.estimator_.y_)
    np.testing.assert_array_equal(
        np.sort(model.signed_scores_), np.sort(model.score_rows(X[kept], Y[kept], True))
    )
    other = clone(model).fit(X.tolist(), Y.tolist())
    np.testing.assert_array_equal(other.signed_scores_, model.signed_scores_)
    assert model.estimator_ is not model.estimator
    assert not hasattr(model.estimator, "fit_id_")


def test_fit_takes_weights_groups_and_searches():
    side = np.where(X[:, 1] > 0, "n", "s")
    model = CalibratedRegressor(Shaped(), 0.8, random_state=0)
    model.fit(X, Y, weights=lambda X: np.exp(0.2 * X[:, 0]), partition=side)
    assert set(model.effective_sample_size_) == {"n", "s"}
    assert np.isfinite(model.predict_interval(X, partition=side)[1]).all()
    with pytest.raises(ValueError, match="weights of 3 rows, but X has 500"):
        model.fit(X, Y, weights=np.ones(3))
    search = GridSearchCV(Shaped(), {"shift": [0.0, 9.0]}, cv=2)
    found = CalibratedRegressor(search, random_state=0).fit(X, Y)
    assert isinstance(found.estimator_, Shaped)
    assert found.estimator_.shift == 0.0


def test_fit_of_the_default_estimator_hands_weights_on():
    model = CalibratedRegressor(tiny(max_steps=3), random_state=0)
    weight = np.where(np.arange(500) % 2, 0.0, 1.0)
    model.fit(X, Y, weight)
    assert model.estimator_.sums_.n_rows == pytest.approx(188, abs=30)
    with pytest.raises(ValueError, match="Got sample_weight of shape"):
        model.fit(X, Y, weight[:3])
    with pytest.raises(NotFittedError, match="without a fitted estimator"):
        CalibratedRegressor().conformalize(X, Y)


@pytest.mark.parametrize(
    ("params", "rows", "message"),
    [
        ({"calibration_fraction": 0.0}, (X, Y), "Got calibration_fraction=0.0"),
        ({"calibration_fraction": 1}, (X, Y), "Got calibration_fraction=1,"),
        (
            {"calibration_fraction": 0.1, "cv": None},
            (X[:4], Y[:4]),
            "0.1 keeps back 0, but expected .* or use cv=10",
        ),
        (
            {"calibration_fraction": 0.9, "cv": "split"},
            (X[:9], Y[:9]),
            "0.9 keeps back 8, but expect",
        ),
        ({"confidence_level": 1.5}, (X, Y), "Got confidence_level=1.5"),
        ({"confidence_level": []}, (X, Y), "expected at least one level"),
        ({"sym": "both"}, (X, Y), "Got sym='both'"),
        ({"support": "odd"}, (X, Y), "Got support='odd'"),
        ({}, (X, None), "requires y to be passed"),
        ({}, (X, Y[:9]), "Got y of shape"),
        ({}, (X, np.r_[Y[:-1], np.nan]), "Got nan in y, row 499"),
        ({}, (np.where(X[7] == X, np.inf, X), Y), "Got infinity in X, row 7, column 0"),
    ],
)
def test_bad_input_of_fit_changes_nothing(params, rows, message):
    model = CalibratedRegressor(Shaped(), random_state=0).fit(X, Y)
    model.set_params(**params)
    before = dict(vars(model))
    with pytest.raises(ValueError, match=message):
        model.fit(*rows)
    assert vars(model) == before


# Calibration


def test_calibration_in_steps_and_again(cal):
    steps = CalibratedRegressor(MODEL, LEVELS)
    steps.partial_conformalize(X[100:150], Z[100:150])
    steps.partial_conformalize([(X[150:200], Z[150:200]), (X[200:300], Z[200:300])])
    np.testing.assert_array_equal(steps.signed_scores_, cal.signed_scores_)
    steps.predict_interval(X)  # sorts
    steps.conformalize(X[:60], Z[:60])
    assert len(steps.conformity_scores) == 60
    fresh = CalibratedRegressor(MODEL, LEVELS).conformalize(X[:60], Z[:60])
    np.testing.assert_array_equal(
        steps.predict_interval(X)[1], fresh.predict_interval(X)[1]
    )
    steps.conformalize([(X[:0], Z[:0]), (X[:60], Z[:60])])
    np.testing.assert_array_equal(steps.signed_scores_, fresh.signed_scores_)


def test_a_level_or_sym_changed_after_calibration_is_used(cal):
    expected = cal.predict_interval(X)[1][:, :, 1:]
    cal.confidence_level = 0.9
    np.testing.assert_array_equal(cal.predict_interval(X)[1], expected)
    cal.set_params(sym=False)
    two = cal.predict_interval(X[TEST])[1][..., 0]
    score = np.sort(cal.signed_scores_)
    k = int(np.ceil(201 * 0.95))
    ends = MODEL.predict_distribution(X[TEST]).quantile(score[[200 - k, k - 1]])
    np.testing.assert_allclose(two, ends, rtol=1e-9)
    np.testing.assert_array_equal(cal.predict_quantiles(X[TEST], [0.05, 0.95]), two)


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.predict_interval(X),
        lambda c: next(c.iter_intervals(X)),
        lambda c: c.cdf(X, 0.0),
        lambda c: c.signed_scores_,
    ],
)
def test_before_calibration(call):
    with pytest.raises(
        NotFittedError, match="not calibrated. Call fit, or conformalize"
    ):
        call(CalibratedRegressor(MODEL))
    nobody = CalibratedRegressor(MODEL).conformalize(X[:0], Z[:0])
    with pytest.raises(NotFittedError, match="not calibrated"):
        call(nobody)


def test_too_few_scores():
    few = CalibratedRegressor(MODEL, 0.9).conformalize(X[:8], Z[:8])
    with pytest.raises(ValueError, match="needs at least 9.*calibration_fraction"):
        few.predict_interval(X)
    _, bounds = few.predict_interval(X, allow_infinite_bounds=True)
    assert (bounds[:, 0] == -np.inf).all()
    assert (bounds[:, 1] == np.inf).all()
    few.partial_conformalize(X[8:9], Z[8:9]).predict_interval(X)


def test_a_failed_calibration_leaves_the_old_one(cal):
    before = dict(vars(cal))
    broken = [(X[:10], Z[:10]), (X[:10], Z[:9])]
    for step in (cal.conformalize, cal.partial_conformalize):
        for rows, message in (
            ((broken,), r"Got y of shape \(9,\) for 10 rows of X"),
            ((X,), "requires y to be passed"),
            (([(X, Z, np.ones(500))],), "Leave the weights out"),
            (([X[:60], X[60:]],), r"Got a batch \(ndarray\), .* \(X, y\)"),
            (([(X[:0], np.empty((0, 2)))],), r"Got y of shape \(0, 2\) for 0 rows"),
        ):
            with pytest.raises(ValueError, match=message):
                step(*rows)
            assert vars(cal) == before


def test_an_estimator_that_was_fitted_again_is_refused():
    model = Shaped().fit(X, Y)
    cal = CalibratedRegressor(model).conformalize(X[CAL], Y[CAL])
    batches = cal.iter_intervals([X[:9], X[9:]])
    next(batches)
    model.fit(X, Y)
    for call in (
        lambda: next(batches),
        lambda: cal.predict_interval(X),
        lambda: cal.cdf(X, 0.0),
        lambda: cal.partial_conformalize(X, Y),
        lambda: cal.observe(X, Y),
    ):
        with pytest.raises(
            ValueError, match="Got a Shaped that was fitted again or up"
        ):
            call()
    cal.conformalize(X[CAL], Y[CAL]).predict_interval(X)


@pytest.mark.parametrize("scores", [[], [[1.0]], [-1.0], [np.nan]])
def test_scores_that_are_none(scores):
    with pytest.raises(ValueError, match="Got scores of shape"):
        CalibratedRegressor.from_scores(MODEL, scores)


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))]
)
def test_copies(cal, duplicate):
    other = duplicate(cal)
    np.testing.assert_array_equal(
        other.predict_interval(X)[1], cal.predict_interval(X)[1]
    )
    other.conformalize(X[:50], Z[:50])
    assert len(cal.conformity_scores) == 200


@pytest.mark.usefixtures("own_random_state")
def test_other_estimators():
    gp = GaussianProcessRegressor(RBF() + WhiteKernel(), optimizer=None)
    pipe = make_pipeline(StandardScaler(), gp).fit(X[:50], Y[:50])
    data = TensorDataset(torch.from_numpy(X[CAL]), torch.from_numpy(Y[CAL]))
    cal = CalibratedRegressor(pipe).conformalize(DataLoader(data, batch_size=64))
    mu, std = pipe.predict(X[CAL], return_std=True)
    np.testing.assert_allclose(cal.signed_scores_, (Y[CAL] - mu) / std, rtol=1e-9)
    frame = pd.DataFrame(X, columns=list("abc"))
    assert cal.predict_interval(frame.to_numpy())[0].shape == (500,)
    with pytest.raises(ValueError, match=r"estimator=StandardScaler\(\), but expected"):
        CalibratedRegressor(StandardScaler().fit(X)).conformalize(X, Y)


# Rows of the fit


def test_rows_of_the_fit_warn_and_new_ones_do_not():
    model = tiny(max_steps=2).fit(X[:150], Y[:150])
    message = "Got calibration rows on which the estimator was fitted: "
    cal = CalibratedRegressor(model).conformalize(X[150:], Y[150:])
    for call, count in (
        (lambda: cal.conformalize(X[:150], Y[:150]), "150 of 150"),
        (
            lambda: cal.conformalize([(X[100:130], Y[100:130]), (X[140:], Y[140:])]),
            "40",
        ),
        (lambda: cal.partial_conformalize(X[120:200], Y[120:200]), "30 of 80"),
        (lambda: cal.observe(X[:20], Y[:20]), "20 of 20"),
    ):
        with pytest.warns(UserWarning, match=message + count):
            call()
    cal.conformalize(X[:150], Y[150:300])  # other targets are other rows
    pipe = make_pipeline(StandardScaler(), tiny(max_steps=2)).fit(X[:150], Y[:150])
    with pytest.warns(UserWarning, match=message):
        CalibratedRegressor(pipe).conformalize(X[:60], Y[:60])


@pytest.mark.filterwarnings("ignore:Got a table in which more than a tenth")
def test_equal_rows_by_right_do_not_warn():
    rng = np.random.default_rng(0)
    kinds = rng.integers(200, size=(4, 150))
    model = tiny(max_steps=2).fit(X[kinds[0]], Y[kinds[0]])
    for rows in kinds[1:]:
        assert np.isin(rows, kinds[0]).mean() > 0.3
        CalibratedRegressor(model).conformalize(X[rows], Y[rows])
    with pytest.warns(UserWarning, match="on which the estimator was fitted"):
        CalibratedRegressor(model).conformalize(X[kinds[0]], Y[kinds[0]])
    few = kinds[0] % 10  # a table that repeats itself throughout says nothing
    model.fit(X[few], Y[few])
    CalibratedRegressor(model).conformalize(X[few], Y[few])


# The whole distribution


def test_the_distribution_is_exact_at_the_ranks(cal):
    score = np.sort(cal.signed_scores_)
    n, rows = len(score), MODEL.predict_distribution(X[TEST])
    own = rows.score(Z[TEST])
    counted = (score[:, None] < own).sum(0) + (score[:, None] <= own).sum(0) + 1
    np.testing.assert_allclose(cal.cdf(X[TEST], Z[TEST]), counted / (2 * (n + 1)))
    at = cal.predict_quantiles(X[TEST], np.arange(1, n + 1) / (n + 1))
    np.testing.assert_allclose(at, rows.quantile(score), rtol=1e-9)
    outer = [0.5 / (n + 1), 1 - 0.5 / (n + 1)]
    edge = cal.predict_quantiles(X[TEST], outer)
    np.testing.assert_array_equal(edge, np.tile([-np.inf, np.inf], (200, 1)))


def test_probabilities_follow_it(cal):
    ranks = np.random.default_rng(0).integers(1, 201, 4000)
    draws = cal.predict_quantiles(X[:4], ranks / 201)  # as the page says
    for level in (0.2, 0.5, 0.9):
        limit = np.quantile(draws, level, axis=1)
        np.testing.assert_allclose(cal.cdf(X[:4], limit), level, atol=0.03)
    # Nothing is below the domain of the logarithm, but for what ranks leave open.
    np.testing.assert_allclose(cal.cdf(X, -0.1), 0.5 / 201)
    by_row = cal.cdf(X, np.stack([Z, Z + 1], axis=1))
    np.testing.assert_array_equal(by_row[:, 0], cal.cdf(X, Z))
    assert (by_row[:, 1] >= by_row[:, 0]).all()


@pytest.mark.parametrize("support", ["count", np.arange(4.0), "auto"])
def test_probabilities_of_counts_stand_between_them(support):
    y = np.clip(np.round(Y + 1), 0, 3)
    model = Shaped(shift=1.0, targets=grades()).fit(X, y)
    cal = CalibratedRegressor(model, support=support).conformalize(X[CAL], y[CAL])
    at = X[:5]
    by_value = np.stack([cal.cdf(at, v) for v in range(3)])
    assert (np.diff(by_value, axis=0) >= 0).all()
    for v in (1, 2):
        np.testing.assert_allclose(cal.cdf(at, v - 0.5), by_value[v - 1])
    values = cal.predict_quantiles(at, np.arange(1, 201) / 201)
    np.testing.assert_array_equal(values, np.round(values))


def test_limits_and_levels_are_checked(cal):
    for wrong, match in (
        (np.zeros(499), "y for 499 rows, but X has at least 500"),
        (np.zeros(501), "y for 501 rows, but X has 500"),
        (np.nan, "Got y=nan, but expected a number"),
        ("many", "Got y='many'"),
        (np.zeros((2, 1, 1)), "Got y=array"),
    ):
        with pytest.raises(ValueError, match=match):
            cal.cdf(X, wrong)
    with pytest.raises(ValueError, match="Got levels=1.0"):
        cal.predict_quantiles(X, [0.5, 1.0])
    unsigned = CalibratedRegressor.from_scores(MODEL, np.ones(50))
    with pytest.raises(ValueError, match="Got absolute scores"):
        unsigned.cdf(X, 0.0)


def test_infinite_scores_do_not_cross_quantiles():
    score = np.r_[np.random.default_rng(0).normal(size=40), np.full(9, np.inf)]
    some = CalibratedRegressor.from_scores(MODEL, score, signed=True)
    found = some.predict_quantiles(X[:5], np.arange(1, 100) / 100)
    assert (found[:, 1:] >= found[:, :-1]).all()
    none = CalibratedRegressor.from_scores(MODEL, np.full(20, np.inf), signed=True)
    assert np.isposinf(none.predict_quantiles(X[:2], [0.9])).all()


def test_explain_is_the_function():
    model = tiny(max_steps=2).fit(X[:100], Y[:100])
    cal = CalibratedRegressor(model, LEVELS).conformalize(X[CAL], Y[CAL])
    why = cal.explain(X[TEST])
    np.testing.assert_array_equal(why.upper, cal.predict_interval(X[TEST])[1][:, 1])
    assert why.confidence_level == tuple(LEVELS)


def test_it_is_an_estimator_of_scikit_learn(cal):
    fresh = clone(cal)
    assert not hasattr(fresh, "calibration_")
    assert repr(CalibratedRegressor(Shaped(), 0.8)) == (
        "CalibratedRegressor(confidence_level=0.8, estimator=Shaped())"
    )
    assert cal.score(X[TEST], Z[TEST]) < 1
