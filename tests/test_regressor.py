"""ClapsRegressor as a scikit-learn regressor."""

import copy
import pickle
from dataclasses import fields, replace

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
import reference
import torch
from conftest import TINY, heteroscedastic, tiny
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from mapie_claps import ClapsRegressor, Recipe
from mapie_claps.estimators import regressor as regressor_module
from mapie_claps.estimators.recipe import PAPER
from mapie_claps.exceptions import TrainingDivergedError


def predictions(model, X):
    return np.stack(model.predict(X, return_std=True))


def features(model, X):
    """φ with its constant, h² and μ of member 0, in standardised units."""
    x = (np.asarray(X) - model.scaler_X_.mean_) / model.scaler_X_.scale_
    with torch.no_grad():
        out = model.forward_.network(torch.from_numpy(np.clip(x, -6, 6)))
    phi = out.phi[0].numpy()
    return np.column_stack([phi, np.ones(len(phi))]), out.h2[0].numpy(), out.mu[0]


def test_it_learns_mean_and_noise():
    X, y = heteroscedastic(600)
    model = ClapsRegressor(n_members=2, random_state=0).fit(X[:400], y[:400])
    mu, std = model.predict(X[400:], return_std=True)
    truth = np.sin(X[400:, 0]) + X[400:, -1]
    assert np.mean((mu - truth) ** 2) < 0.05 * np.var(truth)
    noise = 0.1 * (1 + X[400:, 0] ** 2)
    assert np.corrcoef(np.log(std), np.log(noise))[0, 1] > 0.7


def test_variance_is_the_formula_of_the_paper(fitted, data):
    """Σ = (λI + HᵀWH)⁻¹ and v = h² + φᵀΣφ, in plain NumPy."""
    phi, h2, _ = features(fitted, data[0][0])
    Sigma = reference.sigma(phi, h2, 1.0)
    unit = fitted.scaler_y_.scale_[0]
    np.testing.assert_allclose(
        fitted.posterior_covariance_[0], Sigma * unit**2, rtol=1e-8, atol=1e-12
    )
    phi, h2, mu = features(fitted, data[2][0])
    parts = fitted.predict_variance(data[2][0])
    expected = reference.variance(phi, h2, Sigma) * unit**2
    np.testing.assert_allclose(parts.total, expected, rtol=1e-9)
    np.testing.assert_allclose(parts.aleatoric, h2 * unit**2, rtol=1e-12)
    centre = fitted.scaler_y_.mean_[0]
    np.testing.assert_allclose(fitted.predict(data[2][0]), mu * unit + centre)


def test_laplace_torch_gives_the_same_numbers(fitted_regressor, data):
    """One object of laplace-torch per member, on its features."""
    model, (X, _) = fitted_regressor, data[2]
    x = next(model._inputs(X))
    with torch.no_grad():
        out = model.forward_.network(x)
    layers = model.forward_.last_layers
    assert len(model.laplace_) == 2
    for k, la in enumerate(model.laplace_):
        mean, variance = la(out.phi[k])
        np.testing.assert_allclose(mean[:, 0], layers.mu(out)[k], rtol=1e-9)
        np.testing.assert_allclose(
            variance[:, 0, 0], layers.epistemic(out.phi)[k], rtol=1e-7
        )


def test_members_are_mixed_as_the_theory_says(fitted_regressor, data):
    model, (X, _) = fitted_regressor, data[2]
    forward = model.forward_
    with torch.no_grad():
        out = forward.network(next(model._inputs(X)))
    w = forward.member_weight[:, None]
    mu = forward.last_layers.mu(out)
    unit = model.scaler_y_.scale_[0] ** 2
    assert float(w.sum()) == pytest.approx(1)
    parts = model.predict_distribution(X)
    np.testing.assert_allclose(
        parts.aleatoric, (w * out.h2.log()).sum(0).exp() * unit, rtol=1e-9
    )
    mean = (w * mu).sum(0)
    spread = (w * (mu - mean).square()).sum(0)
    within = (w * forward.last_layers.epistemic(out.phi)).sum(0)
    np.testing.assert_allclose(parts.epistemic, (within + spread) * unit, rtol=1e-9)


