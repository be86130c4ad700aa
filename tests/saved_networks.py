"""Networks and rows behind the files in ``saved_files/``; they must never change."""

import numpy as np
import pandas as pd
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


def named(X):
    """The same rows as a data frame, with a column of two sides."""
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    return frame.assign(side=np.where(X[:, 0] > 0, "right", "left"))


def table(n):
    """A table by formulas: gaps, few and many categories, truth values, two dates."""
    i = np.arange(n)
    few = np.array(["north", "south", "west"], dtype=object)[i % 3]
    few[i % 11 == 5] = None
    opened = np.datetime64("2024-01-01") + (37 * i) % 400
    columns = {
        "number": np.where(i % 7 == 3, np.nan, np.sin(0.7 * i)),
        "few": few,
        "many": [f"zip {7 * k % 29:02d}" for k in i],
        "flag": i % 2 == 0,
        "opened": opened,
        "closed": opened + (13 * i) % 40,
    }
    return pd.DataFrame(columns)


def table_targets(n):
    """Positive and skewed, for the rows of :func:`table`."""
    i = np.arange(n)
    noise = 0.1 * np.sin(12.9898 * i)
    return np.exp(0.5 + 0.4 * np.sin(0.7 * i) + 0.2 * (i % 3) + noise)


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
