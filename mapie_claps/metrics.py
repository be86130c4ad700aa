r"""interval → evaluation: what MAPIE's metrics lack.

``y_interval`` is what ``predict_interval`` returns, of shape (n, 2, n_levels), or
(n, 2) for one level; results have one entry per level. Bounds may be infinite, which
MAPIE's own metrics refuse. NumPy only.
"""

import math
import warnings
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._validation import check_integer, check_real, check_share, raise_for
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
    "quantile_loss",
]

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


def coverage(y: ArrayLike, y_interval: ArrayLike) -> Array:
    """Share of targets inside their interval, the bounds included.

    Parameters
    ----------
    y : array-like of shape (n,)
        Targets.
    y_interval : array-like of shape (n, 2, n_levels) or (n, 2)
        Lower and upper bounds.

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
    bounds = _bounds(y_interval)
    return _coverage(_vector("y", y, len(bounds)), bounds)


def mean_width(y_interval: ArrayLike) -> Array:
    """Mean of upper − lower; infinite if one interval is.

    Parameters
    ----------
    y_interval : array-like of shape (n, 2, n_levels) or (n, 2)
        Lower and upper bounds. An interval whose ends are swapped is empty: it has
        width 0, and a :class:`~mapie_claps.exceptions.CrossedBoundsWarning` says how
        many there are.

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
    bounds = _bounds(y_interval)
    _warn_of_crossed(bounds)
    return _mean_width(bounds)


