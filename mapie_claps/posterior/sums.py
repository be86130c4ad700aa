"""φ, h² → HᵀWH: sums over rows that fix a posterior; those of disjoint rows add up.

Targets enter as residuals of the trained mean: a correction of the last layer is then
no difference of large numbers, whatever the units of y are.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import laplace
import torch
from torch import Tensor, nn

from ..files.codec import saved_as
from ..network.hold_out import MAX_HELD_OUT_ROWS
from .curvature import HeteroscedasticGGN

__all__ = ["LastLayerSums"]

LARGEST = 1e150  # its square, and sums of such squares, are numbers
# Elements of φ in one batch, few enough for the cache, and rows. Where φ is wide and
# few rows would fill it, as many rows as are worth a matrix product.
BATCH_ELEMENTS, BATCH_ROWS = 2**19, 2**12
WIDE_ELEMENTS, WIDE_ROWS = 2**22, 2**10
# Elements for one call of Laplace.fit, which has a price of its own; also times d².
FIT_ELEMENTS, FIT_SQUARES = 2**20, 8


def rows_per_batch(widest: int) -> int:
    """Rows whose widest layer, of all members together, fills one batch."""
    return max(
        32,
        min(BATCH_ROWS, BATCH_ELEMENTS // widest),
        min(WIDE_ROWS, WIDE_ELEMENTS // widest),
    )


@saved_as("rows")
@dataclass(frozen=True)
class FeatureRows:
    """What the posterior needs of some rows, for each of K members."""

    phi: Tensor  # (K, n, d)
    h2: Tensor  # (K, n)
    residual: Tensor  # (K, n), of the trained mean
    weight: Tensor  # (K, n), zero for rows that a member leaves out

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


@saved_as("spread")
@dataclass(frozen=True)
class Spread:
    """Weight, mean and sum of squared deviations of one number per row."""

    weight: float = 0.0
    mean: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, values: Tensor, weight: Tensor) -> "Spread":  # (n,), (n,)
        """Sums of one batch."""
        total = float(weight.sum())
        if total == 0:
            return cls()
        if float(values.abs().max()) > LARGEST:
            raise ValueError(
                "Got y whose values overflow when squared. Divide them by a constant, "
                "for example 1e100, or leave these rows out."
            )
        mean = float((weight * values).sum()) / total
        return cls(total, mean, float((weight * (values - mean).square()).sum()))

    def __add__(self, other: "Spread") -> "Spread":
        weight = self.weight + other.weight
        if weight == 0:
            return self
        step = other.mean - self.mean
        return Spread(
            weight,
            self.mean + step * (other.weight / weight),
            self.squares
            + other.squares
            + step**2 * (self.weight * other.weight / weight),
        )

    @property
    def variance(self) -> float:
        """Population variance."""
        return self.squares / self.weight if self.weight else 0.0

    @property
    def mean_square(self) -> float:
        """Mean of the squares about zero."""
        return self.variance + self.mean**2


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


@saved_as("held-out rows")
@dataclass(frozen=True)
class HeldOutRows:
    """Rows kept apart to choose λ on.

    Those of a user's network are the ones with the smallest keys, so that parts can be
    merged; members of ``ClapsRegressor`` hold out rows of their own, without keys.
    """

    rows: FeatureRows
    key: Tensor | None  # (n,)

    def __len__(self) -> int:
        return self.rows.h2.shape[1]

    def limited(self) -> tuple["HeldOutRows", FeatureRows | None]:
        """As many rows as may be held out, and the rest, if there is any."""
        if self.key is None or len(self) <= MAX_HELD_OUT_ROWS:
            return self, None
        order = self.key.argsort()
        kept, rest = order[:MAX_HELD_OUT_ROWS], order[MAX_HELD_OUT_ROWS:]
        return HeldOutRows(self.rows.take(kept), self.key[kept]), self.rows.take(rest)


@saved_as("sums")
@dataclass(frozen=True)
class LastLayerSums:
    r"""Sums over rows from which a last layer's posterior is made, whatever λ is.

    :math:`H^\top W H`, :math:`H^\top W r` with the residuals r of the trained mean, and
    companions: a few (d + 1)² numbers however many rows there were. ``a + b`` holds for
    the rows of both; ``n_rows`` says how many those are. Sums belong to one network,
    whose fingerprint they carry: sums of another network are refused.

    Parameters
    ----------
    moments : Moments
        Sums with W = diag(1/h²).
    plain : Moments
        Sums with W = I.
    targets : Spread
        Weight, mean and squared deviations of the targets.
    residuals : Spread
        The same of the residuals of the members' mean, the one in use when the rows
        were summed.
    network : str
        Fingerprint of the network that the sums belong to.
    held_out : HeldOutRows or None, default=None
        Rows not in the sums, for ``prior_precision="grid"``.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from mapie_claps import ClapsModule
    >>> X, y = np.linspace(-1, 1, 40).reshape(20, 2), np.linspace(0, 1, 20)
    >>> model = ClapsModule(torch.nn.Linear(2, 1), prior_precision=1.0).fit(X, y)
    >>> both = model.partial_sums(X[:12], y[:12]) + model.partial_sums(X[12:], y[12:])
    >>> both.n_rows, np.allclose(both.moments.gram, model.sums_.moments.gram)
    (20, True)
    """

    moments: Moments
    plain: Moments
    targets: Spread
    residuals: Spread
    network: str
    held_out: HeldOutRows | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows, those held out included."""
        held_out = 0 if self.held_out is None else len(self.held_out)
        return self.moments.n_rows + held_out

    def check_network(self, network: str) -> None:
        """Raise unless the sums belong to the network of this fingerprint."""
        if self.network != network:
            raise ValueError(
                "Got sums that belong to another network (or another variance head), "
                "but only sums of one network add up. Make them with partial_sums or "
                "sums_of of the estimator that is to use them, or of a copy of it."
            )

    def __add__(self, other: "LastLayerSums") -> "LastLayerSums":
        self.check_network(other.network)
        held_out, rest = _joined(self.held_out, other.held_out)
        both = LastLayerSums(
            self.moments + other.moments,
            self.plain + other.plain,
            self.targets + other.targets,
            self.residuals + other.residuals,
            self.network,
            held_out,
        )
        return both if rest is None else both._with_rows(rest)

    def with_held_out(self) -> "LastLayerSums":
        """The same rows, all of them in the sums."""
        if self.held_out is None:
            return self
        return replace(self._with_rows(self.held_out.rows), held_out=None)

    def _with_rows(self, rows: FeatureRows) -> "LastLayerSums":
        """More rows in the sums, which the spreads know already."""
        more = sum_rows([rows], self.moments.structure)
        if more is None:
            return self
        moments, plain = self.moments + more[0], self.plain + more[1]
        return replace(self, moments=moments, plain=plain)


