"""X → μ, v without training a network: a Gaussian process on the nearest rows.

The covariance is a Matérn-3/2 kernel with one length scale per column plus a linear
kernel. With φ its feature map, Σ the posterior of its weights and W⁻¹ the noise of the
rows, φᵀΣφ = k − kᵀ(K + W⁻¹)⁻¹k: the last-layer posterior in its dual form, with
features that are not trained. Unlike that of trained features, this variance grows
with the distance to the training rows. Everything lives in standardised units.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

MIN_ROWS = 150  # with fewer, length scales are guesses
MAX_ROWS = 20_000  # kept of more, at random: memory, time and size of the file
N_NEIGHBOURS = 32
STEPS, STEP_ROWS, LEARNING_RATE, BETAS = 250, 192, 0.12, (0.9, 0.95)
# Factors c of the noise c·g(x); the best on held-out rows is taken.
FACTORS = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
JUDGED_ROWS = 360  # held-out rows, of all members together, that judge the factors
MIN_NOISE = 1e-9
TIE = 1e-6  # of a squared distance: of rows equally near, the first are taken
BLOCK_ELEMENTS = 2**21  # of the largest array made when predicting


class KernelParts(NamedTuple):
    """Mean, both parts of v, and the variance before any row was seen."""

    mu: Tensor  # (n,)
    aleatoric: Tensor  # (n,)
    epistemic: Tensor  # (n,), φᵀΣφ
    prior: Tensor  # (n,), φᵀφ


@dataclass(frozen=True)
class Covariance:
    """s²·Matérn-3/2(‖u∘(x − x')‖) + b²·(xᵀx' + 1)."""

    inverse_scale: Tensor  # (p,), u, one over the length scale of each column
    matern: float  # s²
    linear: float  # b²

    def __call__(self, A: Tensor, B: Tensor) -> Tensor:  # (…, n, p), (…, m, p)
        """Covariance of each row of A with each of B, (…, n, m)."""
        u = self.inverse_scale
        matern = _matern(squared_distances(A * u, B * u))
        return matern.mul_(self.matern).add_((A @ B.mT).add_(1), alpha=self.linear)

    def diagonal(self, A: Tensor) -> Tensor:  # (…, n, p) → (…, n)
        """Covariance of each row with itself: its variance before any data."""
        return self.matern + self.linear * (A.square().sum(-1) + 1)


def squared_distances(A: Tensor, B: Tensor) -> Tensor:  # (…, n, p), (…, m, p)
    """‖a − b‖² for all pairs of rows, (…, n, m)."""
    products = (A @ B.mT).mul_(-2)
    products += A.square().sum(-1)[..., None]
    products += B.square().sum(-1)[..., None, :]
    return products.clamp_(min=0)


def _matern(d: Tensor) -> Tensor:
    """(1 + r)e⁻ʳ with r = √(3d), in place."""
    r = d.mul_(3).sqrt_()
    return torch.exp(-r).mul_(r.add_(1))


@dataclass(frozen=True)
class KernelMember:
    """A fitted Gaussian process that predicts from the training rows it keeps."""

    covariance: Covariance
    X: Tensor  # (m, p), rows that differ
    y: Tensor  # (m,), means over rows that repeat
    noise: Tensor  # (m,), W⁻¹
    noise_factor: float  # c: aleatoric variance is c·g(x)
    held_out_nll: float  # per row, to be weighed against other members

    @torch.no_grad()
    def predict(self, x: Tensor, g: Tensor) -> KernelParts:  # (n, p), (n,)
        """Posterior at the rows of x, where the networks' noise variance is g."""
        parts = [
            torch.stack([*near.posterior(near.noise), near.prior])
            for near in _neighbours(self.covariance, self.X, self.y, self.noise, x)
        ]
        mu, epistemic, prior = torch.cat([*parts, x.new_empty(3, 0)], dim=1)
        aleatoric = (self.noise_factor * g).clamp(min=MIN_NOISE)
        return KernelParts(mu, aleatoric, epistemic, prior)


@dataclass(frozen=True)
class _Neighbours:
    """Covariances of some rows with the training rows nearest to each."""

    K: Tensor  # (n, k, k)
    k: Tensor  # (n, k)
    y: Tensor  # (n, k)
    noise: Tensor  # (n, k)
    prior: Tensor  # (n,)

    def posterior(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """kᵀ(K + W⁻¹)⁻¹y and k − kᵀ(K + W⁻¹)⁻¹k, each (n,)."""
        K = self.K + torch.diag_embed(noise)
        root = torch.linalg.cholesky(K)
        both = torch.stack([self.k, self.y], dim=-1)
        z = torch.linalg.solve_triangular(root, both, upper=False)
        explained = z[..., 0].square().sum(-1)
        return (z[..., 0] * z[..., 1]).sum(-1), (self.prior - explained).clamp_(min=0)


def _neighbours(
    covariance: Covariance, X: Tensor, y: Tensor, noise: Tensor, x: Tensor
) -> Iterator[_Neighbours]:
    """Nearest training rows of the rows of x, in the metric of the kernel, in blocks.

    Brute force: in more than a few dimensions no tree is faster.
    """
    n_near, u = min(N_NEIGHBOURS, len(X)), covariance.inverse_scale
    scaled = X * u
    # Order breaks ties, so that results do not depend on how rows are grouped.
    norms = scaled.square().sum(1)
    norms += torch.arange(len(X), dtype=X.dtype) * (TIE / len(X))
    size = max(1, BLOCK_ELEMENTS // max(len(X), n_near * max(n_near, X.shape[1])))
    for q in x.split(size):
        # ‖a‖² − 2aᵀq, which is the squared distance but for a constant of the row.
        distance = torch.addmm(norms, q * u, scaled.mT, alpha=-2)
        near = distance.topk(n_near, dim=1, largest=False).indices
        rows = X[near]
        K = covariance(rows, rows)
        k = covariance(q[:, None], rows).squeeze(1)
        yield _Neighbours(K, k, y[near], noise[near], covariance.diagonal(q))


@torch.no_grad()
def fit_kernel(
    X: Tensor,  # (n, p)
    y: Tensor,  # (n,)
    weight: Tensor,  # (n,), positive
    g: Tensor,  # (n,), noise variance of the networks together
    held_out_rows: Tensor,  # (K, n_held_out), of each network
    held_out_g: Tensor,  # (K, n_held_out), noise variance of the network itself
    generator: torch.Generator,
) -> KernelMember | None:
    """Length scales, noise and the rows kept; None where there are too few rows."""
    if len(X) < MIN_ROWS or held_out_rows.shape[1] == 0:
        return None
    unit = float(g.log().mean().exp())
    shape = g / unit / weight  # noise of each row in units of its geometric mean
    kept = torch.ones(len(X), dtype=torch.bool)
    if len(X) > MAX_ROWS:
        kept[torch.randperm(len(X), generator=generator)[MAX_ROWS:]] = False
    covariance, noise = fit_covariance(X[kept], y[kept], shape[kept], generator)
    factor, nll = _choose_factor(
        covariance,
        X,
        y,
        weight,
        noise * shape,
        kept,
        held_out_rows,
        noise * held_out_g / unit,
    )
    factor *= noise / unit
    rows, means, variance = _without_repeats(X[kept], y[kept], shape[kept])
    return KernelMember(
        covariance,
        rows,
        means,
        (factor * unit * variance).clamp_(min=MIN_NOISE),
        factor,
        nll,
    )


def _without_repeats(
    X: Tensor, y: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows that differ, with the weighted mean of y and the noise of that mean.

    The posterior is the same, and rows that repeat do not fill a neighbourhood.
    """
    rows, group = torch.unique(X, dim=0, return_inverse=True)
    if len(rows) == len(X):
        return X, y, noise
    precision = y.new_zeros(len(rows)).index_add_(0, group, 1 / noise)
    means = y.new_zeros(len(rows)).index_add_(0, group, y / noise) / precision
    return rows, means, 1 / precision


def _choose_factor(
    covariance: Covariance,
    X: Tensor,
    y: Tensor,
    weight: Tensor,
    noise: Tensor,  # (n,), W⁻¹ before the factor
    kept: Tensor,  # (n,), which rows may be kept
    held_out_rows: Tensor,  # (K, n_held_out)
    aleatoric: Tensor,  # (K, n_held_out), before the factor
) -> tuple[float, float]:
    """c and its held-out NLL: held-out rows are predicted from all other rows."""
    size = -(-JUDGED_ROWS // len(held_out_rows))
    losses = [
        torch.zeros(0, dtype=X.dtype) for _ in FACTORS
    ]
    for block, block_aleatoric in zip(held_out_rows, aleatoric, strict=True):
        rest = kept.clone()
        rest[block] = False
        train = _without_repeats(X[rest], y[rest], noise[rest])
        rows, start = block[:size], 0
        for near in _neighbours(covariance, *train, X[rows]):
            part = slice(start, start + len(near.k))
            start = part.stop
            for i, c in enumerate(FACTORS):
                mu, v = near.posterior((c * near.noise).clamp(min=MIN_NOISE))
                v += (c * block_aleatoric[part]).clamp(min=MIN_NOISE)
                nll = 0.5 * (v.log() + (y[rows[part]] - mu).square() / v)
                losses[i] = torch.cat([losses[i], nll])
    w = weight[held_out_rows[:, :size]].flatten()
    by_factor = torch.stack(losses) @ w / w.sum()
    best = int(by_factor.argmin())
    return FACTORS[best], float(by_factor[best])


def fit_covariance(
    X: Tensor, y: Tensor, noise: Tensor, generator: torch.Generator
) -> tuple[Covariance, float]:
    """Adam on the marginal likelihood of random rows; the kernel and σ²."""
    n, p = X.shape
    theta = _start(p)
    mean, square = torch.zeros_like(theta), torch.zeros_like(theta)
    batches = _row_batches(n, generator)
    # Adam written out: importing torch.optim takes seconds.
    for t in range(1, STEPS + 1):
        rows = next(batches)
        _, grad = loss_and_gradient(theta, X[rows], y[rows], noise[rows])
        mean.lerp_(grad, 1 - BETAS[0])
        square.lerp_(grad.square(), 1 - BETAS[1])
        step = LEARNING_RATE * min(1.0, t / 5) * (1 + math.cos(math.pi * t / STEPS)) / 2
        size = (square / (1 - BETAS[1] ** t)).sqrt_().add_(1e-8)
        theta.addcdiv_(mean, size, value=-step / (1 - BETAS[0] ** t))
        theta[:p].clamp_(-7, 4)
        theta[-1].clamp_(min=math.log(MIN_NOISE))
    return _covariance(theta), float(theta[-1].exp())


def _start(p: int) -> Tensor:
    """log u, log s², log b² and log σ² at the start, (p + 3,)."""
    u = torch.full((p,), -0.5 * math.log(p), dtype=torch.float64)
    rest = [0.0, math.log(0.1 / p), math.log(0.05)]
    return torch.cat([u, torch.tensor(rest, dtype=torch.float64)])


def _covariance(theta: Tensor) -> Covariance:
    values = theta.exp()
    return Covariance(values[:-3].clone(), float(values[-3]), float(values[-2]))


def _row_batches(n: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Random rows without end: all of them before any comes again."""
    size = min(STEP_ROWS, n)
    while True:
        order = torch.randperm(n, generator=generator)
        yield from order[: n - n % size].split(size)


def loss_and_gradient(
    theta: Tensor,  # (p + 3,)
    X: Tensor,  # (n, p)
    y: Tensor,  # (n,)
    noise: Tensor,  # (n,), in units of σ²
) -> tuple[Tensor, Tensor]:
    """Negative log marginal likelihood per row, without its constant; its gradient."""
    n, p = X.shape
    u, (s2, b2, sigma2) = theta[:p].exp(), theta[p:].exp()
    a = X * u
    r = squared_distances(a, a).fill_diagonal_(0).mul_(3).sqrt_()
    decay = torch.exp(-r)
    matern = decay * r.add_(1)
    linear = (X @ X.T).add_(1)
    K = (s2 * matern).add_(linear * b2)
    K.diagonal().add_(sigma2 * noise + MIN_NOISE)
    root = torch.linalg.cholesky(K)
    inverse = torch.cholesky_inverse(root)
    alpha = inverse @ y
    loss = 0.5 * (y @ alpha) + root.diagonal().log().sum()
    # G = dloss/dK; dK/dd = −1.5 s² e⁻ʳ with d the squared distance.
    G = inverse.addr_(alpha, alpha, alpha=-1).mul_(0.5)
    M = decay.mul_(G).mul_(-1.5 * s2)
    along_u = (M.sum(1) @ a.square() - (a * (M @ a)).sum(0)).mul_(4)
    along_rest = torch.stack(
        [
            (G * matern).sum() * s2,
            (G * linear).sum() * b2,
            (G.diagonal() * noise).sum() * sigma2,
        ]
    )
    return loss / n, torch.cat([along_u, along_rest]) / n
