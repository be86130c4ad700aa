"""Measures of ``benchmarks reasons`` against what they should be."""

from functools import partial

import numpy as np
import pytest

from mapie_claps.benchmarks import reasons
from mapie_claps.benchmarks.__main__ import main
from mapie_claps.benchmarks._reasons_models import (
    MODELS,
    Predicted,
    fit_model,
    parameters_of,
)
from mapie_claps.benchmarks._reasons_problems import KNOWN, Known, known_problem
from mapie_claps.studies.data import Dataset, load_diabetes_rows


def test_an_epistemic_part_that_is_the_error_ranks_perfectly():
    squares = np.random.default_rng(0).exponential(size=500)
    foreign = squares > np.quantile(squares, 0.8)
    best = reasons.ranking_measures(3 * squares, squares, foreign)
    assert best["rho"] == pytest.approx(1)
    assert best["auroc"] == 1
    kept = np.cumsum(np.sort(squares)) / np.arange(1, 501)
    assert best["sparsification"] == pytest.approx(kept.mean() / squares.mean())
    assert best["share_of_best"] == pytest.approx(1)
    assert best["top_fifth"] == pytest.approx(squares[foreign].mean() / squares.mean())
    worst = reasons.ranking_measures(1 / squares, squares, foreign)
    assert worst["rho"] == pytest.approx(-1)
    assert worst["sparsification"] > 1 > best["sparsification"]
    assert worst["share_of_best"] < 0
    rng = np.random.default_rng(1)
    orders = [rng.permutation(squares) for _ in range(200)]
    shuffled = [reasons.ranking_measures(o, squares, foreign) for o in orders]
    mean = np.mean([found["share_of_best"] for found in shuffled])
    assert mean == pytest.approx(0, abs=0.02)
    constant = reasons.ranking_measures(np.ones(500), squares, foreign)
    assert constant["rho"] == 0
    assert constant["auroc"] == 0.5


@pytest.mark.parametrize("name", KNOWN)
def test_the_truth_of_a_generated_problem_measures_as_true(name):
    test = KNOWN[name](np.random.default_rng(0), 4000)
    # Noise is what is left of y, with the variance that is said.
    z = (test.y - test.mu) / np.sqrt(test.noise)
    assert abs(z.mean()) < 0.08
    assert z.var() == pytest.approx(1, abs=0.1)
    assert 0.1 < np.mean(test.foreign) < 0.3
    error = np.random.default_rng(1).normal(size=4000)
    found = Predicted(test.mu + error, 2 * test.noise, 0.5 * np.ones(4000))
    (measured,) = reasons.part_rows(test, found)
    assert measured["noise_error"] == pytest.approx(np.log(2))
    assert measured["noise_rho"] == pytest.approx(1)
    assert measured["size_here"] == pytest.approx(0.5, rel=0.15)


def test_noise_is_added_to_a_table_that_stays_the_truth():
    rng = np.random.default_rng(0)
    data = Dataset("line", rng.normal(size=(400, 3)), rng.normal(size=400))
    known = known_problem(data, 1, 300)
    assert set(known.mu) <= set(data.y)
    assert known.foreign.mean() == pytest.approx(0.2, abs=0.01)
    order = np.argsort(known.X[:, -1])
    assert (np.diff(known.noise[order]) > 0).all()


@pytest.mark.parametrize("name", MODELS)
def test_every_model_gives_two_positive_parts(name):
    data = load_diabetes_rows()
    rows = data.X[:100], data.y[:100], data.X[100:]
    mu, aleatoric, epistemic, *_ = fit_model(name, 0, True, *rows)
    assert np.isfinite(mu).all()
    assert (aleatoric > 0).all()
    assert (epistemic >= 0).all()
    assert np.ptp(epistemic) > 0
    assert parameters_of(name, False) != parameters_of(name, True)


def test_remoteness_is_measured_beside_the_epistemic_part():
    mu, y = np.arange(10.0), np.zeros(10)
    test = Known(y, y + np.arange(10) % 2, y, np.full(10, np.nan), mu > 7)

    def fit(*rows):
        return Predicted(mu, mu, -mu, remoteness=mu)

    def measure(fit, seed):
        return reasons.part_rows(test, fit())

    problem = reasons.Problem("real", "a", {}, {}, measure)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reasons, "fit_model", fit)
        own, remote = problem.rows(0, "CLAPS", smoke=True)
    assert (own["method"], own["auroc"]) == ("CLAPS", 0)
    assert own["error_foreign"] == (64 + 81) / 2 / test.y.var()
    assert (remote["method"], remote["auroc"]) == (reasons.REMOTENESS, 1)
    assert [row["dataset"] for row in (own, remote)] == ["a", "a"]


def test_command_prints_its_tables_and_goes_on_where_it_stopped(tmp_path, capsys):
    options = ["--smoke", "--models", "GP", "--out", str(tmp_path)]
    assert main(["reasons", *options]) == 0
    text = capsys.readouterr().out
    assert "Known mean and noise" in text
    assert "Other real data sets" in text
    assert (tmp_path / "reasons.md").read_text(encoding="utf-8") in text
    lines = (tmp_path / "runs.jsonl").read_text().splitlines()
    assert main(["reasons", *options]) == 0
    assert (tmp_path / "runs.jsonl").read_text().splitlines() == lines
    capsys.readouterr()
    stored = [*options[:2], "CatBoost", *options[2:], "--stored"]
    assert main(["reasons", *stored]) == 0
    assert capsys.readouterr().out == text
    assert (tmp_path / "runs.jsonl").read_text().splitlines() == lines
    with pytest.raises(SystemExit):
        main(["reasons", "--models", "forest"])
    assert "Got --models forest, but expected names of" in capsys.readouterr().err


def test_collecting_compares_with_random_rows():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (500, 2))
    data = Dataset("waves", X, np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=500))
    models = {name: partial(fit_model, name, 0, True) for name in ("GP", "CLAPS")}
    (row,) = reasons.measure_collecting(data, 500, models["GP"], 0)
    assert row["collect"] == row["rmse_epistemic"] / row["rmse_random"]
    own, by_gain = reasons.measure_collecting(data, 500, models["CLAPS"], 0)
    assert by_gain["collect"] == own["rmse_gain"] / own["rmse_random"]
    assert by_gain["method"] == "CLAPS, by gain"


def test_causes_are_counted_and_sums_checked():
    sizes = dict.fromkeys(reasons.CAUSES_ROWS, 60)
    (row,) = reasons.measure_causes(sizes, partial(fit_model, "CLAPS", 0, True), 0)
    assert 0 <= row["aleatoric_first"] <= 1
    assert row["additivity"] < 1e-8
