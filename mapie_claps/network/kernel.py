"""X → μ, v without a network: a Gaussian process on the nearest training rows.

With φ the feature map of the covariance function, Σ the posterior of its weights and
W⁻¹ the noise of the rows, φᵀΣφ = k − kᵀ(K + W⁻¹)⁻¹k: the last-layer posterior in its
dual form, with features that are not trained. Unlike that of trained features, this
variance grows with the distance to the training rows. Everything is standardised.

The mean may be that of all rows, kᵀα with α = (K + W⁻¹)⁻¹y: where there is next to no
noise and the function is smooth, rows far away still tell.
"""

import math
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .training import WorkerPool, gaussian_nll, one_thread

MIN_ROWS = 150  # with fewer, length scales are guesses
MAX_ROWS = 20_000  # kept of more, at random: time, memory and size of the file
N_NEIGHBOURS = 32
# Factors c of the noise c·g(x); the best on held-out rows is taken.
FACTORS = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
JUDGED_ROWS = 360  # held-out rows, of all networks together, that judge the factors
# What held-out rows have of φᵀΣφ almost everywhere no neighbour takes away: it counts
# as noise. What a row has in excess of the usual counts three times: length scales are
# learned where rows are dense and promise too much elsewhere.
LASTING_LEVEL, USUAL_LEVEL, FAR_FACTOR = 0.05, 0.9, 2.0
TIE = 1e-6  # of a squared distance: of rows equally near, the first are taken
BLOCK_ELEMENTS, NEAR_ELEMENTS = 2**20, 2**17  # of distances and covariances at a time
GROUP = 8  # values of which only the smallest is looked at first
# The mean of all rows: the time grows with their third power. It must gain this much
# log-likelihood of a row left out, and scales the variance within limits.
MAX_MEAN_ROWS, MIN_MEAN_GAIN, MEAN_FACTORS = 4_000, 0.1, (1e-4, 1e4)
# Adam on the marginal likelihood of random rows, with a cosine schedule.
STEPS, STEP_ROWS, LEARNING_RATE, BETAS = 300, 192, 0.15, (0.9, 0.95)
WARM_UP_STEPS = 5
# Noise at the start: what is not explained yet. From a small value on, noise would be
# taken for a rough function.
FIRST_NOISE, MIN_NOISE = 0.5, 1e-9
# Logarithms of 1/length scale, of variances and of σ² stay in these ranges.
SCALE_RANGE, VARIANCE_RANGE, RATIO_RANGE = (-7.0, 4.0), (-20.0, 7.0), (-4.0, 4.0)
NOISE_RANGE = (math.log(MIN_NOISE), 3.0)
JITTER = 1e-10  # of the largest variance: far above rounding, far below any noise


class Covariance(NamedTuple):
    """s²·(1 + r)e⁻ʳ + t²·(1 + q + q²/3)e⁻ᑫ + b²·(xᵀx' + 1).

    A rough kernel (Matérn-3/2) with a length scale for each column, a smooth one
    (Matérn-5/2) whose length scales are those divided by one ratio, and a linear one:
    r = √3·d and q = √5·ρ·d with d = ‖u∘(x − x')‖.
    """

    inverse_scale: Tensor  # (p,), u, one over the length scale of each column
    matern: float  # s²
    linear: float  # b²
    smooth: float = 0.0  # t²
    ratio: float = 1.0  # ρ

    def between(self, A: Tensor, B: Tensor) -> Tensor:  # (…, n, p), (…, m, p)
        """Covariance of each row of A with each row of B, (…, n, m)."""
        u = math.sqrt(3) * self.inverse_scale
        r = _squared_distances(A * u, B * u).sqrt_()
        return self._by_distance(r) + self.linear * (A @ B.mT + 1)

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
        q = r * (math.sqrt(5 / 3) * self.ratio)
        smooth = _matern_5_2(q, torch.neg(q).exp_())
        rough = torch.neg(r).exp_()
        return rough.mul_(r.add_(1)).mul_(self.matern).add_(smooth, alpha=self.smooth)

    def diagonal(self, A: Tensor) -> Tensor:  # (…, n, p) → (…, n)
        """Covariance of each row with itself: its variance before any data."""
        near = self.matern + self.smooth
        return near + self.linear * (A.square().sum(-1) + 1)


