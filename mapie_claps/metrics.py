r"""interval → evaluation: what MAPIE's metrics lack.

Bounds may be infinite, which MAPIE's own metrics refuse. An interval whose ends are
swapped is empty: it covers nothing and has width 0, and a
:class:`~mapie_claps.exceptions.CrossedBoundsWarning` says how many there are. NumPy
only. For quantiles see scikit-learn's ``mean_pinball_loss``.
"""

import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._validation import check_real, check_share, raise_for
from ._validation import is_missing as is_missing
from .exceptions import CrossedBoundsWarning

__all__ = ["evaluate_intervals", "neg_predictive_nll"]

Array = NDArray[np.float64]
SHAPES = {1: "one number per row", 3: "(n, 2, n_levels) or (n, 2)"}


def evaluate_intervals(
    y: ArrayLike,
    y_interval: ArrayLike,
    confidence_level: ArrayLike,
    *,
    groups: ArrayLike | None = None,
    figures: dict[str, Array] | None = None,
) -> dict[str, NDArray[Any]]:
    r"""Coverage, width and interval score, over all rows and in each group.

    The interval score (Winkler; lower is better) is
    :math:`u - l + \frac{2}{\alpha}(l - y)_+ + \frac{2}{\alpha}(y - u)_+`, also where
    ends are swapped.

    Parameters
    ----------
    y, y_interval : array-like of shape (n,) and (n, 2, n_levels) or (n, 2)
        Targets, and lower and upper bounds.
    confidence_level : float or array-like of shape (n_levels,)
        1 − α of each level.
    groups : array-like of shape (n,), optional
        Label of the group of each row; ``pd.qcut(x, 8)`` gives bins of a number.
    figures : dict of ndarray of shape (n,) or (n, n_levels), optional
        Other figures of the rows, whose means become columns of the table.

    Returns
    -------
    dict of ndarray
        A table with one entry per group and level: ``group`` ("all" first), ``n``,
        ``confidence_level``, ``coverage``, mean ``width`` and ``score`` (infinite where
        an interval is), means of the ``figures``, and exact binomial limits of the
        coverage at 95 %, ``coverage_low`` and ``coverage_high``.

    Examples
    --------
    >>> from mapie_claps.metrics import evaluate_intervals
    >>> y_interval = [[-1.0, 1.0], [-1.0, 1.0], [-2.0, 2.0]]
    >>> found = evaluate_intervals([0.0, 2.0, 0.0], y_interval, 0.9, groups=[1, 1, 2])
    >>> found["group"].tolist(), found["coverage"][1:], found["width"][1:]
    (['all', 1, 2], array([0.5, 1. ]), array([2., 4.]))
    """
    from scipy.stats import binomtest

    bounds = _numbers("y_interval", y_interval, 3)
    target = _numbers("y", y, 1, len(bounds))[:, None]
    lower, upper = bounds[:, 0], bounds[:, 1]
    n_rows, n_levels = lower.shape
    given = np.ravel(np.asarray(confidence_level)).tolist()
    hint = "Use 0.9 for 90 %, or one number for each level of y_interval."
    levels = [check_share("confidence_level", level, hint=hint) for level in given]
    if len(levels) not in (1, n_levels):
        expected = f"one number or {n_levels}"
        raise_for("confidence_level", confidence_level, expected, hint)
    labels = np.asarray([] if groups is None else groups, dtype=object)  # keeps types
    n_missing = sum(map(is_missing, labels.ravel()))
    if groups is not None and (labels.shape != (n_rows,) or n_missing):
        raise ValueError(
            f"Got groups of shape {labels.shape} for {n_rows} rows, with {n_missing} "
            "missing labels, but expected one label per row. Give rows without one a "
            "label of their own."
        )
    empty = np.flatnonzero((lower > upper).any(axis=1))
    if len(empty):
        warnings.warn(
            f"Got {len(empty)} of {n_rows} rows whose lower end is above the upper "
            f"end, the first in row {empty[0]}: these intervals are empty, cover "
            "nothing and have width 0. Methods that predict ends apart may give them.",
            CrossedBoundsWarning,
            stacklevel=2,
        )
    with np.errstate(invalid="ignore"):  # ∞ − ∞
        width = np.where(np.isfinite(bounds).all(axis=1), upper - lower, np.inf)
    missed = np.maximum(lower - target, 0) + np.maximum(target - upper, 0)
    means: dict[str, NDArray[Any]] = {
        "coverage": (lower <= target) & (target <= upper),
        "width": np.maximum(width, 0),
        "score": width + 2 / (1 - np.array(levels)) * missed,
    }
    for name, values in (figures or {}).items():
        means[name] = np.broadcast_to(values.T, lower.T.shape).T
    # Numbers and text have no common order.
    distinct = sorted(set(labels), key=lambda label: (type(label).__name__, label))
    of_groups = [(each, np.flatnonzero(labels == each)) for each in distinct]
    table: list[dict[str, Any]] = []
    for label, rows in [("all", np.arange(n_rows)), *of_groups]:
        for j, level in enumerate(np.zeros(n_levels) + levels):
            row = {"group": label, "n": len(rows), "confidence_level": level}
            row |= {name: values[rows, j].mean() for name, values in means.items()}
            inside = binomtest(int(means["coverage"][rows, j].sum()), len(rows))
            low, high = inside.proportion_ci(0.95, method="exact")
            table.append(row | {"coverage_low": low, "coverage_high": high})
    kinds = {"group": object}
    return {k: np.array([row[k] for row in table], kinds.get(k)) for k in table[0]}


