"""The likelihood adapter, by itself under laplace-torch's own classes."""

import copy
import math

import numpy as np
import pytest
import torch
from laplace import Laplace
from laplace.curvature import GGNInterface
from laplace.utils import FeatureExtractor
from reference import gram, log_evidence, ridge, sigma
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from mapie_claps import HeteroscedasticGGN


class Net(nn.Module):
    """Two layers; the variance head is executed last, as a trap."""

    def __init__(self, bias=True, size=5):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.features = nn.utils.skip_init(nn.Linear, 3, size)
        self.mean_head = nn.utils.skip_init(nn.Linear, size, 1, bias=bias)
        self.noise_head = nn.utils.skip_init(nn.Linear, size, 1)
        for p in self.parameters():
            p.data.normal_(generator=generator)

    def forward(self, x):
        return self.mean_head(torch.tanh(self.features(x)))

    def noise_variance(self, x):
        raw = self.noise_head(torch.tanh(self.features(x)))
        return nn.functional.softplus(raw) + 1e-3


def rows(n=40, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(n, 3, generator=generator, dtype=dtype)
    return X, torch.randn(n, 1, generator=generator, dtype=dtype)


@pytest.fixture
def problem():
    return Net().double(), *rows()


def loader(X, y, batch_size):
    """A DataLoader that leaves torch's global generator alone."""
    return DataLoader(
        TensorDataset(X, y), batch_size=batch_size, generator=torch.Generator()
    )


def new_laplace(net, structure="full", backend=HeteroscedasticGGN, **kwargs):
    return Laplace(
        net,
        "regression",
        subset_of_weights="last_layer",
        hessian_structure=structure,
        last_layer_name="mean_head",
        backend=backend,
        **kwargs,
    )


def fit(net, X, y, structure="full", batch_size=7, **kwargs):
    la = new_laplace(net, structure, **kwargs)
    la.fit(loader(X, y, batch_size))
    return la


def backend(net, **kwargs):
    extractor = FeatureExtractor(net, last_layer_name="mean_head")
    return HeteroscedasticGGN(extractor, "regression", last_layer=True, **kwargs)


@torch.no_grad()
def oracle_inputs(net, X):
    phi = torch.tanh(net.features(X)).numpy()
    if net.mean_head.bias is not None:
        phi = np.column_stack([phi, np.ones(len(phi))])
    return phi, net.noise_variance(X).squeeze(1).numpy()


@pytest.mark.parametrize("bias", [True, False])
def test_precision_is_the_weighted_sum_of_outer_products(bias):
    (X, y), net = rows(), Net(bias).double()
    phi, h2 = oracle_inputs(net, X)
    la = fit(net, X, y, prior_precision=0.3)
    expected = 0.3 * np.eye(phi.shape[1]) + gram(phi, h2)
    np.testing.assert_allclose(la.posterior_precision, expected, rtol=1e-10)
    np.testing.assert_allclose(
        la.posterior_covariance, sigma(phi, h2, 0.3), rtol=1e-8, atol=1e-14
    )
    mean, variance = la(X)  # of the mean: h² is not in it
    expected = np.einsum("ni,ij,nj->n", phi, sigma(phi, h2, 0.3), phi)
    np.testing.assert_allclose(variance.flatten(), expected, rtol=1e-8)
    np.testing.assert_allclose(mean, net(X).detach(), rtol=1e-12)


def test_hessian_is_the_one_that_autograd_finds(problem):
    net, X, y = problem
    phi, h2 = (torch.from_numpy(a) for a in oracle_inputs(net, X))

    def loss_of(w):
        return 0.5 * ((y[:, 0] - phi @ w) ** 2 / h2 + h2.log()).sum()

    w = torch.cat([net.mean_head.weight.flatten(), net.mean_head.bias]).detach()
    loss, H = backend(net).full(X, y)
    expected = torch.autograd.functional.hessian(loss_of, w)
    np.testing.assert_allclose(H, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(loss, loss_of(w), rtol=1e-12)
    assert not loss.requires_grad
    assert not H.requires_grad
    assert all(p.grad is None and p.requires_grad for p in net.parameters())


@pytest.mark.parametrize("structure", ["full", "diag"])
def test_constant_noise_is_laplace_torchs_own_from_end_to_end(problem, structure):
    net, X, y = problem
    constant = {"noise_variance": lambda x: x.new_full((len(x),), 0.25)}
    ours = fit(net, X, y, structure, prior_precision=0.7, backend_kwargs=constant)
    own = new_laplace(net, structure, GGNInterface, sigma_noise=0.5)
    own.prior_precision = 0.7
    own.fit(loader(X, y, 7))
    J, _ = ours.backend.last_layer_jacobians(X)
    prior = torch.linspace(0.1, 2, 6).double()
    for ask in (
        lambda la: la.posterior_precision,
        lambda la: la.log_likelihood,
        lambda la: la.log_marginal_likelihood(),
        lambda la: la(X)[1],
        lambda la: la(X, joint=True)[1],
        lambda la: la.functional_covariance(J),
        lambda la: la.log_prob(la.mean + 0.1),
        lambda la: la.log_det_ratio,
        lambda la: la.predictive_samples(
            X, "glm", 20, generator=torch.Generator().manual_seed(0)
        ),
        lambda la: la.log_marginal_likelihood(prior),
        lambda la: la.optimize_prior_precision("glm", n_steps=20) or la.prior_precision,
    ):
        found, expected = ask(ours).detach(), ask(own).detach()
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


def test_marginal_likelihood_is_the_closed_form_at_the_posterior_mean(problem):
    net, X, y = problem
    phi, h2 = oracle_inputs(net, X)
    for prior_precision in (0.1, 1.0, 50.0):
        w = torch.from_numpy(ridge(phi, h2, y[:, 0].numpy(), prior_precision))
        at_mean = copy.deepcopy(net)
        at_mean.mean_head.weight.data.copy_(w[None, :-1])
        at_mean.mean_head.bias.data.copy_(w[-1:])
        la = fit(at_mean, X, y, prior_precision=prior_precision)
        expected = log_evidence(phi, h2, y[:, 0].numpy(), prior_precision)
        assert float(la.log_marginal_likelihood()) == pytest.approx(expected, rel=1e-10)


def test_sums_do_not_depend_on_the_batches_and_are_symmetric(problem):
    one, many = fit(*problem, batch_size=40), fit(*problem, batch_size=3)
    np.testing.assert_allclose(one.H, many.H, rtol=1e-12)
    np.testing.assert_allclose(one.H, one.H.T, rtol=1e-14)
    assert np.linalg.eigvalsh(one.H).min() > -1e-12
    diag = fit(*problem, structure="diag")
    np.testing.assert_allclose(diag.H, one.H.diagonal(), rtol=1e-12)
    np.testing.assert_allclose(diag.loss, one.loss, rtol=1e-12)


def test_noise_variance_may_stand_beside_the_targets_or_share_features(problem):
    net, X, y = problem
    h2 = net.noise_variance(X).detach()
    weights = torch.linspace(0, 2, 40, dtype=torch.float64)[:, None]
    asked = fit(net, X, torch.cat([y, weights], 1))
    given = fit(net, X, torch.cat([y, weights, h2], 1))
    torch.testing.assert_close(given.H, asked.H, rtol=1e-12, atol=0)
    torch.testing.assert_close(given.loss, asked.loss, rtol=1e-12, atol=0)
    phi, _ = oracle_inputs(net, X)  # a row of weight 2 counts as two
    expected = gram(phi, h2[:, 0].numpy(), weights[:, 0].numpy())
    np.testing.assert_allclose(given.H, expected, rtol=1e-10)

    class Shared(Net):
        def noise_variance_from_features(self, phi):
            return nn.functional.softplus(self.noise_head(phi)) + 1e-3

        def noise_variance(self, x):
            raise AssertionError

    shared = Shared().double()
    np.testing.assert_allclose(fit(shared, X, y).H, fit(net, X, y).H, rtol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
def test_jacobians_are_those_of_the_last_layer(bias):
    """laplace-torch's own, of whole networks, are zero for a last layer."""
    net, (X, _) = Net(bias).double(), rows(7)
    found, f = backend(net).jacobians(X)
    assert not found.requires_grad
    np.testing.assert_allclose(found[:, 0], oracle_inputs(net, X)[0], rtol=1e-12)
    np.testing.assert_allclose(f, net(X).detach(), rtol=1e-12)
    X.requires_grad_()
    fit(net, *rows(4), enable_backprop=True)(X)[1].sum().backward()
    assert float(X.grad.abs().min()) > 0


def test_types_may_differ(problem):
    _, X, y = problem
    net, X = Net(), X.float()
    expected = fit(net, X, y.float())
    found = fit(net, X, y)  # as NumPy's targets come
    torch.testing.assert_close(found.H, expected.H)
    h2 = {"noise_variance": lambda x: net.noise_variance(x).detach().double()}
    found = fit(net, X, y, backend_kwargs=h2)
    torch.testing.assert_close(found.H, expected.H)
    assert found.H.dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = fit(net, X, y.float())
    assert found.H.dtype == torch.float32
    torch.testing.assert_close(found.H, expected.H, rtol=0.1, atol=1.0)


class Plain(nn.Module):
    def __init__(self, n_outputs=1):
        super().__init__()
        self.mean_head = nn.utils.skip_init(
            nn.Linear, 3, n_outputs, dtype=torch.float64
        )
        nn.init.ones_(self.mean_head.weight)
        nn.init.zeros_(self.mean_head.bias)

    def forward(self, x):
        return self.mean_head(x)


def noise_of(value):
    return {"noise_variance": lambda x: value.expand(len(x), -1)}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda X, y: backend(Plain(2)).full(X, y), r"shape \(7, 2\).*mean alone"),
        (lambda X, y: backend(Net().double()).full(X, y[:2]), r"\(2, 1\) for 7 rows"),
        (lambda X, y: backend(Net().double()).full(X, y[:, :0]), r"\(7, 0\) for 7"),
        (lambda X, y: backend(Plain()).full(X, y), "class Plain without noise_var"),
        (
            lambda X, y: backend(Plain(), **noise_of(torch.ones(2))).full(X, y),
            r"noise_variance of shape \(7, 2\) for 7 rows",
        ),
        (
            lambda X, y: fit(Plain(), X, y, "kron"),
            "neither Kronecker factors.*Use hessian_s",
        ),
        (lambda X, y: backend(Plain()).gradients(X, y), "nor gradients of rows"),
        (
            lambda X, y: backend(Plain()).selected_output_jacobians(X, y),
            "nor gradients",
        ),
        (
            lambda X, y: HeteroscedasticGGN(Plain(), "classification", last_layer=True),
            "likelihood='classification', last_layer=True",
        ),
        (
            lambda X, y: HeteroscedasticGGN(Plain(), "regression"),
            "likelihood='regression', last_layer=False",
        ),
    ],
)
def test_calls_that_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(*rows(7))


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        *((0, bad, f"Got {bad} in y, row 3") for bad in (math.nan, math.inf)),
        (1, -1e-9, "sample_weight=-1e-09 in row"),
        *((1, bad, f"Got {bad} in sample_weight") for bad in (math.nan, math.inf)),
        *((2, bad, f"noise_variance={bad!r} in row") for bad in (0.0, -1.0)),
        *((2, bad, f"Got {bad} in noise_var.*, row 3") for bad in (math.inf, math.nan)),
    ],
)
def test_numbers_that_are_none(column, value, message):
    X, y = rows(7)
    y = torch.cat([y, torch.ones(7, 2, dtype=torch.float64)], dim=1)
    ggn = backend(Net().double())
    ggn.full(X, y)
    y[3, column] = value
    for method in (ggn.full, ggn.diag):
        with pytest.raises(ValueError, match=message):
            method(X, y)
