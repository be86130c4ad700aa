"""Encoding, views and members of the networks, and the gradient written out."""

import copy

import numpy as np
import pytest
import torch
from torch.nn.functional import silu, softplus

from mapie_claps.network.ensemble import (
    MIN_BIN_WIDTH,
    VIEWS,
    HeteroscedasticNetwork,
    PiecewiseLinearEncoding,
    bin_edges,
)
from mapie_claps.network.gradient import FlatParameters, LossAndGradient
from mapie_claps.network.training import gaussian_nll

EDGES = [
    torch.tensor([-1.0, 0.0, 2.0]),
    torch.tensor([]),
    torch.tensor([-1.0, 1.0, 2.0, 3.0]),
]
FLOOR = 1e-3
BATCH = 7


def made(n_members=5, views=VIEWS, scaling_rate=3.0, n_numbers=None, edges=EDGES):
    """Members with weights, factors and frequencies away from where they start."""
    generator = torch.Generator().manual_seed(0)
    network = HeteroscedasticNetwork(
        PiecewiseLinearEncoding(edges, n_numbers),
        (5, 4, 3),
        n_members,
        FLOOR,
        generator,
        views,
        scaling_rate,
    ).double()
    with torch.no_grad():
        for p in network.parameters():
            p.normal_(generator=generator)
    return network


def some_rows(n=12, seed=0):
    return torch.from_numpy(2 * np.random.default_rng(seed).normal(size=(n, 3)))


def seen_by_hand(view, x, frequency):
    """Inputs of one member's first layer, in plain NumPy."""
    if view == "raw":
        return x
    if view == "bins":
        bins = [(0, -1, 0), (0, 0, 2), (2, -1, 1), (2, 1, 2), (2, 2, 3)]
        found = [np.clip((x[:, j] - a) / (b - a), 0, 1) for j, a, b in bins]
        return np.column_stack([x, *found])
    angles = [x[:, j] * f for j, own in enumerate(frequency) for f in own]
    return np.column_stack([x, *np.sin(angles), *np.cos(angles)])


@pytest.mark.parametrize("scaling_rate", [0.0, 3.0])
@pytest.mark.parametrize("n_members", [1, 5])
def test_every_view_against_plain_numpy(n_members, scaling_rate):
    network, x = made(n_members, scaling_rate=scaling_rate), some_rows()
    out = network(x)
    state = {name: p.detach().numpy() for name, p in network.named_parameters()}
    k = 0
    for j, (first, part) in enumerate(
        zip(network.first, network.members_by_view(), strict=True)
    ):
        assert part == slice(k, k + first.n_members)
        for i in range(first.n_members):
            own = {n: v[i] for n, v in state.items() if n.startswith(f"first.{j}.")}
            weight = own[f"first.{j}.weight"]
            if scaling_rate:
                weight = weight * (1 + scaling_rate * own[f"first.{j}.factor"])
            frequency = own.get(f"first.{j}.frequency")
            z = seen_by_hand(first.view, x.numpy(), frequency) @ weight
            z = z + own[f"first.{j}.bias"]
            for layer in ("trunk.0", "trunk.1", "heads"):
                phi = z / (1 + np.exp(-z))
                z = phi @ state[f"{layer}.weight"][k] + state[f"{layer}.bias"][k]
            h2 = np.log1p(np.exp(z[:, 1])) + FLOOR
            for found, expected in zip(out, (phi, z[:, 0], h2), strict=True):
                np.testing.assert_allclose(found[k].detach(), expected, rtol=1e-10)
            k += 1
    assert k == n_members


def test_rows_for_each_member():
    network, x = made(), some_rows()
    for own, shared in zip(network(x.expand(5, -1, -1)), network(x), strict=True):
        torch.testing.assert_close(own, shared)


