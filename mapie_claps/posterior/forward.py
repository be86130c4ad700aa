"""Inputs → μ, h², φᵀΣφ: the one forward pass of predictions and exports."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..network.kernel import KernelMember
from .last_layer import (
    FeatureRows,
    LastLayers,
    LastLayerSums,
    make_last_layers,
    mean_noise,
    sum_rows,
)

SCALES = ("claps", "aleatoric", "posterior", "constant")
# What a kernel's φᵀΣφ has in excess of its usual size counts three times: length scales
# are learned where rows are dense and promise too much elsewhere.
FAR_FACTOR = 2.0
KNOWN = 0.99  # of φᵀΣφ up to its usual size, where the mean is known


class Predicted(NamedTuple):
    """Mean and both parts of the variance of n rows, (n,) each."""

    mu: Tensor
    aleatoric: Tensor
    epistemic: Tensor


class ForwardPass(nn.Module):
    """A network, the posteriors of its last layers, and perhaps a kernel member.

    μ is the mean over the members with their weights, the aleatoric variance the
    geometric mean of h², the epistemic variance the mean of φᵀΣφ and the variance of
    the members' means. All of it lives in the units in which the network sees targets.
    """

    member_weight: Tensor
    residual_variance: Tensor

    def __init__(
        self,
        network: Any,  # x → Features
        last_layers: LastLayers,
        member_weight: Tensor,  # (K,), sums to one
        residual_variance: float,  # σ²
        kernel: KernelMember | None = None,
        kernel_weight: float = 0.0,
        usual_epistemic: float = 0.0,  # of a mean that is known: what is more counts
    ) -> None:
        super().__init__()
        self.network, self.last_layers = network, last_layers
        self.register_buffer("member_weight", member_weight)
        sigma2 = torch.tensor(residual_variance, dtype=torch.float64)
        self.register_buffer("residual_variance", sigma2)
        self.kernel, self.kernel_weight = kernel, kernel_weight
        self.usual_epistemic = usual_epistemic

    def forward(self, x: Tensor, scale: str = "claps") -> Predicted:
        """μ, aleatoric and epistemic variance of the rows x, for one of ``SCALES``."""
        layers, weight = self.last_layers, self.member_weight
        if scale == ("claps" if layers.homoscedastic else "posterior"):
            used = "I/σ²" if layers.homoscedastic else "diag(1/h²)"
            raise ValueError(
                f"Got scale={scale!r}, but the posterior was made with W = {used}, for "
                "another scale. Set the scale before fit, and call fit again."
            )
        out = self.network(x)
        by_member = layers.mu(out)
        if len(by_member) == 1:
            mu, noise = by_member[0], out.h2[0]
        else:
            mu, noise = weight @ by_member, mean_noise(out.h2, weight)
        aleatoric = noise
        if scale in ("posterior", "constant"):
            aleatoric = torch.ones_like(mu) * self.residual_variance
        if scale in ("aleatoric", "constant"):
            epistemic = torch.zeros_like(mu)
        else:
            epistemic = layers.epistemic(out.phi)
            if len(by_member) == 1:
                epistemic = epistemic[0]
            else:
                epistemic = weight @ epistemic.add_((by_member - mu).square_())
            if self.usual_epistemic:
                epistemic -= KNOWN * epistemic.clamp(max=self.usual_epistemic)
        if self.kernel is None:
            return Predicted(mu, aleatoric, epistemic)
        w, kernel = self.kernel_weight, Predicted(*self.kernel.predict(x, noise))
        if scale in ("claps", "aleatoric"):
            aleatoric = torch.lerp(aleatoric.log(), kernel.aleatoric.log(), w).exp()
        if scale in ("claps", "posterior"):
            excess = (kernel.epistemic - self.kernel.usual_epistemic).clamp(min=0)
            epistemic = torch.lerp(epistemic, kernel.epistemic, w)
            epistemic += w * (1 - w) * (kernel.mu - mu).square()
            epistemic += FAR_FACTOR * w * excess
        return Predicted(torch.lerp(mu, kernel.mu, w), aleatoric, epistemic)

    def embed(self, x: Tensor) -> Tensor:  # (n, K·d)
        """φ of all members side by side, by the roots of their weights."""
        phi: Tensor = self.network(x).phi * self.member_weight.sqrt()[:, None, None]
        return phi.movedim(0, 1).flatten(1)

    def sum_rows(
        self, rows: Iterable[tuple[Tensor, Tensor, Tensor]], like: LastLayerSums
    ) -> LastLayerSums:
        """Sums over rows (x, y, weight), to be added to the sums that are like them."""
        layers, weight = self.last_layers, self.member_weight
        return sum_rows(
            (FeatureRows.of(self.network, *some) for some in rows),
            "full" if layers.gram.ndim == 3 else "diag",
            like.homoscedastic,
            like.fit_id,
            lambda found: weight @ layers.residual(found),
        )

    def with_sums(
        self, sums: LastLayerSums, prior_precision: float | None = None
    ) -> "ForwardPass":
        """The same networks with the posterior that other sums make; λ may stay."""
        old, network = self.last_layers, self.network
        stays = prior_precision is None
        sigma2 = sums.residual_variance(network.variance_floor)
        layers = make_last_layers(
            sums,
            old.trained,
            old.last_layer,
            old.mean_precision if prior_precision is None else prior_precision,
            with_bias=old.with_bias,
            standardised=old.standardised,
            residual_variance=sigma2,
            variance_precision=old.prior_precision if stays else math.inf,
        )
        usual = self.usual_epistemic if stays else 0.0
        mixed = self.member_weight, sigma2, self.kernel, self.kernel_weight, usual
        return ForwardPass(network, layers, *mixed)
