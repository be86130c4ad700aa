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
from mapie_claps.metrics import evaluate_intervals
from mapie_claps.plots import IntervalDisplay

small = make_heteroscedastic_sparse(120, random_state=0)
test = make_heteroscedastic_sparse(2000, random_state=2)
model = ClapsRegressor(n_members=2, max_steps=250, random_state=0)

split = SplitConformalRegressor(model, 0.9, ClapsScore(), prefit=False)
split.fit(small.X[:60], small.y[:60]).conformalize(small.X[60:], small.y[60:])
cross = CrossConformalRegressor(
    model, confidence_level=0.9, conformity_score=ClapsScore(), cv=5, method="plus"
)
cross.fit_conformalize(small.X, small.y)

# %%
# On the same test rows
# ---------------------

for name, mapie in (("split, 60 + 60 rows", split), ("CV+, 120 rows", cross)):
    found = evaluate_intervals(test.y, mapie.predict_interval(test.X)[1], 0.9)
    measures = (f"{key} {found[key][0]:.3f}" for key in ("coverage", "width", "score"))
    print(f"{name:20}", *measures)

# %%
# The intervals of CV+, with the parts averaged over the models of the folds
# --------------------------------------------------------------------------
# In theory CV+ covers at least 1 − 2α; in practice it is close to 1 − α.

grid = np.linspace(-4, 4, 200)[:, None]
IntervalDisplay.from_estimator(cross, grid, training_rows=(small.X, small.y))
