"""X → μ, v without a network: a Gaussian process on the nearest training rows.

With φ the feature map of the covariance function, Σ the posterior of its weights and
W⁻¹ the noise of the rows, φᵀΣφ = k − kᵀ(K + W⁻¹)⁻¹k: the last-layer posterior in its
dual form, with features that are not trained. Unlike that of trained features, this
variance grows with the distance to the training rows. Everything is standardised.

The mean may be that of all rows, kᵀα with α = (K + W⁻¹)⁻¹y: where there is next to no
noise and the function is smooth, rows far away still tell (``kernel_mean``).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ..files.codec import saved_as
from .covariance import Covariance, fit_covariance, noisy_cholesky, posterior_of
from .losses import gaussian_nll
from .threads import Crew, threads_for

MIN_ROWS = 150  # with fewer, length scales are guesses
MAX_ROWS = 20_000  # kept of more, at random: time, memory and size of the file
N_NEIGHBOURS = 32
# Factors c of the noise c·g(x); the best on held-out rows is taken.
FACTORS = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
JUDGED_ROWS = 360  # held-out rows, of all networks together, that judge the factors
USUAL_LEVEL = 0.9  # of held-out rows with a variance that counts as usual
TIE = 1e-6  # of a squared distance: of rows equally near, the first are taken
BLOCK_ELEMENTS = 2**20  # of the distances to all rows, made when predicting
GROUP = 8  # values of which only the smallest is looked at first
NEAR_ELEMENTS = 2**17  # of the covariances of nearest rows: they stay in the cache


class KernelParts(NamedTuple):
    """Mean and both parts of v."""

    mu: Tensor  # (n,)
    aleatoric: Tensor  # (n,)
    epistemic: Tensor  # (n,), φᵀΣφ


@saved_as("kernel member")
@dataclass(frozen=True)
class KernelMember:
    """A fitted Gaussian process that predicts from the training rows it keeps."""

    covariance: Covariance
    X: Tensor  # (m, p), rows that differ
    y: Tensor  # (m,), means over rows that repeat
    noise: Tensor  # (m,), W⁻¹
    noise_factor: float  # c: the aleatoric variance is c·g(x)
    held_out_nll: float  # per row, to be compared with that of networks
    usual_epistemic: float  # few held-out rows had a larger φᵀΣφ
    noise_floor: float
    dual: Tensor | None = None  # (m,), α where the mean is that of all rows

    def predict(self, x: Tensor, g: Tensor) -> KernelParts:  # (n, p), (n,)
        """Posterior at the rows of x, where the networks' noise variance is g."""
        mu, epistemic = self.posterior(x)
        aleatoric = (self.noise_factor * g).clamp(min=self.noise_floor)
        return KernelParts(mu, aleatoric, epistemic)

    @torch.no_grad()
    def posterior(self, x: Tensor) -> Tensor:  # (n, p) → (2, n)
        """Mean and φᵀΣφ."""
        rows = self.X, self.y, self.noise
        found = [
            torch.stack(near.posterior())
            for near in near_rows(self.covariance, rows, x)
        ]
        both = torch.cat([x.new_empty(2, 0), *found], dim=1)
        if self.dual is not None:
            parts = x.split(max(1, BLOCK_ELEMENTS // len(self.X)))
            whole = [self.covariance.weighted_sum(q, self.X, self.dual) for q in parts]
            both[0] = torch.cat(whole)
        return both

    def equal_noise_variance(self, x: Tensor) -> Tensor:  # (n, p) → (n,)
        """φᵀΣφ as if noise were the same at all rows, the mean of its logarithm."""
        equal = self.noise.log().mean().exp().expand_as(self.noise)
        return replace(self, noise=equal, dual=None).posterior(x)[1]

    @torch.no_grad()
    def posterior_covariance(self, x: Tensor, z: Tensor) -> Tensor:  # (n, p), (m, p)
        """Covariance of the means at x and z, given the rows nearest to z, (n, m)."""
        rows = self.X, self.y, self.noise
        found = [x.new_empty(len(x), 0)]
        for part in z.split(max(1, BLOCK_ELEMENTS // (N_NEIGHBOURS * len(x) + 1))):
            start = 0
            for near in near_rows(self.covariance, rows, part):
                some = part[start : start + len(near.k)]
                start += len(some)
                root = noisy_cholesky(near.K.clone(), near.noise)
                weight = torch.cholesky_solve(near.k, root)  # (m, k, 1)
                known = self.covariance(x[None], self.X[near.rows]) @ weight
                found.append(self.covariance(x, some) - known.squeeze(-1).mT)
        return torch.cat(found, dim=1)


TrainingRows = tuple[Tensor, Tensor, Tensor]  # X (m, p), y (m,) and noise (m,)


@dataclass(frozen=True)
class _Near:
    """Covariances of some rows with the training rows nearest to each."""

    K: Tensor  # (n, k, k)
    k: Tensor  # (n, k, 1)
    y: Tensor  # (n, k)
    noise: Tensor  # (n, k)
    prior: Tensor  # (n, 1)
    rows: Tensor  # (n, k), which training rows they are

    def posterior(self, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """kᵀ(K + W⁻¹)⁻¹y and k − kᵀ(K + W⁻¹)⁻¹k, each (n,)."""
        noise = self.noise if noise is None else noise
        root = noisy_cholesky(self.K.clone(), noise)
        mu, variance = posterior_of(root, self.k, self.y, self.prior)
        return mu.squeeze(-1), variance.squeeze(-1)


def near_rows(covariance: Covariance, rows: TrainingRows, x: Tensor) -> Iterator[_Near]:
    """Training rows nearest to those of x, in the metric of the kernel, in blocks.

    By brute force: in more than a few dimensions trees are no faster.
    """
    X, y, noise = rows
    n_near, u = min(N_NEIGHBOURS, len(X)), covariance.inverse_scale
    scaled = X * u
    # Order breaks ties, so that results do not depend on how rows are grouped.
    squares = scaled.square().sum(1)
    squares += torch.arange(len(X), dtype=X.dtype) * (TIE / len(X))
    size = max(1, NEAR_ELEMENTS // (n_near * max(n_near, X.shape[1])))
    for part in x.split(max(1, BLOCK_ELEMENTS // len(X))):
        # ‖a‖² − 2aᵀq, the squared distance but for a constant of the row.
        distance = torch.addmm(squares, part * u, scaled.mT, alpha=-2)
        nearest = _smallest(distance, n_near)
        for q, near in zip(part.split(size), nearest.split(size), strict=True):
            X_near = X[near]
            K = covariance(X_near, X_near)
            k = covariance(X_near, q[:, None])
            prior = covariance.diagonal(q[:, None])
            yield _Near(K, k, y[near], noise[near], prior, near)


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
    offsets = torch.arange(GROUP) * n_groups
    places = (groups[:, :, None] + offsets).flatten(1)  # (n, k · GROUP)
    left = torch.arange(n_groups * GROUP, m).expand(n, -1)  # that fill no group
    places = torch.cat([places, left], dim=1)
    best = values.gather(1, places).topk(k, dim=1, largest=False).indices
    return places.gather(1, best)


@torch.no_grad()
def constant_noise_prediction(
    X: Tensor,  # (n, p)
    y: Tensor,  # (n,)
    x: Tensor,  # (m, p)
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Mean and variance of targets at the rows of x, noise being equal everywhere."""
    with threads_for(0):
        covariance, sigma2 = fit_covariance(X, y, torch.ones_like(y), generator)
        rows = _without_repeats((X, y, torch.full_like(y, sigma2)))
        found = [
            torch.stack(near.posterior()) for near in near_rows(covariance, rows, x)
        ]
    mu, epistemic = torch.cat(found, dim=1)
    return mu, epistemic + sigma2


class LengthScales(NamedTuple):
    """What a kernel learns without the networks, and the rows that it keeps."""

    kept: Tensor  # (m,), row numbers
    covariance: Covariance
    sigma2: float  # noise variance of a row of weight one


@torch.no_grad()
def fit_length_scales(
    X: Tensor,  # (n, p)
    y: Tensor,  # (n,)
    weight: Tensor,  # (n,), positive
    generator: torch.Generator,
) -> LengthScales | None:
    """Length scales with constant noise; None where there are too few rows."""
    if len(X) < MIN_ROWS or bool((y == y[0]).all()):
        return None
    kept = torch.arange(len(X))
    if len(X) > MAX_ROWS:
        kept = torch.randperm(len(X), generator=generator)[:MAX_ROWS].sort().values
    with threads_for(0):
        found = fit_covariance(X[kept], y[kept], 1 / weight[kept], generator)
    return LengthScales(kept, *found)


@torch.no_grad()
def fit_kernel(
    scales: LengthScales,
    X: Tensor,  # (n, p)
    y: Tensor,  # (n,)
    weight: Tensor,  # (n,), positive
    g: Tensor,  # (n,), noise variance of the networks together
    held_out_rows: Tensor,  # (K, n_held_out), of each network
    held_out_g: Tensor,  # (K, n_held_out), noise variance of that network alone
    noise_floor: float,
    crew: Crew | None = None,
) -> KernelMember:
    """The noise of the rows kept, and its factor.

    Networks have seen the rows that they do not hold out: their g is too small there.
    So length scales are fitted with constant noise, and held-out rows are judged with
    the g of the network that has not seen them.
    """
    kept, covariance, sigma2 = scales
    rows = X[kept], y[kept], 1 / weight[kept]
    with threads_for(0):
        unit = sigma2 / float(g[kept].log().mean().exp())
        rows = *rows[:2], unit * g[kept] * rows[2]
        factor, nll, usual = _choose_factor(
            covariance,
            rows,
            [~torch.isin(kept, block) for block in held_out_rows],
            _Judged.of(X, y, weight, unit * held_out_g, held_out_rows),
            noise_floor,
            crew or Crew(),
        )
    X_kept, y_kept, noise = _without_repeats(rows)
    return KernelMember(
        covariance,
        X_kept,
        y_kept,
        (factor * noise).clamp_(min=noise_floor),
        factor * unit,
        nll,
        usual,
        noise_floor,
    )


class _Judged(NamedTuple):
    """Some of the rows that each network holds out."""

    X: Tensor  # (K, m, p)
    y: Tensor  # (K, m)
    weight: Tensor  # (K, m)
    noise: Tensor  # (K, m), before the factor

    @classmethod
    def of(
        cls, X: Tensor, y: Tensor, weight: Tensor, noise: Tensor, rows: Tensor
    ) -> "_Judged":
        size = -(-JUDGED_ROWS // len(rows))
        few = rows[:, :size]
        return cls(X[few], y[few], weight[few], noise[:, :size])


def _choose_factor(
    covariance: Covariance,
    rows: TrainingRows,  # with their noise before the factor
    used: list[Tensor],  # (n,) each, rows that each network does not hold out
    judged: _Judged,
    floor: float,
    crew: Crew,
) -> tuple[float, float, float]:
    """c, its held-out NLL, and the usual φᵀΣφ of rows that are not in the posterior."""

    @torch.no_grad()
    def judge(i: int) -> Tensor:  # (2, n_factors, m): NLL and φᵀΣφ of a network's rows
        X, y, noise = (part[used[i]] for part in rows)
        found, start = [], 0
        for near in near_rows(covariance, _without_repeats((X, y, noise)), judged.X[i]):
            part = slice(start, start + len(near.k))
            start = part.stop
            by_factor = []
            for c in FACTORS:
                mu, variance = near.posterior((c * near.noise).clamp(min=floor))
                v = variance + (c * judged.noise[i, part]).clamp(min=floor)
                nll = gaussian_nll(judged.y[i, part], mu, v)
                by_factor.append(torch.stack([nll, variance]))
            found.append(torch.stack(by_factor, dim=1))
        return torch.cat(found, dim=-1)

    tasks = [partial(judge, i) for i in range(len(used))]
    nll, epistemic = torch.cat(crew.run_all(tasks), dim=-1)
    weight = judged.weight.flatten()
    by_factor = nll @ weight / weight.sum()
    best = int(by_factor.argmin())
    usual = epistemic[best].quantile(USUAL_LEVEL)
    return FACTORS[best], float(by_factor[best]), float(usual)


def _without_repeats(rows: TrainingRows) -> TrainingRows:
    """Rows that differ, with the weighted mean of y and the noise of that mean.

    The posterior is the same, and rows that repeat do not fill a neighbourhood.
    """
    X, y, noise = rows
    different, group = torch.unique(X, dim=0, return_inverse=True)
    if len(different) == len(X):
        return rows
    precision = y.new_zeros(len(different)).index_add_(0, group, 1 / noise)
    means = y.new_zeros(len(different)).index_add_(0, group, y / noise) / precision
    return different, means, 1 / precision
