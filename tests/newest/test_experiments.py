import csv
import math

import numpy as np
import pytest
import torch
from sklearn.model_selection import KFold

from mapie_claps import ClapsRegressor
from mapie_claps.experiments import claims, experiment, report, tables
from mapie_claps.experiments.__main__ import main
from mapie_claps.experiments.experiment import EXPERIMENTS, Options, load_rows
from mapie_claps.experiments.methods import (
    NetworkRegressor,
    PaperMethods,
    distributional_score,
    quantile_models,
    standardised_residual,
)
from mapie_claps.experiments.protocol import METHODS
from mapie_claps.experiments.runs import benchmark_rows, split_rows, variance_metrics
from mapie_claps.studies.data import Dataset, Split
from mapie_claps.studies.scoring import stratified_estimate
from mapie_claps.studies.store import Store

LEVELS = (0.05, 0.95)
HEADS = ("mean", "noise")
SMOKE = Options(smoke=True)


def template(steps=150, rate=1e-2):
    """Small layers, which learn fast."""
    return ClapsRegressor.paper(
        hidden_layer_sizes=(16,),
        representation_size=16,
        max_steps=steps,
        learning_rate=rate,
    )


def curve(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, 1))
    return X, 3 * np.sin(2 * X[:, 0]) + 40 + 0.3 * rng.normal(size=n)


@pytest.fixture(scope="module")
def methods():
    parts = [curve(n, seed) for seed, n in enumerate((120, 80, 60))]
    return PaperMethods(
        Split(*(a for part in parts for a in part)), 0, {"max_steps": 60}
    )


# --- scores and networks


def test_distributional_score_keeps_its_accuracy_in_the_tails():
    z = np.concatenate([np.linspace(0, 1, 101), np.linspace(1.01, 30, 400)])
    score = distributional_score(z)
    assert (np.diff(score) > 0).all()
    np.testing.assert_allclose(standardised_residual(score), z, atol=1e-9, rtol=1e-9)
    # In the middle it is what its name says.
    sf = np.array([0.5 * math.erfc(v / math.sqrt(2)) for v in z[z < 5]])
    np.testing.assert_allclose(score[z < 5], -np.log(2 * sf), atol=1e-12)


@pytest.mark.parametrize("farthest", [3.0, 30.0])
def test_dcp_equals_lacp(methods, farthest):
    """Also where the calibration residuals are 30 standard deviations out."""
    split, model = methods.split, methods.scaled_by("aleatoric")
    mu, std = model.predict(split.X_cal, return_std=True)
    z = np.linspace(-farthest, farthest, len(mu))
    stretched = Split(
        split.X_train,
        split.y_train,
        split.X_cal,
        mu + z * std,
        split.X_test,
        split.y_test,
    )
    far = PaperMethods(stretched, methods.seed, methods.paper)
    far.__dict__["heteroscedastic"] = methods.heteroscedastic
    np.testing.assert_allclose(far.interval("DCP"), far.interval("LACP"), rtol=1e-9)


def test_squared_error_network_learns_and_leaves_torch_alone():
    X, y = curve(200)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    model = NetworkRegressor(template(), random_state=0).fit(X, y)
    again = NetworkRegressor(template(), random_state=0).fit(X, y)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.get_num_threads() == threads
    assert np.array_equal(model.predict(X), again.predict(X))
    assert np.mean((model.predict(X) - y) ** 2) < 0.2


def test_quantile_network_finds_the_quantiles():
    X, y = curve(400)
    network = NetworkRegressor(template(400), 0, LEVELS).fit(X, y)
    low, high, middle = (model.predict(X) for model in quantile_models(network))
    assert np.mean(y < low) == pytest.approx(0.05, abs=0.04)
    assert np.mean(y < high) == pytest.approx(0.95, abs=0.04)
    assert (low <= high).all()
    np.testing.assert_allclose(middle, (low + high) / 2)


def three_networks(X, y, **params):
    """Trained networks of CLAPS, of the squared error and of the quantiles."""
    paper = ClapsRegressor.paper(**params)
    claps = ClapsRegressor.paper(**params, random_state=4).fit(X, y)
    others = (
        NetworkRegressor(paper, random_state=4),
        NetworkRegressor(paper, random_state=4, levels=LEVELS),
    )
    return [claps.network_, *(model.fit(X, y).model_.network_ for model in others)]


