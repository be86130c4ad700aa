"""Intervals for rows that are tilted or come in time, beside crepes; and their cost.

Rows of each data set are standardised and tilted along the first principal component of
the training rows: test rows are accepted in proportion to exp(z), where z is their
standardised position, limited to ±2. Calibration rows are not tilted. "split" ignores
that; "true" weighs by exp(z), "estimated" and "estimated φ" by ``likelihood_ratio`` of
training rows and of tilted rows without targets; crepes and crepes-weighted (if it is
installed) use a random forest and the true ratios.

With --by-time COLUMN rows are sorted by that column instead, and the last ones come as
a stream of 50 at a time: "fixed" beside "follows" (``observe``, γ = 0.01, window 500).

--cost prints time and memory of weighted and unweighted intervals of 200,000 and a
million rows, on 5,000 calibration rows.

Examples
--------
    python -m mapie_claps.benchmarks drift --smoke
    python -m mapie_claps.benchmarks drift --data tables --datasets kegg_directed
    python -m mapie_claps.benchmarks drift --datasets taxis --by-time pickup
    python -m mapie_claps.benchmarks drift --cost
"""

import argparse
import sys
import timeit
import tracemalloc
import warnings
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from .. import CalibratedRegressor, ClapsRegressor, likelihood_ratio
from ..studies.arguments import add_data_arguments, load_datasets, seeds_of
from ..studies.data import Array, Dataset, seeded_order, take_rows
from ..studies.rows import grouped
from ..studies.runner import Run, run_and_report, split_run
from ..studies.scoring import estimate, score_intervals
from ..studies.store import Row
from ..studies.text import markdown_table, number, plus_minus
from ._coverage_drift import UNIT
from ._peer_table import claps_parameters

LEVEL = 0.9
LIMIT = 2.0  # of the position along the first principal component
BATCH, GAMMA, WINDOW = 50, 0.01, 500
METRICS = ("coverage", "infinite", "width", "score", "effective")
SMOKE: dict[str, Any] = {"n_members": 2, "max_steps": 50, "tol": None}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_data_arguments(parser, seeds=3, out="drift_results")
    parser.add_argument("--by-time", metavar="COLUMN", help="stream in this order")
    parser.add_argument("--cost", action="store_true", help="time and memory alone")


def run(arguments: argparse.Namespace) -> int:
    """Compute what is missing and print the table."""
    if arguments.cost:
        sys.stdout.write(cost())
        return 0
    text = arguments.by_time is not None
    runs = [
        plan(data, seed, arguments)
        for data in load_datasets(arguments, text)
        for seed in seeds_of(arguments)
    ]
    return run_and_report(runs, arguments.out, arguments.jobs, report)


def plan(data: Dataset, seed: int, arguments: argparse.Namespace) -> Run:
    """One split of one data set."""
    params, by_time = SMOKE if arguments.smoke else {}, arguments.by_time
    split = {"seed": seed, "max_rows": arguments.max_rows}
    compute = partial(tilted, data, **split, params=params)
    if by_time is not None:
        compute = partial(streamed, data, **split, params=params, by_time=by_time)
    method = {"parameters": claps_parameters(**params)}
    split |= {"by_time": by_time, "level": LEVEL}
    return split_run("drift", data, split, method, compute)


