"""Theory as tests: sums, λ, Σ and v of last layers against the paper's formulas."""

import copy
import math
import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from own_networks import Pair, seeded, table
from reference import gram, log_evidence, ridge, sigma, variance
from torch.utils.data import DataLoader, TensorDataset

from mapie_claps import ClapsModule
from mapie_claps.exceptions import NotPositiveDefiniteError, NumericalWarning
from mapie_claps.network.ensemble import (
    VIEWS,
    HeteroscedasticNetwork,
    PiecewiseLinearEncoding,
)
from mapie_claps.network.training import split_rows
from mapie_claps.posterior import last_layer
from mapie_claps.posterior.forward import ForwardPass
from mapie_claps.posterior.last_layer import (
    FeatureRows,
    LastLayerSums,
    Spread,
    fit_last_layers,
    make_last_layers,
    sum_rows,
)

GRID = [10.0**e for e in range(-5, 5)]
N, K = 90, 5


@pytest.fixture(scope="module")
def ensemble():
    """Untrained members of three views, rows, and rows that each holds out."""
    generator = torch.Generator().manual_seed(0)
    edges = [torch.tensor([-1.0, 0.0, 1.0])] * 2
    network = HeteroscedasticNetwork(
        PiecewiseLinearEncoding(edges), (6, 4), K, 1e-3, generator, VIEWS, 3.0
    )
    network = network.double().eval().requires_grad_(False)
    X = torch.randn(N, 2, generator=generator, dtype=torch.float64)
    y = torch.sin(2 * X[:, 0]) + 0.3 * torch.randn(N, generator=generator).double()
    weight = 0.5 + torch.rand(N, generator=generator, dtype=torch.float64)
    return network, X, y, weight, split_rows(N, 12, K, generator)


def fitted(ensemble, *, held_out=True, **changes):
    settings = {
        "prior_precision": 2.0,
        "last_layer": "ridge",
        "with_bias": True,
        "variance_floor": 1e-6,
        "homoscedastic": False,
        "fit_id": "a",
    }
    *rows, own = ensemble
    if not held_out:
        own = split_rows(N, 0, K, torch.Generator().manual_seed(1))
    found = fit_last_layers(*rows, own, **(settings | changes))
    layers, weight, sigma2 = found[0], found.member_weight, found.residual_variance
    return found, ForwardPass(rows[0], layers, weight, sigma2)


def member(network, X, k, constant=True):
    """φ with its constant, h² and μ of one member in NumPy."""
    out = network(X)
    phi = out.phi[k].numpy()
    if constant:
        phi = np.column_stack([phi, np.ones(len(phi))])
    return phi, out.h2[k].numpy(), out.mu[k].numpy()


