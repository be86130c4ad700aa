"""why → what to do: tables of rows, of groups and of measurements to make.

Tables are pandas DataFrames if pandas is installed, else dicts of arrays.
"""

import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import check_consistent_length

from .._validation import check_choice, check_integer
from ..exceptions import OutsideCalibrationWarning
from ..metrics import evaluate_intervals
from .by_column import as_table, columns_of
from .explanation import Explanation, explain, explain_rows, models_of

Array = NDArray[np.float64]
COLLECT, IRREDUCIBLE, UNKNOWN = "collect data here", "irreducible", "not known"
MIN_NARROWING = 0.1  # from which data are worth collecting
# Probability with which exchangeable rows are reported: a table by a warning, a row as
# outside (with fewer than 99 calibration rows 1 / (n + 1), the smallest there is).
SIGNIFICANCE = 0.01


def predict_frame(model: Any, X: Any, **predict_params: Any) -> Any:
    """Predictions, intervals and the parts of their widths as a data frame.

    Parameters
    ----------
    model, X, **predict_params
        What :func:`~mapie_claps.explain` accepts, and calibrated models that give a
        standard deviation without parts, which are then NaN.

    Returns
    -------
    DataFrame
        As :meth:`Explanation.to_frame`, but of polars if X is.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import ClapsRegressor
    >>> from mapie_claps.diagnostics import predict_frame
    >>> X = np.linspace(-2, 2, 200)[:, None]
    >>> model = ClapsRegressor(n_members=2, max_steps=60, random_state=0)
    >>> list(predict_frame(model.fit(X, X[:, 0]), X[:3]))[:2]
    ['prediction', 'aleatoric']
    """
    why = explain_rows(model, X, need_parts=False, **predict_params)
    if why.noise_width is None:
        why = replace(why, noise_width=np.full_like(why.lower, np.nan))
    if type(X).__module__.partition(".")[0] == "polars":
        return type(X)(why.columns())
    return why.to_frame()


def diagnose(
    model: Any,
    X: ArrayLike,
    *,
    X_calibration: ArrayLike | None = None,
    **predict_params: Any,
) -> Any:
    """Explain every row: prediction, interval, reasons for its width, what to do.

    Parameters
    ----------
    model, X, **predict_params
        What :func:`~mapie_claps.explain` accepts.
    X_calibration : array-like of shape (n_calibration, p), optional
        Inputs of the calibration rows, which MAPIE does not keep. An
        :class:`~mapie_claps.exceptions.OutsideCalibrationWarning` is given if more
        rows lie beyond them than exchangeable rows would (exact test, level 0.01).

    Returns
    -------
    DataFrame or dict of ndarray
        Columns of :class:`~mapie_claps.Explanation`, with the share s of lack of data;
        ``narrowing``, the share by which the interval would be narrower after one
        measurement at this row, 1 − √(1 − s²); and ``reason``: "collect data here" if
        that is a tenth or more, else "irreducible", or "not known" if it is outside,
        where the noise is extrapolated. With ``X_calibration`` also
        ``epistemic_quantile``, the share of calibration rows with no larger epistemic
        variance, and ``outside``: larger than in 99 % of them (in all, if few).

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import ClapsRegressor
    >>> from mapie_claps.diagnostics import diagnose
    >>> X = np.linspace(-1, 1, 60)[:, None]
    >>> model = ClapsRegressor(n_members=2, max_steps=60, random_state=0)
    >>> table = diagnose(model.fit(X, X[:, 0]), X, X_calibration=X)
    >>> float(max(table["epistemic_quantile"])), bool(any(table["outside"]))
    (1.0, False)
    """
    why = explain(model, X, **predict_params)
    # c − c²/(h² + c) = c·h²/v is left of c, so that v falls to v(1 − (c/v)²).
    narrowing = 1 - np.sqrt(1 - why.epistemic_fraction**2)
    standing: dict[str, Any] = {}
    if X_calibration is not None:
        standing = _standing(model, X, why.epistemic, X_calibration)
    otherwise = np.where(standing.get("outside", False), UNKNOWN, IRREDUCIBLE)
    reason = np.where(narrowing >= MIN_NARROWING, COLLECT, otherwise)
    added = {"narrowing": narrowing, "reason": reason} | standing
    return as_table(why.columns() | added, why.index)


