"""Σ → v: the four scales, from φ, μ and h² to μ and both parts of the variance."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..files.codec import saved_as
from ..network.hold_out import MIN_ROWS_TO_HOLD_OUT
from ..network.interface import Features
from .gaussian import LastLayerPosterior, make_posterior
from .moments import NO_SECOND_GRAM, FeatureRows, Moments, with_gram
from .prior import choose_prior_precision, nll_of_views, weights_of_members
from .sums import LastLayerSums

SCALES = ("claps", "aleatoric", "posterior", "constant")


class Units(NamedTuple):
    """Where the targets that a representation speaks of lie, and how far they spread.

    λ and the floor of σ² live in standardised units.
    """

    centre: float = 0.0
    unit: float = 1.0


class PredictiveParts(NamedTuple):
    """Mean and the two parts of v, of all members together."""

    mu: Tensor  # (n,)
    aleatoric: Tensor  # (n,)
    epistemic: Tensor  # (n,)
    skew: Tensor | None = None  # (n,), d with h±² = h²(1 ± d)


@saved_as("last layer")
@dataclass(frozen=True)
class LastLayerModel:
    """Posteriors of the members' last layers, σ², and the weight of each member.

    Posteriors and σ² are standardised; ``centre`` and ``unit`` lead back to the units
    that the representation speaks.
    """

    posterior: LastLayerPosterior
    homoscedastic: LastLayerPosterior | None  # W = I/σ², for the scale "posterior"
    residual_variance: float  # σ²
    member_weight: Tensor  # (K,), sums to one
    centre: float = 0.0
    unit: float = 1.0

    def mu(self, out: Features) -> Tensor:  # (n,)
        """Weighted mean over the members."""
        return self._mean(self.mu_of_members(out))

    def parts(self, out: Features, scale: str) -> PredictiveParts:
        """μ, aleatoric and epistemic variance of the rows."""
        mu = self.mu_of_members(out)
        mean = self._mean(mu)
        if scale in ("claps", "aleatoric"):
            aleatoric = self.aleatoric(out)
        else:
            aleatoric = torch.full_like(mean, self.residual_variance * self.unit**2)
        if scale in ("aleatoric", "constant"):
            return PredictiveParts(mean, aleatoric, torch.zeros_like(mean))
        posterior = self.posterior_of(scale)
        epistemic = self._mean(posterior.epistemic(out.phi)) * self.unit**2
        if len(mu) > 1:
            epistemic = epistemic + self.member_weight @ (mu - mean).square()
        return PredictiveParts(mean, aleatoric, epistemic)

    def posterior_of(self, scale: str) -> LastLayerPosterior:
        """The posterior that the epistemic part of a scale comes from."""
        if scale != "posterior":
            return self.posterior
        if self.homoscedastic is None:
            raise ValueError(NO_SECOND_GRAM)
        return self.homoscedastic

    def remoteness(self, out: Features) -> Tensor:  # (n,)
        """φᵀΣφ with W = I/σ² where there is that posterior, standardised."""
        return self._mean((self.homoscedastic or self.posterior).epistemic(out.phi))

    def mu_of_members(self, out: Features) -> Tensor:  # (K, n)
        """As trained, μ is the representation's own to the last bit."""
        if self.posterior.last_layer == "trained":
            return out.mu
        return self.posterior.mu(out.phi) * self.unit + self.centre

    def _mean(self, by_member: Tensor) -> Tensor:  # (K, n) → (n,)
        return by_member[0] if len(by_member) == 1 else self.member_weight @ by_member

    def aleatoric(self, out: Features | FeatureRows) -> Tensor:  # (n,)
        """Weighted geometric mean of h²: one member that errs high does not rule."""
        h2 = out.h2
        return h2[0] if len(h2) == 1 else (self.member_weight @ h2.log()).exp()

    def covariance(self) -> Tensor:
        """Σ of every member in the units of the representation, (K, d + 1, d + 1)."""
        return self.posterior.covariance() * self.unit**2


@dataclass(frozen=True)
class LastLayerRecipe:
    """How posteriors are made from sums."""

    last_layer: str
    prior_precision: float | str
    variance_floor: float  # of σ², standardised
    with_bias: bool = True
    member_weight: Tensor | None = None  # None: by held-out likelihood

    def posterior(
        self, moments: Moments, like: LastLayerPosterior, last_layer: str
    ) -> LastLayerPosterior:
        """The posterior of other sums, with the same λ."""
        trained, value = like.trained, like.prior_precision
        return make_posterior(moments, trained, last_layer, value, self.with_bias)


