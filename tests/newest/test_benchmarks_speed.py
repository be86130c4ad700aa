"""The speed benchmark: the command works, its table by hand, its rivals are fair."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import mapie_claps
from mapie_claps import HeteroscedasticGGN, TensorLoader
from mapie_claps.benchmarks import _speed_training
from mapie_claps.benchmarks.__main__ import main
from mapie_claps.benchmarks._networks import make_rows
from mapie_claps.benchmarks._speed_interval import calibrated, plain_interval
from mapie_claps.benchmarks._speed_posterior import (
    as_member,
    as_tensors,
    fit_laplace,
    fit_module,
    fit_ours,
    limit,
    make_network,
)
from mapie_claps.benchmarks._speed_timing import Result, Settings, best_of, run_code
from mapie_claps.benchmarks._speed_training import fit_default, profile
from mapie_claps.benchmarks.speed import SECTIONS, cells, read, report, write


def test_short_version(tmp_path, capsys):
    assert main(["speed", "--smoke", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    with (tmp_path / "speed.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["section"] for row in rows} == set(SECTIONS) - {"against"}
    assert printed.count("\n") == len(rows) + 2
    for row in rows:
        assert float(row["ratio"]) >= 0
        assert row["bound"] == ""  # tiny sizes say nothing of the bounds
        assert f"| {row['case']} |" in (tmp_path / "speed.md").read_text()
        assert f"| {row['case']} |" in printed


def test_against_another_tree(capsys):
    tree = Path(mapie_claps.__file__).parents[1]
    assert main(["speed", "--smoke", "--only", "against", "--against", str(tree)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "tree" in line]
    assert len(lines) == 5
    assert sum("default fit" in line for line in lines) == 2


def test_against_what_is_no_tree(tmp_path, capsys):
    for options, match in (
        (["--against", str(tmp_path)], "expected a folder with mapie_claps in it"),
        (["--only", "against"], "Got --only against, but no folder"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(["speed", *options])
        assert match in capsys.readouterr().err


def test_sections_measured_before_stay(tmp_path):
    def result(section, ours, note=""):
        numbers = ours, 5.0, "s", "faster", None
        return Result("fit", "laplace", *numbers, note, section)

    write([result("posterior", 1.0, "x, y"), result("training", 2.0)], tmp_path)
    write([result("intervals", 3.0), result("training", 4.0)], tmp_path)
    expected = [
        result("posterior", 1.0, "x, y"),
        result("intervals", 3.0),
        result("training", 4.0),
    ]
    assert read(tmp_path / "speed.csv") == expected
    assert (tmp_path / "speed.md").read_text() == report(expected)


def test_unknown_section(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["speed", "--only", "nothing"])
    assert "Got --only nothing, but expected names of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "ours", "other", "bound", "ratio", "met"),
    [
        ("faster", 0.5, 2.0, 4.0, 4.0, True),
        ("faster", 0.5, 2.0, 4.1, 4.0, False),
        ("cost", 0.5, 2.0, 0.25, 0.25, True),
        ("cost", 2.0, 0.5, 3.9, 4.0, False),
        ("cost", 2.0, 0.5, None, 4.0, None),
    ],
)
def test_ratio_and_bound(kind, ours, other, bound, ratio, met):
    result = Result("case", "other", ours, other, "s", kind, bound)
    assert (result.ratio, result.met) == (ratio, met)


def test_line_by_hand():
    result = Result("fit", "laplace", 0.5, 5.0, "s", "faster", 20.0)
    expected = ["fit", "0.5 s", "laplace", "5 s", "10.00", "≥ 20", "**no**"]
    assert cells(result) == expected


def test_boosting_by_hand(monkeypatch):
    """The bound is on the slower of the others; two cores are to be 1.5 times one."""
    trees, catboost = "3 × HistGradientBoosting", "CatBoost MultiQuantile"
    seconds = {"one core": 3.0, "n_jobs=1": 4.0, "n_jobs=2": 2.5}
    seconds |= {trees: 1.0, catboost: 2.0}
    monkeypatch.setattr(_speed_training, "SIZES", [(20, 3)])
    monkeypatch.setattr(
        _speed_training, "best_of", lambda calls, _: {k: seconds[k] for k in calls}
    )
    found = list(_speed_training.boosting(Settings()))
    assert [(r.case, r.against, r.ratio, r.bound, r.met) for r in found] == [
        ("default fit, 20 × 3, 1 core(s)", trees, 3.0, None, None),
        ("default fit, 20 × 3, 1 core(s)", catboost, 1.5, 1.5, True),
        ("default fit, 20 × 3, 2 core(s)", trees, 2.5, None, None),
        ("default fit, 20 × 3, 2 core(s)", catboost, 1.25, 1.5, True),
        ("default fit, 20 × 3, n_jobs=2", "one core", 1.2, 1.5, False),
        ("default fit, 20 × 3, n_jobs=2", "n_jobs=1", 1.6, 1.5, True),
    ]


def test_profile_finds_every_phase():
    """It looks for functions by name, which a change elsewhere may move."""
    text = profile(lambda: fit_default(*make_rows(100, 3)), "wall")
    shares = [int(share.split()[-2]) for share in text.split(",")]
    assert len(shares) == 6
    assert all(share > 0 for share in shares)


def test_best_of_takes_turns():
    calls = []
    functions = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    best_of(functions, Settings(smoke=True))
    assert calls == ["a", "b"] * 3
    calls.clear()
    best_of(functions, Settings())  # what is short is repeated more often
    assert calls == ["a", "b"] * 30


def test_failure_in_a_process_of_its_own():
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        run_code("1 / 0")


def test_plain_interval_is_that_of_mapie():
    mapie = calibrated(100, n_members=2, hidden_layer_sizes=(8,), representation_size=8)
    inner = mapie._mapie_regressor
    q = np.sort(np.abs(inner.conformity_scores_))[90]
    X = make_rows(50, seed=3)[0]
    plain = plain_interval(inner.estimator_.single_estimator_, X, q)
    np.testing.assert_allclose(
        plain, mapie.predict_interval(X)[1][:, :, 0], rtol=1e-10, atol=1e-12
    )


def test_rivals_of_the_posterior_take_the_same_network_and_rows():
    network, (X, y) = make_network(6), as_tensors(300)
    gram = limit(network, X).numpy()
    module = fit_module(network, X, y, scale="posterior")
    plain = module.sums_.homoscedastic.gram[0, :-1, :-1].numpy()
    np.testing.assert_allclose(plain, gram, rtol=1e-10)
    with torch.random.fork_rng(devices=[]):  # the DataLoader draws a seed
        rows = DataLoader(TensorDataset(X, y[:, None]), batch_size=256)
        la = fit_laplace(network, rows)
    # Seen to agree to single precision, with the network in double.
    np.testing.assert_allclose(la.H[:-1, :-1].detach().numpy(), gram, rtol=1e-5)
    scale = fit_ours(as_member(network), X, y)[0]
    weighted = module.sums_.moments.gram[0]
    rows = TensorLoader(X, y[:, None])
    adapter = fit_laplace(network, rows, backend=HeteroscedasticGGN)
    np.testing.assert_allclose(adapter.H.numpy(), weighted.numpy(), rtol=1e-10)
    precision = weighted.numpy() + np.eye(7)
    np.testing.assert_allclose(
        np.linalg.inv((scale @ scale.mT).numpy()), precision, rtol=1e-8, atol=1e-8
    )
