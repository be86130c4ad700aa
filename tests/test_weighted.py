"""Covariate shift: weighted ranks, likelihood ratios, and what is refused."""

import numpy as np
import pandas as pd
import pytest
from conftest import heteroscedastic, tiny
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.svm import LinearSVC

from mapie_claps import (
    CalibratedRegressor,
    StreamingConformalRegressor,
    effective_sample_size,
    likelihood_ratio,
    load,
)
from mapie_claps.conformal.ranks import RankTable
from mapie_claps.exceptions import EffectiveSampleSizeWarning

X, Y = heteroscedastic(700, seed=3)
CAL, TEST = slice(150, 450), slice(450, 700)
LEVELS = [0.5, 0.8, 0.9]


@pytest.fixture(scope="module")
def model():
    return tiny().fit(X[:150], Y[:150])


def tilt(X):
    return np.exp(0.4 * np.asarray(X)[:, 0])


def calibrated(model, **options):
    return CalibratedRegressor(model, LEVELS, **options)


def weighted_quantile(scores, weights, own, alpha):
    """The definition, one row at a time."""
    order = np.argsort(scores)
    share = np.cumsum(weights[order]) / (weights.sum() + own)
    reached = np.flatnonzero(share >= (1 - alpha) * (1 - 1e-12))
    return scores[order][reached[0]] if len(reached) else np.inf


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("sym", [True, False])
def test_the_rank_is_that_of_the_definition(seed, sym):
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=60).round(1)  # with ties
    weights = rng.exponential(size=60) * (rng.uniform(size=60) > 0.2)
    own, alphas = rng.exponential(5.0, size=40), np.array([0.5, 0.2, 0.1])
    lower, upper = RankTable.of(scores, weights, sym).ends(alphas, own)
    assert np.isinf(upper).any()
    assert np.isfinite(upper).any()
    for i, w in enumerate(own):
        for j, alpha in enumerate(alphas):
            if sym:
                q = weighted_quantile(np.abs(scores), weights, w, alpha)
                assert (lower[i, j], upper[i, j]) == (-q, q)
            else:
                high = weighted_quantile(scores, weights, w, alpha / 2)
                low = -weighted_quantile(-scores, weights, w, alpha / 2)
                assert (lower[i, j], upper[i, j]) == (low, high)


@pytest.mark.parametrize("sym", [True, False])
@pytest.mark.parametrize("support", [None, "auto", (-2.0, 2.0)])
def test_equal_weights_change_nothing_to_the_last_bit(model, sym, support):
    options = {"sym": sym, "support": support}
    plain = calibrated(model, **options).conformalize(X[CAL], Y[CAL])
    even = calibrated(model, **options).conformalize(
        X[CAL], Y[CAL], weights=np.full(300, 3.0)
    )
    np.testing.assert_array_equal(
        even.predict_interval(X[TEST], weights=np.full(250, 3.0))[1],
        plain.predict_interval(X[TEST])[1],
    )
    assert even.effective_sample_size_ == pytest.approx(300)


def test_a_law_with_map_sides_and_shape():
    y = np.exp(Y)
    model = tiny(
        target_map="log", two_sided_noise=True, residual_shape=True, n_members=3
    ).fit(X[:150], y[:150])
    even = calibrated(model).conformalize(X[CAL], y[CAL], weights=tilt)
    bounds = even.predict_interval(X[TEST])[1]
    assert (bounds[:, 0] > 0).all()
    # Each row as an object of its own rank.
    scores, own, w = even.signed_scores_, tilt(X[TEST]), tilt(X[CAL])
    law = model.predict_law(X[TEST])
    for i in (0, 100, 249):
        for j, level in enumerate(LEVELS):
            q = weighted_quantile(np.abs(scores), w, own[i], 1 - level)
            low, high = law.take(slice(i, i + 1)).interval(np.r_[-q], np.r_[q])
            assert (low[0, 0], high[0, 0]) == tuple(bounds[i, :, j])


