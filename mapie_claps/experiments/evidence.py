"""Estimates with standard errors from paired differences."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .methods import CONFIDENCE_LEVEL
from .runs import Row

# What counts as near: the paper's own marginal coverages lie up to 0.014 from 0.90.
NEAR_COVERAGE = 0.02
NEAR_RATIO = 0.05
CLEAR = 2.0  # standard errors


@dataclass(frozen=True)
class Estimate:
    """Mean over runs with its standard error."""

    mean: float
    se: float
    n: int

    @property
    def positive(self) -> bool:
        """Above zero by two standard errors."""
        return self.mean > 0 and self.mean >= CLEAR * self.se

    @property
    def negative(self) -> bool:
        """Below zero by two standard errors."""
        return self.mean < 0 and -self.mean >= CLEAR * self.se

    def __str__(self) -> str:
        sign = "−" if self.mean < 0 else "+"
        return f"{sign}{_digits(abs(self.mean))} ± {_digits(self.se)}"


def _digits(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.2f}"


@dataclass(frozen=True)
class Claim:
    """A statement of the paper and what our runs say about it."""

    source: str
    text: str
    figures: str
    holds: bool
    why: str = ""  # shown where the claim does not hold


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and standard error of independent values."""
    found = np.asarray(values, dtype=np.float64)
    se = float(found.std(ddof=1) / math.sqrt(len(found))) if len(found) > 1 else 0.0
    return Estimate(float(found.mean()), se, len(found))


def values(
    rows: Sequence[Row], metric: str, **where: Any
) -> dict[tuple[str, int], float]:
    """Metric by case and seed, of the rows that match."""
    return {
        (row["case"], row["seed"]): float(row[metric])
        for row in rows
        if all(row[k] == v for k, v in where.items())
    }


def mean(rows: Sequence[Row], metric: str, **where: Any) -> Estimate:
    """Mean of a metric over matching runs."""
    return estimate(list(values(rows, metric, **where).values()))


def paired(
    rows: Sequence[Row],
    metric: str,
    one: dict[str, Any],
    other: dict[str, Any],
    transform: Callable[[float, float], float] = lambda a, b: a - b,
    **where: Any,
) -> Estimate:
    """Difference between two settings, run by run."""
    a = values(rows, metric, **one, **where)
    b = values(rows, metric, **other, **where)
    return estimate([transform(a[key], b[key]) for key in a if key in b])


def relative(a: float, b: float) -> float:
    """Difference as a share of the second value."""
    return a / b - 1


def versus(
    rows: Sequence[Row], metric: str, one: str, other: str, **where: Any
) -> Estimate:
    """One method minus another, run by run."""
    return paired(rows, metric, {"method": one}, {"method": other}, **where)


def relative_to(
    rows: Sequence[Row], metric: str, one: str, other: str, **where: Any
) -> Estimate:
    """One method relative to another, run by run, as a share."""
    settings = {"method": one}, {"method": other}
    return paired(rows, metric, *settings, transform=relative, **where)


def near_nominal(found: Estimate) -> bool:
    """Whether a mean coverage is near 0.90."""
    return abs(found.mean - CONFIDENCE_LEVEL) <= NEAR_COVERAGE


def listed(parts: dict[str, Any]) -> str:
    """``name value; name value``."""
    return "; ".join(f"{name} {value}" for name, value in parts.items())
