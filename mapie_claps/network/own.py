"""x → φ, μ, h² of a network that somebody else wrote.

All work is done on a copy: the network given keeps its mode, device, dtype, gradients
and hooks.
"""

import copy
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from ..exceptions import FileFormatError
from ..files.codec import Context, WrongPartError, register
from ..files.container import describe, hash_tensors
from .interface import Features

NOISE_OUTPUTS = ("variance", "log_variance", "std")
# Methods that HeteroscedasticGGN asks for, too.
NOISE_METHODS = ("noise_variance_from_features", "noise_variance")

Calls = dict[int, list[tuple[Tensor, Tensor]]]
# Per thread and task: several may use one network at the same time.
_calls: ContextVar[Calls | None] = ContextVar("_calls", default=None)


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

    def trained_weights(self) -> Tensor:  # (1, d + 1)
        """Weights of the mean in float64, the bias last; 0 for a layer without bias."""
        layer, j = self.last_layer, self.column
        bias = layer.weight.new_zeros(1) if layer.bias is None else layer.bias[j, None]
        return torch.cat([layer.weight[j], bias]).detach().cpu().double()[None]

    def fingerprint(self) -> str:
        """Hash of all weights; of a noise that is a callable only its name."""
        noise = self.noise
        if isinstance(noise, nn.Module):
            noise = hash_tensors(_weights(noise))
        elif callable(noise):
            noise = getattr(noise, "__qualname__", type(noise).__name__)
        place = (self.last_layer_name, self.column, noise, self.noise_output)
        return hash_tensors(_weights(self.network), f"own {place}")

    def __call__(self, x: Tensor) -> Features:
        """φ, μ and h² of one batch in float64 on the CPU; h² is NaN without a head."""
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
        return Features(features[None], mu[None], h2[None])

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
        w = self.trained_weights()[0]
        own = phi @ w[:-1] + w[-1]
        gap = (own - mu).abs_()
        # |φᵀw + b| is at most Σ|φw| + |b|, which costs more: computed where needed.
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
    _check_rows_alone(network, x, mean)
    column_output = isinstance(output, Tensor) and second is not None
    noise = _choose_noise(network, noise_variance, second is not None, column_output)
    column = matches[name]
    return Backbone(network, name, column, noise, noise_output, precision, device)


def _check_rows_alone(network: nn.Module, x: Tensor, mean: Tensor) -> None:
    """Raise if the output for a row depends on the other rows of its batch.

    Then coverage would depend on how rows are cut into batches.
    """
    half = len(x) // 2
    if not half:
        return
    alone = split_output(run(network, cast_inputs(network, x[:half]))[0], half)[0]
    gap = (alone - mean[:half]).abs().max()
    if not bool(gap <= torch.finfo(mean.dtype).eps ** 0.5 * mean.abs().max()):
        raise ValueError(
            "Got a network whose output for a row depends on the other rows of its "
            f"batch: {half} rows alone and the same rows among {len(x)} differ by up "
            f"to {float(gap):.3g}. Give every BatchNorm track_running_stats=True, and "
            "let attention act within a row, not over rows."
        )


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


def _weights(network: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, those that a state_dict leaves out as well."""
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


def _to_fields(backbone: Backbone) -> dict[str, Any]:
    """Names of the parts of the user's network, and what tells it from others."""
    is_callable = callable(backbone.noise)
    return {
        "last_layer_name": backbone.last_layer_name,
        "column": backbone.column,
        "noise": None if is_callable else backbone.noise,
        "noise_is_callable": is_callable,
        "noise_output": backbone.noise_output,
        "precision": backbone.precision,
        "device": backbone.device,
        "weights": describe(_weights(backbone.network)),
        "weights_sha256": hash_tensors(_weights(backbone.network)),
    }


def _from_fields(values: dict[str, Any], context: Context) -> Backbone:
    """The network given by the user, if it is the one that was saved."""
    if context.network is None:
        raise WrongPartError(
            "Got network=None, but the file holds a ClapsModule, whose network is "
            "not stored. Pass load(path, network=...)."
        )
    copied = private_copy(context.network, values["precision"], values["device"])
    _check_network(copied, values["weights"], values["weights_sha256"])
    noise = values["noise"]
    if values["noise_is_callable"]:
        if context.noise_variance is None:
            raise WrongPartError(
                "Got noise_variance=None, but the file holds a ClapsModule whose "
                "noise_variance was a callable, which is not stored. Pass "
                "load(path, network=..., noise_variance=...)."
            )
        noise = context.noise_variance
    elif context.noise_variance is not None:
        raise WrongPartError(
            f"Got noise_variance={context.noise_variance!r}, but the file holds a "
            "ClapsModule whose noise_variance was no callable. Leave it out, or "
            "fit again with it."
        )
    return Backbone(
        copied,
        values["last_layer_name"],
        values["column"],
        noise,
        values["noise_output"],
        values["precision"],
        values["device"],
    )


def _check_network(network: nn.Module, described: dict[str, str], digest: str) -> None:
    """Raise unless the network is the one that was saved."""
    found = describe(_weights(network))
    for name in sorted(described.keys() | found.keys()):
        if described.get(name) != found.get(name):
            raise FileFormatError(
                f"Got a network whose {name!r} is {found.get(name, 'missing')}, but "
                f"the file was saved with {described.get(name, 'no such tensor')} "
                "(after the cast to the precision in use). Pass the network that the "
                "estimator was fitted with."
            )
    if hash_tensors(_weights(network)) != digest:
        raise FileFormatError(
            "Got a network of the right shape with other weights than those the "
            "estimator was fitted with. Load its weights first, or fit again."
        )


register(Backbone, "own network", _to_fields, _from_fields)