def test_arrays_functions_batches_and_streaming_agree(model):
    by_function = calibrated(model).conformalize(X[CAL], Y[CAL], weights=tilt)
    expected = by_function.predict_interval(X[TEST])[1]
    cal = [(X[150:300], Y[150:300]), (X[300:450], Y[300:450])]
    streamed = StreamingConformalRegressor(model, LEVELS)
    streamed.conformalize(cal, weights=tilt(X[CAL]))
    test = [X[450:500], X[500:700]]
    found = streamed.predict_interval(test, weights=tilt(X[TEST]))[1]
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    parts = list(by_function.iter_intervals(test))
    np.testing.assert_allclose(
        np.concatenate([b for _, b in parts]), expected, rtol=1e-10
    )
    added = StreamingConformalRegressor(model, LEVELS)
    added.conformalize(*cal[0], weights=tilt).partial_conformalize(*cal[1])
    np.testing.assert_allclose(added.predict_interval(X[TEST])[1], expected, rtol=1e-10)
    scores = streamed.signed_scores_
    again = StreamingConformalRegressor.from_scores(
        model, scores, LEVELS, signed=True, weights=tilt(X[CAL])
    )
    found = again.predict_interval(X[TEST], weights=tilt(X[TEST]))[1]
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_explanations_take_weights(model):
    cal = calibrated(model).conformalize(X[CAL], Y[CAL], weights=tilt)
    why = cal.explain(X[TEST])
    np.testing.assert_array_equal(why.lower, cal.predict_interval(X[TEST])[1][:, 0])
    np.testing.assert_allclose(why.aleatoric_width + why.epistemic_width, why.width)


def test_a_row_too_heavy_for_the_others_has_infinite_bounds(model):
    cal = calibrated(model).conformalize(X[CAL], Y[CAL], weights=np.ones(300))
    own = np.ones(250)
    own[[7, 9]] = 40.0  # 300 / (300 + 40) < 0.9
    with pytest.warns(EffectiveSampleSizeWarning, match="2 of 250 rows, the .* row 7"):
        bounds = cal.predict_interval(X[TEST], weights=own)[1]
    infinite = np.isinf(bounds).all(axis=1)
    np.testing.assert_array_equal(np.flatnonzero(infinite[:, 2]), [7, 9])
    assert not infinite[:, :2].any()
    silent = cal.predict_interval(X[TEST], allow_infinite_bounds=True, weights=own)[1]
    np.testing.assert_array_equal(silent, bounds)


def test_few_effective_rows_are_named(model):
    heavy = np.full(300, 1e-3)
    heavy[:10] = 1.0
    with pytest.warns(EffectiveSampleSizeWarning, match="worth 10.6 rows") as caught:
        cal = calibrated(model).conformalize(X[CAL], Y[CAL], weights=heavy)
    assert "a tenth of the rows has 97% of the weight" in str(caught[0].message)
    assert cal.effective_sample_size_ == pytest.approx(effective_sample_size(heavy))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.full(300, -1.0), r"weights with -1.0 in row 0"),
        (np.r_[np.ones(9), np.nan, np.ones(290)], r"weights with nan in row 9"),
        (np.r_[np.inf, np.ones(299)], r"weights with inf in row 0"),
        (np.zeros(300), "zero in all 300 calibration rows"),
        (np.ones(299), "weights of 299 rows, but X has 300"),
        (np.ones(301), "weights of 301 rows, but X has 300"),
        (np.ones((300, 2)), r"shape \(300, 2\) for 300 rows"),
        (lambda X: np.ones(3), r"shape \(3,\) for 300 rows"),
        (lambda X: -np.ones(len(X)), "weights with -1.0 in row 0"),
    ],
)
def test_bad_weights_are_refused_and_nothing_is_lost(model, weights, message):
    cal = calibrated(model).conformalize(X[CAL], Y[CAL])
    before = cal.predict_interval(X[TEST])[1]
    with pytest.raises(ValueError, match=message):
        cal.conformalize(X[CAL], Y[CAL], weights=weights)
    np.testing.assert_array_equal(cal.predict_interval(X[TEST])[1], before)


