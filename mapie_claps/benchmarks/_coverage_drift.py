"""Replications for rows that are not exchangeable: shift, groups, time, monitor.

One fixed network throughout; what rows have in common with those it was fitted on
does not matter for any of these laws.
"""

import warnings
from typing import Any

import numpy as np
from scipy.stats import binom

from .. import CalibratedRegressor, EpistemicGroups, ExchangeabilityMonitor
from ..conformal.quantile import conformal_rank
from ..estimators.local_law import LocalLaw
from ..studies.data import Array
from ..studies.store import Row
from ..studies.text import markdown_table
from ._coverage import Case, Generator, fit_network

LEVELS = (0.8, 0.9)
N_CAL = 100
TILT = 1.2  # target density ∝ exp(TILT · x₀) times that of the source, on [−2, 2]
N_STREAM, GAMMA, WINDOW = 2_000, 0.01, 500
N_REFERENCE, N_WATCHED, TEST_LEVEL = 200, 500, 0.05
N_DELAY = 1_000  # rows after a change within which an alarm is awaited
TAIL = 0.001  # of each limit


FIELDS = (
    *("part", "case", "level", "replications", "found"),
    *("promised", "limits", "holds"),
)


def _finding(*values: Any) -> Row:
    """One line of the table, in the order of ``FIELDS``."""
    row = dict(zip(FIELDS, values, strict=True))
    return row | {"found": float(row["found"]), "holds": bool(row["holds"])}


def _at_least(part: str, case: str, level: float, n: int, k: int) -> Row:
    """Of n rows k are covered, where at least the level is promised."""
    limit, m = int(binom.ppf(TAIL, n, level)), max(n, 1)
    share, text = k / m, f"from {limit / m:.4f}"
    return _finding(part, case, level, n, share, f"≥ {level:g}", text, k >= limit)