def _matern_5_2(q: Tensor, decay: Tensor) -> Tensor:
    """(1 + q + q²/3)e⁻ᑫ, with the last factor given."""
    return (q + 1).addcmul_(q, q, value=1 / 3).mul_(decay)


def _squared_distances(A: Tensor, B: Tensor) -> Tensor:  # (…, n, p), (…, m, p)
    """‖a − b‖² for all pairs of rows, (…, n, m)."""
    products = (-2 * A) @ B.mT
    products += A.square().sum(-1)[..., None]
    products += B.square().sum(-1)[..., None, :]
    return products.clamp_(min=0)


def _noisy_cholesky(K: Tensor, noise: Tensor) -> Tensor:  # (…, n, n), (…, n)
    """Triangular factor of K + diag(noise), and jitter."""
    diagonal = K.diagonal(dim1=-2, dim2=-1)
    noise = noise + JITTER * diagonal.amax(-1, keepdim=True)
    root: Tensor = torch.linalg.cholesky(K + torch.diag_embed(noise))
    return root


class TrainingRows(NamedTuple):
    """Training rows of a Gaussian process."""

    X: Tensor  # (m, p)
    y: Tensor  # (m,)
    noise: Tensor  # (m,), W⁻¹

    def take(self, some: Tensor) -> "TrainingRows":
        """Some of them."""
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

    def blocks(self, x: Tensor) -> tuple[Tensor, ...]:
        """Rows of x, so few at a time that what is made of them stays in the cache."""
        m, p = self.X.shape
        size = NEAR_ELEMENTS // (N_NEIGHBOURS * max(N_NEIGHBOURS, p))
        return torch.split(x, max(1, min(size, BLOCK_ELEMENTS // m)))


class Near(NamedTuple):
    """Covariances of some rows with the training rows nearest to each."""

    K: Tensor  # (n, k, k)
    k: Tensor  # (n, k, 1)
    rows: TrainingRows  # (n, k, p), (n, k), (n, k)
    prior: Tensor  # (n,)

    @classmethod
    def of(cls, covariance: Covariance, rows: TrainingRows, x: Tensor) -> "Near":
        """Nearest in the metric of the kernel, by brute force.

        In more than a few dimensions trees are no faster.
        """
        scaled = rows.X * covariance.inverse_scale
        m = len(scaled)
        # Order breaks ties, so that results do not depend on how rows are grouped.
        order = torch.arange(m, dtype=x.dtype, device=x.device)
        squares = scaled.square().sum(1) + order * (TIE / m)
        # ‖a‖² − 2aᵀq, the squared distance but for a constant of the row.
        query = x * covariance.inverse_scale
        distance = torch.addmm(squares, query, scaled.mT, alpha=-2)
        near = rows.take(_smallest(distance, min(N_NEIGHBOURS, m)))
        K = covariance.between(near.X, near.X)
        k = covariance.between(near.X, x[:, None])
        return cls(K, k, near, covariance.diagonal(x))

    def posterior(self, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """kᵀ(K + W⁻¹)⁻¹y and k − kᵀ(K + W⁻¹)⁻¹k, each (n,)."""
        root = _noisy_cholesky(self.K, self.rows.noise if noise is None else noise)
        both = torch.cat([self.k, self.rows.y[..., None]], dim=-1)
        k, y = torch.linalg.solve_triangular(root, both, upper=False).unbind(-1)
        return (k * y).sum(-1), (self.prior - k.square().sum(-1)).clamp(min=0)


def _smallest(values: Tensor, k: int) -> Tensor:  # (n, m) → (n, k)
    """Positions of the k smallest values of each row, in ascending order.

    The k smallest values are in the k groups whose smallest values are smallest: few
    are left to sort, which is where the time goes.
    """
    n, m = values.shape
    n_groups = m // GROUP
    if n_groups <= 4 * k:
        return values.topk(k, dim=1, largest=False).indices
    whole = values[:, : n_groups * GROUP].view(n, GROUP, n_groups)
    groups = whole.amin(1).topk(k, dim=1, largest=False, sorted=False).indices
    offsets = torch.arange(GROUP, device=values.device) * n_groups
    places = (groups[:, :, None] + offsets).flatten(1)  # (n, k · GROUP)
    left = torch.arange(n_groups * GROUP, m, device=values.device)  # that fill no group
    places = torch.cat([places, left.expand(n, -1)], dim=1)
    best = values.gather(1, places).topk(k, dim=1, largest=False).indices
    return places.gather(1, best)


class KernelMember(nn.Module):
    """A fitted Gaussian process that predicts from the training rows it keeps.

    Parameters
    ----------
    covariance : Covariance
        Covariance function of two rows.
    rows : TrainingRows
        Rows that differ, with means of y over rows that repeat, and their noise.
    noise_factor : float
        c: the aleatoric variance is c·g(x), and what lasts of φᵀΣφ.
    noise_floor : float
        Smallest noise variance.
    lasting_epistemic, usual_epistemic : float
        Small and large quantile of φᵀΣφ at held-out rows.
    held_out_nll : float
        Per row, to be compared with that of networks.
    dual : Tensor of shape (m,), optional
        α, where the mean is that of all rows.
    """

    inverse_scale: Tensor
    X: Tensor
    y: Tensor
    noise: Tensor
    dual: Tensor | None

    def __init__(
        self,
        covariance: Covariance,
        rows: TrainingRows,
        noise_factor: float,
        noise_floor: float,
        lasting_epistemic: float,
        usual_epistemic: float,
        held_out_nll: float,
        dual: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.register_buffer("inverse_scale", covariance.inverse_scale)
        for name, tensor in rows._asdict().items():
            self.register_buffer(name, tensor)
        self.register_buffer("dual", dual)
        self.amounts = tuple(covariance[1:])
        self.noise_factor, self.noise_floor = noise_factor, noise_floor
        self.lasting_epistemic = lasting_epistemic
        self.usual_epistemic = usual_epistemic
        self.held_out_nll = held_out_nll

    @property
    def covariance(self) -> Covariance:
        """Covariance function of two rows."""
        return Covariance(self.inverse_scale, *self.amounts)

    @property
    def rows(self) -> TrainingRows:
        """The training rows."""
        return TrainingRows(self.X, self.y, self.noise)

    @torch.no_grad()
    def predict(
        self, x: Tensor, g: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:  # (n, p), (n,) → (n,) each
        """Mean and both parts of v, where the networks' noise variance is g."""
        parts = self.rows.blocks(x)
        noise = g.split([len(part) for part in parts])
        found = [self.block(*part) for part in zip(parts, noise, strict=True)]
        mu, aleatoric, epistemic = (
            torch.cat(part) for part in zip(*found, strict=True)
        )
        return mu, aleatoric, epistemic

    def block(self, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same for few rows, without a loop."""
        mu, epistemic = Near.of(self.covariance, self.rows, x).posterior()
        if self.dual is not None:
            mu = self.covariance.weighted_sum(x, self.X, self.dual)
        lasting = epistemic.clamp(max=self.lasting_epistemic)
        aleatoric = (self.noise_factor * g).clamp(min=self.noise_floor) + lasting
        excess = (epistemic - self.usual_epistemic).clamp(min=0)
        return mu, aleatoric, epistemic - lasting + FAR_FACTOR * excess

    @torch.no_grad()
    def posterior_covariance(self, x: Tensor, z: Tensor) -> Tensor:  # (n, p), (m, p)
        """Covariance of the means at x and z, given the rows nearest to z, (n, m)."""
        found = []
        for part in z.split(max(1, BLOCK_ELEMENTS // (N_NEIGHBOURS * len(x) + 1))):
            near = Near.of(self.covariance, self.rows, part)
            root = _noisy_cholesky(near.K, near.rows.noise)
            weight = torch.cholesky_solve(near.k, root)  # (m, k, 1)
            known = self.covariance.between(x[None], near.rows.X) @ weight
            found.append(self.covariance.between(x, part) - known.squeeze(-1).mT)
        return torch.cat(found, dim=1)


@torch.no_grad()
def constant_noise_prediction(
    X: Tensor,  # (n, p)
    y: Tensor,  # (n,)
    x: Tensor,  # (m, p)
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Mean and variance of targets at the rows of x, noise being equal everywhere."""
    with one_thread():
        covariance, sigma2 = fit_covariance(X, y, torch.ones_like(y), generator)
        rows = TrainingRows(X, y, torch.full_like(y, sigma2)).merged()
        near = [Near.of(covariance, rows, part) for part in rows.blocks(x)]
        mu, epistemic = zip(*(part.posterior() for part in near), strict=True)
    return torch.cat(mu), torch.cat(epistemic) + sigma2


@torch.no_grad()
def fit_kernel(
    X: Tensor,  # (n, p)
    y: Tensor,  # (n,)
    weight: Tensor,  # (n,), positive
    g: Tensor,  # (n,), noise variance of the networks together
    held_out_rows: Tensor,  # (K, m), of each network
    held_out_g: Tensor,  # (K, m), noise variance of that network alone
    noise_floor: float,
    generator: torch.Generator,
    pool: WorkerPool | None = None,
) -> KernelMember | None:
    """Length scales, the rows kept and their noise; None where there are too few.

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
        shares = 1 / weight[kept]
        covariance, sigma2 = fit_covariance(X[kept], y[kept], shares, generator)
        unit = sigma2 / float(g[kept].log().mean().exp())
        rows = TrainingRows(X[kept], y[kept], unit * g[kept] * shares)
        few = held_out_rows[:, : -(-JUDGED_ROWS // len(held_out_rows))]
        held_out = TrainingRows(X[few], y[few], unit * held_out_g[:, : few.shape[1]])
        tasks = [
            partial(
                _judge_factors,
                covariance,
                rows.take(~torch.isin(kept, few_rows)).merged(),
                TrainingRows(*part),
                noise_floor,
            )
            for few_rows, *part in zip(held_out_rows, *held_out, strict=True)
        ]
        judged = torch.cat((pool or WorkerPool()).run_all(tasks), dim=-1)
        by_factor = judged[0] @ weight[few].flatten() / weight[few].sum()
        best = int(by_factor.argmin())
        lasting, usual = judged[1, best].quantile(
            judged.new_tensor([LASTING_LEVEL, USUAL_LEVEL])
        )
        X, y, noise = rows.merged()
        rows = TrainingRows(X, y, (FACTORS[best] * noise).clamp(min=noise_floor))
        scale, dual, nll = _mean_of_all_rows(covariance, rows)
        # All variances times the factor: weights of the rows stay as they are.
        matern, linear, smooth = (scale * amount for amount in covariance[1:4])
        return KernelMember(
            Covariance(covariance[0], matern, linear, smooth, covariance.ratio),
            rows._replace(noise=scale * rows.noise),
            scale * FACTORS[best] * unit,
            noise_floor,
            scale * float(lasting),
            scale * float(usual),
            float(by_factor[best]) if dual is None else nll,
            dual,
        )


@torch.no_grad()
def _judge_factors(
    covariance: Covariance, rows: TrainingRows, held_out: TrainingRows, floor: float
) -> Tensor:  # (2, n_factors, m): NLL and φᵀΣφ of the rows that a network holds out
    near = Near.of(covariance, rows, held_out.X)
    by_factor = []
    for c in FACTORS:
        mu, epistemic = near.posterior((c * near.rows.noise).clamp(min=floor))
        v = epistemic + (c * held_out.noise).clamp(min=floor)
        by_factor.append(torch.stack([gaussian_nll(held_out.y, mu, v), epistemic]))
    return torch.stack(by_factor, dim=1)


def _mean_of_all_rows(
    covariance: Covariance, rows: TrainingRows
) -> tuple[float, Tensor | None, float]:
    """Factor of all variances, α and NLL; 1 and None where the nearest rows are enough.

    The nearest rows are as good as all of them where there is noise. Without noise a
    smooth function is told by rows far away, too. The mean and variance of a row from
    all others follow from (K + W⁻¹)⁻¹.
    """
    n = len(rows.X)
    if n > MAX_MEAN_ROWS:
        return 1.0, None, math.nan
    n_judged = min(JUDGED_ROWS, n // 8)
    judged = torch.arange(n_judged) * n // n_judged
    root = _noisy_cholesky(covariance.between(rows.X, rows.X), rows.noise)
    dual = torch.cholesky_solve(rows.y[:, None], root)[:, 0]
    unit = rows.X.new_zeros(n, n_judged)
    unit[judged, torch.arange(n_judged)] = 1
    solved = torch.linalg.solve_triangular(root, unit, upper=False)
    residual = dual[judged] / solved.square().sum(0)
    others = torch.ones(n, dtype=torch.bool)
    others[judged] = False
    near = Near.of(covariance, rows.take(others), rows.X[judged])
    mu, epistemic = near.posterior()
    v = epistemic + rows.noise[judged]
    factor, nll = _scaled_nll(residual, v)
    if nll > _scaled_nll(rows.y[judged] - mu, v)[1] - MIN_MEAN_GAIN:
        return 1.0, None, math.nan
    return factor, dual / factor, nll


def _scaled_nll(residual: Tensor, v: Tensor) -> tuple[float, float]:
    """The best factor of v, and the negative log-likelihood with it, per row."""
    factor = (residual.square() / v).mean().clamp(*MEAN_FACTORS)
    nll = gaussian_nll(residual, torch.zeros_like(v), factor * v)
    return float(factor), float(nll.mean())


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
    for t in range(1, STEPS + 1):  # Adam: importing torch.optim takes seconds
        some = next(batches)
        _, gradient = loss_and_gradient(theta, X[some], y[some], noise[some])
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


def loss_and_gradient(
    theta: Tensor,  # (p + 5,): log u, log s², log t², log ρ, log b², log σ²
    X: Tensor,  # (n, p)
    y: Tensor,  # (n,)
    noise: Tensor,  # (n,), in units of σ²
) -> tuple[Tensor, Tensor]:
    """Negative log marginal likelihood per row, without its constant; its gradient."""
    n, p = X.shape
    u, s2, t2, ratio, b2, sigma2 = theta.exp().split_with_sizes([p, 1, 1, 1, 1, 1])
    with_one = torch.cat([X, torch.ones_like(X[:, :1])], dim=1)
    a = X * u
    r = _squared_distances(a, a).fill_diagonal_(0).mul_(3).sqrt_()
    q = r * (math.sqrt(5 / 3) * ratio)
    decay, smooth_decay = torch.exp(-r), torch.exp(-q)
    matern, smooth = r.add_(1).mul_(decay), _matern_5_2(q, smooth_decay)
    K = (with_one * b2) @ with_one.T
    K.add_(matern * s2).add_(smooth * t2)
    root = _noisy_cholesky(K, sigma2 * noise)
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
    return loss / n, gradient
