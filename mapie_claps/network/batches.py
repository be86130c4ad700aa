"""Arrays, tensors, loaders → batches of tensors; checks of rows; seeds.

What may stand where X stands: an array-like or tensor (with y beside it), or batches:
a ``DataLoader`` or any iterable of ``X``, ``(X, y)`` or ``(X, y, weight)``.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_array, check_random_state
from torch import Tensor
from torch.utils.data import DataLoader

from .._validation import check_real, warn_if_reordered, where_bad

NOISE_METHODS = ("noise_variance_from_features", "noise_variance")
NEEDS_Y = (  # in words that scikit-learn looks for
    "Got y=None with an array as X, which requires y to be passed, but the target y is "
    "None. Pass y, or an iterable of (X, y)."
)
# What to do where a number has the wrong sign.
REMEDIES = {
    "weights": "Pass likelihood ratios.",
    "sample_weight": "Use zero to leave a row out.",
    "noise_variance": "Add a floor, for example softplus(.) + 1e-6. If the network of "
    "a ClapsModule gives log h² or h, say noise_output='log_variance' or 'std'.",
}


class Batch(NamedTuple):
    """Some rows; y and weight in float64, weights of one where none were given."""

    x: Tensor  # (n, ...)
    y: Any  # a tensor (n,), or None where no y is needed
    weight: Tensor  # (n,)


def is_batches(X: Any) -> bool:
    """Whether X is an iterable of batches rather than one array."""
    if isinstance(X, DataLoader | Tensor):
        return isinstance(X, DataLoader)
    if isinstance(X, list | tuple):
        pairs = all(isinstance(b, list | tuple) and len(b) in (2, 3) for b in X)
        # Not hasattr(shape): a row of NumPy numbers is no batch.
        return bool(X) and pairs and all(getattr(b[0], "ndim", 0) for b in X)
    array = hasattr(X, "shape") or hasattr(X, "__array__") or isinstance(X, Mapping)
    return isinstance(X, Iterable) and not array and not hasattr(X, "__dataframe__")


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

    ``check`` sees each X as the user gave it, names of columns included, and returns
    the array or tensor that is used in its place.
    """
    several = is_batches(X)
    for given, target, of_rows in items_of(X, y, weight, need_y):
        x = inputs(check(given))
        if several:  # whoever gives batches may fill the same memory with the next
            x = x.clone()
        n = len(x)
        target = None if target is None else column("y", target, n)
        of_rows = np.ones(n) if of_rows is None else of_rows
        s = column("sample_weight", of_rows, n, sign="non-negative")
        for start in range(0, n, size):
            part = slice(start, start + size)
            yield Batch(x[part], None if target is None else target[part], s[part])


def items_of(X: Any, y: Any, weight: Any, need_y: bool) -> Iterator[tuple[Any, ...]]:
    """(X, y, weight) of the arrays, or of each batch; y and weight may be None."""
    if not is_batches(X):
        if need_y and y is None:
            raise ValueError(NEEDS_Y)
        warn_if_reordered(X, y)
        yield X, y, weight
        return
    for name, values in (("y", y), ("sample_weight", weight)):
        if values is not None:
            raise ValueError(
                f"Got {name} together with batches as X. Let each batch be (X, y) or "
                "(X, y, sample_weight), or pass arrays."
            )
    for item in X:
        parts = tuple(item) if isinstance(item, list | tuple) else (item,)
        x, target, *rest = (*parts, None, None)
        kinds = ", ".join(type(part).__name__ for part in parts)
        one_table = not isinstance(x, dict | list | tuple)
        if not (1 <= len(parts) <= 3 and one_table) or (need_y and target is None):
            raise ValueError(
                f"Got a batch ({kinds}), but expected (X, y) or (X, y, sample_weight)"
                + ("" if need_y else ", or X alone")
                + ", with X as one array or tensor."
            )
        yield x, target, rest[0]


