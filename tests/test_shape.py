"""Map, two sides, shape and support from end to end, with either MAPIE."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
from conftest import tiny
from mapie_api import calibrated_prefit, prefit_intervals
from sklearn.preprocessing import FunctionTransformer

from mapie_claps import (
    CalibratedRegressor,
    ClapsRegressor,
    ClapsScore,
    StreamingConformalRegressor,
    explain,
    load,
    save,
)
from mapie_claps.estimators.residual_shape import ResidualShape
from mapie_claps.network.target_map import Identity, Log

LEVEL = [0.6, 0.9]
SHAPED = {
    "target_map": "spline",
    "two_sided_noise": True,
    "residual_shape": True,
    "n_members": 4,
    "max_steps": 120,
}


def claims(n, seed):
    """Skewed, with the noise in proportion; zero for about a tenth of the rows."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    y = np.exp(X[:, 0] + rng.exponential(0.5, n))
    return X, np.where(rng.random(n) < 0.1, 0.0, y)


@pytest.fixture(scope="module")
def rows():
    return claims(600, 0), claims(150, 1), claims(80, 2)


@pytest.fixture(scope="module")
def shaped(rows):
    model = tiny(**SHAPED).fit(*rows[0])
    assert not isinstance(model.target_map_, Identity)
    assert not isinstance(model.residual_law_.shape.curve, Identity)
    return model


@pytest.fixture(scope="module")
def calibrated(shaped, rows):
    return CalibratedRegressor(shaped, LEVEL).conformalize(*rows[1])


def test_one_interval_by_every_way(shaped, calibrated, rows):
    """MAPIE, in memory, in batches, and the inverse of the score by hand."""
    (_, cal, (X, y)) = rows
    points, bounds = calibrated.predict_interval(X)
    mapie_points, mapie_bounds = prefit_intervals(
        shaped, ClapsScore(shaped), cal, X, LEVEL
    )
    np.testing.assert_array_equal(mapie_bounds, bounds)
    np.testing.assert_array_equal(mapie_points, points)
    np.testing.assert_array_equal(shaped.predict(X), points)
    stream = StreamingConformalRegressor(shaped, LEVEL)
    stream.conformalize((cal[0][i : i + 50], cal[1][i : i + 50]) for i in (0, 50, 100))
    streamed = stream.predict_interval([X[:30], X[30:]])[1]
    np.testing.assert_allclose(streamed, bounds, rtol=1e-12)
    score = np.abs(shaped.predict_law(cal[0]).score(cal[1]))
    q = np.sort(score)[[int(np.ceil(151 * level)) - 1 for level in LEVEL]]
    law = shaped.predict_law(X)
    expected = law.quantile(np.r_[-q, q]).reshape(len(X), 2, 2)
    assert law.targets.floor == 0.0  # a tenth of the training targets lie there
    np.testing.assert_allclose(bounds, np.maximum(expected, 0), rtol=1e-9)
    inside = (bounds[:, 0] <= y[:, None]) & (y[:, None] <= bounds[:, 1])
    np.testing.assert_array_equal(inside, np.abs(law.score(y))[:, None] <= q)


def test_dask_gives_the_same_interval(shaped, calibrated, rows):
    import dask.array as da

    from mapie_claps.distributed import conformalize, predict_interval

    _, (X, y), (X_test, _) = rows
    big, targets = da.from_array(X, (50, 2)), da.from_array(y, 50)
    conformal = conformalize(shaped, big, targets, LEVEL)
    bounds = predict_interval(conformal, da.from_array(X_test, (40, 2)))[1]
    expected = calibrated.predict_interval(X_test)[1]
    np.testing.assert_allclose(bounds.compute(scheduler="sync"), expected, rtol=1e-12)


def test_saved_pickled_and_copied_objects_give_the_same(calibrated, rows, tmp_path):
    X, y = rows[2]
    save(calibrated, tmp_path / "model.claps")
    expected = calibrated.predict_interval(X)[1], calibrated.cdf(X, y)
    for other in (
        load(tmp_path / "model.claps"),
        pickle.loads(pickle.dumps(calibrated)),
        copy.deepcopy(calibrated),
    ):
        np.testing.assert_array_equal(other.predict_interval(X)[1], expected[0])
        np.testing.assert_array_equal(other.cdf(X, y), expected[1])


def test_a_calibrated_mapie_object_pickles_with_its_shape(shaped, rows):
    _, cal, (X, _) = rows
    mapie, levels = calibrated_prefit(shaped, ClapsScore(shaped), cal, LEVEL)
    for other in (pickle.loads(pickle.dumps(mapie)), copy.deepcopy(mapie)):
        for each in (mapie, other):
            predict = getattr(each, "predict_interval", each.predict)
            bounds = predict(X, **levels)[1]
            np.testing.assert_array_equal(
                bounds, getattr(mapie, predict.__name__)(X, **levels)[1]
            )


