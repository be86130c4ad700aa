"""φ, h² of the training rows → Σ, where each member holds out rows of its own."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ..network.batches import KeptBatches
from ..network.ensemble import HeteroscedasticNetwork
from ..network.threads import Crew
from .moments import FeatureRows, rows_per_batch, sum_rows, with_gram
from .scales import (
    LastLayerModel,
    LastLayerRecipe,
    Units,
    make_model,
    residuals_of_mean,
    with_residuals,
)
from .skew import HeldOutLaw, add_skewed_moments, held_out_law
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


class LastLayers(NamedTuple):
    """What ``fit_last_layers`` finds."""

    model: LastLayerModel
    sums: LastLayerSums  # without the held-out rows, which are kept beside them
    law: HeldOutLaw | None  # what these rows say of the noise
    noise: Tensor  # (n,), g(x) of all rows, if it was asked for


def fit_last_layers(
    network: HeteroscedasticNetwork,
    X: Tensor,  # (n, p)
    y: Tensor,  # (n,)
    weight: Tensor,  # (n,)
    held_out_rows: Tensor,  # (K, n_held_out)
    structure: str,
    recipe: LastLayerRecipe,
    two_sided: bool = False,
    with_noise: bool = False,
    crew: Crew | None = None,
) -> LastLayers:
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

    def rows_from(start: int) -> FeatureRows:
        part = slice(start, start + size)
        return feature_rows(network, X[part], y[part], by_member[:, part])

    def compute() -> Iterator[FeatureRows]:
        starts = range(0, len(X), size)
        return (crew or Crew()).in_order(partial(rows_from, start) for start in starts)

    batches = KeptBatches(compute, lambda rows: rows.phi.numel())
    weighted, unweighted = sum_rows(batches, structure)
    # Held-out rows took part with weight zero: they count once.
    n_rows = len(X) - held_out_rows.shape[1]
    weighted = replace(weighted, n_rows=n_rows)
    homoscedastic = replace(with_gram(unweighted), n_rows=n_rows)
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
    without = model.posterior
    if held_out is not None:
        without = recipe.posterior(weighted, without, recipe.last_layer)
    several = network.n_members > 1
    skewed = held_out is not None and two_sided and structure == "full"
    cross = torch.zeros_like(homoscedastic.cross) if skewed else None
    residuals, noise, start = Spread(), torch.full_like(y, torch.nan), 0
    for rows in batches if several or skewed or with_noise else ():
        part = slice(start, start + len(rows))
        start = part.stop
        noise[part] = model.aleatoric(rows)
        if several:
            residuals += Spread.of(residuals_of_mean(model, rows), weight[part])
        if cross is not None:
            add_skewed_moments(cross, without, rows)
    law = None
    if held_out is not None:
        law = held_out_law(
            without, homoscedastic, cross, held_out.rows, model.member_weight
        )
    if several:
        sums = replace(sums, residuals=residuals)
        model = with_residuals(model, sums.with_held_out(), recipe)
    return LastLayers(model, sums, law, noise)
