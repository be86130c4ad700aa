"""ClapsModule: a network of the user's own."""

import copy
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import torch
from own_networks import (
    Convolution,
    FromFeatures,
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

from mapie_claps import ClapsModule
from mapie_claps.estimators import module as module

pytestmark = pytest.mark.usefixtures("own_random_state")
X, y = table(120)
X_NEW = table(30, seed=1)[0]
IMAGES = np.random.default_rng(0).normal(size=(40, 1, 8, 8))
TOKENS = np.random.default_rng(0).integers(10, size=(40, 7))


def predictions(model, X=X_NEW):
    return np.stack(model.predict(X, return_std=True))


@torch.no_grad()
def parts_of(net, X):
    """[φ, 1], μ and h² of ``Pair`` in NumPy."""
    double = copy.deepcopy(net).double()
    phi, (mu, h2) = double.body(torch.from_numpy(X)), double(torch.from_numpy(X))
    return np.c_[phi.numpy(), np.ones(len(X))], mu.numpy()[:, 0], h2.numpy()[:, 0]


@pytest.mark.parametrize("precision", ["float64", "module"])
@pytest.mark.parametrize("structure", ["full", "diag"])
def test_posterior_is_that_of_plain_numpy_and_of_laplace_torch(structure, precision):
    """λ is for standardised targets: the prior precision is λ/var(y)."""
    net, target = seeded(Pair), 1e3 + 50 * y
    with torch.no_grad():
        net.mean.weight.mul_(50)
        net.mean.bias.mul_(50).add_(1e3)
        net.noise.bias.add_(1000)
    model = ClapsModule(
        net, prior_precision=2.0, hessian_structure=structure, precision=precision
    ).fit(X, target)
    phi, _, h2 = parts_of(net, X)
    matrix = phi.T @ (phi / h2[:, None]) + 2.0 / target.var() * np.eye(9)
    Sigma = np.linalg.inv(matrix if structure == "full" else np.diag(np.diag(matrix)))
    phi, mu, h2 = parts_of(net, X_NEW)
    exact = precision == "float64"
    found = model.predict_variance(X_NEW)
    np.testing.assert_allclose(model.predict(X_NEW), mu, rtol=1e-12 if exact else 1e-6)
    np.testing.assert_allclose(found.aleatoric, h2, rtol=1e-12 if exact else 1e-5)
    expected = np.einsum("ij,jk,ik->i", phi, Sigma, phi)
    np.testing.assert_allclose(found.epistemic, expected, rtol=1e-9 if exact else 1e-3)
    if exact:
        np.testing.assert_allclose(model.posterior_covariance_, Sigma, rtol=1e-8)
        np.testing.assert_allclose(model.embed(X_NEW), phi[:, :-1], rtol=1e-12)
    la = model.laplace_
    assert (
        type(la).__name__
        == {"full": "FullLLLaplace", "diag": "DiagLLLaplace"}[structure]
    )
    mean, epistemic = la(torch.from_numpy(X_NEW))
    np.testing.assert_allclose(
        mean[:, 0], model.predict(X_NEW), rtol=1e-10 if exact else 1e-6
    )
    np.testing.assert_allclose(epistemic[:, 0, 0], found.epistemic, rtol=1e-10)
    assert next(model.network_.network.parameters()).dtype == (
        torch.float64 if exact else torch.float32
    )


def test_scales():
    net = seeded(Pair)
    model = ClapsModule(net, prior_precision=3.0).fit(X, y)
    claps, residual = model.predict_variance(X_NEW), y - model.predict(X)
    aleatoric = model.set_params(scale="aleatoric").predict_variance(X_NEW)
    np.testing.assert_array_equal(aleatoric.total, claps.aleatoric)
    constant = model.set_params(scale="constant").predict_variance(X_NEW)
    np.testing.assert_allclose(constant.total, np.mean(residual**2), rtol=1e-10)
    with pytest.raises(ValueError, match="scale='posterior'.*before fit, and call fit"):
        model.set_params(scale="posterior").predict_variance(X_NEW)
    posterior = model.fit(X, y).predict_variance(X_NEW)
    phi, sigma2 = parts_of(net, X)[0], np.mean(residual**2)
    Sigma = np.linalg.inv(phi.T @ phi / sigma2 + 3.0 / y.var() * np.eye(9))
    phi = parts_of(net, X_NEW)[0]
    np.testing.assert_allclose(posterior.aleatoric, sigma2, rtol=1e-10)
    expected = np.einsum("ij,jk,ik->i", phi, Sigma, phi)
    np.testing.assert_allclose(posterior.epistemic, expected, rtol=1e-8)
    with pytest.raises(ValueError, match="scale='claps'.*call fit again"):
        model.set_params(scale="claps").predict(X_NEW, True)


def test_ridge_is_the_posterior_mean_in_any_units():
    net = mse_network()
    scaled = copy.deepcopy(net)
    with torch.no_grad():
        scaled[2].weight.mul_(1024)
        scaled[2].bias.mul_(1024).add_(4096)
    a = ClapsModule(net, last_layer="ridge").fit(X, y)
    b = ClapsModule(scaled, last_layer="ridge").fit(X, 1024 * y + 4096)
    assert a.prior_precision_ == b.prior_precision_
    (mu_a, std_a), (mu_b, std_b) = predictions(a), predictions(b)
    np.testing.assert_allclose(mu_b, 1024 * mu_a + 4096, rtol=1e-6)
    np.testing.assert_allclose(std_b, 1024 * std_a, rtol=1e-6)
    with torch.no_grad():
        phi = copy.deepcopy(net[:2]).double()(torch.from_numpy(X)).numpy()
    phi, h2 = np.c_[phi, np.ones(120)], a.predict_variance(X).aleatoric / y.var()
    target, prior = (y - y.mean()) / y.std(), a.prior_precision_ * np.eye(9)
    w = np.linalg.solve(phi.T @ (phi / h2[:, None]) + prior, phi.T @ (target / h2))
    np.testing.assert_allclose(a.predict(X), phi @ w * y.std() + y.mean(), rtol=1e-8)
    # σ² is that of the mean in use.
    sigma2 = a.set_params(scale="constant").predict_variance(X).total
    np.testing.assert_allclose(sigma2, np.mean((y - a.predict(X)) ** 2))


def test_updates():
    net = seeded(Pair)
    model = ClapsModule(net, prior_precision=2.0).fit(X[:50], y[:50])
    before, fit_id = predictions(model), model.fit_id_
    whole = ClapsModule(net, prior_precision=2.0).fit(X, y)
    other = model.update_posterior(batches(X[50:], y[50:], 30))
    np.testing.assert_allclose(predictions(other), predictions(whole), rtol=1e-9)
    np.testing.assert_array_equal(predictions(model), before)
    assert other.fit_id_ != fit_id == model.fit_id_
    assert other.count_seen(X, y) == (120, 120)
    assert model.count_seen(X, y) == (50, 120)
    evidence = ClapsModule(net).fit(X[:50], y[:50]).update_posterior(X[50:], y[50:])
    again = ClapsModule(net).fit(X, y)  # λ is chosen again
    np.testing.assert_allclose(predictions(evidence), predictions(again), rtol=1e-9)
    limit = model.with_prior_precision(1e12).predict_variance(X_NEW)
    np.testing.assert_allclose(limit.total, limit.aleatoric, rtol=1e-8)
    with pytest.raises(ValueError, match="belong to another fit"):
        model.with_sums(whole.sums_)
    none = model.partial_sums(X[:5], y[:5], np.zeros(5))
    with pytest.raises(ValueError, match="zero in every row"):
        model.with_sums(none)


def test_the_users_module_is_left_as_it_was():
    net = seeded(Convolution).train()
    net.head.weight.grad = torch.ones_like(net.head.weight)
    net.body[0].weight.requires_grad_(False)
    before, generator = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    model = ClapsModule(net).fit(IMAGES, y[:40])
    found = predictions(model, IMAGES)
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(m.training and not m._forward_hooks for m in net.modules())
    assert torch.equal(net.head.weight.grad, torch.ones_like(net.head.weight))
    assert [p.requires_grad for p in net.parameters()][:2] == [False, True]
    assert {p.dtype for p in net.parameters()} == {torch.float32}
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[name])
    with torch.no_grad():  # nor does training it on reach the estimator
        net.head.weight.add_(1.0)
    np.testing.assert_array_equal(predictions(model, IMAGES), found)


