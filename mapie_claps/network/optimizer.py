"""AdamW on one flat tensor."""

from typing import Protocol

import torch
from torch import Tensor

BETAS = (0.9, 0.999)  # torch's defaults; β₂ = 0.95 is no better, see docs/recipe.md
EPS = 1e-8


class Optimizer(Protocol):
    """One step at a given learning rate."""

    def step(self, learning_rate: float) -> None:
        """Change the weights in place."""

    @property
    def moments(self) -> tuple[Tensor, Tensor]:
        """Running means of gradient and squared gradient, laid out as the weights."""


def adamw(
    weights: Tensor, grad: Tensor, weight_decay: float, taken: int = 0
) -> Optimizer:
    """Torch's AdamW: its fused kernel alone where there is one, else the class.

    After ``taken`` steps the moments, zero at first, are to be filled in.
    """
    # A private name of torch (2.6 to 2.15), which may go with any release.
    if hasattr(torch, "_fused_adamw_"):
        return FusedAdamW(weights, grad, weight_decay, taken)
    return PublicAdamW(weights, grad, weight_decay, taken)


class FusedAdamW:
    """torch's fused AdamW, without what ``torch.optim`` wraps around it.

    The wrappers ask for devices, hooks and graphs in every step, which takes longer
    than the step itself for one small network.
    """

    def __init__(
        self, weights: Tensor, grad: Tensor, weight_decay: float, taken: int = 0
    ) -> None:
        self.moments = torch.zeros_like(weights), torch.zeros_like(weights)
        first, second = self.moments
        largest: list[Tensor] = []  # of AMSGrad, which is off
        self._taken = torch.full(
            (), float(taken), dtype=torch.float32, device=weights.device
        )
        self.state = [weights], [grad], [first], [second], largest, [self._taken]
        self.weight_decay = weight_decay

    def step(self, learning_rate: float) -> None:
        """Change the weights in place; other constants are torch's defaults."""
        beta1, beta2 = BETAS
        self._taken += 1
        torch._fused_adamw_(
            *self.state,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=learning_rate,
            weight_decay=self.weight_decay,
            eps=EPS,
            maximize=False,
        )


class PublicAdamW:
    """The same steps through ``torch.optim.AdamW``."""

    def __init__(
        self, weights: Tensor, grad: Tensor, weight_decay: float, taken: int = 0
    ) -> None:
        self._weights = torch.nn.Parameter(weights)
        self._weights.grad = grad
        self._optimizer = torch.optim.AdamW(
            [self._weights], betas=BETAS, weight_decay=weight_decay
        )
        self.moments = torch.zeros_like(weights), torch.zeros_like(weights)
        self._optimizer.state[self._weights] = {
            "step": torch.tensor(float(taken), dtype=torch.float32),
            "exp_avg": self.moments[0],
            "exp_avg_sq": self.moments[1],
        }

    def step(self, learning_rate: float) -> None:
        """Change the weights in place."""
        self._optimizer.param_groups[0]["lr"] = learning_rate
        self._optimizer.step()
