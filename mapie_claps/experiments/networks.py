"""Squared-error and quantile networks: the backbone and the protocol of CLAPS.

Layers, standardisation, optimiser, steps and learning rate are read from
``ClapsRegressor.paper``; only the heads and the loss differ. This is the one place of
the studies that trains networks by itself, and only the classes below leave it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from .. import ClapsRegressor

# Private: what ClapsRegressor starts from.
from .._compat import validate_data
from ..network.ensemble import BIAS_BOUND, HEAD_GAIN
from ..studies.data import Array

# As in ClapsRegressor, whose training also clips.
MAX_GRADIENT_NORM = 5.0
CLIP = 6.0
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Protocol:
    """Backbone and training common to all networks of an experiment."""

    layer_sizes: tuple[int, ...]
    max_steps: int
    learning_rate: float

    @classmethod
    def of(cls, model: ClapsRegressor) -> Self:
        """Protocol of a regressor that trains on the full batch at a constant rate."""
        sizes = (*model.hidden_layer_sizes, model.representation_size)
        return cls(sizes, int(model.max_steps), float(model.learning_rate))


def squared_error(y: Tensor, out: Tensor) -> Tensor:
    """Mean squared error of one output."""
    return (y - out).square().mean()


def pinball(levels: tuple[float, ...]) -> Loss:
    """Mean quantile loss, summed over one output per level."""
    tau = torch.tensor(levels)

    def loss(y: Tensor, out: Tensor) -> Tensor:
        error = y - out
        return torch.maximum(tau * error, (tau - 1) * error).mean(0).sum()

    return loss


def _new_network(
    n_inputs: int, n_outputs: int, protocol: Protocol, generator: torch.Generator
) -> nn.Sequential:
    """SiLU layers with the initial weights of ``ClapsRegressor``."""

    def linear(n_in: int, n_out: int, gain: float = 1.0) -> nn.Linear:
        """A layer drawn from our own generator, not from the global one."""
        layer: nn.Linear = nn.utils.skip_init(nn.Linear, n_in, n_out)
        bound = gain * n_in**-0.5
        with torch.no_grad():
            layer.weight.uniform_(-bound, bound, generator=generator)
            layer.bias.uniform_(-BIAS_BOUND, BIAS_BOUND, generator=generator)
        return layer

    layers: list[nn.Module] = []
    for a, b in pairwise([n_inputs, *protocol.layer_sizes]):
        layers += [linear(a, b), nn.SiLU()]
    head = linear(protocol.layer_sizes[-1], n_outputs, HEAD_GAIN)
    return nn.Sequential(*layers, head)


def _train(
    network: nn.Sequential, X: Array, y: Array, loss: Loss, protocol: Protocol
) -> nn.Sequential:
    """Train on standardised (n, p) and (n,) arrays, on one thread."""
    x, target = torch.from_numpy(X).float(), torch.from_numpy(y).float()[:, None]
    parameters = list(network.parameters())
    optimizer = torch.optim.Adam(parameters, lr=protocol.learning_rate, fused=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(protocol.max_steps):
            optimizer.zero_grad(set_to_none=True)
            loss(target, network(x)).backward()
            nn.utils.clip_grad_norm_(parameters, MAX_GRADIENT_NORM)
            optimizer.step()
    finally:
        torch.set_num_threads(threads)
    return network.double().requires_grad_(False)


class _Network(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Standardisation around a trained network."""

    protocol: Protocol
    random_state: int | None

    def _head(self) -> tuple[int, Loss]:
        """Number of outputs, and the loss."""
        raise NotImplementedError

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Train the network."""
        X_, y_ = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        self.scaler_X_ = StandardScaler().fit(X_)
        self.scaler_y_ = StandardScaler().fit(y_[:, None])
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        n_outputs, loss = self._head()
        generator = torch.Generator().manual_seed(seed)
        network = _new_network(X_.shape[1], n_outputs, self.protocol, generator)
        target = self.scaler_y_.transform(y_[:, None])[:, 0]
        self.network_ = _train(network, self._scaled(X_), target, loss, self.protocol)
        return self

    def _scaled(self, X: Array) -> Array:
        return np.asarray(np.clip(self.scaler_X_.transform(X), -CLIP, CLIP))

    def _outputs(self, X: ArrayLike) -> Array:  # (n, n_outputs)
        check_is_fitted(self)
        X_ = validate_data(self, X, reset=False, dtype=np.float64)
        out = self.network_(torch.from_numpy(self._scaled(X_))).numpy()
        return np.asarray(out * self.scaler_y_.scale_[0] + self.scaler_y_.mean_[0])


class SquaredErrorRegressor(_Network):
    """Mean regression with the backbone of CLAPS."""

    def __init__(self, protocol: Protocol, random_state: int | None = None) -> None:
        self.protocol = protocol
        self.random_state = random_state

    def _head(self) -> tuple[int, Loss]:
        return 1, squared_error

    def predict(self, X: ArrayLike) -> Array:
        """Predict the mean, shape (n,)."""
        return self._outputs(X)[:, 0]


class QuantileNetworkRegressor(_Network):
    """Conditional quantiles: one head per level on shared features."""

    def __init__(
        self,
        levels: tuple[float, ...],
        protocol: Protocol,
        random_state: int | None = None,
    ) -> None:
        self.levels = levels
        self.protocol = protocol
        self.random_state = random_state

    def _head(self) -> tuple[int, Loss]:
        return len(self.levels), pinball(self.levels)

    def predict(self, X: ArrayLike) -> Array:
        """Predict all quantiles, in increasing order, shape (n, n_levels).

        Sorting undoes crossings, which quantile heads do not rule out.
        """
        return np.sort(self._outputs(X), axis=1)

    def heads(self) -> list["OneQuantile"]:
        """One regressor per level, for MAPIE's ``ConformalizedQuantileRegressor``."""
        return [OneQuantile(self, float(level)) for level in self.levels]


class OneQuantile(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """One quantile of a fitted network."""

    def __init__(self, network: QuantileNetworkRegressor, level: float) -> None:
        self.network = network
        self.level = level

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Train the network again."""
        self.network.fit(X, y)
        return self

    def predict(self, X: ArrayLike) -> Array:
        """Predict the quantile, shape (n,)."""
        rank = sorted(self.network.levels).index(self.level)
        return self.network.predict(X)[:, rank]

    @property
    def n_features_in_(self) -> int:
        """Number of columns that the network was fitted on."""
        return int(self.network.n_features_in_)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self.network, "network_")

    def __sklearn_clone__(self) -> Any:
        return self
