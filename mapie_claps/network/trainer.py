"""φ, μ, h²: maximum likelihood for all members. Knows nothing of sklearn."""

import math
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from ..exceptions import TrainingDivergedError
from .ensemble import HeteroscedasticNetwork
from .hold_out import Rows
from .progress import Progress
from .stopping import members_that_stop
from .threads import Crew, threads_for
from .units import Epochs, MemberState, TrainingConfig, TrainingData, Unit, units_of


@dataclass
class TrainingResult:
    """What training leaves behind beside the network's weights."""

    n_iter: int = 0  # steps of the members that took most
    loss_curve: list[float] = field(default_factory=list)
    validation_curve: list[float] = field(default_factory=list)
    converged: bool = True
    steps_by_member: list[int] = field(default_factory=list)


def multiply_adds(network: HeteroscedasticNetwork, n_rows: int) -> float:
    """Multiply-adds of one forward pass over so many rows of every member."""
    weights = sum(p.numel() for p in network.parameters())
    return float(weights * n_rows)


def train(
    network: HeteroscedasticNetwork,
    X: Tensor,  # (n, p), encoded, float32
    y: Tensor,  # (n,), float32
    weight: Tensor | None,  # (n,), mean one
    rows: Rows,
    config: TrainingConfig,
    generator: torch.Generator,
    device: torch.device,
    crew: Crew | None = None,
) -> TrainingResult:
    """Train in place; every member ends in its best state by held-out likelihood.

    The result is the same for every crew; without one, which trains all members in one
    batch on one core, it differs by rounding.
    """
    work = multiply_adds(network, min(config.batch_size, rows.fit.shape[1]))
    data = TrainingData(
        X.to(device),
        y.to(device),
        None if weight is None else weight.to(device),
        Rows(rows.fit.to(device), rows.held_out.to(device)),
    )
    with threads_for(work), torch.no_grad():
        return _Trainer(network.to(device), data, config, generator, crew).run()


class _Trainer:
    """State of one run of training."""

    def __init__(
        self,
        network: HeteroscedasticNetwork,
        data: TrainingData,
        config: TrainingConfig,
        generator: torch.Generator,
        crew: Crew | None = None,
    ) -> None:
        self.network, self.data, self.config = network, data, config
        self.together, self.crew = crew is None, crew or Crew()
        self.views = network.members_by_view()
        self.result = TrainingResult(steps_by_member=[0] * network.n_members)
        self.progress = Progress(config.verbose, config.max_steps)
        size = min(config.batch_size, data.rows.fit.shape[1])
        self.epochs = Epochs(data.rows.fit, size, generator)
        self.states = [
            MemberState(own, [p.clone() for p in network.weights_of_member(k)])
            for k, own in enumerate(self._generators(generator))
        ]
        self.losses: list[list[float]] = []  # one list of all members per evaluation
        self.held_out: list[list[float]] = []
        self.active = list(range(network.n_members))
        self.units = self._new_units(0)

    def run(self) -> TrainingResult:
        """Take the steps, evaluate now and then, keep what was best."""
        with self.progress:
            self._run()
        self.result.converged = self._converged()
        with_best = self.data.rows.held_out.shape[1] > 0
        for unit in self.units:
            unit.store()
        for k, state in enumerate(self.states):
            kept = state.best if with_best else state.weights
            for target, value in zip(
                self.network.weights_of_member(k), kept, strict=True
            ):
                target.copy_(value)
        return self.result

    def _run(self) -> None:
        config = self.config
        every = max(1, config.max_steps // config.n_evaluations)
        for start in range(0, config.max_steps, every):
            stop = min(start + every, config.max_steps)
            rates = [config.learning_rate_at(t + 1) for t in range(start, stop)]
            found = self.crew.run_all([partial(unit.run, rates) for unit in self.units])
            self.result.n_iter = stop
            for k in self.active:
                self.result.steps_by_member[k] = stop
            self.epochs.forget(stop)
            self._evaluate(stop, found)
            self._stop_members(stop)
            if not self.active:
                return

    def _new_units(self, steps_taken: int) -> list[Unit]:
        return [
            Unit(
                self.network,
                members,
                [self.states[k] for k in members],
                self.data,
                self.epochs,
                self.config,
                steps_taken,
            )
            for members in units_of(self.active, self.views, self.together)
        ]

    def _generators(self, generator: torch.Generator) -> list[torch.Generator | None]:
        """One for the dropout of each member, whose units may run at the same time."""
        n_members = self.network.n_members
        if self.config.dropout == 0:
            return [None] * n_members
        seeds = torch.randint(2**62, (n_members,), generator=generator)
        return [torch.Generator().manual_seed(seed) for seed in seeds.tolist()]

    def _evaluate(self, step: int, found: list[tuple[Tensor, Tensor]]) -> None:
        """Record both losses of each member, and keep the states that are better.

        A member that has stopped counts with what it had then.
        """
        earlier = range(self.network.n_members)
        loss = list(self.losses[-1]) if self.losses else [math.inf for _ in earlier]
        best = [min(column) for column in zip(*self.held_out, strict=True)]
        best = best or [math.inf for _ in earlier]
        held_out = list(best)
        for unit, both in zip(self.units, found, strict=True):
            losses = zip(unit.members, *(part.tolist() for part in both), strict=True)
            for k, of_training, of_held_out in losses:
                loss[k], held_out[k] = of_training, of_held_out
            unit.keep_best([held_out[k] < best[k] for k in unit.members])
        mean_loss, mean_held_out = _mean(loss), _mean(held_out)
        if not math.isfinite(mean_loss) or not math.isfinite(mean_held_out):
            raise TrainingDivergedError(
                f"Training diverged: the loss is {mean_loss!r} (on held-out rows "
                f"{mean_held_out!r}) after {step} steps with "
                f"learning_rate={self.config.learning_rate!r}. Lower learning_rate, "
                "raise variance_floor, or look for extreme values in y."
            )
        self.losses.append(loss)
        self.held_out.append(held_out)
        self.result.loss_curve.append(mean_loss)
        if self.data.rows.held_out.shape[1]:
            self.result.validation_curve.append(mean_held_out)
        self.progress.show(step, mean_loss, mean_held_out)

    def _stop_members(self, step: int) -> None:
        """Leave out members that have nothing to gain, and form new units."""
        stopped = self._members_that_stop(step)
        if not stopped:
            return
        for unit in self.units:
            unit.store()
        self.active = [k for k in self.active if k not in stopped]
        self.units = self._new_units(step)

    def _members_that_stop(self, step: int) -> set[int]:
        judged = self.held_out if self.data.rows.held_out.shape[1] else self.losses
        return members_that_stop(judged, self.active, self.config.patience, self.views)

    def _converged(self) -> bool:
        """Whether the last tenth brought at most a share ``tol`` of the whole gain."""
        tol = self.config.tol
        curve = self.result.validation_curve or self.result.loss_curve
        if tol is None or len(curve) < 10:
            return True
        best_before, best = min(curve[: -(len(curve) // 10)]), min(curve)
        return best_before - best <= tol * (curve[0] - best)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
