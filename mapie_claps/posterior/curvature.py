"""Gaussian likelihood with input-dependent noise for laplace-torch's last layer.

laplace-torch knows one scalar ``sigma_noise``. A likelihood whose noise variance
depends on the input enters through the curvature backend, which is where laplace-torch
asks for the loss and for the Gauss-Newton matrix of a batch.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

# On import laplace-torch reaches ``torch.jit`` through torchmetrics and torchvision, of
# which torch 2.9 and later warn. The warning is not the user's.
with warnings.catch_warnings():
    for _category in (FutureWarning, DeprecationWarning):
        warnings.filterwarnings("ignore", message="`torch.jit", category=_category)
    import laplace
    from laplace.curvature import GGNInterface

__all__ = ["HeteroscedasticGGN", "laplace"]

STRIPS, STRIPS_PAY_FROM = 4, 128  # strips of a Gram matrix, and number of features
# Features of one block fit into the cache; the rows are worth a matrix product.
BLOCK_BYTES, BLOCK_ROWS = 2**20, 1024


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
    - The targets may carry row weights :math:`s_i` as a second column, shape (n, 2). A
      row of weight 2 counts as two rows. Where h² of every row is known before, it may
      stand in a third column, shape (n, 3): the network is then not asked.
    - Large batches are taken in blocks of some thousand rows, whose features fit into
      the cache where they are not too wide. ``noise_variance`` is asked block by block.
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
    >>> from mapie_claps import HeteroscedasticGGN, TensorLoader
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
    >>> la = Laplace(Net(), "regression", subset_of_weights="last_layer",
    ...              hessian_structure="full", backend=HeteroscedasticGGN,
    ...              last_layer_name="mean_head")
    >>> la.fit(TensorLoader(X, y))
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
        y : Tensor of shape (n, 1), (n, 2) or (n, 3)
            Targets, row weights and h², as far as given.
        **kwargs : dict
            Ignored; laplace-torch passes the number of rows.

        Returns
        -------
        tuple of Tensor
            Loss, and HᵀWH of shape (d + 1, d + 1).
        """
        return self._sums(x, y, n_axes=2)

    def diag(self, x: Tensor, y: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Loss and diagonal of the curvature of one batch.

        Parameters
        ----------
        x, y, **kwargs
            As in ``full``.

        Returns
        -------
        tuple of Tensor
            Loss, and the diagonal of HᵀWH of shape (d + 1,).
        """
        return self._sums(x, y, n_axes=1)

    def kron(self, x: Tensor, y: Tensor, N: int, **kwargs: Any) -> NoReturn:
        """Refuse Kronecker structure.

        Parameters
        ----------
        x, y, N, **kwargs
            Ignored.
        """
        raise ValueError(
            "Got hessian_structure='kron', but row weights 1/h²(x) do not factorise "
            "into Kronecker factors. Use hessian_structure='full', or 'diag' for very "
            "wide features."
        )

    def gradients(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient of each row's loss by the weights of the last layer.

        Parameters
        ----------
        x, y
            As in ``full``.

        Returns
        -------
        tuple of Tensor
            Gradients of shape (n, d + 1), and the loss. As everywhere in laplace-torch
            they are those of a squared error: ``factor``, ½, times both is the
            negative log-likelihood, without its constant, and its gradient.
        """
        with torch.no_grad():
            jacobians, _ = self.jacobians(x)
            _, _, residual, precision, loss = self._rows(x, y)
            gradient = -2 * precision * residual
            return gradient[:, None] * jacobians[:, 0], 2 * loss

    def jacobians(
        self, x: Tensor, enable_backprop: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Jacobian of the output by the weights of the last layer.

        laplace-torch's own, for whole networks, looks parameters up by name. Those of
        the last layer are named as the layer has them, which the network around it
        does not know: it would give zero without a word.

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
        found, f = self.jacobians(x, enable_backprop)
        chosen = outputs.reshape(len(found), -1, 1).expand(-1, -1, found.shape[2])
        return found.gather(1, chosen), f

    @torch.no_grad()
    def _sums(self, x: Tensor, y: Tensor, n_axes: int) -> tuple[Tensor, Tensor]:
        """Loss and curvature, a matrix or its diagonal; adds to ``cross_moment``.

        The bias is kept apart until the end: d + 1 columns would be misaligned in
        memory, and products would take twice as long.
        """
        layer = self.model.last_layer
        size, like = layer.in_features, layer.weight
        inner = like.new_zeros([size] * n_axes)  # φᵀWφ, or its diagonal
        edge, cross = like.new_zeros(2, size)  # φᵀW1 and φᵀWy
        corner, loss = like.new_zeros(2)  # 1ᵀW1
        n_rows = max(BLOCK_ROWS, BLOCK_BYTES // (size * like.element_size()))
        if not isinstance(x, Tensor):  # dictionaries cannot be cut
            n_rows = max(1, len(y))
        # torch has no product that knows its result to be symmetric. In strips up to
        # the diagonal wide features take little more than half the time.
        ends = [0, size]
        if size >= STRIPS_PAY_FROM:
            ends = [i * size // STRIPS for i in range(STRIPS + 1)]
        for start in range(0, len(y), n_rows):
            part = slice(start, start + n_rows)
            some = x[part] if isinstance(x, Tensor) else x
            phi, target, _, w, loss_of_rows = self._rows(some, y[part])
            loss += loss_of_rows
            corner += w.sum()
            root_w = w.sqrt()
            root = phi * root_w[:, None]
            edge += root_w @ root
            if self.cross_moment is not None:
                cross += (root_w * target) @ root
                if layer.bias is not None:
                    self.cross_moment[size] += w @ target
            if n_axes == 1:
                inner += root.square().sum(0)
            else:
                for i, end in enumerate(ends[1:]):
                    strip = slice(ends[i], end)
                    inner[strip, :end].addmm_(root[:, strip].T, root[:, :end])
            # Kept until the next block is there, they would take memory twice.
            del phi, root
        if self.cross_moment is not None:
            self.cross_moment[:size] += cross
        if n_axes == 2:
            inner = inner.tril() + inner.tril(-1).T
        if layer.bias is None:
            return loss, inner
        if n_axes == 1:
            return loss, torch.cat([inner, corner[None]])
        whole = inner.new_empty(size + 1, size + 1)
        whole[:size, :size] = inner
        whole[size, :size] = whole[:size, size] = edge
        whole[size, size] = corner
        return loss, whole

    def _rows(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        """φ (n, d), targets, residuals and s/h² (n,) of some rows, and their loss."""
        f, phi = self.model.forward_with_features(x)
        n = len(phi)
        if f.shape != (n, 1):
            raise ValueError(
                f"Got a network whose output has shape {tuple(f.shape)} for {n} rows, "
                "but expected the mean alone, shape (n, 1). Return the mean from "
                "forward and give h²(x) as noise_variance."
            )
        if len(y) != n or y.shape[1] not in (1, 2, 3):
            raise ValueError(
                f"Got targets of shape {tuple(y.shape)} for {n} rows, but expected (n, "
                "1), or (n, 2) with row weights in the second column, or (n, 3) with "
                "h² in the third."
            )
        h2 = y[:, 2] if y.shape[1] == 3 else self._noise_variance(x, phi)
        if h2.numel() != n:
            raise ValueError(
                f"Got noise_variance of shape {tuple(h2.shape)} for {n} rows, but "
                "expected one number per row, shape (n,) or (n, 1)."
            )
        # With autocast features are coarser than weights; targets may be finer.
        dtype = self.model.last_layer.weight.dtype
        phi, h2, y = phi.to(dtype), h2.reshape(-1).to(dtype), y.to(dtype)
        has_weights = y.shape[1] > 1
        sound = bool(y[:, :2].isfinite().all())
        if not sound or (has_weights and float(y[:, 1].min()) < 0):
            raise ValueError(
                "Got targets or row weights that are NaN, infinite, or (weights) "
                "negative. Remove these rows; a weight of zero leaves a row out."
            )
        smallest, largest = float(h2.min()), float(h2.max())
        if not 0 < smallest <= largest < math.inf:  # NaN fails, too
            raise ValueError(
                f"Got noise_variance between {smallest!r} and {largest!r}, but "
                "expected positive finite values. Add a floor, for example "
                "softplus(.) + 1e-6."
            )
        target, log_h2 = y[:, 0], h2.log()
        precision = h2.reciprocal()
        if has_weights:
            precision, log_h2 = y[:, 1] / h2, y[:, 1] * log_h2
        residual = target - f[:, 0].to(dtype)
        loss = 0.5 * (residual.square() @ precision + log_h2.sum())
        return phi, target, residual, precision, loss

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
