"""ClapsModule inside SplitConformalRegressor, and the same ranks from batches."""

import numpy as np
import pytest
import torch
from mapie.regression import SplitConformalRegressor
from own_networks import Convolution, Recurrent, batches, mse_network, seeded, table
from torch.utils.data import DataLoader, TensorDataset

from mapie_claps import (
    ClapsModule,
    ClapsScore,
    StreamingConformalRegressor,
    explain,
)

pytestmark = pytest.mark.usefixtures("own_random_state")


def split(model, score, **kwargs):
    return SplitConformalRegressor(
        model,
        confidence_level=[0.8, 0.9],
        conformity_score=score,
        prefit=True,
        **kwargs,
    )


@pytest.mark.parametrize("held", [False, True])
def test_tables(held):
    X, y = table(200)
    model = ClapsModule(mse_network()).fit(X[:80], y[:80])
    mapie = split(model, ClapsScore(model) if held else ClapsScore())
    mapie.conformalize(X[80:150], y[80:150])
    points, intervals = mapie.predict_interval(X[150:])
    streamed = StreamingConformalRegressor(model, [0.8, 0.9])
    streamed.conformalize(batches(X[80:150], y[80:150], 13))
    ours = streamed.predict_interval(batches(X[150:], y[150:], 7))
    np.testing.assert_allclose(ours[0], points, rtol=1e-12)
    np.testing.assert_allclose(ours[1], intervals, rtol=1e-10)
    np.testing.assert_allclose(
        explain(mapie, X[150:]).aleatoric_width,
        streamed.explain(X[150:]).aleatoric_width,
        rtol=1e-10,
    )


def test_images_are_not_probed_with_a_row_of_zeros():
    rng = np.random.default_rng(0)
    images, y = rng.normal(size=(120, 1, 8, 8)), rng.normal(size=120)
    model = ClapsModule(seeded(Convolution)).fit(images[:40], y[:40])
    mapie = split(model, ClapsScore()).conformalize(images[40:90], y[40:90])
    _, intervals = mapie.predict_interval(images[90:])
    rows = TensorDataset(torch.from_numpy(images[40:90]), torch.from_numpy(y[40:90]))
    streamed = StreamingConformalRegressor(model, [0.8, 0.9])
    streamed.conformalize(DataLoader(rows, batch_size=16, shuffle=True))
    loader = DataLoader(torch.from_numpy(images[90:]), batch_size=16)
    np.testing.assert_allclose(
        streamed.predict_interval(loader)[1], intervals, rtol=1e-10
    )


@pytest.mark.parametrize("as_batches", [False, True])
def test_tokens_are_not_probed_with_floating_point_zeros(as_batches):
    rng = np.random.default_rng(0)
    tokens, y = rng.integers(10, size=(120, 6)), rng.normal(size=120)
    train = (tokens[:40], y[:40])
    model = ClapsModule(seeded(Recurrent))
    model = model.fit([train]) if as_batches else model.fit(*train)
    mapie = split(model, ClapsScore()).conformalize(tokens[40:90], y[40:90])
    assert mapie.predict_interval(tokens[90:])[1].shape == (30, 2, 2)
