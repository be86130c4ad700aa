"""Does the epistemic term pay where training data are sparse?

Nearly all training rows of a region (the top fifth of the first principal component)
are dropped; calibration and test rows stay. On the same networks the scale is h²; h²
plus the spread of the members; h² plus φᵀΣφ; and all of them.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ..conformal.quantile import conformal_quantile
from ..estimators.regressor import ClapsRegressor
from ._data import PAPER_DATASETS, Dataset, Split, load_diabetes_rows, load_named
from ._data import split_rows as split_dataset
from ._runs import Row, append_row, key_of, read_rows
from ._scoring import interval_score

DESCRIPTION = (
    "what the spread and the Laplace term bring where training data are sparse"
)
ALPHA = 0.1
KEPT_SHARE = 0.01
MODES = ("sparse", "ordinary")

Array = NDArray[np.float64]


class Parts(NamedTuple):
    """Mean and variances of every member, in units of y."""

    mu: Array  # (K, n)
    aleatoric: Array  # (K, n)
    laplace: Array  # (K, n)
    weight: Array  # (K,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("--data", type=Path, metavar="FOLDER", help="CSV files, target last")
    add("--datasets", nargs="+", metavar="NAME", default=list(PAPER_DATASETS))
    add("--seeds", type=int, default=5, metavar="N", help="splits 0 to N − 1 (5)")
    add("--max-rows", type=int, default=5000, metavar="N", help="rows per split (5000)")
    add("--out", type=Path, default=Path("benchmark_epistemic"), metavar="FOLDER")
    add("--smoke", action="store_true", help="quick trial on 150 rows")


def run(arguments: argparse.Namespace) -> int:
    """Run what is missing and print the table."""
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    finished = {key_of(row)[:2] for row in read_rows(out)}
    for seed in range(1 if arguments.smoke else arguments.seeds):
        for dataset in _datasets(arguments):
            if (dataset.name, seed) in finished:
                continue
            split = split_dataset(dataset, seed, arguments.max_rows)
            rows = list(measure(split, seed, max_steps=20 if arguments.smoke else None))
            for row in rows:
                append_row(out, {"dataset": dataset.name, "seed": seed, **row})
            sys.stderr.write(f"{dataset.name} {seed} done\n")
    text = report(read_rows(out))
    (out / "epistemic.md").write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return 0


def _datasets(arguments: argparse.Namespace) -> Iterator[Dataset]:
    if arguments.smoke:
        yield load_diabetes_rows()
        return
    for name in arguments.datasets:
        yield load_named(name, arguments.data)


def measure(split: Split, seed: int, max_steps: int | None = None) -> Iterator[Row]:
    """Scores of all scales with a sparse and with an ordinary training region."""
    axis = make_pipeline(StandardScaler(), PCA(1, svd_solver="full"))
    position = axis.fit_transform(split.X_train)[:, 0]
    cut = np.quantile(position, 0.8)
    in_region = axis.transform(split.X_test)[:, 0] > cut
    for mode in MODES:
        kept = np.ones(len(position), dtype=bool)
        if mode == "sparse":
            dropped = np.flatnonzero(position > cut)
            n_kept = max(1, round(KEPT_SHARE * len(dropped)))
            kept[np.random.default_rng(seed).permutation(dropped)[n_kept:]] = False
        model = ClapsRegressor(random_state=seed, tol=None)
        if max_steps is not None:
            model.set_params(max_steps=max_steps)
        model.fit(split.X_train[kept], split.y_train[kept])
        cal, test = member_parts(model, split.X_cal), member_parts(model, split.X_test)
        for method, scale in SCALES.items():
            scores = np.mean(
                [_scores(c, t, split, in_region) for c, t in scale(cal, test)], axis=0
            )
            names = ("interval_score", "coverage", "region_score", "region_coverage")
            values = dict(zip(names, map(float, scores), strict=True))
            yield {"method": f"{mode}, {method}", **values}


def member_parts(model: ClapsRegressor, X: Array) -> Parts:
    """μ, h² and φᵀΣφ of every member from one forward pass."""
    fitted, unit = model.model_, model.scaler_y_.scale_[0]
    with torch.no_grad():
        phi = fitted.network.features(fitted.network.encoding(model._scaled(X)))
        mu = fitted.posterior.mu(phi) * unit + model.scaler_y_.mean_[0]
        h2 = fitted.network.noise_variance(phi) * unit**2
        laplace = fitted.posterior.epistemic(phi) * unit**2
    weight = fitted.member_weight
    return Parts(mu.numpy(), h2.numpy(), laplace.numpy(), weight.numpy())


Scaled = tuple[Array, Array]  # μ and v
Predictions = list[tuple[Scaled, Scaled]]  # of calibration and test rows


def _members_together(
    spread: bool, laplace: bool
) -> Callable[[Parts, Parts], Predictions]:
    """The ensemble, with some of its terms."""

    def of(part: Parts) -> Scaled:
        w = part.weight
        mu, v = w @ part.mu, np.exp(w @ np.log(part.aleatoric))
        v = v + w @ (part.mu - mu) ** 2 if spread else v
        return mu, v + w @ part.laplace if laplace else v

    return lambda cal, test: [(of(cal), of(test))]


def _members_alone(laplace: bool) -> Callable[[Parts, Parts], Predictions]:
    """Each member as if it were the only one, but for λ, which they share."""

    def of(part: Parts, k: int) -> Scaled:
        v = part.aleatoric[k]
        return part.mu[k], v + part.laplace[k] if laplace else v

    return lambda cal, test: [(of(cal, k), of(test, k)) for k in range(len(cal.mu))]


SCALES = {
    "one member, h²": _members_alone(laplace=False),
    "one member, h² + Laplace": _members_alone(laplace=True),
    "all members, h²": _members_together(spread=False, laplace=False),
    "all members, h² + Laplace": _members_together(spread=False, laplace=True),
    "all members, h² + spread": _members_together(spread=True, laplace=False),
    "all members, all": _members_together(spread=True, laplace=True),
}


def _scores(cal: Scaled, test: Scaled, split: Split, in_region: Array) -> list[float]:
    """Interval score and coverage, overall and inside the region."""
    q = conformal_quantile(np.abs(split.y_cal - cal[0]) / np.sqrt(cal[1]), [ALPHA])[0]
    half = q * np.sqrt(test[1])
    lower, upper, y = test[0] - half, test[0] + half, split.y_test
    inside = (lower <= y) & (y <= upper)
    region = np.asarray(in_region, dtype=bool)
    return [
        interval_score(lower, upper, y, ALPHA),
        float(inside.mean()),
        interval_score(lower[region], upper[region], y[region], ALPHA),
        float(inside[region].mean()),
    ]


def report(rows: Sequence[Row]) -> str:
    """Ratios to h² on the same networks, with paired standard errors."""
    lines = [
        "| training rows | scale | score / score of h² | inside the region "
        "| coverage inside | coverage |",
        "|---|---|---|---|---|---|",
    ]
    by_key = {key_of(row): row for row in rows}
    datasets = sorted({row["dataset"] for row in rows})
    seeds = sorted({row["seed"] for row in rows})
    for mode in MODES:
        for method in SCALES:
            base = f"{mode}, {method.split(',')[0]}, h²"
            name = f"{mode}, {method}"
            cells = [
                _ratio(by_key, datasets, seeds, name, base, field)
                for field in ("interval_score", "region_score")
            ]
            found = [r for r in rows if r["method"] == name]
            covered = [
                f"{np.mean([r[field] for r in found]):.3f}"
                for field in ("region_coverage", "coverage")
            ]
            lines.append("| " + " | ".join([mode, method, *cells, *covered]) + " |")
    for mode in MODES:
        both, spread = (f"{mode}, all members, {v}" for v in ("all", "h² + spread"))
        cells = [
            _ratio(by_key, datasets, seeds, both, spread, field)
            for field in ("interval_score", "region_score")
        ]
        lines += [
            "",
            f"Laplace on top of the spread ({mode}): {cells[0]}, inside the region "
            f"{cells[1]}.",
        ]
    lines += [
        "",
        f"{len(datasets)} data sets ({', '.join(datasets)}), "
        f"{len(seeds)} seeds. Geometric means over data sets of ratios on the "
        "same networks ± standard error over seeds.",
    ]
    return "\n".join(lines) + "\n"


def _ratio(
    by_key: dict[tuple[str, int, str], Row],
    datasets: Sequence[str],
    seeds: Sequence[int],
    name: str,
    base: str,
    field: str,
) -> str:
    """Geometric mean over data sets, and its paired standard error over seeds."""
    means, variances = [], []
    for dataset in datasets:
        logs = [
            np.log(
                by_key[dataset, seed, name][field] / by_key[dataset, seed, base][field]
            )
            for seed in seeds
            if (dataset, seed, name) in by_key
        ]
        means.append(np.mean(logs))
        variances.append(np.var(logs, ddof=1) / len(logs) if len(logs) > 1 else np.nan)
    mean = float(np.exp(np.mean(means)))
    error = mean * float(np.sqrt(np.sum(variances))) / len(datasets)
    return f"{mean:.3f} ± {error:.3f}"
