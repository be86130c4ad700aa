"""Rows that belong together, wild targets, and what few rows get."""

import numpy as np
import pandas as pd
import pytest
import torch

from mapie_claps import CalibratedRegressor, ClapsRegressor, Recipe
from mapie_claps.estimators import target_choice
from mapie_claps.network.ensemble import fit_line
from mapie_claps.network.rows import equal_rows, folds_of, rows_together, take_groups
from mapie_claps.network.target import (
    IDENTITY,
    NoiseShape,
    fit_noise_shape,
    prefers_two_ranks,
)
from mapie_claps.network.training import split_rows

QUICK = {"n_members": 3, "max_steps": 60, "random_state": 0, "target_map": "identity"}


def table(n=120, p=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p))
    return X, X[:, 0] + 0.5 * rng.normal(size=n)


def test_equal_rows_count_as_one_row_with_a_weight():
    X, y = table()
    times = np.where(np.arange(len(y)) < 20, 3, 1)
    with pytest.warns(UserWarning, match="more than a tenth of the rows are equal"):
        copied = ClapsRegressor(**QUICK).fit(
            np.repeat(X, times, 0), np.repeat(y, times)
        )
    weighted = ClapsRegressor(**QUICK).fit(X, y, sample_weight=times)
    for found, expected in zip(
        copied.predict_variance(X), weighted.predict_variance(X), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert copied.sums_.n_rows == len(y)


def test_replicates_and_natural_repetitions_stay_rows():
    X, y = table(60)
    assert len(set(equal_rows(np.r_[X, X], np.r_[y, y + 1]))) == 120  # replicates
    rng = np.random.default_rng(1)
    dose, grade = rng.integers(0, 5, (300, 1)), rng.integers(0, 3, 300).astype(float)
    assert len(set(equal_rows(dose, grade))) == 300
    frame = pd.DataFrame({"a": ["x", None] * 60, "b": np.repeat(np.arange(60.0), 2)})
    twice = pd.concat([frame, frame])
    assert len(set(equal_rows(twice, np.tile(np.arange(120.0), 2)))) == 120


def test_groups_join_with_equal_rows():
    X = np.array([[0.0], [0.0], [1.0], [2.0]] + [[10.0 + i] for i in range(40)])
    y = np.r_[5.0, 5.0, 1.0, 2.0, np.arange(40.0) / 7]
    groups = np.r_[0, 1, 1, 2, np.arange(40) + 3]
    labels = rows_together(X, y, groups)
    assert labels[0] == labels[1] == labels[2] != labels[3]
    kept = take_groups(labels, 0.25, np.random.default_rng(0).permutation(42))
    assert 0 < kept.sum() < 44
    assert len(set(labels[kept]) & set(labels[~kept])) == 0


def test_no_group_stands_on_both_sides_of_a_hold_out():
    generator = torch.Generator().manual_seed(0)
    for sizes in ([1] * 60, [10] * 6, [50, 5, 5], [30, 30]):
        labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        rows = split_rows(60, 7, 5, generator, labels)
        assert rows.held_out.shape == (5, 7)
        for fit, held_out in zip(*rows, strict=True):
            assert not set(labels[fit].tolist()) & set(labels[held_out].tolist())


def test_folds_keep_rows_together_and_depend_on_the_seed():
    labels = np.arange(60) // 3
    folds = [folds_of(60, labels, 3, seed).test_fold for seed in (0, 1)]
    assert all((fold.reshape(-1, 3).std(axis=1) == 0).all() for fold in folds)
    assert (folds[0] != folds[1]).any()
    one_group = folds_of(60, np.zeros(60, dtype=int), 3, 0).test_fold
    assert np.bincount(one_group).tolist() == [20, 20, 20]


def test_folds_of_a_choice_of_map_are_no_pattern_of_the_rows(monkeypatch):
    seen, k = [], target_choice.N_FOLDS

    def scores(X, y, target_map, folds):
        seen.append(np.c_[X[:, 0].astype(int) % k, folds.test_fold])
        return np.ones(1), 0.0

    monkeypatch.setattr(target_choice, "_interval_scores", scores)
    y = np.random.default_rng(0).lognormal(size=300)
    chosen = target_choice.choose_target_map(np.arange(300.0)[:, None], y, None, 0)
    assert chosen is IDENTITY  # no curve is better
    assert len(np.unique(seen[0], axis=0)) == k**2


def test_copies_with_jitter_are_noise_again_with_groups():
    X, y = table(150)
    rng, groups = np.random.default_rng(1), np.repeat(np.arange(150), 3)
    near = np.repeat(X, 3, 0) + 1e-3 * rng.normal(size=(450, 3))
    new = rng.normal(size=(300, 3))
    model = ClapsRegressor(random_state=0, n_members=3)
    noise = [
        np.median(model.fit(near, np.repeat(y, 3), groups=g).predict_variance(new)[0])
        for g in (groups, None)
    ]
    assert 0.25 / 1.8 < noise[0] < 0.25 * 1.8
    assert noise[1] < 0.1 * noise[0]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([1, 2], r"Got groups of shape \(2,\) for 120 rows"),
        ([None] + ["a"] * 119, "Got no label in row 0 of groups"),
        (np.r_[[np.nan], np.ones(119)], "Got no label in row 0 of groups"),
        (["a"] * 120, "the label 'a' in every row"),
    ],
)
def test_groups_that_are_none(groups, message):
    for model in (ClapsRegressor(**QUICK), CalibratedRegressor(random_state=0)):
        with pytest.raises(ValueError, match=message):
            model.fit(*table(), groups=groups)


