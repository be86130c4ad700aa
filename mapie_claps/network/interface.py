"""What every representation gives: φ, μ and h² of some rows."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor


class Features(NamedTuple):
    """φ, μ and h² of n rows, for each of K members."""

    phi: Tensor  # (K, n, d), without the constant
    mu: Tensor  # (K, n), with the weights that training left
    h2: Tensor  # (K, n)
    x: Tensor | None = None  # (n, p), the inputs, for members that are no networks


class Representation(Protocol):
    """Something that gives φ, μ and h²: our networks, a user's own, and what follows.

    All that comes later, from the sums to the interval, asks for nothing else.
    """

    def __call__(self, x: Tensor) -> Features:
        """φ, μ and h² of some rows, in the units that the representation speaks."""

    def trained_weights(self) -> Tensor:
        """Weights of the mean, the bias last, shape (K, d + 1), float64."""

    def tensors(self) -> Sequence[Tensor]:
        """All that hold numbers, to see whether one is changed in place."""

    def fingerprint(self) -> str:
        """Text that differs between representations that differ in any number."""
