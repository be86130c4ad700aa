"""train_on_batches: mini-batches that need not fit in memory together."""

import numpy as np
import pytest
import torch
from own_networks import Pair, TwoColumns, batches, mse_network, seeded, table
from torch import nn

from mapie_claps import ClapsModule, train_on_batches
from mapie_claps.exceptions import TrainingDivergedError

pytestmark = pytest.mark.usefixtures("own_random_state")
X, y = table(600)
X_NEW, y_new = table(200, seed=1)


@pytest.mark.parametrize(
    ("network", "noise_output"),
    [(mse_network, "variance"), (Pair, "variance"), (TwoColumns, "log_variance")],
)
def test_the_loss_falls_and_the_mode_comes_back(network, noise_output):
    net = seeded(network).eval()
    seen = []
    losses = train_on_batches(
        net,
        batches(X, y, 50),
        n_epochs=12,
        learning_rate=1e-2,
        noise_output=noise_output,
        callback=lambda epoch, loss: seen.append((epoch, loss)),
    )
    assert losses[-1] < losses[0] - 0.3
    assert seen == list(enumerate(losses))
    assert not net.training


def test_training_makes_better_intervals_than_none():
    net = seeded(Pair)
    before = ClapsModule(net).fit(X, y).predict(X_NEW)
    train_on_batches(net, batches(X, y, 50), n_epochs=20, learning_rate=1e-2)
    after = ClapsModule(net).fit(X, y).predict(X_NEW)
    assert np.mean((after - y_new) ** 2) < 0.8 * np.mean((before - y_new) ** 2)


def test_one_step_is_that_of_plain_torch():
    ours, theirs = mse_network(), mse_network()
    weight = np.arange(600) % 3
    train_on_batches(ours, [(X, y, weight)], learning_rate=0.1, weight_decay=0.0)
    x, t = (torch.tensor(a, dtype=torch.float32) for a in (X, y))
    loss = (torch.from_numpy(weight) * (theirs(x)[:, 0] - t) ** 2).mean()
    loss.backward()
    nn.utils.clip_grad_norm_(theirs.parameters(), 5.0)
    torch.optim.AdamW(theirs.parameters(), lr=0.1, weight_decay=0.0).step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_frozen_parameters_stay():
    net = mse_network()
    net[0].requires_grad_(False)
    before = net[0].weight.clone()
    train_on_batches(net, batches(X, y, 50))
    assert torch.equal(net[0].weight, before)


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"n_epochs": 0}, "n_epochs=0"),
        ({"learning_rate": -1}, "learning_rate=-1"),
        ({"weight_decay": None}, "weight_decay=None"),
        ({"noise_output": "h"}, "noise_output='h'"),
        ({"batches": iter([(X, y)]), "n_epochs": 2}, "used once"),
        ({"batches": iter([])}, "no batches"),
        ({"batches": iter([X])}, "batch of 1 parts"),
    ],
)
def test_bad_input(params, match):
    with pytest.raises(ValueError, match=match):
        train_on_batches(**({"module": mse_network(), "batches": [(X, y)]} | params))


def test_divergence():
    with pytest.raises(TrainingDivergedError, match="Training diverged"):
        train_on_batches(mse_network(), [(X, np.full(600, 1e30))])
