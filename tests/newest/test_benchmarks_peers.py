"""The benchmark against peers: tuning, runs, resume, errors."""

import json
import pickle
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from mapie_claps import ClapsRegressor, conformal_quantile
from mapie_claps.benchmarks import _peer_table, _peer_tuning, peers
from mapie_claps.benchmarks.__main__ import main
from mapie_claps.benchmarks._peer_tuning import Band, Method, calibrated_score, tune
from mapie_claps.studies import data as _data
from mapie_claps.studies.runner import _compute
from mapie_claps.studies.store import Store, identity


def rows_in(folder):
    return [row for line in Store(folder).lines() for row in line["rows"]]


def noisy(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    return X, X[:, 0] + np.exp(0.5 * X[:, 1]) * rng.normal(size=n)


def test_calibrated_score_against_loops():
    X, y = noisy(60)
    band = Band(X[:, 0] - 0.1, X[:, 0] + 0.1, np.exp(X[:, 1]))
    scores = []
    for i in range(60):
        others = [j for j in range(60) if j % 5 != i % 5]
        s = [
            max(band.lower[j] - y[j], y[j] - band.upper[j]) / band.unit[j]
            for j in others
        ]
        q = sorted(s)[45 - 1]  # ⌈49 · 0.9⌉ = 45
        low, up = band.lower[i] - q * band.unit[i], band.upper[i] + q * band.unit[i]
        scores.append(up - low + 20 * (max(low - y[i], 0) + max(y[i] - up, 0)))
    assert calibrated_score(band, y, 0.1) == pytest.approx(np.mean(scores))


class CountingMethod:
    """A band around the first column whose unit depends on a free parameter."""

    def __init__(self):
        self.fitted = []

    def fit(self, X, y, params, seed, alpha):
        self.fitted.append((len(X), dict(params)))
        return self.band

    def band(self, X, params):
        unit = np.exp(params["power"] * X[:, 1])
        return Band(X[:, 0] + params["shift"], X[:, 0] + params["shift"], unit)

    def method(self, **options):
        grid = [
            {"shift": shift, "power": power}
            for shift in (3.0, 0.0)
            for power in (0.0, 0.5)
        ]
        return Method("m", "M", self.fit, "", grid, free=("power",), **options)


def test_tuning_finds_the_true_scale_and_shares_fits():
    X, y = noisy(600)
    counting = CountingMethod()
    choice = tune(counting.method(), X, y, alpha=0.1, seed=0)
    assert choice.params == {"shift": 0.0, "power": 0.5}
    # Two fits per fold, on two thirds of the rows, with the last entry of each group.
    assert len(counting.fitted) == 6
    assert {n for n, _ in counting.fitted} == {400}
    assert {params["power"] for _, params in counting.fitted} == {0.5}


def test_slow_methods_choose_on_one_fold_and_are_scored_on_all():
    X, y = noisy(600)
    counting = CountingMethod()
    slow = tune(counting.method(slow=True), X, y, alpha=0.1, seed=0)
    assert len(counting.fitted) == 2 + 2
    assert slow == tune(CountingMethod().method(), X, y, alpha=0.1, seed=0)


def test_method_tuned_after_another_takes_its_parameters():
    X, y = noisy(300)
    counting = CountingMethod()
    first = counting.method()
    second = replace(first, grid=[{"power": 0.0}, {"power": 0.5}], after=first)
    alone = tune(first, X, y, alpha=0.1, seed=0)
    choice = tune(second, X, y, alpha=0.1, seed=0)
    assert choice.params == {"shift": 0.0, "power": 0.5}
    # Six fits of the first, which is not tuned again, and three of the second.
    assert len(counting.fitted) == 6 + 3
    assert choice.seconds > alone.seconds > 0


def test_nothing_to_tune_has_no_score():
    X, y = noisy(30)
    assert tune(_peer_table.BY_NAME["claps"], X, y, 0.1, 0) == _peer_tuning.Choice(
        {}, None
    )


@pytest.mark.parametrize("name", _peer_table.PEERS)
def test_library_makes_the_interval_that_the_band_says(name):
    # n_cal + 1 = 50: (n + 1)(1 − α) = 45 is an integer, where ranks go wrong.
    X, y = noisy(149)
    method = _peer_table.BY_NAME[name]
    params = dict(method.grid[0])
    if method.after:
        params = {**method.after.grid[0], **method.grid[1]}
    model = method.fit(X[:60], y[:60], params, 0, 0.1)
    predict = method.calibrate(model, X[60:109], y[60:109], params, 0.1)
    lower, upper = predict(X[109:])
    scores = method.band(model, X[60:109], params).scores(y[60:109])
    q = conformal_quantile(scores, [0.1])[0]
    expected = method.band(model, X[109:], params).widened(q)
    np.testing.assert_allclose(lower, expected[0], rtol=1e-9)
    np.testing.assert_allclose(upper, expected[1], rtol=1e-9)


@pytest.mark.parametrize("name", _peer_table.PEERS)
def test_a_peer_is_the_same_for_the_same_seed(name):
    X, y = noisy(90)
    method = _peer_table.BY_NAME[name]
    params = {**(method.after.grid[0] if method.after else {}), **method.grid[-1]}
    first, again = (
        method.band(method.fit(X, y, params, 3, 0.1), X, params) for _ in range(2)
    )
    np.testing.assert_array_equal(first, again)


def test_claps_is_measured_with_the_shape_of_its_noise():
    X, y = noisy(200)
    data = _data.Dataset("positive", X, np.exp(y))
    method = _peer_table.claps_method(target_map="log", max_steps=60, tol=None)
    split = _data.split_rows(data, 0)
    model = method.fit(split.X_train, split.y_train, method.grid[0], 0, 0.1)
    predict = method.calibrate(model, split.X_cal, split.y_cal, {}, 0.1)
    lower, upper = predict(split.X_test)
    assert (lower > 0).all()
    found = peers.measure(data, 0, method, 0.1, 5000)[0]
    assert found["width"] == pytest.approx(float((upper - lower).mean()))
    # Half the mean absolute difference of two draws is the least that a CRPS can be
    # of a right prediction; the spread of y is what a constant one gets.
    assert 0 < found["crps"] < np.std(split.y_test)


def test_realmlp_is_asked_for_both_quantiles(monkeypatch):
    asked = {}

    class Network:
        def __init__(self, **options):
            asked.update(options)

        def fit(self, X, y):
            self.y = y
            return self

        def predict(self, X):  # crossed: the band puts them in order
            return np.tile(np.float32(np.quantile(self.y, [0.95, 0.05])), (len(X), 1))

    fake = type(sys)("pytabkit")
    fake.RealMLP_TD_Regressor = Network
    monkeypatch.setitem(sys.modules, "pytabkit", fake)
    X, y = noisy(200)
    method = _peer_table.BY_NAME["realmlp"]
    band = method.band(method.fit(X, y, {}, 7, 0.1), X, {})
    assert asked["train_metric_name"] == asked["val_metric_name"]
    assert asked["val_metric_name"] == "multi_pinball(0.05,0.95)"
    assert (asked["random_state"], asked["n_threads"]) == (7, 1)
    assert band.lower[0] < band.upper[0]
    assert np.mean((band.lower <= y) & (y <= band.upper)) == pytest.approx(0.9)
    assert "realmlp" not in _peer_table.PEERS  # it is run only if named


def test_crps_of_a_centre_and_a_scale():
    from mapie_claps.benchmarks._peer_calibration import std_crps

    rng = np.random.default_rng(0)
    X, y = np.zeros((20_000, 1)), rng.normal(size=20_000)
    split = _data.split_rows(_data.Dataset("normal", X, 3 + 2 * y), 0, 20_000)
    found = std_crps(lambda X: Band(*np.full((2, len(X)), 3.0), np.ones(len(X))), split)
    # Of a normal law with standard deviation 2 under itself: 2/√π.
    assert found == pytest.approx(2 / np.sqrt(np.pi), rel=0.02)


@pytest.mark.parametrize(
    "name", ["cqr-histgb", "split-histgb", "cqr-catboost", "std-catboost"]
)
def test_early_iterations_are_those_of_a_shorter_fit(name):
    X, y = noisy(120)
    method = _peer_table.BY_NAME[name]
    short, long = method.grid[0], method.grid[1]
    assert short[method.free[0]] < long[method.free[0]]
    staged = method.band(method.fit(X, y, long, 0, 0.1), X, short)
    own = method.band(method.fit(X, y, short, 0, 0.1), X, short)
    np.testing.assert_allclose(staged.upper, own.upper)


@pytest.mark.parametrize("name", ["cqr-catboost", "std-catboost"])
def test_catboost_takes_text_and_gaps_and_any_unit_of_y(name):
    rng = np.random.default_rng(0)
    word = rng.choice(["low", "high"], 200)
    frame = pd.DataFrame({"x": rng.random(200), "word": word})
    y = np.where(word == "high", 5.0, 0.0) + frame["x"].to_numpy()
    frame.loc[::9, "word"] = None
    frame.loc[::7, "x"] = np.nan
    frame["word"] = frame["word"].astype("category")
    method = _peer_table.BY_NAME[name]
    params = method.grid[0] | {"iterations": 30}
    band = method.band(method.fit(frame, y, params, 0, 0.1), frame, params)
    low, high = (float(np.mean(band.middle[frame["word"] == w])) for w in set(word))
    assert abs(low - high) > 3
    far = method.band(method.fit(frame, 1e-4 * y + 7, params, 0, 0.1), frame, params)
    np.testing.assert_allclose(far.upper, 1e-4 * band.upper + 7, rtol=1e-7)
    if name == "std-catboost":
        np.testing.assert_allclose(far.unit, 1e-4 * band.unit, rtol=1e-3)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """Folder of one quick run of every method."""
    out = tmp_path_factory.mktemp("smoke")
    assert main(["peers", "--smoke", "--out", str(out)]) == 0
    return out


def test_smoke_runs_every_method(smoke):
    rows = rows_in(smoke)
    assert [r["method"] for r in rows] == [m.name for m in _peer_table.METHODS]
    for r in rows:
        assert (r["n_train"], r["n_cal"], r["n_test"]) == (90, 30, 30)
        assert 0.5 <= r["coverage"] <= 1
        assert 0 < r["width"] <= r["interval_score"] < 1000
        assert r["fit_seconds"] > 0
        assert r["predict_seconds"] > 0
        assert (r["cv_score"] is None) == (r["method"] == "claps")
    assert (smoke / "scores.png").stat().st_size > 10_000
    assert len((smoke / "table.csv").read_text().splitlines()) == 1 + len(rows)


def test_finished_runs_are_not_run_again(smoke, capsys):
    before = (smoke / "runs.jsonl").read_text()
    report = (smoke / "report.md").read_text()
    assert main(["peers", "--smoke", "--out", str(smoke)]) == 0
    assert (smoke / "runs.jsonl").read_text() == before
    assert capsys.readouterr().out == report


def test_run_resumes_after_a_line_cut_short(tmp_path):
    command = ["peers", "--smoke", "--out", str(tmp_path)]
    command += ["--methods", "split-histgb", "normalised-histgb"]
    assert main(command) == 0
    path = tmp_path / "runs.jsonl"
    first, second = path.read_text().splitlines()
    path.write_text(first + "\n" + second[: len(second) // 2])
    assert main(command) == 0
    rows = rows_in(tmp_path)
    assert [r["method"] for r in rows] == ["split-histgb", "normalised-histgb"]
    times = [name for name in rows[1] if name.endswith("_seconds")]
    redone, original = rows[1], json.loads(second)["rows"][0]
    for name in times:
        del redone[name], original[name]
    assert redone == original


def write_csv(path, n=60, header="a,b,price", cells=None):
    X, y = noisy(n)
    lines = [f"{a},{b},{p}" for (a, b, _), p in zip(X, y, strict=True)]
    for i, text in (cells or {}).items():
        lines[i] = text
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def run_split(out, *options):
    """Runs of one quick method, by what was printed and stored."""
    command = ["peers", "--methods", "split-histgb", "--seeds", "1", "--out", str(out)]
    assert main([*command, *options]) == 0
    return rows_in(out)


def test_another_target_or_file_or_setting_is_another_run(tmp_path, capsys):
    """Once, runs were found by name, seed and method alone."""
    path, out = write_csv(tmp_path / "own.csv", n=100), tmp_path / "out"
    of_a = run_split(out, "--csv", str(path), "--target", "a")
    report_of_a = capsys.readouterr().out
    assert len(run_split(out, "--csv", str(path), "--target", "a")) == 1
    both = run_split(out, "--csv", str(path), "--target", "b")
    assert len(both) == 2
    assert both[1]["width"] != of_a[0]["width"]
    assert f"{both[1]['width']:.4g}" in capsys.readouterr().out
    write_csv(path, n=100, cells={3: "1,2,3"})
    changed = run_split(out, "--csv", str(path), "--target", "a")
    assert len(changed) == 3
    assert changed[2]["width"] != of_a[0]["width"]
    level = ["--confidence-level", "0.8"]
    assert len(run_split(out, "--csv", str(path), "--target", "a", *level)) == 4
    assert (
        len(run_split(out, "--csv", str(path), "--target", "a", "--max-rows", "60"))
        == 5
    )
    share = ["--calibration-share", "0.4"]
    even = run_split(out, "--csv", str(path), "--target", "a", *share)
    assert len(even) == 6
    assert [even[-1][k] for k in ("n_train", "n_cal", "n_test")] == [40, 40, 20]
    capsys.readouterr()
    write_csv(path, n=100)  # as it was: found again, and not mixed with the others
    assert len(run_split(out, "--csv", str(path), "--target", "a")) == 6
    assert capsys.readouterr().out == report_of_a


def test_key_has_all_parameters_of_the_method():
    data, claps = _data.load_diabetes_rows(), _peer_table.BY_NAME["claps"]
    key = peers.plan(data, 0, claps, 0.1, 5000).key
    expected = set(ClapsRegressor().get_params()) - {"random_state"}
    assert set(key["method"]["parameters"]) == expected
    peer = peers.plan(data, 0, _peer_table.SPLIT, 0.1, 5000).key
    assert peer["method"]["grid"] == list(_peer_table.SPLIT.grid)
    other = replace(_peer_table.SPLIT, grid=_peer_table.SPLIT.grid[:3])
    assert peers.plan(data, 0, other, 0.1, 5000).key != peer
    # A new recipe of CLAPS leaves the stored runs of the peers as they are.
    assert set(key["version"]) == {"protocol", "claps"}
    assert set(peer["version"]) == {"protocol"}


def test_runs_travel_to_other_processes():
    run = peers.plan(_data.load_diabetes_rows(), 0, _peer_table.SPLIT, 0.1, 5000)
    again = pickle.loads(pickle.dumps(run))
    assert identity(again.key) == identity(run.key)
    quick = replace(run, compute=_quick)
    assert pickle.loads(pickle.dumps(quick)).compute() == [{"dataset": "d"}]
    assert _compute(quick)["rows"] == [{"dataset": "d"}]


def _quick():
    return [{"dataset": "d"}]


def test_data_frames_with_text_and_gaps(tmp_path):
    """Categories and NaN reach the methods that take them."""
    rng = np.random.default_rng(0)
    words = rng.choice(["red", "green", "blue"], 150)
    shift = pd.Series(words).map({"red": 0, "green": 5, "blue": 10})
    number = rng.normal(size=150)
    frame = pd.DataFrame({"colour": words, "number": number, "y": shift + number})
    frame.loc[:5, "number"] = np.nan
    frame.to_csv(tmp_path / "words.csv", index=False)
    command = ["peers", "--data", str(tmp_path), "--datasets", "words", "--seeds", "1"]
    command += ["--out", str(tmp_path / "out"), "--methods"]
    names = ["cqr-histgb", "split-histgb", "normalised-histgb"]
    assert main([*command, *names]) == 0
    rows = rows_in(tmp_path / "out")
    assert [row["method"] for row in rows] == names
    # Without the words the width is about 10.
    assert rows[1]["width"] < 6
    with pytest.raises(SystemExit, match="2"):
        main([*command, "split-histgb", "gp"])


def test_failed_run_is_named_and_the_rest_is_kept(tmp_path, capsys, monkeypatch):
    def fail(*args):
        raise ArithmeticError("no luck")

    broken = replace(_peer_table.BY_NAME["gp"], fit=fail)
    monkeypatch.setitem(_peer_table.BY_NAME, "gp", broken)
    command = ["peers", "--smoke", "--out", str(tmp_path)]
    assert main([*command, "--methods", "split-histgb", "gp"]) == 1
    out = capsys.readouterr().out
    assert "FAILED gp on diabetes, seed 0: ArithmeticError: no luck" in out
    assert [r["method"] for r in rows_in(tmp_path)] == ["split-histgb"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--methods", "magic"], "Got --methods magic, but expected names of"),
        (["--seeds", "0"], "Got --seeds 0, but expected at least 1"),
        (["--max-rows", "10"], "Got --max-rows 10, but expected at least 50"),
        (["--confidence-level", "90"], "Got --confidence-level 90.0"),
        (["--calibration-share", "0.9"], "Got --calibration-share 0.9, but expected"),
        (["--csv", "f.csv"], "expected both or none"),
        (["--smoke", "--data", "."], "more than one of --smoke, --csv and --data"),
        (["--csv", "absent.csv", "--target", "y"], "no such file is there"),
        (["--data", ".", "--datasets", "absent"], "has the CSV files: none"),
    ],
)
def test_command_line_errors(options, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(["peers", *options])
    assert message in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


def test_absent_library_is_named(monkeypatch, capsys):
    module = "mapie_claps.studies.arguments.find_spec"
    monkeypatch.setattr(module, lambda name: None if name == "crepes" else object())
    with pytest.raises(SystemExit, match="2"):
        main(["peers", "--smoke", "--methods", "crepes"])
    err = " ".join(capsys.readouterr().err.split())
    assert (
        'no module named crepes. Install what is missing with: pip install "mapie'
        in err
    )


def test_old_mapie_is_named(monkeypatch, capsys):
    monkeypatch.setattr("mapie_claps.studies.runner.version", lambda name: "1.5.0")
    with pytest.raises(SystemExit, match="2"):
        main(["peers", "--smoke", "--methods", "split-histgb"])
    err = " ".join(capsys.readouterr().err.split())
    assert "Got MAPIE 1.5.0, but expected 1.6 or later" in err
