"""X → φ, μ, h²: two-headed networks, all members in one batched module.

Everything here lives in standardised units of X and y.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import silu, softplus


class NetworkOutput(NamedTuple):
    """What one forward pass gives, for each of the K members."""

    phi: Tensor  # (K, n, d)
    mu: Tensor  # (K, n)
    h2: Tensor  # (K, n)


class PiecewiseLinearEncoding(nn.Module):
    """Standardised features, followed by how far each has travelled in its bins.

    The encoding of a feature in a bin is 0 left of the bin, 1 right of it, and linear
    inside. The raw feature stays beside it: it carries what lies beyond the bins.
    """

    left: Tensor
    width: Tensor
    column: Tensor

    def __init__(self, edges: Sequence[Tensor]) -> None:
        super().__init__()
        left = [e[:-1] for e in edges]
        width = [e[1:] - e[:-1] for e in edges]
        column = [torch.full((len(b),), j) for j, b in enumerate(left)]
        empty = torch.empty(0)
        self.register_buffer("left", torch.cat([empty, *left]))
        self.register_buffer("width", torch.cat([empty, *width]))
        self.register_buffer("column", torch.cat([empty, *column]).long())
        self.n_outputs = len(edges) + len(self.left)

    def forward(self, x: Tensor) -> Tensor:  # (..., p) → (..., p + number of bins)
        """Encode the last axis."""
        position = (x[..., self.column] - self.left) / self.width
        return torch.cat([x, position.clamp_(0, 1)], dim=-1)


def quantile_edges(x: Tensor, n_bins: int) -> list[Tensor]:
    """Distinct quantiles of each column; a constant column gets no bin."""
    levels = torch.linspace(0, 1, n_bins + 1, dtype=x.dtype)
    edges = [torch.unique(q) for q in torch.quantile(x, levels, dim=0).T]
    return [e if len(e) > 1 else e[:0] for e in edges]


class BatchedLinear(nn.Module):
    """K linear layers, applied to K batches at once."""

    def __init__(
        self, n_members: int, n_inputs: int, n_outputs: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        bound = 1 / math.sqrt(n_inputs) if n_inputs else 0.0

        def uniform(*shape: int) -> nn.Parameter:
            return nn.Parameter(
                torch.empty(shape).uniform_(-bound, bound, generator=generator)
            )

        self.weight = uniform(n_members, n_inputs, n_outputs)
        self.bias = uniform(n_members, 1, n_outputs)

    def forward(self, x: Tensor) -> Tensor:  # (K, n, n_inputs) → (K, n, n_outputs)
        """Apply layer k to batch k."""
        return torch.baddbmm(self.bias, x, self.weight)


class HeteroscedasticNetwork(nn.Module):
    """K members: shared-nothing trunks, each with a mean head and a noise head.

    h² = softplus(·) + variance_floor. Encoding, widths and floor are common.
    """

    def __init__(
        self,
        encoding: PiecewiseLinearEncoding,
        layer_sizes: Sequence[int],  # hidden layers, then d, the size of φ
        n_members: int,
        variance_floor: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        sizes = [encoding.n_outputs, *layer_sizes]
        self.encoding = encoding
        self.trunk = nn.ModuleList(
            BatchedLinear(n_members, a, b, generator) for a, b in pairwise(sizes)
        )
        self.mean_head = BatchedLinear(n_members, sizes[-1], 1, generator)
        self.noise_head = BatchedLinear(n_members, sizes[-1], 1, generator)
        self.layer_sizes = tuple(layer_sizes)
        self.variance_floor = variance_floor

    @property
    def n_members(self) -> int:
        """Number of members K."""
        return int(self.mean_head.weight.shape[0])

    @property
    def representation_size(self) -> int:
        """Size d of φ, without the constant."""
        return int(self.mean_head.weight.shape[1])

    def features(self, x: Tensor, masks: Sequence[Tensor] = ()) -> Tensor:
        """φ(x), shape (K, n, d), from encoded inputs of shape (n, p) or (K, n, p)."""
        phi = x if x.ndim == 3 else x.expand(self.n_members, *x.shape)
        for i, layer in enumerate(self.trunk):
            phi = silu(layer(phi))
            if masks:
                phi = phi * masks[i]
        return phi

    def noise_variance(self, phi: Tensor) -> Tensor:
        """h², shape (K, n), from φ."""
        raw = self.noise_head(phi).squeeze(-1)
        return softplus(raw) + self.variance_floor

    def heads(self, phi: Tensor) -> NetworkOutput:
        """Mean and noise variance on top of the features."""
        return NetworkOutput(
            phi, self.mean_head(phi).squeeze(-1), self.noise_variance(phi)
        )

    def forward(self, x: Tensor) -> NetworkOutput:
        """All three quantities of all members from one pass over (n, p) inputs."""
        return self.heads(self.features(self.encoding(x)))

    def last_layer_weights(self) -> Tensor:
        """Trained weights of the mean, the bias last, shape (K, d + 1)."""
        head = self.mean_head
        stacked = torch.cat([head.weight, head.bias], dim=1).squeeze(-1)
        return stacked.detach().clone()
