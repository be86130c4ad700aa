"""
Quick start: from a CSV file to a service
=========================================

A table with text, a date, gaps, an ID and a skewed target: read it, fit, look at the
intervals, their coverage by group and the widest rows, save one file, and answer
requests from it. All you need is ``pip install "mapie-claps[plot,save]" pandas``. Its
core is four lines::

    table = pandas.read_csv("flats.csv")
    model = CalibratedRegressor().fit(table.drop(columns="rent"), table["rent"])
    y_pred, y_interval = model.predict_interval(new_flats)
    model.save("rents.claps")
"""

# %%
# A CSV file
# ----------
# Rents of flats, generated here and written to a file, as a colleague may have sent it.

import tempfile
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

from mapie_claps import CalibratedRegressor, ClapsRegressor, load
from mapie_claps.diagnostics import summarise
from mapie_claps.plots import IntervalDisplay, WidestRowsDisplay

folder = Path(tempfile.mkdtemp())
rng = np.random.default_rng(0)
n = 1600
district = rng.choice(["north", "south", "harbour"], n, p=[0.46, 0.46, 0.08])
zips = rng.integers(0, 40, n)
area = rng.lognormal(4.1, 0.35, n).round(1)
level = pd.Series(district).map({"north": 0.0, "south": 0.25, "harbour": 0.6})
level += rng.normal(0, 0.15, 40)[zips] + 0.8 * np.log(area / 60)
noise = pd.Series(district).map({"north": 0.06, "south": 0.18, "harbour": 0.06})
flats = pd.DataFrame(
    {
        "listing": [f"L{i:05d}" for i in range(n)],
        "area": np.where(rng.random(n) < 0.1, np.nan, area),
        "district": district,
        "zip": [f"z{z:02d}" for z in zips],
        "listed": (np.datetime64("2024-01-01") + rng.integers(0, 700, n)).astype(str),
        "lift": rng.random(n) < 0.4,
        "rent": (700 * np.exp(level + noise * rng.normal(size=n))).round(),
    }
)
flats.to_csv(folder / "flats.csv", index=False)

# %%
# Read it, and keep the last 400 flats as new ones.

table = pd.read_csv(folder / "flats.csv")
rows, new = table.iloc[:1200], table.iloc[1200:]
print(table.head())

# %%
# Fit and calibrate
# -----------------
# ``fit`` keeps back a quarter of the rows and calibrates on them. Nothing is encoded or
# filled in by hand; a warning says that the ID is not used. Smaller networks than the
# default keep this page quick: leave their parameters out on your own table. The
# default takes some seconds for a thousand rows; ``verbose=1`` shows how far it is.

model = CalibratedRegressor(
    ClapsRegressor(n_members=3, max_steps=400, random_state=0),
    confidence_level=0.9,
    random_state=0,
)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    model.fit(rows.drop(columns="rent"), rows["rent"])
print(*(w.message for w in caught), sep="\n")
print(model)

# %%
# Intervals
# ---------

X_new, y_new = new.drop(columns="rent"), new["rent"]
why = model.explain(X_new)
print(why)
IntervalDisplay.from_estimator(model, X_new, y=y_new)

# %%
# Coverage by group, and where a value is missing
# -----------------------------------------------
# The level of 0.9 is a promise for all rows together: one district, or the rows with a
# gap, may lie above or below.

columns = ["group", "n", "coverage", "width", "epistemic_fraction"]
print(summarise(model, X_new, y_new, groups=X_new["district"])[columns].round(3))
missing = X_new["area"].isna().map({True: "no area", False: "complete"})
print(summarise(model, X_new, y_new, groups=missing)[columns].round(3))

# %%
# The widest rows
# ---------------
# Is it noise, or would more data help? And which columns are to blame? Other flats, the
# background, are what the widest are compared with.

WidestRowsDisplay.from_estimator(
    model, X_new, n_rows=8, background=rows.drop(columns="rent")
)

# %%
# One file
# --------
# Model, encoding of the columns and calibration are in one file, which holds no code.

model.save(folder / "rents.claps")
print(f"{(folder / 'rents.claps').stat().st_size / 1024:.0f} kB")

# %%
# A service
# ---------
# Another process loads the file and answers a request. A zip code that was never seen
# makes the interval wider; a wrong value gets an answer that names the column.

service = load(folder / "rents.claps")


def answer(request):
    """One record in, the prediction and its interval out."""
    record = pd.DataFrame([request])
    points, intervals = service.predict_interval(record)
    return points.round().tolist(), intervals[0, :, 0].round().tolist()


request = X_new.iloc[0].to_dict()
print(answer(request))
print(answer(request | {"zip": "z99"}))
try:
    answer(request | {"area": "large"})
except ValueError as error:
    print(error)
assert np.array_equal(
    service.predict_interval(X_new)[1], model.predict_interval(X_new)[1]
)
