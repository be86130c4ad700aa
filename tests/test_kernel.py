"""The kernel member against a Gaussian process written out in NumPy."""

import copy
import pickle
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from mapie_claps.network import kernel, recorded
from mapie_claps.network.covariance import (
    JITTER,
    Covariance,
    exact_posterior,
    fit_covariance,
    loss_and_gradient,
)
from mapie_claps.network.kernel import KernelMember, fit_kernel, fit_length_scales


def rng_of(seed=0):
    return torch.Generator().manual_seed(seed)


def rows(n, p=3, seed=0, noise=0.1):
    """Standardised rows with a smooth mean; the last column is irrelevant."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p))
    y = np.sin(2 * X[:, 0]) + X[:, 1] + noise * rng.normal(size=n)
    return torch.from_numpy(X), torch.from_numpy((y - y.mean()) / y.std())


def covariance(p=3):
    u = torch.linspace(0.3, 1.2, p, dtype=torch.float64)
    return Covariance(u, 0.8, 0.05, 0.6, 0.4)


def dense(cov, A, B):
    """The kernel, pair by pair."""
    u = cov.inverse_scale.numpy()
    A, B = np.asarray(A), np.asarray(B)
    d = np.linalg.norm((A[:, None] - B[None]) * u, axis=-1)
    r, q = np.sqrt(3) * d, np.sqrt(5) * cov.ratio * d
    rough = cov.matern * (1 + r) * np.exp(-r)
    smooth = cov.smooth * (1 + q + q**2 / 3) * np.exp(-q)
    return rough + smooth + cov.linear * (A @ B.T + 1)


def oracle(cov, X, y, noise, x):
    """Mean and variance of a Gaussian process on all rows."""
    X, y, x = np.asarray(X), np.asarray(y), np.asarray(x)
    K, k = dense(cov, X, X) + np.diag(noise), dense(cov, X, x)
    solved = np.linalg.solve(K, k)
    return solved.T @ y, np.diag(dense(cov, x, x)) - np.sum(k * solved, axis=0)


def member(n=30, p=3, **changes):
    """A member that is not fitted: its fields are given."""
    X, y = rows(n, p)
    noise = torch.linspace(0.01, 0.2, n, dtype=torch.float64)
    made = KernelMember(covariance(p), X, y, noise, 0.5, 0.0, 0.1, 1e-9)
    return replace(made, **changes)


def held_out(n, n_members=3, size=None):
    size = n // 8 if size is None else size
    order = torch.randperm(n, generator=rng_of(5))
    return order[: n_members * size].view(n_members, size)


def fitted(X, y, weight=None, g=None, seed=0):
    n = len(X)
    weight = torch.ones(n, dtype=X.dtype) if weight is None else weight
    g = constant_noise if g is None else g
    blocks = held_out(n)
    scales = fit_length_scales(X, y, weight, rng_of(seed))
    if scales is None:
        return None
    return fit_kernel(scales, X, y, weight, g(X), blocks, g(X)[blocks], 1e-9)


def constant_noise(X):
    return torch.full((len(X),), 0.02, dtype=X.dtype)


def growing_noise(X):
    return X[:, 0].square() + 0.01


def test_posterior_is_exact_where_all_rows_are_neighbours():
    model, x = member(kernel.N_NEIGHBOURS), rows(9, seed=1)[0]
    g = torch.linspace(0.1, 1, 9, dtype=torch.float64)
    mu, aleatoric, epistemic = model.predict(x, g)
    expected = oracle(model.covariance, model.X, model.y, model.noise, x)
    np.testing.assert_allclose(mu, expected[0], atol=1e-10)
    np.testing.assert_allclose(epistemic, expected[1], atol=1e-10)
    np.testing.assert_allclose(aleatoric, 0.5 * g)


def test_posterior_is_that_of_the_nearest_rows():
    model, x = member(200), rows(5, seed=1)[0]
    mu, _, epistemic = model.predict(x, torch.ones(5, dtype=torch.float64))
    u = model.covariance.inverse_scale
    for i, row in enumerate(x):
        distance = ((model.X - row) * u).norm(dim=1)
        near = distance.argsort()[: kernel.N_NEIGHBOURS]
        expected = oracle(
            model.covariance,
            model.X[near],
            model.y[near],
            model.noise[near],
            row[None],
        )
        np.testing.assert_allclose(mu[i], expected[0][0], atol=1e-10)
        np.testing.assert_allclose(epistemic[i], expected[1][0], atol=1e-10)


def test_exact_posterior_of_many_rows():
    model, x = member(200), rows(5, seed=1)[0]
    training = model.X, model.y, model.noise
    found = exact_posterior(model.covariance, *training, x)
    expected = oracle(model.covariance, *training, x)
    np.testing.assert_allclose(found[0], expected[0], atol=1e-7)
    np.testing.assert_allclose(found[1], expected[1], atol=1e-7)


def test_dual_form_of_the_last_layer_posterior():
    """For features φ = [bx, b]: φᵀΣφ = k − kᵀ(K + W⁻¹)⁻¹k with Σ = (I + HᵀWH)⁻¹."""
    b = 0.7
    linear = Covariance(torch.ones(3, dtype=torch.float64), 0.0, b**2)
    model, x = member(covariance=linear), rows(6, seed=2)[0]

    def phi(X):
        return b * np.column_stack([np.asarray(X), np.ones(len(X))])

    H, W = phi(model.X), np.diag(1 / model.noise.numpy())
    Sigma = np.linalg.inv(np.eye(4) + H.T @ W @ H)
    found = model.predict(x, torch.ones(6, dtype=torch.float64))
    np.testing.assert_allclose(
        found.epistemic, np.sum(phi(x) @ Sigma * phi(x), axis=1), atol=1e-9
    )
    np.testing.assert_allclose(
        found.mu, phi(x) @ Sigma @ H.T @ W @ model.y.numpy(), atol=1e-9
    )


@pytest.mark.parametrize("p", [1, 4])
def test_loss_and_gradient(p):
    X, y = rows(25, max(p, 2))
    X = X[:, :p]
    noise = torch.linspace(0.5, 2, 25, dtype=torch.float64)
    theta = torch.linspace(-1.5, 0.3, p + 5, dtype=torch.float64)
    loss, gradient, failed = loss_and_gradient(theta, X, y, noise)
    assert not failed

    u, (s2, t2, ratio, b2, sigma2) = theta[:p].exp(), theta[p:].exp().tolist()
    K = dense(Covariance(u, s2, b2, t2, ratio), X, X)
    K += JITTER * K.diagonal().max() * np.eye(25) + np.diag(sigma2 * noise.numpy())
    expected = 0.5 * (y.numpy() @ np.linalg.solve(K, y.numpy()))
    expected += 0.5 * np.linalg.slogdet(K)[1]
    np.testing.assert_allclose(loss, expected / 25, rtol=1e-12)

    step = 1e-6 * torch.eye(p + 5, dtype=torch.float64)
    differences = [
        (
            loss_and_gradient(theta + e, X, y, noise)[0]
            - loss_and_gradient(theta - e, X, y, noise)[0]
        )
        / 2e-6
        for e in step
    ]
    np.testing.assert_allclose(gradient, torch.stack(differences), atol=1e-8)


def test_length_scales_find_the_columns_that_matter():
    X, y = rows(400, p=6)
    found, noise = fit_covariance(X, y, torch.ones_like(y), rng_of())
    u = found.inverse_scale
    assert u[0] > 10 * u[2:].max()
    assert noise < 0.05


@pytest.mark.parametrize("error", [AttributeError, RuntimeError])
def test_length_scales_without_the_compiler_are_the_same(error, monkeypatch):
    X, y = rows(260, p=4)
    found = fit_covariance(X, y, torch.ones_like(y), rng_of())

    def refuse(source):
        raise error("no compiler")

    monkeypatch.setattr(recorded, "_compiled", refuse)
    again = fit_covariance(X, y, torch.ones_like(y), rng_of())
    assert torch.equal(found[0].inverse_scale, again[0].inverse_scale)
    assert found[0].smooth == again[0].smooth
    assert found[1] == again[1]


def test_a_failed_factorisation_is_not_passed_over():
    X, y = rows(200)
    with pytest.raises(torch.linalg.LinAlgError, match="not positive definite"):
        fit_covariance(X, y, -1e6 * torch.ones_like(y), rng_of())


def test_variance_grows_with_the_distance_to_the_rows():
    X, y = rows(300)
    model = fitted(X, y)
    away = torch.tensor([[0.0, 0, 0], [4, 0, 0], [6, 0, 0]], dtype=torch.float64)
    epistemic = model.predict(away, torch.ones(3, dtype=torch.float64)).epistemic
    assert (epistemic.diff() > 0).all()
    assert epistemic[2] > 100 * epistemic[0]


def test_mean_follows_the_function():
    X, y = rows(600)
    x, truth = rows(200, seed=3)
    mu = fitted(X, y).predict(x, torch.ones(200, dtype=torch.float64)).mu
    assert (mu - truth).square().mean() < 0.03


def test_order_of_rows_is_irrelevant():
    model = member(100)
    order = torch.randperm(100, generator=rng_of(1))
    other = replace(model, X=model.X[order], y=model.y[order], noise=model.noise[order])
    x, g = rows(20, seed=1)[0], torch.ones(20, dtype=torch.float64)
    for a, b in zip(model.predict(x, g), other.predict(x, g), strict=True):
        torch.testing.assert_close(a, b)


def test_more_rows_never_raise_the_variance():
    model, x = member(30), rows(20, seed=1)[0]
    fewer = replace(model, X=model.X[:20], y=model.y[:20], noise=model.noise[:20])
    g = torch.ones(20, dtype=torch.float64)
    assert (model.predict(x, g).epistemic <= fewer.predict(x, g).epistemic).all()


def test_irrelevant_and_constant_columns_change_nothing():
    model, x = member(100), rows(10, seed=1)[0]
    g = torch.ones(10, dtype=torch.float64)
    cov = model.covariance
    u = torch.cat([cov.inverse_scale, torch.ones(1, dtype=torch.float64)])
    wider = replace(
        model,
        covariance=replace(cov, inverse_scale=u),
        X=torch.nn.functional.pad(model.X, (0, 1)),
    )
    padded = torch.nn.functional.pad(x, (0, 1))
    for a, b in zip(model.predict(x, g), wider.predict(padded, g), strict=True):
        torch.testing.assert_close(a, b)


def test_row_by_row_equals_all_at_once_also_on_a_grid():
    """Ties between neighbours are broken by the order of the rows kept."""
    grid = torch.cartesian_prod(*[torch.arange(4, dtype=torch.float64)] * 4)
    y = grid.sum(1).sin()
    model = member(covariance=Covariance(torch.ones(4, dtype=torch.float64), 1.0, 0.1))
    model = replace(model, X=grid, y=y, noise=torch.full((256,), 0.1).double())
    g = torch.ones(256, dtype=torch.float64)
    together = model.predict(grid + 0.5, g)
    alone = [model.predict(row[None], g[:1]) for row in grid + 0.5]
    for i, part in enumerate(together):
        torch.testing.assert_close(part, torch.cat([parts[i] for parts in alone]))


def test_blocks_do_not_matter(monkeypatch):
    model, x = member(100), rows(50, seed=1)[0]
    g = torch.ones(50, dtype=torch.float64)
    whole = model.predict(x, g)
    monkeypatch.setattr(kernel, "BLOCK_ELEMENTS", 5_000)
    for a, b in zip(whole, model.predict(x, g), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("m", [1, 40, 400, 1024, 1025, 1031, 5000])
def test_smallest_values(m):
    values = torch.randn(7, m, generator=rng_of(), dtype=torch.float64)
    values[0] = torch.arange(m, dtype=torch.float64)  # all in neighbouring places
    values[1] = -values[0]
    k = min(32, m)
    expected = values.argsort(dim=1)[:, :k]
    assert torch.equal(kernel._smallest(values, k), expected)


def test_no_rows_to_predict():
    parts = member().predict(torch.empty(0, 3).double(), torch.empty(0).double())
    assert [part.shape for part in parts] == [(0,)] * 3


def test_repeated_rows_are_kept_once_with_the_same_posterior():
    X, y = rows(10)
    noise = torch.linspace(0.1, 0.3, 10, dtype=torch.float64)
    twice = [torch.cat([t, t[:6]]) for t in (X, y, noise)]
    twice[1][10:] += 0.4
    kept = kernel._without_repeats(tuple(twice))
    assert len(kept[0]) == 10
    x = rows(5, seed=1)[0]
    expected = oracle(covariance(), *twice, x)
    np.testing.assert_allclose(oracle(covariance(), *kept, x), expected, atol=1e-10)


def test_weights_of_two_are_rows_twice():
    X, y = rows(160)
    weight = torch.ones(160, dtype=torch.float64)
    weight[:40] = 2
    model = fitted(X, y, weight)
    assert torch.allclose(model.noise[:40] * 2, model.noise[40:80])


def test_noise_follows_the_networks():
    X, y = rows(200)
    g = growing_noise(X)
    model = fitted(X, y, g=growing_noise)
    torch.testing.assert_close(model.noise, model.noise_factor * g)
    torch.testing.assert_close(model.predict(X, g).aleatoric, model.noise)


def test_few_rows_or_one_target_give_no_member():
    X, y = rows(kernel.MIN_ROWS)
    assert fitted(X[1:], y[1:]) is None
    assert fitted(X, y) is not None
    assert fitted(X, torch.zeros_like(y)) is None


def test_many_rows_are_kept_in_part(monkeypatch):
    monkeypatch.setattr(kernel, "MAX_ROWS", 180)
    X, y = rows(400)
    model = fitted(X, y)
    assert len(model.X) == len(model.y) == len(model.noise) == 180
    assert {tuple(row) for row in model.X.tolist()} <= {tuple(r) for r in X.tolist()}


def test_columns_of_two_values_and_constants():
    rng = np.random.default_rng(0)
    X = torch.from_numpy(np.sign(rng.normal(size=(300, 5))))
    X[:, 4] = 0.0
    y = X[:, 0] * X[:, 1] + 0.1 * torch.from_numpy(rng.normal(size=300))
    model = fitted(X, y)
    assert len(model.X) == 16
    found = model.predict(X, torch.full((300,), 0.01, dtype=torch.float64))
    assert (found.mu - y).square().mean() < 0.02
    assert all(bool(torch.isfinite(part).all()) for part in found)


def all_alike():
    return torch.zeros(200, 3).double(), rows(200)[1]


def grid():
    X = torch.cartesian_prod(*[torch.arange(6).double() - 2.5] * 3)
    return X, X.sum(1).sin()


def one_column():
    return rows(200)[0][:, :1], rows(200)[1]


def more_columns_than_rows():
    return rows(160, p=200)


def outliers():
    X, y = rows(200)
    X[0] = 14.0
    y[1] = -14.0
    return X, y


@pytest.mark.parametrize(
    "case", [all_alike, grid, one_column, more_columns_than_rows, outliers]
)
def test_unusual_rows(case):
    X, y = case()
    model = fitted(X, y)
    for part in model.predict(X, constant_noise(X)):
        assert bool(torch.isfinite(part).all())
    assert np.isfinite([model.held_out_nll, model.noise_factor]).all()


def test_rows_of_next_to_no_weight_do_not_count():
    X, y = rows(200)
    weight = torch.ones(200, dtype=torch.float64)
    weight[:8] = 1e-150
    model = fitted(X, y, weight)
    assert bool(torch.isfinite(model.predict(X, constant_noise(X)).mu).all())
    few = [t[:30] for t in (model.X, model.y, model.noise)]
    some = replace(model, X=few[0], y=few[1], noise=few[2])
    rest = replace(model, X=few[0][8:], y=few[1][8:], noise=few[2][8:])
    g = constant_noise(X)
    for a, b in zip(some.predict(X, g), rest.predict(X, g), strict=True):
        torch.testing.assert_close(a, b)


def test_same_seed_same_member_and_no_global_state():
    X, y = rows(200)
    a, b = fitted(X, y), fitted(X, y)
    assert torch.equal(a.covariance.inverse_scale, b.covariance.inverse_scale)
    c = fitted(X, y, seed=1)
    assert not torch.equal(a.covariance.inverse_scale, c.covariance.inverse_scale)


def test_copies_predict_alike():
    X, y = rows(200)
    model, x = fitted(X, y), rows(5, seed=1)[0]
    g = torch.ones(5, dtype=torch.float64)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other.predict(x, g).mu, model.predict(x, g).mu)
    kinds = {type(getattr(model, field.name)) for field in fields(model)}
    assert kinds == {Covariance, torch.Tensor, float, type(None)}
