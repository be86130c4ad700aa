"""Coverage of test rows with its exact binomial limits, over all rows and by group."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import metrics
from .._validation import check_integer, check_share, raise_for
from ..conformal.explanation import Explanation

Array = NDArray[np.float64]


def coverage_interval(
    n_covered: int, n: int, confidence: float = 0.95
) -> tuple[float, float]:
    """Compute the exact binomial (Clopper–Pearson) interval of a coverage.

    Parameters
    ----------
    n_covered : int
        Rows inside their interval.
    n : int
        Rows.
    confidence : float, default=0.95
        Level of the interval.

    Returns
    -------
    tuple of float
        Lower and upper limit of the probability to cover.

    Examples
    --------
    >>> from mapie_claps.diagnostics import coverage_interval
    >>> [round(limit, 3) for limit in coverage_interval(90, 100)]
    [0.824, 0.951]
    """
    from scipy.stats import beta

    n = check_integer("n", n, low=1, hint="Count the rows.")
    k = check_integer("n_covered", n_covered, low=0, hint="Count the covered rows.")
    if k > n:
        raise_for("n_covered", k, f"at most n={n}", "Count the covered rows.")
    tail = (1 - check_share("confidence", confidence, hint="Use 0.95.")) / 2
    low = float(beta.ppf(tail, k, n - k + 1)) if k else 0.0
    high = float(beta.ppf(1 - tail, k + 1, n - k)) if k < n else 1.0
    return low, high


def coverage_limits(found: Array, n: int, confidence: float = 0.95) -> Array:
    """Binomial interval of each coverage of n rows, shape (len(found), 2)."""
    return np.array([coverage_interval(round(c * n), n, confidence) for c in found])


def group_columns(
    why: Explanation, y: Array, groups: ArrayLike | None, confidence: float
) -> dict[str, Any]:
    """Columns of ``summarise``."""
    bounds = np.stack([why.lower, why.upper], axis=1)
    if y.shape != (len(bounds),):
        raise ValueError(
            f"Got y of shape {y.shape} for {len(bounds)} rows of X, but expected one "
            "number per row. Pass the targets of these rows, as one column."
        )
    levels = np.asarray(why.confidence_level)
    masks, tables = _group_masks(groups, len(bounds)), []
    for _, mask in masks:
        inside, n = bounds[mask], int(mask.sum())
        found = metrics.coverage(y[mask], inside)
        limits = coverage_limits(found, n, confidence)
        columns: dict[str, Any] = {
            "confidence_level": levels,
            "n": n,
            "coverage": found,
            "coverage_low": limits[:, 0],
            "coverage_high": limits[:, 1],
            "width": metrics.mean_width(inside),
            "score": metrics.interval_score(y[mask], inside, levels),
        }
        for part in ("aleatoric", "epistemic", "epistemic_fraction"):
            columns[part] = getattr(why, part)[mask].mean()
        tables.append({k: np.broadcast_to(v, levels.shape) for k, v in columns.items()})
    # Labels keep their type: an array of "all" and numbers would make them strings.
    labels = [label for label, _ in masks for _ in levels]
    joined = {name: np.concatenate([t[name] for t in tables]) for name in tables[0]}
    return {"group": np.array(labels, dtype=object)} | joined


def _group_masks(
    groups: ArrayLike | None, n: int
) -> list[tuple[Any, NDArray[np.bool_]]]:
    """Rows of all groups together and of each."""
    masks: list[tuple[Any, NDArray[np.bool_]]] = [("all", np.ones(n, dtype=bool))]
    if groups is None:
        return masks
    labels = np.asarray(groups)
    if labels.shape != (n,):
        raise ValueError(
            f"Got groups of shape {labels.shape} for {n} rows, but expected one label "
            "per row. Pass for example a column of X."
        )
    missing = sum(map(_is_missing, labels.tolist()))
    if missing:
        raise ValueError(
            f"Got groups with {missing} missing labels (None, NaN or NA), but expected "
            "one label per row. Give these rows a label of their own."
        )
    return masks + [(label, labels == label) for label in _distinct(labels)]


def _is_missing(label: Any) -> bool:
    """None, or what does not equal itself: NaN, NaT, and NA, which answers with NA."""
    differs = label != label
    return label is None or not isinstance(differs, bool | np.bool_) or bool(differs)


def _distinct(labels: NDArray[Any]) -> list[Any]:
    """Labels in order; in that of their names where they have no common one."""
    try:
        return list(np.unique(labels).tolist())
    except TypeError:
        return sorted(set(labels.tolist()), key=str)
