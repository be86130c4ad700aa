"""laplace-torch, imported in one place.

On import it reaches ``torch.jit`` through torchmetrics and torchvision, and torch 2.9
and later warn of that. The warning is not the user's: it is kept from showing while the
import lasts, without a filter that would outlive it.
"""

import warnings

from torch import Tensor

with warnings.catch_warnings():
    for category in (FutureWarning, DeprecationWarning):
        warnings.filterwarnings("ignore", message="`torch.jit", category=category)
    import laplace
    from laplace.curvature import GGNInterface
    from laplace.utils import invsqrt_precision

__all__ = ["LastLayerInterface", "invsqrt_precision", "laplace"]


class LastLayerInterface(GGNInterface):  # type: ignore[misc]
    """laplace-torch's interface for the weights of a last layer.

    The Jacobians (and gradients) that laplace-torch 0.3 has for whole networks look the
    parameters up by name. Those of the last layer are named as the layer has them,
    which the network around it does not know: the result is zero, without a word.
    """

    def jacobians(
        self, x: Tensor, enable_backprop: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Jacobian of the output by the weights of the last layer.

        Parameters
        ----------
        x : Tensor of shape (n, ...)
            Inputs of the network.
        enable_backprop : bool, default=False
            Whether gradients flow back to x.

        Returns
        -------
        tuple of Tensor
            Jacobian of shape (n, 1, d + 1), and the output of shape (n, 1).
        """
        found: tuple[Tensor, Tensor] = self.last_layer_jacobians(x, enable_backprop)
        return found

    functorch_jacobians = jacobians

    def selected_output_jacobians(
        self, x: Tensor, outputs: Tensor, enable_backprop: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Jacobian of some outputs in each row, by the weights of the last layer.

        Parameters
        ----------
        x : Tensor of shape (n, ...)
            Inputs of the network.
        outputs : Tensor of shape (n,) or (n, k)
            Numbers of the outputs.
        enable_backprop : bool, default=False
            Whether gradients flow back to x.

        Returns
        -------
        tuple of Tensor
            Jacobian of shape (n, k, d + 1), and the output of shape (n, 1).
        """
        found, f = self.last_layer_jacobians(x, enable_backprop)
        chosen = outputs.reshape(len(found), -1, 1).expand(-1, -1, found.shape[2])
        return found.gather(1, chosen), f
