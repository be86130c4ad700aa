"""A number for each row by which it is known again, whatever table it comes in."""

import hashlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..estimators.fitted_rows import FittedRows, Overlap, asked_rows
from ..network.batches import row_keys
from .parts import last_step, split_pipeline

__all__ = ["FittedOverlap", "keys_of_rows", "known_rows"]

Keys = NDArray[np.int64]


def keys_of_rows(X: Any, y: Any = None) -> Keys:
    """Keys (n,): equal for equal rows, and for no others but by a rare chance."""
    table = X.detach().cpu().numpy() if isinstance(X, torch.Tensor) else np.asarray(X)
    if table.dtype.kind in "fiub":
        parts = [table.reshape(len(table), -1).astype(np.float64)]
        if y is not None:
            parts.append(np.asarray(y, dtype=np.float64).reshape(len(table), -1))
        # −0 equals 0, and a sum makes it so.
        joined = torch.from_numpy(np.ascontiguousarray(np.concatenate(parts, 1) + 0.0))
        return (row_keys(joined, 0).numpy() * 2.0**53).astype(np.int64)
    rows = table.reshape(len(table), -1).tolist()
    targets = (
        [()] * len(rows) if y is None else np.ravel(np.asarray(y, np.float64)).tolist()
    )
    return np.array(
        [_digest(row, target) for row, target in zip(rows, targets, strict=True)],
        dtype=np.int64,
    )


def known_rows(keys: Keys, known: Keys) -> NDArray[np.intp]:
    """Positions of keys that are among known ones."""
    return np.flatnonzero(np.isin(keys, known))


def _digest(row: Any, target: Any) -> int:
    text = repr((row, target)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), signed=True)


class FittedOverlap:
    """Counts, batch by batch, rows on which their model was fitted."""

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
