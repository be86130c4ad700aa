"""μ and v of the networks and of a kernel member together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..exceptions import FileFormatError
from ..files.codec import saved_as
from ..network.ensemble import HeteroscedasticNetwork
from ..network.interface import Features
from ..network.kernel import KernelMember, LengthScales, fit_kernel
from ..network.kernel_mean import with_mean_of_all_rows
from ..network.threads import Crew
from .prior import SHARPNESS, nll_of_views
from .scales import LastLayerModel, LastLayerRecipe, PredictiveParts
from .sums import LastLayerSums

MIN_WEIGHT = 0.01  # below, the member is dropped and costs nothing when predicting
MAIN_WEIGHT = 0.5  # from here on it is worth a mean of all rows
# What φᵀΣφ has in excess of its usual size counts three times: length scales are
# learned where rows are dense and promise too much elsewhere. Chosen with figures, see
# docs/recipe.md.
FAR_FACTOR = 2.0
# The kernel may be nearly free of noise, where the networks' floor is too high.
FLOOR_SHARE = 1e-3


@saved_as("kernel mixture")
@dataclass(frozen=True)
class KernelMixture:
    """A kernel member, and its weight beside the networks."""

    member: KernelMember
    weight: float

    def mu(self, model: LastLayerModel, out: Features, x: Tensor) -> Tensor:  # (n,)
        """Weighted mean of the networks' μ and the kernel's."""
        return torch.lerp(model.mu(out), self.member.posterior(x)[0], self.weight)

    def parts(
        self, model: LastLayerModel, out: Features, x: Tensor, scale: str
    ) -> PredictiveParts:
        """μ, aleatoric and epistemic variance of the rows x."""
        w, nets = self.weight, model.parts(out, scale)
        kernel = self.member.predict(x, model.aleatoric(out))
        mu = torch.lerp(nets.mu, kernel.mu, w)
        aleatoric, epistemic = nets.aleatoric, nets.epistemic
        if scale in ("claps", "aleatoric"):
            aleatoric = torch.lerp(aleatoric.log(), kernel.aleatoric.log(), w).exp()
        if scale in ("claps", "posterior"):
            spread = w * (1 - w) * (kernel.mu - nets.mu).square()
            excess = (kernel.epistemic - self.member.usual_epistemic).clamp(min=0)
            epistemic = torch.lerp(epistemic, kernel.epistemic, w) + spread
            epistemic += FAR_FACTOR * w * excess
        return PredictiveParts(mu, aleatoric, epistemic)

    def remoteness(self, model: LastLayerModel, out: Features, x: Tensor) -> Tensor:
        """Mean of networks and kernel, whatever their weights; noise counts in none."""
        of_kernel = self.member.equal_noise_variance(x)
        return torch.lerp(model.remoteness(out), of_kernel, 0.5)

    def tensors(self) -> dict[str, Tensor]:
        """Numbers that change with the member, for a fingerprint."""
        member = self.member
        found = {"kernel": member.covariance.inverse_scale, "kernel y": member.y}
        covariance = member.covariance
        numbers = [self.weight, member.noise_factor, member.usual_epistemic]
        numbers += [member.noise_floor, covariance.matern, covariance.linear]
        numbers += [covariance.smooth, covariance.ratio]
        weight = torch.tensor(numbers, dtype=torch.float64)
        found |= {"kernel noise": member.noise, "kernel weight": weight}
        found |= {"kernel X": member.X}
        return found if member.dual is None else found | {"kernel dual": member.dual}

    def check(self, n_columns: int) -> None:
        """Raise for a member that no fit leaves behind."""
        member = self.member
        n_rows = len(member.X)
        expected = {
            "inverse_scale": (member.covariance.inverse_scale, (n_columns,)),
            "X": (member.X, (n_rows, n_columns)),
            "y": (member.y, (n_rows,)),
            "noise": (member.noise, (n_rows,)),
        }
        if member.dual is not None:
            expected["dual"] = member.dual, (n_rows,)
        for name, (tensor, shape) in expected.items():
            sound = tensor.dtype == torch.float64 and bool(tensor.isfinite().all())
            if tuple(tensor.shape) != shape or n_rows == 0 or not sound:
                raise FileFormatError(
                    f"Got a kernel member whose {name} has the shape "
                    f"{tuple(tensor.shape)} and the type {tensor.dtype}, but expected "
                    f"{shape} and finite numbers of torch.float64."
                )
        numbers = (
            float(member.noise.min()),
            member.noise_factor,
            member.noise_floor,
            member.covariance.matern,
            member.covariance.linear,
            member.covariance.ratio,
        )
        sound = 0 <= member.covariance.smooth < math.inf and 0 <= self.weight <= 1
        sound &= math.isfinite(member.usual_epistemic)
        if not (sound and all(0 < n < math.inf for n in numbers)):
            raise FileFormatError(
                f"Got a kernel member of weight {self.weight!r} with noise and "
                f"variances {numbers}, but expected positive numbers and a weight "
                "between 0 and 1."
            )


def fit_mixture(
    network: HeteroscedasticNetwork,
    model: LastLayerModel,
    sums: LastLayerSums,  # with the held-out rows apart
    recipe: LastLayerRecipe,
    X: Tensor,  # (n, p)
    y: Tensor,  # (n,)
    weight: Tensor,  # (n,)
    held_out_rows: Tensor,  # (K, n_held_out)
    noise: Tensor,  # (n,), g(x) of the networks together
    scales: LengthScales | None,
    crew: Crew,
) -> KernelMixture | None:
    """A kernel member weighed like a view; None where it has or earns no place."""
    if sums.held_out is None or scales is None:
        return None
    held_out = sums.held_out.rows
    member = fit_kernel(
        scales,
        X,
        y,
        weight,
        noise,
        held_out_rows,
        held_out.h2,
        FLOOR_SHARE * network.variance_floor,
        crew,
    )
    views = network.members_by_view()
    without = recipe.posterior(sums.moments, model.posterior, recipe.last_layer)
    nll = nll_of_views(without, held_out, views)
    share = kernel_weight(member.held_out_nll, nll, views)
    if share >= MAIN_WEIGHT:
        member = with_mean_of_all_rows(member)
        share = kernel_weight(member.held_out_nll, nll, views)
    return KernelMixture(member, share) if share >= MIN_WEIGHT else None


def kernel_weight(nll: float, nll_of_views: Tensor, views: Sequence[slice]) -> float:
    """Weight of the kernel as of one more view, by likelihood on held-out rows."""
    sizes = nll_of_views.new_tensor([view.stop - view.start for view in views])
    logits = (sizes / sizes.mean()).log() - SHARPNESS * nll_of_views
    return float(torch.sigmoid(-SHARPNESS * nll - torch.logsumexp(logits, dim=0)))
