"""``save`` and ``load`` as methods, and the functions behind them."""

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


def save_object(value: Any, path: str | os.PathLike[str]) -> None:
    """Write an object of a registered class."""
    check_saveable(value)
    encoder = Encoder()
    config = json.dumps(encoder.encode(value, ""))
    write(Path(path), config, encoder.tensors)


def load_object(path: str | os.PathLike[str], context: Context) -> Any:
    """Read what ``save_object`` wrote, by this or an earlier version."""
    path = Path(path)
    with _as_file_error(path), new_tensors_on("cpu"):
        version, text, tensors = read(path)
        config, tensors = migrate(version, json.loads(text), tensors)
        check_root(config)
        return Decoder(tensors, context).decode(config)


@contextmanager
def _as_file_error(path: Path) -> Iterator[None]:
    """Name the file in every error that its content causes."""
    damage = (
        FileFormatError,
        import_safetensors().SafetensorError,
        KeyError,
        TypeError,
        AttributeError,
        ValueError,
        IndexError,
        RuntimeError,
        RecursionError,
    )
    try:
        yield
    except WrongPartError:
        raise
    except damage as error:
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
        save_object(self, path)

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
        estimator: Any = load_object(path, Context(network, noise_variance))
        if not isinstance(estimator, cls):
            raise FileFormatError(
                f"Got a file with a {type(estimator).__name__}, but expected a "
                f"{cls.__name__}. Use mapie_claps.load for whatever the file holds."
            )
        return estimator
