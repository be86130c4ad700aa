"""What the paper says of experiment 3 by data set, checked against our runs."""

from collections.abc import Sequence

import numpy as np

from ..datasets import DATASETS
from .benchmark_claims import SMALL_SHARE, brief_noise
from .claims import ADAPTIVE, MEAN_BASED
from .evidence import (
    Claim,
    Estimate,
    listed,
    mean,
    near_nominal,
    paired,
    relative,
    relative_to,
    shortfall,
    versus,
)
from .methods import METHODS
from .runs import Row

EFFICIENT = ("concrete", "energy", "yacht", "airfoil", "bike", "california")
SEVERAL = 3


def by_data_set(rows: Sequence[Row]) -> list[Claim]:
    """The appendix with the full results of experiment 3."""
    source = "Appendix: full results"

    def narrower(name: str, others: Sequence[str], metric: str = "width") -> bool:
        """Whether CLAPS is below each other method by two standard errors."""
        return all(
            relative_to(rows, metric, "CLAPS", m, case=name).negative for m in others
        )

    def on(names: Sequence[str]) -> str:
        return ", ".join(names) or "none"

    def sizes(metric: str, names: Sequence[str], others: Sequence[str]) -> str:
        """Each data set with the method that CLAPS is least below."""
        found = {
            n: {m: relative_to(rows, metric, "CLAPS", m, case=n) for m in others}
            for n in names
        }
        nearest = {
            n: max(by_method.items(), key=lambda item: item[1].mean)
            for n, by_method in found.items()
        }
        return f"{metric} of CLAPS relative to the method it gains least on: " + listed(
            {n: f"{e} ({m})" for n, (m, e) in nearest.items()}
        )

    def count(names: Sequence[str], others: Sequence[str], metric: str) -> list[str]:
        return [n for n in names if narrower(n, others, metric)]

    everything = tuple(DATASETS)
    close = [
        n
        for n in everything
        if near_nominal(mean(rows, "coverage", case=n, method="CLAPS"))
    ]
    better = [
        n
        for n in count(everything, MEAN_BASED, "width")
        if narrower(n, MEAN_BASED, "score")
    ]
    narrowest = count(EFFICIENT, ("Split CP", "CV+", "LACP"), "width")
    lowest = count(EFFICIENT, METHODS[:-1], "score")
    against_lacp = {
        n: relative_to(rows, "width", "CLAPS", "LACP", case=n) for n in everything
    }
    score_lacp = {
        n: relative_to(rows, "score", "CLAPS", "LACP", case=n) for n in everything
    }
    helped = [n for n in EFFICIENT if against_lacp[n].negative]
    mean_based = (
        f"{sizes('width', everything, MEAN_BASED)}; "
        f"{sizes('score', everything, MEAN_BASED)}"
    )

    coverage = versus(rows, "coverage", "CLAPS", "Split CP")

    def largest(found: dict[str, Estimate]) -> float:
        return max(abs(e.mean) for e in found.values())

    pooled = paired(
        [r for r in rows if r["case"] in EFFICIENT],
        "score",
        {"method": "CLAPS"},
        {"method": "LACP"},
        transform=relative,
    )
    return [
        *_aggregate_identity(source, rows),
        Claim(
            source,
            "On most data sets CLAPS covers near 0.90 and is narrower, with a lower "
            "score, than Split CP and CV+.",
            f"near 0.90 on {len(close)} of 8; clearly narrower with a clearly lower "
            f"score on {len(better)} of 8 ({on(better)}); {mean_based}",
            len(close) > 4 and len(better) > 4,
            f"Near 0.90 on {len(close)}, clearly better on {len(better)} of 8, where "
            "more than four are asked for.",
        ),
        Claim(
            source,
            "On Concrete, Energy, Yacht, Airfoil, Bike and California CLAPS is the "
            "narrowest of the mean-based and locally adaptive methods.",
            f"clearly narrowest on {len(narrowest)} of 6 ({on(narrowest)}); "
            + sizes("width", EFFICIENT, ("Split CP", "CV+", "LACP")),
            len(narrowest) == len(EFFICIENT),
            "Not by two standard errors on "
            f"{', '.join(n for n in EFFICIENT if n not in narrowest)}. "
            + brief_noise(rows),
        ),
        Claim(
            source,
            "On these six it often has the lowest score of all.",
            f"clearly lowest on {len(lowest)} of 6 ({on(lowest)}); "
            + sizes("score", EFFICIENT, METHODS[:-1]),
            len(lowest) >= SEVERAL,
            f"Clearly lowest on {len(lowest)} of 6, where {SEVERAL} are asked for.",
        ),
        Claim(
            source,
            "Against LACP and DCP the gains of CLAPS are small but consistent on "
            "several data sets.",
            "relative score, CLAPS to LACP: "
            + listed(score_lacp)
            + f"; the six together {pooled}",
            sum(e.negative for e in score_lacp.values()) >= SEVERAL,
            f"Clearly below zero on fewer than {SEVERAL} data sets.",
        ),
        Claim(
            source,
            "On the six data sets the epistemic part makes intervals slightly "
            "narrower than the aleatoric scale alone.",
            "relative width, CLAPS to LACP: " + listed(against_lacp),
            len(helped) == len(EFFICIENT),
            f"Clearly narrower on {len(helped)} of 6. "
            + shortfall({n: against_lacp[n] for n in EFFICIENT}, -1),
        ),
        Claim(
            source,
            "These gains are modest.",
            f"largest change of width {largest(against_lacp):.4f}, of score "
            f"{largest(score_lacp):.4f}",
            all(abs(e.mean) < SMALL_SHARE for e in against_lacp.values()),
            f"The width moves by {SMALL_SHARE:g} or more, which does not count as "
            "modest, on "
            + on([n for n, e in against_lacp.items() if abs(e.mean) >= SMALL_SHARE])
            + ".",
        ),
        Claim(
            source,
            "The quantile keeps the marginal coverage, while the scale moves width "
            "between inputs.",
            f"coverage, CLAPS − LACP {versus(rows, 'coverage', 'CLAPS', 'LACP')}; "
            f"width, mean size of the change {mean_change_of_width(rows):.4f}",
            abs(versus(rows, "coverage", "CLAPS", "LACP").mean) < 0.01,
        ),
        *_limits(source, rows),
        Claim(
            source,
            "Taken together CLAPS is more efficient on most data sets and does not "
            "change the coverage materially.",
            f"clearly narrower with a clearly lower score than Split CP and CV+ on "
            f"{len(better)} of 8 ({on(better)}); coverage CLAPS − Split CP {coverage}",
            len(better) > 4 and abs(coverage.mean) < 0.01,
            f"Clearly more efficient on {len(better)} of 8, where more than four are "
            f"asked for; the coverage changes by {coverage.mean:+.4f}.",
        ),
    ]


