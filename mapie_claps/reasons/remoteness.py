"""Rows → how far they are from the training rows, among rows like them."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .as_table import as_table
from .explain import last_step_with

Array = NDArray[np.float64]


def remoteness(
    mapie_or_estimator: Any, X: ArrayLike, X_reference: ArrayLike | None = None
) -> Any:
    """Find rows from elsewhere: how far each is from the training rows.

    Lack of data can be small in a region without rows, where there is little noise and
    the members agree. This number leaves both out.

    Parameters
    ----------
    mapie_or_estimator : object
        What :func:`~mapie_claps.explain` accepts, around a ``ClapsRegressor`` or a
        ``ClapsModule``, by itself or as the last step of a ``Pipeline``.
    X : array-like of shape (n, p)
        Rows to look at.
    X_reference : array-like of shape (m, p), optional
        Rows from here that the model was not fitted on, for example the calibration
        rows. Training rows would not do: the model knows them better than new ones.

    Returns
    -------
    DataFrame or dict of ndarray
        The most remote row first: ``row`` (position in X), ``remoteness`` (see
        ``ClapsRegressor.predict_remoteness``; infinite where a value was never seen)
        and, with ``X_reference``, ``share_beyond``: the share of all reference rows
        and the row itself that are at least as remote. If the row is one like them,
        this share is at most p with probability at most p.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import ClapsRegressor
    >>> from mapie_claps.diagnostics import remoteness
    >>> x = np.random.default_rng(0).uniform(-1, 1, 100)
    >>> model = ClapsRegressor(n_members=2, random_state=0).fit(x[:60, None], x[:60])
    >>> table = remoteness(model, [[0.0], [4.0]], X_reference=x[60:, None])
    >>> int(table["row"][0]), float(table["share_beyond"][0]) < 0.05
    (1, True)
    """
    found = _of(mapie_or_estimator, X)
    order = np.argsort(-found, kind="stable")
    columns: dict[str, Any] = {"row": order, "remoteness": found[order]}
    if X_reference is not None:
        reference = np.sort(_of(mapie_or_estimator, X_reference))
        beyond = len(reference) - np.searchsorted(reference, found[order], side="left")
        columns["share_beyond"] = (1 + beyond) / (1 + len(reference))
    return as_table(columns)


def _of(mapie_or_estimator: Any, X: ArrayLike) -> Array:
    method, instead = "predict_remoteness", "look at epistemic_quantile of diagnose"
    last, seen = last_step_with(method, mapie_or_estimator, X, instead)
    found: Array = last.predict_remoteness(seen)
    return found
