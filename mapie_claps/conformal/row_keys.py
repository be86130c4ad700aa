"""A number for each row by which it is known again, whatever table it comes in."""

import hashlib
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..network.batches import row_keys
from .groups import is_missing

Keys = NDArray[np.int64]
BITS = 53
# Marks the keys of rows that came in single precision, in which rows of double
# precision that are compared with them have to be taken as well.
SINGLE = 1 << 60


def keys_to_keep(X: Any, y: Any = None) -> Keys:  # (2, n)
    """Keys by which ``known_rows`` knows rows again, also in another precision."""
    single = _keys(X, y, single=True)
    if _is_single(X):
        return np.stack([single, single | SINGLE])
    return np.stack([_keys(X, y, single=False), single])


def known_rows(X: Any, y: Any, known: Keys) -> NDArray[np.intp]:
    """Positions of rows whose keys are among known ones, which are sorted."""
    single = _keys(X, y, single=True)
    if _is_single(X):
        return np.flatnonzero(_among(single, known))
    exact = _keys(X, y, single=False)
    return np.flatnonzero(_among(exact, known) | _among(single | SINGLE, known))


def _among(keys: Keys, known: Keys) -> NDArray[np.bool_]:
    if not len(known):
        return np.zeros(len(keys), dtype=bool)
    at = np.searchsorted(known, keys).clip(max=len(known) - 1)
    found: NDArray[np.bool_] = known[at] == keys
    return found


def _is_single(X: Any) -> bool:
    """Whether numbers have been rounded to single precision."""
    types = getattr(X, "dtypes", getattr(X, "dtype", ""))  # of a table by column
    types = types if isinstance(types, list) else np.ravel(np.asarray(types, object))
    return any(str(t).lower().endswith(("float32", "float16")) for t in types)


def _keys(X: Any, y: Any, single: bool) -> Keys:
    """Keys (n,): equal for equal rows, and for no others but by a rare chance."""
    table = _array(X)
    table = table.reshape(len(table), -1)
    # Targets always in single precision: beside equal X that tells rows apart.
    target = np.empty((len(table), 0)) if y is None else _rounded(_array(y), True)
    target = target.reshape(len(table), -1)
    try:
        numbers = _rounded(table, single)
    except (TypeError, ValueError):  # text, dates
        rows = zip(table.tolist(), target.tolist(), strict=True)
        return np.array([_digest(*row, single) for row in rows], dtype=np.int64)
    joined = torch.from_numpy(np.concatenate([numbers, target], axis=1))
    return (row_keys(joined, 0).numpy() * 2.0**BITS).astype(np.int64)


def _array(values: Any) -> NDArray[Any]:
    if not isinstance(values, torch.Tensor):
        return np.asarray(values)
    known_to_numpy = values.dtype != torch.bfloat16
    return (values if known_to_numpy else values.float()).detach().cpu().numpy()


def _rounded(values: NDArray[Any], single: bool) -> NDArray[np.float64]:
    """Numbers in double precision, with no more digits than asked for."""
    with np.errstate(over="ignore"):
        found = values.astype(np.float32) if single else values
    return found.astype(np.float64) + 0.0  # −0 equals 0, and a sum makes it so


def _digest(row: list[Any], target: list[float], single: bool) -> int:
    cells = [_cell(value, single) for value in row]
    text = repr((cells, target)).encode()
    digest = hashlib.blake2b(text, digest_size=8).digest()
    return int.from_bytes(digest) >> (64 - BITS)


def _cell(value: Any, single: bool) -> Any:
    if is_missing(value):
        return None
    if isinstance(value, Real | np.bool_):
        return float(_rounded(np.asarray(value), single))
    return str(value)