def test_fitted_attributes(data):
    model = tiny().fit(*data[0])
    assert model.n_iter_ == 60
    assert model.n_features_in_ == 3
    assert len(model.loss_curve_) == len(model.validation_curve_) == 20
    assert model.loss_curve_[-1] < model.loss_curve_[0]
    assert model.prior_precision_ > 0
    assert model.sums_.n_rows == 150
    assert model.kernel_ is None
    assert not hasattr(model, "feature_names_in_")


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, copy.copy, lambda m: pickle.loads(pickle.dumps(m))],
    ids=["deepcopy", "copy", "pickle"],
)
def test_copies_predict_alike(fitted, data, copied):
    X, other = data[2][0], copied(fitted)
    np.testing.assert_array_equal(predictions(other, X), predictions(fitted, X))
    assert other.fit_id_ == fitted.fit_id_
    assert other.laplace_[0](torch.zeros(2, 8, dtype=torch.float64))[1].shape == (
        2,
        1,
        1,
    )


def test_joblib_dumps_and_shares_between_processes(fitted, data, tmp_path):
    X = data[2][0]
    joblib.dump(fitted, tmp_path / "model.joblib")
    loaded = joblib.load(tmp_path / "model.joblib")
    elsewhere = joblib.Parallel(n_jobs=2)(
        joblib.delayed(loaded.predict)(part, return_std=True)
        for part in (X[:60], X[60:])
    )
    np.testing.assert_allclose(
        np.hstack([np.stack(pair) for pair in elsewhere]),
        predictions(fitted, X),
        rtol=1e-12,
    )


def test_clone_is_unfitted_and_refit_is_identical(fitted, data):
    other = clone(fitted)
    with pytest.raises(NotFittedError, match="not fitted"):
        other.predict(data[2][0])
    other.fit(*data[0])
    np.testing.assert_array_equal(
        predictions(other, data[2][0]), predictions(fitted, data[2][0])
    )
    assert other.fit_id_ != fitted.fit_id_


def test_random_state(data):
    X = data[2][0]
    one, two = (predictions(tiny().fit(*data[0]), X) for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, predictions(tiny(random_state=1).fit(*data[0]), X))
    shared = np.random.RandomState(0)
    first = tiny(random_state=shared).fit(*data[0])
    second = tiny(random_state=shared).fit(*data[0])
    assert not np.array_equal(predictions(first, X), predictions(second, X))
    tiny(random_state=None).fit(*data[0])


@pytest.mark.parametrize("random_state", [None, 0])
def test_numpys_global_generator_is_left_alone(data, random_state):
    before = np.random.get_state()
    tiny(random_state=random_state, n_members=2).fit(*data[0]).predict(data[2][0])
    after = np.random.get_state()
    assert before[2] == after[2]
    assert np.array_equal(before[1], after[1])


def test_pipeline_grid_search_and_cross_validation(data):
    X, y = data[0]
    pipe = make_pipeline(StandardScaler(), PolynomialFeatures(2), tiny())
    mu, std = pipe.fit(X, y).predict(X, return_std=True)
    assert mu.shape == std.shape == (150,)
    search = GridSearchCV(pipe, {"clapsregressor__prior_precision": [1e-3, 1.0]}, cv=2)
    assert search.fit(X, y).best_params_["clapsregressor__prior_precision"] in (1e-3, 1)
    assert cross_val_score(tiny(max_steps=200), X, y, cv=3).mean() > 0.5


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_data_frames_give_feature_names(data, frame):
    X, y = data[0]
    names = ["a", "b", "c"]
    table = frame(dict(zip(names, X.T, strict=True)))
    model = tiny().fit(table, y)
    assert list(model.feature_names_in_) == names
    plain = tiny().fit(X, y)
    np.testing.assert_array_equal(predictions(model, table), predictions(plain, X))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame(dict(zip("xyz", X.T, strict=True))))


