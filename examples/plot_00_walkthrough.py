"""
Quick start: from a CSV file to a service
=========================================

Read a table, fit, and ask why an interval is wide; then look at the coverage by group
and at the widest rows, save one file, and answer requests from it. All you need is
``pip install "mapie-claps[cli]"``.

The table ships with the package: 1,000 taxi trips in New York, with text, dates and
gaps. What will a trip cost? The defaults take some seconds to fit.
"""

import pandas as pd

from mapie_claps import CalibratedRegressor
from mapie_claps.datasets import taxis_csv

trips = pd.read_csv(taxis_csv()).sample(frac=1, random_state=0)
rows, new = trips[200:], trips[:200]
model = CalibratedRegressor(confidence_level=0.9, random_state=0)
model.fit(rows.drop(columns="fare"), rows["fare"])

X_new, y_new = new.drop(columns="fare"), new["fare"]
why = model.explain(X_new[:5], background=rows.drop(columns="fare"))
print(why.by_column)

# %%
# ``fit`` has kept back a quarter of the rows, and calibrated on them. Nothing was
# encoded or filled in by hand. Each sentence says how wide an interval is, how much of
# that is noise and how much lack of data, and which columns make it wider than usual.
#
# Intervals
# ---------
# Predictions and ends come as arrays from ``predict_interval``, in the shapes of MAPIE,
# or as a table:

print(why)

# %%
from mapie_claps.plots import IntervalDisplay

IntervalDisplay.from_estimator(model, X_new[:60], y=y_new[:60])

# %%
# Coverage by group
# -----------------
# The level of 0.9 is a promise for all rows together: one group may lie above or below.
# The limits are exact, and wide where there are few rows.

from mapie_claps.diagnostics import summarise

borough = X_new["pickup_borough"].fillna("not known")
columns = ["group", "n", "coverage", "coverage_low", "coverage_high"]
print(summarise(model, X_new, y_new, groups=borough)[columns].round(2))

# %%
# The widest rows
# ---------------
# Is it noise, or would more data help? And which columns are to blame? The other trips,
# the background, are what the widest are compared with.

from mapie_claps.plots import WidestRowsDisplay

WidestRowsDisplay.from_estimator(
    model, X_new, n_rows=6, background=rows.drop(columns="fare")
)

# %%
# One file, and one page
# ----------------------
# Model, encoding of the columns and calibration are in one file, which holds no code.
# A page with coverage, pictures and reasons is for those who do not read Python. The
# same by command is ``python -m mapie_claps fit``, ``predict`` and ``report``.

import tempfile
from pathlib import Path

from mapie_claps.report import write_report

folder = Path(tempfile.mkdtemp())
model.save(folder / "fares.claps")
write_report(model, X_new, y_new, folder / "report.html", groups=["pickup_borough"])
for file in sorted(folder.iterdir()):
    print(f"{file.name}: {file.stat().st_size / 1000:.0f} kB")

# %%
# A service
# ---------
# Another process loads the file and answers requests. A zone that was never seen makes
# the interval wider; a wrong value gets an answer that names the column.

from mapie_claps import load

service = load(folder / "fares.claps")


def answer(request):
    """One record in, the prediction and its interval out."""
    points, intervals = service.predict_interval(pd.DataFrame([request]))
    return points.round(1).tolist(), intervals[0, :, 0].round(1).tolist()


request = X_new.iloc[0].to_dict()
print(answer(request))
print(answer(request | {"dropoff_zone": "Atlantis"}))
try:
    answer(request | {"distance": "far"})
except ValueError as error:
    print(error)
