"""Networks that ClapsModule has to refuse, or to warn of, rather than be wrong."""

import warnings
from contextlib import contextmanager

import numpy as np
import pandas as pd
import pytest
import torch
from own_networks import Convolution, Pair, Recurrent, mse_network, seeded, table
from torch import nn
from torch.nn.functional import softplus

from mapie_claps import ClapsModule, StreamingConformalRegressor
from mapie_claps.exceptions import NumericalWarning

pytestmark = pytest.mark.usefixtures("own_random_state")
X, y = table(120)


class BatchStatistics(nn.Module):
    """Normalises by the rows of the batch, also when it is not training."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3, track_running_stats=False)
        self.head = nn.Linear(3, 1)

    def forward(self, x):
        return self.head(self.norm(x))


class AttentionOverRows(nn.Module):
    """Mixes the rows of a batch."""

    def __init__(self):
        super().__init__()
        self.key = nn.Linear(3, 4)
        self.head = nn.Linear(3, 1)

    def forward(self, x):
        key = self.key(x)
        return self.head(torch.softmax(key @ key.T, dim=1) @ x)


class NoiseOfTheBatch(Pair):
    """The mean is a row's own, the noise is not."""

    def forward(self, x):
        phi = self.body(x)
        noise = self.noise(phi - phi.mean(0))
        return self.mean(phi), softplus(noise) + 1e-3


def noise_of_the_batch(x):
    return 0.5 + (x - x.mean(0)).square().sum(1)


@pytest.mark.parametrize("precision", ["float64", "module"])
@pytest.mark.parametrize("network", [BatchStatistics, AttentionOverRows])
def test_a_mean_that_depends_on_other_rows(network, precision):
    model = ClapsModule(seeded(network), precision=precision)
    with pytest.raises(ValueError, match="whose mean for a row depends on the other"):
        model.fit(X, y)
    assert vars(model) == model.get_params(deep=False)


def test_a_noise_that_depends_on_other_rows():
    with pytest.raises(ValueError, match="whose noise for a row depends on the other"):
        ClapsModule(seeded(NoiseOfTheBatch)).fit(X, y)
    with pytest.raises(ValueError, match="whose noise for a row depends on the other"):
        ClapsModule(mse_network(), noise_variance=noise_of_the_batch).fit(X, y)


class Sequence(nn.Module):
    """Takes the rows of a batch for the steps of one sequence."""

    def __init__(self):
        super().__init__()
        self.memory = nn.GRU(3, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.memory(x)[0])


class Since(Sequence):
    """Remembers later rows, not earlier ones."""

    def forward(self, x):
        return self.head(self.memory(x.flip(0))[0].flip(0))


class FromFirst(nn.Module):
    """Measures from the first row of the batch."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 1)

    def forward(self, x):
        return self.head(x - x[0])


class Unused(nn.Module):
    """The mean makes no use, or hardly any, of features that mix rows."""

    def __init__(self, bias=0.0):
        super().__init__()
        self.head = nn.Linear(6, 1)
        with torch.no_grad():
            self.head.weight[:, 3:] = 0
            self.head.bias.fill_(bias)

    def forward(self, x):
        return self.head(torch.cat([x, x - x.mean(0)], 1))


class Forgotten(nn.Module):
    """Dropout that goes on after training."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(3, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.head(nn.functional.dropout(self.body(x)))


@pytest.mark.parametrize("network", [Sequence, Since, FromFirst, Unused, Forgotten])
def test_rows_that_depend_on_rows_before_or_behind_or_on_chance(network):
    with pytest.raises(ValueError, match="for a row depends on the other rows"):
        ClapsModule(seeded(network)).fit(X, y)


def test_features_that_depend_on_other_rows_under_a_large_mean():
    """A share of the mean, in single precision, would say little here."""
    model = ClapsModule(seeded(lambda: Unused(1e6)), precision="module")
    with pytest.raises(ValueError, match="whose feature vector for a row depends"):
        model.fit(X, y + 1e6)


def test_batches_of_one_row_are_looked_at_together():
    rows = [(X[i : i + 1], y[i : i + 1]) for i in range(60)]
    with pytest.raises(ValueError, match="depends on the other rows"):
        ClapsModule(seeded(AttentionOverRows)).fit(rows)
    model = ClapsModule(seeded(Pair)).fit(rows)
    assert model.sums_.n_rows == 60


def test_batches_of_one_row_in_the_same_memory():
    def same_memory():
        buffers = np.empty((1, 3)), np.empty(1)
        for i in range(60):
            buffers[0][:], buffers[1][:] = X[i], y[i]
            yield buffers

    net = seeded(Pair)
    found = ClapsModule(net).fit(same_memory())
    expected = ClapsModule(net).fit(X[:60], y[:60])
    np.testing.assert_allclose(
        found.predict(X, return_std=True), expected.predict(X, return_std=True)
    )


@pytest.mark.parametrize("precision", ["float64", "module"])
@pytest.mark.parametrize("network", [Pair, Convolution, Recurrent])
def test_networks_that_keep_rows_apart_pass(network, precision):
    rng = np.random.default_rng(0)
    inputs = {
        Pair: X,
        Convolution: rng.normal(size=(120, 1, 8, 8)),
        Recurrent: rng.integers(10, size=(120, 7)),
    }
    model = ClapsModule(seeded(network), precision=precision).fit(inputs[network], y)
    assert np.isfinite(model.predict(inputs[network])).all()


