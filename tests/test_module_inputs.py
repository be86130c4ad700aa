"""ClapsModule: arrays, frames, tensors and batches as X."""

import numpy as np
import pandas as pd
import pytest
import torch
from own_networks import (
    Convolution,
    Pair,
    Recurrent,
    batches,
    mse_network,
    seeded,
    table,
)
from torch.utils.data import DataLoader, TensorDataset

from mapie_claps import ClapsModule

pytestmark = pytest.mark.usefixtures("own_random_state")
X, y = table(120)
X_NEW = table(30, seed=1)[0]


@pytest.mark.parametrize("kind", ["float32 tensor", "float64 array"])
def test_images(kind):
    images = np.random.default_rng(0).normal(size=(40, 1, 8, 8))
    if kind == "float32 tensor":
        images = torch.tensor(images, dtype=torch.float32)
    net = seeded(Convolution)
    model = ClapsModule(net).fit(images, y[:40])
    mu, std = model.predict(images, return_std=True)
    assert mu.shape == std.shape == (40,)
    assert mu.dtype == std.dtype == np.float64
    assert not hasattr(model, "n_features_in_")
    with torch.no_grad():
        own = net.eval()(torch.as_tensor(images).float()).numpy()
    np.testing.assert_allclose(mu, own, atol=1e-6)
    with pytest.raises(ValueError, match="4 dimensions"):
        model.predict(images[:, 0])


def test_sequences_of_integers_stay_integers_for_an_embedding():
    tokens = np.random.default_rng(0).integers(10, size=(40, 7))
    model = ClapsModule(seeded(Recurrent)).fit(tokens, y[:40])
    assert model.predict(tokens).shape == (40,)
    assert np.isfinite(model.predict_variance(tokens).total).all()


def test_integers_become_floats_where_nothing_embeds():
    integers = np.arange(60).reshape(20, 3)
    net = mse_network()
    model = ClapsModule(net).fit(integers, y[:20])
    floats = ClapsModule(net).fit(integers.astype(float), y[:20])
    np.testing.assert_array_equal(model.predict(integers), floats.predict(integers))


def test_arrays_frames_tensors_and_loaders_give_the_same():
    net = mse_network()
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    tensors = TensorDataset(torch.from_numpy(X), torch.from_numpy(y))
    sources = [
        (X, y),
        (X.tolist(), y.tolist()),
        ([list(row) for row in X], list(y)),
        (frame, pd.Series(y)),
        (torch.from_numpy(X), torch.from_numpy(y)),
        (DataLoader(tensors, batch_size=7, shuffle=True),),
        (batches(X, y, 11),),
    ]
    expected = ClapsModule(net, batch_size=50).fit(X, y)
    for source in sources:
        model = ClapsModule(net).fit(*source)
        assert model.n_features_in_ == 3
        new = X_NEW
        if source[0] is frame:
            new = pd.DataFrame(X_NEW, columns=["a", "b", "c"])
        np.testing.assert_allclose(
            model.predict(new, return_std=True),
            expected.predict(X_NEW, return_std=True),
            rtol=1e-9,
        )
    loader = DataLoader(torch.from_numpy(X_NEW), batch_size=8)
    np.testing.assert_array_equal(model.predict(loader), model.predict(X_NEW))
    named = ClapsModule(net).fit(frame, y)
    assert list(named.feature_names_in_) == ["a", "b", "c"]


def test_an_iterator_serves_where_one_pass_is_enough():
    model = ClapsModule(seeded(Pair)).fit(iter(batches(X, y, 30)))
    assert model.sums_.n_rows == 120
    with pytest.raises(ValueError, match="several passes"):
        ClapsModule(mse_network()).fit(iter(batches(X, y, 30)))


