"""Theory as tests: Σ and v of a fitted regressor against the paper's formulas."""

import warnings

import laplace
import numpy as np
import pytest
import torch
from conftest import heteroscedastic, network_output, tiny
from reference import gram, log_evidence, ridge, sigma, variance

from mapie_claps.exceptions import NotPositiveDefiniteError, NumericalWarning
from mapie_claps.network import batches
from mapie_claps.network.encoding import PiecewiseLinearEncoding
from mapie_claps.network.ensemble import HeteroscedasticNetwork
from mapie_claps.network.hold_out import n_held_out, split_rows
from mapie_claps.network.views import VIEWS
from mapie_claps.posterior import gaussian, moments, prior
from mapie_claps.posterior.members import feature_rows
from mapie_claps.posterior.moments import Moments, sum_rows


def units(model):
    return model.scaler_y_.scale_[0] ** 2


def scaled_target(model, y):
    return (y - model.scaler_y_.mean_[0]) / model.scaler_y_.scale_[0]


def test_precision_is_prior_plus_weighted_outer_products(fitted, data):
    phi, h2, _ = network_output(fitted, data[0][0])
    precision = np.linalg.inv(fitted.posterior_covariance_[0] / units(fitted))
    np.testing.assert_allclose(precision, np.eye(len(phi[0])) + gram(phi, h2), 1e-8)


def test_variance_is_aleatoric_plus_epistemic(fitted, data):
    train, test = data[0][0], data[2][0]
    Sigma = sigma(*network_output(fitted, train)[:2], 1.0)
    phi, h2, _ = network_output(fitted, test)
    part = fitted.predict_variance(test)
    expected = variance(phi, h2, Sigma) * units(fitted)
    np.testing.assert_allclose(part.total, expected, rtol=1e-8)
    np.testing.assert_allclose(part.aleatoric, h2 * units(fitted), rtol=1e-12)
    std = fitted.predict(test, return_std=True)[1]
    np.testing.assert_allclose(std, np.sqrt(expected), rtol=1e-8)
    np.testing.assert_allclose(
        part.scale_ratio, np.sqrt(1 + part.epistemic / part.aleatoric)
    )
    np.testing.assert_allclose(part.epistemic_fraction, part.epistemic / part.total)


def test_mean_is_the_trained_last_layer(fitted, data):
    phi, _, w = network_output(fitted, data[2][0])
    expected = phi @ w * np.sqrt(units(fitted)) + fitted.scaler_y_.mean_[0]
    np.testing.assert_allclose(fitted.predict(data[2][0]), expected, rtol=1e-10)


def test_ridge_is_the_posterior_mean(data):
    model = tiny(prior_precision=0.7, last_layer="ridge").fit(*data[0])
    phi, h2, _ = network_output(model, data[0][0])
    w = ridge(phi, h2, scaled_target(model, data[0][1]), 0.7)
    np.testing.assert_allclose(model.model_.posterior.mean[0], w, rtol=1e-6)
    expected = network_output(model, data[2][0])[0] @ w
    np.testing.assert_allclose(
        scaled_target(model, model.predict(data[2][0])), expected, rtol=1e-7, atol=1e-9
    )


def test_sample_weight_enters_the_sums(data):
    s = np.random.default_rng(0).uniform(0.5, 2, 150)
    model = tiny(prior_precision=1.0, last_layer="trained").fit(*data[0], s)
    phi, h2, _ = network_output(model, data[0][0])
    np.testing.assert_allclose(
        model.posterior_covariance_[0] / units(model),
        sigma(phi, h2, 1.0, s / s.mean()),
        rtol=1e-7,
    )


def test_posterior_comes_from_laplace_torch(data, monkeypatch):
    """Twice the curvature from laplace.Laplace, half of Σ where data dominate."""
    calls, original = [], laplace.Laplace

    def doubled(*args, **kwargs):
        calls.append(kwargs["backend"])
        la = original(*args, **kwargs)
        fit = la.fit

        def fit_and_double(loader):
            fit(loader)
            la.H *= 2

        la.fit = fit_and_double
        return la

    params = {"prior_precision": 1e-9, "last_layer": "trained"}
    plain = tiny(**params).fit(*data[0])
    monkeypatch.setattr(laplace, "Laplace", doubled)
    changed = tiny(**params).fit(*data[0])
    np.testing.assert_allclose(
        changed.predict_variance(data[2][0]).epistemic * 2,
        plain.predict_variance(data[2][0]).epistemic,
        rtol=1e-4,
    )
    assert {c.__name__ for c in calls} == {"HeteroscedasticGGN"}


