"""``save`` and ``load``, as functions and as methods."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from torch import Tensor, nn

from .._devices import new_tensors_on
from ..exceptions import FileFormatError
from .codec import Context, Decoder, Encoder, WrongPartError, check_root, check_saveable
from .container import import_safetensors, read, write
from .migrations import migrate


def save(estimator: "SaveMixin", path: str | os.PathLike[str]) -> None:
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
    check_saveable(estimator)
    encoder = Encoder()
    config = json.dumps(encoder.encode(estimator, ""))
    write(Path(path), config, encoder.tensors)


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
    path = Path(path)
    with _as_file_error(path), new_tensors_on("cpu"):
        version, text, tensors = read(path)
        config, tensors = migrate(version, json.loads(text), tensors)
        check_root(config)
        return Decoder(tensors, Context(network, noise_variance)).decode(config)


@contextmanager
def _as_file_error(path: Path) -> Iterator[None]:
    """Name the file in every error that its content causes."""
    damage = (LookupError, TypeError, AttributeError, ValueError, RuntimeError)
    try:
        yield
    except WrongPartError:
        raise
    except (import_safetensors().SafetensorError, *damage) as error:
        ours = isinstance(error, FileFormatError)
        what = str(error) if ours else f"{type(error).__name__}: {error}"
        raise FileFormatError(f"Cannot load {str(path)!r}. {what}") from error


class SaveMixin:
    """Methods around :func:`mapie_claps.save` and :func:`mapie_claps.load`."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted estimator to a file, without pickle.

        Parameters
        ----------
        path : path-like
            File to write or replace; see :func:`mapie_claps.save`.
        """
        save(self, path)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        network: nn.Module | None = None,
        noise_variance: Callable[[Tensor], Tensor] | None = None,
    ) -> Self:
        """Read an estimator of this class that ``save`` wrote.

        Parameters
        ----------
        path : path-like
            File to read; see :func:`mapie_claps.load`.
        network : torch.nn.Module, optional
            The network of a ``ClapsModule``.
        noise_variance : callable, optional
            The ``noise_variance`` of a ``ClapsModule``, if it was a callable.

        Returns
        -------
        estimator
            The fitted estimator.
        """
        estimator: Any = load(path, network, noise_variance)
        if not isinstance(estimator, cls):
            raise FileFormatError(
                f"Got a file with a {type(estimator).__name__}, but expected a "
                f"{cls.__name__}. Use mapie_claps.load for whatever the file holds."
            )
        return estimator
