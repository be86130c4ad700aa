"""ClapsModule: a network of the user's own."""

import copy
import pickle

import numpy as np
import pytest
import torch
from own_networks import (
    Convolution,
    Pair,
    batches,
    mse_network,
    seeded,
    table,
)
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from torch import nn

from mapie_claps import (
    ClapsModule,
    ClapsRegressor,
    explain,
    load,
    partial_sums,
    save,
    sums_of,
    update_posterior,
    with_sums,
)

pytestmark = pytest.mark.usefixtures("own_random_state")
X, y = table(120)
X_NEW = table(30, seed=1)[0]


def numpy_posterior(net, X, y, prior_precision):
    """μ, h² and φᵀΣφ of ``Pair`` in plain NumPy, λ for standardised targets."""
    with torch.no_grad():
        double = copy.deepcopy(net).double()

        def parts(X):
            phi = double.body(torch.from_numpy(X))
            mu, h2 = double(torch.from_numpy(X))
            ones = np.ones((len(X), 1))
            return np.hstack([phi.numpy(), ones]), mu.numpy()[:, 0], h2.numpy()[:, 0]

        phi, _, h2 = parts(X)
    precision = prior_precision / y.var() * np.eye(phi.shape[1])
    precision += phi.T @ (phi / h2[:, None])
    Sigma = np.linalg.inv(precision)

    def predict(X_new):
        with torch.no_grad():
            phi, mu, h2 = parts(X_new)
        return mu, h2, np.einsum("ij,jk,ik->i", phi, Sigma, phi)

    return predict, Sigma


def test_posterior_is_that_of_plain_numpy():
    net = seeded(Pair)
    model = ClapsModule(net, prior_precision=2.0).fit(X, y)
    predict, Sigma = numpy_posterior(net, X, y, 2.0)
    mu, h2, epistemic = predict(X_NEW)
    variance = model.predict_variance(X_NEW)
    np.testing.assert_allclose(model.predict(X_NEW), mu, rtol=0, atol=1e-12)
    np.testing.assert_allclose(variance.aleatoric, h2, rtol=1e-12)
    np.testing.assert_allclose(variance.epistemic, epistemic, rtol=1e-10)
    np.testing.assert_allclose(model.posterior_covariance_, Sigma, rtol=1e-9)


class Rebuilt(nn.Module):
    """A fitted ClapsRegressor of one member as a network in units of y."""

    def __init__(self, model):
        super().__init__()
        self.members = model.network_
        self.shift = torch.from_numpy(model.scaler_X_.mean_)
        self.unit = torch.from_numpy(model.scaler_X_.scale_)
        y_unit, y_mean = model.scaler_y_.scale_[0], model.scaler_y_.mean_[0]
        weights = self.members.trained_weights()[0]
        self.head = nn.Linear(len(weights) - 1, 1).double()
        with torch.no_grad():
            self.head.weight.copy_(weights[None, :-1] * y_unit)
            self.head.bias.copy_(weights[-1:] * y_unit + y_mean)
        self.y_unit = y_unit

    def forward(self, x):
        x = ((x - self.shift) / self.unit).clamp(-6, 6)
        out = self.members(x)
        return self.head(out.phi[0]), out.h2[0] * self.y_unit**2


@pytest.fixture(scope="module", params=["trained", "ridge"])
def regressor(request):
    return ClapsRegressor(
        max_steps=60,
        n_members=1,
        hidden_layer_sizes=(16,),
        representation_size=8,
        prior_precision=3.0,
        last_layer=request.param,
        tol=None,
        random_state=0,
    ).fit(X, 1e3 + 50 * y)


@pytest.mark.parametrize("scale", ["claps", "aleatoric", "posterior", "constant"])
def test_it_is_claps_regressor_on_the_same_network(regressor, scale):
    regressor.set_params(scale=scale)
    model = ClapsModule(
        Rebuilt(regressor),
        prior_precision=3.0,
        last_layer=regressor.last_layer,
        scale=scale,
    ).fit(X, 1e3 + 50 * y)
    for ours, theirs in zip(
        model.predict(X_NEW, return_std=True),
        regressor.predict(X_NEW, return_std=True),
        strict=True,
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10)


def test_marginal_likelihood_is_that_of_the_linear_model():
    net = seeded(Pair)
    model = ClapsModule(net, prior_precision="marglik").fit(X, y)
    phi = model.network_(torch.from_numpy(X)).phi[0].numpy()
    h2 = model.predict_variance(X).aleatoric / y.var()
    target = (y - y.mean()) / y.std()
    features = np.hstack([phi, np.ones((len(X), 1))])

    def minus_log_evidence(value):
        cov = features @ features.T / value + np.diag(h2)
        return np.linalg.slogdet(cov)[1] + target @ np.linalg.solve(cov, target)

    grid = [model.prior_precision_ * factor for factor in (0.1, 1, 10)]
    assert np.argmin([minus_log_evidence(v) for v in grid]) == 1


