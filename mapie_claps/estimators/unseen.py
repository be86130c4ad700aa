"""Rows with values that never occurred in training: μ, and more lack of data.

A value that was not seen is taken as one more draw from the values that were: the
networks predict the row with known values in its place, one draw after the other. μ and
h² are means over the draws, and what μ varies by is lack of data. With K known values
the variance of the next one is estimated as (V + h²/K)(1 + 1/K), V being the variance
over the draws: the factor is that of predicting one more draw from K, and h²/K keeps
one prior observation as large as the noise, without which a column of a single value
would pass for one that does not matter.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..network.columns import Array, Mask
from ..network.table import TableEncoder
from ..posterior.scales import PredictiveParts


def mu_over_draws(
    encoder: TableEncoder,
    values: Array,
    unseen: Mask,
    predict: Callable[[Array], Tensor],
) -> Tensor:  # (n,)
    """Mean of μ over known values in place of those not seen."""
    draws = encoder.alternatives(values, unseen)
    return torch.stack([predict(draw) for draw in draws]).mean(dim=0)


def parts_over_draws(
    encoder: TableEncoder,
    values: Array,
    unseen: Mask,
    predict: Callable[[Array], PredictiveParts],
    counts_lack_of_data: bool,
) -> PredictiveParts:
    """μ and both parts of v, with what the unseen values add to lack of data."""
    draws = [predict(draw) for draw in encoder.alternatives(values, unseen)]
    columns = zip(*(draw[:3] for draw in draws), strict=True)
    mu, aleatoric, epistemic = (torch.stack(column) for column in columns)
    skews = [draw.skew for draw in draws if draw.skew is not None]
    skew = torch.stack(skews).mean(dim=0) if skews else None
    mean, noise, lack = mu.mean(dim=0), aleatoric.mean(dim=0), epistemic.mean(dim=0)
    if counts_lack_of_data:
        n_known = torch.from_numpy(encoder.n_known(unseen))
        spread = (mu - mean).square().mean(dim=0)
        lack = lack + (spread + noise / n_known) * (1 + 1 / n_known)
    return PredictiveParts(mean, noise, lack, skew)
