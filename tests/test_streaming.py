"""Sums that add up, and calibration from batches."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch
from own_networks import Pair, batches, mse_network, seeded, table
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from torch.utils.data import DataLoader, TensorDataset

from mapie_claps import (
    ClapsModule,
    ClapsRegressor,
    StreamingConformalRegressor,
    conformal_rank,
    partial_sums,
    sums_of,
    update_posterior,
    with_sums,
)

pytestmark = pytest.mark.usefixtures("own_random_state")
X, y = table(400)
X_NEW, y_new = table(30, seed=1)
CUTS = (0, 50, 57, 230, 400)


@pytest.fixture(scope="module", params=["trained", "ridge"])
def regressor(request):
    return ClapsRegressor(
        max_steps=60,
        n_members=2,
        hidden_layer_sizes=(16,),
        representation_size=8,
        last_layer=request.param,
        tol=None,
        random_state=0,
    ).fit(X[:100], y[:100])


def close(a, b, rtol=1e-10):
    np.testing.assert_allclose(
        a.predict(X_NEW, return_std=True), b.predict(X_NEW, return_std=True), rtol=rtol
    )


@pytest.mark.parametrize("last_layer", ["trained", "ridge"])
@pytest.mark.parametrize("prior_precision", [2.0, "marglik", "grid"])
@pytest.mark.parametrize("scale", ["claps", "posterior"])
def test_module_partial_sums_are_those_of_one_pass(last_layer, prior_precision, scale):
    params = {
        "last_layer": last_layer,
        "prior_precision": prior_precision,
        "scale": scale,
    }
    net = seeded(Pair)
    once = ClapsModule(net, **params).fit(X, y)
    grown = ClapsModule(net, **params)
    for a, b in pairwise(CUTS):
        grown.partial_fit(X[a:b], y[a:b])
    first = ClapsModule(net, **params).fit(X[:60], y[:60])
    merged = with_sums(first, first.sums_ + first.partial_sums(X[60:], y[60:]))
    assert once.prior_precision_ == grown.prior_precision_ == merged.prior_precision_
    close(once, grown)
    close(once, merged)
    np.testing.assert_allclose(
        grown.sums_.with_held_out().moments.gram,
        once.sums_.with_held_out().moments.gram,
        rtol=1e-10,
    )


def test_module_partial_fit_keeps_the_variance_head():
    model = ClapsModule(mse_network(), prior_precision=1.0).fit(X[:100], y[:100])
    h2 = model.predict_variance(X_NEW).aleatoric
    epistemic = model.predict_variance(X_NEW).epistemic
    model.partial_fit(X[100:], y[100:])
    assert model.sums_.n_rows == 400
    np.testing.assert_array_equal(model.predict_variance(X_NEW).aleatoric, h2)
    assert model.predict_variance(X_NEW).epistemic.mean() < 0.5 * epistemic.mean()


def test_held_out_rows_beyond_the_limit_return_to_the_sums(monkeypatch):
    monkeypatch.setattr("mapie_claps.posterior.sums.MAX_HELD_OUT_ROWS", 20)
    net = seeded(Pair)
    limited = ClapsModule(net, prior_precision="grid").fit(batches(X, y, 100))
    assert len(limited.sums_.held_out) == 20
    assert limited.sums_.n_rows == 400
    fixed = ClapsModule(net, prior_precision=limited.prior_precision_).fit(X, y)
    close(limited, fixed)
    halves = [
        ClapsModule.partial_sums(limited, X[part], y[part])
        for part in (slice(200), slice(200, 400))
    ]
    keys = (halves[0] + halves[1]).held_out.key
    np.testing.assert_array_equal(np.sort(keys), np.sort(limited.sums_.held_out.key))


def test_regressor_own_sums_make_its_posterior(regressor):
    again = with_sums(regressor, partial_sums(regressor, X[:100], y[:100]))
    for scale in ("claps", "posterior"):
        close(regressor.set_params(scale=scale), again.set_params(scale=scale))
    same = with_sums(regressor, sums_of(regressor))
    close(regressor, same)
    for model in (regressor, again):
        model.set_params(scale="claps")


def test_regressor_update_is_that_of_one_pass(regressor):
    once = with_sums(regressor, partial_sums(regressor, X, y))
    grown = regressor
    for a, b in ((100, 130), (130, 131), (131, 400)):
        grown = update_posterior(grown, X[a:b], y[a:b])
    streamed = with_sums(regressor, partial_sums(regressor, iter(batches(X, y, 37))))
    for other in (grown, streamed):
        close(once, other)
        np.testing.assert_allclose(
            other.posterior_covariance_, once.posterior_covariance_, rtol=1e-9
        )
    assert other.prior_precision_ == regressor.prior_precision_
    ours = once.predict_variance(X_NEW).epistemic
    assert ours.mean() < regressor.predict_variance(X_NEW).epistemic.mean()


def test_regressor_update_against_plain_numpy():
    model = ClapsRegressor.paper(random_state=0).fit(X[:100], y[:100])
    grown = update_posterior(model, X[100:], y[100:])
    Xs = (X - model.scaler_X_.mean_) / model.scaler_X_.scale_
    out = model.network_(torch.from_numpy(Xs))
    phi = out.phi[0].numpy()
    gram = phi.T @ (phi / out.h2[0].numpy()[:, None])
    Sigma = np.linalg.inv(np.eye(phi.shape[1]) + gram)
    unit = model.scaler_y_.scale_[0] ** 2
    found = grown.posterior_covariance_[0] / unit
    np.testing.assert_allclose(found[:-1, :-1], Sigma, atol=1e-12)
    assert not found[-1].any()  # φ carries no constant
    assert not found[:, -1].any()


def test_sums_of_other_networks_do_not_add():
    a = ClapsModule(seeded(Pair)).fit(X, y)
    b = ClapsModule(seeded(Pair, size=5)).fit(X, y)
    with pytest.raises(ValueError, match="only sums of one network"):
        a.sums_ + b.sums_


def test_sums_of_other_networks_of_equal_shape_do_not_add():
    a, b = (ClapsModule(seeded(Pair, seed=s)).fit(X, y) for s in (0, 1))
    assert a.sums_.moments.gram.shape == b.sums_.moments.gram.shape
    with pytest.raises(ValueError, match="only sums of one network"):
        a.sums_ + b.sums_
    c, d = (ClapsModule(mse_network()).fit(X[i:], y[i:]) for i in (0, 9))
    with pytest.raises(ValueError, match="another variance head"):
        c.sums_ + d.sums_
    e = ClapsModule(seeded(Pair)).fit(X[:50], y[:50])
    assert (a.sums_ + e.sums_).n_rows == len(X) + 50


def test_sums_of_a_module_do_not_fit_a_regressor_of_one_member():
    model = ClapsRegressor(
        n_members=1, representation_size=8, max_steps=5, tol=None, random_state=0
    ).fit(X, y)
    other = ClapsModule(seeded(Pair)).fit(X, y)
    assert model.sums_.moments.gram.shape == other.sums_.moments.gram.shape
    for one, two in ((model, other), (other, model)):
        with pytest.raises(ValueError, match="only sums of one network"):
            with_sums(one, sums_of(two))
        with pytest.raises(ValueError, match="only sums of one network"):
            sums_of(one) + sums_of(two)


def test_sums_of_networks_that_differ_in_one_weight_are_refused():
    """The same shapes throughout: only the fingerprint tells."""
    net = seeded(Pair)
    model = ClapsModule(net).fit(X, y)
    with torch.no_grad():
        net.body[0].bias[0] += 1e-3
    changed = ClapsModule(net).fit(X, y)
    head = ClapsModule(net, noise_variance="fit").fit(X, y)
    other_head = ClapsModule(net, noise_variance="fit").fit(X, 2 * y)
    models = [model, changed, head, other_head]
    for one in models:
        for two in models:
            if one is two:
                assert (sums_of(one) + sums_of(two)).n_rows == 2 * len(X)
                continue
            with pytest.raises(ValueError, match="only sums of one network"):
                sums_of(one) + sums_of(two)
            with pytest.raises(ValueError, match="only sums of one network"):
                with_sums(one, sums_of(two))


def test_sums_of_another_estimator_are_refused(regressor):
    other = ClapsModule(mse_network()).fit(X[:60], y[:60])
    with pytest.raises(ValueError, match="Got sums that belong to another network"):
        with_sums(regressor, sums_of(other))
    with pytest.raises(ValueError, match="Got sums that belong to another network"):
        with_sums(other, sums_of(regressor))
    with pytest.raises(TypeError, match="Got sums of type int, but expected LastLayer"):
        with_sums(regressor, 3)


def test_targets_that_overflow_are_refused(regressor):
    with pytest.raises(ValueError, match="Got y whose values overflow when squared"):
        update_posterior(regressor, X[:9], 1e300 * y[:9])
    with pytest.raises(ValueError, match="Got y whose values overflow when squared"):
        ClapsModule(mse_network()).fit(X[:60], 1e300 * y[:60])


def test_partial_sums_errors(regressor):
    with pytest.raises(NotFittedError, match="not fitted"):
        partial_sums(ClapsRegressor(), X, y)
    with pytest.raises(ValueError, match="is expecting 3 features"):
        partial_sums(regressor, X[:, :2], y)
    with pytest.raises(ValueError, match="without rows"):
        partial_sums(regressor, iter([]))
    bad = torch.full((4, 3), float("inf"))
    with pytest.raises(ValueError, match="Got inf in column 0, row 0"):
        partial_sums(regressor, bad, np.zeros(4))


@pytest.fixture(scope="module")
def calibrated(regressor):
    conformal = StreamingConformalRegressor(regressor, [0.8, 0.9])
    return conformal.conformalize(batches(X[100:], y[100:], 41))


def test_scores_and_intervals_are_those_of_plain_numpy(regressor, calibrated):
    mu, std = regressor.predict(X[100:], return_std=True)
    scores = np.sort(np.abs(y[100:] - mu) / std)
    q = [scores[conformal_rank(300, alpha) - 1] for alpha in (0.2, 0.1)]
    np.testing.assert_allclose(calibrated.quantiles(), q, rtol=1e-12)
    mu, std = regressor.predict(X_NEW, return_std=True)
    points, intervals = calibrated.predict_interval(X_NEW)
    assert intervals.shape == (30, 2, 2)
    np.testing.assert_allclose(points, mu, rtol=1e-12)
    np.testing.assert_allclose(intervals[:, 1], mu[:, None] + std[:, None] * q)
    np.testing.assert_allclose(intervals[:, 0], mu[:, None] - std[:, None] * q)
    loader = DataLoader(torch.from_numpy(X_NEW), batch_size=7)
    np.testing.assert_allclose(calibrated.predict_interval(loader)[1], intervals)
    np.testing.assert_allclose(calibrated.predict(loader), mu, rtol=1e-12)
    parts = list(calibrated.iter_intervals(batches(X_NEW, y_new, 8)))
    assert [len(p) for p, _ in parts] == [8, 8, 8, 6]
    why = calibrated.explain(X_NEW)
    np.testing.assert_allclose(why.width, intervals[:, 1] - intervals[:, 0])
    assert why.confidence_level == (0.8, 0.9)


def test_calibration_in_steps_and_from_scores(regressor, calibrated):
    grown = StreamingConformalRegressor(regressor, [0.8, 0.9])
    for a, b in ((100, 150), (150, 400)):
        grown.partial_conformalize(X[a:b], y[a:b])
    np.testing.assert_allclose(
        grown.conformity_scores_, calibrated.conformity_scores_, rtol=1e-10
    )
    stored = StreamingConformalRegressor.from_scores(
        regressor, calibrated.conformity_scores_, [0.8, 0.9]
    )
    np.testing.assert_array_equal(
        stored.predict_interval(X_NEW)[1], calibrated.predict_interval(X_NEW)[1]
    )
    assert grown.conformalize(X[100:109], y[100:109]).conformity_scores_.shape == (9,)
    assert "ClapsRegressor" in repr(grown)


def test_any_estimator_with_a_standard_deviation():
    gp = GaussianProcessRegressor(RBF() + WhiteKernel()).fit(X[:50], y[:50])
    conformal = StreamingConformalRegressor(gp).conformalize(
        DataLoader(
            TensorDataset(torch.from_numpy(X[50:]), torch.from_numpy(y[50:])),
            batch_size=64,
        )
    )
    assert len(conformal.conformity_scores_) == 350


def test_too_few_scores(regressor):
    conformal = StreamingConformalRegressor(regressor, 0.9).conformalize(
        X[100:105], y[100:105]
    )
    with pytest.raises(ValueError, match="needs at least 9"):
        conformal.predict_interval(X_NEW)
    _, intervals = conformal.predict_interval(X_NEW, allow_infinite_bounds=True)
    assert (intervals[:, 0] == -np.inf).all()
    assert (intervals[:, 1] == np.inf).all()


def test_conformal_errors(regressor):
    with pytest.raises(ValueError, match="not calibrated"):
        StreamingConformalRegressor(regressor).predict_interval(X_NEW)
    with pytest.raises(ValueError, match=r"confidence_level=1\.5"):
        StreamingConformalRegressor(regressor, 1.5)
    for scores in ([], [[1.0]], [-1.0], [np.nan]):
        with pytest.raises(ValueError, match="Got scores of shape"):
            StreamingConformalRegressor.from_scores(regressor, scores)
    with pytest.raises(ValueError, match="y=None"):
        StreamingConformalRegressor(regressor).conformalize(X)


def test_names_of_columns_are_checked_for_a_regressor():
    names = list("abcdefgh")[: X.shape[1]]
    frame = pd.DataFrame(X, columns=names)
    model = ClapsRegressor(
        max_steps=5, n_members=1, hidden_layer_sizes=(4,), tol=None, random_state=0
    ).fit(frame[:100], y[:100])
    assert partial_sums(model, frame[100:], y[100:]).n_rows == 300
    permuted = frame[names[::-1]]
    with pytest.raises(ValueError, match="feature names should match"):
        update_posterior(model, permuted, y)
    with pytest.raises(ValueError, match="feature names should match"):
        partial_sums(model, [(permuted, y)])


def test_calibration_refuses_weights(regressor):
    conformal = StreamingConformalRegressor(regressor)
    with pytest.raises(ValueError, match="Leave the weights out"):
        conformal.conformalize([(X, y, np.ones(len(X)))])
