"""The studies in docs/studies, the fuzzer and the run of MAPIE's own tests: trials."""

import csv
import json
import math
import sys
from dataclasses import replace
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import fuzz
import mapie_own_tests
import numpy as np
import pandas as pd
import pytest
from mapie.conformity_scores import ResidualNormalisedScore
from mapie.regression import ConformalizedQuantileRegressor, SplitConformalRegressor
from sklearn.base import BaseEstimator, RegressorMixin

import mapie_claps
from mapie_claps import ClapsResidualRegressor, conformal_quantile

ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "docs" / "studies"
sys.path.insert(0, str(STUDIES))
import around  # noqa: E402
import engine  # noqa: E402
import paper  # noqa: E402
import paper_report  # noqa: E402
import parts  # noqa: E402
import peers  # noqa: E402
import speed  # noqa: E402
import truth  # noqa: E402

sys.path.remove(str(STUDIES))  # one of the studies has the name of another package
spec = spec_from_file_location("coverage_study", STUDIES / "coverage.py")
coverage = module_from_spec(spec)
spec.loader.exec_module(coverage)


def make_run(number, calls, fails=False):
    def compute():
        calls.append(number)
        if fails:
            raise ValueError("no luck")
        return [{"number": number}]

    key = engine.run_key("demo", data={}, split={"seed": number}, method={})
    return engine.Run(f"demo {number}", key, compute)


def test_finished_runs_are_not_repeated(tmp_path):
    calls = []
    runs = [make_run(i, calls, fails=i == 2) for i in range(3)]
    (failure,) = engine.run_missing(runs, tmp_path)
    assert failure == "FAILED demo 2: ValueError: no luck\n"
    assert engine.finished_rows(runs, tmp_path) == [{"number": 0}, {"number": 1}]
    engine.run_missing(runs[:2], tmp_path)
    assert calls == [0, 1, 2]


def test_a_line_that_was_cut_short_is_computed_again(tmp_path):
    calls = []
    runs = [make_run(i, calls) for i in range(2)]
    engine.run_missing(runs, tmp_path)
    file = tmp_path / engine.FILE
    file.write_text(file.read_text()[:-9])
    engine.run_missing(runs, tmp_path)
    assert calls == [0, 1, 1]


def test_keys_change_with_data_and_version(monkeypatch):
    X, y = np.eye(3), np.arange(3.0)
    key = partial(engine.run_key, "demo", split={"seed": 0}, method={"sizes": (8, 8)})
    data, other = (engine.Dataset("a", X, t).key for t in (y, -y))
    first = key(data=data)
    assert first == json.loads(json.dumps(first)) != key(data=other)
    assert key(data=data, uses_claps=False)["version"] == {"protocol": 1}
    monkeypatch.setitem(engine.RESULTS_VERSION, "claps", 99)
    assert first != key(data=data)


def test_every_number_of_the_recipe_is_in_the_key():
    plain = engine.claps_parameters(peers.ClapsRegressor())
    changed = replace(plain["recipe"], beta=0.0)
    other = engine.claps_parameters(peers.ClapsRegressor(recipe=changed))
    key = partial(engine.run_key, "demo", data={}, split={})
    one, two = key(method=plain), key(method=other)
    assert one != two
    assert "random_state" not in one["method"]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a,b\n1,2\n", "Got 1 rows and 0 gaps in mine.csv, but expected 50 rows"),
        ("a,b\n" + "1,nan\n" * 60, "Got 60 rows and 60 gaps"),
        ("a,b\n" + "1,text\n" * 60, "text"),
        (None, r"expected a folder with mine\.csv"),
    ],
)
def test_bad_tables_are_told(tmp_path, text, match):
    if text is not None:
        (tmp_path / "mine.csv").write_text(text)
    with pytest.raises(ValueError, match=match):
        engine.load_named("mine", tmp_path)


def test_tables_and_splits(tmp_path):
    rows = np.random.default_rng(0).normal(size=(100, 3))
    lines = ["a,b,y", *(",".join(map(repr, row)) for row in rows.tolist())]
    (tmp_path / "mine.csv").write_text("\n".join(lines))
    data = engine.load_named("mine", tmp_path)
    np.testing.assert_array_equal(data.X, rows[:, :2])
    split = engine.split_rows(data, 0, 50, lambda n: (30, 10))
    assert [len(part) for part in split] == [30, 30, 10, 10, 10, 10]
    assert len(np.unique(np.concatenate(split[1::2]))) == 50