def test_float32_and_integers_are_close_to_float64(fitted, data):
    X, y = data[0]
    single = tiny(prior_precision=1.0, last_layer="trained")
    single.fit(X.astype(np.float32), y.astype(np.float32))
    out = predictions(single, data[2][0].astype(np.float32))
    assert out.dtype == np.float64
    np.testing.assert_allclose(
        out, predictions(fitted, data[2][0]), rtol=0.05, atol=0.05
    )
    whole = tiny().fit(np.round(10 * X).astype(int), np.round(10 * y).astype(int))
    assert np.isfinite(predictions(whole, np.round(10 * X).astype(int))).all()


@pytest.mark.parametrize("unit", [1e-9, 1e9])
def test_units_of_y_are_irrelevant(fitted, data, unit):
    X, y = data[0]
    scaled = tiny(prior_precision=1.0, last_layer="trained").fit(X, unit * y)
    np.testing.assert_allclose(
        predictions(scaled, data[2][0]) / unit,
        predictions(fitted, data[2][0]),
        rtol=1e-3,
        atol=1e-4,
    )


def test_constant_target_and_constant_column(data):
    X, _ = data[0]
    X = np.column_stack([X, np.full(150, 7.0)])
    model = tiny().fit(X, np.full(150, 3.0))
    mu, std = model.predict(X, return_std=True)
    np.testing.assert_allclose(mu, 3.0, atol=0.05)
    assert (std > 0).all()


def test_more_columns_than_rows():
    X, y = heteroscedastic(30, p=80)
    assert np.isfinite(predictions(tiny(n_bins=8).fit(X, y), X)).all()


def test_two_rows_are_enough():
    model = tiny().fit([[0.0], [1.0]], [0.0, 1.0])
    assert np.isfinite(predictions(model, [[0.5]])).all()
    assert model.prior_precision_ == 0.03


def test_zero_weight_leaves_a_row_out(data):
    X, y = data[0]
    spoiled = y.copy()
    spoiled[100:] = 1e6
    weight = np.r_[np.full(100, 2.0), np.zeros(50)]
    got = tiny().fit(X, spoiled, sample_weight=weight)
    expected = tiny().fit(X[:100], y[:100])
    np.testing.assert_allclose(
        predictions(got, X), predictions(expected, X), rtol=1e-6, atol=1e-8
    )


def test_weights_move_the_fit(data):
    X, y = data[0]
    y = np.where(np.arange(150) < 75, 0.0, 1.0)
    low = tiny().fit(0 * X, y, np.r_[np.full(75, 9.0), np.ones(75)]).predict(0 * X)
    high = tiny().fit(0 * X, y, np.r_[np.ones(75), np.full(75, 9.0)]).predict(0 * X)
    assert low.mean() < 0.3 < 0.7 < high.mean()


def test_the_papers_network():
    X, y = heteroscedastic(100)
    model = ClapsRegressor.paper(random_state=3).fit(X, y)
    assert model.recipe_ == PAPER
    assert model.n_iter_ == 150
    assert model.validation_curve_ == []
    assert model.prior_precision_ == 1.0
    (Sigma,) = model.posterior_covariance_
    assert not Sigma[-1].any()  # no constant in φ
    assert (np.diag(Sigma)[:-1] > 0).all()
    by_name = ClapsRegressor(recipe="paper", random_state=3).fit(X, y)
    np.testing.assert_array_equal(predictions(model, X), predictions(by_name, X))
    x = next(model._inputs(X))
    with torch.no_grad():
        out = model.forward_.network(x)
    mean, variance = model.laplace_[0](out.phi[0])
    np.testing.assert_allclose(mean[:, 0], out.mu[0], rtol=1e-9, atol=1e-12)
    unit = model.scaler_y_.scale_[0] ** 2
    np.testing.assert_allclose(
        variance[:, 0, 0] * unit, model.predict_variance(X).epistemic, rtol=1e-8
    )


