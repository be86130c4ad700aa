"""x → φ, μ, h² of a network that somebody else wrote.

All work is done on a copy: the network given keeps its mode, device, dtype, gradients
and hooks.
"""

import copy
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

NOISE_OUTPUTS = ("variance", "log_variance", "std")
# Methods that HeteroscedasticGGN asks for, too.
NOISE_METHODS = ("noise_variance_from_features", "noise_variance")

Calls = dict[int, list[tuple[Tensor, Tensor]]]
# Per thread and task: several may use one network at the same time.
_calls: ContextVar[Calls | None] = ContextVar("_calls", default=None)


class BackboneOutput(NamedTuple):
    """What one forward pass gives, in float64 on the CPU."""

    phi: Tensor  # (n, d)
    mu: Tensor  # (n,)
    h2: Tensor  # (n,); NaN if the network has no variance head


def _record(layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    """Forward hook: note input and output of the layer."""
    calls = _calls.get()
    if calls is not None and args:
        calls.setdefault(id(layer), []).append((args[0], output))


class Backbone:
    """A copy of the network, the place of its mean's linear layer, and of its noise.

    ``noise`` is None, a callable, "output" for the second output of ``forward``, or
    the name of a method or submodule of the network.
    """

    def __init__(
        self,
        network: nn.Module,
        last_layer_name: str,
        column: int,
        noise: str | Callable[[Tensor], Tensor] | None,
        noise_output: str,
        precision: str,
        device: str,
    ) -> None:
        self.network = network
        self.precision, self.device = precision, device
        self.last_layer_name = last_layer_name
        self.column = column
        if isinstance(noise, nn.Module):
            noise = private_copy(noise, precision, device)
        self.noise = noise
        self.noise_output = noise_output
        # Registered once and for good: a hook that comes and goes would change the
        # table of hooks while another thread walks it.
        for layer in self._watched():
            layer.register_forward_hook(_record)

    @property
    def last_layer(self) -> nn.Linear:
        """The linear layer of the mean."""
        layer = self.network.get_submodule(self.last_layer_name)
        if not isinstance(layer, nn.Linear):
            raise TypeError(
                f"Got last_layer_name={self.last_layer_name!r}, a "
                f"{type(layer).__name__}, but expected the name of an nn.Linear."
            )
        return layer

    def trained_weights(self) -> Tensor:  # (d + 1,)
        """Weights of the mean in float64, the bias last; 0 for a layer without bias."""
        layer, j = self.last_layer, self.column
        bias = layer.weight.new_zeros(1) if layer.bias is None else layer.bias[j, None]
        return torch.cat([layer.weight[j], bias]).detach().cpu().double()

    def __call__(self, x: Tensor) -> BackboneOutput:
        """Run the network on one batch."""
        x = cast_inputs(self.network, x)
        output, calls = run(self.network, x)
        mean, second = split_output(output, len(x))
        phi = self._features(calls, len(x))
        mu = _finite("predictions", mean.cpu().double())
        dtypes = phi.dtype, calls[id(self.last_layer)][0][1].dtype, mean.dtype
        features = phi.cpu().double()
        # One number tells: neither NaN nor infinity leaves a sum again.
        _finite("features", features.sum())
        self._check_mean(features, mu, max(torch.finfo(d).eps for d in dtypes))
        if self.noise is None:
            h2 = torch.full_like(mu, torch.nan)
        else:
            h2 = self._noise(x, phi, second, calls)
        return BackboneOutput(features, mu, h2)

    def _watched(self) -> list[nn.Module]:
        layers: list[nn.Module] = [self.last_layer]
        submodules = dict(self.network.named_modules())
        if isinstance(self.noise, str) and self.noise in submodules:
            layers.append(submodules[self.noise])
        return layers

    def _features(self, calls: Calls, n: int) -> Tensor:
        """Input of the last layer."""
        seen = calls.get(id(self.last_layer), [])
        if len(seen) != 1 or seen[0][0].ndim != 2 or len(seen[0][0]) != n:
            shapes = [tuple(phi.shape) for phi, _ in seen]
            raise ValueError(
                f"Got last_layer_name={self.last_layer_name!r}, which saw inputs of "
                f"shapes {shapes} in a pass over {n} rows, but expected one input of "
                "shape (n, d)."
            )
        return seen[0][0]

    def _check_mean(self, phi: Tensor, mu: Tensor, eps: float) -> None:
        """Raise unless φᵀw + b is what forward returns, in every row.

        What follows the layer may leave some rows as they are, as a ReLU does. With
        autocast the layer's own type is coarser than those around it: ``eps``.
        """
        w = self.trained_weights()
        own = phi @ w[:-1] + w[-1]
        gap = (own - mu).abs_()
        # |φᵀw + b| is at most Σ|φw| + |b|, which is dearer: asked for where needed.
        doubtful = (gap > eps**0.5 * own.abs_()).nonzero().squeeze(1)
        size = phi[doubtful].abs_() @ w[:-1].abs() + w[-1].abs()
        wrong = gap[doubtful] > eps**0.5 * size
        if bool(wrong.any()):
            raise ValueError(
                f"Got a network whose mean is not the output of its layer "
                f"{self.last_layer_name!r} in {int(wrong.sum())} of {len(mu)} rows "
                f"(difference up to {float(gap.max()):.3g}), but expected a linear "
                "layer on features. Move what follows it (an activation, a limit) out "
                "of the network."
            )

    def _noise(
        self, x: Tensor, phi: Tensor, second: Tensor | None, calls: Calls
    ) -> Tensor:
        """h², shape (n,), from wherever the network keeps it."""
        if callable(self.noise):
            raw: Any = _call_noise(self.noise, x)
        elif self.noise == "output":
            raw = second
        elif self.noise == "noise_variance_from_features":
            raw = self.network.noise_variance_from_features(phi)  # type: ignore[operator]
        elif self.noise == "noise_variance":
            raw = self.network.noise_variance(x)  # type: ignore[operator]
        else:
            layer = self.network.get_submodule(str(self.noise))
            seen = calls.get(id(layer))
            raw = seen[-1][1] if seen else layer(phi)
        if not isinstance(raw, Tensor) or raw.shape not in ((len(x),), (len(x), 1)):
            found = tuple(raw.shape) if isinstance(raw, Tensor) else type(raw).__name__
            raise ValueError(
                f"Got a noise of shape {found} for {len(x)} rows from "
                f"noise_variance={self.noise!r}, but expected one number per row."
            )
        h2 = _to_variance(raw.detach().cpu().double().reshape(-1), self.noise_output)
        if not bool((h2 > 0).all()) or not bool(torch.isfinite(h2).all()):
            raise ValueError(
                f"Got noise variances between {h2.min().item()!r} and "
                f"{h2.max().item()!r}, but expected positive finite values. If the "
                "head gives log h² or h, say noise_output='log_variance' or 'std'; "
                "otherwise add a floor, for example softplus(.) + 1e-6."
            )
        return h2


@torch.no_grad()
def _call_noise(noise: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    """What the user's callable gives; a module gets X in its own dtype."""
    if isinstance(noise, nn.Module):
        return noise(cast_inputs(noise, x))
    try:
        return noise(x)
    except RuntimeError as error:
        raise ValueError(
            f"Got noise_variance={noise!r}, which failed on X of type {x.dtype} and "
            f"shape {tuple(x.shape)} ({error}). It gets X as the network does: cast X "
            "in it, or pass an nn.Module, which is cast for you."
        ) from error


def _to_variance(raw: Tensor, noise_output: str) -> Tensor:
    if noise_output == "log_variance":
        return raw.exp()
    return raw.square() * raw.sign() if noise_output == "std" else raw


def _finite(name: str, values: Tensor) -> Tensor:
    if not bool(torch.isfinite(values).all()):
        raise ValueError(
            f"Got {name} of the network with NaN or infinity. Look for NaN or extreme "
            "values in X, or in the network's weights."
        )
    return values


def private_copy(module: Any, precision: str, device: str) -> nn.Module:
    """Copy to work on: evaluation mode, no gradients, on the device."""
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"Got module of type {type(module).__name__}, but expected a "
            "torch.nn.Module (from skorch: net.module_; from torch.compile or "
            "DistributedDataParallel the wrapper will do)."
        )
    module = getattr(module, "_orig_mod", module)  # what torch.compile wraps
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        module = module.module
    try:
        network: nn.Module = copy.deepcopy(module)
    except Exception as error:
        raise TypeError(
            f"Got a {type(module).__name__} that copy.deepcopy refuses ({error}). Pass "
            "the bare network, without trainer, loggers or tensors that need gradients."
        ) from error
    network = network.to(torch.device(device)).eval().requires_grad_(False)
    return network.double() if precision == "float64" else network


def cast_inputs(network: nn.Module, x: Tensor) -> Tensor:
    """X on the network's device and in its dtype; integers stay for embeddings."""
    like = next((p for p in network.parameters() if p.is_floating_point()), None)
    if like is None:
        return x
    if are_tokens(network, x):
        return x.to(like.device)
    return x.to(like.device, like.dtype)


def are_tokens(network: nn.Module, x: Tensor) -> bool:
    """Whether X is of integers that the network embeds."""
    embeddings = nn.Embedding | nn.EmbeddingBag
    return not x.is_floating_point() and any(
        isinstance(m, embeddings) for m in network.modules()
    )


@torch.no_grad()
def run(network: nn.Module, x: Tensor) -> tuple[Any, Calls]:
    """Forward pass; what it returns, and the calls of the watched layers."""
    calls: Calls = {}
    token = _calls.set(calls)
    try:
        return network(x), calls
    finally:
        _calls.reset(token)


def split_output(output: Any, n: int) -> tuple[Tensor, Tensor | None]:
    """Mean (n,), and what stands beside it, if anything, from forward's output."""
    second: Any = None
    mean = output
    if isinstance(output, tuple | list) and len(output) == 2:
        mean, second = output
    elif isinstance(output, Tensor) and output.shape == (n, 2):
        mean, second = output.unbind(1)
    if not isinstance(mean, Tensor) or mean.shape not in ((n,), (n, 1)):
        found = tuple(mean.shape) if isinstance(mean, Tensor) else type(mean).__name__
        raise ValueError(
            f"Got a forward pass that returns {found} for {n} rows, but expected the "
            "mean of shape (n,) or (n, 1), or a pair (mean, noise). Wrap the network "
            "in a module that returns that."
        )
    return mean.reshape(n), second


def wrap(
    module: nn.Module,
    x: Tensor,  # some rows, to see what the network does
    *,
    last_layer_name: str | None,
    noise_variance: Any,
    noise_output: str,
    precision: str,
    device: str,
) -> Backbone:
    """Find the mean's layer and the noise by watching a pass over some rows."""
    network = private_copy(module, precision, device)
    layers = {
        name: layer
        for name, layer in network.named_modules()
        if isinstance(layer, nn.Linear)
    }
    handles = [layer.register_forward_hook(_record) for layer in layers.values()]
    output, calls = run(network, cast_inputs(network, x))
    for handle in handles:
        handle.remove()
    mean, second = split_output(output, len(x))
    _finite("predictions", mean)
    matches = {
        name: column
        for name, layer in layers.items()
        if (column := _column_of(mean, calls.get(id(layer), []))) is not None
    }
    name = _choose_layer(last_layer_name, matches, list(layers))
    column_output = isinstance(output, Tensor) and second is not None
    noise = _choose_noise(network, noise_variance, second is not None, column_output)
    column = matches[name]
    return Backbone(network, name, column, noise, noise_output, precision, device)


def _column_of(mean: Tensor, seen: list[tuple[Tensor, Tensor]]) -> int | None:
    """Which output of a layer, called once, is the mean; None if there is none."""
    if len(seen) != 1:
        return None
    outputs = seen[0][1]
    if outputs.ndim != 2 or len(outputs) != len(mean):
        return None
    outputs = outputs.to(mean)
    first = torch.isclose(outputs[0], mean[0], rtol=1e-6, atol=0)
    for j in first.nonzero().flatten().tolist():
        if torch.allclose(outputs[:, j], mean, rtol=1e-6, atol=0):
            return int(j)
    return None


def _choose_layer(given: str | None, matches: dict[str, int], names: list[str]) -> str:
    """Name of the mean's layer."""
    if given is not None and given in matches:
        return given
    if given is None and len(matches) == 1:
        return next(iter(matches))
    if given is not None and given not in names:
        problem = f"Got last_layer_name={given!r}, which is no nn.Linear of the network"
    elif given is not None:
        problem = (
            f"Got last_layer_name={given!r}, whose output (of one call, on features of "
            "shape (n, d)) is not what forward returns as the mean"
        )
    elif matches:
        problem = f"Got several layers whose output is the mean: {sorted(matches)}"
    else:
        problem = "Got a network whose mean is the output of none of its nn.Linear"
    remedy = (
        "Name one of them as last_layer_name."
        if matches
        else "The mean has to be a linear layer on features: move what follows it (a "
        "scaling of y, an activation) out of the network."
    )
    listed = sorted(matches) if matches else names
    raise ValueError(f"{problem}; candidates: {listed}. {remedy}")


def _choose_noise(
    network: nn.Module, given: Any, has_second: bool, is_column: bool
) -> Any:
    """Where h² comes from: see ``Backbone``."""
    if given is None:
        if is_column:
            raise ValueError(
                "Got a network with two output columns. If the second is the noise, "
                "say noise_variance='output' (and noise_output); several targets are "
                "not supported."
            )
        if has_second:
            return "output"
        return next((m for m in NOISE_METHODS if hasattr(network, m)), None)
    if callable(given):
        return given
    if given == "fit":
        return None
    if given == "output" and not has_second:
        raise ValueError(
            "Got noise_variance='output', but forward returns the mean alone. Return "
            "(mean, noise), or use noise_variance='fit'."
        )
    names = {n for n, _ in network.named_modules() if n}
    methods = {m for m in NOISE_METHODS if hasattr(network, m)}
    if given in names | methods | {"output"}:
        return given
    raise ValueError(
        f"Got noise_variance={given!r}, but expected None, 'output', 'fit', a callable "
        f"or the name of a submodule: {sorted(names)}."
    )
