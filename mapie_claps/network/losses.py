"""Two outputs of a member and its targets → loss and gradient of a batch.

Every loss uses the same networks, which have two linear outputs on φ: mean and noise
for the Gaussian likelihood, the mean alone for the squared error, two quantiles for
the pinball loss.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import softplus

_softplus_backward = torch.ops.aten.softplus_backward.grad_input
SOFTPLUS_BETA, SOFTPLUS_THRESHOLD = 1.0, 20.0  # torch's defaults


def gaussian_nll(y: Tensor, mu: Tensor, variance: Tensor) -> Tensor:
    """½[log v + (y − μ)²/v], without the constant."""
    return 0.5 * (variance.log() + (y - mu).square() / variance)


class Loss(Protocol):
    """What the trainer asks of a loss."""

    def by_row(self, out: Tensor, y: Tensor) -> Tensor:
        """Loss of each row, (K, n), from outputs of shape (K, 2, n)."""

    def with_gradient(
        self, out: Tensor, y: Tensor, share: Tensor, grad: Tensor
    ) -> Tensor:
        """Σ share · loss of each member, (K,); its gradient along ``out`` in ``grad``.

        Shapes: out and grad (K, 2, n); y and share (K, n).
        """


@dataclass(frozen=True)
class GaussianLoss:
    """β-NLL: the Gaussian likelihood, rows weighed by h²ᵝ, which counts as constant."""

    variance_floor: float
    beta: float = 0.0

    def by_row(self, out: Tensor, y: Tensor) -> Tensor:
        """Plain likelihood, whatever β is."""
        mu, raw = out.unbind(1)
        return gaussian_nll(y, mu, softplus(raw) + self.variance_floor)

    def with_gradient(
        self, out: Tensor, y: Tensor, share: Tensor, grad: Tensor
    ) -> Tensor:
        """With e = (μ − y)/h² and c = ½ share · h²ᵝ the loss is Σ c[log h² + (μ − y)e].

        Its gradient is 2ce along μ and c(1/h² − e²) along h².
        """
        mu, raw = out.unbind(1)
        grad_mu, grad_raw = grad.unbind(1)
        h2 = softplus(raw).add_(self.variance_floor)
        gap = mu - y
        precision = h2.reciprocal()
        e = gap * precision
        c = h2.pow(self.beta).mul_(share).mul_(0.5) if self.beta else 0.5 * share
        torch.mul(e, c, out=grad_mu).mul_(2)
        loss = gap.mul_(e).add_(h2.log_()).mul_(c).sum(1)
        grad_h2 = precision.addcmul_(e, e, value=-1).mul_(c)
        _softplus_backward(
            grad_h2, raw, SOFTPLUS_BETA, SOFTPLUS_THRESHOLD, grad_input=grad_raw
        )
        return loss


@dataclass(frozen=True)
class SquaredError:
    """(y − μ)²; the second output is not used."""

    def by_row(self, out: Tensor, y: Tensor) -> Tensor:
        """Squares."""
        return (out[:, 0] - y).square()

    def with_gradient(
        self, out: Tensor, y: Tensor, share: Tensor, grad: Tensor
    ) -> Tensor:
        """2(μ − y) along μ."""
        gap = out[:, 0] - y
        torch.mul(gap, share, out=grad[:, 0]).mul_(2)
        grad[:, 1] = 0
        return gap.square_().mul_(share).sum(1)


@dataclass(frozen=True)
class PinballLoss:
    """Sum of the quantile losses of both outputs at two levels."""

    levels: tuple[float, float]

    def by_row(self, out: Tensor, y: Tensor) -> Tensor:
        """Losses of both levels added up."""
        gap = y[:, None] - out
        level = self._level(out)
        return torch.maximum(level * gap, (level - 1) * gap).sum(1)

    def with_gradient(
        self, out: Tensor, y: Tensor, share: Tensor, grad: Tensor
    ) -> Tensor:
        """−level above the quantile, 1 − level below."""
        below = (y[:, None] < out).to(out)
        torch.mul(below - self._level(out), share[:, None], out=grad)
        return (self.by_row(out, y) * share).sum(1)

    def _level(self, out: Tensor) -> Tensor:
        return torch.tensor(self.levels, dtype=out.dtype, device=out.device)[:, None]
