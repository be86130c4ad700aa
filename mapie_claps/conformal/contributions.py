"""What each column of the user's table adds to the two parts of the width."""

from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._validation import check_choice

Array = NDArray[np.float64]
PARTS = ("aleatoric", "epistemic")
IN_WORDS = {"aleatoric": "noise", "epistemic": "lack of data"}
MAX_NAMED = 3  # columns in one sentence
NEGLIGIBLE = 0.01  # of the width: a smaller excess has no cause worth naming


@dataclass(frozen=True, repr=False)
class ColumnContributions:
    """By how much each column widens or narrows an interval, row by row.

    Contributions of a row add up, part by part, to the difference between its width and
    the width of the reference, which is the mean over the background rows.

    Parameters
    ----------
    names : tuple of str
        Columns of the table; ``x0``, ``x1``, … where they have no names.
    values : ndarray of shape (n, p)
        What the rows have in these columns, as text.
    aleatoric, epistemic : ndarray of shape (n, p, n_levels)
        What each column adds to the width that noise needs, and to the width that lack
        of data adds. Where an interval is infinite they are NaN.
    total : ndarray of shape (n, 2, n_levels)
        Both parts of the width of each row.
    reference : ndarray of shape (2, n_levels)
        Both parts of the width of the reference.
    confidence_level : tuple of float
        Levels; empty if what was explained is not calibrated. There is then one column
        of numbers, and in place of the width stands the standard deviation √v.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps.conformal.contributions import ColumnContributions
    >>> adds = ColumnContributions(
    ...     ("hour", "district"), np.array([["17", "7"]]),
    ...     np.array([[[9.0], [1.0]]]), np.array([[[0.5], [8.5]]]),
    ...     np.array([[[30.0], [11.0]]]), np.array([[20.0], [2.0]]), (0.9,))
    >>> adds.sentence(0)
    'wide by 41: 30 noise, mostly hour=17; 11 lack of data, mostly district=7'
    """

    names: tuple[str, ...]
    values: NDArray[Any]
    aleatoric: Array
    epistemic: Array
    total: Array
    reference: Array
    confidence_level: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.total)

    def sentence(self, row: int, level: int = 0) -> str:
        """Say in words why an interval is wide.

        Parameters
        ----------
        row : int
            Position of the row.
        level : int, default=0
            Position of the confidence level.

        Returns
        -------
        str
            The width, its two parts, and the columns that make them larger than those
            of the reference: as many as it takes to explain half of it, at most three.
            An infinite interval has no parts, and the sentence says so.
        """
        self.check_position(row, level)
        both = self.total[row, :, level]
        if not np.isfinite(both).all():
            return (
                "infinitely wide: the calibration rows give no finite end at this level"
            )
        parts = [
            f"{number} {IN_WORDS[part]}, {self._cause(part, row, level)}"
            for part, number in zip(PARTS, _rounded(both), strict=True)
        ]
        return f"wide by {_rounded([both.sum()])[0]}: {'; '.join(parts)}"

    def leading(self, part: str, level: int = 0) -> NDArray[Any]:
        """Name the column that adds most, for each row.

        Parameters
        ----------
        part : {"aleatoric", "epistemic"}
            Part of the width.
        level : int, default=0
            Position of the confidence level.

        Returns
        -------
        ndarray of str of shape (n,)
            Names of columns; empty where an interval is infinite.
        """
        self.check_position(None, level)
        adds = self._of(part)[:, :, level]
        names: NDArray[Any] = np.asarray(self.names)[np.argmax(adds, axis=1)]
        return np.where(np.isnan(adds).any(axis=1), "", names)

    def summary(self, level: int = 0) -> dict[str, NDArray[Any]]:
        """Over all rows: what columns add and take, on average.

        Parameters
        ----------
        level : int, default=0
            Position of the confidence level.

        Returns
        -------
        dict of ndarray of shape (p,)
            ``column``; ``aleatoric`` and ``epistemic``, the mean size of the
            contributions without their sign; ``aleatoric_first`` and
            ``epistemic_first``, the share of the rows in which no column adds more.
            The column with the largest contributions comes first. Rows with an
            infinite interval are left out.
        """
        self.check_position(None, level)
        found: dict[str, NDArray[Any]] = {"column": np.asarray(self.names)}
        finite = np.isfinite(self.total[:, :, level]).all(axis=1)
        if not finite.any():
            raise ValueError(
                f"Got {len(self)} rows whose intervals are all infinite, so that there "
                "is nothing to summarise. Calibrate with more rows, or at a lower "
                "confidence_level."
            )
        for part in PARTS:
            found[part] = np.abs(self._of(part)[finite, :, level]).mean(axis=0)
        for part in PARTS:
            first = self.leading(part, level)[finite, None] == found["column"]
            found[f"{part}_first"] = first.mean(axis=0)
        order = np.argsort(-(found["aleatoric"] + found["epistemic"]), kind="stable")
        return {name: values[order] for name, values in found.items()}

    def to_frame(self, level: int = 0, index: Any = None) -> Any:
        """Contributions as a table.

        Parameters
        ----------
        level : int, default=0
            Position of the confidence level.
        index : pandas.Index, optional
            Labels of the rows, for example ``X.index``.

        Returns
        -------
        pandas.DataFrame
            One row per row of X, and a column for each part and name. Needs pandas.
        """
        import pandas as pd

        tables = {
            part: pd.DataFrame(
                self._of(part)[:, :, level], columns=list(self.names), index=index
            )
            for part in PARTS
        }
        return pd.concat(tables, axis=1)

    def __repr__(self) -> str:
        """The first rows in words."""
        n = len(self)
        lines = [f"row {i}: {self.sentence(i)}" for i in range(n)[:5]]
        more = [f"… {counted(n - 5, 'more row')}"] if n > 5 else []
        columns = counted(len(self.names), "column")
        head = f"Contributions of {columns} in {counted(n, 'row')}"
        return "\n".join([head, *lines, *more])

    def check_position(self, row: int | None, level: int) -> None:
        """Raise if there is no such row or level.

        Parameters
        ----------
        row : int or None
            Position of a row, from the end if negative; None for all rows.
        level : int
            Position of a confidence level, likewise.
        """
        _, _, n_levels = self.total.shape
        for name, value, n in (("row", row, len(self)), ("level", level, n_levels)):
            if value is None:
                continue
            known = isinstance(value, Integral) and not isinstance(value, bool)
            if not (known and -n <= value < n):
                raise IndexError(
                    f"Got {name}={value!r}, but expected a position among "
                    f"{counted(n, name)}, which count from 0."
                )

    def _of(self, part: str) -> Array:
        check_choice("part", part, PARTS, "Use one of the parts of the width.")
        adds: Array = getattr(self, part)
        return adds

    def _cause(self, part: str, row: int, level: int) -> str:
        """Columns that make most of what a part has in excess of the reference."""
        adds = self._of(part)[row, :, level]
        if not adds.sum() > NEGLIGIBLE * self.total[row, :, level].sum():
            return "no more than usual"
        above = np.maximum(adds, 0.0)
        order = np.argsort(-above, kind="stable")
        needed = int(np.searchsorted(np.cumsum(above[order]), above.sum() / 2)) + 1
        named = [
            f"{self.names[j]}={self.values[row, j]}"
            for j in order[: min(needed, MAX_NAMED)]
        ]
        return f"mostly {' and '.join(named)}"


def counted(n: int, noun: str) -> str:
    """A number of things in words."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _rounded(numbers: Any) -> list[str]:
    """Numbers with two or three digits that count, never in powers of ten."""
    largest = max(abs(float(n)) for n in numbers)
    if not 0 < largest < np.inf:
        return [f"{float(n):g}" for n in numbers]
    digits = max(0, 1 - int(np.floor(np.log10(largest))))
    return [f"{float(n):.{digits}f}" for n in numbers]
