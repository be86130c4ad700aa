"""Changes of the default recipe that are no parameters, for ``benchmarks tradeoff``.

Each is a context: while it lasts, one named place of the package does something else,
and models are fitted as usual.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from .. import ClapsRegressor
from ..estimators import ensemble_training
from ..network import defaults, gradient, optimizer, trainer, units
from ..network.ensemble import HeteroscedasticNetwork
from ..network.hold_out import Rows
from ..posterior import prior, scales
from ..posterior.gaussian import make_posterior
from ..posterior.members import fit_last_layers

ACTIVATION_RATE = 0.1  # of the weights' learning rate, as in RealMLP


def times_steps(factor: float) -> Any:
    """Another number of steps than the rule's."""
    rule = defaults.max_steps
    return patch.object(defaults, "max_steps", lambda n: round(factor * rule(n)))


def prior_of_each_view() -> Any:
    """λ for the members of each view, by the held-out likelihood of that view."""

    def choose(rule: Any, *rest: Any) -> Any:
        moments, trained, last_layer, held_out, views = rest
        if rule != "grid" or held_out is None:
            return prior.choose_prior_precision(rule, *rest)
        grid = torch.tensor(prior.PRIOR_PRECISION_GRID, dtype=trained.dtype)
        make = partial(make_posterior, moments, trained, last_layer)
        nll = [prior.nll_of_views(make(float(v)), held_out, views) for v in grid]
        best = grid[torch.stack(nll).argmin(0)]
        sizes = torch.tensor([view.stop - view.start for view in views])
        return best.repeat_interleave(sizes)[:, None, None]

    return patch.object(scales, "choose_prior_precision", choose)


class ParametricNetwork(HeteroscedasticNetwork):
    """Activation x + a(silu(x) − x) with an a for each unit, which starts at one."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        shapes = [(self.n_members, size, 1) for size in self.layer_sizes]
        self.bend = nn.ParameterList(nn.Parameter(torch.zeros(s)) for s in shapes)

    def parameters_of_members(self) -> list[tuple[nn.Parameter, slice]]:
        """With the activations'."""
        everyone = slice(0, self.n_members)
        return [(p, everyone) for p in self.bend] + super().parameters_of_members()

    def features(self, x: Tensor) -> Tensor:
        """φ(x)."""
        parts = zip(self.first, self.members_by_view(), strict=True)
        phi = torch.cat([f(x if x.ndim == 2 else x[part]) for f, part in parts])
        for i, bend in enumerate(self.bend):
            phi = self.trunk[i - 1](phi) if i else phi
            phi = torch.lerp(phi, silu(phi), 1 + ACTIVATION_RATE * bend.mT)
        return phi


class ParametricGradient(gradient.LossAndGradient):
    """The gradient of a :class:`ParametricNetwork`; without dropout."""

    def __init__(self, network: Any, *arguments: Any) -> None:
        super().__init__(network, *arguments)
        self.bend = [(p.data, p.grad) for p in network.bend]

    def __call__(self, weight: Tensor | None, masks: Any = ()) -> Tensor:
        """Mean loss of each member over its rows."""
        for first in self.first:
            first.forward()
        for i, linear in enumerate(self.linear):
            before, a = self.before[i], 1 + ACTIVATION_RATE * self.bend[i][0]
            torch.lerp(before, silu(before), a, out=self.after[i])
            linear.forward()
        share = self.share if weight is None else self.share * weight
        loss = self.loss.with_gradient(self.out, self.target, share, self.out_grad)
        for i, linear in reversed(list(enumerate(self.linear))):
            linear.backward()
            (bend, bend_grad), grad = self.bend[i], self.grads[i]
            before, a = self.before[i], 1 + ACTIVATION_RATE * bend
            along_a = (grad * (silu(before) - before)).sum(-1, keepdim=True)
            bend_grad.copy_(ACTIVATION_RATE * along_a)
            curved = torch.ops.aten.silu_backward(grad * a, before)
            torch.add(grad * (1 - a), curved, out=grad)
        for first in self.first:
            first.backward()
        return loss


@contextmanager
def parametric_activations() -> Iterator[None]:
    """Networks that learn how far each unit is bent."""
    with (
        patch.object(ensemble_training, "HeteroscedasticNetwork", ParametricNetwork),
        patch.object(units, "LossAndGradient", ParametricGradient),
    ):
        yield


class _Recording(trainer._Trainer):
    """The last one can be asked when each member was best."""

    last: "_Recording"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        _Recording.last = self


class _Again(trainer._Trainer):
    """Ends each member at the evaluation that was its best before."""

    def __init__(self, best: list[int], *arguments: Any) -> None:
        super().__init__(*arguments)
        self.best = best

    def _evaluate(self, step: int, found: Any) -> None:
        super()._evaluate(step, found)
        for unit in self.units:
            unit.keep_best([self.best[k] == len(self.losses) - 1 for k in unit.members])

    def run(self) -> trainer.TrainingResult:
        result = super().run()
        for k, state in enumerate(self.states):
            weights = self.network.weights_of_member(k)
            for target, value in zip(weights, state.best, strict=True):
                target.copy_(value)
        return result


class RefittedRegressor(ClapsRegressor):
    """Networks trained again on all rows, each for as long as was best at first.

    λ, the weights of the members and the kernel are those of the first networks, which
    had rows held out.
    """

    def _fit(self, *arguments: Any) -> None:
        with patch.object(trainer, "_Trainer", _Recording):
            super()._fit(*arguments)

    def _fit_posterior(self, trained: Any, crew: Any) -> None:
        super()._fit_posterior(trained, crew)
        (X, y, weight, held_out), generator, _ = trained
        first, network = _Recording.last, self._new_network(X, generator)
        everyone = torch.arange(len(X)).expand(self.n_members, -1)
        data = replace(first.data, rows=Rows(everyone, everyone[:, :0]))
        config = replace(first.config, patience=None)
        best = torch.tensor(first.held_out).argmin(0).tolist()
        with torch.no_grad():
            _Again(best, network, data, config, generator).run()
        weights = self.model_.member_weight
        recipe = replace(
            self._recipe(), prior_precision=self.prior_precision_, member_weight=weights
        )
        self.network_ = network.double().eval().requires_grad_(False)
        self.model_, self.sums_, *_ = fit_last_layers(
            self.network_, X, y, weight, held_out[:, :0], self.hessian_structure, recipe
        )


#: What each changes: the class that is fitted, a context, parameters.
VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "Adam with β₂ = 0.95": {
        "context": lambda: patch.object(optimizer, "BETAS", (optimizer.BETAS[0], 0.95))
    },
    "parametric activations": {"context": parametric_activations},
    "refit at the best step": {"kind": RefittedRegressor},
    "members that stop": {"patience": "auto"},
    "a λ for each view": {"context": prior_of_each_view},
    "last layer of 128": {"representation_size": 128},
    "12 members, half the steps": {
        "n_members": 12,
        "context": lambda: times_steps(0.5),
    },
    "3 members, twice the steps": {"n_members": 3, "context": lambda: times_steps(2.0)},
}


def fit_variant(X: Any, y: Any, params: Any, seed: int, alpha: float) -> Any:
    """Fit the variant that ``params`` names."""
    options = {"kind": ClapsRegressor, "context": nullcontext, **params}
    options |= VARIANTS[options.pop("variant")]
    kind, context = options.pop("kind"), options.pop("context")
    with context():
        return kind(random_state=seed, **options).fit(X, y)
