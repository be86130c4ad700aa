"""Standardised columns → the columns and their bins."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

QUANTILE_BINS_IN_ALL = 48
DISTINCT_VALUES = 32
DISTINCT_VALUES_IN_ALL = 1_024
MIN_BIN_WIDTH = 1e-6  # in standard deviations of the column


class PiecewiseLinearEncoding(nn.Module):
    """Standardised features, followed by how far each has travelled in its bins.

    The encoding of a feature in a bin is 0 left of the bin, 1 right of it, and linear
    inside. The raw feature stays beside it: it carries what lies beyond the bins.
    """

    left: Tensor
    width: Tensor
    column: Tensor

    def __init__(
        self,
        edges: Sequence[Tensor],  # one tensor per column
        n_numbers: int
        | None = None,  # columns that are not 0 or 1, the first; None: all
    ) -> None:
        super().__init__()
        bins = [(j, e[:-1], e[1:] - e[:-1]) for j, e in enumerate(edges)]
        none = torch.empty(0, dtype=torch.float32)
        self.register_buffer("left", torch.cat([none, *(left for _, left, _ in bins)]))
        self.register_buffer("width", torch.cat([none, *(w for _, _, w in bins)]))
        columns = [torch.full((len(left),), j) for j, left, _ in bins]
        self.register_buffer("column", torch.cat([none.long(), *columns]))
        self.n_raw = len(edges)
        self.n_numbers = self.n_raw if n_numbers is None else n_numbers
        self.n_outputs = len(edges) + len(self.left)

    def forward(self, x: Tensor) -> Tensor:  # (..., p) → (..., p + number of bins)
        """Encode the last axis."""
        if len(self.left) == 0:
            return x
        position = (x[..., self.column] - self.left) / self.width
        return torch.cat([x, position.clamp_(0, 1)], dim=-1)


def bin_edges(
    X: Tensor, max_bins: int, n_numbers: int | None = None
) -> Sequence[Tensor]:
    """Edges of the encoding of each column.

    The values themselves where there are few, which codes integers and categories
    step by step; quantiles otherwise. The more columns (of numbers: None means all),
    the fewer bins each. Two values need none: the column itself says it all.
    """
    X = X.float()  # the precision of training: edges must differ in it
    if max_bins == 0:
        return [X.new_empty(0)] * X.shape[1]
    n_columns = X.shape[1] if n_numbers is None else max(1, n_numbers)
    n_bins = max(2, min(max_bins, QUANTILE_BINS_IN_ALL // n_columns))
    few = min(DISTINCT_VALUES, max(n_bins, DISTINCT_VALUES_IN_ALL // n_columns))
    levels = torch.linspace(0, 1, n_bins + 1, dtype=torch.float64)
    edges = []
    for column in X.T:
        values = torch.unique(column)
        if len(values) > few:
            values = torch.unique(_quantile(column, levels))
        values = _distinct(values)
        edges.append(values if len(values) > 2 else values[:0])
    return edges


def _distinct(values: Tensor) -> Tensor:
    """Leave out values so near to the one before that a bin would have no width."""
    if len(values) == 0:
        return values
    near = torch.diff(values) < MIN_BIN_WIDTH
    return values[torch.cat([near.new_ones(1), ~near])]


def _quantile(column: Tensor, levels: Tensor) -> Tensor:
    """Quantiles by sorting: torch.quantile refuses more than 2²⁴ values."""
    ordered = column.sort().values
    return ordered[(levels * (len(column) - 1)).round().long()]