def mean_change_of_width(rows: Sequence[Row]) -> float:
    """Mean over runs of |width of CLAPS / width of LACP − 1|."""
    return paired(
        rows,
        "width",
        {"method": "CLAPS"},
        {"method": "LACP"},
        transform=lambda a, b: abs(a / b - 1),
    ).mean


def _aggregate_identity(source: str, rows: Sequence[Row]) -> list[Claim]:
    """The aggregate is made of the tables by data set."""
    over_runs = mean(rows, "coverage", method="CLAPS").mean
    over_tables = np.mean(
        [mean(rows, "coverage", case=n, method="CLAPS").mean for n in DATASETS]
    )
    return [
        Claim(
            source,
            "The tables by data set underlie the aggregate table.",
            f"mean coverage of CLAPS over the tables minus that in the aggregate "
            f"{over_tables - over_runs:+.1e}",
            bool(abs(over_tables - over_runs) < 1e-9),
        )
    ]


def _limits(source: str, rows: Sequence[Row]) -> list[Claim]:
    """Wine and Naval."""
    others = [m for m in METHODS if m != "CQR"]
    wine = {
        metric: {
            m: relative_to(rows, metric, "CQR", m, case="wine_red") for m in others
        }
        for metric in ("width", "score")
    }
    wine_lacp = relative_to(rows, "score", "CLAPS", "LACP", case="wine_red")
    naval = {m: mean(rows, "width", case="naval", method=m) for m in METHODS}
    spread = max(e.mean for e in naval.values()) - min(e.mean for e in naval.values())
    adaptive = {
        m: relative_to(rows, "score", m, "Split CP", case="naval")
        for m in (*ADAPTIVE, "CLAPS")
    }
    wider = {
        n: relative_to(rows, "width", "CLAPS", "Split CP", case=n)
        for n in ("wine_red", "naval")
    }
    return [
        Claim(
            source,
            "Wine Red and Naval show where the gain ends.",
            "width, CLAPS relative to Split CP: " + listed(wider),
            all(e.not_negative for e in wider.values()),
            "A gain, or no standard error, on "
            + ", ".join(n for n, e in wider.items() if not e.not_negative),
        ),
        Claim(
            source,
            "On Wine Red CQR has the smallest width and the lowest score.",
            f"CQR relative to the others, width: {listed(wine['width'])}; score: "
            f"{listed(wine['score'])}",
            all(e.negative for found in wine.values() for e in found.values()),
            shortfall(
                {
                    f"{metric} against {m}": e
                    for metric, found in wine.items()
                    for m, e in found.items()
                },
                -1,
            ),
        ),
        Claim(
            source,
            "On Wine Red CLAPS stays close to LACP and DCP.",
            f"relative score {wine_lacp}",
            abs(wine_lacp.mean) < SMALL_SHARE,
        ),
        Claim(
            source,
            "On Naval the methods differ very little in absolute terms.",
            listed(naval),
            spread < 0.01,
            f"Mean widths span {spread:.4f}, where less than 0.01 counts as very "
            f"little. {brief_noise(rows)}",
        ),
        Claim(
            source,
            "On Naval adaptive scaling does not improve on Split CP.",
            "relative score " + listed(adaptive),
            all(e.not_negative for e in adaptive.values()),
            "A gain, or no standard error, for "
            + ", ".join(m for m, e in adaptive.items() if not e.not_negative),
        ),
    ]
