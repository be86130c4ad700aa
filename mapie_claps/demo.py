"""The main job on embedded data: ``python -m mapie_claps.demo`` (needs MAPIE 1.5)."""

import argparse
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_diabetes
from sklearn.ensemble import HistGradientBoostingRegressor

from . import ClapsRegressor, ClapsScore
from .datasets import make_heteroscedastic_sparse

__all__ = ["main"]

Array = NDArray[np.float64]
Split = list[tuple[Array, Array]]  # to train, to calibrate, to test
LEVEL = 0.9
GAP = (-3.4, -1.0)  # of the figure


def synthetic_split() -> Split:
    """Training rows that are sparse in one region; calibration and test are not."""
    sizes = [(500, 0.1), (500, 1.0), (2000, 1.0)]
    return [
        make_heteroscedastic_sparse(n, keep_probability=keep, random_state=seed)[:2]
        for seed, (n, keep) in enumerate(sizes)
    ]


def diabetes_split() -> Split:
    """scikit-learn's diabetes data, 60/20/20."""
    X, y = load_diabetes(return_X_y=True)
    rows = np.random.default_rng(0).permutation(len(X))
    parts = np.split(rows, [int(0.6 * len(X)), int(0.8 * len(X))])
    return [(X[part], y[part]) for part in parts]


def calibrated_methods(split: Split) -> Iterator[tuple[str, Any]]:
    """CLAPS and MAPIE's own methods, fitted and calibrated on the same rows."""
    from mapie.conformity_scores import ResidualNormalisedScore
    from mapie.regression import ConformalizedQuantileRegressor, SplitConformalRegressor

    train, cal, _ = split
    booster = HistGradientBoostingRegressor(random_state=0)
    # By its name MAPIE would split the rows of the second model at random.
    residual = ResidualNormalisedScore(random_state=0)
    for name, model, score in (
        ("CLAPS", ClapsRegressor(random_state=0), ClapsScore()),
        ("absolute, HistGB", booster, "absolute"),
        ("residual-normalised, HistGB", booster, residual),
    ):
        mapie = SplitConformalRegressor(model, LEVEL, score, prefit=False)
        yield name, mapie.fit(*train).conformalize(*cal)
    quantile = HistGradientBoostingRegressor(
        loss="quantile", quantile=0.5, random_state=0
    )
    cqr = ConformalizedQuantileRegressor(quantile, LEVEL)
    yield "quantile regression, HistGB", cqr.fit(*train).conformalize(*cal)


def table(name: str, split: Split) -> str:
    """Coverage, mean width and interval score of all methods, as text."""
    from mapie.metrics import regression as metrics

    train, cal, (X, y) = split
    lines = [
        f"{name}: {len(train[1])}, {len(cal[1])}, {len(y)} rows to train, calibrate, "
        f"test; level {LEVEL}",
        f"{'method':30}{'coverage':>10}{'mean width':>12}{'score':>10}",
    ]
    for method, mapie in calibrated_methods(split):
        bounds = mapie.predict_interval(X)[1]
        coverage = metrics.regression_coverage_score(y, bounds)[0]
        width = metrics.regression_mean_width_score(bounds)[0]
        score = metrics.regression_mwi_score(y, bounds, LEVEL)
        lines.append(f"{method:30}{coverage:10.3f}{width:12.4g}{score:10.4g}")
    return "\n".join(lines)


def draw(file: Path) -> None:
    """Interval over x, split into what noise and what lack of data need.

    The training rows have a gap, so that both reasons can be seen side by side.
    """
    from mapie.regression import SplitConformalRegressor
    from matplotlib.figure import Figure

    from .plots import IntervalDisplay

    X, y, *_ = make_heteroscedastic_sparse(400, keep_probability=0.0, random_state=0)
    kept = (X[:, 0] < GAP[0]) | (X[:, 0] > GAP[1])
    cal = make_heteroscedastic_sparse(500, random_state=1)
    model = ClapsRegressor(random_state=0)
    claps = SplitConformalRegressor(model, LEVEL, ClapsScore(), prefit=False)
    claps.fit(X[kept], y[kept]).conformalize(cal.X, cal.y)
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    ax, x = figure.subplots(), np.linspace(-4, 4, 400)
    rows = X[kept], y[kept]
    IntervalDisplay.from_estimator(claps, x[:, None], training_rows=rows, ax=ax)
    ax.set(xlim=(-4, 4), ylim=(-2.4, 2.9))
    ax.legend(loc="upper left", ncols=2, frameon=False)
    ax.annotate("no rows: wide for lack of data", (np.mean(GAP), -2.2), ha="center")
    ax.annotate("noisy rows: wide for noise", (2.0, -2.2), ha="center")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table for each data set and write the figure.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments of the command line.

    Examples
    --------
    >>> from mapie_claps.demo import synthetic_split
    >>> [len(y) for X, y in synthetic_split()]
    [500, 500, 2000]
    """
    parser = argparse.ArgumentParser(prog="python -m mapie_claps.demo")
    parser.add_argument("--out", type=Path, default=Path("demo_output"))
    file = parser.parse_args(argv).out / "interval.png"
    with warnings.catch_warnings():
        # MAPIE notes that prefit models must not have seen the calibration rows.
        warnings.simplefilter("ignore", UserWarning)
        split = synthetic_split()
        print(table("Synthetic, noisy and sparse regions", split), flush=True)  # noqa: T201
        print("\n" + table("Diabetes", diabetes_split()), flush=True)  # noqa: T201
        draw(file)
    print(f"\nFigure: {file}")  # noqa: T201


if __name__ == "__main__":
    main()
