"""More rows for a posterior: sums over batches, added up, with the network fixed."""

import copy
from typing import Any, TypeVar

from sklearn.utils.validation import check_is_fitted

from .._devices import new_tensors_on
from ..posterior.sums import LastLayerSums
from .base import LastLayerEstimator

Fitted = TypeVar("Fitted", bound=LastLayerEstimator)


def partial_sums(
    estimator: LastLayerEstimator, X: Any, y: Any = None, sample_weight: Any = None
) -> LastLayerSums:
    """Sums over some rows for the posterior of a fitted estimator.

    Parameters
    ----------
    estimator : ClapsRegressor or ClapsModule
        Fitted; it is not changed. Its networks, noise variance and scaling are held
        fixed.
    X : array-like of shape (n, ...), or iterable of (X, y)
        Rows.
    y : array-like of shape (n,), optional
        Targets, unless X is an iterable of batches.
    sample_weight : array-like of shape (n,), optional
        Weights of the rows: a row of weight 2 counts as two.

    Returns
    -------
    LastLayerSums
        Sums, to be added to those over other rows.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from mapie_claps import ClapsModule, partial_sums, with_sums
    >>> X = np.random.default_rng(0).normal(size=(20, 2))
    >>> y = X[:, 0]
    >>> model = ClapsModule(torch.nn.Linear(2, 1)).fit(X[:10], y[:10])
    >>> sums = partial_sums(model, X[:9], y[:9]) + partial_sums(model, X[9:], y[9:])
    >>> with_sums(model, sums).sums_.n_rows
    20
    """
    check_is_fitted(estimator, "model_")
    with new_tensors_on("cpu"):
        return estimator._sum(X, y, sample_weight)


def sums_of(estimator: LastLayerEstimator) -> LastLayerSums:
    """Sums over the rows that a fitted estimator's posterior rests on.

    Parameters
    ----------
    estimator : ClapsRegressor or ClapsModule
        Fitted.

    Returns
    -------
    LastLayerSums
        Its sums. For ``ClapsRegressor`` rows are weighted as in its ``fit``.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from mapie_claps import ClapsModule, sums_of
    >>> X, y = np.linspace(-1, 1, 40).reshape(20, 2), np.linspace(0, 1, 20)
    >>> sums_of(ClapsModule(torch.nn.Linear(2, 1)).fit(X, y)).n_rows
    20
    """
    check_is_fitted(estimator, "model_")
    return estimator.sums_


def with_sums(estimator: Fitted, sums: LastLayerSums) -> Fitted:
    """Return a copy whose posterior rests on these sums alone.

    Parameters
    ----------
    estimator : ClapsRegressor or ClapsModule
        Fitted; it is not changed. ``ClapsModule`` chooses λ again unless it is a
        number; ``ClapsRegressor`` keeps the λ in use.
    sums : LastLayerSums
        From :func:`partial_sums` or :func:`sums_of` of this estimator.

    Returns
    -------
    ClapsRegressor or ClapsModule
        A fitted copy that shares the networks.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from mapie_claps import ClapsModule, sums_of, with_sums
    >>> X, y = np.linspace(-1, 1, 40).reshape(20, 2), np.linspace(0, 1, 20)
    >>> model = ClapsModule(torch.nn.Linear(2, 1), prior_precision=1.0).fit(X, y)
    >>> twice = with_sums(model, sums_of(model) + sums_of(model))
    >>> bool((twice.predict(X, True)[1] < model.predict(X, True)[1]).all())
    True
    """
    check_is_fitted(estimator, "model_")
    if not isinstance(sums, LastLayerSums):
        raise TypeError(
            f"Got sums of type {type(sums).__name__}, but expected LastLayerSums. Make "
            "them with partial_sums or sums_of."
        )
    sums.check_network(estimator.sums_.network)
    other = copy.copy(estimator)
    with new_tensors_on("cpu"):
        other._set_sums(sums)
    return other


def update_posterior(
    estimator: Fitted, X: Any, y: Any = None, sample_weight: Any = None
) -> Fitted:
    """Return a copy whose posterior has seen these rows as well.

    Networks, noise variance, scaling and, in ``ClapsRegressor``, λ are held fixed. Σ
    and, with ``last_layer="ridge"``, ŵ are those of one pass over all rows.

    Parameters
    ----------
    estimator : ClapsRegressor or ClapsModule
        Fitted; it is not changed.
    X : array-like of shape (n, ...), or iterable of (X, y)
        New rows. They must not be used for calibration.
    y : array-like of shape (n,), optional
        Targets, unless X is an iterable of batches.
    sample_weight : array-like of shape (n,), optional
        Weights of the rows.

    Returns
    -------
    ClapsRegressor or ClapsModule
        A fitted copy that shares the networks.

    Notes
    -----
    The kernel member of a ``ClapsRegressor`` stays as ``fit`` left it, since sums hold
    no rows. Fit with ``kernel=False`` if much more is to come.

    σ², which only the scales "posterior" and "constant" use, is a mean over squared
    residuals. Several members take those of earlier rows as they were then: with
    ``last_layer="ridge"`` σ² differs slightly from that of one pass.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import ClapsRegressor, update_posterior
    >>> X = np.linspace(-1, 1, 60)[:, None]
    >>> model = ClapsRegressor.paper(random_state=0).fit(X, X[:, 0])
    >>> more = update_posterior(model, X[40:], X[40:, 0])
    >>> old, new = model.predict_variance(X), more.predict_variance(X)
    >>> bool((new.epistemic < old.epistemic).all())
    True
    """
    more = partial_sums(estimator, X, y, sample_weight)
    return with_sums(estimator, sums_of(estimator) + more)
