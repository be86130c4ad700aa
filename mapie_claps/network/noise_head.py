"""φ → h²: a variance head for a network that has none, on its frozen features."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from .._validation import check_some_weight
from ..files.codec import saved_as
from ..files.container import hash_tensors
from .batches import Batch, KeptBatches
from .interface import Features
from .own import Backbone

# Added to the squared residuals, in units of the variance of y: a network that passes
# through its training rows would otherwise have h² = 0.
RELATIVE_FLOOR = 1e-6
MAX_PASSES = 60


class NoiseRows(NamedTuple):
    """Features, squared residuals and weights of some rows."""

    phi: Tensor  # (n, d)
    squares: Tensor  # (n,), positive
    weight: Tensor  # (n,)


@saved_as("noise head")
@dataclass(frozen=True)
class NoiseHead:
    """log h² = [φ, 1]ᵀa, held within the range that it takes on the training rows."""

    weights: Tensor  # (d + 1,)
    low: float
    high: float

    def variance(self, phi: Tensor) -> Tensor:  # (n, d) → (n,)
        """h²."""
        log_h2 = phi @ self.weights[:-1] + self.weights[-1]
        return log_h2.clamp(self.low, self.high).exp()


class _Pass(NamedTuple):
    """Sums of one pass over the rows at some weights."""

    loss: float
    gradient: Tensor  # (d + 1,)
    low: float
    high: float


def fit_noise_head(rows: Iterable[NoiseRows], penalty: float) -> NoiseHead:
    """Maximum likelihood of r ~ N(0, h²) with a ridge penalty, by Fisher scoring.

    The loss ½Σ s[log h² + r²/h²] is convex in the weights, and its Fisher matrix
    ½Σ s φφᵀ does not change from pass to pass. Each pass is a sum over rows. The
    penalty is for standardised features: a priori log h² varies with variance
    1 / penalty over the rows.
    """
    gram, squares = _second_moments(rows)
    n = gram[-1, -1]
    check_some_weight(float(n))
    standardise = _standardising_map(gram)
    ridge = torch.full_like(squares.expand(len(gram)), penalty * (len(gram) - 1))
    ridge[-1] = 0.0
    fisher = 0.5 * standardise @ gram @ standardise.T + ridge.diag()
    factor = torch.linalg.cholesky(fisher)

    def sums(a: Tensor) -> _Pass:
        return _penalised(rows, a, standardise, ridge)

    a = torch.zeros_like(ridge)
    a[-1] = (squares / n).log()
    current = sums(a)
    step_size = 1.0
    for _ in range(MAX_PASSES):
        step = torch.cholesky_solve(current.gradient[:, None], factor).squeeze(1)
        gain = float(current.gradient @ step)
        if gain <= 1e-13 * float(n):
            break
        candidate = sums(a - step_size * step)
        # The Fisher matrix may fall short of the Hessian where residuals are large.
        if candidate.loss <= current.loss - 1e-4 * step_size * gain:
            a, current, step_size = a - step_size * step, candidate, 1.0
        else:
            step_size /= 2
    return NoiseHead(standardise.T @ a, current.low, current.high)


def _with_constant(phi: Tensor) -> Tensor:
    return torch.cat([phi, phi.new_ones(len(phi), 1)], dim=1)


def _second_moments(rows: Iterable[NoiseRows]) -> tuple[Tensor, Tensor]:
    """Σ s [φ, 1][φ, 1]ᵀ and Σ s r²."""
    gram: Tensor | float = 0.0
    squares: Tensor | float = 0.0
    for phi, r2, weight in rows:
        features = _with_constant(phi)
        gram = gram + features.T @ (features * weight[:, None])
        squares = squares + (weight * r2).sum()
    return torch.as_tensor(gram), torch.as_tensor(squares)


def _standardising_map(gram: Tensor) -> Tensor:
    """A with A [φ, 1] = [(φ − mean)/std, 1]; a constant feature keeps its unit."""
    n = gram[-1, -1]
    mean = gram[-1, :-1] / n
    mean_square = gram.diagonal()[:-1] / n
    variance = mean_square - mean.square()
    constant = variance <= 1e-12 * mean_square
    std = torch.where(constant, torch.ones_like(variance), variance.clamp(min=0).sqrt())
    standardise = torch.cat([1 / std, std.new_ones(1)]).diag()
    standardise[:-1, -1] = -mean / std
    return standardise


def _penalised(
    rows: Iterable[NoiseRows], a: Tensor, standardise: Tensor, ridge: Tensor
) -> _Pass:
    """Loss and gradient at the weights ``a`` of the standardised features."""
    weights = standardise.T @ a
    loss = 0.5 * float(a @ (ridge * a))
    gradient = ridge * a
    low, high = float("inf"), float("-inf")
    for phi, r2, weight in rows:
        features = _with_constant(phi)
        log_h2 = features @ weights
        ratio = r2 * (-log_h2).exp()
        loss += 0.5 * float((weight * (log_h2 + ratio)).sum())
        along = features.T @ (0.5 * weight * (1 - ratio))
        gradient = gradient + standardise @ along
        counted = log_h2[weight > 0]
        if len(counted):
            low = min(low, float(counted.min()))
            high = max(high, float(counted.max()))
    return _Pass(loss, gradient, low, high)


@saved_as("own network with its head")
@dataclass(frozen=True)
class OwnNetwork:
    """The copy of a user's network, and the head fitted on it if it has none."""

    backbone: Backbone
    noise_head: NoiseHead | None = None

    def __call__(self, x: Tensor) -> Features:
        """φ, μ and h² of some rows, in units of y."""
        out = self.backbone(x)
        if self.noise_head is None:
            return out
        return out._replace(h2=self.noise_head.variance(out.phi[0])[None])

    def trained_weights(self) -> Tensor:  # (1, d + 1)
        """Weights of the mean, the bias last."""
        return self.backbone.trained_weights()

    def tensors(self) -> list[Tensor]:
        """Those of the network and of the head."""
        head = [] if self.noise_head is None else [self.noise_head.weights]
        return [*self.backbone.tensors(), *head]

    def fingerprint(self) -> str:
        """Hash of the network and of the head."""
        inner, head = self.backbone.fingerprint(), self.noise_head
        if head is None:
            return inner
        return hash_tensors({"head": head.weights}, f"{inner} {head.low} {head.high}")

    @property
    def needs_head(self) -> bool:
        """Whether h² has yet to be fitted."""
        return self.backbone.noise is None and self.noise_head is None

    def with_head(
        self, batches: Callable[[], Iterable[Batch]], variance: float, penalty: float
    ) -> "OwnNetwork":
        """Fit a variance head; ``batches`` starts a pass over the training rows."""
        floor = RELATIVE_FLOOR * (variance or 1.0)

        def compute() -> Iterator[NoiseRows]:
            for batch in batches():
                out = self.backbone(batch.x)
                squares = (batch.target - out.mu[0]).square() + floor
                yield NoiseRows(out.phi[0], squares, batch.row_weight)

        rows = KeptBatches(compute, lambda r: r.phi.numel())
        return replace(self, noise_head=fit_noise_head(rows, penalty))
