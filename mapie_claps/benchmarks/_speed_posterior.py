"""Speed of the posterior: against laplace-torch, the limit, and in its growth."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import laplace
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.utils.data import DataLoader, TensorDataset

from .. import ClapsModule, HeteroscedasticGGN, TensorLoader

# Private parts, which ClapsRegressor is made of.
from ..network.encoding import PiecewiseLinearEncoding
from ..network.ensemble import HeteroscedasticNetwork
from ..posterior.gaussian import make_posterior
from ..posterior.members import feature_rows, rows_of_ensemble
from ..posterior.moments import sum_rows
from ._networks import TwoHeads, make_rows, seeded_network
from ._speed_timing import Kind, Result, Settings, best_of, peak_above, run_child

Measured = tuple[float, float]  # seconds, and MB at the peak
P = 32  # columns of X
HIDDEN = 64
FLOOR = 1e-3
LAPLACE_ROWS = 256  # batch size of the DataLoader
SLICED_ROWS = 2048  # fastest of 256, 2,048 and 65,536 for the default backend
LIMIT_ELEMENTS = 2**18  # of φ at a time: fastest of 2¹⁵ to 2¹⁹ in all sizes
BOUNDED = (20_000, 64)  # where laplace-torch is to be left behind by that much
BY_LAPLACE = "laplace-torch, default backend"
LIMIT = "limit: forward pass + one Gram matrix"
SLICED = "laplace-torch, default backend, TensorLoader"
ADAPTER = "laplace-torch with HeteroscedasticGGN"
MEMBER = "sums and Σ of one member"
MODULE = "ClapsModule.fit"
BOUNDS = {
    (ADAPTER, BY_LAPLACE): 20.0,
    (ADAPTER, SLICED): None,
    (ADAPTER, LIMIT): 1.5,
    (MEMBER, BY_LAPLACE): None,
    (MEMBER, LIMIT): 1.5,
    (MODULE, BY_LAPLACE): None,
    (MODULE, LIMIT): None,
}


class MeanAlone(nn.Module):
    """What laplace-torch understands: the mean; h² for those who ask for it."""

    def __init__(self, network: TwoHeads) -> None:
        super().__init__()
        self.body, self.mean, self.noise = network.body, network.mean, network.noise

    def forward(self, x: Tensor) -> Tensor:
        """Mean."""
        out: Tensor = self.mean(self.body(x))
        return out

    def noise_variance_from_features(self, phi: Tensor) -> Tensor:
        """h², asked for by our backend alone."""
        return softplus(self.noise(phi)) + FLOOR


def make_network(size: int) -> TwoHeads:
    """32 → 64 → size, random weights in float64."""
    return seeded_network(P, HIDDEN, size, floor=FLOOR).double().eval()


def as_tensors(n: int) -> tuple[Tensor, Tensor]:
    """Random rows in float64."""
    X, y = make_rows(n, P)
    return torch.from_numpy(X), torch.from_numpy(y)


def as_member(network: TwoHeads) -> HeteroscedasticNetwork:
    """The same network in the form that ClapsRegressor trains."""
    encoding = PiecewiseLinearEncoding([torch.empty(0, dtype=torch.float64)] * P)
    sizes, generator = (HIDDEN, network.mean.in_features), torch.Generator()
    member = HeteroscedasticNetwork(encoding, sizes, 1, FLOOR, generator, ("raw",))
    member.double()
    sources = [network.body[0], network.body[2], network.mean, network.noise]
    targets = [*member.first, *member.trunk, member.mean_head, member.noise_head]
    with torch.no_grad():
        for source, target in zip(sources, targets, strict=True):
            target.weight[0] = source.weight.T  # type: ignore[operator, union-attr]
            target.bias[0] = source.bias  # type: ignore[operator, union-attr]
    return member


def fit_ours(member: HeteroscedasticNetwork, X: Tensor, y: Tensor) -> Tensor:
    """Sums with W = diag(1/h²) as in ClapsRegressor, and the factor of Σ."""
    size, ones = rows_of_ensemble(member), torch.ones_like(y)[None]
    parts = zip(X.split(size), y.split(size), ones.split(size, 1), strict=True)
    batches = (feature_rows(member, *part) for part in parts)
    moments, _ = sum_rows(batches, "full", homoscedastic=False)
    return make_posterior(moments, member.trained_weights(), "ridge", 1.0).scale


def fit_module(network: TwoHeads, X: Tensor, y: Tensor, **params: Any) -> ClapsModule:
    """All that ``ClapsModule.fit`` does, checks included."""
    model = ClapsModule(network, last_layer_name="mean", prior_precision=1.0, **params)
    return model.fit(X, y)


def fit_laplace(network: TwoHeads, rows: Any, **params: Any) -> laplace.BaseLaplace:
    """laplace-torch on a loader of rows, and the factor of Σ."""
    of = {"subset_of_weights": "last_layer", "hessian_structure": "full"}
    model, params = MeanAlone(network), params | of | {"last_layer_name": "mean"}
    la = laplace.Laplace(model, "regression", **params)
    la.fit(rows)
    la._compute_scale()  # by which laplace-torch predicts
    return la


@torch.no_grad()
def limit(network: TwoHeads, X: Tensor) -> Tensor:
    """Forward pass and one Gram matrix of the features, nothing else."""
    size = network.mean.in_features
    gram = torch.zeros(size, size, dtype=X.dtype)
    for x in X.split(max(32, LIMIT_ELEMENTS // size)):
        phi = network.body(x)
        network.mean(phi)
        softplus(network.noise(phi))
        gram += phi.T @ phi
    return gram


def posterior(settings: Settings) -> Iterator[Result]:
    """Rows × features, in torch's default type and in double precision."""
    sizes = settings.size(product((20_000, 200_000), (64, 256, 1024)), [(500, 16)])
    for (n, d), dtype in product(sizes, (torch.float32, torch.float64)):
        network, (X, y) = (
            make_network(d).to(dtype),
            (a.to(dtype) for a in as_tensors(n)),
        )
        # As its manual says; with our loader and backend; with our loader.
        by_manual = DataLoader(TensorDataset(X, y[:, None]), batch_size=LAPLACE_ROWS)
        ours = TensorLoader(X, y[:, None])
        sliced = TensorLoader(X, y[:, None], SLICED_ROWS)
        calls: dict[str, Callable[[], Any]] = {
            BY_LAPLACE: partial(fit_laplace, network, by_manual),
            LIMIT: partial(limit, network, X),
            ADAPTER: partial(fit_laplace, network, ours, backend=HeteroscedasticGGN),
        }
        at_bound = (n, d) == BOUNDED
        if at_bound or settings.smoke:  # how much of the ratio is the loader's
            calls[SLICED] = partial(fit_laplace, network, sliced)
        if dtype == torch.float64:  # in which both estimators take their sums
            calls[MEMBER] = partial(fit_ours, as_member(network), X, y)
            calls[MODULE] = partial(fit_module, network, X, y)
        small = n * d * d < 2e10
        times = best_of(calls, settings, None if small else min(2, settings.repeats))
        size = f"{n:,} × {d:,} in {str(dtype).removeprefix('torch.')}"
        for (name, against), bound in BOUNDS.items():
            if name in times and against in times:
                bound = bound if at_bound or against == LIMIT else None
                kind: Kind = "cost" if against == LIMIT else "faster"
                both = times[name], times[against]
                yield Result(f"{name}, {size}", against, *both, "s", kind, bound)


