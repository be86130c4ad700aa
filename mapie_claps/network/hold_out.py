"""Which training rows a member trains on, and which it holds out."""

from dataclasses import dataclass

import torch
from torch import Tensor

MIN_ROWS_TO_HOLD_OUT = 20
MAX_HELD_OUT_ROWS = 4_000


@dataclass(frozen=True)
class Rows:
    """Row numbers that each member trains on, and those it holds out."""

    fit: Tensor  # (K, n_fit)
    held_out: Tensor  # (K, n_held_out), n_held_out may be 0


def n_held_out(n_rows: int, validation_fraction: float) -> int:
    """Rows that each member holds out; none of very few, capped for very many."""
    if n_rows < MIN_ROWS_TO_HOLD_OUT or validation_fraction == 0:
        return 0
    return min(MAX_HELD_OUT_ROWS, max(2, round(validation_fraction * n_rows)))


def split_rows(
    n: int, n_held_out: int, n_members: int, generator: torch.Generator
) -> Rows:
    """Hold out another block of one permutation for each member."""
    order = torch.randperm(n, generator=generator)
    shifted = torch.stack([order.roll(-k * n_held_out) for k in range(n_members)])
    return Rows(shifted[:, n_held_out:], shifted[:, :n_held_out])
