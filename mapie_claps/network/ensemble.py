"""X → φ, μ, h²: two-headed networks, all members in one batched module.

Everything here lives in standardised units of X and y.
"""

import copy
import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import silu, softplus

from ..files.container import hash_tensors
from .encoding import PiecewiseLinearEncoding
from .interface import Features
from .views import VIEW_CLASSES, View, members_per_view

SMALL_BIAS = 0.1


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


class BatchedLinear(nn.Module):
    """K linear layers, applied to K batches at once.

    Initial weights are uniform within ±1/√fan_in, initial biases within ±bias_bound or,
    if that is None, as the weights, which is torch's way.
    """

    def __init__(
        self,
        n_members: int,
        n_inputs: int,
        n_outputs: int,
        generator: torch.Generator,
        *,
        bias_bound: float | None,
        n_started: int | None = None,  # inputs beyond these start with zero weights
    ) -> None:
        super().__init__()
        fan_in = n_inputs if n_started is None else n_started
        weight = torch.zeros(n_members, n_inputs, n_outputs, dtype=torch.float32)
        bound = 1.0 / math.sqrt(fan_in)
        weight[:, :fan_in].uniform_(-bound, bound, generator=generator)
        bias = torch.empty(n_members, 1, n_outputs, dtype=torch.float32)
        bound = bound if bias_bound is None else bias_bound
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(bias.uniform_(-bound, bound, generator=generator))

    def forward(self, x: Tensor) -> Tensor:  # (K, n, n_inputs) → (K, n, n_outputs)
        """Apply layer k to batch k."""
        return _linear(x, self.weight, self.bias)


class FirstLayer(BatchedLinear):
    """First layer of the members that share a view of the inputs.

    Each member multiplies each of its inputs by a factor that starts at one and learns
    ``scaling_rate`` times as fast as the weights: it selects features.
    """

    view: View
    factor: nn.Parameter | None

    def __init__(
        self,
        view: str,
        encoding: PiecewiseLinearEncoding,
        n_members: int,
        n_outputs: int,
        scaling_rate: float,
        generator: torch.Generator,
        bias_bound: float | None,
    ) -> None:
        seen = VIEW_CLASSES[view](encoding, n_members)
        super().__init__(
            n_members,
            seen.n_inputs,
            n_outputs,
            generator,
            bias_bound=bias_bound,
            n_started=seen.n_started,
        )
        seen.reset_parameters(generator)
        self.view, self.n_members, self.scaling_rate = seen, n_members, scaling_rate
        self.factor = None
        if scaling_rate:
            shape = (n_members, seen.n_inputs, 1)
            self.factor = nn.Parameter(torch.zeros(shape, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:  # (n, p) or (k, n, p) → (k, n, n_outputs)
        """Apply the layer of each member to what it sees of encoded inputs."""
        seen = self.view(x if x.ndim == 3 else x.expand(self.n_members, *x.shape))
        if self.factor is None:
            return _linear(seen, self.weight, self.bias)
        # On the weights, which are fewer than the inputs.
        scaled = self.weight * (1 + self.scaling_rate * self.factor)
        return _linear(seen, scaled, self.bias)


class HeteroscedasticNetwork(nn.Module):
    """K members: shared-nothing trunks, each with a mean head and a noise head.

    h² = softplus(·) + variance_floor. Encoding, widths and floor are common. The
    members are divided among the views, which differ in the first layer only.
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
        bias_bound: float | None = SMALL_BIAS,
    ) -> None:
        super().__init__()

        def layer(n_inputs: int, n_outputs: int) -> BatchedLinear:
            return BatchedLinear(
                n_members, n_inputs, n_outputs, generator, bias_bound=bias_bound
            )

        counts = members_per_view(n_members, len(views))
        width = layer_sizes[0]
        self.encoding = encoding
        self.first = nn.ModuleList(
            FirstLayer(view, encoding, n, width, scaling_rate, generator, bias_bound)
            for view, n in zip(views, counts, strict=True)
            if n
        )
        self.trunk = nn.ModuleList(layer(a, b) for a, b in pairwise(layer_sizes))
        self.mean_head = layer(layer_sizes[-1], 1)
        self.noise_head = layer(layer_sizes[-1], 1)
        self.layer_sizes = tuple(layer_sizes)
        self.variance_floor = variance_floor

    @property
    def n_members(self) -> int:
        """Number of members K."""
        return int(self.mean_head.weight.shape[0])

    @property
    def views(self) -> list[str]:
        """Names of the views that have members."""
        return [first.view.name for first in self.first]  # type: ignore[misc, union-attr]

    @property
    def scaling_rate(self) -> float:
        """Rate at which the factors of the inputs learn."""
        return float(self.first[0].scaling_rate)  # type: ignore[arg-type]

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

    def outputs(self, phi: Tensor) -> Tensor:
        """Both linear outputs on φ, (K, 2, n): the mean, and h² before softplus."""
        return torch.cat([self.mean_head(phi), self.noise_head(phi)], dim=-1).mT

    def forward(self, x: Tensor) -> Features:
        """φ, μ and h² of all members from one pass over (n, p) or (K, n, p) inputs."""
        phi = self.features(self.encoding(x))
        mu = self.mean_head(phi).squeeze(-1)
        raw = self.noise_head(phi).squeeze(-1)
        return Features(phi, mu, softplus(raw) + self.variance_floor)

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

    def weights_of_member(self, member: int) -> list[Tensor]:
        """All weights of one member, as views, in the order of its parameters."""
        return [
            p.detach()[member - k.start]
            for p, k in self.parameters_of_members()
            if k.start <= member < k.stop
        ]

    def take(self, members: Sequence[int]) -> "HeteroscedasticNetwork":
        """A network of some members, in ascending order, with copies of their weights.

        It shares the encoding.
        """
        taken = copy.copy(self)
        shared = self.encoding, self.first
        taken._modules = {
            name: module if module in shared else _of_members(module, members)  # type: ignore[arg-type]
            for name, module in self._modules.items()
        }
        kept = []
        for first, part in zip(self.first, self.members_by_view(), strict=True):
            own = [k - part.start for k in members if part.start <= k < part.stop]
            if own:
                kept.append(_of_members(first, own))
                kept[-1].n_members = kept[-1].view.n_members = len(own)  # type: ignore[assignment, union-attr]
        taken.first = nn.ModuleList(kept)
        return taken

    def trained_weights(self) -> Tensor:
        """Trained weights of the mean, the bias last, shape (K, d + 1)."""
        head = self.mean_head
        stacked = torch.cat([head.weight, head.bias], dim=1).squeeze(-1)
        return stacked.detach().clone()

    def tensors(self) -> list[Tensor]:
        """Weights, and edges of the bins."""
        return [*self.parameters(), *self.buffers()]

    def fingerprint(self) -> str:
        """Hash of all weights, and of the numbers that are no weights."""
        views = [(view, self.scaling_rate) for view in self.views]
        return hash_tensors(
            dict(self.state_dict()), f"ensemble {views} {self.variance_floor!r}"
        )


def _of_members(module: nn.Module, members: Sequence[int]) -> nn.Module:
    """A copy with some members' part of all parameters; faster than a deep one."""
    taken = copy.copy(module)
    rows = list(members)
    taken._parameters = {
        name: None if p is None else nn.Parameter(p.detach()[rows], p.requires_grad)
        for name, p in module._parameters.items()
    }
    taken._buffers = dict(module._buffers)
    taken._modules = {
        name: None if inner is None else _of_members(inner, members)
        for name, inner in module._modules.items()
    }
    return taken