def likelihood(out, y):
    """Gaussian, with h² = softplus + 1e-3."""
    h2 = torch.nn.functional.softplus(out[:, 1]) + 1e-3
    return torch.nn.functional.gaussian_nll_loss(out[:, 0], y, h2, eps=0)


def squares(out, y):
    return torch.mean((y - out[:, 0]) ** 2)


def pinball(out, y):
    gap = y[:, None] - out
    level = torch.tensor(LEVELS)
    return torch.maximum(level * gap, (level - 1) * gap).sum(1).mean()


@pytest.mark.usefixtures("own_random_state")
def test_networks_share_layers_initial_weights_and_optimiser():
    """In plain torch, from the same start, three steps lead to the same weights."""
    X, y = curve(50)
    X = np.c_[X, 30 * X**3]  # not clipped
    start, *others = three_networks(X, y, max_steps=1, learning_rate=1e-30)
    first = start.state_dict()
    assert [first[f"trunk.{i}.weight"].shape[1:] for i in (0, 1)] == [(64, 64)] * 2
    for other in others:
        state = other.state_dict()
        assert state.keys() == first.keys()
        assert all(torch.equal(state[name], first[name]) for name in first)
    bound = max(float(first[f"{h}_head.bias"].abs().max()) for h in HEADS)
    assert bound <= 1 / 8  # torch's ±1/√64

    scaled = ((a - a.mean(0)) / a.std(0) for a in (X, y))
    inputs, targets = (torch.tensor(a, dtype=torch.float32) for a in scaled)
    trained = three_networks(X, y, max_steps=3)
    for network, loss in zip(trained, (likelihood, squares, pinball), strict=True):
        plain = plain_torch(first)
        adam = torch.optim.Adam(plain.parameters(), lr=1e-3)
        for _ in range(3):
            adam.zero_grad()
            loss(plain(inputs), targets).backward()
            adam.step()
        expected = plain_torch(network.state_dict())
        for ours, torchs in zip(expected.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours, torchs, atol=2e-6, rtol=0)


def plain_torch(state):
    """The network of one member as layers of torch, both heads as one."""
    names = ["first.0", "trunk.0", "trunk.1"]
    weights = [(state[f"{n}.weight"], state[f"{n}.bias"]) for n in names]
    heads = [(state[f"{h}_head.weight"], state[f"{h}_head.bias"]) for h in HEADS]
    weights.append(tuple(torch.cat(parts, -1) for parts in zip(*heads, strict=True)))
    modules = []
    for weight, bias in weights:
        layer = torch.nn.Linear(*weight.shape[1:])
        with torch.no_grad():
            layer.weight.copy_(weight[0].T)
            layer.bias.copy_(bias[0, 0])
        modules += [layer, torch.nn.SiLU()]
    return torch.nn.Sequential(*modules[:-1])


# --- methods


@pytest.mark.parametrize("method", METHODS)
def test_methods_give_ordered_bounds(methods, method):
    bounds = methods.interval(method)
    assert bounds.shape == (60, 2)
    assert np.isfinite(bounds).all()
    assert (bounds[:, 0] < bounds[:, 1]).all()


def test_claps_and_lacp_differ_by_their_scale_alone(methods):
    lacp, claps = methods.interval("LACP"), methods.interval("CLAPS")
    np.testing.assert_allclose(lacp.mean(axis=1), claps.mean(axis=1), rtol=1e-12)
    parts = methods.heteroscedastic.predict_variance(methods.split.X_test)
    ratio = np.ptp(claps, axis=1) / np.ptp(lacp, axis=1)
    common = ratio / parts.scale_ratio
    np.testing.assert_allclose(common, common[0])


def test_split_cp_is_the_quantile_of_the_residuals(methods):
    split = methods.split
    model = methods.network()
    model.fit(split.X_train, split.y_train)
    residuals = np.sort(np.abs(split.y_cal - model.predict(split.X_cal)))
    half = residuals[math.ceil(81 * 0.9) - 1]
    centre = model.predict(split.X_test)
    expected = np.stack([centre - half, centre + half], axis=1)
    np.testing.assert_allclose(methods.interval("Split CP"), expected)


def test_splits_are_disjoint_and_share_their_test_rows():
    X = np.arange(7000.0)[:, None]
    data = Dataset("line", X, X[:, 0])
    split = split_rows(data, seed=3)
    sizes = [len(split.y_train), len(split.y_cal), len(split.y_test)]
    assert sizes == [3000, 1000, 1000]
    rows = np.concatenate([split.y_train, split.y_cal, split.y_test])
    assert len(np.unique(rows)) == 5000
    other = split_rows(data, seed=3, calibration_fraction=0.3)
    assert np.array_equal(split.y_test, other.y_test)
    assert [len(other.y_train), len(other.y_cal)] == [2500, 1500]


