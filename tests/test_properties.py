"""Properties at a fixed network, for inputs that hypothesis draws.

HYPOTHESIS_PROFILE=thorough tries 500 examples of each instead of 15.
"""

import os
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from conftest import heteroscedastic
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from mapie_api import prefit_intervals

from mapie_claps import ClapsScore
from mapie_claps.posterior import moments
from mapie_claps.posterior.members import fit_last_layers
from mapie_claps.posterior.scales import LastLayerRecipe

for name, max_examples in (("quick", 15), ("thorough", 500)):
    settings.register_profile(
        name,
        max_examples=max_examples,
        deadline=None,
        derandomize=name == "quick",
        database=None,
        suppress_health_check=list(HealthCheck),
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

FLOOR = 1e-6  # default of ClapsRegressor, in standardised units
seeds = st.integers(0, 2**32 - 1)
levels = st.floats(0.05, 0.95)


def numbers(low, high):
    return arrays(np.float64, 12, elements=st.floats(low, high))


class Affine:
    """What a model predicts of a·y + b, given one that predicts y."""

    def __init__(self, model, a, b):
        self.model, self.a, self.b = model, a, b

    def predict(self, X, return_std=False):
        mu, std = self.model.predict(X, return_std=True)
        mu, std = self.a * mu + self.b, abs(self.a) * std
        return (mu, std) if return_std else mu


def bounds_of(model, X, y, X_test, level):
    """Interval by the score's own methods."""
    mu, std = model.predict(X, return_std=True)
    score = ClapsScore()
    signed = score.get_signed_conformity_scores(y, mu, y_std=std)
    alphas = 1 - np.atleast_1d(level)
    ensemble = SimpleNamespace(single_estimator_=model)
    _, lower, upper = score.get_bounds(X_test, alphas, ensemble, np.abs(signed))
    return np.stack([lower, upper], axis=1)


@given(numbers(-1e6, 1e6), numbers(-1e6, 1e6), numbers(1e-3, 1e3))
def test_score_and_inverse_round_trip(y, mu, std):
    score = ClapsScore()
    signed = score.get_signed_conformity_scores(y, mu, y_std=std)
    again = score.get_estimation_distribution(mu, signed, y_std=std)
    np.testing.assert_allclose(again, y, rtol=1e-12, atol=1e-9)


@given(numbers(-1e3, 1e3), numbers(-1e3, 1e3), numbers(1e-3, 1e3))
def test_inverse_and_score_round_trip(scores, mu, std):
    score = ClapsScore()
    y = score.get_estimation_distribution(mu, scores, y_std=std)
    again = score.get_signed_conformity_scores(y, mu, y_std=std)
    np.testing.assert_allclose(again, scores, rtol=1e-9, atol=1e-9)


@given(levels, levels)
def test_intervals_are_nested_in_the_level(fitted, data, one, other):
    low, high = sorted((one, other))
    _, bounds = prefit_intervals(
        fitted, ClapsScore(fitted), data[1], data[2][0], [low, high]
    )
    assert (bounds[:, 0, 1] <= bounds[:, 0, 0]).all()
    assert (bounds[:, 1, 0] <= bounds[:, 1, 1]).all()


@given(
    st.one_of(st.floats(1e-6, 1e6), st.floats(-1e6, -1e-6)),
    st.floats(-1e3, 1e3),
    levels,
)
def test_intervals_move_with_the_units_of_y(fitted, data, a, b, level):
    (X, y), X_test = data[1], data[2][0]
    expected = np.sort(a * bounds_of(fitted, X, y, X_test, level) + b, axis=1)
    got = bounds_of(Affine(fitted, a, b), X, a * y + b, X_test, level)
    scale = abs(a) * np.abs(y).max() + abs(b)
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9 * scale)


@given(seeds, levels)
def test_order_of_calibration_and_test_rows_is_irrelevant(fitted, data, seed, level):
    (X, y), X_test = data[1], data[2][0]
    rng = np.random.default_rng(seed)
    cal, test = rng.permutation(len(X)), rng.permutation(len(X_test))
    got = bounds_of(fitted, X[cal], y[cal], X_test[test], level)
    expected = bounds_of(fitted, X, y, X_test, level)[test]
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)


