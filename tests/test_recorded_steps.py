"""Steps without the interpreter: the same numbers, bit by bit."""

import threading

import pytest
import torch

from mapie_claps import ClapsRegressor
from mapie_claps.network import recorded, units
from mapie_claps.network.defaults import training_config
from mapie_claps.network.encoding import PiecewiseLinearEncoding, bin_edges
from mapie_claps.network.ensemble import HeteroscedasticNetwork
from mapie_claps.network.hold_out import split_rows
from mapie_claps.network.losses import GaussianLoss, PinballLoss, SquaredError
from mapie_claps.network.optimizer import PublicAdamW
from mapie_claps.network.views import ViewSteps

N, P = 90, 3
RUNS = (1, 1, 2, 9, 30)  # steps between evaluations: several epochs in all


def unit(weight=None, loss=None, n_members=5, recording=True, batch=16, **params):
    """A unit before its first step."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(N, P, generator=generator, dtype=torch.float64)
    y = (X[:, 0].sin() + 0.3 * X[:, 1] * X[:, 2]).float()
    encoding = PiecewiseLinearEncoding(bin_edges(X, 4, P), P)
    views = ("bins", "periodic", "raw")
    network = HeteroscedasticNetwork(
        encoding, (8, 8, 8), n_members, 1e-6, generator, views, 3.0, 0.1
    )
    rows = split_rows(N, 10, n_members, generator)
    weights = torch.rand(N, generator=generator) + 0.5 if weight else None
    data = units.TrainingData(encoding(X.float()), y, weights, rows)
    states = [
        units.MemberState(None, [p.clone() for p in network.weights_of_member(k)])
        for k in range(n_members)
    ]
    config = training_config(ClapsRegressor(**params).get_params(), N, 10, loss)
    found = units.Unit(
        network,
        range(n_members),
        states,
        data,
        units.Epochs(rows.fit, batch, generator),
        config,
        0,
    )
    found._may_record &= recording
    return found


CASES = {
    "default": {},
    "weighted rows": {"weight": True},
    "one batch of all rows": {"batch": 80},
    "one batch of most rows": {"batch": 60},
    "one member": {"n_members": 1},
    "every gradient clipped": {"max_gradient_norm": 1e-3},
    "some gradients clipped": {"max_gradient_norm": 0.5},
    "no clipping": {"max_gradient_norm": None},
    "plain likelihood": {"loss": GaussianLoss(1e-3)},
    "squared error": {"loss": SquaredError()},
}


def assert_same_steps(one, other):
    for steps in RUNS:
        rates = [0.01 / (1 + i) for i in range(steps)]
        for a, b in zip(one.run(rates), other.run(rates), strict=True):
            assert torch.equal(a, b)
        assert one.steps_taken == other.steps_taken
        assert torch.equal(one.flat.weights, other.flat.weights)
        for a, b in zip(one.optimizer.moments, other.optimizer.moments, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("case", CASES)
def test_same_steps(case):
    one, other = unit(**CASES[case]), unit(**CASES[case], recording=False)
    assert_same_steps(one, other)
    assert one._program is not None
    assert other._program is None


def test_a_loss_that_converts_types_stays_in_python():
    one, other = (unit(loss=PinballLoss((0.1, 0.9)), recording=r) for r in (1, 0))
    assert_same_steps(one, other)
    assert one._program is None


def test_steps_at_the_same_time():
    """One program, two threads, memory of their own."""
    both, alone = [unit(), unit()], unit(recording=False)
    rates = [0.01] * 40
    threads = [threading.Thread(target=each.run, args=(rates,)) for each in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone.run(rates)
    for each in both:
        assert torch.equal(each.flat.weights, alone.flat.weights)


@pytest.mark.parametrize("error", [RuntimeError, AttributeError])
def test_a_torch_without_the_compiler(error, monkeypatch):
    def none(source):
        raise error("on purpose")

    monkeypatch.setattr(recorded, "_compiled", none)
    one = unit()
    assert_same_steps(one, unit(recording=False))
    assert one._program is None


def test_a_torch_without_the_fused_optimizer(monkeypatch):
    monkeypatch.setattr(units, "adamw", PublicAdamW)
    one = unit()
    assert_same_steps(one, unit(recording=False))
    assert one._program is None


def test_dropout_draws_in_python():
    assert not unit(dropout=0.1)._may_record


def test_what_cannot_be_written_down():
    source = torch.ones(3)

    def with_a_type():
        return source.to(torch.float64)

    loss, calls = recorded.record(with_a_type)
    with pytest.raises(recorded.Unrecordable, match="dtype"):
        recorded._Lines(calls, loss)


def test_a_hidden_name_is_noticed():
    """A tensor of the step under another name would be read from the first step."""
    source = torch.ones(3)

    def hidden():
        made = source * 2
        return torch.from_numpy(made.numpy()) + 1

    loss, calls = recorded.record(hidden)
    with pytest.raises(recorded.Unrecordable, match="another name"):
        recorded._Lines(calls, loss)


def test_a_view_by_autograd(monkeypatch):
    def steps(self, inputs):
        return ViewSteps(self, inputs)

    monkeypatch.setattr("mapie_claps.network.views.PeriodicView.steps", steps)
    assert_same_steps(unit(), unit(recording=False))


def test_interrupts_are_heard_between_calls(monkeypatch):
    """Many steps are several calls; the numbers do not depend on how many."""
    monkeypatch.setattr(units, "WORK_BETWEEN_SIGNALS", 1)
    some, calls, repeat = unit(), [], recorded.StepProgram.__call__

    def counted(self, *arguments):
        calls.append(len(arguments[4]))
        repeat(self, *arguments)

    monkeypatch.setattr(recorded.StepProgram, "__call__", counted)
    loss = some.run([1e-3] * 50)[0]
    assert calls == [16, 16, 16, 1]
    assert torch.equal(loss, unit(recording=False).run([1e-3] * 50)[0])


def test_modes_of_torch_are_left_as_they_were():
    """Its flags are of the process: threads that record at once must take turns."""
    from torch.utils import _python_dispatch as modes

    barrier, first = threading.Barrier(2), torch.ones(4, 4)

    def slow():
        barrier.wait(timeout=1)
        return first @ first

    def recording():
        try:
            recorded.record(slow)
        except threading.BrokenBarrierError:  # nobody else was let in
            broken.append(True)

    broken: list[bool] = []
    threads = [threading.Thread(target=recording) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert broken == [True, True]
    assert not modes.is_in_torch_dispatch_mode()


def test_a_fuser_that_is_not_built_is_not_asked():
    with torch.jit.fuser("fuser1"):
        loss = unit().run([1e-3] * 30)[0]
    assert torch.equal(loss, unit().run([1e-3] * 30)[0])


def test_the_default_type_changes_nothing():
    expected = unit(max_gradient_norm=0.5).run([1e-2] * 30)
    torch.set_default_dtype(torch.float64)
    try:
        found = unit(max_gradient_norm=0.5).run([1e-2] * 30)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(map(torch.equal, found, expected))
