"""Speed of the posterior: against laplace-torch, the limit, and in its growth."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

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
from ._speed_timing import Result, Settings, best_of, peak_above, run_child

P = 32  # columns of X
HIDDEN = 64
FLOOR = 1e-3
LAPLACE_ROWS = 256  # batch size of the DataLoader
SLICED_ROWS = 2048  # fastest of 256, 2,048 and 65,536 for the default backend
LIMIT_ELEMENTS = 2**18  # of φ at a time: fastest of 2¹⁵ to 2¹⁹ in all sizes
AGAINST_LAPLACE, AGAINST_LIMIT = 20.0, 1.5
BOUNDED = (20_000, 64)  # where laplace-torch is to be left behind by that much
BY_LAPLACE = "laplace-torch, default backend"
LIMIT = "limit: forward pass + one Gram matrix"
SLICED = "laplace-torch, default backend, TensorLoader"
ADAPTER = "laplace-torch with HeteroscedasticGGN"
MEMBER = "sums and Σ of one member"
MODULE = "ClapsModule.fit"


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
    moments, _ = sum_rows(batches, "full", homoscedastic=False) or ()  # type: ignore[misc]
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
    sizes = [(n, d) for n in (20_000, 200_000) for d in (64, 256, 1024)]
    for n, d in [(500, 16)] if settings.smoke else sizes:
        for dtype in (torch.float32, torch.float64):
            yield from _posterior_of(n, d, dtype, settings)


def _posterior_of(
    n: int, d: int, dtype: torch.dtype, settings: Settings
) -> Iterator[Result]:
    network, (X, y) = make_network(d).to(dtype), (t.to(dtype) for t in as_tensors(n))
    # As its manual says; with our loader; with our loader and backend.
    by_manual = DataLoader(TensorDataset(X, y[:, None]), batch_size=LAPLACE_ROWS)
    sliced, ours = TensorLoader(X, y[:, None], SLICED_ROWS), TensorLoader(X, y[:, None])
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
    bounds = {
        (ADAPTER, BY_LAPLACE): AGAINST_LAPLACE if at_bound else None,
        (ADAPTER, SLICED): None,
        (ADAPTER, LIMIT): AGAINST_LIMIT,
        (MEMBER, BY_LAPLACE): None,
        (MEMBER, LIMIT): AGAINST_LIMIT,
        (MODULE, BY_LAPLACE): None,
        (MODULE, LIMIT): None,
    }
    for (name, against), bound in bounds.items():
        if name in calls and against in calls:
            kind: Literal["cost", "faster"] = "cost" if against == LIMIT else "faster"
            both = times[name], times[against]
            yield Result(f"{name}, {size}", against, *both, "s", kind, bound)


def growth(settings: Settings) -> Iterator[Result]:
    """Linear in the number of rows, flat in memory; the diagonal against the full."""
    rows = [1000, 3000] if settings.smoke else [10**k for k in range(4, 8)]
    clock = settings.clock
    found = run_child(settings, stream, rows=rows, size=64, clock=clock)
    start = [1e6 * found[0][0] / rows[0], found[0][1] + 50]
    same = f"the same at {rows[0]:,} rows"
    for n, (seconds, mb) in zip(rows, found, strict=True):
        case = f"stream {n:,} rows × 64 features"
        per_row = f"{case}: µs per row"
        yield Result(per_row, same, 1e6 * seconds / n, start[0], "µs", "cost", 1.2)
        peak = f"{case}: peak memory above the start"
        yield Result(peak, f"{same}, + 50 MB", mb, start[1], "MB", "cost", 1.0)
    sizes = [16, 32] if settings.smoke else [16, 64, 256, 1024, 4096]
    n = settings.size(10_000, 500)
    full, diagonal = (
        run_child(settings, widths, rows=n, sizes=sizes, structure=s, clock=clock)
        for s in ("full", "diag")
    )
    for d, (a, a_mb), (b, b_mb) in zip(sizes, full, diagonal, strict=True):
        case = f"{n:,} rows × {d:,} features, diagonal"
        yield Result(case, "full structure", b, a, "s", "faster")
        yield Result(case, "full structure", b_mb, a_mb, "MB", "cost")


def _time_and_peak(
    call: Callable[[], Any], clock: str, repeats: int
) -> tuple[float, float]:
    """Seconds, and MB at the peak."""
    timed = partial(best_of, {"": call}, Settings(clock=clock), repeats)
    peak, times = peak_above(timed)
    return times[""], max(1.0, peak)


def stream(rows: list[int], size: int, clock: str) -> list[tuple[float, float]]:
    """Seconds and peak memory for growing numbers of streamed rows; in a child."""
    X, y = as_tensors(10_000)
    model = fit_module(make_network(size), X, y)

    def sum_stream(n: int) -> None:
        """Sums over n rows that come in chunks: the same chunk over and over."""
        starts = range(0, n, len(X))
        model.partial_sums((X[: n - i], y[: n - i]) for i in starts)

    return [
        _time_and_peak(partial(sum_stream, n), clock, 3 if n <= 10**6 else 1)
        for n in rows
    ]


def widths(
    rows: int, sizes: list[int], structure: str, clock: str
) -> list[tuple[float, float]]:
    """Seconds and peak memory for growing numbers of features; in a child."""
    X, y = as_tensors(rows)
    params = {"hessian_structure": structure, "last_layer": "trained"}
    fits = (partial(fit_module, make_network(d), X, y, **params) for d in sizes)
    return [_time_and_peak(fit, clock, 2) for fit in fits]
