"""Loss of a batch and its gradient, for all members at once, written out.

In networks this small autograd takes 1.8 ms a step where this takes 0.5 ms. All buffers
are laid out once, and a step only fills them. Tensors have units first and rows last,
(K, units, batch); one member does without the axis of members, which is faster.
"""

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from .ensemble import FirstLayer, HeteroscedasticNetwork

# Forms of torch's functions that write into a given tensor.
_silu = torch.ops.aten.silu.out
_silu_backward = torch.ops.aten.silu_backward.grad_input
_softplus_backward = torch.ops.aten.softplus_backward.grad_input
SOFTPLUS_BETA, SOFTPLUS_THRESHOLD = 1.0, 20.0  # torch's defaults


class FlatParameters:
    """All weights of a network, their gradient and AdamW's moments, as flat tensors.

    The network's parameters and their ``grad`` become views of these tensors, so that
    the optimizer acts on one tensor.
    """

    state: Tensor  # (3, n): weights, first moment, second moment
    grad: Tensor  # (n,)
    positions: list[Tensor]  # of each member's weights among the n

    def __init__(self, network: HeteroscedasticNetwork) -> None:
        self.network, of_members = network, network.parameters_of_members()
        weights = torch.cat([p.detach().flatten() for p, _ in of_members])
        self.state = weights.new_zeros(3, len(weights))
        self.state[0] = weights
        self.grad = torch.zeros_like(weights)
        numbers = torch.arange(len(weights), device=weights.device)
        positions: list[list[Tensor]] = [[] for _ in range(network.n_members)]
        start = 0
        for p, members in of_members:
            part = slice(start, start + p.numel())
            start = part.stop
            p.data = self.state[0, part].view_as(p)
            p.grad = self.grad[part].view_as(p)
            for own, row in zip(
                positions[members], numbers[part].view_as(p), strict=True
            ):
                own.append(row.flatten())
        self.positions = [torch.cat(own) for own in positions]

    def release(self) -> None:
        """Give the parameters memory of their own again, and no gradient."""
        for p in self.network.parameters():
            p.data, p.grad = p.data.clone(), None


class _Variable(NamedTuple):
    """Weights, and where their gradient goes."""

    value: Tensor
    grad: Tensor

    @classmethod
    def of(cls, parameter: nn.Parameter) -> "_Variable":
        return cls(parameter.data, cast(Tensor, parameter.grad))


class _Linear:
    """outputs = Wᵀ inputs + b, and from the gradient of the outputs all others."""

    def __init__(
        self,
        weight: _Variable,  # (K, m, k)
        bias: _Variable,  # (K, 1, k)
        inputs: Tensor,  # (K, m, batch)
        outputs: Tensor,  # (K, k, batch)
        grad: Tensor,  # (K, k, batch), along the outputs
        grad_of_inputs: Tensor | None,  # (K, m, batch)
    ) -> None:
        one = len(outputs) == 1

        def squeezed(tensor: Tensor) -> Tensor:
            return tensor[0] if one else tensor

        self.multiply = torch.mm if one else torch.bmm
        self.multiply_add = torch.addmm if one else torch.baddbmm
        self.weight, self.weight_grad = map(squeezed, weight)
        self.bias, self.bias_grad = (squeezed(b).mT for b in bias)
        self.inputs, self.outputs = squeezed(inputs), squeezed(outputs)
        self.grad, self.grad_of_inputs = squeezed(grad), None
        if grad_of_inputs is not None:
            self.grad_of_inputs = squeezed(grad_of_inputs)
        self.weight_transposed, self.grad_transposed = self.weight.mT, self.grad.mT

    def forward(self) -> None:
        self.multiply_add(
            self.bias, self.weight_transposed, self.inputs, out=self.outputs
        )

    def backward(self) -> None:
        self.multiply(self.inputs, self.grad_transposed, out=self.weight_grad)
        torch.sum(self.grad, -1, keepdim=True, out=self.bias_grad)
        if self.grad_of_inputs is not None:
            self.multiply(self.weight, self.grad, out=self.grad_of_inputs)


class _ActivatedLinear(_Linear):
    """The same of silu(before), as in all layers but the first."""

    def __init__(
        self,
        weight: _Variable,
        bias: _Variable,
        before: Tensor,  # (K, m, batch)
        outputs: Tensor,
        grad: Tensor,
        grad_before: Tensor,  # (K, m, batch), of the loss along ``before``
    ) -> None:
        inputs = torch.empty_like(before)
        super().__init__(weight, bias, inputs, outputs, grad, grad_before)
        self.before, self.after, self.grad_before = before, inputs, grad_before

    def forward(self) -> None:
        _silu(self.before, out=self.after)
        super().forward()

    def backward(self) -> None:
        super().backward()
        _silu_backward(self.grad_before, self.before, grad_input=self.grad_before)


