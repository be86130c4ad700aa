"""Which map of the target: chosen on held-out training rows.

Boosted trees predict mean and spread of T(y) under every candidate, out of fold, and
interval scores are compared in units of y. A likelihood would compare densities, which
spike on integers.
"""

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import PredefinedSplit, cross_val_predict

from ..network.rows import Labels, folds_of
from ..network.target import IDENTITY, MonotoneMap, can_be_bent, candidate_maps

Array = NDArray[np.float64]
MIN_ROWS, MAX_ROWS = 250, 3_000  # too few to tell; enough to tell
N_FOLDS, N_TREES = 2, 25
LEVELS = (0.5, 0.8, 0.9, 0.95)
GAIN = 0.015  # of the score, from which a curve is worth it
# Share of the variance that x explains, from which no spline is tried: it follows the
# distribution of y, which is then that of the mean and not of the noise.
EXPLAINED = 0.75
MIN_SPREAD = 0.1  # of the mean one


def choose_target_map(
    X: Array,  # (n, p)
    y: Array,  # (n,)
    labels: Labels | None,  # (n,), of rows that belong together
    seed: int,
) -> MonotoneMap:
    """The identity, unless a curve is clearly better on held-out training rows."""
    if len(y) < MIN_ROWS:
        return IDENTITY
    curves = candidate_maps(y)
    rows = np.random.default_rng(seed).permutation(len(y))[:MAX_ROWS]
    X, y = X[rows], y[rows]
    if not curves or not can_be_bent(y):  # targets that differ were left out
        return IDENTITY
    together = None if labels is None else labels[rows]
    # Not the seed of the order above, or row r would always be in fold r modulo 2.
    folds = folds_of(len(y), together, N_FOLDS, seed + 1)
    before, explained = _interval_scores(X, y, IDENTITY, folds)
    best, found = GAIN, IDENTITY
    for name, curve in curves.items():
        if name == "spline" and explained > EXPLAINED:
            continue
        gain = float(-np.log(_interval_scores(X, y, curve, folds)[0] / before).mean())
        if gain > best:
            best, found = gain, curve
    return found


def _interval_scores(
    X: Array, y: Array, target_map: MonotoneMap, folds: PredefinedSplit
) -> tuple[Array, float]:
    """Mean score at each level, by quantiles of the residuals; explained share."""

    def predict(target: Array, **size: int) -> Array:
        trees = HistGradientBoostingRegressor(
            learning_rate=0.2, early_stopping=False, **size
        )
        return np.asarray(cross_val_predict(trees, X, target, cv=folds))

    z = target_map.forward(y)
    centre = predict(z, max_iter=N_TREES, max_leaf_nodes=15)
    error = np.abs(z - centre)
    size = {"max_iter": N_TREES // 2, "max_leaf_nodes": 8, "min_samples_leaf": 40}
    scale = np.maximum(predict(error, **size), MIN_SPREAD * error.mean())
    found = []
    for level in LEVELS:
        tail = (1 - level) / 2
        ends = np.quantile((z - centre) / scale, [tail, 1 - tail])
        lower, upper = (target_map.inverse(centre + end * scale) for end in ends)
        missed = np.maximum(lower - y, 0) + np.maximum(y - upper, 0)
        found.append(float(np.mean(upper - lower + missed / tail)))
    return np.array(found), float(1 - np.mean(error**2) / np.var(z))
