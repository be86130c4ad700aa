"""Does the epistemic term pay where training data are sparse?

Nearly all training rows of a region (the top fifth of the first principal component)
are dropped; calibration and test rows stay. On the same networks the scale is h²; h²
plus the spread of the members; h² plus φᵀΣφ; and all of them. Beside them the kernel
member with the networks (the default) and alone, and a plain Gaussian process with the
same kind of covariance, constant noise and all training rows.

Finished runs are kept in OUT/runs.jsonl; the same command goes on where it stopped.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..studies.arguments import add_data_arguments, load_datasets, seeds_of
from ..studies.data import Array, Dataset, Split, first_component, split_rows
from ..studies.rows import paired_ratios, values_of, where
from ..studies.runner import run_and_report, split_run
from ..studies.scoring import geometric_estimate, score_intervals
from ..studies.store import Row
from ..studies.text import markdown_table, plus_minus
from ._peer_table import claps_parameters

ALPHA = 0.1
REGION = {"quantile": 0.8, "kept_share": 0.01}
MODES = ("sparse", "ordinary")
TOGETHER, KERNEL = "all members and the kernel", "the kernel alone"
GAUSSIAN_PROCESS = "a plain Gaussian process"
BESIDE = (TOGETHER, KERNEL, GAUSSIAN_PROCESS)
Scaled = tuple[Array, Array]  # μ and v


class Parts(NamedTuple):
    """Mean and variances of every member, in units of y."""

    mu: Array  # (K, n)
    aleatoric: Array  # (K, n)
    laplace: Array  # (K, n)
    weight: Array  # (K,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_data_arguments(parser, seeds=5, out="benchmark_epistemic")


def run(arguments: argparse.Namespace) -> int:
    """Run what is missing and print the table; 1 if a run failed."""
    # One scale for both sides, in units of y: the scales themselves are compared.
    params: dict[str, Any] = {"tol": None, "target_map": None}
    params |= {"max_steps": 20} if arguments.smoke else {}
    method = {"name": "claps", "alpha": ALPHA} | claps_parameters(**params)
    n = arguments.max_rows
    runs = [
        split_run(
            "epistemic",
            data,
            {"seed": seed, "max_rows": n, "region": REGION},
            method,
            partial(measure, data, seed, n, params),
        )
        for seed in seeds_of(arguments)
        for data in load_datasets(arguments)
    ]
    return run_and_report(runs, arguments.out, arguments.jobs, report)


def measure(data: Dataset, seed: int, n: int, params: dict[str, Any]) -> list[Row]:
    """Scores of all scales with a sparse and with an ordinary training region."""
    from .. import ClapsRegressor

    split, rows = split_rows(data, seed, n), []
    position_of = first_component(split.X_train)
    position = position_of(split.X_train)
    cut = np.quantile(position, REGION["quantile"])
    in_region = position_of(split.X_test) > cut
    for mode in MODES:
        kept = np.ones(len(position), dtype=bool)
        if mode == "sparse":
            dropped = np.flatnonzero(position > cut)
            n_kept = max(1, round(REGION["kept_share"] * len(dropped)))
            kept[np.random.default_rng(seed).permutation(dropped)[n_kept:]] = False
        model = ClapsRegressor(random_state=seed, **params)
        model.fit(split.X_train[kept], split.y_train[kept])
        cal, test = member_parts(model, split.X_cal), member_parts(model, split.X_test)
        pairs = {
            method: list(zip(scale(cal), scale(test), strict=True))
            for method, scale in SCALES.items()
        }
        beside = models_beside(model, split.X_train[kept], split.y_train[kept], seed)
        for method, predict in beside.items():
            pairs[method] = [(predict(split.X_cal), predict(split.X_test))]
        for method, of_members in pairs.items():
            scores = [_scores(c, t, split, in_region) for c, t in of_members]
            means = {k: float(np.mean([s[k] for s in scores])) for k in scores[0]}
            row = {"dataset": data.name, "seed": seed, "method": f"{mode}, {method}"}
            rows.append(row | means)
    return rows


def member_parts(model: Any, X: Array) -> Parts:
    """μ, h² and φᵀΣφ of every member from one forward pass; needs private parts."""
    import torch

    fitted, unit = model.model_, model.scaler_y_.scale_[0]
    with torch.no_grad():
        out = model.network_(model._scaled(X))
        mu = fitted.posterior.mu(out.phi) * unit + model.scaler_y_.mean_[0]
        h2 = out.h2 * unit**2
        laplace = fitted.posterior.epistemic(out.phi) * unit**2
    weight = fitted.member_weight
    return Parts(mu.numpy(), h2.numpy(), laplace.numpy(), weight.numpy())


def models_beside(
    model: Any, X: Array, y: Array, seed: int
) -> dict[str, Callable[[Array], Scaled]]:
    """μ and v of what is no network; the kernel alone only where there is one."""
    import torch

    from ..network.covariance import exact_posterior, fit_covariance

    centre, unit = model.scaler_y_.mean_[0], model.scaler_y_.scale_[0]
    Xs, ys = model._scaled(X), torch.from_numpy((y - centre) / unit)
    ones, generator = torch.ones_like(ys), torch.Generator().manual_seed(seed)
    covariance, noise = fit_covariance(Xs, ys, ones, generator)

    def in_units(mu: Any, v: Any) -> Scaled:
        return mu.numpy() * unit + centre, v.numpy() * unit**2

    def together(X: Array) -> Scaled:
        parts = model.predict_parts(X)
        return parts.prediction, parts.variance.total

    def kernel_alone(X: Array) -> Scaled:
        x = model._scaled(X)
        with torch.no_grad():
            g = model.model_.aleatoric(model.network_(x))
        mu, aleatoric, epistemic = model.kernel_.member.predict(x, g)
        return in_units(mu, aleatoric + epistemic)

    def gaussian_process(X: Array) -> Scaled:
        mu, v = exact_posterior(covariance, Xs, ys, noise * ones, model._scaled(X))
        return in_units(mu, v + noise)

    names = dict(zip(BESIDE, (together, kernel_alone, gaussian_process), strict=True))
    return {k: v for k, v in names.items() if k != KERNEL or model.kernel_ is not None}


def _together(part: Parts, spread: bool = False, laplace: bool = False) -> list[Scaled]:
    """The ensemble, with some of its terms."""
    w = part.weight
    mu, v = w @ part.mu, np.exp(w @ np.log(part.aleatoric))
    v = v + w @ (part.mu - mu) ** 2 if spread else v
    return [(mu, v + w @ part.laplace if laplace else v)]


def _alone(part: Parts, laplace: bool = False) -> list[Scaled]:
    """Each member as if it were the only one, but for λ, which they share."""
    v = part.aleatoric + part.laplace if laplace else part.aleatoric
    return list(zip(part.mu, v, strict=True))


#: μ and v of one model, or of each member.
SCALES: dict[str, Callable[[Parts], list[Scaled]]] = {
    "one member, h²": _alone,
    "one member, h² + Laplace": partial(_alone, laplace=True),
    "all members, h²": _together,
    "all members, h² + Laplace": partial(_together, laplace=True),
    "all members, h² + spread": partial(_together, spread=True),
    "all members, all": partial(_together, spread=True, laplace=True),
}
ON_TOP = {
    "Laplace on top of the spread": ("all members, all", "all members, h² + spread"),
    "The kernel on top of all that": (TOGETHER, "all members, all"),
}


def _scores(
    cal: Scaled, test: Scaled, split: Split, in_region: Any
) -> dict[str, float]:
    """Interval score and coverage, overall and inside the region."""
    from .. import conformal_quantile

    q = conformal_quantile(np.abs(split.y_cal - cal[0]) / np.sqrt(cal[1]), [ALPHA])[0]
    half = q * np.sqrt(test[1])
    rows = split.y_test, test[0] - half, test[0] + half
    y, lower, upper = (a[in_region] for a in rows)
    region = score_intervals(y, lower, upper, ALPHA)
    names = {"region_score": "interval_score", "region_coverage": "coverage"}
    inside = {name: region[field] for name, field in names.items()}
    return score_intervals(*rows, ALPHA) | inside


def report(rows: Sequence[Row], out: Path) -> str:
    """Ratios to h² on the same networks, with paired standard errors."""
    lines = []
    for mode, method in product(MODES, [*SCALES, *BESIDE]):
        network = method.split(",")[0] if method in SCALES else "all members"
        name, base = f"{mode}, {method}", f"{mode}, {network}, h²"
        if found := where(rows, method=name):
            fields = "region_coverage", "coverage"
            covered = [f"{np.mean([r[field] for r in found]):.3f}" for field in fields]
            lines.append([mode, method, *_ratios(rows, name, base), *covered])
    header = ["training rows", "scale", "score / score of h²", "inside the region"]
    parts = [markdown_table([*header, "coverage inside", "coverage"], lines)]
    for mode, (text, pair) in product(MODES, ON_TOP.items()):
        name, base = (f"{mode}, {method}" for method in pair)
        if pair[0] in SCALES or where(rows, method=name):
            overall, region = _ratios(rows, name, base)
            parts.append(f"{text} ({mode}): {overall}, inside the region {region}.\n")
    datasets = sorted(values_of(rows, "dataset"))
    parts.append(
        f"{len(datasets)} data sets ({', '.join(datasets)}), "
        f"{len(values_of(rows, 'seed'))} seeds. Geometric means over data sets "
        "of ratios on the same networks ± standard error over seeds.\n"
    )
    text = "\n".join(parts)
    (out / "epistemic.md").write_text(text, encoding="utf-8")
    return text


def _ratios(rows: Sequence[Row], name: str, base: str) -> list[str]:
    """Geometric means over data sets, with paired standard errors over seeds."""
    pairs = where(rows, method=name), where(rows, method=base)
    return [
        plus_minus(geometric_estimate(paired_ratios(*pairs, field)), ".3f", ".3f")
        for field in ("interval_score", "region_score")
    ]
