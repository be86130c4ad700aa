"""What members see of the inputs, and how they are divided among the views."""

import copy
import pickle

import numpy as np
import pytest
import torch
from conftest import heteroscedastic, tiny

from mapie_claps.network.encoding import PiecewiseLinearEncoding, bin_edges
from mapie_claps.network.ensemble import HeteroscedasticNetwork
from mapie_claps.network.views import VIEWS, members_per_view

EDGES = [torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([])]


def network(n_members=5, scaling_rate=3.0, views=VIEWS):
    """Members with weights, factors and frequencies away from where they start."""
    generator = torch.Generator().manual_seed(0)
    made = HeteroscedasticNetwork(
        PiecewiseLinearEncoding(EDGES),
        (4, 3),
        n_members,
        1e-3,
        generator,
        views,
        scaling_rate,
    ).double()
    with torch.no_grad():
        for p in made.parameters():
            p.normal_(generator=generator)
    return made


def seen(view, x, frequency):
    """Inputs of one member, by hand."""
    if view == "raw":
        return x
    if view == "bins":
        first = np.clip([x[:, 0] + 1, x[:, 0] / 2], 0, 1)
        return np.column_stack([x, *first])
    angles = [x[:, j] * f for j in range(2) for f in frequency[j]]
    return np.column_stack([x, *np.sin(angles), *np.cos(angles)])


@pytest.mark.parametrize("scaling_rate", [0.0, 3.0])
def test_features_of_every_view_against_plain_numpy(scaling_rate):
    made = network(scaling_rate=scaling_rate)
    x = np.random.default_rng(0).normal(size=(7, 2)) * 2
    phi = made.features(made.encoding(torch.from_numpy(x))).detach().numpy()
    k = 0
    for first, part in zip(made.first, made.members_by_view(), strict=True):
        assert part == slice(k, k + first.n_members)
        for i in range(first.n_members):
            periodic = first.view.name == "periodic"
            frequency = first.view.frequency[i].tolist() if periodic else None
            weight = first.weight[i].detach().numpy()
            if scaling_rate:
                weight = weight * (1 + scaling_rate * first.factor[i].detach().numpy())
            z = (
                seen(first.view.name, x, frequency) @ weight
                + first.bias[i].detach().numpy()
            )
            z = z / (1 + np.exp(-z))
            layer = made.trunk[0]
            z = z @ layer.weight[k].detach().numpy() + layer.bias[k].detach().numpy()
            np.testing.assert_allclose(phi[k], z / (1 + np.exp(-z)), rtol=1e-10)
            k += 1
    assert k == 5


def test_rows_of_their_own_are_those_of_all():
    made = network()
    x = made.encoding(torch.linspace(-2, 2, 12).double().reshape(6, 2))
    own = made.features(x.expand(5, -1, -1))
    torch.testing.assert_close(own, made.features(x))


@pytest.mark.parametrize("scaling_rate", [0.0, 3.0])
def test_every_parameter_belongs_to_its_members(scaling_rate):
    """One member's loss moves its own share of every parameter, and nothing else."""
    made = network(scaling_rate=scaling_rate)
    listed = made.parameters_of_members()
    assert {id(p) for p, _ in listed} == {id(p) for p in made.parameters()}
    assert len(listed) == len(list(made.parameters()))
    x = torch.linspace(-2, 2, 12).double().reshape(6, 2)
    for k in range(5):
        made.zero_grad()
        out = made(x)
        (out.mu[k].square() + out.h2[k]).sum().backward()
        for p, members in listed:
            for i, owner in enumerate(range(members.start, members.stop)):
                assert bool((p.grad[i] != 0).any()) == (owner == k)


@pytest.mark.parametrize(
    ("n_members", "n_views", "expected"),
    [(1, 3, [1, 0, 0]), (2, 3, [1, 1, 0]), (6, 3, [2, 2, 2]), (7, 3, [3, 2, 2])],
)
def test_members_are_divided_evenly(n_members, n_views, expected):
    assert members_per_view(n_members, n_views) == expected


@pytest.fixture(scope="module")
def model():
    X, y = heteroscedastic(150)
    return tiny(n_members=4, n_bins=16, dropout=0.1).fit(X, y)


def test_chunks_and_single_precision(model):
    X = heteroscedastic(40, seed=1)[0]
    expected = np.stack(model.predict(X, return_std=True))
    rows = [np.stack(model.predict(row[None], return_std=True)) for row in X]
    np.testing.assert_allclose(np.hstack(rows), expected, rtol=1e-10, atol=1e-12)
    single = np.stack(model.predict(X.astype(np.float32), return_std=True))
    np.testing.assert_allclose(single, expected, rtol=1e-4, atol=1e-4)


def test_copies_predict_the_same(model):
    X = heteroscedastic(40, seed=1)[0]
    expected = np.stack(model.predict(X, return_std=True))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(other.predict(X, return_std=True), expected)


@pytest.mark.parametrize(
    "params",
    [
        {"views": ("periodic",), "n_members": 2},
        {"views": ["raw", "bins"], "n_members": 1},
        {"validation_fraction": 0.0, "prior_precision": "marglik"},
        {"hessian_structure": "diag", "last_layer": "trained"},
    ],
)
@pytest.mark.parametrize("columns", [slice(0, 1), slice(0, 3)])
def test_weights_sum_to_one_and_results_are_numbers(params, columns):
    X, y = heteroscedastic(60)
    X[:, 1] = 7.0
    model = tiny(**({"n_members": 4, "max_steps": 10, "n_bins": 4} | params))
    weight = np.random.default_rng(0).uniform(0, 2, 60)
    mu, std = model.fit(X[:, columns], y, weight).predict(X[:, columns], True)
    assert float(model.model_.member_weight.sum()) == pytest.approx(1, rel=1e-12)
    assert np.isfinite(mu).all()
    assert np.isfinite(std).all()
    assert (std > 0).all()


def test_a_network_of_some_members_has_weights_of_its_own():
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(40, 2, generator=generator, dtype=torch.float64)
    encoding = PiecewiseLinearEncoding(bin_edges(X, 4, 2), 2)
    views = ("bins", "periodic", "raw")
    network = HeteroscedasticNetwork(
        encoding, (5, 4), 6, 1e-6, generator, views, 3.0, 0.1
    )
    before = [p.detach().clone() for p in network.parameters()]
    out = network(X.float())
    taken = network.take([0, 3, 5])
    assert taken.encoding is encoding
    names = [name for name, _ in network.named_parameters()]
    assert [name for name, _ in taken.named_parameters()] == names
    assert torch.equal(taken(X.float()).mu, out.mu[[0, 3, 5]])
    with torch.no_grad():
        for p in taken.parameters():
            p += 1
    assert all(map(torch.equal, before, network.parameters()))
    assert network.n_members == sum(first.n_members for first in network.first) == 6
