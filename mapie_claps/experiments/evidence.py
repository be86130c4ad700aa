"""Estimates with standard errors from paired differences."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .methods import CONFIDENCE_LEVEL
from .runs import Row

# What counts as near: the paper's own marginal coverages lie up to 0.014 from 0.90.
NEAR_COVERAGE = 0.02
NEAR_RATIO = 0.05
CLEAR = 2.0  # standard errors
# Metrics that are differences already.
DIFFERENCES = ("score_difference", "relative_score", "width_reduction")


@dataclass(frozen=True)
class Estimate:
    """Mean over runs with its standard error."""

    mean: float
    se: float
    n: int
    signed: bool = False  # a difference, written with its sign

    @property
    def positive(self) -> bool:
        """Above zero by two standard errors."""
        return self.mean > 0 and self.mean >= CLEAR * self.se

    @property
    def negative(self) -> bool:
        """Below zero by two standard errors."""
        return self.mean < 0 and -self.mean >= CLEAR * self.se

    @property
    def not_negative(self) -> bool:
        """Has a standard error, and is not below zero by two of them."""
        return math.isfinite(self.se) and not self.negative

    def minus(self, constant: float) -> "Estimate":
        """Difference from a constant."""
        return Estimate(self.mean - constant, self.se, self.n, signed=True)

    def __str__(self) -> str:
        sign = "−" if self.mean < 0 else "+" if self.signed else ""
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


def estimate(found: Mapping[tuple[str, int], float], signed: bool = False) -> Estimate:
    """Mean over runs, given by case and seed.

    The cases are taken as given and the seeds as drawn: the standard error is that of
    a stratified sample, and what differs between data sets does not enter it. It is
    NaN, and no sign is clear, where a case has one seed only.
    """
    strata: dict[str, list[float]] = {}
    for (case, _), value in found.items():
        strata.setdefault(case, []).append(value)
    means = [np.mean(s) for s in strata.values()]
    variances = [
        np.var(s, ddof=1) / len(s) if len(s) > 1 else math.nan for s in strata.values()
    ]
    se = math.sqrt(sum(variances)) / len(strata)
    return Estimate(float(np.mean(means)), se, len(found), signed)


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
    found = values(rows, metric, **where)
    return estimate(found, signed=metric in DIFFERENCES)


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
    found = {key: transform(a[key], b[key]) for key in a if key in b}
    return estimate(found, signed=True)


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


def shortfall(found: Mapping[str, Estimate], sign: int) -> str:
    """Which differences are not clearly of the claimed sign, in words."""
    wrong = [name for name, e in found.items() if sign * e.mean <= 0]
    unclear = [
        name
        for name, e in found.items()
        if sign * e.mean > 0 and not (e.positive or e.negative)
    ]
    parts = []
    if wrong:
        parts.append(f"Not of the claimed sign: {', '.join(wrong)}.")
    if unclear:
        parts.append(
            "Of the claimed sign, but less than two standard errors from zero: "
            f"{', '.join(unclear)}."
        )
    return " ".join(parts)
