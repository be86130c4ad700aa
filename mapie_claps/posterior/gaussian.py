"""Gram → Σ → v: the Gaussian posterior of every member's last layer.

The sums over rows come from ``laplace.Laplace`` with our curvature backend, some
batches of features at a time. What is kept are tensors: a fitted Laplace object does
not pickle and holds a copy of the network.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce

import laplace
import torch
from laplace.utils import invsqrt_precision
from torch import Tensor, nn

from ..exceptions import NotPositiveDefiniteError, NumericalWarning
from ..network.ensemble import HeteroscedasticNetwork
from ..network.trainer import gaussian_nll
from .curvature import HeteroscedasticGGN

# Elements of φ in one batch, few enough for the cache, and rows. Where φ is wide and
# few rows would fill it, as many rows as are worth a matrix product.
BATCH_ELEMENTS, BATCH_ROWS = 2**19, 2**12
WIDE_ELEMENTS, WIDE_ROWS = 2**22, 2**10
# Elements for one call of Laplace.fit, which has a price of its own; also times d².
FIT_ELEMENTS, FIT_SQUARES = 2**20, 8
KEPT_ELEMENTS = 2**24
PRIOR_PRECISION_GRID = tuple(10.0**e for e in range(-5, 5))


@dataclass(frozen=True)
class FeatureBatch:
    """What the posterior needs of a set of rows."""

    phi: Tensor  # (K, n, d)
    h2: Tensor  # (K, n)
    y: Tensor  # (K, n)
    weight: Tensor  # (K, n), zero for rows that a member leaves out

    def homoscedastic(self) -> "FeatureBatch":
        """The same rows with h² = 1."""
        return replace(self, h2=torch.ones_like(self.h2))


@dataclass(frozen=True)
class LastLayerMoments:
    """Sums over rows that fix the posterior for every λ.

    The sums of disjoint sets of rows add up to the sums of their union.
    """

    gram: Tensor  # HᵀWH: (K, d + 1, d + 1), or (K, d + 1) for the diagonal structure
    cross: Tensor  # HᵀWy: (K, d + 1)
    loss: Tensor  # ½Σ s[(y − μ)²/h² + log h²] at the trained weights: (K,)
    n_rows: int

    def __add__(self, other: "LastLayerMoments") -> "LastLayerMoments":
        return LastLayerMoments(
            self.gram + other.gram,
            self.cross + other.cross,
            self.loss + other.loss,
            self.n_rows + other.n_rows,
        )

    def add_(self, other: "LastLayerMoments") -> "LastLayerMoments":
        """The sum of both, in the tensors of the first."""
        self.gram.add_(other.gram)
        self.cross.add_(other.cross)
        self.loss.add_(other.loss)
        return replace(self, n_rows=self.n_rows + other.n_rows)

    def __truediv__(self, noise_variance: float) -> "LastLayerMoments":
        """Sums for h² = ``noise_variance`` from those for h² = 1 (but the loss)."""
        return replace(
            self, gram=self.gram / noise_variance, cross=self.cross / noise_variance
        )


@dataclass(frozen=True)
class LastLayerPosterior:
    """N(mean, Σ) of every member's last layer, Σ = (λI + HᵀWH)⁻¹."""

    moments: LastLayerMoments
    trained: Tensor  # (K, d + 1), the weights that training left, bias last
    last_layer: str  # "trained" or "ridge"
    prior_precision: float
    mean: Tensor  # (K, d + 1)
    scale: Tensor  # (K, d + 1, d + 1) with Σ = scale scaleᵀ; (K, d + 1) if diagonal

    def mu(self, phi: Tensor) -> Tensor:  # (K, n, d) → (K, n)
        """Mean φᵀŵ."""
        weight, bias = self.mean[:, None, :-1], self.mean[:, None, -1:]
        return torch.baddbmm(bias, weight, phi.mT).squeeze(1)

    def epistemic(self, phi: Tensor) -> Tensor:  # (K, n, d) → (K, n)
        """φᵀΣφ as a sum of squares, so that it cannot be negative."""
        if self.scale.ndim == 2:
            weighted = phi * self.scale[:, None, :-1]
            return weighted.square_().sum(-1) + self.scale[:, -1:].square()
        root = self.scale.mT
        return torch.baddbmm(root[:, :, -1:], root[:, :, :-1], phi.mT).square_().sum(1)

    def covariance(self) -> Tensor:
        """Σ of every member, shape (K, d + 1, d + 1)."""
        if self.scale.ndim == 2:
            return torch.diag_embed(self.scale.square())
        return self.scale @ self.scale.mT

    def with_prior_precision(self, prior_precision: float) -> "LastLayerPosterior":
        """Posterior for another λ from the same sums."""
        return make_posterior(
            self.moments, self.trained, self.last_layer, prior_precision
        )


def make_posterior(
    moments: LastLayerMoments, trained: Tensor, last_layer: str, prior_precision: float
) -> LastLayerPosterior:
    """Factor λI + HᵀWH, and solve for ŵ where the last layer is refitted."""
    scale = posterior_scale(moments.gram, prior_precision)
    mean = trained if last_layer == "trained" else _solve(scale, moments.cross)
    return LastLayerPosterior(
        moments, trained, last_layer, prior_precision, mean, scale
    )