class _Waves:
    """Inputs of the view "periodic": columns, sines and cosines of the numbers."""

    def __init__(
        self,
        frequency: nn.Parameter,  # (k, numbers, frequencies)
        rows: Tensor,  # (k, batch, p), encoded
        n_inputs: int,
        n_columns: int,
    ) -> None:
        members, batch, _ = rows.shape
        self.frequency = _Variable.of(frequency)
        self.columns = rows[..., :n_columns].mT
        self.inputs = rows.new_empty(members, n_inputs, batch)
        self.grad = torch.empty_like(self.inputs)
        sizes = [n_columns, *[(n_inputs - n_columns) // 2] * 2]
        self.copy, self.sine, self.cosine = self.inputs.split(sizes, dim=1)
        _, self.grad_sine, self.grad_cosine = self.grad.split(sizes, dim=1)
        self.angle = torch.empty_like(self.sine)
        self.numbers = self.copy[:, : frequency.shape[1], None]
        self.by_number = self.angle.view(*frequency.shape, batch)
        self.factor = self.frequency.value[..., None]

    def forward(self) -> None:
        self.copy.copy_(self.columns)
        torch.mul(self.numbers, self.factor, out=self.by_number)
        torch.sin(self.angle, out=self.sine)
        torch.cos(self.angle, out=self.cosine)

    def backward(self) -> None:
        torch.mul(self.grad_sine, self.cosine, out=self.angle)
        self.angle.addcmul_(self.grad_cosine, self.sine, value=-1)
        self.by_number.mul_(self.numbers)
        torch.sum(self.by_number, -1, out=self.frequency.grad)


class _FirstLayer:
    """First layer of the members that share a view: inputs, factors, product."""

    def __init__(
        self,
        layer: FirstLayer,
        rows: Tensor,  # (k, batch, p), encoded
        outputs: Tensor,  # (k, units, batch)
        grad: Tensor,  # (k, units, batch)
    ) -> None:
        self.rate = layer.scaling_rate
        self.weight = self.scaled = _Variable.of(layer.weight)
        self.factor = self.waves = None
        if layer.factor is not None:
            self.factor = _Variable.of(layer.factor)
            self.scaled = _Variable(*map(torch.empty_like, self.weight))
        n_inputs, grad_of_inputs = layer.weight.shape[1], None
        inputs = rows[..., :n_inputs].mT
        if layer.frequency is not None:
            self.waves = _Waves(layer.frequency, rows, n_inputs, layer.n_columns)
            inputs, grad_of_inputs = self.waves.inputs, self.waves.grad
        bias = _Variable.of(layer.bias)
        self.linear = _Linear(self.scaled, bias, inputs, outputs, grad, grad_of_inputs)

    def forward(self) -> None:
        if self.waves is not None:
            self.waves.forward()
        if self.factor is not None:
            self._scale(self.weight.value, self.factor.value, self.scaled.value)
        self.linear.forward()

    def backward(self) -> None:
        self.linear.backward()
        if self.factor is not None:
            grad = self.scaled.grad
            self._scale(grad, self.factor.value, self.weight.grad)
            grad.mul_(self.weight.value)
            torch.sum(grad, -1, keepdim=True, out=self.factor.grad).mul_(self.rate)
        if self.waves is not None:
            self.waves.backward()

    def _scale(self, weight: Tensor, factor: Tensor, out: Tensor) -> None:
        """W ⊙ (1 + rate · factor)."""
        torch.addcmul(weight, weight, factor, value=self.rate, out=out)


class LossAndGradient:
    """β-NLL and its gradient over batches of one size.

    The β-NLL is the Gaussian likelihood with rows weighted by h²ᵝ, which counts as
    constant. Fill ``inputs``, ``target`` and ``share`` and call; the gradient of the
    sum of the members' losses is then in the ``grad`` of the parameters, which
    ``FlatParameters`` has laid out.
    """

    inputs: Tensor  # (K, batch, p), encoded
    target: Tensor  # (K, batch)
    share: Tensor  # (K, batch), weight of each row in its member's loss; 1 / batch

    def __init__(
        self, network: HeteroscedasticNetwork, batch_size: int, beta: float
    ) -> None:
        def empty(*shape: int) -> Tensor:
            return network.heads.weight.data.new_empty(network.n_members, *shape)

        self.beta, self.variance_floor = beta, network.variance_floor
        self.inputs = empty(batch_size, network.encoding.n_outputs)
        self.target = empty(batch_size)
        self.share = torch.full_like(self.target, 1 / batch_size)
        shapes = [(size, batch_size) for size in network.layer_sizes]
        before = [empty(*shape) for shape in shapes]
        grads = [empty(*shape) for shape in shapes]
        out, out_grad = empty(2, batch_size), empty(2, batch_size)
        self.heads = out.unbind(1), out_grad.unbind(1)  # mean, and noise
        self.layers: list[_FirstLayer | _Linear] = [
            _FirstLayer(first, self.inputs[k], before[0][k], grads[0][k])
            for first, k in zip(network.first, network.members_by_view(), strict=True)
        ]
        self.layers += [
            _ActivatedLinear(
                _Variable.of(layer.weight), _Variable.of(layer.bias), *parts
            )
            for layer, *parts in zip(
                [*network.trunk, network.heads],
                before,
                [*before[1:], out],
                [*grads[1:], out_grad],
                grads,
                strict=True,
            )
        ]

    def __call__(self) -> Tensor:  # (K,)
        """Loss of each member over its rows."""
        for layer in self.layers:
            layer.forward()
        loss = self._beta_nll()
        for layer in reversed(self.layers):
            layer.backward()
        return loss

    def _beta_nll(self) -> Tensor:  # (K,)
        """With e = (μ − y)/h² and c = ½ share · h²ᵝ the loss is Σ c[log h² + (μ − y)e].

        Its gradient is 2ce along μ and c(1/h² − e²) along h².
        """
        (mu, raw), (grad_mu, grad_raw) = self.heads
        h2 = softplus(raw).add_(self.variance_floor)
        gap = mu - self.target
        precision = h2.reciprocal()
        e = gap * precision
        c = h2.pow(self.beta).mul_(self.share).mul_(0.5)
        torch.mul(e, c, out=grad_mu).mul_(2)
        loss = gap.mul_(e).add_(h2.log_()).mul_(c).sum(1)
        grad_h2 = precision.addcmul_(e, e, value=-1).mul_(c)
        _softplus_backward(
            grad_h2, raw, SOFTPLUS_BETA, SOFTPLUS_THRESHOLD, grad_input=grad_raw
        )
        return loss