def tilted(
    data: Dataset, seed: int, max_rows: int, params: dict[str, Any]
) -> list[Row]:
    """All methods on one split, its test rows tilted."""
    order = seeded_order(data, seed, max_rows)
    n = len(order)
    train, cal, pool = np.split(order, [round(0.4 * n), round(0.6 * n)])
    rng = np.random.default_rng(seed)
    X, y = np.asarray(data.X, dtype=np.float64), data.y
    ratio = tilt_of(X[train])
    taken = pool[rng.uniform(size=len(pool)) * np.exp(LIMIT) < ratio(X[pool])]
    if len(taken) < 8:
        raise ValueError(
            f"Got {len(taken)} tilted rows of {data.name}, but expected at least 8. "
            "Raise --max-rows, or use a larger data set."
        )
    unlabelled, test = np.split(taken, [len(taken) // 2])
    model = ClapsRegressor(random_state=seed, **params).fit(X[train], y[train])
    row = partial(_row, data.name, seed, y[test])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the table says what the warnings say
        learn = partial(likelihood_ratio, X[train], X[unlabelled], estimator=model)
        weights = {
            "split": None,
            "true": ratio,
            "estimated": learn().predict,
            "estimated φ": learn(features="phi").predict,
        }
        found = []
        for name, w in weights.items():
            calibrated = CalibratedRegressor(model, LEVEL)
            calibrated.conformalize(X[cal], y[cal], weights=w)
            bounds = calibrated.predict_interval(X[test], True)[1][:, :, 0]
            found.append(row(name, bounds, calibrated.effective_sample_size_))
        others = _crepes(X, y, train, cal, test, ratio, seed)
    return found + [row(name, bounds) for name, bounds in others.items()]


def tilt_of(X: Array) -> Any:
    """exp(z), with z the position along the first principal component of X."""
    mean, std = X.mean(axis=0), X.std(axis=0)
    std = np.where(std > 0, std, 1.0)
    _, values, axes = np.linalg.svd((X - mean) / std, full_matrices=False)
    unit = max(values[0] / np.sqrt(len(X)), np.finfo(np.float64).tiny)

    def ratio(rows: Array) -> Array:
        position = ((rows - mean) / std) @ axes[0] / unit
        return np.asarray(np.exp(np.clip(position, -LIMIT, LIMIT)))

    return ratio


def _crepes(
    X: Array, y: Array, train: Any, cal: Any, test: Any, ratio: Any, seed: int
) -> dict[str, Array]:
    """Random forest with crepes, and with its weighted relative if there is one."""
    from crepes import ConformalRegressor
    from sklearn.ensemble import RandomForestRegressor

    forest = RandomForestRegressor(random_state=seed).fit(X[train], y[train])
    residuals = y[cal] - forest.predict(X[cal])
    centre, level = forest.predict(X[test]), {"confidence": LEVEL}
    plain = ConformalRegressor().fit(residuals)
    found = {"crepes": plain.predict_int(centre, **level)}
    if find_spec("crepes_weighted") is not None:
        from crepes_weighted import ConformalRegressor as Weighted

        weighted = Weighted().fit(residuals, likelihood_ratios=ratio(X[cal]))
        # Releases differ in the name of the method.
        predict = getattr(weighted, "predict_int", None) or weighted.predict
        own = {"likelihood_ratios": ratio(X[test])}
        found["crepes-weighted, true"] = predict(centre, **level, **own)
    return found


def streamed(
    data: Dataset, seed: int, max_rows: int, params: dict[str, Any], by_time: str
) -> list[Row]:
    """Fixed levels and levels that follow misses, on rows in the order of a column."""
    if by_time not in getattr(data.X, "columns", ()):
        raise ValueError(
            f"Got --by-time {by_time}, but {data.name} has no such column. Name one "
            f"of {list(getattr(data.X, 'columns', ()))}."
        )
    rows = np.sort(seeded_order(data, seed, max_rows))
    times = [str(v) for v in take_rows(data.X, rows)[by_time]]
    rows = rows[np.argsort(times, kind="stable")]
    n = len(rows)
    train, cal, test = np.split(rows, [round(0.4 * n), round(0.5 * n)])
    X = data.X.drop(columns=[by_time])
    model = ClapsRegressor(random_state=seed, **params)
    model.fit(take_rows(X, train), data.y[train])
    found = []
    for name in ("fixed", "follows"):
        calibrated = CalibratedRegressor(model, LEVEL)
        calibrated.conformalize(take_rows(X, cal), data.y[cal])
        parts = []
        for start in range(0, len(test), BATCH):
            some = test[start : start + BATCH]
            X_ = take_rows(X, some)
            parts.append(calibrated.predict_interval(X_, True)[1][:, :, 0])
            if name == "follows":
                calibrated.observe(X_, data.y[some], gamma=GAMMA, window=WINDOW)
        bounds = np.concatenate(parts)
        found.append(_row(data.name, seed, data.y[test], name, bounds))
    return found


def _row(
    name: str, seed: int, y: Array, method: str, bounds: Array, effective: Any = None
) -> Row:
    """Coverage over all rows; width and interval score over those with finite ends."""
    lower, upper = bounds.T
    finite = np.isfinite(bounds).all(axis=1)
    known: Row = {"width": None, "interval_score": None}
    if finite.any():
        given = y[finite], lower[finite], upper[finite], 1 - LEVEL
        known = dict(score_intervals(*given))
    return {
        "data": name,
        "seed": seed,
        "method": method,
        "n_test": len(y),
        "coverage": float(((lower <= y) & (y <= upper)).mean()),
        "infinite": float(1 - finite.mean()),
        "width": known["width"],
        "score": known["interval_score"],
        "effective": effective,
    }


def report(rows: list[Row], out: Path) -> str:
    """Mean over splits, by data set and method."""
    lines = []
    for (data, method), own in grouped(rows, "data", "method").items():
        *cells, effective = (estimate(r[m] for r in own) for m in METRICS)
        texts = [*map(plus_minus, cells), number(effective.mean)]
        lines.append([data, method, str(len(own)), *texts])
    header = ["data", "method", "splits", "coverage", "infinite rows", "width"]
    header += ["interval score", "effective calibration rows"]
    text = markdown_table(header, lines, align="llrrrrrr")
    (out / "drift.md").write_text(text, encoding="utf-8")
    return text


def cost(sizes: tuple[int, ...] = (200_000, 1_000_000), n_cal: int = 5_000) -> str:
    """Time and memory of intervals beyond what the model itself needs."""
    rng = np.random.default_rng(0)
    scores, w = rng.standard_normal(n_cal), rng.exponential(size=n_cal)
    X, own = rng.normal(size=(max(sizes), 1)), rng.exponential(size=max(sizes))

    lines = []
    for n in sizes:
        for name, weights in (("unweighted", None), ("weighted", w)):
            calibrated = CalibratedRegressor.from_scores(
                UNIT, scores, LEVEL, signed=True, weights=weights
            )
            given = {} if weights is None else {"weights": own[:n]}
            whole = partial(calibrated.predict_interval, X[:n], True, **given)
            seconds = min(timeit.repeat(whole, number=1, repeat=3))
            batches = (X[i : min(i + 10_000, n)] for i in range(0, n, 10_000))
            parts = calibrated.iter_intervals(batches, True, **given)
            peaks = peak(whole) - 24 * n / 2**20, peak(partial(all, parts))
            cells = [f"{seconds:.3f}", *(f"{p:.1f}" for p in peaks)]
            lines.append([name, str(n_cal), str(n), *cells])
    header = ["interval", "calibration rows", "test rows", "seconds (best of 3)"]
    header += ["MiB beside the result", "MiB in all, in batches of 10,000"]
    return markdown_table(header, lines, align="lrrrrr")


def peak(call: Any) -> float:
    """Mebibytes that a call takes at most."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()
