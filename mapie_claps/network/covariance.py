"""x, x' → k(x, x'): a covariance function and its marginal likelihood.

A Matérn-3/2 kernel with one length scale per column plus a linear kernel, in
standardised units of X and y.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..files.codec import saved_as

# Adam on the marginal likelihood of random rows, with a cosine schedule.
STEPS, STEP_ROWS, LEARNING_RATE, BETAS = 300, 192, 0.15, (0.9, 0.95)
WARM_UP_STEPS = 5
MIN_NOISE = 1e-9
# Logarithms of 1/length scale, of variances and of σ² stay in these ranges.
SCALE_RANGE, VARIANCE_RANGE = (-7.0, 4.0), (-20.0, 7.0)
NOISE_RANGE = (math.log(MIN_NOISE), 3.0)
JITTER = 1e-10  # of the largest variance: far above rounding, far below any noise


@saved_as("covariance")
@dataclass(frozen=True)
class Covariance:
    """s²·(1 + r)e⁻ʳ + b²·(xᵀx' + 1) with r = √3·‖u∘(x − x')‖."""

    inverse_scale: Tensor  # (p,), u, one over the length scale of each column
    matern: float  # s²
    linear: float  # b²

    def __call__(self, A: Tensor, B: Tensor) -> Tensor:  # (…, n, p), (…, m, p)
        """Covariance of each row of A with each row of B, (…, n, m)."""
        u = self.inverse_scale
        r = squared_distances(A * u, B * u).mul_(3).sqrt_()
        matern = torch.exp(-r).mul_(r.add_(1)).mul_(self.matern)
        return matern.add_((A @ B.mT).add_(1), alpha=self.linear)

    def diagonal(self, A: Tensor) -> Tensor:  # (…, n, p) → (…, n)
        """Covariance of each row with itself: its variance before any data."""
        return self.matern + self.linear * (A.square().sum(-1) + 1)


def squared_distances(A: Tensor, B: Tensor) -> Tensor:  # (…, n, p), (…, m, p)
    """‖a − b‖² for all pairs of rows, (…, n, m)."""
    products = (A @ B.mT).mul_(-2)
    products += A.square().sum(-1)[..., None]
    products += B.square().sum(-1)[..., None, :]
    return products.clamp_(min=0)


def noisy_cholesky(K: Tensor, noise: Tensor) -> Tensor:  # (…, n, n), (…, n)
    """Triangular factor of K + diag(noise), which is added in place; and jitter."""
    diagonal = K.diagonal(dim1=-2, dim2=-1)
    diagonal += noise + JITTER * diagonal.amax(-1, keepdim=True)
    root: Tensor = torch.linalg.cholesky(K)
    return root


def exact_posterior(
    covariance: Covariance,
    X: Tensor,  # (…, n, p)
    y: Tensor,  # (…, n)
    noise: Tensor,  # (…, n), W⁻¹
    x: Tensor,  # (…, m, p)
) -> tuple[Tensor, Tensor]:
    """kᵀ(K + W⁻¹)⁻¹y and k − kᵀ(K + W⁻¹)⁻¹k at the rows of x, each (…, m)."""
    root = noisy_cholesky(covariance(X, X), noise)
    return posterior_of(root, covariance(X, x), y, covariance.diagonal(x))


def posterior_of(
    root: Tensor,  # (…, n, n), of K + W⁻¹
    k: Tensor,  # (…, n, m)
    y: Tensor,  # (…, n)
    prior: Tensor,  # (…, m)
) -> tuple[Tensor, Tensor]:
    """The same from the factor and the covariances with m rows."""
    both = torch.cat([k, y[..., None]], dim=-1)
    z = torch.linalg.solve_triangular(root, both, upper=False)
    explained = z[..., :-1].square().sum(-2)
    mu = (z[..., :-1] * z[..., -1:]).sum(-2)
    return mu, (prior - explained).clamp_(min=0)


@torch.no_grad()
def fit_covariance(
    X: Tensor,  # (n, p)
    y: Tensor,  # (n,)
    noise: Tensor,  # (n,), in units of σ²
    generator: torch.Generator,
) -> tuple[Covariance, float]:
    """Covariance and σ² of the largest marginal likelihood, rows at random."""
    theta = _start(X.shape[1])
    low, high = _limits(X.shape[1])
    mean, square = torch.zeros_like(theta), torch.zeros_like(theta)
    batches = _row_batches(len(X), generator)
    # Adam written out: importing torch.optim takes seconds.
    for t in range(1, STEPS + 1):
        rows = next(batches)
        _, grad = loss_and_gradient(theta, X[rows], y[rows], noise[rows])
        mean.lerp_(grad, 1 - BETAS[0])
        square.lerp_(grad.square(), 1 - BETAS[1])
        rate = LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * t / STEPS))
        rate *= min(1.0, t / WARM_UP_STEPS) / (1 - BETAS[0] ** t)
        size = (square / (1 - BETAS[1] ** t)).sqrt_().add_(1e-8)
        theta.addcdiv_(mean, size, value=-rate).clamp_(low, high)
    values = theta.exp()
    u, (s2, b2, sigma2) = values[:-3].clone(), values[-3:].tolist()
    return Covariance(u, s2, b2), sigma2


def _start(p: int) -> Tensor:
    """Log u, log s², log b² and log σ² at the start, (p + 3,)."""
    u = torch.full((p,), -0.5 * math.log(p), dtype=torch.float64)
    rest = [0.0, math.log(0.1 / p), math.log(0.05)]
    return torch.cat([u, torch.tensor(rest, dtype=torch.float64)])


def _limits(p: int) -> tuple[Tensor, Tensor]:
    """Smallest and largest theta, (p + 3,) each."""
    ranges = [SCALE_RANGE] * p + [VARIANCE_RANGE] * 2 + [NOISE_RANGE]
    low, high = torch.tensor(ranges, dtype=torch.float64).T
    return low, high


def _row_batches(n: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Random rows without end: all of them before any comes again."""
    size = min(STEP_ROWS, n)
    while True:
        order = torch.randperm(n, generator=generator)
        yield from order[: n - n % size].split(size)


