"""An interval together with the two parts of v that made it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..estimators.variance import Parts, PredictiveVariance
from .contributions import ColumnContributions, counted

Array = NDArray[np.float64]


class Recorded(NamedTuple):
    """Parts of v of some rows, the model that gave them, what noise alone needs."""

    model: Any
    parts: Parts
    noise_width: Array | None = None  # (n, n_levels); None: in proportion to √v


@dataclass(frozen=True, repr=False)
class Explanation:
    """Prediction, interval and the reasons for its width, row by row.

    Parameters
    ----------
    prediction : ndarray of shape (n,)
        Point prediction.
    lower, upper : ndarray of shape (n, n_levels)
        Bounds; without columns if what was explained is not calibrated.
    confidence_level : tuple of float
        Levels of the bounds.
    variance : PredictiveVariance
        Aleatoric and epistemic part of v.
    scaled : bool, default=True
        Whether √v makes the width, as with ``ClapsScore``. If it does not, the parts
        of v are no parts of the width, and ``aleatoric_width`` and
        ``epistemic_width`` raise a ValueError.
    noise_width : ndarray of shape (n, n_levels), optional
        Width with v± = h±², where noise has a shape or the target a map. By default
        the width is divided in proportion to √v.
    by_column : ColumnContributions, optional
        What each column adds to both parts of the width, if it was asked for.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import Explanation, PredictiveVariance
    >>> why = Explanation(
    ...     np.zeros(1), np.array([[-2.0]]), np.array([[2.0]]), (0.9,),
    ...     PredictiveVariance(np.array([3.0]), np.array([1.0])))
    >>> why.width, why.epistemic_width.round(3)
    (array([[4.]]), array([[0.536]]))
    >>> why
    Explanation of 1 row, level 0.9
    prediction  lower  upper  epistemic_fraction
             0     -2      2                0.25
    """

    prediction: Array
    lower: Array
    upper: Array
    confidence_level: tuple[float, ...]
    variance: PredictiveVariance
    scaled: bool = True
    noise_width: Array | None = None
    by_column: ColumnContributions | None = None

    @property
    def aleatoric(self) -> Array:
        """Aleatoric variance h²."""
        return self.variance.aleatoric

    @property
    def epistemic(self) -> Array:
        """Epistemic variance."""
        return self.variance.epistemic

    @property
    def epistemic_fraction(self) -> Array:
        """Share of the epistemic part in v."""
        return self.variance.epistemic_fraction

    @property
    def width(self) -> Array:
        """Width of the intervals, shape (n, n_levels)."""
        return self.upper - self.lower

    @property
    def aleatoric_width(self) -> Array:
        """Width that noise alone would need, width · h / √v for a symmetric score."""
        self._check_scaled()
        if self.noise_width is not None:
            return np.minimum(self.noise_width, self.width)
        return self.width / self.variance.scale_ratio[:, None]

    @property
    def epistemic_width(self) -> Array:
        """Width that lack of data adds to it."""
        self._check_scaled()
        if self.noise_width is not None:
            with np.errstate(invalid="ignore"):  # infinite intervals are lack of data
                added = self.width - self.aleatoric_width
            return np.where(np.isinf(self.width), self.width, added)
        added = 1 - 1 / self.variance.scale_ratio[:, None]
        return np.where(added > 0, self.width, 0.0) * added

    def columns(self) -> dict[str, Array]:
        """Everything by row, one array per quantity.

        Returns
        -------
        dict of ndarray of shape (n,)
            Prediction, bounds, widths (with the level appended, ``lower_0.9``, if
            there are several), variances and the share of the epistemic one.
        """
        columns = {"prediction": self.prediction}
        single = len(self.confidence_level) == 1
        names = ["lower", "upper", "width"]
        if self.scaled:
            names += ["aleatoric_width", "epistemic_width"]
        for j, level in enumerate(self.confidence_level):
            suffix = "" if single else f"_{level:g}"
            for name in names:
                columns[name + suffix] = getattr(self, name)[:, j]
        for name in ("aleatoric", "epistemic", "epistemic_fraction"):
            columns[name] = getattr(self, name)
        return columns

    def to_frame(self, index: Any = None) -> Any:
        """Everything by row, as a table.

        Parameters
        ----------
        index : pandas.Index, optional
            Labels of the rows, for example ``X.index``.

        Returns
        -------
        pandas.DataFrame
            The columns of ``columns``. Needs pandas.
        """
        import pandas as pd

        return pd.DataFrame(self.columns(), index=index)

    def __repr__(self) -> str:
        """The first rows as a table."""
        columns = self.columns()
        shown = [n for n in columns if n.startswith(("pred", "lower", "upper"))]
        shown.append("epistemic_fraction")
        n = len(self.prediction)
        rows = [shown] + [[f"{columns[c][i]:.4g}" for c in shown] for i in range(n)[:5]]
        widths = [max(len(row[j]) for row in rows) for j in range(len(shown))]
        lines = [
            "  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True))
            for row in rows
        ]
        more = [f"… {counted(n - 5, 'more row')}"] if n > 5 else []
        levels = ", ".join(f"{level:g}" for level in self.confidence_level)
        head = f"Explanation of {counted(n, 'row')}"
        head += f", level {levels}" if levels else ""
        return "\n".join([head, *lines, *more])

    def _check_scaled(self) -> None:
        if not self.scaled:
            raise ValueError(
                "Got intervals of a score that does not scale them by the model's "
                "standard deviation, so their width has no aleatoric and epistemic "
                "part. Calibrate with ClapsScore, or read aleatoric and epistemic, the "
                "parts of the variance."
            )


def explanation_of(
    points: Array,  # (n,)
    bounds: Array,  # (n, 2, n_levels)
    levels: Sequence[float],
    records: Sequence[Sequence[Recorded]],  # of each model, some rows after others
    scaled: bool = True,
) -> Explanation:
    """Intervals with the parts of v that made them, mean over the models."""

    def mean(name: str) -> Array:
        each = ([getattr(r.parts, name) for r in found] for found in records)
        stacked = [np.concatenate([np.empty(0), *parts]) for parts in each]
        return np.asarray(np.mean(stacked, axis=0))

    widths = [r.noise_width for of in records for r in of]
    whole = len(records) == 1 and widths and all(w is not None for w in widths)
    return Explanation(
        points,
        bounds[:, 0],
        bounds[:, 1],
        tuple(levels),
        PredictiveVariance(mean("aleatoric"), mean("epistemic")),
        scaled,
        np.concatenate(widths) if whole else None,  # type: ignore[arg-type]
    )
