"""φ, μ, h² by maximum likelihood: one loop for all members."""

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.adamw import adamw

from ..exceptions import TrainingDivergedError
from .ensemble import HeteroscedasticNetwork
from .gradient import FlatParameters, LossAndGradient

Array = NDArray[np.float64]

MIN_ROWS_TO_HOLD_OUT, MAX_HELD_OUT_ROWS = 6, 4_000
MEMBERS, MORE_MEMBERS, FEW_ROWS = 6, 12, 500
# Multiply-adds of one training step below which a second thread costs more than it
# brings: on two shared cores, steps of 1e7 were tens of times slower with two threads.
THREADING_PAYS_FROM = 5e8
# Patience "auto", in evaluations without a better one. Noisy targets are learned in a
# fraction of the steps, and a member whose held-out loss stops falling there overfits;
# with little noise a plateau at a high learning rate may be left later. Little noise
# is a best held-out loss below that of h = 0.37 in standardised units.
PATIENCE, PATIENCE_WITH_LITTLE_NOISE, LITTLE_NOISE = 4, 6, -0.5
# A view is given up after this many evaluations if its loss is worse by this much than
# that of the best view, next to which it has a weight of exp(-5) = 0.007.
LOST_FROM, LOST_BY = 6, 0.5
# In shorter runs, which are those of few rows, a handful of held-out rows would decide.
MIN_STEPS_TO_STOP = 400


class Rows(NamedTuple):
    """Row numbers that each member trains on, and those it holds out."""

    fit: Tensor  # (K, n_fit)
    held_out: Tensor  # (K, n_held_out), n_held_out may be 0


def n_held_out(n_rows: int, validation_fraction: float) -> int:
    """Rows that each member holds out; none of very few, capped for very many."""
    if n_rows < MIN_ROWS_TO_HOLD_OUT or validation_fraction == 0:
        return 0
    return min(MAX_HELD_OUT_ROWS, max(2, round(validation_fraction * n_rows)))


def split_rows(
    n_rows: int,
    n_held_out: int,
    n_members: int,
    generator: torch.Generator,
    labels: Tensor | None = None,  # (n_rows,), of rows that belong together
) -> Rows:
    """Hold out another block of one permutation for each member.

    A member does not train on rows that belong together with a row that it holds out.
    """
    order = torch.randperm(n_rows, generator=generator)
    if labels is not None and n_held_out:
        rank = torch.randperm(int(labels.max()) + 1, generator=generator)[labels]
        order = order[rank[order].argsort(stable=True)]
    shifted = torch.stack([order.roll(-k * n_held_out) for k in range(n_members)])
    if labels is None or not n_held_out:
        return Rows(shifted[:, n_held_out:], shifted[:, :n_held_out])
    held_out, fit = [], []
    for own in shifted:
        block = own[:n_held_out]
        if len(labels[block].unique()) == len(labels.unique()):
            block = block[labels[block] == labels[block[0]]]
        held_out.append(_repeated(block, n_held_out))
        fit.append(own[~torch.isin(labels[own], labels[block])])
    longest = max(map(len, fit))
    return Rows(
        torch.stack([_repeated(rows, longest) for rows in fit]), torch.stack(held_out)
    )


def _repeated(rows: Tensor, n: int) -> Tensor:
    """N rows, the first of which come again where there are fewer."""
    return rows[torch.arange(n) % len(rows)]


def members_for(n_members: int | str, n_rows: int) -> int:
    """Members as given, or by "auto" 6, and 12 where rows are few.

    There another seed would change what single rows are told; more members cost little.
    """
    if isinstance(n_members, int):
        return n_members
    return MORE_MEMBERS if n_rows < FEW_ROWS else MEMBERS