def loss_and_gradient(
    theta: Tensor,  # (p + 3,): log u, log s², log b², log σ²
    X: Tensor,  # (n, p)
    y: Tensor,  # (n,)
    noise: Tensor,  # (n,), in units of σ²
) -> tuple[Tensor, Tensor]:
    """Negative log marginal likelihood per row, without its constant; its gradient."""
    n, p = X.shape
    u, (s2, b2, sigma2) = theta[:p].exp(), theta[p:].exp().tolist()
    with_one = torch.cat([X, X.new_ones(n, 1)], dim=1)
    a = X * u
    r = squared_distances(a, a).fill_diagonal_(0).mul_(3).sqrt_()
    decay = torch.exp(-r)
    matern = r.add_(1).mul_(decay)
    K = torch.addmm(matern, with_one, with_one.T, beta=s2, alpha=b2)
    root = noisy_cholesky(K, sigma2 * noise)
    inverse = torch.cholesky_inverse(root).mT  # symmetric, and contiguous this way
    alpha = inverse @ y
    loss = 0.5 * (y @ alpha) + root.diagonal().log().sum()
    # G = 2 dloss/dK; dK/dd = −1.5 s² e⁻ʳ with d the squared distance.
    G = inverse.addr_(alpha, alpha, alpha=-1)
    M = decay.mul_(G)
    along_u = M.sum(1) @ a.square() - (a * (M @ a)).sum(0)
    along_rest = torch.stack(
        [
            s2 * torch.dot(G.flatten(), matern.flatten()),
            b2 * (with_one * (G @ with_one)).sum(),
            sigma2 * (G.diagonal() @ noise),
        ]
    )
    gradient = torch.cat([-6 * s2 * along_u, along_rest]).mul_(0.5 / n)
    return loss / n, gradient
