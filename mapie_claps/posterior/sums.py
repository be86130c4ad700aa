"""HᵀWH and companions: all that fixes a posterior; those of disjoint rows add up."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..files.codec import saved_as
from ..network.hold_out import MAX_HELD_OUT_ROWS
from .moments import (
    FeatureRows,
    Moments,
    Squares,
    add_unweighted,
    fills_a_batch,
    sum_rows,
)

SumsOfRows = tuple[Moments, Moments | Squares]
LARGEST = 1e150  # its square, and sums of such squares, are numbers


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
        return len(self.rows)

    def sums(self, structure: str, homoscedastic: bool) -> SumsOfRows:
        """Sums over these rows, as of ``sum_rows``; made once."""
        made = self.__dict__.setdefault("_sums", {})
        key = structure, homoscedastic
        if key not in made:
            made[key] = sum_rows([self.rows], structure, homoscedastic)
        found: SumsOfRows = made[key]
        return found


@saved_as("sums", homoscedastic="plain")
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
    homoscedastic : Moments or Squares
        Sums with W = I; without HᵀH unless the scale "posterior" was asked for.
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
    homoscedastic: Moments | Squares
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
                "Got sums that belong to another network (or another variance head, or "
                "other units of X or y), but only sums of one network add up. Make "
                "them with partial_sums or sums_of of the estimator that is to use "
                "them, or of a copy of it."
            )

    def __add__(self, other: "LastLayerSums") -> "LastLayerSums":
        self.check_network(other.network)
        held_out, rest = _joined(self.held_out, other.held_out)
        both = LastLayerSums(
            self.moments + other.moments,
            add_unweighted(self.homoscedastic, other.homoscedastic),
            self.targets + other.targets,
            self.residuals + other.residuals,
            self.network,
            held_out,
        )
        return both if rest is None else both._with_rows(HeldOutRows(rest, None))

    def with_held_out(self) -> "LastLayerSums":
        """The same rows, all of them in the sums."""
        if self.held_out is None:
            return self
        return replace(self._with_rows(self.held_out), held_out=None)

    def _with_rows(self, rows: HeldOutRows) -> "LastLayerSums":
        """More rows in the sums, which the spreads know already."""
        has_gram = isinstance(self.homoscedastic, Moments)
        weighted, unweighted = rows.sums(self.moments.structure, has_gram)
        return replace(
            self,
            moments=self.moments + weighted,
            homoscedastic=add_unweighted(self.homoscedastic, unweighted),
        )


def _joined(
    a: HeldOutRows | None, b: HeldOutRows | None
) -> tuple[HeldOutRows | None, FeatureRows | None]:
    """Held-out rows of both, as many as may be, and the rest, if there is any."""
    both = a or b
    if a is not None and b is not None:
        if a.key is None or b.key is None:
            raise ValueError("Got held-out rows without keys, which cannot be merged.")
        rows = FeatureRows.concatenate([a.rows, b.rows])
        both = HeldOutRows(rows, torch.cat([a.key, b.key]))
    if both is None or both.key is None or len(both) <= MAX_HELD_OUT_ROWS:
        return both, None
    order = both.key.argsort()
    kept, rest = order[:MAX_HELD_OUT_ROWS], order[MAX_HELD_OUT_ROWS:]
    return HeldOutRows(both.rows.take(kept), both.key[kept]), both.rows.take(rest)


class SummedRows(NamedTuple):
    """Features of some rows, with what is summed beside them."""

    rows: FeatureRows
    target: Tensor  # (n,)
    residual: Tensor  # (n,), of the members' mean
    weight: Tensor  # (n,)
    key: Tensor | None = None  # (n,), None where no row is held out


def last_layer_sums(
    parts: Iterable[SummedRows],
    structure: str,
    network: str,
    fraction: float,
    homoscedastic: bool = True,
) -> LastLayerSums:
    """Sums over all parts. Rows with keys below fraction wait.

    Parts are gathered into batches that are worth a matrix product. Few rows are held
    out, and those with the smallest keys.
    """
    targets, residuals = Spread(), Spread()
    held_out: HeldOutRows | None = None

    def batches() -> Iterator[FeatureRows]:
        nonlocal targets, residuals, held_out
        for rows, target, residual, weight, key in _gathered(parts):
            targets += Spread.of(target, weight)
            residuals += Spread.of(residual, weight)
            if key is None:
                yield rows
                continue
            wait = key < fraction
            yield rows.take(wait.logical_not().nonzero().squeeze(1))
            out = wait.nonzero().squeeze(1)
            waiting = HeldOutRows(rows.take(out), key[out])
            held_out, rest = _joined(held_out, waiting)
            if rest is not None:
                yield rest

    moments = sum_rows(batches(), structure, homoscedastic)
    return LastLayerSums(*moments, targets, residuals, network, held_out)


def _gathered(parts: Iterable[SummedRows]) -> Iterator[SummedRows]:
    """Join small parts."""
    waiting: list[SummedRows] = []
    elements = 0
    for part in parts:
        waiting.append(part)
        elements += part.rows.phi.numel()
        if fills_a_batch(elements):
            yield _join(waiting)
            waiting, elements = [], 0
    if waiting:
        yield _join(waiting)


def _join(parts: list[SummedRows]) -> SummedRows:
    if len(parts) == 1:
        return parts[0]
    rows, *columns = zip(*parts, strict=True)
    joined = (None if c[0] is None else torch.cat(c) for c in columns)
    return SummedRows(FeatureRows.concatenate(list(rows)), *joined)  # type: ignore[arg-type]
