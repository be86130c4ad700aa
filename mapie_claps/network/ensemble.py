"""X → φ, μ, h²: networks with a mean head and a noise head, all members batched.

Everything here lives in standardised units of X and y.
"""

import copy
import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import silu, softplus

# Limits of the encoding: bins of all columns together, and distinct values up to which
# a column has a bin for each of them.
MAX_QUANTILE_BINS = 48
MAX_DISTINCT_VALUES, MAX_DISTINCT_VALUES_IN_ALL = 32, 1_024
MIN_BIN_WIDTH = 1e-6  # in standard deviations of the column
N_FREQUENCIES = 4  # of each number in the view "periodic"
FREQUENCY_SCALE = 0.6 * math.pi  # radians per standard deviation of the column
# Limits of one batch of a forward pass: elements of the widest layer, for the cache,
# and rows. Wide layers may have more elements, for enough rows to be worth a product.
BATCH_ELEMENTS, BATCH_ROWS = 2**19, 2**12
WIDE_ELEMENTS, WIDE_ROWS = 2**22, 2**10

VIEWS = ("bins", "periodic", "raw")
# A line: rows up to which it is tried, its penalties, and by how much a curved function
# must be worse on rows left out, or better on what the line leaves of them.
MAX_LINE_ROWS, PENALTIES = 500, tuple(10.0**e for e in range(-3, 6))
LITTLE_EVIDENCE = 1.5  # nats of rows left out, which noise gains once in ten tables
CLEARLY_WORSE, BETTER = 1.1, 0.99


class Features(NamedTuple):
    """φ, μ and h² of n rows, for each of K members."""

    phi: Tensor  # (K, n, d), without the constant
    mu: Tensor  # (K, n), with the trained weights
    h2: Tensor  # (K, n)


class PiecewiseLinearEncoding(nn.Module):
    """Columns, followed by the position of each value in each bin of its column.

    The position is 0 left of the bin, 1 right of it, and linear inside. The column
    itself comes first, because it carries what lies beyond the bins.
    """

    left: Tensor
    width: Tensor
    column: Tensor

    def __init__(
        self,
        edges: Sequence[Tensor],  # of the bins of each column, may be empty
        n_numbers: int | None = None,  # the first columns; the others are 0 or 1
    ) -> None:
        super().__init__()
        edges = [e if len(e) else torch.zeros(1, dtype=torch.float32) for e in edges]
        self.register_buffer("left", torch.cat([e[:-1] for e in edges]))
        self.register_buffer("width", torch.cat([e.diff() for e in edges]))
        counts = torch.tensor([len(e) - 1 for e in edges])
        columns = torch.arange(len(edges)).repeat_interleave(counts)
        self.register_buffer("column", columns)
        self.n_columns = len(edges)
        self.n_numbers = self.n_columns if n_numbers is None else n_numbers
        self.n_outputs = self.n_columns + len(self.left)

    def forward(self, x: Tensor) -> Tensor:  # (..., p) → (..., n_outputs)
        """Encode the last axis."""
        if len(self.left) == 0:
            return x
        position = (x[..., self.column] - self.left) / self.width
        return torch.cat([x, position.clamp(0, 1)], dim=-1)


