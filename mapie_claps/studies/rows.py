"""Rows of finished runs: some of them, and pairs of the same split."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from operator import sub, truediv
from typing import Any

from .store import Row


def values_of(rows: Sequence[Row], field: str) -> list[Any]:
    """Different values of a field, in the order of the rows.

    Examples
    --------
    >>> values_of([{"seed": 1}, {"seed": 0}, {"seed": 1}], "seed")
    [1, 0]
    """
    return list(dict.fromkeys(row[field] for row in rows))


def where(rows: Sequence[Row], /, **fields: Any) -> list[Row]:
    """Rows that have the given values."""
    wanted = fields.items()
    return [row for row in rows if all(row[name] == value for name, value in wanted)]


def grouped(rows: Sequence[Row], *fields: str) -> dict[tuple[Any, ...], list[Row]]:
    """Rows by their values of some fields, the last of which changes fastest."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in fields), []).append(row)
    order = product(*(values_of(rows, name) for name in fields))
    return {values: found[values] for values in order if values in found}


def by_dataset(rows: Sequence[Row], field: str) -> dict[str, list[float]]:
    """Values of a field, one for each seed, by data set."""
    groups = grouped(rows, "dataset")
    return {name: [row[field] for row in found] for (name,), found in groups.items()}


def _paired(
    compare: Callable[[float, float], float],
    rows: Sequence[Row],
    others: Sequence[Row],
    field: str,
) -> dict[str, list[float]]:
    """Compare rows with others of the same data set and seed, by data set.

    Examples
    --------
    >>> ours = [{"dataset": "a", "seed": s, "score": 2.0} for s in (0, 1)]
    >>> others = [{"dataset": "a", "seed": 1, "score": 4.0}]
    >>> paired_ratios(ours, others, "score"), paired_differences(ours, others, "score")
    ({'a': [0.5]}, {'a': [-2.0]})
    """
    known = {(row["dataset"], row["seed"]): row[field] for row in others}
    found: dict[str, list[float]] = {}
    for row in rows:
        dataset, seed = row["dataset"], row["seed"]
        if (dataset, seed) in known:
            value = compare(row[field], known[dataset, seed])
            found.setdefault(dataset, []).append(value)
    return found


paired_ratios = partial(_paired, truediv)
paired_differences = partial(_paired, sub)
