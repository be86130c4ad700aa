"""A model that changed after calibration makes no intervals."""

import copy
import pickle
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import heteroscedastic, tiny
from mapie.conformity_scores import ResidualNormalisedScore
from mapie_api import calibrated_prefit
from own_networks import Pair, mse_network, seeded
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mapie_claps import (
    CalibratedRegressor,
    ClapsModule,
    ClapsScaleEstimator,
    ClapsScore,
    StreamingConformalRegressor,
    explain,
    load,
    partial_sums,
    save,
    sums_of,
)
from mapie_claps.conformal.mapie import MAPIE_PASSES_STD
from mapie_claps.estimators.variance import with_fingerprint

X, Y = heteroscedastic(120)
CHANGED = "has changed since calibration .* Calibrate again"


class Fingerprinted(RegressorMixin, BaseEstimator):
    """A straight line; its fingerprint is its slope and unit."""

    def __init__(self, unit=1.0):
        self.unit = unit

    def fit(self, X, y):
        self.n_features_in_ = 3
        self.slope_ = float(np.asarray(X)[:, 0] @ y)
        return self

    @property
    def fingerprint_(self):
        return f"{self.slope_} {self.unit}"

    def predict(self, X, return_std=False):
        mu = self.slope_ * np.asarray(X)[:, 0]
        std = np.full(len(mu), self.unit)
        return (mu, with_fingerprint(std, self.fingerprint_)) if return_std else mu


class Anonymous(Fingerprinted):
    """The same without a fingerprint."""

    fingerprint_ = None


MODELS = [Fingerprinted, lambda: make_pipeline(StandardScaler(), Fingerprinted()), tiny]
CHANGES = {
    "refit": lambda last: last.fit(X[60:], Y[60:]),
    "parameter": lambda last: last.set_params(
        **({"unit": 2.0} if hasattr(last, "unit") else {"scale": "aleatoric"})
    ),
}


def last_step(model):
    return model[-1] if hasattr(model, "steps") else model


def in_mapie(held):
    def calibrated(model):
        score = ClapsScore(model) if held else ClapsScore()
        mapie, options = calibrated_prefit(model, score, (X[60:], Y[60:]), 0.9)
        predict = getattr(mapie, "predict_interval", mapie.predict)
        return lambda rows: predict(rows, **options)[1]

    return calibrated


def streaming(model):
    conformal = StreamingConformalRegressor(model).conformalize(X[60:], Y[60:])
    return lambda rows: conformal.predict_interval(rows)[1]


WAYS = {"held": in_mapie(True), "streaming": streaming}
if MAPIE_PASSES_STD:
    WAYS["asked by MAPIE"] = in_mapie(False)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", MODELS, ids=["line", "pipeline", "regressor"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_changed_is_refused(way, model, change):
    fitted = model().fit(X[:60], Y[:60])
    predict = WAYS[way](fitted)
    before = predict(X[:9])
    np.testing.assert_array_equal(predict(X[:9]), before)
    CHANGES[change](last_step(fitted))
    with pytest.raises(ValueError, match=CHANGED):
        predict(X[:9])


@pytest.mark.parametrize("way", WAYS)
def test_a_change_that_is_taken_back_is_none(way):
    model = Fingerprinted().fit(X[:60], Y[:60])
    predict = WAYS[way](model)
    before = predict(X[:9])
    model.set_params(unit=3.0).set_params(unit=1.0)
    np.testing.assert_array_equal(predict(X[:9]), before)


@pytest.mark.parametrize("way", WAYS)
def test_models_without_a_fingerprint_pass(way):
    model = Anonymous().fit(X[:60], Y[:60])
    predict = WAYS[way](model)
    model.set_params(unit=2.0)
    assert predict(X[:9]).shape == (9, 2, 1)


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))]
)
def test_copies_know_it_too(duplicate):
    model = Fingerprinted().fit(X[:60], Y[:60])
    score = ClapsScore() if MAPIE_PASSES_STD else ClapsScore(model)
    mapie, options = calibrated_prefit(model, score, (X[60:], Y[60:]), 0.9)
    other = duplicate(mapie)
    inner = getattr(other, "_mapie_regressor", other).estimator_.single_estimator_
    predict = getattr(other, "predict_interval", other.predict)
    predict(X[:9], **options)
    inner.set_params(unit=2.0)
    with pytest.raises(ValueError, match=CHANGED):
        predict(X[:9], **options)


