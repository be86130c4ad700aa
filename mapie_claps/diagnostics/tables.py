"""why → what to do: tables of rows and of groups.

Tables are pandas DataFrames if pandas is installed, else dicts of arrays.
"""

import math
import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import metrics
from .._validation import check_choice, check_integer, check_number
from ..exceptions import OutsideCalibrationWarning
from .explanation import Explanation, as_table, explain, mean_variance, models_of
from .measuring import best_order, own_narrowing
from .permuted_rows import columns_of

Array = NDArray[np.float64]
COLLECT, IRREDUCIBLE, UNKNOWN = "collect data here", "irreducible", "not known"
# Probability with which exchangeable rows are reported: a table by a warning, a row as
# outside (with fewer than 99 calibration rows 1 / (n + 1), the smallest there is).
SIGNIFICANCE = 0.01
EPISTEMIC = "epistemic variance"


def diagnose(
    model: Any,
    X: ArrayLike,
    *,
    X_calibration: ArrayLike | None = None,
    min_narrowing: float = 0.05,
    **predict_params: Any,
) -> Any:
    """Explain every row: prediction, interval, reasons for its width, what to do.

    Parameters
    ----------
    model : object
        What :func:`~mapie_claps.explain` accepts.
    X : array-like of shape (n, p)
        Inputs.
    X_calibration : array-like of shape (n_calibration, p), optional
        Inputs of the calibration rows, which MAPIE does not keep. An
        :class:`~mapie_claps.exceptions.OutsideCalibrationWarning` is given if more
        rows lie beyond them than exchangeable rows would (exact test, level 0.01 over
        all columns of numbers together).
    min_narrowing : float, default=0.05
        ``narrowing`` from which data are worth collecting.
    **predict_params : dict
        Passed to :func:`~mapie_claps.explain`.

    Returns
    -------
    DataFrame or dict of ndarray
        prediction, lower, upper, width, aleatoric_width, epistemic_width
            The interval of a calibrated object, what noise alone would need, and what
            lack of data adds; as ``lower_0.9`` if there are several levels.
        aleatoric, epistemic, epistemic_fraction
            Parts of the variance, and the share s of the second.
        narrowing
            Share by which the interval would be narrower, at the same quantile, after
            one measurement at this row: 1 − √(1 − s²).
        reason
            "collect data here" if ``narrowing`` is large enough, else "irreducible":
            noise makes the width. "not known" if the row is ``outside``, where the
            noise is extrapolated.
        epistemic_quantile, outside
            With ``X_calibration``: the share of calibration rows with no larger
            epistemic variance, and whether it is larger than in 99 % of them (in all,
            if there are fewer than 99): rows like them are so with probability 0.01,
            or 1 / (n_calibration + 1).

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
    threshold = check_number(
        "min_narrowing", min_narrowing, low=0, high=1, hint="Use 0.05."
    )
    why = explain(model, X, **predict_params)
    narrowing = own_narrowing(why.aleatoric, why.epistemic)
    reason = np.where(narrowing >= threshold, COLLECT, IRREDUCIBLE)
    columns: dict[str, Any] = why.columns() | {"narrowing": narrowing, "reason": reason}
    if X_calibration is not None:
        # What predicts loads torch.
        from ..conformal.distribution import distribution_of

        rows = [distribution_of(each, X_calibration) for each in models_of(model)]
        reference = np.sort(mean_variance(rows).epistemic)
        n, lack = len(reference), why.epistemic
        columns["epistemic_quantile"] = np.searchsorted(reference, lack, "right") / n
        chance = (1 + n - np.searchsorted(reference, lack, "left")) / (n + 1)
        outside = chance <= max(SIGNIFICANCE, 1 / (n + 1))
        columns["outside"] = outside
        columns["reason"] = np.where(outside & (reason == IRREDUCIBLE), UNKNOWN, reason)
        _warn_of_extremes(
            columns_of(X) | {EPISTEMIC: lack},
            columns_of(X_calibration) | {EPISTEMIC: reference},
        )
    return as_table(columns, getattr(X, "index", None))


def _warn_of_extremes(rows: dict[Any, Any], seen: dict[Any, Any]) -> None:
    """Warn of a column of numbers in which too many rows lie beyond all those seen."""
    beyond: dict[str, int] = {}
    for name in [n for n in rows if n in seen]:
        new, known = (np.asarray(columns[name]) for columns in (rows, seen))
        if new.dtype.kind in "iuf" and known.dtype.kind in "iuf":
            # Without gaps; fmin and fmax pass them over.
            low, high = np.fmin.reduce(known), np.fmax.reduce(known)
            beyond[f"{name} above {high:.4g}"] = int((new > high).sum())
            if name != EPISTEMIC:  # which is never too small
                beyond[f"{name} below {low:.4g}"] = int((new < low).sum())
    worst = max(beyond, key=lambda name: beyond[name])
    n, n_seen, i = len(rows[EPISTEMIC]), len(seen[EPISTEMIC]), np.arange(beyond[worst])
    # The most extreme of n + n_seen exchangeable rows are all among the n.
    chance = math.exp(float(np.log((n - i) / (n + n_seen - i)).sum()))
    if chance < SIGNIFICANCE / len(beyond):
        warnings.warn(
            f"Got {beyond[worst]} of {n} rows of X with {worst}, beyond all {n_seen} "
            "rows of X_calibration; exchangeable rows would do so with a probability "
            f"of {chance:.2g}. The coverage guarantee does not reach such rows: "
            "calibrate on rows like them, or leave them out.",
            OutsideCalibrationWarning,
            stacklevel=3,
        )


def summarise(
    model: Any,
    X: ArrayLike,
    y: ArrayLike,
    *,
    groups: ArrayLike | None = None,
    n_bins: int | None = None,
    confidence: float = 0.95,
    **predict_params: Any,
) -> Any:
    """Coverage, width, score and mean parts, over all rows and in each group.

    Parameters
    ----------
    model : object
        A calibrated object, see :func:`~mapie_claps.explain`.
    X : array-like of shape (n, p)
        Test inputs.
    y : array-like of shape (n,)
        Test targets.
    groups : array-like of shape (n,), optional
        Label of the group of each row, or numbers to cut into bins.
    n_bins : int, optional
        Bins of about the same number of rows into which ``groups`` are cut.
    confidence : float, default=0.95
        Level of the binomial interval of the coverage.
    **predict_params : dict
        Passed to :func:`~mapie_claps.explain`.

    Returns
    -------
    DataFrame or dict of ndarray
        What :func:`~mapie_claps.metrics.evaluate_intervals` gives, one entry per group
        and level, and the means of ``aleatoric``, ``epistemic``,
        ``epistemic_fraction``, ``aleatoric_width`` and ``epistemic_width``.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import CalibratedRegressor, ClapsRegressor
    >>> from mapie_claps.diagnostics import summarise
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-2, 2, (300, 1))
    >>> y = X[:, 0] + rng.normal(0, 0.1, 300)
    >>> model = ClapsRegressor(n_members=2, max_steps=60, random_state=0)
    >>> model = CalibratedRegressor(model, random_state=0).fit(X[:200], y[:200])
    >>> table = summarise(model, X[200:], y[200:], groups=X[200:, 0] > 0)
    >>> list(table["group"])
    ['all', False, True]
    """
    why = explain(model, X, **predict_params)
    if not why.confidence_level:
        raise TypeError(
            f"Got a {type(model).__name__}, which has no intervals to summarise. Pass "
            "a calibrated object, or use diagnose for a fitted estimator."
        )
    return as_table(group_columns(why, y, groups, n_bins, confidence))


def group_columns(
    why: Explanation,
    y: ArrayLike,
    groups: ArrayLike | None,
    n_bins: int | None = None,
    confidence: float = 0.95,
) -> dict[str, NDArray[Any]]:
    """Columns of ``summarise``."""
    bounds, levels = np.stack([why.lower, why.upper], axis=1), why.confidence_level
    found = metrics.evaluate_intervals(
        y, bounds, levels, groups=groups, n_bins=n_bins, confidence=confidence
    )
    masks = [mask for _, mask in metrics.group_masks(groups, len(bounds), n_bins)]
    for name in ("aleatoric", "epistemic", "epistemic_fraction"):
        means = [getattr(why, name)[mask].mean() for mask in masks]
        found[name] = np.repeat(means, len(levels))
    for name in (
        ("aleatoric_width", "epistemic_width") if why.noise_width is not None else ()
    ):
        means = [getattr(why, name)[mask].mean(axis=0) for mask in masks]
        found[name] = np.concatenate(means)
    return found


def rank_rows(
    model: Any,
    X: ArrayLike,
    *,
    by: str = "epistemic",
    n_rows: int = 10,
    X_watched: ArrayLike | None = None,
    **diagnose_params: Any,
) -> Any:
    """Rank rows by what measuring them would bring, or by noise or lack of data.

    A measurement contracts the posterior by one row in closed form; the model is not
    trained again and the conformal quantile stays as it is.

    Parameters
    ----------
    model : object
        What :func:`~mapie_claps.explain` accepts.
    X : array-like of shape (n, p)
        Candidate inputs; no targets are needed.
    by : {"epistemic", "epistemic_fraction", "aleatoric", "gain"}, default="epistemic"
        What to rank by, largest first: a part of the variance; the share of the
        epistemic part, and so the narrowing of the row's own interval; or "gain", what
        measurements bring for all rows together. Rows are then in the order in which
        to measure them, each judged after those above it, so that ten rows at the same
        place do not come first. It needs a ``ClapsRegressor`` or ``ClapsModule``.
    n_rows : int, default=10
        Number of rows to return; all if there are fewer.
    X_watched : array-like of shape (m, p), optional
        Rows whose intervals should become narrower, for "gain"; by default X. At most
        1,000 of them are used, evenly spread, and the 2,000 least known candidates.
    **diagnose_params : dict
        Passed to :func:`diagnose`, for example ``X_calibration``.

    Returns
    -------
    DataFrame or dict of ndarray
        ``row`` (position in X) and the columns of :func:`diagnose`. With "gain" also
        ``mean_narrowing``, what each measurement adds to the mean share by which the
        intervals of ``X_watched`` become narrower.

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
    choices = ("epistemic", "epistemic_fraction", "aleatoric", "gain")
    check_choice("by", by, choices, "Rank by one of the parts, or by the gain.")
    check_integer("n_rows", n_rows, low=1, hint="Use 10.")
    if X_watched is not None and by != "gain":
        raise ValueError(
            f"Got X_watched together with by={by!r}, which looks at single rows. Use "
            "by='gain', or leave X_watched out."
        )
    table, added = diagnose(model, X, **diagnose_params), {}
    if by == "gain":
        watched = X if X_watched is None else X_watched
        order, added["mean_narrowing"] = best_order(model, X, n_rows, watched)
    else:
        order = np.argsort(-np.asarray(table[by]), kind="stable")[:n_rows]
    ranked = {name: np.asarray(values)[order] for name, values in table.items()}
    return as_table({"row": order} | ranked | added)
