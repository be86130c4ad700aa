"""Curvature and posterior number by number, so that no change passes unseen.

What mutation testing (`make mutants`) found untested elsewhere, and direct tests that
make it fast: each runs in milliseconds.
"""

import math
import warnings

import numpy as np
import pytest
import torch
from laplace.utils.feature_extractor import FeatureExtractor
from torch import nn

from mapie_claps import HeteroscedasticGGN
from mapie_claps.exceptions import NotPositiveDefiniteError, NumericalWarning
from mapie_claps.posterior import curvature, gaussian
from mapie_claps.posterior.moments import Moments

# Curvature


class Features(nn.Module):
    """φ = x; noise 0.5 + x₀², also from features."""

    def __init__(self, size=2, bias=True):
        super().__init__()
        self.mean_head = nn.utils.skip_init(nn.Linear, size, 1, bias=bias)
        for p in self.parameters():
            p.data.fill_(0.5)
        self.double()

    def forward(self, x):
        return self.mean_head(x)


class Noisy(Features):
    def noise_variance(self, x):
        return 0.5 + x[:, :1] ** 2


class Sharing(Features):
    def noise_variance_from_features(self, phi):
        return 0.5 + phi[:, :1] ** 2

    def noise_variance(self, x):
        raise AssertionError


def backend(net, **kwargs):
    extractor = FeatureExtractor(net, last_layer_name="mean_head")
    return HeteroscedasticGGN(extractor, "regression", last_layer=True, **kwargs)


X2 = torch.tensor([[1.0, 2.0], [0.5, -1.0], [-2.0, 0.25]], dtype=torch.float64)
Y2 = torch.tensor([[1.0], [-0.5], [2.0]], dtype=torch.float64)


def sums_by_hand(X, y, w=1.0, bias=True):
    """Loss, HᵀWH and HᵀWy in NumPy."""
    X, y = X.numpy(), y.numpy()[:, 0]
    h2 = 0.5 + X[:, 0] ** 2
    H = np.column_stack([X, np.ones(len(X))]) if bias else X
    residual = y - H @ np.full(H.shape[1], 0.5)
    s = np.broadcast_to(w, len(X))
    loss = 0.5 * (s * (residual**2 / h2 + np.log(h2))).sum()
    return loss, (H.T * (s / h2)) @ H, (H.T * (s / h2)) @ y


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("net", [Noisy, Sharing])
def test_sums_by_hand(net, bias):
    loss, H, cross = sums_by_hand(X2, Y2, bias=bias)
    found = torch.ones(len(cross), dtype=torch.float64)
    got_loss, got = backend(net(bias=bias), cross_moment=found).full(X2, Y2)
    np.testing.assert_allclose(got, H, rtol=1e-12)
    np.testing.assert_allclose(got_loss, loss, rtol=1e-12)
    np.testing.assert_allclose(found, 1 + cross, rtol=1e-12)
    got_loss, got = backend(net(bias=bias)).diag(X2, Y2)
    np.testing.assert_allclose(got, np.diag(H), rtol=1e-12)
    np.testing.assert_allclose(got_loss, loss, rtol=1e-12)


def test_row_weights_and_given_noise():
    s = torch.tensor([[2.0], [0.0], [0.5]], dtype=torch.float64)
    loss, H, cross = sums_by_hand(X2, Y2, s[:, 0].numpy())
    with_noise = torch.cat([Y2, s, 0.5 + X2[:, :1] ** 2], dim=1)
    for net, y in ((Noisy(), with_noise[:, :2]), (Features(), with_noise)):
        found = torch.zeros(3, dtype=torch.float64)
        got_loss, got = backend(net, cross_moment=found).full(X2, y)
        np.testing.assert_allclose(got, H, rtol=1e-12)
        np.testing.assert_allclose(got_loss, loss, rtol=1e-12)
        np.testing.assert_allclose(found, cross, rtol=1e-12)
    given = backend(Features(), noise_variance=lambda x: 0.5 + x[:, 0] ** 2)
    np.testing.assert_allclose(given.full(X2, with_noise[:, :2])[1], H, rtol=1e-12)


def test_many_rows_and_wide_features_in_blocks_and_strips(monkeypatch):
    monkeypatch.setattr(curvature, "BLOCK_ROWS", 2)
    monkeypatch.setattr(curvature, "BLOCK_BYTES", 0)
    monkeypatch.setattr(curvature, "STRIPS_PAY_FROM", 5)
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    y = torch.randn(7, 1, generator=generator, dtype=torch.float64)
    loss, H, cross = sums_by_hand(X, y)
    asked = []

    def noise(x):
        asked.append(len(x))
        return 0.5 + x[:, 0] ** 2

    found = torch.zeros(6, dtype=torch.float64)
    ggn = backend(Features(5), noise_variance=noise, cross_moment=found)
    got_loss, got = ggn.full(X, y)
    assert asked == [2, 2, 2, 1]
    np.testing.assert_allclose(got, H, rtol=1e-10)
    np.testing.assert_allclose(got_loss, loss, rtol=1e-10)
    np.testing.assert_allclose(found, cross, rtol=1e-10)
    np.testing.assert_allclose(ggn.diag(X, y)[1], np.diag(H), rtol=1e-10)


