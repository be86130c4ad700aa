"""Where a user's network keeps μ, φ and h², found by watching a pass."""

from typing import Any

import torch
from torch import Tensor, nn

from .own import Backbone, check_finite
from .own_pass import cast_inputs, private_copy, record, run, split_output

# Methods that HeteroscedasticGGN asks for, too.
NOISE_METHODS = ("noise_variance_from_features", "noise_variance")


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
    handles = [layer.register_forward_hook(record) for layer in layers.values()]
    output, calls = run(network, cast_inputs(network, x))
    for handle in handles:
        handle.remove()
    mean, second = split_output(output, len(x))
    check_finite("predictions", mean)
    matches = {
        name: column
        for name, layer in layers.items()
        if (column := _column_of(mean, calls.get(id(layer), []))) is not None
    }
    name = _choose_layer(last_layer_name, matches, list(layers))
    column_output = isinstance(output, Tensor) and second is not None
    noise = _choose_noise(network, noise_variance, second is not None, column_output)
    column = matches[name]
    found = Backbone(network, name, column, noise, noise_output, precision, device)
    _check_rows_alone(found, x)
    return found


def _check_rows_alone(backbone: Backbone, x: Tensor) -> None:
    """Raise if the output for a row depends on the other rows of its batch.

    Then coverage would depend on how rows are cut into batches. The last rows come
    alone, and in the opposite order: what a sequence remembers of the rows before, as a
    recurrent layer does that takes rows for steps, shows as well.
    """
    half = len(x) // 2
    if not half:
        return
    among, eps = backbone.rounded(x)
    alone = backbone(x[-half:].flip(0))
    mu, h2, phi = (part[0, -half:].flip(0) for part in (among.mu, among.h2, among.phi))
    gaps = {
        "mean": _share(alone.mu[0] - mu, among.mu.abs().max()),
        "noise": _share(alone.h2[0] - h2, h2),  # row by row: orders of magnitude
        "feature vector": _share(alone.phi[0] - phi, among.phi.abs().max()),
    }
    for name, gap in gaps.items():
        if gap > eps**0.5:
            raise ValueError(
                f"Got a network whose {name} for a row depends on the other rows of "
                f"its batch: {half} rows alone and the same rows among {len(x)} differ "
                f"by a share of up to {gap:.3g}. Give every BatchNorm "
                "track_running_stats=True, let attention and recurrent layers act "
                "within a row, not over rows, and leave no dropout on."
            )


def _share(gap: Tensor, size: Tensor) -> float:
    """Largest gap as a share; NaN, of a noise that is not there yet, is none."""
    return float((gap.abs() / (size + (size == 0))).nan_to_num().max())


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
