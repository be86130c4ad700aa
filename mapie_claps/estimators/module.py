"""``ClapsModule``: CLAPS for a network that is already trained."""

import copy
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import Any

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
    check_real,
    new_tensors_on,
    validate_data,
)
from ..network.batches import (
    NOISE_METHODS,
    Batch,
    batches_of,
    column,
    network_noise,
    row_hashes,
)
from ..network.ensemble import Features
from ..posterior.forward import SCALES, ForwardPass, Predicted
from ..posterior.last_layer import (
    FeatureRows,
    LastLayerSums,
    Spread,
    choose_prior_precision,
    fit_posterior,
    sum_rows,
)
from .base import Hashes, LastLayerEstimator, choose_device
from .recipe import LAST_LAYERS

Array = NDArray[np.float64]
# h² from what the network gives; a negative standard deviation stays negative.
NOISE_OUTPUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "variance": torch.positive,
    "log_variance": torch.exp,
    "std": lambda h: h * h.abs(),
}
VARIANCE_FLOOR = 1e-12  # of σ², in units of the variance of y
# Added to squared residuals, in the same units: a network that passes through its
# training rows would otherwise have h² = 0.
RESIDUAL_FLOOR = 1e-6
MAX_HEAD_STEPS = 60
MAX_KEPT_ELEMENTS = 2**24  # of features, 128 MB
# Mean of r² by mean of h² beyond which they can hardly be of the same units.
SUSPICIOUS_RATIO = 100.0
MIN_ROWS_FOR_A_LINE = 30
OTHER_UNITS = (
    "Was the network trained on y in other units (standardised, for instance), or not "
    "to the end? Train the network on y as it is, or undo the scaling in its last "
    "layer."
)


