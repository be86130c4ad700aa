"""Encoded inputs → what a member sees of them: a class per view.

A view owns its size, its forward pass and, in training, its backward pass. A new view
needs ``forward`` only: without a written-out gradient autograd serves.
"""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .encoding import PiecewiseLinearEncoding

N_FREQUENCIES = 4  # of each feature
FREQUENCY_SPREAD = 0.6 * math.pi  # radians per standard deviation of the feature


class View(nn.Module):
    """What the members that share a view see of encoded inputs."""

    name: ClassVar[str]
    n_inputs: int  # of the first layer
    n_started: int  # inputs whose weights start at random; the others start at zero

    def __init__(self, encoding: PiecewiseLinearEncoding, n_members: int) -> None:
        super().__init__()
        self.n_raw, self.n_members = encoding.n_raw, n_members

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Draw the initial parameters, if there are any."""

    def steps(self, inputs: Tensor) -> "ViewSteps":  # (k, batch, p), filled in steps
        """Both passes over batches of one size, for training."""
        return ViewSteps(self, inputs)


class ViewSteps:
    """Forward and backward pass of a view into given memory, by autograd."""

    inputs: Tensor  # (k, n_inputs, batch), of the first layer
    grad: Tensor | None  # of the loss along them; None if nothing asks for it

    def __init__(self, view: View, source: Tensor) -> None:
        self.view, self.source = view, source
        self.parameters = list(view.parameters())
        members, batch, _ = source.shape
        self.inputs = source.new_empty(members, view.n_inputs, batch)
        self.grad = torch.empty_like(self.inputs) if self.parameters else None

    def forward(self) -> None:
        """Fill ``inputs`` from the rows in memory."""
        with torch.enable_grad():
            self._seen = self.view(self.source).mT
        self.inputs.copy_(self._seen.detach())

    def backward(self) -> None:
        """Fill the gradients of the parameters from ``grad``."""
        if self.grad is not None:
            found = torch.autograd.grad(self._seen, self.parameters, self.grad)
            for p, gradient in zip(self.parameters, found, strict=True):
                p.grad.copy_(gradient)  # type: ignore[union-attr]


class _FirstColumns(View):
    """The first columns of the encoding, as they are."""

    def forward(self, x: Tensor) -> Tensor:  # (k, n, p) → (k, n, n_inputs)
        """Leave out what lies behind them."""
        return x[..., : self.n_inputs]

    def steps(self, inputs: Tensor) -> ViewSteps:
        """No work at all: the layer reads the rows where they are."""
        return _FirstColumnsSteps(self, inputs)


class _FirstColumnsSteps(ViewSteps):
    def __init__(self, view: View, source: Tensor) -> None:
        self.inputs, self.grad = source[..., : view.n_inputs].mT, None

    def forward(self) -> None:
        pass

    def backward(self) -> None:
        pass


class BinsView(_FirstColumns):
    """The features and their bins, whose weights start at zero."""

    name = "bins"

    def __init__(self, encoding: PiecewiseLinearEncoding, n_members: int) -> None:
        super().__init__(encoding, n_members)
        self.n_inputs, self.n_started = encoding.n_outputs, encoding.n_raw


class RawView(_FirstColumns):
    """The features alone."""

    name = "raw"

    def __init__(self, encoding: PiecewiseLinearEncoding, n_members: int) -> None:
        super().__init__(encoding, n_members)
        self.n_inputs = self.n_started = encoding.n_raw


class PeriodicView(View):
    """The features, and sines and cosines of numbers with learned frequencies."""

    name = "periodic"

    def __init__(self, encoding: PiecewiseLinearEncoding, n_members: int) -> None:
        super().__init__(encoding, n_members)
        self.n_numbers = encoding.n_numbers
        n_waves = 2 * N_FREQUENCIES * self.n_numbers
        self.n_inputs = self.n_started = self.n_raw + n_waves
        shape = (n_members, self.n_numbers, N_FREQUENCIES)
        self.frequency = nn.Parameter(torch.empty(shape, dtype=torch.float32))

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Normal frequencies."""
        with torch.no_grad():
            self.frequency.normal_(0.0, FREQUENCY_SPREAD, generator=generator)

    def forward(self, x: Tensor) -> Tensor:  # (k, n, p) → (k, n, n_inputs)
        """Features, sines, cosines."""
        raw = x[..., : self.n_raw].mT  # (k, p, n)
        numbers = raw[:, : self.n_numbers]
        angle = (numbers.unsqueeze(2) * self.frequency.unsqueeze(-1)).flatten(1, 2)
        return torch.cat([raw, angle.sin(), angle.cos()], dim=1).mT

    def steps(self, inputs: Tensor) -> ViewSteps:
        """The gradient written out."""
        return _PeriodicSteps(self, inputs)


class _PeriodicSteps(ViewSteps):
    def __init__(self, view: PeriodicView, source: Tensor) -> None:
        super().__init__(view, source)
        members, batch, _ = source.shape
        raw, numbers = view.n_raw, view.n_numbers
        self.frequency: Any = view.frequency
        self.raw = source[..., :raw].mT  # (k, p, batch)
        self.copy = self.inputs[:, :raw]
        half = raw + numbers * N_FREQUENCIES
        self.sine, self.cosine = self.inputs[:, raw:half], self.inputs[:, half:]
        self.angle = torch.empty_like(self.sine)
        grad: Any = self.grad
        self.grads = grad[:, raw:half], grad[:, half:]
        self.numbers = self.copy[:, :numbers, None]
        self.by_feature = self.angle.view(members, numbers, N_FREQUENCIES, batch)

    def forward(self) -> None:
        self.copy.copy_(self.raw)
        torch.mul(
            self.numbers,
            self.frequency.data[..., None],
            out=self.by_feature,
        )
        torch.sin(self.angle, out=self.sine)
        torch.cos(self.angle, out=self.cosine)

    def backward(self) -> None:
        along_sine, along_cosine = self.grads
        torch.mul(along_sine, self.cosine, out=self.angle)
        self.angle.addcmul_(along_cosine, self.sine, value=-1)
        self.by_feature.mul_(self.numbers)
        torch.sum(self.by_feature, -1, out=self.frequency.grad)


VIEW_CLASSES: dict[str, type[View]] = {
    cls.name: cls for cls in (BinsView, PeriodicView, RawView)
}
VIEWS = tuple(VIEW_CLASSES)  # names, in the order of the default


def members_per_view(n_members: int, n_views: int) -> list[int]:
    """Members of each view: as equal as can be, the first views first."""
    return [(n_members + n_views - 1 - i) // n_views for i in range(n_views)]
