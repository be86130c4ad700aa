"""A network as a user would write it, and rows, for the benchmarks of speed."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from ..studies.data import Array


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


def make_rows(n: int, p: int = 8, seed: int = 0) -> tuple[Array, Array]:
    """Standard normal rows (n, p), and targets that depend on three columns."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    return X, np.sin(X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * rng.standard_normal(n)