class ClapsModule(LastLayerEstimator):
    r"""Last-layer Laplace posterior on a trained ``torch.nn.Module``.

    :math:`v(x) = h^2(x) + \varphi(x)^\top \Sigma \varphi(x)`, with
    :math:`\Sigma = (\lambda I + H^\top W H)^{-1}`, :math:`W = \mathrm{diag}(1/h^2)`.

    The network's mean must be a linear layer on features, μ(x) = φ(x)ᵀw, in units of y.
    ``fit`` never trains the network, and works on a copy of it. Calibrate afterwards on
    rows that neither the network nor ``fit`` has seen: with MAPIE, or with
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
        watching a forward pass.
    noise_variance : None, {"output", "fit"}, callable or torch.nn.Module, default=None
        Where h²(x) comes from. None: from the second output of ``forward`` if there
        is one, or else from a method ``noise_variance_from_features(phi)`` or
        ``noise_variance(x)`` of the module; without these a head is fitted. "output":
        the second output (or output column) of ``forward``. "fit": always fit a head.
        A callable or another network: x → h²(x).
    noise_output : {"variance", "log_variance", "std"}, default="variance"
        What the module's noise is: h², log h² or h.
    prior_precision : float or "marglik", default="marglik"
        λ, for standardised targets. "marglik" maximises the marginal likelihood of
        the last layer.
    last_layer : {"trained", "ridge"}, default="trained"
        ŵ: the weights as trained (predictions stay those of the module), or the
        posterior mean.
    hessian_structure : {"full", "diag"}, default="full"
        Structure of HᵀWH; "diag" for features of many thousands, with
        ``last_layer="trained"``.
    scale : {"claps", "aleatoric", "posterior", "constant"}, default="claps"
        What v is; see :class:`~mapie_claps.ClapsRegressor`.
    precision : {"float64", "module"}, default="float64"
        Arithmetic of the forward pass: the copy of the module in double precision, or
        in the dtype that it has, which is faster and makes results depend on the
        batches in the last digits of that dtype. All else is done in float64.
    batch_size : int, default=1024
        Rows in one forward pass; larger batches are cut.
    device : str, default="cpu"
        Where the forward pass runs. The posterior is on the CPU.

    Attributes
    ----------
    forward_ : ForwardPass
        x → μ, h², φᵀΣφ: the copy of the module, and the posterior.
    laplace_ : laplace.FullLLLaplace or laplace.DiagLLLaplace
        laplace-torch's fitted object on the network: ``laplace_(x)`` gives the mean
        and φᵀΣφ.
    sums_ : LastLayerSums
        Sums over the rows seen so far.
    prior_precision_, posterior_covariance_ : float or ndarray
        λ in use, and Σ with the bias last, in units of y.
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
    >>> _ = torch.manual_seed(0)
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
        precision: str = "float64",
        batch_size: int = 1024,
        device: str = "cpu",
    ) -> None:
        self.module = module
        self.last_layer_name = last_layer_name
        self.noise_variance = noise_variance
        self.noise_output = noise_output
        self.prior_precision = prior_precision
        self.last_layer = last_layer
        self.hessian_structure = hessian_structure
        self.scale = scale
        self.precision = precision
        self.batch_size = batch_size
        self.device = device

    @property
    def laplace_(self) -> Any:
        """laplace-torch's fitted object on the network, made anew on each access."""
        network = self.network_
        return self.forward_.last_layers.laplace(0, network)

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

    def _fit(self, X: Any, y: Any, sample_weight: Any, *_: Any) -> Hashes:
        self._check_parameters()
        batches = partial(self._batches, X, y, sample_weight, need_y=True)
        rows = batches()
        start = list(islice(rows, 1))
        if not start:
            raise ValueError("Got X without rows, but expected at least one.")
        x = start[0].x
        if len(x) == 1:  # two rows show whether each stands for itself
            start += islice(rows, 1)
            if start[-1].x.shape[1:] == x.shape[1:]:
                x = torch.cat([x, start[-1].x.to(x.dtype)])
        adapter = ModuleAdapter.find(self, x)
        if x.ndim == 2 and _cast(adapter.network, x).is_floating_point():
            self.n_features_in_ = x.shape[1]
        else:  # set by scikit-learn's check of a table
            self.__dict__.pop("n_features_in_", None)
        needs_head, trained = adapter.noise == "fit", self.last_layer == "trained"
        if isinstance(X, Iterator) and (needs_head or not trained):
            raise ValueError(
                "Got an iterator that can be used once, but fitting a variance head "
                "and last_layer='ridge' take several passes. Pass a DataLoader, a list "
                "or another iterable that starts again."
            )
        if needs_head:
            adapter.noise_head = fit_noise_head(adapter, batches)
        summary = RowSummary(adapter)
        sums = sum_rows(
            summary.features(chain(start, rows)),
            self.hessian_structure,
            self.scale == "posterior",
            self._fit_id,
        )
        warning = summary.line_is_better(sums) if needs_head or trained else ""
        adapter.variance_floor = VARIANCE_FLOOR * sums.targets.unit**2
        found = fit_posterior(
            sums,
            (FeatureRows.of(adapter, *batch) for batch in batches()),
            adapter.weights,
            prior_precision=self.prior_precision,
            last_layer=self.last_layer,
            variance_floor=adapter.variance_floor,
            standardised=False,
        )
        squares = found.sums.residual_variance(0.0) * found.sums.residuals.weight
        if not warning and squares > SUSPICIOUS_RATIO * summary.noise:
            warning = (
                f"Squared residuals are {squares / summary.noise:.3g} times the "
                "network's own noise variance on average, where about 1 is expected."
            )
        if warning:
            warnings.warn(f"{warning} {OTHER_UNITS}", UserWarning, stacklevel=3)
        self.sums_ = found.sums
        self.forward_ = ForwardPass(
            adapter, found.last_layers, found.member_weight, found.residual_variance
        )
        self.fitted_ = True  # MAPIE looks for it where rows are no table
        return np.concatenate(summary.hashes)

    def _check_parameters(self) -> None:
        """Raise for a value that no data could make valid."""
        full, hint = self.hessian_structure == "full", "Use the default if unsure."
        for name, choices in (
            ("scale", SCALES),
            ("noise_output", tuple(NOISE_OUTPUTS)),
            ("precision", ("float64", "module")),
            ("hessian_structure", ("full", "diag")),
            ("last_layer", LAST_LAYERS if full else ("trained",)),  # a diagonal
        ):
            check_choice(name, getattr(self, name), choices, hint)
        rule, also = self.prior_precision, "Or use 'marglik'."
        if not (isinstance(rule, str) and rule == "marglik"):
            check_number("prior_precision", rule, low=0, low_open=True, hint=also)

    def _batches(self, X: Any, *args: Any, **kwargs: Any) -> Iterator[Batch]:
        hint = "Use 1024 if unsure."
        size = check_integer("batch_size", self.batch_size, low=1, hint=hint)
        return batches_of(X, *args, size=size, check=self._checked, **kwargs)

    def _checked(self, X: Any) -> Any:
        """X with as many axes as in fit, columns checked as scikit-learn does.

        The first rows that ``fit`` sees set both.
        """
        # np.ndim would ask containers that have nothing but __array__ for a dispatch.
        ndim = X.ndim if hasattr(X, "ndim") else np.asarray(X).ndim
        first, expected = not hasattr(self, "ndim_"), getattr(self, "ndim_", ndim)
        if ndim != expected and max(ndim, expected) > 2:
            raise ValueError(
                f"Got X with {ndim} dimensions, but expected rows first and {expected} "
                "dimensions, as in fit."
            )
        # The row of zeros by which MAPIE asks if a model is fitted has no names.
        probe = isinstance(X, np.ndarray) and len(X) == 1 and not (first or X.any())
        if ndim <= 2 and not (isinstance(X, Tensor) or probe):
            check_real("X", X)
            X = validate_data(
                self, X, reset=first, dtype="numeric", ensure_min_samples=0
            )
        if first:
            self.ndim_ = ndim
        return X

    def _predicted(self, X: Any, scale: str) -> Iterator[Predicted]:
        for batch in self._batches(X):
            yield self.forward_(batch.x, scale)

    def _inputs(self, X: Any) -> Iterator[Tensor]:
        return (batch.x for batch in self._batches(X))

    def _hashes(self, X: Any, y: Any) -> Hashes:
        rows = self._batches(X, y, need_y=True)
        return np.concatenate([row_hashes(batch.x, batch.y) for batch in rows])

    def _sum(self, X: Any, y: Any, sample_weight: Any) -> LastLayerSums:
        rows = self._batches(X, y, sample_weight, need_y=True)
        sums = self.forward_.sum_rows(rows, self.sums_)
        ratio = sums.residual_variance(0.0) / float(self.forward_.residual_variance)
        if ratio > SUSPICIOUS_RATIO:
            found = f"Squared residuals are {ratio:.3g} times those in fit on average."
            warnings.warn(f"{found} {OTHER_UNITS}", UserWarning, stacklevel=4)
        return sums

    def _set_sums(self, sums: LastLayerSums) -> None:
        """Posterior from other sums; λ by marginal likelihood is chosen again."""
        network = self.network_
        value, _ = choose_prior_precision(
            self.prior_precision,
            sums,
            network.weights,
            self.forward_.last_layers.last_layer,
            standardised=False,
            residual_variance=sums.residual_variance(network.variance_floor),
        )
        self.forward_ = self.forward_.with_sums(sums, value)
        self.sums_ = sums


