"""Rules by which the defaults of ``ClapsRegressor`` adapt to the data."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .trainer import TrainingConfig

MIN_ROWS_TO_HOLD_OUT = 20
MAX_HELD_OUT_ROWS = 4_000
QUANTILE_BINS_IN_ALL = 48
DISTINCT_VALUES = 32
DISTINCT_VALUES_IN_ALL = 1_024
MIN_BIN_WIDTH = 1e-6  # in standard deviations of the column


def batch_size(n_rows: int) -> int:
    """An eighth of the rows, between 16 and 64; up to 256 where rows abound."""
    return max(16, min(64, n_rows // 8), min(256, n_rows // 400))


def max_steps(n_rows: int) -> int:
    """Three steps per row, half as many under 150 rows; between 120 and 2,000."""
    return max(120, min(2_000, 3 * n_rows if n_rows >= 150 else 3 * n_rows // 2))


def training_config(params: dict[str, Any], n_rows: int) -> TrainingConfig:
    """How to train, with every "auto" resolved."""
    resolved = {"max_steps": max_steps(n_rows), "batch_size": batch_size(n_rows)}
    resolved |= {k: params[k] for k in resolved if params[k] != "auto"}
    return TrainingConfig(
        **resolved,
        learning_rate=float(params["learning_rate"]),
        weight_decay=float(params["weight_decay"]),
        schedule=params["schedule"],
        beta=float(params["beta"]),
        dropout=float(params["dropout"]),
        patience=params["patience"],
        n_evaluations=20,
        tol=params["tol"],
        verbose=params["verbose"],
    )


def n_held_out(n_rows: int, validation_fraction: float) -> int:
    """Rows that each member holds out; none of very few, capped for very many."""
    if n_rows < MIN_ROWS_TO_HOLD_OUT or validation_fraction == 0:
        return 0
    return min(MAX_HELD_OUT_ROWS, max(2, round(validation_fraction * n_rows)))


def bin_edges(X: Tensor, max_bins: int) -> Sequence[Tensor]:
    """Edges of the encoding of each column.

    The values themselves where there are few, which codes integers and categories
    step by step; quantiles otherwise. The more columns, the fewer bins each. Two
    values need none: the column itself says it all.
    """
    X = X.float()  # the precision of training: edges must differ in it
    if max_bins == 0:
        return [X.new_empty(0)] * X.shape[1]
    n_columns = X.shape[1]
    n_bins = max(2, min(max_bins, QUANTILE_BINS_IN_ALL // n_columns))
    few = min(DISTINCT_VALUES, max(n_bins, DISTINCT_VALUES_IN_ALL // n_columns))
    levels = torch.linspace(0, 1, n_bins + 1, dtype=torch.float64)
    edges = []
    for column in X.T:
        values = torch.unique(column)
        if len(values) > few:
            values = torch.unique(_quantile(column, levels))
        values = _apart(values)
        edges.append(values if len(values) > 2 else values[:0])
    return edges


def _apart(values: Tensor) -> Tensor:
    """Leave out values so near to the one before that a bin would have no width."""
    if len(values) == 0:
        return values
    near = torch.diff(values) < MIN_BIN_WIDTH
    return values[torch.cat([near.new_ones(1), ~near])]


def _quantile(column: Tensor, levels: Tensor) -> Tensor:
    """Quantiles by sorting: torch.quantile refuses more than 2²⁴ values."""
    ordered = column.sort().values
    return ordered[(levels * (len(column) - 1)).round().long()]
