"""What attacks are made on: rows, small networks, fitted and calibrated estimators."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import softplus

from .. import ClapsModule, StreamingConformalRegressor

Array = NDArray[np.float64]


@dataclass(frozen=True)
class AttackCase:
    """An attack, and the numbers that it plays with."""

    attack: str
    seed: int
    n: int  # rows to fit
    batch: int  # rows in one batch
    size: int  # of φ
    level: float
    variant: int  # which of several forms


class Pair(nn.Module):
    """Mean and noise, of a size that makes fits fast."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, size), nn.Tanh())
        self.mean, self.noise = nn.Linear(size, 1), nn.Linear(size, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        phi = self.body(self.mixed(x))
        return self.mean(phi), softplus(self.noise(phi)) + 1e-2

    def mixed(self, x: Tensor) -> Tensor:
        """What the network sees of the rows."""
        return x


class Normalised(Pair):
    """By the rows of the batch."""

    def mixed(self, x: Tensor) -> Tensor:
        return (x - x.mean(0)) / (x.std(0, correction=0) + 0.1)


class Attentive(Pair):
    """To the other rows of the batch."""

    def mixed(self, x: Tensor) -> Tensor:
        return torch.softmax(x @ x.T, dim=1) @ x


class Ranked(Pair):
    """Within the batch."""

    def mixed(self, x: Tensor) -> Tensor:
        return x.argsort(0).argsort(0).to(x.dtype)


class Sequence(Pair):
    """Each row carries a little of the rows before it."""

    def mixed(self, x: Tensor) -> Tensor:
        return x.cumsum(0) / 10


class FromFirst(Pair):
    """Measured from the first row of the batch."""

    def mixed(self, x: Tensor) -> Tensor:
        return x - x[0]


class Unused(Pair):
    """Features that mix, of which neither mean nor noise makes use."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        with torch.no_grad():
            self.mean.weight.zero_()
            self.noise.weight.zero_()

    def mixed(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


MIXING = (Normalised, Attentive, Ranked, Sequence, FromFirst, Unused)


@dataclass
class Scene:
    """Rows, a network and a fitted estimator, made from a case."""

    case: AttackCase

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.case.seed)
        self.rng = rng
        self.X = rng.normal(size=(self.case.n, 3))
        self.y = self.X[:, 0] + rng.normal(size=self.case.n)
        self.X_cal, self.X_test = rng.normal(size=(40, 3)), rng.normal(size=(9, 3))
        self.y_cal = self.X_cal[:, 0] + rng.normal(size=40)

    def network(self, cls: type[Pair] = Pair) -> Pair:
        """A network whose weights depend on the case alone."""
        with torch.random.fork_rng():
            torch.manual_seed(self.case.seed)
            return cls(self.case.size)

    def fitted(self) -> ClapsModule:
        """An estimator on the rows."""
        model = ClapsModule(self.network(), batch_size=self.case.batch)
        return model.fit(self.X, self.y)

    def calibrated(self, model: Any) -> StreamingConformalRegressor:
        """Intervals at the level of the case."""
        conformal = StreamingConformalRegressor(model, self.case.level)
        return conformal.conformalize(self.X_cal, self.y_cal)

    def intervals(self, model: Any) -> Array:
        """Bounds of the test rows."""
        return self.calibrated(model).predict_interval(self.X_test, True)[1]
