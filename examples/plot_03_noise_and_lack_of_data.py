"""
Noise against lack of data
==========================

The data have a noisy region and an empty one, and we know the truth. Each part of the
variance should rise in its own region only.
"""

# %%
# Fit
# ---

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np

from mapie_claps import ClapsRegressor, Recipe
from mapie_claps.datasets import NOISY, SPARSE, make_heteroscedastic_sparse

train = make_heteroscedastic_sparse(500, keep_probability=0.0, random_state=0)
recipe = replace(Recipe(), views=("raw",))
model = ClapsRegressor(recipe=recipe, max_steps=300, random_state=0)
model.fit(train.X, train.y)

x = np.linspace(-4, 4, 300)
parts = model.predict_variance(x[:, None])
truth = np.where((x > NOISY[0]) & (x < NOISY[1]), 0.5, 0.2)

# %%
# The two parts, as standard deviations
# -------------------------------------

fig, ax = plt.subplots(figsize=(7, 4), layout="constrained")
ax.axvspan(*NOISY, color="0.93")
ax.axvspan(*SPARSE, color="0.87")
ax.plot(x, np.sqrt(parts.aleatoric), color="#56B4E9", lw=2, label="aleatoric: noise")
ax.plot(
    x, np.sqrt(parts.epistemic), color="#D55E00", lw=2, label="epistemic: lack of data"
)
ax.plot(x, truth, "k--", lw=1, label="true noise")
ax.text(np.mean(NOISY), 0.02, "noisy", ha="center")
ax.text(np.mean(SPARSE), 0.02, "no rows", ha="center")
ax.set(xlabel="x", ylabel="standard deviation", ylim=(0, None))
ax.legend(frameon=False, loc="upper left")

# %%
# What the figure says in numbers
# -------------------------------

inside = {
    name: (x > a) & (x < b) for name, (a, b) in (("noisy", NOISY), ("no rows", SPARSE))
}
inside["elsewhere"] = ~(inside["noisy"] | inside["no rows"])
for name, rows in inside.items():
    noise, lack = parts.aleatoric[rows].mean(), parts.epistemic[rows].mean()
    print(f"{name:10} noise {noise**0.5:.2f}   lack of data {lack**0.5:.2f}")
