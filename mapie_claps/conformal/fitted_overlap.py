"""Calibration rows on which their model was fitted, counted batch by batch."""

from typing import Any

from ..estimators.fitted_rows import FittedRows, Overlap, asked_rows
from .parts import last_step, split_pipeline


class FittedOverlap:
    """Counts rows on which their model was fitted."""

    def __init__(self) -> None:
        self._fitted: FittedRows | None = None
        self._found = Overlap(0, 0)

    def add(self, model: Any, X: Any, y: Any) -> None:
        """Count some rows, if the model knows the rows that it was fitted on."""
        if not hasattr(last_step(model), "_fitted_rows"):
            return
        asked = asked_rows(*split_pipeline(model, X))
        if asked is not None:
            self._fitted = asked.fitted
            more = asked.fitted.overlap(asked.numbers, y)
            both = zip(self._found, more, strict=True)
            self._found = Overlap(*(a + b for a, b in both))

    def warn(self) -> None:
        """Warn if there are more than equal rows of a table explain."""
        if self._fitted is not None:
            self._fitted.warn_of(self._found)
