"""φ → d: noise with two sides, h±² = h²(1 ± d), fitted on φ after training.

With the residual r = (z − μ)/h, d(x) is the expectation of r|r| at x: the part of the
variance that lies above the mean, less the part below. It is a ridge regression on φ,
over the rows that a member was trained on. How strong the ridge is, and whether d is
anything but zero, the likelihood of a two-piece normal law on its held-out rows says.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .gaussian import LastLayerPosterior
from .moments import FeatureRows, Moments
from .scales import residual_of_members

LARGEST_SKEW = 0.8
LARGEST_RESIDUAL = 3.0  # beyond, r|r| would be the doing of single rows
# Strengths of the ridge, in rows: infinity leaves a constant.
STRENGTHS = (math.inf, 3e3, 1e3, 3e2, 1e2)
STANDARD_ERRORS = 1.0  # by which skew must pay
LEAST_WEIGHT = 0.1  # of a member, in units of the mean weight


class HeldOutLaw(NamedTuple):
    """What held-out rows say of the noise."""

    skew: Tensor | None  # (K, d + 1), weights of d, the constant last; None: symmetric
    residual: Tensor  # (m,), of single members in units of their own √v±


def held_out_law(
    posterior: LastLayerPosterior,  # without the held-out rows
    moments: Moments,  # with h² = 1, without them too
    cross: Tensor | None,  # (K, d + 1), sums of φ r|r| without them; None: symmetric
    held_out: FeatureRows,
    member_weight: Tensor,  # (K,)
) -> HeldOutLaw:
    """Skew of the noise, and the residuals that are left in its units."""
    residual = residual_of_members(posterior, held_out)
    h2, epistemic = held_out.h2, posterior.epistemic(held_out.phi)
    weights, skew = None, torch.zeros_like(h2)
    if cross is not None:
        share = held_out.weight * member_weight[:, None]
        symmetric = _two_piece_nll(residual, h2, epistemic, skew)
        best = 0.0
        for strength in STRENGTHS:
            candidate = _ridge(moments, cross, strength)
            d = _bounded(held_out.phi, candidate)
            gain = symmetric - _two_piece_nll(residual, h2, epistemic, d)
            worth = _lower_limit(gain, share / share.sum())
            if worth > best:
                best, weights, skew = worth, candidate, d
    side = torch.where(residual < 0, 1 - skew, 1 + skew)
    standardised = residual / (h2 * side + epistemic).sqrt()
    # Members that hardly count would tell of their own faults.
    counts = member_weight * len(member_weight) > LEAST_WEIGHT
    return HeldOutLaw(weights, standardised[counts].flatten())


def add_skewed_moments(
    cross: Tensor,  # (K, d + 1)
    posterior: LastLayerPosterior,
    rows: FeatureRows,  # of weight zero where a member was not trained on them
) -> None:
    """Add φ r|r| of some rows."""
    r = residual_of_members(posterior, rows) / rows.h2.sqrt()
    limited = r.clamp_(-LARGEST_RESIDUAL, LARGEST_RESIDUAL)
    by_row = limited * limited.abs() * rows.weight
    cross[:, :-1] += (rows.phi.mT @ by_row[..., None]).squeeze(-1)
    cross[:, -1] += by_row.sum(1)


def _lower_limit(gain: Tensor, share: Tensor) -> float:
    """Mean gain less its standard error."""
    mean = float((share * gain).sum())
    error = float((share * (gain - mean)).square().sum().sqrt())
    return mean - STANDARD_ERRORS * error


def skew_of(phi: Tensor, weights: Tensor, member_weight: Tensor) -> Tensor:  # (n,)
    """Mean of d over the members."""
    return member_weight @ _bounded(phi, weights)


def _bounded(phi: Tensor, weights: Tensor) -> Tensor:  # (K, n, d) → (K, n)
    """φᵀb for every member, within its limits."""
    weight, bias = weights[:, None, :-1], weights[:, None, -1:]
    raw = torch.baddbmm(bias, weight, phi.mT).squeeze(1)
    return LARGEST_SKEW * torch.tanh(raw / LARGEST_SKEW)


def _ridge(moments: Moments, cross: Tensor, strength: float) -> Tensor:
    """Weights of a penalised regression; the constant goes free."""
    total = moments.gram[:, -1, -1]  # weight of all rows
    if math.isinf(strength):
        weights = torch.zeros_like(cross)
        weights[:, -1] = cross[:, -1] / total
        return weights
    mean = moments.gram[:, :-1, -1] / total[:, None]
    spread = moments.gram.diagonal(dim1=1, dim2=2)[:, :-1] / total[:, None] - mean**2
    penalty = torch.zeros_like(cross)
    penalty[:, :-1] = strength * spread.mean(1, keepdim=True).clamp_min(1e-12)
    system = moments.gram + torch.diag_embed(penalty)
    solved: Tensor = torch.linalg.solve(system, cross)
    return solved


def _two_piece_nll(
    residual: Tensor, h2: Tensor, epistemic: Tensor, skew: Tensor
) -> Tensor:
    """−log of exp(−r²/2v±)/(√v₋ + √v₊), without the constant; far residuals linear."""
    below = (h2 * (1 - skew) + epistemic).sqrt()
    above = (h2 * (1 + skew) + epistemic).sqrt()
    r = residual.abs() / torch.where(residual < 0, below, above)
    far = LARGEST_RESIDUAL * (r - 0.5 * LARGEST_RESIDUAL)
    loss = torch.where(r > LARGEST_RESIDUAL, far, 0.5 * r.square())
    return loss + (below + above).log()