def test_a_wild_target_is_named_and_sets_no_unit():
    X, y = table(400)
    y[17] = 1e4
    with pytest.warns(UserWarning, match=r"Got 10000.0 in y, row 17.*nearest of"):
        model = ClapsRegressor(random_state=0, n_members=3).fit(X, y)
    assert 0.15 < np.median(model.predict_variance(X).aleatoric) < 0.4
    assert model.scaler_y_.scale_[0] < 2


def test_a_line_is_for_linear_functions():
    rng = np.random.default_rng(0)
    X = torch.from_numpy(rng.normal(size=(150, 5)))
    noise, one = 0.3 * torch.from_numpy(rng.normal(size=150)), torch.ones(150).double()
    line, left_out = fit_line(X, 2 * X[:, 0] - X[:, 1] + noise, one)
    np.testing.assert_allclose(line.weight, [2, -1, 0, 0, 0], atol=0.15)
    # Residuals of rows left out, one of them by hand.
    y = 2 * X[:, 0] - X[:, 1] + noise
    rest = np.arange(1, 150)
    rows = np.c_[X.numpy(), np.ones(150)]
    by_hand = np.linalg.lstsq(rows[rest], y.numpy()[rest], rcond=None)[0]
    expected = float(y[0]) - rows[0] @ by_hand
    assert float(left_out[0]) == pytest.approx(expected, rel=0.05)
    assert fit_line(X, torch.sin(2 * X[:, 0]) + noise, one) is None
    assert fit_line(X, noise, one) is None
    assert fit_line(X.repeat(4, 1), noise.repeat(4), one.repeat(4)) is None


def test_a_line_extrapolates():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 2))
    model = ClapsRegressor(random_state=0).fit(X, 3 * X[:, 0] + rng.normal(size=120))
    assert model.predict([[4.0, 0.0]])[0] == pytest.approx(12, abs=2)


def test_few_rows_have_more_members():
    X, y = table(500)
    models = [ClapsRegressor(max_steps=1).fit(X[:n], y[:n]) for n in (499, 500)]
    assert [len(model.laplace_) for model in models] == [12, 6]


def test_two_ranks_are_for_noise_that_one_shape_does_not_fit():
    rng = np.random.default_rng(0)
    normal, skewed = rng.normal(size=2_000), rng.exponential(size=2_000) - 0.7
    assert not prefers_two_ranks(normal, NoiseShape())
    assert prefers_two_ranks(skewed, NoiseShape())
    assert not prefers_two_ranks(skewed, fit_noise_shape(skewed))
    assert not prefers_two_ranks(skewed[:50], NoiseShape())


def test_targets_that_training_targets_exclude_are_named():
    X, y = table(200)
    model = CalibratedRegressor(ClapsRegressor(**QUICK).fit(X, np.abs(y) + 0.1))
    new = np.abs(y[:50])
    model.conformalize(X[:50] + 1, np.r_[-1.0, new[1:]])  # one of them does no harm
    with pytest.warns(UserWarning, match="6 of 50 calibration targets that the train"):
        model.conformalize(X[:50] + 1, np.r_[-np.ones(6), new[6:]])


def weak_table(slope, n=600):
    rng = np.random.default_rng(4)
    X = rng.normal(size=(n, 6))
    return X, slope * X[:, 0] + rng.normal(size=n)


def test_without_evidence_the_mean_is_a_constant_that_counts_as_known():
    X, y = weak_table(slope=0.0)
    model = ClapsRegressor(random_state=0).fit(X, y)
    assert np.ptp(model.predict(X)) < 0.1 * np.std(y)
    parts = model.predict_variance(X)
    assert np.median(parts.aleatoric) == pytest.approx(np.var(y), rel=0.25)
    assert np.max(parts.epistemic) < 0.01 * np.var(y)
    far = model.predict_variance(np.eye(6)[:1] * [[0.0], [40.0]]).epistemic
    assert far[1] > 5 * far[0]  # there nobody knows


def test_a_line_stands_where_networks_have_learned_nothing():
    X, y = weak_table(slope=0.3)
    rows = torch.from_numpy(X), torch.from_numpy(y), torch.ones(600).double()
    line, _ = fit_line(*rows, instead=True)
    np.testing.assert_allclose(line.weight, [0.3, 0, 0, 0, 0, 0], atol=0.12)
    # Beside one unit that has hardly been trained, which alone has an error of 0.09.
    recipe = Recipe(hidden_layer_sizes=(1,), views=("raw",))
    model = ClapsRegressor(1, max_steps=1, random_state=0, recipe=recipe).fit(X, y)
    assert np.mean((model.predict(X) - 0.3 * X[:, 0]) ** 2) < 0.03
