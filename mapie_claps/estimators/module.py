"""``ClapsModule``: CLAPS for a network that is already trained."""

import copy
import math
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn
from torch.nn.functional import pad

from .._validation import (
    check_choice,
    check_integer,
    check_number,
    check_prior_precision,
    check_real,
    new_tensors_on,
    raise_for,
    validate_data,
)
from ..exceptions import NumericalWarning
from ..network.batches import (
    Batch,
    KeptBatches,
    batches_of,
    draw_seed,
    row_hashes,
)
from ..network.ensemble import Features
from ..network.training import n_held_out
from ..posterior.forward import SCALES, ForwardPass, Predicted
from ..posterior.last_layer import (
    FeatureRows,
    LastLayerSums,
    Spread,
    choose_prior_precision,
    fit_posterior,
    sum_rows,
)
from .base import MAX_SEEN_ROWS, SCALE_HINT, LastLayerEstimator, choose_device
from .recipe import LAST_LAYERS

Array = NDArray[np.float64]
NOISE_OUTPUTS = ("variance", "log_variance", "std")
# Methods that HeteroscedasticGGN asks for, too.
NOISE_METHODS = ("noise_variance_from_features", "noise_variance")
VARIANCE_FLOOR = 1e-12  # of σ², in units of the variance of y
# Added to squared residuals, in the same units: a network that passes through its
# training rows would otherwise have h² = 0.
RESIDUAL_FLOOR = 1e-6
MAX_PASSES = 60  # of Fisher scoring
# Mean of r²/h² beyond which residuals and noise can hardly be of the same units.
SUSPICIOUS_RATIO = 100.0


