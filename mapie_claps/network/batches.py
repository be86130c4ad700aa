"""Arrays, tensors, DataLoaders, iterables → batches of tensors, a few rows at a time.

What may stand where X stands: an array-like or tensor (with y beside it), or batches:
a ``DataLoader`` or any iterable of ``X``, ``(X, y)`` or ``(X, y, weight)``.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from sklearn.utils import check_array
from torch import Tensor
from torch.utils.data import DataLoader

from .._validation import check_real, check_unmasked, warn_if_reordered, where_bad
from .table import TableRows

T = TypeVar("T")
KEPT_ELEMENTS = 2**24


class KeptBatches(Generic[T]):
    """Batches that can be iterated again: few are kept, many are computed again."""

    def __init__(
        self, compute: Callable[[], Iterable[T]], n_elements: Callable[[T], int]
    ) -> None:
        self.compute, self.n_elements = compute, n_elements
        self._kept: list[T] | None = None

    def __iter__(self) -> Iterator[T]:
        if self._kept is not None:
            yield from self._kept
            return
        kept: list[T] = []
        elements = 0
        for batch in self.compute():
            yield batch
            elements += self.n_elements(batch)
            if elements <= KEPT_ELEMENTS:
                kept.append(batch)
            else:
                kept.clear()
        if elements <= KEPT_ELEMENTS:
            self._kept = kept


class Batch(NamedTuple):
    """Some rows; y and weight in float64."""

    x: Any  # a tensor (n, ...), or rows of a table
    y: Tensor | None  # (n,)
    weight: Tensor | None  # (n,), None for ones

    @property
    def target(self) -> Tensor:
        """Targets, where there must be some."""
        if self.y is None:
            raise ValueError("Got a batch without y. Pass (X, y).")
        return self.y

    @property
    def row_weight(self) -> Tensor:
        """Weights, ones if none were given."""
        if self.weight is not None:
            return self.weight
        return torch.ones(len(self.x), dtype=torch.float64)


def is_batches(X: Any) -> bool:
    """Whether X is an iterable of batches rather than one array."""
    if isinstance(X, DataLoader | Tensor):
        return isinstance(X, DataLoader)
    if isinstance(X, list | tuple):
        pairs = all(isinstance(b, list | tuple) and len(b) in (2, 3) for b in X)
        # Not hasattr(shape): a row of NumPy numbers is no batch.
        return bool(X) and pairs and all(getattr(b[0], "ndim", 0) for b in X)
    arrays = ("shape", "__array__", "__dataframe__")
    return isinstance(X, Iterable) and not any(hasattr(X, a) for a in arrays)


def batches_of(
    X: Any,
    y: Any = None,
    weight: Any = None,
    *,
    size: int,
    need_y: bool = False,
    check: Callable[[Any], Any] = lambda X: X,
) -> Iterator[Batch]:
    """Go through X in batches of at most ``size`` rows.

    ``check`` sees each X as the user gave it, names of columns included.
    """
    parts: Iterator[Batch]
    if is_batches(X):
        if weight is not None:
            raise ValueError(
                "Got sample_weight together with batches as X. Let each batch be (X, "
                "y, sample_weight)."
            )
        items = items_of(X, y, need_y)
        parts = (_from_arrays(check(x), *rest) for x, *rest in items)
    else:
        if need_y:
            check_has_target(y)
        warn_if_reordered(X, y)
        parts = iter([_from_arrays(check(X), y, weight)])
    for part in parts:
        for start in range(0, len(part.x), size):
            piece = slice(start, start + size)
            yield Batch(*(None if t is None else t[piece] for t in part))  # type: ignore[arg-type]


def items_of(X: Any, y: Any, need_y: bool) -> Iterator[tuple[Any, ...]]:
    """Elements of a loader as (X, y) or (X, y, weight), y perhaps None."""
    if y is not None:
        raise ValueError(
            "Got batches as X together with y. Let each batch be (X, y), or pass "
            "arrays."
        )
    for item in X:
        parts = tuple(item) if isinstance(item, list | tuple) else (item,)
        if not 1 <= len(parts) <= 3 or (need_y and len(parts) < 2):
            raise ValueError(
                f"Got a batch of {len(parts)} parts, but expected (X, y) or (X, y, "
                "sample_weight)" + ("." if need_y else ", or X alone.")
            )
        if isinstance(parts[0], dict | list | tuple):
            raise TypeError(
                f"Got a batch whose X is a {type(parts[0]).__name__}, but expected one "
                "array or tensor. Wrap the network in one that takes its inputs as one "
                "tensor apart."
            )
        yield parts if len(parts) > 1 else (parts[0], None)


def _from_arrays(X: Any, y: Any = None, weight: Any = None) -> Batch:
    """Tensors from what the user gave, lengths and values checked."""
    x = X if isinstance(X, TableRows) else inputs(X)
    target = None if y is None else column("y", y, len(x))
    w = None if weight is None else column("sample_weight", weight, len(x))
    if w is not None and bool((w < 0).any()):
        raise ValueError(
            f"Got sample_weight={float(w.min())!r} in a row, but expected numbers of "
            "at least 0."
        )
    return Batch(x, target, w)


def inputs(X: Any) -> Tensor:
    """X as a tensor on the CPU, in the type that it has."""
    if isinstance(X, Tensor):
        check_dense("X", X)
        tensor = X.detach().cpu()
    else:
        check_unmasked("X", X)
        array = check_array(
            X, allow_nd=True, dtype="numeric", ensure_min_samples=0, input_name="X"
        )
        tensor = torch.from_numpy(_native(array))
    if tensor.ndim < 2:
        raise ValueError(
            f"Got X of shape {tuple(tensor.shape)}, but expected rows first and at "
            "least two dimensions. Reshape a single feature to (n, 1)."
        )
    return tensor


def check_dense(name: str, tensor: Tensor) -> None:
    """Raise for tensors that are no plain block of real numbers."""
    kinds = {
        "nested": tensor.is_nested,
        "sparse": tensor.layout is not torch.strided,
        "on the device 'meta', without numbers": tensor.is_meta,
        "complex": tensor.is_complex(),
        "quantised": tensor.is_quantized,
    }
    kind = next((kind for kind, found in kinds.items() if found), None)
    if kind is not None:
        raise ValueError(
            f"Got {name} as a tensor that is {kind}, but expected a dense one of real "
            "numbers. Convert it first."
        )


def _native(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array that torch accepts without a warning: writable, native, contiguous."""
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    return array if array.flags.writeable else array.copy()


