"""why → what to do: tables of rows and of groups.

Tables are pandas DataFrames if pandas is installed, else dicts of arrays.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._validation import check_choice, check_integer, check_number
from ..conformal.parts import split_pipeline
from .as_table import as_table
from .calibration_range import EPISTEMIC, rows_outside
from .coverage import group_columns
from .explain import explain, model_of, variance_of
from .measuring import best_order, own_narrowing

Array = NDArray[np.float64]
COLLECT, IRREDUCIBLE = "collect data here", "irreducible"


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
        says where each row is among them, and an
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
        lies farther beyond the calibration rows, in a column or in epistemic variance,
        than all but 1 % of these lie beyond the others; a row like them does so with
        probability 0.01, or 1 / (n_calibration + 1) if that is more). The parts of the
        width are left out where MAPIE's score does not scale it by √v.

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
    columns: dict[str, Any] = dict(why.columns())
    if X_calibration is not None:
        reference = variance_of(mapie_or_estimator, X_calibration).epistemic
        model = model_of(mapie_or_estimator)
        n_below = np.searchsorted(np.sort(reference), why.epistemic, side="right")
        columns["epistemic_quantile"] = n_below / len(reference)
        columns["outside"] = rows_outside(
            _seen_by_model(model, X, why.epistemic),
            _seen_by_model(model, X_calibration, reference),
        )
    return as_table(columns, getattr(X, "index", None))


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
    return as_table(group_columns(why, np.asarray(y), groups, confidence))


def rank_rows(
    mapie_or_estimator: Any,
    X: ArrayLike,
    *,
    by: str = "epistemic",
    n_rows: int = 10,
    min_narrowing: float = 0.05,
    X_watched: ArrayLike | None = None,
    alpha: float | None = None,
    **predict_params: Any,
) -> Any:
    """Rank rows by what measuring them would bring, or by noise or lack of data.

    A measurement contracts the posterior by one row in closed form; the model is not
    trained again and the conformal quantile stays as it is.

    Parameters
    ----------
    mapie_or_estimator : object
        What :func:`~mapie_claps.explain` accepts.
    X : array-like of shape (n, p)
        Candidate inputs; no targets are needed.
    by : {"epistemic", "epistemic_fraction", "aleatoric", "gain"}, default="epistemic"
        What to rank by, largest first: a part of the variance; the share of the
        epistemic part, which ranks rows by how much narrower their own interval would
        become; or "gain", what a measurement would bring for all rows together. Rows
        are then in the order in which to measure them, each judged after those above
        it, so that ten rows at the same place do not come first. "gain" needs a
        ``ClapsRegressor`` or ``ClapsModule``.
    n_rows : int, default=10
        Number of rows to return; all if there are fewer.
    min_narrowing : float, default=0.05
        Share by which one measurement must narrow the interval of its own row for
        data to be worth collecting there.
    X_watched : array-like of shape (m, p), optional
        Rows whose intervals should become narrower, for "gain"; by default X. At most
        1,000 of them are used, evenly spread, and the 2,000 least known candidates.
    alpha : float or iterable of float, optional
        Miscoverages, for MAPIE 0.9.
    **predict_params : dict
        Passed to MAPIE.

    Returns
    -------
    DataFrame or dict of ndarray
        The columns of :func:`diagnose` behind ``row`` (position in X), ``reason``,
        ``narrowing`` and ``narrowing_limit``. ``narrowing`` is the share by which the
        interval of the row would be narrower, at the same quantile, after one
        measurement there: 1 − √(1 − s²), with s the epistemic fraction.
        ``narrowing_limit`` is the share if it lacked no data at all, 1 − √(1 − s). The
        reason is "collect data here" if ``narrowing`` is at least ``min_narrowing``,
        else "irreducible": noise makes the width, which a measurement would hardly
        change. With "gain", ``mean_narrowing`` is what each measurement adds to the
        mean share by which the intervals of X_watched become narrower.

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
    choices = ("epistemic", "epistemic_fraction", "aleatoric", "gain")
    check_choice("by", by, choices, "Rank by one of the parts, or by the gain.")
    check_integer("n_rows", n_rows, low=1, hint="Use 10.")
    threshold = check_number(
        "min_narrowing", min_narrowing, low=0, high=1, hint="Use 0.05."
    )
    if X_watched is not None and by != "gain":
        raise ValueError(
            f"Got X_watched together with by={by!r}, which looks at single rows. Use "
            "by='gain', or leave X_watched out."
        )
    why = explain(mapie_or_estimator, X, alpha=alpha, **predict_params)
    narrowing = own_narrowing(why.aleatoric, why.epistemic)
    columns = {
        "row": np.arange(len(narrowing)),
        "reason": np.where(narrowing >= threshold, COLLECT, IRREDUCIBLE),
        "narrowing": narrowing,
        "narrowing_limit": 1 - 1 / why.variance.scale_ratio,
        **why.columns(),
    }
    if by != "gain":
        order = np.argsort(-getattr(why, by), kind="stable")[:n_rows]
        return as_table({name: values[order] for name, values in columns.items()})
    watched = X if X_watched is None else X_watched
    order, gains = best_order(mapie_or_estimator, X, n_rows, watched)
    ranked = {name: values[order] for name, values in columns.items()}
    return as_table(ranked | {"mean_narrowing": gains})


def _seen_by_model(model: Any, X: ArrayLike, epistemic: Array) -> dict[str, Array]:
    """What is compared with calibration: each input column and epistemic variance."""
    last, seen = split_pipeline(model, X)
    if hasattr(last, "input_columns"):
        named = last.input_columns(seen)
    else:
        values = np.asarray(seen, dtype=np.float64)
        values = values.reshape(len(values), -1)
        names = getattr(last, "feature_names_in_", range(values.shape[1]))
        named = dict(zip(names, values.T, strict=True))
    columns = {f"column {name}": values for name, values in named.items()}
    return columns | {EPISTEMIC: epistemic}
