"""What a measurement brings: closed form against a posterior that has seen the row."""

import copy

import numpy as np
import pandas as pd
import pytest
from conftest import tiny
from mapie_api import calibrated_prefit
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mapie_claps import (
    CalibratedRegressor,
    ClapsRegressor,
    ClapsScore,
    PredictiveVariance,
    explain,
    load,
    update_posterior,
)
from mapie_claps.diagnostics import nearest_rows, rank_rows
from mapie_claps.reasons.measuring import best_order, own_narrowing


def with_row(model, x):
    """The model after a measurement that agrees with it."""
    other = copy.deepcopy(model)
    return update_posterior(other, x, np.atleast_1d(model.predict(x))) or other


def test_covariance_of_a_row_with_itself_is_its_epistemic_variance(fitted, data):
    X = data[2][0][:20]
    networks = tiny(n_members=3, views=("raw",)).fit(*data[0])
    both = ClapsRegressor(
        n_members=2, max_steps=60, tol=None, random_state=0, target_map=None
    ).fit(np.concatenate([data[0][0], data[1][0]]), np.r_[data[0][1], data[1][1]])
    assert both.kernel_ is not None
    for model in (fitted, networks, both):
        covariance = model.predict_covariance(X, X)
        epistemic = model.predict_variance(X).epistemic
        np.testing.assert_allclose(covariance.diagonal(), epistemic, rtol=1e-6)
        limit = np.sqrt(np.outer(epistemic, epistemic))
        assert (np.abs(covariance) <= limit * (1 + 1e-6)).mean() > 0.99


def test_one_member_against_numpy(fitted, data):
    """φᵀΣφ' itself."""
    from conftest import network_output

    X, Z = data[2][0][:6], data[1][0][:4]
    phi, other = network_output(fitted, X)[0], network_output(fitted, Z)[0]
    sigma = fitted.posterior_covariance_[0]
    np.testing.assert_allclose(
        fitted.predict_covariance(X, Z), phi @ sigma @ other.T, rtol=1e-8
    )


def test_contraction_is_that_of_a_posterior_with_the_row(fitted, data):
    """The table's share, and the intervals of the model that has seen the row."""
    X, Z = data[2][0][:30], data[1][0][:1]
    before, after = fitted.predict_variance(X), with_row(fitted, Z).predict_variance(X)
    c = fitted.predict_covariance(X, Z)[:, 0]
    at = fitted.predict_variance(Z)
    expected = before.epistemic - c**2 / at.total
    np.testing.assert_allclose(after.epistemic, expected, rtol=1e-8)
    own = fitted.predict_variance(Z)
    measured = with_row(fitted, Z).predict_variance(Z)
    share = 1 - np.sqrt(measured.total / own.total)
    np.testing.assert_allclose(own_narrowing(own.aleatoric, own.epistemic), share)


def test_rows_are_chosen_one_after_another(fitted, data):
    """The best row by brute force, then the best once the posterior has seen it."""
    X, watched = data[1][0][:25], data[2][0][:40]
    order, gains = best_order(fitted, X, 3, watched)
    start = np.sqrt(fitted.predict_variance(watched).total)
    model, reached, done = fitted, 0.0, []
    for row, gain in zip(order, gains, strict=True):
        means = []
        for i in range(len(X)):
            scale = np.sqrt(
                with_row(model, X[i : i + 1]).predict_variance(watched).total
            )
            means.append(np.mean((start - scale) / start))
        means = np.array(means)
        assert row == int(np.argmax(np.where(np.isin(np.arange(25), done), -1, means)))
        done.append(row)
        assert gain == pytest.approx(means[row] - reached, rel=1e-6)
        model, reached = with_row(model, X[row : row + 1]), means[row]


class Smooth:
    """A Gaussian process before any data: unknown by x², alike within a distance."""

    def predict(self, X):
        return np.zeros(len(X))

    def predict_covariance(self, X, Z):
        a, b = np.asarray(X)[:, 0], np.asarray(Z)[:, 0]
        return np.outer(np.abs(a), np.abs(b)) * np.exp(-(np.subtract.outer(a, b) ** 2))

    def predict_variance(self, X):
        x = np.asarray(X)[:, 0]
        return PredictiveVariance(np.full(len(x), 0.01), x**2)

    def predict_law(self, X):
        return self.predict_variance(X)


def test_ranking_by_gain_spreads_over_places():
    """Ten copies of the row that is least known: one of them is enough."""
    X = np.r_[np.full(10, 5.0), 4.0, -3.0, 1.0][:, None]
    by_variance = rank_rows(Smooth(), X, by="epistemic", n_rows=3)
    assert list(X[by_variance["row"], 0]) == [5.0, 5.0, 5.0]
    by_gain = rank_rows(Smooth(), X, by="gain", n_rows=3)
    assert list(by_gain.columns[:3]) == ["row", "reason", "narrowing"]
    assert len(set(X[by_gain["row"], 0])) == 3
    assert (np.diff(by_gain["mean_narrowing"]) <= 1e-12).all()