def test_weights_on_one_side_only(model):
    plain = calibrated(model).conformalize(X[CAL], Y[CAL])
    with pytest.raises(ValueError, match="Got weights in predict_interval, but"):
        plain.predict_interval(X[TEST], weights=np.ones(250))
    with pytest.raises(ValueError, match="Got weights in partial_conformalize"):
        plain.partial_conformalize(X[CAL], Y[CAL], weights=tilt)
    shifted = calibrated(model).conformalize(X[CAL], Y[CAL], weights=tilt(X[CAL]))
    with pytest.raises(ValueError, match="no weights in predict_interval.*Pass weigh"):
        shifted.predict_interval(X[TEST])
    with pytest.raises(ValueError, match="weights of 249 rows, but X has 250"):
        shifted.predict_interval(X[TEST], weights=np.ones(249))
    for call in (
        lambda: shifted.predict_quantiles(X[TEST], 0.9),
        lambda: shifted.quantiles(),
        lambda: shifted.cdf(X[TEST], 0.0),
    ):
        with pytest.raises(ValueError, match="rows differ in rank"):
            call()


def test_effective_sample_size():
    assert effective_sample_size(np.full(7, 1e300)) == 7
    with pytest.raises(ValueError, match="zero in all 3"):
        effective_sample_size(np.zeros(3))


def test_saved_with_its_ratio(model, tmp_path):
    ratio = likelihood_ratio(X[:150], X[:150] + 0.3, estimator=model)
    cal = calibrated(model).conformalize(X[CAL], Y[CAL], weights=ratio)
    cal.save(tmp_path / "cal.claps")
    again = load(tmp_path / "cal.claps")
    np.testing.assert_array_equal(
        again.predict_interval(X[TEST])[1], cal.predict_interval(X[TEST])[1]
    )
    assert repr(again._kept().weights_of) == repr(ratio)
    cal.conformalize(X[CAL], Y[CAL], weights=tilt)
    with pytest.raises(TypeError, match="weights as a function"):
        cal.save(tmp_path / "cal.claps")
    forest = likelihood_ratio(
        X[:150], X[:150] + 0.3, classifier=HistGradientBoostingClassifier(max_iter=5)
    )
    cal.conformalize(X[CAL], Y[CAL], weights=forest)
    with pytest.raises(TypeError, match="HistGradientBoostingClassifier, which a file"):
        cal.save(tmp_path / "cal.claps")


def test_a_ratio_of_another_model_is_not_saved(model, tmp_path):
    other = tiny().fit(X[:150], -Y[:150])
    ratio = likelihood_ratio(X[:150], X[:150] + 0.3, estimator=other)
    cal = calibrated(model).conformalize(X[CAL], Y[CAL], weights=ratio)
    with pytest.raises(TypeError, match="whose estimator is not the one"):
        cal.save(tmp_path / "cal.claps")


def test_ratios_of_normal_rows_are_near_the_true_ones():
    rng = np.random.default_rng(0)
    source, target = rng.normal(size=(4000, 2)), rng.normal((0.8, 0), 1, (4000, 2))
    ratio = likelihood_ratio(source, target)
    new = rng.normal(size=(500, 2))
    true = np.exp(0.8 * new[:, 0] - 0.32)
    np.testing.assert_allclose(np.log(ratio(new)), np.log(true), atol=0.4)
    assert np.corrcoef(np.log(ratio(new)), np.log(true))[0, 1] > 0.99
    assert sum(ratio.n_clipped_) < 8


@pytest.mark.parametrize("features", ["inputs", "phi"])
def test_ratios_of_a_table(features):
    frame = pd.DataFrame({"a": X[:, 0], "g": np.where(X[:, 1] > 0, "n", "s")})
    model = tiny(n_members=2).fit(frame[:150], Y[:150])
    south = frame["g"] == "s"
    ratio = likelihood_ratio(
        frame[150:450], frame[150:450][south[150:450]], estimator=model,
        features=features,
    )  # fmt: skip
    new = frame[450:]
    assert ratio(new)[south[450:]].mean() > 2 * ratio(new)[~south[450:]].mean()