def test_size_of_blocks_and_strips(monkeypatch):
    def blocks(n, row_bytes):
        X, y = torch.zeros(n, 1), torch.zeros(n, 1)
        return [len(part) for part, _ in curvature._parts(X, y, row_bytes)]

    assert blocks(1024, 2**20) == [1024]
    assert blocks(1025, 2**20) == [1024, 1]
    assert blocks(4096, 256) == [4096]
    assert blocks(4097, 256) == [4096, 1]
    whole = {"a": torch.zeros(3000, 1)}, torch.zeros(3000, 1)
    assert list(curvature._parts(*whole, 2**20)) == [whole]
    assert list(curvature._strips(127)) == [(0, 127)]
    assert list(curvature._strips(128)) == [(0, 32), (32, 64), (64, 96), (96, 128)]
    assert list(curvature._strips(130)) == [(0, 32), (32, 65), (65, 97), (97, 130)]


def test_features_coarser_than_weights():
    coarse = backend(Noisy(), noise_variance=lambda x: (0.5 + x[:, 0] ** 2).float())
    found, H = coarse.full(X2, Y2)
    assert found.dtype == H.dtype == torch.float64
    np.testing.assert_allclose(H, sums_by_hand(X2, Y2)[1], rtol=1e-6)


class Pair(Noisy):
    def forward(self, x):
        return self.mean_head(x).expand(-1, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: backend(Pair()).full(X2, Y2), r"output has shape \(3, 2\) for 3 rows"),
        (lambda: backend(Noisy()).full(X2, Y2[:2]), r"shape \(2, 1\) for 3 rows"),
        (lambda: backend(Noisy()).full(X2, X2.repeat(1, 2)), r"shape \(3, 4\) for 3"),
        (lambda: backend(Noisy()).full(X2, Y2[:, :0]), r"shape \(3, 0\) for 3 rows"),
        (
            lambda: backend(Noisy(), noise_variance=lambda x: x).full(X2, Y2),
            r"noise_variance of shape \(3, 2\) for 3 rows",
        ),
        (
            lambda: backend(Features()).full(X2, Y2),
            "class Features without noise_variance",
        ),
        (lambda: backend(Noisy()).kron(X2, Y2, 3), "hessian_structure='kron'"),
        (
            lambda: HeteroscedasticGGN(Noisy(), "classification", last_layer=True),
            "likelihood='classification', last_layer=True",
        ),
        (
            lambda: HeteroscedasticGGN(Noisy(), "regression"),
            "likelihood='regression', last_layer=False",
        ),
    ],
)
def test_calls_that_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("h2", [0.0, -1.0, math.inf, math.nan])
def test_noise_that_is_none(h2):
    noise = torch.tensor([1.0, h2, 2.0], dtype=torch.float64)
    with pytest.raises(ValueError, match="Got noise_variance between"):
        backend(Features(), noise_variance=lambda x: noise).full(X2, Y2)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *((0, math.nan), (0, math.inf), (0, -math.inf)),
        *((1, -1e-9), (1, math.nan), (1, math.inf)),
    ],
)
def test_targets_and_weights_that_are_none(column, value):
    y = torch.cat([Y2, torch.ones_like(Y2)], dim=1)
    backend(Noisy()).full(X2, y)
    y[1, column] = value
    with pytest.raises(ValueError, match="Got targets or row weights that are NaN"):
        backend(Noisy()).full(X2, y)


def test_a_batch_of_no_rows_adds_nothing():
    loss, H = backend(Noisy()).full(X2[:0], Y2[:0])
    assert float(loss) == 0
    assert not H.any()
    curvature._check_targets(Y2[:0])
    curvature._check_noise_variance(Y2[:0])


# Posterior


GRAM = torch.tensor([[[4.0, 1.0], [1.0, 3.0]], [[9.0, 0.0], [0.0, 1.0]]]).double()
CROSS = torch.tensor([[1.0, 2.0], [3.0, -1.0]]).double()
TRAINED = torch.tensor([[0.5, -0.5], [2.0, 1.0]]).double()
PHI = torch.tensor([[[1.0], [-2.0]], [[0.5], [3.0]]]).double()  # (K, n, d)