def bin_edges(X: Tensor, max_bins: int, n_numbers: int | None = None) -> list[Tensor]:
    """Edges of the bins of each column.

    Columns with few distinct values have an edge at each of them, others at quantiles:
    the more numbers (None: all columns), the fewer bins each. Columns with two values
    have no bins.
    """
    X = X.float()  # the precision of training: edges must differ in it
    if max_bins == 0:
        return [X.new_empty(0)] * X.shape[1]
    n_columns = X.shape[1] if n_numbers is None else max(1, n_numbers)
    n_bins = max(2, min(max_bins, MAX_QUANTILE_BINS // n_columns))
    few = max(n_bins, MAX_DISTINCT_VALUES_IN_ALL // n_columns)
    levels = torch.linspace(0, 1, n_bins + 1, dtype=torch.float64)
    ranks = (levels * (len(X) - 1)).round().long()
    edges = []
    for column in X.T:
        values = torch.unique(column)
        if len(values) > min(few, MAX_DISTINCT_VALUES):
            # By sorting, because torch.quantile refuses more than 2²⁴ values.
            values = torch.unique(column.sort().values[ranks])
        wide = values.diff() >= MIN_BIN_WIDTH
        values = values[torch.cat([wide.new_ones(1), wide])]
        edges.append(values if len(values) > 2 else values[:0])
    return edges


class BatchedLinear(nn.Module):
    """K linear layers, applied to K batches at once.

    Initial weights are uniform within ±1/√fan_in, initial biases within ±bias_bound or,
    if that is None, within the bound of the weights, as in torch.
    """

    def __init__(
        self,
        n_members: int,
        n_inputs: int,
        n_outputs: int,
        generator: torch.Generator,
        bias_bound: float | None,
        n_started: int | None = None,  # inputs beyond these start with zero weights
    ) -> None:
        super().__init__()
        fan_in = n_inputs if n_started is None else n_started
        weight = torch.zeros(n_members, n_inputs, n_outputs, dtype=torch.float32)
        bound = 1.0 / math.sqrt(fan_in)
        weight[:, :fan_in].uniform_(-bound, bound, generator=generator)
        bias = torch.empty(n_members, 1, n_outputs, dtype=torch.float32)
        bound = bound if bias_bound is None else bias_bound
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(bias.uniform_(-bound, bound, generator=generator))

    @property
    def n_members(self) -> int:
        """Number of layers K."""
        return len(self.weight)

    def forward(self, x: Tensor) -> Tensor:  # (K, n, n_inputs) → (K, n, n_outputs)
        """Apply layer k to batch k."""
        return _linear(x, self.weight, self.bias)

    def take(self, members: Sequence[int]) -> Self:
        """The layers of some members, with copies of their weights."""
        taken, rows = copy.copy(self), list(members)
        taken._parameters = {
            name: None if p is None else nn.Parameter(p.detach()[rows], p.requires_grad)
            for name, p in self._parameters.items()
        }
        return taken


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Wᵀx + b in memory that has units first and rows last: a fifth faster."""
    if len(weight) == 1:  # faster without the axis of members
        return torch.addmm(bias[0].mT, weight[0].mT, x[0].mT).mT[None]
    return torch.baddbmm(bias.mT, weight.mT, x.mT).mT


class FirstLayer(BatchedLinear):
    """First layer of the members that share a view of the encoded inputs.

    The view "raw" consists of the columns; "bins" of the columns and their bins, whose
    weights start at zero; "periodic" of the columns and of sines and cosines of the
    numbers with learned frequencies. Each input is multiplied by a factor that starts
    at one and learns ``scaling_rate`` times as fast as the weights: it selects columns.
    """

    frequency: nn.Parameter | None  # (K, n_numbers, N_FREQUENCIES)
    factor: nn.Parameter | None  # (K, n_inputs, 1), less one and by scaling_rate

    def __init__(
        self,
        view: str,
        encoding: PiecewiseLinearEncoding,
        n_members: int,
        n_outputs: int,
        scaling_rate: float,
        generator: torch.Generator,
        bias_bound: float | None,
    ) -> None:
        n_columns, n_numbers = encoding.n_columns, encoding.n_numbers
        n_waves = 2 * N_FREQUENCIES * n_numbers if view == "periodic" else 0
        n_started = n_columns + n_waves
        n_inputs = encoding.n_outputs if view == "bins" else n_started
        super().__init__(
            n_members, n_inputs, n_outputs, generator, bias_bound, n_started
        )
        self.view, self.n_columns, self.scaling_rate = view, n_columns, scaling_rate
        self.factor = self.frequency = None
        if scaling_rate:
            factor = torch.zeros(n_members, n_inputs, 1, dtype=torch.float32)
            self.factor = nn.Parameter(factor)
        if view == "periodic":
            shape = (n_members, n_numbers, N_FREQUENCIES)
            frequency = torch.empty(shape, dtype=torch.float32)
            frequency.normal_(0.0, FREQUENCY_SCALE, generator=generator)
            self.frequency = nn.Parameter(frequency)

    def forward(self, x: Tensor) -> Tensor:  # (n, p) or (k, n, p) → (k, n, n_outputs)
        """Apply the layer of each member to its view of encoded inputs."""
        x = x if x.ndim == 3 else x.expand(self.n_members, *x.shape)
        weight: Tensor = self.weight
        if self.factor is not None:
            # On the weights, which are fewer than the inputs.
            weight = weight * (1 + self.scaling_rate * self.factor)
        return _linear(self._inputs(x), weight, self.bias)

    def _inputs(self, x: Tensor) -> Tensor:  # (k, n, p) → (k, n, n_inputs)
        """What the members see of encoded inputs."""
        if self.frequency is None:
            return x[..., : self.weight.shape[1]]
        columns = x[..., : self.n_columns].mT  # (k, p, n)
        numbers = columns[:, : self.frequency.shape[1]]
        angle = (numbers.unsqueeze(2) * self.frequency.unsqueeze(-1)).flatten(1, 2)
        return torch.cat([columns, angle.sin(), angle.cos()], dim=1).mT


class LinearPart(nn.Module):
    """xᵀb + b₀ in the mean of all members, whose networks learn what it leaves."""

    weight: Tensor  # (p,)
    bias: Tensor  # ()

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:  # (..., p) → (...)
        """The line at x."""
        return x @ self.weight + self.bias


def fit_line(
    X: Tensor,  # (n, p)
    y: Tensor,  # (n,)
    weight: Tensor,  # (n,), of mean one
    instead: bool = False,  # of a constant, and not of a curve
) -> tuple[LinearPart, Tensor] | None:
    """The line of a ridge regression, and the residuals of rows left out, (n,).

    None unless a smooth function of all columns, by kernel ridge regression, predicts
    rows left out clearly worse, and has nothing to add to the line; instead of a
    constant: unless rows left out tell the line from it.
    """
    if len(X) > MAX_LINE_ROWS and not instead:
        return None
    root, n = weight.sqrt(), len(X)
    x_mean, y_mean = weight @ X / n, weight @ y / n
    centred, deviation = X - x_mean, y - y_mean
    vectors, singular, _ = torch.linalg.svd(root[:, None] * centred, False)
    left_out, dual = _left_out(singular.square(), vectors, deviation, root)
    slope, error = dual @ centred, weight @ left_out.square()
    if instead:
        told = 0.5 * n * (weight @ deviation.square() / error).log()
        wanted = bool(told > LITTLE_EVIDENCE)
    else:
        squares = torch.cdist(X, X).square()
        smooth = torch.exp(-squares / squares.median().clamp(min=1e-300))
        values, vectors = torch.linalg.eigh(root[:, None] * smooth * root)
        curve, _ = _left_out(values, vectors, deviation, root)
        rest, _ = _left_out(values, vectors, left_out, root)
        of_curve, of_both = (weight @ r.square() for r in (curve, rest))
        wanted = bool(of_curve >= CLEARLY_WORSE * error and of_both >= BETTER * error)
    return (LinearPart(slope, y_mean - slope @ x_mean), left_out) if wanted else None


def _left_out(
    values: Tensor,  # (r,), of the kernel matrix of rows times the roots of weights
    vectors: Tensor,  # (n, r)
    y: Tensor,  # (n,)
    root: Tensor,  # (n,), of the weights
) -> tuple[Tensor, Tensor]:
    """Kernel ridge regression: residuals of rows left out, and dual coefficients.

    Its penalty is best for rows left out: residuals over one minus the leverage.
    """
    along, squares = vectors.mT @ (root * y), vectors.square()
    found = []
    for penalty in PENALTIES:
        kept = values.clamp(min=0) / (values.clamp(min=0) + penalty)
        residual = root * y - vectors @ (kept * along)
        left_out = residual / (1 - squares @ kept)  # by the root of the weight
        dual = residual / penalty * root
        found.append((float(left_out.square().sum()), left_out / root, dual))
    _, residual, dual = min(found, key=lambda each: each[0])
    return residual, dual


class HeteroscedasticNetwork(nn.Module):
    """K networks that share no weights, each with a mean head and a noise head.

    h² = softplus(·) + variance_floor. Encoding, widths and floor are common. The
    members are divided among the views, which differ in the first layer only.
    """

    first: Sequence[FirstLayer]
    trunk: Sequence[BatchedLinear]

    def __init__(
        self,
        encoding: PiecewiseLinearEncoding,
        layer_sizes: Sequence[int],  # of the hidden layers; the last is d, that of φ
        n_members: int,
        variance_floor: float,
        generator: torch.Generator,
        views: Sequence[str] = ("bins",),
        scaling_rate: float = 0.0,
        bias_bound: float | None = 0.1,
    ) -> None:
        super().__init__()

        def layer(n_inputs: int, n_outputs: int) -> BatchedLinear:
            return BatchedLinear(n_members, n_inputs, n_outputs, generator, bias_bound)

        self.encoding = encoding
        # As many members for each view as for any other; the first views come first.
        counts = [len(range(i, n_members, len(views))) for i in range(len(views))]
        width = layer_sizes[0]
        self.first = nn.ModuleList(  # type: ignore[assignment]
            FirstLayer(view, encoding, n, width, scaling_rate, generator, bias_bound)
            for view, n in zip(views, counts, strict=True)
            if n
        )
        self.trunk = nn.ModuleList(  # type: ignore[assignment]
            layer(a, b) for a, b in pairwise(layer_sizes)
        )
        mean, noise = layer(layer_sizes[-1], 1), layer(layer_sizes[-1], 1)
        self.heads = mean  # one layer with two outputs: mean, and noise
        with torch.no_grad():
            for name, p in noise.named_parameters():
                both = torch.cat([mean.get_parameter(name), p], dim=-1)
                setattr(self.heads, name, nn.Parameter(both))
        self.layer_sizes = tuple(layer_sizes)
        self.variance_floor, self.scaling_rate = variance_floor, scaling_rate
        self.linear: LinearPart | None = None
        self.noise_factor = 1.0  # of h², by held-out rows, once the network is trained

    @property
    def n_members(self) -> int:
        """Number of members K."""
        return self.heads.n_members

    def features(self, x: Tensor) -> Tensor:
        """φ(x), shape (K, n, d), from encoded inputs of shape (n, p) or (K, n, p)."""
        parts = zip(self.first, self.members_by_view(), strict=True)
        seen = [f(x if x.ndim == 2 else x[part]) for f, part in parts]
        phi = seen[0] if len(seen) == 1 else torch.cat([z.mT for z in seen]).mT
        in_place = not torch.is_grad_enabled()
        phi = silu(phi, in_place)
        for layer in self.trunk:
            phi = silu(layer(phi), in_place)
        return phi

    def outputs(self, phi: Tensor) -> tuple[Tensor, Tensor]:
        """μ and h² from φ, each of shape (K, n)."""
        mu, raw = self.heads(phi).unbind(-1)
        return mu, (softplus(raw) + self.variance_floor) * self.noise_factor

    def forward(self, x: Tensor) -> Features:
        """φ, μ and h² of all members from one pass over (n, p) or (K, n, p) inputs."""
        phi = self.features(self.encoding(x))
        mu, h2 = self.outputs(phi)
        if self.linear is not None:
            mu = mu + self.linear(x)
        return Features(phi, mu, h2)

    def members_by_view(self) -> list[slice]:
        """Which members share each view."""
        ends = accumulate(first.n_members for first in self.first)
        return [slice(a, b) for a, b in pairwise([0, *ends])]

    def parameters_of_members(self) -> list[tuple[nn.Parameter, slice]]:
        """Each parameter, and the members to whom its first axis belongs."""
        parts = zip(self.first, self.members_by_view(), strict=True)
        found = [(p, part) for first, part in parts for p in first.parameters()]
        everyone = slice(0, self.n_members)
        common = [*self.trunk, self.heads]
        return found + [(p, everyone) for m in common for p in m.parameters()]

    def take(self, members: Sequence[int]) -> "HeteroscedasticNetwork":
        """A network of some members, in ascending order, with copies of their weights.

        It shares the encoding.
        """
        taken = copy.copy(self)
        taken._modules = dict(self._modules)
        first = []
        for layer, part in zip(self.first, self.members_by_view(), strict=True):
            own = [k - part.start for k in members if part.start <= k < part.stop]
            first += [layer.take(own)] if own else []
        taken.first = nn.ModuleList(first)  # type: ignore[assignment]
        trunk = [layer.take(members) for layer in self.trunk]
        taken.trunk = nn.ModuleList(trunk)  # type: ignore[assignment]
        taken.heads = self.heads.take(members)
        return taken

    def trained_weights(self) -> Tensor:
        """Trained weights of the mean, the bias last, shape (K, d + 1)."""
        both = torch.cat([self.heads.weight, self.heads.bias], dim=1)
        return both[..., 0].detach().clone()

    def rows_per_batch(self) -> int:
        """Number of rows to take through all members at a time."""
        widest = self.n_members * max(self.encoding.n_outputs, *self.layer_sizes)
        few = min(BATCH_ROWS, BATCH_ELEMENTS // widest)
        return max(32, few, min(WIDE_ROWS, WIDE_ELEMENTS // widest))

    def multiply_adds(self, n_rows: int) -> int:
        """Multiply-adds of one forward pass over so many rows of every member."""
        return n_rows * sum(p.numel() for p in self.parameters())