def posterior_scale(gram: Tensor, prior_precision: float) -> Tensor:
    """Factor of Σ for every member; jitter, where needed, is reported."""
    if gram.ndim == 2:
        return (gram + prior_precision).rsqrt()
    precision = gram + prior_precision * torch.eye(gram.shape[-1], dtype=gram.dtype)
    try:
        scale: Tensor = invsqrt_precision(precision)
        sound = bool(torch.isfinite(scale).all())
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        sound = False
    # Contiguous, as a file brings it back: products then agree to the last bit.
    if sound:
        return scale.contiguous()
    return torch.stack([_factor(p) for p in precision])


def _factor(precision: Tensor) -> Tensor:
    """laplace-torch's triangular factor, with growing jitter where rounding wins."""
    size = float(precision.diagonal().max())
    identity = torch.eye(len(precision), dtype=precision.dtype)
    for jitter in (0.0, *(size * 10.0**e for e in range(-15, -8))):
        try:
            scale: Tensor = invsqrt_precision(precision + jitter * identity)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            continue
        if bool(torch.isfinite(scale).all()):
            if jitter:
                warnings.warn(
                    f"Added {jitter:.1e} to the diagonal of the posterior precision "
                    f"(largest entry {size:.1e}), which was not positive definite to "
                    "rounding. Raise prior_precision or variance_floor to avoid it.",
                    NumericalWarning,
                    stacklevel=2,
                )
            return scale
    raise NotPositiveDefiniteError(
        f"The posterior precision (largest entry {size!r}) is not positive definite. "
        "Raise prior_precision or variance_floor, or look for extreme values in X."
    )


def _solve(scale: Tensor, cross: Tensor) -> Tensor:
    """Σ b for every member."""
    return (scale @ (scale.mT @ cross[..., None])).squeeze(-1)


class _LastLayer(nn.Linear):
    def reset_parameters(self) -> None:
        """Not: weights are given, and the global generator is not ours to draw from."""


class _Head(nn.Module):
    """The last layer alone, on features: what laplace-torch sees of a member."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.mean_head = _LastLayer(len(weights) - 1, 1, dtype=weights.dtype)
        with torch.no_grad():
            self.mean_head.weight.copy_(weights[None, :-1])
            self.mean_head.bias.copy_(weights[-1:])

    def forward(self, phi: Tensor) -> Tensor:  # (n, d) → (n, 1)
        out: Tensor = self.mean_head(phi)
        return out


def _laplace(
    weights: Tensor, structure: str, **backend_kwargs: object
) -> laplace.BaseLaplace:
    """laplace-torch's last-layer Laplace of one member, with our likelihood."""
    return laplace.Laplace(
        _Head(weights),
        "regression",
        subset_of_weights="last_layer",
        hessian_structure=structure,
        last_layer_name="mean_head",
        backend=HeteroscedasticGGN,
        backend_kwargs=backend_kwargs,
    )


class _Loader:
    """Batches as one member sees them, and what laplace-torch asks of a loader.

    torch's DataLoader collates row by row, which costs ten times the Gram matrix.
    """

    def __init__(self, k: int) -> None:
        self.k = k
        self.batches: list[FeatureBatch] = []

    @property
    def dataset(self) -> range:
        """Something as long as there are rows."""
        return range(sum(batch.y.shape[1] for batch in self.batches))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self.batches:
            columns = (batch.y, batch.weight, batch.h2)
            targets = torch.stack([column[self.k] for column in columns])
            yield batch.phi[self.k], targets.T


class _Member:
    """One member's last layer in laplace-torch, asked for sums again and again."""

    def __init__(self, weights: Tensor, structure: str, k: int) -> None:
        self._cross = torch.zeros_like(weights)
        self._loader = _Loader(k)
        self._la = _laplace(weights, structure, cross_moment=self._cross)

    def sums(self, batches: list[FeatureBatch]) -> tuple[Tensor, Tensor, Tensor]:
        """HᵀWH, HᵀWy and the loss over some batches."""
        self._loader.batches = batches
        self._cross.zero_()
        self._la.fit(self._loader)  # begins anew with each call
        return self._la.H, self._cross.clone(), self._la.loss


def _members(trained: Tensor, structure: str) -> list[_Member]:
    return [_Member(weights, structure, k) for k, weights in enumerate(trained)]


def _group_moments(
    members: list[_Member], batches: list[FeatureBatch]
) -> LastLayerMoments:
    """Sums of all members over some batches."""
    parts = zip(*(member.sums(batches) for member in members), strict=True)
    gram, cross, loss = (torch.stack(part) for part in parts)
    return LastLayerMoments(gram, cross, loss, sum(b.y.shape[1] for b in batches))