def test_width_is_noise_and_lack_of_data(calibrated, rows):
    why = explain(calibrated, rows[2][0])
    np.testing.assert_allclose(why.aleatoric_width + why.epistemic_width, why.width)
    assert (why.aleatoric_width > 0).all()
    assert (why.epistemic_width >= 0).all()
    # The lower end is cut off at zero for many: so must be what noise alone needs.
    cut = why.lower[:, 1] == 0
    assert cut.sum() > 10
    lack = why.epistemic[cut] > 1e-3 * why.aleatoric[cut]
    assert (why.epistemic_width[cut][lack] > 0).all()


def test_mean_median_and_standard_deviation_are_in_units_of_y(rows):
    X, y = claims(600, 3)
    model = tiny(target_map="log", max_steps=200).fit(X, y + 1)
    assert isinstance(model.target_map_, Log)
    mu, std = model.predict(X, return_std=True)
    np.testing.assert_array_equal(model.predict(X), mu)
    law = model.predict_law(X)
    # Mean and standard deviation of exp(c + √v r) at 32 levels of the residuals.
    nodes = np.exp(law.centre[:, None] + law.above[:, None] * law.shape.nodes)
    np.testing.assert_allclose(mu, nodes.mean(axis=1), rtol=1e-12)
    np.testing.assert_allclose(std, nodes.std(axis=1), rtol=1e-12)
    np.testing.assert_allclose(model.predict_median(X), np.exp(law.centre), rtol=1e-12)
    assert (model.predict_median(X) < mu).all()
    np.testing.assert_allclose(model.predict_variance(X).total, std**2)
    assert abs(np.mean(mu) / np.mean(y + 1) - 1) < 0.1
    far = model.predict([[1e6, -1e6]], return_std=True)
    assert np.isfinite(far).all()


def test_calibration_target_outside_the_domain_is_paid_for(rows):
    X, y = claims(300, 3)
    model = tiny(target_map="log").fit(X, y + 1)
    (X_cal, y_cal), (X_test, _) = rows[1], rows[2]
    y_cal = y_cal + 1
    y_cal[:15] = -1.0  # no logarithm
    scores = CalibratedRegressor(model).score_rows(X_cal, y_cal)
    np.testing.assert_array_equal(np.isinf(scores), np.arange(150) < 15)
    for level, infinite in ((0.89, False), (0.9, True)):
        conformal = CalibratedRegressor(model, level).conformalize(X_cal, y_cal)
        lower, upper = conformal.predict_interval(X_test)[1][..., 0].T
        assert np.isinf(upper).all() == infinite
        assert np.isinf(lower).all() == infinite  # and not zero: −1 must be inside


@pytest.mark.parametrize("y", [150.0, 0.0])
def test_transformer_through_fit_and_calibration(rows, y):
    X = rows[0][0]
    logarithm = FunctionTransformer(np.log1p, np.expm1)
    model = tiny(target_map=logarithm).fit(X, y + rows[0][1])
    target = y + rows[1][1]
    target[:20] = -5.0
    conformal = CalibratedRegressor(model, 0.95).conformalize(rows[1][0], target)
    bounds = conformal.predict_interval(X[:5])[1]
    assert (bounds[:, 0] == -np.inf).all()
    assert (bounds[:, 1] == np.inf).all()


def test_two_ranks_by_hand(shaped, rows):
    _, (X, y), (X_test, _) = rows
    conformal = CalibratedRegressor(shaped, 0.9, sym=False, support=None)
    bounds = conformal.conformalize(X, y).predict_interval(X_test)[1]
    score = np.sort(shaped.predict_law(X).score(y))
    k = int(np.ceil(151 * 0.95))
    ends = np.array([score[150 - k], score[k - 1]])
    expected = shaped.predict_law(X_test).quantile(ends)
    np.testing.assert_allclose(bounds[..., 0], expected, rtol=1e-9)
    quantiles = conformal.predict_quantiles(X_test, [0.05, 0.95])
    np.testing.assert_array_equal(quantiles, bounds[..., 0])
    few = CalibratedRegressor(shaped, 0.9, sym=False).conformalize(X[:12], y[:12])
    with pytest.raises(ValueError, match=r"12 calibration scores.*sym=False.*19"):
        few.predict_interval(X_test)
    bounds = few.predict_interval(X_test, allow_infinite_bounds=True)[1]
    assert np.isinf(bounds).all()


