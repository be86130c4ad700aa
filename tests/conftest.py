import re

import mapie
import numpy as np
import pytest
import torch
from packaging.version import Version

from mapie_claps import ClapsRegressor

NEWEST = Version(mapie.__version__) >= Version("1.5")
# Each folder belongs to one of the two environments of `make test`.
collect_ignore_glob = ["mapie_0_9/*"] if NEWEST else ["newest/*"]

TINY = {
    "hidden_layer_sizes": (16,),
    "representation_size": 8,
    "max_steps": 60,
    "n_members": 1,
    "n_bins": 0,
    "tol": None,
    "kernel": False,
    "target_map": None,
    "two_sided_noise": False,
    "residual_shape": False,
    "random_state": 0,
}


def tiny(**params):
    """A regressor that fits in a fraction of a second."""
    return ClapsRegressor(**(TINY | params))


def heteroscedastic(n, seed=0, p=3):
    """Smooth mean, noise that grows with the first column."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p))
    noise = 0.1 * (1 + X[:, 0] ** 2)
    return X, np.sin(X[:, 0]) + X[:, -1] + noise * rng.normal(size=n)


def network_output(model, X):
    """φ with its constant, h² and the trained weights of member 0, in float64."""
    network = model.network_
    with torch.no_grad():
        out = network(model._scaled(np.asarray(X)))
    phi = out.phi[0].numpy()
    phi = np.column_stack([phi, np.ones(len(phi))])
    return phi, out.h2[0].numpy(), network.trained_weights()[0].numpy()


@pytest.fixture(scope="session")
def data():
    X, y = heteroscedastic(400)
    parts = slice(0, 150), slice(150, 280), slice(280, 400)
    return [(X[part], y[part]) for part in parts]


@pytest.fixture(scope="session")
def fitted(data):
    """One member, λ = 1, weights as trained: the estimator of the paper's formulas."""
    return tiny(prior_precision=1.0, last_layer="trained").fit(*data[0])


@pytest.fixture(autouse=True)
def untouched_global_state():
    """No test may change torch's random state, dtype or threads.

    NumPy's generator has a test of its own: MAPIE draws from it.
    """
    before = torch.get_num_threads(), torch.get_default_dtype()
    torch_state = torch.get_rng_state()
    yield
    assert (torch.get_num_threads(), torch.get_default_dtype()) == before
    assert torch.equal(torch.get_rng_state(), torch_state)


@pytest.fixture
def own_random_state():
    """New networks and loaders draw from torch's generator, here from a copy."""
    with torch.random.fork_rng():
        yield


def exactly(text):
    """A pattern for this text and nothing before it."""
    return "^" + re.escape(text)


def objects(*numbers):
    """Numbers as pandas hands them over where a column is mixed."""
    return np.array(numbers, dtype=object)
