"""φ, μ, h² by maximum likelihood: one loop for all members."""

import math
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from ..exceptions import TrainingDivergedError
from .ensemble import HeteroscedasticNetwork
from .gradient import FlatParameters, LossAndGradient

T = TypeVar("T")

MIN_ROWS_TO_HOLD_OUT, MAX_HELD_OUT_ROWS = 20, 4_000
# Members whose steps are one batched product, where members train in several groups.
# Fewer cost more calls of torch for each, more leave cores idle.
MEMBERS_IN_GROUP = 3
# Multiply-adds of one training step below which a second thread costs more than it
# brings: on two shared cores, steps of 1e7 were tens of times slower with two threads.
THREADING_PAYS_FROM = 5e8
# Patience "auto". Noisy targets are learned in a fraction of the steps, and a member
# whose loss stops falling there overfits; with little noise a plateau at a high
# learning rate may be left later. So the patience depends on the noise that is left:
# evaluations without a better one, of a member whose best held-out loss is above or
# below LITTLE_NOISE, which is that of h = 0.37 in standardised units.
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
    n_rows: int, n_held_out: int, n_members: int, generator: torch.Generator
) -> Rows:
    """Hold out another block of one permutation for each member."""
    order = torch.randperm(n_rows, generator=generator)
    shifted = torch.stack([order.roll(-k * n_held_out) for k in range(n_members)])
    return Rows(shifted[:, n_held_out:], shifted[:, :n_held_out])


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
    """How to train; the loss is the Gaussian β-NLL with the network's noise floor."""

    max_steps: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    schedule: str  # "cosine" or "constant"
    beta: float
    max_gradient_norm: float | None  # of each member; None: gradients as they are
    patience: int | str | None  # evaluations without a better one, "auto", None: no end
    n_evaluations: int = 20
    verbose: int = 0

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


class AdamW:
    """torch's AdamW with its default constants, on one flat tensor."""

    BETAS, EPS = (0.9, 0.999), 1e-8

    def __init__(self, flat: FlatParameters, weight_decay: float, n_steps: int) -> None:
        weights, first, second = flat.state
        self.weight_decay = weight_decay
        self.n_steps = weights.new_full((), float(n_steps))
        # torch._fused_adamw_ is the kernel that torch.optim.AdamW(fused=True) calls.
        # What the class does around it takes longer than the step of a small network.
        # The name is private (there from torch 2.6 to 2.15) and may go any time.
        self.fused = getattr(torch, "_fused_adamw_", None)
        largest: list[Tensor] = []  # of AMSGrad, which is off
        self.tensors = (
            [weights],
            [flat.grad],
            [first],
            [second],
            largest,
            [self.n_steps],
        )
        if self.fused is None:
            parameter = nn.Parameter(weights)
            parameter.grad = flat.grad
            self.optimizer = torch.optim.AdamW(
                [parameter], betas=self.BETAS, eps=self.EPS, weight_decay=weight_decay
            )
            self.optimizer.state[parameter] = {
                "step": self.n_steps,
                "exp_avg": first,
                "exp_avg_sq": second,
            }

    def step(self, learning_rate: float) -> None:
        """Change the weights in place."""
        if self.fused is None:
            self.optimizer.param_groups[0]["lr"] = learning_rate
            self.optimizer.step()
            return
        self.n_steps += 1
        self.fused(
            *self.tensors,
            amsgrad=False,
            beta1=self.BETAS[0],
            beta2=self.BETAS[1],
            lr=learning_rate,
            weight_decay=self.weight_decay,
            eps=self.EPS,
            maximize=False,
        )


class TrainingData(NamedTuple):
    """Encoded inputs, targets and weights of all rows, and which member sees which."""

    X: Tensor  # (n, p), float32
    y: Tensor  # (n,), float32
    weight: Tensor | None  # (n,), mean one
    rows: Rows


def n_groups(n_members: int) -> int:
    """Number of groups that members train in, where there is a pool: two or more."""
    return max(min(2, n_members), math.ceil(n_members / MEMBERS_IN_GROUP))


def divide_members(members: Sequence[int], views: Sequence[slice]) -> list[list[int]]:
    """Members of each group: members of one view go to different groups.

    The groups then take equally long. They do not depend on the number of threads.
    """
    by_view = [k for view in views for k in members if view.start <= k < view.stop]
    n = n_groups(len(members))
    return [sorted(by_view[i::n]) for i in range(n)]


