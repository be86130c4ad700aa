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

from .ensemble import FirstLayer, HeteroscedasticNetwork
from .losses import Loss

# Forms of torch's functions that write into a given tensor.
_silu = torch.ops.aten.silu.out
_silu_backward = torch.ops.aten.silu_backward.grad_input


class _Variable(NamedTuple):
    """Weights, and where their gradient goes."""

    value: Tensor
    grad: Tensor


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
        self.grad = torch.zeros_like(self.weights)
        self._lay_out(parameters)
        self.grads = [(_variable(p).grad, k) for p, k in self.of_members]
        members, size, _ = last[0].shape
        both = [2 * members * size, 2 * members]
        weight, bias = (
            _Variable(*(part.view(2, members, -1).permute(1, 2, 0) for part in parts))
            for parts in zip(
                self.weights[-sum(both) :].split(both),
                self.grad[-sum(both) :].split(both),
                strict=True,
            )
        )
        self.heads = weight, bias  # (K, d, 2), (K, 1, 2)

    def _lay_out(self, parameters: Sequence[nn.Parameter]) -> None:
        start, self._parts = 0, {}
        for p in parameters:
            part = slice(start, start + p.numel())
            p.data = self.weights[part].view_as(p)
            p.grad = self.grad[part].view_as(p)
            start, self._parts[p] = part.stop, part

    def of_member(self, flat: Tensor, member: int) -> list[Tensor]:
        """What belongs to a member of a tensor laid out as the weights are; views.

        In the order of ``HeteroscedasticNetwork.weights_of_member``.
        """
        return [
            flat[self._parts[p]].view_as(p)[member - k.start]
            for p, k in self.of_members
            if k.start <= member < k.stop
        ]


def _without_axis(tensor: Tensor) -> Tensor:
    return tensor[0] if len(tensor) == 1 else tensor


class _Linear:
    """outputs = Wᵀ inputs + b, and from the gradient of the outputs all others."""

    def __init__(
        self,
        weight: _Variable,  # (K, m, k)
        bias: _Variable,  # (K, 1, k)
        inputs: Tensor,  # (K, m, batch)
        outputs: Tensor,  # (K, k, batch)
        grad: Tensor,  # (K, k, batch), of the loss along the outputs
        grad_of_inputs: Tensor | None,  # (K, m, batch)
    ) -> None:
        one = len(outputs) == 1
        self.multiply = torch.mm if one else torch.bmm
        self.multiply_add = torch.addmm if one else torch.baddbmm
        self.weight, self.weight_grad = map(_without_axis, weight)
        self.bias, self.bias_grad = (_without_axis(b).mT for b in bias)
        self.inputs, self.outputs = _without_axis(inputs), _without_axis(outputs)
        self.grad = _without_axis(grad)
        self.grad_of_inputs = (
            None if grad_of_inputs is None else _without_axis(grad_of_inputs)
        )
        self._transposed = self.weight.mT, self.grad.mT

    def forward(self) -> None:
        weight, _ = self._transposed
        self.multiply_add(self.bias, weight, self.inputs, out=self.outputs)

    def backward(self) -> None:
        _, grad = self._transposed
        self.multiply(self.inputs, grad, out=self.weight_grad)
        torch.sum(self.grad, -1, keepdim=True, out=self.bias_grad)
        if self.grad_of_inputs is not None:
            self.multiply(self.weight, self.grad, out=self.grad_of_inputs)


class _First:
    """First layer of the members that share a view: its inputs, factors, products."""

    def __init__(
        self,
        layer: FirstLayer,
        inputs: Tensor,  # (k, batch, p), encoded
        outputs: Tensor,  # (k, units, batch)
        grad: Tensor,  # (k, units, batch)
    ) -> None:
        self.rate = layer.scaling_rate
        self.weight = self.scaled = _variable(layer.weight)
        self.factor = None
        if layer.factor is not None:
            self.factor = _variable(layer.factor)
            self.scaled = _Variable(*map(torch.empty_like, self.weight))
        self.seen = layer.view.steps(inputs)
        self.linear = _Linear(
            self.scaled,
            _variable(layer.bias),
            self.seen.inputs,
            outputs,
            grad,
            self.seen.grad,
        )

    def forward(self) -> None:
        self.seen.forward()
        if self.factor is not None:
            self._scale(self.weight.value, self.scaled.value, self.factor.value)
        self.linear.forward()

    def backward(self) -> None:
        self.linear.backward()
        if self.factor is not None:
            grad, factor = self.scaled.grad, self.factor
            self._scale(grad, self.weight.grad, factor.value)
            grad.mul_(self.weight.value)
            torch.sum(grad, -1, keepdim=True, out=factor.grad).mul_(self.rate)
        self.seen.backward()

    def _scale(self, weight: Tensor, out: Tensor, factor: Tensor) -> None:
        """W ⊙ (1 + rate · factor)."""
        torch.addcmul(weight, weight, factor, value=self.rate, out=out)


class LossAndGradient:
    """Forward and backward pass over batches of one size.

    Fill ``rows`` and call; the gradient of the sum of the members' losses is then in
    ``parameters.grad``.
    """

    def __init__(
        self,
        network: HeteroscedasticNetwork,
        parameters: FlatParameters,
        batch_size: int,
        loss: Loss,
    ) -> None:
        def empty(*shape: int) -> Tensor:
            return parameters.weights.new_empty(network.n_members, *shape)

        sizes = network.layer_sizes
        self.inputs = empty(batch_size, network.encoding.n_outputs)
        self.target = empty(batch_size)
        self.rows = self.inputs.flatten(0, 1), self.target.flatten()
        self.before = [empty(size, batch_size) for size in sizes]
        self.after = [empty(size, batch_size) for size in sizes]
        self.grads = [empty(size, batch_size) for size in sizes]
        self.out, self.out_grad = empty(2, batch_size), empty(2, batch_size)
        self.first = [
            _First(first, self.inputs[k], self.before[0][k], self.grads[0][k])  # type: ignore[arg-type]
            for first, k in zip(network.first, network.members_by_view(), strict=True)
        ]
        layers = [(_variable(m.weight), _variable(m.bias)) for m in network.trunk]
        self.linear = [
            _Linear(*variables, inputs, outputs, grad, grad_of_inputs)
            for variables, inputs, outputs, grad, grad_of_inputs in zip(
                [*layers, parameters.heads],
                self.after,
                [*self.before[1:], self.out],
                [*self.grads[1:], self.out_grad],
                self.grads,
                strict=True,
            )
        ]
        self.loss = loss
        self.share = torch.full_like(self.target, 1 / batch_size)

    def __call__(
        self,
        weight: Tensor | None,  # (K, batch), of the rows
        masks: Sequence[Tensor] = (),  # (K, batch, units) of every layer, for dropout
    ) -> Tensor:  # (K,)
        """Mean loss of each member over its rows."""
        for first in self.first:
            first.forward()
        for i, linear in enumerate(self.linear):
            _silu(self.before[i], out=self.after[i])
            if masks:
                self.after[i].mul_(masks[i].mT)
            linear.forward()
        share = self.share if weight is None else self.share * weight
        loss = self.loss.with_gradient(self.out, self.target, share, self.out_grad)
        for i, linear in reversed(list(enumerate(self.linear))):
            linear.backward()
            grad = self.grads[i]
            if masks:
                grad.mul_(masks[i].mT)
            _silu_backward(grad, self.before[i], grad_input=grad)
        for first in self.first:
            first.backward()
        return loss
