"""The short benchmarks: their commands work and resume; their tables by hand."""

import numpy as np
import pytest
from conftest import heteroscedastic, tiny

from mapie_claps.benchmarks import tradeoff
from mapie_claps.benchmarks.__main__ import main
from mapie_claps.benchmarks._generated import GENERATORS, generate
from mapie_claps.benchmarks.epistemic import (
    BESIDE,
    GAUSSIAN_PROCESS,
    KERNEL,
    SCALES,
    TOGETHER,
    Parts,
    models_beside,
    report,
)
from mapie_claps.benchmarks.tradeoff import REFERENCE
from mapie_claps.benchmarks.tradeoff import report as tradeoff_report
from mapie_claps.studies.store import Store

# Shape, first and last entry of X, first and last entry and mean of y for seed 0, from
# the prototypes with which the recipe was chosen.
OF_THE_PROTOTYPES = {
    "geo": ((5000, 8), 0.7249388431, -116.064186, 1.094746621, 0.7803494225, 0.8838134),
    "mix": ((1030, 8), 353.0599803, 365, 42.27334637, 36.43491473, 34.48543656),
    "trees": ((5000, 10), 0.4389028, -0.2334482, -1.26615038, -1.570647315, -0.4032477),
    "simul": ((5000, 15), 4281.259315, 3.0000081, 0.968, 0.975, 0.9753952),
    "count": ((5000, 12), 4, 0.2626283771, 227, 13, 192.8846),
    "grade": ((1600, 11), 2.761278833, 0.7499664685, 5, 5, 5.71375),
    "fried": (
        (1500, 10),
        0.4708068717,
        0.2155105,
        18.98168851,
        15.74912375,
        14.6566805,
    ),
    "wave": (
        (1500, 5),
        618.8294424,
        0.000405637292,
        104.7957058,
        87.97949574,
        106.9645,
    ),
}


@pytest.mark.parametrize("command", ["epistemic", "tradeoff"])
def test_commands_run_and_resume(command, tmp_path, capsys):
    arguments = [command, "--smoke", "--out", str(tmp_path)]
    assert main(arguments) == 0
    first = capsys.readouterr().out
    assert first.startswith("| ")
    rows = (tmp_path / "runs.jsonl").read_text()
    assert main(arguments) == 0
    assert (tmp_path / "runs.jsonl").read_text() == rows
    assert capsys.readouterr().out == first


def test_scales_by_hand():
    part = Parts(
        np.array([[0.0, 1.0], [2.0, 1.0]]),
        np.array([[1.0, 1.0], [3.0, 1.0]]),
        np.array([[0.5, 0.0], [0.5, 0.2]]),
        np.array([0.25, 0.75]),
    )
    [(mu, v)] = SCALES["all members, all"](part)
    np.testing.assert_allclose(mu, [1.5, 1])
    np.testing.assert_allclose(v, [3**0.75 + 0.75 + 0.5, 1 + 0 + 0.15])
    alone = SCALES["one member, h² + Laplace"](part)
    np.testing.assert_allclose(alone[1], [[2, 1], [3.5, 1.2]])


def test_models_beside_the_networks():
    X, y = heteroscedastic(220)
    model = tiny(kernel=True, target_map=None).fit(X[:200], y[:200])
    found = models_beside(model, X[:200], y[:200], seed=0)
    assert tuple(found) == BESIDE
    mu, v = found[TOGETHER](X[200:])
    np.testing.assert_array_equal(mu, model.predict(X[200:]))
    np.testing.assert_array_equal(v, model.predict_variance(X[200:]).total)
    for name in (KERNEL, GAUSSIAN_PROCESS):
        mu, v = found[name](X[200:])
        assert np.mean((y[200:] - mu) ** 2) < 0.5 * np.var(y[200:])
        assert (v > 0).all()
    model.kernel_ = None
    assert KERNEL not in models_beside(model, X[:200], y[:200], seed=0)


def test_ratios_are_paired(tmp_path):
    fields = ("interval_score", "coverage", "region_score", "region_coverage")
    rows = [
        {"dataset": "a", "seed": seed, "method": f"{mode}, {method}"}
        | dict.fromkeys(fields, (2.0 if "Laplace" in method else 4.0) * 10**seed)
        for seed in (0, 1)
        for mode in ("sparse", "ordinary")
        for method in SCALES
    ]
    text = report(rows, tmp_path)
    assert "| sparse | one member, h² + Laplace | 0.500 ± 0.000 | 0.500" in text
    assert "Laplace on top of the spread (sparse): 1.000 ± 0.000, inside" in text


def test_tradeoff_table_by_hand(tmp_path):
    row = {"dataset": "a", "seed": 0, "interval_score": 2.0, "fit_seconds": 1.0}
    rows = [
        row | {"method": m, "interval_score": s}
        for m, s in ((REFERENCE, 2.0), ("n_members=1", 3.0))
    ]
    text = tradeoff_report(rows, tmp_path)
    assert "n_members=12" not in text
    assert "| `n_members=1` | 1.500 | 1.000 |" in text


@pytest.mark.parametrize("name", GENERATORS)
def test_generated_sets_are_those_of_the_prototypes(name):
    shape, *expected = OF_THE_PROTOTYPES[name]
    data = generate(name, seed=0)
    assert data.name == name
    assert data.X.shape == shape
    assert data.y.shape == shape[:1]
    found = [data.X[0, 0], data.X[-1, -1], data.y[0], data.y[-1], data.y.mean()]
    np.testing.assert_allclose(found, expected, rtol=2e-7)


def test_the_seed_draws_the_rows_of_one_law():
    one, same, other = (generate("trees", seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.y, same.y)
    assert not np.array_equal(one.y, other.y)
    assert abs(one.y.mean() - other.y.mean()) < 0.1 * one.y.std()


@pytest.mark.parametrize("beside_a_file", [False, True])
def test_tradeoff_on_generated_sets(beside_a_file, tmp_path, monkeypatch, capsys):
    quick = {"max_steps": 5, "n_members": 1}
    settings = {REFERENCE: quick, "n_members=1": quick}
    monkeypatch.setattr(tradeoff, "SETTINGS", settings)
    few = {name: GENERATORS[name] for name in ("grade", "wave")}
    monkeypatch.setattr(tradeoff, "GENERATORS", few)
    arguments = ["--generated", "--seeds", "1", "--max-rows", "100"]
    if beside_a_file:
        rows = [f"{i},{i % 7}" for i in range(100)]
        (tmp_path / "own.csv").write_text("\n".join(["x,y", *rows]))
        arguments += ["--data", str(tmp_path), "--datasets", "own"]
    out = tmp_path / "out"
    assert main(["tradeoff", *arguments, "--out", str(out)]) == 0
    names = [*few, "own"] if beside_a_file else [*few]
    assert {line["key"]["data"]["name"] for line in Store(out).lines()} == set(names)
    assert "| `n_members=1` | 1.000 | " in capsys.readouterr().out
