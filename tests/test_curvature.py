"""The likelihood adapter, by itself under laplace-torch's own classes."""

import copy

import numpy as np
import pytest
import torch
from laplace import Laplace
from laplace.curvature import GGNInterface
from reference import gram, log_evidence, ridge, sigma
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from mapie_claps import HeteroscedasticGGN, TensorLoader
from mapie_claps.posterior import curvature as curvature


class Net(nn.Module):
    """Two layers; the variance head is executed last, as a trap."""

    def __init__(self, bias=True):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.features = nn.utils.skip_init(nn.Linear, 3, 5)
        self.mean_head = nn.utils.skip_init(nn.Linear, 5, 1, bias=bias)
        self.noise_head = nn.utils.skip_init(nn.Linear, 5, 1)
        for p in self.parameters():
            p.data.normal_(generator=generator)

    def forward(self, x):
        return self.mean_head(torch.tanh(self.features(x)))

    def noise_variance(self, x):
        raw = self.noise_head(torch.tanh(self.features(x)))
        return nn.functional.softplus(raw) + 1e-3


def loader(X, y, batch_size):
    """A DataLoader that leaves torch's global generator alone."""
    return DataLoader(
        TensorDataset(X, y), batch_size=batch_size, generator=torch.Generator()
    )


@pytest.fixture
def problem():
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    y = torch.randn(40, 1, generator=generator, dtype=torch.float64)
    return Net().double(), X, y


def fit(net, X, y, structure="full", batch_size=7, **kwargs):
    la = Laplace(
        net,
        "regression",
        subset_of_weights="last_layer",
        hessian_structure=structure,
        last_layer_name="mean_head",
        backend=HeteroscedasticGGN,
        **kwargs,
    )
    la.fit(loader(X, y, batch_size))
    return la


@torch.no_grad()
def oracle_inputs(net, X, bias=True):
    phi = torch.tanh(net.features(X)).numpy()
    if bias:
        phi = np.column_stack([phi, np.ones(len(phi))])
    return phi, net.noise_variance(X).squeeze(1).numpy()


@pytest.mark.parametrize("bias", [True, False])
def test_precision_is_the_weighted_sum_of_outer_products(problem, bias):
    _, X, y = problem
    net = Net(bias).double()
    phi, h2 = oracle_inputs(net, X, bias)
    la = fit(net, X, y, prior_precision=0.3)
    expected = 0.3 * np.eye(phi.shape[1]) + gram(phi, h2)
    np.testing.assert_allclose(la.posterior_precision, expected, rtol=1e-10)
    np.testing.assert_allclose(
        la.posterior_covariance, sigma(phi, h2, 0.3), rtol=1e-8, atol=1e-14
    )


def test_la_of_x_is_the_epistemic_part_only(problem):
    net, X, y = problem
    phi, h2 = oracle_inputs(net, X)
    mean, variance = fit(net, X, y)(X)
    expected = np.einsum("ni,ij,nj->n", phi, sigma(phi, h2, 1.0), phi)
    np.testing.assert_allclose(variance.flatten(), expected, rtol=1e-8)
    np.testing.assert_allclose(mean, net(X).detach(), rtol=1e-12)


@pytest.mark.parametrize(
    ("backend", "rtol"),
    # laplace-torch's default backend rounds to single precision on the way.
    [(GGNInterface, 1e-8), (None, 1e-5)],
)
def test_constant_noise_equals_laplace_torchs_own_homoscedastic_result(
    problem, backend, rtol
):
    net, X, y = problem
    ours = fit(
        net,
        X,
        y,
        backend_kwargs={"noise_variance": lambda x: x.new_full((len(x),), 0.25)},
    )
    own = Laplace(
        net,
        "regression",
        subset_of_weights="last_layer",
        hessian_structure="full",
        last_layer_name="mean_head",
        sigma_noise=0.5,
        backend=backend,
    )
    own.fit(loader(X, y, 7))
    np.testing.assert_allclose(
        ours.posterior_covariance, own.posterior_covariance, rtol=rtol
    )
    np.testing.assert_allclose(
        ours.log_marginal_likelihood(), own.log_marginal_likelihood().detach(), rtol
    )


def test_diagonal_is_the_diagonal_of_the_full_matrix(problem):
    full, diag = fit(*problem), fit(*problem, structure="diag")
    np.testing.assert_allclose(diag.H, full.H.diagonal(), rtol=1e-12)
    np.testing.assert_allclose(diag.loss, full.loss, rtol=1e-12)


def test_sums_do_not_depend_on_the_batches_and_are_symmetric(problem):
    one, many = fit(*problem, batch_size=40), fit(*problem, batch_size=3)
    np.testing.assert_allclose(one.H, many.H, rtol=1e-12)
    np.testing.assert_array_equal(one.H, one.H.T)
    assert np.linalg.eigvalsh(one.H).min() > -1e-12