class ClapsModule(LastLayerEstimator):
    r"""Last-layer Laplace posterior on a trained ``torch.nn.Module``.

    :math:`v(x) = h^2(x) + \varphi(x)^\top \Sigma \varphi(x)`, with
    :math:`\Sigma = (\lambda I + H^\top W H)^{-1}`, :math:`W = \mathrm{diag}(1/h^2)`.

    The network's mean must be a linear layer on features, μ(x) = φ(x)ᵀw. ``fit``
    never trains the network, and works on a copy of it. Calibrate afterwards on rows
    that neither the network nor ``fit`` has seen: with MAPIE, or with
    :class:`~mapie_claps.CalibratedRegressor` from batches. X may be an array, data
    frame or tensor of any shape (rows first), with y beside it, or a ``DataLoader`` or
    other iterable of ``(X, y)`` batches.

    Parameters
    ----------
    module : torch.nn.Module
        Trained network. ``forward(x)`` returns the mean, shape (n,) or (n, 1), or a
        pair (mean, noise).
    last_layer_name : str or None, default=None
        Name of the ``nn.Linear`` whose output is the mean. With None it is found by
        watching a forward pass; an error lists the candidates if it is not unique.
    noise_variance : None, str or callable, default=None
        Where h²(x) comes from. None: from the second output of ``forward`` if there
        is one, or else from a method ``noise_variance_from_features(phi)`` or
        ``noise_variance(x)`` of the module; without these a head is fitted. "output":
        the second output (or output column) of ``forward``. "fit": always fit a head.
        Another string: the submodule of that name, on what it sees in ``forward``, or
        on the features. A callable: x → h²(x).
    noise_output : {"variance", "log_variance", "std"}, default="variance"
        What the module's noise is: h², log h² or h.
    prior_precision : float, "grid" or "marglik", default="marglik"
        λ, for standardised targets. "marglik" maximises the marginal likelihood of
        the last layer. "grid" minimises the predictive negative log-likelihood on a
        part of the rows, which should not be rows that the network was trained on.
    last_layer : {"trained", "ridge"}, default="trained"
        ŵ: the weights as trained (predictions stay those of the module), or the
        posterior mean.
    hessian_structure : {"full", "diag"}, default="full"
        Structure of HᵀWH; "diag" for features of many thousands, with
        ``last_layer="trained"``.
    scale : {"claps", "aleatoric", "posterior", "constant"}, default="claps"
        What v is: h² + φᵀΣφ; h²; σ² + φᵀΣφ with W = I/σ²; or σ², the mean squared
        residual. May be changed on a fitted estimator with ``set_params``, but for
        "posterior", which has to be chosen before ``fit``.
    validation_fraction : float, default=0.12
        Share of the rows (at most 4,000 rows, drawn at random) on which "grid" chooses
        λ.
    variance_penalty : float, default=1.0
        Penalty of a fitted variance head log h² = aᵀφ + b: a priori log h² varies with
        variance 1 / variance_penalty over the rows.
    precision : {"float64", "module"}, default="float64"
        Arithmetic of the forward pass: the copy of the module in double precision, or
        in the dtype that it has, which is faster and makes results depend on the
        batches in the last digits of that dtype. All else is done in float64.
    batch_size : int, default=1024
        Rows in one forward pass; larger batches are cut.
    device : str, default="cpu"
        Where the forward pass runs. The posterior is on the CPU.
    random_state : int, RandomState or None, default=0
        Seed of the choice of rows for "grid".

    Attributes
    ----------
    forward_ : ForwardPass
        x → μ, h², φᵀΣφ: the copy of the module, and the posterior.
    laplace_ : laplace.FullLLLaplace or laplace.DiagLLLaplace
        laplace-torch's fitted object on the network: ``laplace_(x)`` gives the mean
        and φᵀΣφ.
    sums_ : LastLayerSums
        Sums over the rows seen so far.
    prior_precision_, residual_variance_ : float
        λ in use; σ², the mean squared residual, in units of y².
    posterior_covariance_ : ndarray of shape (d + 1, d + 1)
        Σ in units of y, the bias last.
    n_features_in_ : int
        Number of columns, only where X is a table. MAPIE probes an estimator that has
        it with a row of floating-point zeros, so integers for an embedding go without.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from mapie.regression import SplitConformalRegressor
    >>> from mapie_claps import ClapsModule, ClapsScore
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 2))
    >>> y = X[:, 0] + rng.normal(0, 0.1 + 0.2 * (X[:, 1] > 0), 300)
    >>> net = torch.nn.Sequential(
    ...     torch.nn.Linear(2, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    >>> # ... train net here, then:
    >>> model = ClapsModule(net).fit(X[:150], y[:150])
    >>> mapie = SplitConformalRegressor(
    ...     model, confidence_level=0.9, conformity_score=ClapsScore(), prefit=True)
    >>> mapie = mapie.conformalize(X[150:250], y[150:250])
    >>> mapie.predict_interval(X[250:])[1].shape
    (50, 2, 1)
    """

    def __init__(
        self,
        module: nn.Module,
        last_layer_name: str | None = None,
        noise_variance: str | Callable[[Tensor], Tensor] | None = None,
        noise_output: str = "variance",
        prior_precision: float | str = "marglik",
        last_layer: str = "trained",
        hessian_structure: str = "full",
        scale: str = "claps",
        validation_fraction: float = 0.12,
        variance_penalty: float = 1.0,
        precision: str = "float64",
        batch_size: int = 1024,
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.module = module
        self.last_layer_name = last_layer_name
        self.noise_variance = noise_variance
        self.noise_output = noise_output
        self.prior_precision = prior_precision
        self.last_layer = last_layer
        self.hessian_structure = hessian_structure
        self.scale = scale
        self.validation_fraction = validation_fraction
        self.variance_penalty = variance_penalty
        self.precision = precision
        self.batch_size = batch_size
        self.device = device
        self.random_state = random_state

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Add rows to the posterior; network and variance head stay as they are.

        Parameters
        ----------
        X, y, sample_weight : array-like, tensor or batches
            As in ``fit``.

        Returns
        -------
        ClapsModule
            The estimator, fitted for the first time if it was not.
        """
        if not hasattr(self, "forward_"):
            return self.fit(X, y, sample_weight)
        self.__dict__ = self.update_posterior(X, y, sample_weight).__dict__
        return self

    @property
    def laplace_(self) -> Any:
        """laplace-torch's fitted object on the network, made anew on each access."""
        check_is_fitted(self, "forward_")
        return self.forward_.last_layers.laplace(0, self.network_)

    @property
    def network_(self) -> "ModuleAdapter":
        """The copy of the module, and the variance head if one was fitted."""
        check_is_fitted(self, "forward_")
        adapter: ModuleAdapter = self.forward_.network
        return adapter

    @property
    def last_layer_name_(self) -> str:
        """Name of the layer of the mean."""
        return self.network_.last_layer_name

    @property
    def posterior_covariance_(self) -> Array:
        """Σ in units of y, shape (d + 1, d + 1)."""
        return np.asarray(super().posterior_covariance_[0])

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        self._check_parameters()
        batches = partial(self._batches, X, y, sample_weight, need_y=True)
        rows = batches()
        first = next(rows, None)
        if first is None:
            raise ValueError("Got X without rows, but expected at least one.")
        self.row_ndim_ = first.x.ndim - 1
        start, x = [first], first.x
        if len(x) == 1:  # two rows show whether each stands for itself
            start += islice(rows, 1)
            if start[-1].x.shape[1:] == x.shape[1:]:
                x = torch.cat([x, start[-1].x.to(x.dtype)])
        adapter = ModuleAdapter.find(
            self.module,
            x,
            last_layer_name=self.last_layer_name,
            noise_variance=self.noise_variance,
            noise_output=self.noise_output,
            precision=self.precision,
            device=str(choose_device(self.device)),
        )
        if x.ndim == 2 and _cast(adapter.network, x).is_floating_point():
            self.n_features_in_ = x.shape[1]
        else:  # set by scikit-learn's check of a table
            self.__dict__.pop("n_features_in_", None)
        needs_head, grid = adapter.noise is None, self.prior_precision == "grid"
        several = needs_head or grid or self.last_layer == "ridge"
        if several and isinstance(X, Iterator):
            raise ValueError(
                "Got an iterator that can be used once, but fitting a variance head, "
                "last_layer='ridge' and prior_precision='grid' take several passes. "
                "Pass a DataLoader, a list or another iterable that starts again."
            )
        if needs_head:
            penalty = float(self.variance_penalty)
            adapter.noise_head = fit_noise_head(adapter, batches, penalty)
        left_out = None
        if grid:
            n = sum(len(batch.weight) for batch in batches())
            generator = torch.Generator().manual_seed(draw_seed(self.random_state))
            order = torch.randperm(n, generator=generator)
            left_out = order < n_held_out(n, float(self.validation_fraction))
        held_out: list[FeatureRows] = []
        hashes: list[NDArray[np.uint64]] = []
        sums = sum_rows(
            _feature_rows(adapter, chain(start, rows), left_out, held_out, hashes),
            self.hessian_structure,
            self.scale == "posterior",
            self._fit_id,
        )
        adapter.variance_floor = VARIANCE_FLOOR * sums.targets.unit**2
        found = fit_posterior(
            sums,
            FeatureRows.join(held_out) if held_out else None,
            _feature_rows(adapter, batches()),
            adapter.weights,
            prior_precision=self.prior_precision,
            last_layer=self.last_layer,
            variance_floor=adapter.variance_floor,
            standardised=False,
        )
        self._seen_rows = np.unique(np.concatenate(hashes))[:MAX_SEEN_ROWS]
        self.sums_ = found.sums
        self.forward_ = ForwardPass(
            adapter, found.last_layers, found.member_weight, found.residual_variance
        )
        self.fitted_ = True  # MAPIE looks for it where rows are no table

    def _check_parameters(self) -> None:
        """Raise for a value that no data could make valid."""
        check_prior_precision(self.prior_precision)
        for name, choices, hint in (
            ("scale", SCALES, SCALE_HINT),
            ("noise_output", NOISE_OUTPUTS, "Use 'variance' for a head that gives h²."),
            ("last_layer", LAST_LAYERS, "Use 'trained' to keep the predictions."),
            ("precision", ("float64", "module"), "Use 'float64' if unsure."),
            ("hessian_structure", ("full", "diag"), "Use 'full' up to d = 5,000."),
        ):
            check_choice(name, getattr(self, name), choices, hint)
        if self.hessian_structure == "diag" and self.last_layer == "ridge":
            raise_for(
                "last_layer",
                "ridge",
                "'trained' with hessian_structure='diag'",
                "A diagonal does not determine refitted weights.",
            )
        for name, high, hint in (
            ("validation_fraction", 0.5, "Use 0.12 if unsure."),
            ("variance_penalty", math.inf, "Use 1.0 if unsure."),
        ):
            value = getattr(self, name)
            check_number(name, value, low=0, low_open=True, high=high, hint=hint)

    def _batches(self, X: Any, *args: Any, **kwargs: Any) -> Iterator[Batch]:
        """Batches whose rows have as many dimensions as those that were fitted."""
        hint = "Use 1024 if unsure."
        size = check_integer("batch_size", self.batch_size, low=1, hint=hint)
        for batch in batches_of(X, *args, size=size, check=self._checked, **kwargs):
            expected = getattr(self, "row_ndim_", batch.x.ndim - 1) + 1
            if batch.x.ndim != expected:
                raise ValueError(
                    f"Got X of shape {tuple(batch.x.shape)}, but expected rows first "
                    f"and {expected} dimensions, as in fit."
                )
            yield batch

    def _checked(self, X: Any) -> Any:
        """X, its columns and their names checked as scikit-learn does.

        The first rows that ``fit`` sees set them.
        """
        first = not hasattr(self, "row_ndim_")
        if isinstance(X, Tensor) or not (first or self.row_ndim_ == 1):
            return X
        # np.ndim would ask containers that have nothing but __array__ for a dispatch.
        if (X.ndim if hasattr(X, "ndim") else np.asarray(X).ndim) > 2:
            return X
        # The row of zeros by which MAPIE asks if a model is fitted has no names.
        row = (1, getattr(self, "n_features_in_", None))
        if not first and isinstance(X, np.ndarray) and X.shape == row and not X.any():
            return X
        check_real("X", X)
        return validate_data(
            self, X, reset=first, dtype="numeric", ensure_min_samples=0
        )

    def _predicted(self, X: Any, scale: str) -> Iterator[Predicted]:
        for batch in self._batches(X):
            yield self.forward_(batch.x, scale)

    def _inputs(self, X: Any) -> Iterator[Tensor]:
        for batch in self._batches(X):
            yield batch.x

    def _hashes(self, X: Any, y: Any) -> NDArray[np.uint64]:
        found = [np.empty(0, dtype=np.uint64)]
        for batch in self._batches(X, y, need_y=True):
            found.append(row_hashes(batch.x, batch.y))
        return np.concatenate(found)

    def _sum(self, X: Any, y: Any, sample_weight: Any) -> LastLayerSums:
        batches = self._batches(X, y, sample_weight, need_y=True)
        layers, like = self.forward_.last_layers, self.sums_
        return sum_rows(
            _feature_rows(self.network_, batches),
            "full" if like.gram.ndim == 3 else "diag",
            like.homoscedastic,
            like.fit_id,
            lambda rows: layers.residual(rows)[0],
        )

    def _set_sums(self, sums: LastLayerSums) -> None:
        """Posterior from other sums; a λ of "grid" stays."""
        forward, network, value = self.forward_, self.network_, self.prior_precision
        if value == "grid":
            value = self.prior_precision_
        value = choose_prior_precision(
            value,
            sums,
            network.weights,
            forward.last_layers.last_layer,
            standardised=False,
            residual_variance=sums.residual_variance(network.variance_floor),
        )
        self.forward_ = forward.with_sums(sums, value)
        self.sums_ = sums


def _feature_rows(
    network: "ModuleAdapter",
    batches: Iterable[Batch],
    left_out: Tensor | None = None,  # (n,), which rows are held out
    held_out: list[FeatureRows] | None = None,
    hashes: list[NDArray[np.uint64]] | None = None,
) -> Iterator[FeatureRows]:
    """Features of batches; collects those of held-out rows, and hashes of all rows."""
    start, squares, weight = 0, 0.0, 0.0
    for batch in batches:
        rows = FeatureRows.of(network, batch.x, batch.y, batch.weight)
        if left_out is not None:
            mask = left_out[start : start + len(batch.weight)]
            if held_out is not None and bool(mask.any()):
                held_out.append(
                    FeatureRows.of(network, *(part[mask] for part in batch))
                )
            rows = rows._replace(left_out=mask[None])
        if hashes is not None:
            hashes.append(row_hashes(batch.x, batch.y))
        start += len(batch.weight)
        squares += float((batch.weight * rows.residual[0].square() / rows.h2[0]).sum())
        weight += float(batch.weight.sum())
        yield rows
    if squares > SUSPICIOUS_RATIO * weight:
        warnings.warn(
            f"Squared residuals are {squares / weight:.3g} times the network's own "
            "noise variance on average, where about 1 is expected. Was the network "
            "trained on y in other units (standardised, for instance)? Fit with y in "
            "the units of its training.",
            NumericalWarning,
            stacklevel=2,
        )


# What layers have seen in the forward pass that a thread is in. Hooks are registered
# once and for good: one that comes and goes would change the table of hooks while
# another thread iterates over it.
_now = threading.local()


def _record(layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    """Forward hook: note input and output of the layer."""
    calls = getattr(_now, "calls", None)
    if calls is not None and args:
        calls.setdefault(layer, []).append((args[0], output))


class _Pass(NamedTuple):
    """A forward pass through somebody's network."""

    x: Tensor  # as the network got it
    mean: Tensor  # (n,)
    second: Any  # what stands beside it, if anything
    is_column: bool  # whether both are columns of one output
    tolerance: float  # relative, for roundings
    calls: dict[nn.Module, list[tuple[Tensor, Tensor]]]  # of the layers watched


@torch.no_grad()
def _run(network: nn.Module, x: Tensor) -> _Pass:
    """Forward pass, with inputs cast for the network and its output split."""
    x, n = _cast(network, x), len(x)
    before, _now.calls = getattr(_now, "calls", None), {}
    try:
        with new_tensors_on(x.device):
            output = network(x)
        calls = _now.calls
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, IndexError) as error:
        raise ValueError(
            f"Got a network whose forward pass fails on X of shape {tuple(x.shape)} "
            f"and type {x.dtype} ({error}). Pass X as the network was trained on, rows "
            "first."
        ) from error
    finally:
        _now.calls = before
    mean, second, is_column = output, None, False
    if isinstance(output, tuple | list) and len(output) == 2:
        mean, second = output
    elif isinstance(output, Tensor) and output.shape == (n, 2):
        (mean, second), is_column = output.unbind(1), True
    shape = tuple(getattr(mean, "shape", (type(mean).__name__,)))
    if not isinstance(mean, Tensor) or shape not in ((n,), (n, 1)):
        raise ValueError(
            f"Got a forward pass that returns {shape} for {n} rows, but "
            "expected the mean of shape (n,) or (n, 1), or a pair (mean, noise). Wrap "
            "the network in a module that returns that."
        )
    if not bool(mean.isfinite().all()):
        raise ValueError(NOT_FINITE.format("predictions"))
    # With autocast layers are coarser than the network around them.
    eps = torch.finfo(mean.dtype).eps
    for inner in chain(*calls.values()):
        for tensor in inner:
            if isinstance(tensor, Tensor) and tensor.is_floating_point():
                eps = max(eps, torch.finfo(tensor.dtype).eps)
    return _Pass(x, mean.reshape(n), second, is_column, eps**0.5, calls)


class ModuleAdapter(nn.Module):
    """x → φ, μ, h² of a network that somebody else wrote, in float64 on the CPU.

    All work is done on a copy: the network given keeps its mode, device, dtype,
    gradients and hooks. ``noise`` is None (a head is fitted), a callable, "output" for
    the second output of ``forward``, or the name of a method or submodule.
    """

    weights: Tensor  # (1, d + 1) of the mean, bias last; 0 for a layer without bias

    def __init__(
        self,
        network: nn.Module,  # a private copy
        last_layer_name: str,
        column: int,
        noise: str | Callable[[Tensor], Tensor] | None,
        noise_output: str,
        precision: str,
        device: str,
    ) -> None:
        super().__init__()
        self.network, self.last_layer_name = network, last_layer_name
        self.column, self.noise_output = column, noise_output
        self.precision, self.device = precision, device
        if isinstance(noise, nn.Module):
            noise = private_copy(noise, precision, device)
        self.noise = noise
        self.noise_head: NoiseHead | None = None
        self.variance_floor = 0.0  # of σ²
        layer = network.get_submodule(last_layer_name)
        layer.register_forward_hook(_record)
        if isinstance(noise, str) and noise in dict(network.named_modules()):
            network.get_submodule(noise).register_forward_hook(_record)
        weight: Tensor = layer.weight[column]  # type: ignore[index, assignment]
        bias = weight.new_zeros(1)
        if layer.bias is not None:
            bias = layer.bias[column, None]  # type: ignore[index, assignment]
        both = torch.cat([weight, bias]).detach().cpu().double()
        self.register_buffer("weights", both[None])

    @classmethod
    def find(
        cls,
        module: Any,
        x: Tensor,  # some rows, to see what the network does
        *,
        last_layer_name: str | None,
        noise_variance: Any,
        noise_output: str,
        precision: str,
        device: str,
    ) -> "ModuleAdapter":
        """Find the layer of the mean, and the noise, by watching a forward pass."""
        network = private_copy(module, precision, device)
        handles, layers = [], {}
        for name, layer in network.named_modules():
            if isinstance(layer, nn.Linear):
                layers[name] = layer
                handles.append(layer.register_forward_hook(_record))
        seen = _run(network, x)
        for handle in handles:
            handle.remove()
        matches = {}
        for name, layer in layers.items():
            calls = seen.calls.get(layer, [])
            if len(calls) == 1 and calls[0][1].ndim == 2 and len(calls[0][1]) == len(x):
                gap = calls[0][1].to(seen.mean) - seen.mean[:, None]
                columns = (gap.abs() <= 1e-6 * seen.mean.abs()[:, None]).all(0)
                if bool(columns.any()):
                    matches[name] = int(columns.nonzero()[0])
        chosen = last_layer_name
        if chosen is None and len(matches) == 1:
            chosen = next(iter(matches))
        if chosen is None or chosen not in matches:
            raise ValueError(
                f"Got last_layer_name={last_layer_name!r}, but the layers whose output "
                f"is the mean are {sorted(matches)}, of the nn.Linear {list(layers)}. "
                "Name one of them as last_layer_name. If there are none, move what "
                "follows the last layer (a scaling of y, an activation) out of the "
                "network: the mean has to be a linear layer on features."
            )
        noise = noise_variance
        names = dict(network.named_modules())
        if noise is None and seen.is_column:
            raise ValueError(
                "Got a network with two output columns. If the second is the noise, "
                "say noise_variance='output' (and noise_output); several targets are "
                "not supported."
            )
        if noise is None:
            noise = "output" if seen.second is not None else "fit"
            for method in NOISE_METHODS:
                if noise == "fit" and hasattr(network, method):
                    noise = method
        if noise == "output" and seen.second is None:
            raise ValueError(
                "Got noise_variance='output', but forward returns the mean alone. "
                "Return (mean, noise), or use noise_variance='fit'."
            )
        if not callable(noise):
            known = noise in NOISE_METHODS and hasattr(network, noise)
            if not (known or noise in ("output", "fit") or (noise and noise in names)):
                raise ValueError(
                    f"Got noise_variance={noise!r}, but expected None, 'output', "
                    f"'fit', a callable or the name of a submodule: {list(names)[1:]}."
                )
            noise = None if noise == "fit" else noise
        found = cls(
            network, chosen, matches[chosen], noise, noise_output, precision, device
        )
        if len(x) > 1:
            found._check_rows_alone(x, seen.tolerance)
        return found

    def forward(self, x: Tensor) -> Features:
        """φ, μ and h² of one batch; h² is NaN without a head."""
        seen = _run(self.network, x)
        n = len(seen.mean)
        layer = self.network.get_submodule(self.last_layer_name)
        calls = seen.calls.get(layer, [])
        if len(calls) != 1 or calls[0][0].ndim != 2 or len(calls[0][0]) != n:
            shapes = [tuple(phi.shape) for phi, _ in calls]
            raise ValueError(
                f"Got last_layer_name={self.last_layer_name!r}, which saw inputs of "
                f"shapes {shapes} in a pass over {n} rows, but expected one input of "
                "shape (n, d)."
            )
        raw = calls[0][0]
        phi, mu = raw.cpu().double(), seen.mean.cpu().double()
        # One number tells: neither NaN nor infinity leaves a sum again.
        if not bool(phi.sum().isfinite()):
            raise ValueError(NOT_FINITE.format("features"))
        # φᵀw + b has to be what forward returns, in every row: what follows the layer
        # may leave some rows as they are, as a ReLU does.
        w = self.weights[0]
        gap = (phi @ w[:-1] + w[-1] - mu).abs()
        size = phi.abs() @ w[:-1].abs() + w[-1].abs()
        n_wrong = int((gap > seen.tolerance * size).sum())
        if n_wrong:
            raise ValueError(
                f"Got a network whose mean is not the output of its layer "
                f"{self.last_layer_name!r} in {n_wrong} of {n} rows. Move what follows "
                "it (an activation, a limit) out of the network."
            )
        if self.noise_head is not None:
            h2 = self.noise_head.variance(phi)
        elif self.noise is None:
            h2 = torch.full_like(mu, torch.nan)
        else:
            with new_tensors_on(seen.x.device):
                h2 = self._noise(raw, seen)
        return Features(phi[None], mu[None], h2[None])

    @torch.no_grad()
    def _noise(self, phi: Tensor, seen: _Pass) -> Tensor:
        """h², shape (n,), from wherever the network keeps it."""
        n, noise = len(phi), self.noise
        raw: Any
        if noise == "output":
            raw = seen.second
        elif noise == "noise_variance_from_features":
            raw = self.network.noise_variance_from_features(phi)  # type: ignore[operator]
        elif noise == "noise_variance":
            raw = self.network.noise_variance(seen.x)  # type: ignore[operator]
        elif isinstance(noise, str):
            layer = self.network.get_submodule(noise)
            calls = seen.calls.get(layer)
            raw = calls[-1][1] if calls else layer(phi)
        elif isinstance(noise, nn.Module):
            raw = noise(_cast(noise, seen.x))
        else:
            raw = noise(seen.x)  # type: ignore[misc]
        shape = tuple(getattr(raw, "shape", (type(raw).__name__,)))
        if not isinstance(raw, Tensor) or shape not in ((n,), (n, 1)):
            raise ValueError(
                f"Got a noise of shape {shape} for {n} rows from "
                f"noise_variance={noise!r}, but expected one number per row."
            )
        h2 = raw.detach().cpu().double().reshape(-1)
        if self.noise_output == "log_variance":
            h2 = h2.exp()
        elif self.noise_output == "std":
            h2 = h2.square() * h2.sign()
        if not bool((h2 > 0).all()) or not bool(h2.isfinite().all()):
            raise ValueError(
                f"Got noise variances between {float(h2.min())!r} and "
                f"{float(h2.max())!r}, but expected positive finite values. If the "
                "head gives log h² or h, say noise_output='log_variance' or 'std'; "
                "otherwise add a floor, for example softplus(.) + 1e-6."
            )
        return h2

    def _check_rows_alone(self, x: Tensor, tolerance: float) -> None:
        """Raise if the output for a row depends on the other rows of its batch.

        Then coverage would depend on how rows are cut into batches. The last rows come
        alone, and in the opposite order: what a sequence remembers of the rows before,
        as a recurrent layer does that takes rows for steps, shows as well.
        """
        half = len(x) // 2
        among, alone = self(x), self(x[-half:].flip(0))
        for name, index in (("mean", 1), ("noise", 2), ("feature vector", 0)):
            values = among[index][0]
            own = values[-half:].flip(0)
            # Noise row by row: it spans orders of magnitude.
            size = own if name == "noise" else values.abs().max()
            gap = (alone[index][0] - own).abs() / (size + (size == 0))
            share = float(gap.nan_to_num().max())  # NaN: a noise that is not there yet
            if share > tolerance:
                raise ValueError(
                    f"Got a network whose {name} for a row depends on the other rows "
                    f"of its batch (by a share of up to {share:.3g}). Give every "
                    "BatchNorm track_running_stats=True, let attention and recurrent "
                    "layers act within a row, not over rows, and leave no dropout on."
                )


def private_copy(module: Any, precision: str, device: str) -> nn.Module:
    """Copy of a network to work on: evaluation mode, no gradients, on the device."""
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"Got module of type {type(module).__name__}, but expected a "
            "torch.nn.Module (from skorch: net.module_)."
        )
    module = getattr(module, "_orig_mod", module)  # what torch.compile wraps
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        module = module.module
    problem = ""
    for tensor in chain(module.parameters(), module.buffers()):
        if nn.parameter.is_lazy(tensor):
            problem = "lazy layers. Call it on a few rows, and train it, first"
        elif tensor.is_meta:
            problem = "weights on the device 'meta', which holds no numbers. Load them"
        elif tensor.is_complex():
            problem = "complex weights, but expected real ones"
    for layer in module.modules():
        if isinstance(layer, torch.jit.ScriptModule):
            problem = "layers compiled by torch.jit. Pass the network from before that"
        elif ".quantized" in type(layer).__module__:
            problem = "quantised layers. Pass the network from before quantisation"
    try:
        network: nn.Module = module if problem else copy.deepcopy(module)
    except Exception as error:
        problem = f"parts that copy.deepcopy refuses ({error}). Pass the bare network"
    if problem:
        raise TypeError(f"Got a {type(module).__name__} with {problem}.")
    network = network.to(torch.device(device)).eval().requires_grad_(False)
    return network.double() if precision == "float64" else network


