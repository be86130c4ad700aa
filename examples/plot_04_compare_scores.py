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

from mapie.regression import ConformalizedQuantileRegressor, SplitConformalRegressor
from sklearn.ensemble import GradientBoostingRegressor

from mapie_claps import ClapsRegressor, ClapsScore
from mapie_claps.datasets import make_heteroscedastic_sparse
from mapie_claps.plots import ComparisonDisplay

train = make_heteroscedastic_sparse(400, keep_probability=0.1, random_state=0)
cal = make_heteroscedastic_sparse(400, random_state=1)
test = make_heteroscedastic_sparse(2000, random_state=2)

booster = GradientBoostingRegressor(n_estimators=50, random_state=0)
quantile = GradientBoostingRegressor(
    loss="quantile", alpha=0.5, n_estimators=50, random_state=0
)
claps = ClapsRegressor(n_members=4, max_steps=400, tol=None, random_state=0)
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
    display = ComparisonDisplay.from_estimator(methods, test.X, test.y, 0.9)

# %%
# The interval score rewards narrow intervals and punishes misses; lower is better.

for name, score in zip(display.names, display.score, strict=True):
    print(f"{name:20} {score:.3f}")
