"""
Rows in time: levels that follow the misses
===========================================

Halfway through a stream the noise trebles. An interval with a fixed level goes on as if
nothing had happened. ``observe`` lets the level follow the misses.
"""

# %%
# A calibrated model
# ------------------

import matplotlib.pyplot as plt
import numpy as np

from mapie_claps import CalibratedRegressor, ClapsRegressor

rng = np.random.default_rng(0)


def draw(n, noise=1.0):
    x = rng.uniform(-2, 2, n)
    return x[:, None], np.sin(2 * x) + 0.2 * noise * rng.normal(size=n)


model = ClapsRegressor.paper(random_state=0).fit(*draw(300))
X_cal, y_cal = draw(300)
fixed = CalibratedRegressor(model, 0.9).conformalize(X_cal, y_cal)
follows = CalibratedRegressor(model, 0.9).conformalize(X_cal, y_cal)

# %%
# The stream, ten rows at a time
# ------------------------------

inside = {"fixed": [], "follows": []}
for t in range(100):
    X, y = draw(10, noise=3.0 if t >= 50 else 1.0)
    for name, calibrated in (("fixed", fixed), ("follows", follows)):
        bounds = calibrated.predict_interval(X)[1][:, :, 0]
        inside[name].append(np.mean((bounds[:, 0] <= y) & (y <= bounds[:, 1])))
    follows.observe(X, y, gamma=0.02, window=300)
print(f"coverage after the jump, fixed: {np.mean(inside['fixed'][50:]):.3f}")
print(f"coverage after the jump, follows: {np.mean(inside['follows'][50:]):.3f}")
print(f"over all rows, follows: {follows.observed_coverage_[0]:.3f}")

# %%
# Coverage over the last hundred rows
# -----------------------------------
# That something has changed is what a test of exchangeability tells: see the example on
# monitoring.

fig, ax = plt.subplots(figsize=(7, 3.4), layout="constrained")
for (name, values), colour in zip(inside.items(), ("#56B4E9", "#D55E00"), strict=True):
    mean = np.convolve(values, np.full(10, 0.1), mode="valid")
    ax.plot(np.arange(len(mean)) * 10 + 100, mean, color=colour, label=name)
ax.axhline(0.9, color="black", ls="--", lw=1)
ax.axvline(500, color="black", lw=1)
ax.set(xlabel="rows", ylabel="coverage")
ax.legend(frameon=False)