def test_clone_copy_and_pickle():
    model = ClapsModule(mse_network(), prior_precision=2.0).fit(X, y)
    _ = model.laplace_
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(predictions(other), predictions(model))
        assert other.fit_id_ == model.fit_id_
        other.with_sums(model.sums_)
        np.testing.assert_array_equal(
            other.laplace_.posterior_scale, model.laplace_.posterior_scale
        )
    fresh = clone(model)
    for name in ("laplace_", "network_", "posterior_covariance_"):
        with pytest.raises(NotFittedError, match="not fitted"):
            getattr(fresh, name)
    np.testing.assert_array_equal(predictions(fresh.fit(X, y)), predictions(model))


# Inputs


def test_images():
    net = seeded(Convolution)
    for images in (IMAGES, torch.tensor(IMAGES, dtype=torch.float32)):
        model = ClapsModule(net).fit(images, y[:40])
        mu, std = model.predict(images, return_std=True)
        assert mu.dtype == std.dtype == np.float64
        assert not hasattr(model, "n_features_in_")
        with torch.no_grad():
            own = net.eval()(torch.as_tensor(images).float()).numpy()
        np.testing.assert_allclose(mu, own, atol=1e-6)
        with pytest.raises(ValueError, match="4 dimensions"):
            model.predict(images[:, 0])