@pytest.mark.parametrize("last_layer", ["ridge", "trained"])
@pytest.mark.parametrize("held_out", [True, False])
def test_members_against_numpy(ensemble, last_layer, held_out, monkeypatch):
    if held_out:  # features are computed again in every pass
        monkeypatch.setattr("mapie_claps.posterior.last_layer.KEPT_ELEMENTS", 1)
    network, X, y, s, (_, own) = ensemble
    found, forward = fitted(ensemble, last_layer=last_layer, held_out=held_out)
    X_new = X[:20] + 0.5
    means, variances, h2s, nlls, residuals = [], [], [], [], []
    s, y = s.numpy(), y.numpy()
    for k in range(K):
        phi, h2, mu = member(network, X, k)
        new, h2_new, mu_new = member(network, X_new, k)
        Sigma = sigma(phi, h2, 2.0, s)
        np.testing.assert_allclose(
            found.last_layers.covariance()[k], Sigma, rtol=1e-7, atol=1e-12
        )
        w = ridge(phi, h2, y, 2.0, s)
        means.append(new @ w if last_layer == "ridge" else mu_new)
        variances.append(np.einsum("ni,ij,nj->n", new, Sigma, new))
        h2s.append(h2_new)
        # Without the rows that the member holds out.
        held = own[k].numpy()
        kept = np.setdiff1d(np.arange(N), held)
        apart = sigma(phi[kept], h2[kept], 2.0, s[kept])
        v = variance(phi[held], h2[held], apart)
        w = ridge(phi[kept], h2[kept], y[kept], 2.0, s[kept])
        at = phi[held] @ w if last_layer == "ridge" else mu[held]
        nll = 0.5 * (np.log(v) + (y[held] - at) ** 2 / v)
        nlls.append(np.average(nll, weights=s[held]))
        residuals.append((y[held] - at) / np.sqrt(v))
    share = np.full(K, 1 / K)
    if held_out:
        by_view = [np.mean(nlls[v]) for v in network.members_by_view()]
        np.testing.assert_allclose(found.held_out_nll, by_view, rtol=1e-8)
        logits = -10.0 * np.repeat(by_view, [2, 2, 1])
        share = np.exp(logits - logits.max())
        share /= share.sum()
        residuals = np.array(residuals)[share * K > 0.1]  # of members that count
        np.testing.assert_allclose(found.held_out_residual, residuals.ravel(), 1e-7)
    np.testing.assert_allclose(found.member_weight, share, rtol=1e-7)
    mu = share @ means
    expected = [
        mu,
        np.exp(share @ np.log(h2s)),
        share @ variances + share @ (np.array(means) - mu) ** 2,
    ]
    np.testing.assert_allclose(forward(X_new), expected, rtol=1e-7)
    np.testing.assert_allclose(
        torch.stack(forward(X_new[:1]))[:, 0], np.array(expected)[:, 0], rtol=1e-7
    )
    residual = y - forward(X).mu.numpy()
    sigma2 = np.average(residual**2, weights=s)
    assert found.residual_variance == pytest.approx(sigma2, rel=1e-9)
    assert found.sums.n_rows == N


@pytest.mark.parametrize("with_bias", [True, False])
def test_each_member_is_an_object_of_laplace_torch(ensemble, with_bias):
    last = "ridge" if with_bias else "trained"
    found, _ = fitted(ensemble, with_bias=with_bias, last_layer=last)
    layers, network, X = found.last_layers, *ensemble[:2]
    out = network(X + 0.5)
    for k in range(K):
        la = layers.laplace(k)
        assert type(la).__name__ == "FullLLLaplace"
        mean, f_var = la(out.phi[k])
        np.testing.assert_allclose(mean[:, 0], layers.mu(out)[k], rtol=1e-10)
        np.testing.assert_allclose(
            f_var[:, 0, 0], layers.epistemic(out.phi)[k], rtol=1e-10
        )
        size = 5 if with_bias else 4
        np.testing.assert_allclose(
            la.posterior_covariance, layers.covariance()[k, :size, :size], rtol=1e-10
        )
        phi, h2, _ = member(network, X, k, constant=with_bias)
        expected = sigma(phi, h2, 2.0, ensemble[3].numpy())
        np.testing.assert_allclose(la.posterior_covariance, expected, rtol=1e-7)
        if not with_bias:  # φ carries no constant
            assert not layers.covariance()[k, 4].any()


def test_scale_posterior_has_the_same_noise_everywhere(ensemble):
    changes = {"homoscedastic": True, "last_layer": "trained"}
    found, forward = fitted(ensemble, **changes)
    network, X, y, s, _ = ensemble
    weight = found.member_weight.numpy()
    residual = y.numpy() - weight @ network(X).mu.numpy()
    sigma2 = np.average(residual**2, weights=s.numpy())
    parts = forward(X, "posterior")
    np.testing.assert_allclose(parts.aleatoric, sigma2, rtol=1e-9)
    expected = weight @ (network(X).mu - forward(X, "aleatoric").mu).numpy() ** 2
    for k in range(K):
        phi, _, _ = member(network, X, k)
        Sigma = sigma(phi, np.full(N, sigma2), 2.0, s.numpy())
        expected = expected + weight[k] * np.einsum("ni,ij,nj->n", phi, Sigma, phi)
    np.testing.assert_allclose(parts.epistemic, expected, rtol=1e-8)
    np.testing.assert_allclose(forward(X, "constant").aleatoric, sigma2, rtol=1e-9)
    with pytest.raises(ValueError, match="scale='claps'.*W = I/σ².*call fit again"):
        forward(X, "claps")
    with pytest.raises(ValueError, match="scale='posterior'.*W = diag.1/h².*fit again"):
        fitted(ensemble)[1](X, "posterior")
    # With refitted weights σ² is that of the mean in use.
    found, forward = fitted(ensemble, homoscedastic=True)
    residual = y - forward(X, "posterior").mu
    sigma2 = np.average(residual.numpy() ** 2, weights=s.numpy())
    assert found.residual_variance == pytest.approx(sigma2, rel=1e-9)


