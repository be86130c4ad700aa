"""
Tables with text, dates and gaps
================================

``ClapsRegressor`` takes a table as it is. Categories, dates and gaps become inputs of
the networks, and a value that never occurred in training counts as lack of data.
"""

# %%
# A table of flats
# ----------------
# One column of text with gaps, many zip codes, a date, a truth value, and an ID.

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from mapie.regression import SplitConformalRegressor

from mapie_claps import ClapsRegressor, ClapsScore, explain
from mapie_claps.diagnostics import diagnose, summarise
from mapie_claps.plots import CoverageDisplay, IntervalDisplay

rng = np.random.default_rng(0)
n = 1800
table = pd.DataFrame(
    {
        "id": [f"flat-{i}" for i in range(n)],
        "area": rng.uniform(20, 150, n),
        "district": rng.choice(["north", "south", "harbour"], n, p=[0.48, 0.48, 0.04]),
        "zip": rng.choice([f"5{i:04d}" for i in range(60)], n),
        "listed": np.datetime64("2024-01-01") + rng.integers(0, 700, n),
        "lift": rng.random(n) < 0.4,
    }
)
level = table["district"].map({"north": 1.0, "south": 1.6, "harbour": 2.5})
noise = table["district"].map({"north": 4.0, "south": 12.0, "harbour": 4.0})
by_zip = pd.Series(rng.normal(0, 8, 60), index=[f"5{i:04d}" for i in range(60)])
rent = 5 * level * np.sqrt(table["area"]) + table["zip"].map(by_zip)
rent += 5 * table["lift"] + noise * rng.normal(size=n)
table["area"] = table["area"].mask(rng.random(n) < 0.1)
parts = np.split(np.arange(n), [700, 1200])
(train, y_train), (cal, y_cal), (test, y_test) = (
    (table.iloc[rows], rent.iloc[rows]) for rows in parts
)
table.head(3)

# %%
# From the table to intervals
# ---------------------------
# Nothing is done by hand. A warning tells that the ID is left out.

mapie = SplitConformalRegressor(
    ClapsRegressor(n_members=3, max_steps=400, random_state=0),
    confidence_level=0.9,
    conformity_score=ClapsScore(),
    prefit=False,
)
mapie.fit(train, y_train).conformalize(cal, y_cal)
print(diagnose(mapie, test.head(3)).round(2).T)
IntervalDisplay.from_estimator(mapie, test, y=y_test)

# %%
# Coverage and the two parts of the width, by district and by gap
# ---------------------------------------------------------------
# South is wide because it is noisy; the harbour has few rows, which shows as lack of
# data. The guarantee is for all rows together: the coverage of one group may be off.

columns = ["group", "n", "coverage", "width", "epistemic_fraction"]
print(summarise(mapie, test, y_test, groups=test["district"])[columns].round(3))
print(summarise(mapie, test, y_test, groups=test["area"].isna())[columns].round(3))
CoverageDisplay.from_estimator(mapie, test, y_test, groups=test["district"])

# %%
# Values that never occurred
# --------------------------
# A new zip code or district adds what such columns make the rent differ by, and nothing
# to the noise.

changes = {
    "as it is": {},
    "new zip code": {"zip": "99999"},
    "new district": {"district": "airport"},
    "gap in lift": {"lift": None},
}
found = {name: explain(mapie, test.assign(**new)) for name, new in changes.items()}
noise_part = [why.aleatoric_width.mean() for why in found.values()]
lack_part = [why.epistemic_width.mean() for why in found.values()]
_, ax = plt.subplots()
ax.bar(list(found), noise_part, label="noise")
ax.bar(list(found), lack_part, bottom=noise_part, label="lack of data")
ax.set(ylabel="mean width of the interval")
ax.legend()
