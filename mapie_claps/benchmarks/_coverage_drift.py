"""Replications for rows that are not exchangeable: shift, groups, time, monitor.

One fixed network throughout; what rows have in common with those it was fitted on
does not matter for any of these laws.
"""

import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy.stats import binom

from .. import CalibratedRegressor, EpistemicGroups, ExchangeabilityMonitor
from ..conformal.quantile import conformal_rank
from ..estimators.local_law import LocalLaw
from ..studies.data import Array
from ..studies.store import Row
from ..studies.text import markdown_table
from ._coverage import Case, Generator, chunk_sizes, fit_network

LEVELS = (0.8, 0.9)
N_CAL = 100
TILT = 1.2  # target density ∝ exp(TILT · x₀) times that of the source, on [−2, 2]
N_STREAM, GAMMA, WINDOW = 2_000, 0.01, 500
N_REFERENCE, N_WATCHED, TEST_LEVEL = 200, 500, 0.05
N_DELAY = 1_000  # rows after a change within which an alarm is awaited
TAIL = 0.001  # of each limit
CHUNK = 1_000  # replications whose rows are predicted together

FIELDS = (
    *("part", "case", "level", "replications", "found"),
    *("promised", "limits", "holds"),
)
Finding = tuple[str, float, int, Any, str, str, Any]  # FIELDS but the first
#: A model whose law has the first column as its mean, and scale 1.
UNIT = SimpleNamespace(
    predict_law=lambda X: LocalLaw.symmetric(X[:, 0], np.ones(len(X)))
)