def interval_score(
    y: ArrayLike, y_interval: ArrayLike, confidence_level: ArrayLike
) -> Array:
    r"""Mean interval score (Winkler), lower is better.

    :math:`u - l + \frac{2}{\alpha}(l - y)_+ + \frac{2}{\alpha}(y - u)_+`.

    Parameters
    ----------
    y : array-like of shape (n,)
        Targets.
    y_interval : array-like of shape (n, 2, n_levels) or (n, 2)
        Lower and upper bounds. The formula also holds where ends are swapped; a
        :class:`~mapie_claps.exceptions.CrossedBoundsWarning` says how many there are.
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
    bounds = _bounds(y_interval)
    levels = _levels(confidence_level, bounds.shape[2])
    _warn_of_crossed(bounds)
    return _interval_score(_vector("y", y, len(bounds)), bounds, levels)


def evaluate_intervals(
    y: ArrayLike,
    y_interval: ArrayLike,
    confidence_level: ArrayLike,
    *,
    groups: ArrayLike | None = None,
    n_bins: int | None = None,
    confidence: float = 0.95,
) -> dict[str, NDArray[Any]]:
    """Coverage, width and interval score, over all rows and in each group.

    Parameters
    ----------
    y : array-like of shape (n,)
        Targets.
    y_interval : array-like of shape (n, 2, n_levels) or (n, 2)
        Lower and upper bounds.
    confidence_level : float or array-like of shape (n_levels,)
        1 − α of each level.
    groups : array-like of shape (n,), optional
        Label of the group of each row, or numbers to cut into bins.
    n_bins : int, optional
        Bins of about the same number of rows into which ``groups`` are cut.
    confidence : float, default=0.95
        Level of the binomial interval of each coverage.

    Returns
    -------
    dict of ndarray
        A table with one entry per group and level: ``group`` ("all" first),
        ``confidence_level``, ``n``, ``coverage`` with ``coverage_low`` and
        ``coverage_high`` (see :func:`coverage_interval`), ``width``, ``score``, and
        ``crossed``, the number of intervals whose lower end is above the upper end.

    Examples
    --------
    >>> from mapie_claps.metrics import evaluate_intervals
    >>> y_interval = [[-1.0, 1.0], [-1.0, 1.0], [-2.0, 2.0]]
    >>> found = evaluate_intervals([0.0, 2.0, 0.0], y_interval, 0.9, groups=[1, 1, 2])
    >>> found["group"].tolist(), found["coverage"][1:], found["width"][1:]
    (['all', 1, 2], array([0.5, 1. ]), array([2., 4.]))
    """
    bounds = _bounds(y_interval)
    y_, levels = (
        _vector("y", y, len(bounds)),
        _levels(confidence_level, bounds.shape[2]),
    )
    tables = []
    for label, mask in group_masks(groups, len(bounds), n_bins):
        rows, inside = y_[mask], bounds[mask]
        n, found = len(rows), _coverage(rows, inside)
        limits = [coverage_interval(round(c * n), n, confidence) for c in found]
        tables.append(
            {
                # Labels keep their type: "all" and numbers would become strings.
                "group": np.full(len(levels), label, dtype=object),
                "confidence_level": levels,
                "n": np.full(len(levels), n),
                "coverage": found,
                "coverage_low": np.array(limits)[:, 0],
                "coverage_high": np.array(limits)[:, 1],
                "width": _mean_width(inside),
                "score": _interval_score(rows, inside, levels),
                "crossed": _crossed(inside).sum(axis=0),
            }
        )
    return {name: np.concatenate([t[name] for t in tables]) for name in tables[0]}


def coverage_interval(
    n_covered: int, n: int, confidence: float = 0.95
) -> tuple[float, float]:
    """Exact binomial (Clopper–Pearson) interval of a coverage.

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
    >>> from mapie_claps.metrics import coverage_interval
    >>> [round(limit, 3) for limit in coverage_interval(90, 100)]
    [0.824, 0.951]
    """
    from scipy.special import betaincinv

    n = check_integer("n", n, low=1, hint="Count the rows.")
    k = check_integer("n_covered", n_covered, low=0, hint="Count the covered rows.")
    if k > n:
        raise_for("n_covered", k, f"at most n={n}", "Count the covered rows.")
    tail = (1 - check_share("confidence", confidence, hint="Use 0.95.")) / 2
    low = float(betaincinv(k, n - k + 1, tail)) if k else 0.0
    high = float(betaincinv(k + 1, n - k, 1 - tail)) if k < n else 1.0
    return low, high


def quantile_loss(y: ArrayLike, y_quantiles: ArrayLike, levels: ArrayLike) -> Array:
    r"""Mean quantile (pinball) loss at each level, lower is better.

    :math:`\max(\tau (y - q),\, (\tau - 1)(y - q))`.

    Parameters
    ----------
    y : array-like of shape (n,)
        Targets.
    y_quantiles : array-like of shape (n, m)
        Predicted quantiles, for example by ``CalibratedRegressor.predict_quantiles``.
    levels : array-like of shape (m,)
        Their levels τ.

    Returns
    -------
    ndarray of shape (m,)
        Losses; infinite where a quantile is.

    Examples
    --------
    >>> from mapie_claps.metrics import quantile_loss
    >>> quantile_loss([1.0, 3.0], [[1.0, 2.0], [1.0, 2.0]], [0.5, 0.9])
    array([0.5, 0.5])
    """
    y_, values = _rows_of_values(y, "y_quantiles", y_quantiles)
    level = np.atleast_1d(_numbers("levels", levels))
    if level.shape != (values.shape[1],) or not ((level > 0) & (level < 1)).all():
        expected = f"{values.shape[1]} numbers between 0 and 1, one for each quantile"
        raise_for("levels", levels, expected, "Pass the levels that were predicted.")
    gap = y_[:, None] - values
    return np.asarray(np.maximum(level * gap, (level - 1) * gap).mean(axis=0))


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
        (1/2)/m … (m − 1/2)/m, or draws. The distribution is taken to be these values
        and nothing else, so tails count as far as values are in them: with quantiles of
        a conformal predictive system ask for ``tails="normal"``.

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
    y_, values = _rows_of_values(y, "y_values", y_values)
    if np.isinf(values).any():  # E|Y − y| is, and so is what would be taken off it
        return math.inf
    ordered = np.sort(values, axis=1)
    m = ordered.shape[1]
    distance = np.abs(ordered - y_[:, None]).mean(axis=1)
    # Σ over pairs of |a − b| / 2m², from the ranks of sorted values.
    spread = ordered @ (2.0 * np.arange(1, m + 1) - m - 1) / m**2
    return float((distance - spread).mean())


def predictive_nll(y: ArrayLike, mu: ArrayLike, std: ArrayLike) -> float:
    r"""Mean negative log-likelihood of a Gaussian prediction, constant included.

    :math:`\tfrac12[\log 2\pi v + (y - \mu)^2 / v]` with :math:`v = \mathrm{std}^2`.

    Parameters
    ----------
    y : array-like of shape (n,)
        Targets.
    mu, std : array-like of shape (n,)
        Mean and standard deviation, as ``predict(X, return_std=True)`` gives them.

    Returns
    -------
    float
        Nats per row; lower is better.

    Examples
    --------
    >>> from mapie_claps.metrics import predictive_nll
    >>> round(predictive_nll([0.0], [0.0], [1.0]), 6)
    0.918939
    """
    y_ = _vector("y", y)
    mu_ = _vector("mu", mu, len(y_))
    std_ = _vector("std", std, len(y_), positive=True)
    z = (y_ - mu_) / std_
    return float(np.mean(np.log(std_) + 0.5 * z**2) + 0.5 * math.log(2 * math.pi))


def neg_predictive_nll(estimator: Any, X: Any, y: ArrayLike) -> float:
    """Score an estimator for scikit-learn's model selection; higher is better.

    Parameters
    ----------
    estimator : estimator
        A fitted estimator or ``Pipeline`` with ``predict(X, return_std=True)``.
    X : array-like of shape (n, p)
        Inputs.
    y : array-like of shape (n,)
        Targets.

    Returns
    -------
    float
        Minus the mean predictive negative log-likelihood.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import BayesianRidge
    >>> from sklearn.model_selection import GridSearchCV
    >>> from mapie_claps.metrics import neg_predictive_nll
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> search = GridSearchCV(
    ...     BayesianRidge(), {"fit_intercept": [True, False]},
    ...     scoring=neg_predictive_nll, cv=3)
    >>> search.fit(X, X[:, 0] + 5).best_params_
    {'fit_intercept': True}
    """
    mu, std = estimator.predict(X, return_std=True)
    return -predictive_nll(y, mu, std)


def group_masks(
    groups: ArrayLike | None, n: int, n_bins: int | None = None
) -> list[tuple[Any, Mask]]:
    """Labels and rows: all rows together, and each group."""
    masks: list[tuple[Any, Mask]] = [("all", np.ones(n, dtype=bool))]
    if groups is None:
        return masks
    labels = np.asarray(groups)
    if labels.shape != (n,):
        raise ValueError(
            f"Got groups of shape {labels.shape} for {n} rows, but expected one label "
            "per row. Pass for example a column of X."
        )
    if n_bins is not None:
        x = _vector("groups", labels)
        n_bins = check_integer("n_bins", n_bins, low=1, hint="Use 8.")
        edges = np.unique(np.quantile(x, np.linspace(0, 1, n_bins + 1)))
        place = np.searchsorted(edges[1:-1], x, side="right")
        names = [f"{a:.3g}…{b:.3g}" for a, b in pairwise(edges)] or [f"{edges[0]:.3g}"]
        return masks + [(name, place == j) for j, name in enumerate(names)]
    missing = sum(map(_is_missing, labels.tolist()))
    if missing:
        raise ValueError(
            f"Got groups with {missing} missing labels (None, NaN or NA), but expected "
            "one label per row. Give these rows a label of their own."
        )
    try:
        distinct = np.unique(labels).tolist()
    except TypeError:  # no common order, such as that of numbers and text
        distinct = sorted(set(labels.tolist()), key=str)
    return masks + [(label, labels == label) for label in distinct]


def _is_missing(label: Any) -> bool:
    """None, or what does not equal itself: NaN, NaT, and NA, which answers with NA."""
    differs = label != label
    return label is None or not isinstance(differs, bool | np.bool_) or bool(differs)


def _coverage(y: Array, bounds: Array) -> Array:
    inside = (bounds[:, 0] <= y[:, None]) & (y[:, None] <= bounds[:, 1])
    return np.asarray(inside.mean(axis=0))


def _mean_width(bounds: Array) -> Array:
    return np.asarray(np.maximum(_widths(bounds), 0).mean(axis=0))


def _interval_score(y: Array, bounds: Array, levels: Array) -> Array:
    below, above = bounds[:, 0] - y[:, None], y[:, None] - bounds[:, 1]
    missed = np.maximum(below, 0) + np.maximum(above, 0)
    return np.asarray((_widths(bounds) + 2 / (1 - levels) * missed).mean(axis=0))


def _widths(bounds: Array) -> Array:
    """Upper − lower (n, n_levels), infinite where an end is, negative where swapped."""
    finite: NDArray[Any] = np.asarray(np.isfinite(bounds).all(axis=1, keepdims=True))
    ends = np.where(finite, bounds, 0.0)
    return np.where(finite[:, 0], ends[:, 1] - ends[:, 0], np.inf)


def _crossed(bounds: Array) -> Mask:
    return np.asarray(bounds[:, 0] > bounds[:, 1])


def _warn_of_crossed(bounds: Array) -> None:
    """Say how many intervals have swapped ends."""
    rows = np.flatnonzero(_crossed(bounds).any(axis=1))
    if len(rows):
        warnings.warn(
            f"Got {len(rows)} of {len(bounds)} rows whose lower end is above the upper "
            f"end, the first in row {rows[0]}: these intervals are empty, cover "
            "nothing and have width 0. Methods that predict both ends apart (CQR) can "
            "give them; evaluate_intervals counts them.",
            CrossedBoundsWarning,
            stacklevel=3,
        )


def _numbers(name: str, values: ArrayLike) -> Array:
    """Real numbers in an array of float64."""
    check_real(name, values)
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"Got {name} that holds no numbers: {error}.") from error


def _vector(
    name: str, values: ArrayLike, n: int | None = None, positive: bool = False
) -> Array:
    """One finite number per row, also from a column."""
    array = _numbers(name, values)
    # A column among rows would broadcast to n × n.
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or not array.size or n not in (None, len(array)):
        expected = "one number per row" if n is None else f"{n} numbers, one per row"
        raise ValueError(
            f"Got {name} of shape {array.shape}, but expected {expected}. Pass one "
            "target at a time, and as many numbers as there are rows."
        )
    good = np.isfinite(array) & ((array > 0) | (not positive))
    if not good.all():
        row = int(np.argmin(good))
        raise ValueError(
            f"Got {name} with {array[row]} in row {row}, but expected "
            f"{'positive ' * positive}finite numbers; {int((~good).sum())} of "
            f"{len(array)} are not. Leave these rows out."
        )
    return array


def _bounds(y_interval: ArrayLike) -> Array:
    """Bounds as (n, 2, n_levels), none of them NaN."""
    bounds = _numbers("y_interval", y_interval)
    if bounds.ndim == 2:
        bounds = bounds[:, :, None]
    if bounds.ndim != 3 or bounds.shape[1] != 2 or not bounds.size:
        raise ValueError(
            f"Got y_interval of shape {np.shape(y_interval)}, but expected "
            "(n, 2, n_levels) or (n, 2). Pass what predict_interval returned."
        )
    if np.isnan(bounds).any():
        raise ValueError(
            f"Got y_interval with {int(np.isnan(bounds).sum())} NaN. Only numbers and "
            "infinities are bounds."
        )
    return bounds


def _levels(confidence_level: ArrayLike, n_levels: int) -> Array:
    """Levels (n_levels,), each between 0 and 1."""
    given = _numbers("confidence_level", confidence_level)
    if given.ndim > 1 or (given.ndim == 1 and len(given) != n_levels):
        raise_for(
            "confidence_level",
            confidence_level,
            f"one number or {n_levels}, one for each level of y_interval",
            "Pass the levels in the order of the intervals.",
        )
    for level in np.atleast_1d(given):
        check_share("confidence_level", float(level), hint="Use 0.9 for 90 %.")
    return np.broadcast_to(given, (n_levels,)).copy()


def _rows_of_values(y: ArrayLike, name: str, values: ArrayLike) -> tuple[Array, Array]:
    """Targets (n,) and values (n, m) of the same rows, none of them NaN."""
    array = _numbers(name, values)
    if array.ndim != 2 or not array.size or np.isnan(array).any():
        raise ValueError(
            f"Got {name} of shape {array.shape} with {int(np.isnan(array).sum())} NaN, "
            "but expected numbers of shape (n, m). Pass one row of values for each "
            "target, and leave out rows without."
        )
    return _vector("y", y, len(array)), array
