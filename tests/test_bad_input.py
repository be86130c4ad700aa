"""Bad input: the argument, the value found and the remedy, and no half-made state."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from conftest import heteroscedastic, tiny
from own_networks import mse_network
from sklearn.exceptions import NotFittedError

from mapie_claps import (
    CalibratedRegressor,
    ClapsModule,
    ClapsScaleEstimator,
    ClapsScore,
    StreamingConformalRegressor,
    explain,
    metrics,
    update_posterior,
)

X, Y = heteroscedastic(40)


def with_value(value, array):
    out = np.array(array, dtype=float)
    out.flat[3] = value
    return out


def masked(array):
    return np.ma.masked_array(array, np.arange(array.size).reshape(array.shape) == 3)


@pytest.mark.parametrize(
    ("bad_X", "bad_y", "message"),
    [
        (with_value(np.inf, X), Y, "Got inf in column 0, row 1, but expected finite"),
        (X, with_value(np.nan, Y), "Input y contains NaN"),
        (X, with_value(-np.inf, Y), "Input y contains infinity"),
        (X[:, 0], Y, "Expected 2D array, got 1D array"),
        (X[:10], Y, "Got 40 values of y for 10 rows of X"),
        (X[:0], Y[:0], r"0 sample\(s\)"),
        (X[:, :0], Y, r"0 feature\(s\)"),
        (X[:1], Y[:1], r"1 sample\(s\).*minimum of 2"),
        (X, np.column_stack([Y, Y]), r"y should be a 1d array, got.*\(40, 2\)"),
        (np.full((40, 2), b"text"), Y, "Got b'text' in column 0, row 0.*or text"),
        (X, np.full(40, "text"), "could not convert string to float: .*text"),
        (1e200 * X, Y, r"Got X whose values overflow .*column 'x0'"),
        (X, 1e200 * Y, "Got y whose values overflow when squared"),
        (X, 1e160 * Y, "Got y whose values overflow when squared"),
        (X, 1e-170 * Y, "Got y with a range of .*underflows. Multiply"),
        (1e-170 * X, Y, "Got the column 'x0' of X with a range of .*underflows"),
        (masked(X), Y, "Got X as a masked array with 1 masked values"),
        (X, masked(Y), "Got y as a masked array with 1 masked values"),
    ],
)
def test_training_data(bad_X, bad_y, message):
    model = tiny()
    with pytest.raises(ValueError, match=message):
        model.fit(bad_X, bad_y)
    assert vars(model) == vars(tiny())


def with_gap(value):
    out = Y.astype(object)
    out[3] = value
    return out


@pytest.mark.parametrize(
    ("bad_y", "message"),
    [
        (with_gap(None), "Got y with None in row 3, but expected numbers. Leave"),
        (with_gap(None).tolist(), "Got y with None in row 3"),
        (with_gap(pd.NA), "Got y with <NA> in row 3"),
        (with_gap(pd.NaT), "Got y with NaT in row 3"),
        (pd.Series(with_gap(pd.NA)), "Got y with <NA> in row 3"),
        (pd.Series(Y).convert_dtypes().where(Y[3] != Y), "Input y contains NaN"),
        ([None] * 40, "Got y with None in row 0"),
        (Y + 1j, "Got y of type complex128, but expected real numbers. Convert"),
        (np.arange(40).astype("datetime64[D]"), r"Got y of type datetime64\[D\]"),
        (np.arange(40).astype("timedelta64[s]"), r"Got y of type timedelta64\[s\]"),
    ],
)
def test_targets_that_are_no_numbers(bad_y, message):
    model = tiny()
    with pytest.raises(ValueError, match=message):
        model.fit(X, bad_y)
    assert vars(model) == vars(tiny())
    with pytest.raises(ValueError, match="Got y with|Got y of type|NaN"):
        update_posterior(tiny().fit(X, Y), X, bad_y)


def test_what_a_mask_hides_is_never_used():
    """NumPy and scikit-learn drop masks without a word."""
    model, net = tiny().fit(X, Y), ClapsModule(mse_network()).fit(X, Y)
    for call in (
        lambda: tiny().fit(X, Y, masked(np.ones(40))),
        lambda: model.predict(masked(X)),
        lambda: net.predict(masked(X)),
        lambda: ClapsModule(mse_network()).fit(X, masked(Y)),
        lambda: StreamingConformalRegressor(model).conformalize(X, masked(Y)),
        lambda: metrics.coverage(masked(Y), np.c_[Y, Y]),
        lambda: metrics.mean_width(masked(np.c_[Y, Y])),
        lambda: metrics.scale_ratio(np.ones(40), masked(np.ones(40))),
        lambda: metrics.predictive_nll(masked(Y), Y, np.ones(40)),
        lambda: metrics.crps(masked(Y), np.c_[Y, Y]),
        lambda: metrics.quantile_loss(Y, masked(np.c_[Y, Y]), [0.1, 0.9]),
    ):
        with pytest.raises(ValueError, match="as a masked array with 1 masked"):
            call()
    whole = np.ma.masked_array(X)  # nothing is hidden
    np.testing.assert_array_equal(model.predict(whole), model.predict(X))


def test_labels_in_another_order_are_told():
    """Rows and targets are paired by position, as in scikit-learn."""
    frame, series = pd.DataFrame(X, columns=["a", "b", "c"]), pd.Series(Y)
    model = tiny().fit(frame, series)
    net = ClapsModule(mse_network()).fit(frame, series)
    for call in (
        lambda y: tiny().fit(frame, y),
        lambda y: ClapsModule(mse_network()).fit(frame, y),
        lambda y: update_posterior(net, frame, y),
        lambda y: update_posterior(model, frame, y),
        lambda y: StreamingConformalRegressor(model).score_rows(frame, y),
    ):
        with pytest.warns(UserWarning, match="same index in another order.*y.loc"):
            call(series[::-1])
        call(series[::-1].reset_index(drop=True))  # warnings are errors
        call(series.set_axis(range(100, 140)))
    call(series.set_axis(pd.Index(range(40), dtype="Int64")))  # equal labels
    call(series.set_axis([0, *range(39)]))  # not the same ones


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (np.ones(3), "Got 3 values of sample_weight for 40 rows"),
        (-np.ones(40), "Got sample_weight with a negative value"),
        (
            np.eye(40)[0],
            "Got sample_weight with 1 positive weights, but expected at least",
        ),
        (with_value(np.nan, np.ones(40)), "sample_weight contains NaN"),
        (np.full(40, 1e308), "Got sample_weight from 1e.308 .*sum overflows"),
        (with_value(1e300, np.full(40, 1e-300)), "Got sample_weight .*underflow"),
    ],
)
def test_sample_weight(weight, message):
    with pytest.raises(ValueError, match=message):
        tiny().fit(X, Y, weight)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("prior_precision", 0.0, r"a finite number in \(0, inf\)"),
        ("prior_precision", -1.0, r"a finite number in \(0, inf\)"),
        ("prior_precision", np.nan, r"a finite number in \(0, inf\)"),
        ("prior_precision", "best", "one of 'grid', 'marglik'"),
        ("prior_precision", True, "a finite number"),
        ("hidden_layer_sizes", 64, "a tuple of integers"),
        ("hidden_layer_sizes", "64", "a tuple of integers"),
        ("hidden_layer_sizes", (64, 0.5), "an integer of at least 1"),
        ("representation_size", 0, "an integer of at least 1"),
        ("n_members", 0, "an integer of at least 1"),
        *(
            ("views", value, "a tuple of one or more of")
            for value in ("raw", (), ("raw", "raw"), ("x",), (["raw"],), None)
        ),
        ("scaling_rate", -1, r"a finite number in \[0, inf\)"),
        ("scaling_rate", np.nan, r"a finite number in \[0, inf\)"),
        ("n_bins", -1, "an integer of at least 0"),
        ("max_steps", "many", "an integer of at least 1"),
        ("batch_size", 0, "an integer of at least 1"),
        ("learning_rate", 0, r"a finite number in \(0, inf\)"),
        ("schedule", "linear", "one of 'cosine', 'constant'"),
        ("weight_decay", -1, r"a finite number in \[0, inf\)"),
        ("dropout", 1.0, r"a finite number in \[0, 1\)"),
        ("beta", 2, r"a finite number in \[0, 1\]"),
        ("validation_fraction", 0.9, r"a finite number in \[0, 0.5\]"),
        ("validation_fraction", 0.0, "a share above 0 with prior_precision='grid'"),
        ("patience", 0, "an integer of at least 1"),
        ("tol", -1, r"a finite number in \[0, inf\)"),
        ("variance_floor", 0, r"a finite number in \(0, inf\)"),
        ("last_layer", "linear", "one of 'ridge', 'trained'"),
        ("hessian_structure", "kron", "one of 'full', 'diag'"),
        ("scale", "total", "one of 'claps', 'aleatoric', 'posterior', 'constant'"),
        ("device", "toaster", "a device that torch knows"),
    ],
)
def test_parameters(name, value, expected):
    model = tiny(**{name: value})
    with pytest.raises(ValueError, match=rf"Got {name}=.*, but expected {expected}"):
        model.fit(X, Y)
    assert not hasattr(model, "model_")


def test_ridge_needs_the_full_structure():
    with pytest.raises(
        ValueError, match=r"last_layer='ridge'.*hessian_structure='diag'"
    ):
        tiny(hessian_structure="diag").fit(X, Y)


def test_prediction_data():
    model = tiny().fit(X, Y)
    with pytest.raises(ValueError, match="X has 2 features, but ClapsRegressor is exp"):
        model.predict(X[:, :2])
    with pytest.raises(ValueError, match="Got inf in column 0, row 1"):
        model.predict_variance(with_value(np.inf, X))
    with pytest.raises(ValueError, match=r"0 sample\(s\)"):
        model.predict(X[:0])
    with pytest.raises(ValueError, match="Got prior_precision=-1"):
        model.with_prior_precision(-1)
    with pytest.raises(ValueError, match="Got scale='both'"):
        model.set_params(scale="both").predict_variance(X)


@pytest.mark.parametrize("method", ["predict", "predict_variance"])
def test_unfitted(method):
    with pytest.raises(NotFittedError, match="not fitted yet"):
        getattr(tiny(), method)(X)


def test_unfitted_everywhere():
    with pytest.raises(NotFittedError, match="not fitted yet"):
        tiny().with_prior_precision(1.0)
    with pytest.raises(NotFittedError, match="not fitted yet"):
        _ = tiny().posterior_covariance_
    with pytest.raises(NotFittedError, match="not fitted yet"):
        ClapsScaleEstimator(tiny()).predict(X)
    with pytest.raises(NotFittedError, match="not fitted yet"):
        explain(tiny(), X)


def test_scale_estimator_has_nothing_to_fit():
    scale = ClapsScaleEstimator(tiny().fit(X, Y))
    with pytest.raises(TypeError, match="already fitted.*prefit=True"):
        scale.fit(X, Y)


def test_scale_estimator_refuses_what_mapie_would_clip():
    scale = ClapsScaleEstimator(tiny().fit(X, 1e-12 * Y))
    with pytest.raises(ValueError, match=r"clips it at 1e-08 .*use ClapsScore"):
        scale.predict(X)


class Broken:
    """Returns whatever it was told."""

    def __init__(self, mu, std):
        self.out = mu, std

    def predict(self, X, return_std=False):
        return self.out


@pytest.mark.parametrize(
    ("std", "message"),
    [
        (np.r_[np.nan, np.ones(39)], "standard deviation of .*nan.* in row 0"),
        (np.zeros(40), r"standard deviation of .*0\.0"),
        (np.ones((40, 1)), r"standard deviation of shape \(40, 1\) for 40 rows"),
    ],
)
def test_score_checks_the_scale(std, message):
    with pytest.raises(ValueError, match=message):
        ClapsScore().get_signed_conformity_scores(Y, Y, y_std=std)
    with pytest.raises(ValueError, match=message):
        ClapsScore(Broken(Y, std)).get_estimation_distribution(Y, 1.0, X=X)


def test_score_checks_the_centre():
    with pytest.raises(ValueError, match=r"predictions of shape \(40, 1\) for targets"):
        ClapsScore().get_signed_conformity_scores(Y, Y[:, None], y_std=np.ones(40))
    with pytest.raises(ValueError, match=r"Got 1 of 40 rows without .*resampling="):
        ClapsScore().get_signed_conformity_scores(
            Y, with_value(np.nan, Y), y_std=np.ones(40)
        )


def test_score_without_a_scale_names_the_fix():
    with pytest.raises(ValueError, match=r"pass the fitted estimator, ClapsScore\(fit"):
        ClapsScore().get_signed_conformity_scores(Y, Y, X=X)
    with pytest.raises(ValueError, match=r"ClapsScore\(fitted\), with prefit=True"):
        ClapsScore().get_estimation_distribution(Y, 1.0, X=X)


def test_explain_needs_parts():
    from sklearn.linear_model import LinearRegression

    with pytest.raises(TypeError, match="LinearRegression, which does not split"):
        explain(LinearRegression().fit(X, Y), X)


FRAME = pd.DataFrame({"a": X[:, 0], "b": X[:, 1]})
DAYS = pd.Series(pd.date_range("2024-01-01", periods=len(Y), tz="Europe/Berlin"))
WRONG_TARGETS = {
    "dates": (DAYS, "date or length of time Timestamp|Got Timestamp.*in y, row 0"),
    "text": (["a"] * len(Y), "Got 'a' in y, row 0, but expected finite numbers"),
    "a gap": (with_value(np.nan, Y), r"Got nan in y, row \d, but expected finite"),
    "rows of two lengths": (
        [[1, 2], [3]] * (len(Y) // 2),
        r"whose rows have different lengths|Got \[1, 2\] in y, row 0",
    ),
    "too few": (Y[:-1], "Got .*39.* for 40 rows of X, but expected one"),
}


@pytest.mark.parametrize(("y", "message"), WRONG_TARGETS.values(), ids=WRONG_TARGETS)
def test_a_wrong_target_is_named_wherever_it_comes(y, message):
    model = tiny(max_steps=2).fit(FRAME, Y)
    for step in (
        tiny().fit,
        CalibratedRegressor(tiny()).fit,
        CalibratedRegressor(model).conformalize,
        CalibratedRegressor(model).score_rows,
    ):
        with pytest.raises(ValueError, match=message):
            step(FRAME, y)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (np.ones(3), "Got 3 values of sample_weight for 40 rows of X"),
        (["a"] * len(Y), "Got sample_weight that cannot be used: could not convert"),
        (np.ones((len(Y), 2)), "Got sample_weight that cannot be used: .*1D"),
        ([None, *np.ones(len(Y) - 1)], "Got sample_weight with None in row 0"),
    ],
)
def test_a_wrong_weight_is_named(weight, message):
    with pytest.raises(ValueError, match=message):
        tiny().fit(FRAME, Y, weight)


def test_names_of_two_types_and_columns_alone_are_refused_with_the_remedy():
    model = tiny(max_steps=2).fit(FRAME, Y)
    mixed = FRAME.rename(columns={"b": 3})
    for step in (lambda X: tiny().fit(X, Y), model.predict):
        with pytest.raises(TypeError, match=r"Got the column name 3 of type int.*str"):
            step(mixed)
        for series in (FRAME["a"], pl.from_pandas(FRAME)["a"]):
            with pytest.raises(
                ValueError, match=r"Got X as a Series of 40 values.*X.to_frame\(\)"
            ):
                step(series)
    assert tiny(max_steps=2).fit(FRAME.set_axis([0, 1], axis=1), Y).n_features_in_ == 2
