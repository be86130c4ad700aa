"""What laplace-torch asks of a curvature backend, beyond test_curvature.py."""

import numpy as np
import pytest
import torch
from laplace import Laplace
from laplace.curvature import GGNInterface
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


@pytest.mark.parametrize("bias", [True, False])
def test_jacobians_are_those_that_autograd_finds(bias):
    """laplace-torch's own, of whole networks, are zero for a last layer."""
    net, (X, _) = Net(bias).double(), table(7)
    ggn, phi = backend(net), torch.tanh(net.features(X)).detach()
    weights = torch.cat([p.flatten() for p in net.mean_head.parameters()]).detach()

    def mean(w):
        return phi @ w[:5] + (w[5] if bias else 0)

    expected = torch.autograd.functional.jacobian(mean, weights)
    for found, f in (
        ggn.jacobians(X),
        ggn.functorch_jacobians(X),
        ggn.last_layer_jacobians(X),
        ggn.selected_output_jacobians(X, torch.zeros(7, dtype=torch.long)),
    ):
        assert found.shape == (7, 1, 5 + bias)
        np.testing.assert_allclose(found[:, 0], expected, rtol=1e-12)
        np.testing.assert_allclose(f, net(X).detach(), rtol=1e-12)
        assert not found.requires_grad
        assert not f.requires_grad
    twice = torch.zeros(7, 2, dtype=torch.long)
    found, _ = ggn.selected_output_jacobians(X, twice)
    assert found.shape == (7, 2, 5 + bias)
    with pytest.raises(RuntimeError, match="out of bounds"):
        ggn.selected_output_jacobians(X, twice + 1)


def test_jacobians_let_gradients_back_to_the_inputs():
    net, (X, _) = Net().double(), table(4)
    X.requires_grad_()
    la = fit(net, X.detach(), table(4)[1], enable_backprop=True)
    for found, f in (
        la.backend.jacobians(X, enable_backprop=True),
        la.backend.selected_output_jacobians(
            X, torch.zeros(4, dtype=torch.long), enable_backprop=True
        ),
    ):
        (slope,) = torch.autograd.grad(found.sum() + f.sum(), X)
        assert float(slope.abs().min()) > 0
    la(X)[1].sum().backward()
    assert X.grad.shape == X.shape


