"""The mean of all rows against a Gaussian process written out in NumPy."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_kernel import dense, member, oracle, rows

from mapie_claps.network import kernel, kernel_mean
from mapie_claps.network.covariance import JITTER, Covariance
from mapie_claps.network.kernel_mean import with_mean_of_all_rows


def smooth_member(n=600, noise=1e-6, **changes):
    """Many rows of a smooth function, next to no noise."""
    X, y = rows(n, noise=0.0)
    u = torch.tensor([0.5, 0.2, 1e-3], dtype=torch.float64)
    covariance = Covariance(u, 1e-6, 0.1, 5.0, 1.0)
    W = torch.full((n,), noise, dtype=torch.float64)
    fields = {"covariance": covariance, "X": X, "y": y, "noise": W}
    return member(n, **(fields | changes))


def test_mean_is_that_of_all_rows():
    near = smooth_member()
    whole = with_mean_of_all_rows(near)
    assert whole.dual is not None
    x = rows(100, seed=1)[0]
    jitter = JITTER * dense(near.covariance, near.X, near.X).diagonal().max()
    expected = oracle(near.covariance, near.X, near.y, near.noise + jitter, x)[0]
    found = whole.posterior(x)
    np.testing.assert_allclose(found[0], expected, atol=1e-6)
    assert (found[0] - torch.tensor(expected)).abs().max() < 0.1 * (
        near.posterior(x)[0] - torch.tensor(expected)
    ).abs().max()


def test_variances_have_one_factor():
    near = smooth_member()
    whole = with_mean_of_all_rows(near)
    x = rows(50, seed=1)[0]
    factor = whole.covariance.smooth / near.covariance.smooth
    g = torch.ones(50, dtype=torch.float64)
    a, b = near.predict(x, g), whole.predict(x, g)
    torch.testing.assert_close(b.epistemic, factor * a.epistemic, rtol=1e-6, atol=0)
    torch.testing.assert_close(b.aleatoric, factor * a.aleatoric)
    torch.testing.assert_close(whole.noise, factor * near.noise)
    assert whole.usual_epistemic == pytest.approx(factor * near.usual_epistemic)
    assert whole.held_out_nll != near.held_out_nll


def test_rows_left_out_are_told_with_the_right_variance():
    """Standardised residuals of rows that the member has not seen are about one."""
    X, y = rows(900, noise=0.0)
    near = smooth_member(600, X=X[:600], y=y[:600])
    whole = with_mean_of_all_rows(near)
    mu, aleatoric, epistemic = whole.predict(X[600:], 1e-6 * torch.ones(300).double())
    z = (y[600:] - mu).square() / (aleatoric + epistemic)
    assert 0.3 < float(z.mean()) < 3


def test_noise_leaves_the_nearest_rows():
    X, y = rows(600, noise=0.5)
    near = smooth_member(noise=0.3, X=X, y=y)
    assert with_mean_of_all_rows(near) is near


def test_many_rows_keep_to_the_nearest(monkeypatch):
    near = smooth_member()
    monkeypatch.setattr(kernel_mean, "MAX_ROWS", 599)
    assert with_mean_of_all_rows(near) is near


def test_blocks_do_not_matter(monkeypatch):
    whole, x = with_mean_of_all_rows(smooth_member()), rows(50, seed=1)[0]
    expected = whole.posterior(x)
    monkeypatch.setattr(kernel, "BLOCK_ELEMENTS", 5_000)
    torch.testing.assert_close(whole.posterior(x), expected, rtol=1e-7, atol=1e-9)
    assert whole.posterior(x[:0]).shape == (2, 0)


def test_exact_targets_do_not_break_it():
    X = rows(300)[0]
    flat = smooth_member(300, X=X, y=torch.zeros(300, dtype=torch.float64))
    found = with_mean_of_all_rows(flat)
    assert bool(torch.isfinite(found.posterior(X)).all())
    assert np.isfinite(found.held_out_nll)


def test_factor_is_limited():
    tiny = replace(smooth_member(), noise=torch.full((600,), 1e3).double())
    found = with_mean_of_all_rows(tiny)
    assert float(found.noise.min()) > 0