@pytest.mark.parametrize(
    ("n", "sizes"),
    [(308, [185, 62, 61]), (768, [461, 154, 153]), (1503, [902, 301, 300])],
)
def test_parts_have_the_sizes_that_the_published_coverages_are_fractions_of(n, sizes):
    X = np.arange(float(n))[:, None]
    data = Dataset("line", X, X[:, 0])
    assert [len(part) for part in split_rows(data, seed=0)[1::2]] == sizes
    other = split_rows(data, seed=0, calibration_fraction=0.1)
    assert np.array_equal(other.y_test, split_rows(data, seed=0).y_test)
    assert len(other.y_cal) == round(0.1 * n)


def test_naval_is_about_the_turbine(tmp_path):
    table = np.random.default_rng(0).normal(size=(11934, 17))
    for name, shift in (("naval", 0.0), ("naval_turbine", 5.0)):
        file = tmp_path / f"{name}.csv"
        np.savetxt(file, table + shift, fmt="%.3f", delimiter=",", header="h")
    data = load_rows("naval", Options(str(tmp_path)))
    assert data.name == "naval_turbine"
    assert data.y.mean() == pytest.approx(5, abs=0.1)


def test_cv_plus_takes_five_folds_of_training_and_calibration_rows(methods):
    """The bounds of MAPIE's definition, from five networks trained by hand."""
    split = methods.split
    X = np.concatenate([split.X_train, split.X_cal])
    y = np.concatenate([split.y_train, split.y_cal])
    lower, upper = [], []
    folds = KFold(5, shuffle=True, random_state=methods.seed).split(X)
    for train, fold in folds:
        model = methods.network()
        model.fit(X[train], y[train])
        residuals = np.abs(y[fold] - model.predict(X[fold]))
        centre = model.predict(split.X_test)[:, None]
        lower.append(centre - residuals)
        upper.append(centre + residuals)
    k = math.ceil(201 * 0.9)  # of 200: the k-th smallest, and the k-th largest
    low = -np.sort(-np.concatenate(lower, axis=1))[:, k - 1]
    high = np.sort(np.concatenate(upper, axis=1))[:, k - 1]
    expected = np.stack([low, high], axis=1)
    np.testing.assert_allclose(methods.interval("CV+"), expected, rtol=1e-9)


def test_both_epistemic_fractions(methods):
    X = methods.split.X_test
    found = variance_metrics(methods.heteroscedastic, X)
    v = methods.heteroscedastic.predict_variance(X)
    share = v.epistemic / (v.aleatoric + v.epistemic)
    assert found["epistemic_fraction"] == pytest.approx(share.mean())
    total = v.epistemic.sum() + v.aleatoric.sum()
    assert found["epistemic_fraction_of_means"] == pytest.approx(
        v.epistemic.sum() / total
    )


def test_benchmark_rows_rank_all_methods():
    rows = benchmark_rows(load_rows("concrete", SMOKE), 0, {"max_steps": 5})
    assert [row["method"] for row in rows] == list(METHODS)
    assert sum(row["width_rank"] for row in rows) == 21
    assert rows[0]["width_reduction"] == 0
    lacp, dcp = rows[METHODS.index("LACP")], rows[METHODS.index("DCP")]
    # They tie, although their bounds differ by rounding.
    assert lacp["score_rank"] == dcp["score_rank"]


# --- keys of runs


def test_key_holds_protocol_parameters_and_data(monkeypatch):
    """Once, it held neither the parameters of the networks nor the data."""
    benchmark = EXPERIMENTS["benchmark"]
    key = benchmark.plan(1, SMOKE)[0].key
    expected = set(ClapsRegressor.paper().get_params()) - {"random_state"}
    assert set(key["method"]["networks"]) == expected
    assert key["method"]["networks"]["max_steps"] == 5
    assert key["method"]["networks"]["hidden_layer_sizes"] == [64, 64]
    assert key["split"]["training"] == 0.6
    data = load_rows("concrete", SMOKE)
    assert key["data"]["sha256"] == data.content_hash
    other = Dataset(data.name, data.X, data.y + 1)
    module = "mapie_claps.experiments.experiment.load_rows"
    monkeypatch.setattr(module, lambda case, options: other)
    assert benchmark.plan(1, SMOKE)[0].key != key


