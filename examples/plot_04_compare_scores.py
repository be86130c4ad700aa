"""
Compare with MAPIE's scores
===========================

The same rows for all: MAPIE's absolute and residual-normalised scores and conformalized
quantile regression, each on gradient boosting, and CLAPS. One data set and one split
show how to compare; they do not decide which method is better.
"""

# %%
# Four calibrated regressors
# --------------------------

import warnings

import matplotlib.pyplot as plt
from mapie.regression import ConformalizedQuantileRegressor, SplitConformalRegressor
from sklearn.ensemble import GradientBoostingRegressor

from mapie_claps import ClapsRegressor, ClapsScore
from mapie_claps.datasets import make_heteroscedastic_sparse
from mapie_claps.metrics import evaluate_intervals

train = make_heteroscedastic_sparse(400, keep_probability=0.1, random_state=0)
cal = make_heteroscedastic_sparse(400, random_state=1)
test = make_heteroscedastic_sparse(2000, random_state=2)

booster = GradientBoostingRegressor(n_estimators=50, random_state=0)
quantile = GradientBoostingRegressor(
    loss="quantile", alpha=0.5, n_estimators=50, random_state=0
)
claps = ClapsRegressor(n_members=4, max_steps=400, random_state=0)
methods = {
    "absolute": SplitConformalRegressor(booster, 0.9, "absolute", prefit=False),
    "residual-normalised": SplitConformalRegressor(
        booster, 0.9, "residual_normalized", prefit=False
    ),
    "CQR": ConformalizedQuantileRegressor(quantile, 0.9),
    "CLAPS": SplitConformalRegressor(claps, 0.9, ClapsScore(), prefit=False),
}
with warnings.catch_warnings():
    # MAPIE reminds users of CQR's asymmetric correction and of crossing quantiles.
    warnings.simplefilter("ignore", UserWarning)
    for mapie in methods.values():
        mapie.fit(train.X, train.y).conformalize(cal.X, cal.y)
    found = {
        name: evaluate_intervals(test.y, mapie.predict_interval(test.X)[1], 0.9)
        for name, mapie in methods.items()
    }

# %%
# The interval score rewards narrow intervals and punishes misses; lower is better.

fig, axes = plt.subplots(1, 3, figsize=(9, 3), sharey=True, layout="constrained")
for ax, measure in zip(axes, ("coverage", "width", "score"), strict=True):
    ax.barh(list(found), [table[measure][0] for table in found.values()], color="0.7")
    ax.set(xlabel=measure)
axes[0].axvline(0.9, color="black", ls="--", lw=1)
for name, table in found.items():
    print(
        f"{name:20} coverage {table['coverage'][0]:.3f}, score {table['score'][0]:.3f}"
    )