def growth(settings: Settings) -> Iterator[Result]:
    """Linear in the number of rows, flat in memory; the diagonal against the full."""
    rows = settings.size([10**k for k in range(4, 8)], [1000, 3000])
    child = partial(run_child, settings, clock=settings.clock)
    found = [child(stream, n=n) for n in rows]
    same, (seconds, mb) = f"the same at {rows[0]:,} rows", found[0]
    least = 1e6 * seconds / rows[0], mb + 50
    for n, (seconds, mb) in zip(rows, found, strict=True):
        case = f"stream {n:,} rows × 64 features"
        both = 1e6 * seconds / n, least[0]
        yield Result(f"{case}: µs per row", same, *both, "µs", "cost", 1.2)
        case, against = f"{case}: peak memory above the start", f"{same}, + 50 MB"
        yield Result(case, against, mb, least[1], "MB", "cost", 1.0)
    n = settings.size(10_000, 500)
    for d in settings.size([16, 64, 256, 1024, 4096], [16, 32]):
        (a, a_mb), (b, b_mb) = (
            child(width, n=n, size=d, structure=s) for s in ("full", "diag")
        )
        case = f"{n:,} rows × {d:,} features, diagonal"
        yield Result(case, "full structure", b, a, "s", "faster")
        yield Result(case, "full structure", b_mb, a_mb, "MB", "cost")


def stream(n: int, clock: str) -> Measured:
    """Seconds and MB for n rows that come in chunks, one over and over; in a child."""
    X, y = as_tensors(10_000)
    model = fit_module(make_network(64), X, y)

    def sum_stream() -> None:
        starts = range(0, n, len(X))
        model.partial_sums((X[: n - i], y[: n - i]) for i in starts)

    return _measure(sum_stream, clock, 3 if n <= 10**6 else 1)


def width(n: int, size: int, structure: str, clock: str) -> Measured:
    """Seconds and MB for so many features; in a child."""
    params: Any = {"hessian_structure": structure, "last_layer": "trained"}
    fit = partial(fit_module, make_network(size), *as_tensors(n), **params)
    return _measure(fit, clock, 2)


def _measure(call: Callable[[], Any], clock: str, repeats: int) -> Measured:
    """Shortest time, and the peak of all repeats."""
    timed = partial(best_of, {"": call}, Settings(clock=clock), repeats)
    peak, times = peak_above(timed)
    return times[""], max(1.0, peak)