def neg_predictive_nll(estimator: Any, X: Any, y: ArrayLike) -> float:
    r"""Mean Gaussian log-likelihood, a scorer for scikit-learn's model selection.

    :math:`-\tfrac12[\log 2\pi v + (y - \mu)^2 / v]`, higher is better.

    Parameters
    ----------
    estimator : estimator
        A fitted estimator or ``Pipeline`` whose ``predict(X, return_std=True)`` gives
        μ and √v.
    X, y : array-like of shape (n, p) and (n,)
        Inputs and targets.

    Returns
    -------
    float
        Nats per row.

    Examples
    --------
    >>> from sklearn.linear_model import BayesianRidge
    >>> from sklearn.model_selection import cross_val_score
    >>> from mapie_claps.metrics import neg_predictive_nll
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0.1, 0.9, 2.1, 2.9]
    >>> cross_val_score(BayesianRidge(), X, y, scoring=neg_predictive_nll, cv=2).shape
    (2,)
    """
    from scipy.stats import norm

    # What predicts loads torch.
    from .conformal.distribution import distribution_of

    rows = distribution_of(estimator, X)
    target = _numbers("y", y, 1, len(rows))
    return float(norm.logpdf(target, rows.mean, rows.std).mean())


def _numbers(name: str, values: ArrayLike, ndim: int, n: int | None = None) -> Array:
    """Real numbers of so many axes: finite if there is one, else without NaN."""
    check_real(name, values)
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"Got {name} that holds no numbers: {error}.") from error
    if array.ndim == 2 and ndim == 3:
        array = array[:, :, None]
    if array.shape[1:] == (1,) and ndim == 1:  # would broadcast to n × n
        array = array[:, 0]
    wrong = array.ndim != ndim or (ndim == 3 and array.shape[1] != 2)
    if wrong or not array.size or n not in (None, len(array)):
        of = "" if n is None else f", for {n} rows"
        raise ValueError(
            f"Got {name} of shape {np.shape(values)}, but expected {SHAPES[ndim]}{of}. "
            "Pass one target at a time, and as many numbers as there are rows."
        )
    bad = np.argwhere(~np.isfinite(array) if ndim == 1 else np.isnan(array))
    if len(bad):
        raise ValueError(
            f"Got {name} with {array[tuple(bad[0])]} in row {bad[0][0]}, but expected "
            f"numbers; {len(bad)} of {array.size} are not. Leave these rows out."
        )
    return array
