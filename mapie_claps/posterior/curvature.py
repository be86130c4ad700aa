"""Gaussian likelihood with input-dependent noise for laplace-torch's last layer.

laplace-torch knows one scalar ``sigma_noise``, and asks the curvature backend for the
loss and the Gauss-Newton matrix of a batch: there h²(x) enters.
"""

import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ..network.batches import column, network_noise

# On import laplace-torch reaches ``torch.jit`` through torchmetrics and torchvision, of
# which torch 2.9 and later warn. The warning is not the user's.
with warnings.catch_warnings():
    for _category in (FutureWarning, DeprecationWarning):
        warnings.filterwarnings("ignore", message="`torch.jit", category=_category)
    import laplace
    from laplace.curvature import GGNInterface

__all__ = ["HeteroscedasticGGN", "laplace"]


class HeteroscedasticGGN(GGNInterface):
    r"""Last-layer curvature of a Gaussian likelihood with input-dependent noise.

    :math:`H^\top W H = \sum_i s_i \, \varphi(x_i)\varphi(x_i)^\top / h^2(x_i)`

    For :math:`y_i \sim \mathcal N(\varphi(x_i)^\top w, h^2(x_i))` the negative
    log-likelihood :math:`\tfrac12\sum_i s_i[(y_i-\mu_i)^2/h_i^2+\log h_i^2]` is
    quadratic in :math:`w`, so this matrix is its exact Hessian. Pass the class as
    ``backend`` to ``laplace.Laplace`` with ``subset_of_weights="last_layer"`` and
    ``hessian_structure="full"`` or ``"diag"``. This is heteroscedastic Laplace for
    laplace-torch (requested there as issues 78 and 153).

    Parameters
    ----------
    model : nn.Module
        Feature extractor around the network, given by laplace-torch. The network's
        ``forward`` returns the mean only, shape (n, 1), and its last layer is an
        ``nn.Linear``, which should be named: ``last_layer_name=...``.
    likelihood : {"regression"}
        Given by laplace-torch.
    last_layer : bool, default=False
        Given by laplace-torch; must be True.
    noise_variance : callable, optional
        Maps the inputs of the network to h²(x), shape (n,) or (n, 1), strictly
        positive. Pass it as ``backend_kwargs={"noise_variance": ...}``. Without it
        the network itself is asked: for ``noise_variance_from_features(phi)``, which
        shares the forward pass of the mean, or for ``noise_variance(x)``.
    **kwargs : dict
        Passed on to ``laplace.curvature.GGNInterface``.

    Notes
    -----
    - The targets may carry row weights :math:`s_i` as a second column, shape (n, 2),
      and h² as a third, shape (n, 3): the network is then not asked for it.
    - ``optimize_prior_precision(method="marglik")`` works; ``method="gridsearch"``
      scores the squared error, which the prior precision does not change.
    - ``la(X)`` returns the mean and the epistemic variance φᵀΣφ only: add h²(x) for
      the predictive variance.

    Examples
    --------
    >>> import torch
    >>> from laplace import Laplace
    >>> from mapie_claps import HeteroscedasticGGN
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> net = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Linear(2, 1))
    >>> X = torch.linspace(-1, 1, 20).reshape(10, 2)
    >>> y = X.sum(1, keepdim=True)
    >>> la = Laplace(net, "regression", subset_of_weights="last_layer",
    ...              hessian_structure="full", backend=HeteroscedasticGGN,
    ...              backend_kwargs={"noise_variance": lambda x: 0.1 + x[:, 0] ** 2},
    ...              last_layer_name="1")
    >>> la.fit(DataLoader(TensorDataset(X, y), batch_size=5))
    >>> la.posterior_precision.shape
    torch.Size([3, 3])
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: str,
        last_layer: bool = False,
        noise_variance: Callable[[Tensor], Tensor] | None = None,
        **kwargs: Any,
    ) -> None:
        if likelihood != "regression" or not last_layer:
            raise ValueError(
                f"Got likelihood={str(likelihood)!r}, last_layer={last_layer!r}, but "
                "expected a regression's last layer. Use "
                'Laplace(model, "regression", subset_of_weights="last_layer", ...).'
            )
        super().__init__(model, likelihood, last_layer=last_layer, **kwargs)
        self.noise_variance = noise_variance

    # laplace-torch's own is of whole networks. It looks the weights of the last layer
    # up by names that the network around it does not know, and gives zeros in silence.
    jacobians = GGNInterface.last_layer_jacobians

    def full(self, x: Tensor, y: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Loss of one batch, and HᵀWH of shape (d + 1, d + 1)."""
        loss, root = self._weighted(x, y)
        with torch.autocast(root.device.type, enabled=False):
            return loss, root.T @ root

    def diag(self, x: Tensor, y: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Loss of one batch, and the diagonal of HᵀWH of shape (d + 1,)."""
        loss, root = self._weighted(x, y)
        return loss, root.square().sum(0)

    def kron(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse what has no meaning here: Kronecker factors, gradients of rows."""
        raise ValueError(
            "HeteroscedasticGGN gives neither Kronecker factors, into which weights "
            "1/h²(x) do not factorise, nor gradients of rows. Use "
            "hessian_structure='full', or 'diag' for very wide features."
        )

    gradients = selected_output_jacobians = kron

    @torch.no_grad()
    def _weighted(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Loss of one batch, and W^½H: features by the roots of s/h², (n, d + 1)."""
        f, phi = self.model.forward_with_features(x)
        n, layer, network = len(phi), self.model.last_layer, self.model.model
        if f.shape != (n, 1) or len(y) != n or y.shape[1] not in (1, 2, 3):
            raise ValueError(
                f"Got an output of shape {tuple(f.shape)} and targets of shape "
                f"{tuple(y.shape)} for {n} rows, but expected the mean alone, (n, 1), "
                "and targets (n, 1), or (n, 2) with row weights in the second column, "
                "or (n, 3) with h² in the third."
            )
        if y.shape[1] == 3:
            h2 = y[:, 2]
        elif self.noise_variance is not None:
            h2 = self.noise_variance(x)
        else:
            h2 = network_noise(network, x, phi)
        # With autocast features are coarser than weights; targets may be finer.
        dtype = layer.weight.dtype
        phi, y = phi.to(dtype), y.to(dtype)
        h2 = column("noise_variance", h2.to(dtype), n, sign="positive").to(phi)
        residual = column("y", y[:, 0], n).to(phi) - f[:, 0].to(dtype)
        weight = torch.ones_like(h2)
        if y.shape[1] > 1:
            weight = column("sample_weight", y[:, 1], n, sign="non-negative").to(phi)
        loss = 0.5 * (weight * (residual.square() / h2 + h2.log())).sum()
        if layer.bias is not None:
            phi = pad(phi, (0, 1), value=1.0)
        return loss, phi * (weight / h2).sqrt()[:, None]
