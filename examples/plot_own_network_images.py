"""
Intervals for a convolutional network
=====================================

A small convolutional network estimates by which angle a digit was turned. It is
trained the usual way, with the squared error, and knows nothing of variances.
``ClapsModule`` adds what it lacks, without training it again, and MAPIE makes
intervals that cover the true angle nine times out of ten.
"""

# %%
# Digits, turned by a known angle
# -------------------------------
# scikit-learn ships 1,797 digits of 8 × 8 pixels. Each is turned by an angle between
# −60 and 60 degrees, which is the target.

import matplotlib.pyplot as plt
import numpy as np
import torch
from mapie.regression import SplitConformalRegressor
from scipy.ndimage import rotate
from sklearn.datasets import load_digits
from torch import nn

from mapie_claps import ClapsModule, ClapsScore, explain

rng = np.random.default_rng(0)
digits = load_digits()
angle = rng.uniform(-60, 60, len(digits.images))
images = np.stack(
    [
        rotate(image / 16, a, reshape=False, order=1)
        for image, a in zip(digits.images, angle, strict=True)
    ]
)[:, None]
order = rng.permutation(len(images))
train, calibrate, test = np.split(order, [1000, 1400])

# %%
# A network and its training, as anyone would write them
# ------------------------------------------------------
# The only thing that CLAPS asks for: the mean is a linear layer on features.

torch.manual_seed(0)
torch.set_num_threads(1)
network = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(16, 16, 3),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(16 * 6 * 6, 32),
    nn.ReLU(),
    nn.Dropout(0.1),
    nn.Linear(32, 1),
)
X = torch.tensor(images, dtype=torch.float32)
y = torch.tensor(angle / 60, dtype=torch.float32)
optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=1e-2)
for _ in range(12):
    for batch in torch.tensor(rng.permutation(train)).split(50):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(network(X[batch])[:, 0], y[batch])
        loss.backward()
        optimizer.step()

# %%
# From the network to intervals
# -----------------------------
# ``fit`` finds the last layer, fits a variance head on the frozen features, and takes
# one pass over the training images for the posterior. MAPIE then calibrates on images
# that neither has seen. Images are no table, so there is no ``n_features_in_``.

target = angle / 60
model = ClapsModule(network).fit(images[train], target[train])
mapie = SplitConformalRegressor(
    model, confidence_level=0.9, conformity_score=ClapsScore(), prefit=True
).conformalize(images[calibrate], target[calibrate])
why = explain(mapie, images[test])
lower, upper = 60 * why.lower[:, 0], 60 * why.upper[:, 0]
covered = (lower <= angle[test]) & (angle[test] <= upper)
print(f"last layer: {model.last_layer_name_}")
print(f"coverage at 90 %: {covered.mean():.3f} on {len(test)} images")
print(f"mean width: {np.mean(upper - lower):.1f} degrees")

# %%
# Does the width know where the errors are?
# -----------------------------------------
# Test images in four groups, from the narrowest intervals to the widest: errors should
# grow with the width, and each group should be covered about equally often.

error = np.abs(60 * why.prediction - angle[test])
width = upper - lower
groups = np.array_split(np.argsort(width), 4)
for group in groups:
    print(
        f"width {width[group].mean():5.1f}, mean error {error[group].mean():4.1f}, "
        f"coverage {covered[group].mean():.2f}"
    )

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
shown = np.arange(40)
left.errorbar(
    angle[test][shown],
    60 * why.prediction[shown],
    yerr=width[shown] / 2,
    fmt=".",
    capsize=2,
)
left.plot([-60, 60], [-60, 60], color="0.6", zorder=0)
left.set(xlabel="true angle", ylabel="estimate and 90 % interval")
right.plot([width[g].mean() for g in groups], [error[g].mean() for g in groups], "o-")
right.set(xlabel="mean width of a quarter of the images", ylabel="mean error")
plt.show()

# %%
# The network was trained to give one number, and the features of that number carry
# some of what there is to know about its error. The calibration makes the coverage
# right over all images together; the scale √v decides which of them get the width.
