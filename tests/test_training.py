"""The training loop: its steps, hold-outs and stopping, threads and progress."""

import copy
import sys

import numpy as np
import pytest
import torch
from test_network import autograd_loss

from mapie_claps.exceptions import TrainingDivergedError
from mapie_claps.network import training
from mapie_claps.network.ensemble import (
    VIEWS,
    HeteroscedasticNetwork,
    PiecewiseLinearEncoding,
    bin_edges,
)

CPU = torch.device("cpu")
SLICES = [slice(0, 2), slice(2, 4), slice(4, 6)]


def config(**params):
    defaults = {
        "max_steps": 60,
        "batch_size": 16,
        "learning_rate": 0.01,
        "weight_decay": 1e-3,
        "schedule": "cosine",
        "beta": 0.5,
        "max_gradient_norm": 5.0,
        "patience": None,
    }
    return training.TrainingConfig(**(defaults | params))


def problem(n=120, n_out=15, n_members=5, noise=0.2):
    """An untrained network, its rows, and the generator that has drawn both."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(n, 3, generator=generator)
    y = X[:, 0].sin() + noise * torch.randn(n, generator=generator)
    rows = training.split_rows(n, n_out, n_members, generator)
    encoding = PiecewiseLinearEncoding(bin_edges(X, 4))
    network = HeteroscedasticNetwork(
        encoding, (8, 6), n_members, 1e-3, generator, VIEWS, 3.0
    )
    return network, (encoding(X), y.expand(n_members, -1), None, rows), generator


def fit(n_members=5, weight=None, changes=None, **params):
    """A trained network and what training tells."""
    network, (X, y, _, rows), generator = problem(n_members=n_members)
    y = changes(y) if changes else y
    data = (X, y, weight, rows)
    settings = config(**params)
    return network, training.train(network, *data, settings, generator, CPU)


def noise(y):
    """Targets with nothing to learn."""
    return torch.randn(y.shape, generator=torch.Generator().manual_seed(3))


def weights_of(network):
    return torch.cat([p.detach().flatten() for p in network.parameters()])


def held_out_loss(network, X, y, rows):
    with torch.no_grad():
        mu, h2 = network.outputs(network.features(X[rows.held_out]))
    own = y.gather(1, rows.held_out)
    return training.gaussian_nll(own, mu, h2).mean(dim=1)


def test_batches_and_steps_grow_with_the_rows():
    rows = [30, 140, 150, 3_000, 30_000, 10**6]
    assert [*map(training.batch_size_for, rows)] == [16, 17, 18, 64, 150, 256]
    assert [*map(training.max_steps_for, rows)] == [120, 210, 450, 2000, 3464, 8000]


def test_held_out_rows():
    n_held_out = training.n_held_out
    assert [n_held_out(n, 0.1) for n in (5, 6, 1000, 10**6)] == [0, 2, 100, 4000]
    assert n_held_out(1000, 0.0) == 0
    rows = training.split_rows(50, 8, 6, torch.Generator().manual_seed(0))
    for fit_rows, held_out in zip(*rows, strict=True):
        assert sorted([*fit_rows.tolist(), *held_out.tolist()]) == list(range(50))
    assert len(rows.held_out.unique()) == 48  # each member holds out others


def test_schedules():
    cosine, constant = config(max_steps=100), config(schedule="constant")
    rates = [cosine.learning_rate_at(t) for t in range(1, 101)]
    np.testing.assert_allclose(rates[:5], 0.01 * np.arange(1, 6) / 5)
    assert rates[4] == max(rates)
    assert rates[-1] == pytest.approx(0, abs=1e-15)
    assert (np.diff(rates[4:]) < 0).all()
    assert constant.learning_rate_at(1) == constant.learning_rate_at(60) == 0.01


@pytest.mark.parametrize("n_members", [1, 4])
@pytest.mark.parametrize("limit", [0.3, 5.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_steps_are_those_of_autograd_and_adamw(n_members, limit, weighted):
    """Batches of all rows, each member's gradient clipped by itself."""
    network, (X, y, _, _), generator = problem(n=20, n_out=0, n_members=n_members)
    network, X, y = network.double(), X.double(), y.double()
    other = copy.deepcopy(network)
    everything = torch.arange(20).expand(n_members, -1)
    rows = training.Rows(everything, everything[:, :0])
    weight = torch.rand(20, generator=generator, dtype=torch.float64)
    params = {"max_steps": 30, "batch_size": 20, "weight_decay": 0.1}
    settings = config(schedule="constant", max_gradient_norm=limit, **params)
    given = weight if weighted else None
    training.train(network, X, y, given, rows, settings, generator, CPU)

    share = (weight if weighted else torch.ones_like(weight)) / 20
    owners = other.parameters_of_members()
    moments = {p: torch.zeros(2, *p.shape, dtype=p.dtype) for p, _ in owners}
    for t in range(1, 31):
        other.zero_grad()
        autograd_loss(other, X[everything], y, share, 0.5).sum().backward()
        for k in range(n_members):
            own = [p.grad[k - m.start] for p, m in owners if m.start <= k < m.stop]
            norm = torch.cat([g.flatten() for g in own]).norm()
            for g in own:
                g.mul_(min(1.0, limit / float(norm)))
        for p, (mean, square) in moments.items():
            mean += 0.1 * (p.grad - mean)
            square += 0.001 * (p.grad**2 - square)
            step = mean / (1 - 0.9**t) / ((square / (1 - 0.999**t)).sqrt() + 1e-8)
            p.data -= 0.01 * (step + 0.1 * p.data)
    torch.testing.assert_close(
        weights_of(network), weights_of(other), rtol=1e-6, atol=1e-8
    )