def test_row_weights_count_as_repeated_rows(problem):
    net, X, y = problem
    s = torch.arange(40, dtype=torch.float64) % 3
    weighted = fit(net, X, torch.cat([y, s[:, None]], dim=1))
    repeated = fit(
        net, X.repeat_interleave(s.long(), 0), y.repeat_interleave(s.long(), 0)
    )
    np.testing.assert_allclose(weighted.H, repeated.H, rtol=1e-12)
    np.testing.assert_allclose(weighted.loss, repeated.loss, rtol=1e-12)


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


def test_marglik_optimises_the_prior_precision(problem):
    la = fit(*problem)
    before = float(la.log_marginal_likelihood())
    la.optimize_prior_precision(pred_type="glm", method="marglik", n_steps=200)
    assert float(la.log_marginal_likelihood()) > before


def test_cross_moment_gives_the_posterior_mean(problem):
    net, X, y = problem
    phi, h2 = oracle_inputs(net, X)
    cross = torch.zeros(6, dtype=torch.float64)
    la = fit(net, X, y, backend_kwargs={"cross_moment": cross})
    expected = ridge(phi, h2, y[:, 0].numpy(), 1.0)
    np.testing.assert_allclose(la.posterior_covariance @ cross, expected, rtol=1e-8)


def test_features_of_the_same_pass_serve_the_noise_variance(problem):
    net, X, y = problem

    class Shared(Net):
        def noise_variance_from_features(self, phi):
            return nn.functional.softplus(self.noise_head(phi)) + 1e-3

    shared = Shared().double()
    np.testing.assert_allclose(fit(shared, X, y).H, fit(net, X, y).H, rtol=1e-12)


def test_state_dict_goes_to_another_object(problem):
    net, X, y = problem
    la = fit(net, X, y)
    other = fit(net, X[:3], y[:3])
    other.load_state_dict(la.state_dict())
    np.testing.assert_array_equal(other.posterior_precision, la.posterior_precision)


def test_other_users_of_laplace_keep_their_classes(problem):
    net, _, _ = problem
    la = Laplace(net, "regression", "last_layer", "full", last_layer_name="mean_head")
    assert type(la).__module__.startswith("laplace.")


def test_kron_is_refused(problem):
    with pytest.raises(ValueError, match="hessian_structure='kron'.*Use hessian_str"):
        fit(*problem, structure="kron")


def test_two_outputs_are_refused(problem):
    _, X, y = problem
    net = Net().double()
    net.mean_head = nn.utils.skip_init(nn.Linear, 5, 2, dtype=torch.float64)
    nn.init.zeros_(net.mean_head.weight)
    nn.init.zeros_(net.mean_head.bias)
    with pytest.raises(ValueError, match=r"shape \(7, 2\).*mean alone"):
        fit(net, X, y)


def test_noise_variance_must_be_positive(problem):
    with pytest.raises(ValueError, match=r"noise_variance between -1\.0"):
        fit(*problem, backend_kwargs={"noise_variance": lambda x: -torch.ones(len(x))})


def test_a_network_without_noise_variance_is_told_what_to_do(problem):
    _, X, y = problem

    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean_head = Net().double().features
            self.mean_head = nn.utils.skip_init(nn.Linear, 3, 1, dtype=torch.float64)

        def forward(self, x):
            return self.mean_head(x)

    with pytest.raises(ValueError, match=r"Plain without noise_variance. Pass"):
        fit(Plain(), X, y)


def test_only_the_last_layer_of_a_regression(problem):
    with pytest.raises(ValueError, match="likelihood='classification'"):
        HeteroscedasticGGN(problem[0], "classification", last_layer=True)
    with pytest.raises(ValueError, match="last_layer=False"):
        HeteroscedasticGGN(problem[0], "regression")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda y: torch.cat([y] * 4, 1), r"targets of shape \(7, 4\) for 7 rows"),
        (lambda y: torch.cat([y, -torch.ones_like(y)], 1), "weights.* negative"),
        (lambda y: y * torch.nan, "targets or row weights that are NaN"),
        (
            lambda y: torch.cat([y, torch.ones_like(y), y * torch.nan], 1),
            "noise_variance between nan and nan",
        ),
    ],
)
def test_bad_targets(problem, change, message):
    net, X, y = problem
    with pytest.raises(ValueError, match=message):
        fit(net, X, change(y))


def test_noise_variance_of_the_wrong_shape(problem):
    two = {"noise_variance": lambda x: torch.ones(len(x), 2)}
    with pytest.raises(ValueError, match=r"noise_variance of shape \(7, 2\) for 7"):
        fit(*problem, backend_kwargs=two)