def test_patience_stops_early(data):
    model = tiny(max_steps=400, patience=2, learning_rate=0.05).fit(*data[0])
    assert model.n_iter_ < 400


def test_diverging_training_says_what_to_change(data):
    X, y = data[0]
    with pytest.raises(TrainingDivergedError, match=r"loss is .* Lower learning_rate"):
        tiny(learning_rate=1e25, schedule="constant").fit(X, y)


def test_failed_fit_leaves_the_estimator_as_it_was(data, monkeypatch):
    X, y = data[0]
    model = tiny().fit(X, y)
    before, identity = predictions(model, X), model.fit_id_
    with pytest.raises(ValueError, match="Got inf in column 0, row 0"):
        model.fit(np.full_like(X, np.inf)[:, :2], y)
    np.testing.assert_array_equal(predictions(model, X), before)

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(regressor_module, "train", interrupted)
    fresh = tiny()
    with pytest.raises(KeyboardInterrupt):
        fresh.fit(X, y)
    assert vars(fresh) == vars(tiny())
    with pytest.raises(KeyboardInterrupt):
        model.fit(X[:, :2], y)
    np.testing.assert_array_equal(predictions(model, X), before)
    assert model.fit_id_ == identity


def test_second_fit_forgets_the_first(data):
    X, y = data[0]
    model = tiny().fit(pd.DataFrame(X, columns=["a", "b", "c"]), y)
    model.fit(X[:, :2], y)
    assert not hasattr(model, "feature_names_in_")
    assert model.n_features_in_ == 2


@pytest.mark.parametrize("there", [True, False])
def test_accelerator_is_used_where_there_is_one(data, there, monkeypatch):
    """There is none here: what training is asked for tells."""

    def record(*args):
        raise RuntimeError(f"on {args[-1]}")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(regressor_module, "train", record)
    with pytest.raises(RuntimeError, match="on cuda" if there else "on cpu"):
        tiny(device="auto").fit(*data[0])


@pytest.mark.parametrize(
    "column",
    [
        lambda rng: rng.choice([0.3, 0.1 + 0.2, 1.0, 2.0], 120),
        lambda rng: np.exp(rng.normal(-10, 8, 120)),
        lambda rng: (
            np.where(rng.uniform(size=120) < 0.5, 1e-9, 1) * rng.normal(size=120)
        ),
    ],
    ids=["equal in single precision", "heavy tail", "two scales"],
)
def test_columns_whose_values_nearly_coincide(column):
    X, y = heteroscedastic(120)
    X[:, 1] = column(np.random.default_rng(0))
    assert np.isfinite(predictions(tiny(n_bins=16).fit(X, y), X)).all()


def test_gradients_switched_off_by_the_caller(fitted, data):
    with torch.no_grad():
        model = tiny(prior_precision=1.0, last_layer="trained").fit(*data[0])
    with torch.inference_mode():
        other = tiny(prior_precision=1.0, last_layer="trained").fit(*data[0])
    for one in (model, other):
        np.testing.assert_array_equal(
            predictions(one, data[2][0]), predictions(fitted, data[2][0])
        )


