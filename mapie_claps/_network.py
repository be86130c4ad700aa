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

# Training starts near μ = 0 and h² = 1, mean and variance of a standardised target.
HEAD_GAIN = 0.3
BIAS_BOUND = 0.1
SOFTPLUS_IS_ONE = math.log(math.e - 1)


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

    def __init__(self, edges: Sequence[Tensor]) -> None:  # one tensor per column
        super().__init__()
        bins = [(j, e[:-1], e[1:] - e[:-1]) for j, e in enumerate(edges)]
        none = torch.empty(0, dtype=torch.float32)
        self.register_buffer("left", torch.cat([none, *(left for _, left, _ in bins)]))
        self.register_buffer("width", torch.cat([none, *(w for _, _, w in bins)]))
        columns = [torch.full((len(left),), j) for j, left, _ in bins]
        self.register_buffer("column", torch.cat([none.long(), *columns]))
        self.n_raw = len(edges)
        self.n_outputs = len(edges) + len(self.left)

    def forward(self, x: Tensor) -> Tensor:  # (..., p) → (..., p + number of bins)
        """Encode the last axis."""
        position = (x[..., self.column] - self.left) / self.width
        return torch.cat([x, position.clamp_(0, 1)], dim=-1)


class BatchedLinear(nn.Module):
    """K linear layers, applied to K batches at once."""

    def __init__(
        self,
        n_members: int,
        n_inputs: int,
        n_outputs: int,
        generator: torch.Generator,
        *,
        gain: float = 1.0,
        n_raw: int | None = None,  # inputs beyond these start with zero weights
    ) -> None:
        super().__init__()
        fan_in = n_inputs if n_raw is None else n_raw
        weight = torch.zeros(n_members, n_inputs, n_outputs, dtype=torch.float32)
        bound = gain / math.sqrt(fan_in)
        weight[:, :fan_in].uniform_(-bound, bound, generator=generator)
        bias = torch.empty(n_members, 1, n_outputs, dtype=torch.float32)
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(
            bias.uniform_(-BIAS_BOUND, BIAS_BOUND, generator=generator)
        )

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
