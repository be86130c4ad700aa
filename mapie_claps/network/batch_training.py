"""Mini-batches from an iterable → a trained network of the user's own."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gaussian_nll_loss, mse_loss

from .._validation import check_choice, check_integer, check_number
from ..exceptions import TrainingDivergedError
from .batches import Batch, batches_of
from .own import NOISE_OUTPUTS
from .own_pass import cast_inputs, split_output

MAX_GRADIENT_NORM = 5.0


def train_on_batches(
    module: nn.Module,
    batches: Any,
    *,
    n_epochs: int = 1,
    learning_rate: float = 1e-3,
    weight_decay: float = 1e-4,
    noise_output: str = "variance",
    callback: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Train a network on mini-batches that need not fit in memory together.

    A plain loop for those who have none: AdamW with a constant learning rate. The loss
    is the Gaussian likelihood where ``forward`` returns (mean, noise), and the squared
    error where it returns the mean alone. For schedules, several machines and the
    like train with PyTorch Lightning, Accelerate or your own loop;
    :class:`~mapie_claps.ClapsModule` takes the network from there.

    Parameters
    ----------
    module : torch.nn.Module
        Trained in place, on its device and in its dtype. X and y are not scaled:
        scale them in the batches, or in the network before its last layer.
    batches : iterable of (X, y) or (X, y, sample_weight)
        Mini-batches, in random order: one step of the optimiser each. Iterated
        ``n_epochs`` times.
    n_epochs : int, default=1
        Passes over the batches.
    learning_rate : float, default=1e-3
        Step size of AdamW.
    weight_decay : float, default=1e-4
        Decoupled weight decay.
    noise_output : {"variance", "log_variance", "std"}, default="variance"
        What the second output of ``forward`` is, if there is one.
    callback : callable, optional
        Called as ``callback(epoch, mean_loss)`` after each epoch.

    Returns
    -------
    list of float
        Mean loss of each epoch.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from mapie_claps import train_on_batches
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(20, 32, 2))
    >>> batches = [(x, x.sum(1)) for x in X]
    >>> losses = train_on_batches(
    ...     torch.nn.Linear(2, 1), batches, n_epochs=5, learning_rate=0.05)
    >>> losses[-1] < 0.01 * losses[0]
    True
    """
    check_integer("n_epochs", n_epochs, low=1, hint="Use 1 for one pass.")
    hint = "Use the default if unsure."
    check_number("learning_rate", learning_rate, low=0, hint=hint)
    check_number("weight_decay", weight_decay, low=0, hint=hint)
    check_choice("noise_output", noise_output, NOISE_OUTPUTS, "Use 'variance'.")
    if n_epochs > 1 and isinstance(batches, Iterator):
        raise ValueError(
            f"Got n_epochs={n_epochs} and an iterator that can be used once. Pass a "
            "DataLoader, a list or another iterable that starts again."
        )
    optimizer = torch.optim.AdamW(
        [p for p in module.parameters() if p.requires_grad],
        lr=learning_rate,
        weight_decay=weight_decay,
    )
    was_training = module.training
    module.train()
    try:
        losses = []
        for epoch in range(n_epochs):
            losses.append(_epoch(module, batches, optimizer, noise_output))
            if callback is not None:
                callback(epoch, losses[-1])
    finally:
        module.train(was_training)
    return losses


def _epoch(
    module: nn.Module, batches: Any, optimizer: torch.optim.Optimizer, noise_output: str
) -> float:
    """One pass; the mean loss over its rows."""
    total, n_rows = 0.0, 0
    for batch in batches_of(batches, size=2**62, need_y=True):
        loss = _loss(module, batch, noise_output)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise TrainingDivergedError(
                f"Training diverged: the loss is {value!r} after {n_rows} rows of an "
                "epoch. Lower learning_rate, standardise X and y, or give h² a floor."
            )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), MAX_GRADIENT_NORM)
        optimizer.step()
        total += value * len(batch.x)
        n_rows += len(batch.x)
    if n_rows == 0:
        raise ValueError("Got no batches, but expected at least one.")
    return total / n_rows


def _loss(module: nn.Module, batch: Batch, noise_output: str) -> Tensor:
    """Mean loss of a batch."""
    mean, noise = split_output(module(cast_inputs(module, batch.x)), len(batch.x))
    target = batch.target.to(mean)
    if noise is None:
        rows = mse_loss(mean, target, reduction="none")
    else:
        raw = noise.reshape(-1)
        h2 = {"variance": raw, "log_variance": raw.exp(), "std": raw.square()}
        rows = gaussian_nll_loss(mean, target, h2[noise_output], reduction="none")
    return (rows * batch.row_weight.to(rows)).mean()
