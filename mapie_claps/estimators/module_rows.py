"""Batches of a ``ClapsModule``: the first ones, and what is summed of each."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from ..exceptions import NumericalWarning
from ..network.batches import Batch, row_keys
from ..network.noise_head import OwnNetwork
from ..posterior.moments import FeatureRows
from ..posterior.sums import SummedRows

# Mean of r²/h² beyond which residuals and noise can hardly be of the same units.
SUSPICIOUS_RATIO = 100.0


def first_rows(first: Batch, rest: Iterator[Batch]) -> list[Batch]:
    """The first batch, and the next one if that was a single row."""
    if len(first.x) > 1:
        return [first]
    # The next may come in the same memory.
    copied = Batch(*(None if t is None else t.clone() for t in first))  # type: ignore[arg-type]
    return [copied, *islice(rest, 1)]


def joined_inputs(batches: list[Batch]) -> Tensor:
    """X of all batches whose rows are alike."""
    first = batches[0].x
    alike = [b.x for b in batches if b.x.shape[1:] == first.shape[1:]]
    return torch.cat([x.to(first.dtype) for x in alike])


def summed(network: OwnNetwork, batch: Batch, seed: int | None) -> SummedRows:
    """Features of a batch, and what is summed beside them."""
    out = network(batch.x)
    # Rows wait until there are enough of them for a product, and whoever gives the
    # batches may fill the same memory with the next: nothing of it is kept.
    phi, h2 = (_apart_from(batch.x, t) for t in (out.phi, out.h2))
    weight, target = batch.row_weight.clone(), batch.target.clone()
    residual = target - out.mu[0]
    rows = FeatureRows(phi, h2, residual[None], weight[None])
    key = None if seed is None else row_keys(batch.x, seed)
    return SummedRows(rows, target, residual, weight, key)


def _apart_from(x: Tensor, values: Tensor) -> Tensor:
    """Values in memory that is not that of x."""
    x_memory, memory = x.untyped_storage(), values.untyped_storage()
    return values.clone() if memory.data_ptr() == x_memory.data_ptr() else values


@dataclass
class NoiseRatio:
    """Mean of r²/h² over the rows, which is near one where h² is the noise."""

    total: float = 0.0
    weight: float = 0.0

    def see(self, part: SummedRows) -> SummedRows:
        """Count some rows."""
        squares = part.residual.square() / part.rows.h2[0]
        self.total += float((part.weight * squares).sum())
        self.weight += float(part.weight.sum())
        return part

    def warn(self) -> None:
        """Tell of noise that can hardly be that of these targets."""
        ratio = self.total / self.weight if self.weight else 1.0
        if ratio > SUSPICIOUS_RATIO:
            warnings.warn(
                f"Squared residuals are {ratio:.3g} times the network's own noise "
                "variance on average, where about 1 is expected. Was the network "
                "trained on y in other units (standardised, for instance), or on "
                "other rows? Fit with y in the units of its training.",
                NumericalWarning,
                stacklevel=4,
            )
