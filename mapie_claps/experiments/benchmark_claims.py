"""What the paper says of experiment 3 as a whole, checked against our runs."""

from collections.abc import Sequence

from .claims import ADAPTIVE, BRIEF_QUANTILES, MEAN_BASED
from .evidence import (
    Claim,
    listed,
    mean,
    near_nominal,
    relative,
    relative_to,
    shortfall,
    versus,
)
from .methods import METHODS
from .runs import Row
from .tables import published

SMALL_SHARE = 0.05  # a change of width or score that is called small
MIDDLE_RANK = (len(METHODS) + 1) / 2


def brief_noise(rows: Sequence[Row]) -> str:
    """The data sets on which our likelihood-trained network is furthest off."""
    parts = []
    for name in ("yacht", "naval"):
        lines = {line["Method"]: line for line in published(f"exp3_{name}")}
        lacp, split = (float(lines[m]["Avg. Width"]) for m in ("LACP", "Split CP"))
        ours = relative_to(rows, "width", "LACP", "Split CP", case=name)
        parts.append(f"{name} {ours} (paper {relative(lacp, split):+.2f})")
    return (
        "Width of the likelihood-trained network relative to the squared-error one, "
        "LACP to Split CP, on Yacht (184 training rows) and Naval (nearly free of "
        f"noise): {'; '.join(parts)}."
    )


def aggregate(rows: Sequence[Row]) -> list[Claim]:
    """Experiment 3, the mean over the data sets."""
    source = "Experiment 3"
    means = {
        metric: {m: mean(rows, metric, method=m) for m in METHODS}
        for metric in (
            "coverage",
            "violation",
            "width_reduction",
            "width_rank",
            "score_rank",
        )
    }
    reduction, width_rank = means["width_reduction"], means["width_rank"]
    score_rank, violation = means["score_rank"], means["violation"]
    worst_reduction = min(METHODS, key=lambda m: reduction[m].mean)
    worst_rank = max(METHODS, key=lambda m: width_rank[m].mean)
    fewer = {m: versus(rows, "violation", "CV+", m) for m in METHODS if m != "CV+"}
    fewest = min(METHODS, key=lambda m: violation[m].mean)
    low = {
        "width rank": width_rank["CV+"].minus(MIDDLE_RANK),
        "score rank": score_rank["CV+"].minus(MIDDLE_RANK),
    }
    most = max(METHODS, key=lambda m: reduction[m].mean)
    worst = {
        f"{name}, CQR − {m}": e
        for m in METHODS
        if m != "CQR"
        for name, e in (
            ("reduction", versus(rows, "width_reduction", m, "CQR")),
            ("width rank", versus(rows, "width_rank", "CQR", m)),
        )
    }
    gains = {
        f"{a} − {b} ({name} rank)": versus(rows, metric, a, b)
        for a in ADAPTIVE
        for b in MEAN_BASED
        for metric, name in (("width_rank", "width"), ("score_rank", "score"))
    }
    best = {
        f"{name}, CLAPS − {m}": versus(rows, metric, "CLAPS", m)
        for metric, name in (("width_rank", "width rank"), ("score_rank", "score rank"))
        for m in METHODS[:-1]
    }
    more = {m: versus(rows, "width_reduction", "CLAPS", m) for m in METHODS[:-1]}
    return [
        Claim(
            source,
            "Every method covers near 0.90.",
            listed(means["coverage"]),
            all(map(near_nominal, means["coverage"].values())),
        ),
        Claim(
            source,
            "CV+ falls below 0.90 in the fewest runs.",
            f"{listed(violation)}; CV+ − {listed(fewer)}",
            all(e.negative for e in fewer.values()),
            f"Fewest: {fewest} ({violation[fewest].mean:.4f}). " + shortfall(fewer, -1),
        ),
        Claim(
            source,
            "CV+ is slightly wider than Split CP.",
            f"relative width reduction {reduction['CV+']}",
            reduction["CV+"].negative and reduction["CV+"].mean > -SMALL_SHARE,
            shortfall({"relative width reduction": reduction["CV+"]}, -1)
            or f"The mean is beyond the {SMALL_SHARE:g} that counts as slight.",
        ),
        Claim(
            source,
            "CV+ ranks low in efficiency.",
            f"width rank {width_rank['CV+']}, score rank {score_rank['CV+']}; CLAPS "
            f"{width_rank['CLAPS']}, {score_rank['CLAPS']}",
            all(e.positive for e in low.values()),
            f"Ranks of six methods have mean {MIDDLE_RANK:g}: CV+ is counted as weak "
            "if both of its ranks lie above by two standard errors. "
            + shortfall(low, +1),
        ),
        Claim(
            source,
            "CQR covers reasonably, yet has the worst width reduction and width rank.",
            f"coverage {means['coverage']['CQR']}; reduction {listed(reduction)}; "
            f"width rank {listed(width_rank)}",
            near_nominal(means["coverage"]["CQR"])
            and all(e.positive for e in worst.values()),
            f"Worst reduction: {worst_reduction}; worst width rank: {worst_rank}. "
            + BRIEF_QUANTILES,
        ),
        Claim(
            source,
            "LACP and DCP are more efficient than Split CP and CV+.",
            listed(gains),
            all(e.negative for e in gains.values()),
            f"{shortfall(gains, -1)} {brief_noise(rows)}",
        ),
        Claim(
            source,
            "CLAPS has the largest relative width reduction.",
            f"{listed(reduction)}; CLAPS − {listed(more)}",
            all(e.positive for e in more.values()),
            f"Largest mean: {most} ({reduction[most]}). {shortfall(more, +1)} "
            + brief_noise(rows),
        ),
        Claim(
            source,
            "CLAPS has the best width rank and the best score rank.",
            listed(best),
            all(e.negative for e in best.values()),
            shortfall(best, -1),
        ),
        Claim(
            source,
            "CLAPS keeps nominal coverage.",
            f"{means['coverage']['CLAPS']}",
            near_nominal(means["coverage"]["CLAPS"]),
        ),
    ]