def test_grid_serves_the_views_that_have_the_weight(ensemble):
    found, _ = fitted(ensemble, prior_precision="grid")

    def loss(value):
        nll = fitted(ensemble, prior_precision=value)[0].held_out_nll
        return -float((-10.0 * nll).logsumexp(0))

    assert found.last_layers.prior_precision == min(GRID, key=loss)
    none, _ = fitted(ensemble, prior_precision="grid", held_out=False)
    assert none.last_layers.prior_precision == 1.0


@pytest.mark.parametrize("last_layer", ["trained", "ridge"])
def test_marglik_maximises_the_evidence_of_all_rows(last_layer):
    X, y = table(100)
    net = seeded(Pair).double()
    model = ClapsModule(net, last_layer=last_layer).fit(X, y)
    with torch.no_grad():
        phi = net.body(torch.from_numpy(X)).numpy()
        h2 = net(torch.from_numpy(X))[1][:, 0].numpy() / y.var()
    phi, target = np.column_stack([phi, np.ones(100)]), (y - y.mean()) / y.std()
    best = max(GRID, key=lambda value: log_evidence(phi, h2, target, value))
    assert model.prior_precision_ == best
    if last_layer == "ridge":  # laplace-torch's evidence is exact there
        found = float(model.laplace_.log_marginal_likelihood())
        expected = log_evidence(phi, h2, target, best) - 100 * math.log(y.std())
        assert found == pytest.approx(expected, rel=1e-9)


def test_sums_of_parts_add_up_and_more_rows_never_raise_the_epistemic_variance():
    X, y = table(120)
    model = ClapsModule(seeded(Pair), prior_precision=1.0).fit(X, y)
    parts = [
        model.partial_sums(X[part], y[part]) for part in (slice(40), slice(40, 120))
    ]
    merged, whole = sum(parts[1:], parts[0]), model.sums_
    for name in ("gram", "cross", "loss"):
        np.testing.assert_allclose(
            getattr(merged, name), getattr(whole, name), rtol=1e-9, atol=1e-9
        )
    assert merged.n_rows == whole.n_rows == 120
    assert merged.targets.mean == pytest.approx(y.mean())
    assert merged.targets.unit == pytest.approx(y.std())
    residual = y - model.predict(X)
    assert merged.residual_variance(0) == pytest.approx(np.mean(residual**2))
    many = whole
    for _ in range(40):  # 2⁴⁰ copies of the training rows
        many = many + many
    before = model.predict_variance(X)
    after = model.with_sums(many).predict_variance(X)
    assert (after.epistemic <= before.epistemic).all()
    assert (after.epistemic < 1e-6 * after.aleatoric).all()
    other = ClapsModule(seeded(Pair)).fit(X, y)
    for sums in (other.sums_, replace(whole, homoscedastic=True)):
        with pytest.raises(ValueError, match="sums that belong to another fit"):
            whole + sums


def test_values_that_overflow_are_refused():
    with pytest.raises(ValueError, match="overflow when squared"):
        Spread.of(torch.full((3,), 1e160, dtype=torch.float64), torch.ones(3))


# Numbers by hand


GRAM = torch.tensor([[[4.0, 1.0], [1.0, 3.0]], [[9.0, 0.0], [0.0, 1.0]]]).double()
CROSS = torch.tensor([[1.0, 2.0], [3.0, -1.0]]).double()
TRAINED = torch.tensor([[0.5, -0.5], [2.0, 1.0]]).double()
PHI = torch.tensor([[[1.0], [-2.0]], [[0.5], [3.0]]]).double()  # (K, n, d)


def sums_of(gram=GRAM):
    n, targets = len(gram), Spread(7.0, 10.0, 28.0)
    loss, squares = torch.tensor([[1.5, 2.5], [2.0, 4.0]]).double()[:, :n]
    return LastLayerSums(gram, CROSS[:n], loss, squares, 7, targets, Spread(), "a")


