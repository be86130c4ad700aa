"""From rows to figures: per data set and method, and the headline against the peers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ._peers import BY_NAME, CLAPS, PEERS
from ._runs import Row
from ._scoring import SplitSize, coverage_limits

# Interval score of CLAPS at level 0.9 as published, by data set.
PAPER_CLAPS = {
    "concrete": 26.79,
    "energy": 8.281,
    "yacht": 4.374,
    "airfoil": 14.44,
    "wine_red": 2.796,
    "naval": 0.0219,
    "bike": 486.1,
    "california": 2.734,
}
LEFT_OUT = "naval"  # nearly free of noise: its ratio would rule the mean
MEASURES = (
    "coverage",
    "width",
    "interval_score",
    "cv_score",
    "tune_seconds",
    "fit_seconds",
    "predict_seconds",
)


@dataclass(frozen=True)
class Cell:
    """Mean and standard error over seeds, and how many there are."""

    mean: float
    error: float
    n: int


@dataclass(frozen=True)
class Contest:
    """CLAPS and the peers on one data set, over the seeds that both have.

    Parameters
    ----------
    dataset : str
        Name.
    n_seeds : int
        Seeds on which all methods are finished.
    picked : dict of str to int
        How often each peer was picked on training rows.
    peer : Cell
        Interval score of the peer picked for each seed on its training rows.
    best_peer, best_score
        Peer with the lowest mean test score, seen afterwards, and that score.
    claps : Cell or None
        Interval score of CLAPS, if it was run.
    ratio : float or None
        Mean score of CLAPS divided by that of the picked peer.
    ratio_error : float or None
        Standard error of the ratio, from paired differences.
    coverage : float or None
        Mean coverage of CLAPS.
    limits : tuple of float
        99.9 % limits of the mean coverage.
    """

    dataset: str
    n_seeds: int
    picked: dict[str, int]
    peer: Cell
    best_peer: str
    best_score: float
    claps: Cell | None
    ratio: float | None
    ratio_error: float | None
    coverage: float | None
    limits: tuple[float, float]


def cell(values: Sequence[float | None]) -> Cell:
    """Mean and standard error of numbers; None is left out.

    Parameters
    ----------
    values : sequence of float or None
        One number per seed.

    Returns
    -------
    Cell
        NaN where there are too few numbers.

    Examples
    --------
    >>> cell([1.0, 3.0, None])
    Cell(mean=2.0, error=1.0, n=2)
    """
    given = np.array([v for v in values if v is not None], dtype=np.float64)
    n = len(given)
    mean = float(given.mean()) if n else float("nan")
    error = float(given.std(ddof=1) / np.sqrt(n)) if n > 1 else float("nan")
    return Cell(mean, error, n)


def datasets_of(rows: Sequence[Row]) -> list[str]:
    """Names of the data sets, in the order of the rows."""
    return list(dict.fromkeys(row["dataset"] for row in rows))


def methods_of(rows: Sequence[Row]) -> list[str]:
    """Names of the methods, in the order of the registry."""
    present = {row["method"] for row in rows}
    return [name for name in BY_NAME if name in present]


def aggregate(rows: Sequence[Row]) -> dict[tuple[str, str], dict[str, Cell]]:
    """Means over seeds by data set and method.

    Parameters
    ----------
    rows : sequence of dict
        Finished runs.

    Returns
    -------
    dict
        From (data set, method) to a Cell for each measure.
    """
    table = {}
    for dataset in datasets_of(rows):
        for method in methods_of(rows):
            own = [r for r in rows if r["dataset"] == dataset and r["method"] == method]
            if own:
                table[dataset, method] = {
                    m: cell([r[m] for r in own]) for m in MEASURES
                }
    return table


def contest(rows: Sequence[Row], dataset: str) -> Contest | None:
    """Compare CLAPS with the peers on one data set.

    Parameters
    ----------
    rows : sequence of dict
        Finished runs, of all data sets.
    dataset : str
        Name.

    Returns
    -------
    Contest or None
        None if no seed has a finished run of every method.
    """
    methods = methods_of(rows)
    peers = [name for name in methods if name in PEERS]
    by_seed: dict[int, dict[str, Row]] = {}
    for row in rows:
        if row["dataset"] == dataset:
            by_seed.setdefault(row["seed"], {})[row["method"]] = row
    seeds = [seed for seed in sorted(by_seed) if set(by_seed[seed]) == set(methods)]
    if not seeds or not peers:
        return None
    runs = [by_seed[seed] for seed in seeds]
    picks = [min(peers, key=lambda name: run[name]["cv_score"]) for run in runs]
    pairs = zip(runs, picks, strict=True)
    peer = cell([run[name]["interval_score"] for run, name in pairs])
    means = {p: cell([run[p]["interval_score"] for run in runs]).mean for p in peers}
    best = min(means, key=means.__getitem__)
    sizes = [SplitSize(run[peers[0]]["n_cal"], run[peers[0]]["n_test"]) for run in runs]
    claps = ratio = error = coverage = None
    if CLAPS in methods:
        scores = np.array([run[CLAPS]["interval_score"] for run in runs])
        others = [run[p]["interval_score"] for run, p in zip(runs, picks, strict=True)]
        claps = cell(list(scores))
        ratio = claps.mean / peer.mean
        error = cell(list(scores - ratio * np.array(others))).error / peer.mean
        coverage = cell([run[CLAPS]["coverage"] for run in runs]).mean
    return Contest(
        dataset,
        len(seeds),
        {name: picks.count(name) for name in peers if name in picks},
        peer,
        best,
        means[best],
        claps,
        ratio,
        error,
        coverage,
        coverage_limits(sizes, runs[0][peers[0]]["alpha"]),
    )


def geometric_mean(ratios: Sequence[float]) -> float:
    """Geometric mean; NaN of nothing.

    Parameters
    ----------
    ratios : sequence of float
        Positive numbers.

    Returns
    -------
    float
        exp of the mean logarithm.

    Examples
    --------
    >>> geometric_mean([0.5, 2.0])
    1.0
    """
    return float(np.exp(np.mean(np.log(ratios)))) if len(ratios) else float("nan")
