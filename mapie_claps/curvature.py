"""→ Gram: heteroscedastic Gaussian likelihood for laplace-torch's last layer.

laplace-torch knows one scalar ``sigma_noise``. A likelihood whose noise variance
depends on the input enters through the curvature backend, which is where
laplace-torch asks for the loss and for the Gauss-Newton matrix of a batch.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NoReturn

import torch
from laplace.curvature import GGNInterface
from torch import Tensor, nn

__all__ = ["HeteroscedasticGGN"]

STRIPS = 4  # of a Gram matrix
STRIPS_PAY_FROM = 128  # features


class HeteroscedasticGGN(GGNInterface):
    r"""Last-layer curvature of a Gaussian likelihood with input-dependent noise.

    :math:`H^\top W H = \sum_i s_i \, \varphi(x_i)\varphi(x_i)^\top / h^2(x_i)`

    For :math:`y_i \sim \mathcal N(\varphi(x_i)^\top w, h^2(x_i))` the negative
    log-likelihood is quadratic in :math:`w`, so this matrix is its exact Hessian.
    Pass the class as ``backend`` to ``laplace.Laplace`` with
    ``subset_of_weights="last_layer"``, ``hessian_structure="full"`` or ``"diag"``
    and ``sigma_noise=1`` (the default). This is heteroscedastic Laplace for
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
    cross_moment : Tensor of shape (d + 1,), optional
        Vector to which each call adds :math:`H^\top W y`. With it the posterior mean
        :math:`\Sigma H^\top W y` needs no second pass over the data.
    **kwargs : dict
        Passed on to ``laplace.curvature.GGNInterface``.

    Notes
    -----
    - Features are :math:`[\varphi(x), 1]` when the last layer has a bias, bias last,
      as everywhere in laplace-torch.
    - The targets may carry row weights :math:`s_i` as a second column, shape (n, 2).
      A row of weight 2 counts as two rows.
    - The loss is :math:`\tfrac12\sum_i s_i[(y_i-\mu_i)^2/h_i^2+\log h_i^2]`. Its last
      term makes ``log_marginal_likelihood`` of laplace-torch right for h²(x): equal
      to the closed form where the weights of the last layer are the posterior mean
      for the prior precision in use. ``optimize_prior_precision(method="marglik")``
      works; ``method="gridsearch"`` is unsuitable, since laplace-torch scores it by
      the squared error, which the prior precision does not change.
    - ``la(X)`` returns the mean and the epistemic variance φᵀΣφ only: add h²(x) for
      the predictive variance.
    - Kronecker structure is refused: one weight per row does not factorise.

    Examples
    --------
    >>> import torch
    >>> from laplace import Laplace
    >>> from mapie_claps import HeteroscedasticGGN
    >>> class Net(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.mean_head = torch.nn.Linear(2, 1)
    ...     def forward(self, x):
    ...         return self.mean_head(x)
    ...     def noise_variance(self, x):
    ...         return 0.1 + x[:, 0] ** 2
    >>> X = torch.linspace(-1, 1, 20).reshape(10, 2)
    >>> y = X.sum(1, keepdim=True)
    >>> loader = torch.utils.data.DataLoader(
    ...     torch.utils.data.TensorDataset(X, y), batch_size=4)
    >>> la = Laplace(Net(), "regression", subset_of_weights="last_layer",
    ...              hessian_structure="full", backend=HeteroscedasticGGN,
    ...              last_layer_name="mean_head")
    >>> la.fit(loader)
    >>> la.posterior_precision.shape
    torch.Size([3, 3])
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: str,
        last_layer: bool = False,
        noise_variance: Callable[[Tensor], Tensor] | None = None,
        cross_moment: Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        if likelihood != "regression" or not last_layer:
            raise ValueError(
                f"Got likelihood={str(likelihood)!r}, last_layer={last_layer!r}, but "
                "HeteroscedasticGGN is the curvature of a regression's last layer. Use "
                'Laplace(model, "regression", subset_of_weights="last_layer", ...).'
            )
        super().__init__(model, likelihood, last_layer=last_layer, **kwargs)
        self.noise_variance = noise_variance
        self.cross_moment = cross_moment

    def full(self, x: Tensor, y: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Loss and dense curvature of one batch.

        Parameters
        ----------
        x : Tensor of shape (n, ...)
            Inputs of the network.
        y : Tensor of shape (n, 1) or (n, 2)
            Targets, and row weights if there is a second column.
        **kwargs : dict
            Ignored; laplace-torch passes the number of rows.

        Returns
        -------
        tuple of Tensor
            Loss, and HᵀWH of shape (d + 1, d + 1).
        """
        loss, root, column = self._weighted_batch(x, y)
        return loss, _gram(root, column)

    def diag(self, x: Tensor, y: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Loss and diagonal of the curvature of one batch.

        Parameters
        ----------
        x : Tensor of shape (n, ...)
            Inputs of the network.
        y : Tensor of shape (n, 1) or (n, 2)
            Targets, and row weights if there is a second column.
        **kwargs : dict
            Ignored; laplace-torch passes the number of rows.

        Returns
        -------
        tuple of Tensor
            Loss, and the diagonal of HᵀWH of shape (d + 1,).
        """
        loss, root, column = self._weighted_batch(x, y)
        return loss, torch.cat([part.square().sum(0) for part in (root, column.T)])

    def kron(self, x: Tensor, y: Tensor, N: int, **kwargs: Any) -> NoReturn:
        """Refuse Kronecker structure.

        Parameters
        ----------
        x, y : Tensor
            Ignored.
        N : int
            Ignored.
        **kwargs : dict
            Ignored.
        """
        raise ValueError(
            "Got hessian_structure='kron', but row weights 1/h²(x) do not factorise "
            "into Kronecker factors. Use hessian_structure='full', or 'diag' for very "
            "wide features."
        )

    @torch.no_grad()
    def _weighted_batch(
        self, x: Tensor, y: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:  # (), (n, d), (1, n)
        """Loss, φ√(s/h²), and √(s/h²): the column of the bias, if there is one.

        The two are kept apart: d + 1 columns would lie askew in memory, and the
        products would take twice as long. The column lies: with the rows first, its
        product with φ would take several times as long.
        """
        f, phi = self.model.forward_with_features(x)
        if f.shape != (len(phi), 1):
            raise ValueError(
                f"Got a network whose output has shape {tuple(f.shape)} for "
                f"{len(phi)} rows, but expected the mean alone, shape (n, 1). Return "
                "the mean from forward and give h²(x) as noise_variance."
            )
        _check_targets(y, len(phi))
        h2 = self._noise_variance(x, phi)
        if h2.numel() != len(phi):
            raise ValueError(
                f"Got noise_variance of shape {tuple(h2.shape)} for {len(phi)} rows, "
                "but expected one number per row, shape (n,) or (n, 1)."
            )
        h2 = h2.reshape(-1)
        _check_noise_variance(h2)
        target, w, log_h2 = y[:, 0], h2.reciprocal(), h2.log()
        if y.shape[1] == 2:
            s = y[:, 1]
            w, log_h2 = w * s, log_h2 * s
        residual = target - f[:, 0]
        loss = 0.5 * (residual.square_() @ w + log_h2.sum())
        root_w = w.sqrt_()
        root, column = phi * root_w[:, None], root_w[None]
        if self.model.last_layer.bias is None:
            column = column[:0]
        if self.cross_moment is not None:
            weighted = root_w * target
            self.cross_moment += torch.cat([weighted @ root, column @ weighted])
        return loss, root, column

    def _noise_variance(self, x: Tensor, phi: Tensor) -> Tensor:
        """h²(x) from the callable given, or from the network."""
        if self.noise_variance is not None:
            return self.noise_variance(x)
        network = self.model.model
        if hasattr(network, "noise_variance_from_features"):
            return network.noise_variance_from_features(phi)  # type: ignore[no-any-return]
        if hasattr(network, "noise_variance"):
            return network.noise_variance(x)  # type: ignore[no-any-return]
        raise ValueError(
            f"Got a network of class {type(network).__name__} without noise_variance. "
            "Pass backend_kwargs={'noise_variance': h2} with h2(x) -> (n,), or give "
            "the network a method noise_variance(x)."
        )


def _gram(root: Tensor, column: Tensor) -> Tensor:  # (n, d), (1, n) → (d + 1, d + 1)
    """[root, columnᵀ]ᵀ [root, columnᵀ], in strips up to the diagonal.

    torch has no product that knows its result to be symmetric. What lies above the
    strips is copied: down to little more than half the time for wide features.
    """
    size = root.shape[1]
    n_strips = STRIPS if size >= STRIPS_PAY_FROM else 1
    gram = root.new_empty(size + len(column), size + len(column))
    for start, end in pairwise(i * size // n_strips for i in range(n_strips + 1)):
        torch.mm(root[:, start:end].T, root[:, :end], out=gram[start:end, :end])
        gram[:start, start:end] = gram[start:end, :start].T
    edge = column @ root
    gram[size:, :size], gram[:size, size:] = edge, edge.T
    gram[size:, size:] = column @ column.T
    return gram


def _check_noise_variance(h2: Tensor) -> None:
    """Positive and finite."""
    if len(h2) == 0:
        return
    low, high = (bound.item() for bound in h2.aminmax())
    if not 0 < low <= high < math.inf:  # NaN fails, too
        raise ValueError(
            f"Got noise_variance between {low!r} and {high!r}, but expected positive "
            "finite values. Add a floor, for example softplus(.) + 1e-6."
        )


def _check_targets(y: Tensor, n: int) -> None:
    """Targets (n, 1), or (n, 2) with weights that are not negative; all finite."""
    if y.shape[0] != n or y.shape[1] not in (1, 2):
        raise ValueError(
            f"Got targets of shape {tuple(y.shape)} for {n} rows, but expected (n, 1), "
            "or (n, 2) with row weights in the second column."
        )
    if n == 0:
        return
    low, high = (bound.tolist() for bound in y.aminmax(dim=0))
    if not all(map(math.isfinite, low + high)) or min(low[1:], default=0) < 0:
        raise ValueError(
            "Got targets or row weights that are NaN, infinite, or (weights) negative. "
            "Remove these rows; a weight of zero leaves a row out."
        )