def test_sums_follow_the_factor_of_the_noise():
    generator = torch.Generator().manual_seed(0)
    phi, draws = torch.rand(2, 2, 9, 5, generator=generator).double()
    h2, residual = draws[..., 0] + 0.1, draws[..., 1] - 0.5
    rows = FeatureRows(phi, h2, residual, residual[0], draws[0, :, 2])
    for homoscedastic in (False, True):
        options = "full", homoscedastic, "a"
        found = sum_rows([rows], *options).with_noise_factor(2.5)
        expected = sum_rows([rows._replace(h2=2.5 * h2)], *options)
        for name in ("gram", "cross", "loss", "squares"):
            torch.testing.assert_close(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize("standardised", [True, False])
def test_posterior_and_evidence_by_hand(standardised):
    """Targets of mean 10 and standard deviation 2: prior N((0, 10), 4/λ)."""
    sums = sums_of()
    found = make_last_layers(sums, TRAINED, "ridge", 2.0, standardised=standardised)
    prior, m0 = (2.0, np.zeros(2)) if standardised else (0.5, np.array([0.0, 10.0]))
    H = np.concatenate([PHI.numpy(), np.ones((2, 2, 1))], axis=2)
    for k in range(2):
        A, w = GRAM[k].numpy(), TRAINED[k].numpy()
        Sigma = np.linalg.inv(A + prior * np.eye(2))
        mean = Sigma @ (CROSS[k].numpy() + A @ w + prior * m0)
        np.testing.assert_allclose(found.covariance()[k], Sigma, rtol=1e-12)
        np.testing.assert_allclose(found.mean[k], mean, rtol=1e-12, atol=1e-14)
        expected = np.einsum("ni,ij,nj->n", H[k], Sigma, H[k])
        np.testing.assert_allclose(found.epistemic(PHI)[k], expected, rtol=1e-12)
        step = mean - w
        loss = float(sums.loss[k]) + step @ (0.5 * A @ step - CROSS[k].numpy())
        evidence = -loss - 0.5 * prior * (mean - m0) @ (mean - m0)
        evidence -= 0.5 * (np.linalg.slogdet(A + prior * np.eye(2))[1])
        evidence += math.log(prior) - 3.5 * math.log(2 * math.pi)
        la = found.laplace(k)
        assert float(la.log_marginal_likelihood()) == pytest.approx(evidence, rel=1e-10)
    kept = make_last_layers(sums, TRAINED, "trained", 2.0, standardised=standardised)
    assert kept.mean is TRAINED
    torch.testing.assert_close(kept.scale, found.scale, rtol=0, atol=0)
    assert found.scale.is_contiguous()


@pytest.mark.parametrize("with_bias", [True, False])
def test_diagonal_posterior_by_hand(with_bias):
    sums = sums_of(GRAM.diagonal(dim1=1, dim2=2))
    found = make_last_layers(sums, TRAINED, "trained", 2.0, with_bias=with_bias)
    Sigma = 1 / (sums.gram + 2)
    Sigma[:, 1] *= with_bias
    np.testing.assert_allclose(found.covariance(), torch.diag_embed(Sigma), rtol=1e-12)
    expected = PHI[..., 0] ** 2 * Sigma[:, :1] + Sigma[:, 1:]
    np.testing.assert_allclose(found.epistemic(PHI), expected, rtol=1e-12)
    la = found.laplace(1)
    assert type(la).__name__ == "DiagLLLaplace"
    np.testing.assert_allclose(la(PHI[1])[1][:, 0, 0], expected[1], rtol=1e-10)


def test_jitter_is_reported_kept_and_hopeless_matrices_raise():
    singular = torch.full((1, 2, 2), 1e8, dtype=torch.float64)
    singular[0, 0, 0] -= 1e-7
    sums = sums_of(singular)
    with pytest.warns(NumericalWarning, match=r"Added 1\.0e-0[67] to the diagonal"):
        found = make_last_layers(sums, TRAINED[:1], "ridge", 1e-300)
    assert found.scale.isfinite().all()
    covariance = found.laplace().posterior_covariance  # has the jitter, too
    np.testing.assert_allclose(covariance, found.covariance()[0], rtol=1e-6)
    # No candidate of a search is altered: those that need it are left out.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        huge = sums_of(singular * 1e8), TRAINED[:1]
        value, _ = last_layer.choose_prior_precision("marglik", *huge, "ridge")
    assert value in GRID[-4:]  # of those that 1e16 does not swallow
    for bad in (-singular, singular * torch.nan):
        with pytest.raises(NotPositiveDefiniteError, match="Raise prior_precision"):
            make_last_layers(sums_of(bad), TRAINED[:1], "trained", 1.0)


def test_sums_against_numpy():
    generator = torch.Generator().manual_seed(0)
    parts = []
    for n in (5, 1, 9):
        numbers = torch.rand(4, 2, n, generator=generator, dtype=torch.float64)
        h2, residual = 0.5 + numbers[3], numbers[0] - 0.5
        phi, weight = numbers[:3].permute(1, 2, 0), h2 * (numbers[3] > 0.2)
        parts.append(FeatureRows(phi, h2, residual, h2[0], weight))
    found = sum_rows(parts, "full", False, "a")
    columns = zip(*parts, strict=True)
    joined = FeatureRows(*(torch.cat(c, -2 if c[0].ndim == 3 else -1) for c in columns))
    assert found.n_rows == 15
    for k in range(2):
        weight = joined.weight[k].numpy()
        phi = np.column_stack([joined.phi[k], np.ones(15)])
        expected = gram(phi, joined.h2[k].numpy(), weight)
        np.testing.assert_allclose(found.gram[k], expected, rtol=1e-10)
        moment = phi.T @ (weight * joined.residual[k].numpy() / joined.h2[k].numpy())
        np.testing.assert_allclose(found.cross[k], moment, rtol=1e-10)
    with pytest.raises(ValueError, match="without rows"):
        sum_rows([], "full", False, "a")


# The forward pass


class Kernel(torch.nn.Module):
    """A kernel member that says what it is told."""

    usual_epistemic = 0.2

    def predict(self, x, g):
        return x[:, 0], 0.5 * g, x[:, 1].square()


def test_a_kernel_member_is_mixed_in(ensemble):
    found, alone = fitted(ensemble)
    X, w = ensemble[1], 0.7
    both = ForwardPass(
        ensemble[0], found.last_layers, found.member_weight, 0.1, Kernel(), w
    )
    mu, h2, epistemic = alone(X)
    got = both(X)
    torch.testing.assert_close(got.mu, mu + w * (X[:, 0] - mu))
    torch.testing.assert_close(got.aleatoric, h2 * 0.5**w)
    own = (1 - w) * epistemic + w * X[:, 1] ** 2 + w * (1 - w) * (X[:, 0] - mu) ** 2
    excess = (X[:, 1] ** 2 - 0.2).clamp(min=0)
    torch.testing.assert_close(got.epistemic, own + 2 * w * excess)
    np.testing.assert_array_equal(both(X, "aleatoric").epistemic, 0)
    np.testing.assert_allclose(both(X, "constant").aleatoric, 0.1)


@pytest.mark.filterwarnings("ignore")  # of torch, about itself
def test_a_forward_pass_can_be_exported_copied_and_pickled(ensemble):
    _, forward = fitted(ensemble)
    X = ensemble[1]
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(forward, (X[:3],), dynamic_shapes=({0: rows},))
    for other in (program.module(), copy.deepcopy(forward),
                  pickle.loads(pickle.dumps(forward))):  # fmt: skip
        for a, b in zip(other(X), forward(X), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_laplace_torch_fits_the_networks_object_again():
    """Its posterior from the rows themselves is the one that was loaded."""
    X, y = table(60)
    model = ClapsModule(seeded(Pair), prior_precision=2.0).fit(X, y)
    la = model.laplace_
    before = la.posterior_covariance.clone()
    rows = TensorDataset(torch.from_numpy(X), torch.from_numpy(y)[:, None])
    la.fit(DataLoader(rows, batch_size=25, generator=torch.Generator()))
    np.testing.assert_allclose(la.posterior_covariance, before, rtol=1e-9)
    assert la.n_data == 60
