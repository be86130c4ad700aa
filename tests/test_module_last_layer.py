"""ClapsModule: finding the layer of the mean, and networks that have none."""

import copy

import numpy as np
import pytest
import torch
from own_networks import (
    mse_network,
    table,
)
from torch import nn

from mapie_claps import ClapsModule

pytestmark = pytest.mark.usefixtures("own_random_state")
X, y = table(120)
X_NEW = table(30, seed=1)[0]


def test_layer_without_bias_counts_as_bias_zero():
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1, bias=False))
    model = ClapsModule(net).fit(X, y)
    assert model.posterior_covariance_.shape == (5, 5)


def test_wrappers_of_torch_are_taken_off():
    net = mse_network()
    expected = ClapsModule(net).fit(X, y).predict(X_NEW)
    for wrapper in (nn.DataParallel(net), torch.compile(net, backend="eager")):
        model = ClapsModule(wrapper).fit(X, y)
        np.testing.assert_array_equal(model.predict(X_NEW), expected)
        assert model.last_layer_name_ == "2"


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x):
        return 2 * self.head(self.body(x).relu())


class Twins(Scaled):
    def __init__(self):
        super().__init__()
        self.twin = copy.deepcopy(self.head)

    def forward(self, x):
        phi = self.body(x).relu()
        self.twin(phi)
        return self.head(phi)


def test_last_layer_is_named_where_it_cannot_be_found():
    with pytest.raises(ValueError, match=r"none of its nn.Linear; .*body.*head"):
        ClapsModule(Scaled()).fit(X, y)
    with pytest.raises(ValueError, match=r"several layers .*\['head', 'twin'\]"):
        ClapsModule(Twins()).fit(X, y)
    assert ClapsModule(Twins(), "twin").fit(X, y).last_layer_name_ == "twin"
    with pytest.raises(ValueError, match="is not what forward returns"):
        ClapsModule(Twins(), "body").fit(X, y)
    with pytest.raises(ValueError, match=r"is no nn\.Linear"):
        ClapsModule(Twins(), "nose").fit(X, y)


class Twice(Scaled):
    """Calls its last layer twice where a switch is on."""

    twice = False

    def forward(self, x):
        phi = self.body(x).relu()
        if self.twice:
            self.head(phi)
        return self.head(phi)


def test_a_layer_that_is_called_twice_has_no_features():
    always = Twice()
    always.twice = True
    with pytest.raises(ValueError, match="none of its"):
        ClapsModule(always).fit(X, y)
    model = ClapsModule(Twice()).fit(X, y)
    model.network_.backbone.network.twice = True
    with pytest.raises(ValueError, match="saw inputs of shapes"):
        model.predict(X_NEW)


def test_a_module_that_cannot_be_copied():
    net = mse_network()
    net.cache = net(torch.zeros(1, 3))  # needs gradients, is no leaf
    with pytest.raises(TypeError, match=r"copy\.deepcopy refuses"):
        ClapsModule(net).fit(X, y)


def test_layers_over_time_are_not_the_mean():
    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 1)

        def forward(self, x):  # (n, t, 3): one output per step, the last is the mean
            return self.head(x)[:, -1]

    with pytest.raises(ValueError, match="none of its"):
        ClapsModule(Steps()).fit(np.zeros((20, 4, 3)), y[:20])


@pytest.mark.parametrize("inplace", [False, True])
def test_an_activation_that_only_later_rows_show(inplace):
    layer = nn.Linear(1, 1)
    with torch.no_grad():
        layer.weight.fill_(1.0)
        layer.bias.fill_(0.0)
    net = nn.Sequential(nn.Identity(), layer, nn.ReLU(inplace=inplace))
    x = np.linspace(1, 2, 20)[:, None]
    model = ClapsModule(net).fit(x, x[:, 0])
    with pytest.raises(ValueError, match="in 20 of 20 rows"):
        model.predict(-x)
    with pytest.raises(ValueError, match="not the output of its layer '1'"):
        ClapsModule(net).fit([(x, x[:, 0]), (-x, x[:, 0])])


class Autocast(nn.Module):
    """Runs in bfloat16 inside, whatever comes in."""

    def __init__(self):
        super().__init__()
        self.net = mse_network()

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.net(x.float()).float()


def test_a_coarse_last_layer_is_still_linear():
    model = ClapsModule(Autocast(), precision="module").fit(X, y)
    assert np.isfinite(model.predict(X_NEW)).all()