def test_integers():
    model = ClapsModule(seeded(Recurrent)).fit(TOKENS, y[:40])
    mean, epistemic = model.laplace_(torch.from_numpy(TOKENS))
    np.testing.assert_allclose(mean[:, 0], model.predict(TOKENS), rtol=1e-8)
    found = model.predict_variance(TOKENS).epistemic
    np.testing.assert_allclose(epistemic[:, 0, 0], found, rtol=1e-10)
    assert not hasattr(model, "n_features_in_")
    integers, net = np.arange(60).reshape(20, 3), mse_network()
    model = ClapsModule(net).fit(integers, y[:20])  # floats, since nothing embeds
    floats = ClapsModule(net).fit(integers.astype(float), y[:20])
    np.testing.assert_array_equal(model.predict(integers), floats.predict(integers))


def test_arrays_frames_tensors_and_loaders_give_the_same():
    net, names = mse_network(), ["a", "b", "c"]
    frame = pd.DataFrame(X, columns=names)
    tensors = TensorDataset(torch.from_numpy(X), torch.from_numpy(y))
    locked = X.copy()
    locked.flags.writeable = False
    sources = [
        (X.tolist(), y.tolist()),
        (frame, pd.Series(y)),
        (torch.from_numpy(X), torch.from_numpy(y)),
        (DataLoader(tensors, batch_size=7, shuffle=True),),
        (batches(X, y, 11),),
        (batches(X, y, 1),),
        (locked, y),
        (X.astype(">f8"), y[:, None]),
    ]
    expected = predictions(ClapsModule(net, batch_size=50).fit(X, y))
    for source in sources:
        model = ClapsModule(net, batch_size=37).fit(*source)
        assert model.n_features_in_ == 3
        named = source[0] is frame
        new = pd.DataFrame(X_NEW, columns=names) if named else X_NEW
        np.testing.assert_allclose(predictions(model, new), expected, rtol=1e-9)
    loader = DataLoader(torch.from_numpy(X_NEW), batch_size=8)
    np.testing.assert_array_equal(model.predict(loader), model.predict(X_NEW))
    assert model.predict(X[:0]).shape == (0,)
    for model in (ClapsModule(net).fit(frame, y), ClapsModule(net).fit([(frame, y)])):
        assert list(model.feature_names_in_) == names
        for call in (model.predict, model.embed, model.partial_sums):
            with pytest.raises(ValueError, match="feature names should match"):
                call([(frame[names[::-1]], y)])


