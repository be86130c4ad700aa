"""φ, μ, h²: maximum likelihood for all members at once. Knows nothing of sklearn."""

import math
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..exceptions import TrainingDivergedError
from .ensemble import HeteroscedasticNetwork
from .gradient import Backpropagation, FlatParameters

# Multiply-adds of one training step below which a second thread costs more than it
# brings: on two shared cores, steps of 1e7 were tens of times slower with two threads.
THREADING_PAYS_FROM = 5e8
MAX_GRADIENT_NORM = 5.0


@dataclass(frozen=True)
class TrainingConfig:
    """How to train; every number is resolved, nothing is left to a rule."""

    max_steps: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    schedule: str  # "cosine" or "constant"
    beta: float  # β-NLL: 0 is the Gaussian likelihood, 1 weights the mean as MSE does
    dropout: float
    patience: int | None  # evaluations without a better member
    n_evaluations: int
    tol: float | None
    verbose: int = 0


@dataclass
class TrainingResult:
    """What training leaves behind beside the network's weights."""

    n_iter: int = 0
    loss_curve: list[float] = field(default_factory=list)
    validation_curve: list[float] = field(default_factory=list)
    settled: bool = True


@dataclass(frozen=True)
class Rows:
    """Row numbers that each member trains on, and those it holds out."""

    fit: Tensor  # (K, n_fit)
    held_out: Tensor  # (K, n_held_out), n_held_out may be 0


def split_rows(
    n: int, n_held_out: int, n_members: int, generator: torch.Generator
) -> Rows:
    """Hold out another block of one permutation for each member."""
    order = torch.randperm(n, generator=generator)
    shifted = torch.stack([order.roll(-k * n_held_out) for k in range(n_members)])
    return Rows(shifted[:, n_held_out:], shifted[:, :n_held_out])


def gaussian_nll(y: Tensor, mu: Tensor, variance: Tensor) -> Tensor:
    """½[log v + (y − μ)²/v], without the constant."""
    return 0.5 * (variance.log() + (y - mu).square() / variance)


class _OneThread:
    """One intra-op thread while anybody is inside; the setting of before comes back.

    torch keeps the number for the process as well as for each thread. Fits that
    overlap in several threads would each bring back what they found, which for the
    later ones is the 1 of the first: the number found by the first counts for all.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._before = threading.Lock(), 0, 1

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._before = torch.get_num_threads()
            self._inside += 1
            torch.set_num_threads(1)

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._inside -= 1
            torch.set_num_threads(self._before)


_one_thread = _OneThread()


def threads_for(multiply_adds: float) -> AbstractContextManager[None]:
    """One intra-op thread for small steps; the caller's setting comes back."""
    return _one_thread if multiply_adds < THREADING_PAYS_FROM else nullcontext()


def _step_multiply_adds(network: HeteroscedasticNetwork, batch_size: int) -> float:
    """Multiply-adds of one forward pass over a batch of every member."""
    weights = sum(p.numel() for p in network.parameters())
    return float(weights * batch_size)


def train(
    network: HeteroscedasticNetwork,
    X: Tensor,  # (n, p), encoded, float32
    y: Tensor,  # (n,), float32
    weight: Tensor | None,  # (n,), mean one
    rows: Rows,
    config: TrainingConfig,
    generator: torch.Generator,
    device: torch.device,
) -> TrainingResult:
    """Train in place; every member ends in its best state by held-out likelihood."""
    work = _step_multiply_adds(network, min(config.batch_size, rows.fit.shape[1]))
    weight = None if weight is None else weight.to(device)
    with threads_for(work), torch.no_grad():
        return _Trainer(
            network.to(device),
            X.to(device),
            y.to(device),
            weight,
            Rows(rows.fit.to(device), rows.held_out.to(device)),
            config,
            generator,
        ).run()