def test_reduction_to_aleatoric_for_a_strong_prior(fitted, data):
    part = fitted.with_prior_precision(1e14).predict_variance(data[2][0])
    np.testing.assert_allclose(part.total, part.aleatoric, rtol=1e-8)
    np.testing.assert_allclose(part.scale_ratio, 1, rtol=1e-8)


def test_reduction_to_aleatoric_for_many_rows(fitted, data):
    posterior = fitted.model_.posterior
    moments = fitted.sums_.moments
    for _ in range(60):  # 2⁶⁰ copies of the training rows
        moments = moments + moments
    many = gaussian.make_posterior(moments, posterior.trained, "trained", 1.0)
    phi, h2, _ = network_output(fitted, data[2][0])
    epistemic = many.epistemic(torch.from_numpy(phi[None, :, :-1]))[0].numpy()
    assert (epistemic < 1e-8 * h2).all()


def test_with_prior_precision_keeps_the_network_and_mu(fitted, data):
    other = fitted.with_prior_precision(0.01)
    assert other.prior_precision_ == other.prior_precision == 0.01
    assert fitted.prior_precision_ == 1.0
    np.testing.assert_array_equal(other.predict(data[2][0]), fitted.predict(data[2][0]))
    phi, h2, _ = network_output(fitted, data[0][0])
    np.testing.assert_allclose(
        other.posterior_covariance_[0] / units(fitted),
        sigma(phi, h2, 0.01),
        rtol=1e-6,
        atol=1e-12,
    )
    assert (
        other.predict_variance(data[2][0]).epistemic
        > fitted.predict_variance(data[2][0]).epistemic
    ).all()


def test_sums_of_parts_add_up(fitted, data):
    X, y = data[0]
    Xs, ys = fitted._scaled(X), torch.from_numpy(scaled_target(fitted, y))

    def moments(part):
        w = torch.ones(1, len(ys[part]), dtype=torch.float64)
        rows = feature_rows(fitted.network_, Xs[part], ys[part], w)
        return sum_rows([rows], "full")[0]

    merged = moments(slice(0, 40)) + moments(slice(40, 150))
    whole = fitted.sums_.moments
    np.testing.assert_allclose(merged.gram, whole.gram, rtol=1e-10)
    np.testing.assert_allclose(merged.cross, whole.cross, rtol=1e-10, atol=1e-12)
    assert merged.n_rows == whole.n_rows == 150


def test_more_rows_never_raise_the_epistemic_variance(fitted, data):
    posterior = fitted.model_.posterior
    phi = torch.from_numpy(network_output(fitted, data[2][0])[0][None, :, :-1])
    new = torch.from_numpy(network_output(fitted, data[1][0])[0])
    before_ = fitted.sums_.moments
    gram_ = before_.gram.clone()
    before = posterior.epistemic(phi)
    for row in new[:20]:
        gram_ += torch.outer(row, row)
        moments = Moments(gram_, before_.cross, before_.loss, 0)
        after = gaussian.make_posterior(
            moments, posterior.trained, "trained", 1.0
        ).epistemic(phi)
        assert (after <= before * (1 + 1e-10)).all()
        before = after


