"""What the paper says of experiments 1 and 2, checked against our runs."""

from collections.abc import Sequence
from itertools import pairwise

from .evidence import (
    CLEAR,
    NEAR_RATIO,
    Claim,
    Estimate,
    estimate,
    listed,
    mean,
    near_nominal,
    relative_to,
    shortfall,
    values,
    versus,
)
from .methods import CONFIDENCE_LEVEL, METHODS
from .runs import Row
from .synthetic import SIZES

MEAN_BASED = ("Split CP", "CV+")
ADAPTIVE = ("LACP", "DCP")
MUCH_WIDER = 0.2

BRIEF_QUANTILES = (
    "In experiment 1 the paper's CQR is 1.8 times as wide as its other adaptive "
    "methods. The settings of its quantile network are not given; ours has the same "
    "backbone, steps and rate as the other networks."
)


def mechanism(rows: Sequence[Row]) -> list[Claim]:
    """Experiment 1."""
    source = "Experiment 1"
    coverage = {m: mean(rows, "coverage", method=m) for m in METHODS}
    noisy = {m: mean(rows, "noisy_coverage", method=m) for m in METHODS}
    spread = max(e.mean for e in noisy.values()) - min(e.mean for e in noisy.values())
    short = {m: noisy[m].mean - CONFIDENCE_LEVEL for m in MEAN_BASED}
    gain = {
        f"{a} − {b}": versus(rows, "noisy_coverage", a, b)
        for a in ADAPTIVE
        for b in MEAN_BASED
    }
    same = max(
        abs(versus(rows, metric, "LACP", "DCP").mean)
        for metric in ("coverage", "width", "score", "region_gap")
    )
    claims = [
        Claim(
            source,
            "Every method covers marginally near 0.90.",
            listed(coverage),
            all(map(near_nominal, coverage.values())),
        ),
        Claim(
            source,
            "The methods differ in how they cover the regions.",
            f"noisy-region coverage spans {spread:.3f} over the methods: "
            + listed(noisy),
            spread > 0.05,
        ),
        Claim(
            source,
            "Split CP and CV+ cover the noisy region too rarely.",
            listed(
                {m: f"{short[m]:+.4f} ± {noisy[m].se:.4f} from 0.90" for m in short}
            ),
            all(noisy[m].mean + CLEAR * noisy[m].se < CONFIDENCE_LEVEL for m in short),
        ),
        *_quantile_claims(source, rows),
        Claim(
            source,
            "LACP and DCP cover the noisy region better than Split CP and CV+, and "
            "do so with one and the same scale.",
            f"{listed(gain)}; largest difference of LACP and DCP {same:.1e}",
            all(e.positive for e in gain.values()) and same < 1e-9,
        ),
    ]
    return claims + [
        _smallest(source, rows, metric, name) for metric, name in _SMALLEST
    ]


_SMALLEST = (
    ("region_gap", "region gap"),
    ("width", "mean width"),
    ("score", "interval score"),
)


def _quantile_claims(source: str, rows: Sequence[Row]) -> list[Claim]:
    gap = {m: versus(rows, "region_gap", "CQR", m) for m in MEAN_BASED}
    width = {m: relative_to(rows, "width", "CQR", m) for m in METHODS if m != "CQR"}
    score = {m: versus(rows, "score", "CQR", m) for m in METHODS if m != "CQR"}
    return [
        Claim(
            source,
            "CQR covers the regions more evenly than Split CP and CV+.",
            "region gap, CQR − " + listed(gap),
            all(e.negative for e in gap.values()),
        ),
        Claim(
            source,
            "CQR pays with much wider intervals.",
            "width relative to " + listed(width),
            all(e.positive and e.mean > MUCH_WIDER for e in width.values()),
            f"At most {max(e.mean for e in width.values()):+.4f}, where more than "
            f"{MUCH_WIDER:+g} against each counts as much. " + BRIEF_QUANTILES,
        ),
        Claim(
            source,
            "CQR pays with higher interval scores.",
            "score, CQR − " + listed(score),
            all(e.positive for e in score.values()),
            f"{shortfall(score, +1)} {BRIEF_QUANTILES}",
        ),
    ]


def _smallest(source: str, rows: Sequence[Row], metric: str, name: str) -> Claim:
    """Whether CLAPS is best: below every other by two standard errors."""
    difference = {m: versus(rows, metric, "CLAPS", m) for m in METHODS[:-1]}
    lowest = min(METHODS, key=lambda m: mean(rows, metric, method=m).mean)
    return Claim(
        source,
        f"CLAPS has the smallest {name}.",
        f"lowest mean: {lowest}; CLAPS − " + listed(difference),
        lowest == "CLAPS" and all(e.negative for e in difference.values()),
        "The mean is the lowest, but not by two standard errors from each other method."
        if lowest == "CLAPS"
        else f"{lowest} is lower.",
    )


def contraction(rows: Sequence[Row]) -> list[Claim]:
    """Experiment 2."""
    source = "Experiment 2"
    sizes = [str(n) for n in SIZES]

    def by_size(metric: str) -> dict[str, object]:
        return {f"n={n}:": mean(rows, metric, case=n) for n in sizes}

    def steps(metric: str) -> dict[str, Estimate]:
        """From each size to the next, paired by seed."""
        found = {}
        for a, b in pairwise(sizes):
            first, second = (values(rows, metric, case=n) for n in (a, b))
            found[f"{a} to {b}"] = estimate(
                {(b, s): second[(b, s)] - v for (_, s), v in first.items()}, signed=True
            )
        return found

    def falls(metric: str) -> bool:
        return all(e.negative for e in steps(metric).values())

    ratio = [mean(rows, "width_ratio", case=n).mean for n in sizes]
    score = {n: mean(rows, "score_difference", case=n) for n in sizes}
    gap = {
        f"n={n}:": mean(
            [
                row | {"gap": row["coverage_claps"] - row["coverage_lacp"]}
                for row in rows
            ],
            "gap",
            case=n,
        )
        for n in sizes
    }
    return [
        Claim(
            source,
            "The epistemic fraction falls as training rows are added.",
            listed(by_size("epistemic_fraction")),
            falls("epistemic_fraction"),
            shortfall(steps("epistemic_fraction"), -1),
        ),
        Claim(
            source,
            "The scale ratio moves towards one.",
            listed(by_size("scale_ratio")),
            falls("scale_ratio"),
            shortfall(steps("scale_ratio"), -1),
        ),
        Claim(
            source,
            "The width ratio stays close to one.",
            listed(by_size("width_ratio")),
            all(abs(r - 1) < NEAR_RATIO for r in ratio),
        ),
        Claim(
            source,
            "The difference of the interval scores stays near zero.",
            listed({f"n={n}:": e for n, e in score.items()}),
            all(abs(e.mean) < NEAR_RATIO for e in score.values()),
            f"Further than {NEAR_RATIO:g} from zero at n = "
            + ", ".join(n for n, e in score.items() if abs(e.mean) >= NEAR_RATIO),
        ),
        Claim(
            source,
            "LACP and CLAPS cover nearly alike at every size.",
            "CLAPS − LACP " + listed(gap),
            all(abs(e.mean) < 0.01 for e in gap.values()),
        ),
    ]