def _joined(
    a: HeldOutRows | None, b: HeldOutRows | None
) -> tuple[HeldOutRows | None, FeatureRows | None]:
    """Held-out rows of both, and those beyond the limit."""
    if a is None or b is None:
        return a or b, None
    if a.key is None or b.key is None:
        raise ValueError("Got held-out rows without keys, which cannot be merged.")
    rows = FeatureRows.concatenate([a.rows, b.rows])
    return HeldOutRows(rows, torch.cat([a.key, b.key])).limited()


@dataclass(frozen=True)
class SummedRows:
    """Features of some rows, with what is summed beside them."""

    rows: FeatureRows
    target: Tensor  # (n,)
    residual: Tensor  # (n,), of the members' mean
    weight: Tensor  # (n,)
    key: Tensor | None = None  # (n,), None where no row is held out


def last_layer_sums(
    parts: Iterable[SummedRows], structure: str, network: str, fraction: float
) -> LastLayerSums | None:
    """Sums over all parts; None if there is none. Rows with keys below fraction wait.

    Parts are gathered into batches that are worth a matrix product.
    """
    splitter = _HoldOutSplitter(fraction)
    moments = sum_rows(splitter.batches(_gathered(parts)), structure)
    if moments is None:
        return None
    weighted, plain = moments
    spreads = splitter.targets, splitter.residuals
    return LastLayerSums(weighted, plain, *spreads, network, splitter.held_out)


class _HoldOutSplitter:
    """One pass over the rows: what goes into the sums, and what is seen beside it."""

    def __init__(self, fraction: float) -> None:
        self.fraction = fraction
        self.targets, self.residuals = Spread(), Spread()
        self.held_out: HeldOutRows | None = None

    def batches(self, parts: Iterable[SummedRows]) -> Iterator[FeatureRows]:
        """Rows for the sums; few are held out, and those with the smallest keys."""
        for part in parts:
            self.targets += Spread.of(part.target, part.weight)
            self.residuals += Spread.of(part.residual, part.weight)
            if part.key is None:
                yield part.rows
                continue
            wait = part.key < self.fraction
            yield part.rows.take(wait.logical_not().nonzero().squeeze(1))
            out = wait.nonzero().squeeze(1)
            waiting = HeldOutRows(part.rows.take(out), part.key[out])
            self.held_out, rest = _joined(self.held_out, waiting)
            if rest is None and self.held_out is not None:
                self.held_out, rest = self.held_out.limited()
            if rest is not None:
                yield rest


