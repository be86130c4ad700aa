"""The main job on embedded data: ``make demo``, or ``python docs/demo.py``."""

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mapie.conformity_scores import ResidualNormalisedScore
from mapie.regression import ConformalizedQuantileRegressor, SplitConformalRegressor
from matplotlib.figure import Figure
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.ensemble import HistGradientBoostingRegressor

from mapie_claps import ClapsRegressor, ClapsScore
from mapie_claps.datasets import make_heteroscedastic_sparse
from mapie_claps.metrics import evaluate_intervals
from mapie_claps.plots import IntervalDisplay

LEVEL = 0.9
GAP = (-3.4, -1.0)  # without training rows: both reasons can be seen side by side


def show_table(name: str, train: Any, cal: Any, test: Any) -> Any:
    """Print how CLAPS and MAPIE's own methods do; return the calibrated CLAPS."""
    booster = HistGradientBoostingRegressor(random_state=0)
    median = clone(booster).set_params(loss="quantile", quantile=0.5)
    # By its name MAPIE would split the rows of the second model at random.
    residual = ResidualNormalisedScore(random_state=0)
    claps = ClapsRegressor(random_state=0), LEVEL, ClapsScore()
    methods = {
        "CLAPS": SplitConformalRegressor(*claps, prefit=False),
        "absolute, HistGB": SplitConformalRegressor(booster, LEVEL, prefit=False),
        "residual-normalised, HistGB": SplitConformalRegressor(
            booster, LEVEL, residual, prefit=False
        ),
        "quantile regression, HistGB": ConformalizedQuantileRegressor(median, LEVEL),
    }
    sizes = ", ".join(str(len(y)) for _, y in (train, cal, test))
    print(f"{name}: {sizes} rows to train, calibrate, test; level {LEVEL}")
    print(f"{'method':30}{'coverage':>10}{'mean width':>12}{'score':>10}")
    for method, mapie in methods.items():
        bounds = mapie.fit(*train).conformalize(*cal).predict_interval(test[0])[1]
        found = evaluate_intervals(test[1], bounds, LEVEL)
        coverage, width, score = (found[k][0] for k in ("coverage", "width", "score"))
        print(f"{method:30}{coverage:10.3f}{width:12.4g}{score:10.4g}")
    return methods["CLAPS"]


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table for each data set; draw an interval."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo_output"))
    folder = parser.parse_args(argv).out
    X, y = load_diabetes(return_X_y=True)
    parts = np.split(np.random.default_rng(0).permutation(len(X)), [265, 353])
    few = make_heteroscedastic_sparse(400, keep_probability=0.0, random_state=0)
    kept = (few.X[:, 0] < GAP[0]) | (few.X[:, 0] > GAP[1])
    train = few.X[kept], few.y[kept]
    sizes = {1: 500, 2: 2000}  # by random state
    made = [make_heteroscedastic_sparse(n, random_state=i) for i, n in sizes.items()]
    cal, test = ((each.X, each.y) for each in made)
    with warnings.catch_warnings():
        # MAPIE notes that prefit models must not have seen the calibration rows.
        warnings.simplefilter("ignore", UserWarning)
        show_table("Diabetes", *((X[part], y[part]) for part in parts))
        claps = show_table("Synthetic, with noise and a gap", train, cal, test)
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    ax, grid = figure.subplots(), np.linspace(-4, 4, 400)[:, None]
    IntervalDisplay.from_estimator(claps, grid, training_rows=train, ax=ax)
    ax.set(xlim=(-4, 4), ylim=(-2.75, 2.9), xlabel="x")
    ax.legend(loc="upper left", ncols=2, frameon=False)
    ax.annotate("no rows: wide for lack of data", (np.mean(GAP), -2.55), ha="center")
    ax.annotate("noisy rows: wide for noise", (2.0, -2.55), ha="center")
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "interval.png", dpi=150)
    print(f"Figure: {folder / 'interval.png'}")


if __name__ == "__main__":
    main()
