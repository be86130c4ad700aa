"""
One calibration per group
=========================

The guarantee is an average over all rows: one group may be covered too often and
another too rarely. One calibration per group gives each its own guarantee. The fitted
model, and so the scale, stays the same; only the quantile differs.
"""

# %%
# Two groups; the score of one has heavy tails, which a variance cannot tell
# --------------------------------------------------------------------------

import matplotlib.pyplot as plt
import numpy as np
from mapie.regression import SplitConformalRegressor

from mapie_claps import ClapsRegressor, ClapsScore
from mapie_claps.metrics import evaluate_intervals

rng = np.random.default_rng(0)


def draw(n):
    x = rng.uniform(-2, 2, n)
    group = rng.integers(0, 2, n)
    noise = np.where(group == 1, 0.15 * rng.standard_t(2, n), 0.2 * rng.normal(size=n))
    # The model does not see the group.
    return x[:, None], np.sin(2 * x) + noise, group


X_train, y_train, _ = draw(500)
X_cal, y_cal, group_cal = draw(800)
X_test, y_test, group_test = draw(3000)
model = ClapsRegressor(n_members=2, max_steps=300, random_state=0)
model.fit(X_train, y_train)

# %%
# Calibrate the same fitted model on all rows, and on each group
# --------------------------------------------------------------
# ``prefit=True`` hands MAPIE the model as it is. A group needs at least 9 rows for a
# level of 0.9, and some hundred for widths that do not depend on luck.


def calibrate(rows):
    mapie = SplitConformalRegressor(
        model, confidence_level=0.9, conformity_score=ClapsScore(model), prefit=True
    )
    return mapie.conformalize(X_cal[rows], y_cal[rows])


together = calibrate(slice(None))
by_group = {g: calibrate(group_cal == g) for g in (0, 1)}

# %%
# Coverage and width in each group
# --------------------------------

fig, axes = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
for shift, name, colour in (
    (-0.1, "one", "#56B4E9"),
    (0.1, "one per group", "#D55E00"),
):
    for g in (0, 1):
        rows = group_test == g
        mapie = together if name == "one" else by_group[g]
        bounds = mapie.predict_interval(X_test[rows])[1]
        table = evaluate_intervals(y_test[rows], bounds, 0.9)
        found, width = table["coverage"][0], table["width"][0]
        limits = [found - table["coverage_low"], table["coverage_high"] - found]
        label = f"{name} calibration" if name == "one" else name
        style = {"color": colour, "label": label if g == 0 else None}
        axes[0].errorbar(g + shift, found, limits, fmt="o", capsize=3, **style)
        axes[1].bar(g + shift, width, 0.18, edgecolor="black", **style)
        print(f"{label:16} group {g}: coverage {found:.3f}, width {width:.2f}")
axes[0].axhline(0.9, color="black", ls="--", lw=1)
axes[0].set(ylabel="coverage", xticks=[0, 1], xticklabels=["normal", "heavy tails"])
axes[1].set(ylabel="mean width", xticks=[0, 1], xticklabels=["normal", "heavy tails"])
axes[0].legend(frameon=False)

# %%
# MAPIE's ``ConditionalSplitConformalRegressor`` does the same for groups that overlap.
# It needs ``pip install mapie[conditional]`` and a score that holds the fitted model,
# ``ClapsScore(model)``.