@pytest.mark.parametrize("structure", ["full", "diag"])
@pytest.mark.parametrize("bias", [True, False])
def test_blocks_of_a_batch_are_its_sum(problem, structure, bias, monkeypatch):
    _, X, y = problem
    net = Net(bias).double()
    moments = [torch.zeros(5 + bias, dtype=torch.float64) for _ in range(2)]
    whole = fit(net, X, y, structure, 40, backend_kwargs={"cross_moment": moments[0]})
    monkeypatch.setattr(curvature, "BLOCK_ROWS", 7)
    monkeypatch.setattr(curvature, "BLOCK_BYTES", 1)
    cut = fit(net, X, y, structure, 40, backend_kwargs={"cross_moment": moments[1]})
    torch.testing.assert_close(cut.H, whole.H, rtol=1e-12, atol=0)
    torch.testing.assert_close(cut.loss, whole.loss, rtol=1e-12, atol=0)
    torch.testing.assert_close(moments[1], moments[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [7, 131])
def test_symmetric_product_in_strips(size):
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(9, size, generator=generator, dtype=torch.float64)
    total = torch.zeros(size, size, dtype=torch.float64)
    for part in root.split(4):
        curvature._add_product(total, part)
    curvature._mirror(total)
    torch.testing.assert_close(total, root.T @ root, rtol=1e-12, atol=1e-13)
    edge, corner = root.sum(0), torch.tensor(9.0, dtype=torch.float64)
    ones = torch.cat([root, torch.ones_like(root[:, :1])], 1)
    bordered = curvature._bordered(total, edge, corner)
    torch.testing.assert_close(bordered, ones.T @ ones, rtol=1e-12, atol=1e-13)


def test_noise_variance_may_stand_beside_the_targets(problem):
    net, X, y = problem
    h2 = net.noise_variance(X).detach()
    weights = torch.linspace(0, 2, 40, dtype=torch.float64)[:, None]
    asked = fit(net, X, torch.cat([y, weights], 1))
    given = fit(net, X, torch.cat([y, weights, h2], 1))
    torch.testing.assert_close(given.H, asked.H, rtol=1e-12, atol=0)
    torch.testing.assert_close(given.loss, asked.loss, rtol=1e-12, atol=0)
    with pytest.raises(ValueError, match=r"noise_variance between -.* positive finite"):
        fit(net, X, torch.cat([y, weights, -h2], 1))


def test_tensor_loader_gives_the_batches_of_a_data_loader(problem):
    net, X, y = problem
    rows = TensorLoader(X, y, batch_size=7)
    for (a, b), (c, d) in zip(rows, loader(X, y, 7), strict=True):
        assert torch.equal(a, c)
        assert torch.equal(b, d)
    assert (len(rows), len(rows.dataset)) == (6, 40)
    one, other = fit(net, X, y), fit(net, X, y + 1)
    other.fit(rows)
    assert torch.equal(one.H, other.H)
    assert torch.equal(one.loss, other.loss)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"y": torch.zeros(3)}, ValueError, r"y of shape \(3,\), but expected y of"),
        ({"y": torch.zeros(2, 1)}, ValueError, r"X of shape \(3, 2\) and y of shape"),
        ({"X": np.zeros((3, 2))}, TypeError, "X of type ndarray.*torch.as_tensor"),
        ({"batch_size": 0}, ValueError, "batch_size=0"),
    ],
)
def test_tensor_loader_of_bad_input(change, error, message):
    good = {"X": torch.zeros(3, 2), "y": torch.zeros(3, 1)}
    with pytest.raises(error, match=message):
        TensorLoader(**(good | change))


def test_tensor_loader_without_rows():
    rows = TensorLoader(torch.zeros(0, 2), torch.zeros(0, 1))
    assert (list(rows), len(rows)) == ([], 0)


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


def test_features_that_autocast_made_coarser(problem):
    _, X, y = problem
    net = Net()
    expected = fit(net, X.float(), y.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = fit(net, X.float(), y.float())
    assert found.H.dtype == torch.float32
    torch.testing.assert_close(found.H, expected.H, rtol=0.1, atol=1.0)


def test_inputs_in_a_dictionary_are_not_cut(problem, monkeypatch):
    monkeypatch.setattr(curvature, "BLOCK_ROWS", 7)
    monkeypatch.setattr(curvature, "BLOCK_BYTES", 1)
    net, X, y = problem
    expected = fit(net, X, y)

    class Named(Net):
        def forward(self, data):
            return super().forward(data["x"])

        def noise_variance(self, data):
            return super().noise_variance(data["x"])

    named = Named().double()
    named.load_state_dict(net.state_dict())
    la = Laplace(
        named,
        "regression",
        subset_of_weights="last_layer",
        hessian_structure="full",
        last_layer_name="mean_head",
        backend=HeteroscedasticGGN,
        dict_key_y="y",
    )
    la.fit(
        DataLoader(
            [{"x": a, "y": b} for a, b in zip(X, y, strict=True)],
            20,
            generator=torch.Generator(),
        )
    )
    torch.testing.assert_close(la.H, expected.H, rtol=1e-12, atol=0)
