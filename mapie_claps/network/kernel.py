"""X → μ, v without a network: a Gaussian process on the nearest training rows.

With φ the feature map of the covariance function, Σ the posterior of its weights and
W⁻¹ the noise of the rows, φᵀΣφ = k − kᵀ(K + W⁻¹)⁻¹k: the last-layer posterior in its
dual form, with features that are not trained. Unlike that of trained features, this
variance grows with the distance to the training rows. Everything is standardised.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .training import Rows, gaussian_nll, one_thread

MIN_ROWS = 150  # with fewer, length scales are guesses
MAX_ROWS = 20_000  # kept of more, at random: time, memory and size of the file
N_NEIGHBOURS = 32
# Factors c of the noise c·g(x); the best on held-out rows is taken.
FACTORS = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
JUDGED_ROWS = 360  # held-out rows, of all networks together, that judge the factors
# What held-out rows have of φᵀΣφ almost everywhere no neighbour takes away: it counts
# as noise. Of the rest, few have more than what is usual.
LASTING_LEVEL, USUAL_LEVEL = 0.05, 0.9
TIE = 1e-6  # of a squared distance: of rows equally near, the first are taken
BLOCK_ELEMENTS, NEAR_ELEMENTS = 2**20, 2**17  # of distances and covariances at a time
# Rows up to which the mean is that of all of them, kᵀ(K + W⁻¹)⁻¹y, and limits of the
# factor that the variances then get.
MAX_MEAN_ROWS, MEAN_FACTORS = 4_000, (1e-4, 1e4)
# Adam on the marginal likelihood of random rows, with a cosine schedule.
STEPS, WARM_UP_STEPS, STEP_ROWS = 300, 5, 192
LEARNING_RATE, BETAS = 0.15, (0.9, 0.95)
FIRST_NOISE = 0.05
# Logarithms of 1/length scale, of variances and of σ² stay in these ranges.
SCALE_RANGE, VARIANCE_RANGE, RATIO_RANGE = (-7.0, 4.0), (-20.0, 7.0), (-4.0, 4.0)
NOISE_RANGE = (math.log(1e-9), 3.0)
LEAST_SQUARE = 1e-30  # of a distance
JITTER = 1e-10  # of the largest variance: far above rounding, far below any noise


class Covariance(NamedTuple):
    """s²·(1 + r)e⁻ʳ + t²·(1 + q + q²/3)e⁻ᑫ + b²·(xᵀx' + 1).

    With d = ‖u∘(x − x')‖, r = √3·d and q = √5·ρ·d: a rough kernel (Matérn-3/2), a
    smooth one (Matérn-5/2) with length scales in one ratio to the others, a linear one.
    """

    inverse_scale: Tensor  # (p,), u, one over the length scale of each column
    matern: Any  # s², a number or a tensor, as all amounts
    linear: Any  # b²
    smooth: Any = 0.0  # t²
    ratio: Any = 1.0  # ρ

    def between(self, A: Tensor, B: Tensor) -> Tensor:  # (…, n, p), (…, m, p)
        """Covariance of each row of A with each row of B, (…, n, m)."""
        a, b = A * self.inverse_scale, B * self.inverse_scale
        squares = a.square().sum(-1)[..., None] + b.square().sum(-1)[..., None, :]
        # Not zero: the root has no slope there.
        distance = (squares - 2 * a @ b.mT).clamp(min=LEAST_SQUARE).sqrt()
        found: Tensor = self._by_distance(distance) + self.linear * (A @ B.mT + 1)
        return found

    def weighted_sum(self, A: Tensor, B: Tensor, weight: Tensor) -> Tensor:  # (n,)
        """Covariances of rows of A with all rows of B, (m, p), times weights, (m,).

        Large terms cancel, so distances are taken without products, and each row of A
        by itself: the sum does not depend on the other rows.
        """
        u = self.inverse_scale
        d = torch.cdist(A * u, B * u, compute_mode="donot_use_mm_for_euclid_dist")
        line = (A * (weight @ B)).sum(1) + weight.sum()
        found: Tensor = (self._by_distance(d) * weight).sum(1) + self.linear * line
        return found

    def _by_distance(self, d: Tensor) -> Tensor:
        """Rough and smooth part."""
        r, q = math.sqrt(3) * d, math.sqrt(5) * self.ratio * d
        rough = (1 + r) * torch.exp(-r)
        smooth = (1 + q + q * q / 3) * torch.exp(-q)
        found: Tensor = self.matern * rough + self.smooth * smooth
        return found

    def diagonal(self, A: Tensor) -> Tensor:  # (…, n, p) → (…, n)
        """Covariance of each row with itself: its variance before any data."""
        prior = self.matern + self.smooth + self.linear * (A.square().sum(-1) + 1)
        return torch.as_tensor(prior)


def _noisy_cholesky(K: Tensor, noise: Tensor) -> Tensor:  # (…, n, n), (…, n)
    """Triangular factor of K + diag(noise), and jitter."""
    largest = K.detach().diagonal(dim1=-2, dim2=-1).amax(-1, keepdim=True)
    root: Tensor = torch.linalg.cholesky(K + (noise + JITTER * largest).diag_embed())
    return root


class TrainingRows(NamedTuple):
    """Training rows of a Gaussian process."""

    X: Tensor  # (m, p)
    y: Tensor  # (m,)
    noise: Tensor  # (m,), W⁻¹

    def take(self, some: Tensor) -> "TrainingRows":
        """Some of them, by number or mask."""
        return TrainingRows(self.X[some], self.y[some], self.noise[some])

    def merged(self) -> "TrainingRows":
        """Rows that differ, with the weighted mean of y and the noise of that mean.

        The posterior is the same, and rows that repeat do not fill a neighbourhood.
        """
        different, group = torch.unique(self.X, dim=0, return_inverse=True)
        if len(different) == len(self.X):
            return self
        none = self.y.new_zeros(len(different))
        precision = none.index_add(0, group, 1 / self.noise)
        mean = none.index_add(0, group, self.y / self.noise) / precision
        return TrainingRows(different, mean, 1 / precision)


class Near(NamedTuple):
    """Covariances of some rows with the training rows nearest to each."""

    K: Tensor  # (n, k, k)
    k: Tensor  # (n, k, 1)
    rows: TrainingRows  # (n, k, p), (n, k), (n, k)
    prior: Tensor  # (n,)

    @classmethod
    def of(cls, covariance: Covariance, rows: TrainingRows, x: Tensor) -> "Near":
        """Nearest in the metric of the kernel; trees are no faster in many columns."""
        u, m = covariance.inverse_scale, len(rows.X)
        scaled = rows.X * u
        # Order breaks ties, so that results do not depend on how rows are grouped.
        order = torch.arange(m, dtype=x.dtype, device=x.device)
        squares = scaled.square().sum(1) + order * (TIE / m)
        # ‖a‖² − 2aᵀq, the squared distance but for a constant of the row.
        distance = torch.addmm(squares, x * u, scaled.mT, alpha=-2)
        near = rows.take(distance.topk(min(N_NEIGHBOURS, m), largest=False).indices)
        K = covariance.between(near.X, near.X)
        k = covariance.between(near.X, x[:, None])
        return cls(K, k, near, covariance.diagonal(x))

    def posterior(self, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """kᵀ(K + W⁻¹)⁻¹y and k − kᵀ(K + W⁻¹)⁻¹k, each (n,)."""
        root = _noisy_cholesky(self.K, self.rows.noise if noise is None else noise)
        both = torch.cat([self.k, self.rows.y[..., None]], dim=-1)
        k, y = torch.linalg.solve_triangular(root, both, upper=False).unbind(-1)
        return (k * y).sum(-1), (self.prior - k.square().sum(-1)).clamp(min=0)


@dataclass(eq=False)
class KernelMember:
    """A fitted Gaussian process that predicts from the training rows it keeps.

    Its aleatoric variance is c·g(x), with g that of the networks, and what lasts of
    φᵀΣφ. With the mean of all rows, kᵀ``dual``, φᵀΣφ is that of the nearest ones times
    ``variance_factor``.
    """

    covariance: Covariance
    rows: TrainingRows
    noise_factor: float  # c
    noise_floor: float
    lasting_epistemic: float
    usual_epistemic: float  # few held-out rows had more of what does not last
    held_out_nll: float
    dual: Tensor | None = None
    variance_factor: float = 1.0

    @torch.no_grad()
    def predict(self, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and both parts of v at x (n, p), where the networks' noise is g (n,)."""
        m, p = self.rows.X.shape
        # So few rows at a time that what is made of them stays in the cache.
        size = NEAR_ELEMENTS // (N_NEIGHBOURS * max(N_NEIGHBOURS, p))
        size = max(1, min(size, BLOCK_ELEMENTS // m))
        parts = zip(x.split(size), g.split(size), strict=True)
        found = [torch.stack(self.block(*part)) for part in parts]
        mu, aleatoric, epistemic = torch.cat(found, dim=1)
        return mu, aleatoric, epistemic

    def block(self, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same for few rows, without a loop."""
        mu, epistemic = Near.of(self.covariance, self.rows, x).posterior()
        if self.dual is not None:
            mu = self.covariance.weighted_sum(x, self.rows.X, self.dual)
        epistemic = self.variance_factor * epistemic
        lasting = epistemic.clamp(max=self.lasting_epistemic)
        noise = (self.noise_factor * g).clamp(min=self.noise_floor)
        return mu, noise + lasting, epistemic - lasting


@torch.no_grad()
def fit_kernel(
    X: Tensor,  # (n, p)
    y: Tensor,  # (n,)
    weight: Tensor,  # (n,), positive
    g: Tensor,  # (n,), noise variance of the networks together
    split: Rows,  # rows that each network was trained on, and those it held out
    held_out_g: Tensor,  # (K, m), noise variance of that network alone
    noise_floor: float,
    generator: torch.Generator,
) -> KernelMember | None:
    """Length scales, the rows kept and their noise; None where there are too few.

    The mean is that of all rows, if they are not too many.

    Networks have seen the rows that they do not hold out: their g is too small there.
    So length scales are fitted with constant noise, and held-out rows are judged with
    the g of the network that has not seen them.
    """
    if len(X) < MIN_ROWS or bool((y == y[0]).all()):
        return None
    kept = torch.arange(len(X))
    if len(X) > MAX_ROWS:
        kept = torch.randperm(len(X), generator=generator)[:MAX_ROWS].sort().values
    with one_thread():  # sums of several threads would be rounded otherwise
        share = 1 / weight[kept]
        covariance, sigma2 = fit_covariance(X[kept], y[kept], share, generator)
        unit = sigma2 / float(g[kept].log().mean().exp())
        rows = TrainingRows(X[kept], y[kept], unit * g[kept] * share)
        few = split.held_out[:, : -(-JUDGED_ROWS // len(split.held_out))]

        def judge(i: int) -> Tensor:  # (2, n_factors, m), NLL and φᵀΣφ
            seen = rows.take(torch.isin(kept, split.fit[i])).merged()
            near = Near.of(covariance, seen, X[few[i]])
            own = unit * held_out_g[i, : few.shape[1]]
            found = []
            for c in FACTORS:
                mu, epistemic = near.posterior((c * near.rows.noise).clamp(noise_floor))
                v = epistemic + (c * own).clamp(noise_floor)
                found.append(torch.stack([gaussian_nll(y[few[i]], mu, v), epistemic]))
            return torch.stack(found, dim=1)

        judged = torch.cat([judge(i) for i in range(len(few))], dim=-1)
        by_factor = judged[0] @ weight[few].flatten() / weight[few].sum()
        best = int(by_factor.argmin())
        lasting = float(judged[1, best].quantile(LASTING_LEVEL))
        rows = rows.merged()
        # In random order: topk is slow where rows are sorted.
        rows = rows.take(torch.randperm(len(rows.X), generator=generator))
        member = KernelMember(
            covariance,
            rows._replace(noise=(FACTORS[best] * rows.noise).clamp(min=noise_floor)),
            FACTORS[best] * unit,
            noise_floor,
            lasting,
            float(judged[1, best].quantile(USUAL_LEVEL)) - lasting,
            float(by_factor[best]),
        )
        _use_mean_of_all_rows(member)
    return member


def _use_mean_of_all_rows(member: KernelMember) -> None:
    """Give the member the mean of all rows, unless there are too many of them.

    Without noise a smooth function is told by rows far away, too. The mean and variance
    of a row from all others follow from (K + W⁻¹)⁻¹; all variances get the factor that
    fits the residuals of rows left out.
    """
    rows, covariance = member.rows, member.covariance
    n = len(rows.X)
    if not MIN_ROWS <= n <= MAX_MEAN_ROWS:
        return
    n_judged = min(JUDGED_ROWS, n // 8)
    judged = torch.arange(n_judged) * n // n_judged
    root = _noisy_cholesky(covariance.between(rows.X, rows.X), rows.noise)
    dual = torch.cholesky_solve(rows.y[:, None], root)[:, 0]
    unit = (torch.arange(n)[:, None] == judged).to(rows.X)
    solved = torch.linalg.solve_triangular(root, unit, upper=False)
    residual = dual[judged] / solved.square().sum(0)
    others = rows.take(~torch.isin(torch.arange(n), judged))
    _, epistemic = Near.of(covariance, others, rows.X[judged]).posterior()
    v = epistemic + rows.noise[judged]
    factor = float((residual.square() / v).mean().clamp(*MEAN_FACTORS))
    member.dual, member.variance_factor = dual, factor
    member.noise_factor *= factor
    member.lasting_epistemic *= factor
    member.usual_epistemic *= factor


@torch.no_grad()
def fit_covariance(
    X: Tensor,  # (n, p)
    y: Tensor,  # (n,)
    noise: Tensor,  # (n,), in units of σ²
    generator: torch.Generator,
) -> tuple[Covariance, float]:
    """Covariance and σ² of the largest marginal likelihood, rows at random.

    Smooth at first: from a rough start the likelihood has no way to a smooth end.
    """
    p = X.shape[1]
    rest = [-2.0, 0.0, 0.0, math.log(0.1 / p), math.log(FIRST_NOISE)]
    theta = X.new_tensor([-0.5 * math.log(p)] * p + rest)
    amounts = [VARIANCE_RANGE, VARIANCE_RANGE, RATIO_RANGE, VARIANCE_RANGE, NOISE_RANGE]
    low, high = X.new_tensor([SCALE_RANGE] * p + amounts).T
    mean, square = torch.zeros_like(theta), torch.zeros_like(theta)
    batches = _row_batches(len(X), generator)
    for t in range(1, STEPS + 1):  # Adam: the first use of torch.optim takes seconds
        some = next(batches)
        with torch.enable_grad():
            free = theta.clone().requires_grad_()
            loss = marginal_nll(free, X[some], y[some], noise[some])
            (gradient,) = torch.autograd.grad(loss, free)
        mean.lerp_(gradient, 1 - BETAS[0])
        square.lerp_(gradient.square(), 1 - BETAS[1])
        rate = LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * t / STEPS))
        rate *= min(t / WARM_UP_STEPS, 1.0) / (1 - BETAS[0] ** t)
        size = (square / (1 - BETAS[1] ** t)).sqrt_().add_(1e-8)
        theta.sub_(mean / size * rate).clamp_(low, high)
    s2, t2, ratio, b2, sigma2 = theta[p:].exp().tolist()
    return Covariance(theta[:p].exp(), s2, b2, t2, ratio), sigma2


def _row_batches(n: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Random rows without end: all of them before any comes again."""
    size = min(STEP_ROWS, n)
    while True:
        order = torch.randperm(n, generator=generator)
        yield from order[: n - n % size].split(size)


def marginal_nll(
    theta: Tensor,  # (p + 5,): log u, log s², log t², log ρ, log b², log σ²
    X: Tensor,  # (n, p)
    y: Tensor,  # (n,)
    noise: Tensor,  # (n,), in units of σ²
) -> Tensor:
    """Negative log marginal likelihood per row, without its constant."""
    n, p = X.shape
    u, s2, t2, ratio, b2, sigma2 = theta.exp().split_with_sizes([p, 1, 1, 1, 1, 1])
    K = Covariance(u, s2, b2, t2, ratio).between(X, X)
    root = _noisy_cholesky(K, sigma2 * noise)
    half = torch.linalg.solve_triangular(root, y[:, None], upper=False)
    loss: Tensor = 0.5 * half.square().sum() + root.diagonal().log().sum()
    return loss / n
