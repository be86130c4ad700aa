"""ClapsModule: faults in the middle, threads, and the size of batches."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from own_networks import Convolution, Pair, TwoColumns, batches, mse_network, seeded
from own_networks import table as rows_of
from sklearn.exceptions import NotFittedError

from mapie_claps import ClapsModule
from mapie_claps.estimators import module as module
from mapie_claps.network import noise_head

pytestmark = pytest.mark.usefixtures("own_random_state")
X, y = rows_of(120)
STAGES = {
    "the network": (module, "wrap"),
    "the variance head": (noise_head, "fit_noise_head"),
    "the sums": (module, "last_layer_sums"),
    "the posterior": (module, "make_model"),
}


def predictions(model, X):
    return np.stack(model.predict(X, return_std=True))


@pytest.mark.parametrize("fault", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("stage", STAGES)
def test_a_fault_in_fit_leaves_nothing_behind(stage, fault, monkeypatch):
    def broken(*args, **kwargs):
        raise fault("on purpose")

    net = mse_network()
    fresh, fitted = ClapsModule(net), ClapsModule(net).fit(X[:50], y[:50])
    before = predictions(fitted, X)
    with monkeypatch.context() as patch:
        patch.setattr(*STAGES[stage], broken)
        for model in (fresh, fitted):
            with pytest.raises(fault, match="on purpose"):
                model.fit(X, y)
    assert vars(fresh) == fresh.get_params()
    with pytest.raises(NotFittedError, match="not fitted"):
        fresh.predict(X)
    np.testing.assert_array_equal(predictions(fitted, X), before)
    np.testing.assert_array_equal(
        predictions(fresh.fit(X, y), X), predictions(fitted.fit(X, y), X)
    )


def test_an_interrupt_between_batches_leaves_the_sums():
    model = ClapsModule(seeded(Pair)).fit(X[:50], y[:50])
    before, n_rows = predictions(model, X), model.sums_.n_rows

    def interrupted():
        yield X[:10], y[:10]
        raise KeyboardInterrupt("on purpose")

    with pytest.raises(KeyboardInterrupt, match="on purpose"):
        model.partial_fit(interrupted())
    assert model.sums_.n_rows == n_rows
    np.testing.assert_array_equal(predictions(model, X), before)


COLUMNS = {"noise_variance": "output", "noise_output": "log_variance"}


@pytest.mark.parametrize(
    ("network", "noise"),
    [(seeded(Pair), {}), (seeded(TwoColumns), COLUMNS), (mse_network(), {})],
    ids=["pair", "two columns", "fitted head"],
)
def test_eight_threads_share_a_fitted_estimator(network, noise):
    model = ClapsModule(network, **noise).fit(X, y)
    parts = [rows_of(40 + i, seed=i)[0] for i in range(64)]
    expected = [predictions(model, part) for part in parts]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda part: predictions(model, part), parts))
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("size", [1, 7, 119])
def test_the_size_of_batches_does_not_matter(size):
    net = seeded(Pair)
    whole = ClapsModule(net).fit(X, y)
    cut = ClapsModule(net, batch_size=size).fit(batches(X, y, 50))
    np.testing.assert_allclose(predictions(cut, X), predictions(whole, X), rtol=1e-10)


@pytest.mark.parametrize("size", [1, 7])
def test_the_size_of_batches_of_images_does_not_matter(size):
    rng = np.random.default_rng(0)
    images, targets = rng.normal(size=(30, 1, 8, 8)), rng.normal(size=30)
    net = seeded(Convolution)
    whole = ClapsModule(net).fit(images, targets)
    cut = ClapsModule(net, batch_size=size).fit(images, targets)
    np.testing.assert_allclose(
        predictions(cut, images), predictions(whole, images), rtol=1e-10
    )
