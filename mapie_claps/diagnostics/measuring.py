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
from .explanation import as_table, models_of

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
    model: Any,
    X: ArrayLike,
    X_train: ArrayLike | None = None,
    *,
    y_train: ArrayLike | None = None,
    n_neighbors: int = 3,
) -> Any:
    """Find the training rows nearest to each row in φ, and what measuring would bring.

    Parameters
    ----------
    model : object
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
    >>> model = ClapsRegressor(n_members=2, max_steps=60, random_state=0)
    >>> table = nearest_rows(model.fit(x[:, None], x), [[3.0]], x[:, None])
    >>> bool(x[table["neighbour"][0]] > 0.5)
    True
    """
    check_integer("n_neighbors", n_neighbors, low=1, hint="Use 3.")
    if X_train is None:
        if y_train is not None or not hasattr(model, "training_rows_"):
            raise ValueError(
                f"Got no X_train for a {type(model).__name__}, but expected the rows "
                "that it was fitted on (and y_train only with them). Pass X_train, or "
                "fit with CalibratedRegressor(keep_training_rows=True)."
            )
        X_train, y_train = model.training_rows_
    elif y_train is not None and _num_samples(y_train) != _num_samples(X_train):
        raise ValueError(
            f"Got y_train of {_num_samples(y_train)} targets for X_train of "
            f"{_num_samples(X_train)} rows, but expected one for each row."
        )
    last, seen = _with_covariance(model, X)
    _, training = _with_covariance(model, X_train)
    phi, phi_train = last.embed(seen), last.embed(training)
    k = min(n_neighbors, len(phi_train))
    search = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(phi_train)
    distance, near = search.kneighbors(phi)
    unit = float(np.sqrt(phi_train.var(axis=0).sum())) or 1.0
    # Of all rows with the neighbours of any.
    used, place = np.unique(near, return_inverse=True)
    place = place.reshape(near.shape)
    neighbours = _safe_indexing(training, used)
    covariance = last.predict_covariance(seen, neighbours)
    gained = np.take_along_axis(covariance, place, axis=1) ** 2
    gained /= np.add(*_parts(last, neighbours))[place]
    noise, lack = (part[:, None] for part in _parts(last, seen))
    left = np.maximum(lack - gained, 0.0) + noise
    columns = {
        "row": np.repeat(np.arange(len(phi)), k),
        "neighbour": near.ravel(),
        "distance": distance.ravel() / unit,
        "narrowing": (1 - np.sqrt(left / (noise + lack))).ravel(),
        "own_narrowing": np.repeat(own_narrowing(noise, lack), k),
    }
    if y_train is not None:
        columns["y"] = np.asarray(y_train)[near.ravel()]
    return as_table(columns)


def best_order(
    model: Any, X: ArrayLike, n_rows: int, X_watched: ArrayLike
) -> tuple[NDArray[np.intp], Array]:
    """Rows to measure one after another, and what each adds to the mean narrowing.

    After each choice the posterior is contracted, so that the next row is one that
    those before it do not make superfluous.
    """
    last, seen = _with_covariance(model, X)
    n_watched = _num_samples(X_watched)
    spread = np.linspace(0, n_watched - 1, min(n_watched, MAX_WATCHED)).round()
    _, watched = _with_covariance(model, _safe_indexing(X_watched, spread.astype(int)))
    noise, unknown = _parts(last, seen)
    candidates = np.argsort(-unknown, kind="stable")[:MAX_CANDIDATES]
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


def _with_covariance(model: Any, X: Any) -> tuple[Any, Any]:
    """The estimator that has a posterior, and the rows as it sees them."""
    from ..conformal.distribution import last_step, transformed

    (fitted,) = models_of(model, folds=False)
    last = last_step(fitted)
    if not hasattr(last, "predict_covariance"):
        raise TypeError(
            f"Got a {type(last).__name__}, which has no predict_covariance and so does "
            "not tell what a measurement would bring elsewhere. Use ClapsRegressor or "
            "ClapsModule, or rank rows by 'epistemic'."
        )
    return last, transformed(fitted, X)


def _parts(last: Any, X: Any) -> tuple[Array, Array]:
    """Both parts of v, in the units of the covariance."""
    rows = last.predict_distribution(X)
    return rows.aleatoric, rows.epistemic