def batch_size_for(n_rows: int) -> int:
    """An eighth of the rows, between 16 and 64; up to 256 where rows abound."""
    return max(16, min(64, n_rows // 8), min(256, n_rows // 200))


def max_steps_for(n_rows: int) -> int:
    """Three steps per row, half as many under 150 rows; between 120 and 2,000.

    Beyond 10,000 rows 2,000 are too few to see them: their number grows with the root
    of the number of rows, up to 8,000.
    """
    if n_rows > 10_000:
        return min(8_000, round(20 * math.sqrt(n_rows)))
    return max(120, min(2_000, 3 * n_rows if n_rows >= 150 else 3 * n_rows // 2))


@dataclass(frozen=True)
class TrainingConfig:
    """How to train; the loss is the Gaussian β-NLL."""

    max_steps: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    schedule: str  # "cosine" or "constant"
    beta: float
    max_gradient_norm: float | None  # of each member; None: gradients as they are
    patience: int | str | None  # evaluations without a better one, "auto", None: no end
    n_evaluations: int = 20
    verbose: int = 0  # 1: a bar where tqdm is installed, 2: lines

    def learning_rate_at(self, step: int) -> float:
        """Five per cent linear warm-up, then a cosine to zero; or constant."""
        if self.schedule == "constant":
            return self.learning_rate
        warm_up = max(1, self.max_steps // 20)
        if step <= warm_up:
            return self.learning_rate * step / warm_up
        progress = (step - warm_up) / max(1, self.max_steps - warm_up)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))


@dataclass
class TrainingResult:
    """What training leaves behind beside the network's weights."""

    n_iter: int = 0  # steps of the members that took most
    loss_curve: list[float] = field(default_factory=list)
    validation_curve: list[float] = field(default_factory=list)


def gaussian_nll(y: Tensor, mu: Tensor, variance: Tensor) -> Tensor:
    """½[log v + (y − μ)²/v], without the constant."""
    return 0.5 * (variance.log() + (y - mu).square() / variance)


class TrainingData(NamedTuple):
    """Encoded inputs, targets and weights of all rows, and which member sees which."""

    X: Tensor  # (n, p), float32
    y: Tensor  # (K, n), float32, of each member
    weight: Tensor | None  # (n,), mean one
    rows: Rows


class MemberGroup:
    """Members that take their steps together, batched.

    Members share nothing: the others in a group change nothing but rounding.
    """

    def __init__(
        self,
        whole: FlatParameters,  # of all members, in their present states
        members: Sequence[int],
        data: TrainingData,
        config: TrainingConfig,
        n_steps: int,  # taken before
    ) -> None:
        self.members, self.data, self.config = list(members), data, config
        self.network = whole.network.take(members)
        self.flat = FlatParameters(self.network)
        of_members = self.network.parameters_of_members()
        self.grads: Any = [(p.grad, part) for p, part in of_members]
        for k, own in zip(members, self.flat.positions, strict=True):
            self.flat.state[:, own] = whole.state[:, whole.positions[k]]
        weights, first, second = self.flat.state
        taken = weights.new_full((), n_steps)
        largest: list[Tensor] = []  # of AMSGrad, which is off
        # The class torch.optim.AdamW takes twice as long, and its first use seconds.
        self.adamw = partial(
            adamw,
            [weights],
            [self.flat.grad],
            [first],
            [second],
            largest,
            [taken],
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            weight_decay=config.weight_decay,
            eps=1e-8,
            maximize=False,
        )
        # Where the targets of each member start among those of all.
        starts = [k * data.y.shape[1] for k in members]
        self.first_target = torch.tensor(starts, device=data.y.device)[:, None]
        size = min(config.batch_size, data.rows.fit.shape[1])
        batch = self.batch = LossAndGradient(self.network, size, config.beta)
        # What there is of all rows, and where that of a batch goes.
        self.sources = [(data.X, batch.inputs.flatten(0, 1))]
        if data.weight is not None:
            self.sources += [(data.weight / size, batch.share.flatten())]

    @torch.no_grad()
    def run(
        self,
        batches: Tensor,  # (steps, K, batch), row numbers of all members
        learning_rates: Sequence[float],
    ) -> Array:  # (2, members)
        """Take steps; mean training loss and held-out loss of each member."""
        total = torch.zeros_like(self.batch.target[:, 0])
        chosen = batches[:, self.members]
        own = chosen + self.first_target
        target, targets = self.batch.target.flatten(), self.data.y.flatten()
        for t, learning_rate in enumerate(learning_rates):
            torch.index_select(targets, 0, own[t].flatten(), out=target)
            for source, part in self.sources:
                torch.index_select(source, 0, chosen[t].flatten(), out=part)
            total += self.batch()
            self._clip_gradients()
            self.adamw(lr=learning_rate)
        losses = torch.stack([total / len(batches), self._held_out_loss()])
        return losses.double().cpu().numpy()

    def _clip_gradients(self) -> None:
        """Scale the gradient of each member to a norm of at most the limit."""
        limit, grad = self.config.max_gradient_norm, self.flat.grad
        # No member's norm exceeds that of all: in most steps one product settles it.
        if limit is None or float(grad @ grad) < 0.99 * limit**2:
            return
        squares = torch.zeros_like(self.batch.target[:, 0])
        for part, members in self.grads:
            squares[members] += part.square().flatten(1).sum(1)
        factor = (limit / squares.sqrt()).clamp(max=1.0)
        for part, members in self.grads:
            part *= factor[members].view(-1, *[1] * (part.ndim - 1))

    def _held_out_loss(self) -> Tensor:
        """Negative log-likelihood of held-out rows; zero where there are none."""
        rows = self.data.rows.held_out[self.members]
        if rows.shape[1] == 0:
            return torch.zeros_like(self.batch.target[:, 0])
        phi = self.network.features(self.data.X[rows])
        y = self.data.y.flatten()[rows + self.first_target]
        loss = gaussian_nll(y, *self.network.outputs(phi))
        if self.data.weight is not None:
            loss *= self.data.weight[rows]
        return loss.mean(dim=1)


def train(
    network: HeteroscedasticNetwork,
    X_encoded: Tensor,  # (n, p), float32
    y: Tensor,  # (K, n), float32: what each member is to learn
    weight: Tensor | None,  # (n,), mean one
    rows: Rows,
    config: TrainingConfig,
    generator: torch.Generator,
    device: torch.device,
) -> TrainingResult:
    """Train in place; every member ends in its best state by held-out likelihood."""
    data = TrainingData(
        X_encoded.to(device),
        y.to(device),
        None if weight is None else weight.to(device),
        Rows(*(numbers.to(device) for numbers in rows)),
    )
    work = network.multiply_adds(min(config.batch_size, rows.fit.shape[1]))
    with one_thread(work), torch.no_grad():
        trainer = _Trainer(network.to(device), data, config)
        return trainer.run(_batches(data.rows.fit, config.batch_size, generator))


class _Trainer:
    """State of one run of training."""

    def __init__(
        self,
        network: HeteroscedasticNetwork,
        data: TrainingData,
        config: TrainingConfig,
    ) -> None:
        self.data, self.config = data, config
        self.flat, self.views = FlatParameters(network), network.members_by_view()
        self.best = self.flat.state[0].clone()  # weights of the best evaluations
        self.active = list(range(network.n_members))
        self.losses = np.full((2, network.n_members), np.inf)  # training, best held-out
        self.history: list[Array] = []  # losses that decide who stops
        self.with_held_out = data.rows.held_out.shape[1] > 0
        self.group = MemberGroup(self.flat, self.active, data, config, 0)

    def run(self, batches: Iterator[Tensor]) -> TrainingResult:
        """Take the steps, evaluate now and then, keep what was best."""
        config, result = self.config, TrainingResult()
        every = max(1, config.max_steps // config.n_evaluations)
        with _progress_bar(config) as bar:
            for start in range(0, config.max_steps, every):
                stop = min(start + every, config.max_steps)
                rows = torch.stack(list(islice(batches, stop - start)))
                rates = [config.learning_rate_at(t + 1) for t in range(start, stop)]
                loss, held_out = self._evaluate(stop, self.group.run(rows, rates))
                result.n_iter = stop
                result.loss_curve.append(loss)
                if self.with_held_out:
                    result.validation_curve.append(held_out)
                text = f"loss {loss:.4f}, held out {held_out:.4f}"
                if bar is not None:
                    bar.set_postfix_str(text)
                    bar.update(stop - start)
                elif config.verbose:
                    sys.stderr.write(f"step {stop}/{config.max_steps}: {text}\n")
                self._stop_members(stop)
                if not self.active:
                    break
        self.flat.state[0] = self.best
        self.flat.release()
        return result

    def _evaluate(self, step: int, found: Array) -> tuple[float, float]:
        """Keep weights that are better; mean training loss and held-out loss.

        A member that has stopped counts with what it had then.
        """
        held_out, group = self.losses[1].copy(), self.group
        self.losses[0, group.members], held_out[group.members] = found
        for k, own in zip(group.members, group.flat.positions, strict=True):
            if held_out[k] < self.losses[1, k] or not self.with_held_out:
                self.losses[1, k] = held_out[k]
                self.best[self.flat.positions[k]] = group.flat.state[0, own]
        self.history.append(held_out if self.with_held_out else self.losses[0].copy())
        mean, mean_held_out = float(self.losses[0].mean()), float(held_out.mean())
        if not math.isfinite(mean + mean_held_out):
            raise TrainingDivergedError(
                f"Training diverged: the loss is {mean!r} (on held-out rows "
                f"{mean_held_out!r}) after {step} steps with "
                f"learning_rate={self.config.learning_rate!r}. Lower learning_rate, "
                "or look for extreme values in y."
            )
        return mean, mean_held_out

    def _stop_members(self, step: int) -> None:
        """Leave out members that have nothing to gain."""
        patience = self.config.patience
        if patience == "auto" and (
            not self.with_held_out or self.config.max_steps < MIN_STEPS_TO_STOP
        ):
            return
        stopped = members_to_stop(np.array(self.history), patience, self.views)
        if not stopped.intersection(self.active):
            return
        group = self.group
        for k, own in zip(group.members, group.flat.positions, strict=True):
            self.flat.state[:, self.flat.positions[k]] = group.flat.state[:, own]
        self.active = [k for k in self.active if k not in stopped]
        if self.active:
            left = self.flat, self.active, self.data, self.config
            self.group = MemberGroup(*left, step)


def _batches(
    rows: Tensor,  # (K, n_fit)
    size: int,
    generator: torch.Generator,
) -> Iterator[Tensor]:  # (K, size)
    """Row numbers of one batch after the other, in a new order in every epoch."""
    n_rows = rows.shape[1]
    while size >= n_rows:
        yield rows
    while True:
        random = torch.rand(rows.shape, generator=generator, dtype=torch.float32)
        order = rows.gather(1, random.argsort(1).to(rows.device))
        yield from order[:, : n_rows - n_rows % size].split(size, dim=1)


def members_to_stop(
    losses: Array,  # (n_evaluations so far, K)
    patience: int | str | None,
    views: Sequence[slice],
) -> set[int]:
    """Members that wait too long for a better loss, and those of a view that lost."""
    if patience is None:
        return set()
    best, waited = losses.min(axis=0), len(losses) - 1 - losses.argmin(axis=0)
    if patience != "auto":
        return set(np.flatnonzero(waited >= patience).tolist())
    little_noise = best <= LITTLE_NOISE
    stops = waited >= np.where(little_noise, PATIENCE_WITH_LITTLE_NOISE, PATIENCE)
    if len(losses) >= LOST_FROM:
        by_view = [best[view].mean() for view in views]
        for view, loss in zip(views, by_view, strict=True):
            stops[view] |= loss > min(by_view) + LOST_BY
    return set(np.flatnonzero(stops).tolist())


def _progress_bar(config: TrainingConfig) -> Any:
    """A bar of tqdm, if it is wanted and installed."""
    if config.verbose == 1:
        with suppress(ImportError):
            from tqdm.auto import tqdm

            return tqdm(total=config.max_steps, unit="step", desc="training")
    return nullcontext()


@contextmanager
def one_thread(multiply_adds: float = 0.0) -> Iterator[None]:
    """One intra-op thread for small work; the caller's setting comes back."""
    before = torch.get_num_threads()
    if multiply_adds < THREADING_PAYS_FROM:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
