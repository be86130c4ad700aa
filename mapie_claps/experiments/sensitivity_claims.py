"""What the paper says of its sensitivity analyses, checked against our runs."""

from collections.abc import Sequence
from itertools import pairwise

from . import sensitivity
from .evidence import (
    NEAR_RATIO,
    Claim,
    Estimate,
    listed,
    mean,
    near_nominal,
    paired,
    shortfall,
    values,
)
from .runs import Row

SMALL_SCORE = 0.05  # change of the score, as a share, that is called small


class _Grid:
    """Means over the grid of one analysis."""

    def __init__(self, source: str, rows: Sequence[Row], grid: Sequence[float]) -> None:
        self.source, self.rows, self.grid = source, rows, grid

    def means(self, metric: str) -> dict[float, Estimate]:
        return {v: mean(self.rows, metric, value=v) for v in self.grid}

    def listed(self, metric: str) -> str:
        return listed({f"{v:g}:": e for v, e in self.means(metric).items()})

    def steps(self, metric: str) -> dict[str, Estimate]:
        """From each grid value to the next, paired by run."""
        return {
            f"{a:g} to {b:g}": paired(self.rows, metric, {"value": b}, {"value": a})
            for a, b in pairwise(self.grid)
        }

    def moves(self, text: str, metric: str, sign: int) -> Claim:
        """Claim that each step along the grid goes one way."""
        found = self.steps(metric)
        return Claim(
            self.source,
            text,
            self.listed(metric),
            all(e.positive if sign > 0 else e.negative for e in found.values()),
            shortfall(found, sign),
        )

    def coverage_is_near(self, text: str) -> Claim:
        return Claim(
            self.source,
            text,
            self.listed("coverage"),
            all(map(near_nominal, self.means("coverage").values())),
        )

    def width_is_near_one(self, text: str) -> Claim:
        found = self.means("width_ratio")
        return Claim(
            self.source,
            text,
            self.listed("width_ratio"),
            all(abs(e.mean - 1) < NEAR_RATIO for e in found.values()),
            self._furthest_from_one(),
        )

    def _furthest_from_one(self) -> str:
        """The grid value whose mean is furthest from one, and its furthest run."""
        means = self.means("width_ratio")
        value = max(means, key=lambda v: abs(means[v].mean - 1))
        runs = values(self.rows, "width_ratio", value=value)
        case, seed = max(runs, key=lambda run: abs(runs[run] - 1))
        text = (
            f"At {value:g} the mean is {means[value].mean:.4f}; the run furthest from "
            f"one is {case}, seed {seed}, with {runs[case, seed]:.2f}"
        )
        others = [v for run, v in runs.items() if run != (case, seed)]
        if others:
            text += f", the others lie in {min(others):.2f} to {max(others):.2f}"
        return text + "."


def prior_precision(rows: Sequence[Row]) -> list[Claim]:
    """Sensitivity to λ."""
    grid = _Grid("Appendix: prior precision", rows, sensitivity.PRIOR_PRECISIONS)
    score = grid.means("relative_score")
    weaker = {f"λ = {v:g}": score[v] for v in grid.grid if v < 1}
    stronger = {f"λ = {v:g}": score[v] for v in grid.grid if v > 1}
    return [
        grid.moves(
            "A larger prior precision lowers the epistemic fraction.",
            "epistemic_fraction",
            -1,
        ),
        grid.moves(
            "A larger prior precision moves the scale ratio towards one.",
            "scale_ratio",
            -1,
        ),
        grid.coverage_is_near("Coverage stays near 0.90 over the whole grid."),
        grid.width_is_near_one("The width ratio stays near one."),
        Claim(
            grid.source,
            "Changes of the score are small.",
            f"score − score at λ = 1: {grid.listed('score_difference')}; as a share: "
            f"{grid.listed('relative_score')}",
            all(abs(e.mean) < SMALL_SCORE for e in score.values()),
        ),
        Claim(
            grid.source,
            "A weaker prior gives slightly lower, a stronger one slightly higher "
            "scores.",
            grid.listed("relative_score"),
            all(e.negative for e in weaker.values())
            and all(e.positive for e in stronger.values()),
            f"{shortfall(weaker, -1)} {shortfall(stronger, +1)}".strip(),
        ),
        Claim(
            grid.source,
            "So the prior precision steers the epistemic part as intended and leaves "
            "the intervals materially as they are.",
            f"epistemic fraction from {grid.means('epistemic_fraction')[1e-4].mean:.4f}"
            f" to {grid.means('epistemic_fraction')[100.0].mean:.4f}, width within "
            f"{max(abs(e.mean - 1) for e in grid.means('width_ratio').values()):.4f}",
            all(
                abs(e.mean - 1) < NEAR_RATIO for e in grid.means("width_ratio").values()
            ),
        ),
    ]