def test_an_iterator_serves_where_one_pass_is_enough():
    model = ClapsModule(seeded(Pair)).fit(iter(batches(X, y, 30)))
    assert model.sums_.n_rows == 120
    for other in (
        ClapsModule(mse_network()),
        ClapsModule(seeded(Pair), last_layer="ridge"),
    ):
        with pytest.raises(ValueError, match="several passes"):
            other.fit(iter(batches(X, y, 30)))


def test_row_weights_count_rows():
    weight, net = np.arange(120) % 3, seeded(Pair)
    weighted = ClapsModule(net, last_layer="ridge").fit(X, y, weight)
    repeated = ClapsModule(net, last_layer="ridge").fit(
        X.repeat(weight, axis=0), y.repeat(weight)
    )
    np.testing.assert_allclose(predictions(weighted), predictions(repeated), rtol=1e-9)
    triples = [(a, b, np.full(len(b), 2.0)) for a, b in batches(X, y, 30)]
    assert ClapsModule(net).fit(triples).sums_.targets.weight == 240
    for network in (net, mse_network()):
        with pytest.raises(ValueError, match="positive weight"):
            ClapsModule(network).fit(X, y, np.zeros(120))
    far, targets = np.vstack([X, 50 * X]), np.r_[y, np.full(120, 1e6)]
    plain = ClapsModule(mse_network()).fit(X, y)
    zero = ClapsModule(mse_network()).fit(far, targets, np.arange(240) < 120)
    np.testing.assert_allclose(predictions(zero), predictions(plain), rtol=1e-8)


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_batches_that_come_in_the_same_memory(rows):
    """A reader may fill one buffer again and again: nothing of it is kept."""
    net = nn.Linear(3, 1).double()  # its features are the inputs themselves
    model = ClapsModule(net, noise_variance=lambda x: 0.5 + x[:, 0] ** 2)
    weight = np.random.default_rng(0).random(120)

    def same_memory():
        buffers = np.empty((rows, 3)), np.empty(rows), np.empty(rows)
        for start in range(0, 120, rows):
            for buffer, values in zip(buffers, (X, y, weight), strict=True):
                buffer[:] = values[start : start + rows]
            yield buffers

    expected = model.fit(X, y, weight).sums_
    for found in (model.partial_sums(same_memory()), model.fit(same_memory()).sums_):
        torch.testing.assert_close(found.gram, expected.gram, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(found.cross, expected.cross, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ((X,), "Got y=None"),
        ((X, y[:5]), r"y of shape \(5,\) for 120 rows"),
        ((X[:, 0], y), "2D array"),
        ((torch.from_numpy(X[:, 0]), y), "at least two dimensions"),
        ((batches(X, y, 9), y), "together with batches"),
        ((iter([X]),), "Got a batch .ndarray., but"),
        ((iter([]),), "without rows"),
        ((torch.full((120, 3), np.nan), y), "NaN or infinity"),
        ((X, np.full(120, np.nan)), "Got y with NaN"),
        ((X.astype(object), np.where(X[:, 0] > 2, None, y)), "Got None in y, row"),
        ((X, y, -np.ones(120)), "non-negative numbers. Use zero"),
        ((X[:, :2], y), "forward pass fails on X of shape"),
    ],
)
def test_bad_data_leaves_the_estimator_as_it_was(data, match):
    model = ClapsModule(seeded(Pair)).fit(X, y)
    before = predictions(model)
    with pytest.raises((ValueError, TypeError), match=match):
        model.fit(*data)
    np.testing.assert_array_equal(predictions(model), before)


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"module": 3}, "module of type int"),
        ({"module": nn.Linear(3, 3)}, r"returns \(120, 3\)"),
        ({"noise_variance": "nose"}, "noise_variance='nose'.* or a function or net"),
        ({"noise_variance": "output"}, "noise_variance='output', but .* one of 'fit'"),
        ({"noise_variance": lambda x: x[:, 0]}, "log_variance"),
        ({"noise_variance": lambda x: x}, r"noise_variance of shape \(120, 3\)"),
        ({"noise_output": "h"}, "noise_output='h'"),
        ({"prior_precision": 0}, "prior_precision=0"),
        ({"prior_precision": "best"}, "prior_precision='best'"),
        ({"last_layer": "last"}, "last_layer='last'"),
        ({"last_layer": "ridge", "hessian_structure": "diag"}, "of 'trained'"),
        ({"scale": "wide"}, "scale='wide'"),
        ({"prior_precision": "grid"}, "prior_precision='grid'.*'marglik'"),
        ({"precision": "float16"}, "precision='float16'"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"device": 0}, "device=0"),
    ],
)
def test_bad_parameters(params, match):
    model = ClapsModule(**({"module": mse_network()} | params))
    with pytest.raises((ValueError, TypeError), match=match):
        model.fit(X, y)