@pytest.mark.parametrize("n_columns", [1, 2, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_are_those_that_autograd_finds(n_columns, bias):
    """``factor`` times them: laplace-torch's convention, that of a squared error."""
    net, (X, y) = Net(bias).double(), table(6)
    s = torch.arange(6, dtype=torch.float64)[:, None] / 2
    h2 = net.noise_variance(X).detach() + (n_columns == 3)
    rows = torch.cat([y, s, h2], dim=1)[:, :n_columns]
    weight = s if n_columns > 1 else torch.ones_like(s)
    phi = torch.tanh(net.features(X)).detach()
    weights = torch.cat([p.flatten() for p in net.mean_head.parameters()]).detach()

    def loss_by_row(w):
        mu = phi @ w[:5, None] + (w[5] if bias else 0)
        return (0.5 * weight * ((y - mu) ** 2 / h2 + h2.log()))[:, 0]

    cross = torch.zeros(5 + bias, dtype=torch.float64)
    ggn = backend(net, cross_moment=cross)
    found, loss = ggn.gradients(X, rows)
    expected = torch.autograd.functional.jacobian(loss_by_row, weights)
    np.testing.assert_allclose(ggn.factor * found, expected, rtol=1e-10)
    np.testing.assert_allclose(ggn.factor * loss, loss_by_row(weights).sum())
    np.testing.assert_allclose(ggn.factor * loss, ggn.full(X, rows)[0], rtol=1e-12)
    assert not found.requires_grad
    cross.zero_()
    ggn.gradients(X, rows)
    assert float(cross.abs().max()) == 0  # these are sums of `full` and `diag` alone


def test_gradients_of_bad_rows_are_refused():
    net, (X, y) = Net().double(), table(6)
    with pytest.raises(ValueError, match="targets or row weights that are NaN"):
        backend(net).gradients(X, y * torch.nan)
    none = backend(net, noise_variance=lambda x: torch.zeros_like(x[:, 0]))
    with pytest.raises(ValueError, match="noise_variance between 0.0"):
        none.gradients(X, y)


@pytest.mark.parametrize("method", ["full", "diag"])
@pytest.mark.parametrize("bias", [True, False])
def test_unit_noise_gives_laplace_torchs_own_backend(method, bias):
    net, (X, y) = Net(bias).double(), table()
    own = GGNInterface(
        FeatureExtractor(net, last_layer_name="mean_head"),
        "regression",
        last_layer=True,
    )
    ours = backend(net, noise_variance=lambda x: torch.ones_like(x[:, 0]))
    for found, expected in zip(
        getattr(ours, method)(X, y), getattr(own, method)(X, y), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-10)
    for found, expected in zip(
        ours.last_layer_jacobians(X), own.last_layer_jacobians(X), strict=True
    ):
        assert torch.equal(found, expected)


def homoscedastic(structure, X, y, prior=0.7):
    """Our backend with a constant h², and laplace-torch's own with that sigma_noise."""
    net = Net().double()
    constant = {"noise_variance": lambda x: x.new_full((len(x),), 0.25)}
    ours = fit(
        net, X, y, structure, prior_precision=prior, backend_kwargs=dict(constant)
    )
    own = Laplace(
        net,
        "regression",
        subset_of_weights="last_layer",
        hessian_structure=structure,
        last_layer_name="mean_head",
        sigma_noise=0.5,
        prior_precision=prior,
        backend=GGNInterface,
    )
    own.fit(loader(X, y, 7))
    return ours, own


@pytest.mark.parametrize("structure", ["full", "diag"])
def test_constant_noise_is_laplace_torchs_own_from_end_to_end(structure):
    X, y = table()
    ours, own = homoscedastic(structure, X, y)

    def same(found, expected, rtol=1e-8):
        np.testing.assert_allclose(found.detach(), expected.detach(), rtol=rtol)

    same(ours.posterior_precision, own.posterior_precision)
    same(ours.log_likelihood, own.log_likelihood)
    same(ours.log_marginal_likelihood(), own.log_marginal_likelihood())
    for prior in (torch.tensor(0.01), torch.tensor(30.0), torch.linspace(0.1, 2, 6)):
        prior = prior.double()
        same(ours.log_marginal_likelihood(prior), own.log_marginal_likelihood(prior))
    for kwargs in ({}, {"joint": True}, {"diagonal_output": True}):
        for found, expected in zip(ours(X, **kwargs), own(X, **kwargs), strict=True):
            same(found, expected)
    J, _ = ours.backend.last_layer_jacobians(X)
    same(ours.functional_variance(J), own.functional_variance(J))
    same(ours.functional_covariance(J), own.functional_covariance(J))
    value = ours.mean + 0.1
    same(ours.square_norm(value), own.square_norm(value))
    same(ours.log_prob(value), own.log_prob(value))
    for name in ("log_det_prior_precision", "log_det_posterior_precision"):
        same(getattr(ours, name), getattr(own, name))
    same(ours.log_det_ratio, own.log_det_ratio)
    same(ours.scatter, own.scatter)


@pytest.mark.parametrize("structure", ["full", "diag"])
def test_samples_of_constant_noise_are_laplace_torchs_own(structure):
    """Of ``functional_samples`` "nn" fails in laplace-torch for any last layer."""
    X, y = table(8)
    ours, own = homoscedastic(structure, X, y)
    for name, kind in (
        ("predictive_samples", "glm"),
        ("predictive_samples", "nn"),
        ("functional_samples", "glm"),
    ):
        found, expected = (
            getattr(la, name)(X, kind, 20, generator=torch.Generator().manual_seed(0))
            for la in (ours, own)
        )
        assert found.shape == (20, 8, 1)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


def test_prior_precision_of_constant_noise_is_laplace_torchs_own():
    X, y = table()
    for prior_structure in ("scalar", "diag"):
        ours, own = homoscedastic("full", X, y)
        for la in (ours, own):
            la.optimize_prior_precision(
                "glm", n_steps=20, prior_structure=prior_structure
            )
        np.testing.assert_allclose(ours.prior_precision, own.prior_precision, rtol=1e-6)
        np.testing.assert_allclose(ours(X)[1], own(X)[1], rtol=1e-6)


def test_variance_of_a_row_is_that_of_its_samples_and_rests_on_its_noise():
    """Twice the noise everywhere is half the curvature, in every answer."""
    net, (X, y) = Net().double(), table()
    la = fit(net, X, y)
    double = {"noise_variance": lambda x: 2 * net.noise_variance(x).detach()}
    wide = fit(net, X, y, backend_kwargs=double)
    np.testing.assert_allclose(la.H, 2 * wide.H, rtol=1e-12)
    samples = la.functional_samples(
        X, n_samples=20_000, generator=torch.Generator().manual_seed(1)
    )
    ratio = samples.var(0) / la(X)[1][:, 0]
    assert float((ratio - 1).abs().max()) < 5 * np.sqrt(2 / 20_000)
    assert bool((wide(X)[1] > la(X)[1]).all())


def test_structures_without_noise_of_their_own_are_refused():
    """The GP form would leave h² out; laplace-torch has a list of backends for it."""
    net = Net().double()
    with pytest.raises(AssertionError):
        Laplace(
            net,
            "regression",
            subset_of_weights="last_layer",
            hessian_structure="gp",
            last_layer_name="mean_head",
            backend=HeteroscedasticGGN,
            n_subset=5,
        )
    with pytest.raises(ValueError, match="hessian_structure='kron'"):
        backend(net).kron(*table(4), N=4)
    for subset in ("all", "subnetwork"):
        with pytest.raises((ValueError, TypeError), match="last_layer|subnetwork"):
            Laplace(
                net,
                "regression",
                subset_of_weights=subset,
                hessian_structure="full",
                backend=HeteroscedasticGGN,
            ).fit(loader(*table(4), 2))


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
