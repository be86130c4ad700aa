"""X → φ, μ, h²: two-headed networks, all members in one batched module.

Everything here lives in standardised units of X and y.
"""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import silu, softplus

# Training starts near μ = 0 and h² = 1, mean and variance of a standardised target.
HEAD_GAIN = 0.3
BIAS_BOUND = 0.1
SOFTPLUS_IS_ONE = math.log(math.e - 1)

# What a member sees of the encoded inputs: the features and their bins, the features
# and sines of them with learned frequencies, or the features alone.
VIEWS = ("bins", "periodic", "raw")
N_FREQUENCIES = 4  # of each feature
FREQUENCY_SPREAD = 0.6 * math.pi  # radians per standard deviation of the feature


class NetworkOutput(NamedTuple):
    """What one forward pass gives, for each of the K members."""

    phi: Tensor  # (K, n, d)
    mu: Tensor  # (K, n)
    h2: Tensor  # (K, n)


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Layer k on batch k, (K, n, m) → (K, n, k), in memory units first and rows last.

    Products are a fifth faster in that order. One member is faster without the axis of
    members.
    """
    if len(weight) == 1:
        return torch.addmm(bias[0].mT, weight[0].mT, x[0].mT).mT[None]
    return torch.baddbmm(bias.mT, weight.mT, x.mT).mT


def _silu(x: Tensor) -> Tensor:
    """In place, where no gradient asks for x."""
    return silu(x, inplace=not torch.is_grad_enabled())


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
        if len(self.left) == 0:
            return x
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
        return _linear(x, self.weight, self.bias)


class FirstLayer(BatchedLinear):
    """First layer of the members that share a view of the inputs.

    Each member multiplies each of its inputs by a factor that starts at one and learns
    ``scaling_rate`` times as fast as the weights: it selects features.
    """

    factor: nn.Parameter | None
    frequency: nn.Parameter | None

    def __init__(
        self,
        view: str,
        encoding: PiecewiseLinearEncoding,
        n_members: int,
        n_outputs: int,
        scaling_rate: float,
        generator: torch.Generator,
    ) -> None:
        n_raw = encoding.n_raw
        n_inputs = {
            "bins": encoding.n_outputs,
            "periodic": n_raw * (1 + 2 * N_FREQUENCIES),
            "raw": n_raw,
        }[view]
        super().__init__(
            n_members,
            n_inputs,
            n_outputs,
            generator,
            n_raw=n_raw if view == "bins" else None,
        )
        self.view, self.n_raw, self.scaling_rate = view, n_raw, scaling_rate
        self.factor = self.frequency = None
        if scaling_rate:
            self.factor = nn.Parameter(
                torch.zeros(n_members, n_inputs, 1, dtype=torch.float32)
            )
        if view == "periodic":
            shape = (n_members, n_raw, N_FREQUENCIES)
            frequency = torch.empty(shape, dtype=torch.float32)
            self.frequency = nn.Parameter(
                frequency.normal_(0.0, FREQUENCY_SPREAD, generator=generator)
            )

    @property
    def n_members(self) -> int:
        """Members that share the view."""
        return int(self.weight.shape[0])

    @property
    def n_inputs(self) -> int:
        """Inputs of each member: the first of the encoding, and perhaps sines."""
        return int(self.weight.shape[1])

    def forward(self, x: Tensor) -> Tensor:  # (n, p) or (k, n, p) → (k, n, n_outputs)
        """Apply the layer of each member to what it sees of encoded inputs."""
        inputs = self._seen(x if x.ndim == 3 else x.expand(self.n_members, *x.shape))
        if self.factor is None:
            return _linear(inputs, self.weight, self.bias)
        # On the weights, which are fewer than the inputs.
        scaled = self.weight * (1 + self.scaling_rate * self.factor)
        return _linear(inputs, scaled, self.bias)

    def _seen(self, x: Tensor) -> Tensor:
        if self.view == "bins":
            return x
        raw = x[..., : self.n_raw]
        if self.frequency is None:
            return raw
        raw = raw.mT  # (k, p, n)
        angle = (raw.unsqueeze(2) * self.frequency.unsqueeze(-1)).flatten(1, 2)
        return torch.cat([raw, angle.sin(), angle.cos()], dim=1).mT


def dealt_out(n_members: int, n_views: int) -> list[int]:
    """Members of each view: as equal as can be, the first views first."""
    return [(n_members + n_views - 1 - i) // n_views for i in range(n_views)]


class HeteroscedasticNetwork(nn.Module):
    """K members: shared-nothing trunks, each with a mean head and a noise head.

    h² = softplus(·) + variance_floor. Encoding, widths and floor are common. The
    members are dealt out to the views, which differ in the first layer only.
    """

    def __init__(
        self,
        encoding: PiecewiseLinearEncoding,
        layer_sizes: Sequence[int],  # hidden layers, then d, the size of φ
        n_members: int,
        variance_floor: float,
        generator: torch.Generator,
        views: Sequence[str] = ("bins",),
        scaling_rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.encoding = encoding
        self.first = nn.ModuleList(
            FirstLayer(view, encoding, n, layer_sizes[0], scaling_rate, generator)
            for view, n in zip(views, dealt_out(n_members, len(views)), strict=True)
            if n
        )
        self.trunk = nn.ModuleList(
            BatchedLinear(n_members, a, b, generator) for a, b in pairwise(layer_sizes)
        )
        self.mean_head = BatchedLinear(n_members, layer_sizes[-1], 1, generator)
        self.noise_head = BatchedLinear(n_members, layer_sizes[-1], 1, generator)
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

    def features(self, x: Tensor) -> Tensor:
        """φ(x), shape (K, n, d), from encoded inputs of shape (n, p) or (K, n, p)."""
        parts = zip(self.first, self.members_by_view(), strict=True)
        seen = [f(x if x.ndim == 2 else x[part]) for f, part in parts]
        phi = seen[0] if len(seen) == 1 else torch.cat([z.mT for z in seen]).mT
        phi = _silu(phi)
        for layer in self.trunk:
            phi = _silu(layer(phi))
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

    def members_by_view(self) -> list[slice]:
        """Which members share each view."""
        ends = list(accumulate(first.n_members for first in self.first))
        return [slice(a, b) for a, b in pairwise([0, *ends])]

    def parameters_of_members(self) -> list[tuple[nn.Parameter, slice]]:
        """Each parameter, and the members to whom its first axis belongs."""
        parts = zip(self.first, self.members_by_view(), strict=True)
        found = [(p, part) for first, part in parts for p in first.parameters()]
        common = [*self.trunk, self.mean_head, self.noise_head]
        everyone = slice(0, self.n_members)
        return found + [(p, everyone) for m in common for p in m.parameters()]

    def last_layer_weights(self) -> Tensor:
        """Trained weights of the mean, the bias last, shape (K, d + 1)."""
        head = self.mean_head
        stacked = torch.cat([head.weight, head.bias], dim=1).squeeze(-1)
        return stacked.detach().clone()
