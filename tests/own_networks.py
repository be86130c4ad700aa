"""Networks as users write them, and data, for the tests of ClapsModule and friends."""

import numpy as np
import torch
from torch import nn
from torch.nn.functional import softplus


class Pair(nn.Module):
    """Mean and variance, both returned."""

    def __init__(self, n_features=3, size=8):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_features, size), nn.Tanh())
        self.mean = nn.Linear(size, 1)
        self.noise = nn.Linear(size, 1)

    def forward(self, x):
        phi = self.body(x)
        return self.mean(phi), softplus(self.noise(phi)) + 1e-3


class TwoColumns(nn.Module):
    """Mean and log-variance as two outputs of one layer."""

    def __init__(self, n_features=3, size=8):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_features, size), nn.Tanh())
        self.last = nn.Linear(size, 2)

    def forward(self, x):
        return self.last(self.body(x))


class WithMethod(Pair):
    """The mean alone from forward, the noise by a method."""

    def forward(self, x):
        return self.mean(self.body(x)).squeeze(-1)

    def noise_variance(self, x):
        return softplus(self.noise(self.body(x))) + 1e-3


class FromFeatures(Pair):
    """The same, from the features."""

    def forward(self, x):
        return self.mean(self.body(x))

    def noise_variance_from_features(self, phi):
        return softplus(self.noise(phi)) + 1e-3


class Convolution(nn.Module):
    """Images (n, 1, 8, 8), with dropout and batch normalisation."""

    def __init__(self):
        super().__init__()
        convolution = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()]
        dense = [nn.Dropout(0.5), nn.Linear(144, 6), nn.ReLU()]
        self.body = nn.Sequential(*convolution, *dense)
        self.head = nn.Linear(6, 1)

    def forward(self, x):
        return self.head(self.body(x)).squeeze(-1)


class Recurrent(nn.Module):
    """Sequences of tokens (n, t)."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.rnn = nn.GRU(4, 5, batch_first=True)
        self.head = nn.Linear(5, 1)

    def forward(self, x):
        _, last = self.rnn(self.embedding(x))
        return self.head(last[0])


def seeded(make, *args, seed=0):
    """A network with weights that do not touch the global generator for good."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make(*args)


def mse_network(n_features=3, size=8, seed=0):
    """An ordinary regressor without a variance head."""
    layers = nn.Linear, nn.Tanh, nn.Linear
    sizes = (n_features, size), (), (size, 1)
    return seeded(
        lambda: nn.Sequential(*(a(*b) for a, b in zip(layers, sizes, strict=True))),
        seed=seed,
    )


def table(n, seed=0):
    """Rows whose noise grows with the first column."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    return X, X[:, 0] + X[:, 1] + np.exp(0.5 * X[:, 0]) * rng.normal(size=n)


def batches(X, y, size):
    """A list of batches."""
    return [(X[i : i + size], y[i : i + size]) for i in range(0, len(X), size)]