class MemberGroup:
    """Members that take their steps together, batched.

    Members share nothing: the others in a group change nothing but rounding.
    """

    def __init__(
        self,
        network: HeteroscedasticNetwork,
        members: Sequence[int],
        states: Sequence[Tensor],  # of all members, (3, number of its weights) each
        data: TrainingData,
        config: TrainingConfig,
        n_steps: int,  # taken before
    ) -> None:
        self.members, self.data, self.config = list(members), data, config
        self.network = network.take(members)
        self.flat = FlatParameters(self.network)
        for k, own in zip(members, self.flat.positions, strict=True):
            self.flat.state[:, own] = states[k]
        self.optimizer = AdamW(self.flat, config.weight_decay, n_steps)
        size = min(config.batch_size, data.rows.fit.shape[1])
        batch = LossAndGradient(self.network, size, config.beta)
        self.loss_and_gradient = batch
        # What there is of all rows, and where that of a batch goes.
        self.sources = [(data.X, batch.inputs.flatten(0, 1))]
        self.sources += [(data.y, batch.target.flatten())]
        if data.weight is not None:
            self.sources += [(data.weight / size, batch.share.flatten())]

    @torch.no_grad()
    def run(
        self,
        batches: Tensor,  # (steps, K, batch), row numbers of all members
        learning_rates: Sequence[float],
    ) -> tuple[list[float], list[float]]:
        """Take steps; mean training loss and held-out loss of each member."""
        total = torch.zeros_like(self.loss_and_gradient.target[:, 0])
        chosen = batches[:, self.members].flatten(1)
        for rows, learning_rate in zip(chosen, learning_rates, strict=True):
            for source, target in self.sources:
                torch.index_select(source, 0, rows, out=target)
            total += self.loss_and_gradient()
            self._clip_gradients()
            self.optimizer.step(learning_rate)
        return (total / len(batches)).tolist(), self._held_out_loss().tolist()

    def _clip_gradients(self) -> None:
        """Scale the gradient of each member to a norm of at most the limit."""
        limit, grad = self.config.max_gradient_norm, self.flat.grad
        # No member's norm exceeds that of all: in most steps one product settles it.
        if limit is None or float(grad @ grad) < 0.99 * limit**2:
            return
        for own in self.flat.positions:
            part = grad[own]
            grad[own] = part * (limit / part.norm()).clamp(max=1.0)

    def _held_out_loss(self) -> Tensor:
        """Likelihood of each member's held-out rows; zero where there are none."""
        rows = self.data.rows.held_out[self.members]
        if rows.shape[1] == 0:
            return torch.zeros_like(self.loss_and_gradient.target[:, 0])
        phi = self.network.features(self.data.X[rows])
        loss = gaussian_nll(self.data.y[rows], *self.network.outputs(phi))
        if self.data.weight is not None:
            loss *= self.data.weight[rows]
        return loss.mean(dim=1)


def train(
    network: HeteroscedasticNetwork,
    X_encoded: Tensor,  # (n, p), float32
    y: Tensor,  # (n,), float32
    weight: Tensor | None,  # (n,), mean one
    rows: Rows,
    config: TrainingConfig,
    generator: torch.Generator,
    device: torch.device,
    pool: "WorkerPool | None" = None,
) -> TrainingResult:
    """Train in place; every member ends in its best state by held-out likelihood.

    With a pool members train in groups, and the result is the same for every number of
    threads. Without one all train in one batch, and the result differs by rounding.
    """
    data = TrainingData(
        X_encoded.to(device),
        y.to(device),
        None if weight is None else weight.to(device),
        Rows(rows.fit.to(device), rows.held_out.to(device)),
    )
    work = network.multiply_adds(min(config.batch_size, rows.fit.shape[1]))
    with one_thread(work), torch.no_grad():
        return _Trainer(network.to(device), data, config, generator, pool).run()


