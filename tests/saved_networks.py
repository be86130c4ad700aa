"""Networks and rows behind the files in ``saved_files/``; they must never change."""

import numpy as np
import torch
from torch import nn
from torch.nn.functional import softplus


def rows(n):
    """Inputs by a formula: no generator of a library stands between then and now."""
    i = np.arange(n)
    columns = [np.sin(0.7 * i), np.cos(1.3 * i + 0.5), np.sin(0.11 * i * i)]
    return np.stack(columns, axis=1)


def targets(X):
    """Smooth mean, and noise that grows with the first column."""
    noise = np.sin(np.arange(len(X)) * 12.9898) * np.exp(0.5 * X[:, 0])
    return 3.0 + 2.0 * X[:, 0] + X[:, 1] + 0.3 * noise


def with_fixed_weights(network):
    """The network with weights by a formula."""
    with torch.no_grad():
        for k, p in enumerate(network.parameters()):
            i = torch.arange(p.numel(), dtype=torch.float64)
            p.copy_((0.6 * torch.sin(1.7 * i + k)).reshape(p.shape))
    return network


class MeanAndVariance(nn.Module):
    """Mean and variance, both returned."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 5), nn.Tanh())
        self.mean = nn.Linear(5, 1)
        self.noise = nn.Linear(5, 1)

    def forward(self, x):
        phi = self.body(x)
        return self.mean(phi), softplus(self.noise(phi)) + 1e-3


def mean_and_variance():
    """A network with a variance head."""
    return with_fixed_weights(MeanAndVariance())


def mean_alone():
    """A network without one."""
    return with_fixed_weights(
        nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    )


def noise_variance(x):
    """h²(x) as a function of the user's own."""
    return 0.1 + x[:, 0] ** 2
