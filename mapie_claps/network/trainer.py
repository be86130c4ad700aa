"""φ, μ, h²: maximum likelihood for all members at once. Knows nothing of sklearn."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..exceptions import TrainingDivergedError
from .ensemble import HeteroscedasticNetwork
from .gradient import FlatParameters, LossAndGradient
from .hold_out import Rows
from .losses import Loss
from .optimizer import adamw
from .progress import Progress
from .threads import threads_for


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
    converged: bool = True


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
        self.loss_and_gradient = LossAndGradient(
            network, self.flat, self.batch_size, config.loss
        )
        self.optimizer = adamw(self.flat.weights, self.flat.grad, config.weight_decay)
        self.result = TrainingResult()
        self.progress = Progress(config.verbose, config.max_steps)
        self.best = torch.full((network.n_members,), math.inf, device=self.device)
        self.parameters = self.flat.of_members
        self.best_parameters = [p.detach().clone() for p, _ in self.parameters]

    def run(self) -> TrainingResult:
        """Take the steps, evaluate now and then, keep what was best."""
        with self.progress:
            return self._run()

    def _run(self) -> TrainingResult:
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
        self.result.converged = self._converged()
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
        self.loss_and_gradient.take(self.X, self.y, batch)
        weight = None if self.weight is None else self.weight[batch]
        loss = self.loss_and_gradient(weight, self._dropout_masks())
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
        limit = self.config.max_gradient_norm
        if limit is None:
            return
        # No member's norm exceeds that of all: in most steps one product settles it.
        whole = self.flat.grad
        if float(whole @ whole) < 0.99 * limit**2:
            return
        squares = torch.zeros(self.network.n_members, device=self.device)
        for g, members in self.flat.grads:
            squares[members] += g.square().sum((1, 2))
        factor = (limit / squares.sqrt()).clamp_(max=1.0)
        if bool((factor < 1).any()):
            for g, members in self.flat.grads:
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
        self.progress.show(step, training_loss, float(validation_loss.mean()))
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
        """Held-out loss of each member; zero where nothing is held out."""
        held_out = self.rows.held_out
        if held_out.shape[1] == 0:
            return torch.zeros(self.network.n_members, device=self.device)
        out = self.network.outputs(self.network.features(self.X[held_out]))
        loss = self.config.loss.by_row(out, self.y[held_out])
        if self.weight is not None:
            loss *= self.weight[held_out]
        return loss.mean(dim=1)

    def _restore_best(self) -> None:
        for kept, (p, _) in zip(self.best_parameters, self.parameters, strict=True):
            p.copy_(kept)

    def _converged(self) -> bool:
        """Whether the last tenth brought at most a share ``tol`` of the whole gain."""
        tol = self.config.tol
        curve = self.result.validation_curve or self.result.loss_curve
        if tol is None or len(curve) < 10:
            return True
        best_before, best = min(curve[: -(len(curve) // 10)]), min(curve)
        return best_before - best <= tol * (curve[0] - best)