def _standing(model: Any, X: Any, lack: Array, X_calibration: Any) -> dict[str, Any]:
    """Where rows stand among the calibration rows; warns if too many are beyond."""
    of_models = [explain_rows(each, X_calibration) for each in models_of(model)]
    known = np.sort(np.mean([why.epistemic for why in of_models], axis=0))
    n, n_known = len(lack), len(known)
    beyond: dict[str, int] = {}
    seen = {"epistemic variance": known} | columns_of(X_calibration)
    for name, values in ({"epistemic variance": lack} | columns_of(X)).items():
        new, old = np.asarray(values), np.asarray(seen.get(name, values))
        if new.dtype.kind in "iuf" and old.dtype.kind in "iuf":
            low, high = np.fmin.reduce(old), np.fmax.reduce(old)  # not of gaps
            beyond[f"{name} above {high:.4g}"] = int((new > high).sum())
            beyond[f"{name} below {low:.4g}"] = int((new < low).sum())
    k, worst = max((k, side) for side, k in beyond.items())
    # The k most extreme of n + n_known exchangeable rows are all among the n.
    chance = math.prod((n - i) / (n + n_known - i) for i in range(k))
    if chance < SIGNIFICANCE / len(beyond):
        warnings.warn(
            f"Got {k} of {n} rows of X with {worst}, beyond all {n_known} rows of "
            "X_calibration; exchangeable rows would do so with a probability of "
            f"{chance:.2g}. The coverage guarantee does not reach such rows: calibrate "
            "on rows like them, or leave them out.",
            OutsideCalibrationWarning,
            stacklevel=3,
        )
    no_smaller = 1 + n_known - np.searchsorted(known, lack, "left")
    return {
        "epistemic_quantile": np.searchsorted(known, lack, "right") / n_known,
        "outside": no_smaller <= max(SIGNIFICANCE * (n_known + 1), 1),
    }


def summarise(
    model: Any,
    X: ArrayLike,
    y: ArrayLike,
    *,
    groups: ArrayLike | None = None,
    **predict_params: Any,
) -> Any:
    """Coverage, width, score and mean parts, over all rows and in each group.

    Parameters
    ----------
    model, X, **predict_params
        A calibrated object, and what else :func:`~mapie_claps.explain` accepts.
    y, groups
        As in :func:`~mapie_claps.metrics.evaluate_intervals`.

    Returns
    -------
    DataFrame or dict of ndarray
        What ``evaluate_intervals`` gives, and the means of both parts of the variance,
        of the share of the second, and of both widths.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import CalibratedRegressor, ClapsRegressor
    >>> from mapie_claps.diagnostics import summarise
    >>> X = np.random.default_rng(0).uniform(-2, 2, (300, 1))
    >>> model = ClapsRegressor(n_members=2, max_steps=60, random_state=0)
    >>> model = CalibratedRegressor(model, cv=None).fit(X[:200], X[:200, 0])
    >>> table = summarise(model, X[200:], X[200:, 0], groups=X[200:, 0] > 0)
    >>> list(table["group"])
    ['all', False, True]
    """
    why = explain(model, X, **predict_params)
    if not why.confidence_level:
        raise TypeError(
            f"Got a {type(model).__name__}, which has no intervals to summarise. Pass "
            "a calibrated object, or use diagnose for a fitted estimator."
        )
    return as_table(group_columns(why, y, groups))


def group_columns(why: Explanation, y: ArrayLike, groups: Any) -> dict[str, Any]:
    """Columns of ``summarise``."""
    names = ["aleatoric", "epistemic", "epistemic_fraction"]
    if why.noise_width is not None:
        names += ["aleatoric_width", "epistemic_width"]
    figures = {name: getattr(why, name) for name in names}
    bounds = np.stack([why.lower, why.upper], axis=1)
    levels = why.confidence_level
    return evaluate_intervals(y, bounds, levels, groups=groups, figures=figures)


