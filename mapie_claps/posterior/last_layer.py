"""φ, h² → HᵀWH → Σ: last layers as laplace-torch sees them, and sums that add up.

Posterior precision, its factor, covariance and marginal likelihood are laplace-torch's.
Tensors are kept, not its objects, which do not pickle and hold a copy of the network:
``LastLayers.laplace`` loads them into a fitted object again.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils import skip_init
from torch.utils.data import DataLoader

from ..exceptions import NotPositiveDefiniteError, NumericalWarning
from ..network.ensemble import Features, HeteroscedasticNetwork
from ..network.training import Rows, gaussian_nll, one_thread

# Weight of a view ∝ exp(−SHARPNESS · held-out NLL per row of its members): worse by 0.1
# is a third of the weight, worse by 0.5 next to none.
SHARPNESS = 10.0
LEAST_WEIGHT = 0.1  # of a member whose residuals tell of the noise, by the mean weight
PRIOR_PRECISION_GRID = tuple(10.0**e for e in range(-5, 5))
PAPER_PRIOR_PRECISION, CONSTANT = 1.0, PRIOR_PRECISION_GRID[-1]  # a mean without slope
JITTER = (0.0, *(10.0**e for e in range(-15, -8)))  # of the largest diagonal entry
# Factor of the noise by held-out residuals: the level beyond which they are clipped,
# the rows that it takes to be believed by half, and its limits.
WILD_LEVEL, PRIOR_ROWS, LARGEST_FACTOR = 0.995, 50, 4.0
KEPT_ELEMENTS = 2**24  # of features; more are computed again in every pass
LARGEST = 1e150  # its square, and sums of such squares, are numbers


@dataclass(frozen=True)
class Spread:
    """Weight, mean and sum of squared deviations of one number per row."""

    weight: float = 0.0
    mean: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, values: Tensor, weight: Tensor) -> "Spread":  # (n,), (n,)
        """Spread of one batch."""
        total = float(weight.sum())
        if total == 0:
            return cls()
        if float(values.abs().max()) > LARGEST:
            raise ValueError(
                "Got y whose values overflow when squared. Divide them by a constant."
            )
        mean = float((weight * values).sum()) / total
        return cls(total, mean, float((weight * (values - mean).square()).sum()))

    def __add__(self, other: "Spread") -> "Spread":
        weight = self.weight + other.weight
        if weight == 0:
            return self
        step, share = other.mean - self.mean, other.weight / weight
        between = step**2 * self.weight * share
        squares = self.squares + other.squares + between
        return Spread(weight, self.mean + step * share, squares)

    @property
    def unit(self) -> float:
        """Standard deviation, or one if there is none."""
        if self.weight == 0:
            raise ValueError(
                "Got sample_weight that is zero in every row, but expected a positive "
                "weight in one at least."
            )
        return (self.squares / self.weight) ** 0.5 or 1.0


class FeatureRows(NamedTuple):
    """What the posterior needs of n rows, for each of K members."""

    phi: Tensor  # (K, n, d)
    h2: Tensor  # (K, n)
    residual: Tensor  # (K, n), of the trained mean
    target: Tensor  # (n,), or (K, n) where each member has rows of its own
    weight: Tensor  # likewise

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        network: nn.Module,
        x: Tensor,  # (n, ...), or (K, n, ...)
        y: Tensor,
        weight: Tensor,
    ) -> "FeatureRows":
        """One forward pass."""
        out = network(x)
        return cls(out.phi, out.h2, y - out.mu, y, weight)


@dataclass(frozen=True, eq=False)
class LastLayerSums:
    r"""Sums over rows from which a last layer's posterior is made, whatever λ is.

    ``a + b`` holds for the rows of both. Sums belong to one fit: those of another one
    are refused.

    Parameters
    ----------
    gram : Tensor of shape (K, d + 1, d + 1) or (K, d + 1)
        HᵀWH of each member, or its diagonal.
    cross : Tensor of shape (K, d + 1)
        HᵀWr with the residuals r of the trained mean: a correction of it is then no
        difference of large numbers.
    loss, squares : Tensor of shape (K,)
        ½Σ s[r²/h² + log h²], and Σ s r²/h².
    n_rows : int
        Number of rows.
    targets : Spread
        Weight, mean and squared deviations of the targets.
    residuals : Spread
        The same of the residuals of the mean in use when the rows were summed.
    fit_id : str
        Identity of the fit that the sums belong to.
    homoscedastic : bool, default=False
        Whether W = I, for the scale "posterior", in place of diag(1/h²).

    Examples
    --------
    >>> import numpy as np, torch
    >>> from mapie_claps import ClapsModule
    >>> X, y = np.linspace(-1, 1, 40).reshape(20, 2), np.linspace(0, 1, 20)
    >>> model = ClapsModule(torch.nn.Linear(2, 1), prior_precision=1.0).fit(X, y)
    >>> both = model.partial_sums(X[:12], y[:12]) + model.partial_sums(X[12:], y[12:])
    >>> both.n_rows, np.allclose(both.gram, model.sums_.gram)
    (20, True)
    """

    gram: Tensor
    cross: Tensor
    loss: Tensor
    squares: Tensor
    n_rows: int
    targets: Spread
    residuals: Spread
    fit_id: str
    homoscedastic: bool = False

    def __add__(self, other: "LastLayerSums") -> "LastLayerSums":
        mine = self.fit_id, self.homoscedastic
        if mine != (other.fit_id, other.homoscedastic):
            raise ValueError(
                "Got sums that belong to another fit, but only sums of one fit add up. "
                "Make them with partial_sums of one estimator, or of copies of it."
            )
        names = ["gram", "cross", "loss", "squares", "n_rows", "targets", "residuals"]
        added = {name: getattr(self, name) + getattr(other, name) for name in names}
        return replace(self, **added)

    def with_noise_factor(self, c: float) -> "LastLayerSums":
        """Sums of the same rows with c·h² in place of h²."""
        if self.homoscedastic:
            return self
        less = {k: getattr(self, k) / c for k in ("gram", "cross", "squares")}
        constant = self.targets.weight * math.log(c)
        loss = self.loss + 0.5 * (less["squares"] - self.squares + constant)
        return replace(self, loss=loss, **less)

    def residual_variance(self, floor: float) -> float:
        """σ², the mean squared residual, at least the floor."""
        found = self.residuals
        if found.weight == 0:
            return floor
        return max(found.squares / found.weight + found.mean**2, floor)


def sum_rows(
    batches: Iterable[FeatureRows],
    structure: str,
    homoscedastic: bool,
    fit_id: str,
    residual: "Callable[[FeatureRows], Tensor] | None" = None,  # (n,), of the mean
) -> LastLayerSums:
    """Sums over all batches, made by laplace-torch with our curvature backend.

    Its objects have a last layer of zeros, whose targets are residuals.
    """
    members: list[Any] = []
    gram = cross = loss = squares = torch.empty(0)
    targets = residuals = Spread()
    n_rows = 0
    for rows in batches:
        of_mean = rows.residual.mean(0) if residual is None else residual(rows)
        targets += Spread.of(rows.target, rows.weight)
        residuals += Spread.of(of_mean, rows.weight)
        n_rows += len(of_mean)
        if not members:
            n_members, _, size = rows.phi.shape
            loss = torch.zeros(n_members, dtype=torch.float64)
            squares = torch.zeros_like(loss)
            cross = loss.new_zeros(n_members, size + 1)
            axes = (size + 1,) * (2 if structure == "full" else 1)
            gram = loss.new_zeros(n_members, *axes)
            for zeros in cross:
                members.append(new_laplace(zeros, structure))
        weight = rows.weight.expand_as(rows.h2)
        h2 = torch.ones_like(rows.h2) if homoscedastic else rows.h2
        columns = torch.stack([rows.residual, weight, h2], dim=-1)
        for k, la in enumerate(members):
            batch: Any = [(rows.phi[k], columns[k])]
            # A generator of its own: the global one is not ours to draw from.
            generator = torch.Generator()
            la.fit(DataLoader(batch, batch_size=None, generator=generator))
            gram[k] += la.H
            loss[k] += la.loss
        pull = weight * rows.residual / h2
        cross[:, :-1] += (pull[:, None] @ rows.phi).squeeze(1)
        cross[:, -1] += pull.sum(1)
        squares += (pull * rows.residual).sum(1)
    if not members:
        raise ValueError("Got X without rows, but expected at least one.")
    return LastLayerSums(
        gram, cross, loss, squares, n_rows, targets, residuals, fit_id, homoscedastic
    )


class MeanNetwork(nn.Module):
    """The mean of one member for laplace-torch: a linear layer on features."""

    head: nn.Linear
    offset: Tensor  # (1,), the bias where the posterior has none
    network: Any  # x → Features; None: x is φ
    k: int

    def forward(self, x: Tensor) -> Tensor:  # → (n, 1)
        """Mean of the rows x, or of the rows with features x."""
        phi = x if self.network is None else self.network(x).phi[self.k]
        mean: Tensor = self.head(phi) + self.offset
        return mean

    def noise_variance(self, x: Tensor) -> Tensor:  # → (n,)
        """h² of the rows x, where laplace-torch goes through rows again."""
        h2: Tensor = self.network(x).h2[self.k]
        return h2


def new_laplace(
    weights: Tensor,  # (d + 1,)
    structure: str,
    with_bias: bool = True,
    network: Any = None,
    k: int = 0,
) -> Any:
    """laplace-torch's last-layer Laplace of one member, with our likelihood."""
    from .curvature import HeteroscedasticGGN, laplace

    model = MeanNetwork()
    # The head comes first: laplace-torch takes its type and device from it. Without
    # initial weights: the global generator is not ours to draw from.
    size, dtype = len(weights) - 1, weights.dtype
    model.head = skip_init(nn.Linear, size, 1, bias=with_bias, dtype=dtype)
    model.head.weight.data = weights[None, :-1].clone()
    if with_bias:
        model.head.bias.data = weights[-1:].clone()
    model.register_buffer("offset", weights[-1:] * (not with_bias))
    model.k, model.network = k, network
    kind = laplace.FullLLLaplace if structure == "full" else laplace.DiagLLLaplace
    backend = {"backend": HeteroscedasticGGN, "last_layer_name": "head"}
    return kind(model, "regression", **backend)