def findings(part: str, n: int, seed: int) -> list[Row]:
    """Count one part in n replications (streams: n/50, monitor: n/10)."""
    rng = np.random.default_rng([seed, list(PARTS).index(part)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # alarms, few effective rows: they are counted
        return PARTS[part](n, rng)


class Heteroscedastic:
    """A fixed tiny network, rows of its generator, and their laws."""

    def __init__(self, rng: Generator) -> None:
        self.case = Case("heteroscedastic")
        self.model = fit_network(self.case, rng)

    def targets(self, X: Array, rng: Generator) -> Array:
        """New targets at X."""
        mean = np.sin(2 * X[:, 0]) + X[:, 1]
        # Noise that grows to one side, where the tilt goes.
        noise = 0.3 * np.exp(0.8 * X[:, 0]) * rng.standard_normal(len(X))
        return np.asarray(mean + noise)

    def scores(self, X: Array, rng: Generator, constant: bool = False) -> Any:
        """Signed scores of new targets at X, and the law."""
        y, law = self.targets(X, rng), self.model.predict_law(X)
        if constant:
            law = LocalLaw.symmetric(law.centre, np.ones(len(X)))
        return law.score(y), law


class Standard:
    """A model whose scores are the targets: what is drawn are scores."""

    def predict_law(self, X: Array) -> LocalLaw:
        """Mean 0 and scale 1."""
        return LocalLaw.symmetric(np.zeros(len(X)), np.ones(len(X)))


def calibrated_on(scores: Array, **given: Any) -> CalibratedRegressor:
    """The object of the library, calibrated on signed scores."""
    return CalibratedRegressor.from_scores(
        Standard(), scores, LEVELS, signed=True, **given
    )


def covered(calibrated: CalibratedRegressor, scores: Array, **given: Any) -> Any:
    """Which scores (n,) of new rows lie in their intervals, (n, n_levels)."""
    rows = np.zeros((len(scores), 1))
    bounds = calibrated.predict_interval(rows, allow_infinite_bounds=True, **given)[1]
    y = scores[:, None]
    return (bounds[:, 0] <= y) & (y <= bounds[:, 1])


def shift(n: int, rng: Generator) -> list[Row]:
    """Weighted and unweighted coverage of one test row from the tilted density."""
    world, found = Heteroscedastic(rng), []
    for scale in ("claps", "constant"):
        counts = {"weighted": np.zeros(2, int), "unweighted": np.zeros(2, int)}
        for start in range(0, n, 1_000):
            size = min(1_000, n - start)
            X = rng.uniform(-2, 2, (size, N_CAL + 1, 2))
            u = rng.uniform(size=size)  # inverse of the distribution function
            low, high = np.exp(-2 * TILT), np.exp(2 * TILT)
            X[:, -1, 0] = np.log(low + u * (high - low)) / TILT
            flat = X.reshape(-1, 2)
            scores = world.scores(flat, rng, scale == "constant")[0].reshape(size, -1)
            weights = np.exp(TILT * X[:, :, 0])
            for s, w in zip(scores, weights, strict=True):
                given, own = {"weights": w[:-1]}, {"weights": w[-1:]}
                weighted = calibrated_on(s[:-1], **given)
                counts["weighted"] += covered(weighted, s[-1:], **own)[0]
                counts["unweighted"] += covered(calibrated_on(s[:-1]), s[-1:])[0]
        for name, of_levels in counts.items():
            for level, k in zip(LEVELS, of_levels.tolist(), strict=True):
                row = _at_least("shift", f"{name}, {scale} scale", level, n, k)
                if name == "unweighted":  # too few are expected
                    limits = row["limits"].replace("from", "falls below")
                    row |= {"promised": "nothing", "limits": limits}
                    row["holds"] = not row["holds"]
                found.append(row)
    return found


def groups(n: int, rng: Generator) -> list[Row]:
    """Coverage given the group: exact where its rows are fixed in number."""
    world, found = Heteroscedastic(rng), []
    sizes = (20, 60)
    X = rng.uniform(-2, 2, (2_000, 2))
    bins = EpistemicGroups.from_training(world.model, X, n_groups=3)
    counts, tested = np.zeros((2, 2), int), np.zeros(3, int)
    by_bin = np.zeros((3, 2), int)
    # Group 0 lies left and has 20 calibration rows, group 1 lies right and has 60; the
    # last row of each is predicted.
    labels = np.repeat([0, 1], [sizes[0] + 1, sizes[1] + 1])
    new = np.isin(np.arange(len(labels)), [sizes[0], len(labels) - 1])
    for start in range(0, n, 1_000):
        size = min(1_000, n - start)
        X = rng.uniform(-2, 2, (size, len(labels), 2))
        X[:, :, 0] = np.abs(X[:, :, 0]) * np.where(labels == 0, -1, 1)
        scores = world.scores(X.reshape(-1, 2), rng)[0].reshape(size, -1)
        for s in scores:
            both = calibrated_on(s[~new], groups=labels[~new])
            counts += covered(both, s[new], groups=labels[new])
        X = rng.uniform(-2, 2, (size * (N_CAL + 1), 2))
        scores, law = world.scores(X, rng)
        by_row = bins.of_law(law).reshape(size, -1)
        for s, own in zip(scores.reshape(size, -1), by_row, strict=True):
            binned = calibrated_on(s[:-1], groups=own[:-1])
            tested[own[-1]] += 1
            by_bin[own[-1]] += covered(binned, s[-1:], groups=own[-1:])[0]
    for g, size in enumerate(sizes):
        for level, k in zip(LEVELS, counts[g].tolist(), strict=True):
            law_ = conformal_rank(size, 1 - level) / (size + 1)
            low, high = binom.ppf([TAIL / 2, 1 - TAIL / 2], n, law_)
            of = "groups", f"group of {size} calibration rows", level, n, k / n
            text = f"{low / n:.4f} to {high / n:.4f}"
            found.append(_finding(*of, f"{law_:.4f}", text, low <= k <= high))
    for b, (of_levels, m) in enumerate(zip(by_bin.tolist(), tested, strict=True)):
        for level, k in zip(LEVELS, of_levels, strict=True):
            case = f"epistemic fraction, bin {b}"
            found.append(_at_least("groups", case, level, int(m), k))
    return found


def online(n: int, rng: Generator) -> list[Row]:
    """Long-run coverage of levels that follow misses, and of levels that do not."""
    world, found = Heteroscedastic(rng), []
    n_streams = max(2, n // 500)
    alpha = 1 - np.array(LEVELS)
    t = np.arange(N_STREAM)
    worlds = {
        "drift: noise grows threefold": 1 + 2 * t / N_STREAM,
        "jump: noise trebles halfway": np.where(t < N_STREAM // 2, 1.0, 3.0),
    }
    bound = (np.maximum(alpha, 1 - alpha) + GAMMA) / (GAMMA * N_STREAM)
    for name, factor in worlds.items():
        rates = {"follows": [], "fixed": []}  # type: dict[str, list[Any]]
        for _ in range(n_streams):
            X = rng.uniform(-2, 2, (N_CAL + N_STREAM, 2))
            scores = world.scores(X, rng)[0]
            scores[N_CAL:] *= factor
            fixed = covered(calibrated_on(scores[:N_CAL]), scores[N_CAL:])
            rates["fixed"].append(fixed.mean(axis=0))
            rates["follows"].append(_covered_online(scores))
        for method, shares in rates.items():
            coverage = np.array(shares)
            for j, level in enumerate(LEVELS):
                worst = float(np.abs(coverage[:, j] - level).max())
                follows = method == "follows"
                text = f"{level - bound[j]:.4f} to {level + bound[j]:.4f}"
                of = "time", f"{name}, level {method}", level, n_streams
                mean = float(coverage[:, j].mean())
                promised = f"{level:g} in the long run" if follows else "nothing"
                holds = worst <= bound[j] + 1e-12 if follows else True
                limits = text if follows else "–"
                found.append(_finding(*of, mean, promised, limits, holds))
    return found


def _covered_online(scores: Array) -> Array:
    """Share of covered rows (m,), observed one by one."""
    calibrated = calibrated_on(scores[:N_CAL])
    row = np.zeros((1, 1))
    for score in scores[N_CAL:, None]:
        calibrated.observe(row, score, gamma=GAMMA, window=WINDOW)
    return calibrated.observed_coverage_


def monitor(n: int, rng: Generator) -> list[Row]:
    """False alarms of both bets together, and how long an alarm takes."""
    world, found = Heteroscedastic(rng), []
    n_streams = max(10, n // 10)
    alarms = sum(
        any(_watch(world, rng, N_WATCHED, 1.0, 0.0)[k] for k in ("inputs", "noise"))
        for _ in range(n_streams)
    )
    limit = int(binom.ppf(1 - TAIL, n_streams, TEST_LEVEL))
    of = "monitor", f"false alarms in {N_WATCHED} rows", TEST_LEVEL, n_streams
    text, share = f"up to {limit / n_streams:.4f}", alarms / n_streams
    found.append(_finding(*of, share, f"≤ {TEST_LEVEL:g}", text, alarms <= limit))
    for name, noise, move, cause in (
        ("residuals double", 2.0, 0.0, "noise"),
        ("inputs move by one half-width", 1.0, 2.0, "inputs"),
    ):
        m = max(10, n // 100)
        seen = [_watch(world, rng, N_DELAY, noise, move) for _ in range(m)]
        delays = np.array([s[cause] or np.inf for s in seen])
        share = float(np.isfinite(delays).mean())
        case = f"{name}: alarm of '{cause}' within {N_DELAY} rows"
        text = f"median delay {np.median(delays):.0f} rows"
        of = "monitor", case, TEST_LEVEL, m
        found.append(_finding(*of, share, "power", text, share > 0.5))
    return found


def _watch(
    world: Heteroscedastic, rng: Generator, n: int, noise: float, move: float
) -> dict[str, int | None]:
    """Rows until each alarm; None without one."""
    X, X_new = np.split(rng.uniform(-2, 2, (N_REFERENCE + n, 2)), [N_REFERENCE])
    X_new = X_new + move
    calibrated = CalibratedRegressor(world.model)
    calibrated.conformalize(X, world.targets(X, rng))
    seed = int(rng.integers(2**31))
    monitor = ExchangeabilityMonitor(
        calibrated, X, test_level=TEST_LEVEL, random_state=seed
    )
    centre = world.model.predict(X_new)
    y = centre + noise * (world.targets(X_new, rng) - centre)
    monitor.update(X_new, y)
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
