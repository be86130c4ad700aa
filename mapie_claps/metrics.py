r"""interval → evaluation: what MAPIE's metrics lack.

``y_interval`` is what ``predict_interval`` returns, of shape (n, 2, n_levels), or
(n, 2) for one level; results have one entry per level. Bounds may be infinite, which
MAPIE's own metrics refuse. An interval whose ends are swapped is empty: it covers
nothing and has width 0, and a :class:`~mapie_claps.exceptions.CrossedBoundsWarning`
says how many there are. NumPy only. For quantiles see scikit-learn's
``mean_pinball_loss``.
"""

import math
import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._validation import check_real, check_share, raise_for
from .exceptions import CrossedBoundsWarning

__all__ = [
    "coverage",
    "coverage_interval",
    "crps",
    "evaluate_intervals",
    "interval_score",
    "mean_width",
    "neg_predictive_nll",
    "predictive_nll",
]

Array = NDArray[np.float64]
SHAPES = {1: "one number per row", 2: "(n, m)", 3: "(n, 2, n_levels) or (n, 2)"}


def coverage(y: ArrayLike, y_interval: ArrayLike) -> Array:
    """Share of targets inside their interval, the bounds included.

    Parameters
    ----------
    y, y_interval : array-like of shape (n,) and (n, 2, n_levels) or (n, 2)
        Targets, and lower and upper bounds.

    Returns
    -------
    ndarray of shape (n_levels,)
        Coverages.

    Examples
    --------
    >>> from mapie_claps.metrics import coverage
    >>> coverage([0.0, 5.0], [[-1.0, 1.0], [2.0, 3.0]])
    array([0.5])
    """
    return _means(figures_by_row(y, y_interval, 0.9))["coverage"]


def mean_width(y_interval: ArrayLike) -> Array:
    """Mean of upper − lower; infinite if one interval is.

    Parameters
    ----------
    y_interval : array-like of shape (n, 2, n_levels) or (n, 2)
        Lower and upper bounds.

    Returns
    -------
    ndarray of shape (n_levels,)
        Mean widths.

    Examples
    --------
    >>> from mapie_claps.metrics import mean_width
    >>> mean_width([[-1.0, 1.0], [2.0, 6.0]])
    array([3.])
    """
    no_y = np.zeros(np.shape(y_interval)[:1])
    return _means(figures_by_row(no_y, y_interval, 0.9))["width"]


def interval_score(
    y: ArrayLike, y_interval: ArrayLike, confidence_level: ArrayLike
) -> Array:
    r"""Mean interval score (Winkler), lower is better.

    :math:`u - l + \frac{2}{\alpha}(l - y)_+ + \frac{2}{\alpha}(y - u)_+`, also where
    ends are swapped.

    Parameters
    ----------
    y, y_interval : array-like of shape (n,) and (n, 2, n_levels) or (n, 2)
        Targets, and lower and upper bounds.
    confidence_level : float or array-like of shape (n_levels,)
        1 − α of each level.

    Returns
    -------
    ndarray of shape (n_levels,)
        Mean scores; infinite where an interval is.

    Examples
    --------
    >>> from mapie_claps.metrics import interval_score
    >>> interval_score([0.0, 5.0], [[-1.0, 1.0], [2.0, 4.0]], 0.8)
    array([7.])
    """
    return _means(figures_by_row(y, y_interval, confidence_level))["score"]


def evaluate_intervals(
    y: ArrayLike,
    y_interval: ArrayLike,
    confidence_level: ArrayLike,
    *,
    groups: ArrayLike | None = None,
) -> dict[str, NDArray[Any]]:
    """Coverage, width and interval score, over all rows and in each group.

    Parameters
    ----------
    y, y_interval : array-like of shape (n,) and (n, 2, n_levels) or (n, 2)
        Targets, and lower and upper bounds.
    confidence_level : float or array-like of shape (n_levels,)
        1 − α of each level.
    groups : array-like of shape (n,), optional
        Label of the group of each row; ``pd.qcut(x, 8)`` gives bins of a number.

    Returns
    -------
    dict of ndarray
        A table with one entry per group and level: ``group`` ("all" first), ``n``,
        ``confidence_level``, ``coverage``, ``width``, ``score``, ``crossed`` (intervals
        with swapped ends), ``coverage_low`` and ``coverage_high``.

    Examples
    --------
    >>> from mapie_claps.metrics import evaluate_intervals
    >>> y_interval = [[-1.0, 1.0], [-1.0, 1.0], [-2.0, 2.0]]
    >>> found = evaluate_intervals([0.0, 2.0, 0.0], y_interval, 0.9, groups=[1, 1, 2])
    >>> found["group"].tolist(), found["coverage"][1:], found["width"][1:]
    (['all', 1, 2], array([0.5, 1. ]), array([2., 4.]))
    """
    return group_table(figures_by_row(y, y_interval, confidence_level), groups)