def test_symmetric_noise_stays_symmetric_where_nothing_is_held_out(rows):
    none = {"validation_fraction": 0.0, "prior_precision": 1.0}
    model = tiny(**SHAPED | none).fit(*rows[0])
    assert model.residual_law_.skew is None
    assert isinstance(model.residual_law_.shape.curve, Identity)


def test_paper_is_the_formula(rows):
    """Symmetric and unmapped, whatever the targets look like."""
    model = ClapsRegressor.paper(max_steps=30, random_state=0).fit(*rows[0])
    cal, (X, _) = rows[1], rows[2]
    law = model.predict_law(X)
    assert law.is_plain
    bounds = prefit_intervals(model, ClapsScore(model), cal, X, 0.9)[1][..., 0]
    parts = [model.predict_parts(rows) for rows in (cal[0], X)]
    score = np.abs(cal[1] - parts[0].prediction) / parts[0].std
    half = np.sort(score)[int(np.ceil(151 * 0.9)) - 1] * parts[1].std
    mu = parts[1].prediction
    np.testing.assert_allclose(bounds, np.c_[mu - half, mu + half], rtol=1e-12)


def test_distribution_is_exact_at_the_ranks(calibrated, shaped, rows):
    X, y = rows[2]
    score = np.sort(calibrated.signed_scores_)
    n = len(score)
    own = shaped.predict_law(X).score(y)
    counted = (score[:, None] < own).sum(0) + (score[:, None] <= own).sum(0) + 1
    np.testing.assert_allclose(calibrated.cdf(X, y), counted / (2 * (n + 1)))
    levels = np.arange(1, n + 1) / (n + 1)
    free = CalibratedRegressor.from_scores(shaped, score, signed=True, support=None)
    at = free.predict_quantiles(X[:3], levels)
    np.testing.assert_allclose(
        at, shaped.predict_law(X[:3]).quantile(score), rtol=1e-9, atol=1e-12
    )
    assert (np.diff(at, axis=1) >= -1e-12).all()
    edge = free.predict_quantiles(X[:3], [0.5 / (n + 1), 1 - 0.5 / (n + 1)])
    np.testing.assert_array_equal(edge, np.tile([-np.inf, np.inf], (3, 1)))
    tail = free.predict_quantiles(X[:3], [0.5 / (n + 1), 1 - 0.5 / (n + 1)], "normal")
    assert (tail[:, 0] < at[:, 0]).all()
    assert (tail[:, 1] > at[:, -1]).all()
    assert np.isfinite(tail).all()


def test_draws_follow_the_distribution(calibrated, rows):
    X = rows[2][0][:4]
    draws = calibrated.sample(X, 4_000, random_state=0)
    assert (draws >= 0).all()
    for level in (0.2, 0.5, 0.9):
        limit = np.quantile(draws, level, axis=1)
        expected = calibrated.cdf(X, limit)
        inside = limit > 0
        np.testing.assert_allclose(expected[inside], level, atol=0.03)
    np.testing.assert_array_equal(draws[:, :3], calibrated.sample(X, 4_000, 0)[:, :3])


def test_probabilities_add_up(calibrated, rows):
    X = rows[2][0]
    above = calibrated.probability(X, above=2.0)
    np.testing.assert_allclose(above, 1 - calibrated.cdf(X, 2.0))
    below = calibrated.probability(iter([X[:30], X[30:]]), below=2.0)
    np.testing.assert_allclose(above + below, 1)
    between = calibrated.probability(X, above=1.0, below=2.0)
    np.testing.assert_allclose(between, below - calibrated.cdf(X, 1.0))
    n = len(calibrated.signed_scores_)
    # Nothing is below a learned bound of zero, but for what ranks leave open.
    np.testing.assert_allclose(calibrated.cdf(X, -0.1), 0.5 / (n + 1))
    np.testing.assert_allclose(calibrated.probability(X, below=0.0), 0.5 / (n + 1))


@pytest.mark.parametrize("support", ["count", np.arange(30.0), "auto"])
def test_probabilities_of_counts_stand_between_them(support):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (700, 1))
    y = rng.poisson(np.exp(X[:, 0])).astype(float)
    model = tiny(residual_shape=True).fit(X[:300], y[:300])
    conformal = CalibratedRegressor(model, support=support).conformalize(
        X[300:], y[300:]
    )
    at = np.array([[-0.3], [0.8]])
    by_value = np.stack([conformal.cdf(at, v) for v in range(6)])
    assert (np.diff(by_value, axis=0) >= 0).all()
    for v in range(1, 6):
        np.testing.assert_allclose(conformal.probability(at, above=v), 1 - by_value[v])
        np.testing.assert_allclose(conformal.probability(at, below=v), by_value[v - 1])
        np.testing.assert_allclose(conformal.cdf(at, v - 0.5), by_value[v - 1])
    rate = np.exp(at[:, 0])
    np.testing.assert_allclose(by_value[0], np.exp(-rate), atol=0.12)