def _groups(batches: Iterable[FeatureBatch]) -> Iterator[list[FeatureBatch]]:
    """Some batches at a time."""
    group: list[FeatureBatch] = []
    for batch in batches:
        group.append(batch)
        worth = min(WIDE_ELEMENTS, FIT_SQUARES * batch.phi.shape[2] ** 2)
        elements = sum(b.phi.numel() + 3 * b.y.numel() for b in group)
        if elements >= max(FIT_ELEMENTS, worth):
            yield group
            group = []
    if group:
        yield group


def both_moments(
    batches: Iterable[FeatureBatch], trained: Tensor, structure: str
) -> tuple[LastLayerMoments, LastLayerMoments]:
    """Sums with W = diag(1/h²) and with W = I, from one walk over the rows."""
    members = _members(trained, structure)
    pairs = (
        (
            _group_moments(members, group),
            _group_moments(members, [batch.homoscedastic() for batch in group]),
        )
        for group in _groups(batches)
    )
    return reduce(lambda a, b: (a[0].add_(b[0]), a[1].add_(b[1])), pairs)


def sum_moments(
    batches: Iterable[FeatureBatch], trained: Tensor, structure: str
) -> LastLayerMoments:
    """Sums with W = diag(1/h²) over all batches."""
    members = _members(trained, structure)
    return reduce(
        LastLayerMoments.add_,
        (_group_moments(members, group) for group in _groups(batches)),
    )


def batch_moments(
    batch: FeatureBatch, trained: Tensor, structure: str
) -> LastLayerMoments:
    """Sums with W = diag(1/h²) over one batch."""
    return sum_moments([batch], trained, structure)


def rows_per_batch(network: HeteroscedasticNetwork) -> int:
    """Rows whose widest layer fills one batch."""
    widest = max(network.encoding.n_outputs, *network.layer_sizes) * network.n_members
    return max(
        32,
        min(BATCH_ROWS, BATCH_ELEMENTS // widest),
        min(WIDE_ROWS, WIDE_ELEMENTS // widest),
    )


class FeatureBatches:
    """Features of the training rows, a batch at a time; may be walked again.

    Few rows are kept after the first walk, many are computed anew in each.
    """

    def __init__(
        self,
        network: HeteroscedasticNetwork,
        X: Tensor,  # (n, p)
        y: Tensor,  # (n,)
        weight: Tensor,  # (K, n)
    ) -> None:
        self.network, self.X, self.weight = network, X, weight
        self.y = y.expand_as(weight)
        elements = weight.numel() * network.representation_size
        self._kept: list[FeatureBatch] | None = None
        self._keep = elements <= KEPT_ELEMENTS

    def __iter__(self) -> Iterator[FeatureBatch]:
        if not self._keep:
            return self._compute()
        if self._kept is None:
            self._kept = list(self._compute())
        return iter(self._kept)

    def _compute(self) -> Iterator[FeatureBatch]:
        size = rows_per_batch(self.network)
        for start in range(0, len(self.X), size):
            part = slice(start, start + size)
            yield feature_batch(
                self.network, self.X[part], self.y[:, part], self.weight[:, part]
            )


@torch.no_grad()
def feature_batch(
    network: HeteroscedasticNetwork,
    X: Tensor,  # (n, p), or (K, n, p) where each member has rows of its own
    y: Tensor,  # (K, n)
    weight: Tensor,  # (K, n)
) -> FeatureBatch:
    """One forward pass."""
    phi = network.features(network.encoding(X))
    return FeatureBatch(phi, network.noise_variance(phi), y, weight)


def log_marginal_likelihood(posterior: LastLayerPosterior) -> float:
    """laplace-torch's evidence at the posterior's mean, summed over members."""
    structure = "diag" if posterior.scale.ndim == 2 else "full"
    moments, total = posterior.moments, 0.0
    for k, trained in enumerate(posterior.trained):
        gram, cross, mean = moments.gram[k], moments.cross[k], posterior.mean[k]
        step = mean - trained

        def curved(w: Tensor, gram: Tensor = gram) -> Tensor:
            return gram * w if gram.ndim == 1 else gram @ w

        la = _laplace(trained, structure)
        la.H, la.mean, la.n_data, la.n_outputs = gram, mean, moments.n_rows, 1
        # The loss is quadratic in the weights and known at the trained ones.
        slope = curved(trained) - cross
        la.loss = moments.loss[k] + step @ slope + 0.5 * step @ curved(step)
        prior = torch.tensor(posterior.prior_precision, dtype=mean.dtype)
        total += float(la.log_marginal_likelihood(prior))
    return total


def held_out_nll(posterior: LastLayerPosterior, rows: FeatureBatch) -> Tensor:
    """Predictive NLL of each member over rows that its sums leave out."""
    v = rows.h2 + posterior.epistemic(rows.phi)
    nll = gaussian_nll(rows.y, posterior.mu(rows.phi), v)
    return (nll * rows.weight).sum(1) / rows.weight.sum(1)


def minimise_over_prior_precision(objective: Callable[[float], float]) -> float:
    """Value of λ on the grid with the smallest objective."""
    return min(PRIOR_PRECISION_GRID, key=objective)
