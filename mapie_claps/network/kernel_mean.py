"""A kernel member → the same with the mean of all its rows, where that is better.

The posterior on the nearest rows is as good as that on all of them where there is
noise. Without noise a smooth function is told by rows far away, too. The mean of all
rows costs one factorisation when fitting and a product with all rows when predicting;
the variance stays that of the nearest rows, times one factor.
"""

from dataclasses import replace

import torch
from torch import Tensor

from .covariance import noisy_cholesky
from .kernel import JUDGED_ROWS, KernelMember, near_rows
from .losses import gaussian_nll
from .threads import threads_for

MAX_ROWS = 4_000  # the time grows with their third power, the memory with the second
MIN_GAIN = 0.1  # of the log-likelihood of a row left out, or the nearest rows stay
FACTORS = 1e-4, 1e4  # smallest and largest


@torch.no_grad()
def with_mean_of_all_rows(member: KernelMember) -> KernelMember:
    """The member whose mean is that of all rows, if rows left out are told better.

    The mean and variance of a row from all others follow from (K + W⁻¹)⁻¹.
    """
    X, y, noise = member.X, member.y, member.noise
    n = len(X)
    if n > MAX_ROWS:
        return member
    n_judged = min(JUDGED_ROWS, n // 8)
    with threads_for(0):  # sums of several threads would be rounded otherwise
        root = noisy_cholesky(member.covariance(X, X), noise)
        dual = torch.cholesky_solve(y[:, None], root)[:, 0]
        judged = torch.arange(n_judged) * n // n_judged
        unit = X.new_zeros(n, n_judged)
        unit[judged, torch.arange(n_judged)] = 1
        solved = torch.linalg.solve_triangular(root, unit, upper=False)
        residual = dual[judged] / solved.square().sum(0)
        others = torch.ones(n, dtype=torch.bool)
        others[judged] = False
        rows = X[others], y[others], noise[others]
        near = near_rows(member.covariance, rows, X[judged])
        mu, epistemic = torch.cat([torch.stack(part.posterior()) for part in near], 1)
    v = epistemic + noise[judged]
    factor, nll = _scaled_nll(residual, v)
    if nll > _scaled_nll(y[judged] - mu, v)[1] - MIN_GAIN:
        return member
    # All variances times the factor: weights of the rows stay as they are.
    return replace(
        member,
        covariance=member.covariance.times(factor),
        noise=factor * noise,
        noise_factor=factor * member.noise_factor,
        held_out_nll=nll,
        usual_epistemic=factor * member.usual_epistemic,
        dual=dual / factor,
    )


def _scaled_nll(residual: Tensor, v: Tensor) -> tuple[float, float]:
    """The best factor of v, and the negative log-likelihood with it, per row."""
    factor = (residual.square() / v).mean().clamp(*FACTORS)
    nll = gaussian_nll(residual, torch.zeros_like(v), factor * v)
    return float(factor), float(nll.mean())
