"""Predictive densities of some rows, with and without the lack of data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from ._display import ALEATORIC, EPISTEMIC, LEGEND, Array, Display

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
        Values of the target, and the calibrated density there; NaN is not drawn.
    y_noise, density_noise : ndarray of shape (n, m)
        The same without φᵀΣφ, at the same calibration.
    labels : sequence of str
        Names of the rows.

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from mapie_claps import CalibratedRegressor, ClapsRegressor
    >>> from mapie_claps.plots import PredictiveDensityDisplay
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-2, 2, (200, 1))
    >>> y = np.exp(X[:, 0]) + rng.exponential(size=200)
    >>> model = ClapsRegressor(n_members=2, max_steps=60, random_state=0)
    >>> model = CalibratedRegressor(model, random_state=0).fit(X, y)
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
        model: Any,
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
        model : CalibratedRegressor
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
            The display, drawn.
        """
        # What calibrates loads torch; a plot of numbers does without.
        from ..conformal.calibrated import CalibratedRegressor
        from ..conformal.distribution import distribution_of
        from ..conformal.support import check_support

        if not isinstance(model, CalibratedRegressor):
            raise TypeError(
                f"Got a {type(model).__name__}, but expected a calibrated object "
                "with signed scores: CalibratedRegressor(model).conformalize(X, y)."
            )
        scores = model.signed_scores_
        finite = np.sort(scores[np.isfinite(scores)])
        if len(np.unique(finite)) < 2:
            raise ValueError(
                f"Got {len(finite)} finite calibration scores, but expected at least "
                "two that differ. Calibrate on more rows."
            )
        rows = distribution_of(getattr(model, "estimator_", model.estimator), X)
        if rows.aleatoric is None or len(rows) > MAX_ROWS:
            raise ValueError(
                f"Got {len(rows)} rows of a {type(model.estimator).__name__}, but "
                f"expected at most {MAX_ROWS} of an estimator that splits its "
                "variance. Pass some of the rows, for example X[:5], of a "
                "ClapsRegressor."
            )
        support = check_support(model.support).of(rows.targets)
        curves: list[Any] = []
        for each in (rows, rows.noise_alone):
            curve = at, height = _densities(each, finite)
            shown = np.isfinite(at) & np.isfinite(height)
            shown &= (at >= support.low) & (at <= support.high)
            curves += [np.where(shown, values, np.nan) for values in curve]
        names = labels or [f"row {i}" for i in range(len(rows))]
        y, density, y_noise, density_noise = curves
        return cls(y, density, y_noise, density_noise, names).plot(ax)

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
        ax.legend(**LEGEND)


def _densities(rows: Any, scores: Array) -> tuple[Array, Array]:
    """Values of y and densities (n, N_POINTS) between the outer levels of each row."""
    from scipy.stats import gaussian_kde

    smooth = gaussian_kde(scores)
    room = 3 * np.sqrt(float(smooth.covariance[0, 0]))
    wide = np.linspace(scores[0] - room, scores[-1] + room, 4 * N_POINTS)
    below = np.cumsum(smooth(wide))
    low, high = np.interp([OUTSIDE, 1 - OUTSIDE], below / below[-1], wide).tolist()
    at = np.linspace(low, high, N_POINTS)
    y = rows.quantile(at)
    with np.errstate(divide="ignore", invalid="ignore"):
        return y, smooth(at) / np.gradient(y, at, axis=1)