def test_key_of_synthetic_rows_holds_their_hash(monkeypatch):
    """Once, it held the name of the generator, whatever that drew."""
    plan = EXPERIMENTS["mechanism"].plan
    before = [run.key for run in plan(2, SMOKE)]
    assert before[0]["data"]["sha256"] != before[1]["data"]["sha256"]
    monkeypatch.setattr("mapie_claps.datasets.NOISY", (0.5, 3.0))
    experiment._drawn.cache_clear()
    after = [run.key for run in plan(2, SMOKE)]
    experiment._drawn.cache_clear()
    assert [a != b for a, b in zip(after, before, strict=True)] == [True, True]


def test_keys_tell_runs_apart():
    keys = [run.key for one in EXPERIMENTS.values() for run in one.plan(2, SMOKE)]
    assert len({str(key) for key in keys}) == len(keys)
    assert len(keys) == 2 * sum(len(e.cases) for e in EXPERIMENTS.values())
    synthetic = EXPERIMENTS["contraction"]
    quick, full = (synthetic.plan(1, Options(smoke=s))[0].key for s in (True, False))
    assert quick != full


def test_further_seeds_are_other_seeds():
    first, further = (
        {run.key["split"]["seed"] for run in EXPERIMENTS[name].plan(None, SMOKE)}
        for name in ("benchmark", "further_seeds")
    )
    assert first == set(range(5))
    assert further == set(range(5, 15))


# --- tables and report


def test_tables_average_cases_before_seeds():
    table = tables.Table("exp3_real_benchmark", "benchmark", "method")
    fields = set(table.columns.values()) - {"coverage"}
    rows = [
        {"case": case, "seed": seed, "method": "CLAPS", "coverage": value}
        | dict.fromkeys(fields, 0.0)
        for case, seed, value in (
            ("a", 0, 0.8),
            ("b", 0, 1.0),
            ("a", 1, 0.9),
            ("b", 1, 1.0),
        )
    ]
    (claps,) = (
        cell
        for cell in tables.fill(table, rows)
        if (cell["row"], cell["column"]) == ("CLAPS", "Coverage")
    )
    assert (claps["seeds"], claps["paper"]) == (2, 0.8995)
    assert claps["ours"] == pytest.approx(0.925)
    assert claps["sd"] == pytest.approx(np.std([0.9, 0.95], ddof=1))
    assert claps["difference"] == pytest.approx(0.0255)
    assert "| CLAPS | ours | 0.9250 ± 0.0354 |" in tables.to_markdown([claps])
    text = tables.all_tables({"benchmark": rows})["tables/exp3_real_benchmark.csv"]
    assert "\nCLAPS,Coverage,0.925,0.0353553,2,0.8995,,0.0255\n" in text
    assert "\nSplit CP,Coverage,,,0,0.8956,,\n" in text


def test_every_published_table_is_in_the_package():
    names = [table.name for table in tables.TABLES]
    assert len(names) == 15
    for table in tables.TABLES:
        for line in tables.published(table.name):
            for column in set(table.columns) - set(tables.PUBLISHED_LABEL):
                assert math.isfinite(float(line[column]))
    known = set(tables.COLUMNS) | {f"{name} sd" for name in tables.COLUMNS}
    headers = [list(tables.published(name)[0])[1:] for name in names]
    # The share of training rows is what the share of calibration rows leaves.
    assert set().union(*headers) - known == {"Train Frac."}


def test_a_second_reading_stands_beside_the_same_published_figure():
    table = next(t for t in tables.TABLES if t.experiment == "contraction")
    row = dict.fromkeys(table.columns.values(), 0.0) | {"case": "100", "seed": 0}
    row |= {"epistemic_fraction": 0.1, "epistemic_fraction_of_means": 0.2}
    cells = {c["column"]: c for c in tables.fill(table, [row]) if c["row"] == "100"}
    first, second = cells["Epi. Frac."], cells["Epi. Frac. of Means"]
    assert (first["ours"], second["ours"]) == (0.1, 0.2)
    assert second["paper"] == first["paper"] == 0.0943