def column(name: str, values: Any, n: int) -> Tensor:
    """One finite float64 number per row."""
    if isinstance(values, Tensor):
        check_dense(name, values)
        column = values.detach().cpu().double()
    else:
        check_real(name, values)
        try:
            numbers = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{error}.{where_bad(name, values)}") from error
        column = torch.from_numpy(_native(numbers))
    if column.shape not in ((n,), (n, 1)):
        raise ValueError(
            f"Got {name} of shape {tuple(column.shape)} for {n} rows of X, but "
            "expected one number per row."
        )
    if not bool(torch.isfinite(column).all()):
        raise ValueError(
            f"Got {name} with NaN or infinity.{where_bad(name, column.numpy())}"
        )
    return column.reshape(n)


def row_keys(x: Tensor, seed: int) -> Tensor:  # (n, ...) → (n,), float64 in [0, 1)
    """A number for each row that depends on its bytes alone.

    Choosing rows by it gives the same choice in whatever order, batches or partitions
    they come, and equal rows stay together.
    """
    flat = np.ascontiguousarray(x.numpy().reshape(len(x), -1)).view(np.uint8)
    if flat.shape[1] % 8:
        flat = np.pad(flat, ((0, 0), (0, 8 - flat.shape[1] % 8)))
    words = flat.view(np.uint64)
    rng = np.random.default_rng(seed)
    odd = rng.integers(2**63, size=words.shape[1], dtype=np.uint64) * 2 + 1
    # Products of low bits carry upwards only: the high half is mixed in before.
    mixed = words ^ (words >> np.uint64(32))
    keys = (mixed * odd).sum(axis=1, dtype=np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        keys = (keys ^ (keys >> np.uint64(shift))) * np.uint64(factor)
    return torch.from_numpy((keys >> np.uint64(11)).astype(np.float64) / 2.0**53)


def check_is_reiterable(X: Any) -> None:
    """Raise if X is an iterator, which is used up after one pass."""
    if isinstance(X, Iterator):
        raise ValueError(
            "Got an iterator that can be used once, but fitting a variance head "
            "takes several passes. Pass a DataLoader, a list or another iterable that "
            "starts again, or a module with a variance head."
        )


def check_has_target(y: Any) -> None:
    """Raise if an array came without its y, in words that scikit-learn looks for."""
    if y is None:
        raise ValueError(
            "Got y=None with an array as X, which requires y to be passed, but the "
            "target y is None. Pass y, or an iterable of (X, y)."
        )