@pytest.mark.parametrize("stage", ["private_copy", "fit_noise_head", "fit_posterior"])
def test_a_fault_in_fit_leaves_nothing_behind(stage, monkeypatch):
    def broken(*args, **kwargs):
        raise KeyboardInterrupt("on purpose")

    fresh = ClapsModule(mse_network())
    fitted = ClapsModule(mse_network()).fit(X[:50], y[:50])
    before = predictions(fitted)
    with monkeypatch.context() as patch:
        patch.setattr(module, stage, broken)
        for model in (fresh, fitted):
            with pytest.raises(KeyboardInterrupt, match="on purpose"):
                model.fit(X, y)
    assert vars(fresh) == fresh.get_params()
    np.testing.assert_array_equal(predictions(fitted), before)


@pytest.mark.parametrize("network", [seeded(Pair), mse_network()])
def test_eight_threads_share_a_fitted_estimator(network):
    model = ClapsModule(network).fit(X, y)
    parts = [table(40 + i, seed=i)[0] for i in range(64)]
    expected = [predictions(model, part) for part in parts]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda part: predictions(model, part), parts))
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other)


# The layer of the mean


def test_wrappers_of_torch_are_taken_off():
    net = mse_network()
    expected = ClapsModule(net).fit(X, y).predict(X_NEW)
    for wrapper in (nn.DataParallel(net), torch.compile(net, backend="eager")):
        model = ClapsModule(wrapper).fit(X, y)
        np.testing.assert_array_equal(model.predict(X_NEW), expected)
        assert model.last_layer_name_ == "2"
    biasless = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1, bias=False))
    assert ClapsModule(biasless).fit(X, y).posterior_covariance_.shape == (5, 5)


class Body(nn.Module):
    """A body and a head; what happens between and after them is said by ``last``."""

    def __init__(self, last=lambda net, x: net.head(net.body(x).relu()), size=4):
        super().__init__()
        self.body, self.head = nn.Linear(3, size), nn.Linear(size, 1)
        self.twin, self.last = copy.deepcopy(self.head), last

    def forward(self, x):
        return self.last(self, x)


def twins(net, x):
    phi = net.body(x).relu()
    net.twin(phi)
    return net.head(phi)


def twice(net, x):
    net.head(net.body(x))
    return net.head(net.body(x))


def test_last_layer_is_named_where_it_cannot_be_found():
    scaled = Body(lambda net, x: 2 * net.head(net.body(x).relu()))
    with pytest.raises(
        ValueError, match=r"mean are \[\], of the nn.Linear \[.body., .head.,"
    ):
        ClapsModule(scaled).fit(X, y)
    with pytest.raises(ValueError, match=r"mean are \['head', 'twin'\], of"):
        ClapsModule(Body(twins)).fit(X, y)
    assert ClapsModule(Body(twins), "twin").fit(X, y).last_layer_name_ == "twin"
    with pytest.raises(
        ValueError, match="last_layer_name='body', but the layers whose"
    ):
        ClapsModule(Body(twins), "body").fit(X, y)
    with pytest.raises(
        ValueError, match="last_layer_name='nose', but the layers whose"
    ):
        ClapsModule(Body(twins), "nose").fit(X, y)
    with pytest.raises(ValueError, match=r"mean are \[\], of"):
        ClapsModule(Body(twice)).fit(X, y)
    over_time = Body(lambda net, x: net.head(net.body(x))[:, -1])
    with pytest.raises(ValueError, match=r"mean are \[\], of"):
        ClapsModule(over_time).fit(np.zeros((20, 4, 3)), y[:20])
    model = ClapsModule(Body()).fit(X, y)
    model.network_.network.last = twice
    with pytest.raises(ValueError, match="layer 'head', called once, in 30 of 30"):
        model.predict(X_NEW)


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


