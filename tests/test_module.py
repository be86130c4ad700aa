"""ClapsModule: a network of the user's own."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from own_networks import (
    Convolution,
    Pair,
    Recurrent,
    TwoColumns,
    WithMethod,
    batches,
    mse_network,
    seeded,
    table,
)
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import GammaRegressor
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from mapie_claps import ClapsModule, ClapsRegressor, explain
from mapie_claps._noise_head import NoiseRows, fit_noise_head


@pytest.fixture(autouse=True)
def own_random_state():
    """New networks and loaders draw from torch's generator, here from a copy."""
    with torch.random.fork_rng():
        yield


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
        self.members = model.model_.network
        self.shift = torch.from_numpy(model.scaler_X_.mean_)
        self.unit = torch.from_numpy(model.scaler_X_.scale_)
        y_unit, y_mean = model.scaler_y_.scale_[0], model.scaler_y_.mean_[0]
        weights = self.members.last_layer_weights()[0]
        self.head = nn.Linear(len(weights) - 1, 1).double()
        with torch.no_grad():
            self.head.weight.copy_(weights[None, :-1] * y_unit)
            self.head.bias.copy_(weights[-1:] * y_unit + y_mean)
        self.y_unit = y_unit

    def forward(self, x):
        x = ((x - self.shift) / self.unit).clamp(-6, 6)
        phi = self.members.features(self.members.encoding(x))
        h2 = self.members.noise_variance(phi)[0]
        return self.head(phi[0]), h2 * self.y_unit**2


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
    phi = model.network_(torch.from_numpy(X)).phi.numpy()
    h2 = model.predict_variance(X).aleatoric / y.var()
    target = (y - y.mean()) / y.std()
    features = np.hstack([phi, np.ones((len(X), 1))])

    def minus_log_evidence(value):
        cov = features @ features.T / value + np.diag(h2)
        return np.linalg.slogdet(cov)[1] + target @ np.linalg.solve(cov, target)

    grid = [model.prior_precision_ * factor for factor in (0.1, 1, 10)]
    assert np.argmin([minus_log_evidence(v) for v in grid]) == 1


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


@pytest.mark.parametrize("kind", ["float32 tensor", "float64 array"])
def test_images(kind):
    images = np.random.default_rng(0).normal(size=(40, 1, 8, 8))
    if kind == "float32 tensor":
        images = torch.tensor(images, dtype=torch.float32)
    net = seeded(Convolution)
    model = ClapsModule(net).fit(images, y[:40])
    mu, std = model.predict(images, return_std=True)
    assert mu.shape == std.shape == (40,)
    assert mu.dtype == std.dtype == np.float64
    assert not hasattr(model, "n_features_in_")
    with torch.no_grad():
        own = net.eval()(torch.as_tensor(images).float()).numpy()
    np.testing.assert_allclose(mu, own, atol=1e-6)
    with pytest.raises(ValueError, match="4 dimensions"):
        model.predict(images[:, 0])


def test_sequences_of_integers_stay_integers_for_an_embedding():
    tokens = np.random.default_rng(0).integers(10, size=(40, 7))
    model = ClapsModule(seeded(Recurrent)).fit(tokens, y[:40])
    assert model.predict(tokens).shape == (40,)
    assert np.isfinite(model.predict_variance(tokens).total).all()


def test_integers_become_floats_where_nothing_embeds():
    integers = np.arange(60).reshape(20, 3)
    net = mse_network()
    model = ClapsModule(net).fit(integers, y[:20])
    floats = ClapsModule(net).fit(integers.astype(float), y[:20])
    np.testing.assert_array_equal(model.predict(integers), floats.predict(integers))


def test_arrays_frames_tensors_and_loaders_give_the_same():
    net = mse_network()
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    tensors = TensorDataset(torch.from_numpy(X), torch.from_numpy(y))
    sources = [
        (X, y),
        (X.tolist(), y.tolist()),
        ([list(row) for row in X], list(y)),
        (frame, pd.Series(y)),
        (torch.from_numpy(X), torch.from_numpy(y)),
        (DataLoader(tensors, batch_size=7, shuffle=True),),
        (batches(X, y, 11),),
    ]
    expected = ClapsModule(net, batch_size=50).fit(X, y)
    for source in sources:
        model = ClapsModule(net).fit(*source)
        assert model.n_features_in_ == 3
        new = X_NEW
        if source[0] is frame:
            new = pd.DataFrame(X_NEW, columns=["a", "b", "c"])
        np.testing.assert_allclose(
            model.predict(new, return_std=True),
            expected.predict(X_NEW, return_std=True),
            rtol=1e-9,
        )
    loader = DataLoader(torch.from_numpy(X_NEW), batch_size=8)
    np.testing.assert_array_equal(model.predict(loader), model.predict(X_NEW))
    named = ClapsModule(net).fit(frame, y)
    assert list(named.feature_names_in_) == ["a", "b", "c"]


def test_an_iterator_serves_where_one_pass_is_enough():
    model = ClapsModule(seeded(Pair)).fit(iter(batches(X, y, 30)))
    assert model.sums_.n_rows == 120
    with pytest.raises(ValueError, match="several passes"):
        ClapsModule(mse_network()).fit(iter(batches(X, y, 30)))


