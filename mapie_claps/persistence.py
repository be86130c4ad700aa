"""Fitted estimators to a file and back, without pickle.

One safetensors file: the tensors, and as its metadata the configuration as JSON with
hashes of both. Importing the classes that can be saved registers what a file may hold.
"""

from .conformal import calibrated, monitor, streaming  # noqa: F401
from .estimators import module, regressor  # noqa: F401
from .files.methods import load, save

__all__ = ["load", "save"]