@dataclass
class RowSummary:
    """What is kept of rows that pass: hashes, and figures that tell of other units."""

    network: "ModuleAdapter"
    means: Spread = field(default_factory=Spread)  # of μ
    noise: float = 0.0  # Σ s h²
    hashes: list[Hashes] = field(default_factory=list)

    def features(self, batches: Iterable[Batch]) -> Iterator[FeatureRows]:
        """Features of batches."""
        for batch in batches:
            rows = FeatureRows.of(self.network, *batch)
            self.hashes.append(row_hashes(batch.x, batch.y))
            self.means += Spread.of(batch.y - rows.residual[0], batch.weight)
            self.noise += float(batch.weight @ rows.h2[0])
            yield rows

    def line_is_better(self, sums: LastLayerSums) -> str:
        """How much better a + bμ explains y than μ does; "" unless it is very much.

        The difference counts as noise, and a fitted head learns it as such. Networks
        that explain little in any units, or shrink y by less than a half, pass.
        """
        y, mu, residual = sums.targets, self.means, sums.residuals
        if sums.n_rows < MIN_ROWS_FOR_A_LINE or not (y.squares and mu.squares):
            return ""
        slope = (y.squares + mu.squares - residual.squares) / 2 / mu.squares
        line = slope**2 * mu.squares / y.squares  # R² of a + bμ
        own = 1 - (residual.squares + residual.weight * residual.mean**2) / y.squares
        # R² of μ as a prediction of standardised y, the most frequent other unit.
        standardised = (2 * slope / y.unit - 1) * mu.squares / mu.weight - mu.mean**2
        likely = line > 0.5 or standardised > line / 2 > 0.05
        if slope <= 0 or not likely or own > line - 0.25 or 1 - own < 2 * (1 - line):
            return ""
        return (
            f"The line {y.mean - slope * mu.mean:.3g} + {slope:.3g} · mean explains y "
            f"(R² = {line:.2f}), the network's mean itself does not (R² = {own:.3g}), "
            "which would count as noise."
        )