class _Trainer:
    """State of one run of training."""

    def __init__(
        self,
        network: HeteroscedasticNetwork,
        data: TrainingData,
        config: TrainingConfig,
        generator: torch.Generator,
        pool: "WorkerPool | None",
    ) -> None:
        self.network, self.data, self.config, self.pool = network, data, config, pool
        self.batches = _batches(data.rows.fit, config.batch_size, generator)
        self.with_held_out = data.rows.held_out.shape[1] > 0
        self.patience = config.patience
        if self.patience == "auto" and (
            not self.with_held_out or config.max_steps < MIN_STEPS_TO_STOP
        ):
            self.patience = None
        self.active = list(range(network.n_members))
        self.states = []  # weights and moments of each member
        for k in self.active:
            weights = torch.cat([w.flatten() for w in _weights_of(network, k)])
            self.states.append(torch.stack([weights, *torch.zeros(2, len(weights))]))
        self.best = [state[0] for state in self.states]  # weights
        self.best_loss = [math.inf] * network.n_members
        self.loss = [math.inf] * network.n_members
        self.history: list[list[float]] = []  # losses that tell who stops
        self.groups = self._new_groups(0)

    def run(self) -> TrainingResult:
        """Take the steps, evaluate now and then, keep what was best."""
        config, result = self.config, TrainingResult()
        every = max(1, config.max_steps // config.n_evaluations)
        pool = self.pool or WorkerPool()
        with _progress(config.verbose, config.max_steps) as show:
            for start in range(0, config.max_steps, every):
                stop = min(start + every, config.max_steps)
                batches = torch.stack(list(islice(self.batches, stop - start)))
                rates = [config.learning_rate_at(t + 1) for t in range(start, stop)]
                found = pool.run_all(
                    [partial(group.run, batches, rates) for group in self.groups]
                )
                loss, held_out = self._evaluate(stop, found)
                result.n_iter = stop
                result.loss_curve.append(loss)
                if self.with_held_out:
                    result.validation_curve.append(held_out)
                show(stop, loss, held_out)
                self._stop_members(stop)
                if not self.active:
                    break
        for k, best in enumerate(self.best):
            weights = _weights_of(self.network, k)
            parts = best.split([w.numel() for w in weights])
            for w, part in zip(weights, parts, strict=True):
                w.copy_(part.view_as(w))
        return result

    def _evaluate(
        self, step: int, found: Sequence[tuple[list[float], list[float]]]
    ) -> tuple[float, float]:
        """Keep states that are better; mean training loss and held-out loss.

        A member that has stopped counts with what it had then.
        """
        held_out = list(self.best_loss)
        for group, losses in zip(self.groups, found, strict=True):
            for i, k in enumerate(group.members):
                self.loss[k], held_out[k] = losses[0][i], losses[1][i]
                if held_out[k] < self.best_loss[k] or not self.with_held_out:
                    self.best_loss[k] = held_out[k]
                    self.best[k] = group.flat.state[0, group.flat.positions[i]]
        self.history.append(held_out if self.with_held_out else list(self.loss))
        means = [sum(losses) / len(losses) for losses in (self.loss, held_out)]
        if not all(map(math.isfinite, means)):
            raise TrainingDivergedError(
                f"Training diverged: the loss is {means[0]!r} (on held-out rows "
                f"{means[1]!r}) after {step} steps with "
                f"learning_rate={self.config.learning_rate!r}. Lower learning_rate, "
                "or look for extreme values in y."
            )
        return means[0], means[1]

    def _stop_members(self, step: int) -> None:
        """Leave out members that have nothing to gain, and form new groups."""
        views = self.network.members_by_view()
        stopped = members_to_stop(self.history, self.active, self.patience, views)
        if not stopped:
            return
        for group in self.groups:
            for k, own in zip(group.members, group.flat.positions, strict=True):
                self.states[k] = group.flat.state[:, own]
        self.active = [k for k in self.active if k not in stopped]
        self.groups = self._new_groups(step)

    def _new_groups(self, n_steps: int) -> list[MemberGroup]:
        divided = [self.active] if self.active else []
        if self.pool is not None:
            divided = divide_members(self.active, self.network.members_by_view())
        return [
            MemberGroup(
                self.network, members, self.states, self.data, self.config, n_steps
            )
            for members in divided
        ]


def _weights_of(network: HeteroscedasticNetwork, member: int) -> list[Tensor]:
    """All weights of one member, as views, in the order of ``FlatParameters``."""
    return [
        p.detach()[member - members.start]
        for p, members in network.parameters_of_members()
        if members.start <= member < members.stop
    ]


def _batches(
    rows: Tensor,  # (K, n_fit)
    size: int,
    generator: torch.Generator,
) -> Iterator[Tensor]:  # (K, size)
    """Row numbers of one batch after the other, in a new order in every epoch."""
    n_rows = rows.shape[1]
    if size >= n_rows:
        while True:
            yield rows
    while True:
        random = torch.rand(rows.shape, generator=generator, dtype=torch.float32)
        order = rows.gather(1, random.argsort(1).to(rows.device))
        yield from order[:, : n_rows - n_rows % size].split(size, dim=1)


def members_to_stop(
    losses: Sequence[Sequence[float]],  # of all members, at each evaluation so far
    active: Sequence[int],
    patience: int | str | None,
    views: Sequence[slice],
) -> set[int]:
    """Members that wait too long for a better loss, and those of a view that lost."""
    if patience is None:
        return set()
    found = set()
    best = [min(column) for column in zip(*losses, strict=True)]
    for k in active:
        limit = patience
        if isinstance(limit, str):
            limit = PATIENCE if best[k] > LITTLE_NOISE else PATIENCE_WITH_LITTLE_NOISE
        when = [evaluation[k] for evaluation in losses].index(best[k])
        if len(losses) - 1 - when >= limit:
            found.add(k)
    if patience == "auto" and len(losses) >= LOST_FROM:
        by_view = [sum(best[view]) / len(best[view]) for view in views]
        for view, loss in zip(views, by_view, strict=True):
            if loss > min(by_view) + LOST_BY:
                found |= set(active) & set(range(view.start, view.stop))
    return found


@contextmanager
def _progress(
    verbose: int, max_steps: int
) -> Iterator[Callable[[int, float, float], None]]:
    """A function that shows an evaluation: by a bar of tqdm, or by lines on stderr.

    Lines are for ``verbose=2``, and where tqdm is not installed.
    """

    def line(step: int, loss: float, held_out: float) -> None:
        sys.stderr.write(
            f"step {step}/{max_steps}: loss {loss:.4f}, held out {held_out:.4f}\n"
        )

    if verbose != 1:
        yield line if verbose else lambda step, loss, held_out: None
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:
        yield line
        return
    with tqdm(total=max_steps, unit="step", desc="training") as bar:

        def show(step: int, loss: float, held_out: float) -> None:
            bar.set_postfix(loss=f"{loss:.3f}", held_out=f"{held_out:.3f}")
            bar.update(step - bar.n)

        yield show


class _OneThread:
    """One intra-op thread while anybody is inside; the setting of before comes back.

    torch keeps the number for the process as well as for each thread. Fits that
    overlap in several threads would each restore what they found, which for the later
    ones is the 1 of the first: the number found by the first counts for all.
    """

    def __init__(self) -> None:
        self.lock, self.inside, self.before = threading.Lock(), 0, 1
        self.cores_in_use = 0  # by pools of this process

    def __enter__(self) -> None:
        with self.lock:
            if self.inside == 0:
                self.before = torch.get_num_threads()
            self.inside += 1
            torch.set_num_threads(1)

    def __exit__(self, *exception: object) -> None:
        with self.lock:
            self.inside -= 1
            torch.set_num_threads(self.before)

    @contextmanager
    def take_cores(self, wanted: int) -> Iterator[int]:
        """At least one core, at most as many as wanted and free.

        There are as many as torch may use outside of any fit: joblib and Dask set that
        number in their workers so that all together use each core once.
        """
        with self.lock:
            allowed = self.before if self.inside else torch.get_num_threads()
            taken = max(1, min(wanted, allowed - self.cores_in_use))
            self.cores_in_use += taken
        try:
            yield taken
        finally:
            with self.lock:
                self.cores_in_use -= taken


_one_thread = _OneThread()


def one_thread(multiply_adds: float = 0.0) -> AbstractContextManager[None]:
    """One intra-op thread for small work; the caller's setting comes back."""
    return _one_thread if multiply_adds < THREADING_PAYS_FROM else nullcontext()


class WorkerPool:
    """Threads that share the work of one fit; without any, the caller alone."""

    def __init__(
        self, executor: ThreadPoolExecutor | None = None, n_threads: int = 1
    ) -> None:
        self.executor, self.n_threads = executor, n_threads

    def run_all(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Run tasks at the same time, as far as there are threads."""
        if self.executor is None:
            return [task() for task in tasks]
        return list(self.executor.map(_on_one_thread, tasks))

    def in_order(self, tasks: Iterable[Callable[[], T]]) -> Iterator[T]:
        """Results in the order of the tasks, which start only a few ahead."""
        if self.executor is None:
            yield from (task() for task in tasks)
            return
        started: deque[Future[T]] = deque()
        try:
            for task in tasks:
                started.append(self.executor.submit(_on_one_thread, task))
                if len(started) > self.n_threads:
                    yield started.popleft().result()
            while started:
                yield started.popleft().result()
        finally:
            for future in started:
                future.cancel()

    def start(self, task: Callable[[], T]) -> Callable[[], T]:
        """Run a task beside what comes next; the function returned waits for it.

        Without threads the task runs when it is waited for.
        """
        if self.executor is None:
            return task
        return self.executor.submit(_on_one_thread, task).result


@contextmanager
def worker_pool(n_jobs: int | None, n_tasks: int) -> Iterator[WorkerPool]:
    """A pool for at most so many tasks at a time, as far as there are cores.

    ``n_jobs`` counts as in scikit-learn: None is 1, -1 all cores.
    """
    n_jobs = 1 if n_jobs is None else n_jobs
    if n_jobs < 0:
        n_cores = os.cpu_count() or 1
        if hasattr(os, "sched_getaffinity"):
            n_cores = len(os.sched_getaffinity(0))
        n_jobs = max(1, n_cores + 1 + n_jobs)
    with _one_thread.take_cores(min(n_jobs, n_tasks)) as n_threads:
        if n_threads == 1:
            yield WorkerPool()
            return
        with _one_thread, ThreadPoolExecutor(n_threads) as executor:
            yield WorkerPool(executor, n_threads)


def _on_one_thread(task: Callable[[], T]) -> T:
    """Run in a thread of the pool, whose number of intra-op threads is its own."""
    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)
    return task()