def test_neighbours_through_mapie_and_pipelines(fitted, data):
    X, X_train, y_train = data[2][0][:5], *data[0]
    mapie, _ = calibrated_prefit(fitted, ClapsScore(fitted), data[1], 0.9)
    table = pd.DataFrame(nearest_rows(mapie, X, X_train, y_train=y_train))
    assert list(table["row"]) == [i for i in range(5) for _ in range(3)]
    phi, phi_train = fitted.embed(X), fitted.embed(X_train)
    for i, group in table.groupby("row"):
        distances = np.linalg.norm(phi_train - phi[i], axis=1)
        np.testing.assert_array_equal(group["neighbour"], np.argsort(distances)[:3])
        np.testing.assert_array_equal(group["y"], y_train[group["neighbour"]])
    first = table.iloc[0]
    z = X_train[[int(first["neighbour"])]]
    share = 1 - np.sqrt(
        with_row(fitted, z).predict_variance(X[:1]).total
        / fitted.predict_variance(X[:1]).total
    )
    assert first["narrowing"] == pytest.approx(share[0], rel=1e-6, abs=1e-12)
    pipe = make_pipeline(StandardScaler(), tiny()).fit(X_train, y_train)
    again = pd.DataFrame(nearest_rows(pipe, X_train[:4], X_train, n_neighbors=1))
    np.testing.assert_array_equal(again["neighbour"], np.arange(4))
    np.testing.assert_allclose(again["distance"], 0, atol=1e-6)


def test_a_mapped_target_and_a_table_with_categories(data):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(data[0][0], columns=list("abc"))
    table["kind"] = rng.choice(["x", "y"], len(table))
    y = np.exp(data[0][1])
    model = tiny(target_map="log").fit(table, y)
    new = table[:6].copy()
    new["kind"] = "never seen"
    ranked = rank_rows(model, new, by="gain", n_rows=6, X_watched=table)
    assert sorted(ranked["row"]) == list(range(6))
    assert (ranked["mean_narrowing"] >= 0).all()
    law = model.predict_law(new)
    covariance = model.predict_covariance(new, new)
    np.testing.assert_allclose(covariance.diagonal(), law.epistemic, rtol=1e-6)


def test_bad_input_is_named(fitted, data):
    X = data[2][0]
    plain = LinearRegression().fit(*data[0])
    with pytest.raises(TypeError, match="LinearRegression, which has no predict_covar"):
        nearest_rows(plain, X, data[0][0])
    with pytest.raises(ValueError, match="Got X_watched together with by='epistemic'"):
        rank_rows(fitted, X, X_watched=X)
    with pytest.raises(ValueError, match="Got n_neighbors=0"):
        nearest_rows(fitted, X, data[0][0], n_neighbors=0)
    with pytest.raises(ValueError, match="Got y_train of 3 targets for X_train of"):
        nearest_rows(fitted, X, data[0][0], y_train=data[0][1][:3])
    with pytest.raises(ValueError, match="Got y_train without X_train"):
        nearest_rows(fitted, X, y_train=data[0][1])
    noise_only = tiny(scale="aleatoric").fit(*data[0])
    with pytest.raises(ValueError, match="scale='aleatoric', which counts no lack"):
        noise_only.predict_covariance(X, X)
    assert explain(fitted, X[:2]).by_column is None


def test_training_rows_are_kept_by_choice_and_never_saved(data, tmp_path):
    X, y = data[0]
    table = pd.DataFrame(X, columns=list("abc"), index=range(100, 100 + len(X)))
    model = CalibratedRegressor(tiny(), random_state=0, keep_training_rows=True)
    model.fit(table, y)
    rows, targets = model.training_rows_
    assert len(rows) + len(model.conformity_scores_) == len(X)
    np.testing.assert_array_equal(targets, y[rows.index - 100])
    kept = nearest_rows(model, table[:4])
    given = nearest_rows(model, table[:4], rows, y_train=targets)
    pd.testing.assert_frame_equal(kept, given)

    model.save(tmp_path / "model.claps")
    loaded = load(tmp_path / "model.claps")
    assert not hasattr(loaded, "training_rows_")
    for forgetful in (loaded, model.set_params(keep_training_rows=False).fit(table, y)):
        with pytest.raises(ValueError, match="CalibratedRegressor that has kept no"):
            nearest_rows(forgetful, table[:4])