def test_members_share_lambda_and_mix(data):
    model = tiny(n_members=3, last_layer="trained").fit(*data[0])
    X = data[2][0]
    with torch.no_grad():
        out = model.network_(model._scaled(X))
    lam = model.prior_precision_
    mus, h2s, epistemics = [], [], []
    with torch.no_grad():
        train = model.network_(model._scaled(data[0][0]))
    for k in range(3):
        phi = np.column_stack([out.phi[k], np.ones(len(X))])
        phi_train = np.column_stack([train.phi[k], np.ones(150)])
        Sigma = sigma(phi_train, train.h2[k].numpy(), lam)
        np.testing.assert_allclose(
            model.posterior_covariance_[k] / units(model),
            Sigma,
            rtol=1e-6,
            atol=1e-10,
        )
        epistemics.append(np.einsum("ni,ij,nj->n", phi, Sigma, phi))
        mus.append(out.mu[k].numpy())
        h2s.append(out.h2[k].numpy())
    w = model.model_.member_weight.numpy()
    assert (w > 0).all()
    assert len(set(w)) == 3  # one member per view
    np.testing.assert_allclose(w.sum(), 1.0, rtol=1e-12)
    part = model.predict_variance(X)
    geometric = np.prod(np.power(h2s, w[:, None]), 0)
    np.testing.assert_allclose(part.aleatoric, geometric * units(model), rtol=1e-8)
    mu = w @ mus
    expected = w @ epistemics + w @ (np.array(mus) - mu) ** 2
    np.testing.assert_allclose(part.epistemic, expected * units(model), rtol=1e-6)
    mu = mu * model.scaler_y_.scale_[0] + model.scaler_y_.mean_[0]
    np.testing.assert_allclose(model.predict(X), mu, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("sizes", [[1], [1, 1], [2, 2, 1]])
def test_views_are_weighted_by_their_held_out_likelihood(sizes):
    """Against the formula: share ∝ exp(−10 · mean NLL of the view), equal inside it."""
    n_members = sum(sizes)
    generator = torch.Generator().manual_seed(0)
    network = HeteroscedasticNetwork(
        PiecewiseLinearEncoding([torch.tensor([-1.0, 0.0, 1.0])] * 2),
        (4, 3),
        n_members,
        1e-3,
        generator,
        VIEWS,
        3.0,
    ).double()
    x = torch.randn(30, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(30, generator=generator, dtype=torch.float64)
    rows = feature_rows(network, x, y, torch.ones(n_members, 30, dtype=torch.float64))
    trained = network.trained_weights()
    moments = sum_rows([rows], "full")[0]
    posterior = gaussian.make_posterior(moments, trained, "trained", 2.0)
    out = network(x)
    nll = []
    for k in range(n_members):
        phi = np.column_stack([out.phi[k].detach(), np.ones(30)])
        h2, mu = out.h2[k].detach().numpy(), out.mu[k].detach().numpy()
        v = variance(phi, h2, sigma(phi, h2, 2.0))
        nll.append(np.mean(0.5 * (np.log(v) + (y.numpy() - mu) ** 2 / v)))
    ends = np.cumsum(sizes)
    by_view = [np.mean(nll[e - s : e]) for e, s in zip(ends, sizes, strict=True)]
    shares = np.repeat(np.exp(-10.0 * np.array(by_view)), sizes)
    views = network.members_by_view()
    found = prior.weights_of_members(prior.nll_of_views(posterior, rows, views), views)
    np.testing.assert_allclose(found, shares / shares.sum(), rtol=1e-8)


def test_scales_can_be_switched_after_fit(data):
    X_train, y_train = data[0]
    model = tiny(prior_precision=1.0, last_layer="trained").fit(X_train, y_train)
    X = data[2][0]
    claps = model.predict_variance(X)
    aleatoric = model.set_params(scale="aleatoric").predict_variance(X)
    np.testing.assert_array_equal(aleatoric.total, claps.aleatoric)
    residual = np.mean((y_train - model.predict(X_train)) ** 2)
    constant = model.set_params(scale="constant").predict_variance(X)
    np.testing.assert_allclose(constant.total, residual, rtol=1e-10)
    posterior = model.set_params(scale="posterior").predict_variance(X)
    np.testing.assert_allclose(posterior.aleatoric, residual, rtol=1e-10)
    phi_train, _, _ = network_output(model, X_train)
    phi, _, _ = network_output(model, X)
    s2 = residual / units(model)
    Sigma = sigma(phi_train, np.full(150, s2), 1.0)
    expected = np.einsum("ni,ij,nj->n", phi, Sigma, phi) * units(model)
    np.testing.assert_allclose(posterior.epistemic, expected, rtol=1e-7)


def test_grid_minimises_the_held_out_likelihood(data):
    X, y = data[0]
    model = tiny(prior_precision="grid", last_layer="ridge", n_members=1).fit(X, y)
    chosen = model.prior_precision_
    # The hold-out is drawn first of all from the seed.
    seed = np.random.RandomState(0).randint(2**31 - 1)
    n = n_held_out(150, model.validation_fraction)
    rows = split_rows(150, n, 1, torch.Generator().manual_seed(int(seed)))
    held, seen = rows.held_out[0].numpy(), rows.fit[0].numpy()
    phi, h2, _ = network_output(model, X)
    ys = scaled_target(model, y)

    def nll(lam):
        w = ridge(phi[seen], h2[seen], ys[seen], lam)
        v = variance(phi[held], h2[held], sigma(phi[seen], h2[seen], lam))
        return np.mean(np.log(v) + (ys[held] - phi[held] @ w) ** 2 / v)

    grid = [10.0**e for e in range(-5, 5)]
    assert chosen == pytest.approx(min(grid, key=nll))


@pytest.mark.parametrize("last_layer", ["trained", "ridge"])
def test_marglik_maximises_the_evidence(data, last_layer):
    X, y = data[0]
    model = tiny(prior_precision="marglik", last_layer=last_layer).fit(X, y)
    moments, trained = model.sums_.moments, model.model_.posterior.trained

    def evidence(value):  # exact at the posterior mean, whichever weights predict
        posterior = gaussian.make_posterior(moments, trained, "ridge", value)
        return gaussian.log_marginal_likelihood(posterior, moments)

    best = evidence(model.prior_precision_)
    for factor in (10, 0.1):
        assert evidence(model.prior_precision_ * factor) <= best
    phi, h2, _ = network_output(model, X)
    expected = log_evidence(phi, h2, scaled_target(model, y), model.prior_precision_)
    assert best == pytest.approx(expected, rel=1e-9)


def test_the_evidence_is_that_of_all_rows(data, monkeypatch):
    """Rows held out for the best state and the views belong to the evidence."""
    seen, original = [], prior.log_marginal_likelihood

    def record(posterior, moments):
        seen.append(moments.gram)
        return original(posterior, moments)

    monkeypatch.setattr(prior, "log_marginal_likelihood", record)
    model = tiny(prior_precision="marglik", validation_fraction=0.4).fit(*data[0])
    assert torch.equal(seen[0], model.sums_.moments.gram)


def test_diagonal_structure_for_wide_features(data):
    params = {"prior_precision": 1.0, "last_layer": "trained"}
    model = tiny(hessian_structure="diag", **params).fit(*data[0])
    phi, h2, _ = network_output(model, data[0][0])
    expected = 1 / (1 + np.diag(gram(phi, h2)))
    np.testing.assert_allclose(
        model.posterior_covariance_[0] / units(model), np.diag(expected), rtol=1e-10
    )
    test, _, _ = network_output(model, data[2][0])
    np.testing.assert_allclose(
        model.predict_variance(data[2][0]).epistemic,
        (test**2 @ expected) * units(model),
        rtol=1e-10,
    )
    by_evidence = tiny(
        hessian_structure="diag", last_layer="trained", prior_precision="marglik"
    )
    assert by_evidence.fit(*data[0]).prior_precision_ > 0


def test_jitter_is_reported_and_hopeless_matrices_raise():
    duplicated = torch.full((1, 3, 3), 1e16, dtype=torch.float64)
    with pytest.warns(NumericalWarning, match=r"Added .* to the diagonal"):
        scale = gaussian.posterior_scale(duplicated, 1e-12)
    assert torch.isfinite(scale).all()
    with pytest.raises(NotPositiveDefiniteError, match="Raise prior_precision"):
        gaussian.posterior_scale(-duplicated, 1.0)


def test_duplicate_features_and_dead_units_stay_finite():
    X, y = heteroscedastic(120)
    X = np.column_stack([X, X, np.zeros(120)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)
        model = tiny(prior_precision=1e-8, variance_floor=1e-12).fit(X, y)
        part = model.predict_variance(X)
    assert (part.total > 0).all()
    assert np.isfinite(part.total).all()


def test_results_do_not_depend_on_the_batches(fitted, data, monkeypatch):
    X = data[2][0]
    before = fitted.predict(X, return_std=True)
    monkeypatch.setattr(moments, "BATCH_ELEMENTS", 32 * 16)
    monkeypatch.setattr(moments, "WIDE_ROWS", 1)
    after = fitted.predict(X, return_std=True)
    np.testing.assert_allclose(after, before, rtol=1e-10)
    again = tiny(prior_precision=1.0, last_layer="trained").fit(*data[0])
    np.testing.assert_allclose(again.predict(X, return_std=True), before, rtol=1e-10)


def test_many_rows_are_computed_twice_rather_than_kept(data, monkeypatch):
    kept = tiny(n_members=2).fit(*data[0]).predict(data[2][0], return_std=True)
    monkeypatch.setattr(batches, "KEPT_ELEMENTS", 0)
    again = tiny(n_members=2).fit(*data[0]).predict(data[2][0], return_std=True)
    np.testing.assert_array_equal(kept, again)