def test_initial_weights():
    """1/√fan_in for those that start at random, zero for bins; biases as asked."""
    generator = torch.Generator().manual_seed(0)
    encoding = PiecewiseLinearEncoding(EDGES)
    for bias_bound, expected in ((0.1, 0.1), (None, 3**-0.5)):
        network = HeteroscedasticNetwork(
            encoding, (400, 8), 3, FLOOR, generator, VIEWS, 3.0, bias_bound
        ).requires_grad_(False)
        bins, periodic, raw = network.first
        assert not bins.weight[:, 3:].any()
        for weight in (bins.weight[:, :3], raw.weight):
            assert 0.9 * 3**-0.5 < float(weight.abs().max()) <= 3**-0.5
        assert float(raw.bias.abs().max()) == pytest.approx(expected, rel=0.1)
        assert float(periodic.weight.abs().max()) <= 27**-0.5
        assert periodic.frequency.shape == (1, 3, 4)
        assert all(not first.factor.any() for first in network.first)
        assert network.heads.weight.shape == (3, 8, 2)


def test_members_are_divided_evenly_among_views():
    for n_members, ends in ((1, [1]), (2, [1, 2]), (7, [3, 5, 7])):
        network = made(n_members)
        assert [part.stop for part in network.members_by_view()] == ends
        assert [f.view for f in network.first] == list(VIEWS[: len(ends)])


def test_every_parameter_belongs_to_its_members():
    """One member's loss moves its own share of every parameter, and nothing else."""
    network = made()
    listed = network.parameters_of_members()
    assert {id(p) for p, _ in listed} == {id(p) for p in network.parameters()}
    for k in range(5):
        network.zero_grad()
        out = network(some_rows())
        (out.mu[k].square() + out.h2[k]).sum().backward()
        for p, members in listed:
            for i, owner in enumerate(range(members.start, members.stop)):
                assert bool((p.grad[i] != 0).any()) == (owner == k)


def test_some_members_have_weights_of_their_own():
    network, x = made(6).requires_grad_(False), some_rows()
    before, out = copy.deepcopy(network.state_dict()), network(x)
    for members in ([0, 3, 5], [2], range(6)):
        taken = network.take(members)
        assert taken.encoding is network.encoding
        assert taken.n_members == len(members)
        for own, all_ in zip(taken(x), out, strict=True):
            torch.testing.assert_close(own, all_[list(members)], rtol=1e-12, atol=0)
        assert not any(p.requires_grad for p in taken.parameters())
        for p in taken.parameters():
            p += 1
    assert [f.view for f in network.take([3, 4]).first] == ["periodic", "raw"]
    assert network.n_members == 6
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])


def test_trained_weights_give_the_mean():
    network, x = made(), some_rows()
    weights, out = network.trained_weights(), network(x)
    H = torch.cat([out.phi, torch.ones_like(out.phi[..., :1])], dim=-1)
    torch.testing.assert_close((H @ weights[..., None])[..., 0], out.mu)


