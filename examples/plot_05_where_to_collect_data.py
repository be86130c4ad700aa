"""
Where to collect data
=====================

Sixty more rows can be measured. The candidates look like the rows we have: few of them
lie in a rare region, and a third of all are noisy. Where do sixty measurements help
most? The answer is an average over eight draws of the data, with its standard error.
"""

# %%
# A rare region and a noisy one
# -----------------------------
# Of the rows with x₀ > 0.4 only one in twenty is ever seen, and rows with x₂ > 0.4 are
# noisy. The model is wanted everywhere: test rows are uniform.

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np

from mapie_claps import ClapsRegressor, Recipe
from mapie_claps.diagnostics import rank_rows


def draw(n, rng, seen=1.0):
    X = rng.uniform(-1, 1, (3 * n, 3))
    X = X[(X[:, 0] < 0.4) | (rng.uniform(size=3 * n) < seen)][:n]
    mean = np.sin(3 * X[:, 0]) + X[:, 0] * X[:, 1]
    noise = np.where(X[:, 2] > 0.4, 0.6, 0.2)
    return X, mean + noise * rng.normal(size=n), mean


# Few columns and a gap: see the page on limits.
raw = replace(Recipe(), views=("raw",))


def fit(X, y, seed):
    model = ClapsRegressor(
        hidden_layer_sizes=(32, 32),
        n_members=4,
        max_steps=200,
        batch_size=64,
        recipe=raw,
        random_state=seed,
    )
    return model.fit(X, y)


# %%
# The ranking, with the reason
# ----------------------------
# ``by="epistemic_fraction"`` asks what one measurement would tell: of two rows that are
# equally unknown, the less noisy one comes first.

rng = np.random.default_rng(0)
(X, y, _), (candidates, _, _) = draw(300, rng, 0.05), draw(1000, rng, 0.05)
model = fit(X, y, 0)
for by in ("epistemic_fraction", "aleatoric"):
    table = rank_rows(model, candidates, by=by, n_rows=60)
    chosen = candidates[table["row"]]
    print(table[["row", "reason", "epistemic", "aleatoric"]].head(3).round(3))
    print(
        f"by {by}: {np.mean(chosen[:, 0] > 0.4):.0%} of 60 rows are in the rare region "
        f"({np.mean(candidates[:, 0] > 0.4):.0%} of the candidates), "
        f"{np.mean(chosen[:, 2] > 0.4):.0%} are noisy\n"
    )

# %%
# Measure, fit again, compare the error against the true mean
# -----------------------------------------------------------

ways = ("no more rows", "at random", "noisiest", "least known", "tells most")
errors = {way: [] for way in ways}
for seed in range(8):
    rng = np.random.default_rng(seed)
    X, y, _ = draw(300, rng, 0.05)
    candidates, measured, _ = draw(1000, rng, 0.05)
    test, _, truth = draw(2000, rng)
    rare = test[:, 0] > 0.4
    model = fit(X, y, seed)
    rows = {
        "at random": np.arange(60),
        "noisiest": rank_rows(model, candidates, by="aleatoric", n_rows=60)["row"],
        "least known": rank_rows(model, candidates, n_rows=60)["row"],
        "tells most": rank_rows(model, candidates, by="epistemic_fraction", n_rows=60)[
            "row"
        ],
    }
    for way in ways:
        again = model
        if way in rows:
            more = np.asarray(rows[way])
            again = fit(np.r_[X, candidates[more]], np.r_[y, measured[more]], seed)
        square = (again.predict(test) - truth) ** 2
        errors[way].append([square[rare].mean() ** 0.5, square[~rare].mean() ** 0.5])

found = {way: np.array(each) for way, each in errors.items()}  # (draws, regions)


def mean_and_error(values):
    return values.mean(axis=0), values.std(axis=0, ddof=1) / len(values) ** 0.5


def row(name, values):
    cells = [f"{m:.3f} ± {s:.3f}" for m, s in zip(*mean_and_error(values), strict=True)]
    return f"{name:26}{cells[0]:>16}{cells[1]:>16}"


print(f"{'':26}{'rare region':>16}{'elsewhere':>16}")
for way in ways:
    print(row(way, found[way]))
print("against rows at random, draw by draw:")
for way in ways[2:]:
    print(row(way, found[way] - found["at random"]))

fig, ax = plt.subplots(figsize=(7.5, 3.8), layout="constrained")
for j, (name, colour) in enumerate((("rare region", "#D55E00"), ("elsewhere", "0.7"))):
    ax.bar(
        np.arange(len(ways)) + 0.4 * j - 0.2,
        [mean_and_error(found[way])[0][j] for way in ways],
        0.4,
        yerr=[mean_and_error(found[way])[1][j] for way in ways],
        color=colour,
        edgecolor="black",
        capsize=3,
        label=name,
    )
ax.set_xticks(range(len(ways)), ways)
ax.set(ylabel="error of the mean", title="after 60 more rows, mean of eight draws")
ax.legend(frameon=False)

# %%
# Rows chosen for lack of data find the rare region and lower the error there, more than
# rows at random, which mostly repeat what is known. Elsewhere there is little to choose
# between the ways. The noisiest rows help too, though less: the model takes part of
# what it does not know in the rare region for noise. Where every region is common among
# the candidates, rows at random do as well as any ranking.
