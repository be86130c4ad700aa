"""φ, h² of the training rows → Σ, where each member holds out rows of its own."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ..network.batches import KeptBatches
from ..network.ensemble import HeteroscedasticNetwork
from .moments import FeatureRows, rows_per_batch, sum_rows, with_gram
from .scales import (
    LastLayerModel,
    LastLayerRecipe,
    Units,
    make_model,
    residuals_of_mean,
    with_residuals,
)
from .skew import HeldOutLaw, held_out_law
from .sums import HeldOutRows, LastLayerSums, Spread


def rows_of_ensemble(network: HeteroscedasticNetwork) -> int:
    """Rows to take through all members at a time."""
    widest = max(network.encoding.n_outputs, *network.layer_sizes)
    return rows_per_batch(widest * network.n_members)


@torch.no_grad()
def feature_rows(
    network: HeteroscedasticNetwork,
    X: Tensor,  # (n, p), or (K, n, p) where each member has rows of its own
    y: Tensor,  # (n,) or (K, n)
    weight: Tensor,  # (K, n)
) -> FeatureRows:
    """One forward pass."""
    out = network(X)
    return FeatureRows(out.phi, out.h2, y - out.mu, weight)


def fit_last_layers(
    network: HeteroscedasticNetwork,
    X: Tensor,  # (n, p)
    y: Tensor,  # (n,)
    weight: Tensor,  # (n,)
    held_out_rows: Tensor,  # (K, n_held_out)
    structure: str,
    recipe: LastLayerRecipe,
    two_sided: bool = False,
) -> tuple[LastLayerModel, LastLayerSums, HeldOutLaw | None]:
    """λ, both posteriors, sums without the held-out rows, and what these rows say."""
    by_member = weight.expand(network.n_members, -1)
    held_out = None
    if held_out_rows.shape[1]:
        own = feature_rows(
            network, X[held_out_rows], y[held_out_rows], weight[held_out_rows]
        )
        held_out = HeldOutRows(own, None)
        by_member = by_member.scatter(1, held_out_rows, 0.0)
    size = rows_of_ensemble(network)

    def compute() -> Iterator[FeatureRows]:
        for start in range(0, len(X), size):
            part = slice(start, start + size)
            yield feature_rows(network, X[part], y[part], by_member[:, part])

    batches = KeptBatches(compute, lambda rows: rows.phi.numel())
    weighted, plain = sum_rows(batches, structure)
    # Held-out rows took part with weight zero: they count once.
    n_rows = len(X) - held_out_rows.shape[1]
    weighted = replace(weighted, n_rows=n_rows)
    homoscedastic = replace(with_gram(plain), n_rows=n_rows)
    sums = LastLayerSums(
        weighted,
        homoscedastic,
        targets=Spread.of(y, weight),
        residuals=Spread(),
        network=network.fingerprint(),
        held_out=held_out,
    )
    trained, views = network.trained_weights(), network.members_by_view()
    model = make_model(sums, trained, recipe, views, Units())
    law = None
    if held_out is not None:
        without = recipe.posterior(weighted, model.posterior, recipe.last_layer)
        share = model.member_weight
        law = held_out_law(
            without, homoscedastic, batches, held_out.rows, share, two_sided
        )
    if network.n_members == 1:
        return model, sums, law
    residuals, start = Spread(), 0
    for rows in batches:
        part = slice(start, start + len(rows))
        residuals += Spread.of(residuals_of_mean(model, rows), weight[part])
        start = part.stop
    sums = replace(sums, residuals=residuals)
    return with_residuals(model, sums.with_held_out(), recipe), sums, law
