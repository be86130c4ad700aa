"""why → what to do: tables of rows, of groups, and of what calibration has not seen.

Tables are pandas DataFrames if pandas is installed, else dicts of arrays.
"""

import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _mapie, metrics
from ._validation import check_choice, check_integer, check_number, raise_for
from .exceptions import OutsideCalibrationWarning
from .explanation import Explanation, explain

__all__ = ["coverage_interval", "diagnose", "rank_rows", "summarise"]

Array = NDArray[np.float64]
COLLECT, IRREDUCIBLE = "collect data here", "irreducible"
# Probability with which exchangeable rows would be reported as outside.
SIGNIFICANCE = 0.01


def diagnose(
    mapie_or_estimator: Any,
    X: ArrayLike,
    *,
    X_calibration: ArrayLike | None = None,
    alpha: float | None = None,
    **predict_params: Any,
) -> Any:
    """Explain every row: prediction, interval, reasons for its width.

    Parameters
    ----------
    mapie_or_estimator : object
        What :func:`~mapie_claps.explain` accepts: a calibrated MAPIE regressor or a
        fitted estimator.
    X : array-like of shape (n, p)
        Inputs.
    X_calibration : array-like of shape (n_calibration, p), optional
        Inputs of the calibration rows, which MAPIE does not keep. With them the table
        says where each row stands among them, and an
        :class:`~mapie_claps.exceptions.OutsideCalibrationWarning` is given if more
        rows lie beyond them than exchangeable rows would (exact test, level 0.01 over
        all columns together).
    alpha : float or iterable of float, optional
        Miscoverages, for MAPIE 0.9.
    **predict_params : dict
        Passed to MAPIE, for example ``allow_infinite_bounds=True``.

    Returns
    -------
    DataFrame or dict of ndarray
        ``prediction``, ``aleatoric``, ``epistemic`` (variances),
        ``epistemic_fraction``; for calibrated objects ``lower``, ``upper``, ``width``,
        ``aleatoric_width`` (what noise alone would need) and ``epistemic_width`` (what
        lack of data adds), with the level appended (``lower_0.9``) if there are
        several; with ``X_calibration`` also ``epistemic_quantile`` (share of
        calibration rows with no larger epistemic variance) and ``outside`` (the row
        lies beyond all calibration rows in a column or in epistemic variance).

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import ClapsRegressor
    >>> from mapie_claps.diagnostics import diagnose
    >>> X = np.linspace(-1, 1, 60)[:, None]
    >>> model = ClapsRegressor(n_members=2, random_state=0).fit(X, X[:, 0])
    >>> table = diagnose(model, X, X_calibration=X)
    >>> float(max(table["epistemic_quantile"])), bool(any(table["outside"]))
    (1.0, False)
    """
    why = explain(mapie_or_estimator, X, alpha=alpha, **predict_params)
    columns: dict[str, Any] = {**_row_columns(why)}
    if X_calibration is not None:
        reference = explain(
            mapie_or_estimator, X_calibration, alpha=alpha, **predict_params
        )
        columns["epistemic_quantile"] = _quantiles(why.epistemic, reference.epistemic)
        columns["outside"] = _rows_outside(
            _seen_by_model(mapie_or_estimator, X, why),
            _seen_by_model(mapie_or_estimator, X_calibration, reference),
        )
    return _table(columns, getattr(X, "index", None))