def rank_rows(
    model: Any,
    X: ArrayLike,
    *,
    by: str = "epistemic",
    n_rows: int = 10,
    **diagnose_params: Any,
) -> Any:
    """Rank rows by lack of data, by its share, or by noise.

    Parameters
    ----------
    model, X, **diagnose_params
        What :func:`diagnose` accepts.
    by : {"epistemic", "epistemic_fraction", "aleatoric"}, default="epistemic"
        What to rank by, largest first.
    n_rows : int, default=10
        Number of rows to return.

    Returns
    -------
    DataFrame or dict of ndarray
        ``row`` (position in X) and the columns of :func:`diagnose`.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import ClapsRegressor
    >>> from mapie_claps.diagnostics import rank_rows
    >>> x = np.linspace(-1, 1, 60)
    >>> model = ClapsRegressor(n_members=2, max_steps=60, random_state=0)
    >>> table = rank_rows(model.fit(x[:, None], x), [[0.0], [40.0]], n_rows=1)
    >>> int(table["row"][0]), str(table["reason"][0])
    (1, 'collect data here')
    """
    choices = ("epistemic", "epistemic_fraction", "aleatoric")
    check_choice("by", by, choices, "Use the default if unsure.")
    check_integer("n_rows", n_rows, low=1, hint="Use 10.")
    table = diagnose(model, X, **diagnose_params)
    order = np.argsort(-np.asarray(table[by]), kind="stable")[:n_rows]
    ranked = {name: np.asarray(values)[order] for name, values in table.items()}
    return as_table({"row": order} | ranked)


def nearest_rows(
    model: Any,
    X: ArrayLike,
    X_train: ArrayLike,
    *,
    y_train: ArrayLike | None = None,
    n_neighbors: int = 3,
) -> Any:
    """Find the training rows nearest to each row in φ.

    Parameters
    ----------
    model, X
        What :func:`~mapie_claps.explain` accepts, of our own estimators.
    X_train : array-like of shape (m, p)
        Training rows.
    y_train : array-like of shape (m,), optional
        Their targets, to be shown.
    n_neighbors : int, default=3
        Training rows to show for each row.

    Returns
    -------
    DataFrame or dict of ndarray
        ``row`` (position in X), ``neighbour`` (position in X_train, nearest first),
        ``distance`` in φ (1 is the root mean squared distance of training rows from
        their centre) and ``y``.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import ClapsRegressor
    >>> from mapie_claps.diagnostics import nearest_rows
    >>> x = np.linspace(-1, 1, 60)
    >>> model = ClapsRegressor(n_members=2, max_steps=60, random_state=0)
    >>> table = nearest_rows(model.fit(x[:, None], x), [[3.0]], x[:, None])
    >>> bool(x[table["neighbour"][0]] > 0.5)
    True
    """
    from ..conformal.distribution import last_step, transformed  # loads torch

    check_integer("n_neighbors", n_neighbors, low=1, hint="Use 3.")
    check_consistent_length(X_train, y_train)
    (fitted,) = models_of(model, folds=False)
    last = last_step(fitted)
    if not hasattr(last, "embed"):
        raise TypeError(
            f"Got a {type(last).__name__}, which has no representation φ of rows. Use "
            "ClapsRegressor or ClapsModule, or rank rows by 'epistemic'."
        )
    phi, known = (last.embed(transformed(fitted, rows)) for rows in (X, X_train))
    k = min(n_neighbors, len(known))
    search = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(known)
    distance, near = search.kneighbors(phi)
    unit = float(np.sqrt(known.var(axis=0).sum())) or 1.0
    columns = {
        "row": np.repeat(np.arange(len(phi)), k),
        "neighbour": near.ravel(),
        "distance": distance.ravel() / unit,
    }
    if y_train is not None:
        columns["y"] = np.asarray(y_train)[near.ravel()]
    return as_table(columns)