class _AdamW:
    """torch's fused AdamW, without what ``torch.optim`` wraps around it.

    The wrappers ask for devices, hooks and graphs in every step, which takes longer
    than the step itself for one small network.
    """

    def __init__(self, weights: Tensor, gradient: Tensor, weight_decay: float) -> None:
        first, second = torch.zeros_like(weights), torch.zeros_like(weights)
        largest: list[Tensor] = []  # of AMSGrad, which is off
        self._taken = torch.zeros((), dtype=torch.float32, device=weights.device)
        self._state = [weights], [gradient], [first], [second], largest, [self._taken]
        self._weight_decay = weight_decay

    def step(self, learning_rate: float) -> None:
        """Change the weights in place; other constants are torch's defaults."""
        self._taken += 1
        torch._fused_adamw_(
            *self._state,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=learning_rate,
            weight_decay=self._weight_decay,
            eps=1e-8,
            maximize=False,
        )


class _Trainer:
    """State of one run of training."""

    def __init__(
        self,
        network: HeteroscedasticNetwork,
        X: Tensor,
        y: Tensor,
        weight: Tensor | None,
        rows: Rows,
        config: TrainingConfig,
        generator: torch.Generator,
    ) -> None:
        self.network, self.config, self.generator = network, config, generator
        self.X, self.y, self.weight, self.rows = X, y, weight, rows
        self.device = X.device
        self.batch_size = min(config.batch_size, rows.fit.shape[1])
        self.flat = FlatParameters(network)
        self.both_passes = Backpropagation(
            network, self.flat, self.batch_size, config.beta
        )
        self.optimizer = _AdamW(
            self.flat.weights, self.flat.gradient, config.weight_decay
        )
        self.result = TrainingResult()
        self.best = torch.full((network.n_members,), math.inf, device=self.device)
        self.parameters = self.flat.of_members
        self.best_parameters = [p.detach().clone() for p, _ in self.parameters]

    def run(self) -> TrainingResult:
        """Take the steps, evaluate now and then, keep what was best."""
        config = self.config
        every = max(1, config.max_steps // config.n_evaluations)
        waited, since_evaluation = 0, torch.zeros_like(self.best)
        for step, batch in enumerate(self._batches(), start=1):
            since_evaluation += self._step(step, batch)
            if step % every and step != config.max_steps:
                continue
            taken = every if step % every == 0 else step % every
            improved = self._evaluate(step, float(since_evaluation.mean()) / taken)
            since_evaluation.zero_()
            waited = 0 if improved else waited + 1
            if config.patience is not None and waited >= config.patience:
                break
        self.result.n_iter = step
        self.result.settled = self._settled()
        if self.rows.held_out.shape[1]:
            self._restore_best()
        self.flat.release()
        return self.result

    def _batches(self) -> Iterator[Tensor]:
        """Row numbers (K, batch), a new permutation per member and epoch."""
        rows = self.rows.fit
        n_members, n = rows.shape
        size = self.batch_size
        steps = self.config.max_steps
        while True:
            if size == n:
                epoch = [rows]
            else:
                order = torch.rand(
                    n_members, n, generator=self.generator, dtype=torch.float32
                ).argsort(1)
                shuffled = rows.gather(1, order.to(self.device))
                epoch = list(shuffled[:, : n - n % size].split(size, dim=1))
            yield from epoch[:steps]
            steps -= len(epoch)
            if steps <= 0:
                return

    def _step(self, step: int, batch: Tensor) -> Tensor:
        """One step of the optimiser; returns the loss of each member."""
        self.both_passes.take(self.X, self.y, batch)
        weight = None if self.weight is None else self.weight[batch]
        loss = self.both_passes(weight, self._dropout_masks())
        self._clip_gradients()
        self.optimizer.step(self._learning_rate(step))
        return loss

    def _learning_rate(self, step: int) -> float:
        """Five per cent linear warm-up, then a cosine to zero; or constant."""
        peak, total = self.config.learning_rate, self.config.max_steps
        if self.config.schedule == "constant":
            return peak
        warm_up = max(1, total // 20)
        if step <= warm_up:
            return peak * step / warm_up
        progress = (step - warm_up) / max(1, total - warm_up)
        return peak * 0.5 * (1 + math.cos(math.pi * progress))

    def _dropout_masks(self) -> list[Tensor]:
        """Masks of every layer from our own generator: nn.Dropout uses the global."""
        keep = 1 - self.config.dropout
        if keep == 1:
            return []
        shapes = [
            (self.network.n_members, self.batch_size, size)
            for size in self.network.layer_sizes
        ]
        return [
            torch.empty(shape, dtype=torch.float32)
            .bernoulli_(keep, generator=self.generator)
            .div_(keep)
            .to(self.device)
            for shape in shapes
        ]

    def _clip_gradients(self) -> None:
        """Scale the gradient of each member to a norm of at most the limit."""
        # No member's norm exceeds that of all: in most steps one product settles it.
        whole = self.flat.gradient
        if float(whole @ whole) < 0.99 * MAX_GRADIENT_NORM**2:
            return
        squares = torch.zeros(self.network.n_members, device=self.device)
        for g, members in self.flat.gradients:
            squares[members] += g.square().sum((1, 2))
        factor = (MAX_GRADIENT_NORM / squares.sqrt()).clamp_(max=1.0)
        if bool((factor < 1).any()):
            for g, members in self.flat.gradients:
                g.mul_(factor[members].view(-1, 1, 1))

    def _evaluate(self, step: int, training_loss: float) -> bool:
        """Record both losses, keep better members; False if none got better."""
        validation_loss = self._held_out_loss()
        if not math.isfinite(training_loss) or not bool(
            torch.isfinite(validation_loss).all()
        ):
            raise TrainingDivergedError(
                f"Training diverged: the loss is {training_loss!r} (on held-out rows "
                f"{float(validation_loss.mean())!r}) after {step} steps with "
                f"learning_rate={self.config.learning_rate!r}. Lower learning_rate, "
                "raise variance_floor, or look for extreme values in y."
            )
        self.result.loss_curve.append(training_loss)
        if self.rows.held_out.shape[1]:
            self.result.validation_curve.append(float(validation_loss.mean()))
        if self.config.verbose:
            print(  # noqa: T201
                f"step {step}/{self.config.max_steps}: loss {training_loss:.4f}, "
                f"held out {float(validation_loss.mean()):.4f}",
                flush=True,
            )
        if not self.rows.held_out.shape[1]:  # patience then goes by the training loss
            validation_loss = torch.full_like(validation_loss, training_loss)
        better = validation_loss < self.best
        self.best = torch.where(better, validation_loss, self.best)
        for kept, (p, members) in zip(
            self.best_parameters, self.parameters, strict=True
        ):
            kept[better[members]] = p.detach()[better[members]]
        return bool(better.any())

    def _held_out_loss(self) -> Tensor:
        """Held-out likelihood of each member; zero where nothing is held out."""
        held_out = self.rows.held_out
        if held_out.shape[1] == 0:
            return torch.zeros(self.network.n_members, device=self.device)
        out = self.network.heads(self.network.features(self.X[held_out]))
        nll = gaussian_nll(self.y[held_out], out.mu, out.h2)
        if self.weight is not None:
            nll *= self.weight[held_out]
        return nll.mean(dim=1)

    def _restore_best(self) -> None:
        for kept, (p, _) in zip(self.best_parameters, self.parameters, strict=True):
            p.copy_(kept)

    def _settled(self) -> bool:
        """Whether the last tenth brought at most a share ``tol`` of the whole gain."""
        tol = self.config.tol
        curve = self.result.validation_curve or self.result.loss_curve
        if tol is None or len(curve) < 10:
            return True
        best_before, best = min(curve[: -(len(curve) // 10)]), min(curve)
        return best_before - best <= tol * (curve[0] - best)
