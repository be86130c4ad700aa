"""
Categorical columns
===================

``ClapsRegressor`` takes numbers. A ``ColumnTransformer`` in a ``Pipeline`` turns a
table with text columns into numbers, and MAPIE, ``explain`` and the diagnostics take
the pipeline as they take the regressor.
"""

# %%
# A table with one text column
# ----------------------------

import numpy as np
import pandas as pd
from mapie.regression import SplitConformalRegressor
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from mapie_claps import ClapsRegressor, ClapsScore
from mapie_claps.diagnostics import diagnose, summarise
from mapie_claps.plots import CoverageDisplay

rng = np.random.default_rng(0)
n = 2000
table = pd.DataFrame(
    {
        "area": rng.uniform(20, 150, n),
        "district": rng.choice(["north", "south", "harbour"], n, p=[0.48, 0.48, 0.04]),
    }
)
level = table["district"].map({"north": 1.0, "south": 1.6, "harbour": 2.5})
noise = table["district"].map({"north": 4.0, "south": 12.0, "harbour": 4.0})
rent = 5 * level * np.sqrt(table["area"]) + noise * rng.normal(size=n)
parts = np.split(np.arange(n), [600, 1200])
(train, y_train), (cal, y_cal), (test, y_test) = (
    (table.iloc[rows], rent.iloc[rows]) for rows in parts
)

# %%
# The pipeline, fitted and calibrated by MAPIE
# --------------------------------------------
# ``handle_unknown="ignore"`` keeps predicting when a new district appears.

pipeline = make_pipeline(
    make_column_transformer(
        (OneHotEncoder(sparse_output=False, handle_unknown="ignore"), ["district"]),
        remainder="passthrough",
    ),
    ClapsRegressor(n_members=4, max_steps=300, tol=None, random_state=0),
)
mapie = SplitConformalRegressor(
    pipeline, confidence_level=0.9, conformity_score=ClapsScore(), prefit=False
)
mapie.fit(train, y_train).conformalize(cal, y_cal)
print(diagnose(mapie, test.head(3)).round(2).T)

# %%
# Coverage and the two parts of the width, by district
# ----------------------------------------------------
# South is wide because it is noisy; the harbour has few rows, which shows as lack of
# data. The guarantee is for all districts together: the coverage of one may be off.

groups = summarise(mapie, test, y_test, groups=test["district"])
print(groups[["group", "n", "coverage", "width", "epistemic_fraction"]].round(3))
CoverageDisplay.from_estimator(mapie, test, y_test, groups=test["district"])