def test_distance_is_the_mean_log_ratio_of_means_over_seeds():
    rows = [
        {"case": "yacht", "seed": seed, "method": line["Method"]}
        | {"score": factor * float(line["Int. Score"])}
        | {"width": float(line["Avg. Width"])}
        for line in tables.published("exp3_yacht")
        for seed, factor in enumerate((1.5, 2.5))
    ]
    found = tables.distances(rows)
    assert len(found) == 6
    for one in found:
        assert one["log_score_ratio"] == pytest.approx(math.log(2))
        assert one["log_width_ratio"] == pytest.approx(0)
    files = tables.all_tables({"further_seeds": rows})
    names = [f"tables/distance_further_seeds.{end}" for end in ("csv", "md")]
    assert list(files) == ["rows/further_seeds.csv", *names]
    lines = files[names[1]].splitlines()
    assert lines[2].startswith("| yacht | 0.69 / 0.00 |")
    assert lines[-1].startswith("| **all** |")
    assert lines[-1].endswith("| 0.347 |")  # log(2) / 2


def test_estimates_are_paired():
    rows = [
        {"case": "a", "seed": s, "method": m, "width": w}
        for s, (x, y) in enumerate(((1.0, 2.0), (5.0, 6.5), (9.0, 10.0)))
        for m, w in (("CLAPS", x), ("LACP", y))
    ]
    line = {"experiment": "mechanism", "measure": "width", "of": "CLAPS"}
    line |= {"on": "", "relation": ""}
    (found,) = claims.Check(line | {"against": "LACP"}, rows).estimates().values()
    differences = np.array([-1.0, -1.5, -1.0])
    assert found.mean == pytest.approx(differences.mean())
    assert found.error == pytest.approx(differences.std(ddof=1) / math.sqrt(3))
    assert found.below(0)
    assert not found.above(0)
    (relative,) = claims.Check(line | {"against": "/ LACP"}, rows).estimates().values()
    assert relative.mean == pytest.approx(np.mean([1 / 2, 5 / 6.5, 0.9]) - 1)


def test_standard_errors_take_data_sets_as_given():
    estimate = stratified_estimate({"a": [1.0, 3.0], "b": [101.0, 103.0]})
    assert estimate.mean == 52
    # Each mean has variance 2 / 2; half their sum has (1 + 1) / 4.
    assert estimate.error == pytest.approx(math.sqrt(0.5))


def test_report_says_why_a_claim_does_not_hold():
    held = claims.Claim("Here", "Water is wet.", "1 of 1", True, "never shown")
    failed = claims.Claim("Here", "Pigs fly.", "0 of 3", False, "No wings.")
    text = report.to_markdown([held, failed], {"mechanism": 2}, {})
    assert "1 of 2 claims hold" in text
    assert "| Water is wet. | 1 of 1 | holds |" in text
    assert "| Pigs fly. | 0 of 3 | **does not hold**: No wings. |" in text


# --- the command


def test_smoke_of_one_experiment_and_report_again(tmp_path, capsys):
    out = tmp_path / "out"
    command = ["contraction", "--smoke", "--out", str(out)]
    assert main(command) == 0
    assert "10 runs" in capsys.readouterr().out
    table = out / "tables" / "exp2_contraction.csv"
    before = table.read_text()
    lines = list(csv.DictReader(before.splitlines()))
    assert len(lines) == 5 * 7
    assert all(line["seeds"] == "2" for line in lines)
    assert (out / "figures" / "contraction.png").stat().st_size > 1000
    assert "## Experiment 2" in (out / "report.md").read_text()
    table.unlink()
    assert main(["report", *command[1:]]) == 0
    assert table.read_text() == before


def test_smoke_in_two_processes(tmp_path):
    out = tmp_path / "out"
    command = ["prior_precision", "--smoke", "--seeds", "1", "--jobs", "2"]
    assert main([*command, "--out", str(out)]) == 0
    with (out / "rows" / "prior_precision.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 4 * 7
    assert len(Store(out).lines()) == 4
    # The trained model is held fixed: only the epistemic part changes.
    shares = [float(r["epistemic_fraction"]) for r in rows if r["case"] == "bike"]
    assert shares == sorted(shares, reverse=True)
    assert len({r["min_h2"] for r in rows if r["case"] == "bike"}) == 1


def test_interrupt_ends_with_a_word(tmp_path, monkeypatch, capsys):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("mapie_claps.experiments.__main__.run_missing", interrupt)
    assert main(["mechanism", "--smoke", "--out", str(tmp_path)]) == 130
    assert "continues from here" in capsys.readouterr().err


def test_help_names_every_experiment(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    text = capsys.readouterr().out
    assert all(name in text for name in EXPERIMENTS)


def test_wrong_arguments_are_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["mechanism", "--jobs", "0"])
    assert "expected at least 1" in capsys.readouterr().err