def test_numbers_that_the_network_does_not_give():
    model = ClapsModule(Body()).fit(X, y)
    with torch.no_grad():
        model.network_.network.body.weight.fill_(torch.inf)
    with pytest.raises(ValueError, match="predictions of the network with NaN"):
        model.predict(X_NEW)


# Noise


def test_all_ways_to_give_the_noise_agree():
    pair = seeded(Pair)
    reference = ClapsModule(pair, prior_precision=1.0).fit(X, y).predict_variance(X_NEW)
    method, from_features, double = WithMethod(), FromFeatures(), copy.deepcopy(pair)
    double.double().requires_grad_(False)
    for other in (method, from_features):
        other.load_state_dict(pair.state_dict())
    for net, noise in (
        (pair, "output"),
        (method, None),
        (method, lambda x: double(x)[1]),
        (from_features, None),
    ):
        model = ClapsModule(net, noise_variance=noise, prior_precision=1.0).fit(X, y)
        found = model.predict_variance(X_NEW)
        np.testing.assert_allclose(found.total, reference.total, rtol=1e-12)
    own = nn.Sequential(pair.body, pair.noise, nn.Softplus())
    for precision, rtol in (("float64", 1e-10), ("module", 1e-4)):
        model = ClapsModule(mse_network(), noise_variance=own, precision=precision)
        found = model.fit(X, y).predict_variance(X_NEW).aleatoric
        np.testing.assert_allclose(found, reference.aleatoric - 1e-3, rtol=rtol)


@pytest.mark.parametrize(
    ("noise_output", "back"),
    [("log_variance", np.log), ("std", np.sqrt), ("variance", lambda h2: h2)],
)
def test_noise_output_says_what_the_head_gives(noise_output, back):
    def head(x):
        return torch.from_numpy(back(0.5 + x[:, 0].numpy() ** 2))

    model = ClapsModule(mse_network(), noise_variance=head, noise_output=noise_output)
    found = model.fit(X, y).predict_variance(X_NEW).aleatoric
    np.testing.assert_allclose(found, 0.5 + X_NEW[:, 0] ** 2, rtol=1e-12)


def test_two_columns_of_one_layer():
    net = seeded(TwoColumns)
    noise = {"noise_variance": "output", "noise_output": "log_variance"}
    model = ClapsModule(net, **noise).fit(X, y)
    with torch.no_grad():
        out = copy.deepcopy(net).double()(torch.from_numpy(X_NEW)).numpy()
    np.testing.assert_array_equal(model.predict(X_NEW), out[:, 0])
    found = model.predict_variance(X_NEW).aleatoric
    np.testing.assert_allclose(found, np.exp(out[:, 1]), rtol=1e-12)
    mean, _ = model.laplace_(torch.from_numpy(X_NEW))
    np.testing.assert_allclose(mean[:, 0], out[:, 0], rtol=1e-8)
    with pytest.raises(ValueError, match="noise_variance='output'"):
        ClapsModule(net).fit(X, y)