def coverage_interval(
    n_covered: int, n: int, confidence: float = 0.95
) -> tuple[float, float]:
    """Exact binomial (Clopper–Pearson) interval of a coverage.

    Parameters
    ----------
    n_covered, n : int
        Rows inside their interval, and all rows.
    confidence : float, default=0.95
        Level of the interval.

    Returns
    -------
    tuple of float
        Lower and upper limit of the probability to cover.

    Examples
    --------
    >>> from mapie_claps.metrics import coverage_interval
    >>> [round(limit, 3) for limit in coverage_interval(90, 100)]
    [0.824, 0.951]
    """
    from scipy.stats import binomtest

    check_share("confidence", confidence, hint="Use 0.95.")
    if not 0 <= n_covered <= n:
        raise_for("n_covered", n_covered, f"0 to n={n}", "Count the covered rows.")
    limits = binomtest(n_covered, n).proportion_ci(confidence, method="exact")
    return float(limits.low), float(limits.high)


def crps(y: ArrayLike, y_values: ArrayLike) -> float:
    r"""Mean continuous ranked probability score, lower is better.

    :math:`\mathrm{E}|Y - y| - \tfrac12 \mathrm{E}|Y - Y'|` with Y and Y' independent
    draws from the prediction.

    Parameters
    ----------
    y : array-like of shape (n,)
        Targets.
    y_values : array-like of shape (n, m)
        Values of equal probability in each row: quantiles at the levels
        (1/2)/m … (m − 1/2)/m (with ``tails="normal"``, since tails count as far as
        values are in them), or draws.

    Returns
    -------
    float
        Mean score; the mean absolute error where m is 1, infinite where a value is.

    Examples
    --------
    >>> from mapie_claps.metrics import crps
    >>> crps([0.0], [[-1.0, 1.0]]), crps([3.0], [[0.0]])
    (0.5, 3.0)
    """
    values = _numbers("y_values", y_values, 2)
    target = _numbers("y", y, 1, len(values))
    if np.isinf(values).any():  # E|Y − y| is, and so is what would be taken off it
        return math.inf
    ordered = np.sort(values, axis=1)
    m = ordered.shape[1]
    distance = np.abs(ordered - target[:, None]).mean(axis=1)
    # Σ over pairs of |a − b| / 2m², from the ranks of sorted values.
    spread = ordered @ (2.0 * np.arange(1, m + 1) - m - 1) / m**2
    return float((distance - spread).mean())


def predictive_nll(y: ArrayLike, mu: ArrayLike, std: ArrayLike) -> float:
    r"""Mean negative log-likelihood of a Gaussian prediction, lower is better.

    :math:`\tfrac12[\log 2\pi v + (y - \mu)^2 / v]` with :math:`v = \mathrm{std}^2`.

    Parameters
    ----------
    y, mu, std : array-like of shape (n,)
        Targets, means and standard deviations, as ``predict(X, return_std=True)``
        gives them.

    Returns
    -------
    float
        Nats per row.

    Examples
    --------
    >>> from mapie_claps.metrics import predictive_nll
    >>> round(predictive_nll([0.0], [0.0], [1.0]), 6)
    0.918939
    """
    target = _numbers("y", y, 1)
    centre, scale = _numbers("mu", mu, 1, len(target)), _numbers("std", std, 1)
    if len(scale) != len(target) or not (scale > 0).all():
        expected = f"{len(target)} positive numbers"
        raise_for("std", scale, expected, "Give the estimator a floor on its variance.")
    z = (target - centre) / scale
    return float(np.mean(np.log(scale) + 0.5 * z**2) + 0.5 * math.log(2 * math.pi))


def neg_predictive_nll(estimator: Any, X: Any, y: ArrayLike) -> float:
    """Minus :func:`predictive_nll`, a scorer for scikit-learn's model selection.

    Parameters
    ----------
    estimator : estimator
        A fitted estimator or ``Pipeline`` with ``predict(X, return_std=True)``.
    X, y : array-like of shape (n, p) and (n,)
        Inputs and targets.

    Returns
    -------
    float
        Mean log-likelihood; higher is better.

    Examples
    --------
    >>> from sklearn.linear_model import BayesianRidge
    >>> from sklearn.model_selection import cross_val_score
    >>> from mapie_claps.metrics import neg_predictive_nll
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0.1, 0.9, 2.1, 2.9]
    >>> cross_val_score(BayesianRidge(), X, y, scoring=neg_predictive_nll, cv=2).shape
    (2,)
    """
    return -predictive_nll(y, *estimator.predict(X, return_std=True))


