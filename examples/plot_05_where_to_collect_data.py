"""
Where to collect data
=====================

A hundred more rows can be measured. Where the epistemic part is largest they help;
where the aleatoric part is largest they help less, since noise stays. Both are compared
with rows at random.
"""

# %%
# A first model, and candidates that have not been measured
# ---------------------------------------------------------

import matplotlib.pyplot as plt
import numpy as np

from mapie_claps import ClapsRegressor
from mapie_claps.datasets import make_heteroscedastic_sparse
from mapie_claps.diagnostics import rank_rows

first = make_heteroscedastic_sparse(300, keep_probability=0.0, random_state=0)
candidates = make_heteroscedastic_sparse(1000, random_state=1)
test = make_heteroscedastic_sparse(1000, random_state=2)
model = ClapsRegressor(n_bins=0, max_steps=300, tol=None, random_state=0)
fitted = model.fit(first.X, first.y)

# %%
# The ranking, with the reason
# ----------------------------

ranked = rank_rows(fitted, candidates.X, by="epistemic", n_rows=100)
noisy = rank_rows(fitted, candidates.X, by="aleatoric", n_rows=100)
print(ranked[["row", "reason", "epistemic", "aleatoric"]].head(3).round(3))
print(noisy[["row", "reason", "epistemic", "aleatoric"]].head(3).round(3))

# %%
# Measure, fit again, compare the error against the true mean
# -----------------------------------------------------------

choices = {
    "none": np.array([], dtype=int),
    "at random": np.arange(100),
    "noisiest": noisy["row"].to_numpy(),
    "least known": ranked["row"].to_numpy(),
}
errors = {}
for name, rows in choices.items():
    X = np.concatenate([first.X, candidates.X[rows]])
    y = np.concatenate([first.y, candidates.y[rows]])
    again = ClapsRegressor(n_bins=0, max_steps=300, tol=None, random_state=0)
    mu = again.fit(X, y).predict(test.X)
    errors[name] = np.sqrt(np.mean((mu - test.mean) ** 2))

fig, axes = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
for name, colour in (("noisiest", "#56B4E9"), ("least known", "#D55E00")):
    axes[0].hist(
        candidates.X[choices[name], 0], np.linspace(-4, 4, 33), color=colour, label=name
    )
axes[0].set(xlabel="x of the chosen rows", ylabel="rows")
axes[0].legend(frameon=False)
bars = axes[1].bar(list(errors), list(errors.values()), color="0.6", edgecolor="black")
axes[1].bar_label(bars, fmt="%.3f")
axes[1].set_ylabel("error of the mean after 100 more rows")

# %%
# Rows from where the model knows least reduce the error more than rows from where the
# noise is strongest. Rows at random did as well here: the gap is a fifth of the range,
# so that some of them fall into it. A ranking matters more the rarer the rows in
# question are among the candidates. The chosen rows lie close together; choosing a few,
# fitting again and choosing more would spread them.
