"""``save`` and ``load`` as methods."""

import os
from collections.abc import Callable
from typing import Any, Self

from torch import Tensor, nn


class SaveMixin:
    """Methods around :func:`mapie_claps.save` and :func:`mapie_claps.load`."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted estimator to a file, without pickle.

        Parameters
        ----------
        path : path-like
            File to write or replace; see :func:`mapie_claps.save`.
        """
        from .persistence import save

        save(self, path)  # type: ignore[arg-type]

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
        from ..exceptions import FileFormatError
        from .persistence import load

        estimator: Any = load(path, network, noise_variance)
        if not isinstance(estimator, cls):
            raise FileFormatError(
                f"Got a file with a {type(estimator).__name__}, but expected a "
                f"{cls.__name__}. Use mapie_claps.load for whatever the file holds."
            )
        return estimator