def _gathered(parts: Iterable[SummedRows]) -> Iterator[SummedRows]:
    """Join small parts."""
    waiting: list[SummedRows] = []
    elements = 0
    for part in parts:
        waiting.append(part)
        elements += part.rows.phi.numel()
        if elements >= BATCH_ELEMENTS:
            yield _join(waiting)
            waiting, elements = [], 0
    if waiting:
        yield _join(waiting)


def _join(parts: list[SummedRows]) -> SummedRows:
    if len(parts) == 1:
        return parts[0]
    keys = [p.key for p in parts if p.key is not None]
    return SummedRows(
        FeatureRows.concatenate([p.rows for p in parts]),
        torch.cat([p.target for p in parts]),
        torch.cat([p.residual for p in parts]),
        torch.cat([p.weight for p in parts]),
        torch.cat(keys) if keys else None,
    )


def sum_rows(
    batches: Iterable[FeatureRows], structure: str, plain: bool = True
) -> tuple[Moments, ...] | None:
    """Sums with W = diag(1/h²) and with W = I from one pass; None without a batch.

    They come from ``laplace.Laplace`` with our curvature backend.
    """
    members: list[_Member] = []
    total: tuple[Moments, ...] | None = None
    for group in _groups(batches):
        if not members:
            n_members, _, size = group[0].phi.shape
            members = [_Member(size, structure, k) for k in range(n_members)]
        sums = [_sum_group(members, group)]
        if plain:
            sums += [_sum_group(members, [rows.homoscedastic() for rows in group])]
        total = tuple(sums) if total is None else tuple(map(Moments.add_, total, sums))
    return total


def _sum_group(members: list["_Member"], batches: list[FeatureRows]) -> Moments:
    """Sums of all members over some batches."""
    parts = zip(*(member.sums(batches) for member in members), strict=True)
    gram, cross, loss = (torch.stack(part) for part in parts)
    return Moments(gram, cross, loss, sum(b.h2.shape[1] for b in batches))


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


class _LastLayer(nn.Linear):
    def reset_parameters(self) -> None:
        """Not: weights are given, and the global generator is not ours to draw from."""


class _Head(nn.Module):
    """A last layer alone, on features: what laplace-torch sees of a member."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.mean_head = _LastLayer(len(weights) - 1, 1, dtype=weights.dtype)
        with torch.no_grad():
            self.mean_head.weight.copy_(weights[None, :-1])
            self.mean_head.bias.copy_(weights[-1:])

    def forward(self, phi: Tensor) -> Tensor:  # (n, d) → (n, 1)
        out: Tensor = self.mean_head(phi)
        return out


def laplace_of(
    weights: Tensor, structure: str, **backend_kwargs: object
) -> laplace.BaseLaplace:
    """laplace-torch's last-layer Laplace of one member, with our likelihood."""
    return laplace.Laplace(
        _Head(weights),
        "regression",
        subset_of_weights="last_layer",
        hessian_structure=structure,
        last_layer_name="mean_head",
        backend=HeteroscedasticGGN,
        backend_kwargs=backend_kwargs,
    )


class _Loader:
    """Batches as one member sees them, and what laplace-torch asks of a loader.

    torch's DataLoader collates row by row, which costs ten times the Gram matrix.
    """

    def __init__(self, k: int) -> None:
        self.k = k
        self.batches: list[FeatureRows] = []

    @property
    def dataset(self) -> range:
        """Something as long as there are rows."""
        return range(sum(batch.h2.shape[1] for batch in self.batches))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self.batches:
            columns = (batch.residual, batch.weight, batch.h2)
            targets = torch.stack([column[self.k] for column in columns])
            yield batch.phi[self.k], targets.T


class _Member:
    """One member's last layer in laplace-torch, asked for sums again and again."""

    def __init__(self, size: int, structure: str, k: int) -> None:
        zero = torch.zeros(size + 1, dtype=torch.float64)  # what is left to correct
        self._cross = zero.clone()
        self._loader = _Loader(k)
        self._la = laplace_of(zero, structure, cross_moment=self._cross)

    def sums(self, batches: list[FeatureRows]) -> tuple[Tensor, Tensor, Tensor]:
        """HᵀWH, HᵀWr and the loss over some batches."""
        self._loader.batches = batches
        self._cross.zero_()
        self._la.fit(self._loader)  # begins again with each call
        return self._la.H, self._cross.clone(), self._la.loss
