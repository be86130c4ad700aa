"""HᵀWH → Σ: the Gaussian posterior of every member's last layer.

What is kept are tensors: a fitted Laplace object does not pickle and holds a copy of
the network.
"""

import warnings
from dataclasses import dataclass

import torch
from laplace.utils import invsqrt_precision
from torch import Tensor
from torch.nn.functional import pad

from ..exceptions import NotPositiveDefiniteError, NumericalWarning
from ..files.codec import saved_as
from .moments import Moments, laplace_of, structure_of


@saved_as("posterior")
@dataclass(frozen=True)
class LastLayerPosterior:
    """N(mean, Σ) of every member's last layer, Σ = (λI + HᵀWH)⁻¹."""

    trained: Tensor  # (K, d + 1), the weights that training left, bias last
    last_layer: str  # "trained" or "ridge"
    prior_precision: float
    mean: Tensor  # (K, d + 1)
    scale: Tensor  # (K, d + 1, d + 1) with Σ = scale scaleᵀ; (K, d + 1) if diagonal

    @property
    def structure(self) -> str:
        """Structure of Σ, "full" or "diag"."""
        return structure_of(self.scale)

    def mu(self, phi: Tensor) -> Tensor:  # (K, n, d) → (K, n)
        """Mean φᵀŵ."""
        weight, bias = self.mean[:, None, :-1], self.mean[:, None, -1:]
        return torch.baddbmm(bias, weight, phi.mT).squeeze(1)

    def epistemic(self, phi: Tensor) -> Tensor:  # (K, n, d) → (K, n)
        """φᵀΣφ as a sum of squares, so that it cannot be negative."""
        if self.structure == "diag":
            weighted = phi * self.scale[:, None, :-1]
            return weighted.square_().sum(-1) + self.scale[:, -1:].square()
        root = self.scale.mT
        return torch.baddbmm(root[:, :, -1:], root[:, :, :-1], phi.mT).square_().sum(1)

    def whitened(self, phi: Tensor) -> Tensor:  # (K, n, d) → (K, n, d + 1)
        """Vectors whose products are φᵀΣφ' of any two rows."""
        with_one = pad(phi, (0, 1), value=1.0)
        if self.structure == "diag":
            return with_one * self.scale[:, None]
        return with_one @ self.scale

    def covariance(self) -> Tensor:
        """Σ of every member, shape (K, d + 1, d + 1)."""
        if self.structure == "diag":
            return torch.diag_embed(self.scale.square())
        return self.scale @ self.scale.mT


def make_posterior(
    moments: Moments,
    trained: Tensor,  # (K, d + 1)
    last_layer: str,
    prior_precision: float,
    with_bias: bool = True,
) -> LastLayerPosterior:
    """Factor λI + HᵀWH, and solve for ŵ where the last layer is refitted.

    Without the bias in the posterior, φ carries no constant: Σ is zero there.
    """
    if with_bias:
        scale = posterior_scale(moments.gram, prior_precision)
    else:
        full = moments.structure == "full"
        gram = moments.gram[:, :-1, :-1] if full else moments.gram[:, :-1]
        size = (0, 1, 0, 1) if full else (0, 1)
        scale = pad(posterior_scale(gram, prior_precision), size)
    mean = trained
    if last_layer == "ridge":  # Σ HᵀWy, with y = Hw + r
        mean = _solve(scale, moments.cross + moments.times(trained))
    return LastLayerPosterior(trained, last_layer, prior_precision, mean, scale)


def posterior_scale(gram: Tensor, prior_precision: float) -> Tensor:
    """Factor of Σ for every member; jitter, where needed, is reported."""
    if structure_of(gram) == "diag":
        return (gram + prior_precision).rsqrt()
    precision = gram + prior_precision * torch.eye(gram.shape[-1], dtype=gram.dtype)
    try:
        scale: Tensor = invsqrt_precision(precision)
        sound = bool(torch.isfinite(scale).all())
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        sound = False
    # Contiguous, as a file brings it back: products then agree to the last bit.
    if sound:
        return scale.contiguous()
    return torch.stack([_factor(p) for p in precision])


def _factor(precision: Tensor) -> Tensor:
    """laplace-torch's triangular factor, with growing jitter where rounding wins."""
    size = float(precision.diagonal().max())
    identity = torch.eye(len(precision), dtype=precision.dtype)
    for jitter in (0.0, *(size * 10.0**e for e in range(-15, -8))):
        try:
            scale: Tensor = invsqrt_precision(precision + jitter * identity)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            continue
        if bool(torch.isfinite(scale).all()):
            if jitter:
                warnings.warn(
                    f"Added {jitter:.1e} to the diagonal of the posterior precision "
                    f"(largest entry {size:.1e}), which was not positive definite to "
                    "rounding. Raise prior_precision or variance_floor to avoid it.",
                    NumericalWarning,
                    stacklevel=2,
                )
            return scale
    raise NotPositiveDefiniteError(
        f"The posterior precision (largest entry {size!r}) is not positive definite. "
        "Raise prior_precision or variance_floor, or look for extreme values in X."
    )


def _solve(scale: Tensor, cross: Tensor) -> Tensor:
    """Σ b for every member."""
    return (scale @ (scale.mT @ cross[..., None])).squeeze(-1)


def log_marginal_likelihood(posterior: LastLayerPosterior, moments: Moments) -> float:
    """laplace-torch's evidence at the posterior's mean, summed over members."""
    losses = moments.loss_after(posterior.mean - posterior.trained)
    prior = torch.tensor(posterior.prior_precision, dtype=losses.dtype)
    total = 0.0
    for k, mean in enumerate(posterior.mean):
        la = laplace_of(posterior.trained[k], posterior.structure)
        la.H, la.mean, la.n_data, la.n_outputs = (
            moments.gram[k],
            mean,
            moments.n_rows,
            1,
        )
        la.loss = losses[k]
        total += float(la.log_marginal_likelihood(prior))
    return total