def make_model(
    sums: LastLayerSums,
    trained: Tensor,  # (K, d + 1), in the units of the representation
    recipe: LastLayerRecipe,
    views: Sequence[slice],
    units: Units,
) -> LastLayerModel:
    """λ, the weights of the members, and the posteriors of both likelihoods.

    With several members σ² is that of ``sums.residuals``; see ``with_residuals``.
    """
    weight = sums.targets.weight
    trained = trained / units.unit
    trained[:, -1] -= units.centre / units.unit
    held_out = _standardised_rows(sums, units)
    without = sums.moments.in_units(units.unit, weight)
    total = sums.with_held_out()
    moments = without if sums is total else total.moments.in_units(units.unit, weight)
    value = choose_prior_precision(
        recipe.prior_precision,
        without if recipe.prior_precision == "grid" else moments,
        trained,
        recipe.last_layer,
        held_out,
        views,
    )

    def posterior_of(moments: Moments, last_layer: str) -> LastLayerPosterior:
        return make_posterior(moments, trained, last_layer, value, recipe.with_bias)

    member_weight = recipe.member_weight
    if member_weight is None:
        nll = trained.new_zeros(len(views))
        if held_out is not None and len(trained) > 1:
            nll = nll_of_views(
                posterior_of(without, recipe.last_layer), held_out, views
            )
        member_weight = weights_of_members(nll, views)
    posterior = posterior_of(moments, recipe.last_layer)
    variance = residual_variance(total, posterior, units.unit, recipe.variance_floor)
    homoscedastic = None
    if isinstance(total.homoscedastic, Moments):
        homoscedastic = posterior_of(total.homoscedastic / variance, "trained")
    return LastLayerModel(posterior, homoscedastic, variance, member_weight, *units)


def with_residuals(
    model: LastLayerModel, sums: LastLayerSums, recipe: LastLayerRecipe
) -> LastLayerModel:
    """The model with σ² from the residuals of its mean, once they are in the sums."""
    variance = residual_variance(
        sums, model.posterior, model.unit, recipe.variance_floor
    )
    unweighted = with_gram(sums.homoscedastic) / variance
    homoscedastic = recipe.posterior(unweighted, model.posterior, "trained")
    return replace(model, residual_variance=variance, homoscedastic=homoscedastic)


def residuals_of_mean(model: LastLayerModel, rows: FeatureRows) -> Tensor:  # (n,)
    """Residuals of the members' mean, from those of the trained means."""
    residual = residual_of_members(model.posterior, rows, model.unit)
    return model.member_weight @ residual


def residual_of_members(
    posterior: LastLayerPosterior, rows: FeatureRows, unit: float = 1.0
) -> Tensor:  # (K, n)
    """Residuals of the means in use, from those of the trained means."""
    if posterior.last_layer == "trained":
        return rows.residual
    step = (posterior.mean - posterior.trained) * unit
    weight, bias = step[:, None, :-1], step[:, None, -1:]
    return rows.residual - torch.baddbmm(bias, weight, rows.phi.mT).squeeze(1)


def _standardised_rows(sums: LastLayerSums, units: Units) -> FeatureRows | None:
    """Held-out rows in standardised units; None if there are too few to hold out."""
    if not sums.held_out or sums.n_rows < MIN_ROWS_TO_HOLD_OUT:
        return None
    rows = sums.held_out.rows
    if units.unit == 1.0:
        return rows
    return replace(
        rows, h2=rows.h2 / units.unit**2, residual=rows.residual / units.unit
    )


def residual_variance(
    sums: LastLayerSums, posterior: LastLayerPosterior, unit: float, floor: float
) -> float:
    """Mean squared residual σ² of the mean in use, standardised, at least the floor.

    One member: from the sums, in which a correction of the weights is a quadratic.
    Several: that of their mean when the rows were summed, which is not in the sums of
    single members.
    """
    weight = sums.targets.weight
    if len(posterior.mean) > 1:
        square = sums.residuals.mean_square if sums.residuals.weight else floor
    elif posterior.last_layer == "trained":
        square = 2 * float(sums.homoscedastic.loss[0]) / weight
    else:
        step = (posterior.mean - posterior.trained) * unit
        square = 2 * float(with_gram(sums.homoscedastic).loss_after(step)[0]) / weight
    return max(square / unit**2, floor)
