"""Lack of data → measurements: what a new row would bring, and which rows are near.

A measurement at z, with noise h²(z), contracts the posterior by one row in closed form:
the epistemic variance at x falls by c(x, z)² / (h²(z) + c(z, z)), c being the epistemic
covariance. Networks, noise and the conformal quantile q stay as they are, so that an
interval shrinks with √v. NumPy only.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _num_samples

from .._validation import check_integer
from .as_table import as_table
from .explain import last_step_with

Array = NDArray[np.float64]
# Rows whose intervals are watched, evenly spread: more would hardly change the mean.
MAX_WATCHED = 1000
MAX_CANDIDATES = 2000  # of more, those of the largest epistemic variance


def own_narrowing(aleatoric: Array, epistemic: Array) -> Array:
    """Share by which intervals shrink if their rows are measured once.

    c − c²/(h² + c) = c·h²/v is left of c, so that v falls to v(1 − (c/v)²).
    """
    share = epistemic / (aleatoric + epistemic)
    return np.asarray(1 - np.sqrt(1 - share**2))


def nearest_rows(
    mapie_or_estimator: Any,
    X: ArrayLike,
    X_train: ArrayLike | None = None,
    *,
    y_train: ArrayLike | None = None,
    n_neighbors: int = 3,
) -> Any:
    """Find the training rows nearest to each row in φ, and what measuring would bring.

    Parameters
    ----------
    mapie_or_estimator : object
        What :func:`~mapie_claps.explain` accepts, around a ``ClapsRegressor`` or a
        ``ClapsModule``, by itself or as the last step of a ``Pipeline``.
    X : array-like of shape (n, p)
        Rows to explain.
    X_train : array-like of shape (m, p), optional
        Training rows. They may be left out for a ``CalibratedRegressor`` that was
        fitted with ``keep_training_rows=True``.
    y_train : array-like of shape (m,), optional
        Their targets, to be shown beside them. Rows that were kept bring theirs.
    n_neighbors : int, default=3
        Training rows to show for each row; all if there are fewer.

    Returns
    -------
    DataFrame or dict of ndarray
        ``row`` (position in X), ``neighbour`` (position in X_train, nearest first),
        ``distance`` in φ (1 is the root mean squared distance of training rows from
        their centre), ``narrowing`` (by which share the interval of the row would be
        narrower, at the same quantile, if the neighbour were measured once more),
        ``own_narrowing`` (the same if the row itself were measured) and ``y`` of the
        neighbour if it was given.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import ClapsRegressor
    >>> from mapie_claps.diagnostics import nearest_rows
    >>> x = np.linspace(-1, 1, 60)
    >>> model = ClapsRegressor(n_members=2, random_state=0).fit(x[:, None], x)
    >>> table = nearest_rows(model, [[3.0]], x[:, None], n_neighbors=1)
    >>> bool(x[table["neighbour"][0]] > 0.5)
    True
    """
    check_integer("n_neighbors", n_neighbors, low=1, hint="Use 3.")
    if X_train is None:
        if y_train is not None:
            raise ValueError(
                "Got y_train without X_train. Pass both, or neither if the object has "
                "kept its training rows."
            )
        X_train, y_train = _kept_rows(mapie_or_estimator)
    elif y_train is not None and _num_samples(y_train) != _num_samples(X_train):
        raise ValueError(
            f"Got y_train of {_num_samples(y_train)} targets for X_train of "
            f"{_num_samples(X_train)} rows, but expected one for each row."
        )
    last, seen = _with_covariance(mapie_or_estimator, X)
    _, training = _with_covariance(mapie_or_estimator, X_train)
    phi, phi_train = last.embed(seen), last.embed(training)
    centred = phi_train - phi_train.mean(axis=0)
    unit = float(np.sqrt(np.mean(np.sum(centred**2, axis=1)))) or 1.0
    k = min(n_neighbors, len(phi_train))
    search = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(phi_train)
    distance, near = search.kneighbors(phi)
    noise, lack = _parts(last, seen)
    rows = np.arange(len(phi))
    narrowing = np.empty((len(phi), k))
    for i in rows:
        neighbours = _safe_indexing(training, near[i])
        covariance = last.predict_covariance(_safe_indexing(seen, [i]), neighbours)[0]
        gained = covariance**2 / np.add(*_parts(last, neighbours))
        left = np.maximum(lack[i] - gained, 0.0) + noise[i]
        narrowing[i] = 1 - np.sqrt(left / (noise[i] + lack[i]))
    columns = {
        "row": np.repeat(rows, k),
        "neighbour": near.ravel(),
        "distance": distance.ravel() / unit,
        "narrowing": narrowing.ravel(),
        "own_narrowing": np.repeat(own_narrowing(noise, lack), k),
    }
    if y_train is not None:
        columns["y"] = np.asarray(y_train)[near.ravel()]
    return as_table(columns)


def best_order(
    mapie_or_estimator: Any, X: ArrayLike, n_rows: int, X_watched: ArrayLike
) -> tuple[NDArray[np.intp], Array]:
    """Rows to measure one after another, and what each adds to the mean narrowing.

    After each choice the posterior is contracted, so that the next row is one that
    those before it do not make superfluous.
    """
    last, seen = _with_covariance(mapie_or_estimator, X)
    _, watched = _with_covariance(mapie_or_estimator, X_watched)
    noise, unknown = _parts(last, seen)
    candidates = np.argsort(-unknown, kind="stable")[:MAX_CANDIDATES]
    n_watched = _num_samples(watched)
    spread = np.linspace(0, n_watched - 1, min(n_watched, MAX_WATCHED)).round()
    watched = _safe_indexing(watched, spread.astype(int))
    some = _safe_indexing(seen, candidates)
    noise, unknown = noise[candidates], unknown[candidates]
    h2, c = _parts(last, watched)
    across = last.predict_covariance(some, watched)  # (m, n)
    among = last.predict_covariance(some, some)  # (m, m)
    among = (among + among.T) / 2
    np.fill_diagonal(among, unknown)
    first = np.sqrt(h2 + c)
    order: list[int] = []
    gains = []
    for _ in range(min(n_rows, len(candidates))):
        unknown = among.diagonal()
        # A kernel that looks at near rows only is no covariance of all rows at once.
        limit = np.sqrt(unknown)
        largest = limit[:, None] * np.sqrt(c)
        across = np.clip(across, -largest, largest)
        left = np.maximum(c - across**2 / (noise + unknown)[:, None], 0.0)
        gain = np.mean((np.sqrt(h2 + c) - np.sqrt(h2 + left)) / first, axis=1)
        gain[order] = -np.inf
        best = int(np.argmax(gain))
        order.append(best)
        gains.append(float(gain[best]))
        root = np.sqrt(noise[best] + unknown[best])
        largest = limit * limit[best]
        step = np.clip(among[best], -largest, largest) / root
        towards = across[best] / root
        across = across - np.outer(step, towards)
        among = among - np.outer(step, step)
        np.fill_diagonal(among, np.maximum(unknown - step**2, 0.0))
        c = np.maximum(c - towards**2, 0.0)
    return candidates[order], np.array(gains)


def _kept_rows(mapie_or_estimator: Any) -> tuple[Any, Any]:
    """Training rows of an object that was asked to keep them."""
    rows: tuple[Any, Any] | None = getattr(mapie_or_estimator, "training_rows_", None)
    if rows is None:
        raise ValueError(
            f"Got no X_train, and a {type(mapie_or_estimator).__name__} that has kept "
            "no training rows. Pass X_train, or fit with "
            "CalibratedRegressor(keep_training_rows=True)."
        )
    return rows


def _with_covariance(mapie_or_estimator: Any, X: ArrayLike) -> tuple[Any, Any]:
    """The model that tells it, and the rows as it sees them."""
    method, instead = "predict_covariance", "rank rows by 'epistemic'"
    lost = " and so does not tell what a measurement would bring elsewhere"
    return last_step_with(method, mapie_or_estimator, X, instead, lost)


def _parts(last: Any, X: Any) -> tuple[Array, Array]:
    """Both parts of v, in the units of the covariance."""
    law = last.predict_law(X)
    return law.aleatoric, law.epistemic