@pytest.mark.parametrize("default", ["dtype", "device"])
def test_torchs_defaults_do_not_matter(fitted, data, default):
    try:
        if default == "dtype":
            torch.set_default_dtype(torch.float64)
        else:
            torch.set_default_device("meta")
        model = tiny(prior_precision=1.0, last_layer="trained").fit(*data[0])
        found = predictions(model, data[2][0])
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    np.testing.assert_array_equal(found, predictions(fitted, data[2][0]))


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"n_members": 0}, r"Got n_members=0, but expected an integer of at least 1"),
        ({"hidden_layer_sizes": ()}, r"Got hidden_layer_sizes=\(\), but expected"),
        ({"hidden_layer_sizes": (8, 0)}, r"Got hidden_layer_sizes=0, but"),
        ({"prior_precision": -1.0}, r"Got prior_precision=-1.0, .* Use the de"),
        ({"prior_precision": "best"}, r"Got prior_precision='best', .*'marglik'"),
        ({"target_map": "cube"}, r"Got target_map='cube', but expected"),
        ({"scale": "both"}, r"Got scale='both', but expected one of 'claps'"),
        ({"device": "abacus"}, r"Got device='abacus', .* Use 'auto' or 'cpu'"),
        ({"kernel": "yes"}, r"Got kernel='yes', but expected one of True"),
        ({"learning_rate": np.nan}, r"Got learning_rate=nan, but expected"),
        ({"verbose": -1}, r"Got verbose=-1"),
        ({"beta": 2.0}, r"Got beta=2.0, .*\[0, 1\]"),
        ({"views": ("raw", "raw")}, r"Got views=\('raw', 'raw'\), .* at most once"),
        ({"schedule": "linear"}, r"Got schedule='linear'"),
        ({"validation_fraction": 0.0}, r"Got validation_fraction=0.0, .* 'grid'|grid"),
        ({"bias_in_posterior": False}, r"Got bias_in_posterior=False, .*trained"),
    ],
)
def test_bad_parameters_are_named(data, params, text):
    model = tiny(**params)
    with pytest.raises(ValueError, match=text):
        model.fit(*data[0])
    assert not hasattr(model, "forward_")


def test_unknown_recipe_is_named(data):
    with pytest.raises(ValueError, match="Got recipe='old', .*'paper'. Or pass a Rec"):
        ClapsRegressor(recipe="old").fit(*data[0])


def test_recipe_and_parameters_have_the_same_names(data):
    """A parameter that is None is as the recipe has it."""
    names = {f.name for f in fields(Recipe)}
    signature = ClapsRegressor().get_params()
    assert {k for k, v in signature.items() if v is None} - names == {
        "random_state",
        "preprocessor",
    }
    model = tiny(max_steps=7, recipe=replace(TINY, max_steps=9)).fit(*data[0])
    assert model.n_iter_ == 7


def test_sums_of_parts_are_sums_of_the_whole(fitted, data):
    X, y = data[1]
    parts = fitted.partial_sums(X[:50], y[:50]) + fitted.partial_sums(X[50:], y[50:])
    whole = fitted.partial_sums(X, y)
    np.testing.assert_allclose(parts.gram, whole.gram, rtol=1e-10)
    assert parts.n_rows == whole.n_rows == 130
    updated = fitted.update_posterior(X, y)
    again = fitted.with_sums(fitted.sums_ + whole)
    np.testing.assert_allclose(
        predictions(updated, X), predictions(again, X), rtol=1e-9
    )
    before = fitted.predict_variance(X).epistemic
    assert (updated.predict_variance(X).epistemic < before).all()
    np.testing.assert_array_equal(updated.predict(X), fitted.predict(X))
    assert updated.fit_id_ != fitted.fit_id_
    with pytest.raises(ValueError, match="sums that belong to another fit"):
        fitted.with_sums(tiny().fit(X, y).sums_)


@pytest.mark.parametrize(
    ("n", "p", "expected"), [(70, 10, 0.03), (140, 10, 0.12), (140, 2, 1.0)]
)
def test_precision_of_the_variance_follows_rows_per_input(n, p, expected, monkeypatch):
    """λ of Σ is small for few rows per input."""
    grid = 100.0, 1e4
    monkeypatch.setattr("mapie_claps.posterior.last_layer.PRIOR_PRECISION_GRID", grid)
    rng = np.random.default_rng(0)
    X, noise = rng.normal(size=(n, p)), rng.normal(size=n)
    y = np.sin(2 * X[:, 0]) + 0.1 * noise
    model = ClapsRegressor(
        n_members=2, max_steps=60, target_map="identity", random_state=0
    )
    assert model.fit(X, y).prior_precision_ == pytest.approx(expected)