def summarise(
    mapie: Any,
    X: ArrayLike,
    y: ArrayLike,
    *,
    groups: ArrayLike | None = None,
    confidence: float = 0.95,
    alpha: float | None = None,
    **predict_params: Any,
) -> Any:
    """Coverage, width, score and mean parts, over all rows and in each group.

    Parameters
    ----------
    mapie : object
        A calibrated MAPIE regressor, see :func:`~mapie_claps.explain`.
    X : array-like of shape (n, p)
        Test inputs.
    y : array-like of shape (n,)
        Test targets.
    groups : array-like of shape (n,), optional
        Label of the group of each row.
    confidence : float, default=0.95
        Level of the binomial interval of the coverage.
    alpha : float or iterable of float, optional
        Miscoverages, for MAPIE 0.9.
    **predict_params : dict
        Passed to MAPIE.

    Returns
    -------
    DataFrame or dict of ndarray
        One entry per group and level: ``group`` ("all" first), ``confidence_level``,
        ``n``, ``coverage`` with ``coverage_low`` and ``coverage_high`` (exact binomial
        interval for these rows, given the calibration), ``width``, ``score`` (interval
        score), and the means of ``aleatoric``, ``epistemic`` and
        ``epistemic_fraction``.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie.regression import SplitConformalRegressor
    >>> from mapie_claps import ClapsRegressor, ClapsScore
    >>> from mapie_claps.diagnostics import summarise
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-2, 2, (400, 1))
    >>> y = X[:, 0] + rng.normal(0, 0.1, 400)
    >>> mapie = SplitConformalRegressor(
    ...     ClapsRegressor(n_members=2, random_state=0), confidence_level=0.9,
    ...     conformity_score=ClapsScore(), prefit=False)
    >>> mapie = mapie.fit(X[:200], y[:200]).conformalize(X[200:300], y[200:300])
    >>> table = summarise(mapie, X[300:], y[300:], groups=X[300:, 0] > 0)
    >>> list(table["group"])
    ['all', False, True]
    """
    why = explain(mapie, X, alpha=alpha, **predict_params)
    if not why.confidence_level:
        raise TypeError(
            f"Got a {type(mapie).__name__}, which has no intervals to summarise. Pass "
            "a calibrated MAPIE regressor, or use diagnose for a fitted estimator."
        )
    return _table(_group_columns(why, np.asarray(y), groups, confidence))


def rank_rows(
    mapie_or_estimator: Any,
    X: ArrayLike,
    *,
    by: str = "epistemic",
    n_rows: int = 10,
    alpha: float | None = None,
    **predict_params: Any,
) -> Any:
    """Rank rows by lack of data ("collect data here") or by noise ("irreducible").

    Parameters
    ----------
    mapie_or_estimator : object
        What :func:`~mapie_claps.explain` accepts.
    X : array-like of shape (n, p)
        Candidate inputs; no targets are needed.
    by : {"epistemic", "aleatoric"}, default="epistemic"
        Part of the variance to rank by, largest first.
    n_rows : int, default=10
        Number of rows to return; all if there are fewer.
    alpha : float or iterable of float, optional
        Miscoverages, for MAPIE 0.9.
    **predict_params : dict
        Passed to MAPIE.

    Returns
    -------
    DataFrame or dict of ndarray
        The columns of :func:`diagnose` behind ``row`` (position in X) and ``reason``:
        "collect data here" if, among the rows of X, the row stands higher in epistemic
        than in aleatoric variance, else "irreducible".

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import ClapsRegressor
    >>> from mapie_claps.diagnostics import rank_rows
    >>> x = np.linspace(-1, 1, 60)
    >>> model = ClapsRegressor(n_members=2, random_state=0).fit(x[:, None], x)
    >>> table = rank_rows(model, [[0.0], [40.0]], n_rows=1)
    >>> int(table["row"][0]), str(table["reason"][0])
    (1, 'collect data here')
    """
    check_choice("by", by, ("epistemic", "aleatoric"), "Rank by one of the parts.")
    check_integer("n_rows", n_rows, low=1, hint="Use 10.")
    why = explain(mapie_or_estimator, X, alpha=alpha, **predict_params)
    order = np.argsort(-getattr(why, by), kind="stable")[:n_rows]
    lack = _quantiles(why.epistemic, why.epistemic)
    noise = _quantiles(why.aleatoric, why.aleatoric)
    # A tie of the standings is broken by the larger part.
    collect = (lack > noise) | ((lack == noise) & (why.epistemic >= why.aleatoric))
    columns = {
        "row": np.arange(len(lack)),
        "reason": np.where(collect, COLLECT, IRREDUCIBLE),
        **_row_columns(why),
    }
    return _table({name: values[order] for name, values in columns.items()})


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
    level = check_number(
        "confidence",
        confidence,
        low=0,
        high=1,
        low_open=True,
        high_open=True,
        hint="Use 0.95.",
    )
    tail = (1 - level) / 2
    low = float(beta.ppf(tail, k, n - k + 1)) if k else 0.0
    high = float(beta.ppf(1 - tail, k + 1, n - k)) if k < n else 1.0
    return low, high


def _row_columns(why: Explanation) -> dict[str, Array]:
    """Columns of ``diagnose`` that need no calibration rows."""
    columns = {"prediction": why.prediction}
    single = len(why.confidence_level) == 1
    for j, level in enumerate(why.confidence_level):
        suffix = "" if single else f"_{level:g}"
        for name in ("lower", "upper", "width", "aleatoric_width", "epistemic_width"):
            columns[name + suffix] = getattr(why, name)[:, j]
    for name in ("aleatoric", "epistemic", "epistemic_fraction"):
        columns[name] = getattr(why, name)
    return columns


