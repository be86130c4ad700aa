"""torch.set_default_device: results are those of the CPU, wherever new tensors go.

The device "meta" holds no numbers, so that whatever strays there is found.
"""

import numpy as np
import pytest
import torch
from conftest import heteroscedastic, tiny
from own_networks import Pair, mse_network, seeded
from torch import nn

from mapie_claps import (
    ClapsModule,
    StreamingConformalRegressor,
    load,
    partial_sums,
    save,
    sums_of,
    update_posterior,
    with_sums,
)
from mapie_claps.network.own_search import wrap

X, y = heteroscedastic(60)


@pytest.fixture
def elsewhere():
    """Switch new tensors to the device without numbers, and back."""

    def switch():
        torch.set_default_device("meta")

    yield switch
    torch.set_default_device(None)


class MakesTensors(nn.Module):
    """A forward pass and a noise that make new tensors."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 1)

    def forward(self, x):
        return self.head(x * torch.arange(1, 4))

    def noise_variance(self, x):
        return 0.5 + x[:, 0] ** 2 + torch.zeros(len(x))


def everything(make, tmp_path, network=None):
    """Numbers from all that an estimator can do."""
    model = make().fit(X, y)
    yield model.predict(X, return_std=True)
    yield model.posterior_covariance_
    yield model.with_prior_precision(3.0).predict(X, return_std=True)
    yield update_posterior(model, X[:20], y[:20]).predict(X, return_std=True)
    both = sums_of(model) + partial_sums(model, X, y)
    yield with_sums(model, both).predict(X, return_std=True)
    for scale in ("aleatoric", "posterior", "constant"):
        model = with_sums(model.set_params(scale=scale), partial_sums(model, X, y))
        yield model.predict(X, return_std=True)
    save(model, tmp_path / "model")
    loaded = load(tmp_path / "model", network=network)
    yield loaded.predict(X, return_std=True)
    stream = StreamingConformalRegressor(model).conformalize(X + 0.1, y)
    yield stream.predict_interval(X)[1]
    if network is not None:
        yield model.partial_fit(X, y).predict(X, return_std=True)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"n_members": 3, "n_bins": 4},
        {"prior_precision": "marglik", "last_layer": "trained"},
        {"hessian_structure": "diag", "last_layer": "trained"},
    ],
    ids=["one member", "three members", "marginal likelihood", "diagonal"],
)
def test_regressor(params, elsewhere, tmp_path):
    expected = list(everything(lambda: tiny(**params), tmp_path))
    elsewhere()
    found = list(everything(lambda: tiny(**params), tmp_path))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("network", [Pair, mse_network, MakesTensors])
@pytest.mark.parametrize("prior_precision", ["marglik", "grid"])
def test_module(network, prior_precision, elsewhere, tmp_path):
    net = seeded(network)

    def make():
        return ClapsModule(net, prior_precision=prior_precision)

    expected = list(everything(make, tmp_path, net))
    elsewhere()
    found = list(everything(make, tmp_path, net))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_network_makes_its_tensors_beside_its_weights(elsewhere):
    """Outside of the methods of an estimator as well, which are on the CPU."""
    net, x = seeded(MakesTensors), torch.from_numpy(X).float()
    backbone = wrap(
        net,
        x,
        last_layer_name=None,
        noise_variance=None,
        noise_output="variance",
        precision="module",
        device="cpu",
    )
    expected = backbone(x)
    elsewhere()
    for found, value in zip(backbone(x)[:3], expected[:3], strict=True):
        assert torch.equal(found, value)


def test_the_setting_of_the_user_comes_back(elsewhere):
    elsewhere()
    tiny().fit(X, y).predict(X, return_std=True)
    assert torch.get_default_device().type == "meta"
    assert torch.zeros(1).is_meta
