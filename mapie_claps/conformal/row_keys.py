"""A number for each row by which it is known again, whatever table it comes in."""

import hashlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..network.batches import row_keys

__all__ = ["keys_of_rows", "known_rows"]

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
