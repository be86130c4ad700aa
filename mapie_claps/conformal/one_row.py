"""One row at a time, in NumPy: what a service asks for.

Checks, blocks of rows and calls of torch take most of the time of a single row. Here
all that does not depend on the row is done once, and the rest is a few dozen calls of
NumPy: three layers, one product for mean, noise, skew and φᵀΣφ, and the interval.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import get_lapack_funcs
from scipy.special import expit
from torch import Tensor

from .._validation import check_unmasked
from ..estimators.ensemble_rows import EnsembleRows
from ..estimators.regressor import ClapsRegressor
from ..network.covariance import JITTER
from ..network.kernel import N_NEIGHBOURS, TIE
from ..network.target_map import Identity
from ..network.views import PeriodicView
from ..posterior.mixture import FAR_FACTOR, KernelMixture
from ..posterior.skew import LARGEST_SKEW
from .frozen import ROUND_OUT_SHARE, frozen_rule

Array = NDArray[np.float64]
LARGEST = np.finfo(np.float64).max / 64

# Of the root of the sum of squared terms of a mean; 4 ε were needed on five data sets.
ROUNDING = 16 * float(np.finfo(np.float64).eps)


class RowPredictor:
    """Intervals of single rows of numbers, by a calibrated ``ClapsRegressor``.

    Made by ``CalibratedRegressor.row_predictor()``. It is a copy of all that it needs:
    what happens to the calibrated object afterwards does not reach it.

    Parameters
    ----------
    conformal : CalibratedRegressor or StreamingConformalRegressor
        Calibrated, with one rank for all rows, over a ``ClapsRegressor`` that was
        fitted on a table of numbers without gaps.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import CalibratedRegressor, ClapsRegressor
    >>> X = np.random.default_rng(0).normal(size=(300, 2))
    >>> model = CalibratedRegressor(
    ...     ClapsRegressor.paper(random_state=0), random_state=0).fit(X, X[:, 0])
    >>> one_row = model.row_predictor()
    >>> points, intervals = one_row(X[7])
    >>> np.allclose(intervals, model.predict_interval(X[7:8])[1], rtol=1e-9)
    True
    """

    def __init__(self, conformal: Any) -> None:
        self._rule = rule = frozen_rule(conformal, "row_predictor")
        estimator: ClapsRegressor = conformal._fitted()
        if not estimator.table_.is_identity:
            raise ValueError(
                "Got a model of a table with categories, dates or gaps in "
                "row_predictor, but expected columns of numbers. Use predict_interval, "
                "or export the model: mapie_claps.export.to_onnx."
            )
        self.n_features_in_ = len(estimator.table_.names)
        names = getattr(estimator, "feature_names_in_", None)
        self._names = None if names is None else list(names)
        scaler = estimator.scaler_X_
        self._mean, self._scale = scaler.mean_.copy(), scaler.scale_.copy()
        self._clip = estimator._clip()
        self._network = _Network(estimator)
        self._kernel = None
        if estimator.kernel_ is not None:
            self._kernel = _Kernel(estimator.kernel_, estimator.scale)
        self._units = estimator._target_units()
        self._residuals = np.concatenate([rule.lower, rule.upper])
        self._below = self._residuals < 0
        m = len(rule.levels)
        self._side = np.repeat([-1.0, 1.0], m)
        self._outwards = ROUND_OUT_SHARE * self._side
        self._below_nodes = rule.nodes < 0
        self._shape = 1, 2, m

    def __call__(self, x: Any) -> tuple[Array, Array]:
        """Predict the point and the intervals of one row.

        Parameters
        ----------
        x : array-like of shape (p,) or (1, p)
            One row of finite numbers. Columns of a frame, or labels of a series, have
            to be those of ``fit``, in their order.

        Returns
        -------
        tuple of ndarray
            Points (1,) and intervals (1, 2, n_levels), as ``predict_interval`` of the
            calibrated object gives them, to ten digits of their size: sums are taken
            in another order. Ends are rounded outwards by a share of 1e-12. Where the
            mean of a kernel member is that of all rows, terms cancel, and both hold to
            seven digits of the standard deviation of the targets.
        """
        row = (x if type(x) is np.ndarray else self._unlabelled(x)).ravel()
        if row.dtype.kind not in "fiub":
            raise ValueError(
                f"Got x of the type {row.dtype}, but expected one row of numbers. Use "
                "predict_interval, which reads other types or names the column."
            )
        row = row.astype(np.float64, copy=False)
        if len(row) != self.n_features_in_ or np.ndim(x) > 2:
            raise ValueError(
                f"Got x of shape {np.shape(x)}, but expected one row of "
                f"{self.n_features_in_} numbers."
            )
        scaled = (row - self._mean) / self._scale
        if self._clip is not None:
            scaled = np.minimum(np.maximum(scaled, -self._clip), self._clip)
        # Clipped, infinity would pass; NaN is not less than anything.
        if not np.isfinite(row).all():
            raise ValueError(
                f"Got {row.tolist()}, but expected finite numbers. Use "
                "predict_interval for rows with gaps."
            )
        mu, aleatoric, epistemic, skew, noise = self._network(scaled)
        rounding = 0.0
        if self._kernel is not None:
            mu, aleatoric, epistemic, rounding = self._kernel(
                scaled, noise, mu, aleatoric, epistemic
            )
        unit = self._units.unit
        centre = mu * unit + self._units.centre
        below = unit * math.sqrt(aleatoric * (1 - skew) + epistemic)
        above = unit * math.sqrt(aleatoric * (1 + skew) + epistemic)
        return self._interval(centre, below, above, unit * rounding)

    def _unlabelled(self, x: Any) -> Array:
        """The numbers of x, whose names have to be those of ``fit``."""
        check_unmasked("x", x)
        for labels in (getattr(x, "columns", None), getattr(x, "index", None)):
            if labels is None or callable(labels):
                continue
            if self._names is not None and list(labels) != self._names:
                raise ValueError(
                    f"Got x with the columns {list(labels)}, but expected "
                    f"{self._names}, as in fit. Put them in this order."
                )
            break
        return np.asarray(x)

    def _interval(
        self, centre: float, below: float, above: float, rounding: float
    ) -> tuple[Array, Array]:
        """Point and ends, in units of y."""
        rule = self._rule
        step = np.where(self._below, below, above) * self._residuals
        z = centre + step + self._outwards * (abs(centre) + np.abs(step))
        z += self._side * rounding
        if isinstance(rule.target_map, Identity):
            ends, point = z, np.array([centre])
        else:
            nodes = centre + np.where(self._below_nodes, below, above) * rule.nodes
            values = rule.target_map.inverse(np.concatenate([z, nodes]))
            ends = rule.target_map.outwards(values[: len(z)], z, self._side)
            inner = np.minimum(np.maximum(values[len(z) :], -LARGEST), LARGEST)
            if np.isnan(inner).any():  # as in LocalLaw: the last value known
                inner = np.fmax.accumulate(inner)
                inner = np.fmin.accumulate(inner[::-1])[::-1]
            point = np.array([np.add.reduce(inner) / len(inner)])
        if rule.support is not None:
            ends = rule.support.nearest(ends)
        return point, ends.reshape(self._shape)


class _Network:
    """All members at one row: μ, both parts of v, skew and h², standardised."""

    def __init__(self, estimator: EnsembleRows) -> None:
        network, model = estimator.network_, estimator.model_
        encoding, n = network.encoding, network.n_members
        self._column, self._left = _array(encoding.column), _array(encoding.left)
        self._width = _array(encoding.width)
        width = network.layer_sizes[0]
        n_raw = encoding.n_raw
        first = np.empty((n, width, n_raw))  # of what all views see
        self._bias = np.empty((n, width))
        self._bins: list[tuple[slice, Array]] = []
        self._waves: list[tuple[slice, Array, Array]] = []
        layers: Any = network.first
        trunk: Any = network.trunk
        for layer, part in zip(layers, network.members_by_view(), strict=True):
            weight = _array(layer.weight)
            if layer.factor is not None:
                weight *= 1 + layer.scaling_rate * _array(layer.factor)
            weight = weight.transpose(0, 2, 1)  # (k, width, n_inputs)
            self._bias[part] = _array(layer.bias)[:, 0]
            first[part], rest = weight[:, :, :n_raw], weight[:, :, n_raw:].copy()
            if isinstance(layer.view, PeriodicView):
                frequency = _array(layer.view.frequency)  # (k, n_numbers, F)
                self._waves.append((part, frequency, rest))
            elif rest.shape[2]:
                self._bins.append((part, rest))
        self._first = first.reshape(n * width, -1)
        self._trunk = [
            (_array(layer.weight).transpose(0, 2, 1).copy(), _array(layer.bias).mT)
            for layer in trunk
        ]
        self._floor, self._weight = network.variance_floor, _array(model.member_weight)
        self._scale, self._unit = estimator.scale, model.unit
        self._sigma2 = model.residual_variance * model.unit**2
        self._heads, self._heads_bias = _heads(estimator)
        self._n_root = self._heads.shape[1] - 3

    def __call__(self, x: Array) -> tuple[float, float, float, float, float]:
        phi = (self._first @ x).reshape(self._bias.shape)
        phi += self._bias
        for part, weight in self._bins:
            position = (x[self._column] - self._left) / self._width
            phi[part] += weight @ np.minimum(np.maximum(position, 0.0), 1.0)
        for part, frequency, weight in self._waves:
            angle = (x[: frequency.shape[1], None] * frequency).reshape(
                len(frequency), -1, 1
            )
            waves = np.concatenate([np.sin(angle), np.cos(angle)], axis=1)
            phi[part] += (weight @ waves)[:, :, 0]
        phi = (phi * expit(phi))[:, :, None]
        for weight, bias in self._trunk:
            phi = weight @ phi
            phi += bias
            phi *= expit(phi)
        out = (self._heads @ phi)[:, :, 0] + self._heads_bias
        w, mus = self._weight, out[:, -3]
        mu = float(w @ mus)
        h2 = np.logaddexp(out[:, -2], 0.0) + self._floor
        noise = float(np.exp(w @ np.log(h2)))
        skew = float(w @ (LARGEST_SKEW * np.tanh(out[:, -1] / LARGEST_SKEW)))
        aleatoric = noise if self._scale in ("claps", "aleatoric") else self._sigma2
        epistemic = 0.0
        if self._scale in ("claps", "posterior"):
            root = out[:, : self._n_root]
            root = np.einsum("kd,kd->k", root, root)
            epistemic = float(w @ root) * self._unit**2
            epistemic += float(w @ np.square(mus - mu))
        return mu, aleatoric, epistemic, skew, noise


def _heads(estimator: EnsembleRows) -> tuple[Array, Array]:
    """Weights (K, m, d) and biases (K, m) of a factor of Σ, μ, h² and the skew."""
    network, model = estimator.network_, estimator.model_
    posterior = model.posterior
    scale = estimator.scale
    factor = (model.posterior_of(scale) if scale == "posterior" else posterior).scale
    root = _array(factor)
    if root.ndim == 2:
        root = np.stack([np.diag(row) for row in root])
    mean = _array(posterior.mean) * model.unit
    mean[:, -1] += model.centre
    head = network.noise_head
    noise = np.concatenate([_array(head.weight), _array(head.bias)], axis=1)[..., 0]
    skew = estimator._law_of_residuals().skew
    tilt = np.zeros_like(mean) if skew is None else _array(skew)
    rows = [root.transpose(0, 2, 1), mean[:, None], noise[:, None], tilt[:, None]]
    joined = np.concatenate(rows, axis=1)
    return joined[:, :, :-1].copy(), joined[:, :, -1].copy()


class _Kernel:
    """The Gaussian process on the training rows nearest to one row."""

    def __init__(self, mixture: KernelMixture, scale: str) -> None:
        member = mixture.member
        covariance = member.covariance
        self._X, self._y = _array(member.X), _array(member.y)
        self._noise = _array(member.noise)
        self._u = _array(covariance.inverse_scale)
        self._scaled = self._X * self._u
        order = np.arange(len(self._X)) * (TIE / len(self._X))
        self._squares = np.square(self._scaled).sum(1) + order
        self._n_near = min(N_NEIGHBOURS, len(self._X))
        self._matern, self._linear = covariance.matern, covariance.linear
        self._smooth, self._ratio = covariance.smooth, np.sqrt(5) * covariance.ratio
        self._dual = None if member.dual is None else _array(member.dual)
        if self._dual is not None:
            # The linear part of kᵀα is a product with p numbers.
            self._slope, self._level = self._dual @ self._X, self._dual.sum()
        self._factor, self._floor = member.noise_factor, member.noise_floor
        self._usual, self._weight, self._scale = (
            member.usual_epistemic,
            mixture.weight,
            scale,
        )
        (self._cholesky,) = get_lapack_funcs(("potrf",), (self._X[:1],))

    def __call__(
        self, x: Array, noise: float, mu: float, aleatoric: float, epistemic: float
    ) -> tuple[float, float, float, float]:
        """The networks' numbers, mixed with those of the kernel; rounding of μ."""
        own_mu, own, rounding = self._posterior(x)
        w, apart = self._weight, own_mu - mu
        if self._scale in ("claps", "aleatoric"):
            own_noise = max(self._factor * noise, self._floor)
            aleatoric = aleatoric ** (1 - w) * own_noise**w
        if self._scale in ("claps", "posterior"):
            epistemic += w * (own - epistemic) + w * (1 - w) * apart**2
            epistemic += FAR_FACTOR * w * max(own - self._usual, 0.0)
        return mu + w * apart, aleatoric, epistemic, w * rounding

    def _posterior(self, x: Array) -> tuple[float, float, float]:
        """Mean, φᵀΣφ and by how much another order of summation moves the mean."""
        near: Any = slice(None)
        if self._n_near < len(self._squares):
            distance = self._squares - self._scaled @ (x * (2 * self._u))
            near = np.argpartition(distance, self._n_near - 1)[: self._n_near]
        # One matrix of all covariances: neighbours, the row itself, and the targets.
        X = np.concatenate([self._X[near], x[None], x[None]])
        A = X * self._u
        squares = np.einsum("ij,ij->i", A, A)
        r = A @ A.T
        r *= -2
        r += squares[:, None]
        r += squares
        np.maximum(r, 0.0, out=r)
        K = self._by_distance(r)
        products = X @ X.T
        products += 1
        products *= self._linear
        K += products
        n = len(K) - 2
        prior = self._matern + self._smooth + self._linear * (float(x @ x) + 1)
        diagonal = K.reshape(-1)[:: n + 3]
        largest = diagonal[:n].max()
        diagonal[:n] += self._noise[near] + JITTER * largest
        diagonal[n:] = 1e300  # no pivot fails there, and nothing is read
        K[n + 1, :n] = self._y[near]
        # The factor of the neighbours, and below it its solutions for both rows.
        root, failed = self._cholesky(K, lower=1, clean=0)
        if 0 < failed <= n:
            raise np.linalg.LinAlgError("Got a covariance that is not positive.")
        first = root[n, :n]
        mu, rounding = float(first @ root[n + 1, :n]), 0.0
        if self._dual is not None:
            apart = self._scaled - A[n]
            terms = self._by_distance(np.einsum("ij,ij->i", apart, apart))
            terms *= self._dual
            rounding = ROUNDING * float(np.sqrt(terms @ terms))
            mu = float(terms.sum())
            mu += self._linear * float(x @ self._slope + self._level)
        return mu, max(prior - float(first @ first), 0.0), rounding

    def _by_distance(self, d: Array) -> Array:
        """Rough and smooth part of the covariance, of squared distances."""
        d = np.sqrt(d)
        r = d * np.sqrt(3)
        found: Array = np.exp(-r)
        r += 1
        found *= r
        found *= self._matern
        if self._smooth:
            d *= self._ratio
            smooth = np.exp(-d)
            smooth *= d * d / 3 + d + 1
            smooth *= self._smooth
            found += smooth
        return found


def _array(tensor: Tensor) -> NDArray[Any]:
    """A copy, out of reach of whoever changes the estimator."""
    return np.array(tensor.detach().numpy())