def test_the_users_module_is_left_as_it_was():
    net = seeded(Convolution).train()
    net.head.weight.grad = torch.ones_like(net.head.weight)
    net.body[0].weight.requires_grad_(False)
    before = copy.deepcopy(net.state_dict())
    images = np.random.default_rng(0).normal(size=(20, 1, 8, 8))
    ClapsModule(net).fit(images, y[:20]).predict(images)
    assert net.training
    assert all(m.training and not m._forward_hooks for m in net.modules())
    assert torch.equal(net.head.weight.grad, torch.ones_like(net.head.weight))
    assert [p.requires_grad for p in net.parameters()][:2] == [False, True]
    assert {p.dtype for p in net.parameters()} == {torch.float32}
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_training_on_does_not_reach_a_fitted_estimator():
    net = mse_network()
    model = ClapsModule(net).fit(X, y)
    before = model.predict(X_NEW, return_std=True)
    with torch.no_grad():
        net[2].weight.add_(1.0)
    np.testing.assert_array_equal(before, model.predict(X_NEW, return_std=True))


def test_units_of_y_do_not_matter():
    net = mse_network()
    scaled = copy.deepcopy(net)
    with torch.no_grad():
        scaled[2].weight.mul_(1024)
        scaled[2].bias.mul_(1024).add_(4096)
    a = ClapsModule(net, last_layer="ridge").fit(X, y)
    b = ClapsModule(scaled, last_layer="ridge").fit(X, 1024 * y + 4096)
    assert a.prior_precision_ == b.prior_precision_
    (mu_a, std_a), (mu_b, std_b) = (m.predict(X_NEW, True) for m in (a, b))
    np.testing.assert_allclose(mu_b, 1024 * mu_a + 4096, rtol=1e-6)
    np.testing.assert_allclose(std_b, 1024 * std_a, rtol=1e-6)


def test_grid_chooses_on_rows_that_do_not_depend_on_their_order():
    net = seeded(Pair)
    X, y = table(3000)
    order = np.random.default_rng(1).permutation(3000)
    a = ClapsModule(net, prior_precision="grid").fit(X, y)
    b = ClapsModule(net, prior_precision="grid").fit(batches(X[order], y[order], 97))
    held_out = np.sort(a.sums_.held_out.key)
    np.testing.assert_array_equal(held_out, np.sort(b.sums_.held_out.key))
    assert 0.09 < len(held_out) / 3000 < 0.15
    assert a.prior_precision_ == b.prior_precision_
    np.testing.assert_allclose(
        a.predict(X_NEW, True), b.predict(X_NEW, True), rtol=1e-10
    )
    # The posterior itself rests on all rows.
    fixed = ClapsModule(net, prior_precision=a.prior_precision_).fit(X, y)
    np.testing.assert_allclose(
        a.predict(X_NEW, True), fixed.predict(X_NEW, True), rtol=1e-10
    )
    other = ClapsModule(net, prior_precision="grid", random_state=5).fit(X, y)
    assert set(other.sums_.held_out.key.tolist()).isdisjoint(held_out.tolist())
    assert (
        ClapsModule(net, prior_precision="grid").fit(X[:10], y[:10]).prior_precision_
        == 1.0
    )


def test_with_prior_precision_and_scales():
    model = ClapsModule(seeded(Pair)).fit(X, y)
    other = model.with_prior_precision(7.0)
    again = ClapsModule(seeded(Pair), prior_precision=7.0).fit(X, y)
    np.testing.assert_allclose(
        other.predict(X_NEW, True), again.predict(X_NEW, True), rtol=1e-12
    )
    limit = model.with_prior_precision(1e12).predict_variance(X_NEW)
    np.testing.assert_allclose(limit.total, limit.aleatoric, rtol=1e-8)


def test_diagonal_structure():
    net = seeded(Pair)
    full = ClapsModule(net, prior_precision=1.0).fit(X, y)
    diag = ClapsModule(net, prior_precision=1.0, hessian_structure="diag").fit(X, y)
    np.testing.assert_allclose(
        diag.sums_.moments.gram[0], full.sums_.moments.gram[0].diagonal(), rtol=1e-12
    )
    assert (diag.predict_variance(X_NEW).epistemic > 0).all()


def test_precision_of_the_module():
    net = mse_network()
    double = ClapsModule(net, prior_precision=1.0).fit(X, y)
    single = ClapsModule(net, prior_precision=1.0, precision="module").fit(X, y)
    assert next(single.network_.backbone.network.parameters()).dtype == torch.float32
    assert single.predict(X_NEW).dtype == np.float64
    np.testing.assert_allclose(
        double.predict(X_NEW, True), single.predict(X_NEW, True), rtol=1e-4, atol=1e-5
    )


