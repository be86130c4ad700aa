"""→ Gram: heteroscedastic Gaussian likelihood for laplace-torch's last layer.

laplace-torch knows one scalar ``sigma_noise``. A likelihood whose noise variance
depends on the input enters through the curvature backend, which is where
laplace-torch asks for the loss and for the Gauss-Newton matrix of a batch.
"""

import math
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from .laplace_torch import LastLayerInterface

STRIPS = 4  # of a Gram matrix
STRIPS_PAY_FROM = 128  # features
BLOCK_BYTES = 2**20  # of φ, small enough for the cache
BLOCK_ROWS = 1024  # at least, enough to be worth a matrix product


class HeteroscedasticGGN(LastLayerInterface):
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
        y : Tensor of shape (n, 1), (n, 2) or (n, 3)
            Targets, row weights and h², as far as given.
        **kwargs : dict
            Ignored; laplace-torch passes the number of rows.

        Returns
        -------
        tuple of Tensor
            Loss, and HᵀWH of shape (d + 1, d + 1).
        """
        with torch.no_grad():
            return self._sums(x, y, n_axes=2)

    def diag(self, x: Tensor, y: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Loss and diagonal of the curvature of one batch.

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
            Loss, and the diagonal of HᵀWH of shape (d + 1,).
        """
        with torch.no_grad():
            return self._sums(x, y, n_axes=1)

    def gradients(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient of each row's loss by the weights of the last layer.

        Parameters
        ----------
        x : Tensor of shape (n, ...)
            Inputs of the network.
        y : Tensor of shape (n, 1), (n, 2) or (n, 3)
            Targets, row weights and h², as far as given.

        Returns
        -------
        tuple of Tensor
            Gradients of shape (n, d + 1), and the loss. As everywhere in laplace-torch
            they are those of a squared error: ``factor``, ½, times both is the
            negative log-likelihood, without its constant, and its gradient.
        """
        with torch.no_grad():
            features, _ = self.last_layer_jacobians(x)
            size = self.model.last_layer.in_features
            rows = self._block(x, y, _Totals(*features.new_zeros(3, size)))
            grad = 2 * rows.root_w.square() * (rows.f - rows.target)
            return grad[:, None] * features[:, 0], 2 * _loss(rows, y)

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

    def _sums(self, x: Tensor, y: Tensor, n_axes: int) -> tuple[Tensor, Tensor]:
        """Loss and curvature, a matrix or its diagonal; adds to ``cross_moment``.

        Features are weighted and multiplied block by block, while they are near the
        processor; what is one number per row is summed once.
        """
        layer = self.model.last_layer
        like, size = layer.weight, layer.in_features
        totals = _Totals(
            like.new_zeros([size] * n_axes), like.new_zeros(size), like.new_zeros(size)
        )
        parts = _parts(x, y, size * like.element_size())
        blocks = [self._block(*part, totals) for part in parts]
        rows = blocks[0]
        if len(blocks) > 1:
            rows = _Rows(*map(torch.cat, zip(*blocks, strict=True)))
        loss, w = _loss(rows, y), rows.root_w.square()
        if self.cross_moment is not None:
            self.cross_moment[:size] += totals.cross
            if layer.bias is not None:
                self.cross_moment[size] += w @ rows.target
        _mirror(totals.inner)
        if layer.bias is None:
            return loss, totals.inner
        return loss, _bordered(totals.inner, totals.edge, w.sum())

    def _block(self, x: Tensor, y: Tensor, totals: "_Totals") -> "_Rows":
        """Forward pass over some rows, whose products are added to the totals.

        Features are gone on return: kept until the next block is there, they would make
        the allocator give memory back and fetch it again.
        """
        f, phi = self.model.forward_with_features(x)
        if f.shape != (len(phi), 1):
            raise ValueError(
                f"Got a network whose output has shape {tuple(f.shape)} for "
                f"{len(phi)} rows, but expected the mean alone, shape (n, 1). Return "
                "the mean from forward and give h²(x) as noise_variance."
            )
        _check_shape_of_targets(y, len(phi))
        h2 = y[:, 2] if y.shape[1] == 3 else self._noise_variance(x, phi)
        if h2.numel() != len(phi):
            raise ValueError(
                f"Got noise_variance of shape {tuple(h2.shape)} for {len(phi)} rows, "
                "but expected one number per row, shape (n,) or (n, 1)."
            )
        # With autocast features are coarser than weights; targets may be finer.
        dtype = totals.inner.dtype
        f, phi, h2, y = (t.to(dtype) for t in (f[:, 0], phi, h2.reshape(-1), y))
        target = y[:, 0]
        root_w = h2.rsqrt() if y.shape[1] == 1 else (y[:, 1] / h2).sqrt_()
        root = phi * root_w[:, None]
        _add_product(totals.inner, root)
        totals.edge.add_(root_w @ root)
        if self.cross_moment is not None:
            totals.cross.add_((root_w * target) @ root)
        return _Rows(f, h2, target, root_w)

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


class _Totals(NamedTuple):
    """Sums over rows, with W = diag(s/h²)."""

    inner: Tensor  # φᵀWφ up to the diagonal, (d, d), or its diagonal, (d,)
    edge: Tensor  # φᵀW1, (d,)
    cross: Tensor  # φᵀWy, (d,)


class _Rows(NamedTuple):
    """One number per row, (n,) each."""

    f: Tensor
    h2: Tensor
    target: Tensor
    root_w: Tensor  # √(s/h²)


def _loss(rows: _Rows, y: Tensor) -> Tensor:
    """½Σs[(y − μ)²/h² + log h²] of rows that are sound."""
    _check_targets(y)
    _check_noise_variance(rows.h2)
    log_h2 = rows.h2.log()
    if y.shape[1] > 1:
        log_h2 *= y[:, 1]
    squares = (rows.target - rows.f).square_() @ rows.root_w.square()
    return squares.add_(log_h2.sum()).mul_(0.5)


def _parts(x: Tensor, y: Tensor, row_bytes: int) -> Iterable[tuple[Tensor, Tensor]]:
    """Blocks of rows; all at once where inputs cannot be cut (dictionaries)."""
    n_rows = max(BLOCK_ROWS, BLOCK_BYTES // row_bytes)
    if len(y) <= n_rows or not isinstance(x, Tensor):
        return [(x, y)]
    return zip(x.split(n_rows), y.split(n_rows), strict=True)


def _add_product(total: Tensor, root: Tensor) -> None:
    """Add rootᵀ root up to the diagonal, in strips, or the diagonal alone.

    torch has no product that knows its result to be symmetric. With strips wide
    features take little more than half the time.
    """
    if total.ndim == 1:
        total += root.square().sum(0)
        return
    for start, end in _strips(len(total)):
        total[start:end, :end].addmm_(root[:, start:end].T, root[:, :end])


def _mirror(total: Tensor) -> None:
    """Fill in what ``_add_product`` leaves out of a matrix."""
    if total.ndim == 1:
        return
    for start, end in _strips(len(total)):
        total[:start, start:end] = total[start:end, :start].T


def _strips(size: int) -> Iterable[tuple[int, int]]:
    n_strips = STRIPS if size >= STRIPS_PAY_FROM else 1
    return pairwise(i * size // n_strips for i in range(n_strips + 1))


def _bordered(inner: Tensor, edge: Tensor, corner: Tensor) -> Tensor:
    """Append the row and column of the bias, or its entry on the diagonal.

    It is kept apart until here: d + 1 columns would be misaligned in memory, and
    products would take twice as long.
    """
    if inner.ndim == 1:
        return torch.cat([inner, corner[None]])
    size = len(inner)
    whole = inner.new_empty(size + 1, size + 1)
    whole[:size, :size] = inner
    whole[size, :size] = whole[:size, size] = edge
    whole[size, size] = corner
    return whole


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


def _check_shape_of_targets(y: Tensor, n: int) -> None:
    """One to three columns."""
    if y.shape[0] != n or y.shape[1] not in (1, 2, 3):
        raise ValueError(
            f"Got targets of shape {tuple(y.shape)} for {n} rows, but expected (n, 1), "
            "or (n, 2) with row weights in the second column, or (n, 3) with h² in the "
            "third."
        )


def _check_targets(y: Tensor) -> None:
    """Finite targets, and weights, if given, that are not negative."""
    if len(y) == 0:
        return
    low, high = (bound.tolist() for bound in y[:, :2].aminmax(dim=0))
    if not all(map(math.isfinite, low + high)) or min(low[1:], default=0) < 0:
        raise ValueError(
            "Got targets or row weights that are NaN, infinite, or (weights) negative. "
            "Remove these rows; a weight of zero leaves a row out."
        )
