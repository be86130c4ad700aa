"""A copy of a user's network to work on, and one pass through it."""

import copy
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from .._devices import new_tensors_on

Calls = dict[int, list[tuple[Tensor, Tensor]]]
# Per thread and task: several may use one network at the same time.
_calls: ContextVar[Calls | None] = ContextVar("_calls", default=None)


def record(layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    """Forward hook: note input and output of the layer."""
    calls = _calls.get()
    if calls is not None and args:
        calls.setdefault(id(layer), []).append((args[0], output))


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
    _check_is_plain(module)
    try:
        network: nn.Module = copy.deepcopy(module)
    except Exception as error:
        raise TypeError(
            f"Got a {type(module).__name__} that copy.deepcopy refuses ({error}). Pass "
            "the bare network, without trainer, loggers or tensors that need gradients."
        ) from error
    network = network.to(torch.device(device)).eval().requires_grad_(False)
    return network.double() if precision == "float64" else network


def _check_is_plain(module: nn.Module) -> None:
    """Raise for networks whose layers cannot be watched or cast."""
    name, problem = type(module).__name__, None
    modules = [type(m) for m in module.modules()]
    tensors = [*module.parameters(), *module.buffers()]
    if any(issubclass(m, torch.jit.ScriptModule) for m in modules):
        problem = "compiled by torch.jit. Pass the network that it was made from"
    elif any(nn.parameter.is_lazy(t) for t in tensors):
        problem = (
            "with lazy layers whose sizes are not known yet. Call it on a few rows, "
            "and train it, first"
        )
    elif any(".quantized" in m.__module__ for m in modules) or any(
        t.is_quantized for t in tensors
    ):
        problem = (
            "with quantised layers, which choose their steps by the rows of a batch. "
            "Pass the network from before quantisation"
        )
    elif any(t.is_meta for t in tensors):
        problem = "with weights on the device 'meta', which holds no numbers. Load them"
    elif any(t.is_complex() for t in tensors):
        problem = "with complex weights, but expected real ones"
    if problem is not None:
        raise TypeError(f"Got a {name} {problem}.")


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
        with new_tensors_on(x.device):
            return network(x), calls
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, IndexError) as error:
        raise ValueError(
            f"Got a network whose forward pass fails on X of shape {tuple(x.shape)} "
            f"and type {x.dtype} ({error}). Pass X as the network was trained on, rows "
            "first."
        ) from error
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
