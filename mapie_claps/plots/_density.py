"""Predictive densities of some rows, with and without the lack of data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import gaussian_kde

from ..conformal.support import Support
from ..estimators.local_law import LocalLaw
from ._display import Display
from ._style import ALEATORIC, EPISTEMIC, Array

MAX_ROWS = 12
N_POINTS = 300
OUTSIDE = 0.001  # probability beyond each end of a curve


@dataclass(repr=False, eq=False)
class PredictiveDensityDisplay(Display):
    """Densities of y, one above the other: all, and what noise alone would give.

    Where both curves agree a row is as certain as noise allows. Where the curve of
    noise alone is narrower, more training rows there would narrow the other.

    Parameters
    ----------
    y, density : ndarray of shape (n, m)
        Values of the target, and the calibrated density there.
    y_noise, density_noise : ndarray of shape (n, m)
        The same without φᵀΣφ, at the same calibration.
    labels : sequence of str
        Names of the rows.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Axes with the plot.
    figure_ : matplotlib Figure
        Its figure.

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from mapie_claps import CalibratedRegressor, ClapsRegressor
    >>> from mapie_claps.plots import PredictiveDensityDisplay
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-2, 2, (300, 1))
    >>> y = np.exp(X[:, 0]) + rng.exponential(size=300)
    >>> model = CalibratedRegressor(
    ...     ClapsRegressor(n_members=2, max_steps=100, tol=None, random_state=0),
    ...     random_state=0).fit(X, y)
    >>> display = PredictiveDensityDisplay.from_estimator(
    ...     model, [[0.0], [4.0]], ax=Figure().subplots())
    >>> display.density.shape
    (2, 300)
    """

    figsize = (6, 4)

    y: Array
    density: Array
    y_noise: Array
    density_noise: Array
    labels: Sequence[str]

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: ArrayLike,
        *,
        labels: Sequence[str] | None = None,
        ax: Any = None,
    ) -> Self:
        """Draw the densities of some rows.

        The signed scores of the calibration rows, smoothed by a normal kernel
        (``scipy.stats.gaussian_kde``), become densities of y through the score of each
        row. Values outside the bounds of a ``support`` are left out, and its gaps are
        not drawn.

        Parameters
        ----------
        estimator : CalibratedRegressor or StreamingConformalRegressor
            Calibrated, with signed scores, on an estimator that splits its variance.
        X : array-like of shape (n, p)
            A few rows, at most 12.
        labels : sequence of str, optional
            Names of the rows; their positions by default.
        ax : matplotlib Axes, optional
            Axes to draw on.

        Returns
        -------
        PredictiveDensityDisplay
            The display.
        """
        # What calibrates loads torch; a plot of numbers does without.
        from ..conformal.bounds import predict_law
        from ..conformal.calibration import Calibrated

        if not isinstance(estimator, Calibrated):
            raise TypeError(
                f"Got a {type(estimator).__name__}, but expected a calibrated object "
                "with signed scores: CalibratedRegressor(model).conformalize(X, y)."
            )
        scores = estimator.signed_scores_
        finite = np.sort(scores[np.isfinite(scores)])
        if len(np.unique(finite)) < 2:
            raise ValueError(
                f"Got {len(finite)} finite calibration scores, but expected at least "
                "two that differ. Calibrate on more rows."
            )
        law = predict_law(estimator._fitted(), X)[1]
        if law.aleatoric is None:
            raise TypeError(
                f"Got a {type(estimator._fitted()).__name__}, which does not split its "
                "variance. Use an estimator with predict_variance, such as "
                "ClapsRegressor."
            )
        if len(law) > MAX_ROWS:
            raise ValueError(
                f"Got {len(law)} rows, but expected at most {MAX_ROWS}. Pass some of "
                "the rows, for example X[:5]."
            )
        support = (estimator._support() or Support()).of(law)
        curves = [_densities(each, finite, support) for each in (law, law.noise_alone)]
        names = labels or [f"row {i}" for i in range(len(law))]
        return cls.from_predictions(*curves[0], *curves[1], names, ax=ax)

    @classmethod
    def from_predictions(
        cls,
        y: ArrayLike,
        density: ArrayLike,
        y_noise: ArrayLike,
        density_noise: ArrayLike,
        labels: Sequence[str],
        *,
        ax: Any = None,
    ) -> Self:
        """Draw densities that were computed before.

        Parameters
        ----------
        y, density : array-like of shape (n, m)
            Values of the target and the density there; NaN is left out.
        y_noise, density_noise : array-like of shape (n, m)
            The same for noise alone.
        labels : sequence of str
            Names of the n rows.
        ax : matplotlib Axes, optional
            Axes to draw on.

        Returns
        -------
        PredictiveDensityDisplay
            The display.
        """
        given = (y, density, y_noise, density_noise)
        arrays = [np.asarray(values, dtype=np.float64) for values in given]
        n = len(arrays[0])
        if any(a.ndim != 2 or len(a) != n for a in arrays) or len(labels) != n:
            raise ValueError(
                f"Got arrays of shape {[a.shape for a in arrays]} and {len(labels)} "
                "labels, but expected (n, m) for all and n labels."
            )
        first, second, third, fourth = arrays
        return cls(first, second, third, fourth, list(labels)).plot(ax)

    def _draw(self, ax: Any) -> None:
        highest = np.nanmax([np.nanmax(self.density), np.nanmax(self.density_noise)])
        both = (
            (self.y, self.density, EPISTEMIC, "with lack of data"),
            (self.y_noise, self.density_noise, ALEATORIC, "noise alone"),
        )
        for i in range(len(self.labels)):
            base = len(self.labels) - 1 - i
            for y, density, colour, label in both:
                height = base + 0.9 * density[i] / highest
                named = label if i == 0 else None
                ax.fill_between(y[i], base, height, color=colour, alpha=0.45, lw=0)
                ax.plot(y[i], height, color=colour, lw=1.2, label=named)
        ax.set_yticks(range(len(self.labels)), self.labels[::-1])
        ax.set(xlabel="y", ylabel="density")
        ax.legend(frameon=False, fontsize=9)


def _densities(law: LocalLaw, scores: Array, support: Support) -> tuple[Array, Array]:
    """Values of y and densities (n, N_POINTS) between the outer levels of each row."""
    smooth = gaussian_kde(scores)
    room = 3 * np.sqrt(float(smooth.covariance[0, 0]))
    wide = np.linspace(scores[0] - room, scores[-1] + room, 4 * N_POINTS)
    below = np.cumsum(smooth(wide))
    low, high = np.interp([OUTSIDE, 1 - OUTSIDE], below / below[-1], wide).tolist()
    at = np.linspace(low, high, N_POINTS)
    y = law.quantile(at)
    with np.errstate(divide="ignore", invalid="ignore"):
        density = smooth(at) / np.gradient(y, at, axis=1)
    shown = np.isfinite(y) & np.isfinite(density)
    shown &= (y >= support.low) & (y <= support.high)
    return np.where(shown, y, np.nan), np.where(shown, density, np.nan)
