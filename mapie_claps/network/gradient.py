"""φ, μ, h² → loss of a batch and its gradient, for all members at once, written out.

In networks this small autograd spends more time on its graph than on the products in
it. Here all buffers are laid out once, and a step only fills them. Tensors lie units
first and rows last, (K, units, batch); one member does without the axis of members,
whose products are slower.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from .ensemble import FirstLayer, HeteroscedasticNetwork

# Forms of torch's functions that write into a given tensor.
_silu = torch.ops.aten.silu.out
_silu_backward = torch.ops.aten.silu_backward.grad_input
_softplus_backward = torch.ops.aten.softplus_backward.grad_input
SOFTPLUS_BETA, SOFTPLUS_THRESHOLD = 1.0, 20.0  # torch's defaults


class _Variable(NamedTuple):
    """Weights, and where their gradient goes."""

    value: Tensor
    gradient: Tensor


def _variable(parameter: Any) -> _Variable:
    """Of a parameter whose ``grad`` has been laid out."""
    return _Variable(parameter.data, parameter.grad)


class FlatParameters:
    """All weights of a network end to end, and their gradients likewise.

    The network's parameters and their ``grad`` become views: the optimiser acts on one
    tensor. The heads come last, side by side, so that they are one layer of two units.
    """

    def __init__(self, network: HeteroscedasticNetwork) -> None:
        heads = [network.mean_head, network.noise_head]
        last = [*(h.weight for h in heads), *(h.bias for h in heads)]
        self.of_members = network.parameters_of_members()
        parameters = [p for p, _ in self.of_members if all(p is not q for q in last)]
        parameters += last
        self.weights = torch.cat([p.detach().flatten() for p in parameters])
        self.gradient = torch.zeros_like(self.weights)
        self._lay_out(parameters)
        self.gradients = [(_variable(p).gradient, k) for p, k in self.of_members]
        members, size, _ = last[0].shape
        both = [2 * members * size, 2 * members]
        weight, bias = (
            _Variable(*(part.view(2, members, -1).permute(1, 2, 0) for part in parts))
            for parts in zip(
                self.weights[-sum(both) :].split(both),
                self.gradient[-sum(both) :].split(both),
                strict=True,
            )
        )
        self.heads = weight, bias  # (K, d, 2), (K, 1, 2)

    def _lay_out(self, parameters: Sequence[nn.Parameter]) -> None:
        start = 0
        for p in parameters:
            part = slice(start, start + p.numel())
            p.data = self.weights[part].view_as(p)
            p.grad = self.gradient[part].view_as(p)
            start = part.stop

    def release(self) -> None:
        """Let go of the gradients."""
        for p, _ in self.of_members:
            p.grad = None


def _without_axis(tensor: Tensor) -> Tensor:
    return tensor[0] if len(tensor) == 1 else tensor


class _Linear:
    """outputs = Wᵀ inputs + b, and from the slope of the outputs all other slopes."""

    def __init__(
        self,
        weight: _Variable,  # (K, m, k)
        bias: _Variable,  # (K, 1, k)
        inputs: Tensor,  # (K, m, batch)
        outputs: Tensor,  # (K, k, batch)
        slope: Tensor,  # (K, k, batch), of the loss along the outputs
        slope_of_inputs: Tensor | None,  # (K, m, batch)
    ) -> None:
        one = len(outputs) == 1
        self.multiply = torch.mm if one else torch.bmm
        self.multiply_add = torch.addmm if one else torch.baddbmm
        self.weight, self.weight_gradient = map(_without_axis, weight)
        self.bias, self.bias_gradient = (_without_axis(b).mT for b in bias)
        self.inputs, self.outputs = _without_axis(inputs), _without_axis(outputs)
        self.slope = _without_axis(slope)
        self.slope_of_inputs = (
            None if slope_of_inputs is None else _without_axis(slope_of_inputs)
        )
        self._transposed = self.weight.mT, self.slope.mT

    def forward(self) -> None:
        weight, _ = self._transposed
        self.multiply_add(self.bias, weight, self.inputs, out=self.outputs)

    def backward(self) -> None:
        _, slope = self._transposed
        self.multiply(self.inputs, slope, out=self.weight_gradient)
        torch.sum(self.slope, -1, keepdim=True, out=self.bias_gradient)
        if self.slope_of_inputs is not None:
            self.multiply(self.weight, self.slope, out=self.slope_of_inputs)


class _First:
    """First layer of the members that share a view: its inputs, factors, products."""

    def __init__(
        self,
        layer: FirstLayer,
        inputs: Tensor,  # (k, batch, p), encoded
        outputs: Tensor,  # (k, units, batch)
        slope: Tensor,  # (k, units, batch)
    ) -> None:
        self.rate = layer.scaling_rate
        self.weight = self.scaled = _variable(layer.weight)
        self.factor = self.sines = None
        seen = inputs[..., : layer.n_inputs].mT
        if layer.factor is not None:
            self.factor = _variable(layer.factor)
            self.scaled = _Variable(*map(torch.empty_like, self.weight))
        if layer.frequency is not None:
            self.sines = _Sines(layer, inputs)
            seen = self.sines.inputs
        self.linear = _Linear(
            self.scaled,
            _variable(layer.bias),
            seen,
            outputs,
            slope,
            None if self.sines is None else self.sines.slope,
        )

    def forward(self) -> None:
        if self.sines is not None:
            self.sines.forward()
        if self.factor is not None:
            self._scale(self.weight.value, self.scaled.value, self.factor.value)
        self.linear.forward()

    def backward(self) -> None:
        self.linear.backward()
        if self.factor is not None:
            gradient, factor = self.scaled.gradient, self.factor
            self._scale(gradient, self.weight.gradient, factor.value)
            gradient.mul_(self.weight.value)
            torch.sum(gradient, -1, keepdim=True, out=factor.gradient).mul_(self.rate)
        if self.sines is not None:
            self.sines.backward()

    def _scale(self, weight: Tensor, out: Tensor, factor: Tensor) -> None:
        """W ⊙ (1 + rate · factor)."""
        torch.addcmul(weight, weight, factor, value=self.rate, out=out)


class _Sines:
    """Inputs of the view "periodic": features, and sines and cosines of multiples."""

    def __init__(self, layer: FirstLayer, inputs: Tensor) -> None:
        members, batch, _ = inputs.shape
        self.frequency = _variable(layer.frequency)
        raw = layer.n_raw
        self.raw = inputs[..., :raw].mT  # (k, p, batch)
        self.inputs = inputs.new_empty(members, layer.n_inputs, batch)
        self.slope = torch.empty_like(self.inputs)
        self.copy = self.inputs[:, :raw]
        self.sine, self.cosine = self.inputs[:, raw:].chunk(2, dim=1)
        self.angle = torch.empty_like(self.sine)
        self.slopes = self.slope[:, raw:].chunk(2, dim=1)
        self.by_feature = self.angle.view(members, raw, -1, batch)

    def forward(self) -> None:
        self.copy.copy_(self.raw)
        torch.mul(
            self.copy[:, :, None], self.frequency.value[..., None], out=self.by_feature
        )
        torch.sin(self.angle, out=self.sine)
        torch.cos(self.angle, out=self.cosine)

    def backward(self) -> None:
        along_sine, along_cosine = self.slopes
        torch.mul(along_sine, self.cosine, out=self.angle)
        self.angle.addcmul_(along_cosine, self.sine, value=-1)
        self.by_feature.mul_(self.copy[:, :, None])
        torch.sum(self.by_feature, -1, out=self.frequency.gradient)


class Backpropagation:
    """Forward and backward pass over batches of one size.

    ``take`` rows and call; the gradient of the sum of the members' losses is then in
    ``parameters.gradient``.
    """

    def __init__(
        self,
        network: HeteroscedasticNetwork,
        parameters: FlatParameters,
        batch_size: int,
        beta: float,  # of the β-NLL
    ) -> None:
        def empty(*shape: int) -> Tensor:
            return parameters.weights.new_empty(network.n_members, *shape)

        sizes = network.layer_sizes
        self.inputs = empty(batch_size, network.encoding.n_outputs)
        self.target = empty(batch_size)
        self._rows = self.inputs.flatten(0, 1), self.target.flatten()
        self.before = [empty(size, batch_size) for size in sizes]
        self.after = [empty(size, batch_size) for size in sizes]
        self.slopes = [empty(size, batch_size) for size in sizes]
        self.out, self.out_slope = empty(2, batch_size), empty(2, batch_size)
        self.first = [
            _First(first, self.inputs[k], self.before[0][k], self.slopes[0][k])  # type: ignore[arg-type]
            for first, k in zip(network.first, network.members_by_view(), strict=True)
        ]
        layers = [(_variable(m.weight), _variable(m.bias)) for m in network.trunk]
        self.linear = [
            _Linear(*variables, inputs, outputs, slope, slope_of_inputs)
            for variables, inputs, outputs, slope, slope_of_inputs in zip(
                [*layers, parameters.heads],
                self.after,
                [*self.before[1:], self.out],
                [*self.slopes[1:], self.out_slope],
                self.slopes,
                strict=True,
            )
        ]
        self.floor, self.beta = network.variance_floor, beta
        self.share = torch.full_like(self.target, 0.5 / batch_size)

    def take(self, X: Tensor, y: Tensor, batch: Tensor) -> None:
        """Fill ``inputs`` and ``target`` with the rows of each member, (K, batch)."""
        chosen = batch.flatten()
        for source, rows in zip((X, y), self._rows, strict=True):
            torch.index_select(source, 0, chosen, out=rows)

    def __call__(
        self,
        weight: Tensor | None,  # (K, batch), of the rows
        masks: Sequence[Tensor] = (),  # (K, batch, units) of every layer, for dropout
    ) -> Tensor:  # (K,)
        """Loss of each member."""
        for first in self.first:
            first.forward()
        for i, linear in enumerate(self.linear):
            _silu(self.before[i], out=self.after[i])
            if masks:
                self.after[i].mul_(masks[i].mT)
            linear.forward()
        loss = self._loss(weight)
        for i, linear in reversed(list(enumerate(self.linear))):
            linear.backward()
            slope = self.slopes[i]
            if masks:
                slope.mul_(masks[i].mT)
            _silu_backward(slope, self.before[i], grad_input=slope)
        for first in self.first:
            first.backward()
        return loss

    def _loss(self, weight: Tensor | None) -> Tensor:
        """Loss from ``out``, its slope along ``out`` into ``out_slope``.

        With e = (μ − y)/h² and row weights c = ½ h²ᵝ/batch, taken as constants, the
        loss is Σ c[log h² + (μ − y)e], its slopes are 2ce along μ and c(1/h² − e²)
        along h².
        """
        mu, raw = self.out.unbind(1)
        slope_mu, slope_raw = self.out_slope.unbind(1)
        h2 = softplus(raw).add_(self.floor)
        gap = mu - self.target
        precision = h2.reciprocal()
        e = gap * precision
        share = self.share
        if self.beta:
            share = h2.pow(self.beta).mul_(share)
        if weight is not None:
            share = share * weight
        torch.mul(e, share, out=slope_mu).mul_(2)
        loss = gap.mul_(e).add_(h2.log_()).mul_(share).sum(1)
        slope_h2 = precision.addcmul_(e, e, value=-1).mul_(share)
        _softplus_backward(
            slope_h2, raw, SOFTPLUS_BETA, SOFTPLUS_THRESHOLD, grad_input=slope_raw
        )
        return loss