@dataclass(frozen=True, eq=False)
class LastLayers:
    """N(mean, Σ) of every member's last layer, Σ = (λ/unit² I + HᵀWH)⁻¹."""

    gram: Tensor  # HᵀWH: (K, d + 1, d + 1), or (K, d + 1) for the diagonal structure
    loss: Tensor  # (K,), at the mean
    n_rows: int
    trained: Tensor  # (K, d + 1), the weights that training left, bias last
    mean: Tensor  # (K, d + 1)
    scale: Tensor  # Σ = scale scaleᵀ: (K, d + 1, d + 1), or (K, d + 1)
    prior_precision: float  # λ of Σ, for standardised targets
    mean_precision: float  # λ of the mean, which may be larger
    prior_mean: Tensor  # (d + 1,)
    unit: float  # standard deviation of the targets, or 1 where they are standardised
    last_layer: str  # "trained" or "ridge"
    with_bias: bool  # else φ carries no constant: Σ is zero there
    standardised: bool
    homoscedastic: bool  # W = I/σ², for the scale "posterior"

    def mu(self, out: Features) -> Tensor:  # (K, n)
        """Mean φᵀŵ; with trained weights the network's own, to the last bit."""
        return out.mu + self._step(out.phi)

    def epistemic(self, phi: Tensor) -> Tensor:  # (K, n, d) → (K, n)
        """φᵀΣφ as a sum of squares, so that it cannot be negative."""
        if self.scale.ndim == 2:
            whitened = pad(phi, (0, 1), value=1.0) * self.scale[:, None]
        else:
            whitened = torch.baddbmm(self.scale[:, -1:], phi, self.scale[:, :-1])
        return whitened.square_().sum(2)

    def covariance(self) -> Tensor:
        """Σ of every member, shape (K, d + 1, d + 1)."""
        if self.scale.ndim == 2:
            return torch.diag_embed(self.scale.square())
        return self.scale @ self.scale.mT

    def residual(self, rows: FeatureRows) -> Tensor:  # (K, n)
        """Residuals of the means in use, from those of the trained means."""
        return rows.residual - self._step(rows.phi)

    def _step(self, phi: Tensor) -> Tensor | float:  # (K, n, d) → (K, n)
        """φᵀ(ŵ − w), from the trained means to those in use."""
        if self.last_layer == "trained":
            return 0.0
        step = (self.mean - self.trained)[:, None]
        return torch.baddbmm(step[..., -1:], step[..., :-1], phi.mT).squeeze(1)

    def held_out_nll(self, rows: FeatureRows, views: Sequence[slice]) -> Tensor:
        """Mean predictive NLL of the members of each view, (n_views,)."""
        residual, v = self.residual(rows), rows.h2 + self.epistemic(rows.phi)
        weight = rows.weight.expand_as(v)
        nll = weight * gaussian_nll(residual, torch.zeros_like(v), v)
        by_member = nll.sum(1) / weight.sum(1)
        return torch.stack([by_member[view].mean() for view in views])

    def laplace(self, k: int = 0, network: nn.Module | None = None) -> Any:
        """A fitted object of laplace-torch for member k, made of these tensors.

        Its inputs are those of the network, or φ of member k where none is given.
        """
        mean, gram = self.mean[k], self.gram[k]
        structure = "full" if gram.ndim == 2 else "diag"
        la = new_laplace(mean, structure, self.with_bias, network, k)
        kept = slice(None) if self.with_bias else slice(-1)
        precision = self.prior_precision / self.unit**2
        state = {
            "mean": mean[kept],
            "H": gram[(kept,) * gram.ndim],
            "loss": self.loss[k],
            "prior_mean": self.prior_mean[kept],
            "prior_precision": torch.tensor([precision], dtype=mean.dtype),
            "n_data": self.n_rows,
            "n_outputs": 1,
        }
        la.load_state_dict(la.state_dict() | state)
        return la


