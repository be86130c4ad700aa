"""Changes of the recipe that are tried, and the benchmark on many rows."""

import re

import numpy as np
import pytest
import torch

from mapie_claps.benchmarks import _variants, rows
from mapie_claps.benchmarks.__main__ import main
from mapie_claps.network import defaults, optimizer, trainer
from mapie_claps.network.encoding import PiecewiseLinearEncoding, bin_edges
from mapie_claps.network.gradient import FlatParameters
from mapie_claps.network.losses import GaussianLoss
from mapie_claps.posterior import prior, scales
from mapie_claps.studies.store import Store

QUICK = {"max_steps": 40, "tol": None, "target_map": None, "kernel": False}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(160, 3))
    return X, np.sin(X[:, 0]) + 0.1 * rng.normal(size=160)


@pytest.fixture(scope="module")
def plain(data):
    return _variants.fit_variant(*data, QUICK | {"variant": "as it is"}, 0, 0.1)


def test_gradient_of_parametric_activations_is_autograd_s(data):
    X = torch.from_numpy(data[0]).float()
    y = torch.from_numpy(data[1]).float()
    encoding = PiecewiseLinearEncoding(bin_edges(X.double(), 48, 3), 3)
    network = _variants.ParametricNetwork(
        encoding,
        (8, 8, 8),
        3,
        1e-6,
        torch.Generator().manual_seed(0),
        ("bins", "periodic", "raw"),
        3.0,
    )
    generator = torch.Generator().manual_seed(1)
    for bend in network.bend:
        bend.data.normal_(generator=generator)
    flat, loss = FlatParameters(network), GaussianLoss(1e-6, 0.0)
    step = _variants.ParametricGradient(network, flat, 32, loss)
    batch = torch.arange(96).view(3, 32)
    encoded = encoding(X)
    with torch.no_grad():
        for source, rows in zip((encoded, y), step.rows, strict=True):
            torch.index_select(source, 0, batch.flatten(), out=rows)
        found = step(None)
    own = flat.grad.clone()
    for p, _ in flat.of_members:
        p.grad = None
    out = network.outputs(network.features(encoded[batch]))
    expected = loss.by_row(out, y[batch]).mean(1)
    expected.sum().backward()
    torch.testing.assert_close(found, expected.detach())
    start = 0
    heads = [network.mean_head, network.noise_head]
    last = [*(h.weight for h in heads), *(h.bias for h in heads)]
    first = [p for p, _ in flat.of_members if all(p is not q for q in last)]
    for p in [*first, *last]:
        part = own[start : start + p.numel()].view_as(p)
        torch.testing.assert_close(part, p.grad, rtol=1e-3, atol=1e-5)
        start += p.numel()


@pytest.mark.parametrize("name", _variants.VARIANTS)
def test_every_variant_fits_and_leaves_nothing_behind(name, data, plain):
    before = optimizer.BETAS, defaults.max_steps, scales.choose_prior_precision
    model = _variants.fit_variant(*data, QUICK | {"variant": name}, 0, 0.1)
    mean, std = model.predict(data[0], return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    same = np.array_equal(mean, plain.predict(data[0]))
    # In a run as short as this nobody stops before its end.
    assert same == (name in ("as it is", "members that stop"))
    after = optimizer.BETAS, defaults.max_steps, scales.choose_prior_precision
    assert before == after


def test_each_view_gets_the_λ_that_is_best_for_it(data, monkeypatch):
    grid, nll = prior.PRIOR_PRECISION_GRID, iter(range(100))
    found = {}

    def of_views(posterior, held_out, views):
        i = next(nll)
        return torch.tensor([abs(i - 2.0), abs(i - 5.0), abs(i - 5.0)])

    def record(moments, trained, last_layer, value, *others):
        found["last"] = value
        return real(moments, trained, last_layer, value, *others)

    real = scales.make_posterior
    monkeypatch.setattr(prior, "nll_of_views", of_views)
    monkeypatch.setattr(scales, "make_posterior", record)
    params = QUICK | {"variant": "a λ for each view"}
    _variants.fit_variant(*data, params, 0, 0.1)
    expected = [grid[2]] * 2 + [grid[5]] * 4
    assert found["last"].flatten().tolist() == expected


def test_refit_ends_each_member_at_its_best_step(data, monkeypatch):
    made = []

    class Again(_variants._Again):
        def run(self):
            result = super().run()
            made.append((self.best, self.states, len(self.losses)))
            return result

    monkeypatch.setattr(_variants, "_Again", Again)
    params = QUICK | {"variant": "refit at the best step"}
    model = _variants.fit_variant(*data, params, 0, 0.1)
    [(best_at, states, n_evaluations)] = made
    assert n_evaluations == 20
    assert set(best_at) <= set(range(n_evaluations))
    for k, state in enumerate(states):
        found = model.network_.weights_of_member(k)
        for own, best, last in zip(found, state.best, state.weights, strict=True):
            torch.testing.assert_close(own, best.double())
            if best_at[k] < n_evaluations - 1 and best.numel() > 20:
                assert not torch.equal(best, last)
    assert trainer._Trainer is not _variants._Recording
    assert model.sums_.held_out is None


def test_rows_smoke_prints_every_method_once(tmp_path, capsys):
    assert main(["rows", "--smoke", "--out", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    found = [row for line in Store(tmp_path).lines() for row in line["rows"]]
    assert [row["method"] for row in found] == list(rows.METHODS)
    for row in found:
        assert 0.7 <= row["coverage"] <= 1
        assert row["fit_seconds"] > 0
        assert f"{row['coverage']:.3f};" in text
    best = min(row["interval_score"] for row in found)
    assert f"**{best:.4g}**" in text
    assert main(["rows", "--smoke", "--out", str(tmp_path)]) == 0
    assert len(Store(tmp_path).lines()) == len(found)


def test_rows_of_a_file_stop_at_its_end(tmp_path):
    rng = np.random.default_rng(0)
    numbered = zip(rng.random(300), rng.choice(["a", "b"], 300), strict=True)
    lines = [f"{x},{w},{x * (w == 'a')}" for x, w in numbered]
    (tmp_path / "mine.csv").write_text("\n".join(["x,word,y", *lines]))
    out = tmp_path / "out"
    command = ["rows", "--data", str(tmp_path), "--datasets", "mine", "--generated"]
    command += ["--sizes", "200", "10000", "--methods", "catboost", "lightgbm"]
    assert main([*command, "--out", str(out)]) == 0
    found = [row for line in Store(out).lines() for row in line["rows"]]
    assert [row["rows"] for row in found] == [200, 200, 300, 300]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--methods", "magic"], "Got --methods magic, but expected names of catboost"),
        (["--generated", "magic"], "Got --generated magic, but expected names of geo"),
        (["--sizes", "3"], r"Got --sizes \[3\] and --seeds 1, but expected"),
    ],
)
def test_rows_refuses_what_it_does_not_know(options, message, capsys):
    with pytest.raises(SystemExit):
        main(["rows", *options])
    assert re.search(message, capsys.readouterr().err)