def inputs(X: Any) -> Tensor:
    """X as a tensor on the CPU, in the type that it has."""
    if isinstance(X, Tensor):
        tensor = _dense("X", X)
    else:
        check_real("X", X)
        array = check_array(
            X, allow_nd=True, dtype="numeric", ensure_min_samples=0, input_name="X"
        )
        tensor = torch.from_numpy(
            np.require(array, array.dtype.newbyteorder("="), ["C", "W"])
        )
    if tensor.ndim < 2:
        raise ValueError(
            f"Got X of shape {tuple(tensor.shape)}, but expected rows first and at "
            "least two dimensions. Reshape a single feature to (n, 1)."
        )
    return tensor


def _dense(name: str, tensor: Tensor) -> Tensor:
    """A tensor on the CPU, if it is a plain block of real numbers."""
    odd = tensor.is_nested or tensor.is_meta or tensor.is_quantized
    if odd or tensor.is_complex() or tensor.layout is not torch.strided:
        raise ValueError(
            f"Got {name} as a tensor of {tensor.dtype}, {tensor.layout}, on the device "
            f"'{tensor.device}', but expected a dense one of real numbers. Convert it "
            "first."
        )
    return tensor.detach().cpu()


def column(name: str, values: Any, n: int, sign: str = "any") -> Tensor:
    """One finite float64 number per row, "non-negative" or "positive" if asked for."""
    if isinstance(values, Tensor):
        numbers = _dense(name, values).double()
    else:
        check_real(name, values)
        try:
            numbers = torch.from_numpy(np.require(values, np.float64, ["C", "W"]))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{error}.{where_bad(name, values)}") from error
    if numbers.shape not in ((n,), (n, 1)):
        raise ValueError(
            f"Got {name} of shape {tuple(numbers.shape)} for {n} rows of X, but "
            "expected one number per row."
        )
    if not bool(torch.isfinite(numbers).all()):
        raise ValueError(f"Got {name} with NaN or infinity.{where_bad(name, values)}")
    wrong = numbers <= 0 if sign == "positive" else numbers < 0
    if sign != "any" and bool(wrong.any()):
        raise ValueError(
            f"Got {name}={float(numbers.min())!r} in row {int(numbers.argmin())}, but "
            f"expected {sign} numbers. {REMEDIES[name]}"
        )
    return numbers.reshape(n).clone()


def network_noise(network: Any, x: Tensor, phi: Tensor) -> Tensor:
    """h² by one of ``NOISE_METHODS`` of a network."""
    for name, argument in zip(NOISE_METHODS, (phi, x), strict=True):
        if hasattr(network, name):
            h2: Tensor = getattr(network, name)(argument)
            return h2
    raise ValueError(
        f"Got a network of class {type(network).__name__} without noise_variance. Pass "
        "backend_kwargs={'noise_variance': h2} with h2(x) -> (n,), or give the network "
        "a method noise_variance(x)."
    )


def row_hashes(X: Any, y: Any = None) -> NDArray[np.uint64]:
    """A hash of each row, (n,), that depends on its numbers alone.

    Equal rows have equal hashes, in whatever order, batches or partitions they come.
    """
    rows = np.asarray(X, dtype=np.float64).reshape(len(X), -1)
    rows = rows[:, :: 1 + rows.shape[1] // 1024]  # of an image a part will do
    if y is not None:
        rows = np.column_stack([rows, np.asarray(y, dtype=np.float64)])
    words = np.ascontiguousarray(rows + 0.0).view(np.uint64)  # -0.0 becomes 0.0
    rng = np.random.default_rng(0)
    odd = rng.integers(2**63, size=words.shape[1], dtype=np.uint64) * 2 + 1
    # Products of low bits carry upwards only: the high half is mixed in before.
    mixed = words ^ (words >> np.uint64(32))
    hashes: NDArray[np.uint64] = (mixed * odd).sum(axis=1, dtype=np.uint64)
    return hashes


def draw_seed(random_state: int | np.random.RandomState | None) -> int:
    """A seed for torch, without touching NumPy's global generator."""
    if random_state is None:
        return int(np.random.default_rng().integers(2**31))
    return int(check_random_state(random_state).randint(2**31 - 1))