def make_last_layers(
    sums: LastLayerSums,
    trained: Tensor,  # (K, d + 1)
    last_layer: str,
    prior_precision: float,
    *,
    with_bias: bool = True,
    standardised: bool = True,  # whether the targets are: λ is for those that are
    residual_variance: float = 1.0,  # σ², for homoscedastic sums
    variance_precision: float = math.inf,  # λ of Σ, where it is less than that of ŵ
    may_alter: bool = True,
) -> LastLayers:
    """Factor λ/unit² I + HᵀWH, and correct ŵ where the last layer is refitted.

    ŵ may be the posterior mean under a larger λ than that of Σ: what is best for the
    mean says too little of what is not known far from the training rows.
    """
    gram, cross, loss = sums.gram, sums.cross, sums.loss
    if sums.homoscedastic:
        gram, cross = gram / residual_variance, cross / residual_variance
        constant = 0.5 * sums.targets.weight * math.log(residual_variance)
        loss = loss / residual_variance + constant
    prior_mean, unit = torch.zeros_like(trained[0]), 1.0
    if not standardised:
        prior_mean[-1], unit = sums.targets.mean, sums.targets.unit
    layers = LastLayers(
        gram=gram,
        loss=loss,
        n_rows=sums.n_rows,
        trained=trained,
        mean=trained,
        scale=torch.zeros_like(gram),
        prior_precision=prior_precision,
        mean_precision=prior_precision,
        prior_mean=prior_mean,
        unit=unit,
        last_layer=last_layer,
        with_bias=with_bias,
        standardised=standardised,
        homoscedastic=sums.homoscedastic,
    )
    scale, gram = _factors(layers, may_alter)
    layers = replace(layers, scale=scale, gram=gram)
    if last_layer == "ridge":
        # Σ(HᵀWy + λμ₀) with y = Hw + r, as a step from w.
        pull = cross - prior_precision / unit**2 * (trained - prior_mean)
        step = (scale @ (scale.mT @ pull[..., None])).squeeze(-1)
        curved = (gram @ step[..., None]).squeeze(-1)
        loss = loss + (step * (0.5 * curved - cross)).sum(-1)
        layers = replace(layers, mean=trained + step, loss=loss)
    if variance_precision < prior_precision:
        layers = replace(layers, prior_precision=variance_precision)
        scale, gram = _factors(layers, may_alter)
        layers = replace(layers, scale=scale, gram=gram)
    return layers