def refit(fitted, X, y, weight=None):
    """Posterior of the fixed network on other rows, λ = 1."""
    n = len(X)
    model, *_ = fit_last_layers(
        fitted.network_,
        fitted._scaled(X),
        fitted._scaled_target(y),
        torch.ones(n).double() if weight is None else torch.from_numpy(weight),
        torch.empty((1, 0), dtype=torch.long),
        "full",
        LastLayerRecipe("ridge", 1.0, FLOOR),
    )
    return model


@given(seeds)
def test_order_of_training_rows_is_irrelevant(fitted, data, seed):
    X, y = data[0]
    out = fitted.network_(fitted._scaled(data[2][0]))
    order = np.random.default_rng(seed).permutation(len(X))
    got = refit(fitted, X[order], y[order]).parts(out, "claps")
    expected = refit(fitted, X, y).parts(out, "claps")
    for one, other in zip(got[:3], expected[:3], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


@given(
    arrays(np.float64, (6, 3), elements=st.floats(-1e300, 1e300, allow_subnormal=False))
)
def test_variance_has_its_floor_and_never_less_than_the_noise(fitted, X):
    part = fitted.predict_variance(X)
    unit = fitted.scaler_y_.scale_[0] ** 2
    assert (part.aleatoric / unit >= FLOOR * (1 - 1e-12)).all()
    assert (part.epistemic >= 0).all()
    assert (part.total >= part.aleatoric).all()
    assert np.isfinite(part.total).all()


@given(seeds, st.integers(2, 60), st.integers(1, 60))
def test_rows_never_add_epistemic_variance(fitted, seed, n, extra):
    X, y = heteroscedastic(n + extra, seed=seed)
    out = fitted.network_(fitted._scaled(heteroscedastic(30, seed=1)[0]))
    weight = np.random.default_rng(seed).uniform(0.1, 10, n + extra)
    few = refit(fitted, X[:n], y[:n], weight[:n]).parts(out, "claps").epistemic
    more = refit(fitted, X, y, weight).parts(out, "claps").epistemic
    assert (more <= few * (1 + 1e-10)).all()


@given(st.integers(1, 10**6), st.lists(st.integers(1, 119), max_size=5))
def test_batches_and_chunks_do_not_change_predictions(fitted, data, elements, cuts):
    X = data[2][0]
    expected = np.stack(fitted.predict(X, return_std=True))
    with mock.patch.multiple(moments, BATCH_ELEMENTS=elements, WIDE_ROWS=1):
        parts = [
            np.stack(fitted.predict(part, return_std=True))
            for part in np.split(X, sorted(set(cuts)))
        ]
    np.testing.assert_allclose(np.hstack(parts), expected, rtol=1e-10, atol=1e-12)


@given(st.integers(1, 10**4))
def test_batches_do_not_change_the_posterior(fitted, data, elements):
    X, y = data[0]
    expected = refit(fitted, X, y).posterior.covariance()
    with mock.patch.multiple(moments, BATCH_ELEMENTS=elements, WIDE_ROWS=1):
        got = refit(fitted, X, y).posterior.covariance()
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)


@given(arrays(np.float32, (6, 3), elements=st.floats(-20, 20, width=32)))
def test_single_precision_input_is_the_same_numbers(fitted, X):
    """float32 holds these values exactly: only the arithmetic could differ."""
    got = np.stack(fitted.predict(X, return_std=True))
    expected = np.stack(fitted.predict(X.astype(np.float64), return_std=True))
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@given(seeds)
def test_rounding_to_single_precision_moves_results_little(fitted, seed):
    X = heteroscedastic(20, seed=seed)[0]
    got = np.stack(fitted.predict(X.astype(np.float32), return_std=True))
    expected = np.stack(fitted.predict(X, return_std=True))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_bounds_of_these_tests_are_those_of_mapie(fitted, data, level):
    _, expected = prefit_intervals(
        fitted, ClapsScore(fitted), data[1], data[2][0], level
    )
    got = bounds_of(fitted, *data[1], data[2][0], level)
    np.testing.assert_allclose(got, expected, rtol=1e-12)
