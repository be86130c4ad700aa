import inspect
import re
from dataclasses import replace

import mapie
import numpy as np
import pytest
import torch
from packaging.version import Version

from mapie_claps import ClapsModule, ClapsRegressor, Recipe

NEWEST = Version(mapie.__version__) >= Version("1.5")
# Each folder belongs to one environment of `make test`; scripts are no tests.
collect_ignore_glob = ["mapie_0_9/*"] if NEWEST else ["newest/*"]
collect_ignore_glob += ["fuzz.py", "mapie_own_tests.py"]

TINY = Recipe(
    hidden_layer_sizes=(16, 8),
    n_members=1,
    n_bins=0,
    max_steps=60,
    kernel=False,
    target_map="identity",
    noise_shape=False,
)
PARAMETERS = set(inspect.signature(ClapsRegressor).parameters)


def tiny(**params):
    """A regressor that fits in a fraction of a second; also takes Recipe's names."""
    recipe = params.pop("recipe", TINY)
    inner = {k: params.pop(k) for k in list(params) if k not in PARAMETERS}
    params = {"random_state": 0} | params
    return ClapsRegressor(recipe=replace(recipe, **inner), **params)


def heteroscedastic(n, seed=0, p=3):
    """Smooth mean, noise that grows with the first column."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p))
    noise = 0.1 * (1 + X[:, 0] ** 2)
    return X, np.sin(X[:, 0]) + X[:, -1] + noise * rng.normal(size=n)


class TwoHeads(torch.nn.Module):
    """A network of a user: the mean and h² from shared features."""

    def __init__(self, n_inputs=3, size=8):
        super().__init__()
        first = torch.nn.Linear(n_inputs, size)
        self.body = torch.nn.Sequential(first, torch.nn.Tanh())
        self.mean = torch.nn.Linear(size, 1)
        self.noise = torch.nn.Linear(size, 1)

    def forward(self, x):
        phi = self.body(x)
        return self.mean(phi), torch.nn.functional.softplus(self.noise(phi)) + 0.01


def two_heads(seed=0, **kwargs):
    """A network whose weights do not depend on what ran before."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = TwoHeads(**kwargs)
    network.mean.weight.data *= 3.5  # about the scale of y, as after training
    return network


@pytest.fixture(scope="session")
def problem():
    """X and y of 300 rows."""
    return heteroscedastic(300)


@pytest.fixture(scope="session")
def data():
    """Rows to fit on, to calibrate on and to test on."""
    X, y = heteroscedastic(400)
    parts = slice(0, 150), slice(150, 280), slice(280, 400)
    return [(X[part], y[part]) for part in parts]


@pytest.fixture(scope="session")
def fitted(data):
    """One member, λ = 1, weights as trained: the estimator of the paper's formulas."""
    return tiny(prior_precision=1.0, last_layer="trained").fit(*data[0])


@pytest.fixture(scope="session")
def fitted_regressor(data):
    """Two members, trained briefly."""
    X, y = data[0]
    model = ClapsRegressor(n_members=2, max_steps=60, kernel=False, random_state=0)
    return model.fit(X, y)


@pytest.fixture(scope="session")
def fitted_module(data):
    """A user's network."""
    return ClapsModule(two_heads()).fit(*data[0])


@pytest.fixture(autouse=True)
def untouched_global_state():
    """No test may change torch's random state, dtype or threads."""
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
