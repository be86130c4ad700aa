"""Some members, batched: their steps from one evaluation to the next.

Members share nothing: who is trained beside a member changes nothing but rounding.
Which members make a unit does not depend on how many units run at a time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock

import torch
from torch import Tensor

from .ensemble import HeteroscedasticNetwork
from .gradient import FlatParameters, LossAndGradient
from .hold_out import Rows
from .losses import Loss
from .optimizer import FusedAdamW, adamw
from .recorded import Call, StepMemory, StepProgram, Unrecordable, record

# Members whose steps are one batched product. Fewer cost more calls of torch for each,
# more leave cores idle.
MEMBERS_IN_UNIT = 3
# Weights times rows of recorded steps in one call, of the order of a tenth of a second:
# Python hears an interrupt only between calls.
WORK_BETWEEN_SIGNALS = 500_000_000


@dataclass(frozen=True)
class TrainingConfig:
    """How to train; every number is resolved, nothing is left to a rule."""

    max_steps: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    schedule: str  # "cosine" or "constant"
    loss: Loss
    dropout: float
    max_gradient_norm: float | None  # of each member; None: gradients as they are
    patience: int | str | None  # evaluations without a better one, or stopping.AUTO
    n_evaluations: int
    tol: float | None
    verbose: int = 0

    def learning_rate_at(self, step: int) -> float:
        """Five per cent linear warm-up, then a cosine to zero; or constant."""
        peak, total = self.learning_rate, self.max_steps
        if self.schedule == "constant":
            return peak
        warm_up = max(1, total // 20)
        if step <= warm_up:
            return peak * step / warm_up
        progress = (step - warm_up) / max(1, total - warm_up)
        return peak * 0.5 * (1 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class TrainingData:
    """Encoded inputs, targets and weights of all rows, and which member sees which."""

    X: Tensor  # (n, p), float32
    y: Tensor  # (n,), float32
    weight: Tensor | None  # (n,), mean one
    rows: Rows


@dataclass
class MemberState:
    """Where one member stands between two units that it takes its steps in."""

    generator: torch.Generator | None  # of dropout
    weights: list[Tensor]
    moments: tuple[list[Tensor], list[Tensor]] | None = None  # None before any step
    best: list[Tensor] = field(default_factory=list)  # weights of the best evaluation


class Epochs:
    """Rows in random order, another for each member and epoch.

    Drawn for all members at once and in the order of the epochs, whichever unit asks
    first: units may run in several threads.
    """

    def __init__(self, rows: Tensor, size: int, generator: torch.Generator) -> None:
        self.rows, self.size, self.generator = rows, size, generator  # (K, n_fit)
        self.steps = rows.shape[1] // size  # of an epoch
        self.are_whole = size == rows.shape[1]  # one batch of all rows, in order
        self._lock, self._drawn, self._n_drawn = Lock(), dict[int, Tensor](), 0

    def rows_of(self, epoch: int, members: Sequence[int]) -> Tensor:
        """Row numbers (k, n_fit) of some members."""
        if self.are_whole:
            return self.rows[list(members)]
        with self._lock:
            while self._n_drawn <= epoch:
                order = torch.rand(
                    self.rows.shape, generator=self.generator, dtype=torch.float32
                ).argsort(1)
                drawn = self.rows.gather(1, order.to(self.rows.device))
                self._drawn[self._n_drawn] = drawn
                self._n_drawn += 1
            return self._drawn[epoch][list(members)]

    def forget(self, step: int) -> None:
        """Drop epochs that all units have left behind."""
        for epoch in [e for e in self._drawn if e < step // self.steps]:
            del self._drawn[epoch]


def number_of_units(n_members: int) -> int:
    """Units that members are trained in, unless all are in one batch."""
    return max(min(2, n_members), -(-n_members // MEMBERS_IN_UNIT))


def units_of(
    members: Sequence[int], views: Sequence[slice], together: bool
) -> list[list[int]]:
    """Members to train in one batch: all, or equally many in each unit, views mixed.

    There are two units or more wherever there are two members, for two cores.
    """
    if together or not members:
        return [sorted(members)] if members else []
    n_units = number_of_units(len(members))
    # Members of one view go to different units, which then take equally long.
    by_turn = [k for view in views for k in members if view.start <= k < view.stop]
    return [sorted(by_turn[i::n_units]) for i in range(n_units)]


class Unit:
    """Members that take their steps together."""

    def __init__(
        self,
        network: HeteroscedasticNetwork,
        members: Sequence[int],
        states: Sequence[MemberState],  # of these members
        data: TrainingData,
        epochs: Epochs,
        config: TrainingConfig,
        steps_taken: int,
    ) -> None:
        self.members, self.states, self.data = list(members), list(states), data
        self.network = network.take(members)
        self.config, self.steps_taken, self.epochs = config, steps_taken, epochs
        self.batch_size = epochs.size
        self.flat = FlatParameters(self.network)
        self.optimizer = adamw(
            self.flat.weights, self.flat.grad, config.weight_decay, steps_taken
        )
        for i, state in enumerate(self.states):
            _copy(state.weights, self.flat.of_member(self.flat.weights, i))
            if state.moments is not None:
                for kept, flat in zip(
                    state.moments, self.optimizer.moments, strict=True
                ):
                    _copy(kept, self.flat.of_member(flat, i))
        self.loss_and_gradient = LossAndGradient(
            self.network, self.flat, self.batch_size, config.loss
        )
        self._row_weight = None
        if data.weight is not None:
            self._row_weight = torch.empty_like(self.loss_and_gradient.target)
        self._epoch, self._order = -1, torch.empty(0)
        self._program: StepProgram | None = None
        self._may_record = self.flat.weights.device.type == "cpu" and (
            config.dropout == 0
        )

    def store(self) -> None:
        """Write the members' states back."""
        for i, state in enumerate(self.states):
            state.weights = self._copies(self.flat.weights, i)
            first, second = self.optimizer.moments
            state.moments = self._copies(first, i), self._copies(second, i)

    def keep_best(self, better: Sequence[bool]) -> None:
        """Remember the weights of these members."""
        for i, state in enumerate(self.states):
            if better[i]:
                state.best = self._copies(self.flat.weights, i)

    @torch.no_grad()
    def run(self, learning_rates: Sequence[float]) -> tuple[Tensor, Tensor]:
        """Take one step for each rate; mean training loss (k,), held-out loss (k,)."""
        total = self._zeros()
        rates = list(learning_rates)
        if self._may_record and rates:
            self._may_record = False  # tried once
            total += self._step(rates.pop(0), recorded=True)
        if self._program is None:
            for rate in rates:
                total += self._step(rate)
        elif rates:
            self._repeat(self._program, rates, total)
        return total / len(learning_rates), self._held_out_loss()

    def _step(self, learning_rate: float, recorded: bool = False) -> Tensor:
        """One step of the optimiser; returns the loss of each member."""
        self._take(self._next_batch())
        if recorded:
            loss, calls = record(self._loss)
            self._program = self._program_of(loss, calls)
        else:
            loss = self._loss(self._dropout_masks())
        self._clip_gradients()
        self.optimizer.step(learning_rate)
        return loss

    def _loss(self, masks: Sequence[Tensor] = ()) -> Tensor:
        return self.loss_and_gradient(self._row_weight, masks)

    def _take(self, batch: Tensor) -> None:
        """Fill the memory of the step with a batch of rows, (k, batch)."""
        chosen = batch.flatten()
        for source, rows in zip(*self._sources(), strict=True):
            torch.index_select(source, 0, chosen, out=rows)

    def _sources(self) -> tuple[list[Tensor], list[Tensor]]:
        """What there is of all rows, and where that of a batch goes."""
        data, rows = self.data, list(self.loss_and_gradient.rows)
        if data.weight is None or self._row_weight is None:
            return [data.X, data.y], rows
        return [data.X, data.y, data.weight], [*rows, self._row_weight.flatten()]

    def _program_of(self, loss: Tensor, calls: Sequence[Call]) -> StepProgram | None:
        """All further steps, if they can be taken without the interpreter."""
        if not isinstance(self.optimizer, FusedAdamW):
            return None
        memory = StepMemory(
            *self._sources(),
            self.optimizer,
            self.config.max_gradient_norm,
            self.flat.grads,
        )
        try:
            return StepProgram(loss, calls, memory)
        except Unrecordable:
            return None

    def _repeat(self, program: StepProgram, rates: list[float], total: Tensor) -> None:
        """Take recorded steps."""
        in_epoch, start = self.epochs.steps, self.steps_taken
        self.steps_taken += len(rates)
        touched = range(start // in_epoch, (self.steps_taken - 1) // in_epoch + 1)
        if self.epochs.are_whole:
            orders = [self.epochs.rows_of(0, self.members)] * len(touched)
        else:
            orders = [self.epochs.rows_of(epoch, self.members) for epoch in touched]
        work = self.flat.weights.numel() * self.batch_size
        size = min(max(WORK_BETWEEN_SIGNALS // work, 16), 256)
        for i in range(0, len(rates), size):
            first = start + i
            skipped = first // in_epoch - start // in_epoch
            some = rates[i : i + size]
            program(orders[skipped:], first, in_epoch, self.batch_size, some, total)

    def _zeros(self) -> Tensor:
        """A number for each member, whatever torch's default type is."""
        weights = self.flat.weights
        return torch.zeros(
            len(self.members), dtype=weights.dtype, device=weights.device
        )

    def _copies(self, flat: Tensor, i: int) -> list[Tensor]:
        return [part.clone() for part in self.flat.of_member(flat, i)]

    def _next_batch(self) -> Tensor:
        """Row numbers (k, batch); a new permutation per member and epoch."""
        epoch, at = divmod(self.steps_taken, self.epochs.steps)
        self.steps_taken += 1
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = self.epochs.rows_of(epoch, self.members)
        return self._order[:, at * self.batch_size : (at + 1) * self.batch_size]

    def _dropout_masks(self) -> list[Tensor]:
        """Masks of every layer from our own generators: nn.Dropout uses the global."""
        keep, device = 1 - self.config.dropout, self.flat.weights.device
        if keep == 1:
            return []

        def mask(state: MemberState, size: int) -> Tensor:
            empty = torch.empty((self.batch_size, size), dtype=torch.float32)
            return empty.bernoulli_(keep, generator=state.generator).div_(keep)

        return [
            torch.stack([mask(state, size) for state in self.states]).to(device)
            for size in self.network.layer_sizes
        ]

    def _clip_gradients(self) -> None:
        """Scale the gradient of each member to a norm of at most the limit."""
        limit = self.config.max_gradient_norm
        if limit is None:
            return
        # No member's norm exceeds that of all: in most steps one product settles it.
        whole = self.flat.grad
        if float(whole @ whole) < 0.99 * limit**2:
            return
        squares = self._zeros()
        for g, members in self.flat.grads:
            squares[members] += g.square().sum((1, 2))
        factor = (limit / squares.sqrt()).clamp_(max=1.0)
        if bool((factor < 1).any()):
            for g, members in self.flat.grads:
                g.mul_(factor[members].view(-1, 1, 1))

    def _held_out_loss(self) -> Tensor:
        """Held-out loss of each member; zero where nothing is held out."""
        held_out = self.data.rows.held_out[self.members]
        if held_out.shape[1] == 0:
            return self._zeros()
        phi = self.network.features(self.data.X[held_out])
        loss = self.config.loss.by_row(self.network.outputs(phi), self.data.y[held_out])
        if self.data.weight is not None:
            loss *= self.data.weight[held_out]
        return loss.mean(dim=1)


def _copy(source: Sequence[Tensor], target: Sequence[Tensor]) -> None:
    for a, b in zip(source, target, strict=True):
        b.copy_(a)