def calibration_size(rows: Sequence[Row]) -> list[Claim]:
    """Sensitivity to the split."""
    grid = _Grid("Appendix: calibration size", rows, sensitivity.CALIBRATION_FRACTIONS)
    score = grid.means("relative_score")[0.30]
    over = grid.means("width_ratio")[0.30].minus(1)
    return [
        grid.coverage_is_near("Coverage is stable over the splits."),
        grid.width_is_near_one("Width ratios stay close to one."),
        Claim(
            grid.source,
            "The largest calibration fraction makes width and score slightly larger, "
            "for want of training rows.",
            f"at 0.30 width {over}, relative score {score}",
            over.positive and score.positive,
            shortfall({"width": over, "score": score}, +1),
        ),
        Claim(
            grid.source,
            "60/20/20 is a stable middle, not a fragile choice.",
            grid.listed("relative_score"),
            all(
                abs(e.mean) < SMALL_SCORE for e in grid.means("relative_score").values()
            ),
        ),
    ]


def representation_size(rows: Sequence[Row]) -> list[Claim]:
    """Sensitivity to the size of φ."""
    grid = _Grid(
        "Appendix: representation dimension", rows, sensitivity.REPRESENTATION_SIZES
    )
    score = grid.means("relative_score")
    over = grid.means("width_ratio")[16].minus(1)
    growth = {
        f"{name}, {step}": e
        for metric, name in (
            ("epistemic_fraction", "fraction"),
            ("scale_ratio", "ratio"),
        )
        for step, e in grid.steps(metric).items()
    }
    last = grid.steps("epistemic_fraction")["64 to 128"]
    return [
        grid.coverage_is_near("Coverage stays near 0.90."),
        Claim(
            grid.source,
            "Epistemic fraction and scale ratio grow with the dimension.",
            f"fraction {grid.listed('epistemic_fraction')}; ratio "
            f"{grid.listed('scale_ratio')}",
            all(e.positive for e in growth.values()),
            shortfall(growth, +1),
        ),
        Claim(
            grid.source,
            "The smallest representation gives wider and less efficient intervals.",
            f"at 16 width {over}, relative score {score[16]}",
            over.positive and score[16].positive,
            shortfall({"width": over, "score": score[16]}, +1),
        ),
        Claim(
            grid.source,
            "The largest representation improves the score, with more epistemic "
            "variance.",
            f"at 128 relative score {score[128]}, epistemic fraction "
            f"{grid.means('epistemic_fraction')[128]}",
            score[128].negative and last.positive,
            " ".join(
                part
                for part in (
                    shortfall({"score at 128": score[128]}, -1),
                    shortfall({"epistemic fraction, 64 to 128": last}, +1),
                )
                if part
            ),
        ),
        Claim(
            grid.source,
            "64 is a stable setting in between.",
            grid.listed("relative_score"),
            score[16].positive and score[128].negative,
            "Read as: 16 scores clearly higher and 128 clearly lower than 64. "
            + shortfall({"16": score[16]}, +1)
            + shortfall({"128": score[128]}, -1),
        ),
    ]


def variance_floor(rows: Sequence[Row]) -> list[Claim]:
    """Sensitivity to the floor under h²."""
    grid = _Grid("Appendix: variance floor", rows, sensitivity.VARIANCE_FLOORS)
    active, smallest = grid.means("floor_active"), grid.means("min_h2")
    return [
        Claim(
            grid.source,
            "Intervals perform alike over the floors.",
            "relative score " + grid.listed("relative_score"),
            all(
                abs(e.mean) < SMALL_SCORE for e in grid.means("relative_score").values()
            ),
        ),
        grid.coverage_is_near("Coverage stays close to 0.90."),
        grid.width_is_near_one("Width ratios stay near one."),
        Claim(
            grid.source,
            "Practically no row is at the floor.",
            grid.listed("floor_active"),
            all(e.mean < 0.001 for e in active.values()),
        ),
        Claim(
            grid.source,
            "The lower tail of h² stays above the floor on average, so that the "
            "default floor does not drive the results.",
            f"min {grid.listed('min_h2')}; 1 % quantile {grid.listed('p01_h2')}",
            all(e.mean > 2 * v for v, e in smallest.items()),
        ),
        Claim(
            grid.source,
            "Smaller floors enlarge the local scale ratio.",
            grid.listed("scale_ratio"),
            all(e.negative for e in grid.steps("scale_ratio").values()),
            shortfall(grid.steps("scale_ratio"), -1)
            + " The smallest h² of a run is on average "
            + ", ".join(f"{e.mean / v:.3g}" for v, e in smallest.items())
            + " times the floor: a floor far below it hardly acts.",
        ),
        Claim(
            grid.source,
            "Width and coverage hardly change with the floor.",
            f"width {grid.listed('width_ratio')}; coverage {grid.listed('coverage')}",
            all(
                abs(e.mean - 1) < NEAR_RATIO for e in grid.means("width_ratio").values()
            ),
        ),
    ]
