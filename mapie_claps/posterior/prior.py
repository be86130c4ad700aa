"""λ: given, by held-out likelihood on a grid, or by marginal likelihood.

Beside it the weights of the members, which the same held-out rows decide.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..network.losses import gaussian_nll
from .gaussian import LastLayerPosterior, log_marginal_likelihood, make_posterior
from .moments import FeatureRows, Moments

# Weight of a view ∝ exp(−SHARPNESS · held-out NLL per row of its members): worse by 0.1
# is a third of the weight, worse by 0.5 next to none.
SHARPNESS = 10.0
PRIOR_PRECISION_GRID = tuple(10.0**e for e in range(-5, 5))
PAPER_PRIOR_PRECISION = 1.0


def choose_prior_precision(
    rule: float | str,
    moments: Moments,  # for "grid" without the held-out rows
    trained: Tensor,
    last_layer: str,
    held_out: FeatureRows | None,
    views: Sequence[slice],  # members that share a view
) -> float:
    """λ as given, by held-out likelihood, or by marginal likelihood."""
    if not isinstance(rule, str):
        return float(rule)
    if rule == "marglik":
        # The evidence is exact at the posterior mean, whichever ŵ predicts.
        mean = "ridge" if moments.structure == "full" else last_layer

        def objective(value: float) -> float:
            posterior = make_posterior(moments, trained, mean, value)
            return -log_marginal_likelihood(posterior, moments)

    elif held_out is None:
        return PAPER_PRIOR_PRECISION  # too few rows to hold any out
    else:

        def objective(value: float) -> float:
            posterior = make_posterior(moments, trained, last_layer, value)
            # A soft minimum: λ serves the views that have the weight.
            nll = nll_of_views(posterior, held_out, views)
            return -float((-SHARPNESS * nll).logsumexp(dim=0))

    return min(PRIOR_PRECISION_GRID, key=objective)


def nll_of_views(
    posterior: LastLayerPosterior, held_out: FeatureRows, views: Sequence[slice]
) -> Tensor:  # (n_views,)
    """Mean held-out NLL of the members of each view."""
    by_member = held_out_nll(posterior, held_out)
    return torch.stack([by_member[view].mean() for view in views])


def held_out_nll(posterior: LastLayerPosterior, rows: FeatureRows) -> Tensor:  # (K,)
    """Predictive NLL of each member over rows that its sums leave out."""
    v = rows.h2 + posterior.epistemic(rows.phi)
    trained = posterior.trained
    mu = (rows.phi @ trained[:, :-1, None]).squeeze(-1) + trained[:, -1:]
    nll = gaussian_nll(rows.residual + mu, posterior.mu(rows.phi), v)
    return (nll * rows.weight).sum(1) / rows.weight.sum(1)


def weights_of_members(nll: Tensor, views: Sequence[slice]) -> Tensor:  # (K,)
    """Weights that sum to one: equal in a view, by likelihood between views."""
    sizes = [view.stop - view.start for view in views]
    by_member = nll.repeat_interleave(torch.tensor(sizes))
    return torch.softmax(-SHARPNESS * by_member, dim=0)
