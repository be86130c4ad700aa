"""More rows for a posterior: sums over batches, added up, with the network fixed."""

import copy
from functools import partial, reduce
from operator import add
from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from .._compat import validate_data
from ..network.batches import Batch, batches_of
from ..posterior.gaussian import (
    feature_batch,
    make_posterior,
    rows_per_batch,
    sum_moments,
)
from ..posterior.scales import PredictiveModel
from ..posterior.sums import LastLayerSums, Spread, spread_of
from .module import ClapsModule
from .regressor import ClapsRegressor

__all__ = ["partial_sums", "sums_of", "update_posterior", "with_sums"]

Fitted = TypeVar("Fitted", ClapsRegressor, ClapsModule)


def partial_sums(
    estimator: ClapsRegressor | ClapsModule, X: Any, y: Any = None
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

    Returns
    -------
    LastLayerSums
        Sums, to be added to those over other rows.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from mapie_claps import ClapsModule, partial_sums, with_sums
    >>> X, y = np.linspace(-1, 1, 40).reshape(20, 2), np.linspace(0, 1, 20)
    >>> model = ClapsModule(torch.nn.Linear(2, 1)).fit(X[:5], y[:5])
    >>> sums = partial_sums(model, X[:9], y[:9]) + partial_sums(model, X[9:], y[9:])
    >>> with_sums(model, sums).sums_.n_rows
    20
    """
    check_is_fitted(estimator, "model_")
    if isinstance(estimator, ClapsModule):
        return estimator.partial_sums(X, y)
    size = rows_per_batch(estimator.model_.network)
    check = partial(_with_names_of_fit, estimator)
    batches = batches_of(X, y, size=size, need_y=True, check=check)
    parts = (_regressor_sums(estimator, batch) for batch in batches)
    first = next(parts, None)
    if first is None:
        raise ValueError("Got X without rows, but expected at least one.")
    return reduce(add, parts, first)


def sums_of(estimator: ClapsRegressor | ClapsModule) -> LastLayerSums:
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
    if isinstance(estimator, ClapsModule):
        return estimator.sums_
    model = estimator.model_
    moments, variance = model.posterior.moments, model.residual_variance
    n = float(moments.n_rows)
    plain = model.homoscedastic.moments / (1 / variance)
    return LastLayerSums(moments, plain, Spread(n, 0.0, n * variance))


def with_sums(estimator: Fitted, sums: LastLayerSums) -> Fitted:
    """Return a copy whose posterior rests on these sums alone.

    Parameters
    ----------
    estimator : ClapsRegressor or ClapsModule
        Fitted; it is not changed. ``ClapsModule`` chooses λ anew unless it is a
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
    _check_sums(estimator, sums)
    other = copy.copy(estimator)
    if isinstance(other, ClapsModule):
        other._set_sums(sums)
        return other
    model = other.model_
    trained, value = model.posterior.trained, model.posterior.prior_precision
    floor = float(model.network.variance_floor)
    variance = max(sums.spread.mean_square, floor)
    other._set_model(
        PredictiveModel(
            model.network,
            make_posterior(sums.moments, trained, model.posterior.last_layer, value),
            make_posterior(sums.plain / variance, trained, "trained", value),
            variance,
            model.member_weight,
        )
    )
    return other


def update_posterior(estimator: Fitted, X: Any, y: Any = None) -> Fitted:
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

    Returns
    -------
    ClapsRegressor or ClapsModule
        A fitted copy that shares the networks.

    Notes
    -----
    σ², which only the scales "posterior" and "constant" use, is a mean over squared
    residuals. ``ClapsRegressor`` takes those of earlier rows as they were then: with
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
    return with_sums(estimator, sums_of(estimator) + partial_sums(estimator, X, y))


def _check_sums(estimator: ClapsRegressor | ClapsModule, sums: object) -> None:
    """Raise for sums that cannot be those of this estimator."""
    if not isinstance(sums, LastLayerSums):
        raise TypeError(
            f"Got sums of type {type(sums).__name__}, but expected LastLayerSums. Make "
            "them with partial_sums or sums_of."
        )
    found = tuple(sums.moments.gram.shape)
    expected = tuple(estimator.model_.posterior.moments.gram.shape)
    if found != expected:
        raise ValueError(
            f"Got sums of shape {found}, but this estimator has sums of shape "
            f"{expected}. Make them with partial_sums or sums_of of this estimator."
        )


@torch.no_grad()
def _regressor_sums(estimator: ClapsRegressor, batch: Batch) -> LastLayerSums:
    """Sums over one batch for all members, in standardised units."""
    model = estimator.model_
    X = estimator._scaled(_table(estimator, batch))
    y = estimator._scaled_target(batch.target.numpy())
    n_members = model.network.n_members
    weight = batch.row_weight
    rows = feature_batch(
        model.network, X, y.expand(n_members, -1), weight.expand(n_members, -1)
    )
    trained = model.posterior.trained
    structure = "diag" if model.posterior.scale.ndim == 2 else "full"
    residual = y - model.member_weight @ model.posterior.mu(rows.phi)
    return LastLayerSums(
        sum_moments([rows], trained, structure),
        sum_moments([rows.homoscedastic()], trained, structure),
        spread_of(residual, weight),
    )


def _with_names_of_fit(estimator: ClapsRegressor, X: Any) -> Any:
    """X, its columns and their names checked as ``predict`` does."""
    if isinstance(X, Tensor):
        return X
    return validate_data(
        estimator, X, reset=False, dtype="numeric", ensure_min_samples=0
    )


def _table(estimator: ClapsRegressor, batch: Batch) -> np.ndarray[Any, Any]:
    """Rows as ClapsRegressor takes them."""
    X = batch.x.numpy()
    if X.ndim != 2 or X.shape[1] != estimator.n_features_in_:
        raise ValueError(
            f"Got X of shape {X.shape}, but expected (n, {estimator.n_features_in_}), "
            "as in fit."
        )
    if not np.isfinite(X).all():
        raise ValueError("Got X with NaN or infinity. Leave these rows out.")
    return X