def test_fitted_variance_head_is_a_penalised_gamma_regression():
    X, y = table(400)
    net = mse_network()
    for noise, network in ((None, net), ("fit", seeded(Pair))):
        model = ClapsModule(network, noise_variance=noise)
        model.fit(batches(X, y, 150))
        phi = model.embed(X)
        squares = (y - model.predict(X)) ** 2 + 1e-6 * y.var()
        standard = (phi - phi.mean(0)) / phi.std(0)
        # scikit-learn's loss is (deviance / n + alpha |a|²) / 2; ours has weight ½ n.
        alpha = 8 * 2 / 400
        oracle = GammaRegressor(alpha=alpha, solver="newton-cholesky", tol=1e-10)
        oracle.fit(standard, squares)
        h2 = model.predict_variance(X).aleatoric
        np.testing.assert_allclose(h2, oracle.predict(standard), rtol=1e-5)
        far = model.predict_variance(np.full((1, 3), 1e6)).aleatoric
        assert h2.min() * (1 - 1e-12) <= far[0] <= h2.max() * (1 + 1e-12)
    through = net(torch.tensor(X, dtype=torch.float32)).detach().numpy()[:, 0]
    model = ClapsModule(net).fit(X, through)
    assert (model.predict_variance(X).aleatoric > 0).all()


# Networks that are refused, or warned of, rather than wrong


class Mixed(nn.Module):
    """A linear head on something that may mix the rows of a batch."""

    def __init__(self, mix, size=3, unused=0, bias=None):
        super().__init__()
        self.mix, self.head = mix, nn.Linear(size, 1)
        with torch.no_grad():
            self.head.weight[:, size - unused :] = 0
            self.head.bias.fill_(0.1 if bias is None else bias)

    def forward(self, x):
        return self.head(self.mix(x))


class Gru(nn.GRU):
    """Takes the rows of a batch for the steps of one sequence."""

    def forward(self, x):
        return super().forward(x)[0]


def beside_the_mean(x):
    return torch.cat([x, x - x.mean(0)], 1)


MIXED = {
    "batch statistics": (nn.BatchNorm1d(3, track_running_stats=False),),
    "attention over rows": (lambda x: torch.softmax(x @ x.T, dim=1) @ x,),
    "rows before": (seeded(Gru, 3, 4), 4),
    "rows behind": (lambda x: x.flip(0).cumsum(0).flip(0),),
    "the first row": (lambda x: x - x[0],),
    "chance": (nn.functional.dropout,),
}


@pytest.mark.parametrize("precision", ["float64", "module"])
@pytest.mark.parametrize("kind", MIXED)
def test_rows_that_depend_on_other_rows(kind, precision):
    model = ClapsModule(seeded(Mixed, *MIXED[kind]), precision=precision)
    with pytest.raises(ValueError, match="whose mean for a row depends on the other"):
        model.fit(X, y)
    assert vars(model) == model.get_params(deep=False)
    if kind == "attention over rows":  # two batches are looked at together
        with pytest.raises(ValueError, match="depends on the other rows"):
            model.fit(batches(X, y, 1))


def test_noise_and_features_that_depend_on_other_rows():
    def noise(x):
        return 0.5 + (x - x.mean(0)).square().sum(1)

    with pytest.raises(ValueError, match="whose noise for a row depends on the other"):
        ClapsModule(mse_network(), noise_variance=noise).fit(X, y)
    # The mean makes no use of them; a share of it would say little where it is large.
    for bias, precision in ((0.0, "float64"), (1e6, "module")):
        net = seeded(Mixed, beside_the_mean, 6, 3, bias)
        with pytest.raises(ValueError, match="whose feature vector for a row depends"):
            ClapsModule(net, precision=precision).fit(X, y + bias)


class Autocast(nn.Module):
    """Runs in bfloat16 inside, whatever comes in."""

    def __init__(self):
        super().__init__()
        self.net = mse_network()

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.net(x.float()).float()


def test_coarse_types_are_given_their_rounding():
    for net in (Autocast(), seeded(Pair).half(), seeded(Pair).bfloat16()):
        model = ClapsModule(net, precision="module").fit(X, y)
        assert np.isfinite(model.predict(X_NEW)).all()


def line(slope, offset=0.0, weights=(1.0, 1.0, 0.0)):
    """A network whose mean is slope · (x₀ + x₁) + offset."""
    net = nn.Linear(3, 1)
    with torch.no_grad():
        net.weight.copy_(slope * torch.tensor([weights]))
        net.bias.fill_(offset)
    return net