def moments(gram=GRAM):
    return Moments(gram, CROSS, torch.tensor([1.5, 2.5]).double(), 7)


def test_posterior_by_hand():
    found = gaussian.make_posterior(moments(), TRAINED, "ridge", 2.0)
    H = np.concatenate([PHI.numpy(), np.ones((2, 2, 1))], axis=2)
    for k in range(2):
        sigma = np.linalg.inv(GRAM[k].numpy() + 2 * np.eye(2))
        mean = sigma @ (CROSS[k].numpy() + GRAM[k].numpy() @ TRAINED[k].numpy())
        np.testing.assert_allclose(found.covariance()[k], sigma, rtol=1e-12)
        np.testing.assert_allclose(found.mean[k], mean, rtol=1e-12)
        np.testing.assert_allclose(found.mu(PHI)[k], H[k] @ mean, rtol=1e-12)
        expected = np.einsum("ni,ij,nj->n", H[k], sigma, H[k])
        np.testing.assert_allclose(found.epistemic(PHI)[k], expected, rtol=1e-12)
    assert found.structure == "full"
    assert found.scale.is_contiguous()
    assert (found.prior_precision, found.last_layer) == (2.0, "ridge")
    assert found.trained is TRAINED
    kept = gaussian.make_posterior(moments(), TRAINED, "trained", 2.0)
    assert kept.mean is TRAINED
    torch.testing.assert_close(kept.scale, found.scale, rtol=0, atol=0)


def test_posterior_without_the_bias_by_hand():
    found = gaussian.make_posterior(moments(), TRAINED, "trained", 2.0, with_bias=False)
    expected = 1 / (GRAM[:, 0, 0] + 2)
    np.testing.assert_allclose(found.covariance()[:, 0, 0], expected, rtol=1e-12)
    assert found.covariance()[:, 1].abs().max() == 0
    assert found.covariance()[:, :, 1].abs().max() == 0
    variance = PHI[..., 0] ** 2 * expected[:, None]
    np.testing.assert_allclose(found.epistemic(PHI), variance, rtol=1e-12)
    diagonal = moments(GRAM.diagonal(dim1=1, dim2=2))
    found = gaussian.make_posterior(diagonal, TRAINED, "trained", 2.0, with_bias=False)
    assert found.scale.shape == (2, 2)
    np.testing.assert_allclose(found.epistemic(PHI), variance, rtol=1e-12)


def test_diagonal_posterior_by_hand():
    diagonal = moments(GRAM.diagonal(dim1=1, dim2=2))
    found = gaussian.make_posterior(diagonal, TRAINED, "trained", 2.0)
    variance = 1 / (diagonal.gram + 2)
    assert found.structure == "diag"
    np.testing.assert_allclose(
        found.covariance(), torch.diag_embed(variance), rtol=1e-12
    )
    expected = PHI[..., 0] ** 2 * variance[:, :1] + variance[:, 1:]
    np.testing.assert_allclose(found.epistemic(PHI), expected, rtol=1e-12)
    mu = PHI[..., 0] * TRAINED[:, :1] + TRAINED[:, 1:]
    np.testing.assert_allclose(found.mu(PHI), mu, rtol=1e-12)


@pytest.mark.parametrize("structure", ["full", "diag"])
def test_evidence_by_hand(structure):
    full = structure == "full"
    sums = moments(GRAM if full else GRAM.diagonal(dim1=1, dim2=2))
    last_layer = "ridge" if full else "trained"
    found = gaussian.make_posterior(sums, TRAINED, last_layer, 2.0)
    expected = 0.0
    for k in range(2):
        A = GRAM[k].numpy() if full else np.diag(GRAM[k].diagonal().numpy())
        w = found.mean[k].numpy()
        step = w - TRAINED[k].numpy()
        loss = float(sums.loss[k]) + step @ (0.5 * A @ step - CROSS[k].numpy())
        expected -= loss + 0.5 * (2.0 * w @ w)
        expected -= 0.5 * (np.linalg.slogdet(A + 2 * np.eye(2))[1] - 2 * np.log(2.0))
    # laplace-torch adds the constant of a Gaussian of noise 1.
    expected -= 2 * 0.5 * 7 * math.log(2 * math.pi)
    got = gaussian.log_marginal_likelihood(found, sums)
    assert got == pytest.approx(expected, rel=1e-10)


