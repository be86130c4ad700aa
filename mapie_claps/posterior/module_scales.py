"""Sums → Σ → v for one network of the user's own, in units of y."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..network.defaults import MIN_ROWS_TO_HOLD_OUT
from ..network.own import BackboneOutput
from .gaussian import FeatureBatch, LastLayerMoments, LastLayerPosterior
from .gaussian import make_posterior as posterior_from_moments
from .scales import PredictiveParts, _choose_prior_precision
from .sums import LastLayerSums, in_units

VARIANCE_FLOOR = 1e-12  # of σ², in units of the variance of y


@dataclass(frozen=True)
class ModulePredictive:
    """Posteriors in standardised units of y, and these units."""

    posterior: LastLayerPosterior
    homoscedastic: LastLayerPosterior  # W = I/σ², for the "posterior" scale
    residual_variance: float  # σ², standardised
    centre: float
    unit: float

    def mu(self, out: BackboneOutput) -> Tensor:  # (n,)
        """Mean in units of y; as trained, it is the network's own to the last bit."""
        if self.posterior.last_layer == "trained":
            return out.mu
        return self.posterior.mu(out.phi[None])[0] * self.unit + self.centre

    def parts(self, out: BackboneOutput, scale: str) -> PredictiveParts:
        """μ, aleatoric and epistemic variance in units of y and y²."""
        mu, h2 = self.mu(out), out.h2
        if scale in ("posterior", "constant"):
            h2 = torch.full_like(mu, self.residual_variance * self.unit**2)
        if scale in ("aleatoric", "constant"):
            return PredictiveParts(mu, h2, torch.zeros_like(mu))
        posterior = self.posterior if scale == "claps" else self.homoscedastic
        epistemic = posterior.epistemic(out.phi[None])[0] * self.unit**2
        return PredictiveParts(mu, h2, epistemic)


def make_predictive(
    sums: LastLayerSums,
    weights: Tensor,  # (d + 1,), as trained, in units of y
    last_layer: str,
    prior_precision: float | str,
) -> ModulePredictive:
    """λ, then both posteriors. λ lives in standardised units of y."""
    centre, unit = sums.spread.mean, sums.spread.variance**0.5 or 1.0
    trained = weights[None] / unit
    trained[0, -1] -= centre / unit
    weight = sums.spread.weight
    value = _choose_prior_precision(
        _possible_choice(prior_precision, sums),
        [slice(0, 1)],
        in_units(sums.moments, trained, unit, weight),
        trained,
        _last_layer_of_choice(last_layer, prior_precision, sums.structure),
        _held_out(sums, trained, unit),
    )
    total = sums.with_held_out()
    moments = in_units(total.moments, trained, unit, weight)
    posterior = posterior_from_moments(moments, trained, last_layer, value)
    variance = _residual_variance(total.plain, posterior, unit, weight)
    homoscedastic = posterior_from_moments(
        total.plain / variance, trained, "trained", value
    )
    return ModulePredictive(posterior, homoscedastic, variance, centre, unit)


def _possible_choice(value: float | str, sums: LastLayerSums) -> float | str:
    """λ of the paper where rows are too few to hold any out."""
    if value == "grid" and sums.n_rows < MIN_ROWS_TO_HOLD_OUT:
        return 1.0
    return value


def _last_layer_of_choice(last_layer: str, value: float | str, structure: str) -> str:
    """The marginal likelihood is exact at the posterior mean, whichever ŵ predicts."""
    return "ridge" if value == "marglik" and structure == "full" else last_layer


def _held_out(sums: LastLayerSums, trained: Tensor, unit: float) -> FeatureBatch:
    """Rows to choose λ on, in standardised units; none if none are kept."""
    if sums.held_out is None:
        empty = trained.new_empty(1, 0)
        return FeatureBatch(empty[..., None], empty, empty, empty)
    rows = sums.held_out.batch
    mu = rows.phi @ trained[0, :-1] + trained[0, -1]
    return FeatureBatch(rows.phi, rows.h2 / unit**2, rows.y / unit + mu, rows.weight)


def _residual_variance(
    plain: LastLayerMoments, posterior: LastLayerPosterior, unit: float, weight: float
) -> float:
    """Mean squared residual of the mean in use, standardised, from the sums.

    ``plain.loss`` is half the sum of squares at the trained weights; a correction of
    the weights changes it by a quadratic that the sums hold.
    """
    squares = 2 * plain.loss[0]
    if posterior.last_layer == "ridge":
        step = (posterior.mean - posterior.trained)[0] * unit
        squares = squares + step @ (plain.gram[0] @ step - 2 * plain.cross[0])
    return max(float(squares) / weight / unit**2, VARIANCE_FLOOR)