def _factors(layers: LastLayers, may_alter: bool) -> tuple[Tensor, Tensor]:
    """Factors of Σ by laplace-torch, and HᵀWH with the jitter that they needed.

    Where rounding wins, jitter grows until laplace-torch finds a factor.
    """
    scale, gram = torch.zeros_like(layers.gram), layers.gram.clone()
    kept = slice(None if layers.with_bias else -1)
    la = layers.laplace()  # takes the sums of one member after the other
    prior = la.prior_precision
    for k in range(len(gram)):
        la.H = gram[k][(kept,) * (gram.ndim - 1)]
        largest = float(la.H.max() + prior)
        for share in JITTER if may_alter else JITTER[:1]:
            la.prior_precision = prior + share * largest
            try:
                factor: Tensor = la.posterior_scale
            except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
                continue
            if bool(factor.isfinite().all()):
                break
        else:
            raise NotPositiveDefiniteError(
                f"The posterior precision (largest entry {largest!r}) is not positive "
                "definite. Raise prior_precision, or look for extreme values in X."
            )
        scale[k][(kept,) * factor.ndim] = factor
        if share:
            diagonal = gram[k] if gram.ndim == 2 else gram[k].diagonal()
            diagonal += share * largest
            warnings.warn(
                f"Added {share * largest:.1e} to the diagonal of the posterior "
                f"precision (largest entry {largest:.1e}), which was not positive "
                "definite to rounding. Raise prior_precision to avoid it.",
                NumericalWarning,
                stacklevel=3,
            )
    return scale, gram


