"""
One calibration per group
=========================

The guarantee is an average over all rows: one group may be covered too often and
another too rarely. ``partition`` gives each group its own calibration, and so its own
guarantee. The fitted model, and with it the scale, stays the same.
"""

# %%
# Taxi trips in New York, of a table that ships with the package. Long trips are few,
# and their errors differ from those of short ones in more than their size. Groups have
# to be fixed before calibration: here it is a column, the length of a trip in three
# classes.

import matplotlib.pyplot as plt
import pandas as pd

from mapie_claps import CalibratedRegressor, ClapsRegressor
from mapie_claps.datasets import taxis_csv
from mapie_claps.diagnostics import summarise

trips = pd.read_csv(taxis_csv()).sample(frac=1, random_state=0)
classes = pd.cut(trips["distance"], [-1, 1, 3, 100], labels=["short", "middle", "long"])
X, y = trips.drop(columns="fare").assign(length=classes.astype(str)), trips["fare"]
model = ClapsRegressor(random_state=0).fit(X[:400], y[:400])

# %%
# The same fitted model, calibrated on all rows together and on each group
# -------------------------------------------------------------------------
# A group needs at least 9 rows for a level of 0.9, and some hundred for widths that do
# not depend on luck. ``CalibratedRegressor().fit(X, y, partition=...)`` does it in one
# step; here both calibrations share one fit.

together = CalibratedRegressor(model, 0.9).conformalize(X[400:700], y[400:700])
apart = CalibratedRegressor(model, 0.9)
apart.conformalize(X[400:700], y[400:700], partition="length")

# %%
# Coverage and width in each group
# --------------------------------

columns = ["group", "n", "coverage", "coverage_low", "coverage_high", "width"]
fig, axes = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
for shift, name, calibrated in ((-0.1, "together", together), (0.1, "apart", apart)):
    table = summarise(calibrated, X[700:], y[700:], groups=X["length"][700:])
    print(f"calibrated {name}\n{table[columns].round(2)}\n")
    groups = table[1:]  # the first line is all rows
    limits = [
        groups["coverage"] - groups["coverage_low"],
        groups["coverage_high"] - groups["coverage"],
    ]
    place = [i + shift for i in range(len(groups))]
    axes[0].errorbar(place, groups["coverage"], limits, fmt="o", capsize=3, label=name)
    axes[1].bar(place, groups["width"], 0.18, edgecolor="black")
axes[0].axhline(0.9, color="black", ls="--", lw=1)
for ax, ylabel in zip(axes, ("coverage", "mean width"), strict=True):
    ax.set(ylabel=ylabel, xticks=range(len(groups)), xticklabels=groups["group"])
axes[0].legend(frameon=False)

# %%
# ``ColumnGroups`` joins the rare values of a column, ``EpistemicGroups`` makes groups
# by how unsure the model is, and labels of your own may be passed row by row. In MAPIE
# it is ``ConditionalSplitConformalRegressor`` with ``ClapsScore(model)``, also for
# groups that overlap; it needs ``pip install mapie[conditional]``.