def test_row_weights_count_rows():
    weight = np.arange(120) % 3
    net = seeded(Pair)
    weighted = ClapsModule(net, last_layer="ridge").fit(X, y, weight)
    repeated = ClapsModule(net, last_layer="ridge").fit(
        X.repeat(weight, axis=0), y.repeat(weight)
    )
    np.testing.assert_allclose(
        weighted.predict(X_NEW, return_std=True),
        repeated.predict(X_NEW, return_std=True),
        rtol=1e-10,
    )
    with pytest.raises(ValueError, match="positive weight"):
        ClapsModule(net).fit(X, y, np.zeros(120))
    with pytest.raises(ValueError, match="at least 0"):
        ClapsModule(net).fit(X, y, -np.ones(120))


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ((X,), "Got y=None"),
        ((X, y[:5]), r"y of shape \(5,\) for 120 rows"),
        ((X[:, 0], y), "2D array"),
        ((torch.from_numpy(X[:, 0]), y), "at least two dimensions"),
        ((batches(X, y, 9), y), "together with y"),
        (([(X, y, y, y)],), "several|array|y=None"),
        ((iter([(X, y, y, y)]),), "batch of 4 parts"),
        ((iter([X]),), "batch of 1 parts"),
        ((iter([({"x": X}, y)]),), "X is a dict"),
        ((iter([]),), "without rows"),
        ((torch.full((120, 3), np.nan), y), "NaN or infinity"),
    ],
)
def test_bad_data(data, match):
    with pytest.raises((ValueError, TypeError), match=match):
        ClapsModule(seeded(Pair)).fit(*data)


def test_wrong_number_of_columns():
    model = ClapsModule(mse_network()).fit(X, y)
    with pytest.raises(ValueError, match="expecting 3 features"):
        model.predict(X_NEW[:, :2])


def test_weights_belong_into_the_batches():
    with pytest.raises(ValueError, match="sample_weight together with batches"):
        ClapsModule(seeded(Pair)).fit(batches(X, y, 30), sample_weight=np.ones(120))
    triples = [(a, b, np.full(len(b), 2.0)) for a, b in batches(X, y, 30)]
    model = ClapsModule(seeded(Pair)).fit(triples)
    assert model.sums_.targets.weight == 240


def test_frozen_and_read_only_inputs():
    locked = X.copy()
    locked.flags.writeable = False
    swapped = X.astype(">f8")
    model = ClapsModule(mse_network()).fit(X, y)
    for other in (locked, swapped):
        np.testing.assert_array_equal(model.predict(other), model.predict(X))


def test_rows_without_a_target():
    model = ClapsModule(mse_network()).fit(X, y)
    with pytest.raises(ValueError, match="Got y=None"):
        model.partial_sums(X)
    with pytest.raises(ValueError, match="without rows"):
        model.partial_sums(X[:0], y[:0])
    assert model.predict(X[:0]).shape == (0,)


def test_names_of_columns_are_checked_in_batches():
    names = list("abcdefgh")[: X.shape[1]]
    frame = pd.DataFrame(X, columns=names)
    permuted = frame[names[::-1]]
    pairs = [(frame[:50], y[:50]), (frame[50:], y[50:])]
    for model in (
        ClapsModule(mse_network()).fit(frame, y),
        ClapsModule(mse_network()).fit(pairs),
    ):
        assert list(model.feature_names_in_) == names
        assert len(model.predict([(frame, y)])) == len(X)
        for call in (
            lambda m: m.predict([(permuted, y)]),
            lambda m: m.partial_sums(permuted, y),
            lambda m: m.partial_fit([(permuted, y)]),
        ):
            with pytest.raises(ValueError, match="feature names should match"):
                call(model)
    with pytest.raises(ValueError, match="feature names should match"):
        ClapsModule(mse_network()).fit([(frame, y), (permuted, y)])


@pytest.mark.parametrize("rows", [5, 40])
@pytest.mark.parametrize("deep", [False, True])
def test_batches_that_come_in_the_same_memory(rows, deep):
    """A reader may fill one buffer again and again: nothing of it is kept."""
    rng = np.random.default_rng(0)
    X, y, weight = rng.normal(size=(120, 3)), rng.normal(size=120), rng.random(120)
    layers = [torch.nn.Linear(3, 4), torch.nn.Tanh()] if deep else []
    network = torch.nn.Sequential(*layers, torch.nn.Linear(4 if deep else 3, 1))
    model = ClapsModule(
        network.double(),
        noise_variance=lambda x: 0.5 + x[:, 0] ** 2,
        scale="posterior",
    ).fit(X, y)

    def same_memory():
        buffers = np.empty((rows, 3)), np.empty(rows), np.empty(rows)
        for start in range(0, 120, rows):
            for buffer, values in zip(buffers, (X, y, weight), strict=True):
                buffer[:] = values[start : start + rows]
            yield buffers

    found = model.partial_sums(same_memory())
    expected = model.partial_sums(X, y, weight)
    for name in ("moments", "homoscedastic"):
        a, b = getattr(found, name), getattr(expected, name)
        torch.testing.assert_close(a.gram, b.gram, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(a.cross, b.cross, rtol=1e-10, atol=1e-12)