def _group_columns(
    why: Explanation, y: Array, groups: ArrayLike | None, confidence: float
) -> dict[str, Any]:
    """Columns of ``summarise``."""
    bounds = np.stack([why.lower, why.upper], axis=1)
    rows = []
    for name, mask in _group_masks(groups, len(bounds)):
        inside, levels = bounds[mask], np.asarray(why.confidence_level)
        found = metrics.coverage(y[mask], inside)
        widths = metrics.mean_width(inside)
        scores = metrics.interval_score(y[mask], inside, levels)
        n = int(mask.sum())
        parts = {
            part: float(getattr(why, part)[mask].mean())
            for part in ("aleatoric", "epistemic", "epistemic_fraction")
        }
        for j, level in enumerate(levels):
            limits = coverage_interval(round(found[j] * n), n, confidence)
            rows.append(
                {
                    "group": name,
                    "confidence_level": float(level),
                    "n": n,
                    "coverage": float(found[j]),
                    "coverage_low": limits[0],
                    "coverage_high": limits[1],
                    "width": float(widths[j]),
                    "score": float(scores[j]),
                    **parts,
                }
            )
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    # Labels keep their type: an array of "all" and numbers would make them strings.
    columns["group"] = np.array([row["group"] for row in rows], dtype=object)
    return columns


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
    return masks + [(label, labels == label) for label in np.unique(labels).tolist()]


def _quantiles(values: Array, reference: Array) -> Array:
    """Share of the reference that is not larger, for each value."""
    below = np.searchsorted(np.sort(reference), values, side="right")
    shares: Array = below / len(reference)
    return shares


def _seen_by_model(
    mapie_or_estimator: Any, X: ArrayLike, why: Explanation
) -> dict[str, Array]:
    """What is compared with calibration: each input column and epistemic variance."""
    ensemble = _mapie.ensemble_of(mapie_or_estimator)
    model = mapie_or_estimator if ensemble is None else _mapie.point_model(ensemble)
    last, seen = _mapie.split_pipeline(model, X)
    names = getattr(last, "feature_names_in_", None)
    values = np.asarray(seen, dtype=np.float64)
    values = values.reshape(len(values), -1)
    each = range(values.shape[1]) if names is None else names
    columns = {f"column {name}": values[:, j] for j, name in enumerate(each)}
    return columns | {"epistemic variance": why.epistemic}


def _rows_outside(
    test: Mapping[str, Array], calibration: Mapping[str, Array]
) -> NDArray[np.bool_]:
    """Rows beyond all calibration rows; warn of a quantity with too many of them."""
    above: dict[str, NDArray[np.bool_]] = {}
    for name, values in test.items():
        seen = calibration[name]
        above[f"{name} above {seen.max():.4g}"] = values > seen.max()
        if not name.startswith("epistemic"):  # a small one is no cause for concern
            above[f"{name} below {seen.min():.4g}"] = values < seen.min()
    n_cal = len(next(iter(calibration.values())))
    chances = {
        name: _chance_of_extremes(int(rows.sum()), len(rows), n_cal)
        for name, rows in above.items()
    }
    worst = min(chances, key=lambda name: chances[name])
    if chances[worst] < SIGNIFICANCE / len(chances):
        rows = above[worst]
        warnings.warn(
            f"Got {int(rows.sum())} of {len(rows)} rows of X with {worst}, beyond all "
            f"{n_cal} rows of X_calibration; exchangeable rows would do so with a "
            f"probability of {chances[worst]:.2g}. The coverage guarantee does not "
            "reach such rows: calibrate on rows like them, or leave them out.",
            OutsideCalibrationWarning,
            stacklevel=3,
        )
    outside: NDArray[np.bool_] = np.any(list(above.values()), axis=0)
    return outside


def _chance_of_extremes(k: int, n_test: int, n_cal: int) -> float:
    """Probability that the k largest of n_test + n_cal exchangeable rows are test."""
    i = np.arange(k)
    return math.exp(float(np.log((n_test - i) / (n_test + n_cal - i)).sum()))


def _table(columns: dict[str, Any], index: Any = None) -> Any:
    """DataFrame, or the columns themselves where pandas is missing."""
    try:
        import pandas as pd
    except ImportError:
        return columns
    # Lists have an ``index`` too, which is a method.
    return pd.DataFrame(columns, index=index if isinstance(index, pd.Index) else None)