STRONG = X[:, 0] + X[:, 1] + 0.3 * np.random.default_rng(2).normal(size=120)
WEAK = 3 + 0.01 * (X[:, 0] + X[:, 1] + 2 * np.random.default_rng(2).normal(size=120))


@pytest.mark.parametrize(
    ("net", "target", "figures"),
    [
        (
            line(1 / 30, -3.0),
            100 + 30 * STRONG,
            r"line 2.89e\+03 \+ 931 · mean .*-4.46",
        ),
        (line(10.0), STRONG, r"\+ 0.103 · mean explains y \(R² = 0.97"),
        (line(0.1), STRONG, r"\+ 10.3 · mean explains y"),
        (line(1.0, 3.0), STRONG, r"The line -3.\d* \+ "),
        (line(0.4), WEAK, r"R² = 0.48\), the network's mean .*-1.33e\+04"),
    ],
)
def test_a_network_trained_on_another_scale_of_y_is_named(net, target, figures):
    for params in (
        {},
        {"last_layer": "ridge"},
        {"noise_variance": lambda x: x[:, 0].exp()},
    ):
        with pytest.warns(UserWarning, match=f"{figures}.*Train the network on y as"):
            ClapsModule(net, **params).fit(batches(X, target, 50))


@pytest.mark.parametrize(
    ("net", "target", "params"),
    [
        (line(1.0), STRONG, {}),
        (line(0.6), STRONG, {}),  # shrunk
        (line(1.0, 0.3), STRONG, {}),
        (line(0.0), STRONG, {}),
        (line(0.1), STRONG * 0, {}),
        (line(1.0, 5.0, (0.0, 0.1, 1.0)), STRONG, {}),  # bad in any units
        (line(-1.0), STRONG, {}),
        # Neither the mean that is refitted nor this noise depends on the scale.
        (
            line(0.1),
            STRONG,
            {"last_layer": "ridge", "noise_variance": lambda x: x[:, 0] * 0 + 0.1},
        ),
    ],
)
def test_networks_on_the_right_scale_and_bad_ones_pass(net, target, params):
    ClapsModule(net, **params).fit(X, target)
    ClapsModule(line(0.1)).fit(X[:20], STRONG[:20])  # too few rows to tell


def test_noise_and_updates_in_other_units_are_named():
    net, target = seeded(Pair), (y - y.mean()) / y.std()
    with torch.no_grad():
        net.mean.weight.mul_(0.1)
        net.noise.bias.fill_(0.5)
    weight, mistaken = np.arange(120) < 60, np.r_[target[:60], np.full(60, 1e6)]
    ClapsModule(net).fit(X, mistaken, weight)
    for other in (100 * target, target + 1000):
        with pytest.warns(UserWarning, match="1.* times the network's own noise .* on"):
            ClapsModule(net).fit(X, other)
    model = ClapsModule(net).fit(X, target)
    with pytest.warns(UserWarning, match="times those in fit .* in other units"):
        model.update_posterior(X, 100 * target)


def quantised():
    engines = [e for e in torch.backends.quantized.supported_engines if e != "none"]
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = engines[0]
    try:
        return torch.ao.quantization.quantize_dynamic(mse_network(), {nn.Linear})
    finally:
        torch.backends.quantized.engine = before


def uncopied():
    net = mse_network()
    net.cache = net(torch.zeros(1, 3))  # needs gradients, is no leaf
    return net


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.jit.script(mse_network()), "cannot be copied and watched"),
        (lambda: nn.Sequential(nn.LazyLinear(1)), "whose weights are lazy"),
        (quantised, "pass fails.*before it was quantised"),
        (lambda: mse_network().to("meta"), "or on the device 'meta'"),
        (lambda: nn.Linear(3, 1, dtype=torch.complex64), "forward pass fails on X"),
        (uncopied, "cannot be copied and watched .*deepcopy"),
    ],
)
def test_networks_that_cannot_be_watched(make, message):
    with warnings.catch_warnings():  # what torch thinks of its older parts
        warnings.simplefilter("ignore")
        net = make()
    for network in (net, nn.Sequential(net)):
        with pytest.raises((TypeError, ValueError), match=message):
            ClapsModule(network).fit(X, y)