@pytest.mark.parametrize("model", MODELS, ids=["line", "pipeline", "regressor"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_scale_that_changed_is_refused(model, change):
    """MAPIE's own score asks for the scale at calibration and again later."""
    fitted = model().fit(X[:60], Y[:60])
    scale = ClapsScaleEstimator(fitted)
    score = ResidualNormalisedScore(residual_estimator=scale, prefit=True)
    mapie, options = calibrated_prefit(fitted, score, (X[60:], Y[60:]), 0.9)
    predict = getattr(mapie, "predict_interval", mapie.predict)
    predict(X[:9], **options)
    CHANGES[change](last_step(fitted))
    for asked in (scale, copy.deepcopy(scale), pickle.loads(pickle.dumps(scale))):
        with pytest.raises(ValueError, match="has changed since .* Wrap it again"):
            asked.predict(X[:9])
    with pytest.raises(ValueError, match="has changed since"):
        predict(X[:9], **options)
    assert ClapsScaleEstimator(fitted).predict(X[:9]).shape == (9,)


def test_units_and_categories_are_part_of_a_fingerprint():
    """Networks of rows eight times as large are equal to the last bit."""
    words = pd.DataFrame({"a": X[:60, 0], "b": np.repeat(["low", "high"], 30)})
    other = words.assign(b=words["b"].map({"low": "high", "high": "low"}))
    for rows, same_bits in ((X[:60], 8 * X[:60]), (words, other)):
        model, changed = tiny().fit(rows, Y[:60]), tiny().fit(same_bits, Y[:60])
        if rows is not words:
            network = model.network_.fingerprint()
            assert changed.network_.fingerprint() == network
        assert changed.fingerprint_ != model.fingerprint_
        with pytest.raises(ValueError, match="belong to another network"):
            sums_of(model) + partial_sums(changed, same_bits, Y[:60])
    scaled = tiny(target_map=None).fit(X[:60], 8 * Y[:60])
    model = tiny(target_map=None).fit(X[:60], Y[:60])
    with pytest.raises(ValueError, match="belong to another network"):
        sums_of(model) + sums_of(scaled)


def test_what_else_would_use_the_old_scores_is_refused():
    model = Fingerprinted().fit(X[:60], Y[:60])
    conformal = StreamingConformalRegressor(model).conformalize(X[60:], Y[60:])
    scores = conformal.conformity_scores_
    model.set_params(unit=2.0)
    for call in (
        lambda: conformal.partial_conformalize(X, Y),
        lambda: next(conformal.iter_intervals(X)),
        lambda: explain(conformal, X),
        lambda: conformal.quantiles(),
    ):
        with pytest.raises(ValueError, match=CHANGED):
            call()
    np.testing.assert_array_equal(conformal.conformity_scores_, scores)
    again = conformal.conformalize(X[60:], Y[60:])
    np.testing.assert_allclose(again.conformity_scores_, scores / 2)
    assert again.predict_interval(X)[1].shape == (120, 2, 1)


def test_scores_stay_an_ordinary_array():
    model = Fingerprinted().fit(X[:60], Y[:60])
    std = model.predict(X, return_std=True)[1]
    assert std.fingerprint == std[:5].copy().fingerprint == model.fingerprint_
    assert type(2 * std) is type(std + std) is type(np.sqrt(std)) is np.ndarray
    assert type(std.mean()) is type(std[0]) is np.float64
    assert repr(std[:2]) == "array([1., 1.])"


def in_place(tensor):
    with torch.no_grad():
        tensor.mul_(1.01)


@pytest.fixture(scope="module")
def of_everything():
    """Bins, two members and a kernel."""
    params = {"n_members": 2, "n_bins": 4, "kernel": True, "max_steps": 200}
    model = tiny(views=("bins",), **params).fit(*heteroscedastic(400, seed=1))
    assert model.kernel_ is not None
    return model


# Everything that a fitted estimator holds numbers in.
HELD = {
    "weights": lambda m: in_place(next(m.network_.parameters())),
    "edges of bins": lambda m: in_place(m.network_.encoding.width),
    "posterior": lambda m: in_place(m.model_.posterior.mean),
    "weights of members": lambda m: m.model_.member_weight.copy_(
        torch.linspace(0.4, 0.6, 2)
    ),
    "rows of the kernel": lambda m: in_place(m.kernel_.member.X),
    "weight of the kernel": lambda m: setattr(
        m, "kernel_", replace(m.kernel_, weight=m.kernel_.weight / 2)
    ),
    "unit of X": lambda m: m.scaler_X_.scale_.__imul__(2),
    "unit of y": lambda m: m.scaler_y_.mean_.__iadd__(2),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("held", HELD)
def test_a_change_in_place_is_seen(way, held, of_everything):
    model = copy.deepcopy(of_everything)
    predict = WAYS[way](model)
    predict(X[:9])
    HELD[held](model)
    with pytest.raises(ValueError, match=CHANGED):
        predict(X[:9])


class Counting(Pair):
    """Counts its calls, as some layers do."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


@pytest.mark.parametrize("way", WAYS)
def test_a_count_of_calls_is_no_change(way):
    predict = WAYS[way](ClapsModule(seeded(Counting)).fit(X[:60], Y[:60]))
    np.testing.assert_array_equal(predict(X[:9]), predict(X[:9]))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("head", [True, False])
def test_a_change_in_place_of_a_users_network_is_seen(way, head):
    net = seeded(Pair) if head else mse_network()
    model = ClapsModule(net).fit(X[:60], Y[:60])
    predict, before = WAYS[way](model), WAYS[way](model)(X[:9])
    in_place(next(net.parameters()))  # the user's own, of which the model is a copy
    np.testing.assert_array_equal(predict(X[:9]), before)
    held = model.network_.noise_head
    changed = model.network_.backbone.network.parameters()
    in_place(next(changed) if head else held.weights)
    with pytest.raises(ValueError, match=CHANGED):
        predict(X[:9])


def test_an_unfitted_value_of_input_clip_waits_for_the_next_fit(tmp_path):
    """The only parameter beside scale that predictions would ask for."""
    model = tiny().fit(X[:60], Y[:60])
    far = 50 * X[:9]
    expected = model.predict(far, return_std=True)
    conformal = StreamingConformalRegressor(model).conformalize(X[60:], Y[60:])
    intervals = conformal.predict_interval(far)[1]
    for value in (None, 0.5, "no number"):
        model.set_params(input_clip=value)
        np.testing.assert_array_equal(model.predict(far, return_std=True), expected)
        np.testing.assert_array_equal(conformal.predict_interval(far)[1], intervals)
        save(model, tmp_path / "model")
        loaded = load(tmp_path / "model")
        np.testing.assert_array_equal(loaded.predict(far), expected[0])
    again = tiny(input_clip=0.5).fit(X[:60], Y[:60])
    assert not np.array_equal(again.predict(far), expected[0])


@pytest.mark.parametrize(("name", "value"), [("sym", False), ("support", None)])
def test_a_score_that_has_calibrated_does_not_change(name, value):
    model = Fingerprinted().fit(X[:60], Y[:60])
    score = ClapsScore(model, support=(-100, 100))
    setattr(score, name, getattr(score, name))  # before, it may
    mapie, options = calibrated_prefit(model, score, (X[60:], Y[60:]), 0.9)
    with pytest.raises(AttributeError, match=f"{name}=.* has calibrated. Make a new"):
        setattr(score, name, value)
    predict = getattr(mapie, "predict_interval", mapie.predict)
    assert predict(X[:9], **options)[1].shape == (9, 2, 1)


def test_a_row_predictor_is_out_of_reach():
    conformal = CalibratedRegressor(tiny(), random_state=0).fit(X, Y)
    one_row = conformal.row_predictor()
    expected = one_row(X[0])[1]
    for held in ("weights", "posterior", "unit of X", "unit of y"):
        HELD[held](conformal.estimator_)
    np.testing.assert_array_equal(one_row(X[0])[1], expected)
    with pytest.raises(ValueError, match="x as a masked array with 1 masked"):
        one_row(np.ma.masked_array(X[0], [True, False, False]))


@contextmanager
def default_type(dtype):
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "setting",
    [
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        torch.inference_mode,
        torch.no_grad,
        lambda: default_type(torch.float64),
        lambda: default_type(torch.float16),
    ],
    ids=["autocast", "inference", "no_grad", "float64", "float16"],
)
def test_settings_of_torch_change_no_number(setting):
    expected = tiny().fit(X, Y).predict(X, return_std=True)
    with setting():
        found = tiny().fit(X, Y).predict(X, return_std=True)
    np.testing.assert_array_equal(found, expected)


def test_a_size_of_batches_set_later_is_checked():
    model = ClapsModule(seeded(Pair)).fit(X, Y)
    expected = model.predict(X)
    np.testing.assert_allclose(model.set_params(batch_size=7).predict(X), expected)
    for bad in (0, None, "many", 2.5):
        with pytest.raises(ValueError, match="Got batch_size="):
            model.set_params(batch_size=bad).predict(X)
