"""What an estimator says of some rows: μ and the two parts of v. NumPy only."""

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class PredictiveVariance:
    """Parts of the predictive variance v(x), in squared units of y.

    Parameters
    ----------
    aleatoric : ndarray of shape (n,)
        Noise variance h²(x): what more data would not remove.
    epistemic : ndarray of shape (n,)
        Posterior variance φᵀΣφ (and the spread of the members, if there are several):
        what more data near x would remove.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import PredictiveVariance
    >>> part = PredictiveVariance(np.array([3.0]), np.array([1.0]))
    >>> part.total, part.epistemic_fraction
    (array([4.]), array([0.25]))
    """

    aleatoric: Array
    epistemic: Array

    @property
    def total(self) -> Array:
        """v(x) = h²(x) + φᵀΣφ."""
        return self.aleatoric + self.epistemic

    @property
    def epistemic_fraction(self) -> Array:
        """Share of the epistemic part, φᵀΣφ / v."""
        return self.epistemic / self.total

    @property
    def scale_ratio(self) -> Array:
        """√v / h: by how much the epistemic part widens the scale."""
        return np.sqrt(self.total / self.aleatoric)


class Parts(NamedTuple):
    """Prediction and both parts of its variance, from one pass through the network.

    Parameters
    ----------
    prediction : ndarray of shape (n,)
        μ(x), in units of y.
    aleatoric, epistemic : ndarray of shape (n,)
        Parts of v(x), in squared units of y.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps.estimators.variance import Parts
    >>> parts = Parts(np.array([10.0]), np.array([3.0]), np.array([1.0]))
    >>> parts.std, parts.variance.epistemic_fraction
    (array([2.]), array([0.25]))
    """

    prediction: Array
    aleatoric: Array
    epistemic: Array

    @property
    def std(self) -> Array:
        """√v(x), the local scale."""
        return np.sqrt(self.aleatoric + self.epistemic)

    @property
    def variance(self) -> PredictiveVariance:
        """Both parts without the prediction."""
        return PredictiveVariance(self.aleatoric, self.epistemic)


class MeanAndStd(tuple[Array, Array]):
    """μ and √v: a tuple that tells who takes it for an array what to do instead.

    ``TransformedTargetRegressor`` hands ``return_std`` on to its regressor and takes
    what comes back for predictions.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps.estimators.variance import MeanAndStd
    >>> mu, std = MeanAndStd((np.zeros(2), np.ones(2)))
    >>> std
    array([1., 1.])
    """

    __slots__ = ()

    @property
    def ndim(self) -> int:
        """Not there: two arrays have no number of axes."""
        raise AttributeError(
            "Got predictions together with standard deviations where predictions alone "
            "are expected. TransformedTargetRegressor cannot bring a standard "
            "deviation back to the units of y. Let the regressor transform y itself, "
            "ClapsRegressor(target_map='log'), or fit and calibrate on the transformed "
            "target and transform the bounds back. Scaling y is not needed."
        )


class FingerprintedArray(np.ndarray):  # type: ignore[type-arg]
    """An array that remembers which fitted model it was computed with.

    Views, copies and pickles remember it too; arithmetic gives ordinary arrays.

    Attributes
    ----------
    fingerprint : str or None
        ``fingerprint_`` of the model.
    law : LocalLaw or None
        Law of the rows that the array stands for. Views and copies forget it: they may
        hold other rows.
    rows : AskedRows or None
        By what these rows can be told from training rows. Likewise.
    shaped : bool
        Whether scores were made by a law, not from μ and √v.
    """

    fingerprint: str | None
    law: Any
    rows: Any
    shaped: bool

    def __array_finalize__(self, source: Any) -> None:
        self.fingerprint = getattr(source, "fingerprint", None)
        self.shaped = getattr(source, "shaped", False)
        self.law = self.rows = None

    def __array_wrap__(
        self, array: Any, context: Any = None, return_scalar: bool = False
    ) -> Any:
        plain = np.asarray(array)
        return plain[()] if return_scalar else plain

    def __reduce__(self) -> Any:
        rebuild, arguments, values = cast("tuple[Any, ...]", super().__reduce__())
        return rebuild, arguments, (self.fingerprint, self.shaped, values)

    def __setstate__(self, state: Any) -> None:
        self.fingerprint, self.shaped, values = state
        self.law = self.rows = None
        super().__setstate__(values)

    def __repr__(self) -> str:
        return repr(np.asarray(self))


def with_fingerprint(
    array: Array, fingerprint: str | None, shaped: bool = False
) -> Array:
    """The array itself, or a view that remembers the fingerprint of its model.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps.estimators.variance import with_fingerprint
    >>> std = with_fingerprint(np.ones(2), "a model")
    >>> std, std.copy().fingerprint
    (array([1., 1.]), 'a model')
    """
    if fingerprint is None and not shaped:
        return array
    view = np.asarray(array).view(FingerprintedArray)
    view.fingerprint, view.shaped = fingerprint, shaped
    return view


def with_law(std: Array, law: Any, fingerprint: str | None, rows: Any = None) -> Array:
    """A view of standard deviations that carries the law of the same rows.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps.estimators.variance import with_law
    >>> std = with_law(np.ones(2), "the law of two rows", None)
    >>> std.law, std[:1].law
    ('the law of two rows', None)
    """
    view = np.asarray(std).view(FingerprintedArray)
    view.fingerprint, view.law, view.rows = fingerprint, law, rows
    return view