def findings(part: str, n: int, seed: int) -> list[Row]:
    """Count one part in n replications (streams: n/50, monitor: n/10)."""
    rng = np.random.default_rng([seed, list(PARTS).index(part)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # alarms, few effective rows: they are counted
        model = fit_network(Case("heteroscedastic"), rng)
        found = [(part, *finding) for finding in PARTS[part](model, n, rng)]
    rows = [dict(zip(FIELDS, values, strict=True)) for values in found]
    return [r | {"found": float(r["found"]), "holds": bool(r["holds"])} for r in rows]


def targets(X: Array, rng: Generator) -> Array:
    """New targets at X, with noise that grows to one side, where the tilt goes."""
    noise = 0.3 * np.exp(0.8 * X[:, 0]) * rng.standard_normal(len(X))
    return np.asarray(np.sin(2 * X[:, 0]) + X[:, 1] + noise)


def covered(scores: Array, n_new: int, **given: Any) -> Any:
    """Which of the last scores lie in intervals made of the others, (n_new, n_levels).

    The model is such that targets are scores. Weights and groups have one value each.
    """
    cal = {name: values[:-n_new] for name, values in given.items()}
    new = {name: values[-n_new:] for name, values in given.items()}
    calibrated = _calibrated_on(scores[:-n_new], **cal)
    rows, y = np.zeros((n_new, 1)), scores[-n_new:, None]
    bounds = calibrated.predict_interval(rows, allow_infinite_bounds=True, **new)[1]
    return (bounds[:, 0] <= y) & (y <= bounds[:, 1])


def _calibrated_on(scores: Array, **given: Any) -> CalibratedRegressor:
    return CalibratedRegressor.from_scores(UNIT, scores, LEVELS, signed=True, **given)


def _at_least(case: str, n: int, counts: Array) -> Iterator[Finding]:
    """Of n rows so many are covered, where at least the level is promised."""
    for level, k in zip(LEVELS, counts.tolist(), strict=True):
        limit, m = int(binom.ppf(TAIL, n, level)), max(n, 1)
        text = f"from {limit / m:.4f}"
        yield case, level, n, k / m, f"≥ {level:g}", text, k >= limit


def shift(model: Any, n: int, rng: Generator) -> Iterator[Finding]:
    """Weighted and unweighted coverage of one test row from the tilted density."""
    low, high = np.exp(-2 * TILT), np.exp(2 * TILT)
    for scale in ("claps", "constant"):
        weighted, unweighted = np.zeros((2, len(LEVELS)), int)
        for size in chunk_sizes(n, CHUNK):
            X = rng.uniform(-2, 2, (size, N_CAL + 1, 2))
            u = rng.uniform(size=size)  # inverse of the distribution function
            X[:, -1, 0] = np.log(low + u * (high - low)) / TILT
            rows = X.reshape(-1, 2)
            law = model.predict_law(rows)
            if scale == "constant":
                law = LocalLaw.symmetric(law.centre, np.ones(len(rows)))
            scores = law.score(targets(rows, rng)).reshape(size, -1)
            for s, w in zip(scores, np.exp(TILT * X[:, :, 0]), strict=True):
                weighted += covered(s, 1, weights=w)[0]
                unweighted += covered(s, 1)[0]
        yield from _at_least(f"weighted, {scale} scale", n, weighted)
        for *of, _, limits, enough in _at_least(
            f"unweighted, {scale} scale", n, unweighted
        ):  # too few are expected
            yield *of, "nothing", limits.replace("from", "falls below"), not enough


def groups(model: Any, n: int, rng: Generator) -> Iterator[Finding]:
    """Coverage given the group: exact where its rows are fixed in number."""
    sizes = (20, 60)
    X = rng.uniform(-2, 2, (2_000, 2))
    bins = EpistemicGroups.from_training(model, X, n_groups=3)
    counts, by_bin = np.zeros((2, len(LEVELS)), int), np.zeros((3, len(LEVELS)), int)
    tested = np.zeros(3, int)
    # Group 0 lies left and has 20 calibration rows, group 1 lies right and has 60; the
    # last row of each is predicted, and comes last in this order.
    labels = np.repeat([0, 1], [sizes[0] + 1, sizes[1] + 1])
    new = [sizes[0], len(labels) - 1]
    order = [*np.delete(np.arange(len(labels)), new), *new]
    for size in chunk_sizes(n, CHUNK):
        X = rng.uniform(-2, 2, (size, len(labels), 2))
        X[:, :, 0] = np.abs(X[:, :, 0]) * np.where(labels == 0, -1, 1)
        rows = X.reshape(-1, 2)
        scores = model.predict_law(rows).score(targets(rows, rng))
        for s in scores.reshape(size, -1)[:, order]:
            counts += covered(s, 2, groups=labels[order])
        X = rng.uniform(-2, 2, (size * (N_CAL + 1), 2))
        law = model.predict_law(X)
        scores = law.score(targets(X, rng)).reshape(size, -1)
        for s, own in zip(scores, bins.of_law(law).reshape(size, -1), strict=True):
            tested[own[-1]] += 1
            by_bin[own[-1]] += covered(s, 1, groups=own)[0]
    for size, of_levels in zip(sizes, counts.tolist(), strict=True):
        for level, k in zip(LEVELS, of_levels, strict=True):
            law = conformal_rank(size, 1 - level) / (size + 1)
            low, high = binom.ppf([TAIL / 2, 1 - TAIL / 2], n, law)
            of = f"group of {size} calibration rows", level, n, k / n, f"{law:.4f}"
            yield *of, f"{low / n:.4f} to {high / n:.4f}", low <= k <= high
    for b, m in enumerate(tested.tolist()):
        yield from _at_least(f"epistemic fraction, bin {b}", m, by_bin[b])


def online(model: Any, n: int, rng: Generator) -> Iterator[Finding]:
    """Long-run coverage of levels that follow misses, and of levels that do not."""
    n_streams, t = max(2, n // 500), np.arange(N_STREAM)
    worlds = {
        "drift: noise grows threefold": 1 + 2 * t / N_STREAM,
        "jump: noise trebles halfway": np.where(t < N_STREAM // 2, 1.0, 3.0),
    }
    for name, factor in worlds.items():
        shares = np.zeros((2, n_streams, len(LEVELS)))  # levels that follow, and fixed
        for i in range(n_streams):
            X = rng.uniform(-2, 2, (N_CAL + N_STREAM, 2))
            scores = model.predict_law(X).score(targets(X, rng))
            scores[N_CAL:] *= factor
            shares[:, i] = _covered_online(scores), covered(scores, N_STREAM).mean(0)
        follows, fixed = shares.swapaxes(1, 2)
        for level, found in zip(LEVELS, follows, strict=True):
            bound = (max(level, 1 - level) + GAMMA) / (GAMMA * N_STREAM)
            holds = np.abs(found - level).max() <= bound + 1e-12
            of = f"{name}, level follows", level, n_streams, found.mean()
            limits = f"{level - bound:.4f} to {level + bound:.4f}"
            yield *of, f"{level:g} in the long run", limits, holds
        for level, found in zip(LEVELS, fixed, strict=True):
            of = f"{name}, level fixed", level, n_streams, found.mean()
            yield *of, "nothing", "–", True


def _covered_online(scores: Array) -> Array:
    """Share of covered rows (n_levels,), observed one by one."""
    calibrated = _calibrated_on(scores[:N_CAL])
    for score in scores[N_CAL:, None]:
        calibrated.observe(np.zeros((1, 1)), score, gamma=GAMMA, window=WINDOW)
    return calibrated.observed_coverage_


def monitor(model: Any, n: int, rng: Generator) -> Iterator[Finding]:
    """False alarms of both bets together, and how long an alarm takes."""
    m = max(10, n // 10)
    streams = [_watch(model, rng, N_WATCHED, 1.0, 0.0) for _ in range(m)]
    k = sum(any(alarms.values()) for alarms in streams)
    limit = int(binom.ppf(1 - TAIL, m, TEST_LEVEL))
    of = f"false alarms in {N_WATCHED} rows", TEST_LEVEL, m, k / m
    yield *of, f"≤ {TEST_LEVEL:g}", f"up to {limit / m:.4f}", k <= limit
    m = max(10, n // 100)
    for name, noise, move, cause in (
        ("residuals double", 2.0, 0.0, "noise"),
        ("inputs move by one half-width", 1.0, 2.0, "inputs"),
    ):
        seen = [_watch(model, rng, N_DELAY, noise, move)[cause] for _ in range(m)]
        delays = np.array([rows or np.inf for rows in seen])
        share = np.isfinite(delays).mean()
        case = f"{name}: alarm of '{cause}' within {N_DELAY} rows"
        text = f"median delay {np.median(delays):.0f} rows"
        yield case, TEST_LEVEL, m, share, "power", text, share > 0.5


def _watch(
    model: Any, rng: Generator, n: int, noise: float, move: float
) -> dict[str, int | None]:
    """Rows until each alarm; None without one."""
    X, X_new = np.split(rng.uniform(-2, 2, (N_REFERENCE + n, 2)), [N_REFERENCE])
    X_new = X_new + move
    calibrated = CalibratedRegressor(model).conformalize(X, targets(X, rng))
    monitor = ExchangeabilityMonitor(
        calibrated, X, test_level=TEST_LEVEL, random_state=int(rng.integers(2**31))
    )
    centre = model.predict(X_new)
    monitor.update(X_new, centre + noise * (targets(X_new, rng) - centre))
    return monitor.alarm_rows


PARTS = {"shift": shift, "groups": groups, "time": online, "monitor": monitor}
SETTINGS: dict[str, Any] = {
    "levels": LEVELS,
    "n_cal": N_CAL,
    "tilt": TILT,
    "stream": (N_STREAM, GAMMA, WINDOW),
    "monitor": (N_REFERENCE, N_WATCHED, TEST_LEVEL, N_DELAY),
    "drives": "the calibrated object",
}


def table_of(rows: list[Row]) -> str:
    """The table, and how many findings are outside their limits."""
    forms: dict[str, Any] = {"level": "{:g}", "found": "{:.4f}"}
    shown = [row | {"holds": "yes" if row["holds"] else "NO"} for row in rows]
    lines = [[forms.get(n, "{}").format(row[n]) for n in FIELDS] for row in shown]
    failed = sum(not row["holds"] for row in rows)
    title = f"{len(rows)} findings, {failed} outside their limits.\n\n"
    return title + markdown_table(FIELDS, lines, align="llrrrllr")
