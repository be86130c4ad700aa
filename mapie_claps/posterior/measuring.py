"""φ of two rows → covariance of what is not known of their means.

A measurement at z with noise h²(z) contracts Σ by one row in closed form, and the
variance at x by c(x, z)² / (h²(z) + c(z, z)), c being this covariance.
"""

import torch
from torch import Tensor

from ..network.interface import Features
from .mixture import KernelMixture
from .scales import LastLayerModel


def joined(parts: list[Features]) -> Features:
    """Features of all rows in one."""
    x = [part.x for part in parts if part.x is not None]
    phi, mu, h2 = (torch.cat([part[i] for part in parts], dim=1) for i in range(3))  # type: ignore[misc]
    return Features(phi, mu, h2, torch.cat(x) if x else None)


def embedding(model: LastLayerModel, out: Features) -> Tensor:  # (n, K·d)
    """φ of all members side by side, by the roots of their weights."""
    phi = out.phi * model.member_weight.sqrt()[:, None, None]
    return phi.movedim(0, 1).flatten(1)


def networks_covariance(
    model: LastLayerModel, out: Features, other: Features, scale: str
) -> Tensor:  # (n, m)
    """φᵀΣφ' as the mean over members, and how their means vary together."""
    posterior = model.posterior_of(scale)
    a, b = (posterior.whitened(o.phi) for o in (out, other))  # (K, n, d + 1)
    weight = model.member_weight
    found = torch.einsum("k,knd,kmd->nm", weight, a, b) * model.unit**2
    if len(weight) > 1:
        first, second = (_deviations(model, o) for o in (out, other))  # (K, n)
        found += torch.einsum("k,kn,km->nm", weight, first, second)
    return found


def mixture_covariance(
    kernel: KernelMixture,
    model: LastLayerModel,
    out: Features,
    other: Features,
    scale: str,
) -> Tensor:  # (n, m)
    """The same with a kernel member beside the networks."""
    w, of_networks = kernel.weight, networks_covariance(model, out, other, scale)
    of_kernel = kernel.member.posterior_covariance(_inputs(out), _inputs(other))
    spread = torch.outer(_apart(kernel, model, out), _apart(kernel, model, other))
    return torch.lerp(of_networks, of_kernel, w) + w * (1 - w) * spread


def mixture_variance(
    kernel: KernelMixture, model: LastLayerModel, out: Features, scale: str
) -> Tensor:  # (n,)
    """Covariance of each row with itself."""
    w, of_networks = kernel.weight, model.parts(out, scale).epistemic
    of_kernel = kernel.member.posterior(_inputs(out))[1]
    spread = w * (1 - w) * _apart(kernel, model, out).square()
    return torch.lerp(of_networks, of_kernel, w) + spread


def _inputs(out: Features) -> Tensor:
    if out.x is None:
        raise ValueError("Got features without inputs, which a kernel member needs.")
    return out.x


def _apart(kernel: KernelMixture, model: LastLayerModel, out: Features) -> Tensor:
    """The kernel's mean from that of the networks, (n,)."""
    return kernel.member.posterior(_inputs(out))[0] - model.mu(out)


def _deviations(model: LastLayerModel, out: Features) -> Tensor:  # (K, n)
    """Means of the members, from their mean."""
    mu = model.mu_of_members(out)
    return mu - model.member_weight @ mu
