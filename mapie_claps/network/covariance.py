"""x, x' → k(x, x'): a covariance function and its marginal likelihood.

A rough kernel (Matérn-3/2) with one length scale per column, a smooth one (Matérn-5/2)
whose length scales are those divided by one ratio, and a linear one, in standardised
units of X and y. The marginal likelihood says how much there is of each.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..files.codec import saved_as
from .recorded import repeat

# Adam on the marginal likelihood of random rows, with a cosine schedule.
STEPS, STEP_ROWS, LEARNING_RATE, BETAS = 300, 192, 0.15, (0.9, 0.95)
WARM_UP_STEPS = 5
MIN_NOISE = 1e-9
# Logarithms of 1/length scale, of variances and of σ² stay in these ranges.
SCALE_RANGE, VARIANCE_RANGE, RATIO_RANGE = (-7.0, 4.0), (-20.0, 7.0), (-4.0, 4.0)
NOISE_RANGE = (math.log(MIN_NOISE), 3.0)
JITTER = 1e-10  # of the largest variance: far above rounding, far below any noise


@saved_as("covariance")
@dataclass(frozen=True)
class Covariance:
    """s²·(1 + r)e⁻ʳ + t²·(1 + q + q²/3)e⁻ᑫ + b²·(xᵀx' + 1).

    r = √3·d and q = √5·ρ·d with d = ‖u∘(x − x')‖.
    """

    inverse_scale: Tensor  # (p,), u, one over the length scale of each column
    matern: float  # s²
    linear: float  # b²
    smooth: float = 0.0  # t²
    ratio: float = 1.0  # ρ

    def __call__(self, A: Tensor, B: Tensor) -> Tensor:  # (…, n, p), (…, m, p)
        """Covariance of each row of A with each row of B, (…, n, m)."""
        u = math.sqrt(3) * self.inverse_scale
        r = squared_distances(A * u, B * u).sqrt_()
        found = self._by_distance(r)
        if A.ndim == 3:  # one call for product and sum
            A = A.expand(len(found), -1, -1)
            found.baddbmm_(A, B.mT.expand(len(found), -1, -1), alpha=self.linear)
        else:
            found.addmm_(A, B.mT, alpha=self.linear)
        return found.add_(self.linear)

    def weighted_sum(self, A: Tensor, B: Tensor, weight: Tensor) -> Tensor:  # (n,)
        """Covariances of rows of A with all rows of B, (m, p), times weights, (m,).

        Large terms cancel, so distances are taken without products, and each row of A
        by itself: the sum does not depend on the other rows.
        """
        u = self.inverse_scale
        r = torch.cdist(A * u, B * u, compute_mode="donot_use_mm_for_euclid_dist")
        near = self._by_distance(r.mul_(math.sqrt(3))).mul_(weight).sum(1)
        line = (A * (weight @ B)).sum(1) + weight.sum()
        return near.add_(line, alpha=self.linear)

    def _by_distance(self, r: Tensor) -> Tensor:
        """Rough and smooth part, of distances times √3, which are overwritten."""
        smooth = None
        if self.smooth:
            q = r * (math.sqrt(5 / 3) * self.ratio)
            smooth = _smooth(q, torch.neg(q).exp_())
        found = torch.neg(r).exp_()
        found.mul_(r.add_(1)).mul_(self.matern)
        return found if smooth is None else found.add_(smooth, alpha=self.smooth)

    def diagonal(self, A: Tensor) -> Tensor:  # (…, n, p) → (…, n)
        """Covariance of each row with itself: its variance before any data."""
        near = self.matern + self.smooth
        return near + self.linear * (A.square().sum(-1) + 1)

    def times(self, factor: float) -> "Covariance":
        """All variances times a factor."""
        s2, b2, t2 = (factor * v for v in (self.matern, self.linear, self.smooth))
        return replace(self, matern=s2, linear=b2, smooth=t2)


def _smooth(q: Tensor, decay: Tensor) -> Tensor:
    """(1 + q + q²/3)e⁻ᑫ, with the last factor given."""
    return (q + 1).addcmul_(q, q, value=1 / 3).mul_(decay)


def squared_distances(A: Tensor, B: Tensor) -> Tensor:  # (…, n, p), (…, m, p)
    """‖a − b‖² for all pairs of rows, (…, n, m)."""
    products = (-2 * A) @ B.mT
    products += A.square().sum(-1)[..., None]
    products += B.square().sum(-1)[..., None, :]
    return products.clamp_(min=0)


def add_noise(K: Tensor, noise: Tensor) -> Tensor:  # (…, n, n), (…, n)
    """K + diag(noise), and jitter, in place."""
    diagonal = K.diagonal(dim1=-2, dim2=-1)
    diagonal += noise + JITTER * diagonal.amax(-1, keepdim=True)
    return K


def noisy_cholesky(K: Tensor, noise: Tensor) -> Tensor:  # (…, n, n), (…, n)
    """Triangular factor of K + diag(noise), which is added in place; and jitter."""
    root: Tensor = torch.linalg.cholesky(add_noise(K, noise))
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
    chosen = [next(batches) for _ in range(STEPS)]
    sources = [X, y, noise]
    rows = [source[chosen[0]] for source in sources]
    rates, corrections = _rates().unbind()
    now = torch.zeros(1, dtype=torch.int64)
    failed = torch.zeros((), dtype=torch.int32)

    def step() -> Tensor:
        """Adam written out: importing torch.optim takes seconds."""
        _, grad, info = loss_and_gradient(theta, *rows)
        mean.lerp_(grad, 1 - BETAS[0])
        square.lerp_(grad.square(), 1 - BETAS[1])
        size = (square * corrections.index_select(0, now)).sqrt_().add_(1e-8)
        theta.sub_(mean / size * rates.index_select(0, now))
        now.add_(1)
        failed.add_(info)
        return theta.clamp_(low, high)

    repeat(step, sources, rows, chosen)
    if failed:
        raise torch.linalg.LinAlgError(  # type: ignore[attr-defined]
            "The covariance of some training rows is not positive definite."
        )
    values = theta.exp()
    u, (s2, t2, ratio, b2, sigma2) = values[:-5].clone(), values[-5:].tolist()
    return Covariance(u, s2, b2, t2, ratio), sigma2


def _rates() -> Tensor:
    """Learning rates of the mean, and corrections of the mean square, (2, STEPS)."""
    t = torch.arange(1, STEPS + 1, dtype=torch.float64)
    rate = LEARNING_RATE * 0.5 * (1 + torch.cos(math.pi * t / STEPS))
    rate *= (t / WARM_UP_STEPS).clamp(max=1.0) / (1 - BETAS[0] ** t)
    return torch.stack([rate, 1 / (1 - BETAS[1] ** t)])


def _start(p: int) -> Tensor:
    """Log u, log s², log t², log ρ, log b² and log σ² at the start, (p + 5,).

    Smooth at first: from a rough start the likelihood has no way to a smooth end.
    """
    u = torch.full((p,), -0.5 * math.log(p), dtype=torch.float64)
    rest = [-2.0, 0.0, 0.0, math.log(0.1 / p), math.log(0.05)]
    return torch.cat([u, torch.tensor(rest, dtype=torch.float64)])


def _limits(p: int) -> tuple[Tensor, Tensor]:
    """Smallest and largest theta, (p + 5,) each."""
    variances = [VARIANCE_RANGE, VARIANCE_RANGE, RATIO_RANGE, VARIANCE_RANGE]
    ranges = [SCALE_RANGE] * p + variances + [NOISE_RANGE]
    low, high = torch.tensor(ranges, dtype=torch.float64).T
    return low, high


def _row_batches(n: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Random rows without end: all of them before any comes again."""
    size = min(STEP_ROWS, n)
    while True:
        order = torch.randperm(n, generator=generator)
        yield from order[: n - n % size].split(size)


def loss_and_gradient(
    theta: Tensor,  # (p + 5,): log u, log s², log t², log ρ, log b², log σ²
    X: Tensor,  # (n, p)
    y: Tensor,  # (n,)
    noise: Tensor,  # (n,), in units of σ²
) -> tuple[Tensor, Tensor, Tensor]:
    """Negative log marginal likelihood per row, without its constant; its gradient.

    The third is not zero where a factorisation failed. All numbers stay tensors, so
    that steps can be repeated without the interpreter.
    """
    n, p = X.shape
    u, s2, t2, ratio, b2, sigma2 = theta.exp().split_with_sizes([p, 1, 1, 1, 1, 1])
    with_one = torch.cat([X, torch.ones_like(X[:, :1])], dim=1)
    a = X * u
    r = squared_distances(a, a).fill_diagonal_(0).mul_(3).sqrt_()
    q = r * (math.sqrt(5 / 3) * ratio)
    decay, smooth_decay = torch.exp(-r), torch.exp(-q)
    matern, smooth = r.add_(1).mul_(decay), _smooth(q, smooth_decay)
    K = (with_one * b2) @ with_one.T
    K.add_(matern * s2).add_(smooth * t2)
    root, info = torch.linalg.cholesky_ex(add_noise(K, sigma2 * noise))
    inverse = torch.cholesky_inverse(root).mT  # symmetric, and contiguous this way
    alpha = inverse @ y
    loss = 0.5 * (y @ alpha) + root.diagonal().log().sum()
    # G = 2 dloss/dK; with d the squared distance dK/dd = −1.5 s² e⁻ʳ − N, and
    # N = 5/6 ρ² t² (1 + q)e⁻ᑫ of the smooth part, which ρ moves as u does.
    G = inverse.addr_(alpha, alpha, alpha=-1)
    smooth_slope = torch.addcmul(smooth_decay, smooth_decay, q).mul_(G)
    along_ratio = torch.dot(smooth_slope.flatten(), q.square_().flatten())
    M = decay.mul_(G).mul_(s2).add_(smooth_slope.mul_(5 / 9 * ratio**2 * t2))
    along_u = M.sum(1) @ a.square() - (a * (M @ a)).sum(0)
    along_rest = [
        s2 * torch.dot(G.flatten(), matern.flatten()),
        t2 * torch.dot(G.flatten(), smooth.flatten()),
        -t2 / 3 * along_ratio,
        b2 * (with_one * (G @ with_one)).sum(),
        sigma2 * (G.diagonal() @ noise),
    ]
    gradient = torch.cat([-6 * along_u, *along_rest]).mul_(0.5 / n)
    return loss / n, gradient, info