def test_jitter_where_rounding_wins():
    singular = torch.ones(1, 2, 2, dtype=torch.float64) * 1e8
    singular[0, 0, 0] -= 1e-7
    with pytest.warns(NumericalWarning, match=r"Added 1\.0e-0[67] to the diagonal"):
        scale = gaussian.posterior_scale(singular, 1e-300)
    assert torch.isfinite(scale).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sound = gaussian.posterior_scale(GRAM, 1e-300)
    np.testing.assert_allclose(
        torch.linalg.inv(sound @ sound.mT), GRAM, rtol=1e-10, atol=1e-12
    )
    # One member fails: the others come out as by themselves.
    both = torch.cat([GRAM[:1], singular])
    with pytest.warns(NumericalWarning, match="Added"):
        mixed = gaussian.posterior_scale(both, 1e-300)
    np.testing.assert_allclose(mixed[0], sound[0], rtol=1e-12, atol=1e-14)
    with pytest.raises(NotPositiveDefiniteError, match="largest entry 1.0"):
        gaussian.posterior_scale(torch.tensor([[[1.0, 0], [0, -1.0]]]).double(), 1e-9)


def test_layer_and_options_reach_laplace_torch():
    ggn = backend(Noisy(2), stochastic=True)
    assert ggn.last_layer is True
    assert ggn.stochastic is True


def test_rows_of_two_blocks_are_put_together(monkeypatch):
    monkeypatch.setattr(curvature, "BLOCK_BYTES", 0)
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(3, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(3, 1, generator=generator, dtype=torch.float64)
    blocked = backend(Noisy(2)).full(X, y)
    monkeypatch.undo()
    for found, expected in zip(blocked, backend(Noisy(2)).full(X, y), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def _three_features():
    generator = torch.Generator().manual_seed(1)
    root = torch.randn(2, 4, 6, generator=generator, dtype=torch.float64)
    gram = root @ root.mT
    cross = torch.randn(2, 4, generator=generator, dtype=torch.float64)
    trained = torch.randn(2, 4, generator=generator, dtype=torch.float64)
    phi = torch.randn(2, 5, 3, generator=generator, dtype=torch.float64)
    return gram, cross, trained, phi


@pytest.mark.parametrize("structure", ["full", "diag"])
@pytest.mark.parametrize("with_bias", [True, False])
def test_posterior_of_three_features_by_hand(structure, with_bias):
    gram, cross, trained, phi = _three_features()
    given = gram if structure == "full" else gram.diagonal(dim1=1, dim2=2)
    sums = Moments(given, cross, torch.zeros(2).double(), 9)
    found = gaussian.make_posterior(sums, trained, "trained", 0.7, with_bias)
    H = np.concatenate([phi.numpy(), np.ones((2, 5, 1))], axis=2)
    for k in range(2):
        A = gram[k].numpy()
        A = (A if structure == "full" else np.diag(A.diagonal())) + 0.7 * np.eye(4)
        if with_bias:
            sigma = np.linalg.inv(A)
        else:
            sigma = np.zeros((4, 4))
            sigma[:3, :3] = np.linalg.inv(A[:3, :3])
        np.testing.assert_allclose(found.covariance()[k], sigma, atol=1e-12)
        products = H[k] @ sigma @ H[k].T
        white = found.whitened(phi)[k]
        assert white.shape == (5, 4)
        np.testing.assert_allclose(white @ white.T, products, atol=1e-12)
        np.testing.assert_allclose(
            found.epistemic(phi)[k], products.diagonal(), rtol=1e-10
        )
        np.testing.assert_allclose(found.mu(phi)[k], H[k] @ trained[k].numpy())
    assert found.scale.dtype == torch.float64


def test_precision_keeps_its_type_and_its_digits():
    fine = torch.eye(2, dtype=torch.float64)[None]
    scale = gaussian.posterior_scale(fine, 1 / 3)
    expected = 1 / math.sqrt(1 + 1 / 3)
    assert float(scale[0, 0, 0]) == pytest.approx(expected, rel=1e-15)
    coarse = gaussian.posterior_scale(torch.eye(2)[None], 1 / 3)
    assert coarse.dtype == torch.float32


@pytest.mark.filterwarnings("ignore:Added")
def test_factors_are_sound_or_refused(monkeypatch):
    """An infinite factor is no factor: jitter is tried, from 1e-15 to 1e-9."""
    tried = []

    def infinite(precision):
        tried.append(float(precision.flatten()[0] - 1))
        return torch.full_like(precision, torch.inf)

    monkeypatch.setattr(gaussian, "invsqrt_precision", infinite)
    with pytest.raises(gaussian.NotPositiveDefiniteError):
        gaussian.posterior_scale(torch.zeros(1, 2, 2, dtype=torch.float64), 1.0)
    # As a batch, by itself, then with jitter.
    assert tried[:2] == [0, 0]
    np.testing.assert_allclose(tried[2:], 10.0 ** np.arange(-15, -8), rtol=0.2)
