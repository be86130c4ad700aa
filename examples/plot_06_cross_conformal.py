"""
CV+ for small data
==================

With 120 rows none can be spared for calibration. ``CrossConformalRegressor`` lets every
row serve both ends. ``ClapsScore()`` takes the scale from the models of the folds.
"""

# %%
# Split conformal prediction has 60 rows for each end, CV+ all 120 for both
# -------------------------------------------------------------------------

import numpy as np
from mapie.regression import CrossConformalRegressor, SplitConformalRegressor

from mapie_claps import ClapsRegressor, ClapsScore
from mapie_claps.datasets import make_heteroscedastic_sparse
from mapie_claps.plots import ComparisonDisplay, IntervalDisplay

small = make_heteroscedastic_sparse(120, random_state=0)
test = make_heteroscedastic_sparse(2000, random_state=2)
model = ClapsRegressor(n_members=2, max_steps=250, tol=None, random_state=0)

split = SplitConformalRegressor(model, 0.9, ClapsScore(), prefit=False)
split.fit(small.X[:60], small.y[:60]).conformalize(small.X[60:], small.y[60:])
cross = CrossConformalRegressor(
    model, confidence_level=0.9, conformity_score=ClapsScore(), cv=5, method="plus"
)
cross.fit_conformalize(small.X, small.y)

# %%
# On the same test rows
# ---------------------

intervals = {
    "split, 60 + 60 rows": split.predict_interval(test.X)[1],
    "CV+, 120 rows": cross.predict_interval(test.X)[1],
}
display = ComparisonDisplay.from_predictions(intervals, test.y, 0.9)

# %%
# The intervals of CV+, with the parts averaged over the models of the folds
# --------------------------------------------------------------------------
# In theory CV+ covers at least 1 − 2α; in practice it is close to 1 − α.

grid = np.linspace(-4, 4, 200)[:, None]
IntervalDisplay.from_estimator(cross, grid, training_rows=(small.X, small.y))