def test_limits_are_checked(calibrated, rows):
    X = rows[2][0]
    for wrong, match in (
        (np.zeros(79), "y for 79 rows, but X has at least 80"),
        (np.zeros(81), "y for 81 rows, but X has 80"),
        (np.nan, "y='NaN'"),
        ("many", "y='many'"),
        (np.zeros((80, 1, 1)), "shape"),
    ):
        with pytest.raises(ValueError, match=match):
            calibrated.cdf(X, wrong)
    with pytest.raises(ValueError, match="neither above nor below"):
        calibrated.probability(X)
    with pytest.raises(ValueError, match="levels=1"):
        calibrated.predict_quantiles(X, [0.5, 1.0])
    unsigned = CalibratedRegressor.from_scores(calibrated.estimator, np.ones(50))
    with pytest.raises(ValueError, match="absolute scores"):
        unsigned.sample(X)


def test_no_finite_score_gives_infinite_draws(shaped, rows):
    X = rows[2][0][:2]
    none = CalibratedRegressor.from_scores(shaped, np.full(20, np.inf), signed=True)
    assert np.isinf(none.sample(X, 3, 0)).all()
    assert np.isinf(none.predict_quantiles(X, [0.1, 0.9], "normal")).all()


@pytest.mark.parametrize("tails", ["infinite", "normal"])
def test_quantiles_do_not_cross_where_some_scores_are_infinite(shaped, rows, tails):
    score = np.r_[np.random.default_rng(0).normal(size=40), np.full(9, np.inf)]
    some = CalibratedRegressor.from_scores(shaped, score, signed=True, support=None)
    found = some.predict_quantiles(rows[2][0][:5], np.arange(1, 100) / 100, tails)
    assert (found[:, 1:] >= found[:, :-1]).all()


def test_only_training_rows_shape(rows):
    """A fit is the same whatever calibration rows there are; so are its scores."""
    (X, y), cal, _ = rows
    wild = cal[1] * 1e6
    one, two = (
        CalibratedRegressor(tiny(**SHAPED).fit(X, y)).conformalize(cal[0], target)
        for target in (cal[1], wild)
    )
    assert one.estimator.fingerprint_ == two.estimator.fingerprint_
    np.testing.assert_array_equal(two.score_rows(*cal), one.conformity_scores_)


def test_a_change_of_the_shape_after_calibration_is_refused(shaped, rows):
    model = copy.deepcopy(shaped)
    conformal = CalibratedRegressor(model).conformalize(*rows[1])
    model.fit(*claims(600, 7))
    with pytest.raises(ValueError, match="has changed since calibration"):
        conformal.cdf(rows[2][0], 0.0)
    law = replace(shaped.residual_law_, shape=ResidualShape())
    assert law.text() != shaped.residual_law_.text()


def test_densities_hold_the_distribution(calibrated, rows):
    from matplotlib.figure import Figure

    from mapie_claps.plots import PredictiveDensityDisplay

    X = rows[2][0][:4]
    display = PredictiveDensityDisplay.from_estimator(
        calibrated, X, labels=list("abcd"), ax=Figure().subplots()
    )
    assert np.nanmin(display.y) >= 0  # the learned bound
    free = CalibratedRegressor.from_scores(
        calibrated.estimator, calibrated.signed_scores_, signed=True, support=None
    )
    display = PredictiveDensityDisplay.from_estimator(free, X, ax=Figure().subplots())
    for y, density in (
        (display.y, display.density),
        (display.y_noise, display.density_noise),
    ):
        mass = np.trapezoid(density, y, axis=1)
        np.testing.assert_allclose(mass, 1, atol=0.03)
    width, noise = (np.ptp(y, axis=1) for y in (display.y, display.y_noise))
    assert (noise < width).all()
    middle = [
        np.interp(2.0, y, np.cumsum(d * np.gradient(y)))
        for y, d in zip(display.y, display.density, strict=True)
    ]
    np.testing.assert_allclose(middle, free.cdf(X, 2.0), atol=0.1)
    labels = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert labels == ["with lack of data", "noise alone"]
    with pytest.raises(ValueError, match="80 rows, but expected at most 12"):
        PredictiveDensityDisplay.from_estimator(calibrated, rows[2][0])
    with pytest.raises(TypeError, match="expected a calibrated object"):
        PredictiveDensityDisplay.from_estimator(calibrated.estimator, X)
