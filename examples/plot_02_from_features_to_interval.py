"""
From features to interval, by hand
==================================

Every stage of CLAPS in plain PyTorch and NumPy: features φ, mean μ, noise variance h²,
the weighted Gram matrix, the posterior covariance Σ, the variance v, the score, its
quantile, the interval. At the end laplace-torch gives the same Σ.
"""

# %%
# A network with two heads
# ------------------------

import matplotlib.pyplot as plt
import numpy as np
import torch
from laplace import Laplace
from torch import nn
from torch.nn.functional import softplus
from torch.utils.data import DataLoader, TensorDataset

from mapie_claps import HeteroscedasticGGN, conformal_quantile
from mapie_claps.datasets import make_heteroscedastic_sparse

train = make_heteroscedastic_sparse(400, keep_probability=0.0, random_state=0)
cal = make_heteroscedastic_sparse(400, random_state=1)


class TwoHeads(nn.Module):
    def __init__(self, size=24):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(1, size), nn.Tanh(), nn.Linear(size, size), nn.Tanh()
        )
        self.noise_head = nn.Linear(size, 1)
        self.mean_head = nn.Linear(size, 1)

    def forward(self, x):  # the mean alone, as laplace-torch expects
        return self.mean_head(self.body(x))

    def noise_variance(self, x):
        return softplus(self.noise_head(self.body(x)))[:, 0] + 1e-3


torch.manual_seed(0)
net = TwoHeads().double()
X, y = torch.from_numpy(train.X), torch.from_numpy(train.y)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for _ in range(400):
    h2 = net.noise_variance(X)
    loss = 0.5 * (h2.log() + (y - net(X)[:, 0]) ** 2 / h2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %%
# φ, μ and h²
# -----------
# The bias of the mean head is a weight like the others: φ carries a constant 1.


@torch.no_grad()
def stages(X):
    x = torch.from_numpy(X)
    phi = net.body(x).numpy()
    phi = np.column_stack([phi, np.ones(len(phi))])
    return phi, net(x)[:, 0].numpy(), net.noise_variance(x).numpy()


phi, mu, h2 = stages(train.X)

# %%
# Σ = (λI + HᵀWH)⁻¹ with W = diag(1/h²)
# --------------------------------------

gram = phi.T @ (phi / h2[:, None])
Sigma = np.linalg.inv(np.eye(len(gram)) + gram)


def scale(X):
    phi, mu, h2 = stages(X)
    epistemic = np.einsum("ij,jk,ik->i", phi, Sigma, phi)
    return mu, np.sqrt(h2 + epistemic), np.sqrt(h2)


# %%
# Scores, their quantile, the interval
# ------------------------------------

mu, root_v, _ = scale(cal.X)
scores = np.abs(cal.y - mu) / root_v
(q,) = conformal_quantile(scores, [0.1])
print(f"quantile {q:.3f}, a Gaussian would have 1.645")

x = np.linspace(-4, 4, 300)[:, None]
mu, root_v, h = scale(x)
fig, ax = plt.subplots(layout="constrained")
ax.fill_between(x[:, 0], mu - q * root_v, mu + q * root_v, color="#D55E00", label="q√v")
ax.fill_between(x[:, 0], mu - q * h, mu + q * h, color="#56B4E9", label="q h")
ax.plot(x, mu, color="black", label="μ")
ax.plot(train.X, train.y, ".", color="0.25", ms=3, label="training rows")
ax.set(xlabel="x", ylabel="y", title="90 % interval, made by hand")
ax.legend(frameon=False)

# %%
# The same Σ from laplace-torch
# -----------------------------

la = Laplace(
    net,
    "regression",
    subset_of_weights="last_layer",
    hessian_structure="full",
    backend=HeteroscedasticGGN,
    last_layer_name="mean_head",
)
la.fit(DataLoader(TensorDataset(X, y[:, None]), batch_size=100))
difference = np.abs(la.posterior_covariance.detach().numpy() - Sigma).max()
print(f"largest difference {difference:.1e}")
