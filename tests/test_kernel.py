"""The kernel member against a Gaussian process written out in NumPy."""

import copy
import pickle

import numpy as np
import pytest
import torch

from mapie_claps.network import kernel
from mapie_claps.network.kernel import (
    JITTER,
    N_NEIGHBOURS,
    Covariance,
    KernelMember,
    TrainingRows,
    fit_covariance,
    fit_kernel,
    marginal_nll,
)
from mapie_claps.network.training import Rows


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(kernel, "STEPS", 60)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def sample(n, p=3, seed=0, noise=0.1):
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
    A, B = np.asarray(A), np.asarray(B)
    d = np.linalg.norm((A[:, None] - B[None]) * cov.inverse_scale.numpy(), axis=-1)
    r, q = np.sqrt(3) * d, np.sqrt(5) * cov.ratio * d
    rough = cov.matern * (1 + r) * np.exp(-r)
    smooth = cov.smooth * (1 + q + q**2 / 3) * np.exp(-q)
    return rough + smooth + cov.linear * (A @ B.T + 1)


def oracle(cov, rows, x):
    """Mean and covariance of a Gaussian process on all rows."""
    X, y, noise = (np.asarray(part) for part in rows)
    K, k = dense(cov, X, X) + np.diag(noise), dense(cov, X, x)
    solved = np.linalg.solve(K, k)
    return solved.T @ y, dense(cov, x, x) - k.T @ solved


def member(n=30, cov=None, rows=None, lasting=0.0):
    """A member that is not fitted."""
    X, y = sample(n)
    noise = torch.linspace(0.01, 0.2, n, dtype=torch.float64)
    rows = TrainingRows(X, y, noise) if rows is None else rows
    return KernelMember(cov or covariance(), rows, 0.5, 1e-9, lasting, 0.1, 0.0)


def ones(n):
    return torch.ones(n, dtype=torch.float64)


def constant_noise(X):
    return 0.02 * ones(len(X))


