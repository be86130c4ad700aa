"""Rules by which the defaults of ``ClapsRegressor`` adapt to the data."""

import math
from typing import Any

from .losses import GaussianLoss, Loss
from .stopping import AUTO, MIN_STEPS_TO_STOP
from .units import TrainingConfig


def batch_size(n_rows: int) -> int:
    """An eighth of the rows, between 16 and 64; up to 256 where rows abound."""
    return max(16, min(64, n_rows // 8), min(256, n_rows // 200))


def max_steps(n_rows: int) -> int:
    """Three steps per row, half as many under 150 rows; between 120 and 2,000.

    Beyond 10,000 rows 2,000 are too few to see them: their number grows with the root
    of the number of rows, up to 8,000.
    """
    if n_rows > 10_000:
        return min(8_000, round(20 * math.sqrt(n_rows)))
    return max(120, min(2_000, 3 * n_rows if n_rows >= 150 else 3 * n_rows // 2))


def training_config(
    params: dict[str, Any], n_rows: int, n_held_out: int, loss: Loss | None = None
) -> TrainingConfig:
    """How to train, with every "auto" resolved; the loss is the Gaussian one."""
    if loss is None:
        loss = GaussianLoss(float(params["variance_floor"]), float(params["beta"]))
    resolved: dict[str, Any] = {
        "max_steps": max_steps(n_rows),
        "batch_size": batch_size(n_rows),
        "patience": None,
    }
    resolved |= {k: params[k] for k in resolved if params[k] != "auto"}
    if params["patience"] == "auto" and n_held_out:
        enough = resolved["max_steps"] >= MIN_STEPS_TO_STOP
        resolved["patience"] = AUTO if enough else None
    return TrainingConfig(
        **resolved,
        learning_rate=float(params["learning_rate"]),
        weight_decay=float(params["weight_decay"]),
        schedule=params["schedule"],
        loss=loss,
        dropout=float(params["dropout"]),
        max_gradient_norm=params["max_gradient_norm"],
        n_evaluations=20,
        tol=params["tol"],
        verbose=params["verbose"],
    )
