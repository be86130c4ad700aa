"""Σ → v: networks and posteriors together, in standardised units."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..network.ensemble import HeteroscedasticNetwork
from .gaussian import (
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

# Weight of a view ∝ exp(−SHARPNESS · held-out NLL per row of its members): worse by 0.1
# is a third of the weight, worse by 0.5 next to none.
SHARPNESS = 10.0
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
    member_weight: Tensor  # (K,), sums to one

    @torch.no_grad()
    def mu(self, x: Tensor) -> Tensor:  # (n, p) → (n,)
        """Weighted mean over the members."""
        phi = self.network.features(self.network.encoding(x))
        return self.member_weight @ self.posterior.mu(phi)

    @torch.no_grad()
    def parts(self, x: Tensor, scale: str) -> PredictiveParts:
        """μ, aleatoric and epistemic variance from one forward pass over (n, p)."""
        phi = self.network.features(self.network.encoding(x))
        mu = self.posterior.mu(phi)
        mean = self.member_weight @ mu
        if scale in ("claps", "aleatoric"):
            aleatoric = self._aleatoric(phi)
        else:
            aleatoric = torch.full_like(mean, self.residual_variance)
        if scale in ("aleatoric", "constant"):
            return PredictiveParts(mean, aleatoric, torch.zeros_like(mean))
        posterior = self.posterior if scale == "claps" else self.homoscedastic
        spread = self.member_weight @ (mu - mean).square()
        epistemic = self.member_weight @ posterior.epistemic(phi) + spread
        return PredictiveParts(mean, aleatoric, epistemic)

    def _aleatoric(self, phi: Tensor) -> Tensor:  # (K, n, d) → (n,)
        """Weighted geometric mean of h²: one member that errs high does not rule."""
        h2 = self.network.noise_variance(phi)
        return h2[0] if len(h2) == 1 else (self.member_weight @ h2.log()).exp()

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
    trained, views = network.last_layer_weights(), network.members_by_view()
    held_out = feature_batch(
        network, X[held_out_rows], y[held_out_rows], weight[held_out_rows]
    )
    by_member = weight.expand(network.n_members, -1)
    if held_out_rows.shape[1]:
        by_member = by_member.scatter(1, held_out_rows, 0.0)
    batches = FeatureBatches(network, X, y, by_member)
    inner, plain = both_moments(batches, trained, structure)
    moments = inner
    if held_out_rows.shape[1]:
        # Held-out rows were walked above with weight zero: they count once.
        more = both_moments([held_out], trained, structure)
        moments = replace(inner + more[0], n_rows=len(X))
        plain = replace(plain + more[1], n_rows=len(X))
    value = _choose_prior_precision(
        prior_precision,
        views,
        inner if prior_precision == "grid" else moments,  # the evidence needs all rows
        trained,
        last_layer,
        held_out,
    )
    without_held_out = make_posterior(inner, trained, last_layer, value)
    nll_of_views = _nll_of_views(views, without_held_out, held_out)
    member_weight = _member_weight(views, nll_of_views)
    posterior = make_posterior(moments, trained, last_layer, value)
    variance = _residual_variance(
        posterior, member_weight, batches, weight, network.variance_floor
    )
    homoscedastic = make_posterior(plain / variance, trained, "trained", value)
    return PredictiveModel(network, posterior, homoscedastic, variance, member_weight)


def _nll_of_views(
    parts: list[slice], posterior: LastLayerPosterior, held_out: FeatureBatch
) -> Tensor:
    """Mean held-out NLL of the members of each view; zero where no row is held out."""
    if held_out.y.shape[1] == 0:
        return posterior.mean.new_zeros(len(parts))
    by_member = held_out_nll(posterior, held_out)
    return torch.stack([by_member[part].mean() for part in parts])


def _member_weight(parts: list[slice], nll_of_views: Tensor) -> Tensor:
    """Weights (K,) of the members: equal in a view, by likelihood between views."""
    sizes = [part.stop - part.start for part in parts]
    by_member = nll_of_views.repeat_interleave(torch.tensor(sizes))
    return torch.softmax(-SHARPNESS * by_member, dim=0)


def _choose_prior_precision(
    prior_precision: float | str,
    views: list[slice],  # members that share a view
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

    def soft_minimum(value: float) -> float:  # λ serves the views that have the weight
        nll = _nll_of_views(views, posterior(value), held_out)
        return -float((-SHARPNESS * nll).logsumexp(dim=0))

    return minimise_over_prior_precision(soft_minimum)


def _residual_variance(
    posterior: LastLayerPosterior,
    member_weight: Tensor,
    batches: FeatureBatches,
    weight: Tensor,
    floor: float,
) -> float:
    """Mean squared training residual σ² of the members' mean, at least the floor."""
    squares, start = 0.0, 0
    for batch in batches:
        w = weight[start : start + batch.y.shape[1]]
        residual = batch.y[0] - member_weight @ posterior.mu(batch.phi)
        squares += float((w * residual.square()).sum())
        start += len(w)
    return max(squares / float(weight.sum()), floor)
