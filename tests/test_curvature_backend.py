"""What laplace-torch asks of a curvature backend, beyond test_curvature.py."""

import numpy as np
import pytest
import torch
from laplace import Laplace
from laplace.utils.feature_extractor import FeatureExtractor
from test_curvature import Net, fit, loader

from mapie_claps import HeteroscedasticGGN


def table(n=30, dtype=torch.float64, seed=1):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(n, 3, generator=generator, dtype=dtype)
    y = torch.randn(n, 1, generator=generator, dtype=dtype)
    return X, y


def backend(net, **kwargs):
    extractor = FeatureExtractor(net, last_layer_name="mean_head")
    return HeteroscedasticGGN(extractor, "regression", last_layer=True, **kwargs)


def nll(net, weights, X, y):
    """½Σ[(y − μ)²/h² + log h²] as a function of the last layer alone."""
    phi = torch.tanh(net.features(X)).detach()
    h2 = net.noise_variance(X).detach()
    mu = phi @ weights[:-1, None] + weights[-1]
    return 0.5 * ((y - mu) ** 2 / h2 + h2.log()).sum()


def trained(net):
    return torch.cat([net.mean_head.weight.flatten(), net.mean_head.bias]).detach()


def test_full_is_the_hessian_that_autograd_finds():
    net, (X, y) = Net().double(), table()
    loss, H = backend(net).full(X, y)
    w = trained(net)
    expected = torch.autograd.functional.hessian(lambda v: nll(net, v, X, y), w)
    np.testing.assert_allclose(H, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(loss, nll(net, w, X, y).detach(), rtol=1e-12)


def test_cross_moment_is_the_slope_that_autograd_finds():
    net, (X, y) = Net().double(), table()
    cross = torch.zeros(6, dtype=torch.float64)
    _, H = backend(net, cross_moment=cross).full(X, y)
    w = trained(net)
    slope = torch.autograd.functional.jacobian(lambda v: nll(net, v, X, y), w)
    np.testing.assert_allclose(H @ w - cross, slope, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 2, 30])
def test_shapes_and_types(dtype, n):
    net = Net().to(dtype)
    X, y = table(n, dtype)
    ggn = backend(net)
    loss, H = ggn.full(X, y, N=n)
    assert loss.shape == ()
    assert H.shape == (6, 6)
    assert loss.dtype == H.dtype == dtype
    loss, diagonal = ggn.diag(X, y, N=n)
    assert loss.shape == ()
    assert diagonal.shape == (6,)
    assert diagonal.dtype == dtype


@pytest.mark.parametrize("seed", range(5))
def test_symmetric_positive_semi_definite_and_of_the_rank_of_the_rows(seed):
    net, (X, y) = Net().double(), table(3, seed=seed)
    _, H = backend(net).full(X, y)
    assert torch.equal(H, H.T)
    eigenvalues = torch.linalg.eigvalsh(H)
    assert eigenvalues[0] > -1e-12 * eigenvalues[-1]
    assert int((eigenvalues > 1e-10 * eigenvalues[-1]).sum()) == 3


def test_batches_add_up():
    net, (X, y) = Net().double(), table()
    ggn = backend(net)
    for method in (ggn.full, ggn.diag):
        whole = method(X, y)
        parts = [method(X[i : i + 7], y[i : i + 7]) for i in range(0, 30, 7)]
        for i in range(2):
            np.testing.assert_allclose(
                sum(part[i] for part in parts), whole[i], rtol=1e-12
            )


def test_nothing_is_left_on_the_graph_and_weights_keep_their_gradient():
    net, (X, y) = Net().double(), table()
    loss, H = backend(net).full(X, y)
    assert not loss.requires_grad
    assert not H.requires_grad
    assert all(p.grad is None and p.requires_grad for p in net.parameters())


def test_second_fit_replaces_the_first():
    """laplace-torch itself refuses to add rows to a last layer (override=False)."""
    net, (X, y) = Net().double(), table()
    la = fit(net, X[:10], y[:10])
    la.fit(loader(X, y, 7))
    whole = fit(net, X, y)
    np.testing.assert_allclose(la.H, whole.H, rtol=1e-12)
    np.testing.assert_allclose(la.loss, whole.loss, rtol=1e-12)
    assert la.n_data == 30


def test_full_and_diagonal_agree_where_the_features_are_orthogonal():
    net = Net(bias=False).double()
    with torch.no_grad():
        net.features.weight.zero_()
        net.features.bias.copy_(torch.tensor([1.0, 0, 0, 0, 0]))
    X, y = table()
    full, diag = fit(net, X, y), fit(net, X, y, structure="diag")
    np.testing.assert_allclose(
        full.posterior_precision.diagonal(), diag.posterior_precision, rtol=1e-12
    )
    np.testing.assert_allclose(full(X)[1].flatten(), diag(X)[1].flatten(), rtol=1e-10)


def test_samples_follow_the_posterior():
    net, (X, y) = Net().double(), table()
    la = fit(net, X, y)
    generator = torch.Generator().manual_seed(0)
    samples = la.sample(20_000, generator=generator)
    assert samples.shape == (20_000, 6)
    error = (samples.mean(0) - la.mean) / la.posterior_covariance.diagonal().sqrt()
    assert float(error.abs().max()) < 5 / np.sqrt(20_000)
    # A sample covariance has relative standard error √(2/n) on its diagonal.
    ratio = samples.var(0) / la.posterior_covariance.diagonal()
    assert float((ratio - 1).abs().max()) < 5 * np.sqrt(2 / 20_000)


def test_state_survives_a_file(tmp_path):
    net, (X, y) = Net().double(), table()
    la = fit(net, X, y)
    torch.save(la.state_dict(), tmp_path / "state.pt")
    other = Laplace(
        net,
        "regression",
        subset_of_weights="last_layer",
        hessian_structure="full",
        last_layer_name="mean_head",
        backend=HeteroscedasticGGN,
    )
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=False))
    np.testing.assert_array_equal(other.posterior_precision, la.posterior_precision)
    np.testing.assert_array_equal(other(X)[1], la(X)[1])


def test_weights_of_zero_and_of_a_hundred_million():
    net, (X, y) = Net().double(), table()
    none = torch.cat([y, torch.zeros_like(y)], dim=1)
    many = torch.cat([y, torch.full_like(y, 1e8)], dim=1)
    ggn = backend(net)
    assert float(ggn.full(X, none)[1].abs().max()) == 0
    np.testing.assert_allclose(
        ggn.full(X, many)[1], 1e8 * ggn.full(X, y)[1], rtol=1e-12
    )