# What layers have seen in the forward pass that a thread is in. Hooks are registered
# once and for good: one that comes and goes would change the table of hooks while
# another thread iterates over it.
_now = threading.local()


def _record(layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    """Forward hook: note input and output of a layer that is watched."""
    calls = getattr(_now, "calls", {})
    if layer in calls and args:
        calls[layer] += ((args[0], output),)


@torch.no_grad()
def _run(
    network: nn.Module, x: Tensor, watched: Iterable[nn.Module], noise: Any
) -> tuple[Tensor, Any, dict[nn.Module, tuple[Tensor, Tensor]]]:
    """Mean (n,), what stands beside it, and φ (n, d) and output of layers called once.

    Inputs are those that the network takes, as ``_cast`` gives them.
    """
    n = len(x)
    calls: dict[nn.Module, Any] = dict.fromkeys(watched, ())
    _now.calls = calls
    try:
        with new_tensors_on(x.device):
            output = network(x)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, IndexError) as error:
        raise ValueError(
            f"Got a network whose forward pass fails on X of shape {tuple(x.shape)} "
            f"and type {x.dtype} ({error}). Pass X as the network was trained on, rows "
            "first, and the network as it was before it was quantised."
        ) from error
    finally:
        _now.calls = {}
    mean, second = output, None
    if isinstance(output, tuple | list) and len(output) == 2:
        mean, second = output
    elif isinstance(output, Tensor) and output.shape == (n, 2) and noise == "output":
        mean, second = output.unbind(1)
    shape = tuple(getattr(mean, "shape", (type(mean).__name__,)))
    if not isinstance(mean, Tensor) or shape not in ((n,), (n, 1)):
        raise ValueError(
            f"Got a forward pass that returns {shape} for {n} rows, but expected the "
            "mean of shape (n,) or (n, 1), or a pair (mean, noise). If there are two "
            "columns, mean and noise, say noise_variance='output' (and noise_output). "
            "Otherwise wrap the network in a module that returns that."
        )
    # One number tells: neither NaN nor infinity leaves a sum again.
    if not bool(mean.sum().isfinite()):
        raise ValueError(
            "Got predictions of the network with NaN or infinity. Look for NaN or "
            "extreme values in X, or in the network's weights."
        )
    once = {}
    for layer, seen in calls.items():
        if len(seen) == 1 and seen[0][0].ndim == 2 and len(seen[0][0]) == n:
            once[layer] = seen[0]
    return mean.reshape(n), second, once


def _cast(network: nn.Module, x: Tensor) -> Tensor:
    """X on the network's device and in its dtype; integers stay for embeddings."""
    kinds = nn.Embedding | nn.EmbeddingBag
    stays = not x.is_floating_point() and any(
        isinstance(layer, kinds) for layer in network.modules()
    )
    for like in network.parameters():
        if like.is_floating_point():
            return x.to(like.device, x.dtype if stays else like.dtype)
    return x