def choose_prior_precision(
    rule: float | str,
    sums: LastLayerSums,  # for "grid" without the held-out rows
    trained: Tensor,
    last_layer: str,
    held_out: FeatureRows | None = None,
    views: Sequence[slice] = (slice(0, 1),),  # members that share a view
    **settings: Any,
) -> tuple[float, float]:
    """λ as given, by held-out (per row) or marginal likelihood, and what it gains.

    Over the largest λ of the grid, with which the mean is a constant.
    """
    if not isinstance(rule, str):
        return float(rule), math.inf
    if rule == "grid" and held_out is None:
        return PAPER_PRIOR_PRECISION, math.inf  # too few rows to hold any out
    # The evidence is exact at the posterior mean, whichever ŵ predicts.
    exact = rule == "marglik" and sums.gram.ndim == 3
    last_layer = "ridge" if exact else last_layer
    losses = {CONSTANT: math.inf}
    for candidate in PRIOR_PRECISION_GRID:
        try:
            layers = make_last_layers(
                sums, trained, last_layer, candidate, may_alter=False, **settings
            )
        except NotPositiveDefiniteError:
            continue
        loss = 0.0
        if held_out is not None and rule == "grid":
            # A soft minimum: λ serves the views that have the weight.
            nll = -SHARPNESS * layers.held_out_nll(held_out, views)
            loss = -float(nll.logsumexp(dim=0)) / SHARPNESS
        else:
            for k in range(len(trained)):
                loss -= float(layers.laplace(k).log_marginal_likelihood())
        losses[candidate] = loss if loss == loss else math.inf
    value = min(losses, key=lambda candidate: losses[candidate])
    return value, losses[CONSTANT] - losses[value]