def test_clipping_is_reported():
    rng = np.random.default_rng(1)
    with pytest.warns(EffectiveSampleSizeWarning, match="target rows whose likelihood"):
        ratio = likelihood_ratio(
            rng.normal(size=(300, 1)), rng.normal(2.0, 1, (300, 1)), clip=5
        )
    assert ratio.n_clipped_[1] > 30
    assert ratio.predict(rng.normal(2.0, 1, (300, 1))).max() == 5
    assert "clipped to [0.2, 5]" in repr(ratio)


def test_rows_of_the_ratio_are_neither_calibrated_nor_predicted_on(model):
    ratio = likelihood_ratio(X[:150], X[150:250] + 0.3, estimator=model)
    cal = calibrated(model)
    with pytest.raises(ValueError, match="150 of 150 rows.* on which the like"):
        cal.conformalize(X[:150], Y[:150], weights=ratio)
    cal.conformalize(X[CAL], Y[CAL], weights=ratio)
    with pytest.raises(ValueError, match="100 of 100 rows.* on which"):
        cal.predict_interval(X[150:250] + 0.3)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"clip": 1.0}, ValueError, "Got clip=1.0"),
        ({"features": "psi"}, ValueError, "Got features='psi'"),
        ({"features": "phi"}, ValueError, "φ needs a fitted"),
        ({"classifier": LinearSVC()}, TypeError, "without predict_proba"),
    ],
)
def test_bad_options_of_the_ratio(options, error, message):
    with pytest.raises(error, match=message):
        likelihood_ratio(X[:50], X[50:90], **options)


def test_bad_rows_of_the_ratio():
    with pytest.raises(ValueError, match="X_source with 50 rows, of which 1 hold NaN"):
        likelihood_ratio(np.where(np.arange(150).reshape(50, 3) == 4, np.nan, 0.0), X)
    with pytest.raises(ValueError, match="3 columns and X_target with 2"):
        likelihood_ratio(X, X[:, :2])


def test_an_empty_first_batch_keeps_the_kind(model, tmp_path):
    side = np.where(X[:, 1] > 0, "n", "s")
    whole = calibrated(model).conformalize(
        X[CAL], Y[CAL], weights=tilt, groups=side[CAL]
    )
    expected = whole.predict_interval(X[TEST], groups=side[TEST])[1]
    empty = calibrated(model).conformalize(X[:0], Y[:0], weights=tilt, groups=[])
    by_file = StreamingConformalRegressor(model, LEVELS)
    by_file.conformalize(
        X[:0], Y[:0], weights=likelihood_ratio(X[:150], X[:150] + 0.3), groups=[]
    ).save(tmp_path / "empty")
    assert load(tmp_path / "empty")._kept().weights is not None
    with pytest.raises(ValueError, match="Got the group"):
        empty.predict_interval(X[TEST], groups=side[TEST])
    empty.partial_conformalize(X[CAL], Y[CAL], groups=side[CAL])
    empty.partial_conformalize(X[:0], Y[:0], groups=[])
    np.testing.assert_array_equal(
        empty.predict_interval(X[TEST], groups=side[TEST])[1], expected
    )


def test_an_object_without_rows_is_saved(model, tmp_path):
    calibrated(model).conformalize(X[:0], Y[:0]).save(tmp_path / "empty")
    again = load(tmp_path / "empty").partial_conformalize(X[CAL], Y[CAL])
    assert len(again.conformity_scores_) == 300


@pytest.mark.parametrize("unit", [1e307, 1e-307, 5e-324])
def test_the_unit_of_weights_does_not_matter(model, unit):
    whole = np.arange(300) % 5 + 1.0
    own = np.arange(250) % 17.0
    results = []
    for factor in (1.0, unit):
        cal = calibrated(model).conformalize(X[CAL], Y[CAL], weights=whole * factor)
        results.append(cal.predict_interval(X[TEST], True, weights=own * factor)[1])
        assert cal.effective_sample_size_ == pytest.approx(effective_sample_size(whole))
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("sym", [True, False])
def test_own_weights_beyond_all_others(sym):
    table = RankTable.of(np.arange(9.0), np.full(9, 1e-300), sym)
    alphas = np.array([0.5, 1.0, 0.0])
    lower, upper = table.ends(alphas, np.array([1.7e308, 0.0]))
    np.testing.assert_array_equal(upper[0], [np.inf, -np.inf, np.inf])
    assert np.isfinite(upper[1, 0])
    assert lower[1, 1] > upper[1, 1]


