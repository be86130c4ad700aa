"""φ, h² → HᵀWH: sums over rows for one W, made by laplace-torch.

Targets enter as residuals of the trained mean: a correction of the last layer is then
no difference of large numbers, whatever the units of y are.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from ..files.codec import saved_as
from .curvature import HeteroscedasticGGN
from .laplace_torch import laplace

# Elements of φ in one batch, few enough for the cache, and rows. Where φ is wide and
# few rows would fill it, as many rows as are worth a matrix product.
BATCH_ELEMENTS, BATCH_ROWS = 2**19, 2**12
WIDE_ELEMENTS, WIDE_ROWS = 2**22, 2**10
# Elements for one call of Laplace.fit, which has a price of its own; also times d².
FIT_ELEMENTS, FIT_SQUARES = 2**20, 8
NO_SECOND_GRAM = (
    "Got sums without HᵀH, which scale='posterior' and last_layer='ridge' need: a "
    "ClapsModule makes it only if one of them is set before the rows are summed. Set "
    "it and call fit again, or sum the rows again: "
    "with_sums(model, partial_sums(model, X, y))."
)


def rows_per_batch(widest: int) -> int:
    """Rows whose widest layer, of all members together, fills one batch."""
    return max(
        32,
        min(BATCH_ROWS, BATCH_ELEMENTS // widest),
        min(WIDE_ROWS, WIDE_ELEMENTS // widest),
    )


def fills_a_batch(elements: int) -> bool:
    """Whether φ of some rows is worth a matrix product."""
    return elements >= BATCH_ELEMENTS


@saved_as("rows")
@dataclass(frozen=True)
class FeatureRows:
    """What the posterior needs of some rows, for each of K members."""

    phi: Tensor  # (K, n, d)
    h2: Tensor  # (K, n)
    residual: Tensor  # (K, n), of the trained mean
    weight: Tensor  # (K, n), zero for rows that a member leaves out

    def __len__(self) -> int:
        return self.h2.shape[1]

    def homoscedastic(self) -> "FeatureRows":
        """The same rows with h² = 1."""
        return replace(self, h2=torch.ones_like(self.h2))

    def take(self, rows: Tensor) -> "FeatureRows":
        """Some of the rows, by their numbers."""
        return FeatureRows(*(t[:, rows] for t in self.tensors()))

    def tensors(self) -> tuple[Tensor, ...]:
        """All of them, rows along the second axis."""
        return self.phi, self.h2, self.residual, self.weight

    @staticmethod
    def concatenate(parts: list["FeatureRows"]) -> "FeatureRows":
        """Rows of all parts."""
        if len(parts) == 1:
            return parts[0]
        columns = zip(*map(FeatureRows.tensors, parts), strict=True)
        return FeatureRows(*(torch.cat(column, 1) for column in columns))


def structure_of(matrices: Tensor) -> str:
    """Whether (K, d + 1, d + 1) matrices are meant or (K, d + 1) diagonals."""
    return "diag" if matrices.ndim == 2 else "full"


@saved_as("moments")
@dataclass(frozen=True)
class Moments:
    """Sums over rows for one W; of disjoint sets of rows they add up."""

    gram: Tensor  # HᵀWH: (K, d + 1, d + 1), or (K, d + 1) for the diagonal structure
    cross: Tensor  # HᵀWr: (K, d + 1)
    loss: Tensor  # ½Σ s[r²/h² + log h²]: (K,)
    n_rows: int

    @property
    def structure(self) -> str:
        """Structure of HᵀWH, "full" or "diag"."""
        return structure_of(self.gram)

    def times(self, w: Tensor) -> Tensor:  # (K, d + 1) → (K, d + 1)
        """HᵀWH w for every member."""
        if self.structure == "diag":
            return self.gram * w
        return (self.gram @ w[..., None]).squeeze(-1)

    def loss_after(self, step: Tensor) -> Tensor:  # (K, d + 1) → (K,)
        """The loss, which is quadratic in the weights, a step away from the trained."""
        return self.loss + (step * (0.5 * self.times(step) - self.cross)).sum(-1)

    def __add__(self, other: "Moments") -> "Moments":
        return Moments(
            self.gram + other.gram,
            self.cross + other.cross,
            self.loss + other.loss,
            self.n_rows + other.n_rows,
        )

    def add_(self, other: "Moments") -> "Moments":
        """The sum of both, in the tensors of the first."""
        self.gram.add_(other.gram)
        self.cross.add_(other.cross)
        self.loss.add_(other.loss)
        return replace(self, n_rows=self.n_rows + other.n_rows)

    def __truediv__(self, noise_variance: float) -> "Moments":
        """Sums for h² = ``noise_variance`` from those for h² = 1 (but the loss)."""
        return replace(
            self, gram=self.gram / noise_variance, cross=self.cross / noise_variance
        )

    def in_units(self, unit: float, weight: float) -> "Moments":
        """Sums for residuals and noise in units of ``unit``."""
        if unit == 1.0:
            return self
        shift = weight * torch.tensor(unit, dtype=self.gram.dtype).log()
        return replace(
            self,
            gram=self.gram * unit**2,
            cross=self.cross * unit,
            loss=self.loss - shift,
        )


@saved_as("squares")
@dataclass(frozen=True)
class Squares:
    """What is left of sums with W = I where nobody asks for HᵀH."""

    loss: Tensor  # ½Σ s r²: (K,)
    n_rows: int

    @staticmethod
    def of(batches: list[FeatureRows]) -> "Squares":
        """Sums over some batches, with the roundings of ``Moments.loss``."""
        loss = torch.zeros(len(batches[0].h2), dtype=torch.float64)
        for batch in batches:
            for k, (r, s) in enumerate(zip(batch.residual, batch.weight, strict=True)):
                loss[k] += 0.5 * (r.square() @ s.sqrt().square())
        return Squares(loss, sum(map(len, batches)))


def sum_rows(
    batches: Iterable[FeatureRows], structure: str, homoscedastic: bool = True
) -> tuple[Moments, Moments | Squares]:
    """Sums with W = diag(1/h²) and with W = I from one pass.

    They come from ``laplace.Laplace`` with our curvature backend. Without
    ``homoscedastic`` the second HᵀWH, which costs as much as the first, is left out.
    """
    members: list[_Member] = []
    total: tuple[Moments, Moments | Squares] | None = None
    for group in _groups(batches):
        if not members:
            n_members, _, size = group[0].phi.shape
            members = [_Member(size, structure, k) for k in range(n_members)]
        weighted = _sum_group(members, group)
        unweighted: Moments | Squares = (
            _sum_group(members, [rows.homoscedastic() for rows in group])
            if homoscedastic
            else Squares.of(group)
        )
        if total is None:
            total = weighted, unweighted
        else:
            total = total[0].add_(weighted), add_unweighted(total[1], unweighted)
    if total is None:
        raise ValueError("Got X without rows, but expected at least one.")
    return total


def with_gram(unweighted: Moments | Squares) -> Moments:
    """Sums with W = I, if HᵀH is among them."""
    if isinstance(unweighted, Moments):
        return unweighted
    raise ValueError(NO_SECOND_GRAM)


def add_unweighted(a: Moments | Squares, b: Moments | Squares) -> Moments | Squares:
    """Sums with W = I of disjoint rows; HᵀH only where both have it."""
    if isinstance(a, Moments) and isinstance(b, Moments):
        return a + b
    return Squares(a.loss + b.loss, a.n_rows + b.n_rows)


def _sum_group(members: list["_Member"], batches: list[FeatureRows]) -> Moments:
    """Sums of all members over some batches."""
    parts = zip(*(member.sums(batches) for member in members), strict=True)
    gram, cross, loss = (torch.stack(part) for part in parts)
    return Moments(gram, cross, loss, sum(map(len, batches)))


def _groups(batches: Iterable[FeatureRows]) -> Iterator[list[FeatureRows]]:
    """Some batches at a time."""
    group: list[FeatureRows] = []
    for batch in batches:
        group.append(batch)
        worth = min(WIDE_ELEMENTS, FIT_SQUARES * batch.phi.shape[2] ** 2)
        elements = sum(b.phi.numel() + 3 * b.h2.numel() for b in group)
        if elements >= max(FIT_ELEMENTS, worth):
            yield group
            group = []
    if group:
        yield group


def laplace_of(
    weights: Tensor, structure: str, **backend_kwargs: object
) -> laplace.BaseLaplace:
    """laplace-torch's last-layer Laplace of one member, with our likelihood.

    What it sees of the member is its last layer alone, on features.
    """
    # Without initial weights: the global generator is not ours to draw from.
    head = skip_init(nn.Linear, len(weights) - 1, 1, dtype=weights.dtype)
    head.load_state_dict({"weight": weights[None, :-1], "bias": weights[-1:]})
    return laplace.Laplace(
        nn.Sequential(head),
        "regression",
        subset_of_weights="last_layer",
        hessian_structure=structure,
        last_layer_name="0",
        backend=HeteroscedasticGGN,
        backend_kwargs=backend_kwargs,
    )


class _Member:
    """One member's last layer in laplace-torch, asked for sums again and again.

    It is the loader of its own batches: torch's DataLoader collates row by row, which
    costs ten times the Gram matrix.
    """

    def __init__(self, size: int, structure: str, k: int) -> None:
        zero = torch.zeros(size + 1, dtype=torch.float64)  # what is left to correct
        self._k, self._cross = k, zero.clone()
        self._batches: list[FeatureRows] = []
        self._la = laplace_of(zero, structure, cross_moment=self._cross)

    @property
    def dataset(self) -> range:
        """Something as long as there are rows."""
        return range(sum(map(len, self._batches)))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self._batches:
            columns = (batch.residual, batch.weight, batch.h2)
            targets = torch.stack([column[self._k] for column in columns])
            yield batch.phi[self._k], targets.T

    def sums(self, batches: list[FeatureRows]) -> tuple[Tensor, Tensor, Tensor]:
        """HᵀWH, HᵀWr and the loss over some batches."""
        self._batches = batches
        self._cross.zero_()
        self._la.fit(self)  # begins again with each call
        return self._la.H, self._cross.clone(), self._la.loss
