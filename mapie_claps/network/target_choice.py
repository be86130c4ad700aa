"""Which map of the target: by name, a transformer, or chosen on held-out rows.

"auto" trains small, short networks on every candidate, with equal initial weights and
equal held-out rows, and compares interval scores in units of y. A likelihood would
compare densities, which spike on integers. Where a kernel member will stand beside the
networks it has a say: what is easier for networks may be harder for a kernel.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad, softplus

from .._validation import raise_for
from .ensemble import HeteroscedasticNetwork
from .hold_out import Rows
from .kernel import constant_noise_prediction
from .target_curves import MonotoneSpline, YeoJohnson
from .target_map import Identity, Log, SquareRoot, TargetMap
from .target_transformer import TransformerMap, is_transformer
from .threads import Crew, threads_for
from .trainer import train
from .units import TrainingConfig

Array = NDArray[np.float64]
FIXED = {"log": (Log(), "positive"), "sqrt": (SquareRoot(), "non-negative")}
MIN_DISTINCT = 8  # distinct training targets below which nothing is bent
MIN_ROWS, MAX_ROWS = 250, 3_000  # too few to tell; enough to tell
STEPS = 200
HELD_OUT = 0.25
LEVELS = (0.5, 0.8, 0.9, 0.95)
STRAIGHT = 0.99  # squared correlation of T(y) and y
GAIN = 0.015  # of the score, from which a curve is worth it
MORE_GAIN = 0.02  # over the spline, from which the power is: it bends more at the ends


def fit_target_map(target_map: Any, y: Array) -> TargetMap:
    """Fit a map by its name, or a transformer, to training targets."""
    if is_transformer(target_map):
        return TransformerMap.fit(target_map, y)
    if target_map in FIXED:
        fixed, expected = FIXED[target_map]
        if np.isnan(fixed.forward(y)).any():
            raise_for(
                "target_map",
                target_map,
                f"{expected} training targets (the smallest is {float(y.min())!r})",
                "Use 'auto', or add a constant to y.",
            )
        return fixed
    if target_map not in ("yeo-johnson", "spline") or not _can_be_bent(y):
        return Identity()
    return YeoJohnson.fit(y) if target_map == "yeo-johnson" else MonotoneSpline.fit(y)


def _can_be_bent(y: Array) -> bool:
    """Whether there are enough distinct targets to fit a curve to."""
    ordered = np.unique(y)
    # Values that differ by less than rounding can move are one.
    apart = np.diff(ordered) > 1e-9 * np.abs(ordered).max()
    return bool(apart.sum() >= MIN_DISTINCT)


def choose_target_map(
    X: Tensor,  # (n, p), standardised
    y: Array,  # (n,)
    new_network: Callable[[Tensor, int], HeteroscedasticNetwork],
    config: TrainingConfig,
    generator: torch.Generator,
    device: torch.device,
    crew: Crew | None = None,
    kernel: bool = True,
) -> TargetMap:
    """The identity, unless a curve is clearly better on held-out training rows.

    With ``kernel`` the better of networks and kernel counts, for each of the two.
    """
    if len(y) < MIN_ROWS or not _can_be_bent(y):
        return Identity()
    curves = [MonotoneSpline.fit(y), YeoJohnson.fit(y)]
    maps = [Identity(), *(curve for curve in curves if _is_bent(curve, y))]
    if len(maps) == 1:
        return maps[0]
    rows = torch.randperm(len(y), generator=generator)[:MAX_ROWS]
    X, y = X[rows], y[rows.numpy()]
    if not _can_be_bent(y):  # those that differ were left out
        return maps[0]
    scores = _held_out_scores(X, y, maps, new_network, config, generator, device, crew)
    gain = -np.log(scores / scores[0]).mean(axis=1)  # (n_maps,)
    # A later candidate must be better than an earlier one, not as good.
    best = 1 if gain[1] >= gain[-1] - MORE_GAIN else len(maps) - 1
    if gain[best] > GAIN and kernel:
        gain[best] = _gain_with_kernel(
            X, y, maps[best], scores[0], scores[best], generator
        )
    return maps[best] if gain[best] > GAIN else maps[0]


def _is_bent(curve: TargetMap, y: Array) -> bool:
    """Whether a curve differs enough from a line to be worth a trial."""
    return bool(np.corrcoef(curve.forward(y), y)[0, 1] ** 2 < STRAIGHT)


def _held_out_scores(
    X: Tensor,
    y: Array,
    maps: Sequence[TargetMap],
    new_network: Callable[[Tensor, int], HeteroscedasticNetwork],
    config: TrainingConfig,
    generator: torch.Generator,
    device: torch.device,
    crew: Crew | None,
) -> Array:  # (n_maps, n_levels)
    """Interval scores in units of y; one member for each view and map."""
    n, n_maps = len(y), len(maps)
    z = np.stack([each.forward(y) for each in maps])
    mean, unit = z.mean(axis=1), z.std(axis=1)
    targets = torch.from_numpy((z - mean[:, None]) / unit[:, None]).flatten()
    network = new_network(X, n_maps)
    views = network.members_by_view()
    _start_alike(network, views)
    order = torch.randperm(n, generator=generator)
    n_out = round(HELD_OUT * n)
    # Rows stand once for each map, with its targets; member j of a view takes map j.
    blocks = [order.roll(-v * n_out) for v, _ in enumerate(views)]
    own = torch.stack([block + j * n for block in blocks for j in range(n_maps)])
    rows = Rows(own[:, n_out:], own[:, :n_out])
    encoded = network.encoding(X.float()).repeat(n_maps, 1)
    short = replace(
        config, max_steps=STEPS, n_evaluations=5, patience=None, tol=None, verbose=0
    )
    train(network, encoded, targets.float(), None, rows, short, generator, device, crew)
    network.cpu()
    # Members by halves, for two cores.
    halves = [list(range(k, network.n_members, 2)) for k in (0, 1)]
    both = (crew or Crew()).run_all(
        [partial(_refitted, network, some, encoded, targets, rows) for some in halves]
    )
    mu, std = torch.empty(2, *rows.held_out.shape, dtype=torch.float64)
    for some, (of_mu, of_std) in zip(halves, both, strict=True):
        mu[some], std[some] = of_mu, of_std
    scores = np.empty((n_maps, len(LEVELS)))
    for j, each in enumerate(maps):
        held_out = (rows.held_out[j::n_maps] - j * n).flatten().numpy()
        centre = mu[j::n_maps].flatten().numpy() * unit[j] + mean[j]
        scale = std[j::n_maps].flatten().numpy() * unit[j]
        scores[j] = _interval_scores(each, y[held_out], centre, scale)
    return scores


def _gain_with_kernel(
    X: Tensor,
    y: Array,
    curve: TargetMap,
    straight: Array,  # (n_levels,), scores of networks without a map
    bent: Array,  # (n_levels,), with the curve
    generator: torch.Generator,
) -> float:
    """What the curve gains where the better of networks and kernel counts."""
    order = torch.randperm(len(y), generator=generator)
    straight = np.minimum(straight, _kernel_scores(X, y, Identity(), order))
    if np.log(straight / bent).mean() <= GAIN:
        bent = np.minimum(bent, _kernel_scores(X, y, curve, order))
    return float(np.log(straight / bent).mean())


def _kernel_scores(
    X: Tensor, y: Array, target_map: TargetMap, order: Tensor
) -> Array:  # (n_levels,)
    """Interval scores in units of y of a kernel with length scales of its own."""
    n_out = round(HELD_OUT * len(y))
    held_out, fit = order[:n_out], order[n_out:]
    z = target_map.forward(y)
    mean, unit = z.mean(), z.std()
    targets = torch.from_numpy((z - mean) / unit)
    generator = torch.Generator().manual_seed(int(order[0]))
    mu, variance = constant_noise_prediction(
        X[fit], targets[fit], X[held_out], generator
    )
    centre, scale = mu.numpy() * unit + mean, variance.sqrt().numpy() * unit
    return _interval_scores(target_map, y[held_out.numpy()], centre, scale)


@torch.no_grad()
def _start_alike(network: HeteroscedasticNetwork, views: Sequence[slice]) -> None:
    """Give the members of each view the same initial weights."""
    for parameter, members in network.parameters_of_members():
        for view in views:
            if members.start <= view.start and view.stop <= members.stop:
                own = parameter[view.start - members.start : view.stop - members.start]
                own[:] = own[0].clone()


@torch.no_grad()
def _refitted(
    network: HeteroscedasticNetwork,
    members: Sequence[int],
    X: Tensor,
    targets: Tensor,
    rows: Rows,
) -> tuple[Tensor, Tensor]:  # (k, n_held_out) each
    """μ and √v of held-out rows, the last layer refitted as in the full model."""
    network = network.take(members)
    rows = Rows(rows.fit[members], rows.held_out[members])

    def design(of: Tensor) -> tuple[Tensor, Tensor]:
        phi = network.features(X[of])
        h2 = softplus(network.outputs(phi)[:, 1]).double() + network.variance_floor
        return pad(phi.double(), (0, 1), value=1.0), h2

    with threads_for(0):
        H, h2 = design(rows.fit)
        weighted = (H / h2[..., None]).mT
        precision = weighted @ H + torch.eye(H.shape[-1], dtype=H.dtype)
        root = torch.linalg.cholesky(precision)
        w = torch.cholesky_solve(weighted @ targets[rows.fit][..., None], root)
        H, h2 = design(rows.held_out)
        whitened = torch.linalg.solve_triangular(root, H.mT, upper=False)
        v = h2 + whitened.square().sum(1)
        return (H @ w).squeeze(-1), v.sqrt()


def _interval_scores(
    target_map: TargetMap, y: Array, centre: Array, scale: Array
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
