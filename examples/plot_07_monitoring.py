"""
Monitoring: when does the guarantee end?
========================================

A calibrated model is in use, and true values arrive with a delay. MAPIE's test of
exchangeability bets against the hypothesis that new scores are like those of the
calibration rows. When its wealth exceeds 1/0.05 = 20, exchangeability is
rejected, and with it the guarantee. At most 5 % of streams without a
change are ever rejected.
"""

# %%
# A model in use
# --------------

import warnings

import matplotlib.pyplot as plt
import numpy as np
from mapie.exchangeability_testing import OnlineMartingaleTest
from mapie.regression import SplitConformalRegressor

from mapie_claps import ClapsRegressor, ClapsScore
from mapie_claps.datasets import make_heteroscedastic_sparse
from mapie_claps.diagnostics import summarise

train = make_heteroscedastic_sparse(400, random_state=0)
cal = make_heteroscedastic_sparse(300, random_state=1)
model = ClapsRegressor(n_members=2, max_steps=300, random_state=0)
mapie = SplitConformalRegressor(model, 0.9, ClapsScore(), prefit=False)
mapie.fit(train.X, train.y).conformalize(cal.X, cal.y)

# %%
# A stream whose noise doubles after 300 rows
# -------------------------------------------

stream = make_heteroscedastic_sparse(600, random_state=2)
late = np.arange(600) >= 300
y = stream.mean + (stream.y - stream.mean) * np.where(late, 2.0, 1.0)

# %%
# The test sees the conformity scores of ClapsScore
# -------------------------------------------------
# It works on a copy: the model in use stays as it is. It starts with the calibration
# rows, then takes the stream in batches, as labels arrive.

monitor = OnlineMartingaleTest(mapie, random_state=0)
monitor.update(cal.X, cal.y)
alarm = None
for start in range(0, 600, 50):
    rows = slice(start, start + 50)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        monitor.update(stream.X[rows], y[rows])
    if alarm is None and monitor.is_exchangeable is False:
        alarm = start + 50
print(f"alarm after {alarm} rows of the stream")

# %%
# Was the alarm right? Coverage before and after the change:

table = summarise(mapie, stream.X, y, groups=np.where(late, "after", "before"))
print(table[["group", "coverage", "coverage_low", "coverage_high"]].round(3))

# %%
# The wealth of the test
# ----------------------
# What to do after an alarm: calibrate again on recent rows; if widths are then of no
# use, fit again.

wealth = np.array(monitor.martingale_value_history)[-600:]
fig, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
ax.semilogy(wealth, color="black", label="wealth of the test")
ax.axhline(monitor.reject_threshold, color="#0072B2", ls="--", label="rejection")
ax.axvline(300, color="#D55E00", label="the noise doubles")
ax.set(xlabel="rows of the stream", ylabel="wealth")
ax.legend(frameon=False)