NOT_FINITE = (
    "Got {} of the network with NaN or infinity. Look for NaN or extreme values in X, "
    "or in the network's weights."
)


def _cast(network: nn.Module, x: Tensor) -> Tensor:
    """X on the network's device and in its dtype; integers stay for embeddings."""
    dtype = None
    for module in network.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            dtype = dtype if x.is_floating_point() else x.dtype
    for like in network.parameters():
        if like.is_floating_point():
            return x.to(like.device, dtype or like.dtype)
    return x


@dataclass(frozen=True, eq=False)
class NoiseHead:
    """log h² = [φ, 1]ᵀa, held within the range that it takes on the training rows."""

    weights: Tensor  # (d + 1,)
    low: float
    high: float

    def variance(self, phi: Tensor) -> Tensor:  # (n, d) → (n,)
        """h²."""
        log_h2 = phi @ self.weights[:-1] + self.weights[-1]
        return log_h2.clamp(self.low, self.high).exp()


def fit_noise_head(
    network: ModuleAdapter, batches: Callable[[], Iterable[Batch]], penalty: float
) -> NoiseHead:
    """Maximum likelihood of r ~ N(0, h²) with a ridge penalty, by Fisher scoring.

    The loss ½Σ s[log h² + r²/h²] is convex in the weights, and its Fisher matrix
    ½Σ s φφᵀ does not change from pass to pass. Each pass is a sum over rows. The
    penalty is for standardised features: a priori log h² varies with variance
    1 / penalty over the rows.
    """
    spread = Spread()
    for batch in batches():
        spread += Spread.of(batch.y, batch.weight)
    floor = RESIDUAL_FLOOR * spread.unit**2

    def compute() -> Iterator[tuple[Tensor, Tensor, Tensor]]:  # [φ, 1], r² and s
        for batch in batches():
            out = network(batch.x)
            squares = (batch.y - out.mu[0]).square() + floor
            yield pad(out.phi[0], (0, 1), value=1.0), squares, batch.weight

    rows = KeptBatches(compute, lambda row: row[0].numel())
    d = network.weights.shape[1]
    gram, total = torch.zeros(d, d, dtype=torch.float64), 0.0
    for features, squares, weight in rows:
        gram += features.T @ (features * weight[:, None])
        total += float((weight * squares).sum())
    n = float(gram[-1, -1])
    # A with A [φ, 1] = [(φ − mean)/std, 1]; a constant feature keeps its unit.
    mean, mean_square = gram[-1, :-1] / n, gram.diagonal()[:-1] / n
    variance = mean_square - mean.square()
    constant = variance <= 1e-12 * mean_square
    std = variance.clamp(min=0).sqrt().masked_fill(constant, 1.0)
    standardise = torch.cat([1 / std, std.new_ones(1)]).diag()
    standardise[:-1, -1] = -mean / std
    ridge = torch.full_like(gram[0], penalty * (d - 1))
    ridge[-1] = 0.0
    fisher = 0.5 * standardise @ gram @ standardise.T + ridge.diag()
    factor = torch.linalg.cholesky(fisher)

    def evaluate(a: Tensor) -> tuple[float, Tensor, float, float]:
        """Loss, gradient, and the range of log h², of standardised features."""
        loss, gradient = 0.5 * float(a @ (ridge * a)), ridge * a
        low, high = math.inf, -math.inf
        for features, squares, weight in rows:
            log_h2 = features @ (standardise.T @ a)
            ratio = squares * (-log_h2).exp()
            loss += 0.5 * float((weight * (log_h2 + ratio)).sum())
            along = features.T @ (0.5 * weight * (1 - ratio))
            gradient = gradient + standardise @ along
            counted = log_h2[weight > 0]
            if len(counted):
                low = min(low, float(counted.min()))
                high = max(high, float(counted.max()))
        return loss, gradient, low, high

    a = torch.zeros_like(ridge)
    a[-1] = math.log(total / n)
    current, step_size = evaluate(a), 1.0
    for _ in range(MAX_PASSES):
        step = torch.cholesky_solve(current[1][:, None], factor).squeeze(1)
        gain = float(current[1] @ step)
        if gain <= 1e-13 * n:
            break
        candidate = evaluate(a - step_size * step)
        # The Fisher matrix may fall short of the Hessian where residuals are large.
        if candidate[0] <= current[0] - 1e-4 * step_size * gain:
            a, current, step_size = a - step_size * step, candidate, 1.0
        else:
            step_size /= 2
    return NoiseHead(standardise.T @ a, *current[2:])
