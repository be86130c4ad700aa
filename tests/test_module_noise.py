"""ClapsModule: where the noise variance comes from."""

import copy

import numpy as np
import pytest
import torch
from own_networks import (
    Pair,
    TwoColumns,
    WithMethod,
    mse_network,
    seeded,
    table,
)
from sklearn.linear_model import GammaRegressor
from torch import nn

from mapie_claps import ClapsModule
from mapie_claps.network.noise_head import NoiseRows, fit_noise_head

pytestmark = pytest.mark.usefixtures("own_random_state")
X, y = table(120)
X_NEW = table(30, seed=1)[0]


def test_all_ways_to_give_the_noise_agree():
    pair = seeded(Pair)
    reference = ClapsModule(pair, prior_precision=1.0).fit(X, y)
    method = WithMethod()
    method.load_state_dict(pair.state_dict())
    double = copy.deepcopy(pair).double()

    def other(x):
        with torch.no_grad():
            return double(x)[1]

    class Submodule(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.mean = pair.body, pair.mean
            self.noise = nn.Sequential(pair.noise, nn.Softplus())

        def forward(self, x):
            return self.mean(self.body(x))

    for module, noise in (
        (pair, "output"),
        (method, None),
        (method, "noise_variance"),
        (method, other),
    ):
        model = ClapsModule(module, noise_variance=noise, prior_precision=1.0)
        v = model.fit(X, y).predict_variance(X_NEW)
        np.testing.assert_allclose(
            v.total, reference.predict_variance(X_NEW).total, rtol=1e-12
        )
    named = ClapsModule(Submodule(), noise_variance="noise").fit(X, y)
    np.testing.assert_allclose(
        named.predict_variance(X_NEW).aleatoric,
        reference.predict_variance(X_NEW).aleatoric - 1e-3,
        rtol=1e-10,
    )


@pytest.mark.parametrize(
    ("noise_output", "back"),
    [("log_variance", np.log), ("std", np.sqrt), ("variance", lambda h2: h2)],
)
def test_noise_output_says_what_the_head_gives(noise_output, back):
    h2 = 0.5 + X[:, 0] ** 2
    lookup = {row.tobytes(): value for row, value in zip(X, back(h2), strict=True)}

    def head(x):
        return torch.tensor([lookup[row.tobytes()] for row in x.numpy()])

    model = ClapsModule(
        mse_network(), noise_variance=head, noise_output=noise_output
    ).fit(X, y)
    np.testing.assert_allclose(model.predict_variance(X).aleatoric, h2, rtol=1e-12)


def test_two_columns_of_one_layer():
    net = seeded(TwoColumns)
    model = ClapsModule(net, noise_variance="output", noise_output="log_variance").fit(
        X, y
    )
    with torch.no_grad():
        out = copy.deepcopy(net).double()(torch.from_numpy(X_NEW)).numpy()
    np.testing.assert_array_equal(model.predict(X_NEW), out[:, 0])
    np.testing.assert_allclose(
        model.predict_variance(X_NEW).aleatoric, np.exp(out[:, 1]), rtol=1e-12
    )
    with pytest.raises(ValueError, match="noise_variance='output'"):
        ClapsModule(net).fit(X, y)


def test_fitted_variance_head_is_a_penalised_gamma_regression():
    rng = np.random.default_rng(0)
    phi = rng.normal(size=(400, 3)) * [1, 5, 0.2] + [0, 3, 1]
    squares = np.exp(0.5 * phi[:, 0] - 1) * rng.chisquare(1, 400) + 1e-6
    rows = [
        NoiseRows(*(torch.from_numpy(a[part]) for a in (phi, squares, np.ones(400))))
        for part in (slice(150), slice(150, 400))
    ]
    head = fit_noise_head(rows, penalty=2.0)
    standard = (phi - phi.mean(0)) / phi.std(0)
    # scikit-learn's loss is (deviance / n + alpha |a|²) / 2; ours has weight ½ n.
    oracle = GammaRegressor(
        alpha=2.0 * 3 * 2 / 400, solver="newton-cholesky", tol=1e-10
    )
    oracle.fit(standard, squares)
    ours = head.variance(torch.from_numpy(phi)).numpy()
    np.testing.assert_allclose(ours, oracle.predict(standard), rtol=1e-5)


def test_variance_head_finds_the_noise_and_stays_in_its_range():
    X, y = table(1500)
    net = mse_network(size=16)
    with torch.no_grad():  # train the last layer alone, in closed form
        phi = net[:2](torch.tensor(X, dtype=torch.float32)).numpy()
        weights = np.linalg.lstsq(np.c_[phi, np.ones(1500)], y)[0]
        net[2].weight.copy_(torch.from_numpy(weights[None, :-1]))
        net[2].bias.copy_(torch.from_numpy(weights[-1:]))
    model = ClapsModule(net).fit(X, y)
    h2 = model.predict_variance(X).aleatoric
    assert np.corrcoef(np.log(h2), X[:, 0])[0, 1] > 0.8
    far = model.predict_variance(np.full((1, 3), 1e6)).aleatoric
    assert h2.min() * (1 - 1e-12) <= far[0] <= h2.max() * (1 + 1e-12)


def test_a_network_through_all_training_rows_keeps_a_positive_variance():
    net = mse_network()
    target = net(torch.tensor(X, dtype=torch.float32)).detach().numpy()[:, 0]
    model = ClapsModule(net).fit(X, target)
    assert (model.predict_variance(X).aleatoric > 0).all()


class FromFeatures(Pair):
    def forward(self, x):
        return self.mean(self.body(x))

    def noise_variance_from_features(self, phi):
        return torch.nn.functional.softplus(self.noise(phi)) + 1e-3


def test_noise_from_features_as_the_curvature_backend_asks_for_it():
    pair, other = seeded(Pair), FromFeatures()
    other.load_state_dict(pair.state_dict())
    a, b = (ClapsModule(m, prior_precision=1.0).fit(X, y) for m in (pair, other))
    np.testing.assert_allclose(a.predict(X_NEW, True), b.predict(X_NEW, True))


def test_rows_of_weight_zero_do_not_reach_the_variance_head():
    far = np.vstack([X, 50 * X])
    targets, weight = np.r_[y, y], np.r_[np.ones(len(X)), np.zeros(len(X))]
    net = mse_network()
    plain = ClapsModule(net).fit(X, y)
    weighted = ClapsModule(net).fit(far, targets, weight)
    v, w = (m.predict_variance(far).aleatoric for m in (plain, weighted))
    np.testing.assert_allclose(w, v, rtol=1e-8)


@pytest.mark.parametrize("precision", ["float64", "module"])
def test_the_noise_may_be_a_module_of_another_type(precision):
    noise = nn.Sequential(nn.Linear(X.shape[1], 1), nn.Softplus())
    model = ClapsModule(mse_network(), noise_variance=noise, precision=precision)
    model.fit(X, y)
    with torch.no_grad():
        expected = noise(torch.from_numpy(X_NEW).float())[:, 0].numpy()
    found = model.predict_variance(X_NEW).aleatoric
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert next(noise.parameters()).dtype == torch.float32
    if precision == "float64":
        with pytest.raises(ValueError, match="failed on X of type torch.float64"):
            ClapsModule(mse_network(), noise_variance=lambda x: noise(x)).fit(X, y)