class ModuleAdapter(nn.Module):
    """x → φ, μ, h² of a network that somebody else wrote, in float64 on the CPU.

    All work is done on a copy: the network given keeps its mode, device, dtype,
    gradients and hooks. ``noise`` is "fit" (a head is fitted), "output" (the second
    output of ``forward``), "method" (of the network), or a callable.
    """

    weights: Tensor  # (1, d + 1) of the mean, bias last; 0 for a layer without bias

    def __init__(
        self,
        network: nn.Module,  # a private copy
        last_layer_name: str,
        column: int,
        noise: str | Callable[[Tensor], Tensor],
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
        layer: Any = network.get_submodule(last_layer_name)
        bias = torch.zeros(1) if layer.bias is None else layer.bias[column, None]
        weights = torch.cat([layer.weight[column], bias.to(layer.weight)])
        self.register_buffer("weights", weights.detach().cpu().double()[None])

    @classmethod
    def find(cls, model: ClapsModule, x: Tensor) -> "ModuleAdapter":
        """Find the layer of the mean, and the noise, by watching a few rows."""
        device, noise = str(choose_device(model.device)), model.noise_variance
        network = private_copy(model.module, model.precision, device)
        named, matches = dict(network.named_modules()), {}
        layers = {k: v for k, v in named.items() if isinstance(v, nn.Linear)}
        mean, second, calls = _run(network, _cast(network, x), layers.values(), noise)
        for name, layer in layers.items():
            if layer in calls:
                output = calls[layer][1]
                gap = output.to(mean) - mean[:, None]
                columns = (gap.abs() <= 1e-6 * mean.abs()[:, None]).all(0)
                if bool(columns.any()):
                    matches[name] = int(columns.nonzero()[0]), output.dtype
        chosen = model.last_layer_name
        if chosen is None and len(matches) == 1:
            chosen = next(iter(matches))
        if chosen is None or chosen not in matches:
            raise ValueError(
                f"Got last_layer_name={chosen!r}, but the layers whose output is the "
                f"mean are {sorted(matches)}, of the nn.Linear {list(layers)}. Name "
                "one of them as last_layer_name. If there are none, move what follows "
                "the last layer (a scaling of y, an activation) out of the network: "
                "the mean has to be a linear layer on features."
            )
        if noise is None and second is not None:
            noise = "output"
        elif noise is None:
            own = any(hasattr(network, name) for name in NOISE_METHODS)
            noise = "method" if own else "fit"
        elif not callable(noise):
            known = ("fit",) if second is None else ("fit", "output")
            hint = (
                "Pass None, or a function or network x → h²(x); 'output' is for a "
                "forward that returns (mean, noise)."
            )
            check_choice("noise_variance", noise, known, hint)
        column, dtype = matches[chosen]
        kept = noise, model.noise_output, model.precision, device
        found = cls(network, chosen, column, *kept)
        if len(x) > 1:
            found._check_rows_alone(x, torch.finfo(dtype).eps ** 0.5)
        return found

    def forward(self, x: Tensor) -> Features:
        """φ, μ and h² of one batch; h² is NaN without a head."""
        noise, x = self.noise, _cast(self.network, x)
        layer = self.network.get_submodule(self.last_layer_name)
        mean, raw, calls = _run(self.network, x, [layer], noise)
        n_wrong = n = len(mean)
        if layer in calls:
            own, output = calls[layer]
            w, phi, mu = self.weights[0], own.cpu().double(), mean.cpu().double()
            # φᵀw + b has to be what forward returns, in every row: what follows the
            # layer may leave some rows as they are, as a ReLU does.
            gap = (phi @ w[:-1] + w[-1] - mu).abs()
            size = phi.abs() @ w[:-1].abs() + w[-1].abs()
            # With autocast the layer is coarser than what comes before and after it.
            n_wrong = int((gap > torch.finfo(output.dtype).eps ** 0.5 * size).sum())
        if n_wrong or layer not in calls:
            raise ValueError(
                f"Got a network whose mean is not the output of its layer "
                f"{self.last_layer_name!r}, called once, in {n_wrong} of {n} rows. "
                "Move what follows it (an activation, a limit) out of the network."
            )
        if self.noise_head is not None:
            h2 = self.noise_head.variance(phi)
        elif noise == "fit":
            h2 = torch.full_like(mu, torch.nan)
        else:
            with new_tensors_on(x.device), torch.no_grad():
                if noise == "method":
                    raw = network_noise(self.network, x, own)
                elif callable(noise):
                    raw = noise(_cast(noise, x) if isinstance(noise, nn.Module) else x)
                raw = column("noise_variance", raw, n)
            h2 = NOISE_OUTPUTS[self.noise_output](raw)
            h2 = column("noise_variance", h2, n, sign="positive")
        return Features(phi[None], mu[None], h2[None])

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
    """Copy of a network to watch: evaluation mode, no gradients, on the device."""
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"Got module of type {type(module).__name__}, but expected a "
            "torch.nn.Module (from skorch: net.module_)."
        )
    module = getattr(module, "_orig_mod", module)  # what torch.compile wraps
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        module = module.module
    for tensor in chain(module.parameters(), module.buffers()):
        if nn.parameter.is_lazy(tensor) or tensor.is_meta:
            raise TypeError(
                f"Got a {type(module).__name__} whose weights are lazy or on the "
                "device 'meta', which holds no numbers. Load them, or train the "
                "network, first."
            )
    try:
        network: nn.Module = copy.deepcopy(module)
        for layer in network.modules():
            if _record not in layer._forward_hooks.values():  # of a copy of a copy
                layer.register_forward_hook(_record)
    except Exception as error:
        raise TypeError(
            f"Got a {type(module).__name__} that cannot be copied and watched "
            f"({error}). Pass the bare network, before torch.jit compiled it."
        ) from error
    network = network.to(torch.device(device)).eval().requires_grad_(False)
    return network.double() if precision == "float64" else network


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
    network: ModuleAdapter, batches: Callable[[], Iterable[Batch]]
) -> NoiseHead:
    """Maximum likelihood of r ~ N(0, h²), ridge penalty, by Fisher scoring.

    ½Σ s[log h² + r²/h²] is convex in a, and its Fisher matrix ½Σ s φφᵀ is the same for
    every a. The penalty is for standardised features: a priori log h² varies with
    variance 1 over the rows.
    """
    targets = sum((Spread.of(y, weight) for _, y, weight in batches()), Spread())
    floor = RESIDUAL_FLOOR * targets.unit**2

    kept: list[tuple[Tensor, Tensor, Tensor]] = []
    n_elements = 0

    def rows() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for x, y, weight in batches():
            out = network(x)
            squares = (y - out.mu[0]).square() + floor
            yield pad(out.phi[0], (0, 1), value=1.0), squares, weight

    gram: Any = 0.0  # Σ s φφᵀ
    total: Any = 0.0  # Σ s r²
    for phi, squares, weight in rows():
        n_elements += phi.numel()
        kept.append((phi, squares, weight))
        if n_elements > MAX_KEPT_ELEMENTS:  # features are computed again
            kept.clear()
        gram = gram + phi.T @ (phi * weight[:, None])
        total = total + weight @ squares
    moments = gram / gram[-1, -1]
    variance = moments.diagonal() - moments[-1].square()
    ridge = (len(gram) - 1) * variance.where(variance > 1e-12 * moments.diagonal(), 1.0)
    ridge[-1] = 0.0
    factor = torch.linalg.cholesky(0.5 * gram + ridge.diag())

    def at(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Loss, gradient, and log h² of all rows that count."""
        loss, gradient, found = 0.5 * a @ (ridge * a), ridge * a, []
        for phi, squares, weight in kept or rows():
            log_h2 = phi @ a
            ratio = squares * (-log_h2).exp()
            loss = loss + 0.5 * weight @ (log_h2 + ratio)
            gradient = gradient + 0.5 * phi.T @ (weight * (1 - ratio))
            found.append(log_h2[weight > 0])
        return loss, gradient, torch.cat(found)

    a, length = torch.zeros_like(ridge), 1.0
    a[-1] = (total / gram[-1, -1]).log()
    loss, gradient, log_h2 = at(a)
    for _ in range(MAX_HEAD_STEPS):
        step = torch.cholesky_solve(gradient[:, None], factor).squeeze(1)
        gain = gradient @ step
        if gain <= 1e-13 * gram[-1, -1]:
            break
        tried = at(a - length * step)
        # The Fisher matrix may fall short of the Hessian where residuals are large.
        if tried[0] <= loss - 1e-4 * length * gain:
            a, (loss, gradient, log_h2), length = a - length * step, tried, 1.0
        else:
            length /= 2
    return NoiseHead(a, float(log_h2.min()), float(log_h2.max()))
