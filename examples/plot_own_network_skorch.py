"""
A network trained by skorch
===========================

skorch (``pip install skorch``) trains a PyTorch network behind the interface of
scikit-learn. Its trained network goes into ``ClapsModule`` as ``net.module_``. This one
has a variance head of its own, which is used as it is.
"""

# %%
# Data whose noise grows to the right, with a gap
# -----------------------------------------------

import matplotlib.pyplot as plt
import numpy as np
import torch
from mapie.regression import SplitConformalRegressor
from skorch import NeuralNetRegressor
from skorch.callbacks import GradientNormClipping
from torch import nn
from torch.nn.functional import softplus

from mapie_claps import ClapsModule, ClapsScore, explain

rng = np.random.default_rng(0)


def draw(n, gap=False):
    x = rng.uniform(-3, 3, n)
    if gap:
        x = x[np.abs(x) > 0.8]
    y = np.sin(2 * x) + (0.05 + 0.1 * (x + 3)) * rng.standard_normal(len(x))
    return x[:, None].astype(np.float32), y.astype(np.float32)


X_train, y_train = draw(900, gap=True)
X_calibrate, y_calibrate = draw(400)

# %%
# A network with two heads, trained by skorch
# -------------------------------------------


class TwoHeads(nn.Module):
    def __init__(self, size=48):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(1, size), nn.Tanh(), nn.Linear(size, size), nn.Tanh()
        )
        self.mean = nn.Linear(size, 1)
        self.noise = nn.Linear(size, 1)

    def forward(self, x):
        phi = self.body(x)
        return self.mean(phi), softplus(self.noise(phi)) + 1e-4


class GaussianNLL(nn.Module):
    def forward(self, output, y):
        mean, variance = output
        return nn.functional.gaussian_nll_loss(mean, y, variance)


torch.manual_seed(0)
torch.set_num_threads(1)
net = NeuralNetRegressor(
    TwoHeads,
    criterion=GaussianNLL,
    optimizer=torch.optim.Adam,
    lr=5e-3,
    max_epochs=60,
    batch_size=100,
    train_split=None,
    callbacks=[GradientNormClipping(5.0)],
    verbose=0,
)
net.fit(X_train, y_train[:, None])

# %%
# CLAPS on top
# ------------

model = ClapsModule(net.module_).fit(X_train, y_train)
mapie = SplitConformalRegressor(
    model, confidence_level=0.9, conformity_score=ClapsScore(), prefit=True
).conformalize(X_calibrate, y_calibrate)

X_test, y_test = draw(2000)
_, interval = mapie.predict_interval(X_test)
covered = (interval[:, 0, 0] <= y_test) & (y_test <= interval[:, 1, 0])
print(f"coverage at 90 %: {covered.mean():.3f}")

# %%
# Why the band is wide
# --------------------
# To the right it is noise; in the gap, where no row was, it is lack of data.

grid = np.linspace(-3.5, 3.5, 300, dtype=np.float32)[:, None]
why = explain(mapie, grid)
fig, (top, bottom) = plt.subplots(2, 1, sharex=True, figsize=(7, 5), layout="tight")
top.plot(X_train, y_train, ".", ms=2, color="0.6")
top.plot(grid, why.prediction)
top.fill_between(grid[:, 0], why.lower[:, 0], why.upper[:, 0], alpha=0.3)
top.set(ylabel="y")
bottom.plot(grid, why.epistemic_fraction)
bottom.set(xlabel="x", ylabel="epistemic share of v")
plt.show()

# %%
# The share of the epistemic part rises in the gap and beyond the data, and is small
# where rows are dense, whatever the noise there.
