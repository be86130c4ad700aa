"""Interrupts, exceptions and threads: never half-fitted, never mixed up."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from conftest import heteroscedastic, tiny
from sklearn.exceptions import NotFittedError

from mapie_claps.estimators import ensemble_training
from mapie_claps.network import inputs as _inputs
from mapie_claps.network import trainer as _training
from mapie_claps.network import units
from mapie_claps.posterior import members, scales

STAGES = {
    "scaling": (_inputs, "StandardScaler"),
    "splitting": (ensemble_training, "split_rows"),
    "training": (ensemble_training, "train"),
    "a step": (units.Unit, "_step"),
    "an evaluation": (_training._Trainer, "_evaluate"),
    "the sums": (members, "sum_rows"),
    "the factor": (scales, "make_posterior"),
    "the residual variance": (scales, "residual_variance"),
}


def predictions(model, X):
    return np.stack(model.predict(X, return_std=True))


@pytest.mark.parametrize("fault", [KeyboardInterrupt, MemoryError, RuntimeError])
@pytest.mark.parametrize("stage", STAGES)
def test_a_fault_in_fit_leaves_nothing_behind(data, fitted, stage, fault, monkeypatch):
    X, y = data[0]

    def broken(*args, **kwargs):
        raise fault("on purpose")

    fresh = tiny(prior_precision=1.0, last_layer="trained")
    with monkeypatch.context() as patch:
        patch.setattr(*STAGES[stage], broken)
        with pytest.raises(fault, match="on purpose"):
            fresh.fit(X, y)
    assert vars(fresh) == fresh.get_params()
    with pytest.raises(NotFittedError, match="not fitted"):
        fresh.predict(X)
    if fault is KeyboardInterrupt:
        np.testing.assert_array_equal(
            predictions(fresh.fit(X, y), X), predictions(fitted, X)
        )


def test_ctrl_c_in_the_middle_of_training(data, fitted, monkeypatch):
    """The signal itself, between two steps; threads are checked by the fixture."""
    X, y = data[0]
    original, runs = units.Unit.run, []

    def run(self, learning_rates):
        found = original(self, learning_rates)
        runs.append(found)
        if len(runs) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return found

    model = tiny(prior_precision=1.0, last_layer="trained").fit(X[:60], y[:60])
    before = predictions(model, X)
    # A process started in the background is born deaf to the signal.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(units.Unit, "run", run)
            with pytest.raises(KeyboardInterrupt):
                model.fit(X, y)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert len(runs) == 2
    np.testing.assert_array_equal(predictions(model, X), before)
    np.testing.assert_array_equal(
        predictions(model.fit(X, y), X), predictions(fitted, X)
    )


@pytest.mark.parametrize("n_members", [1, 3])
def test_eight_threads_share_a_fitted_estimator(n_members):
    X, y = heteroscedastic(100)
    model = tiny(n_members=n_members).fit(X, y)
    parts = [heteroscedastic(50 + i, seed=i)[0] for i in range(64)]
    expected = [predictions(model, part) for part in parts]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda part: predictions(model, part), parts))
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_eight_threads_with_other_prior_precisions():
    """Copies with another λ do not touch the estimator they come from."""
    X, y = heteroscedastic(100)
    model = tiny().fit(X, y)
    before = predictions(model, X)
    values = [10.0**e for e in range(-4, 4)]
    expected = [predictions(model.with_prior_precision(v), X) for v in values]
    with ThreadPoolExecutor(8) as pool:
        got = list(
            pool.map(lambda v: predictions(model.with_prior_precision(v), X), values)
        )
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(predictions(model, X), before)


def test_prediction_needs_no_gradient_and_changes_nothing(fitted, data):
    network = fitted.network_
    before = {k: v.clone() for k, v in network.state_dict().items()}
    with torch.enable_grad():
        fitted.predict(data[2][0], return_std=True)
    assert not any(p.requires_grad for p in network.parameters())
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])