def test_coarse_types_are_given_their_rounding():
    for dtype in (torch.float16, torch.bfloat16):
        net = seeded(Pair).to(dtype)
        ClapsModule(net, precision="module").fit(X, y)


def standardised_network():
    """Trained, so to speak, on y of mean 0 and standard deviation 1."""
    net = seeded(Pair)
    with torch.no_grad():
        net.mean.weight.mul_(0.1)
        net.noise.weight.zero_()
        net.noise.bias.fill_(0.5)
    return net


def test_a_network_trained_in_other_units_is_named():
    net, target = standardised_network(), (y - y.mean()) / y.std()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ClapsModule(net).fit(X, target)
    for other in (100 * target, target + 1000):
        with pytest.warns(NumericalWarning, match="in other units .standardised, for"):
            ClapsModule(net).fit(X, other)
    model = ClapsModule(net).fit(X, target)
    with pytest.warns(NumericalWarning, match="Squared residuals are .* times"):
        model.partial_fit(X, 100 * target)


def test_rows_of_weight_zero_do_not_count_as_other_units():
    weight = np.r_[np.ones(60), np.zeros(60)]
    target = np.r_[y[:60], np.full(60, 1e6)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ClapsModule(standardised_network()).fit(X, target, weight)


@contextmanager
def without_warnings():
    """What torch thinks of its older parts is not the point here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def quantised():
    engines = [e for e in torch.backends.quantized.supported_engines if e != "none"]
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = engines[0]
    try:
        with without_warnings():
            return torch.ao.quantization.quantize_dynamic(mse_network(), {nn.Linear})
    finally:
        torch.backends.quantized.engine = before


def scripted():
    with without_warnings():
        return torch.jit.script(mse_network())


def traced():
    with without_warnings():
        return torch.jit.trace(mse_network(), torch.zeros(2, 3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (scripted, "compiled by torch.jit. Pass the network that it was made from"),
        (traced, "compiled by torch.jit. Pass the network that it was made from"),
        (lambda: nn.Sequential(nn.LazyLinear(1)), "Sequential with lazy layers"),
        (quantised, "quantised layers.*from before quantisation"),
        (lambda: mse_network().to("meta"), "device 'meta', which holds no numbers"),
        (lambda: nn.Linear(3, 1, dtype=torch.complex64), "with complex weights"),
    ],
    ids=["script", "trace", "lazy", "quantised", "meta", "complex"],
)
def test_networks_that_cannot_be_watched(make, message):
    for network in (make(), nn.Sequential(make())):
        with pytest.raises(TypeError, match=message.replace("Sequential", "")):
            ClapsModule(network).fit(X, y)


def test_a_forward_pass_that_fails():
    with pytest.raises(ValueError, match=r"fails on X of shape \(120, 3\).*trained on"):
        ClapsModule(mse_network(n_features=5)).fit(X, y)
    tokens = np.full((20, 7), 11)  # the embedding knows ten
    with pytest.raises(ValueError, match="forward pass fails on X of shape"):
        ClapsModule(seeded(Recurrent)).fit(tokens, y[:20])


def test_memory_that_runs_out_keeps_its_own_error():
    class Hungry(nn.Linear):
        def forward(self, x):
            raise torch.OutOfMemoryError("on purpose")

    with pytest.raises(torch.OutOfMemoryError, match="on purpose"):
        ClapsModule(Hungry(3, 1)).fit(X, y)


@pytest.mark.parametrize(
    ("bad_X", "bad_y", "message"),
    [
        (torch.from_numpy(X).to_sparse(), y, "X as a tensor that is sparse"),
        (torch.from_numpy(X + 1j), y, "X as a tensor that is complex"),
        (torch.from_numpy(X).to("meta"), y, "X as a tensor that is on the device"),
        (X, torch.from_numpy(y + 1j), "y as a tensor that is complex"),
        (X, torch.from_numpy(y).to("meta"), "y as a tensor that is on the device"),
        (X, y + 1j, "y of type complex128, but expected real numbers"),
        (X, np.arange(120).astype("datetime64[s]"), r"y of type datetime64\[s\]"),
    ],
)
def test_tensors_that_are_no_block_of_real_numbers(bad_X, bad_y, message):
    with pytest.raises(ValueError, match=f"Got {message}"):
        ClapsModule(mse_network()).fit(bad_X, bad_y)


def test_nested_tensors():
    with without_warnings():
        nested = torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(1, 3)])
    with pytest.raises(ValueError, match="X as a tensor that is nested"):
        ClapsModule(mse_network()).fit(nested, y[:2])


@pytest.mark.parametrize("gap", [None, pd.NA, pd.NaT])
def test_gaps_are_named(gap):
    bad_X, bad_y = X.astype(object), y.astype(object)
    bad_X[7, 2] = bad_y[7] = gap
    model = ClapsModule(mse_network())
    for name, data in (("X", (bad_X, y)), ("y", (X, bad_y))):
        with pytest.raises(ValueError, match=f"Got {name} with {gap} in row 7"):
            model.fit(*data)
    with pytest.raises(ValueError, match=f"Got y with {gap} in row 7"):
        StreamingConformalRegressor(model.fit(X, y)).conformalize(X, bad_y)
