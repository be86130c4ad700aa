"""An interrupt between any two lines, and a refit in the middle of a prediction."""

import sys
import threading
from itertools import count

import numpy as np
import pytest
from conftest import heteroscedastic, tiny
from own_networks import Pair, mse_network, seeded

from mapie_claps import ClapsModule, StreamingConformalRegressor
from mapie_claps.estimators.base import LastLayerEstimator

X, y = heteroscedastic(80)


def interrupted(action, function, line):
    """Run with an interrupt at the n-th line of a function; False if it came."""
    seen = 0

    def trace(frame, event, argument):
        return step if frame.f_code is function.__code__ else None

    def step(frame, event, argument):
        nonlocal seen
        seen += event in ("line", "return")
        if seen == line:
            raise KeyboardInterrupt("on purpose")
        return step

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    except KeyboardInterrupt:
        return False
    finally:
        sys.settrace(before)
    return True


def outcomes(start, action, function):
    """What becomes of a new object if each line of a function is the last to run.

    Yields the object, and whether the action came to its end.
    """
    for line in count(1):
        thing = start()
        ended = interrupted(lambda thing=thing: action(thing), function, line)
        yield thing, ended
        if ended:
            break
    assert line > 3  # the function was seen


def same(a, b):
    return all(np.array_equal(one, other) for one, other in zip(a, b, strict=True))


def results(model):
    return [*model.predict(X, return_std=True), model.posterior_covariance_]


def test_an_interrupt_at_any_line_of_fit():
    net = seeded(Pair)
    old = results(ClapsModule(net).fit(X[:30], y[:30]))
    new = results(ClapsModule(net).fit(X, y))

    def start():
        return ClapsModule(net).fit(X[:30], y[:30])

    found = outcomes(start, lambda m: m.fit(X, y), LastLayerEstimator._fit_on_a_copy)
    for model, ended in found:
        now = results(model)
        assert same(now, new) or (not ended and same(now, old))


def test_an_interrupt_at_any_line_of_a_first_fit():
    net = seeded(Pair)
    new = results(ClapsModule(net).fit(X, y))
    function = LastLayerEstimator._fit_on_a_copy
    for model, _ in outcomes(lambda: ClapsModule(net), lambda m: m.fit(X, y), function):
        if hasattr(model, "model_"):
            assert same(results(model), new)
        else:
            assert vars(model) == model.get_params(deep=False)


def test_an_interrupt_at_any_line_of_partial_fit():
    net = seeded(Pair)

    def start():
        return ClapsModule(net).fit(X[:30], y[:30])

    old, new = results(start()), results(start().partial_fit(X[30:], y[30:]))
    for function in (ClapsModule.partial_fit, ClapsModule._set_sums):
        found = outcomes(start, lambda m: m.partial_fit(X[30:], y[30:]), function)
        for model, _ in found:
            rows = model.sums_.n_rows
            assert rows in (30, 80)
            assert same(results(model), old if rows == 30 else new)


def test_an_interrupt_at_any_line_of_calibration():
    model = ClapsModule(seeded(Pair)).fit(X[:30], y[:30])

    def start():
        streaming = StreamingConformalRegressor(model).conformalize(X[30:50], y[30:50])
        streaming.quantiles()
        return streaming

    old = start().quantiles()
    new = StreamingConformalRegressor(model).conformalize(X[30:], y[30:]).quantiles()
    assert old != new
    for streaming, _ in outcomes(
        start,
        lambda s: s.conformalize(X[30:], y[30:]),
        StreamingConformalRegressor._set_rows,
    ):
        n = len(streaming.conformity_scores_)
        assert streaming.quantiles() == (old if n == 20 else new)


class FitsAgain:
    """A table that has its reader fitted again while it is read."""

    def __init__(self, values, refit):
        self.values, self.refit = values, refit
        self.shape, self.ndim = values.shape, values.ndim

    def __len__(self):
        return len(self.values)

    def __array__(self, dtype=None, copy=None):
        self.refit()
        return self.values.astype(dtype or float)


def test_a_prediction_is_of_one_fit_though_another_comes_in_between():
    """As another thread would do it, at the worst moment."""
    model = tiny().fit(X, y)
    expected = model.predict(X, return_std=True)
    sneaky = FitsAgain(X, lambda: model.fit(X, 1000 * y + 5000))
    assert same(model.predict(sneaky, return_std=True), expected)
    assert model.predict(X).mean() > 1000
    model.fit(X, y)
    assert same([model.predict(sneaky)], [expected[0]])


def test_batches_are_predicted_by_one_fit_though_another_comes_in_between():
    model = ClapsModule(mse_network()).fit(X, y)
    expected = model.predict(X, return_std=True)

    def batches():
        yield X[:40]
        model.set_params(module=mse_network(seed=1)).fit(X, 1000 * y + 5000)
        yield X[40:]

    assert same(model.predict(batches(), return_std=True), expected)


def test_intervals_stop_where_the_model_is_fitted_again_between_batches():
    model = ClapsModule(seeded(Pair)).fit(X[:30], y[:30])
    streaming = StreamingConformalRegressor(model).conformalize(X[30:], y[30:])

    def batches():
        yield X[:40]
        model.fit(X, y)
        yield X[40:]

    intervals = streaming.iter_intervals(batches())
    assert next(intervals)[1].shape == (40, 2, 1)
    with pytest.raises(ValueError, match="changed since"):
        next(intervals)


def test_threads_that_predict_during_refits_see_one_fit_or_the_other():
    net, other = seeded(Pair), seeded(Pair, seed=1)
    model = ClapsModule(net).fit(X, y)
    possible = [
        results(ClapsModule(net).fit(X, y)),
        results(ClapsModule(other).fit(X, y + 5)),
    ]
    stop, wrong, counted = threading.Event(), [], []

    def predict():
        while not stop.is_set():
            now = model.predict(X, return_std=True)
            counted.append(1)
            if not any(same(now, p[:2]) for p in possible):
                wrong.append(now)

    threads = [threading.Thread(target=predict) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for i in range(20):
            fresh = ClapsModule((net, other)[i % 2])
            fresh.fit(X, y + 5 * (i % 2))
            model.__dict__ = fresh.__dict__  # the last line of fit
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert wrong == []
    assert len(counted) > 20
