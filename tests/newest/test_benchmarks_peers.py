"""The benchmark against peers: splits, tuning, runs, resume, errors."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from joblib import parallel_config
from scipy.stats import betabinom

from mapie_claps import conformal_quantile
from mapie_claps.benchmarks import _data, _peers, _runs, _tuning
from mapie_claps.benchmarks.__main__ import main
from mapie_claps.benchmarks._scoring import SplitSize, coverage_limits, interval_score
from mapie_claps.benchmarks._tuning import Band, Method, calibrated_score, tune


def noisy(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    return X, X[:, 0] + np.exp(0.5 * X[:, 1]) * rng.normal(size=n)


def test_interval_score_by_hand():
    lower, upper = np.array([0.0, 0.0, 0.0]), np.array([2.0, 2.0, 2.0])
    y = np.array([1.0, -0.5, 3.0])
    # 2, 2 + 10 · 0.5, 2 + 10 · 1
    assert interval_score(lower, upper, y, alpha=0.2) == pytest.approx(21 / 3)


def test_coverage_limits_of_uniform_counts():
    # n_cal = 1, α = 0.5: k = 1 and BB(n; 1, 1) is uniform on 0 … n. The sum of two
    # uniforms on 0 … 3 is triangular on 0 … 6 with P(0) = 1/16 and P(≤ 1) = 3/16.
    sizes = [SplitSize(1, 3)] * 2
    assert coverage_limits(sizes, 0.5, probability=0.95) == (0.0, 1.0)
    assert coverage_limits(sizes, 0.5, probability=1 - 2 / 16) == (1 / 6, 5 / 6)
    assert coverage_limits(sizes, 0.5, probability=1 - 5.9 / 16) == (1 / 6, 5 / 6)
    assert coverage_limits(sizes, 0.5, probability=1 - 6 / 16) == (2 / 6, 4 / 6)


def test_coverage_limits_agree_with_simulation():
    rng = np.random.default_rng(0)
    n_cal, n_test, k = 40, 30, 37
    draws = betabinom.rvs(n_test, k, n_cal + 1 - k, size=(200_000, 4), random_state=rng)
    expected = np.quantile(draws.sum(axis=1), [0.01, 0.99]) / (4 * n_test)
    limits = coverage_limits([SplitSize(n_cal, n_test)] * 4, 0.1, probability=0.98)
    np.testing.assert_allclose(limits, expected, atol=1.01 / (4 * n_test))


def test_coverage_is_certain_where_the_rank_exceeds_the_scores():
    assert coverage_limits([SplitSize(5, 7)], 0.1) == (1.0, 1.0)


def test_split_is_a_seeded_partition_of_at_most_max_rows():
    data = _data.Dataset("d", np.arange(200.0)[:, None], np.arange(200.0))
    split = _data.split_rows(data, 3, max_rows=100)
    parts = [split.y_train, split.y_cal, split.y_test]
    assert [len(p) for p in parts] == [60, 20, 20]
    assert len(np.unique(np.concatenate(parts))) == 100
    np.testing.assert_array_equal(split.X_cal[:, 0], split.y_cal)
    again, other = (_data.split_rows(data, seed, max_rows=100) for seed in (3, 4))
    np.testing.assert_array_equal(split.y_test, again.y_test)
    assert not np.array_equal(split.y_test, other.y_test)


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

    def band(self, model, X, params):
        unit = np.exp(params["power"] * X[:, 1])
        return Band(X[:, 0] + params["shift"], X[:, 0] + params["shift"], unit)

    def method(self, **options):
        grid = [
            {"shift": shift, "power": power}
            for shift in (3.0, 0.0)
            for power in (0.0, 0.5)
        ]
        return Method(
            "m", "M", self.fit, self.band, None, grid, free=("power",), **options
        )


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
    assert tune(_peers.BY_NAME["claps"], X, y, 0.1, 0) == _tuning.Choice({}, None)


@pytest.mark.parametrize("name", _peers.PEERS)
def test_library_makes_the_interval_that_the_band_says(name):
    # n_cal + 1 = 50: (n + 1)(1 − α) = 45 is an integer, where ranks go wrong.
    X, y = noisy(149)
    method = _peers.BY_NAME[name]
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


@pytest.mark.parametrize("name", ["cqr-histgb", "split-histgb"])
def test_early_iterations_are_those_of_a_shorter_fit(name):
    X, y = noisy(120)
    method = _peers.BY_NAME[name]
    short, long = method.grid[0], method.grid[1]
    assert short["max_iter"] < long["max_iter"]
    staged = method.band(method.fit(X, y, long, 0, 0.1), X, short)
    own = method.band(method.fit(X, y, short, 0, 0.1), X, short)
    np.testing.assert_allclose(staged.upper, own.upper)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """Folder of one quick run of every method."""
    out = tmp_path_factory.mktemp("smoke")
    assert main(["peers", "--smoke", "--out", str(out)]) == 0
    return out


def test_smoke_runs_every_method(smoke):
    rows = _runs.read_rows(smoke)
    assert [r["method"] for r in rows] == list(_peers.BY_NAME)
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
    before = (smoke / "rows.jsonl").read_text()
    report = (smoke / "report.md").read_text()
    assert main(["peers", "--smoke", "--out", str(smoke)]) == 0
    assert (smoke / "rows.jsonl").read_text() == before
    assert capsys.readouterr().out == report


def test_run_resumes_after_a_line_cut_short(tmp_path):
    command = ["peers", "--smoke", "--out", str(tmp_path)]
    command += ["--methods", "split-histgb", "normalised-histgb"]
    assert main(command) == 0
    path = tmp_path / "rows.jsonl"
    first, second = path.read_text().splitlines()
    path.write_text(first + "\n" + second[: len(second) // 2])
    assert main(command) == 0
    rows = _runs.read_rows(tmp_path)
    assert [r["method"] for r in rows] == ["split-histgb", "normalised-histgb"]
    times = [name for name in rows[1] if name.endswith("_seconds")]
    redone, original = rows[1], json.loads(second)
    for name in times:
        del redone[name], original[name]
    assert redone == original


def test_other_settings_do_not_mix(smoke):
    with pytest.raises(SystemExit):
        main(["peers", "--smoke", "--out", str(smoke), "--confidence-level", "0.8"])


def write_csv(path, n=60, header="a,b,price", cells=None):
    X, y = noisy(n)
    lines = [f"{a},{b},{p}" for (a, b, _), p in zip(X, y, strict=True)]
    for i, text in (cells or {}).items():
        lines[i] = text
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def test_own_csv_through_joblib(tmp_path):
    path = write_csv(tmp_path / "own.csv", n=100, header="price,a,b")
    command = ["peers", "--csv", str(path), "--target", "price", "--seeds", "2"]
    command += ["--methods", "crepes", "--out", str(tmp_path / "out"), "--jobs", "2"]
    with parallel_config(backend="sequential"):  # processes take long to start
        assert main(command) == 0
    rows = _runs.read_rows(tmp_path / "out")
    assert sorted((r["dataset"], r["seed"]) for r in rows) == [("own", 0), ("own", 1)]
    assert rows[0]["n_train"] == 60


def test_runs_travel_to_other_processes():
    task = _runs.Task(_data.load_diabetes_rows(), 0, "split-histgb", 0.1, 5000, True)
    task = pickle.loads(pickle.dumps(task))
    assert pickle.loads(pickle.dumps(_runs._safe))(task)[0] == task.key


def test_target_need_not_be_last(tmp_path):
    path = write_csv(tmp_path / "own.csv")
    first, last = _data.load_csv(path, "a"), _data.load_csv(path)
    np.testing.assert_array_equal(first.X[:, 1], last.y)
    np.testing.assert_array_equal(last.X[:, 0], first.y)


def test_failed_run_is_named_and_the_rest_is_kept(tmp_path, capsys, monkeypatch):
    def fail(*args):
        raise ArithmeticError("no luck")

    broken = replace(_peers.BY_NAME["gp"], fit=fail)
    monkeypatch.setitem(_peers.BY_NAME, "gp", broken)
    command = ["peers", "--smoke", "--out", str(tmp_path)]
    assert main([*command, "--methods", "split-histgb", "gp"]) == 1
    out = capsys.readouterr().out
    assert "FAILED gp on diabetes, seed 0: ArithmeticError: no luck" in out
    assert [r["method"] for r in _runs.read_rows(tmp_path)] == ["split-histgb"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--methods", "magic"], "Got --methods magic, but expected names of"),
        (["--seeds", "0"], "Got --seeds 0, but expected at least 1"),
        (["--max-rows", "10"], "Got --max-rows 10, but expected at least 50"),
        (["--confidence-level", "90"], "Got --confidence-level 90.0"),
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


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({3: "1,,2"}, r"missing or infinite value '' in row 4, column 'b'.*SimpleImp"),
        ({0: "1,inf,2"}, r"infinite value 'inf' in row 1, column 'b'"),
        ({2: "red,1,2"}, r"the text 'red' in row 3, column 'a'.*OneHotEncoder"),
        ({2: "1,2"}, r"Got 2 cells in row 3 of own.csv, but the header has 3"),
    ],
)
def test_bad_cells_are_named_with_the_remedy(cells, message, tmp_path):
    path = write_csv(tmp_path / "own.csv", cells=cells)
    with pytest.raises(ValueError, match=message):
        _data.load_csv(path)


def test_bad_files_are_named(tmp_path):
    path = write_csv(tmp_path / "own.csv")
    with pytest.raises(ValueError, match=r"target='cost'.*a, b, price"):
        _data.load_csv(path, "cost")
    short = write_csv(tmp_path / "short.csv", n=49)
    with pytest.raises(ValueError, match="Got 49 rows in short"):
        _data.load_csv(short)
    constant = write_csv(tmp_path / "c.csv", cells={i: f"{i},1,7" for i in range(60)})
    with pytest.raises(ValueError, match="1 distinct values of 'price'"):
        _data.load_csv(constant)


def test_absent_library_is_named(monkeypatch, capsys):
    module = "mapie_claps.benchmarks.peers.find_spec"
    monkeypatch.setattr(module, lambda name: None if name == "crepes" else object())
    with pytest.raises(SystemExit, match="2"):
        main(["peers", "--smoke", "--methods", "crepes"])
    err = " ".join(capsys.readouterr().err.split())
    assert (
        'no module named crepes. Install what is missing with: pip install "mapie'
        in err
    )


def test_old_mapie_is_named(monkeypatch, capsys):
    monkeypatch.setattr("mapie_claps.benchmarks.peers.version", lambda name: "1.5.0")
    with pytest.raises(SystemExit, match="2"):
        main(["peers", "--smoke", "--methods", "split-histgb"])
    err = " ".join(capsys.readouterr().err.split())
    assert "Got MAPIE 1.5.0, but the benchmark needs 1.6 or later" in err
