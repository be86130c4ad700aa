"""
Why are the intervals of my booster wide?
=========================================

Keep a gradient booster and its predictions, and let CLAPS learn the errors that it
makes: where they are noise, and where they are lack of data.
"""

# %%
# A noisy half, and a region without training rows
# ------------------------------------------------
# The noise is large on the right. Between −1.5 and −0.5 no row is used for training.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from mapie_claps import CalibratedRegressor, ClapsResidualRegressor
from mapie_claps.plots import IntervalDisplay

rng = np.random.default_rng(0)


def draw(n):
    x = rng.uniform(-3, 3, n)
    noise = np.where(x > 1, 0.5, 0.1) * rng.normal(size=n)
    return x[:, None], np.sin(2 * x) + noise


X, y = draw(1200)
known = (X[:, 0] < -1.5) | (X[:, 0] > -0.5)
X_train, y_train = X[known], y[known]
X_cal, y_cal = draw(500)

# %%
# The booster makes the predictions, CLAPS the intervals
# ------------------------------------------------------

booster = HistGradientBoostingRegressor(random_state=0)
model = ClapsResidualRegressor(booster, random_state=0).fit(X_train, y_train)
calibrated = CalibratedRegressor(model, confidence_level=0.9).conformalize(X_cal, y_cal)

grid = np.linspace(-3, 3, 300)[:, None]
alone = booster.fit(X_train, y_train)
print(
    "same predictions:", np.array_equal(calibrated.predict(grid), alone.predict(grid))
)

display = IntervalDisplay.from_estimator(
    calibrated, grid, training_rows=(X_train[:, 0], y_train)
)
display.ax_.set_title("A booster, and why its intervals are wide")
plt.show()

# %%
# In the gap the booster is constant, as trees are, and says nothing about how little it
# knows there. The model of its errors does: much of the width is lack of data. On the
# right the interval is wide because of the noise, which more rows would not remove.
