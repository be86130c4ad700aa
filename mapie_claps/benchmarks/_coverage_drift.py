"""Replications for rows that are not exchangeable: shift, groups, time, monitor.

One fixed network throughout; what rows have in common with those it was fitted on
does not matter for any of these laws.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from ..conformal.groups import EpistemicGroups, rows_by_group
from ..conformal.mapie import JumperMartingale
from ..conformal.online import AdaptiveLevels
from ..conformal.quantile import conformal_rank
from ..conformal.ranks import RankTable
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


class Finding(NamedTuple):
    """One line of the table."""

    part: str
    case: str
    level: float
    replications: int
    found: float
    promised: str
    limits: str
    holds: bool


def findings(part: str, n: int, seed: int) -> list[Row]:
    """Count one part in n replications (streams: n/50, monitor: n/10)."""
    rng = np.random.default_rng([seed, list(PARTS).index(part)])
    return [
        f._asdict() | {"found": float(f.found), "holds": bool(f.holds)}
        for f in PARTS[part](n, rng)
    ]


class Heteroscedastic:
    """A fixed tiny network, rows of its generator, and their laws."""

    def __init__(self, rng: Generator) -> None:
        self.case = Case("heteroscedastic")
        self.model = fit_network(self.case, rng)

    def rows(self, X: Array, rng: Generator, constant: bool = False) -> Any:
        """Signed scores of new targets at X, and the law."""
        mean = np.sin(2 * X[:, 0]) + X[:, 1]
        # Noise that grows to one side, where the tilt goes.
        y = mean + 0.3 * np.exp(0.8 * X[:, 0]) * rng.standard_normal(len(X))
        law = self.model.predict_law(X)
        if constant:
            law = LocalLaw.symmetric(law.centre, np.ones(len(X)))
        return law.score(y), law, y


def shift(n: int, rng: Generator) -> list[Finding]:
    """Weighted and unweighted coverage of one test row from the tilted density."""
    world, found = Heteroscedastic(rng), []
    alpha = 1 - np.array(LEVELS)
    for scale in ("claps", "constant"):
        covered = {"weighted": np.zeros(2, int), "unweighted": np.zeros(2, int)}
        for start in range(0, n, 1_000):
            size = min(1_000, n - start)
            X = rng.uniform(-2, 2, (size, N_CAL + 1, 2))
            u = rng.uniform(size=size)  # inverse of the distribution function
            low, high = np.exp(-2 * TILT), np.exp(2 * TILT)
            X[:, -1, 0] = np.log(low + u * (high - low)) / TILT
            flat = X.reshape(-1, 2)
            scores = world.rows(flat, rng, scale == "constant")[0].reshape(size, -1)
            weights = np.exp(TILT * X[:, :, 0])
            for s, w in zip(scores, weights, strict=True):
                for name, own in (("weighted", w), ("unweighted", np.ones(N_CAL + 1))):
                    table = RankTable.of(s[:-1], own[:-1], sym=True)
                    _, upper = table.ends(alpha, own[-1:])
                    covered[name] += np.abs(s[-1]) <= upper[0]
        for name, counts in covered.items():
            for level, k in zip(LEVELS, counts.tolist(), strict=True):
                limit = int(binom.ppf(TAIL, n, level))
                below = name == "unweighted" and scale == "constant"
                holds = k < limit if below else k >= limit or name == "unweighted"
                promised = f"≥ {level:g}" if name == "weighted" else "nothing"
                text = f"from {limit / n:.4f}" if name == "weighted" else (
                    f"falls below {limit / n:.4f}" if below else "–"
                )  # fmt: skip
                of = "shift", f"{name}, {scale} scale", level, n, k / n
                found.append(Finding(*of, promised, text, holds))
    return found


def groups(n: int, rng: Generator) -> list[Finding]:
    """Coverage given the group: exact where its rows are fixed in number."""
    world, found = Heteroscedastic(rng), []
    alpha, sizes = 1 - np.array(LEVELS), (20, 60)
    X = rng.uniform(-2, 2, (2_000, 2))
    bins = EpistemicGroups.from_training(world.model, X, n_groups=3)
    covered, tested = np.zeros((2, 2), int), np.zeros(3, int)
    by_bin = np.zeros((3, 2), int)
    for start in range(0, n, 1_000):
        size = min(1_000, n - start)
        X = rng.uniform(-2, 2, (size, sum(sizes) + 2, 2))
        # Group 0 lies left and has 20 calibration rows, group 1 lies right and has 60.
        X[:, : sizes[0] + 1, 0] = -np.abs(X[:, : sizes[0] + 1, 0])
        X[:, sizes[0] + 1 :, 0] = np.abs(X[:, sizes[0] + 1 :, 0])
        scores = world.rows(X.reshape(-1, 2), rng)[0].reshape(size, -1)
        for s in scores:
            for g, part in enumerate((s[: sizes[0] + 1], s[sizes[0] + 1 :])):
                _, upper = RankTable.of(part[:-1], None, True).ends(alpha, np.ones(1))
                covered[g] += np.abs(part[-1]) <= upper[0]
        X = rng.uniform(-2, 2, (size * (N_CAL + 1), 2))
        scores, law, _ = world.rows(X, rng)
        labels = bins.of_law(law).reshape(size, -1)
        for s, own in zip(scores.reshape(size, -1), labels, strict=True):
            same = rows_by_group(own[:-1]).get(own[-1], np.empty(0, int))
            table = RankTable.of(s[same], None, True)
            tested[own[-1]] += 1
            by_bin[own[-1]] += np.abs(s[-1]) <= table.ends(alpha, np.ones(1))[1][0]
    for g, size in enumerate(sizes):
        for level, k in zip(LEVELS, covered[g].tolist(), strict=True):
            law_ = conformal_rank(size, 1 - level) / (size + 1)
            low, high = binom.ppf([TAIL / 2, 1 - TAIL / 2], n, law_)
            of = "groups", f"group of {size} calibration rows", level, n, k / n
            text = f"{low / n:.4f} to {high / n:.4f}"
            found.append(Finding(*of, f"{law_:.4f}", text, bool(low <= k <= high)))
    return found + _by_bins(by_bin, tested)


def _by_bins(covered: NDArray[Any], tested: NDArray[Any]) -> list[Finding]:
    """Coverage given how unknown a row is."""
    found = []
    for b, counts in enumerate(covered.tolist()):
        m = int(tested[b])
        for level, k in zip(LEVELS, counts, strict=True):
            limit = int(binom.ppf(TAIL, m, level))
            of = "groups", f"epistemic fraction, bin {b}", level, m, k / max(m, 1)
            text = f"from {limit / max(m, 1):.4f}"
            found.append(Finding(*of, f"≥ {level:g}", text, k >= limit))
    return found


def online(n: int, rng: Generator) -> list[Finding]:
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
            scores = np.abs(world.rows(X, rng)[0])
            scores[N_CAL:] *= factor
            rates["follows"].append(_missed_online(scores, alpha))
            q = RankTable.of(scores[:N_CAL], None, True).ends(alpha, np.ones(1))[1]
            rates["fixed"].append((scores[N_CAL:, None] > q).mean(axis=0))
        for method, missed in rates.items():
            coverage = 1 - np.array(missed)
            for j, level in enumerate(LEVELS):
                worst = float(np.abs(coverage[:, j] - level).max())
                follows = method == "follows"
                text = f"{level - bound[j]:.4f} to {level + bound[j]:.4f}"
                of = "time", f"{name}, level {method}", level, n_streams
                mean = float(coverage[:, j].mean())
                promised = f"{level:g} in the long run" if follows else "nothing"
                holds = worst <= bound[j] + 1e-12 if follows else True
                limits = text if follows else "–"
                found.append(Finding(*of, mean, promised, limits, holds))
    return found


def _missed_online(scores: Array, alpha: Array) -> Array:
    """Share of misses (m,), row by row, over the newest scores."""
    levels = AdaptiveLevels.start(alpha).with_options(GAMMA, WINDOW)
    for i in range(N_CAL, len(scores)):
        newest = scores[max(0, i - WINDOW) : i]
        table = RankTable.of(newest, None, True)
        _, upper = table.ends(levels.of(None), np.ones(1))
        levels = levels.after(None, scores[i] > upper, None)
    return 1 - levels.coverage


def monitor(n: int, rng: Generator) -> list[Finding]:
    """False alarms of both bets together, and how long an alarm takes."""
    world, found = Heteroscedastic(rng), []
    n_streams = max(10, n // 10)
    alarms = sum(
        any(_watch(world, rng, N_WATCHED, 1.0, 0.0)[k] for k in ("inputs", "noise"))
        for _ in range(n_streams)
    )
    limit = int(binom.ppf(1 - TAIL, n_streams, TEST_LEVEL))
    of = "monitor", f"false alarms in {N_WATCHED} rows", TEST_LEVEL, n_streams
    found.append(
        Finding(
            *of,
            alarms / n_streams,
            f"≤ {TEST_LEVEL:g}",
            f"up to {limit / n_streams:.4f}",
            alarms <= limit,
        )
    )
    for name, noise, move, cause in (
        ("noise doubles", 2.0, 0.0, "noise"),
        ("inputs move by one half-width", 1.0, 2.0, "inputs"),
    ):
        m = max(10, n // 100)
        seen = [_watch(world, rng, N_DELAY, noise, move) for _ in range(m)]
        delays = np.array([s[cause] or np.inf for s in seen])
        share = float(np.isfinite(delays).mean())
        case = f"{name}: alarm of '{cause}' within {N_DELAY} rows"
        text = f"median delay {np.median(delays):.0f} rows"
        found.append(
            Finding("monitor", case, TEST_LEVEL, m, share, "power", text, share > 0.5)
        )
    return found


def _watch(
    world: Heteroscedastic, rng: Generator, n: int, noise: float, move: float
) -> dict[str, int | None]:
    """Rows until each alarm; None without one."""
    X = rng.uniform(-2, 2, (N_REFERENCE + n, 2))
    X[N_REFERENCE:] += move
    scores, law, _ = world.rows(X, rng)
    fraction = np.asarray(law.epistemic) / (law.aleatoric + law.epistemic)
    scores = np.abs(scores)
    scores[N_REFERENCE:] *= noise
    found: dict[str, int | None] = {}
    for name, values in (("inputs", fraction), ("noise", scores)):
        bet = JumperMartingale(
            values[:N_REFERENCE], TEST_LEVEL / 2, int(rng.integers(2**31))
        )
        bet.extend(values[N_REFERENCE:])
        found[name] = bet.alarm
    return found


PARTS = {"shift": shift, "groups": groups, "time": online, "monitor": monitor}
SETTINGS: dict[str, Any] = {
    "levels": LEVELS,
    "n_cal": N_CAL,
    "tilt": TILT,
    "stream": (N_STREAM, GAMMA, WINDOW),
    "monitor": (N_REFERENCE, N_WATCHED, TEST_LEVEL, N_DELAY),
}


def table_of(rows: list[Finding]) -> str:
    """The table, and how many findings are outside their limits."""
    lines = [
        [
            *(f.part, f.case, f"{f.level:g}", str(f.replications), f"{f.found:.4f}"),
            *(f.promised, f.limits, "yes" if f.holds else "NO"),
        ]
        for f in rows
    ]
    failed = sum(not f.holds for f in rows)
    title = f"{len(rows)} findings, {failed} outside their limits.\n\n"
    return title + markdown_table(Finding._fields, lines, align="llrrrllr")
