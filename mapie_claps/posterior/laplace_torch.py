"""laplace-torch, imported in one place.

On import it reaches ``torch.jit`` through torchmetrics and torchvision, and torch 2.9
and later warn of that. The warning is not the user's: it is kept from showing while the
import lasts, without a filter that would outlive it.
"""

import warnings

with warnings.catch_warnings():
    for category in (FutureWarning, DeprecationWarning):
        warnings.filterwarnings("ignore", message="`torch.jit", category=category)
    import laplace
    from laplace.curvature import GGNInterface
    from laplace.utils import invsqrt_precision

__all__ = ["GGNInterface", "invsqrt_precision", "laplace"]