@pytest.mark.parametrize(
    ("n_members", "edges"), [(1, [torch.tensor([])] * 3), (4, EDGES)]
)
def test_export_with_any_number_of_rows(n_members, edges):
    network = made(n_members, edges=edges).requires_grad_(False)
    rows = torch.export.Dim("rows", min=1)
    exported = torch.export.export(network, (some_rows(),), dynamic_shapes=({0: rows},))
    for n in (1, 2, 50):
        x = some_rows(n, seed=n)
        with torch.no_grad():
            expected = network(x)
        for a, b in zip(exported.module()(x), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_rows_per_batch_fill_a_batch():
    encoding = PiecewiseLinearEncoding(EDGES)
    for n_members, width, expected in ((1, 64, 4096), (6, 64, 1365), (6, 4096, 170)):
        network = HeteroscedasticNetwork(
            encoding, (width, 2), n_members, FLOOR, torch.Generator()
        )
        assert network.rows_per_batch() == expected
    n_weights = sum(p.numel() for p in network.parameters())
    assert network.multiply_adds(10) == 10 * n_weights


def test_edges_are_distinct_values_or_quantiles():
    X = torch.zeros(1001, 4, dtype=torch.float64)
    X[:, 0] = torch.linspace(-1, 1, 1001)  # many values
    X[:, 1] = torch.arange(1001) % 5  # few values
    X[:, 2] = torch.arange(1001) % 2  # two values
    X[:, 3] = 7.0
    numbers, few, two, one = bin_edges(X, 16)
    assert numbers.dtype == torch.float32
    np.testing.assert_allclose(numbers, np.linspace(-1, 1, 13), atol=1e-3)  # 48 // 4
    assert few.tolist() == [0, 1, 2, 3, 4]
    assert len(two) == len(one) == 0
    assert len(bin_edges(X, 16, n_numbers=1)[0]) == 17
    assert all(len(e) == 0 for e in bin_edges(X, 0))
    assert len(bin_edges(X.repeat(1, 25), 16)[0]) == 3  # 100 columns: two bins each


def test_edges_have_a_distance():
    values = torch.tensor([[0.0], [MIN_BIN_WIDTH / 4], [1.0], [2.0]])
    assert bin_edges(values, 8)[0].tolist() == [0.0, 1.0, 2.0]


def autograd_loss(network, x, y, share, beta):
    """β-NLL of each member, from the network's own layers."""
    first = zip(network.first, network.members_by_view(), strict=True)
    phi = silu(torch.cat([layer(x[members]) for layer, members in first]))
    for layer in network.trunk:
        phi = silu(layer(phi))
    mu, raw = network.heads(phi).unbind(-1)
    h2 = softplus(raw) + network.variance_floor
    return (gaussian_nll(y, mu, h2) * h2.detach() ** beta * share).sum(dim=1)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(
    ("n_members", "views", "scaling_rate", "n_numbers"),
    [
        (1, ("raw",), 0.0, None),
        (1, ("periodic",), 3.0, 2),
        (2, ("bins",), 3.0, 1),
        (5, VIEWS, 0.0, 0),
        (6, VIEWS, 3.0, None),
    ],
)
def test_loss_and_gradient_are_those_of_autograd(
    n_members, views, scaling_rate, n_numbers, beta, weighted
):
    network = made(n_members, views, scaling_rate, n_numbers)
    generator = torch.Generator().manual_seed(1)

    def random(*shape):
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    x = network.encoding(6 * random(n_members, BATCH, 3) - 3)
    y = 2 * random(n_members, BATCH) - 1
    share = random(n_members, BATCH) if weighted else torch.full_like(y, 1 / BATCH)
    expected = autograd_loss(network, x, y, share, beta)
    expected.sum().backward()
    gradients = [p.grad.clone() for p in network.parameters()]

    FlatParameters(network)
    loss_and_gradient = LossAndGradient(network, BATCH, beta)
    with torch.no_grad():
        for _ in range(2):  # buffers hold nothing that a second call would see
            loss_and_gradient.inputs.copy_(x)
            loss_and_gradient.target.copy_(y)
            if weighted:
                loss_and_gradient.share.copy_(share)
            loss = loss_and_gradient()
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    for p, gradient in zip(network.parameters(), gradients, strict=True):
        torch.testing.assert_close(p.grad, gradient, rtol=1e-11, atol=1e-12)


def test_flat_parameters_are_the_network():
    network = made(4)
    before = copy.deepcopy(network.state_dict())
    flat = FlatParameters(network)
    total = sum(p.numel() for p in network.parameters())
    assert flat.state.shape == (3, total)
    assert not flat.state[1:].any()
    assert torch.cat(flat.positions).sort().values.tolist() == list(range(total))
    flat.state[0, flat.positions[2]] += 1
    names = {id(p): name for name, p in network.named_parameters()}
    for p, members in network.parameters_of_members():
        expected = before[names[id(p)]].clone()
        if members.start <= 2 < members.stop:
            expected[2 - members.start] += 1
        assert torch.equal(p.data, expected)
    flat.release()
    flat.state.zero_()
    assert all(p.grad is None and p.data.any() for p in network.parameters())
