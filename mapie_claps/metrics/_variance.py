"""Metrics of the predictive variance and its parts."""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import column_or_1d

from .._validation import check_number, check_unmasked, raise_for
from ._checks import check_each, checked_alike


def epistemic_fraction(aleatoric: ArrayLike, epistemic: ArrayLike) -> float:
    """Mean over rows of φᵀΣφ / (h² + φᵀΣφ).

    Parameters
    ----------
    aleatoric, epistemic : array-like of shape (n,)
        Parts of the predictive variance, as ``predict_variance`` gives them.

    Returns
    -------
    float
        Between 0 and 1.

    Examples
    --------
    >>> from mapie_claps.metrics import epistemic_fraction
    >>> epistemic_fraction([3.0, 1.0], [1.0, 1.0])
    0.375
    """
    h2, added = _checked_parts(aleatoric, epistemic)
    return float(np.mean(added / (h2 + added)))


def scale_ratio(aleatoric: ArrayLike, epistemic: ArrayLike) -> float:
    """Mean over rows of √v / h: how much the epistemic part widens the scale.

    Parameters
    ----------
    aleatoric, epistemic : array-like of shape (n,)
        Parts of the predictive variance, as ``predict_variance`` gives them.

    Returns
    -------
    float
        At least 1.

    Examples
    --------
    >>> from mapie_claps.metrics import scale_ratio
    >>> scale_ratio([1.0, 1.0], [0.0, 3.0])
    1.5
    """
    h2, added = _checked_parts(aleatoric, epistemic)
    return float(np.mean(np.sqrt(1 + added / h2)))


def _checked_parts(
    aleatoric: ArrayLike, epistemic: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Parts of v of the same rows: h² positive, φᵀΣφ not negative."""
    h2, added = checked_alike(aleatoric=aleatoric, epistemic=epistemic)
    finite = np.isfinite(h2), np.isfinite(added)
    check_each("aleatoric", h2, finite[0] & (h2 > 0), "positive finite variances")
    expected = "finite variances that are not negative"
    check_each("epistemic", added, finite[1] & (added >= 0), expected)
    return h2, added


def noise_floor_diagnostics(
    aleatoric: ArrayLike, variance_floor: float, *, rtol: float = 0.01
) -> dict[str, float]:
    """How close the noise variance comes to its floor.

    Parameters
    ----------
    aleatoric : array-like of shape (n,)
        h², in the units of the floor (``ClapsRegressor``: standardised y).
    variance_floor : float
        Floor ε of h² = softplus(·) + ε.
    rtol : float, default=0.01
        A row counts as at the floor if h² ≤ (1 + rtol) ε.

    Returns
    -------
    dict of float
        ``min``, ``p01`` (1 % quantile) and ``floor_active`` (share of rows).

    Examples
    --------
    >>> from mapie_claps.metrics import noise_floor_diagnostics
    >>> noise_floor_diagnostics([0.001, 0.5, 0.5, 0.5], 1e-3)["floor_active"]
    0.25
    """
    floor = check_number(
        "variance_floor", variance_floor, low=0, low_open=True, hint="Use 1e-3."
    )
    rtol = check_number("rtol", rtol, low=0, hint="Use 0.01.")
    (h2,) = checked_alike(aleatoric=aleatoric)
    good = np.isfinite(h2) & (h2 > 0)
    check_each("aleatoric", h2, good, "positive finite variances")
    return {
        "min": float(h2.min()),
        "p01": float(np.quantile(h2, 0.01)),
        "floor_active": float(np.mean(h2 <= (1 + rtol) * floor)),
    }


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
    # A column among rows would broadcast to n × n.
    given = {"y": y, "mu": mu, "std": std}
    vectors = {name: _one_number_per_row(name, v) for name, v in given.items()}
    y_, mu_, std_ = checked_alike(**vectors)
    check_each("y", y_, np.isfinite(y_), "finite numbers")
    check_each("mu", mu_, np.isfinite(mu_), "finite numbers")
    check_each("std", std_, np.isfinite(std_) & (std_ > 0), "positive finite numbers")
    z = (y_ - mu_) / std_
    return float(np.mean(np.log(std_) + 0.5 * z**2) + 0.5 * math.log(2 * math.pi))


def _one_number_per_row(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """A vector, also from a column."""
    check_unmasked(name, values)
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == 1 or (array.ndim == 2 and array.shape[1] == 1):
        return np.asarray(column_or_1d(array))
    raise_for(
        f"{name}.shape",
        array.shape,
        "(n,) or (n, 1)",
        "Give one number per row, one target at a time.",
    )


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