def test_bad_options_end_with_a_message(tmp_path, capsys):
    with pytest.raises(SystemExit):
        peers.main(["--datasets", "yacht", "--data", str(tmp_path)])
    assert "expected a folder with yacht.csv" in capsys.readouterr().err


def test_networks_of_the_paper_learn():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    y = 5 + 2 * X[:, 0] + 0.1 * rng.normal(size=300)
    mean = paper.NetworkRegressor(random_state=0).fit(X, y).predict(X)
    assert np.mean((y - mean) ** 2) < 0.1 * np.var(y)
    quantiles = paper.NetworkRegressor((0.05, 0.95), 300, random_state=0).fit(X, y)
    lower, upper = quantiles.predict(X).T
    assert 0.75 < np.mean((lower <= y) & (y <= upper)) <= 1


def test_distributional_score_gives_the_intervals_of_local_scaling():
    data = engine.load_diabetes_rows(200)
    methods = paper.PaperMethods(paper.split_rows(data, 0), 0, 20)
    dcp, lacp = methods.interval("DCP"), methods.interval("LACP")
    np.testing.assert_allclose(dcp, lacp, rtol=1e-9)


def test_smoke_of_the_paper(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paper, "SYNTHETIC_STEPS", 2)  # of the picture
    cases = {"mechanism": ("synthetic",), "contraction": ("100", "250")}
    cases["prior_precision"] = ("energy",)
    for name, few in cases.items():
        shorter = replace(paper.EXPERIMENTS[name], cases=few)
        monkeypatch.setitem(paper.EXPERIMENTS, name, shorter)
    assert paper.main([*cases, "--smoke", "--seeds", "1", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for name in ("report.md", "rows/mechanism.csv", "tables/exp2_contraction.md"):
        assert str(tmp_path / name) in printed
    assert (tmp_path / "figures" / "mechanism.png").stat().st_size > 10_000
    assert "claims hold. Seeds: mechanism 1" in (tmp_path / "report.md").read_text()


def test_rows_of_the_benchmark():
    rows = paper.benchmark_rows("yacht", engine.load_diabetes_rows(200), 0, 5)
    assert [row["method"] for row in rows] == list(paper.METHODS)
    assert sum(row["width_rank"] for row in rows) == 21


def test_published_figures_are_no_distance_from_themselves():
    rows = [
        {"case": case, "method": line["Method"], "seed": 0}
        | {"score": float(line["Int. Score"]), "width": float(line["Avg. Width"])}
        for case in engine.PAPER_DATASETS
        for line in paper_report.published(f"exp3_{case}")
    ]
    found = paper_report.distances(pd.DataFrame(rows))
    assert len(found) == 48
    assert np.allclose(paper_report.mean_distance(found), 0)


@pytest.mark.parametrize(
    ("relation", "mean", "error", "expected"),
    [
        ("clearly above 0", 1.0, 0.4, True),
        ("clearly above 0", 1.0, 0.6, False),
        ("clearly above 0", 1.0, math.nan, False),
        ("not clearly below 0", -1.0, 0.6, True),
        ("not clearly below 0", -1.0, 0.4, False),
        ("within 0.02 of 0.9", 0.91, math.nan, True),
        ("within 0.02 of 0.9", 0.93, math.nan, False),
    ],
)
def test_relations_of_claims(relation, mean, error, expected):
    assert paper_report.holds(relation, engine.Estimate(mean, error, 5)) is expected


def test_stored_rows_give_the_stored_count_of_claims():
    folder = ROOT / "docs" / "paper_results"
    rows = {f.stem: pd.read_csv(f) for f in (folder / "rows").glob("*.csv")}
    rows["contraction"]["case"] = rows["contraction"]["case"].astype(str)
    report = (folder / "report.md").read_text()
    found = paper_report.check_claims(rows)
    held = sum(not why for *_, why in found)
    assert f"{held} of {len(found)} claims hold." in report
    assert held >= 45
    distances = paper_report.distances(rows["benchmark"])
    assert paper_report.mean_distance(distances).mean() < 0.06


def test_stored_runs_of_peers_are_found_again():
    folder = ROOT / "docs" / "benchmarks" / "peers"
    stored = [line["key"] for line in engine.stored_lines(folder)]
    for method in peers.METHODS:
        own = [k for k in stored if k["method"]["name"] == method.name]
        assert len(own) == 80
        planned = json.loads(json.dumps(method.key | {"alpha": peers.ALPHA}))
        assert all(k["method"] == planned for k in own)
        assert all(k["version"] == {"protocol": 1} for k in own)


class Column(RegressorMixin, BaseEstimator):
    fitted_ = True

    def __init__(self, j=0):
        self.j = j

    def fit(self, X, y):
        return self

    def predict(self, X):
        return np.asarray(X)[:, self.j]


def test_bands_are_the_intervals_of_mapie():
    rng = np.random.default_rng(0)
    centre, unit = rng.normal(size=200), rng.uniform(0.5, 2, 200)
    X = np.column_stack([centre - 0.3, centre + 0.3, centre, unit])
    y = centre + unit * rng.normal(size=200)
    cal, new = slice(0, 99), slice(99, None)

    def ours(band):
        scores = peers.Band(*(b[cal] for b in band)).scores(y[cal])
        (q,) = conformal_quantile(scores, [0.1])
        return np.stack(peers.Band(*(b[new] for b in band)).widened(q), axis=1)

    models = [Column(0), Column(1), Column(2)]
    cqr = ConformalizedQuantileRegressor(models, 0.9, prefit=True)
    cqr.conformalize(X[cal], y[cal])
    _, bounds = cqr.predict_interval(X[new], symmetric_correction=True)
    band = peers.ordered(X[:, 0], X[:, 1])
    np.testing.assert_allclose(ours(band), bounds[:, :, 0])
    score = ResidualNormalisedScore(Column(3), prefit=True)
    split = SplitConformalRegressor(Column(2), 0.9, score, prefit=True)
    _, bounds = split.conformalize(X[cal], y[cal]).predict_interval(X[new])
    np.testing.assert_allclose(ours(peers.centred(centre, unit)), bounds[:, :, 0])


def test_smoke_of_the_peers(tmp_path, monkeypatch, capsys):
    fast = partial(peers.ClapsRegressor, max_steps=20, n_members=1, kernel=False)
    monkeypatch.setattr(peers, "ClapsRegressor", fast)
    names = ["split-histgb", "gp", "std-catboost", "claps"]
    options = ["--smoke", "--out", str(tmp_path), "--methods", *names]
    assert peers.main(options) == 0
    text = capsys.readouterr().out
    assert "Geometric mean of the ratio" in text
    assert text.strip() == (tmp_path / "report.md").read_text().strip()
    with (tmp_path / "table.csv").open() as lines:
        found = {row["method"]: row for row in csv.DictReader(lines)}
    assert list(found) == names
    assert all(float(row["interval_score_mean"]) > 0 for row in found.values())
    assert float(found["claps"]["crps_mean"]) > 0
    assert (tmp_path / "scores.png").stat().st_size > 10_000


@pytest.mark.parametrize("part", ["fixed", "split", "cv+", "shift", "groups"])
def test_counts_of_the_coverage(part):
    case = coverage.PARTS[part][1][0]
    rows = coverage.count(part, case, 4)
    assert {row["level"] for row in rows} == set(coverage.LEVELS)
    assert all(0 <= row["covered"] <= 1 for row in rows)
    assert all(coverage.judged(row, 1e-9)["holds"] for row in rows)


def test_cases_with_shape_and_map():
    for case in coverage.CASES:
        rows = case.draw(np.random.default_rng(0), 60)
        model = coverage.TINY(random_state=0).fit(*rows)
        rng = np.random.default_rng(1)
        X, y = case.draw(rng, 21)
        inside = coverage.inside(case.rows(model, X, rng), y, 20, case)
        assert inside.shape == (1, 3)


def test_levels_that_follow(monkeypatch):
    monkeypatch.setattr(coverage, "N_STREAM", 60)
    rows = coverage.count("time", coverage.PARTS["time"][1][0], 2)
    assert len(rows) == 12
    assert all(coverage.judged(row, 0.01)["holds"] for row in rows)


def test_counts_outside_their_law_are_told():
    row = {"part": "fixed", "case": "a", "n_cal": 99, "level": 0.9}
    row |= {"replications": 10_000, "law": "exact", "promised": 0.9, "furthest": 1.0}
    counts = [coverage.judged(row | {"covered": c}, 1e-4) for c in (0.901, 0.88)]
    assert [row["holds"] for row in counts] == [True, False]
    text = coverage.report(counts)["coverage.md"]
    assert text.startswith("2 counts, 1 outside their limits.")


def test_smoke_of_the_truth(tmp_path, capsys):
    names = ["permuted", "reasons", "sparse", "equal", "counts", "small"]
    options = ["--smoke", "--without-peers", "--out", str(tmp_path)]
    assert truth.main([*options, "--only", *names]) == 0
    printed = capsys.readouterr().out
    assert "| sparse | coverage inside |" in printed
    assert printed.strip() == (tmp_path / "bounds.md").read_text().strip()
    for name in names:
        assert (tmp_path / f"{name}.md").read_text().startswith("| ")
        assert (tmp_path / f"{name}.csv").read_text().startswith("set,seed,")


@pytest.mark.filterwarnings("ignore:The optimal value found")
@pytest.mark.parametrize("method", truth.PEERS)
def test_peers_tell_the_noise_of_plain_data(method):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    y = X[:, 0] + 0.5 * rng.normal(size=300)
    told = truth.PEERS[method](X[:200], y[:200], X[200:], 0)
    found = told.against(X[200:, 0], 0.5)
    assert 0.5 < found["noise/true"] < 1.5
    assert 0 < found["true lack"] < 1


def test_bounds_are_judged_by_means_of_groups():
    rows = [(100, 0.3), (100, 0.7), (300, 0.1), (300, 0.1)]
    frame = pd.DataFrame(rows, columns=["rows", "changed"])
    lines = list(parts.judged("truth", "reasons", frame))
    assert [line[-1] for line in lines] == ["NO", "yes"]
    assert lines[0][4] == "0.5"
    ratios = pd.Series([0.5, 2.0, np.nan], name="noise/true")
    assert parts.mean(ratios) == pytest.approx(1)


def test_smoke_around_models(tmp_path, monkeypatch, capsys):
    small = mapie_claps.ClapsRegressor(max_steps=5, n_members=1, kernel=False)
    quick = partial(ClapsResidualRegressor, residual_regressor=small)
    monkeypatch.setattr(mapie_claps, "ClapsResidualRegressor", quick)
    names = ["scores", "sparse", "reasons"]
    options = ["--smoke", "--out", str(tmp_path), "--seeds", "1", "--only", *names]
    assert around.main(options) == 0
    assert "| scores | around/it |" in capsys.readouterr().out
    scores = pd.read_csv(tmp_path / "scores.csv")
    assert {"CLAPS around it", "absolute", "CQR"} <= set(scores["kind"])
    assert (tmp_path / "reasons.md").read_text().startswith("| model | size | ρ |")


def test_smoke_of_the_speed(tmp_path, monkeypatch, capsys):
    beside = tmp_path / "beside.py"  # another commit, which would take long to load
    time = f"0.5 * (os.environ['PYTHONPATH'] == {str(ROOT)!r})"
    loop = f"for line in sys.stdin:\n    print({time}, flush=True)\n"
    beside.write_text("import os, sys\n" + loop)
    server, file = speed.Server, speed.__file__

    def start(python, folder=None):
        with monkeypatch.context() as context:
            context.setattr(speed, "__file__", str(beside if folder else file))
            return server(python, folder)

    monkeypatch.setattr(speed, "Server", start)
    options = ["--smoke", "--out", str(tmp_path), "--beside", str(ROOT)]
    assert speed.main(options) == 0
    assert "default fit, 60 × 3" in capsys.readouterr().out
    text = (tmp_path / "speed.md").read_text()
    assert text.count("## ") == 3
    found = pd.read_csv(tmp_path / "speed.csv")
    assert list(found["section"]) == ["fit", "fit", "rows", "rows", "row", "row"]
    assert list(found.loc[1, ["against", "other"]]) == [ROOT.name, 0.5]
    assert (found["ours"] > 0).all()


def test_some_cases_of_the_fuzzer(capsys):
    assert fuzz.main(["--cases", "24"]) == 0
    assert "24 cases of seed 0 from 0 on, 0 failures." in capsys.readouterr().out


def test_the_fuzzer_sees_failures(monkeypatch, capsys):
    monkeypatch.delattr(fuzz, "ClapsRegressor")
    assert fuzz.main(["--cases", "1"]) == 1
    assert "undocumented NameError" in capsys.readouterr().out


def test_report_of_mapies_own_tests():
    line = {"file": "test_regression.py", "test": "test_a", "outcome": "passed"}
    why = "DID NOT RAISE <class 'ValueError'>"
    listed = line | {"outcome": "failed", "message": why}
    listed["test"] = "test_calibration_data_size_symmetric_score[1]"
    unlisted = line | {"outcome": "failed", "test": "test_b", "message": "boom"}
    text, failures = mapie_own_tests.report([line | {"message": ""}, listed, unlisted])
    assert failures == 1
    assert "1 passed, 2 failed" in text
    assert "| n = 1/α − 1 | `test_calibration_data_size_symmetric_score` | 1 |" in text
    assert "NO REASON: test_regression.py::test_b: boom" in text
    reasons = {reason for reason, *_ in mapie_own_tests.EXCEPTIONS}
    assert reasons == set(mapie_own_tests.REASONS)