def test_a_seed_gives_the_networks_that_it_always_gave():
    """Golden values of the code before this one: weights, hold-outs, batches."""
    assert float(weights_of(problem()[0]).abs().sum()) == pytest.approx(153.86557)
    network, result = fit()
    assert result.loss_curve[::19] == pytest.approx([0.1002202, -0.2418599], abs=1e-4)
    assert result.validation_curve[-1] == pytest.approx(0.0707969, abs=1e-4)
    assert float(weights_of(network).abs().sum()) == pytest.approx(217.65956, rel=1e-4)


def test_every_epoch_shows_every_row_once(monkeypatch):
    seen = []

    def recorded(self, batches, rates):
        seen.extend(batches)
        return original(self, batches, rates)

    original = training.MemberGroup.run
    monkeypatch.setattr(training.MemberGroup, "run", recorded)
    network, data, generator = problem(n=100, n_out=20)
    settings = config(max_steps=30, n_evaluations=4)
    training.train(network, *data, settings, generator, CPU)
    assert len(seen) == 30
    epochs = [torch.cat(seen[i : i + 5], dim=1) for i in range(0, 30, 5)]
    for epoch in epochs:
        torch.testing.assert_close(epoch.sort().values, data[3].fit.sort().values)
    assert not torch.equal(epochs[0], epochs[1])


def test_the_best_state_is_kept():
    """A rate that overshoots: the last held-out loss is not the best one."""
    network, data, generator = problem(noise=1.0)
    settings = config(learning_rate=0.2, schedule="constant", max_steps=200)
    result = training.train(network, *data, settings, generator, CPU)
    found = float(held_out_loss(network, *data[:2], data[3]).mean())
    assert found < min(result.validation_curve) + 1e-6
    assert found < result.validation_curve[-1]
    assert len(result.loss_curve) == len(result.validation_curve) == 20
    assert result.n_iter == 200


def test_nothing_held_out_keeps_the_last_state():
    network, (X, y, _, _), generator = problem(n_out=0)
    rows = training.split_rows(120, 0, 5, generator)
    settings = config(max_steps=400, patience="auto", max_gradient_norm=None)
    result = training.train(network, X, y, None, rows, settings, generator, CPU)
    assert result.validation_curve == []
    assert result.n_iter == 400
    all_rows = training.Rows(rows.fit, rows.fit)
    assert float(held_out_loss(network, X, y, all_rows).mean()) < -0.4


def test_weights_of_rows_count():
    """Rows of weight zero are as if they were not there."""
    ignored = torch.arange(120) % 2 == 0
    weight = torch.where(ignored, 0.0, 2.0)
    one, _ = fit(weight=weight)
    other, _ = fit(weight=weight, changes=lambda y: torch.where(ignored, 50.0, y))
    assert torch.equal(weights_of(one), weights_of(other))
    assert not torch.equal(weights_of(one), weights_of(fit()[0]))