def test_row_weights_count_rows():
    weight = np.arange(120) % 3
    net = seeded(Pair)
    weighted = ClapsModule(net, last_layer="ridge").fit(X, y, weight)
    repeated = ClapsModule(net, last_layer="ridge").fit(
        X.repeat(weight, axis=0), y.repeat(weight)
    )
    np.testing.assert_allclose(
        weighted.predict(X_NEW, return_std=True),
        repeated.predict(X_NEW, return_std=True),
        rtol=1e-10,
    )
    with pytest.raises(ValueError, match="positive weight"):
        ClapsModule(net).fit(X, y, np.zeros(120))
    with pytest.raises(ValueError, match="at least 0"):
        ClapsModule(net).fit(X, y, -np.ones(120))


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


def test_layer_without_bias_counts_as_bias_zero():
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1, bias=False))
    model = ClapsModule(net).fit(X, y)
    assert model.posterior_covariance_.shape == (5, 5)


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


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ((X,), "Got y=None"),
        ((X, y[:5]), r"y of shape \(5,\) for 120 rows"),
        ((X[:, 0], y), "2D array"),
        ((torch.from_numpy(X[:, 0]), y), "at least two dimensions"),
        ((batches(X, y, 9), y), "together with y"),
        (([(X, y, y, y)],), "several|array|y=None"),
        ((iter([(X, y, y, y)]),), "batch of 4 parts"),
        ((iter([X]),), "batch of 1 parts"),
        ((iter([({"x": X}, y)]),), "X is a dict"),
        ((iter([]),), "without rows"),
        ((torch.full((120, 3), np.nan), y), "NaN or infinity"),
    ],
)
def test_bad_data(data, match):
    with pytest.raises((ValueError, TypeError), match=match):
        ClapsModule(seeded(Pair)).fit(*data)


def test_wrong_number_of_columns():
    model = ClapsModule(mse_network()).fit(X, y)
    with pytest.raises(ValueError, match="expecting 3 features"):
        model.predict(X_NEW[:, :2])


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


def test_weights_belong_into_the_batches():
    with pytest.raises(ValueError, match="sample_weight together with batches"):
        ClapsModule(seeded(Pair)).fit(batches(X, y, 30), sample_weight=np.ones(120))
    triples = [(a, b, np.full(len(b), 2.0)) for a, b in batches(X, y, 30)]
    model = ClapsModule(seeded(Pair)).fit(triples)
    assert model.sums_.spread.weight == 240


def test_frozen_and_read_only_inputs():
    locked = X.copy()
    locked.flags.writeable = False
    swapped = X.astype(">f8")
    model = ClapsModule(mse_network()).fit(X, y)
    for other in (locked, swapped):
        np.testing.assert_array_equal(model.predict(other), model.predict(X))


def test_rows_without_a_target():
    model = ClapsModule(mse_network()).fit(X, y)
    with pytest.raises(ValueError, match="Got y=None"):
        model.partial_sums(X)
    with pytest.raises(ValueError, match="without rows"):
        model.partial_sums(X[:0], y[:0])
    assert model.predict(X[:0]).shape == (0,)


def test_no_number_is_drawn_from_the_generator_of_torch():
    net = seeded(Convolution).train()
    images = np.random.default_rng(0).normal(size=(20, 1, 8, 8))
    before = torch.get_rng_state()
    ClapsModule(net, prior_precision="grid").fit(images, y[:20]).predict(images)
    assert torch.equal(torch.get_rng_state(), before)


def test_names_of_columns_are_checked_in_batches():
    names = list("abcdefgh")[: X.shape[1]]
    frame = pd.DataFrame(X, columns=names)
    permuted = frame[names[::-1]]
    pairs = [(frame[:50], y[:50]), (frame[50:], y[50:])]
    for model in (
        ClapsModule(mse_network()).fit(frame, y),
        ClapsModule(mse_network()).fit(pairs),
    ):
        assert list(model.feature_names_in_) == names
        assert len(model.predict([(frame, y)])) == len(X)
        for call in (
            lambda m: m.predict([(permuted, y)]),
            lambda m: m.partial_sums(permuted, y),
            lambda m: m.partial_fit([(permuted, y)]),
        ):
            with pytest.raises(ValueError, match="feature names should match"):
                call(model)
    with pytest.raises(ValueError, match="feature names should match"):
        ClapsModule(mse_network()).fit([(frame, y), (permuted, y)])


def test_rows_of_weight_zero_do_not_reach_the_variance_head():
    far = np.vstack([X, 50 * X])
    targets, weight = np.r_[y, y], np.r_[np.ones(len(X)), np.zeros(len(X))]
    net = mse_network()
    plain = ClapsModule(net).fit(X, y)
    weighted = ClapsModule(net).fit(far, targets, weight)
    v, w = (m.predict_variance(far).aleatoric for m in (plain, weighted))
    np.testing.assert_allclose(w, v, rtol=1e-8)


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
