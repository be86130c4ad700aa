"""Sums over rows that fix a posterior; those of disjoint sets of rows add up."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor

from ..network.defaults import MAX_HELD_OUT_ROWS
from .gaussian import (
    BATCH_ELEMENTS,
    FeatureBatch,
    LastLayerMoments,
    both_moments,
)

__all__ = ["LastLayerSums"]

LARGEST = 1e150  # its square, and sums of such squares, are numbers


@dataclass(frozen=True)
class Spread:
    """Weight, mean and sum of squared deviations of one number per row."""

    weight: float = 0.0
    mean: float = 0.0
    squares: float = 0.0

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


def spread_of(values: Tensor, weight: Tensor) -> Spread:  # (n,), (n,)
    """Sums of one batch."""
    total = float(weight.sum())
    if total == 0:
        return Spread()
    if float(values.abs().max()) > LARGEST:
        raise ValueError(
            "Got y whose values overflow when squared. Divide them by a constant, for "
            "example 1e100, or leave these rows out."
        )
    mean = float((weight * values).sum()) / total
    return Spread(total, mean, float((weight * (values - mean).square()).sum()))


@dataclass(frozen=True)
class HeldOutRows:
    """Rows kept apart to choose λ on: those with the smallest keys."""

    batch: FeatureBatch
    key: Tensor  # (n,)

    def __len__(self) -> int:
        return len(self.key)


@dataclass(frozen=True)
class LastLayerSums:
    r"""Sums over rows from which a last layer's posterior is made, whatever λ is.

    :math:`H^\top W H`, :math:`H^\top W y` and companions, a few (d + 1)² numbers
    however many rows there were. ``a + b`` holds for the rows of both; ``n_rows`` says
    how many those are. Sums belong to one network: only sums of estimators with the
    same fixed network (and variance head) may be added.

    Parameters
    ----------
    moments : LastLayerMoments
        Sums with W = diag(1/h²).
    plain : LastLayerMoments
        Sums with W = I.
    spread : Spread
        Weight, mean and squared deviations of the targets (``ClapsModule``) or of the
        residuals (``ClapsRegressor``).
    held_out : HeldOutRows or None, default=None
        At most 4,000 rows, not in the sums, for ``prior_precision="grid"``.

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

    moments: LastLayerMoments
    plain: LastLayerMoments
    spread: Spread
    held_out: HeldOutRows | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows, those held out included."""
        held_out = 0 if self.held_out is None else len(self.held_out)
        return self.moments.n_rows + held_out

    def __add__(self, other: "LastLayerSums") -> "LastLayerSums":
        if self.moments.gram.shape != other.moments.gram.shape:
            raise ValueError(
                f"Got sums of shapes {tuple(self.moments.gram.shape)} and "
                f"{tuple(other.moments.gram.shape)}, but only sums of one network add "
                "up."
            )
        both = LastLayerSums(
            self.moments + other.moments,
            self.plain + other.plain,
            self.spread + other.spread,
            _joined(self.held_out, other.held_out),
        )
        return both._trimmed()

    def _trimmed(self) -> "LastLayerSums":
        """Move held-out rows beyond the limit into the sums."""
        kept, rest = _limited(self.held_out)
        if rest is None:
            return self
        more = sums_of_batch(rest, self.structure)
        return LastLayerSums(
            self.moments + more[0], self.plain + more[1], self.spread, kept
        )

    @property
    def structure(self) -> str:
        """Structure of HᵀWH."""
        return "diag" if self.moments.gram.ndim == 2 else "full"

    def with_held_out(self) -> "LastLayerSums":
        """The same rows, all of them in the sums."""
        if self.held_out is None:
            return self
        more = sums_of_batch(self.held_out.batch, self.structure)
        return LastLayerSums(self.moments + more[0], self.plain + more[1], self.spread)


def _rows(batch: FeatureBatch, rows: Tensor) -> FeatureBatch:
    return FeatureBatch(
        batch.phi[:, rows], batch.h2[:, rows], batch.y[:, rows], batch.weight[:, rows]
    )


def concatenated(batches: list[FeatureBatch]) -> FeatureBatch:
    """Batches as one."""
    if len(batches) == 1:
        return batches[0]
    return FeatureBatch(
        torch.cat([b.phi for b in batches], 1),
        torch.cat([b.h2 for b in batches], 1),
        torch.cat([b.y for b in batches], 1),
        torch.cat([b.weight for b in batches], 1),
    )


def _joined(a: HeldOutRows | None, b: HeldOutRows | None) -> HeldOutRows | None:
    if a is None or b is None:
        return a or b
    return HeldOutRows(concatenated([a.batch, b.batch]), torch.cat([a.key, b.key]))


@dataclass(frozen=True)
class ResidualRows:
    """Features of some rows, their residuals as ``batch.y``, targets and keys."""

    batch: FeatureBatch  # K = 1; y is the residual of the trained mean
    y: Tensor  # (n,)
    key: Tensor | None  # (n,), None where no row is held out


def sums_of_batch(
    batch: FeatureBatch, structure: str
) -> tuple[LastLayerMoments, LastLayerMoments]:
    """Both sums for residuals: what is left for a correction of the last layer."""
    zero = batch.phi.new_zeros(1, batch.phi.shape[2] + 1)
    return both_moments([batch], zero, structure)


def residual_sums(
    parts: Iterable[ResidualRows], structure: str, fraction: float
) -> LastLayerSums | None:
    """Sums over all parts; None if there is none. Rows with keys below fraction wait.

    Parts are gathered into batches that are worth a matrix product.
    """
    walk = _Walk(fraction)
    batches = walk.batches(_gathered(parts))
    first = next(batches, None)
    if first is None:
        return None
    zero = first.phi.new_zeros(1, first.phi.shape[2] + 1)
    moments, plain = both_moments(chain([first], batches), zero, structure)
    return LastLayerSums(moments, plain, walk.spread, walk.held_out)


class _Walk:
    """One walk over the rows: what goes into the sums, and what is seen beside it."""

    def __init__(self, fraction: float) -> None:
        self.fraction, self.spread = fraction, Spread()
        self.held_out: HeldOutRows | None = None

    def batches(self, parts: Iterable[ResidualRows]) -> Iterator[FeatureBatch]:
        """Rows for the sums; few are held out, and those with the smallest keys."""
        for rows in parts:
            self.spread += spread_of(rows.y, rows.batch.weight[0])
            if rows.key is None:
                yield rows.batch
                continue
            wait = rows.key < self.fraction
            yield _rows(rows.batch, wait.logical_not().nonzero().squeeze(1))
            out = wait.nonzero().squeeze(1)
            waiting = HeldOutRows(_rows(rows.batch, out), rows.key[out])
            self.held_out, rest = _limited(_joined(self.held_out, waiting))
            if rest is not None:
                yield rest


def _limited(
    held_out: HeldOutRows | None,
) -> tuple[HeldOutRows | None, FeatureBatch | None]:
    """As many rows as may be held out, and the rest, if there is any."""
    if held_out is None or len(held_out) <= MAX_HELD_OUT_ROWS:
        return held_out, None
    order = held_out.key.argsort()
    kept, rest = order[:MAX_HELD_OUT_ROWS], order[MAX_HELD_OUT_ROWS:]
    return (
        HeldOutRows(_rows(held_out.batch, kept), held_out.key[kept]),
        _rows(held_out.batch, rest),
    )


def _gathered(parts: Iterable[ResidualRows]) -> Iterator[ResidualRows]:
    """Join small parts."""
    waiting: list[ResidualRows] = []
    elements = 0
    for part in parts:
        waiting.append(part)
        elements += part.batch.phi.numel()
        if elements >= BATCH_ELEMENTS:
            yield _join_rows(waiting)
            waiting, elements = [], 0
    if waiting:
        yield _join_rows(waiting)


def _join_rows(parts: list[ResidualRows]) -> ResidualRows:
    keys = [p.key for p in parts if p.key is not None]
    return ResidualRows(
        concatenated([p.batch for p in parts]),
        torch.cat([p.y for p in parts]),
        torch.cat(keys) if keys else None,
    )


def in_units(
    moments: LastLayerMoments, trained: Tensor, unit: float, weight: float
) -> LastLayerMoments:
    """Sums for standardised targets from those for residuals.

    With y = μ + r, standardised weights ``trained`` (K, d + 1) and h²/unit², HᵀWy is
    unit · HᵀWr + HᵀWH · trained: no difference of large numbers.
    """
    gram = moments.gram * unit**2
    if gram.ndim == 2:
        along = gram * trained
    else:
        along = (gram @ trained[..., None]).squeeze(-1)
    shift = weight * torch.tensor(unit, dtype=gram.dtype).log()
    return replace(
        moments,
        gram=gram,
        cross=moments.cross * unit + along,
        loss=moments.loss - shift,
    )