def test_clone_copy_and_pickle():
    model = ClapsModule(mse_network(), prior_precision=2.0).fit(X, y)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(
            other.predict(X_NEW, True), model.predict(X_NEW, True)
        )
    fresh = clone(model)
    with pytest.raises(NotFittedError, match="not fitted"):
        fresh.predict(X_NEW)
    np.testing.assert_array_equal(fresh.fit(X, y).predict(X), model.predict(X))


def test_a_failed_fit_leaves_the_estimator_as_it_was():
    model = ClapsModule(mse_network()).fit(X, y)
    before = model.predict(X_NEW, True)
    with pytest.raises(ValueError, match="Got y with NaN"):
        model.fit(X, np.full(120, np.nan))
    np.testing.assert_array_equal(model.predict(X_NEW, True), before)


def test_explain():
    model = ClapsModule(mse_network()).fit(X, y)
    why = explain(model, X_NEW)
    np.testing.assert_array_equal(why.prediction, model.predict(X_NEW))
    assert ((why.epistemic_fraction > 0) & (why.epistemic_fraction < 1)).all()


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"module": 3}, "module of type int"),
        ({"module": nn.Linear(3, 3)}, r"returns \(120, 3\)"),
        ({"noise_variance": "nose"}, "noise_variance='nose'"),
        ({"noise_variance": "output"}, "mean alone"),
        ({"noise_variance": lambda x: x[:, 0]}, "log_variance"),
        ({"noise_variance": lambda x: x}, r"noise of shape \(120, 3\)"),
        ({"noise_output": "h"}, "noise_output='h'"),
        ({"prior_precision": 0}, "prior_precision=0"),
        ({"prior_precision": "best"}, "prior_precision='best'"),
        ({"last_layer": "last"}, "last_layer='last'"),
        ({"last_layer": "ridge", "hessian_structure": "diag"}, "diagonal"),
        ({"scale": "wide"}, "scale='wide'"),
        ({"validation_fraction": 0}, "validation_fraction=0"),
        ({"variance_penalty": -1}, "variance_penalty=-1"),
        ({"precision": "float16"}, "precision='float16'"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"device": 0}, "device=0"),
    ],
)
def test_bad_parameters(params, match):
    model = ClapsModule(**({"module": mse_network()} | params))
    with pytest.raises((ValueError, TypeError), match=match):
        model.fit(X, y)


def test_no_number_is_drawn_from_the_generator_of_torch():
    net = seeded(Convolution).train()
    images = np.random.default_rng(0).normal(size=(20, 1, 8, 8))
    before = torch.get_rng_state()
    ClapsModule(net, prior_precision="grid").fit(images, y[:20]).predict(images)
    assert torch.equal(torch.get_rng_state(), before)


def test_second_gram_matrix_only_for_the_scale_that_needs_it(tmp_path):
    network = seeded(Pair)
    plain = ClapsModule(network).fit(X, y)
    asked = ClapsModule(network, scale="posterior").fit(X, y)
    assert not hasattr(plain.sums_.homoscedastic, "gram")
    # σ² is the same to the last bit, and so is the scale that consists of it.
    assert plain.residual_variance_ == asked.residual_variance_
    np.testing.assert_array_equal(
        asked.set_params(scale="claps").predict(X, return_std=True)[1],
        plain.predict(X, return_std=True)[1],
    )
    asked.set_params(scale="posterior")
    save(plain, tmp_path / "plain")
    loaded = load(tmp_path / "plain", network=network)
    for model in (plain, loaded):
        model.set_params(scale="posterior")
        for use in (
            lambda m: m.predict(X, return_std=True),
            lambda m: m.predict_covariance(X, X),
            lambda m: m.partial_fit(X, y),
            lambda m: m.with_prior_precision(2.0),
            lambda m: update_posterior(m, X, y),
        ):
            with pytest.raises(ValueError, match="Got sums without HᵀH.*call fit"):
                use(model)
        again = with_sums(model, partial_sums(model, X, y))
        np.testing.assert_array_equal(
            again.predict(X, return_std=True)[1], asked.predict(X, return_std=True)[1]
        )
        model.set_params(scale="claps")
    # Sums with and without it add up to sums without.
    both = with_sums(plain, sums_of(asked) + sums_of(plain))
    twice = with_sums(plain, sums_of(plain) + sums_of(plain))
    epistemic = [m.predict_variance(X).epistemic for m in (both, twice)]
    np.testing.assert_allclose(*epistemic, rtol=1e-12)
    with pytest.raises(ValueError, match="Got sums without HᵀH"):
        both.set_params(scale="posterior").predict_parts(X)