def fitted(X, y, weight=None, g=constant_noise, seed=0):
    n = len(X)
    weight = ones(n) if weight is None else weight
    held_out = torch.randperm(n, generator=generator(5))[: 3 * (n // 8)].view(3, -1)
    rest = [np.setdiff1d(np.arange(n), rows) for rows in held_out]
    split = Rows(torch.tensor(np.stack(rest)), held_out)
    return fit_kernel(X, y, weight, g(X), split, g(X)[held_out], 1e-9, generator(seed))


def test_posterior_is_exact_where_all_rows_are_neighbours():
    model, x = member(N_NEIGHBOURS), sample(9, seed=1)[0]
    g = torch.linspace(0.1, 1, 9, dtype=torch.float64)
    mu, aleatoric, epistemic = model.predict(x, g)
    mean, Sigma = oracle(model.covariance, model.rows, x)
    np.testing.assert_allclose(mu, mean, atol=1e-9)
    np.testing.assert_allclose(epistemic, np.diag(Sigma), atol=1e-9)
    np.testing.assert_allclose(aleatoric, 0.5 * g)


def test_posterior_is_that_of_the_nearest_rows():
    model, x = member(200), sample(5, seed=1)[0]
    mu, _, epistemic = model.predict(x, ones(5))
    for i, row in enumerate(x):
        near = (
            ((model.rows.X - row) * model.covariance.inverse_scale)
            .norm(dim=1)
            .argsort()
        )
        rows = model.rows.take(near[:N_NEIGHBOURS])
        mean, Sigma = oracle(model.covariance, rows, row[None])
        np.testing.assert_allclose(mu[i], mean[0], atol=1e-9)
        np.testing.assert_allclose(epistemic[i], Sigma[0, 0], atol=1e-9)


def test_dual_form_of_the_last_layer_posterior():
    """For features φ = [bx, b]: φᵀΣφ = k − kᵀ(K + W⁻¹)⁻¹k with Σ = (I + HᵀWH)⁻¹."""
    b = 0.7
    model, x = member(cov=Covariance(ones(3), 0.0, b**2)), sample(6, seed=2)[0]
    H, phi = (b * np.column_stack([t, np.ones(len(t))]) for t in (model.rows.X, x))
    W = np.diag(1 / model.rows.noise.numpy())
    Sigma = np.linalg.inv(np.eye(4) + H.T @ W @ H)
    mu, _, epistemic = model.predict(x, ones(6))
    np.testing.assert_allclose(epistemic, np.sum(phi @ Sigma * phi, axis=1), atol=1e-8)
    np.testing.assert_allclose(
        mu, phi @ Sigma @ H.T @ W @ model.rows.y.numpy(), atol=1e-8
    )


def test_what_lasts_is_noise():
    x = torch.cat([sample(20, seed=1)[0], 5 * sample(20, seed=2)[0]])
    mu, noise, raw = member(200).predict(x, ones(40))
    lasting = float(raw.quantile(0.2))
    found = member(200, lasting=lasting).predict(x, ones(40))
    torch.testing.assert_close(found[0], mu)
    torch.testing.assert_close(found[1], noise + raw.clamp(max=lasting))
    torch.testing.assert_close(found[2], (raw - lasting).clamp(min=0))
    assert (found[2] == 0).sum() == 8


@pytest.mark.parametrize("p", [1, 4])
def test_marginal_likelihood(p):
    X, y = sample(25, max(p, 2))
    X, noise = X[:, :p], torch.linspace(0.5, 2, 25, dtype=torch.float64)
    theta = torch.linspace(-1.5, 0.3, p + 5, dtype=torch.float64)
    loss = marginal_nll(theta, X, y, noise)
    u, (s2, t2, ratio, b2, sigma2) = theta[:p].exp(), theta[p:].exp().tolist()
    K = dense(Covariance(u, s2, b2, t2, ratio), X, X)
    K += JITTER * K.diagonal().max() * np.eye(25) + np.diag(sigma2 * noise.numpy())
    expected = y.numpy() @ np.linalg.solve(K, y.numpy()) + np.linalg.slogdet(K)[1]
    np.testing.assert_allclose(loss, expected / 50, rtol=1e-12)


def test_length_scales_find_the_columns_that_matter_and_noise_is_noise(monkeypatch):
    monkeypatch.setattr(kernel, "STEPS", 300)
    X, y = sample(400, p=6)
    found, noise = fit_covariance(X, y, ones(400), generator())
    assert found.inverse_scale[0] > 10 * found.inverse_scale[2:].max()
    assert noise < 0.05
    y = torch.randn(400, generator=generator(1), dtype=torch.float64)
    model = fitted(X, y, g=lambda X: ones(len(X)))
    _, aleatoric, epistemic = model.predict(X + 0.1, ones(400))
    assert 0.7 < aleatoric.mean() < 1.3
    assert aleatoric.mean() > 5 * epistemic.mean()


def test_a_fitted_member_follows_the_function_and_doubts_what_is_far():
    X, y = sample(800)
    fit, new = slice(600), slice(600, 800)
    model = fitted(X[fit], y[fit])
    assert (model.predict(X[new], ones(200))[0] - y[new]).square().mean() < 0.03
    away = torch.tensor([[0.0, 0, 0], [4, 0, 0], [6, 0, 0]], dtype=torch.float64)
    epistemic = model.predict(away, ones(3))[2]
    usual = model.predict(X[new], ones(200))[2] < model.usual_epistemic
    assert 0.8 < usual.double().mean() < 0.98
    assert (epistemic.diff() > 0).all()
    assert epistemic[2] > 100 * model.usual_epistemic


def test_irrelevant_columns_order_and_blocks_change_nothing(monkeypatch):
    model, x = member(100), sample(50, seed=1)[0]
    expected = list(model.predict(x, ones(50)))
    order = torch.randperm(100, generator=generator(1))
    shuffled = member(rows=model.rows.take(order))
    u = torch.cat([model.covariance.inverse_scale, ones(1)])
    wider = model.rows._replace(X=torch.nn.functional.pad(model.rows.X, (0, 1)))
    wider = member(cov=model.covariance._replace(inverse_scale=u), rows=wider)
    found = wider.predict(torch.nn.functional.pad(x, (0, 1)), ones(50))
    torch.testing.assert_close(list(found), expected)
    torch.testing.assert_close(list(shuffled.predict(x, ones(50))), expected)
    monkeypatch.setattr(kernel, "BLOCK_ELEMENTS", 700)
    torch.testing.assert_close(list(model.predict(x, ones(50))), expected)


def test_row_by_row_equals_all_at_once_also_on_a_grid():
    """Ties between neighbours are broken by the order of the rows kept."""
    grid = torch.cartesian_prod(*[torch.arange(4, dtype=torch.float64)] * 4)
    rows = TrainingRows(grid, grid.sum(1).sin(), 0.1 * ones(256))
    model = member(cov=Covariance(ones(4), 1.0, 0.1), rows=rows)
    together = model.predict(grid + 0.5, ones(256))
    alone = [model.predict(row[None] + 0.5, ones(1)) for row in grid]
    alone = [torch.cat(part) for part in zip(*alone, strict=True)]
    torch.testing.assert_close(list(together), alone)


def test_no_rows_to_predict():
    none = torch.empty(0, 3, dtype=torch.float64)
    assert [part.shape for part in member().predict(none, none[:, 0])] == [(0,)] * 3


def test_repeated_rows_are_kept_once_with_the_same_posterior():
    X, y = sample(10)
    noise = torch.linspace(0.1, 0.3, 10, dtype=torch.float64)
    twice = TrainingRows(*(torch.cat([t, t[:6]]) for t in (X, y, noise)))
    twice.y[10:] += 0.4
    kept, x = twice.merged(), sample(5, seed=1)[0]
    assert len(kept.X) == 10
    found, expected = (oracle(covariance(), rows, x) for rows in (kept, twice))
    np.testing.assert_allclose(found[0], expected[0], atol=1e-10)
    np.testing.assert_allclose(found[1], expected[1], atol=1e-10)


def test_noise_follows_the_networks_and_the_weights():
    X, y = sample(200)
    weight = torch.where(torch.arange(200) < 40, 2 * ones(200), 1)
    model = fitted(X, y, weight, g=lambda X: X[:, 0].square() + 0.01)
    row = [int((kept == X).all(1).nonzero()) for kept in model.rows.X]
    factor = model.noise_factor / model.variance_factor
    expected = factor * (X[row, 0].square() + 0.01) / weight[row]
    torch.testing.assert_close(model.rows.noise, expected)


def test_few_rows_or_one_target_give_no_member(monkeypatch):
    X, y = sample(kernel.MIN_ROWS)
    assert fitted(X[1:], y[1:]) is fitted(X, torch.zeros_like(y)) is None
    monkeypatch.setattr(kernel, "MAX_ROWS", 120)
    kept = {tuple(row) for row in fitted(X, y).rows.X.tolist()}
    assert len(kept) == 120
    assert kept <= {tuple(row) for row in X.tolist()}


def outliers():
    X, y = sample(200)
    X[0], y[1] = 14.0, -14.0
    return X, y


@pytest.mark.parametrize(
    ("X", "y"),
    [
        (torch.zeros(200, 3).double(), sample(200)[1]),
        (sample(200)[0][:, :1], sample(200)[1]),
        sample(160, p=200),
        (sample(300, p=4)[0].sign(), sample(300)[1]),
        outliers(),
    ],
    ids=["equal rows", "one column", "many columns", "two values", "outliers"],
)
def test_unusual_rows(X, y):
    weight = ones(len(X))
    weight[:8] = 1e-150
    model = fitted(X, y, weight)
    for part in model.predict(X, constant_noise(X)):
        assert bool(torch.isfinite(part).all())
    assert np.isfinite([model.held_out_nll, model.noise_factor]).all()


def smooth_member(noise=1e-6):
    """Many rows of a smooth function, next to no noise."""
    X, y = sample(600, noise=0.0)
    u = torch.tensor([0.5, 0.2, 1e-3], dtype=torch.float64)
    rows = TrainingRows(X, y, noise * ones(600))
    return member(cov=Covariance(u, 1e-6, 0.1, 5.0, 1.0), rows=rows)


def test_the_mean_of_all_rows_tells_a_smooth_function_without_noise():
    near, whole = smooth_member(), smooth_member()
    near.lasting_epistemic = whole.lasting_epistemic = 1e-5
    kernel._use_mean_of_all_rows(whole)
    assert whole.dual is not None
    x, g = sample(100, seed=1)[0], ones(100)
    jitter = JITTER * dense(near.covariance, near.rows.X, near.rows.X).diagonal().max()
    rows = near.rows._replace(noise=near.rows.noise + jitter)
    expected = torch.from_numpy(oracle(near.covariance, rows, x)[0])
    found, before = whole.predict(x, g), near.predict(x, g)
    np.testing.assert_allclose(found[0], expected, atol=1e-6)
    assert (found[0] - expected).abs().max() < 0.1 * (before[0] - expected).abs().max()
    factor = whole.variance_factor
    torch.testing.assert_close(found[1], factor * before[1])
    assert whole.usual_epistemic == factor * near.usual_epistemic
    torch.testing.assert_close(found[2], factor * before[2])


def test_many_rows_keep_to_the_nearest(monkeypatch):
    many = smooth_member()
    monkeypatch.setattr(kernel, "MAX_MEAN_ROWS", 599)
    kernel._use_mean_of_all_rows(many)
    assert many.dual is None


def test_same_seed_same_member():
    X, y = sample(200)
    first, again = fitted(X, y), fitted(X, y)
    for a, b in zip(first.rows, again.rows, strict=True):
        assert torch.equal(a, b)
    other = fitted(X, y, seed=1).covariance.inverse_scale
    assert not torch.equal(other, first.covariance.inverse_scale)


def test_copies_and_exported_programs_predict_alike():
    model, x = member(200, lasting=0.01), sample(7, seed=1)[0]
    model.dual, model.variance_factor = 0.1 * model.rows.y, 0.5
    expected = model.predict(x, ones(7))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(other.predict(x, ones(7)), expected)
    module = torch.nn.Module()
    module.forward = model.block
    rows = {0: torch.export.Dim("n", min=2, max=4096)}
    shapes = {"dynamic_shapes": (rows, rows), "strict": False}
    program = torch.export.export(module, (x[:4], ones(4)), **shapes)
    torch.testing.assert_close(program.module()(x, ones(7)), expected)