def mean_noise(h2: Tensor, member_weight: Tensor) -> Tensor:  # (K, n), (K,) → (n,)
    """Weighted geometric mean of h²: one member that errs high does not rule."""
    return (member_weight @ h2.log()).exp()


class FittedLastLayers(NamedTuple):
    """What ``fit_posterior`` finds."""

    last_layers: LastLayers
    sums: LastLayerSums  # of all rows
    member_weight: Tensor  # (K,), sums to one
    residual_variance: float
    held_out_nll: Tensor | None = None  # (n_views,); None where no rows were held out
    held_out_residual: Tensor | None = None  # (m,), in units of √v of single members
    noise_factor: float = 1.0  # of v, at which it is the mean squared residual
    evidence: float = math.inf  # for the mean against a constant, see fit_posterior
    usual_epistemic: float = 0.0  # φᵀΣφ of which no held-out row has more


class HeldOut(NamedTuple):
    """Rows that members have not seen, and sums of all others."""

    rows: FeatureRows
    numbers: Tensor  # (K, n_held_out), of the rows among all
    without: LastLayerSums


def fit_posterior(
    sums: LastLayerSums,  # of all rows
    batches: Iterable[FeatureRows],  # of all rows, once more
    trained: Tensor,  # (K, d + 1)
    views: Sequence[slice] = (slice(0, 1),),
    held_out: HeldOut | None = None,
    *,
    prior_precision: float | str,
    variance_precision: float = math.inf,  # largest λ of Σ
    last_layer: str,
    variance_floor: float,  # of σ²
    **settings: Any,  # of make_last_layers
) -> FittedLastLayers:
    """λ, posteriors, weights of the members, and what held-out rows say of them.

    λ and the weights rest on posteriors without the held-out rows of each member, the
    final posteriors on all rows. The evidence for the mean is what it gains over a
    constant in the log-likelihood of held-out rows, in nats.
    """
    n_members, by_grid = len(trained), prior_precision == "grid"
    settings["variance_precision"] = variance_precision
    # Of the trained means, until the mean of the members is known.
    sigma2 = settings["residual_variance"] = sums.residual_variance(variance_floor)
    judged = None if held_out is None else held_out.rows
    if sums.homoscedastic and judged is not None:
        judged = judged._replace(h2=torch.full_like(judged.h2, sigma2))
    summed = sums if held_out is None or not by_grid else held_out.without
    value, gain = choose_prior_precision(
        prior_precision, summed, trained, last_layer, judged, views, **settings
    )
    layers = make_last_layers(sums, trained, last_layer, value, **settings)
    weight = trained.new_full((n_members,), 1 / n_members)
    found: dict[str, Any] = {}
    if held_out is not None and judged is not None:
        others = make_last_layers(
            held_out.without, trained, last_layer, value, **settings
        )
        nll = others.held_out_nll(judged, views)
        sizes = torch.tensor([view.stop - view.start for view in views])
        weight = torch.softmax(-SHARPNESS * nll.repeat_interleave(sizes), dim=0)
        epistemic = others.epistemic(judged.phi)
        v = judged.h2 + epistemic
        # Members that hardly count would tell of their own faults.
        counts = weight * n_members > LEAST_WEIGHT
        residual = (others.residual(judged) / v.sqrt())[counts].flatten()
        found = {"held_out_nll": nll, "held_out_residual": residual}
        found["usual_epistemic"] = float(epistemic[counts].max())
        if by_grid and last_layer == "ridge":
            found["evidence"] = gain * min(held_out.numbers.numel(), sums.n_rows)
    if held_out is not None or n_members > 1 or last_layer == "ridge":
        spread, apart = Spread(), []
        for rows in batches:
            by_member = layers.residual(rows)
            mean = weight @ by_member
            spread += Spread.of(mean, rows.weight)
            apart.append(weight @ (by_member - mean).square())
        if held_out is not None:
            # As in predictions, members that disagree add to the variance.
            share = v / (v + torch.cat(apart)[held_out.numbers])
            wide = residual * share[counts].flatten().sqrt()
            found["noise_factor"] = noise_factor(wide)
        sums = replace(sums, residuals=spread)
        sigma2 = settings["residual_variance"] = sums.residual_variance(variance_floor)
        if sums.homoscedastic:
            final = make_last_layers(sums, trained, last_layer, value, **settings)
            layers = replace(final, mean=layers.mean)
    return FittedLastLayers(layers, sums, weight, sigma2, **found)


