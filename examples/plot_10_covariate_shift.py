"""
Covariate shift: other rows than those calibrated on
====================================================

The model was calibrated on rows from everywhere, and is used where noise is large. Its
intervals cover too rarely there. Weighted calibration repairs that, with likelihood
ratios that are known or estimated.
"""

# %%
# Rows, and a model whose scale does not see all of the noise
# -----------------------------------------------------------

import matplotlib.pyplot as plt
import numpy as np

from mapie_claps import CalibratedRegressor, ClapsRegressor, likelihood_ratio
from mapie_claps.metrics import evaluate_intervals

rng = np.random.default_rng(0)


def targets(x):
    return np.sin(2 * x) + 0.1 * np.exp(x) * rng.normal(size=len(x))


def source(n):
    x = rng.uniform(-2, 2, n)
    return x[:, None], targets(x)


def target(n, tilt=1.2):
    """Density ∝ exp(tilt · x) on the same range."""
    low, high = np.exp(-2 * tilt), np.exp(2 * tilt)
    x = np.log(low + rng.uniform(size=n) * (high - low)) / tilt
    return x[:, None], targets(x)


model = ClapsRegressor.paper(scale="constant", random_state=0).fit(*source(400))
X_cal, y_cal = source(800)
X_test, y_test = target(3000)

# %%
# The ratio: known, or learned from rows that are used for nothing else
# ---------------------------------------------------------------------

estimated = likelihood_ratio(source(500)[0], target(500)[0])


def known(X):
    return np.exp(1.2 * X[:, 0])


x = np.array([[-1.0], [0.0], [1.0]])
for name, ratio in (("known", known), ("estimated", estimated)):
    print(f"{name:10} {(ratio(x) / ratio(x)[1]).round(2)}")  # up to a constant


# %%
# Coverage where the model is used
# --------------------------------

fig, ax = plt.subplots(figsize=(6, 3.4), layout="constrained")
for i, (name, weights) in enumerate(
    {"unweighted": None, "known ratio": known, "estimated ratio": estimated}.items()
):
    calibrated = CalibratedRegressor(model, 0.9)
    calibrated.conformalize(X_cal, y_cal, weights=weights)
    bounds = calibrated.predict_interval(X_test)[1]
    table = evaluate_intervals(y_test, bounds, 0.9)
    found, n = table["coverage"][0], calibrated.effective_sample_size_
    print(f"{name:16} {found:.3f}, width {table['width'][0]:.2f}, {n:.0f} rows")
    limits = [found - table["coverage_low"], table["coverage_high"] - found]
    ax.errorbar(i, found, limits, fmt="o", capsize=3)
ax.axhline(0.9, color="black", ls="--", lw=1)
ax.set(xticks=range(3), xticklabels=["unweighted", "known", "estimated"])
ax.set(ylabel="coverage of the new rows", xlim=(-0.5, 2.5))

# %%
# The price of a shift is the number in the last column: so many rows of equal weight
# are the calibration rows worth.
