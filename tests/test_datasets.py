"""The paper's data, whose truth is known."""

import numpy as np
import pytest

from mapie_claps.datasets import make_heteroscedastic_sparse


def test_synthetic_truth():
    data = make_heteroscedastic_sparse(20_000, random_state=0)
    x = data.X[:, 0]
    assert data.X.shape == (20_000, 1)
    assert -4 < x.min() < -3.99
    assert 3.99 < x.max() < 4
    np.testing.assert_allclose(data.mean, np.sin(1.5 * x) + 0.3 * x)
    z = (data.y - data.mean) / np.sqrt(data.noise_variance)
    assert z.std() == pytest.approx(1, abs=0.02)
    noisy, sparse = data.regions["noisy"], data.regions["sparse"]
    assert set(data.noise_variance[noisy]) == {0.25}
    assert np.allclose(data.noise_variance[~noisy], 0.04)
    assert noisy.mean() == pytest.approx(2 / 8, abs=0.01)
    assert sparse.mean() == pytest.approx(1.5 / 8, abs=0.01)
    assert ((x[sparse] > -3) & (x[sparse] < -1.5)).all()


def test_synthetic_thinning_keeps_the_number_of_rows():
    data = make_heteroscedastic_sparse(20_000, keep_probability=0.1, random_state=0)
    assert len(data.y) == 20_000
    # 1.5 of 8 kept with 0.1, of 6.5 + 0.15 in all.
    assert data.regions["sparse"].mean() == pytest.approx(0.15 / 6.65, abs=0.005)
    none = make_heteroscedastic_sparse(500, keep_probability=0, random_state=0)
    assert not none.regions["sparse"].any()


def test_synthetic_seed():
    first, again, other = (
        make_heteroscedastic_sparse(50, random_state=s).y for s in (1, 1, 2)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
