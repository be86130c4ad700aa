"""Which map of the target: chosen on held-out training rows.

Small, short networks are trained on every candidate, with equal initial weights and
equal held-out rows, and interval scores are compared in units of y. A likelihood would
compare densities, which spike on integers. Where a kernel member may stand beside the
networks it has a say: what is easier for networks may be harder for a kernel.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..network.ensemble import HeteroscedasticNetwork
from ..network.kernel import constant_noise_prediction
from ..network.target import IDENTITY, MonotoneMap, candidate_maps
from ..network.training import Rows, TrainingConfig, split_rows, train
from ..posterior.last_layer import FeatureRows, make_last_layers, sum_rows

Array = NDArray[np.float64]
MIN_ROWS, MAX_ROWS = 250, 3_000  # too few to tell; enough to tell
STEPS = 200
HELD_OUT = 0.25
LEVELS = (0.5, 0.8, 0.9, 0.95)
GAIN = 0.015  # of the score, from which a curve is worth it
MORE_GAIN = 0.02  # over the spline, from which the power is: it bends more at the ends


def choose_target_map(
    X: Tensor,  # (n, p), standardised
    y: Array,  # (n,)
    new_network: Callable[[Tensor, int], HeteroscedasticNetwork],
    config: TrainingConfig,
    generator: torch.Generator,
    device: torch.device,
    kernel: bool,
    labels: Tensor | None = None,  # (n,), of rows that belong together
) -> MonotoneMap:
    """The identity, unless a curve is clearly better on held-out training rows.

    With ``kernel`` the better of networks and kernel counts, for each of the two.
    """
    if len(y) < MIN_ROWS:
        return IDENTITY
    maps = candidate_maps(y)
    rows = torch.randperm(len(y), generator=generator)[:MAX_ROWS]
    X, y = X[rows], y[rows.numpy()]
    labels = None if labels is None else labels[rows].unique(return_inverse=True)[1]
    if len(maps) == 1 or len(candidate_maps(y)) == 1:  # those that differ were left out
        return IDENTITY
    network = new_network(X, len(maps))
    n_views, n_out = len(network.members_by_view()), round(HELD_OUT * len(y))
    split = split_rows(len(y), n_out, n_views, generator, labels)
    scores = _network_scores(X, y, maps, network, split, config, generator, device)
    gain = -np.log(scores / scores[0]).mean(axis=1)  # (n_maps,)
    # A later candidate must be better than an earlier one, not as good.
    best = 1 if gain[1] >= gain[-1] - MORE_GAIN else len(maps) - 1
    if gain[best] > GAIN and kernel:
        split = split_rows(len(y), n_out, 1, generator, labels)
        straight = np.minimum(scores[0], _kernel_scores(X, y, IDENTITY, split))
        bent = scores[best]
        if np.log(straight / bent).mean() <= GAIN:
            bent = np.minimum(bent, _kernel_scores(X, y, maps[best], split))
        gain[best] = np.log(straight / bent).mean()
    return maps[best] if gain[best] > GAIN else IDENTITY


@torch.no_grad()
def _network_scores(
    X: Tensor,
    y: Array,
    maps: Sequence[MonotoneMap],
    network: HeteroscedasticNetwork,
    split: Rows,  # of each view
    config: TrainingConfig,
    generator: torch.Generator,
    device: torch.device,
) -> Array:  # (n_maps, n_levels)
    """Interval scores in units of y; one member for each view and map."""
    n_maps = len(maps)
    z = np.stack([each.forward(y) for each in maps])
    mean, unit = z.mean(axis=1), z.std(axis=1)
    targets = torch.from_numpy((z - mean[:, None]) / unit[:, None])
    views = network.members_by_view()
    for parameter, members in network.parameters_of_members():
        for view in views:  # the members of a view start alike
            if members.start <= view.start and view.stop <= members.stop:
                own = parameter[view.start - members.start : view.stop - members.start]
                own[:] = own[0].clone()
    # Member j of a view takes map j.
    targets = targets.repeat(len(views), 1)  # (K, n)
    rows = Rows(*(part.repeat_interleave(n_maps, 0) for part in split))
    encoded = network.encoding(X.float())
    short = replace(config, max_steps=STEPS, n_evaluations=5, patience=None, verbose=0)
    train(network, encoded, targets.float(), None, rows, short, generator, device)
    network.cpu()

    def features(of: Tensor) -> FeatureRows:
        phi = network.features(encoded[of])
        mu, h2 = (part.double() for part in network.outputs(phi))
        target, weight = targets.gather(1, of), torch.ones_like(h2)
        return FeatureRows(phi.double(), h2, target - mu, target, weight)

    # The last layer is refitted, as in the full model.
    trained = network.trained_weights().double()
    refitted = make_last_layers(
        sum_rows([features(rows.fit)], "full", False, ""), trained, "ridge", 1.0
    )
    held_out = features(rows.held_out)
    mu = held_out.target - refitted.residual(held_out)
    std = (held_out.h2 + refitted.epistemic(held_out.phi)).sqrt()
    scores = np.empty((n_maps, len(LEVELS)))
    for j, each in enumerate(maps):
        judged = rows.held_out[j::n_maps].flatten().numpy()
        centre = mu[j::n_maps].flatten().numpy() * unit[j] + mean[j]
        scale = std[j::n_maps].flatten().numpy() * unit[j]
        scores[j] = _interval_scores(each, y[judged], centre, scale)
    return scores


def _kernel_scores(
    X: Tensor, y: Array, target_map: MonotoneMap, split: Rows
) -> Array:  # (n_levels,)
    """Interval scores in units of y of a kernel with length scales of its own."""
    fit, held_out = (part[0] for part in split)
    z = target_map.forward(y)
    mean, unit = z.mean(), z.std()
    targets = torch.from_numpy((z - mean) / unit)
    generator = torch.Generator().manual_seed(int(held_out[0]))
    mu, variance = constant_noise_prediction(
        X[fit], targets[fit], X[held_out], generator
    )
    centre, scale = mu.numpy() * unit + mean, variance.sqrt().numpy() * unit
    return _interval_scores(target_map, y[held_out.numpy()], centre, scale)


def _interval_scores(
    target_map: MonotoneMap, y: Array, centre: Array, scale: Array
) -> Array:  # (n_levels,)
    """Mean interval score at each level, with quantiles of the residuals themselves."""
    residual = (target_map.forward(y) - centre) / scale
    found = []
    for level in LEVELS:
        tail = (1 - level) / 2
        low, high = np.quantile(residual, [tail, 1 - tail])
        lower = target_map.inverse(centre + low * scale)
        upper = target_map.inverse(centre + high * scale)
        missed = np.maximum(lower - y, 0) + np.maximum(y - upper, 0)
        found.append(np.mean(upper - lower + missed / tail))
    return np.array(found)