def test_training_leaves_no_trace_in_the_network():
    network, _ = fit()
    assert all(p.grad is None and p.requires_grad for p in network.parameters())
    sizes = [p.untyped_storage().nbytes() for p in network.parameters()]
    assert sizes == [4 * p.numel() for p in network.parameters()]


@pytest.mark.parametrize("n_out", [0, 15])
def test_divergence_is_told(n_out):
    network, (X, y, _, rows), generator = problem(n_out=n_out)
    text = r"after 3 steps with learning_rate=0.01. Lower learning_rate"
    with pytest.raises(TrainingDivergedError, match=text):
        training.train(network, X, y * torch.inf, None, rows, config(), generator, CPU)


def test_a_member_stops_after_waiting():
    losses = np.array([[3.0, 3.0], [2.0, 4.0], [1.0, 4.0], [0.5, 5.0]])
    assert training.members_to_stop(losses, 3, [slice(0, 2)]) == {1}
    assert training.members_to_stop(losses[:3], 3, [slice(0, 2)]) == set()
    assert training.members_to_stop(losses, None, [slice(0, 2)]) == set()


def test_a_view_that_lost_stops():
    assert training.LOST_BY == 0.5
    falling = np.array(
        [[-0.1 * e] * 4 + [0.51 - 0.1 * e] * 2 for e in range(training.LOST_FROM)]
    )
    assert training.members_to_stop(falling[:-1], "auto", SLICES) == set()
    assert training.members_to_stop(falling, "auto", SLICES) == {4, 5}
    assert training.members_to_stop(falling, 5, SLICES) == set()
    falling[:, 4:] -= 0.02
    assert training.members_to_stop(falling, "auto", SLICES) == set()


def test_little_noise_waits_longer():
    rising = np.array([[0.1 * e, training.LITTLE_NOISE + 0.1 * e] for e in range(10)])

    def stopped(n):
        return training.members_to_stop(rising[: n + 1], "auto", [slice(0, 1)])

    assert stopped(training.PATIENCE - 1) == set()
    assert stopped(training.PATIENCE) == {0}
    assert stopped(training.PATIENCE_WITH_LITTLE_NOISE) == {0, 1}


def test_stopping_changes_no_path():
    """A member that stops ends in the best state of the full run until then."""
    params = {"learning_rate": 0.05, "max_steps": 200, "schedule": "constant"}
    full, all_steps = fit(changes=noise, **params)
    stopped, some = fit(changes=noise, patience=6, **params)
    assert some.n_iter < all_steps.n_iter == 200
    # Until the first member stops the curves are the same.
    np.testing.assert_allclose(
        some.loss_curve[:6], all_steps.loss_curve[:6], rtol=1e-3, atol=1e-4
    )
    _, (X, y, _, rows), _ = problem()
    waited, patient = (held_out_loss(n, X, noise(y), rows) for n in (full, stopped))
    assert (waited <= patient + 1e-3).all()
    assert float(patient.mean()) == pytest.approx(min(some.validation_curve), abs=0.05)


def test_short_runs_do_not_stop_by_themselves():
    for max_steps, stops in ((390, False), (400, True)):
        _, result = fit(changes=noise, max_steps=max_steps, patience="auto")
        assert (result.n_iter < max_steps) == stops


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_setting_comes_back_after_an_error_and_stays_for_large_work():
    with training.one_thread():
        assert torch.get_num_threads() == 1
    with pytest.raises(RuntimeError, match="stop"), training.one_thread():
        raise RuntimeError("stop")
    assert torch.get_num_threads() == 2
    with training.one_thread(training.THREADING_PAYS_FROM):
        assert torch.get_num_threads() == 2


def test_progress(capsys, monkeypatch):
    fit(max_steps=20, n_evaluations=2)
    assert capsys.readouterr() == ("", "")
    fit(max_steps=20, n_evaluations=2, verbose=2)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["step 10/20", "step 20/20"]
    assert "held out" in lines[0]
    fit(max_steps=20, n_evaluations=2, verbose=1)
    assert "20/20" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    fit(max_steps=20, n_evaluations=2, verbose=1)
    assert capsys.readouterr().err.splitlines() == lines
