"""ClapsRegressor as a scikit-learn regressor."""

import copy
import pickle
import sys
import warnings

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from conftest import heteroscedastic, tiny
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from mapie_claps import ClapsRegressor
from mapie_claps.estimators import ensemble_training
from mapie_claps.exceptions import TrainingDivergedError
from mapie_claps.network import threads, units
from mapie_claps.network import trainer as _training


def predictions(model, X):
    return np.stack(model.predict(X, return_std=True))


def test_it_learns_mean_and_noise():
    X, y = heteroscedastic(600)
    model = ClapsRegressor(n_members=2, random_state=0, tol=None).fit(X[:400], y[:400])
    mu, std = model.predict(X[400:], return_std=True)
    truth = np.sin(X[400:, 0]) + X[400:, -1]
    assert np.mean((mu - truth) ** 2) < 0.05 * np.var(truth)
    noise = 0.1 * (1 + X[400:, 0] ** 2)
    assert np.corrcoef(np.log(std), np.log(noise))[0, 1] > 0.7


def test_fitted_attributes(data):
    model = tiny().fit(*data[0])
    assert model.n_iter_ == 60
    assert model.n_features_in_ == 3
    assert len(model.loss_curve_) == len(model.validation_curve_) == 20
    assert model.loss_curve_[-1] < model.loss_curve_[0]
    assert model.prior_precision_ > 0
    assert not hasattr(model, "feature_names_in_")


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, copy.copy, lambda m: pickle.loads(pickle.dumps(m))],
    ids=["deepcopy", "copy", "pickle"],
)
def test_copies_predict_alike(fitted, data, copied):
    X = data[2][0]
    np.testing.assert_array_equal(
        predictions(copied(fitted), X), predictions(fitted, X)
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
    search = GridSearchCV(pipe, {"clapsregressor__variance_floor": [1e-3, 1.0]}, cv=2)
    assert search.fit(X, y).best_params_["clapsregressor__variance_floor"] in (1e-3, 1)
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


def test_duplicated_rows_and_more_columns_than_rows():
    X, y = heteroscedastic(30, p=80)
    model = tiny(n_bins=8).fit(np.repeat(X, 2, axis=0), np.repeat(y, 2))
    assert np.isfinite(predictions(model, X)).all()


def test_two_rows_are_enough():
    model = tiny().fit([[0.0], [1.0]], [0.0, 1.0])
    assert np.isfinite(predictions(model, [[0.5]])).all()
    assert model.prior_precision_ == 1.0


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
    model = ClapsRegressor.paper(random_state=3)
    assert model.hidden_layer_sizes == (64, 64)
    assert model.representation_size == 64
    assert (model.variance_floor, model.prior_precision) == (1e-3, 1.0)
    assert (model.n_members, model.last_layer) == (1, "trained")
    assert (model.learning_rate, model.schedule) == (1e-3, "constant")
    assert model.input_clip is model.max_gradient_norm is model.initial_bias is None
    X, y = heteroscedastic(100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.fit(X, y).n_iter_ == 150
    assert model.validation_curve_ == []
    (Sigma,) = model.posterior_covariance_
    assert not Sigma[-1].any()  # no constant in φ
    assert (np.diag(Sigma)[:-1] > 0).all()


def test_unsettled_training_warns(data):
    with pytest.warns(
        ConvergenceWarning, match=r"last tenth of 60 steps, .* Raise max"
    ):
        tiny(tol=1e-9, schedule="constant", learning_rate=1e-4).fit(*data[0])


def test_patience_stops_early(data):
    model = tiny(max_steps=400, patience=2, learning_rate=0.05).fit(*data[0])
    assert model.n_iter_ < 400


def test_dropout_and_beta_train(data):
    model = tiny(dropout=0.2, beta=0.5, n_members=2, n_bins=4).fit(*data[0])
    assert np.isfinite(predictions(model, data[2][0])).all()


def test_verbose_prints(data, capsys, monkeypatch):
    tiny(verbose=2, max_steps=10).fit(*data[0])
    assert "step 10/10: loss" in capsys.readouterr().out
    pytest.importorskip("tqdm")
    tiny(verbose=1, max_steps=10).fit(*data[0])
    shown = capsys.readouterr()
    assert "training: 100%" in shown.err
    assert not shown.out
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    tiny(verbose=1, max_steps=10).fit(*data[0])
    assert "step 10/10: loss" in capsys.readouterr().out


def test_diverging_training_says_what_to_change(data):
    X, y = data[0]
    with pytest.raises(TrainingDivergedError, match=r"loss is .* Lower learning_rate"):
        tiny(learning_rate=1e25, schedule="constant").fit(X, y)


def test_failed_fit_leaves_the_estimator_as_it_was(data, monkeypatch):
    X, y = data[0]
    model = tiny().fit(X, y)
    before = predictions(model, X)
    with pytest.raises(ValueError, match="Got inf in column 0, row 0"):
        model.fit(np.full_like(X, np.inf)[:, :2], y)
    np.testing.assert_array_equal(predictions(model, X), before)

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(_training._Trainer, "run", interrupted)
    fresh = tiny()
    with pytest.raises(KeyboardInterrupt):
        fresh.fit(X, y)
    assert vars(fresh) == vars(tiny())
    with pytest.raises(KeyboardInterrupt):
        model.fit(X[:, :2], y)
    np.testing.assert_array_equal(predictions(model, X), before)


def test_second_fit_forgets_the_first(data):
    X, y = data[0]
    model = tiny().fit(pd.DataFrame(X, columns=["a", "b", "c"]), y)
    model.fit(X[:, :2], y)
    assert not hasattr(model, "feature_names_in_")
    assert model.n_features_in_ == 2


@pytest.mark.parametrize("small", [True, False])
def test_thread_setting_is_restored(data, small, monkeypatch):
    seen, original = [], units.Unit.run

    def spy(self, learning_rates):
        seen.append(torch.get_num_threads())
        return original(self, learning_rates)

    monkeypatch.setattr(units.Unit, "run", spy)
    monkeypatch.setattr(threads, "THREADING_PAYS_FROM", 1e18 if small else 0)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        tiny(max_steps=3).fit(*data[0])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {1 if small else 2}


@pytest.mark.parametrize("there", [True, False])
def test_accelerator_is_used_where_there_is_one(data, there, monkeypatch):
    """There is none here: what training is asked for tells."""

    def record(*args):
        raise RuntimeError(f"on {args[-2]}")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(ensemble_training, "train", record)
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


@pytest.mark.parametrize("rows", [19, 120])
def test_patience_goes_by_the_training_loss_where_nothing_is_held_out(rows):
    X, y = heteroscedastic(rows)
    fraction = 0.12 if rows < 20 else 0.0
    model = tiny(
        validation_fraction=fraction, prior_precision=1.0, patience=3, max_steps=100
    ).fit(X, y)
    falling = np.minimum.accumulate(model.loss_curve_)
    assert len(model.loss_curve_) == 20 or (np.diff(falling)[-3:] == 0).all()


def test_gradients_switched_off_by_the_caller(fitted, data):
    with torch.no_grad():
        model = tiny(prior_precision=1.0, last_layer="trained").fit(*data[0])
    np.testing.assert_array_equal(
        predictions(model, data[2][0]), predictions(fitted, data[2][0])
    )


def test_torchs_default_dtype_does_not_matter(fitted, data):
    torch.set_default_dtype(torch.float64)
    try:
        model = tiny(prior_precision=1.0, last_layer="trained").fit(*data[0])
    finally:
        torch.set_default_dtype(torch.float32)
    np.testing.assert_array_equal(
        predictions(model, data[2][0]), predictions(fitted, data[2][0])
    )


def test_rows_are_counted_once_by_the_grid(data):
    assert tiny().fit(*data[0]).sums_.n_rows == 150
