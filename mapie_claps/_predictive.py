"""Σ → v: networks and posteriors together, in standardised units."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ._network import HeteroscedasticNetwork
from ._posterior import (
    FeatureBatch,
    FeatureBatches,
    LastLayerMoments,
    LastLayerPosterior,
    both_moments,
    feature_batch,
    held_out_nll,
    log_marginal_likelihood,
    make_posterior,
    minimise_over_prior_precision,
)

SCALES = ("claps", "aleatoric", "posterior", "constant")


class PredictiveParts(NamedTuple):
    """Mean and the two parts of v, of all members together."""

    mu: Tensor  # (n,)
    aleatoric: Tensor  # (n,)
    epistemic: Tensor  # (n,)


@dataclass(frozen=True)
class PredictiveModel:
    """All that prediction needs: networks, posteriors, residual variance σ²."""

    network: HeteroscedasticNetwork
    posterior: LastLayerPosterior
    homoscedastic: LastLayerPosterior  # W = I/σ², for the "posterior" scale
    residual_variance: float

    @torch.no_grad()
    def mu(self, x: Tensor) -> Tensor:  # (n, p) → (n,)
        """Mean over the members."""
        phi = self.network.features(self.network.encoding(x))
        return self.posterior.mu(phi).mean(0)

    @torch.no_grad()
    def parts(self, x: Tensor, scale: str) -> PredictiveParts:
        """μ, aleatoric and epistemic variance from one forward pass over (n, p)."""
        phi = self.network.features(self.network.encoding(x))
        mu = self.posterior.mu(phi)
        mean = mu.mean(0)
        if scale in ("claps", "aleatoric"):
            aleatoric = self.network.noise_variance(phi).mean(0)
        else:
            aleatoric = torch.full_like(mean, self.residual_variance)
        if scale in ("aleatoric", "constant"):
            return PredictiveParts(mean, aleatoric, torch.zeros_like(mean))
        posterior = self.posterior if scale == "claps" else self.homoscedastic
        spread = mu.var(0, correction=0)
        epistemic = posterior.epistemic(phi).mean(0) + spread
        return PredictiveParts(mean, aleatoric, epistemic)

    def with_prior_precision(self, value: float) -> "PredictiveModel":
        """The same networks under another λ."""
        return replace(
            self,
            posterior=self.posterior.with_prior_precision(value),
            homoscedastic=self.homoscedastic.with_prior_precision(value),
        )


def fit_predictive_model(
    network: HeteroscedasticNetwork,
    X: Tensor,  # (n, p)
    y: Tensor,  # (n,)
    weight: Tensor,  # (n,)
    held_out_rows: Tensor,  # (K, n_held_out)
    prior_precision: float | str,
    last_layer: str,
    structure: str,
) -> PredictiveModel:
    """Sums over the training rows, λ, and the posteriors of both likelihoods."""
    trained = network.last_layer_weights()
    held_out = feature_batch(
        network, X[held_out_rows], y[held_out_rows], weight[held_out_rows]
    )
    by_member = weight.expand(network.n_members, -1)
    by_grid = prior_precision == "grid" and held_out_rows.shape[1] > 0
    if by_grid:
        by_member = by_member.scatter(1, held_out_rows, 0.0)
    batches = FeatureBatches(network, X, y, by_member)
    moments, plain = both_moments(batches, trained, structure)
    value = _choose_prior_precision(
        prior_precision, moments, trained, last_layer, held_out
    )
    if by_grid:
        # Held-out rows were walked above with weight zero: they count once.
        more = both_moments([held_out], trained, structure)
        moments = replace(moments + more[0], n_rows=len(X))
        plain = replace(plain + more[1], n_rows=len(X))
    posterior = make_posterior(moments, trained, last_layer, value)
    variance = _residual_variance(posterior, batches, weight, network.variance_floor)
    homoscedastic = make_posterior(plain / variance, trained, "trained", value)
    return PredictiveModel(network, posterior, homoscedastic, variance)


def _choose_prior_precision(
    prior_precision: float | str,
    moments: LastLayerMoments,
    trained: Tensor,
    last_layer: str,
    held_out: FeatureBatch,
) -> float:
    """λ as given, by held-out likelihood, or by marginal likelihood."""
    if not isinstance(prior_precision, str):
        return float(prior_precision)

    def posterior(value: float) -> LastLayerPosterior:
        return make_posterior(moments, trained, last_layer, value)

    if prior_precision == "marglik":
        return minimise_over_prior_precision(
            lambda value: -log_marginal_likelihood(posterior(value))
        )
    if held_out.y.shape[1] == 0:
        return 1.0  # too few rows to hold any out: the value of the paper
    return minimise_over_prior_precision(
        lambda value: held_out_nll(posterior(value), held_out)
    )


def _residual_variance(
    posterior: LastLayerPosterior,
    batches: FeatureBatches,
    weight: Tensor,
    floor: float,
) -> float:
    """Mean squared training residual σ² of the members' mean, at least the floor."""
    squares, start = 0.0, 0
    for batch in batches:
        w = weight[start : start + batch.y.shape[1]]
        residual = batch.y[0] - posterior.mu(batch.phi).mean(0)
        squares += float((w * residual.square()).sum())
        start += len(w)
    return max(squares / float(weight.sum()), floor)