def test_noise_of_a_dozen_rows_is_not_far_too_small():
    rng = np.random.default_rng(0)
    model = ClapsRegressor(random_state=0).fit(
        rng.normal(size=(12, 3)), rng.normal(size=12)
    )
    noise = model.predict_variance(rng.normal(size=(50, 3))).aleatoric
    assert 0.3 < np.median(noise) ** 0.5 < 3


def test_prior_precision_can_be_changed_without_training(fitted, data):
    X = data[2][0]
    strong = fitted.with_prior_precision(1e6)
    assert strong.prior_precision_ == 1e6
    assert fitted.prior_precision_ == 1.0
    np.testing.assert_array_equal(strong.predict(X), fitted.predict(X))
    assert (strong.predict_variance(X).epistemic < 1e-4).all()
    with pytest.raises(
        ValueError, match="Got prior_precision='grid', but expected a f"
    ):
        fitted.with_prior_precision("grid")


def test_scales(data):
    X, y = data[0]
    model = tiny(n_members=2).fit(X, y)
    claps = model.predict_variance(X)
    lacp = copy.copy(model).set_params(scale="aleatoric").predict_variance(X)
    constant = copy.copy(model).set_params(scale="constant").predict_variance(X)
    np.testing.assert_array_equal(lacp.aleatoric, claps.aleatoric)
    assert not lacp.epistemic.any()
    assert not constant.epistemic.any()
    residual = y - model.predict(X)
    np.testing.assert_allclose(constant.aleatoric, np.mean(residual**2), rtol=1e-6)
    with pytest.raises(ValueError, match="posterior"):
        copy.copy(model).set_params(scale="posterior").predict_variance(X)
    before = tiny(scale="posterior", n_members=2).fit(X, y)
    parts = before.predict_variance(X)
    sigma2 = before.set_params(scale="constant").predict_variance(X).total
    np.testing.assert_allclose(parts.aleatoric, sigma2)
    assert (parts.epistemic > 0).all()


def test_seen_rows_are_known_again(fitted, data):
    X, y = data[0]
    assert fitted.count_seen(X[:40], y[:40]) == (40, 40)
    assert fitted.count_seen(X[:40], y[40:80]) == (0, 40)
    assert fitted.count_seen(*data[1])[0] == 0
    assert fitted.update_posterior(*data[1]).count_seen(*data[1])[0] == 130
    batches = iter([(data[1][0][:60], data[1][1][:60]), (X[:20], y[:20])])
    assert fitted.update_posterior(batches).count_seen(*data[1])[0] == 60


def test_a_standard_deviation_does_not_pass_for_a_prediction(data):
    X, y = data[0]
    model = TransformedTargetRegressor(tiny(), func=np.exp, inverse_func=np.log)
    model.fit(X, y)
    with pytest.raises(AttributeError, match="'tuple' object has no attribute"):
        model.predict(X, return_std=True)


def test_users_own_preprocessor(data):
    X, y = data[0]
    model = tiny(preprocessor=PolynomialFeatures(2, include_bias=False)).fit(X, y)
    assert model.preprocessor_.n_output_features_ == 9
    assert np.isfinite(predictions(model, X)).all()


def test_little_noise_brings_a_kernel():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (400, 2))
    y = np.sin(3 * X[:, 0]) * X[:, 1]
    model = ClapsRegressor(n_members=3, max_steps=300, random_state=0).fit(X, y)
    assert model.kernel_ is not None
    inside, outside = model.predict_variance(X[:50]), model.predict_variance(3 + X[:50])
    assert outside.epistemic.min() > 10 * inside.epistemic.max()
    without = ClapsRegressor(n_members=3, max_steps=300, random_state=0, kernel=False)
    assert without.fit(X, y).kernel_ is None


def test_noise_brings_no_kernel():
    X, y = heteroscedastic(300)
    y = y + np.random.default_rng(1).normal(0, 2, 300)
    model = ClapsRegressor(n_members=3, max_steps=100, random_state=0).fit(X, y)
    assert model.kernel_ is None