def fit_last_layers(
    network: HeteroscedasticNetwork,
    X: Tensor,  # (n, p)
    y: Tensor,  # (n,)
    weight: Tensor,  # (n,)
    split: Rows,
    *,
    prior_precision: float | str,
    homoscedastic: bool,
    fit_id: str,
    calibrate_noise: bool = False,  # by a factor, which the network takes over
    left_out_shift: Tensor | None = None,  # (n,), added to residuals of held-out rows
    **settings: Any,
) -> FittedLastLayers:
    """``fit_posterior`` of networks, each of which holds out rows of its own."""
    size, (fit, numbers) = network.rows_per_batch(), split
    network.noise_factor = 1.0
    seen = weight.new_zeros(network.n_members, len(X)).scatter_(1, fit, 1.0)
    own = X[numbers], y[numbers], weight[numbers]
    shift = 0.0 if left_out_shift is None else left_out_shift[numbers]

    def features(part: Any) -> FeatureRows:  # of a slice
        return FeatureRows.of(network, X[part], y[part], weight[part])

    parts: Any = [slice(at, at + size) for at in range(0, len(X), size)]

    def summed(batches: Iterable[FeatureRows]) -> LastLayerSums:
        return sum_rows(batches, "full", homoscedastic, fit_id)

    batches: Any = DataLoader(
        parts, batch_size=None, collate_fn=features, generator=torch.Generator()
    )
    of_network = network.trained_weights(), network.members_by_view()
    with one_thread(network.multiply_adds(size)):
        if seen.numel() * network.layer_sizes[-1] <= KEPT_ELEMENTS:
            batches = list(batches)
        held_out, sums = None, summed(batches)
        if numbers.shape[1]:
            rows = FeatureRows.of(network, *own)
            masked = (
                rows._replace(weight=rows.weight * seen[:, part])
                for part, rows in zip(parts, batches, strict=True)
            )
            rows = rows._replace(residual=rows.residual + shift)
            held_out = HeldOut(rows, numbers, summed(masked))
        settings["prior_precision"] = prior_precision
        found = fit_posterior(sums, batches, *of_network, held_out, **settings)
        if calibrate_noise and held_out is not None:
            c = network.noise_factor = found.noise_factor
            settings["prior_precision"] = found.last_layers.mean_precision
            without = held_out.without.with_noise_factor(c)
            held_out = HeldOut(rows._replace(h2=c * rows.h2), numbers, without)
            sums = sums.with_noise_factor(c)
            again = fit_posterior(sums, batches, *of_network, held_out, **settings)
            found = again._replace(evidence=found.evidence)
    return found


def noise_factor(residual: Tensor) -> float:  # (m,), in units of √v
    """Factor of v at which held-out rows have a mean squared residual of v.

    Few rows say little: the factor is drawn to one. So do a few wild ones.
    """
    squares = residual.square()
    mean = float(squares.clamp(max=float(squares.quantile(WILD_LEVEL))).mean())
    share = len(squares) / (len(squares) + PRIOR_ROWS)
    return float(min(max(mean, 1 / LARGEST_FACTOR), LARGEST_FACTOR) ** share)
