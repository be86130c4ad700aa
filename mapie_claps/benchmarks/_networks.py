"""A network as a user would write it, for the benchmarks of speed and of large data."""

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus


class TwoHeads(nn.Module):
    """Layers of the given sizes, with a mean and a variance."""

    def __init__(self, n_inputs: int, *sizes: int, floor: float = 1e-4) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for a, b in zip((n_inputs, *sizes), sizes, strict=False):
            layers += [nn.Linear(a, b), nn.SiLU()]
        self.body = nn.Sequential(*layers)
        self.mean, self.noise = nn.Linear(sizes[-1], 1), nn.Linear(sizes[-1], 1)
        self.floor = floor

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance."""
        phi = self.body(x)
        return self.mean(phi), softplus(self.noise(phi)) + self.floor


def seeded_network(n_inputs: int, *sizes: int, floor: float = 1e-4) -> TwoHeads:
    """The same random weights in every process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return TwoHeads(n_inputs, *sizes, floor=floor)
