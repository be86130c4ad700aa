"""Fitted estimators to a file and back, without pickle.

One safetensors file: the tensors, and as its metadata the configuration as JSON with
hashes of both. The estimators that can be saved are imported here: importing them
registers what ``files`` can read.
"""

import os
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from .conformal.calibrated import CalibratedRegressor
from .conformal.monitor import ExchangeabilityMonitor
from .conformal.streaming import StreamingConformalRegressor
from .estimators.module import ClapsModule
from .estimators.regressor import ClapsRegressor
from .files.codec import Context
from .files.methods import load_object, save_object

__all__ = ["load", "save"]

Saveable = (
    ClapsRegressor
    | ClapsModule
    | CalibratedRegressor
    | StreamingConformalRegressor
    | ExchangeabilityMonitor
)


def save(estimator: Saveable, path: str | os.PathLike[str]) -> None:
    """Write a fitted estimator to a file.

    The file is written under a temporary name in the same folder, flushed to the disk
    and renamed: at ``path`` there is the old file or the new one, whole. Needs
    ``pip install mapie-claps[save]``.

    Parameters
    ----------
    estimator : estimator or calibrated object
        A fitted ``ClapsRegressor`` or ``ClapsModule``, or a ``CalibratedRegressor`` or
        ``StreamingConformalRegressor`` around one, or an ``ExchangeabilityMonitor``.
        The network of a ``ClapsModule`` is not stored, only a hash of its weights: keep
        it as you keep your networks.
    path : path-like
        File to write or replace.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> from mapie_claps import ClapsRegressor, load, save
    >>> X = np.linspace(-1, 1, 40)[:, None]
    >>> model = ClapsRegressor.paper(random_state=0).fit(X, X[:, 0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.claps")
    ...     save(model, path)
    ...     again = load(path)
    >>> np.array_equal(model.predict(X), again.predict(X))
    True
    """
    save_object(estimator, path)


def load(
    path: str | os.PathLike[str],
    network: nn.Module | None = None,
    noise_variance: Callable[[Tensor], Tensor] | None = None,
) -> Any:
    """Read an estimator that ``save`` wrote.

    Hashes tell damage, not malice: who can change the file can change them. What a
    changed file can do is give wrong numbers; it cannot run code.

    Parameters
    ----------
    path : path-like
        File to read.
    network : torch.nn.Module, optional
        For a ``ClapsModule``: the network it was fitted with. Names, shapes, dtypes
        and a hash of its weights are compared.
    noise_variance : callable, optional
        For a ``ClapsModule`` whose ``noise_variance`` was a callable: that callable.

    Returns
    -------
    estimator or calibrated object
        What the file holds.

    Raises
    ------
    FileFormatError
        If the file is not one of ours, damaged, or written by a newer format.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np, torch
    >>> from mapie_claps import ClapsModule, load, save
    >>> net = torch.nn.Linear(1, 1)
    >>> X = np.linspace(-1, 1, 40)[:, None]
    >>> model = ClapsModule(net).fit(X, X[:, 0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(model, os.path.join(folder, "model.claps"))
    ...     again = load(os.path.join(folder, "model.claps"), network=net)
    >>> np.array_equal(model.predict(X), again.predict(X))
    True
    """
    return load_object(path, Context(network, noise_variance))
