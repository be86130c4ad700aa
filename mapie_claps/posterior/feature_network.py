"""Batches → φ, μ, h² → sums: a user's network together with its variance head."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from ..network.batches import Batch, row_keys
from ..network.noise_head import RELATIVE_FLOOR, NoiseHead, NoiseRows, fit_noise_head
from ..network.own import Backbone, BackboneOutput
from .gaussian import KEPT_ELEMENTS, FeatureBatch
from .sums import LastLayerSums, ResidualRows, Spread, residual_sums, spread_of


@dataclass(frozen=True)
class FeatureNetwork:
    """The copy of a network, and the head fitted on it if it has no noise itself."""

    backbone: Backbone
    noise_head: NoiseHead | None = None

    def __call__(self, x: Tensor) -> BackboneOutput:
        """φ, μ and h² of some rows."""
        out = self.backbone(x)
        if self.noise_head is None:
            return out
        return out._replace(h2=self.noise_head.variance(out.phi))

    @property
    def needs_head(self) -> bool:
        """Whether h² has yet to be fitted."""
        return self.backbone.noise is None and self.noise_head is None

    def with_head(
        self, walk: Callable[[], Iterable[Batch]], penalty: float
    ) -> "FeatureNetwork":
        """Fit a variance head; ``walk`` starts a pass over the training rows."""
        return replace(
            self, noise_head=fit_noise_head(_NoiseRows(self.backbone, walk), penalty)
        )

    def sums(
        self,
        batches: Iterable[Batch],
        structure: str,
        seed: int | None,  # None: no row is held out
        fraction: float,
    ) -> LastLayerSums | None:
        """Sums over all rows; None if there is none."""
        rows = (self._residual_rows(batch, seed) for batch in batches)
        return residual_sums(rows, structure, fraction)

    def _residual_rows(self, batch: Batch, seed: int | None) -> ResidualRows:
        out = self(batch.x)
        # Rows wait until there are enough of them for a product, and whoever gives the
        # batches may fill the same memory with the next: nothing of it is kept.
        phi, h2 = (_apart_from(batch.x, t)[None] for t in (out.phi, out.h2))
        weight, target = batch.row_weight.clone(), batch.target.clone()
        features = FeatureBatch(phi, h2, (target - out.mu)[None], weight[None])
        key = None if seed is None else row_keys(batch.x, seed)
        return ResidualRows(features, target, key)


def _apart_from(x: Tensor, values: Tensor) -> Tensor:
    """Values in memory that is not that of x."""
    x_memory, memory = x.untyped_storage(), values.untyped_storage()
    return values.clone() if memory.data_ptr() == x_memory.data_ptr() else values


class _NoiseRows:
    """Features and squared residuals; may be walked again.

    Few rows are kept after the first walk, many are computed anew in each.
    """

    def __init__(self, backbone: Backbone, walk: Callable[[], Iterable[Batch]]) -> None:
        self.backbone, self.walk = backbone, walk
        self.floor = self._floor()
        self._kept: list[NoiseRows] | None = None

    def _floor(self) -> float:
        """What is added to the squared residuals."""
        spread = Spread()
        for batch in self.walk():
            spread += spread_of(batch.target, batch.row_weight)
        return RELATIVE_FLOOR * (spread.variance or 1.0)

    def __iter__(self) -> Iterator[NoiseRows]:
        if self._kept is not None:
            yield from self._kept
            return
        kept: list[NoiseRows] = []
        elements = 0
        for batch in self.walk():
            rows = self._rows(batch)
            yield rows
            elements += rows.phi.numel()
            if elements <= KEPT_ELEMENTS:
                kept.append(rows)
            else:
                kept.clear()
        if elements <= KEPT_ELEMENTS:
            self._kept = kept

    def _rows(self, batch: Batch) -> NoiseRows:
        out = self.backbone(batch.x)
        squares = (batch.target - out.mu).square() + self.floor
        return NoiseRows(out.phi, squares, batch.row_weight)
