"""The gradient written out against torch's autograd, and AdamW against torch.optim."""

import copy

import pytest
import torch
from torch.nn.functional import silu, softplus

from mapie_claps.network.encoding import PiecewiseLinearEncoding
from mapie_claps.network.ensemble import HeteroscedasticNetwork
from mapie_claps.network.gradient import FlatParameters, LossAndGradient
from mapie_claps.network.hold_out import Rows
from mapie_claps.network.losses import (
    GaussianLoss,
    PinballLoss,
    SquaredError,
    gaussian_nll,
)
from mapie_claps.network.optimizer import FusedAdamW, PublicAdamW, adamw
from mapie_claps.network.trainer import train
from mapie_claps.network.units import TrainingConfig
from mapie_claps.network.views import VIEW_CLASSES, VIEWS, PeriodicView, ViewSteps

EDGES = [
    torch.tensor([-1.0, 0.0, 2.0]),
    torch.tensor([]),
    torch.tensor([-1.0, 1.0, 2.0, 3.0]),
]
BATCH = 7


def network(n_members, views=VIEWS, scaling_rate=3.0, spread=1.0, n_numbers=None):
    """Members with weights, factors and frequencies away from where they start."""
    generator = torch.Generator().manual_seed(0)
    made = HeteroscedasticNetwork(
        PiecewiseLinearEncoding(EDGES, n_numbers),
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
    mu, raw = made.outputs(phi * masks[-1] if masks else phi).unbind(1)
    h2 = softplus(raw) + made.variance_floor
    nll = gaussian_nll(y, mu, h2) * h2.detach() ** beta
    return (nll if weight is None else nll * weight).mean(dim=1)


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(
    ("n_members", "views", "scaling_rate", "n_numbers"),
    [
        (1, ("raw",), 0.0, None),
        (1, ("periodic",), 3.0, None),
        (1, ("periodic",), 3.0, 2),
        (2, ("bins",), 3.0, 1),
        (3, VIEWS, 3.0, None),
        (5, VIEWS, 0.0, 0),
        (6, VIEWS, 3.0, 1),
    ],
)
def test_loss_and_gradient(
    n_members, views, scaling_rate, n_numbers, beta, weighted, dropout
):
    made = network(n_members, views, scaling_rate, n_numbers=n_numbers)
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
    passes = LossAndGradient(made, parameters, BATCH, GaussianLoss(1e-3, beta))
    with torch.no_grad():
        for _ in range(2):  # buffers hold nothing that a second call would see
            passes.inputs.copy_(x)
            passes.target.copy_(y)
            loss = passes(weight, masks)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    for p, gradient in zip(made.parameters(), gradients, strict=True):
        torch.testing.assert_close(p.grad, gradient, rtol=1e-11, atol=1e-12)


def test_flat_parameters_are_the_network():
    made = network(3)
    before = copy.deepcopy(made).state_dict()
    parameters = FlatParameters(made)
    for name, value in made.state_dict().items():
        assert torch.equal(value, before[name])
    total = sum(p.numel() for p in made.parameters())
    assert parameters.weights.shape == parameters.grad.shape == (total,)
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
        loss=GaussianLoss(1e-3, 0.5),
        dropout=0.0,
        max_gradient_norm=5.0,
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


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "loss", [SquaredError(), PinballLoss((0.05, 0.95)), GaussianLoss(1e-3, 0.5)]
)
def test_losses_against_autograd(loss, weighted):
    """Every loss: its own sum over rows, and the gradient of that."""
    generator = torch.Generator().manual_seed(0)
    out = torch.randn(3, 2, 8, generator=generator, dtype=torch.float64)
    y = torch.randn(3, 8, generator=generator, dtype=torch.float64)
    share = torch.rand(3, 8, generator=generator, dtype=torch.float64)
    share = share if weighted else torch.full_like(share, 1 / 8)
    grad = torch.empty_like(out)
    found = loss.with_gradient(out, y, share, grad)
    out.requires_grad_()
    rows = loss.by_row(out, y)
    if isinstance(loss, GaussianLoss):
        rows = rows * (softplus(out[:, 1].detach()) + 1e-3) ** loss.beta
    expected = (rows * share).sum(1)
    expected.sum().backward()
    torch.testing.assert_close(found, expected.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(grad, out.grad, rtol=1e-10, atol=1e-13)


def test_a_view_without_a_written_out_gradient_uses_autograd(monkeypatch):
    """The gradient of the periodic view, by autograd and as it is written out."""
    x = torch.linspace(-2, 2, 3 * BATCH * 3).double().reshape(3, BATCH, 3)
    grads = []
    for by_autograd in (False, True):
        if by_autograd:
            monkeypatch.setattr(PeriodicView, "steps", lambda v, x: ViewSteps(v, x))
        made = network(3, ("periodic",))
        parameters = FlatParameters(made)
        passes = LossAndGradient(made, parameters, BATCH, GaussianLoss(1e-3))
        with torch.no_grad():
            passes.inputs.copy_(made.encoding(x))
            passes.target.copy_(x[..., 0])
            passes(None)
        grads.append(parameters.grad.clone())
    torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-12)
    assert set(VIEW_CLASSES) == set(VIEWS)


def test_adamw_without_the_private_kernel(monkeypatch):
    """torch.optim.AdamW takes the same steps where the fused call is missing."""
    found = []
    for private in (True, False):
        if not private:
            monkeypatch.delattr(torch, "_fused_adamw_")
        weights = torch.linspace(-1, 1, 50)
        grad = torch.zeros_like(weights)
        optimizer = adamw(weights, grad, 0.1)
        assert type(optimizer) is (FusedAdamW if private else PublicAdamW)
        for step in range(1, 6):
            grad.copy_(torch.cos(step * weights))
            optimizer.step(0.01 * step)
        found.append(weights)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)
    assert not torch.equal(found[0], torch.linspace(-1, 1, 50))
