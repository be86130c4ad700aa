"""x → φ, μ, h² of a network that somebody else wrote.

All work is done on a copy: the network given keeps its mode, device, dtype, gradients
and hooks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .._devices import new_tensors_on
from ..exceptions import FileFormatError
from ..files.codec import Context, WrongPartError, register
from ..files.container import describe, hash_tensors
from .interface import Features
from .own_pass import Calls, cast_inputs, private_copy, record, run, split_output

NOISE_OUTPUTS = ("variance", "log_variance", "std")


@dataclass(eq=False, repr=False)
class Backbone:
    """A copy of the network, the place of its mean's linear layer, and of its noise.

    ``noise`` is None, a callable, "output" for the second output of ``forward``, or
    the name of a method or submodule of the network.
    """

    network: nn.Module
    last_layer_name: str
    column: int
    noise: str | Callable[[Tensor], Tensor] | None
    noise_output: str
    precision: str
    device: str

    def __post_init__(self) -> None:
        if isinstance(self.noise, nn.Module):
            self.noise = private_copy(self.noise, self.precision, self.device)
        watched: list[nn.Module] = [self.last_layer]
        submodules = dict(self.network.named_modules())
        if isinstance(self.noise, str) and self.noise in submodules:
            watched.append(submodules[self.noise])
        # Registered once and for good: a hook that comes and goes would change the
        # table of hooks while another thread iterates over it.
        for layer in watched:
            layer.register_forward_hook(record)

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

    def tensors(self) -> list[Tensor]:
        """Weights and buffers, those of a noise that is a network as well.

        Whole numbers, such as a count of calls, may change with every prediction.
        """
        networks = [self.network]
        if isinstance(self.noise, nn.Module):
            networks.append(self.noise)
        found = [t for network in networks for t in _weights(network).values()]
        return [t for t in found if t.is_floating_point() or t.is_complex()]

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
        return self.rounded(x)[0]

    def rounded(self, x: Tensor) -> tuple[Features, float]:
        """The same, and the relative precision of the pass."""
        x = cast_inputs(self.network, x)
        output, calls = run(self.network, x)
        mean, second = split_output(output, len(x))
        phi = self._features(calls, len(x))
        mu = check_finite("predictions", mean.cpu().double())
        dtypes = phi.dtype, calls[id(self.last_layer)][0][1].dtype, mean.dtype
        features = phi.cpu().double()
        # One number tells: neither NaN nor infinity leaves a sum again.
        check_finite("features", features.sum())
        eps = max(torch.finfo(d).eps for d in dtypes)
        self._check_mean(features, mu, eps)
        if self.noise is None:
            h2 = torch.full_like(mu, torch.nan)
        else:
            with new_tensors_on(x.device):
                h2 = self._noise(x, phi, second, calls)
        return Features(features[None], mu[None], h2[None]), eps

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


def check_finite(name: str, values: Tensor) -> Tensor:
    """Values of the network, if all are numbers."""
    if not bool(torch.isfinite(values).all()):
        raise ValueError(
            f"Got {name} of the network with NaN or infinity. Look for NaN or extreme "
            "values in X, or in the network's weights."
        )
    return values


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