def figures_by_row(
    y: ArrayLike, y_interval: ArrayLike, confidence_level: ArrayLike
) -> dict[str, NDArray[Any]]:
    """What every metric of intervals is the mean of, each (n, n_levels)."""
    bounds = _numbers("y_interval", y_interval, 3)
    target = _numbers("y", y, 1, len(bounds))[:, None]
    lower, upper = bounds[:, 0], bounds[:, 1]
    crossed = lower > upper
    rows = np.flatnonzero(crossed.any(axis=1))
    if len(rows):
        warnings.warn(
            f"Got {len(rows)} of {len(bounds)} rows whose lower end is above the upper "
            f"end, the first in row {rows[0]}: these intervals are empty, cover "
            "nothing and have width 0. Methods that predict both ends apart (CQR) can "
            "give them; evaluate_intervals counts them.",
            CrossedBoundsWarning,
            stacklevel=3,
        )
    levels = [
        check_share("confidence_level", level, hint="Use 0.9 for 90 %.")
        for level in np.ravel(np.asarray(confidence_level)).tolist()
    ]
    if len(levels) not in (1, lower.shape[1]):
        expected = f"one number or {lower.shape[1]}, one for each level of y_interval"
        hint = "Pass the levels in the order of the intervals."
        raise_for("confidence_level", confidence_level, expected, hint)
    with np.errstate(invalid="ignore"):  # ∞ − ∞
        width = np.where(np.isfinite(bounds).all(axis=1), upper - lower, np.inf)
    missed = np.maximum(lower - target, 0) + np.maximum(target - upper, 0)
    return {
        "confidence_level": np.broadcast_to(levels, lower.shape),
        "coverage": (lower <= target) & (target <= upper),
        "width": np.maximum(width, 0),
        "score": width + 2 / (1 - np.array(levels)) * missed,
        "crossed": crossed,
    }


def group_table(
    by_row: dict[str, NDArray[Any]], groups: ArrayLike | None
) -> dict[str, NDArray[Any]]:
    """Means of figures over all rows and over each group, with limits of coverage."""
    n_rows, n_levels = by_row["coverage"].shape
    masks: list[tuple[Any, Any]] = [("all", np.ones(n_rows, dtype=bool))]
    if groups is not None:
        labels = np.asarray(groups, dtype=object)  # keeps the type of each label
        if labels.shape != (n_rows,) or any(map(is_missing, labels)):
            raise ValueError(
                f"Got groups of shape {labels.shape} for {n_rows} rows, with "
                f"{sum(map(is_missing, labels.ravel()))} missing labels, but expected "
                "one label per row. Give rows without one a label of their own."
            )
        # Numbers and text have no common order.
        distinct = sorted(set(labels), key=lambda label: (type(label).__name__, label))
        masks += [(label, labels == label) for label in distinct]
    tables = []
    for label, mask in masks:
        n, table = int(mask.sum()), _means({k: v[mask] for k, v in by_row.items()})
        limits = [coverage_interval(round(s * n), n) for s in table["coverage"]]
        table["coverage_low"], table["coverage_high"] = np.transpose(limits)
        table["crossed"] = by_row["crossed"][mask].sum(axis=0)
        named = {"group": np.full(n_levels, label, object), "n": np.full(n_levels, n)}
        tables.append(named | table)
    return {name: np.concatenate([t[name] for t in tables]) for name in tables[0]}


def is_missing(value: Any) -> bool:
    """None, or what does not equal itself: NaN, NaT, and NA, which answers with NA."""
    return value is None or str(value == value) != "True"


def _means(by_row: dict[str, NDArray[Any]]) -> dict[str, Array]:
    return {name: np.asarray(rows.mean(axis=0)) for name, rows in by_row.items()}


def _numbers(name: str, values: ArrayLike, ndim: int, n: int | None = None) -> Array:
    """Real numbers of so many axes: finite if there is one, else without NaN."""
    check_real(name, values)
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"Got {name} that holds no numbers: {error}.") from error
    if array.ndim == 2 and ndim == 3:
        array = array[:, :, None]
    # A column among rows would broadcast to n × n.
    if array.ndim == 2 and ndim == 1 and array.shape[1] == 1:
        array = array[:, 0]
    wrong = array.ndim != ndim or (ndim == 3 and array.shape[1] != 2)
    if wrong or not array.size or n not in (None, len(array)):
        raise ValueError(
            f"Got {name} of shape {np.shape(values)}, but expected {SHAPES[ndim]}"
            f"{'' if n is None else f', for {n} rows'}. Pass one target at a time, and "
            "as many numbers as there are rows."
        )
    bad = ~np.isfinite(array) if ndim == 1 else np.isnan(array)
    if bad.any():
        row = int(np.argwhere(bad)[0, 0])
        raise ValueError(
            f"Got {name} with {array[bad][0]} in row {row}, but expected numbers; "
            f"{int(bad.sum())} of {array.size} are not. Leave these rows out."
        )
    return array
