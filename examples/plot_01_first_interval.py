"""
The first interval with MAPIE
=============================

Fit on some rows, calibrate on others, predict intervals, and see why they are wide.
"""

# %%
# Data with a noisy region and a region without training rows
# -----------------------------------------------------------

from dataclasses import replace

import numpy as np
from mapie.regression import SplitConformalRegressor

from mapie_claps import ClapsRegressor, ClapsScore, Recipe
from mapie_claps.datasets import make_heteroscedastic_sparse
from mapie_claps.diagnostics import summarise
from mapie_claps.plots import IntervalDisplay

train = make_heteroscedastic_sparse(400, keep_probability=0.0, random_state=0)
cal = make_heteroscedastic_sparse(400, random_state=1)
test = make_heteroscedastic_sparse(1000, random_state=2)

# %%
# Fit, conformalize, predict
# --------------------------
# The recipe says how networks are made. ``views=("raw",)`` leaves out the encodings of
# the inputs: with them, how unsure the networks are in a gap of one column differs more
# from seed to seed. Real tables are better off with the default.

recipe = replace(Recipe(), views=("raw",))
model = ClapsRegressor(recipe=recipe, max_steps=300, random_state=0)
mapie = SplitConformalRegressor(
    model, confidence_level=0.9, conformity_score=ClapsScore(), prefit=False
)
mapie.fit(train.X, train.y).conformalize(cal.X, cal.y)
y_pred, y_interval = mapie.predict_interval(test.X)
print(y_pred.shape, y_interval.shape)

# %%
# The coverage, with its exact binomial interval:

table = summarise(mapie, test.X, test.y)
print(table[["coverage", "coverage_low", "coverage_high", "width"]].round(3))

# %%
# The picture
# -----------
# The inner band is what noise alone would need; the outer one is added because there
# are no training rows.

grid = np.linspace(-4, 4, 300)[:, None]
IntervalDisplay.from_estimator(mapie, grid, training_rows=(train.X, train.y))
