"""Tensors → batches, as laplace-torch asks for them."""

import math
from collections.abc import Iterator

from torch import Tensor
from torch.utils.data import TensorDataset

from .._validation import check_integer


class TensorLoader:
    """Batches of tensors that are in memory, cut as slices, for ``Laplace.fit``.

    The same batches as ``DataLoader(TensorDataset(X, y), batch_size)``, which picks row
    by row and collates: at 64 features that takes ten times as long as the forward pass
    and the Gram matrix together.

    Parameters
    ----------
    X : Tensor of shape (n, ...)
        Inputs of the network.
    y : Tensor of shape (n, 1), (n, 2) or (n, 3)
        Targets; row weights and h², as far as given.
    batch_size : int, default=65536
        Rows at a time; the last batch may have fewer. ``HeteroscedasticGGN`` cuts them
        further by itself.

    Attributes
    ----------
    dataset : torch.utils.data.TensorDataset
        Both tensors; laplace-torch asks for its length.

    Examples
    --------
    >>> import torch
    >>> from mapie_claps import TensorLoader
    >>> loader = TensorLoader(torch.zeros(10, 3), torch.zeros(10, 1), batch_size=4)
    >>> [len(x) for x, y in loader], len(loader), len(loader.dataset)
    ([4, 4, 2], 3, 10)
    """

    def __init__(self, X: Tensor, y: Tensor, batch_size: int = 2**16) -> None:
        check_integer("batch_size", batch_size, low=1, hint="Use the default 65536.")
        for name, value in (("X", X), ("y", y)):
            if not isinstance(value, Tensor):
                raise TypeError(
                    f"Got {name} of type {type(value).__name__}, but expected a "
                    "tensor. Use torch.as_tensor."
                )
        if y.ndim != 2 or X.ndim == 0 or len(X) != len(y):
            raise ValueError(
                f"Got X of shape {tuple(X.shape)} and y of shape {tuple(y.shape)}, but "
                "expected y of shape (n, 1), (n, 2) with row weights or (n, 3) with "
                "weights and h², for n rows of X. Reshape a vector of targets with "
                "y[:, None]."
            )
        self.dataset = TensorDataset(X, y)
        self.batch_size = batch_size

    def __len__(self) -> int:
        return math.ceil(len(self.dataset) / self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        X, y = self.dataset.tensors
        for start in range(0, len(X), self.batch_size):
            part = slice(start, start + self.batch_size)
            yield X[part], y[part]