def test_a_group_without_weight_has_infinite_ends_and_a_warning(model):
    side = np.where(X[:, 1] > 0, "n", "s")
    w = np.where(side == "n", 0.0, 1.0)
    with pytest.warns(EffectiveSampleSizeWarning, match="group 'n' that are worth 0.0"):
        cal = calibrated(model).conformalize(
            X[CAL], Y[CAL], weights=w[CAL], groups=side[CAL]
        )
    assert cal.effective_sample_size_["n"] == 0
    with pytest.warns(EffectiveSampleSizeWarning, match="1 of 2 rows"):
        bounds = cal.predict_interval(X[:2], weights=[0.0, 1.0], groups=["n", "s"])[1]
    assert np.isinf(bounds[0]).all()
    assert np.isfinite(bounds[1]).all()


@pytest.mark.filterwarnings("error")
def test_a_warning_that_is_an_error_changes_nothing(model):
    cal = calibrated(model).conformalize(X[CAL], Y[CAL], weights=np.ones(300))
    before = dict(vars(cal))
    heavy = np.r_[1e9, np.ones(299)]
    new = X[450:451], Y[450:451]
    for call in (
        lambda: cal.conformalize(X[CAL], Y[CAL], weights=heavy),
        lambda: cal.partial_conformalize(*new, weights=[1e9]),
        lambda: cal.observe(*new, weights=[1e9]),
    ):
        with pytest.raises(EffectiveSampleSizeWarning):
            call()
        assert vars(cal) == before
    fitting = CalibratedRegressor(tiny(), random_state=0)
    before = dict(vars(fitting))
    with pytest.raises(EffectiveSampleSizeWarning):
        fitting.fit(X, Y, weights=lambda X: np.exp(9 * X[:, 0]))
    assert vars(fitting) == before


@pytest.mark.parametrize("n_known", [1, 3, 40])
@pytest.mark.parametrize("size", [1, 5, 100])
def test_any_row_of_the_ratio_is_refused(n_known, size):
    rng = np.random.default_rng(0)
    source, target = rng.normal(size=(200, 2)), rng.normal(size=(100, 2))
    ratio = likelihood_ratio(source, target)
    new = rng.normal(size=(size, 2))
    assert ratio(new).shape == (size,)
    n_known = min(n_known, size)
    for known in (source, target, target.astype(np.float32)):
        rows = new.astype(known.dtype)
        rows[size - n_known :] = known[:n_known]
        with pytest.raises(
            ValueError, match=f"{n_known} of {size} rows.*row {size - n_known}, on"
        ):
            ratio(rows)
    assert ratio.predict(source).shape == (200,)


def test_rows_of_few_values_are_equal_by_chance():
    rng = np.random.default_rng(0)
    values = rng.integers(0, 40, size=(900, 2)).astype(float)  # 1,600 different rows
    ratio = likelihood_ratio(values[:300], values[300:500])
    assert 0.1 < ratio._chance < 0.6
    ratio(values[500:])
    with pytest.raises(ValueError, match="on which the likelihood ratio"):
        ratio(np.concatenate([values[500:700], values[:200]]))
    one = likelihood_ratio(np.zeros((50, 1)), np.zeros((50, 1)))
    assert one(np.zeros((9, 1))).shape == (9,)


def test_fit_takes_weights_and_groups():
    cal = CalibratedRegressor(tiny(), 0.8, random_state=0)
    cal.fit(X, Y, weights=tilt, groups=np.where(X[:, 1] > 0, "n", "s"))
    assert set(cal.effective_sample_size_) == {"n", "s"}
    assert len(cal.conformity_scores_) == 175
    with pytest.raises(ValueError, match="weights of 3 rows, but X has 700"):
        cal.fit(X, Y, weights=np.ones(3))
