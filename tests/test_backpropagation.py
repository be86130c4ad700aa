"""The gradient written out against torch's autograd, and AdamW against torch.optim."""

import copy

import pytest
import torch
from torch.nn.functional import silu

from mapie_claps.network.ensemble import (
    VIEWS,
    HeteroscedasticNetwork,
    PiecewiseLinearEncoding,
)
from mapie_claps.network.gradient import Backpropagation, FlatParameters
from mapie_claps.network.trainer import Rows, TrainingConfig, gaussian_nll, train

EDGES = [
    torch.tensor([-1.0, 0.0, 2.0]),
    torch.tensor([]),
    torch.tensor([-1.0, 1.0, 2.0, 3.0]),
]
BATCH = 7


def network(n_members, views=VIEWS, scaling_rate=3.0, spread=1.0):
    """Members with weights, factors and frequencies away from where they start."""
    generator = torch.Generator().manual_seed(0)
    made = HeteroscedasticNetwork(
        PiecewiseLinearEncoding(EDGES),
        (5, 4, 3),
        n_members,
        1e-3,
        generator,
        views,
        scaling_rate,
    ).double()
    with torch.no_grad():
        for p in made.parameters():
            p.normal_(std=spread, generator=generator)
    return made


def loss_by_autograd(made, x, y, weight, masks, beta):
    """Loss of each member, from the network's own layers."""
    first = zip(made.first, made.members_by_view(), strict=True)
    phi = silu(torch.cat([layer(x[members]) for layer, members in first]))
    for i, layer in enumerate(made.trunk):
        phi = silu(layer(phi * masks[i] if masks else phi))
    out = made.heads(phi * masks[-1] if masks else phi)
    nll = gaussian_nll(y, out.mu, out.h2) * out.h2.detach() ** beta
    return (nll if weight is None else nll * weight).mean(dim=1)


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(
    ("n_members", "views", "scaling_rate"),
    [
        (1, ("raw",), 0.0),
        (1, ("periodic",), 3.0),
        (2, ("bins",), 3.0),
        (3, VIEWS, 3.0),
        (5, VIEWS, 0.0),
        (6, VIEWS, 3.0),
    ],
)
def test_loss_and_gradient(n_members, views, scaling_rate, beta, weighted, dropout):
    made = network(n_members, views, scaling_rate)
    generator = torch.Generator().manual_seed(1)

    def random(*shape):
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    x = made.encoding(6 * random(n_members, BATCH, 3) - 3)
    y = 2 * random(n_members, BATCH) - 1
    weight = random(n_members, BATCH) if weighted else None
    shapes = [(n_members, BATCH, size) for size in made.layer_sizes]
    masks = [(random(*shape) < 0.7) / 0.7 for shape in shapes] if dropout else []

    expected = loss_by_autograd(made, x, y, weight, masks, beta)
    expected.sum().backward()
    gradients = [p.grad.clone() for p in made.parameters()]

    parameters = FlatParameters(made)
    passes = Backpropagation(made, parameters, BATCH, beta)
    with torch.no_grad():
        for _ in range(2):  # buffers hold nothing that a second call would see
            passes.inputs.copy_(x)
            passes.target.copy_(y)
            loss = passes(weight, masks)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    for p, gradient in zip(made.parameters(), gradients, strict=True):
        torch.testing.assert_close(p.grad, gradient, rtol=1e-11, atol=1e-12)
    parameters.release()
    assert all(p.grad is None for p in made.parameters())


def test_flat_parameters_are_the_network():
    made = network(3)
    before = copy.deepcopy(made).state_dict()
    parameters = FlatParameters(made)
    for name, value in made.state_dict().items():
        assert torch.equal(value, before[name])
    total = sum(p.numel() for p in made.parameters())
    assert parameters.weights.shape == parameters.gradient.shape == (total,)
    parameters.weights.add_(1.0)
    for name, p in made.named_parameters():
        assert torch.equal(p.data, before[name] + 1.0)


@pytest.mark.parametrize("n_members", [1, 3])
def test_training_takes_the_steps_of_autograd_and_adamw(n_members):
    made = network(n_members, spread=0.3).float()
    other = copy.deepcopy(made)
    generator = torch.Generator().manual_seed(2)
    X = made.encoding(torch.randn(20, 3, generator=generator))
    y = torch.randn(20, generator=generator)
    everything = torch.arange(20).expand(n_members, -1)
    config = TrainingConfig(
        max_steps=30,
        batch_size=20,
        learning_rate=3e-3,
        weight_decay=0.1,
        schedule="constant",
        beta=0.5,
        dropout=0.0,
        patience=None,
        n_evaluations=3,
        tol=None,
    )
    rows = Rows(everything, everything[:, :0])
    train(made, X, y, None, rows, config, generator, torch.device("cpu"))

    optimizer = torch.optim.AdamW(
        other.parameters(), lr=3e-3, weight_decay=0.1, fused=True
    )
    by_members = other.parameters_of_members()
    for _ in range(30):
        optimizer.zero_grad()
        x, target = X[everything], y[everything]
        loss_by_autograd(other, x, target, None, (), 0.5).sum().backward()
        for k in range(n_members):
            own = [p.grad[k - m.start] for p, m in by_members if m.start <= k < m.stop]
            norm = torch.cat([g.flatten() for g in own]).norm()
            for g in own:
                g.mul_(min(1.0, 5.0 / float(norm)))
        optimizer.step()
    for p, q in zip(made.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p.data, q.data, rtol=1e-3, atol=1e-4)
